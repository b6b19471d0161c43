//! Reads the requested fields from the members of a sample.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::format::convert::{self, Fields, Output, guessed, internal, wrong};
use crate::format::{Shape, Type, Wanted, npy};
use crate::sample::{Dtype, FieldKind, Value};
use crate::sys::slab::Row;

use super::members::{Member, members};

/// The field name of the sample's own key.
const KEY: &str = "__key__";
/// Extensions of formats that run code when they are read.
const PICKLES: &[&str] = &["pkl", "pickle", "pyd", "pth", "pt"];
/// Extensions that usually hold integers, and text.
const NUMBERS: &[&str] = &["cls", "cls2", "class", "id", "index", "inx", "count"];
const TEXTS: &[&str] = &["txt", "text", "transcript", "cap", "caption"];

/// Reads the fields of a sample.
#[derive(Debug)]
pub struct TarParser {
    wanted: Arc<[Wanted]>,
    fields: Fields,
    picture: Option<usize>,
    /// The extensions of each field; the first that exists counts.
    extensions: Vec<Vec<String>>,
    /// How much larger the values can be than the record: a factor, and a constant.
    growth: (usize, usize),
}

impl TarParser {
    /// A parser of these fields; the one numbered `picture` is passed to the decoder as bytes.
    pub fn new(wanted: Arc<[Wanted]>, picture: Option<usize>) -> Result<TarParser> {
        let fields = Fields::new(&wanted, picture);
        let extensions = wanted.iter().map(check).collect::<Result<Vec<_>>>()?;
        let mut factors: HashMap<&str, usize> = HashMap::new();
        let mut added = 0;
        for (number, choices) in extensions.iter().enumerate() {
            let (factor, constant) = fields.growth(number);
            added += constant;
            for choice in choices {
                *factors.entry(choice).or_default() += factor;
            }
        }
        // Members do not overlap, so only those that are requested twice count twice.
        let growth = (factors.into_values().max().unwrap_or(0), added);
        Ok(TarParser { wanted, fields, picture, extensions, growth })
    }

    /// The most bytes of values without a row, for a record of this size.
    pub(crate) fn most_bytes(&self, record_bytes: usize) -> usize {
        let (factor, added) = self.growth;
        record_bytes.saturating_mul(factor).saturating_add(added)
    }

    /// Writes values with a row to their row and appends the others, each in the order of the fields.
    pub fn read(&self, span: &[u8], rows: &mut [Row], others: &mut Vec<Value>) -> Result<()> {
        let sample = FoundMembers::of(span)?;
        self.fields.each(rows, others, |number, one, place| {
            if &*one.key == KEY {
                let key = sample.members.first().map_or(&[][..], |member| member.key());
                return convert::put_text(one, || "the key of the sample".into(), key, place);
            }
            match sample.choose(&self.extensions[number]) {
                Some(member) => put(one, member, place),
                None => {
                    convert::put_default(one, place).unwrap_or_else(|| Err(sample.missing(one)))
                }
            }
        })
    }

    /// The bytes of the image.
    pub fn picture<'a>(&self, span: &'a [u8]) -> Result<&'a [u8]> {
        let number = self.picture.ok_or_else(|| internal("no field is an image"))?;
        let sample = FoundMembers::of(span)?;
        match sample.choose(&self.extensions[number]) {
            Some(member) => Ok(member.data),
            None => Err(sample.missing(&self.wanted[number])),
        }
    }
}

/// The extensions that a key requests: the key itself, then those between its semicolons, each as written and without
/// dots and spaces around it. So `a..txt` and `a.my;ext` can be requested too.
fn choices(key: &str) -> Vec<String> {
    let mut choices = vec![key.to_lowercase()];
    for part in key.split(';') {
        for choice in [part, part.trim().trim_start_matches('.')] {
            let choice = choice.to_lowercase();
            if !choices.contains(&choice) {
                choices.push(choice);
            }
        }
    }
    if !key.is_empty() {
        // "jpg;" does not request a file without an extension.
        choices.retain(|choice| !choice.is_empty());
    }
    choices
}

/// The extensions of a field. Refuses fields that a tar cannot hold.
fn check(one: &Wanted) -> Result<Vec<String>> {
    let key = &*one.key;
    let choices = choices(key);
    if let Some(pickle) = choices.iter().find(|choice| is_pickle(choice))
        && one.of != Type::Bytes
    {
        return Err(Error::new(
            Kind::UnsafeFormat,
            format!("member \".{pickle}\" is a pickle, which runs code when it is read"),
        ));
    }
    let refuse = |what: String| Err(Error::new(Kind::InvalidArgument, what));
    if key == "__url__" {
        return refuse("\"__url__\" is not a member of a sample".into());
    }
    if key == KEY && one.of != Type::Text {
        return refuse("\"__key__\" is the key of a sample, which is text".into());
    }
    if one.is_sequence || matches!(one.field().kind, FieldKind::List | FieldKind::Texts) {
        return refuse(format!("member {key:?} of a tar is one value, not a list"));
    }
    Ok(choices)
}

