//! The events of a worker pool as Python objects: what happened to workers, besides the results of their tasks.

use feedline_core::worker::blackbox::Snapshot;
use feedline_core::worker::processes::{self, PoolEvent, StartError};
use feedline_core::worker::supervisor::{ExitKind, GiveUpReason, RunFailure, Shortage};
use pyo3::prelude::*;

use crate::processes::TaskResult;

/// What a worker is doing, from its black box. `since` is seconds of the monotonic clock.
#[pyclass(module = "feedline._native", frozen, get_all)]
#[derive(Clone)]
pub(crate) struct Activity {
    stage: &'static str,
    task: Option<u64>,
    offset: Option<u64>,
    since: f64,
    resident_bytes: u64,
    descriptors: u64,
}

impl Activity {
    pub(crate) fn new(last: Snapshot) -> Activity {
        Activity {
            stage: last.activity.name(),
            task: last.task,
            offset: last.offset,
            since: last.since as f64 / 1e9,
            resident_bytes: last.resident_bytes,
            descriptors: last.descriptors,
        }
    }
}

/// A task that is not retried, because one of its samples "kills" its worker or "hangs". `offset` is that of the
/// sample, if it is known; `journal` is the journal of the worker from before the task.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct GaveUp {
    task: u64,
    offset: Option<u64>,
    why: &'static str,
    journal: Option<Vec<u8>>,
}

/// A worker has died.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct WorkerDied {
    worker: u32,
    pid: Option<u32>,
    signal: Option<i32>,
    exit_code: Option<i32>,
    tasks: Vec<u64>,
    is_replaced: bool,
    cause: &'static str,
    is_certain: bool,
    why: Vec<String>,
    code: Option<String>,
    stack: Vec<String>,
    hint: String,
    peak_bytes: u64,
    last: Option<Activity>,
}

/// A worker makes no progress. If `is_restarted_fresh`, all workers are restarted from a fresh interpreter.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct WorkerStalled {
    worker: u32,
    pid: Option<u32>,
    process_state: Option<&'static str>,
    stack: Vec<String>,
    last: Option<Activity>,
    is_restarted_fresh: bool,
}

/// A worker that leaked was replaced.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct WorkerRenewed {
    worker: u32,
    pid: Option<u32>,
    cause: Option<&'static str>,
    why: Option<String>,
    tasks: Option<(u64, u64)>,
}

/// A worker has sent an event: its name and its details, as JSON.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct WorkerNote {
    worker: u32,
    json: Vec<u8>,
}

/// From now on at most `most` of `of` workers run at once. `shortage` is what is short if these are fewer than before:
/// "processes" or "memory".
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct CapacityChanged {
    most: u32,
    of: u32,
    shortage: Option<&'static str>,
    os_error: Option<i32>,
    largest_worker: u64,
    memory: Option<(u64, u64)>,
}

/// The process that forks the workers does not answer.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct ZygoteLate {
    pid: Option<u32>,
    process_state: Option<&'static str>,
    is_killed: bool,
}

/// A zygote has to be started; with `is_fresh`, as a new interpreter, because forked workers have hung.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct StartZygote {
    is_fresh: bool,
}

/// The pool has failed. `result` is the exception of a worker that could not start, `text` that of a zygote.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct PoolFailed {
    why: &'static str,
    worker: Option<u32>,
    os_error: Option<i32>,
    result: Option<Py<TaskResult>>,
    text: Option<Vec<u8>>,
}

