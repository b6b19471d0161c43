//! What a front that has functions called for the samples has to do, as Python objects.

use feedline_core::loader::{self, BatchEnd};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::errors::raise;
use crate::loader::columns;

/// Call functions for these samples.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct Part {
    /// (name, value) pairs, to be taken once.
    columns: Py<PyList>,
    /// Which samples: consecutive numbers, that no other sample of the epoch has.
    keys: Vec<u64>,
    /// (position, epoch, index) of each.
    tickets: Vec<(u64, u64, u64)>,
    /// Whether they are a batch if nothing is left out.
    may_be_batch: bool,
}

/// Call the functions of batches for these samples, and report the result with `Epoch.finished`.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct Finish {
    number: u64,
    keys: Vec<u64>,
}

/// Deliver the batch of these samples.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Deliver {
    #[pyo3(get)]
    pub(crate) keys: Vec<u64>,
    pub(crate) end: BatchEnd,
}

/// These samples are not needed any more.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct Forget {
    keys: Vec<u64>,
}

/// Raise an error after the batches before it.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct Stop {
    /// The number of the fault that is the cause, if the front has reported it.
    cause: Option<u64>,
    /// None if the cause itself is to be raised.
    error: Option<Py<PyAny>>,
}

/// Nothing comes any more.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct End;

pub(crate) fn to_python(
    py: Python<'_>,
    instruction: loader::Instruction,
) -> PyResult<Bound<'_, PyAny>> {
    Ok(match instruction {
        loader::Instruction::Part(part) => {
            let loader::Part { batch, keys, may_be_batch } = *part;
            let tickets = batch.tickets.iter().map(|it| (it.position, it.epoch, it.index));
            let tickets = tickets.collect();
            let columns = columns(py, batch)?.unbind();
            Bound::new(py, Part { columns, keys, tickets, may_be_batch })?.into_any()
        }
        loader::Instruction::Finish { number, keys } => {
            Bound::new(py, Finish { number, keys })?.into_any()
        }
        loader::Instruction::Deliver { keys, end } => {
            Bound::new(py, Deliver { keys, end })?.into_any()
        }
        loader::Instruction::Forget(keys) => Bound::new(py, Forget { keys })?.into_any(),
        loader::Instruction::Stop { cause, error } => {
            let error = error.map(|error| raise(error).into_value(py).into_any());
            Bound::new(py, Stop { cause, error })?.into_any()
        }
        loader::Instruction::End => Bound::new(py, End)?.into_any(),
    })
}
