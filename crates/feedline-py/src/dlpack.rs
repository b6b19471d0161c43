//! Exports the memory of a batch as a DLPack capsule or through NumPy's array interface: NumPy and
//! torch create arrays on it without a copy, and release it from any thread when the last view is
//! gone.
//!
//! There are two kinds of capsules. Only torch 2.9 and NumPy 2.1 support the versioned one; every
//! version supports the other.
#![allow(unsafe_code, reason = "DLPack is a C interface")]

use feedline_core::sample::Dtype;
use feedline_core::sys::slab::Row;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::{CStr, c_void};

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";
const CPU: i32 = 1;

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// The content of a capsule before DLPack 1.0.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    // After the fields that DLPack defines.
    own: Own,
}

/// The content of a capsule since DLPack 1.0.
#[repr(C)]
struct Versioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
    own: Own,
}

/// The data that the pointers of a tensor refer to.
struct Own {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _memory: Box<dyn Send>,
}

/// The kind of capsule that the consumer supports.
#[derive(Clone, Copy)]
pub(crate) enum Layout {
    Unversioned,
    Versioned,
}

/// The element type of an array, in DLPack's terms.
#[derive(Clone, Copy)]
pub(crate) struct ElementType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
}

/// An array of a batch, which `numpy.from_dlpack` or `torch.from_dlpack` can take once.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Tensor {
    content: std::sync::Mutex<Option<(Dtype, Vec<usize>, Row)>>,
}

impl Tensor {
    pub(crate) fn new(dtype: Dtype, shape: Vec<usize>, memory: Row) -> Tensor {
        Tensor { content: std::sync::Mutex::new(Some((dtype, shape, memory))) }
    }

    fn take(&self) -> PyResult<(Dtype, Vec<usize>, Row)> {
        let content = self.content.lock().ok().and_then(|mut content| content.take());
        content.ok_or_else(|| PyBufferError::new_err("this array was taken already"))
    }
}

#[pymethods]
impl Tensor {
    /// A capsule with the memory. It can be taken once.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        // A consumer that names no version does not support versioned capsules.
        let layout = match max_version {
            Some((major, _)) if major >= 1 => Layout::Versioned,
            Some(_) | None => Layout::Unversioned,
        };
        if dl_device.is_some_and(|device| device != (CPU, 0)) || copy == Some(true) {
            return Err(PyBufferError::new_err("only zero-copy export on the CPU is supported"));
        }
        let (dtype, shape, memory) = self.take()?;
        let shape: Vec<i64> = shape.iter().map(|length| *length as i64).collect();
        let address = memory.address();
        capsule(py, layout, element_type(dtype), shape, None, address, Box::new(memory))
    }

    /// The memory for `numpy.asarray`. It can be taken once. An array that NumPy creates from a
    /// capsule is writable only since NumPy 2.1.
    fn memory(&self) -> PyResult<ArrayMemory> {
        let (dtype, shape, row) = self.take()?;
        Ok(ArrayMemory { dtype, shape, row })
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }
}

/// The memory of an array, for NumPy's array interface. Arrays on it keep it alive.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct ArrayMemory {
    dtype: Dtype,
    shape: Vec<usize>,
    row: Row,
}

#[pymethods]
impl ArrayMemory {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let letter = match self.dtype {
            Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => 'i',
            Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => 'u',
            Dtype::Float16 | Dtype::Float32 | Dtype::Float64 => 'f',
            Dtype::Bool => 'b',
        };
        let order = if cfg!(target_endian = "big") { '>' } else { '<' };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", format!("{order}{letter}{}", self.dtype.bytes()))?;
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("data", (self.row.address() as usize, false))?;
        Ok(interface)
    }
}

fn element_type(dtype: Dtype) -> ElementType {
    let code = match dtype {
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => 0,
        Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => 1,
        Dtype::Float16 | Dtype::Float32 | Dtype::Float64 => 2,
        Dtype::Bool => 6,
    };
    ElementType { code, bits: (dtype.bytes() * 8) as u8 }
}

/// A capsule for memory that `keeper` keeps alive. Strides are in elements; the default is C order.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    layout: Layout,
    element: ElementType,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    address: *mut u8,
    keeper: Box<dyn Send>,
) -> PyResult<Bound<'py, PyAny>> {
    let strides = strides.unwrap_or_else(|| {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1);
        }
        strides
    });
    let mut own = Own { shape, strides, _memory: keeper };
    // The pointers stay valid when `own` is moved, because they point to the heap.
    let tensor = DlTensor {
        data: address.cast(),
        device: Device { kind: CPU, number: 0 },
        ndim: own.shape.len() as i32,
        dtype: DataType { code: element.code, bits: element.bits, lanes: 1 },
        shape: own.shape.as_mut_ptr(),
        strides: own.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = std::ptr::null_mut();
    match layout {
        Layout::Unversioned => {
            let deleter = Some(delete::<Managed> as unsafe extern "C" fn(_));
            wrap(py, NAME, Managed { tensor, context, deleter, own }, drop_unversioned)
        }
        Layout::Versioned => {
            let version = Version { major: 1, minor: 0 };
            let deleter = Some(delete::<Versioned> as unsafe extern "C" fn(_));
            let managed = Versioned { version, context, deleter, flags: 0, tensor, own };
            wrap(py, VERSIONED_NAME, managed, drop_versioned)
        }
    }
}

/// A capsule that points to `managed`, which `destructor` drops if no consumer takes it.
fn wrap<'py, T>(
    py: Python<'py>,
    name: &'static CStr,
    managed: T,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    let pointer = Box::into_raw(Box::new(managed));
    // SAFETY: the pointer is not null, the name is static, and the destructor fits the pointer.
    unsafe {
        let capsule = ffi::PyCapsule_New(pointer.cast(), name.as_ptr(), Some(destructor));
        if capsule.is_null() {
            delete(pointer);
        }
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Called by the last user of the memory, from any thread, with or without the GIL.
unsafe extern "C" fn delete<T>(managed: *mut T) {
    // SAFETY: created by Box::into_raw in `wrap`, and DLPack calls this once.
    drop(unsafe { Box::from_raw(managed) });
}

unsafe extern "C" fn drop_unversioned(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule created above, of this type.
    unsafe { drop_capsule::<Managed>(capsule, NAME) }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule created above, of this type.
    unsafe { drop_capsule::<Versioned>(capsule, VERSIONED_NAME) }
}

/// A capsule that was never taken still owns its memory; a consumer that takes one renames it.
///
/// # Safety
/// `capsule` was created by `wrap` with this name and a `T`.
unsafe fn drop_capsule<T>(capsule: *mut ffi::PyObject, name: &'static CStr) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast::<T>();
            if !managed.is_null() {
                delete(managed);
            }
        }
    }
}