fn is_pickle(extension: &str) -> bool {
    extension.rsplit('.').next().is_some_and(|last| PICKLES.contains(&last))
}

/// The members of a sample.
struct FoundMembers<'a> {
    members: Vec<Member<'a>>,
}

impl<'a> FoundMembers<'a> {
    fn of(span: &'a [u8]) -> Result<FoundMembers<'a>> {
        let members = members(span).collect::<Result<Vec<_>>>()?;
        let Some(first) = members.first() else {
            return Err(Error::new(Kind::CorruptRecord, "the sample has no members"));
        };
        if let Some(other) = members.iter().find(|member| member.key() != first.key()) {
            let (first, other) = (first.shown(), other.shown());
            let what = format!("members {first} and {other} do not belong to one sample");
            return Err(Error::new(Kind::CorruptRecord, what));
        }
        Ok(FoundMembers { members })
    }

    fn choose(&self, extensions: &[String]) -> Option<&Member<'a>> {
        extensions
            .iter()
            .find_map(|extension| self.members.iter().find(|member| member.extension == *extension))
    }

    fn missing(&self, one: &Wanted) -> Error {
        let found: Vec<_> = self.members.iter().take(20).map(|member| &*member.extension).collect();
        let what = format!("no member {:?}; the sample has {}", one.key, found.join(", "));
        Error::new(Kind::InvalidField, what)
    }
}

fn put(one: &Wanted, member: &Member<'_>, place: Output<'_>) -> Result<()> {
    let called = || format!("member {}", member.shown());
    let Type::Npy(dtype) = one.of else {
        return convert::put_text(one, called, member.data, place);
    };
    let (header, numbers) = npy::array(member.data).map_err(|error| {
        let what = format!("{}: {}", called(), error.message());
        Error::new(error.kind(), what).with_hint(error.hint().to_owned())
    })?;
    if header.dtype != dtype {
        let (found, wanted) = (header.dtype.name(), dtype.name());
        return Err(wrong(called(), format!("holds {found}, expected {wanted}")));
    }
    convert::put_numbers(one, called, Some(&header.shape), &numbers, place)
}

/// The fields that a sample suggests if none were requested: by the extensions of its members and by their content.
/// Pickles are left out.
pub(crate) fn guess(span: &[u8]) -> Result<Vec<Wanted>> {
    guess_by(span, &|error| Err(error))
}

/// The same for a sample with an array that cannot be read: the field stays an array, so that it is a fault of each
/// sample.
pub(crate) fn guess_from_corrupt(span: &[u8]) -> Vec<Wanted> {
    guess_by(span, &|_| Ok((Type::Npy(Dtype::Uint8), Vec::new()))).unwrap_or_default()
}

/// What to do about an array that cannot be read.
type Unread<'a> = &'a dyn Fn(Error) -> Result<(Type, Vec<usize>)>;

fn guess_by(span: &[u8], unread: Unread<'_>) -> Result<Vec<Wanted>> {
    let sample = FoundMembers::of(span)?;
    let mut wanted = vec![guessed(KEY, Type::Text, Shape::Fixed(Vec::new()))];
    for member in &sample.members {
        if is_pickle(&member.extension) {
            continue;
        }
        let last = member.extension.rsplit('.').next().unwrap_or_default();
        let (of, shape) = match last {
            "npy" => match npy::array(member.data) {
                Ok((header, _)) => (Type::Npy(header.dtype), header.shape),
                Err(error) if error.kind() == Kind::UnsafeFormat => continue,
                Err(error) => unread(error)?,
            },
            "json" => (Type::Json, Vec::new()),
            _ if NUMBERS.contains(&last) && is_number(member.data) => (Type::Int64, Vec::new()),
            _ if NUMBERS.contains(&last) || TEXTS.contains(&last) => (Type::Text, Vec::new()),
            _ => (Type::Bytes, Vec::new()),
        };
        wanted.push(guessed(&member.extension, of, Shape::Fixed(shape)));
    }
    Ok(wanted)
}

fn is_number(data: &[u8]) -> bool {
    std::str::from_utf8(data).is_ok_and(|text| text.trim_ascii().parse::<i64>().is_ok())
}
