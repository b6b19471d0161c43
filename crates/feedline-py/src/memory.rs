//! Memory that Python accesses through the buffer protocol or DLPack, in a worker and in the
//! trainer.
#![allow(unsafe_code, reason = "the buffer protocol is a C interface")]

use feedline_core::worker::arena::ArenaPiece;
use feedline_core::worker::inbox;
use feedline_core::worker::result::ResultBuffer;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::Arc;

use crate::dlpack::{self, ElementType, Layout};

/// Gets the buffers of some objects; they are held as long as the views live.
pub(crate) fn views(buffers: &[Bound<'_, PyAny>]) -> PyResult<Vec<PyUntypedBuffer>> {
    buffers.iter().map(PyUntypedBuffer::get).collect()
}

/// The bytes of each view.
///
/// # Safety
/// No other code writes to them while the slices are used.
pub(crate) unsafe fn slices(views: &[PyUntypedBuffer]) -> PyResult<Vec<&[u8]>> {
    let slice = |view: &PyUntypedBuffer| {
        if !view.is_c_contiguous() {
            return Err(PyBufferError::new_err("a buffer is not contiguous"));
        }
        if view.len_bytes() == 0 {
            return Ok(&[][..]);
        }
        // SAFETY: contiguous, held by the view as long as the slice, and not written to.
        Ok(unsafe { std::slice::from_raw_parts(view.buf_ptr().cast::<u8>(), view.len_bytes()) })
    };
    views.iter().map(slice).collect()
}

/// Fills a view with all bytes of one of our objects.
///
/// # Safety
/// `view` comes from Python, and the memory lives as long as `owner`.
pub(crate) unsafe fn fill(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    address: *mut u8,
    bytes: usize,
    is_read_only: bool,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("there is no view to fill"));
    }
    // SAFETY: guaranteed by the caller; an empty buffer may have any address.
    let filled = unsafe {
        let read_only = c_int::from(is_read_only);
        ffi::PyBuffer_FillInfo(
            view,
            owner.as_ptr(),
            address.cast(),
            bytes as isize,
            read_only,
            flags,
        )
    };
    if filled == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// A capsule for `torch.from_dlpack`. It is an error if the array is not all inside the memory.
fn capsule<'py>(
    py: Python<'py>,
    (code, bits): (u8, u8),
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    (address, bytes): (*mut u8, usize),
    keeper: Box<dyn Send>,
) -> PyResult<Bound<'py, PyAny>> {
    let item = u64::from(bits.div_ceil(8));
    let elements = match &strides {
        None => shape
            .iter()
            .try_fold(1u64, |product, side| product.checked_mul(u64::try_from(*side).ok()?)),
        Some(_) if shape.contains(&0) => Some(0),
        Some(strides) => shape.iter().zip(strides).try_fold(1u64, |last, (side, stride)| {
            let steps = u64::try_from(*side).ok()?.checked_sub(1)?;
            last.checked_add(steps.checked_mul(u64::try_from(*stride).ok()?)?)
        }),
    };
    let is_inside = elements
        .and_then(|elements| elements.checked_mul(item))
        .is_some_and(|needed| needed <= bytes as u64);
    if !is_inside || strides.as_ref().is_some_and(|strides| strides.len() != shape.len()) {
        let message = format!("an array of shape {shape:?} does not fit into {bytes} bytes");
        return Err(PyValueError::new_err(message));
    }
    // Every version of torch supports this kind.
    let layout = Layout::Unversioned;
    dlpack::capsule(py, layout, ElementType { code, bits }, shape, strides, address, keeper)
}

/// A buffer of a result, in the trainer. The last array on it returns the slot.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Lease(Arc<ResultBuffer>);

impl Lease {
    pub(crate) fn new(buffer: ResultBuffer) -> Lease {
        Lease(Arc::new(buffer))
    }
}

#[pymethods]
impl Lease {
    /// A capsule for `torch.from_dlpack`; `numbers` is DLPack's type code and bits.
    #[pyo3(signature = (numbers, shape, strides=None))]
    fn capsule<'py>(
        &self,
        py: Python<'py>,
        numbers: (u8, u8),
        shape: Vec<i64>,
        strides: Option<Vec<i64>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory = (self.0.address(), self.0.bytes());
        capsule(py, numbers, shape, strides, memory, Box::new(Arc::clone(&self.0)))
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (address, bytes) = (slf.get().0.address(), slf.get().0.bytes());
        // SAFETY: the view comes from Python; the buffer lives as long as this object, which the
        // view holds.
        unsafe { fill(slf.as_any(), view, flags, address, bytes, false) }
    }

    fn __len__(&self) -> usize {
        self.0.bytes()
    }
}

/// Arena memory in a worker, for a part of a batch.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Slot(pub(crate) ArenaPiece);

#[pymethods]
impl Slot {
    /// A capsule for `torch.from_dlpack`; `numbers` is DLPack's type code and bits.
    fn capsule<'py>(
        &self,
        py: Python<'py>,
        numbers: (u8, u8),
        shape: Vec<i64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory = (self.0.address(), self.0.bytes() as usize);
        capsule(py, numbers, shape, None, memory, Box::new(self.0.clone()))
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let piece = &slf.get().0;
        // SAFETY: the view comes from Python; the piece lives as long as this object, which the
        // view holds.
        unsafe { fill(slf.as_any(), view, flags, piece.address(), piece.bytes() as usize, false) }
    }

    fn __len__(&self) -> usize {
        self.0.bytes() as usize
    }
}

/// A buffer of a task, in a worker. It may be written to. The last array on it returns the slot.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct ReceivedBuffer(Arc<inbox::ReceivedBuffer>);

impl ReceivedBuffer {
    pub(crate) fn new(buffer: inbox::ReceivedBuffer) -> ReceivedBuffer {
        ReceivedBuffer(Arc::new(buffer))
    }
}

#[pymethods]
impl ReceivedBuffer {
    /// The original bytes, whatever was written to the buffer; read-only.
    fn original(&self) -> OriginalBuffer {
        OriginalBuffer(Arc::clone(&self.0))
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let buffer = &slf.get().0;
        // SAFETY: the view comes from Python; the buffer lives as long as this object, which the
        // view holds.
        unsafe { fill(slf.as_any(), view, flags, buffer.address(), buffer.bytes(), false) }
    }

    fn __len__(&self) -> usize {
        self.0.bytes()
    }
}

/// The original bytes of a task's buffer; read-only.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct OriginalBuffer(Arc<inbox::ReceivedBuffer>);

#[pymethods]
impl OriginalBuffer {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let buffer = &slf.get().0;
        let address = buffer.original().cast_mut();
        // SAFETY: as above; the view is read-only.
        unsafe { fill(slf.as_any(), view, flags, address, buffer.bytes(), true) }
    }

    fn __len__(&self) -> usize {
        self.0.bytes()
    }
}

/// The memory of another object, such as a tensor, as bytes.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Span {
    address: usize,
    bytes: usize,
    _owner: Py<PyAny>,
}

#[pymethods]
impl Span {
    /// `bytes` bytes from `address`, which `owner` keeps alive.
    #[new]
    fn new(address: usize, bytes: usize, owner: Py<PyAny>) -> Span {
        Span { address, bytes, _owner: owner }
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let span = slf.get();
        // SAFETY: the view comes from Python; the owner lives as long as this object, which the
        // view holds.
        unsafe { fill(slf.as_any(), view, flags, span.address as *mut u8, span.bytes, false) }
    }

    fn __len__(&self) -> usize {
        self.bytes
    }
}
