//! Sources, loaders and epochs as Python objects.

use feedline_core::collate::{self, Axes, Content};
use feedline_core::config::Settings;
use feedline_core::error::{Error, Kind};
use feedline_core::fault::Symptom;
use feedline_core::loader::{self, BatchMembers, Fit, Waited};
use feedline_core::run_state::RunState;
use feedline_core::sample::{Batch, Column, Dtype};
use feedline_core::source;
use feedline_core::source::files::Files;
use feedline_core::source::folder::Folder;
use feedline_core::source::paths;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::arrays;
use crate::dlpack::Tensor;
use crate::errors::raise;
use crate::faults::{self, CoreEvent, Ledger};
use crate::instructions::{self, Deliver};
use crate::interrupts;
use crate::lists::BytesList;
use crate::processes::Processes;
use crate::records;

/// A source of samples.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Source(Arc<dyn source::Source>);

impl Source {
    pub(crate) fn settings(&self, config: &str) -> PyResult<Settings> {
        Settings::parse(config, &loader::given(&*self.0)).map_err(raise)
    }

    /// Checks the settings, also against the number of samples.
    pub(crate) fn check(&self, config: &str) -> PyResult<()> {
        let settings = self.settings(config)?;
        loader::check(&*self.0, &settings).map_err(raise)
    }
}

#[pymethods]
impl Source {
    /// A folder with a sub-folder for each class.
    #[staticmethod]
    fn images(py: Python<'_>, folder: PathBuf) -> PyResult<Source> {
        let source = py.detach(|| Folder::images(&folder)).map_err(raise)?;
        Ok(Source(Arc::new(source)))
    }

    /// Files in this order.
    #[staticmethod]
    fn files(paths: Vec<PathBuf>, labels: Option<Vec<i64>>) -> PyResult<Source> {
        Ok(Source(Arc::new(Files::list(&paths, labels).map_err(raise)?)))
    }

    /// Expands paths, patterns and braces to files.
    #[staticmethod]
    fn expand(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Vec<PathBuf>> {
        py.detach(|| paths::expand(&paths)).map_err(raise)
    }

    /// The shards without samples.
    #[getter]
    fn empty_shards(&self) -> Vec<PathBuf> {
        self.0.empty_shards()
    }

    /// Arrays in memory.
    #[staticmethod]
    fn arrays(arrays: &Bound<'_, PyDict>) -> PyResult<Source> {
        Ok(Source(Arc::new(arrays::source(arrays)?)))
    }

    /// Records in shards: tfrecord, tar, jsonl or csv. While indexes are built, `on_progress` is
    /// called with the number of finished shards, of all shards, and of bytes.
    #[staticmethod]
    #[pyo3(signature = (container, paths, *, check, keep, manifest, delimiter, on_progress))]
    #[expect(clippy::too_many_arguments, reason = "one per argument in Python")]
    fn records(
        py: Python<'_>,
        container: &str,
        paths: Vec<PathBuf>,
        check: bool,
        keep: PathBuf,
        manifest: Option<PathBuf>,
        delimiter: &str,
        on_progress: &Bound<'_, PyAny>,
    ) -> PyResult<Source> {
        records::source(
            py,
            container,
            paths,
            check,
            keep,
            manifest.as_deref(),
            delimiter,
            on_progress,
        )
        .map(|source| Source(Arc::new(source)))
    }

    /// Windows of numbers in files, each given as (path, first byte, count or None).
    #[staticmethod]
    fn numbers(
        files: Vec<(PathBuf, u64, Option<u64>)>,
        dtype: &str,
        length: u64,
        stride: u64,
    ) -> PyResult<Source> {
        let source = records::numbers(files, dtype, length, stride)?;
        Ok(Source(Arc::new(source)))
    }

    /// The same samples, joined with rows of other arrays.
    fn zip(&self, other: &Source) -> PyResult<Source> {
        let zipped = source::zip::Zip::new(Arc::clone(&self.0), &*other.0).map_err(raise)?;
        Ok(Source(Arc::new(zipped)))
    }

    /// Concatenates sources.
    #[staticmethod]
    fn concat(sources: Vec<Bound<'_, Source>>) -> PyResult<Source> {
        let sources = sources.iter().map(|source| Arc::clone(&source.get().0)).collect();
        Ok(Source(Arc::new(source::concat::Concat::new(sources).map_err(raise)?)))
    }

    /// The number of shards.
    #[getter]
    fn shards(&self) -> usize {
        self.0.shards().len()
    }

    #[getter]
    fn classes(&self) -> Vec<String> {
        self.0.classes().to_vec()
    }

    /// The path of a sample, and its label.
    fn sample(&self, index: u64) -> PyResult<(Option<PathBuf>, Option<i64>)> {
        if index >= self.0.len() {
            let message = format!("there is no sample {index}: the source has {}", self.0.len());
            return Err(pyo3::exceptions::PyIndexError::new_err(message));
        }
        let path = self.0.location(index).map(|location| location.path);
        Ok((path, self.0.label(index)))
    }

    fn __len__(&self) -> usize {
        self.0.len() as usize
    }
}

/// The description of a column: name, kind, number type, shape.
type ColumnDescription = (String, &'static str, Option<&'static str>, Option<Axes>);

/// A data set as batches.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Loader(loader::Loader);

#[pymethods]
impl Loader {
    #[new]
    fn new(source: &Source, config: &str) -> PyResult<Loader> {
        let settings = source.settings(config)?;
        let loader = loader::Loader::new(Arc::clone(&source.0), settings).map_err(raise)?;
        Ok(Loader(loader))
    }

