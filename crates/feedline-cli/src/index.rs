//! `feedline index`: finds every record of every shard, and saves the indices for the loaders.

use clap::Args;
use feedline_core::error::{Error, Kind, Result};
use feedline_core::escape;
use feedline_core::sample::Location;
use feedline_core::source::index::{Index, IndexStorage, Reuse};
use feedline_core::sys::atomic_file;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

use crate::dataset::{Format, Paths, at};
use crate::manifest::check_target;
use crate::report::{self, counted, print_note, print_result, table};
use crate::shards::{cache, indices};

/// Finds every record of every shard, and saves the indices for the loaders.
///
/// A loader needs the start of each record to shuffle, to divide records among ranks and to resume. It scans shards
/// that have no saved index; this command does so beforehand, in parallel, and reports corrupt records. It indexes
/// TFRecord, tar, JSON lines and CSV, compressed or not.
///
/// An index is valid as long as the size and modification time of its shard stay the same. It is saved in the folder
/// FEEDLINE_CACHE, or in feedline in the user's cache folder, where loaders look for it; with --beside, in a file
/// beside each shard, which loaders find too.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    feedline index data/*.tfrecord              all shards of a data set\n  \
    feedline index data/ --beside               all below a folder, indices beside the shards\n  \
    feedline index data/ --manifest parts.json  also write the contents of each shard, for manifest=\n  \
    feedline index data/ --fresh                ignore the saved indices\n\n\
    Exit codes: 0 good, 1 some shards are corrupt, 2 could not run.")]
pub(crate) struct IndexCommand {
    #[command(flatten)]
    paths: Paths,

    /// Save each index beside its shard, as NAME.flindex
    #[arg(long)]
    beside: bool,

    /// Build all indices again, ignoring saved ones
    #[arg(long)]
    fresh: bool,

    /// Write the number of records and bytes of each shard to this JSON file
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
                    "give TFRecord, tar, JSON lines or CSV files, or folders of them; \
                 --as sets the format if the names do not show it",
                ));
        }
        if let Some(manifest) = &self.manifest {
            check_names(found.shards.values().flatten(), manifest)?;
            check_target(manifest)?;
        }
        let storage = if self.beside { IndexStorage::Beside } else { cache() };
        let mut rows = Vec::new();
        for (format, paths) in found.shards {
            rows.extend(self.index(format, paths, &storage)?);
        }
        let corrupt: usize = rows.iter().map(|row| row.index.corrupt_spans().len()).sum();
        // Checked at the end: if stdout cannot be written, the manifest is still useful.
        let printed = print_table(&rows);
        match &storage {
            IndexStorage::Folder(folder) => {
                print_note(format_args!("indices are saved in {}", escape::path(folder)))
            }
            IndexStorage::Beside => print_note("indices are saved beside the shards"),
            IndexStorage::Nowhere => {
                print_note("indices are not saved: set FEEDLINE_CACHE to a folder")
            }
        }
        match &self.manifest {
            // A manifest of a truncated shard would declare its contents correct.
            Some(_) if corrupt > 0 => {
                print_note("no manifest was written, because some shards are corrupt")
            }
            Some(manifest) => {
                write_manifest(&rows, manifest)?;
                print_note(format_args!("the manifest is {}", escape::path(manifest)));
            }
            None => {}
        }
        printed?;
        Ok(i32::from(corrupt > 0))
    }

    fn index(
        &self,
        format: Format,
        paths: Vec<PathBuf>,
        storage: &IndexStorage,
    ) -> Result<Vec<Row>> {
        let container = self.paths.reading.container(format, &paths)?;
        let reuse = if self.fresh { Reuse::Nothing } else { Reuse::Fitting };
        let made = indices(&paths, &container, storage, reuse)?;
        let rows = paths.into_iter().zip(made).map(|(path, made)| {
            let made = made?;
            match made.unsaved {
                Some(unsaved) => Err(unsaved
                    .into_error()
                    .with_hint("set FEEDLINE_CACHE to a writable folder, or use --beside")),
                None => Ok(Row { path, index: made.index, is_new: made.is_new }),
            }
        });
        rows.collect()
    }
}

fn print_table(rows: &[Row]) -> Result<()> {
    let records = |index: &Index| index.len() - index.corrupt_spans().len() as u64;
    let line = |name: String, records: u64, bytes: u64, corrupt: u64| {
        [name, records.to_string(), report::bytes(bytes), corrupt.to_string()]
    };
    let (mut all, mut bytes, mut corrupt) = (0, 0, 0);
    let mut lines = Vec::new();
    for Row { path, index, .. } in rows {
        let corrupt_here = index.corrupt_spans().len() as u64;
        lines.push(line(escape::path(path), records(index), index.stamp.size, corrupt_here));
        all += records(index);
        bytes += index.stamp.size;
        corrupt += corrupt_here;
    }
    let shards = counted(rows.len() as u64, "shard", "shards");
    lines.push(line(shards, all, bytes, corrupt));
    print_result(table(["shard", "records", "bytes", "corrupt"], lines))?;
    for Row { path, index, .. } in rows {
        for corrupt in index.corrupt_spans() {
            let place = Location {
                path: path.clone(),
                offset: Some(index.span(corrupt.span).start),
                record: Some(corrupt.span),
            };
            print_result(format_args!("bad  {place}: {}", escape::one_line(&corrupt.what)))?;
        }
    }
    let new = rows.iter().filter(|row| row.is_new).count();
    print_note(format_args!("{} built, {} reused", new, rows.len() - new));
    Ok(())
}

/// A manifest lists shards by file name alone.
fn check_names<'a>(paths: impl Iterator<Item = &'a PathBuf>, manifest: &Path) -> Result<()> {
    let mut names = std::collections::BTreeMap::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default();
        if let Some(other) = names.insert(name, path) {
            let message =
                format!("{} and {} have the same name", escape::path(other), escape::path(path));
            return Err(Error::new(Kind::InvalidSource, message)
                .at(at(manifest))
                .with_hint("write a manifest for each folder"));
        }
    }
    Ok(())
}

fn write_manifest(rows: &[Row], manifest: &Path) -> Result<()> {
    // Checked again: with --beside, an index may have been written there by now.
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
            .with_hint("give a writable file")
    })
}
