//! What a data set is like, how fast a few of its samples can be read and decoded, and what to choose for
//! it. The decisions are pure; `read` looks at the files.

use feedline_core::decode::{self, ImageHeader, Options};
use feedline_core::error::{Error, Kind, Result};
use feedline_core::format::example::{self, List};
use feedline_core::format::{Container, tar};
use feedline_core::source::walk::walk_first;
use feedline_core::sys::limits::{FileSystem, Machine, file_system};
use feedline_core::sys::{clock, file};
use serde::Serialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::diagnosis::{Diagnosis, Fact, Finding, Severity};
use super::machine::{self, Choices, thousands};
use super::surroundings::Surroundings;
use crate::dataset::{Format, Paths};
use crate::report::{bytes, counted};
use crate::shards::size;
use crate::verify::look::{Depth, Examiner};
use crate::verify::tally::Tally;

/// Samples that are read and decoded.
const MEASURED: usize = 16;
/// Files whose size is looked up: more would take long on slow storage.
const SIZED: usize = 1000;
/// Files below this many bytes are small, and above this count they are many.
const SMALL_FILE: u64 = 1 << 20;
const MANY_FILES: u64 = 1000;
/// A sample that takes longer to read is on slow storage.
const SLOW_READ: Duration = Duration::from_millis(20);
/// What an image takes in a batch: 3 x 224 x 224 numbers of 4 bytes.
const PICTURE_BYTES: u64 = 3 * 224 * 224 * 4;
/// Batches that should fit into the bytes of prefetched batches.
const BATCHES: u64 = 4;
const LARGEST_BATCH: u64 = 256;
/// A worker that has imported torch needs about this much memory.
const WORKER_BYTES: u64 = 512 << 20;

/// Compressions whose shards can only be read from their beginning.
const PACKED: [&str; 8] = ["gz", "tgz", "zst", "tzst", "xz", "txz", "bz2", "tbz2"];

/// A data set.
#[derive(Debug, Default, Serialize)]
pub(crate) struct DataSet {
    /// What it consists of, as text.
    pub(crate) parts: Vec<String>,
    pub(crate) images: u64,
    pub(crate) shards: u64,
    pub(crate) packed_shards: u64,
    /// Bytes of all files; estimated from some of them if there are many.
    pub(crate) total_bytes: u64,
    pub(crate) median_bytes: u64,
    pub(crate) largest_bytes: u64,
    pub(crate) file_systems: Vec<FileSystem>,
    pub(crate) measured: Vec<Measured>,
    /// Samples that could not be read or decoded, of those that were tried.
    pub(crate) bad: u64,
}

/// A sample that was read and decoded.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Measured {
    pub(crate) bytes: u64,
    /// Width and height, if it is an image.
    pub(crate) pixels: Option<(usize, usize)>,
    pub(crate) read_seconds: f64,
    pub(crate) decode_seconds: f64,
}

impl DataSet {
    /// Looks at the files that the paths match.
    pub(crate) fn read(paths: &Paths) -> Result<DataSet> {
        let found = paths.find()?;
        let mut data = DataSet::default();
        let mut all: Vec<PathBuf> = Vec::new();
        for (_, images) in &found.folders {
            data.images += images.len() as u64;
            all.extend(images.iter().cloned());
        }
        data.images += found.images.len() as u64;
        all.extend(found.images.iter().cloned());
        if data.images > 0 {
            data.parts.push(counted(data.images, "image", "images"));
        }
        let pictures: Vec<_> = spread(&all, MEASURED).into_iter().cloned().collect();
        for (format, shards) in &found.shards {
            data.shards += shards.len() as u64;
            data.packed_shards += shards.iter().filter(|path| is_packed(path)).count() as u64;
            let one = format!("{} shard", format.name());
            data.parts.push(counted(shards.len() as u64, &one, &format!("{one}s")));
            all.extend(shards.iter().cloned());
        }
        if all.is_empty() {
            return Err(Error::new(Kind::InvalidSource, "there is no data at these paths")
                .with_hint("images, TFRecord, tar, JSON lines and CSV are known by their names"));
        }
        data.note_sizes(&all);
        data.note_file_systems(&all);
        let mut examiner = Examiner::default();
        for path in pictures {
            data.measure_file(&path, &mut examiner);
        }
        for (format, shards) in &found.shards {
            if *format != Format::Tokens {
                let container = paths.reading.container(*format, shards)?;
                for path in spread(shards, 2) {
                    data.measure_shard(path, &container, &mut examiner);
                }
            }
        }
        Ok(data)
    }

