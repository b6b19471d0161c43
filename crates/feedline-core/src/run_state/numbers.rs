//! Lists of numbers that are close to one another, written as the first one and then the distance of each to the one
//! before it.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Larger numbers are no counts of samples.
const LARGEST: i128 = 1 << 62;

pub(super) fn serialize<S: Serializer>(numbers: &[u64], to: S) -> Result<S::Ok, S::Error> {
    let before = [0].into_iter().chain(numbers.iter().copied());
    let distance = |(number, before): (&u64, u64)| number.wrapping_sub(before) as i64;
    numbers.iter().zip(before).map(distance).collect::<Vec<_>>().serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
    let distances = Vec::<i64>::deserialize(from)?;
    let mut number: i128 = 0;
    let mut numbers = Vec::with_capacity(distances.len());
    for distance in distances {
        number += i128::from(distance);
        if !(0..=LARGEST).contains(&number) {
            return Err(D::Error::custom("its numbers are too large"));
        }
        numbers.push(number as u64);
    }
    Ok(numbers)
}
