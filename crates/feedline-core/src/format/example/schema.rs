//! Finds the features of the records of a file, and prints the call that parses them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use crate::format::{Shape, Type, Wanted};

use super::read::shown;
use super::walk::{self, FieldValue, MessageFields, ValueKind, Values};

/// The features of some records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// The number of records read.
    pub records: u64,
    /// The number of records that are not a tf.train.Example.
    pub unreadable: u64,
    /// Whether some have lists of features, so that they are SequenceExamples.
    pub is_sequence: bool,
    /// The features sorted by name, lists last.
    pub features: Vec<FeatureSummary>,
}

/// The values found under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureSummary {
    /// The name.
    pub key: String,
    /// Whether it is a list of features.
    pub is_sequence: bool,
    /// The type of its values; None if no record has any, or the types differ.
    pub of: Option<Type>,
    /// The number of records in which it has values.
    pub present: u64,
    /// The least number of values, in each step of a list.
    pub fewest: usize,
    /// The greatest number of values.
    pub most: usize,
    /// All types found, for people.
    pub types: Vec<&'static str>,
}

#[derive(Default)]
struct Tally {
    present: u64,
    counts: Option<(usize, usize)>,
    types: Vec<ValueKind>,
}

impl Tally {
    fn add(&mut self, values: &Values<'_>) -> Result<bool, walk::Malformed> {
        let Some(kind) = values.kind else { return Ok(false) };
        let count = values.count()?;
        if !self.types.contains(&kind) {
            self.types.push(kind);
        }
        let (fewest, most) = self.counts.unwrap_or((count, count));
        self.counts = Some((fewest.min(count), most.max(count)));
        Ok(true)
    }
}

type Tallies = BTreeMap<(bool, Vec<u8>), Tally>;

/// Inspects some records.
pub fn schema<'a>(records: impl Iterator<Item = &'a [u8]>) -> Schema {
    let mut schema = Schema::default();
    let mut tallies = Tallies::new();
    for record in records {
        schema.records += 1;
        if look(record, &mut tallies).is_err() {
            schema.unreadable += 1;
        }
    }
    schema.is_sequence = tallies.keys().any(|(is_sequence, _)| *is_sequence);
    let features = tallies.into_iter().map(|((is_sequence, key), tally)| {
        let (fewest, most) = tally.counts.unwrap_or_default();
        let of = match tally.types[..] {
            [ValueKind::Bytes] => Some(Type::Bytes),
            [ValueKind::Float32] => Some(Type::Float32),
            [ValueKind::Int64] => Some(Type::Int64),
            _ => None,
        };
        let types = tally.types.iter().map(|kind| kind.name()).collect();
        let key = String::from_utf8_lossy(&key).into_owned();
        FeatureSummary { key, is_sequence, of, present: tally.present, fewest, most, types }
    });
    schema.features = features.collect();
    schema
}

fn look(record: &[u8], tallies: &mut Tallies) -> Result<(), walk::Malformed> {
    let mut found = BTreeMap::new();
    let mut fields = MessageFields(record);
    while let Some((number, part)) = fields.next()? {
        if let (1 | 2, FieldValue::Bytes(map)) = (number, part) {
            walk::entries(map, |key, held| {
                found.insert((number == 2, key), held);
            })?;
        }
    }
    for ((is_sequence, key), held) in found {
        let tally = tallies.entry((is_sequence, key.to_vec())).or_default();
        let is_present = if is_sequence {
            walk::steps(held, |values| tally.add(&values).map(|_| ()))?;
            true
        } else {
            tally.add(&Values::of(held)?)?
        };
        tally.present += u64::from(is_present);
    }
    Ok(())
}

impl FeatureSummary {
    fn shape(&self) -> Shape {
        match (self.fewest, self.most) {
            (1, 1) => Shape::Fixed(vec![]),
            (fewest, most) if fewest == most && most > 0 => Shape::Fixed(vec![most]),
            _ => Shape::Variable(vec![]),
        }
    }