    /// Starts the next epoch.
    fn epoch(&self, py: Python<'_>) -> PyResult<Epoch> {
        let epoch = py.detach(|| self.0.epoch()).map_err(raise)?;
        Ok(Epoch(Mutex::new(Some(epoch))))
    }

    /// The report as JSON.
    fn report_json(&self) -> PyResult<String> {
        self.0.check_home().map_err(raise)?;
        Ok(self.0.report().to_json().to_string())
    }

    /// The report as text.
    fn report_text(&self) -> PyResult<String> {
        self.0.check_home().map_err(raise)?;
        Ok(self.0.report().to_string())
    }

    /// Whether there are events to report.
    #[getter]
    fn has_events(&self) -> bool {
        self.0.check_home().is_ok() && self.0.has_events()
    }

    /// The events not reported yet.
    fn take_events(&self) -> PyResult<Vec<CoreEvent>> {
        self.0.check_home().map_err(raise)?;
        Ok(faults::events(self.0.take_events()))
    }

    /// The state of the consumer, as JSON.
    fn state(&self) -> PyResult<String> {
        self.0.check_home().map_err(raise)?;
        Ok(self.0.state().to_json())
    }

    /// Makes the next epoch continue from a state, or from those of all ranks, as JSON.
    fn load_states(&self, py: Python<'_>, states: &str, strict: bool) -> PyResult<()> {
        let states = RunState::list_from_json(states).map_err(raise)?;
        let fit = if strict { Fit::Exact } else { Fit::Loose };
        py.detach(|| self.0.load_states(&states, fit)).map_err(raise)
    }

    /// The number of batches that are left of the epoch that runs or comes next.
    #[getter]
    fn batches_left(&self) -> u64 {
        self.0.batches_left()
    }

    /// The epoch that runs, or was begun last.
    #[getter]
    fn newest_epoch(&self) -> u64 {
        self.0.newest_epoch()
    }

    /// The numbers of the samples of a batch in its epoch; None if they depend on the samples before
    /// them.
    fn batch_members(&self, epoch: u64, batch: u64) -> PyResult<Option<Vec<u64>>> {
        Ok(match self.0.batch_members(epoch, batch).map_err(raise)? {
            BatchMembers::Numbers(numbers) => Some(numbers),
            BatchMembers::DependOnEarlier => None,
        })
    }

    /// The number of the sample with this index in an epoch.
    fn sample_number(&self, py: Python<'_>, epoch: u64, index: u64) -> PyResult<u64> {
        py.detach(|| self.0.sample_number(epoch, index)).map_err(raise)
    }

    /// Makes the next epoch one of these samples alone, or a whole one if `numbers` is None.
    #[pyo3(signature = (epoch, numbers))]
    fn choose(&self, epoch: u64, numbers: Option<Vec<u64>>) -> PyResult<()> {
        let chosen = match numbers {
            Some(numbers) => self.0.choose(epoch, numbers),
            None => self.0.begin_epoch(epoch),
        };
        chosen.map_err(raise)
    }

    /// The values chosen from the settings and the machine.
    #[getter]
    fn decided<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let decided = self.0.decided();
        let dict = PyDict::new(py);
        dict.set_item("threads", decided.threads)?;
        dict.set_item("readers", decided.readers)?;
        dict.set_item("files", decided.files)?;
        dict.set_item("prefetch", decided.prefetch)?;
        dict.set_item("memory", decided.memory)?;
        Ok(dict)
    }

