//! From the members of a sample to the fields that were asked for.

use std::collections::HashMap;
use std::sync::Arc;

use serde::de::IgnoredAny;

use crate::error::{Error, Kind, Result};
use crate::format::{Shape, Type, Wanted, npy};
use crate::sample::{Array, Dtype, FieldKind, Value};
use crate::sys::slab::Row;

use super::members::{Member, members};

/// The key of the sample itself, as a field.
const KEY: &str = "__key__";
/// Extensions of formats that run code when they are read.
const PICKLES: &[&str] = &["pkl", "pickle", "pyd", "pth", "pt"];
/// Extensions under which others write whole numbers, and text.
const NUMBERS: &[&str] = &["cls", "cls2", "class", "id", "index", "inx", "count"];
const TEXTS: &[&str] = &["txt", "text", "transcript", "cap", "caption"];

/// Makes the fields of a sample.
#[derive(Debug)]
pub struct Parser {
    wanted: Arc<[Wanted]>,
    picture: Option<usize>,
    /// For each wanted: its extensions, of which the first that is there counts.
    extensions: Vec<Vec<String>>,
    /// For each wanted: whether it has a row.
    is_fixed: Vec<bool>,
    /// By how much the values can be larger than the record: a factor, and what is added.
    growth: (usize, usize),
}

impl Parser {
    /// For these fields, of which the one with the number `picture` is given as bytes to the decoder.
    pub fn new(wanted: Arc<[Wanted]>, picture: Option<usize>) -> Result<Parser> {
        let mut extensions = Vec::new();
        let mut is_fixed = Vec::new();
        let mut factors: HashMap<String, usize> = HashMap::new();
        let mut added = 0;
        for (number, one) in wanted.iter().enumerate() {
            let choices = check(one)?;
            let kind = one.field().kind;
            is_fixed.push(matches!(kind, FieldKind::Fixed { .. }));
            if Some(number) != picture && !is_fixed[number] {
                // A digit and a space can become eight bytes.
                let factor = match one.of {
                    Type::Int64 | Type::Float32 => 4,
                    Type::Bytes | Type::Text | Type::Json | Type::Npy(_) => 1,
                };
                for choice in &choices {
                    *factors.entry(choice.clone()).or_default() += factor;
                }
                added += 8 + one.default.as_ref().map_or(0, Vec::len);
            }
            extensions.push(choices);
        }
        let factor = factors.into_values().max().unwrap_or(0);
        Ok(Parser { wanted, picture, extensions, is_fixed, growth: (factor, added) })
    }

    /// The most bytes that the values without a row can hold, of a record that has so many.
    pub fn most_bytes(&self, record_bytes: usize) -> usize {
        let (factor, added) = self.growth;
        record_bytes.saturating_mul(factor).saturating_add(added)
    }

    /// Writes what has a row into its row, and gives the other values, each in the order of the fields.
    pub fn read(&self, span: &[u8], rows: &mut [Row], others: &mut Vec<Value>) -> Result<()> {
        let sample = Found::of(span)?;
        let mut rows = rows.iter_mut();
        for (number, one) in self.wanted.iter().enumerate() {
            if Some(number) == self.picture {
                continue;
            }
            let member = sample.choose(&self.extensions[number]);
            if self.is_fixed[number] {
                let row = rows.next().ok_or_else(|| internal("a field has no row"))?;
                sample.fill(one, member, row)?;
            } else {
                others.push(sample.value(one, member)?);
            }
        }
        Ok(())
    }

    /// The bytes of the picture.
    pub fn picture<'a>(&self, span: &'a [u8]) -> Result<&'a [u8]> {
        let number = self.picture.ok_or_else(|| internal("no field is a picture"))?;
        let sample = Found::of(span)?;
        match sample.choose(&self.extensions[number]) {
            Some(member) => Ok(member.data),
            None => Err(sample.missing(&self.wanted[number])),
        }
    }
}

/// Whether a tar can hold that at all; its extensions.
fn check(one: &Wanted) -> Result<Vec<String>> {
    let key = &*one.key;
    let choices: Vec<String> =
        key.split(';').map(|choice| choice.trim().trim_start_matches('.').to_lowercase()).collect();
    if let Some(pickle) = choices.iter().find(|choice| is_pickle(choice))
        && one.of != Type::Bytes
    {
        return Err(Error::new(
            Kind::Refused,
            format!("member \".{pickle}\" is a pickle, which runs code when it is read"),
        ));
    }
    let refuse = |what: String| Err(Error::new(Kind::BadSetting, what));
    if key == "__url__" {
        return refuse("\"__url__\" is no member of a sample".into());
    }
    if key == KEY && one.of != Type::Text {
        return refuse("\"__key__\" is the key of a sample, which is text".into());
    }
    if one.is_sequence || matches!(one.field().kind, FieldKind::List) {
        return refuse(format!("member {key:?} of a tar is one value and not a list of them"));
    }
    Ok(choices)
}

fn is_pickle(extension: &str) -> bool {
    extension.rsplit('.').next().is_some_and(|last| PICKLES.contains(&last))
}

