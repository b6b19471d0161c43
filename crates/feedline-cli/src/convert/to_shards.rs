//! Converts an image folder to shards.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::escape;
use feedline_core::format::example::{self, List};
use feedline_core::format::pack::Packer;
use feedline_core::format::{Packing, tar, tfrecord};
use feedline_core::plan::Permutation;
use feedline_core::sample::{Extent, shown};
use feedline_core::source::Source;
use feedline_core::source::folder::Folder;
use feedline_core::sys::atomic_file::{AtomicFile, Existing};
use feedline_core::sys::file;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::names::{Keys, refusal};
use super::{exists, write_error};
use crate::dataset::at;
use crate::parallel::{Done, share};
use crate::report::{Progress, bytes, counted, print_note, print_result};
use crate::shards::CLASSES;

/// Samples per shard if --shards is not given.
const SAMPLES: u64 = 5000;
/// Read buffer size in bytes.
const WINDOW: usize = 1 << 20;

/// Format of the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Tfrecord,
    Tar,
}

/// A conversion to shards, as the user asked for it.
pub(super) struct ToShards {
    pub(super) folder: Folder,
    pub(super) root: PathBuf,
    pub(super) target: PathBuf,
    pub(super) prefix: String,
    pub(super) holder: Holder,
    pub(super) packing: Packing,
    pub(super) shards: Option<u64>,
    pub(super) shuffle: Option<u64>,
    pub(super) existing: Existing,
}

/// An image to be written.
struct Sample {
    path: PathBuf,
    label: i64,
    /// Its path in the folder; in a tar its key, followed by its extension.
    name: Vec<u8>,
    extension: Vec<u8>,
}

impl ToShards {
    pub(super) fn run(self, threads: usize) -> Result<()> {
        let samples = self.folder.len();
        let shards = self.shards.unwrap_or(samples.div_ceil(SAMPLES));
        if shards > samples {
            let message = format!("--shards {shards} is more than the {samples} samples");
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint(format!("give at most --shards {samples}")));
        }
        let names: Vec<_> = (0..shards).map(|number| self.name(number, shards)).collect();
        let classes = self.classes()?;
        self.check(&names)?;
        let all = self.samples()?;
        let extensions: BTreeSet<_> = all
            .iter()
            .map(|sample| String::from_utf8_lossy(&sample.extension).into_owned())
            .collect();
        let extensions: Vec<_> = extensions.into_iter().collect();
        let mut work = Vec::new();
        let mut rest = all.into_iter();
        for (number, name) in (0..shards).zip(names) {
            let share = samples * (number + 1) / shards - samples * number / shards;
            let part: Vec<_> = rest.by_ref().take(share as usize).collect();
            work.push((self.target.join(name), part));
        }
        let progress = Progress::new("writing samples", samples);
        let (holder, packing, existing) = (self.holder, self.packing, self.existing);
        let written = share(work, threads, progress, move |_: &mut (), (path, samples), done| {
            write_shard(path, samples, holder, packing, existing, done)
        })?;
        let size = written.into_iter().sum::<Result<u64>>()?;
        write(&self.target.join(CLASSES), classes.as_bytes(), self.existing)?;
        print_result(format_args!(
            "{} with {} of {}, {}, below {}",
            counted(shards, "shard", "shards"),
            counted(samples, "sample", "samples"),
            counted(self.folder.classes().len() as u64, "class", "classes"),
            bytes(size),
            escape::path(&self.target)
        ))?;
        let pattern = self.target.join(format!("{}-*{}", self.prefix, self.extension()));
        let pattern = pattern.display().to_string();
        print_note(match self.holder {
            Holder::Tar if extensions.len() > 1 => format!(
                "load them with fl.tar({pattern:?})\
                 .parse({{\"image\": fl.bytes_(key={:?}), \"cls\": fl.int64()}})",
                extensions.join(";")
            ),
            Holder::Tar => format!("load them with fl.tar({pattern:?})"),
            Holder::Tfrecord => format!(
                "load them with fl.tfrecord({pattern:?})\
                 .parse({{\"image_raw\": fl.bytes_(), \"label\": fl.int64()}})"
            ),
        });
        Ok(())
    }

    fn extension(&self) -> String {
        let extension = match self.holder {
            Holder::Tar => ".tar",
            Holder::Tfrecord => ".tfrecord",
        };
        let packed = match self.packing {
            Packing::Plain => "",
            Packing::Gzip => ".gz",
            Packing::Zlib => ".zlib",
            Packing::Zstd => ".zst",
            Packing::Xz => ".xz",
            Packing::Bzip2 => ".bz2",
        };
        format!("{extension}{packed}")
    }

    fn name(&self, number: u64, of: u64) -> String {
        format!("{}-{number:05}-of-{of:05}{}", self.prefix, self.extension())
    }

    /// Contents of the file with the class names. Refuses names that could not be read back.
    fn classes(&self) -> Result<String> {
        let mut text = String::new();
        for class in self.folder.classes().iter() {
            let is_about = class.len() >= 4 && class.starts_with("__") && class.ends_with("__");
            let why = match self.holder {
                Holder::Tar if is_about => Some("is skipped by readers of tars"),
                Holder::Tar | Holder::Tfrecord if class.contains(['\n', '\r']) => {
                    Some("contains a line break")
                }
                Holder::Tar | Holder::Tfrecord => refusal(class.as_bytes()),
            };
            if let Some(why) = why {
                let message = format!("the name of class folder {class:?} {why}");
                return Err(Error::new(Kind::InvalidSource, message).with_hint("rename the folder"));
            }
            text.push_str(class);
            text.push('\n');
        }
        Ok(text)
    }

    /// Refuses to overwrite files, and to leave shards of an earlier conversion beside the new ones.
    fn check(&self, names: &[String]) -> Result<()> {
        let begin = format!("{}-", self.prefix);
        let entries = match file::list(&self.target) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                return Err(Error::io(Kind::InvalidArgument, "reading the target", error)
                    .at(at(&self.target))
                    .with_hint("give a folder to write to"));
            }
        };
        let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path).collect();
        paths.sort_unstable();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_shard = name.starts_with(&begin) && name.ends_with(&self.extension());
            if names.contains(&name) || name == CLASSES {
                if self.existing == Existing::Stays {
                    return Err(exists(&path));
                }
            } else if is_shard && name.contains("-of-") {
                let message = format!(
                    "{} is from another conversion: a pattern would match both",
                    shown(&path)
                );
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint("remove the old shards, or give another --prefix"));
            }
        }
        Ok(())
    }

    /// All samples in order. Refuses files whose names could not be read back from a shard.
    fn samples(&self) -> Result<Vec<Sample>> {
        let mut keys = Keys::default();
        let count = self.folder.len();
        let mut samples: Vec<Option<Sample>> = Vec::with_capacity(count as usize);
        for index in 0..count {
            let Extent::File(path) = self.folder.extent(index) else { continue };
            let label = self.folder.label(index).unwrap_or(-1);
            let inside = path.strip_prefix(&self.root).unwrap_or(&path);
            let relative = inside.as_os_str().as_bytes();
            let (name, extension) = match self.holder {
                Holder::Tar => keys.next(relative),
                Holder::Tfrecord => (relative.to_vec(), Vec::new()),
            };
            let in_shard = match self.holder {
                // A key may be longer than the file name it is derived from.
                Holder::Tar => refusal(&[&name, &b"."[..], &extension].concat()),
                Holder::Tfrecord => refusal(&name),
            };
            if let Some(why) = in_shard {
                let message = format!("the name of file {} {why}", shown(inside));
                return Err(Error::new(Kind::InvalidSource, message).with_hint("rename the file"));
            }
            samples.push(Some(Sample { path, label, name, extension }));
        }
        let Some(seed) = self.shuffle else {
            return Ok(samples.into_iter().flatten().collect());
        };
        let order = Permutation::new(samples.len() as u64, seed, 0);
        let places = 0..samples.len() as u64;
        Ok(places.filter_map(|place| samples[order.at(place) as usize].take()).collect())
    }
}

