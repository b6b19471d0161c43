//! The element types of arrays.

/// The type of the numbers in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Dtype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Float16,
    Float32,
    Float64,
}

impl Dtype {
    /// All types.
    pub const ALL: &[Dtype] = &[
        Dtype::Bool,
        Dtype::Uint8,
        Dtype::Uint16,
        Dtype::Uint32,
        Dtype::Uint64,
        Dtype::Int8,
        Dtype::Int16,
        Dtype::Int32,
        Dtype::Int64,
        Dtype::Float16,
        Dtype::Float32,
        Dtype::Float64,
    ];

    /// NumPy's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Bool => "bool",
            Dtype::Uint8 => "uint8",
            Dtype::Uint16 => "uint16",
            Dtype::Uint32 => "uint32",
            Dtype::Uint64 => "uint64",
            Dtype::Int8 => "int8",
            Dtype::Int16 => "int16",
            Dtype::Int32 => "int32",
            Dtype::Int64 => "int64",
            Dtype::Float16 => "float16",
            Dtype::Float32 => "float32",
            Dtype::Float64 => "float64",
        }
    }

    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::Bool | Dtype::Uint8 | Dtype::Int8 => 1,
            Dtype::Uint16 | Dtype::Int16 | Dtype::Float16 => 2,
            Dtype::Uint32 | Dtype::Int32 | Dtype::Float32 => 4,
            Dtype::Uint64 | Dtype::Int64 | Dtype::Float64 => 8,
        }
    }
}

/// The value of a float16.
pub fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * f64::powi(2.0, -24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * f64::powi(2.0, exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// The bits of the nearest float16, ties to even.
pub fn to_half(number: f64) -> u16 {
    let sign = if number.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = number.abs();
    if magnitude.is_nan() {
        return sign | 0x7e00;
    }
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    // Below 2^-14 all have the spacing of the smallest.
    let exponent = (((magnitude.to_bits() >> 52) as i32) - 1023).max(-14);
    let steps = (magnitude * f64::powi(2.0, 10 - exponent)).round_ties_even() as u16;
    // One step after the last of an exponent is the first of the next.
    let base = ((exponent + 14) as u16) << 10;
    sign | (base + steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_float16_numbers_survive_a_round_trip_and_others_are_rounded() {
        for bits in 0..=u16::MAX {
            let number = half(bits);
            if !number.is_nan() {
                assert_eq!(to_half(number), bits, "{number}");
            }
        }
        assert!(half(to_half(f64::NAN)).is_nan());
        assert_eq!(half(to_half(2049.0)), 2048.0);
        assert_eq!(half(to_half(2051.0)), 2052.0);
        assert_eq!(half(to_half(65519.0)), 65504.0);
        assert_eq!(half(to_half(-1e300)), f64::NEG_INFINITY);
    }
}
