//! Converts errors of the core to exceptions of `feedline.errors`, one class per kind.

use feedline_core::error::{Error, Kind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A kind of error: its class, its code, an example of a message, and its hint.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct ErrorKind {
    name: &'static str,
    code: &'static str,
    example: &'static str,
    hint: &'static str,
}

pub(crate) fn error_kinds() -> Vec<ErrorKind> {
    let row = |kind: &Kind| ErrorKind {
        name: kind.name(),
        code: kind.code(),
        example: kind.example(),
        hint: kind.hint(),
    };
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
    details.set_item("epoch", error.epoch())?;
    let mut message = error.to_string();
    if let (Some(index), Some(epoch)) = (error.index(), error.epoch()) {
        message += &format!("\nreplay: loader.replay(index={index}, epoch={epoch})");
    }
    Ok(PyErr::from_value(class.call((message,), Some(&details))?))
}