/// The members of a sample.
struct Found<'a> {
    members: Vec<Member<'a>>,
}

impl<'a> Found<'a> {
    fn of(span: &'a [u8]) -> Result<Found<'a>> {
        let members = members(span).collect::<Result<Vec<_>>>()?;
        let Some(first) = members.first() else {
            return Err(Error::new(Kind::DamagedRecord, "the sample has no members"));
        };
        if let Some(other) = members.iter().find(|member| member.key() != first.key()) {
            let (first, other) = (first.shown(), other.shown());
            let what = format!("members {first} and {other} are not of one sample");
            return Err(Error::new(Kind::DamagedRecord, what));
        }
        Ok(Found { members })
    }

    fn choose(&self, extensions: &[String]) -> Option<&Member<'a>> {
        extensions
            .iter()
            .find_map(|wish| self.members.iter().find(|member| member.extension == *wish))
    }

    fn missing(&self, one: &Wanted) -> Error {
        let found: Vec<_> = self.members.iter().take(20).map(|member| &*member.extension).collect();
        let what = format!("no member {:?}, the sample has {}", one.key, found.join(", "));
        Error::new(Kind::WrongField, what)
    }

    fn fill(&self, one: &Wanted, member: Option<&Member<'_>>, row: &mut [u8]) -> Result<()> {
        let Shape::Fixed(shape) = &one.shape else {
            return Err(internal("a field of any length has a row"));
        };
        let Some(member) = member else {
            let Some(default) = &one.default else { return Err(self.missing(one)) };
            return copy(default, row);
        };
        match one.of {
            Type::Int64 => numbers(member, "int64", row.len() / 8, |numbers: Vec<i64>| {
                copy_numbers(&numbers, row, |number| number.to_le_bytes())
            }),
            Type::Float32 => numbers(member, "float32", row.len() / 4, |numbers: Vec<f32>| {
                copy_numbers(&numbers, row, |number| number.to_le_bytes())
            }),
            Type::Npy(dtype) => {
                let (header, data) = array(member, dtype)?;
                if header.shape != *shape {
                    return Err(wrong(
                        member,
                        format!("has shape {:?}, {shape:?} was wanted", header.shape),
                    ));
                }
                copy(data, row)
            }
            Type::Bytes | Type::Text | Type::Json => Err(internal("bytes have no row")),
        }
    }

    fn value(&self, one: &Wanted, member: Option<&Member<'_>>) -> Result<Value> {
        if &*one.key == KEY {
            let key = self.members.first().map_or(&[][..], |member| member.key());
            let text = std::str::from_utf8(key)
                .map_err(|_| Error::new(Kind::WrongField, "the key of the sample is not UTF-8"))?;
            return Ok(Value::Text(text.into()));
        }
        let inner = match &one.shape {
            Shape::Variable(inner) => inner,
            Shape::Fixed(shape) => shape,
        };
        let Some(member) = member else {
            let Some(default) = &one.default else { return Err(self.missing(one)) };
            return default_value(one, inner, default);
        };
        match one.of {
            Type::Bytes => Ok(Value::Bytes(member.data.to_vec().into())),
            Type::Text => Ok(Value::Text(text(member)?.into())),
            Type::Json => {
                let json = text(member)?;
                serde_json::from_str::<IgnoredAny>(json)
                    .map_err(|error| wrong(member, format!("is not JSON: {error}")))?;
                Ok(Value::Text(json.into()))
            }
            Type::Int64 => {
                let numbers: Vec<i64> = parsed(member, "int64")?;
                grouped(member, inner, Dtype::Int64, bytes_of(&numbers, |one| one.to_le_bytes()))
            }
            Type::Float32 => {
                let numbers: Vec<f32> = parsed(member, "float32")?;
                grouped(member, inner, Dtype::Float32, bytes_of(&numbers, |one| one.to_le_bytes()))
            }
            Type::Npy(dtype) => {
                let (header, data) = array(member, dtype)?;
                if header.shape.get(1..) != Some(inner) {
                    let wanted = any_of(inner);
                    let what = format!("has shape {:?}, {wanted} was wanted", header.shape);
                    return Err(wrong(member, what));
                }
                Ok(Value::Array(Array { dtype, shape: header.shape, bytes: data.to_vec() }))
            }
        }
    }
}

fn internal(what: &str) -> Error {
    Error::new(Kind::Internal, what)
}

fn wrong(member: &Member<'_>, what: impl Into<String>) -> Error {
    Error::new(Kind::WrongField, format!("member {} {}", member.shown(), what.into()))
}

/// The shape of any number of groups, as users write it.
fn any_of(inner: &[usize]) -> String {
    let sizes = inner.iter().map(|size| format!(", {size}"));
    format!("[None{}]", sizes.collect::<String>())
}

fn copy(from: &[u8], row: &mut [u8]) -> Result<()> {
    if from.len() != row.len() {
        return Err(internal("a row has not the size of its field"));
    }
    row.copy_from_slice(from);
    Ok(())
}

fn text<'a>(member: &Member<'a>) -> Result<&'a str> {
    std::str::from_utf8(member.data).map_err(|error| {
        wrong(member, format!("is not UTF-8 from byte {} on", error.valid_up_to()))
    })
}