    fn note_sizes(&mut self, all: &[PathBuf]) {
        let mut sizes: Vec<u64> = spread(all, SIZED).iter().map(|path| size(path)).collect();
        sizes.sort_unstable();
        let sum: u64 = sizes.iter().sum();
        let looked_at = sizes.len().max(1) as u64;
        self.total_bytes = (u128::from(sum) * all.len() as u128 / u128::from(looked_at)) as u64;
        self.median_bytes = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
        self.largest_bytes = sizes.last().copied().unwrap_or(0);
    }

    fn note_file_systems(&mut self, all: &[PathBuf]) {
        let mounts = file::read_text(Path::new("/proc/self/mountinfo")).unwrap_or_default();
        for path in spread(all, MEASURED) {
            let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
            if let Some(found) = file_system(&mounts, &whole)
                && !self.file_systems.contains(&found)
            {
                self.file_systems.push(found);
            }
        }
    }

    fn measure_file(&mut self, path: &Path, examiner: &mut Examiner) {
        let begin = clock::now();
        let Ok(content) = file::read_bytes(path) else {
            self.bad += 1;
            return;
        };
        let read = clock::now().duration_since(begin);
        self.measure_picture(&content, content.len() as u64, read, examiner);
    }

    fn measure_picture(
        &mut self,
        picture: &[u8],
        size: u64,
        read: Duration,
        examiner: &mut Examiner,
    ) {
        let options = Options { max_pixels: usize::MAX, ..Options::default() };
        let pixels =
            ImageHeader::read(picture, &options).ok().map(|header| (header.width, header.height));
        let begin = clock::now();
        let decoded = examiner.picture(picture, Depth::Pixels, &mut Tally::default());
        let decode = clock::now().duration_since(begin);
        if decoded.is_err() {
            self.bad += 1;
            return;
        }
        self.measured.push(Measured {
            bytes: size,
            pixels,
            read_seconds: read.as_secs_f64(),
            decode_seconds: decode.as_secs_f64(),
        });
    }

    fn measure_shard(&mut self, path: &Path, container: &Container, examiner: &mut Examiner) {
        let mut begin = clock::now();
        let mut left = MEASURED / 2;
        let walked = walk_first(path, container, &mut |record| {
            let read = clock::now().duration_since(begin);
            match picture_in(record, container) {
                Some(picture) => self.measure_picture(picture, record.len() as u64, read, examiner),
                None => self.measured.push(Measured {
                    bytes: record.len() as u64,
                    pixels: None,
                    read_seconds: read.as_secs_f64(),
                    decode_seconds: 0.0,
                }),
            }
            begin = clock::now();
            left -= 1;
            left > 0
        });
        if walked.is_err() {
            self.bad += 1;
        }
    }

    /// The median of a number of the samples.
    fn median(&self, number: impl Fn(&Measured) -> f64) -> f64 {
        let mut numbers: Vec<f64> = self.measured.iter().map(number).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Some of a list, evenly spread over it.
fn spread(all: &[PathBuf], count: usize) -> Vec<&PathBuf> {
    let step = all.len().div_ceil(count.max(1)).max(1);
    all.iter().step_by(step).collect()
}

fn is_packed(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| PACKED.contains(&extension.to_lowercase().as_str()))
}

/// The first image in a record.
fn picture_in<'a>(record: &'a [u8], container: &Container) -> Option<&'a [u8]> {
    match container {
        Container::Tfrecord { .. } => {
            let features = example::features(record).ok()?;
            features.iter().flat_map(|feature| &feature.steps).find_map(|list| match list {
                List::Bytes(values) => {
                    values.iter().copied().find(|value| decode::sniff(value).is_ok())
                }
                List::Nothing | List::Floats(_) | List::Ints(_) => None,
            })
        }
        Container::Tar => tar::members(record)
            .filter_map(|member| member.ok())
            .map(|member| member.data)
            .find(|data| decode::sniff(data).is_ok()),
        Container::JsonLines | Container::Csv { .. } | Container::Numbers { .. } => None,
    }
}

/// What to choose for a data set on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Advice {
    threads: u64,
    num_workers: u64,
    batch_size: u64,
}

