//! `feedline index`: finds where every record of every shard lies, and keeps that for the loaders.

use clap::Args;
use feedline_core::error::{Error, Kind, Result};
use feedline_core::escape;
use feedline_core::sample::Location;
use feedline_core::source::index::{Index, Keep, Reuse};
use feedline_core::sys::atomic_file;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

use crate::dataset::{Format, Paths, at};
use crate::manifest::check_target;
use crate::report::{self, counted, mention, say, table};
use crate::shards::{cache, indices};

/// Finds where every record of every shard lies, and keeps it for the loaders.
///
/// Loaders need to know where records begin, to shuffle them, to divide them among ranks and to resume. They
/// look through shards whose index is not kept; this does it beforehand, in parallel, and says what is
/// corrupt. TFRecord, tar, JSON lines and CSV are indexed, compressed or not.
///
/// An index is used as long as size and time of its shard are the same. It is kept in the folder
/// FEEDLINE_CACHE, or in feedline in the user's cache folder, where loaders look for it; with --beside in a
/// file beside each shard, which loaders find too.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    feedline index data/*.tfrecord              all shards of a data set\n  \
    feedline index data/ --beside               all below a folder, indices beside the shards\n  \
    feedline index data/ --manifest parts.json  also write what each shard has, for manifest=\n  \
    feedline index data/ --fresh                forget what was known of the shards\n\n\
    Exit codes: 0 good, 1 some shards are corrupt, 2 could not run.")]
pub(crate) struct IndexCommand {
    #[command(flatten)]
    paths: Paths,

    /// Keep each index beside its shard, as NAME.flindex
    #[arg(long)]
    beside: bool,

    /// Make all indices anew, whatever is kept
    #[arg(long)]
    fresh: bool,

    /// Write down in this JSON file how many records and bytes each shard has
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
}

struct Row {
    path: PathBuf,
    index: Index,
    is_new: bool,
}

impl IndexCommand {
    pub(crate) fn run(&self) -> Result<i32> {
        let found = self.paths.find()?;
        if found.shards.is_empty() {
            return Err(Error::new(Kind::InvalidSource, "there are no shards at these paths")
                .with_hint(
                    "name files of TFRecord, tar, JSON lines or CSV, or folders of them; \
                 --as says what they are where their names do not",
                ));
        }
        if let Some(manifest) = &self.manifest {
            check_names(found.shards.values().flatten(), manifest)?;
            check_target(manifest)?;
        }
        let keep = if self.beside { Keep::Beside } else { cache() };
        let mut rows = Vec::new();
        for (format, paths) in found.shards {
            rows.extend(self.index(format, paths, &keep)?);
        }
        let damages: usize = rows.iter().map(|row| row.index.damages().len()).sum();
        // Looked at in the end: where nobody can read the result, the manifest is still of use.
        let told = tell(&rows);
        match &keep {
            Keep::Folder(folder) => {
                mention(format_args!("indices are kept in {}", escape::path(folder)))
            }
            Keep::Beside => mention("indices are kept beside the shards"),
            Keep::Nowhere => mention("indices are kept nowhere: set FEEDLINE_CACHE to a folder"),
        }
        match &self.manifest {
            // It would say for ever that a cut shard is as it must be.
            Some(_) if damages > 0 => mention("no manifest was written, since shards are corrupt"),
            Some(manifest) => {
                write_manifest(&rows, manifest)?;
                mention(format_args!("the manifest is {}", escape::path(manifest)));
            }
            None => {}
        }
        told?;
        Ok(i32::from(damages > 0))
    }

    fn index(&self, format: Format, paths: Vec<PathBuf>, keep: &Keep) -> Result<Vec<Row>> {
        let container = self.paths.reading.container(format, &paths)?;
        let reuse = if self.fresh { Reuse::Nothing } else { Reuse::Fitting };
        let made = indices(&paths, &container, keep, reuse)?;
        let rows = paths.into_iter().zip(made).map(|(path, made)| {
            let made = made?;
            match made.unkept {
                Some(error) => Err(error.with_hint(
                    "set FEEDLINE_CACHE to a folder that can be written, or use --beside",
                )),
                None => Ok(Row { path, index: made.index, is_new: made.is_new }),
            }
        });
        rows.collect()
    }
}

/// Says what was found.
fn tell(rows: &[Row]) -> Result<()> {
    let records = |index: &Index| index.len() - index.damages().len() as u64;
    let line = |name: String, records: u64, bytes: u64, damages: u64| {
        [name, records.to_string(), report::bytes(bytes), damages.to_string()]
    };
    let (mut all, mut bytes, mut damages) = (0, 0, 0);
    let mut lines = Vec::new();
    for Row { path, index, .. } in rows {
        let damaged = index.damages().len() as u64;
        lines.push(line(escape::path(path), records(index), index.stamp.size, damaged));
        all += records(index);
        bytes += index.stamp.size;
        damages += damaged;
    }
    let shards = counted(rows.len() as u64, "shard", "shards");
    lines.push(line(shards, all, bytes, damages));
    say(table(["shard", "records", "bytes", "corrupt"], lines))?;
    for Row { path, index, .. } in rows {
        for damage in index.damages() {
            let place = Location {
                path: path.clone(),
                offset: Some(index.span(damage.span).start),
                record: Some(damage.span),
            };
            say(format_args!("bad  {place}: {}", escape::one_line(&damage.what)))?;
        }
    }
    let new = rows.iter().filter(|row| row.is_new).count();
    mention(format_args!("{} made, {} kept from before", new, rows.len() - new));
    Ok(())
}

/// A manifest knows shards by their names alone.
fn check_names<'a>(paths: impl Iterator<Item = &'a PathBuf>, manifest: &Path) -> Result<()> {
    let mut names = std::collections::BTreeMap::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default();
        if let Some(other) = names.insert(name, path) {
            let message =
                format!("{} and {} have one name", escape::path(other), escape::path(path));
            return Err(Error::new(Kind::InvalidSource, message)
                .at(at(manifest))
                .with_hint("write a manifest for each folder"));
        }
    }
    Ok(())
}

fn write_manifest(rows: &[Row], manifest: &Path) -> Result<()> {
    // Again: with --beside, an index may have come to lie there.
    check_target(manifest)?;
    let shards: Map<String, Value> = rows
        .iter()
        .map(|Row { path, index, .. }| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (name, json!({"records": index.len(), "bytes": index.stamp.size}))
        })
        .collect();
    let text = format!("{:#}\n", Value::Object(shards));
    atomic_file::replace(manifest, text.as_bytes()).map_err(|error| {
        Error::io(Kind::InvalidSource, "writing the manifest", error)
            .at(at(manifest))
            .with_hint("name a file that can be written")
    })
}
