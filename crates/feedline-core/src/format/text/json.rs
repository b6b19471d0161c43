//! Reads the fields of a line of JSON.

use std::borrow::Cow;
use std::sync::Arc;

use super::value::{JsonType, parts, under, unquoted};
use crate::error::{self, Error, Result};
use crate::format::convert::{
    Fields, Output, check_json, guessed, internal, put_default, put_numbers, refuse_npy, wrong,
};
use crate::format::{Shape, Type, Wanted};
use crate::sample::{FieldKind, Value};
use crate::sys::slab::Row;

/// The field name of the whole line.
const LINE: &str = "__json__";

/// Reads the fields of a line.
#[derive(Debug)]
pub(crate) struct JsonParser {
    fields: Fields,
    growth: (usize, usize),
}

impl JsonParser {
    /// A parser of these fields. A key with dots refers to nested objects, unless the object has such a key itself.
    pub(crate) fn new(wanted: Arc<[Wanted]>, picture: Option<usize>) -> Result<JsonParser> {
        let fields = Fields::new(&wanted, picture);
        let (mut factors, mut added) = (0, 0);
        for (number, one) in wanted.iter().enumerate() {
            refuse_npy(one, "JSON")?;
            if matches!(one.field().kind, FieldKind::List | FieldKind::Texts)
                && one.of == Type::Json
            {
                let what = format!("field {:?} is a list of JSON: remove its shape", one.name);
                return Err(Error::new(error::Kind::InvalidArgument, what));
            }
            let (factor, constant) = fields.growth(number);
            factors += factor;
            added += constant;
        }
        Ok(JsonParser { fields, growth: (factors, added) })
    }

    /// The most bytes of values without a row, for a line of this size.
    pub(crate) fn most_bytes(&self, record_bytes: usize) -> usize {
        let (factor, added) = self.growth;
        record_bytes.saturating_mul(factor).saturating_add(added)
    }

    /// Writes values with a row to their row and appends the others, each in the order of the fields.
    pub(crate) fn read(
        &self,
        line: &[u8],
        rows: &mut [Row],
        others: &mut Vec<Value>,
    ) -> Result<()> {
        let line = checked(line)?;
        self.fields.each(rows, others, |_, one, place| {
            let value = if &*one.key == LINE { Some(line) } else { under(line, &one.key) };
            match value
                .filter(|value| JsonType::of(value) != JsonType::Null || one.of == Type::Json)
            {
                Some(value) => put(one, value, place),
                None => put_default(one, place).unwrap_or_else(|| Err(missing(one, line))),
            }
        })
    }
}

/// Checks that a line is JSON.
fn checked(line: &[u8]) -> Result<&str> {
    let corrupt = |what: String| Error::new(error::Kind::CorruptRecord, what);
    let line = std::str::from_utf8(line)
        .map_err(|error| {
            corrupt(format!("the line is not UTF-8 from byte {} on", error.valid_up_to()))
        })?
        .trim_ascii();
    check_json(line).map_err(|error| corrupt(format!("the line is not JSON: {error}")))?;
    Ok(line)
}

fn missing(one: &Wanted, line: &str) -> Error {
    if under(line, &one.key).is_some() {
        return wrong(format!("key {:?}", one.key), "is null, expected a value");
    }
    let called = format!("no value for key {:?},", one.key);
    if JsonType::of(line) != JsonType::Object {
        return wrong(called, format!("the line is {}, not an object", JsonType::of(line).name()));
    }
    let keys: Vec<_> = parts(line).take(20).filter_map(|(key, _)| unquoted(key)).collect();
    wrong(called, format!("the line has {}", keys.join(", ")))
}

fn put(one: &Wanted, value: &str, place: Output<'_>) -> Result<()> {
    let called = || format!("key {:?}", one.key);
    let is_list = matches!(one.field().kind, FieldKind::List | FieldKind::Texts);
    let made = match one.of {
        Type::Json => Value::Text(value.into()),
        Type::Bytes | Type::Text if is_list => {
            if JsonType::of(value) != JsonType::List {
                let found = JsonType::of(value).name();
                return Err(wrong(called(), format!("holds {found}, expected a list of text")));
            }
            let texts =
                parts(value).map(|(_, part)| Ok(text(one, part)?.as_bytes().to_vec().into()));
            Value::List(counted(one, texts.collect::<Result<Vec<_>>>()?)?)
        }
        Type::Bytes => Value::Bytes(text(one, value)?.as_bytes().to_vec().into()),
        Type::Text => Value::Text(text(one, value)?.into()),
        Type::Int64 | Type::Float32 => return put_lists(one, value, place),
        Type::Npy(_) => return Err(internal("JSON has no NumPy arrays")),
    };
    match place {
        Output::Others(others) => others.push(made),
        Output::Row(_) => return Err(internal("text has no row")),
    }
    Ok(())
}

fn text<'a>(one: &Wanted, value: &'a str) -> Result<Cow<'a, str>> {
    unquoted(value).ok_or_else(|| {
        let what = format!("holds {}, expected text", JsonType::of(value).name());
        wrong(format!("key {:?}", one.key), what)
    })
}

/// A list with as many entries as the shape requires.
fn counted<T>(one: &Wanted, list: Vec<T>) -> Result<Vec<T>> {
    let fits = match &one.shape {
        Shape::Fixed(shape) => list.len() == shape.iter().product::<usize>(),
        Shape::Variable(inner) => {
            let group = inner.iter().product::<usize>();
            group > 0 && list.len().is_multiple_of(group)
        }
    };
    if fits {
        return Ok(list);
    }
    let (count, shape) = (list.len(), &one.shape);
    Err(wrong(format!("key {:?}", one.key), format!("holds {count} texts, expected {shape:?}")))
}

