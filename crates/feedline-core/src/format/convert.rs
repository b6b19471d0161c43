//! Converts what a record holds under a key to a value of the batch, for containers whose records are text and files.

use std::str::FromStr;

use serde::de::IgnoredAny;

use super::{Shape, Type, Wanted};
use crate::error::{Error, Kind, Result};
use crate::sample::{Array, FieldKind, Value};
use crate::sys::slab::Row;

/// Where a value is written to.
pub(super) enum Output<'a> {
    /// A row of the batch.
    Row(&'a mut [u8]),
    /// The values without a row.
    Others(&'a mut Vec<Value>),
}

/// The fields, and which of them have a row.
#[derive(Debug)]
pub(super) struct Fields {
    wanted: Vec<(Wanted, bool)>,
    picture: Option<usize>,
}

impl Fields {
    pub(super) fn new(wanted: &[Wanted], picture: Option<usize>) -> Fields {
        let has_row = |one: &Wanted| matches!(one.field().kind, FieldKind::Fixed { .. });
        Fields { wanted: wanted.iter().map(|one| (one.clone(), has_row(one))).collect(), picture }
    }

    /// Visits the fields except the image, each with its number and its output.
    pub(super) fn each(
        &self,
        rows: &mut [Row],
        others: &mut Vec<Value>,
        mut put: impl FnMut(usize, &Wanted, Output<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut rows = rows.iter_mut();
        for (number, (one, has_row)) in self.wanted.iter().enumerate() {
            if Some(number) == self.picture {
                continue;
            }
            let place = match has_row {
                true => Output::Row(rows.next().ok_or_else(|| internal("a field has no row"))?),
                false => Output::Others(others),
            };
            put(number, one, place)?;
        }
        Ok(())
    }

    /// The most bytes that a field without a row can take: a factor for each byte of the record, and a constant.
    pub(super) fn growth(&self, number: usize) -> (usize, usize) {
        let (one, has_row) = &self.wanted[number];
        if *has_row && matches!(one.of, Type::Npy(_)) {
            return (1, 0);
        }
        if *has_row || Some(number) == self.picture {
            return (0, 0);
        }
        let default = one.default.as_ref().map_or(0, Vec::len);
        match (one.of, &one.shape) {
            // A digit and a comma can become eight bytes.
            (Type::Int64 | Type::Float32, _) => (4, 8 + default),
            // An empty text in a list takes three characters.
            (Type::Bytes | Type::Text, Shape::Fixed(shape)) if !shape.is_empty() => {
                (9, shape.iter().product::<usize>() * (default + size_of::<Vec<u8>>()))
            }
            (Type::Bytes | Type::Text, Shape::Variable(_)) => (9, 0),
            // An array in another order is first copied to C order.
            (Type::Npy(_), _) => (2, default),
            (Type::Bytes | Type::Text | Type::Json, _) => (1, default),
        }
    }
}

/// The error for a bad value; `called` names what holds it.
pub(super) fn wrong(called: impl Into<String>, what: impl AsRef<str>) -> Error {
    Error::new(Kind::InvalidField, format!("{} {}", called.into(), what.as_ref()))
}

pub(super) fn internal(what: &str) -> Error {
    Error::new(Kind::Internal, what)
}

/// Writes the default for a missing value, if there is one.
pub(super) fn put_default(one: &Wanted, place: Output<'_>) -> Option<Result<()>> {
    let default = one.default.as_ref()?;
    let text = || std::str::from_utf8(default).map_err(|_| internal("a default is not UTF-8"));
    let is_list = matches!(one.field().kind, FieldKind::List | FieldKind::Texts);
    Some(match (place, one.of) {
        (Output::Row(row), _) => copy(default, row),
        (Output::Others(others), Type::Bytes | Type::Text) if is_list => {
            let count = match &one.shape {
                Shape::Fixed(shape) => shape.iter().product(),
                Shape::Variable(_) => 0,
            };
            others.push(Value::List(vec![default.clone().into(); count]));
            Ok(())
        }
        (Output::Others(others), Type::Bytes) => {
            others.push(Value::Bytes(default.clone().into()));
            Ok(())
        }
        (Output::Others(others), Type::Text | Type::Json) => {
            text().map(|text| others.push(Value::Text(text.into())))
        }
        (place @ Output::Others(_), Type::Int64 | Type::Float32 | Type::Npy(_)) => {
            put_numbers(one, || "the default".into(), None, default, place)
        }
    })
}

/// Writes a value that is stored as text, or bytes unchanged.
pub(super) fn put_text(
    one: &Wanted,
    called: impl Fn() -> String,
    data: &[u8],
    place: Output<'_>,
) -> Result<()> {
    let text = || {
        std::str::from_utf8(data).map_err(|error| {
            wrong(called(), format!("is not UTF-8 from byte {} on", error.valid_up_to()))
                .with_hint("use bytes_() if the text may be in another encoding")
        })
    };
    let value = match one.of {
        Type::Bytes => Value::Bytes(data.to_vec().into()),
        Type::Text => Value::Text(text()?.into()),
        Type::Json => {
            let json = text()?;
            check_json(json).map_err(|error| wrong(called(), format!("is not JSON: {error}")))?;
            Value::Text(json.into())
        }
        Type::Int64 => {
            let numbers = numbers(text()?, &called, "int64", i64::to_le_bytes)?;
            return put_numbers(one, called, None, &numbers, place);
        }
        Type::Float32 => {
            let numbers = numbers(text()?, &called, "float32", f32::to_le_bytes)?;
            return put_numbers(one, called, None, &numbers, place);
        }
        Type::Npy(_) => return Err(internal("an array was read as text")),
    };
    match place {
        Output::Others(others) => others.push(value),
        Output::Row(_) => return Err(internal("bytes have no row")),
    }
    Ok(())
}

/// Numbers in decimal, separated by spaces or commas.
fn numbers<T: FromStr, const N: usize>(
    text: &str,
    called: &impl Fn() -> String,
    of: &str,
    bytes: impl Fn(T) -> [u8; N],
) -> Result<Vec<u8>> {
    let mut numbers = Vec::new();
    let words = text.split(|character: char| character.is_ascii_whitespace() || character == ',');
    for word in words.filter(|word| !word.is_empty()) {
        let number = word.parse().map_err(|_| {
            let word: String = word.chars().take(40).collect();
            wrong(called(), format!("holds {word:?}, expected a number of {of}"))
        })?;
        numbers.extend(bytes(number));
    }
    Ok(numbers)
}

/// Writes numbers of the type of the field. Their shape must be that of the field; if they have no shape of their own,
/// their count must fit.
pub(super) fn put_numbers(
    one: &Wanted,
    called: impl Fn() -> String,
    shape: Option<&[usize]>,
    numbers: &[u8],
    place: Output<'_>,
) -> Result<()> {
    let dtype = one.dtype().ok_or_else(|| internal("numbers have no type"))?;
    let mismatch = |wanted: &str| match shape {
        Some(shape) => wrong(called(), format!("has shape {shape:?}, expected {wanted}")),
        None => {
            let count = numbers.len() / dtype.bytes();
            wrong(called(), format!("holds {count} numbers, expected {wanted}"))
        }
    };
    match (place, &one.shape) {
        (Output::Row(row), Shape::Fixed(wanted)) => {
            if shape.is_some_and(|shape| shape != wanted) || numbers.len() != row.len() {
                return Err(mismatch(&format!("shape {wanted:?}")));
            }
            copy(numbers, row)
        }
        (Output::Others(others), Shape::Variable(inner)) => {
            let group = inner.iter().product::<usize>() * dtype.bytes();
            let fits = shape.is_none_or(|shape| shape.get(1..) == Some(inner));
            if !fits || group == 0 || !numbers.len().is_multiple_of(group) {
                return Err(mismatch(&any_of(inner)));
            }
            let mut shape = vec![numbers.len() / group];
            shape.extend(inner);
            others.push(Value::Array(Array { dtype, shape, bytes: numbers.to_vec() }));
            Ok(())
        }
        (Output::Row(_), Shape::Variable(_)) | (Output::Others(_), Shape::Fixed(_)) => {
            Err(internal("a field and its output disagree about its shape"))
        }
    }
}

/// The shape of any number of groups, as users write it.
fn any_of(inner: &[usize]) -> String {
    let sizes = inner.iter().map(|size| format!(", {size}"));
    format!("shape [None{}]", sizes.collect::<String>())
}

fn copy(from: &[u8], row: &mut [u8]) -> Result<()> {
    if from.len() != row.len() {
        return Err(internal("a row does not have the size of its field"));
    }
    row.copy_from_slice(from);
    Ok(())
}

/// A field with one value, for a guess.
pub(super) fn guessed(name: &str, of: Type, shape: Shape) -> Wanted {
    Wanted { name: name.into(), key: name.into(), of, shape, is_sequence: false, default: None }
}

/// The deepest nesting of JSON that is accepted: Python's parser fails beyond some hundreds, depending on its stack.
const DEEPEST: usize = 128;

/// Checks that a text is JSON. NaN, Infinity and -Infinity are numbers, as in Python.
pub(super) fn check_json(text: &str) -> std::result::Result<(), String> {
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        let plain = without_pythons_numbers(text).ok_or_else(|| error.to_string())?;
        serde_json::from_str::<IgnoredAny>(&plain).map_err(|error| error.to_string())?;
    }
    // Most texts do not have this many brackets at all.
    let is_flat = memchr::memchr2_iter(b'[', b'{', text.as_bytes()).nth(DEEPEST).is_none();
    if is_flat || depth(text) <= DEEPEST {
        return Ok(());
    }
    Err(format!("it is nested deeper than {DEEPEST}"))
}

/// The text with NaN and Infinity replaced by zeros of the same length, so that offsets stay the same. None if it has
/// neither.
fn without_pythons_numbers(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut plain = None;
    let (mut at, mut is_quoted) = (0, false);
    // Where a number may begin, and what may follow one.
    let is_edge = |byte: Option<&u8>| {
        byte.is_none_or(|byte| matches!(byte, b'[' | b']' | b'{' | b'}' | b',' | b':'))
            || byte.is_some_and(u8::is_ascii_whitespace)
    };
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if is_quoted => at += 1,
            b'"' => is_quoted = !is_quoted,
            b'N' | b'I' | b'-' if !is_quoted => {
                let words = [&b"NaN"[..], b"Infinity", b"-Infinity"];
                let word = words.into_iter().find(|word| bytes[at..].starts_with(word));
                if let Some(word) = word
                    && is_edge(at.checked_sub(1).and_then(|before| bytes.get(before)))
                    && is_edge(bytes.get(at + word.len()))
                {
                    let plain: &mut Vec<u8> = plain.get_or_insert_with(|| bytes.to_vec());
                    plain[at..at + word.len()].fill(b' ');
                    plain[at] = b'0';
                    at += word.len();
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    String::from_utf8(plain?).ok()
}

/// The nesting depth of a JSON text.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut is_quoted, mut is_escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_quoted,
            b'"' => is_quoted = !is_quoted,
            b'[' | b'{' if !is_quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !is_quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Refuses types that only other containers can hold.
pub(super) fn refuse_npy(one: &Wanted, place: &str) -> Result<()> {
    let what = match one.of {
        Type::Npy(_) => format!("field {:?} cannot be npy() in {place}", one.name),
        Type::Bytes | Type::Text | Type::Json | Type::Int64 | Type::Float32 if one.is_sequence => {
            format!("field {:?} cannot be a sequence in {place}", one.name)
        }
        Type::Bytes | Type::Text | Type::Json | Type::Int64 | Type::Float32 => return Ok(()),
    };
    Err(Error::new(Kind::InvalidArgument, what)
        .with_hint("use int64(), float32(), text(), json_() or bytes_()"))
}
