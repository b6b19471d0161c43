//! Policy, breaker and ledger as Python objects: one way with faults for native pipelines, torch loaders
//! and executors.

use feedline_core::config::fault_policy;
use feedline_core::error::{Error, Kind};
use feedline_core::event::{Event, Slow};
use feedline_core::fault::{self, Change, FaultLine, FaultPolicy, Pace, Symptom};
use feedline_core::loader;
use pyo3::prelude::*;
use pyo3::types::PyString;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::batch_engine::{BatchEngine, Verdict};
use crate::errors::raise;
use crate::processes::Processes;

/// What holds for a fault: what to do, after how many retries.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct Rule {
    action: &'static str,
    retry: u32,
}

/// What may be done with a source now. Only `Wait` has a time.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) enum SourceAccess {
    Go {},
    Probe {},
    Wait { seconds: f64 },
    GiveUp {},
}

/// An event as the core describes it; its details are JSON.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct CoreEvent {
    level: &'static str,
    name: String,
    text: String,
    details_json: String,
}

/// The user's policy for faults.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Policy(pub(crate) FaultPolicy);

#[pymethods]
impl Policy {
    #[new]
    fn new(config: &str) -> PyResult<Policy> {
        fault_policy(config).map(Policy).map_err(raise)
    }

    /// What holds for a fault.
    fn rule(&self, names: Vec<String>, os_error: Option<i32>) -> Rule {
        let ruling = self.0.rule(&Symptom { names, os_error });
        Rule { action: ruling.action.name(), retry: ruling.retry }
    }

    /// What holds for a fault whatever it is: being out of descriptors is raised, say, unless it is named.
    fn wanted(&self, names: Vec<String>, os_error: Option<i32>) -> &'static str {
        let line = FaultLine::new(0, names.first().map_or("", String::as_str));
        fault::wanted(&self.0, &Symptom { names, os_error }, &line).name()
    }

    /// Seconds to wait before the next try, after this many that failed; None if there is to be none.
    fn retry_after(
        &self,
        names: Vec<String>,
        os_error: Option<i32>,
        attempt: u32,
        key: Vec<u64>,
    ) -> Option<f64> {
        let wait = self.0.retry_after(&Symptom { names, os_error }, attempt, &key);
        wait.map(|wait| wait.as_secs_f64())
    }

    /// Whether it may be the source that is unavailable.
    #[staticmethod]
    fn may_be_of_source(names: Vec<String>, os_error: Option<i32>) -> bool {
        Symptom { names, os_error }.may_be_of_source()
    }

    #[getter]
    fn fill(&self) -> Option<bool> {
        self.0.fill
    }

    #[getter]
    fn patience(&self) -> f64 {
        self.0.patience.as_secs_f64()
    }

    /// What differs from the default, as JSON.
    #[getter]
    fn config(&self) -> String {
        self.0.to_json().to_string()
    }

    /// As the command line takes it.
    #[getter]
    fn text(&self) -> String {
        self.0.to_string()
    }
}

/// Whether a source is there.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Breaker(Mutex<fault::Breaker>);

impl Breaker {
    fn lock(&self) -> MutexGuard<'_, fault::Breaker> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn change_names(change: Option<Change>) -> Vec<&'static str> {
    change.map(Change::name).into_iter().collect()
}

fn duration(seconds: f64, name: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        let message = format!("{name} must be a number of seconds from 0, got {seconds}");
        raise(Error::new(Kind::InvalidArgument, message))
    })
}

#[pymethods]
impl Breaker {
    #[new]
    #[pyo3(signature = (patience, first = 0.5, longest = 5.0))]
    fn new(patience: f64, first: f64, longest: f64) -> PyResult<Breaker> {
        let pace =
            Pace { first: duration(first, "first")?, longest: duration(longest, "longest")? };
        Ok(Breaker(Mutex::new(fault::Breaker::new(duration(patience, "patience")?, pace))))
    }