    /// The columns of the batches: name, kind, number type, and shape with None for an axis that
    /// differs from batch to batch.
    #[getter]
    fn columns(&self) -> Vec<ColumnDescription> {
        let rows = self.0.rows();
        let describe = |promise: collate::Promise| {
            let (kind, dtype, shape) = match promise.content {
                Content::Array { dtype, shape } => ("array", Some(dtype), shape),
                Content::Groups { dtype, inner } => {
                    let inner = inner.into_iter().map(Some);
                    ("groups", Some(dtype), Some([None].into_iter().chain(inner).collect()))
                }
                Content::Bytes => ("bytes", None, Some(vec![rows])),
                Content::Text => ("text", None, Some(vec![rows])),
                Content::Json => ("json", None, Some(vec![rows])),
                Content::Lists => ("lists", None, Some(vec![None])),
            };
            (promise.name.to_string(), kind, dtype.map(Dtype::name), shape)
        };
        self.0.columns().into_iter().map(describe).collect()
    }

    /// The number of samples in every batch, if no batch can have fewer.
    #[getter]
    fn rows(&self) -> Option<usize> {
        self.0.rows()
    }

    /// Whether each future epoch has exactly as many batches as `len` says.
    #[getter]
    fn has_exact_len(&self) -> bool {
        self.0.has_exact_len()
    }

    /// Whether it loads the share of one of several ranks.
    #[getter]
    fn is_shard(&self) -> bool {
        self.0.is_shard()
    }

    /// The ledger of all epochs, for a front that judges faults itself.
    #[getter]
    fn ledger(&self) -> PyResult<Ledger> {
        self.0.check_home().map_err(raise)?;
        Ok(Ledger(self.0.ledger()))
    }

    /// The path of a sample, and its first byte if it is a part of the file.
    fn location(&self, index: u64) -> Option<(String, Option<u64>)> {
        let location = self.0.location(index)?;
        Some((location.path.to_string_lossy().into_owned(), location.offset))
    }

    /// The names of the fields, and how each becomes a column: "fixed", "ragged", "variable",
    /// "listed" or "lists".
    #[getter]
    fn fields(&self) -> Vec<(String, &'static str)> {
        self.0.fields()
    }

    /// Raises if the loader was closed, or belongs to another process.
    fn check_open(&self) -> PyResult<()> {
        self.0.check_open().map_err(raise)
    }

    /// The random seed, and the rank if there are several.
    #[getter]
    fn seed_and_rank(&self) -> (u64, Option<u64>) {
        self.0.seed_and_rank()
    }

    /// Ends the running epoch and all threads.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    fn __len__(&self) -> usize {
        self.0.len() as usize
    }
}

/// Why `Epoch.next` returns no batch.
#[pyclass(module = "feedline._native", frozen, eq, eq_int)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoBatch {
    /// There are events to report first.
    Events,
    /// The epoch is over.
    End,
}

/// One epoch.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Epoch(Mutex<Option<loader::Epoch>>);

impl Epoch {
    fn with<T>(&self, action: impl FnOnce(&mut loader::Epoch) -> T) -> PyResult<T> {
        let mut epoch = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        epoch.as_mut().map(action).ok_or_else(|| {
            let message = "the epoch was left: the loader was closed, or another epoch begun";
            raise(Error::new(Kind::Closed, message))
        })
    }
}

