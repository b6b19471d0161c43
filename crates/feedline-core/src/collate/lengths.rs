//! Fields whose length differs from sample to sample: joined or padded, with the lengths beside them.

use super::{Pool, new_array, pad, stack};
use crate::budget::Budget;
use crate::error::Result;
use crate::sample::{Array, Column, Dtype, Value};
use crate::sys::slab::Row;

/// Concatenates the values; the first axis counts the groups of all samples.
pub(super) fn joined(
    (dtype, inner): (Dtype, &[usize]),
    values: Vec<Value>,
    number: u64,
    pool: &Pool,
    budget: &Budget,
) -> Result<(Column, Column)> {
    let arrays = stack::unpack(values)?;
    let groups: usize = arrays.iter().map(groups_of).sum();
    let bytes: usize = arrays.iter().map(|array| array.bytes.len()).sum();
    let mut memory = new_array(bytes, number, pool, budget)?;
    let mut start = 0;
    for array in &arrays {
        memory[start..start + array.bytes.len()].copy_from_slice(&array.bytes);
        start += array.bytes.len();
    }
    let lengths = counts(&arrays, number, pool, budget)?;
    Ok((column(dtype, &[&[groups], inner].concat(), memory), lengths))
}

/// One row per sample, as long as the longest; shorter rows are padded with a number.
pub(super) fn padded(
    (dtype, inner): (Dtype, &[usize]),
    values: Vec<Value>,
    element: &[u8],
    number: u64,
    pool: &Pool,
    budget: &Budget,
) -> Result<(Column, Column)> {
    let arrays = stack::unpack(values)?;
    let longest = arrays.iter().map(groups_of).max().unwrap_or(0);
    let row = longest * dtype.bytes() * inner.iter().product::<usize>();
    let mut memory = new_array(row * arrays.len(), number, pool, budget)?;
    for (array, row) in arrays.iter().zip(memory.chunks_exact_mut(row.max(1))) {
        let (values, rest) = row.split_at_mut(array.bytes.len());
        values.copy_from_slice(&array.bytes);
        pad::fill(rest, element);
    }
    let lengths = counts(&arrays, number, pool, budget)?;
    Ok((column(dtype, &[&[arrays.len(), longest], inner].concat(), memory), lengths))
}

fn groups_of(array: &Array) -> usize {
    array.shape.first().copied().unwrap_or(0)
}

fn counts(arrays: &[Array], number: u64, pool: &Pool, budget: &Budget) -> Result<Column> {
    let mut memory = new_array(arrays.len() * 8, number, pool, budget)?;
    for (array, to) in arrays.iter().zip(memory.chunks_exact_mut(8)) {
        to.copy_from_slice(&(groups_of(array) as i64).to_ne_bytes());
    }
    Ok(column(Dtype::Int64, &[arrays.len()], memory))
}

fn column(dtype: Dtype, shape: &[usize], memory: Row) -> Column {
    Column::Array { dtype, shape: shape.to_vec(), memory }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<Value> {
        let array = |groups: usize, bytes: &[u8]| {
            Value::Array(Array {
                dtype: Dtype::Uint8,
                shape: vec![groups, 2],
                bytes: bytes.to_vec(),
            })
        };
        vec![array(1, &[1, 2]), array(0, &[]), array(2, &[3, 4, 5, 6])]
    }

    fn parts(column: &Column) -> (&[usize], &[u8]) {
        let Column::Array { shape, memory, .. } = column else { panic!("an array") };
        (shape, memory)
    }

    #[test]
    fn groups_are_concatenated_with_their_counts() {
        let budget = Budget::new("bytes", 1000);
        let pool = Pool::new(1000, &budget);
        let (all, lengths) = joined((Dtype::Uint8, &[2]), values(), 0, &pool, &budget).unwrap();
        assert_eq!(parts(&all), (&[3, 2][..], &[1, 2, 3, 4, 5, 6][..]));
        let (shape, counts) = parts(&lengths);
        assert_eq!((shape, counts[0], counts[8], counts[16]), (&[3][..], 1, 0, 2));
    }

    #[test]
    fn shorter_rows_are_padded() {
        let budget = Budget::new("bytes", 1000);
        let pool = Pool::new(1000, &budget);
        let (all, _) = padded((Dtype::Uint8, &[2]), values(), &[7], 0, &pool, &budget).unwrap();
        assert_eq!(parts(&all), (&[3, 2, 2][..], &[1, 2, 7, 7, 7, 7, 7, 7, 3, 4, 5, 6][..]));
    }
}