    /// Using the source failed in a way that may be the source's, or a probe failed.
    fn failed(&self, probe_is_good: bool, now: f64) -> PyResult<Vec<&'static str>> {
        Ok(change_names(self.lock().failed(probe_is_good, duration(now, "now")?)))
    }

    /// Using the source worked.
    fn worked(&self, now: f64) -> PyResult<Vec<&'static str>> {
        Ok(change_names(self.lock().worked(duration(now, "now")?)))
    }

    /// What may be done now.
    fn may_try(&self, now: f64) -> PyResult<SourceAccess> {
        Ok(match self.lock().may_try(duration(now, "now")?).0 {
            fault::SourceAccess::Go => SourceAccess::Go {},
            fault::SourceAccess::Probe => SourceAccess::Probe {},
            fault::SourceAccess::Wait(time) => SourceAccess::Wait { seconds: time.as_secs_f64() },
            fault::SourceAccess::GiveUp => SourceAccess::GiveUp {},
        })
    }

    /// "closed", "open", "half open" or "given up".
    #[getter]
    fn state(&self) -> &'static str {
        self.lock().state()
    }
}

/// The account of a run.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Ledger(pub(crate) Arc<loader::Ledger>);

pub(crate) fn line(text: &str) -> PyResult<FaultLine> {
    FaultLine::from_text(text).map_err(|error| {
        raise(Error::new(Kind::Internal, format!("this is no fault: {error}, in {text}")))
    })
}

fn json(text: &str) -> PyResult<Value> {
    serde_json::from_str(text).map_err(|error| {
        raise(Error::new(Kind::Internal, format!("this is not JSON: {error}, in {text}")))
    })
}

#[pymethods]
impl Ledger {
    #[new]
    #[pyo3(signature = (config, *, is_of_calls = false))]
    fn new(config: &str, is_of_calls: bool) -> PyResult<Ledger> {
        let policy = fault_policy(config).map_err(raise)?;
        let new = if is_of_calls { loader::Ledger::of_calls } else { loader::Ledger::new };
        new(policy).map(|ledger| Ledger(Arc::new(ledger))).map_err(raise)
    }

    /// An epoch begins with this many samples due.
    fn epoch_started(&self, epoch: u64, expected: Option<u64>) {
        self.0.epoch_started(epoch, expected);
    }

    /// More samples are due.
    fn expect(&self, samples: u64) {
        self.0.expect(samples);
    }

    /// The consumer took a batch.
    pub(crate) fn delivered(&self, samples: u64, waited_seconds: f64) {
        self.0.delivered(samples, Duration::try_from_secs_f64(waited_seconds).unwrap_or_default());
    }

    /// Of what was delivered, this many came a second time.
    fn repeated(&self, samples: u64) {
        self.0.repeated(samples);
    }

    /// This many are left out from the start.
    fn excluded(&self, samples: u64) {
        self.0.excluded(samples);
    }

    /// Writes down a fault that an engine has judged. The text of an error if there were too many.
    fn record(
        &self,
        py: Python<'_>,
        names: Vec<String>,
        os_error: Option<i32>,
        line_json: &str,
        verdict: &Verdict,
    ) -> PyResult<Option<String>> {
        let line = line(line_json)?;
        let symptom = Symptom { names, os_error };
        // Writing to a disk may take its time.
        let error = py.detach(|| self.0.record(&symptom, line, verdict.0));
        Ok(error.map(|error| error.message().to_owned()))
    }

    /// How the epoch stands at its end.
    fn set_fault_counts(&self, engine: &BatchEngine) {
        self.0.set_fault_counts(engine.standing());
    }

    /// This many calls were not made, or nobody gets their result.
    fn cancelled(&self, calls: u64) {
        self.0.cancelled(calls);
    }