/// NestedNumbers in nested lists, as deep as the field has axes.
fn put_lists(one: &Wanted, value: &str, place: Output<'_>) -> Result<()> {
    let called = || format!("key {:?}", one.key);
    let axes = match &one.shape {
        Shape::Fixed(shape) => shape.len(),
        Shape::Variable(inner) => inner.len() + 1,
    };
    let mut numbers = NestedNumbers { of: one.of, shape: vec![None; axes], bytes: Vec::new() };
    numbers.add(value, 0).map_err(|what| wrong(called(), what))?;
    // An empty list does not show how long its inner lists would be.
    let wanted = match &one.shape {
        Shape::Fixed(shape) => shape.get(1..).unwrap_or_default(),
        Shape::Variable(inner) => inner,
    };
    let inner =
        numbers.shape.iter().skip(1).zip(wanted).map(|(found, wanted)| found.unwrap_or(*wanted));
    let outer = numbers.shape.iter().take(1).map(|found| found.unwrap_or(0));
    let shape: Vec<_> = outer.chain(inner).collect();
    put_numbers(one, called, Some(&shape), &numbers.bytes, place)
}

struct NestedNumbers {
    of: Type,
    shape: Vec<Option<usize>>,
    bytes: Vec<u8>,
}

impl NestedNumbers {
    fn add(&mut self, value: &str, axis: usize) -> std::result::Result<(), String> {
        let Some(size) = self.shape.get(axis).copied() else { return self.number(value) };
        if JsonType::of(value) != JsonType::List {
            let found = JsonType::of(value).name();
            return Err(format!("holds {found}, expected a list"));
        }
        let mut count = 0;
        for (_, part) in parts(value) {
            self.add(part, axis + 1)?;
            count += 1;
        }
        if size.is_some_and(|size| size != count) {
            return Err("holds lists of different lengths".into());
        }
        self.shape[axis] = Some(count);
        Ok(())
    }

    fn number(&mut self, value: &str) -> std::result::Result<(), String> {
        let mismatch = |wanted: &str| {
            let shown: String = value.chars().take(40).collect();
            format!("holds {shown}, expected {wanted}")
        };
        match (self.of, JsonType::of(value)) {
            (Type::Int64, JsonType::Bool(value)) => {
                self.bytes.extend(i64::from(value).to_le_bytes())
            }
            (Type::Int64, JsonType::Number) => {
                let number: i64 = value.parse().map_err(|_| mismatch("a number of int64"))?;
                self.bytes.extend(number.to_le_bytes());
            }
            (_, JsonType::Number) => {
                let number: f64 = value.parse().map_err(|_| mismatch("a number of float32"))?;
                let short = number as f32;
                // NaN and Infinity are literals; other numbers may be too large.
                if !short.is_finite()
                    && value.contains(|character: char| character.is_ascii_digit())
                {
                    return Err(mismatch("a number that float32 can hold"));
                }
                self.bytes.extend(short.to_le_bytes());
            }
            (of, _) => {
                let of = if of == Type::Int64 { "int64" } else { "float32" };
                return Err(mismatch(&format!("a number of {of}")));
            }
        }
        Ok(())
    }
}

/// The fields that a line suggests if none were requested: its keys. Lists of numbers may have any length; values that
/// are neither number nor text are JSON, and so is a line that is no object.
pub fn guess_json(line: &[u8]) -> Result<Vec<Wanted>> {
    let line = checked(line)?;
    if JsonType::of(line) != JsonType::Object {
        return Ok(vec![guessed(LINE, Type::Json, Shape::Fixed(Vec::new()))]);
    }
    let mut wanted: Vec<Wanted> = Vec::new();
    for (key, value) in parts(line) {
        let Some(key) = unquoted(key).filter(|key| !key.is_empty()) else { continue };
        let list = || {
            let types: Vec<_> = parts(value).map(|(_, part)| of_number(part)).collect();
            match types.iter().flatten().max_by_key(|of| **of == Type::Float32) {
                Some(of) if types.iter().all(Option::is_some) => (*of, Shape::Variable(Vec::new())),
                Some(_) | None => (Type::Json, Shape::Fixed(Vec::new())),
            }
        };
        let (of, shape) = match JsonType::of(value) {
            JsonType::Number => (of_number(value).unwrap_or(Type::Json), Shape::Fixed(Vec::new())),
            JsonType::Text => (Type::Text, Shape::Fixed(Vec::new())),
            JsonType::List => list(),
            JsonType::Null | JsonType::Bool(_) | JsonType::Object => {
                (Type::Json, Shape::Fixed(Vec::new()))
            }
        };
        wanted.retain(|one| *one.key != *key);
        wanted.push(guessed(&key, of, shape));
    }
    Ok(wanted)
}

/// The fields if no line could be read.
pub(crate) fn any_json() -> Vec<Wanted> {
    vec![guessed(LINE, Type::Json, Shape::Fixed(Vec::new()))]
}

fn of_number(value: &str) -> Option<Type> {
    match JsonType::of(value) {
        JsonType::Number if value.parse::<i64>().is_ok() => Some(Type::Int64),
        JsonType::Number => Some(Type::Float32),
        JsonType::Null | JsonType::Bool(_) | JsonType::Text | JsonType::List | JsonType::Object => {
            None
        }
    }
}
