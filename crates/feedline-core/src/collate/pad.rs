//! Arrays of different shapes in one: each in the corner of a box of the largest, the same number around it;
//! or one behind another.

use super::{Pool, new_array, stack, wrong_value};
use crate::budget::Budget;
use crate::error::Result;
use crate::sample::{Array, Column, Dtype, Value};

/// Writes one number again and again.
pub(super) fn fill(target: &mut [u8], element: &[u8]) {
    if element.iter().all(|byte| *byte == 0) {
        return target.fill(0);
    }
    for number in target.chunks_exact_mut(element.len()) {
        number.copy_from_slice(element);
    }
}

/// The padded arrays, and the shape that each had.
pub(super) fn arrays(
    values: Vec<Value>,
    element: &[u8],
    number: u64,
    pool: &Pool,
    budget: &Budget,
) -> Result<(Column, Column)> {
    let arrays = stack::unpack(values)?;
    let Some(first) = arrays.first() else { return Err(wrong_value("no arrays")) };
    let (dtype, axes, count) = (first.dtype, first.shape.len(), arrays.len());
    let largest: Vec<usize> = (0..axes)
        .map(|axis| arrays.iter().map(|array| array.shape[axis]).max().unwrap_or(0))
        .collect();
    let each = dtype.bytes() * largest.iter().product::<usize>();
    let mut memory = new_array(each * count, number, pool, budget)?;
    fill(&mut memory, element);
    for (at, array) in arrays.iter().enumerate() {
        place(array, &largest, &mut memory[at * each..(at + 1) * each]);
    }
    let shapes = shapes(&arrays, axes, number, pool, budget)?;
    let shape = [&[count], &*largest].concat();
    Ok((Column::Array { dtype, shape, memory }, shapes))
}

/// The numbers of all arrays one behind another, and the shape of each, with -1 for axes that only others
/// have.
pub(super) fn joined(
    dtype: Dtype,
    values: Vec<Value>,
    number: u64,
    pool: &Pool,
    budget: &Budget,
) -> Result<(Column, Column)> {
    let arrays = stack::unpack(values)?;
    let axes = arrays.iter().map(|array| array.shape.len()).max().unwrap_or(0);
    let bytes: usize = arrays.iter().map(|array| array.bytes.len()).sum();
    let mut memory = new_array(bytes, number, pool, budget)?;
    let mut start = 0;
    for array in &arrays {
        memory[start..start + array.bytes.len()].copy_from_slice(&array.bytes);
        start += array.bytes.len();
    }
    let shapes = shapes(&arrays, axes, number, pool, budget)?;
    Ok((Column::Array { dtype, shape: vec![bytes / dtype.bytes()], memory }, shapes))
}

/// The shape of each array, a row for each.
fn shapes(
    arrays: &[Array],
    axes: usize,
    number: u64,
    pool: &Pool,
    budget: &Budget,
) -> Result<Column> {
    let mut memory = new_array(arrays.len() * axes * 8, number, pool, budget)?;
    let lengths = arrays.iter().flat_map(|array| {
        let missing = axes - array.shape.len();
        array.shape.iter().map(|length| *length as i64).chain(std::iter::repeat_n(-1, missing))
    });
    for (length, to) in lengths.zip(memory.chunks_exact_mut(8)) {
        to.copy_from_slice(&length.to_ne_bytes());
    }
    Ok(Column::Array { dtype: Dtype::Int64, shape: vec![arrays.len(), axes], memory })
}

/// Copies runs of the last axis to where they stand in the larger box.
fn place(array: &Array, largest: &[usize], target: &mut [u8]) {
    let Some((last, outer)) = array.shape.split_last() else {
        return target.copy_from_slice(&array.bytes);
    };
    let run = last * array.dtype.bytes();
    if run == 0 {
        return;
    }
    for (number, bytes) in array.bytes.chunks_exact(run).enumerate() {
        // The place of this run, counted in the smaller box, spelt in the larger one.
        let (mut rest, mut start, mut stride) = (number, 0, largest[outer.len()]);
        for axis in (0..outer.len()).rev() {
            start += rest % outer[axis] * stride;
            rest /= outer[axis];
            stride *= largest[axis];
        }
        let start = start * array.dtype.bytes();
        target[start..start + run].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(shape: &[usize], start: u8) -> Value {
        let count: usize = shape.iter().product();
        let bytes = (0..count as u8).map(|number| start + number).collect();
        Value::Array(Array { dtype: Dtype::Uint8, shape: shape.to_vec(), bytes })
    }

    #[test]
    fn each_array_stands_in_its_corner_with_its_shape_beside_it() {
        let (pool, budget) = (Pool::new(1000), Budget::new("bytes", 1000));
        let values = vec![array(&[1, 3], 1), array(&[2, 2], 10)];
        let (padded, shapes) = arrays(values, &[9], 0, &pool, &budget).unwrap();
        let Column::Array { shape, memory, .. } = padded else { panic!("an array") };
        assert_eq!(shape, [2, 2, 3]);
        assert_eq!(&*memory, [1, 2, 3, 9, 9, 9, 10, 11, 9, 12, 13, 9]);
        let Column::Array { shape, memory, .. } = shapes else { panic!("an array") };
        assert_eq!((shape, memory.len()), (vec![2, 2], 32));
        assert_eq!(memory[8], 3);
    }

    #[test]
    fn joined_arrays_stand_one_behind_another_with_their_shapes_beside_them() {
        let (pool, budget) = (Pool::new(1000), Budget::new("bytes", 1000));
        let values = vec![array(&[1, 3], 1), array(&[2], 10)];
        let (all, shapes) = joined(Dtype::Uint8, values, 0, &pool, &budget).unwrap();
        let Column::Array { shape, memory, .. } = all else { panic!("an array") };
        assert_eq!((shape, &*memory), (vec![5], &[1, 2, 3, 10, 11][..]));
        let Column::Array { shape, memory, .. } = shapes else { panic!("an array") };
        let lengths: Vec<_> = memory.chunks_exact(8).map(|bytes| bytes[0] as i8).collect();
        assert_eq!((shape, lengths), (vec![2, 2], vec![1, 3, 2, -1]));
    }
}
