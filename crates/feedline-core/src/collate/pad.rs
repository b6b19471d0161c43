//! Arrays of different shapes in one: each in the corner of a box of the largest, zeros around it.

use super::{Pool, new_array, stack, wrong_value};
use crate::budget::Budget;
use crate::error::Result;
use crate::sample::{Array, Column, Dtype, Value};

/// The padded arrays, and the shape that each had.
pub(super) fn arrays(
    values: Vec<Value>,
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
    memory.fill(0);
    let mut shapes = new_array(count * axes * 8, number, pool, budget)?;
    for (at, array) in arrays.iter().enumerate() {
        place(array, &largest, &mut memory[at * each..(at + 1) * each]);
        for (axis, length) in array.shape.iter().enumerate() {
            let start = (at * axes + axis) * 8;
            shapes[start..start + 8].copy_from_slice(&(*length as i64).to_ne_bytes());
        }
    }
    let shape = [&[count], &*largest].concat();
    Ok((
        Column::Array { dtype, shape, memory },
        Column::Array { dtype: Dtype::Int64, shape: vec![count, axes], memory: shapes },
    ))
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
        let (padded, shapes) = arrays(values, 0, &pool, &budget).unwrap();
        let Column::Array { shape, memory, .. } = padded else { panic!("an array") };
        assert_eq!(shape, [2, 2, 3]);
        assert_eq!(&*memory, [1, 2, 3, 0, 0, 0, 10, 11, 0, 12, 13, 0]);
        let Column::Array { shape, memory, .. } = shapes else { panic!("an array") };
        assert_eq!((shape, memory.len()), (vec![2, 2], 32));
        assert_eq!(memory[8], 3);
    }
}
