//! Verifies records in shards.

use feedline_core::error::{Error, Result};
use feedline_core::format::{Container, Packing};
use feedline_core::sample::Location;
use feedline_core::source::index::{Index, Reuse};
use feedline_core::source::records::check;
use feedline_core::source::walk::{WalkedRecord, walk_part};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::look::{Depth, Examiner, Rule};
use super::tally::{Fault, Tally};
use crate::manifest::check_all_here;
use crate::parallel::share;
use crate::report::{Progress, Unit};
use crate::shards::{cache, class_names, indices};

/// The part of a shard that a thread takes at a time: this many bytes, or this many records.
const PART_BYTES: u64 = 32 << 20;
const PART_RECORDS: u64 = 4096;
/// How many good records the rule for all records is derived from.
const FIRST: usize = 16;

/// A shard that can be read.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    pub(crate) index: Index,
    /// Index that a loader has for its first record.
    first: u64,
}

/// The shards that one loader would read.
#[derive(Debug)]
pub(crate) struct Shards {
    pub(crate) container: Container,
    pub(crate) shards: Vec<Shard>,
    /// Number of shards, including those that cannot be read.
    pub(crate) files: u64,
    faults: Vec<Fault>,
}

impl Shards {
    /// Finds the records as loaders do, using saved indices.
    pub(crate) fn open(
        container: Container,
        paths: Vec<PathBuf>,
        manifest: Option<&Path>,
    ) -> Result<Shards> {
        let made = indices(&paths, &container, &cache(), Reuse::Fitting)?;
        let files = paths.len() as u64;
        let (mut readable, mut known, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for (path, made) in paths.into_iter().zip(made) {
            match made {
                Ok(made) => {
                    readable.push(path);
                    known.push(made.index);
                }
                Err(error) => faults.push(Fault::of_file(&path, &error)),
            }
        }
        if let Some(manifest) = manifest {
            let unreadable: Vec<_> =
                faults.iter().map(|fault: &Fault| fault.place.path.clone()).collect();
            check_all_here(manifest, &readable, &unreadable)?;
            check(&readable, &mut known, manifest)?;
        }
        let mut first = 0;
        let mut shards = Vec::with_capacity(readable.len());
        for (path, index) in readable.into_iter().zip(known) {
            let records = index.len();
            shards.push(Shard { path, index, first });
            first += records;
        }
        Ok(Shards { container, shards, files, faults })
    }

    /// The class names, if a file beside the shards has them.
    pub(crate) fn class_names(&self) -> Vec<String> {
        let paths: Vec<_> = self.shards.iter().map(|shard| shard.path.clone()).collect();
        class_names(&paths).unwrap_or_default()
    }

    /// Verifies every record.
    pub(crate) fn verify(self: &Arc<Shards>, depth: Depth, threads: usize) -> Result<Tally> {
        let mut tally =
            Tally { files: self.files, faults: self.faults.clone(), ..Tally::default() };
        tally.bytes = self.shards.iter().map(|shard| shard.index.stamp.size).sum();
        let rule = self.rule()?;
        let progress = Progress::counting("reading records", tally.bytes, Unit::Bytes);
        let shards = Arc::clone(self);
        let tallies =
            share(self.parts(), threads, progress, move |examiner: &mut Examiner, part, done| {
                let mut tally = Tally::default();
                let shard = &shards.shards[part.shard];
                let read = walk_part(
                    &shard.index,
                    &shard.path,
                    &shards.container,
                    part.numbers.clone(),
                    &mut |seen| {
                        done.add(shard.progress(&seen));
                        shard.look_at(&seen, &rule, depth, examiner, &mut tally);
                        true
                    },
                );
                if let Err(error) = read {
                    tally.faults.push(Fault::of_file(&shard.path, &error));
                }
                tally
            })?;
        tallies.into_iter().for_each(|part| tally.merge(part));
        Ok(tally)
    }

    /// Derives the rule for all records from the first good ones.
    fn rule(&self) -> Result<Rule> {
        let mut records = Vec::new();
        for shard in &self.shards {
            if records.len() >= FIRST {
                break;
            }
            // A shard that cannot be read is reported when it is verified.
            let _ = walk_part(
                &shard.index,
                &shard.path,
                &self.container,
                0..shard.index.len(),
                &mut |seen| {
                    records.extend(seen.payload.ok().map(<[u8]>::to_vec));
                    records.len() < FIRST
                },
            );
        }
        Rule::of(&self.container, &records)
    }

    fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        for (number, shard) in self.shards.iter().enumerate() {
            let (index, records) = (&shard.index, shard.index.len());
            if index.packing != Packing::Plain {
                parts.push(Part { shard: number, numbers: 0..records });
                continue;
            }
            let (mut start, mut bytes) = (0, 0);
            for record in 0..records {
                bytes += index.span(record).length;
                let end = record + 1;
                if bytes >= PART_BYTES || end - start >= PART_RECORDS || end == records {
                    parts.push(Part { shard: number, numbers: start..end });
                    (start, bytes) = (end, 0);
                }
            }
        }
        parts
    }
}

struct Part {
    shard: usize,
    numbers: Range<u64>,
}

impl Shard {
    /// Bytes of the file that were read up to this record; estimated if the file is compressed.
    fn progress(&self, seen: &WalkedRecord<'_>) -> u64 {
        if self.index.packing == Packing::Plain || self.index.is_empty() {
            return seen.span.length;
        }
        let last = self.index.span(self.index.len() - 1);
        let whole = u128::from((last.start + last.length).max(1));
        let behind =
            |bytes: u64| (u128::from(bytes) * u128::from(self.index.stamp.size) / whole) as u64;
        behind(seen.span.start + seen.span.length).saturating_sub(behind(seen.span.start))
    }

    fn look_at(
        &self,
        seen: &WalkedRecord<'_>,
        rule: &Rule,
        depth: Depth,
        examiner: &mut Examiner,
        tally: &mut Tally,
    ) {
        tally.sample(seen.span.length);
        let (stage, outcome) = match &seen.payload {
            Ok(payload) => ("worker", rule.check(payload, depth, examiner, tally)),
            Err(error) => ("fetch", Err(Error::new(error.kind(), error.message()))),
        };
        if let Err(error) = outcome {
            let place = Location {
                path: self.path.clone(),
                offset: Some(seen.span.start),
                record: Some(seen.number),
            };
            let index = Some(self.first + seen.number);
            tally.faults.push(Fault::new(index, place, stage, &error));
        }
    }
}