    /// Why it cannot be requested.
    fn why_unsupported(&self) -> Option<String> {
        match (self.of, self.is_sequence, self.shape()) {
            (None, _, _) if self.types.is_empty() => Some("has no values in any record".into()),
            (None, _, _) => Some(format!("has values of {}", self.types.join(" and of "))),
            (Some(_), true, Shape::Variable(_)) => {
                Some(format!("has from {} to {} values in a step", self.fewest, self.most))
            }
            (Some(_), _, _) => None,
        }
    }
}

impl Schema {
    fn readable(&self) -> u64 {
        self.records - self.unreadable
    }

    /// A field for each feature that can be requested.
    pub fn wanted(&self) -> Vec<Wanted> {
        let fields = self.features.iter().filter(|seen| seen.why_unsupported().is_none());
        let wanted = fields.filter_map(|seen| {
            let of = seen.of?;
            let mut field = Wanted {
                name: seen.key.as_str().into(),
                key: seen.key.as_str().into(),
                of,
                shape: seen.shape(),
                is_sequence: seen.is_sequence,
                default: None,
            };
            if self.features.iter().any(|other| other.key == seen.key && !other.is_sequence)
                && seen.is_sequence
            {
                field.name = Arc::from(format!("{}_list", seen.key));
            }
            if seen.present < self.readable() {
                let values = match &field.shape {
                    Shape::Fixed(shape) if !seen.is_sequence => shape.iter().product(),
                    Shape::Fixed(_) | Shape::Variable(_) => 0,
                };
                let bytes = field.dtype().map_or(0, |dtype| dtype.bytes() * values);
                field.default = Some(vec![0; bytes]);
            }
            Some(field)
        });
        wanted.collect()
    }

    /// The call that requests all of them, as a user would type it.
    pub fn python(&self) -> String {
        let mut text = String::from(".parse({\n");
        let mut line = |line: std::fmt::Arguments<'_>| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "    {line}");
        };
        for field in self.wanted() {
            line(format_args!("{}: {},", quoted(&field.name), call(&field)));
        }
        for seen in &self.features {
            if let Some(why_unsupported) = seen.why_unsupported() {
                line(format_args!("# {} {why_unsupported}", shown(seen.key.as_bytes())));
            }
        }
        text.push_str("})");
        text
    }
}

/// A field as a user would type it.
fn call(field: &Wanted) -> String {
    let name = match field.of {
        Type::Bytes => "bytes_",
        Type::Text => "text",
        Type::Json => "json_",
        Type::Int64 => "int64",
        Type::Float32 => "float32",
        Type::Npy(_) => "npy",
    };
    let mut arguments = Vec::new();
    match &field.shape {
        Shape::Fixed(shape) if shape.is_empty() => {}
        Shape::Fixed(shape) => arguments.push(format!("shape={shape:?}")),
        Shape::Variable(inner) => {
            let axes: Vec<_> =
                std::iter::once("None".into()).chain(inner.iter().map(usize::to_string)).collect();
            arguments.push(format!("shape=[{}]", axes.join(", ")));
        }
    }
    if field.default.is_some() {
        let is_list = field.is_sequence || matches!(field.shape, Shape::Variable(_));
        arguments.push(match field.of {
            _ if is_list => "default=[]".into(),
            Type::Int64 => "default=0".into(),
            Type::Float32 => "default=0.0".into(),
            Type::Bytes | Type::Text | Type::Json | Type::Npy(_) => "default=b\"\"".into(),
        });
    }
    if field.key != field.name {
        arguments.push(format!("key={}", quoted(&field.key)));
    }
    let inner = format!("fl.{name}({})", arguments.join(", "));
    if field.is_sequence { format!("fl.sequence({inner})") } else { inner }
}

/// A Python string literal.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character.is_control() => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}