/// An event as an object of one of these classes, or of `TaskResult`. A pool that was woken, and one that has nothing
/// to report, have none.
pub(crate) fn object<'py>(
    py: Python<'py>,
    event: PoolEvent,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(Some(match event {
        PoolEvent::TaskResult(result) => Bound::new(py, TaskResult::new(result))?.into_any(),
        PoolEvent::GaveUp(task) => Bound::new(py, gave_up(task))?.into_any(),
        PoolEvent::Died(report) => Bound::new(py, died(report))?.into_any(),
        PoolEvent::Stalled(stall) => Bound::new(py, stalled(stall, false))?.into_any(),
        PoolEvent::RestartedFresh(stall) => Bound::new(py, stalled(stall, true))?.into_any(),
        PoolEvent::Renewed(renewed) => {
            let leak = renewed.leak.as_ref();
            let renewed = WorkerRenewed {
                worker: renewed.incarnation.worker_id,
                pid: renewed.pid,
                cause: leak.map(|leak| leak.name()),
                why: leak.map(|leak| leak.describe()),
                tasks: renewed.tasks,
            };
            Bound::new(py, renewed)?.into_any()
        }
        PoolEvent::CapacityChanged(change) => {
            let shortage = change.shortage.map(|shortage| match shortage {
                Shortage::Processes => "processes",
                Shortage::Memory => "memory",
                Shortage::Descriptors => "descriptors",
                Shortage::Space => "space",
            });
            let processes::CapacityChange { most, of, os_error, largest_worker, memory, .. } =
                change;
            let changed = CapacityChanged { most, of, shortage, os_error, largest_worker, memory };
            Bound::new(py, changed)?.into_any()
        }
        PoolEvent::Note { worker_id, text } => {
            Bound::new(py, WorkerNote { worker: worker_id, json: text })?.into_any()
        }
        PoolEvent::ZygoteLate(late) => {
            let process_state = late.process_state.map(|state| state.describe());
            let late = ZygoteLate { pid: late.pid, process_state, is_killed: late.is_killed };
            Bound::new(py, late)?.into_any()
        }
        PoolEvent::StartZygote { fresh } => {
            Bound::new(py, StartZygote { is_fresh: fresh })?.into_any()
        }
        PoolEvent::Failed(failure) => Bound::new(py, failed(py, failure)?)?.into_any(),
        PoolEvent::Woken | PoolEvent::Nothing => return Ok(None),
    }))
}

fn gave_up(failed: processes::FailedTask) -> GaveUp {
    let why = match failed.why {
        GiveUpReason::Kills => "kills",
        GiveUpReason::Hangs => "hangs",
    };
    GaveUp { task: failed.task, offset: failed.at, why, journal: failed.journal }
}

fn died(report: processes::DeathReport) -> WorkerDied {
    let (signal, exit_code) = match report.death.exit {
        ExitKind::Exited(code) => (None, Some(code)),
        ExitKind::Killed(signal) => (Some(signal), None),
        ExitKind::Lost => (None, None),
    };
    let certificate = report.certificate;
    WorkerDied {
        worker: report.death.incarnation.worker_id,
        pid: report.pid,
        signal,
        exit_code,
        tasks: report.death.tasks,
        is_replaced: report.death.replaced,
        cause: certificate.cause.name(),
        is_certain: certificate.is_certain,
        why: certificate.why,
        code: certificate.code,
        stack: certificate.stack,
        hint: certificate.hint,
        peak_bytes: report.peak_bytes,
        last: report.last.map(Activity::new),
    }
}

fn stalled(stall: processes::Stall, is_restarted_fresh: bool) -> WorkerStalled {
    WorkerStalled {
        worker: stall.incarnation.worker_id,
        pid: stall.pid,
        process_state: stall.process_state.map(|state| state.describe()),
        stack: stall.stack,
        last: stall.last.map(Activity::new),
        is_restarted_fresh,
    }
}

fn failed(py: Python<'_>, failure: processes::PoolFailure) -> PyResult<PoolFailed> {
    let (why, worker) = match failure.failure {
        RunFailure::TooManyDeaths => ("too many deaths", None),
        RunFailure::Death { incarnation } => ("death", Some(incarnation.worker_id)),
        RunFailure::CannotStart { incarnation } => ("cannot start", Some(incarnation.worker_id)),
        RunFailure::DiesStarting { incarnation } => ("dies starting", Some(incarnation.worker_id)),
        RunFailure::Refused { worker_id, .. } => ("refused", Some(worker_id)),
        RunFailure::ZygoteCannotStart => ("zygote", None),
        RunFailure::ZygoteHangs => ("zygote hangs", None),
        RunFailure::DescriptorsClosed => ("descriptors closed", None),
    };
    let (result, text) = match failure.start_error {
        Some(StartError::Worker(result)) => (Some(Py::new(py, TaskResult::new(result))?), None),
        Some(StartError::Zygote(text)) => (None, Some(text)),
        None => (None, None),
    };
    Ok(PoolFailed { why, worker, os_error: failure.os_error, result, text })
}
