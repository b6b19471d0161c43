//! Combines arrays of different shapes: padded to the largest shape, or concatenated.

use super::{Pool, new_array, stack, wrong_value};
use crate::budget::Budget;
use crate::error::Result;
use crate::sample::{Array, Column, Dtype, Value};

/// Fills memory with one element.
pub(super) fn fill(target: &mut [u8], element: &[u8]) {
    if element.iter().all(|byte| *byte == 0) {
        return target.fill(0);
    }
    for number in target.chunks_exact_mut(element.len()) {
        number.copy_from_slice(element);
    }
}

/// The padded arrays, and the original shape of each.
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

/// The numbers of all arrays concatenated, and the shape of each, with -1 for axes that it does not have.
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

/// The shape of each array, one row each.
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

/// Copies runs of numbers to their place in the larger box. Trailing axes that are as long as the largest belong to the
/// run: in an image, a run is a row, not a pixel.
fn place(array: &Array, largest: &[usize], target: &mut [u8]) {
    let axes = array.shape.len();
    let equal = (1..axes).rev().take_while(|axis| array.shape[*axis] == largest[*axis]).count();
    let outer = &array.shape[..(axes - equal).saturating_sub(1)];
    let run: usize = array.shape[outer.len()..].iter().product::<usize>() * array.dtype.bytes();
    if run == 0 {
        return;
    }
    let row: usize = largest[outer.len()..].iter().product();
    for (number, bytes) in array.bytes.chunks_exact(run).enumerate() {
        // The coordinates of this run in the smaller box, as an offset in the larger one.
        let (mut rest, mut start, mut stride) = (number, 0, row);
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
    use proptest::prelude::*;

    fn array(shape: &[usize], start: u8) -> Value {
        let count: usize = shape.iter().product();
        let bytes = (0..count as u8).map(|number| start + number).collect();
        Value::Array(Array { dtype: Dtype::Uint8, shape: shape.to_vec(), bytes })
    }

    #[test]
    fn each_array_is_padded_from_its_corner_with_its_shape_beside_it() {
        let budget = Budget::new("bytes", 1000);
        let pool = Pool::new(1000, &budget);
        let values = vec![array(&[1, 3], 1), array(&[2, 2], 10)];
        let (padded, shapes) = arrays(values, &[9], 0, &pool, &budget).unwrap();
        let Column::Array { shape, memory, .. } = padded else { panic!("an array") };
        assert_eq!(shape, [2, 2, 3]);
        assert_eq!(&*memory, [1, 2, 3, 9, 9, 9, 10, 11, 9, 12, 13, 9]);
        let Column::Array { shape, memory, .. } = shapes else { panic!("an array") };
        assert_eq!((shape, memory.len()), (vec![2, 2], 32));
        assert_eq!(memory[8], 3);
    }

    proptest! {
        #[test]
        fn every_number_of_a_padded_array_keeps_its_coordinates(
            shape in prop::collection::vec(0_usize..4, 0..4), more in prop::collection::vec(0_usize..3, 4),
        ) {
            let largest: Vec<usize> = shape.iter().zip(&more).map(|(length, more)| length + more).collect();
            let count: usize = shape.iter().product();
            let bytes = (1..=count).flat_map(|number| (number as u16).to_ne_bytes()).collect();
            let mut target = vec![0; largest.iter().product::<usize>() * 2];
            place(&Array { dtype: Dtype::Uint16, shape: shape.clone(), bytes }, &largest, &mut target);
            let mut expected = 0_u16;
            for (at, found) in target.chunks_exact(2).enumerate() {
                let mut rest = at;
                let is_inside = (0..shape.len()).rev().all(|axis| {
                    let place = rest % largest[axis];
                    rest /= largest[axis];
                    place < shape[axis]
                });
                expected += u16::from(is_inside);
                let number = if is_inside { expected } else { 0 };
                prop_assert_eq!(u16::from_ne_bytes([found[0], found[1]]), number);
            }
        }
    }

    #[test]
    fn joined_arrays_are_concatenated_with_their_shapes_beside_them() {
        let budget = Budget::new("bytes", 1000);
        let pool = Pool::new(1000, &budget);
        let values = vec![array(&[1, 3], 1), array(&[2], 10)];
        let (all, shapes) = joined(Dtype::Uint8, values, 0, &pool, &budget).unwrap();
        let Column::Array { shape, memory, .. } = all else { panic!("an array") };
        assert_eq!((shape, &*memory), (vec![5], &[1, 2, 3, 10, 11][..]));
        let Column::Array { shape, memory, .. } = shapes else { panic!("an array") };
        let lengths: Vec<_> = memory.chunks_exact(8).map(|bytes| bytes[0] as i8).collect();
        assert_eq!((shape, lengths), (vec![2, 2], vec![1, 3, 2, -1]));
    }
}
