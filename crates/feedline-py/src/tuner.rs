//! The tuner of a worker pool as a Python object.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use feedline_core::sys::limits;
use feedline_core::sys::processor_use::ProcessorMeter;
use feedline_core::worker::tuning::{self, Measurement};
use pyo3::prelude::*;

/// How many worker processes run from now on, and why. Others end if memory is short.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct TuningChange {
    workers: u32,
    reason: String,
    ends_others: bool,
}

#[pymethods]
impl TuningChange {
    #[new]
    fn new(workers: u32, reason: String, ends_others: bool) -> TuningChange {
        TuningChange { workers, reason, ends_others }
    }
}

/// Decides how many worker processes run at once.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Tuner(Mutex<(tuning::Tuner, ProcessorMeter)>);

#[pymethods]
impl Tuner {
    /// Starts with `first` processes of at most `most`.
    #[new]
    fn new(first: u32, most: u32) -> Tuner {
        let processors = u32::try_from(limits::processors()).unwrap_or(u32::MAX);
        let tuner = tuning::Tuner::new(first, most, processors);
        Tuner(Mutex::new((tuner, ProcessorMeter::start())))
    }

    /// Takes the results of some seconds, and for how long the consumer waited for them. `machine` is the number of idle
    /// processors, whether the processors are crowded, and whether memory is short; it is measured if not given. Returns
    /// None if there is no change.
    #[pyo3(signature = (seconds, results, waited, machine=None))]
    fn measure(
        &self,
        seconds: f64,
        results: u64,
        waited: f64,
        machine: Option<(f64, bool, bool)>,
    ) -> Option<TuningChange> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (tuner, meter) = &mut *guard;
        let (idle_processors, is_crowded, is_memory_short) = machine.unwrap_or_else(|| {
            let idle = meter.idle_processors().unwrap_or_default();
            let is_crowded = tuning::is_crowded(limits::processor_pressure());
            (idle, is_crowded, tuning::is_memory_short(limits::memory_pressure()))
        });
        let time = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let change = tuner.measure(Measurement {
            elapsed: time(seconds),
            results,
            waited: time(waited),
            idle_processors,
            is_crowded,
            is_memory_short,
        })?;
        Some(TuningChange {
            workers: change.processes,
            reason: change.reason.describe().to_owned(),
            ends_others: change.reason.ends_processes(),
        })
    }
}