/// An array of that type.
fn array<'a>(member: &Member<'a>, dtype: Dtype) -> Result<(npy::Header, &'a [u8])> {
    let (header, data) = npy::array(member.data).map_err(|error| {
        let what = format!("member {}: {}", member.shown(), error.message());
        Error::new(error.kind(), what).with_hint(error.hint().to_owned())
    })?;
    if header.dtype != dtype {
        let (found, wanted) = (header.dtype.name(), dtype.name());
        return Err(wrong(member, format!("holds {found}, {wanted} was wanted")));
    }
    Ok((header, data))
}

/// Numbers in decimal, with spaces or commas between them.
fn parsed<T: std::str::FromStr>(member: &Member<'_>, of: &str) -> Result<Vec<T>> {
    let text = text(member)?;
    text.split(|letter: char| letter.is_ascii_whitespace() || letter == ',')
        .filter(|word| !word.is_empty())
        .map(|word| {
            word.parse().map_err(|_| {
                let word: String = word.chars().take(40).collect();
                wrong(member, format!("holds {word:?}, a number of {of} was wanted"))
            })
        })
        .collect()
}

fn numbers<T: std::str::FromStr>(
    member: &Member<'_>,
    of: &str,
    count: usize,
    write: impl FnOnce(Vec<T>) -> Result<()>,
) -> Result<()> {
    let numbers: Vec<T> = parsed(member, of)?;
    if numbers.len() != count {
        let found = numbers.len();
        return Err(wrong(member, format!("holds {found} numbers, {count} of {of} were wanted")));
    }
    write(numbers)
}

fn copy_numbers<T: Copy, const N: usize>(
    numbers: &[T],
    row: &mut [u8],
    bytes: impl Fn(T) -> [u8; N],
) -> Result<()> {
    copy(&bytes_of(numbers, bytes), row)
}

fn bytes_of<T: Copy, const N: usize>(numbers: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    numbers.iter().flat_map(|number| bytes(*number)).collect()
}

/// Numbers in groups of a shape.
fn grouped(member: &Member<'_>, inner: &[usize], dtype: Dtype, bytes: Vec<u8>) -> Result<Value> {
    let group = inner.iter().product::<usize>() * dtype.bytes();
    if group == 0 || !bytes.len().is_multiple_of(group) {
        let found = bytes.len() / dtype.bytes();
        let wanted = any_of(inner);
        return Err(wrong(member, format!("holds {found} numbers, shape {wanted} was wanted")));
    }
    let mut shape = vec![bytes.len() / group];
    shape.extend(inner);
    Ok(Value::Array(Array { dtype, shape, bytes }))
}

fn default_value(one: &Wanted, inner: &[usize], default: &[u8]) -> Result<Value> {
    let text = || std::str::from_utf8(default).map_err(|_| internal("a default is not UTF-8"));
    match one.of {
        Type::Bytes => Ok(Value::Bytes(default.to_vec().into())),
        Type::Text | Type::Json => Ok(Value::Text(text()?.into())),
        Type::Int64 | Type::Float32 | Type::Npy(_) => {
            let dtype = one.dtype().ok_or_else(|| internal("numbers have no type"))?;
            let group = inner.iter().product::<usize>() * dtype.bytes();
            let mut shape = vec![default.len() / group.max(1)];
            shape.extend(inner);
            Ok(Value::Array(Array { dtype, shape, bytes: default.to_vec() }))
        }
    }
}

/// The fields that a sample suggests where none were asked for: by the extensions of its members and by
/// what is in them. Pickles are left out.
pub fn guess(span: &[u8]) -> Result<Vec<Wanted>> {
    let sample = Found::of(span)?;
    let mut wanted = vec![field(KEY, Type::Text, Vec::new())];
    for member in &sample.members {
        if member.extension.is_empty() || is_pickle(&member.extension) {
            continue;
        }
        let last = member.extension.rsplit('.').next().unwrap_or_default();
        let (of, shape) = match last {
            "npy" => match npy::array(member.data) {
                Ok((header, _)) => (Type::Npy(header.dtype), header.shape),
                Err(error) if error.kind() == Kind::Refused => continue,
                Err(_) => (Type::Bytes, Vec::new()),
            },
            "json" => (Type::Json, Vec::new()),
            _ if NUMBERS.contains(&last) && is_number(member.data) => (Type::Int64, Vec::new()),
            _ if NUMBERS.contains(&last) || TEXTS.contains(&last) => (Type::Text, Vec::new()),
            _ => (Type::Bytes, Vec::new()),
        };
        wanted.push(field(&member.extension, of, shape));
    }
    Ok(wanted)
}

fn is_number(data: &[u8]) -> bool {
    std::str::from_utf8(data).is_ok_and(|text| text.trim_ascii().parse::<i64>().is_ok())
}

fn field(name: &str, of: Type, shape: Vec<usize>) -> Wanted {
    let shape = Shape::Fixed(shape);
    Wanted { name: name.into(), key: name.into(), of, shape, is_sequence: false, default: None }
}