    /// Another sample has taken the place of a bad one; `by` is its index as JSON.
    #[pyo3(signature = (line_json, by_json = "null"))]
    fn replaced(&self, line_json: &str, by_json: &str) -> PyResult<()> {
        self.0.replaced(line(line_json)?, json(by_json)?);
        Ok(())
    }

    /// A sample is retried.
    fn retried(&self, line_json: &str) -> PyResult<()> {
        self.0.retried(line(line_json)?);
        Ok(())
    }

    /// A sample took so long.
    fn slow(
        &self,
        index_json: &Bound<'_, PyString>,
        seconds: f64,
        worker: Option<u64>,
        stage: &Bound<'_, PyString>,
    ) -> PyResult<()> {
        if self.0.is_slow(seconds) {
            let index = json(&index_json.to_cow()?)?;
            self.0.slow(Slow { index, seconds, worker, stage: stage.to_cow()?.into_owned() });
        }
        Ok(())
    }

    /// Whether a sample that took so long would be among the slowest.
    fn is_slow(&self, seconds: f64) -> bool {
        self.0.is_slow(seconds)
    }

    /// Something else has happened.
    fn event(&self, name: &str, details_json: &str) -> PyResult<()> {
        let event = Event::from_json(name, json(details_json)?)
            .map_err(|message| raise(Error::new(Kind::Internal, message)))?;
        self.0.event(event);
        Ok(())
    }

    /// The epoch is at its end: everything must add up.
    fn epoch_ended(&self, dropped: u64) -> PyResult<()> {
        self.0.epoch_ended(dropped).map_err(raise)
    }

    /// The run of a front without epochs is over: closes the quarantine file, and says what was left out or
    /// replaced, by cause, if anything was.
    fn close(&self) -> Option<String> {
        self.0.close()
    }

    /// The epoch was left before its end.
    fn epoch_abandoned(&self) {
        self.0.epoch_abandoned();
    }

    /// How long the epochs took so far, which only the front can measure.
    fn add_seconds(&self, seconds: f64) {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        self.0.measure(|report| report.elapsed += time);
    }

    /// The report has the peaks of these workers too.
    fn watch_pool(&self, processes: &Processes) -> PyResult<()> {
        self.0.watch_pool(processes.here()?.peaks());
        Ok(())
    }

    fn report_json(&self) -> String {
        self.0.report().to_json().to_string()
    }

    fn report_text(&self) -> String {
        self.0.report().to_string()
    }

    /// Whether there is anything to take.
    #[getter]
    fn has_events(&self) -> bool {
        self.0.has_events()
    }

    /// Events that were not read yet.
    fn take_events(&self) -> Vec<CoreEvent> {
        events(self.0.take_events())
    }
}

/// Events as Python takes them.
pub(crate) fn events(events: Vec<Event>) -> Vec<CoreEvent> {
    let shown = events.into_iter().map(|event| CoreEvent {
        level: event.level().name(),
        name: event.name().to_owned(),
        text: event.to_string(),
        details_json: event.to_json().to_string(),
    });
    shown.collect()
}

/// The lines of quarantine files, the first one of each sample, as dicts.
pub(crate) fn quarantined(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let found = py.detach(|| loader::quarantined(&path)).map_err(raise)?;
    let lines: Vec<_> = found.iter().map(FaultLine::to_text).collect();
    py.import("json")?.call_method1("loads", (format!("[{}]", lines.join(",")),))
}

/// The samples that quarantine files name.
pub(crate) fn excluded(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let found = py.detach(|| loader::excluded(&path)).map_err(raise)?;
    loads(py, found)
}

/// The calls that quarantine files name.
pub(crate) fn excluded_calls(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let found = py.detach(|| loader::excluded_calls(&path)).map_err(raise)?;
    loads(py, found)
}

fn loads(py: Python<'_>, found: Vec<Value>) -> PyResult<Bound<'_, PyAny>> {
    py.import("json")?.call_method1("loads", (Value::from(found).to_string(),))
}
