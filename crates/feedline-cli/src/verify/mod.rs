//! `feedline verify`: reads a whole data set, lists everything that is bad, and prints a summary.

mod images;
pub(crate) mod look;
mod records;
mod repair;
mod summary;
pub(crate) mod tally;

use clap::Args;
use feedline_core::error::{Error, Kind, Result};
use feedline_core::escape;
use feedline_core::sample::shown;
use feedline_core::sys::atomic_file::{AtomicFile, Existing};
use feedline_core::sys::limits::processors;
use feedline_core::sys::{clock, limits};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dataset::{Format, Found, Paths, at};
use crate::report::{counted, print_note, print_result};
use crate::tokens;
use images::Images;
use look::Depth;
use records::Shards;
use tally::Tally;

/// Reads a whole data set, lists everything that is bad, and prints a summary.
///
/// Checks every checksum and header, and decodes every JPEG, PNG and WebP, in files, in members of tars and in features
/// of Examples. Tar samples must have the same members as the first sample, though an image may have another format; if
/// the first records are Examples, all must be; lines must be JSON; rows must have their columns. Each fault is listed
/// with file, record, byte and cause, and is one that a loader would meet.
///
/// For a token file, verify checks the size and the header, and reads all of it.
///
/// Folders are searched: images, TFRecord, tar, JSON lines and CSV are known by their names.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    feedline verify photos/                               an image folder\n  \
    feedline verify data/*.tar --fast                     checksums and headers, but no pixels\n  \
    feedline verify data/ --quarantine bad.jsonl          for loader(exclude=\"bad.jsonl\")\n  \
    feedline verify data/*.tfrecord --repair repaired/    shards without the bad records\n  \
    feedline verify train.bin --dtype uint16              a file of tokens\n  \
    feedline verify data/ --json > report.json            for programs\n\n\
    Exit codes: 0 good, 1 found faults, 2 could not run.")]
pub(crate) struct Verify {
    #[command(flatten)]
    paths: Paths,

    /// Check only the headers of images, and decode nothing
    #[arg(long)]
    fast: bool,

    /// Write the bad samples to this file, for loader(exclude=...) over the same data
    #[arg(long, value_name = "FILE")]
    quarantine: Option<PathBuf>,

    /// Write all shards to this folder, without the bad records (TFRecord, tar, JSON lines)
    #[arg(long, value_name = "FOLDER")]
    repair: Option<PathBuf>,

    /// Manifest that the shards must match, written by feedline index --manifest
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,

    /// Print the summary and the faults as JSON
    #[arg(long)]
    json: bool,

    /// Number of threads that read and decode [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

/// Files that one loader would read.
enum Group {
    Images(Images),
    Shards(Format, Vec<PathBuf>),
}

impl Group {
    fn title(&self) -> String {
        match self {
            Group::Images(images) => {
                format!("{} of {}", images.title, counted(images.len(), "image", "images"))
            }
            Group::Shards(Format::Tokens, paths) => {
                counted(paths.len() as u64, "token file", "token files")
            }
            Group::Shards(format, paths) => {
                let one = format!("{} shard", format.name());
                counted(paths.len() as u64, &one, &format!("{one}s"))
            }
        }
    }
}

impl Verify {
    pub(crate) fn run(&self) -> Result<i32> {
        limits::raise_open_files();
        let found = self.paths.find()?;
        let skipped = found.skipped;
        let groups = groups(found);
        self.check(&groups)?;
        if skipped > 0 {
            let files = counted(skipped, "file was", "files were");
            print_note(format_args!("{files} skipped: not data, judging by the name"));
        }
        let titles: Vec<_> = groups.iter().map(Group::title).collect();
        let mut whole = Tally::default();
        let mut shards = None;
        for group in groups {
            let tally = match group {
                Group::Images(images) => self.verify_images(images)?,
                Group::Shards(Format::Tokens, paths) => {
                    tokens::verify(&paths, self.paths.reading.dtype)?
                }
                Group::Shards(format, paths) => {
                    let opened = Arc::new(self.open(format, paths)?);
                    note_empty(&opened);
                    let tally = opened.verify(self.depth(), self.threads())?;
                    shards = Some(opened);
                    tally
                }
            };
            whole.merge(tally);
        }
        let time = clock::unix_seconds();
        let names = shards.as_ref().map(|shards| shards.class_names()).unwrap_or_default();
        // Checked at the end: if stdout cannot be written, the files are still useful.
        let printed = self.print_report(&whole, &titles, &names, time);
        if let Some(path) = &self.quarantine {
            write_quarantine(&whole, path, time)?;
        }
        if let (Some(out), Some(shards)) = (&self.repair, &shards) {
            // Nothing may follow the JSON document on stdout.
            let print = |line| match self.json {
                true => {
                    print_note(line);
                    Ok(())
                }
                false => print_result(line),
            };
            repair::repair(shards, &whole, out, self.threads(), print)?;
        }
        printed?;
        Ok(i32::from(!whole.faults.is_empty()))
    }

    fn print_report(
        &self,
        whole: &Tally,
        titles: &[String],
        names: &[String],
        time: f64,
    ) -> Result<()> {
        if self.json {
            return print_result(format_args!("{:#}", summary::json(whole, time)));
        }
        whole.faults.iter().try_for_each(|fault| print_result(format_args!("bad  {fault}")))?;
        summary::lines(whole, titles, names).iter().try_for_each(print_result)
    }

    /// Refuses, before anything is read, options that could not be honoured afterwards.
    fn check(&self, groups: &[Group]) -> Result<()> {
        if groups.is_empty() {
            return Err(Error::new(Kind::InvalidSource, "there is no data at these paths")
                .with_hint(
                    "images, TFRecord, tar, JSON lines and CSV are known by their names; \
                 --as sets the format of shards if their names do not show it",
                ));
        }
        let titles: Vec<_> = groups.iter().map(Group::title).collect();
        let is_one = groups.len() == 1;
        if let Some(path) = &self.quarantine {
            if !is_one {
                return Err(several("--quarantine", &titles));
            }
            if path.exists() {
                let message = format!("{} exists already", shown(path));
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint("remove it, or give another file for --quarantine"));
            }
        }
        if self.manifest.is_some() && !is_one {
            return Err(several("--manifest", &titles));
        }
        match (&self.repair, groups) {
            (Some(out), [Group::Shards(format, paths)]) => {
                repair::check_format(*format)?;
                repair::targets(out, paths).map(drop)
            }
            (Some(_), [Group::Images(_)]) => Err(Error::new(
                Kind::InvalidArgument,
                "--repair writes shards, but these are images",
            )
            .with_hint("exclude bad ones with --quarantine and loader(exclude=...)")),
            (Some(_), _) => Err(several("--repair", &titles)),
            (None, _) => Ok(()),
        }
    }

    fn verify_images(&self, images: Images) -> Result<Tally> {
        let unnumbered = images.unnumbered();
        if unnumbered > 0 {
            let many = counted(unnumbered, "image is", "images are");
            print_note(format_args!("{many} in no class folder, and a loader would not read them"));
        }
        images.verify(self.depth(), self.threads())
    }

    fn open(&self, format: Format, paths: Vec<PathBuf>) -> Result<Shards> {
        let container = self.paths.reading.container(format, &paths)?;
        Shards::open(container, paths, self.manifest.as_deref())
    }

    fn depth(&self) -> Depth {
        if self.fast { Depth::Header } else { Depth::Pixels }
    }

    fn threads(&self) -> usize {
        self.threads.map_or_else(processors, usize::from)
    }
}

/// A shard without records is not a fault, but may be a mistake.
fn note_empty(shards: &Shards) {
    let empty = shards.shards.iter().filter(|shard| shard.index.is_empty());
    let paths: Vec<_> = empty.map(|shard| escape::path(&shard.path)).collect();
    if !paths.is_empty() {
        let count = counted(paths.len() as u64, "shard has", "shards have");
        let more = if paths.len() > 3 { ", ..." } else { "" };
        print_note(format_args!(
            "{count} no records: {}{more}",
            paths[..paths.len().min(3)].join(", ")
        ));
    }
}

fn groups(found: Found) -> Vec<Group> {
    let mut groups = Vec::new();
    for (root, images) in found.folders {
        groups.push(Group::Images(Images::below(&root, images)));
    }
    if !found.images.is_empty() {
        groups.push(Group::Images(Images::listed(found.images)));
    }
    groups.extend(found.shards.into_iter().map(|(format, paths)| Group::Shards(format, paths)));
    groups
}

fn several(option: &str, titles: &[String]) -> Error {
    let message = format!("{option} needs exactly one data set, got {}", titles.join(", "));
    Error::new(Kind::InvalidArgument, message).with_hint("verify each of them separately")
}

/// Writes the file that loaders accept as `exclude`. Faults without a sample index are left out.
fn write_quarantine(tally: &Tally, path: &Path, time: f64) -> Result<()> {
    let numbered: Vec<_> = tally.faults.iter().filter(|fault| fault.index.is_some()).collect();
    let mut text = String::new();
    for fault in &numbered {
        text.push_str(&fault.line(time).to_text());
        text.push('\n');
    }
    let write = || {
        let mut atomic_file = AtomicFile::new(path)?;
        atomic_file.add(text.as_bytes())?;
        atomic_file.sync()?;
        atomic_file.finish(Existing::Stays)
    };
    write().map_err(|error| {
        Error::io(Kind::InvalidArgument, "writing the quarantine file", error)
            .at(at(path))
            .with_hint("give a writable file for --quarantine")
    })?;
    let lines = counted(numbered.len() as u64, "sample", "samples");
    print_note(format_args!(
        "{lines} in {}: loader(exclude={:?})",
        escape::path(path),
        path.display().to_string()
    ));
    let left = tally.faults.len() - numbered.len();
    if left > 0 {
        let faults = counted(left as u64, "fault is", "faults are");
        print_note(format_args!("{faults} of no sample, and not in the quarantine file"));
    }
    Ok(())
}
