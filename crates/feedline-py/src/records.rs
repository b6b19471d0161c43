//! Creates sources of records for Python.

use feedline_core::error::{Error, Kind};
use feedline_core::format::{Container, example};
use feedline_core::sample::{Dtype, Location};
use feedline_core::source::index::IndexStorage;
use feedline_core::source::numbers::{Numbered, Numbers};
use feedline_core::source::records::{Done, Records};
use feedline_core::source::walk::walk;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};

use crate::errors::raise;

/// Opens shards, and reports progress to Python.
#[expect(clippy::too_many_arguments, reason = "one per argument in Python")]
pub(crate) fn source(
    py: Python<'_>,
    container: &str,
    paths: Vec<PathBuf>,
    check: bool,
    keep: PathBuf,
    manifest: Option<&Path>,
    delimiter: &str,
    on_progress: &Bound<'_, PyAny>,
) -> PyResult<Records> {
    let delimiter = delimiter.bytes().next().unwrap_or(b',');
    let container = match container {
        "tfrecord" => Container::Tfrecord { check },
        "tar" => Container::Tar,
        "jsonl" => Container::JsonLines,
        "csv" => Container::Csv { delimiter, columns: [].into() },
        other => {
            let message = format!("unknown record format {other:?}");
            return Err(raise(Error::new(Kind::InvalidSource, message)));
        }
    };
    let keep = match keep.to_str() {
        Some("") => IndexStorage::Nowhere,
        Some("beside") => IndexStorage::Beside,
        Some(_) | None => IndexStorage::Folder(keep),
    };
    let on_progress = on_progress.clone().unbind();
    let mut stopped = None;
    let records = py.detach(|| {
        Records::new(paths, container, &keep, manifest, &mut |done: Done| {
            let reported = Python::attach(|py| {
                py.check_signals()?;
                on_progress.call1(py, (done.shards, done.of, done.bytes)).map(drop)
            });
            stopped = reported.err();
            stopped.is_none()
        })
    });
    match stopped {
        Some(error) => Err(error),
        None => records.map_err(raise),
    }
}

/// Creates a source of windows of numbers.
pub(crate) fn numbers(
    files: Vec<(PathBuf, u64, Option<u64>)>,
    dtype: &str,
    length: u64,
    stride: u64,
) -> PyResult<Numbers> {
    let known = Dtype::ALL.iter().copied().find(|known| known.name() == dtype);
    let dtype = known.ok_or_else(|| {
        raise(Error::new(Kind::InvalidArgument, format!("tokens: {dtype:?} is not a number type")))
    })?;
    let files: Vec<_> =
        files.into_iter().map(|(path, start, count)| Numbered { path, start, count }).collect();
    Numbers::new(&files, dtype, length, stride).map_err(raise)
}

/// The call of `parse` that fits the first Examples of a file.
#[pyfunction]
pub(crate) fn example_schema(py: Python<'_>, path: PathBuf, records: usize) -> PyResult<String> {
    let text = py.detach(|| {
        let mut first: Vec<Vec<u8>> = Vec::new();
        let container = Container::Tfrecord { check: true };
        walk(&path, &container, &mut |seen| {
            first.extend(seen.payload.ok().map(<[u8]>::to_vec));
            first.len() < records
        })?;
        if first.is_empty() {
            return Err(Error::new(Kind::InvalidSource, "the file has no valid record")
                .at(Some(Location::file(&path)))
                .with_hint("see what is wrong with it: feedline verify FILE"));
        }
        Ok(example::schema(first.iter().map(Vec::as_slice)).python())
    });
    text.map_err(raise)
}