fn advise(data: &DataSet, machine: &Machine) -> Advice {
    let chosen = Choices::on(machine);
    let (read, decode) =
        (data.median(|sample| sample.read_seconds), data.median(|sample| sample.decode_seconds));
    // Workers that mostly wait for storage can be more than there are processors.
    let wanted = if read > decode { chosen.threads * 2 } else { chosen.threads };
    let left = machine.memory.usable().map_or(u64::MAX, |(bytes, _)| bytes);
    let fitting = (left / WORKER_BYTES).max(1);
    let is_picture = data.measured.iter().any(|sample| sample.pixels.is_some());
    let each = match is_picture {
        true => PICTURE_BYTES,
        false => (data.median(|sample| sample.bytes as f64) as u64).max(1),
    };
    let fit = (chosen.prefetch / BATCHES / each).clamp(1, LARGEST_BATCH);
    Advice {
        threads: chosen.threads,
        num_workers: wanted.min(fitting).max(1),
        batch_size: 1 << fit.ilog2(),
    }
}

/// Examines a data set on a machine. Only what is dangerous about the machine is repeated here.
pub(crate) fn diagnose(data: &DataSet, machine: &Machine, around: &Surroundings) -> Diagnosis {
    let advice = advise(data, machine);
    let mut findings = findings(data, machine, advice);
    let of_machine = machine::diagnose(machine, around).findings;
    findings.extend(of_machine.into_iter().filter(|finding| finding.severity == Severity::Danger));
    findings.sort_by_key(|finding| finding.severity);
    Diagnosis {
        subject: "data",
        good: "nothing about this data set is slow or dangerous".into(),
        findings,
        headings: ["", "this data set", "recommended"],
        facts: facts(data, advice),
        details: json!({"data": data, "advice": advice, "machine": machine}),
    }
}

fn findings(data: &DataSet, machine: &Machine, advice: Advice) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tried = data.measured.len() as u64 + data.bad;
    if data.bad > 0 {
        let text =
            format!("{} of {tried} samples that were tried cannot be read or decoded", data.bad);
        let severity = if data.bad == tried { Severity::Danger } else { Severity::Warning };
        findings.push(
            Finding::new(severity, "bad_samples", text)
                .fix("feedline verify PATH --quarantine bad.jsonl names all of them"),
        );
    }
    if let Some(remote) = data.file_systems.iter().find(|system| system.is_remote()) {
        let many = data.images > MANY_FILES && data.median_bytes < SMALL_FILE;
        let what = if many {
            " and has many small files: opening each takes longest"
        } else {
            ": reads may be slow"
        };
        let text = format!("the data is on {} at {}{what}", remote.kind, remote.point.display());
        let fix = match many {
            true => "feedline convert PATH shards/ --to tar, or copy it to a local disk",
            false => "copy it to a local disk, or use more readers: loader(readers=16)",
        };
        findings.push(Finding::warning("remote_files", text).fix(fix));
    }
    let read = data.median(|sample| sample.read_seconds);
    if read > SLOW_READ.as_secs_f64() {
        let text = format!("reading a sample takes {}: storage is slow", time(read));
        findings.push(Finding::warning("slow_reads", text).fix("more readers, or a faster disk"));
    }
    if data.packed_shards > 0 && data.packed_shards == data.shards && data.shards < advice.threads {
        let text = format!(
            "{} can only be read from the beginning: no more than {} threads can read at once",
            counted(data.shards, "compressed shard", "compressed shards"),
            data.shards
        );
        findings.push(
            Finding::warning("few_packed_shards", text)
                .fix(format!("write at least {} shards, or do not compress them", advice.threads)),
        );
    }
    let largest = data.measured.iter().filter_map(|sample| sample.pixels);
    let largest = largest.max_by_key(|(width, height)| width.saturating_mul(*height));
    if let (Some((width, height)), Some((left, _))) = (largest, machine.memory.usable()) {
        let each = 3 * width as u64 * height as u64;
        if each.saturating_mul(advice.threads) > left {
            let text = format!(
                "an image of {width} x {height} takes {} decoded: {} at once do not fit into {}",
                bytes(each),
                advice.threads,
                bytes(left)
            );
            findings.push(
                Finding::danger("huge_images", text)
                    .fix("loader(threads=1), or make the images smaller beforehand"),
            );
        }
    }
    findings
}