#[pymethods]
impl Epoch {
    /// The next batch as (name, value) pairs, or why there is none. Ctrl-C ends the wait. The batch
    /// counts as delivered when `confirm` is called.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let no_batch = |why: NoBatch| Bound::new(py, why).map(Bound::into_any);
        loop {
            let (waited, has_events) = py.detach(|| {
                let mut epoch = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                match &mut *epoch {
                    Some(epoch) => {
                        (epoch.take_within(interrupts::CHECK_INTERVAL), epoch.has_events())
                    }
                    None => (Ok(Waited::End), false),
                }
            });
            match waited.map_err(raise)? {
                Waited::Batch(batch) => {
                    return columns(py, *batch).map(Bound::into_any);
                }
                Waited::End => return no_batch(NoBatch::End),
                Waited::NotYet => interrupts::check(py)?,
            }
            if has_events {
                return no_batch(NoBatch::Events);
            }
        }
    }

    /// Confirms that the consumer has the batch that `next` returned last.
    fn confirm(&self) {
        let mut epoch = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(epoch) = epoch.as_mut() {
            epoch.confirm();
        }
    }

    /// The next instruction for a front that calls functions for the samples: a `Part` (only if
    /// it `takes_parts`), `Finish`, `Deliver`, `Forget`, `Stop` or `End`. Returns None if there is
    /// none now, or if there are events to report first.
    #[pyo3(signature = (*, takes_parts, wait))]
    fn instruction<'py>(
        &self,
        py: Python<'py>,
        takes_parts: bool,
        wait: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let time = if wait { interrupts::CHECK_INTERVAL } else { Duration::ZERO };
        loop {
            let (instruction, has_events) = py.detach(|| {
                self.with(|epoch| (epoch.next_instruction(takes_parts, time), epoch.has_events()))
            })?;
            if let Some(instruction) = instruction.map_err(raise)? {
                return instructions::to_python(py, instruction).map(Some);
            }
            if has_events || !wait {
                return Ok(None);
            }
            interrupts::check(py)?;
        }
    }

    /// Wakes these workers when there is an instruction to take.
    fn wake(&self, processes: &Processes) -> PyResult<()> {
        let waker = processes.waker()?;
        self.with(|epoch| epoch.on_ready(move || waker.wake()))
    }

    /// Whether each batch has the same samples as without faults, except the bad ones.
    #[getter]
    fn has_fixed_batches(&self) -> PyResult<bool> {
        self.with(|epoch| epoch.has_fixed_batches())
    }

    /// The number of a shape of samples, described as JSON: an object for a dict, a list for a
    /// tuple, a text for anything else.
    fn shape(&self, described_json: &str) -> PyResult<u32> {
        self.with(|epoch| epoch.shape(described_json))
    }

    /// Reports samples that functions have loaded, all of one shape.
    fn good(&self, keys: Vec<u64>, shape: u32) -> PyResult<()> {
        self.with(|epoch| epoch.good(&keys, shape))
    }

    /// Reports samples that the user's filter leaves out.
    fn filtered(&self, keys: Vec<u64>) -> PyResult<()> {
        self.with(|epoch| epoch.filtered(&keys))
    }

    /// Reports that a function failed for a sample. Returns the number of the fault, which `Stop`
    /// may refer to.
    fn bad(
        &self,
        key: u64,
        names: Vec<String>,
        os_error: Option<i32>,
        line_json: &str,
    ) -> PyResult<u64> {
        let line = faults::line(line_json)?;
        self.with(|epoch| epoch.bad(key, Symptom { names, os_error }, line))
    }

    /// Reports the outcome of a `Finish`: samples that turned out to be bad, as arguments of `bad`.
    /// Returns the numbers of the faults.
    fn finished(&self, number: u64, bad: Vec<LateFault>) -> PyResult<Vec<u64>> {
        let bad = bad.into_iter().map(|(key, names, os_error, line_json)| {
            Ok((key, Symptom { names, os_error }, faults::line(&line_json)?))
        });
        let bad = bad.collect::<PyResult<_>>()?;
        self.with(|epoch| epoch.finished(number, bad))
    }

    /// Decides everything that the reported results allow.
    fn advance(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.with(|epoch| epoch.advance()))
    }

    /// Reports that the consumer has a batch, and how long it waited.
    fn took(&self, batch: &Deliver, waited_seconds: f64) -> PyResult<()> {
        let waited = Duration::try_from_secs_f64(waited_seconds).unwrap_or_default();
        self.with(|epoch| epoch.took(batch.keys.len() as u64, waited, batch.end.clone()))
    }

    /// Reports that the consumer has seen the end.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.with(|epoch| epoch.finish()))?.map_err(raise)
    }

    /// Ends its threads.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let epoch = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(epoch);
        });
    }
}

/// A sample that turned out to be bad: its key, the names of the exception classes, the `errno`,
/// and the fault as JSON.
type LateFault = (u64, Vec<String>, Option<i32>, String);

pub(crate) fn columns(py: Python<'_>, batch: Batch) -> PyResult<Bound<'_, PyList>> {
    let permit = batch.permit.map(Arc::new);
    let columns = PyList::empty(py);
    for (name, column) in batch.columns {
        let name = PyString::new(py, &name);
        let value = match column {
            Column::Array { dtype, shape, memory } => {
                Bound::new(py, Tensor::new(dtype, shape, memory))?.into_any()
            }
            Column::Bytes(list) => Bound::new(py, BytesList::new(list, permit.clone()))?.into_any(),
            Column::Json(list) => {
                let loads = py.import("json")?.getattr("loads")?;
                let values: PyResult<Vec<_>> =
                    list.iter().map(|text| loads.call1((&**text,))).collect();
                PyList::new(py, values?)?.into_any()
            }
            Column::Text(list) => PyList::new(py, list.iter().map(|text| &**text))?.into_any(),
        };
        columns.append((name, value))?;
    }
    Ok(columns)
}
