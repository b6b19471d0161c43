//! Converts errors of the core to exceptions of `feedline.errors`, one class per kind.

use feedline_core::error::{Error, Kind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(crate) fn kinds() -> Vec<(&'static str, &'static str, &'static str, &'static str)> {
    let row = |kind: &Kind| (kind.name(), kind.code(), kind.example(), kind.hint());
    Kind::ALL.iter().map(row).collect()
}

/// The exception for an error.
#[expect(clippy::needless_pass_by_value, reason = "the shape of map_err")]
pub(crate) fn raise(error: Error) -> PyErr {
    Python::attach(|py| {
        exception(py, &error).unwrap_or_else(|_| PyRuntimeError::new_err(error.to_string()))
    })
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let class = py.import("feedline.errors")?.getattr(error.kind().name())?;
    let details = PyDict::new(py);
    details.set_item("index", error.index())?;
    details.set_item("path", error.location().map(|location| location.path.as_os_str()))?;
    details.set_item("offset", error.location().and_then(|location| location.offset))?;
    details.set_item("record", error.location().and_then(|location| location.record))?;
    details.set_item("stage", error.stage())?;
    details.set_item("hint", error.hint())?;
    Ok(PyErr::from_value(class.call((error.to_string(),), Some(&details))?))
}