fn facts(data: &DataSet, advice: Advice) -> Vec<Fact> {
    let systems: Vec<_> = data.file_systems.iter().map(|system| system.kind.as_str()).collect();
    let (read, decode) =
        (data.median(|sample| sample.read_seconds), data.median(|sample| sample.decode_seconds));
    let mut facts = vec![
        Fact::new("files", data.parts.join(", "), ""),
        Fact::new(
            "sizes",
            format!(
                "{} in all, median {}, largest {}",
                bytes(data.total_bytes),
                bytes(data.median_bytes),
                bytes(data.largest_bytes)
            ),
            format!("batch_size={}", advice.batch_size),
        ),
        Fact::new("on", systems.join(", "), ""),
    ];
    if data.measured.is_empty() {
        return facts;
    }
    let pixels = data.measured.iter().find_map(|sample| sample.pixels);
    let kind = pixels.map_or_else(
        || format!("{} each", bytes(data.median(|sample| sample.bytes as f64) as u64)),
        |(width, height)| format!("{width} x {height} pixels"),
    );
    facts.push(Fact::new(
        "samples",
        format!("{kind}, read in {}, decoded in {}", time(read), time(decode)),
        format!("num_workers={}, or threads={}", advice.num_workers, advice.threads),
    ));
    let each = read.max(1e-7) + decode;
    let speed = (advice.threads as f64 / each) as u64;
    facts.push(Fact::new(
        "speed",
        format!(
            "at most about {} samples/s for {} threads",
            thousands(rounded(speed)),
            advice.threads
        ),
        "",
    ));
    facts
}

/// Two digits are more than a short measurement tells.
fn rounded(number: u64) -> u64 {
    let unit = 10_u64.pow(number.max(1).ilog10().saturating_sub(1));
    number / unit * unit
}

fn time(seconds: f64) -> String {
    match seconds {
        _ if seconds >= 1.0 => format!("{seconds:.1} s"),
        _ if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{:.0} us", seconds * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::super::print;
    use super::*;
    use feedline_core::sys::limits::RecordedFiles;
    use feedline_core::testing::machines::recording;

    fn machine(name: &str) -> Machine {
        Machine::read(&RecordedFiles::parse(recording(name).unwrap()), Path::new("/proc/self"))
    }

    fn photos(read_seconds: f64, pixels: (usize, usize)) -> DataSet {
        let sample =
            Measured { bytes: 110_000, pixels: Some(pixels), read_seconds, decode_seconds: 0.004 };
        DataSet {
            parts: vec!["1281167 images".into()],
            images: 1_281_167,
            total_bytes: 140 << 30,
            median_bytes: 110_000,
            largest_bytes: 15 << 20,
            file_systems: vec![FileSystem { kind: "nfs4".into(), point: "/mnt/data".into() }],
            measured: vec![sample; 16],
            ..DataSet::default()
        }
    }

    fn text(data: &DataSet, name: &str) -> String {
        let text = print::text(&diagnose(data, &machine(name), &Surroundings::here()));
        assert!(text.lines().count() <= print::LINES, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= print::COLUMNS), "{text}");
        text
    }

    #[test]
    fn many_small_files_on_a_network_are_slow() {
        insta::assert_snapshot!(text(&photos(0.030, (500, 375)), "kubernetes_guaranteed"));
    }

    #[test]
    fn compressed_shards_bad_samples_and_huge_images_are_found() {
        let data = DataSet {
            parts: vec!["2 tar shards".into()],
            shards: 2,
            packed_shards: 2,
            bad: 3,
            ..photos(0.0001, (60_000, 40_000))
        };
        let data = DataSet { images: 0, file_systems: Vec::new(), ..data };
        insta::assert_snapshot!(text(&data, "docker_v1"));
        insta::assert_snapshot!(text(&DataSet { shards: 2, ..data }, "kubernetes_guaranteed"));
    }

    #[test]
    fn workers_fit_into_memory_and_wait_for_storage() {
        let advice = |data: &DataSet, name: &str| advise(data, &machine(name));
        assert_eq!(advice(&photos(0.0001, (500, 375)), "kubernetes_guaranteed").num_workers, 4);
        assert_eq!(advice(&photos(0.0500, (500, 375)), "kubernetes_guaranteed").num_workers, 8);
        assert_eq!(advice(&photos(0.0500, (500, 375)), "small_vm").num_workers, 1);
        assert_eq!(advice(&photos(0.0001, (500, 375)), "kubernetes_guaranteed").batch_size, 32);
        let records = Measured { bytes: 100, ..Measured::default() };
        let records = DataSet { measured: vec![records; 4], ..DataSet::default() };
        assert_eq!(advice(&records, "kubernetes_guaranteed").batch_size, 256);
    }

    #[test]
    fn numbers_are_rounded() {
        assert_eq!([0, 7, 99, 123, 4567].map(rounded), [0, 7, 99, 120, 4500]);
        assert_eq!([2.0, 0.0304, 0.000_05].map(time), ["2.0 s", "30.4 ms", "50 us"]);
    }
}
