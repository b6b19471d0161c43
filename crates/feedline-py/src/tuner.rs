//! The tuner of a worker pool as a Python object.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use feedline_core::sys::limits;
use feedline_core::sys::processor_use::ProcessorMeter;
use feedline_core::worker::tuning::{self, Measurement};
use pyo3::prelude::*;

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

    /// Takes the results of some seconds, and for how long the consumer waited for them. Returns how many processes run
    /// from now on and why, if there are others than before.
    fn measure(&self, seconds: f64, results: u64, waited: f64) -> Option<(u32, &'static str)> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (tuner, meter) = &mut *guard;
        let time = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let change = tuner.measure(Measurement {
            elapsed: time(seconds),
            results,
            waited: time(waited),
            idle_processors: meter.idle_processors().unwrap_or_default(),
            is_crowded: tuning::is_crowded(limits::processor_pressure()),
            is_memory_short: tuning::is_memory_short(limits::memory_pressure()),
        })?;
        Some((change.processes, change.reason.describe()))
    }
}
