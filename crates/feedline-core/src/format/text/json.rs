//! The fields of a line of JSON.

use std::borrow::Cow;
use std::sync::Arc;

use super::value::{Kind, parts, under, unquoted};
use crate::error::{self, Error, Result};
use crate::format::convert::{
    Fields, Place, check_json, guessed, internal, put_default, put_numbers, refuse_npy, wrong,
};
use crate::format::{Shape, Type, Wanted};
use crate::sample::{FieldKind, Value};
use crate::sys::slab::Row;

/// The line itself, as a field.
const LINE: &str = "__json__";

/// Makes the fields of a line.
#[derive(Debug)]
pub(crate) struct JsonParser {
    fields: Fields,
    growth: (usize, usize),
}

impl JsonParser {
    /// For these fields. A key with dots leads into objects within the object, unless there is such a
    /// key as a whole.
    pub(crate) fn new(wanted: Arc<[Wanted]>, picture: Option<usize>) -> Result<JsonParser> {
        let fields = Fields::new(&wanted, picture);
        let (mut factors, mut added) = (0, 0);
        for (number, one) in wanted.iter().enumerate() {
            refuse_npy(one, "JSON")?;
            if matches!(one.field().kind, FieldKind::List | FieldKind::Texts)
                && one.of == Type::Json
            {
                let what = format!("field {:?} is a list of JSON: leave its shape out", one.name);
                return Err(Error::new(error::Kind::InvalidArgument, what));
            }
            let (factor, constant) = fields.growth(number);
            factors += factor;
            added += constant;
        }
        Ok(JsonParser { fields, growth: (factors, added) })
    }

    /// The most bytes that the values without a row can hold, of a line that has this many.
    pub(crate) fn most_bytes(&self, record_bytes: usize) -> usize {
        let (factor, added) = self.growth;
        record_bytes.saturating_mul(factor).saturating_add(added)
    }

    /// Writes what has a row into its row, and gives the other values, each in the order of the fields.
    pub(crate) fn read(
        &self,
        line: &[u8],
        rows: &mut [Row],
        others: &mut Vec<Value>,
    ) -> Result<()> {
        let line = checked(line)?;
        self.fields.each(rows, others, |_, one, place| {
            let value = if &*one.key == LINE { Some(line) } else { under(line, &one.key) };
            match value.filter(|value| Kind::of(value) != Kind::Null || one.of == Type::Json) {
                Some(value) => put(one, value, place),
                None => put_default(one, place).unwrap_or_else(|| Err(missing(one, line))),
            }
        })
    }
}

/// A line that is JSON.
fn checked(line: &[u8]) -> Result<&str> {
    let damaged = |what: String| Error::new(error::Kind::CorruptRecord, what);
    let line = std::str::from_utf8(line)
        .map_err(|error| {
            damaged(format!("the line is not UTF-8 from byte {} on", error.valid_up_to()))
        })?
        .trim_ascii();
    check_json(line).map_err(|error| damaged(format!("the line is not JSON: {error}")))?;
    Ok(line)
}

fn missing(one: &Wanted, line: &str) -> Error {
    if under(line, &one.key).is_some() {
        return wrong(format!("key {:?}", one.key), "is null, a value was wanted");
    }
    let called = format!("no value for key {:?},", one.key);
    if Kind::of(line) != Kind::Object {
        return wrong(called, format!("the line is {} and no object", Kind::of(line).name()));
    }
    let keys: Vec<_> = parts(line).take(20).filter_map(|(key, _)| unquoted(key)).collect();
    wrong(called, format!("the line has {}", keys.join(", ")))
}

fn put(one: &Wanted, value: &str, place: Place<'_>) -> Result<()> {
    let called = || format!("key {:?}", one.key);
    let is_list = matches!(one.field().kind, FieldKind::List | FieldKind::Texts);
    let made = match one.of {
        Type::Json => Value::Text(value.into()),
        Type::Bytes | Type::Text if is_list => {
            if Kind::of(value) != Kind::List {
                let found = Kind::of(value).name();
                return Err(wrong(called(), format!("holds {found}, a list of text was wanted")));
            }
            let texts =
                parts(value).map(|(_, part)| Ok(text(one, part)?.as_bytes().to_vec().into()));
            Value::List(counted(one, texts.collect::<Result<Vec<_>>>()?)?)
        }
        Type::Bytes => Value::Bytes(text(one, value)?.as_bytes().to_vec().into()),
        Type::Text => Value::Text(text(one, value)?.into()),
        Type::Int64 | Type::Float32 => return put_lists(one, value, place),
        Type::Npy(_) => return Err(internal("JSON holds no arrays of NumPy")),
    };
    match place {
        Place::Others(others) => others.push(made),
        Place::Row(_) => return Err(internal("text has no row")),
    }
    Ok(())
}

