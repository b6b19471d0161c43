//! Converts the numbers of fields: `cast` and `to_float` for fields that are not images.

use super::{Pool, new_array, wrong_value};
use crate::budget::Budget;
use crate::error::Result;
use crate::sample::{Array, Column, Value};
pub use feedline_kernels::cast::Cast;

/// Converts an array of a batch.
pub(super) fn convert_column(
    cast: Cast,
    column: Column,
    number: u64,
    pool: &Pool,
    budget: &Budget,
) -> Result<Column> {
    let Column::Array { dtype, shape, memory } = column else {
        return Err(wrong_value("a column that is not an array"));
    };
    let count: usize = shape.iter().product();
    let mut made = new_array(count * cast.dtype.bytes(), number, pool, budget)?;
    cast.convert(dtype, &memory, &mut made);
    Ok(Column::Array { dtype: cast.dtype, shape, memory: made })
}

/// Converts the arrays of samples.
pub(super) fn convert_values(cast: Cast, values: Vec<Value>) -> Result<Vec<Value>> {
    let arrays = super::stack::unpack(values)?.into_iter().map(|array| {
        let count = array.bytes.len() / array.dtype.bytes();
        let mut bytes = vec![0; count * cast.dtype.bytes()];
        cast.convert(array.dtype, &array.bytes, &mut bytes);
        Value::Array(Array { dtype: cast.dtype, shape: array.shape, bytes })
    });
    Ok(arrays.collect())
}
