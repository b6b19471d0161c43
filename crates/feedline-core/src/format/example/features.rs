//! All features of a record, for code that inspects records rather than loads them; and a writer of Examples.

use std::collections::BTreeMap;

use crate::error::Result;

use super::read::no_example;
use super::walk::{self, FieldValue, MapEntry, MessageFields, ValueKind, Values};

/// The values of a feature.
#[derive(Clone, Debug, PartialEq)]
pub enum List<'a> {
    /// No list of any type.
    Nothing,
    /// Bytes.
    Bytes(Vec<&'a [u8]>),
    /// Floating-point numbers.
    Floats(Vec<f32>),
    /// Integers.
    Ints(Vec<i64>),
}

/// A feature, or a list of features.
#[derive(Clone, Debug, PartialEq)]
pub struct Feature<'a> {
    /// Its name.
    pub key: &'a [u8],
    /// Whether it is a list of features.
    pub is_sequence: bool,
    /// The values: a list for each step if it is a list of features, otherwise one list.
    pub steps: Vec<List<'a>>,
}

/// The features of a record sorted by name, lists of features last.
pub fn features(record: &[u8]) -> Result<Vec<Feature<'_>>> {
    all(record).map_err(|error| no_example(record, error))
}

fn all(record: &[u8]) -> std::result::Result<Vec<Feature<'_>>, walk::Malformed> {
    let mut found: BTreeMap<(bool, &[u8]), MapEntry<'_>> = BTreeMap::new();
    let mut fields = MessageFields(record);
    while let Some((number, part)) = fields.next()? {
        if let (1 | 2, FieldValue::Bytes(map)) = (number, part) {
            walk::entries(map, |key, held| {
                found.insert((number == 2, key), held);
            })?;
        }
    }
    let mut features = Vec::with_capacity(found.len());
    for ((is_sequence, key), held) in found {
        let mut steps = Vec::new();
        if is_sequence {
            walk::steps(held, |values| {
                steps.push(List::of(&values)?);
                Ok(())
            })?;
        } else {
            steps.push(List::of(&Values::of(held)?)?);
        }
        features.push(Feature { key, is_sequence, steps });
    }
    Ok(features)
}

impl<'a> List<'a> {
    fn of(values: &Values<'a>) -> std::result::Result<List<'a>, walk::Malformed> {
        Ok(match values.kind {
            None => List::Nothing,
            Some(ValueKind::Bytes) => {
                let mut list = Vec::new();
                values.bytes(|value| list.push(value))?;
                List::Bytes(list)
            }
            Some(ValueKind::Float32) => {
                let mut list = Vec::new();
                values.floats(|some| {
                    let (numbers, _) = some.as_chunks::<4>();
                    list.extend(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)));
                })?;
                List::Floats(list)
            }
            Some(ValueKind::Int64) => {
                let mut list = Vec::new();
                values.ints(|value| list.push(value))?;
                List::Ints(list)
            }
        })
    }
}

/// Encodes a tf.train.Example with these features, in this order.
pub fn write(features: &[(&str, List<'_>)]) -> Vec<u8> {
    let mut map = Vec::new();
    for (key, list) in features {
        let mut values = Vec::new();
        let number = match list {
            List::Nothing => None,
            List::Bytes(list) => {
                list.iter().for_each(|value| put(1, value, &mut values));
                Some(1)
            }
            List::Floats(list) => {
                let packed: Vec<u8> = list.iter().flat_map(|value| value.to_le_bytes()).collect();
                put(1, &packed, &mut values);
                Some(2)
            }
            List::Ints(list) => {
                let mut packed = Vec::new();
                list.iter().for_each(|value| varint(*value as u64, &mut packed));
                put(1, &packed, &mut values);
                Some(3)
            }
        };
        let mut feature = Vec::new();
        if let Some(number) = number {
            put(number, &values, &mut feature);
        }
        let mut entry = Vec::new();
        put(1, key.as_bytes(), &mut entry);
        put(2, &feature, &mut entry);
        put(1, &entry, &mut map);
    }
    let mut example = Vec::new();
    put(1, &map, &mut example);
    example
}

/// Appends a length-delimited field.
fn put(number: u8, bytes: &[u8], to: &mut Vec<u8>) {
    to.push(number << 3 | 2);
    varint(bytes.len() as u64, to);
    to.extend_from_slice(bytes);
}

fn varint(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}