fn text<'a>(one: &Wanted, value: &'a str) -> Result<Cow<'a, str>> {
    unquoted(value).ok_or_else(|| {
        let what = format!("holds {}, text was wanted", Kind::of(value).name());
        wrong(format!("key {:?}", one.key), what)
    })
}

/// A list of as many as the shape says.
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
    Err(wrong(format!("key {:?}", one.key), format!("holds {count} texts, {shape:?} was wanted")))
}

/// Numbers in lists within lists, as deep as the field has axes.
fn put_lists(one: &Wanted, value: &str, place: Place<'_>) -> Result<()> {
    let called = || format!("key {:?}", one.key);
    let axes = match &one.shape {
        Shape::Fixed(shape) => shape.len(),
        Shape::Variable(inner) => inner.len() + 1,
    };
    let mut numbers = Numbers { of: one.of, shape: vec![None; axes], bytes: Vec::new() };
    numbers.add(value, 0).map_err(|what| wrong(called(), what))?;
    // Where a list is empty, nothing says how long the lists in it would be.
    let wish = match &one.shape {
        Shape::Fixed(shape) => shape.get(1..).unwrap_or_default(),
        Shape::Variable(inner) => inner,
    };
    let inner = numbers.shape.iter().skip(1).zip(wish).map(|(found, wish)| found.unwrap_or(*wish));
    let outer = numbers.shape.iter().take(1).map(|found| found.unwrap_or(0));
    let shape: Vec<_> = outer.chain(inner).collect();
    put_numbers(one, called, Some(&shape), &numbers.bytes, place)
}

struct Numbers {
    of: Type,
    shape: Vec<Option<usize>>,
    bytes: Vec<u8>,
}

impl Numbers {
    fn add(&mut self, value: &str, axis: usize) -> std::result::Result<(), String> {
        let Some(size) = self.shape.get(axis).copied() else { return self.number(value) };
        if Kind::of(value) != Kind::List {
            let found = Kind::of(value).name();
            return Err(format!("holds {found} where a list was wanted"));
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
        let objection = |wanted: &str| {
            let shown: String = value.chars().take(40).collect();
            format!("holds {shown}, {wanted} was wanted")
        };
        match (self.of, Kind::of(value)) {
            (Type::Int64, Kind::Bool(value)) => self.bytes.extend(i64::from(value).to_le_bytes()),
            (Type::Int64, Kind::Number) => {
                let number: i64 = value.parse().map_err(|_| objection("a number of int64"))?;
                self.bytes.extend(number.to_le_bytes());
            }
            (_, Kind::Number) => {
                let number: f64 = value.parse().map_err(|_| objection("a number of float32"))?;
                let short = number as f32;
                // NaN and Infinity are written as such; other numbers may be too large.
                if !short.is_finite() && value.contains(|letter: char| letter.is_ascii_digit()) {
                    return Err(objection("a number that float32 can hold"));
                }
                self.bytes.extend(short.to_le_bytes());
            }
            (of, _) => {
                let of = if of == Type::Int64 { "int64" } else { "float32" };
                return Err(objection(&format!("a number of {of}")));
            }
        }
        Ok(())
    }
}

/// The fields that a line suggests where none were asked for: its keys. Lists of numbers may have any
/// length; what is neither number nor text comes as JSON, and so does a line that is no object.
pub fn guess_json(line: &[u8]) -> Result<Vec<Wanted>> {
    let line = checked(line)?;
    if Kind::of(line) != Kind::Object {
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
        let (of, shape) = match Kind::of(value) {
            Kind::Number => (of_number(value).unwrap_or(Type::Json), Shape::Fixed(Vec::new())),
            Kind::Text => (Type::Text, Shape::Fixed(Vec::new())),
            Kind::List => list(),
            Kind::Null | Kind::Bool(_) | Kind::Object => (Type::Json, Shape::Fixed(Vec::new())),
        };
        wanted.retain(|one| *one.key != *key);
        wanted.push(guessed(&key, of, shape));
    }
    Ok(wanted)
}

/// What is asked for where no line could be read.
pub(crate) fn any_json() -> Vec<Wanted> {
    vec![guessed(LINE, Type::Json, Shape::Fixed(Vec::new()))]
}

fn of_number(value: &str) -> Option<Type> {
    match Kind::of(value) {
        Kind::Number if value.parse::<i64>().is_ok() => Some(Type::Int64),
        Kind::Number => Some(Type::Float32),
        Kind::Null | Kind::Bool(_) | Kind::Text | Kind::List | Kind::Object => None,
    }
}
