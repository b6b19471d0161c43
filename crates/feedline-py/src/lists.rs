//! Columns of bytes: values stay in the memory they were read into until Python asks for them.
#![allow(unsafe_code, reason = "the buffer protocol is a C interface")]

use feedline_core::budget::Permit;
use feedline_core::bytes::Piece;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyType};
use std::ffi::c_int;
use std::sync::Arc;

use crate::memory::fill;

/// A column of bytes, one value per sample.
///
/// It is a sequence of `bytes`, each of which is created when it is accessed. `list(...)` creates
/// all of them, and `view(at)` reads one without a copy.
#[pyclass(module = "feedline._native", frozen, sequence)]
pub(crate) struct BytesList {
    values: Vec<Piece>,
    /// The memory permit of the batch.
    _permit: Option<Arc<Permit>>,
}

impl BytesList {
    pub(crate) fn new(values: Vec<Piece>, permit: Option<Arc<Permit>>) -> BytesList {
        BytesList { values, _permit: permit }
    }

    fn at(&self, at: isize) -> PyResult<&Piece> {
        let count = self.values.len();
        let from_start = if at < 0 { at.checked_add_unsigned(count) } else { Some(at) };
        from_start
            .and_then(|at| usize::try_from(at).ok())
            .and_then(|at| self.values.get(at))
            .ok_or_else(|| PyIndexError::new_err(format!("there are {count} values, got {at}")))
    }
}

#[pymethods]
impl BytesList {
    fn __len__(&self) -> usize {
        self.values.len()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        at: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match at.extract::<isize>() {
            Ok(at) => Ok(PyBytes::new(py, self.at(at)?).into_any()),
            // Anything that is not an index is handled, or refused, as by a list.
            Err(_) => self.to_list(py)?.as_any().get_item(at),
        }
    }

    /// A read-only view of one value, without a copy.
    fn view<'py>(&self, py: Python<'py>, at: isize) -> PyResult<Bound<'py, PyAny>> {
        let value = Bound::new(py, BytesView(self.at(at)?.clone()))?;
        py.import("builtins")?.getattr("memoryview")?.call1((value,))
    }

    /// All values, as a list of `bytes`.
    #[pyo3(name = "tolist")]
    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.values.iter().map(|value| PyBytes::new(py, value)))
    }

    /// The number of values equal to this one.
    fn count(&self, value: &[u8]) -> usize {
        self.values.iter().filter(|one| ***one == *value).count()
    }

    /// The index of the first value equal to this one.
    fn index(&self, value: &[u8]) -> PyResult<usize> {
        let at = self.values.iter().position(|one| **one == *value);
        at.ok_or_else(|| PyValueError::new_err("no value is equal to this"))
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        if let Ok(other) = other.cast::<BytesList>() {
            let (ours, theirs) = (&self.values, &other.get().values);
            let mut pairs = ours.iter().zip(theirs);
            let is_same = ours.len() == theirs.len() && pairs.all(|(one, other)| **one == **other);
            return Ok(is_same.into_pyobject(py)?.to_owned().into_any().unbind());
        }
        if other.is_instance_of::<PyList>() {
            return Ok(self.to_list(py)?.rich_compare(other, pyo3::basic::CompareOp::Eq)?.unbind());
        }
        Ok(py.NotImplemented())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("BytesList({})", self.to_list(py)?.repr()?))
    }

    /// It is pickled as a list.
    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyType>, (Bound<'py, PyList>,))> {
        Ok((py.get_type::<PyList>(), (self.to_list(py)?,)))
    }
}

/// One value, as an object with a buffer.
#[pyclass(module = "feedline._native", frozen)]
struct BytesView(Piece);

#[pymethods]
impl BytesView {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let piece = &slf.get().0;
        let address = piece.as_ptr().cast_mut();
        // SAFETY: the view comes from Python and cannot write; the bytes live as long as this
        // object, which the view holds.
        unsafe { fill(slf.as_any(), view, flags, address, piece.len(), true) }
    }
}
