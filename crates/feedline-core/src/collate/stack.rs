//! Stacks values of one shape.

use std::sync::Arc;

use super::{Pool, new_array, wrong_value};
use crate::budget::Budget;
use crate::bytes::Piece;
use crate::error::Result;
use crate::sample::{Array, Column, Dtype, Value};
use crate::sys::slab::Row;

/// Stacks rows that were written in place, without a copy. Returns them if they are not contiguous.
pub(super) fn rows(
    dtype: Dtype,
    shape: &[usize],
    rows: Vec<Row>,
) -> std::result::Result<Column, Vec<Row>> {
    let count = rows.len();
    let memory = Row::join(rows)?;
    Ok(Column::Array { dtype, shape: [&[count], shape].concat(), memory })
}

/// Copies rows that are not contiguous.
pub(super) fn scattered(
    dtype: Dtype,
    shape: &[usize],
    rows: Vec<Row>,
    number: u64,
    pool: &Pool,
    budget: &Budget,
) -> Result<Column> {
    let (count, each) = (rows.len(), dtype.bytes() * shape.iter().product::<usize>());
    let mut memory = new_array(each * count, number, pool, budget)?;
    for (row, to) in rows.into_iter().zip(memory.chunks_exact_mut(each.max(1))) {
        to.copy_from_slice(&row);
    }
    Ok(Column::Array { dtype, shape: [&[count], shape].concat(), memory })
}

/// Stacks arrays of equal shape.
pub(super) fn arrays(
    values: Vec<Value>,
    number: u64,
    pool: &Pool,
    budget: &Budget,
) -> Result<Column> {
    let arrays = unpack(values)?;
    let (Some(first), count) = (arrays.first(), arrays.len()) else {
        return Err(wrong_value("no arrays"));
    };
    let (dtype, shape, each) = (first.dtype, first.shape.clone(), first.bytes.len());
    let mut memory = new_array(each * count, number, pool, budget)?;
    for (array, to) in arrays.iter().zip(memory.chunks_exact_mut(each.max(1))) {
        to.copy_from_slice(&array.bytes);
    }
    Ok(Column::Array { dtype, shape: [&[count], &*shape].concat(), memory })
}

pub(super) fn unpack(values: Vec<Value>) -> Result<Vec<Array>> {
    let arrays: Option<Vec<_>> = values
        .into_iter()
        .map(|value| match value {
            Value::Array(array) => Some(array),
            Value::Bytes(_) | Value::Text(_) | Value::List(_) => None,
        })
        .collect();
    arrays.ok_or_else(|| wrong_value("a value that is not an array"))
}

pub(super) fn bytes(values: Vec<Value>) -> Result<Vec<Piece>> {
    let list: Option<Vec<_>> = values
        .into_iter()
        .map(|value| match value {
            Value::Bytes(bytes) => Some(bytes),
            Value::Array(_) | Value::Text(_) | Value::List(_) => None,
        })
        .collect();
    list.ok_or_else(|| wrong_value("a value that is not bytes"))
}

pub(super) fn text(values: Vec<Value>) -> Result<Vec<Arc<str>>> {
    let list: Option<Vec<_>> = values
        .into_iter()
        .map(|value| match value {
            Value::Text(text) => Some(text),
            Value::Array(_) | Value::Bytes(_) | Value::List(_) => None,
        })
        .collect();
    list.ok_or_else(|| wrong_value("a value that is not text"))
}

/// Converts bytes that were checked to be UTF-8 when they were read.
pub(super) fn texts(list: &[Piece]) -> Result<Vec<Arc<str>>> {
    let texts: std::result::Result<_, _> =
        list.iter().map(|bytes| std::str::from_utf8(bytes).map(Arc::from)).collect();
    texts.map_err(|_| wrong_value("a value that is not text"))
}

/// The lists of all samples concatenated, and the length of each.
pub(super) fn lists(
    values: Vec<Value>,
    number: u64,
    pool: &Pool,
    budget: &Budget,
) -> Result<(Vec<Piece>, Column)> {
    let mut lengths = new_array(values.len() * 8, number, pool, budget)?;
    let (mut all, count) = (Vec::new(), values.len());
    for (value, to) in values.into_iter().zip(lengths.chunks_exact_mut(8)) {
        let Value::List(list) = value else {
            return Err(wrong_value("a value that is not a list"));
        };
        to.copy_from_slice(&(list.len() as i64).to_ne_bytes());
        all.extend(list);
    }
    Ok((all, Column::Array { dtype: Dtype::Int64, shape: vec![count], memory: lengths }))
}
