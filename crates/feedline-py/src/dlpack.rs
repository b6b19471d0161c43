//! The memory of a batch as a DLPack capsule: NumPy and torch make arrays of it without a copy, and
//! give it back from any thread when the last view is gone.
#![allow(unsafe_code, reason = "DLPack is a C interface")]

use feedline_core::sample::Dtype;
use feedline_core::sys::slab::Row;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};

const NAME: &CStr = c"dltensor_versioned";
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

#[repr(C)]
struct Managed {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: DlTensor,
    // Ours, behind what DLPack defines: what the pointers above point to.
    shape: Vec<i64>,
    strides: Vec<i64>,
    _memory: Box<dyn Send>,
}

/// What the numbers of an array are, in DLPack's terms.
#[derive(Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) code: u8,
    pub(crate) bits: u8,
}

/// An array of a batch, to be taken once by `numpy.from_dlpack` or `torch.from_dlpack`.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Tensor {
    content: std::sync::Mutex<Option<(Dtype, Vec<usize>, Row)>>,
}

impl Tensor {
    pub(crate) fn new(dtype: Dtype, shape: Vec<usize>, memory: Row) -> Tensor {
        Tensor { content: std::sync::Mutex::new(Some((dtype, shape, memory))) }
    }
}

#[pymethods]
impl Tensor {
    /// A capsule with the memory, which can be had once.
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
        if max_version.is_none_or(|(major, _)| major < 1) {
            return Err(PyBufferError::new_err("DLPack 1.0 is needed: use NumPy 2.1 or newer"));
        }
        if dl_device.is_some_and(|device| device != (CPU, 0)) || copy == Some(true) {
            return Err(PyBufferError::new_err("only the memory itself can be had, on the CPU"));
        }
        let content = self.content.lock().ok().and_then(|mut content| content.take());
        let (dtype, shape, memory) =
            content.ok_or_else(|| PyBufferError::new_err("this array was taken already"))?;
        let shape: Vec<i64> = shape.iter().map(|length| *length as i64).collect();
        let address = memory.address();
        capsule(py, numbers(dtype), shape, None, address, Box::new(memory))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }
}

fn numbers(dtype: Dtype) -> Numbers {
    let code = match dtype {
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => 0,
        Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => 1,
        Dtype::Float16 | Dtype::Float32 | Dtype::Float64 => 2,
        Dtype::Bool => 6,
    };
    Numbers { code, bits: (dtype.bytes() * 8) as u8 }
}

/// A capsule over memory that `keeper` keeps alive. Strides in elements; row by row if there are none.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    numbers: Numbers,
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
    let mut managed = Box::new(Managed {
        version: Version { major: 1, minor: 0 },
        context: std::ptr::null_mut(),
        deleter: Some(delete),
        flags: 0,
        tensor: DlTensor {
            data: address.cast(),
            device: Device { kind: CPU, number: 0 },
            ndim: shape.len() as i32,
            dtype: DataType { code: numbers.code, bits: numbers.bits, lanes: 1 },
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        },
        shape,
        strides,
        _memory: keeper,
    });
    managed.tensor.shape = managed.shape.as_mut_ptr();
    managed.tensor.strides = managed.strides.as_mut_ptr();
    let pointer = Box::into_raw(managed);
    // SAFETY: the pointer is not null, the name lives for ever, and the destructor fits the pointer.
    unsafe {
        let capsule = ffi::PyCapsule_New(pointer.cast(), NAME.as_ptr(), Some(drop_capsule));
        if capsule.is_null() {
            delete(pointer);
        }
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Called by the last user of the memory, from any thread, with or without the GIL.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: made by Box::into_raw in `capsule`, and DLPack calls this once.
    drop(unsafe { Box::from_raw(managed) });
}

/// A capsule that nobody took still owns its memory; whoever takes one renames it.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with a capsule made above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast::<Managed>();
            if !managed.is_null() {
                delete(managed);
            }
        }
    }
}
