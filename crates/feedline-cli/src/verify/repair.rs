//! Writes shards again without their bad records; each is complete or absent, and no file is overwritten.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::escape;
use feedline_core::format::pack::Packer;
use feedline_core::format::{Container, tar};
use feedline_core::sample::{Location, shown};
use feedline_core::source::walk::walk_by;
use feedline_core::sys::atomic_file::{self, AtomicFile, Existing};
use feedline_core::sys::file::Handle;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::records::{Shard, Shards};
use super::tally::Tally;
use crate::dataset::{Format, at};
use crate::parallel::{Done, share};
use crate::report::{Progress, Unit, bytes, counted};
use crate::shards::CLASSES;

/// Copy buffer size in bytes.
const WINDOW: usize = 1 << 20;

/// The numbers of the bad records of each shard.
type Bad = HashMap<PathBuf, HashSet<u64>>;

/// Outcome of repairing one shard.
enum Written {
    Copied,
    Repaired { kept: u64, left_out: u64 },
    NothingLeft,
}

/// Path that each shard is written to. Refuses formats that cannot be repaired, and existing files.
pub(crate) fn targets(out: &Path, paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let root = common_folder(paths);
    let mut targets = Vec::with_capacity(paths.len());
    for path in paths {
        let target = out.join(path.strip_prefix(&root).unwrap_or(path));
        if target.exists() {
            let message = format!("{} exists already", shown(&target));
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("give a folder for --repair without these files"));
        }
        targets.push(target);
    }
    Ok(targets)
}

/// The folder that contains all of these.
fn common_folder(paths: &[PathBuf]) -> PathBuf {
    let parent = |path: &PathBuf| path.parent().unwrap_or(Path::new("")).to_owned();
    let mut root = paths.first().map(parent).unwrap_or_default();
    for path in paths {
        while !path.starts_with(&root) && root.pop() {}
    }
    root
}

/// Refuses formats without records that could be left out.
pub(crate) fn check_format(format: Format) -> Result<()> {
    match format {
        Format::Tfrecord | Format::Tar | Format::Jsonl => Ok(()),
        Format::Csv | Format::Tsv | Format::Tokens => {
            let message = format!("{} files are not repaired", format.name());
            Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("exclude bad rows with --quarantine and loader(exclude=...)"))
        }
    }
}

/// Writes all shards, those without a fault unchanged, and prints the outcome of each.
pub(crate) fn repair(
    shards: &Arc<Shards>,
    tally: &Tally,
    out: &Path,
    threads: usize,
    print: impl Fn(String) -> Result<()>,
) -> Result<()> {
    let mut bad = Bad::new();
    for fault in &tally.faults {
        if let Some(record) = fault.place.record {
            bad.entry(fault.place.path.clone()).or_default().insert(record);
        }
    }
    let paths: Vec<_> = shards.shards.iter().map(|shard| shard.path.clone()).collect();
    let targets = targets(out, &paths)?;
    let total = shards.shards.iter().map(|shard| shard.index.stamp.size).sum();
    let progress = Progress::counting("writing shards", total, Unit::Bytes);
    let work: Vec<_> = targets.into_iter().enumerate().collect();
    let of = Arc::clone(shards);
    let written = share(work, threads, progress, move |_: &mut (), (number, target), done| {
        let shard = &of.shards[*number];
        let written = match bad.get(&shard.path) {
            Some(bad) => rewrite(shard, &of.container, bad, target, done),
            None => copy(shard, target, done).map(|()| Written::Copied),
        };
        written.map_err(|error| match error.location() {
            Some(_) => error,
            None => error.at(at(target)),
        })
    })?;
    let names = shards.class_names();
    let beside = out.join(CLASSES);
    if !names.is_empty() && !beside.exists() {
        atomic_file::replace(&beside, format!("{}\n", names.join("\n")).as_bytes())
            .map_err(writing)?;
    }
    let (mut copied, mut repaired, mut all_left_out) = (0, 0, 0);
    for (path, written) in paths.iter().zip(written) {
        match written? {
            Written::Copied => copied += 1,
            Written::Repaired { kept, left_out } => {
                repaired += 1;
                all_left_out += left_out;
                let kept = counted(kept, "record", "records");
                print(format!(
                    "repaired {}: {kept} kept, {left_out} left out",
                    escape::path(path)
                ))?;
            }
            Written::NothingLeft => {
                print(format!("not written {}: no good record is left", escape::path(path)))?;
            }
        }
    }
    let left_out = counted(all_left_out, "bad record", "bad records");
    print(format!(
        "{} below {}: {repaired} without {left_out}, {copied} unchanged",
        counted(repaired + copied, "shard", "shards"),
        escape::path(out),
    ))
}

