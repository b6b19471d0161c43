//! Converts numbers of one type to another.

use crate::dtype::{Dtype, half, to_half};

/// A conversion of the numbers of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cast {
    /// The new type.
    pub dtype: Dtype,
    /// For float32: subtract the first, then divide by the second.
    pub scale: Option<(f32, f32)>,
}

impl Cast {
    /// Converts as NumPy's `astype`, except that fractions that do not fit are rounded to the nearest number.
    pub fn convert(&self, from: Dtype, source: &[u8], target: &mut [u8]) {
        macro_rules! write {
            ($values:expr) => {{
                let values = $values;
                match (self.scale, self.dtype) {
                    (Some((mean, deviation)), _) => put(
                        values.map(|value| ((value as f32 - mean) / deviation).to_ne_bytes()),
                        target,
                    ),
                    (None, Dtype::Bool) => {
                        put(values.map(|value| [u8::from(value as f64 != 0.0)]), target);
                    }
                    (None, Dtype::Uint8) => put(values.map(|value| [value as u8]), target),
                    (None, Dtype::Uint16) => {
                        put(values.map(|value| (value as u16).to_ne_bytes()), target);
                    }
                    (None, Dtype::Uint32) => {
                        put(values.map(|value| (value as u32).to_ne_bytes()), target);
                    }
                    (None, Dtype::Uint64) => {
                        put(values.map(|value| (value as u64).to_ne_bytes()), target);
                    }
                    (None, Dtype::Int8) => {
                        put(values.map(|value| (value as i8).to_ne_bytes()), target);
                    }
                    (None, Dtype::Int16) => {
                        put(values.map(|value| (value as i16).to_ne_bytes()), target);
                    }
                    (None, Dtype::Int32) => {
                        put(values.map(|value| (value as i32).to_ne_bytes()), target);
                    }
                    (None, Dtype::Int64) => {
                        put(values.map(|value| (value as i64).to_ne_bytes()), target);
                    }
                    (None, Dtype::Float16) => {
                        put(values.map(|value| to_half(value as f64).to_ne_bytes()), target);
                    }
                    (None, Dtype::Float32) => {
                        put(values.map(|value| (value as f32).to_ne_bytes()), target);
                    }
                    (None, Dtype::Float64) => {
                        put(values.map(|value| (value as f64).to_ne_bytes()), target);
                    }
                }
            }};
        }
        macro_rules! read {
            ($type:ty) => {
                source.chunks_exact(size_of::<$type>()).map(|bytes| {
                    <$type>::from_ne_bytes(bytes.try_into().expect("chunks have that size"))
                })
            };
        }
        match from {
            Dtype::Bool | Dtype::Uint8 => write!(source.iter().copied()),
            Dtype::Uint16 => write!(read!(u16)),
            Dtype::Uint32 => write!(read!(u32)),
            Dtype::Uint64 => write!(read!(u64)),
            Dtype::Int8 => write!(read!(i8)),
            Dtype::Int16 => write!(read!(i16)),
            Dtype::Int32 => write!(read!(i32)),
            Dtype::Int64 => write!(read!(i64)),
            Dtype::Float16 => write!(read!(u16).map(half)),
            Dtype::Float32 => write!(read!(f32)),
            Dtype::Float64 => write!(read!(f64)),
        }
    }
}

fn put<const N: usize>(values: impl Iterator<Item = [u8; N]>, target: &mut [u8]) {
    for (to, value) in target.chunks_exact_mut(N).zip(values) {
        to.copy_from_slice(&value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast(from: Dtype, source: &[u8], to: Dtype) -> Vec<u8> {
        let mut target = vec![0; source.len() / from.bytes() * to.bytes()];
        Cast { dtype: to, scale: None }.convert(from, source, &mut target);
        target
    }

    #[test]
    fn every_type_converts_to_every_other_and_small_numbers_stay_the_same() {
        for from in Dtype::ALL {
            for to in Dtype::ALL {
                let numbers = [0_u8, 1];
                let source = cast(Dtype::Uint8, &numbers, *from);
                let there = cast(*from, &source, *to);
                assert_eq!(cast(*to, &there, Dtype::Uint8), numbers, "{from:?} to {to:?}");
            }
        }
        let tokens: Vec<u8> =
            [0_u16, 50_256, 65_535].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let wide = cast(Dtype::Uint16, &tokens, Dtype::Int64);
        let expected: Vec<u8> =
            [0_i64, 50_256, 65_535].iter().flat_map(|n| n.to_ne_bytes()).collect();
        assert_eq!(wide, expected);
    }

    #[test]
    fn numbers_are_scaled_as_floats() {
        let scaled = Cast { dtype: Dtype::Float32, scale: Some((1.0, 2.0)) };
        let mut target = [0; 8];
        scaled.convert(Dtype::Uint8, &[5, 0], &mut target);
        assert_eq!(target[..4], 2.0_f32.to_ne_bytes());
        assert_eq!(target[4..], (-0.5_f32).to_ne_bytes());
    }
}