/// Writes a shard and returns its size.
fn write_shard(
    path: &Path,
    samples: &[Sample],
    holder: Holder,
    packing: Packing,
    existing: Existing,
    done: &Done,
) -> Result<u64> {
    let writing = |error| write_error(path, error);
    let mut atomic_file = AtomicFile::new(path).map_err(writing)?;
    let mut packer = Packer::new(packing)?;
    let (mut plain, mut packed, mut size) = (Vec::new(), Vec::new(), 0);
    for sample in samples {
        sample.write(holder, &mut plain)?;
        if plain.len() >= WINDOW {
            packer.pack(&plain, &mut packed)?;
            atomic_file.add(&packed).map_err(writing)?;
            size += packed.len() as u64;
            plain.clear();
            packed.clear();
        }
        done.add(1);
    }
    if holder == Holder::Tar {
        tar::write_end(&mut plain);
    }
    packer.pack(&plain, &mut packed)?;
    packer.finish(&mut packed)?;
    atomic_file.add(&packed).map_err(writing)?;
    size += packed.len() as u64;
    atomic_file.sync().map_err(writing)?;
    atomic_file.finish(existing).map_err(writing)?;
    Ok(size)
}

impl Sample {
    fn write(&self, holder: Holder, out: &mut Vec<u8>) -> Result<()> {
        let data = file::read_bytes(&self.path)
            .map_err(|error| Error::io(Kind::Read, "reading the file", error).at(at(&self.path)))?;
        match holder {
            Holder::Tar => {
                let member = |extension: &[u8]| [&self.name, &b"."[..], extension].concat();
                tar::write(&member(&self.extension), &data, out);
                tar::write(&member(b"cls"), self.label.to_string().as_bytes(), out);
            }
            Holder::Tfrecord => {
                let record = example::write(&[
                    ("image_raw", List::Bytes(vec![&data])),
                    ("label", List::Ints(vec![self.label])),
                    ("name", List::Bytes(vec![&self.name])),
                ]);
                tfrecord::write(&record, out);
            }
        }
        Ok(())
    }
}

fn write(path: &Path, data: &[u8], existing: Existing) -> Result<()> {
    let write = || {
        let mut atomic_file = AtomicFile::new(path)?;
        atomic_file.add(data)?;
        atomic_file.finish(existing)
    };
    write().map_err(|error| write_error(path, error))
}