fn writing(error: std::io::Error) -> Error {
    Error::io(Kind::InvalidSource, "writing the shard", error)
        .with_hint("give a writable folder with enough free space for --repair")
}

/// Writes the good records of a shard unchanged, with the same compression.
fn rewrite(
    shard: &Shard,
    container: &Container,
    bad: &HashSet<u64>,
    target: &Path,
    done: &Done,
) -> Result<Written> {
    let (mut kept, mut left_out) = (0, 0);
    let (mut packer, mut packed) = (Packer::new(shard.index.packing)?, Vec::new());
    let mut atomic_file = AtomicFile::new(target).map_err(writing)?;
    let mut failed = None;
    walk_by(&shard.index, &shard.path, container, &mut |seen| {
        if bad.contains(&seen.number) {
            left_out += 1;
            return true;
        }
        let outcome = seen.payload.and_then(|_| {
            kept += 1;
            packer.pack(seen.bytes, &mut packed)?;
            if packed.len() >= WINDOW {
                atomic_file.add(&packed).map_err(writing)?;
                packed.clear();
            }
            Ok(())
        });
        failed = outcome.err().map(|error| {
            let is_corrupt = error.kind() == Kind::CorruptRecord;
            if is_corrupt { changed(shard, seen.number, &error) } else { error }
        });
        failed.is_none()
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    done.add(shard.index.stamp.size);
    if kept == 0 {
        return Ok(Written::NothingLeft);
    }
    if *container == Container::Tar {
        let mut end = Vec::new();
        tar::write_end(&mut end);
        packer.pack(&end, &mut packed)?;
    }
    packer.finish(&mut packed)?;
    atomic_file.add(&packed).map_err(writing)?;
    atomic_file.sync().map_err(writing)?;
    atomic_file.finish(Existing::Stays).map_err(writing)?;
    Ok(Written::Repaired { kept, left_out })
}

fn changed(shard: &Shard, number: u64, error: &Error) -> Error {
    let message = format!("the shard changed while it was verified: {}", error.message());
    let offset = Some(shard.index.span(number).start);
    let place = Location { path: shard.path.clone(), offset, record: Some(number) };
    Error::new(Kind::InvalidSource, message)
        .at(Some(place))
        .with_hint("repair shards while no other process writes to them")
}

fn copy(shard: &Shard, target: &Path, done: &Done) -> Result<()> {
    let reading = |error| Error::io(Kind::Read, "reading the shard", error).at(at(&shard.path));
    let handle = Handle::open(&shard.path).map_err(reading)?;
    let mut atomic_file = AtomicFile::new(target).map_err(writing)?;
    let (mut window, mut offset) = (vec![0; WINDOW], 0);
    loop {
        let count = handle.read_at(&mut window, offset).map_err(reading)?;
        if count == 0 {
            break;
        }
        atomic_file.add(&window[..count]).map_err(writing)?;
        offset += count as u64;
        done.add(count as u64);
    }
    if offset != shard.index.stamp.size {
        let (now, before) = (bytes(offset), bytes(shard.index.stamp.size));
        let message = format!("the shard has {now}, and had {before} when it was verified");
        return Err(Error::new(Kind::InvalidSource, message)
            .at(at(&shard.path))
            .with_hint("repair shards while no other process writes to them"));
    }
    atomic_file.sync().map_err(writing)?;
    atomic_file.finish(Existing::Stays).map_err(writing)
}
