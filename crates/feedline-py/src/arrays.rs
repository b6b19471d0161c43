//! Python arrays as a source, read in place.
#![allow(unsafe_code, reason = "memory of another language is read here")]

use feedline_core::error::{Error, Kind, Result};
use feedline_core::sample::{BorrowedArray, Dtype, Field, FieldKind};
use feedline_core::source::memory::Arrays;
use feedline_core::sys::slab::Borrowed;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;

use crate::errors::raise;

/// A buffer that is released with the GIL, in whatever thread, if the interpreter still runs.
struct HeldBuffer(Option<PyUntypedBuffer>);

// SAFETY: only the drop accesses it, with the GIL.
unsafe impl Send for HeldBuffer {}
// SAFETY: as above.
unsafe impl Sync for HeldBuffer {}

impl Drop for HeldBuffer {
    fn drop(&mut self) {
        let buffer = self.0.take();
        let mut buffer = Some(buffer);
        let dropped = Python::try_attach(|_| drop(buffer.take()));
        if dropped.is_none() {
            // The interpreter has ended, so the buffer cannot be released.
            std::mem::forget(buffer);
        }
    }
}

/// The arrays of a dict, which must all have the same number of rows.
pub(crate) fn source(arrays: &Bound<'_, PyDict>) -> PyResult<Arrays> {
    let mut borrowed = Vec::new();
    let mut rows: Option<(String, usize)> = None;
    for (name, array) in arrays {
        let name: String = name.extract()?;
        let buffer = PyUntypedBuffer::get(&array).map_err(|error| {
            let message = format!("array {name:?} cannot be read: {error}");
            raise(Error::new(Kind::InvalidSource, message).with_hint("give NumPy arrays"))
        })?;
        let (array, count) = borrow(&name, buffer).map_err(raise)?;
        match &rows {
            Some((first, expected)) if *expected != count => {
                let message =
                    format!("array {name:?} has {count} rows, array {first:?} has {expected}");
                let hint = "each sample is a row of every array: give as many rows to each";
                return Err(raise(Error::new(Kind::InvalidSource, message).with_hint(hint)));
            }
            Some(_) => {}
            None => rows = Some((name, count)),
        }
        borrowed.push(array);
    }
    let count = rows.map_or(0, |(_, count)| count);
    Arrays::new(borrowed, count as u64).map_err(raise)
}

fn borrow(name: &str, buffer: PyUntypedBuffer) -> Result<(BorrowedArray, usize)> {
    let refused = |what: String, hint: &'static str| {
        Error::new(Kind::InvalidSource, format!("array {name:?} {what}")).with_hint(hint)
    };
    let format = buffer.format().to_string_lossy().into_owned();
    let dtype = dtype(&format, buffer.item_size()).ok_or_else(|| {
        refused(format!("holds numbers of format {format:?}"), "convert it with array.astype(...)")
    })?;
    let Some((&rows, shape)) = buffer.shape().split_first() else {
        return Err(refused("has no rows".into(), "give an array of at least one axis"));
    };
    let row_bytes = dtype.bytes() * shape.iter().product::<usize>();
    // Rows need not be adjacent, as in a slice array[::2], but each row must be contiguous.
    let strides = buffer.strides();
    let mut expected = dtype.bytes() as isize;
    let mut is_contiguous = true;
    for (length, stride) in shape.iter().zip(&strides[1..]).rev() {
        is_contiguous &= *length <= 1 || *stride == expected;
        expected *= *length as isize;
    }
    let step = if rows > 1 { strides[0] } else { row_bytes as isize };
    let Some(stride) = usize::try_from(step).ok().filter(|_| is_contiguous) else {
        let hint = "make a copy with numpy.ascontiguousarray(array)";
        return Err(refused("has rows that are not contiguous".into(), hint));
    };
    let bytes = if rows == 0 { 0 } else { (rows - 1) * stride + row_bytes };
    let start = buffer.buf_ptr().cast::<u8>().cast_const();
    let field =
        Field { name: name.into(), kind: FieldKind::Fixed { dtype, shape: shape.to_vec() } };
    // SAFETY: the buffer is valid from `start` over all its rows while it is held.
    let memory = unsafe { Borrowed::new(start, bytes, Box::new(HeldBuffer(Some(buffer)))) };
    Ok((BorrowedArray { field, memory: Arc::new(memory), stride, first: 0 }, rows))
}

/// The type for a format of the buffer protocol; only in this machine's byte order.
fn dtype(format: &str, item_size: usize) -> Option<Dtype> {
    let letter = format.strip_prefix(['@', '=', '<']).unwrap_or(format);
    Some(match (letter, item_size) {
        ("?", 1) => Dtype::Bool,
        ("B", 1) => Dtype::Uint8,
        ("b", 1) => Dtype::Int8,
        ("H", 2) => Dtype::Uint16,
        ("h", 2) => Dtype::Int16,
        ("I" | "L", 4) => Dtype::Uint32,
        ("i" | "l", 4) => Dtype::Int32,
        ("L" | "Q", 8) => Dtype::Uint64,
        ("l" | "q", 8) => Dtype::Int64,
        ("e", 2) => Dtype::Float16,
        ("f", 4) => Dtype::Float32,
        ("d", 8) => Dtype::Float64,
        _ => return None,
    })
}
