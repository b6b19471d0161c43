//! Reads the requested fields of a record straight into the rows of a batch.

use std::sync::Arc;

use crate::bytes::Piece;
use crate::error::{Error, Kind, Result};
use crate::format::{Shape, Type, Wanted};
use crate::sample::{Array, Dtype, FieldKind, Value};
use crate::sys::slab::Row;

use super::walk::{self, FieldValue, Malformed, MapEntry, MessageFields, Values};

/// How many keys are looked up without an allocation.
const FEW: usize = 16;
/// From this many keys on, binary search is faster.
const MANY: usize = 8;
/// How many features a message names.
const NAMED: usize = 8;

/// Reads records with the same fields.
#[derive(Debug)]
pub struct ExampleParser {
    wanted: Arc<[Wanted]>,
    picture: Option<usize>,
    tasks: Vec<FieldTask>,
    features: SortedKeys,
    lists: SortedKeys,
    /// How many bytes of values a byte of a record can become, and what defaults add.
    growth: usize,
    defaults: usize,
}

/// The work for one field, prepared once.
#[derive(Clone, Copy, Debug)]
struct FieldTask {
    /// The position of its key among the keys of features or of lists.
    slot: usize,
    /// The number of values, or of values in a group.
    values: usize,
    into: FieldTarget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldTarget {
    Picture,
    Row(Dtype),
    Array(Dtype),
    Bytes,
    Text,
    List,
}

/// Unique keys, sorted.
#[derive(Debug, Default)]
struct SortedKeys(Vec<Box<[u8]>>);

impl SortedKeys {
    fn new<'a>(keys: impl Iterator<Item = &'a str>) -> SortedKeys {
        let mut keys: Vec<Box<[u8]>> = keys.map(|key| key.as_bytes().into()).collect();
        keys.sort_unstable();
        keys.dedup();
        SortedKeys(keys)
    }

    #[inline]
    fn find(&self, key: &[u8]) -> Option<usize> {
        if self.0.len() < MANY {
            self.0.iter().position(|known| **known == *key)
        } else {
            self.0.binary_search_by(|known| (**known).cmp(key)).ok()
        }
    }
}

impl ExampleParser {
    /// A parser of these fields; the one numbered `picture` is left to the decoder.
    pub fn new(wanted: Arc<[Wanted]>, picture: Option<usize>) -> Result<ExampleParser> {
        for (number, field) in wanted.iter().enumerate() {
            check(field)?;
            if wanted[..number].iter().any(|other| other.name == field.name) {
                return Err(refused(field, "is defined twice"));
            }
        }
        if let Some(field) = picture.and_then(|picture| wanted.get(picture))
            && (field.of != Type::Bytes || field.field().kind != FieldKind::Bytes)
        {
            return Err(refused(field, "is decoded as an image and must be bytes_()"));
        }
        if let Some(field) = picture.and_then(|picture| wanted.get(picture))
            && field.default.is_some()
        {
            return Err(refused(field, "is decoded as an image and cannot have a default"));
        }
        let keys = |is_sequence| {
            let fields = wanted.iter().filter(move |field| field.is_sequence == is_sequence);
            SortedKeys::new(fields.map(|field| &*field.key))
        };
        let (features, lists) = (keys(false), keys(true));
        let mut tasks = Vec::new();
        for (number, field) in wanted.iter().enumerate() {
            let keys = if field.is_sequence { &lists } else { &features };
            let slot = keys.find(field.key.as_bytes()).expect("made of these keys");
            let (Shape::Fixed(shape) | Shape::Variable(shape)) = &field.shape;
            let values = shape.iter().product();
            let into = match field.field().kind {
                _ if Some(number) == picture => FieldTarget::Picture,
                FieldKind::Fixed { dtype, .. } => FieldTarget::Row(dtype),
                FieldKind::Variable { dtype, .. } | FieldKind::Ragged { dtype } => {
                    FieldTarget::Array(dtype)
                }
                FieldKind::Bytes => FieldTarget::Bytes,
                FieldKind::Text | FieldKind::Json => FieldTarget::Text,
                FieldKind::List | FieldKind::Texts => FieldTarget::List,
            };
            tasks.push(FieldTask { slot, values, into });
        }
        let others = || wanted.iter().zip(&tasks).filter(|(_, task)| task.is_other());
        // The bytes of a record belong to one key, but several fields may have the same key.
        let shared = others()
            .map(|(field, _)| others().filter(|(other, _)| other.key == field.key).count())
            .max();
        let growth = others().map(|(_, task)| task.growth()).max();
        let defaults = others()
            .map(|(field, task)| field.default.as_ref().map_or(0, Vec::len) * task.values.max(1))
            .sum();
        let growth = growth.unwrap_or(0) * shared.unwrap_or(0);
        Ok(ExampleParser { wanted, picture, tasks, features, lists, growth, defaults })
    }

    /// Reads a record: fields with a fixed shape into `rows`, in order; all others except the image are appended to
    /// `others`. Only requested features are parsed.
    pub fn read(&self, record: &[u8], rows: &mut [Row], others: &mut Vec<Value>) -> Result<()> {
        let before = others.len();
        let outcome = self.fill(record, rows, others);
        if outcome.is_err() {
            others.truncate(before);
        }
        outcome
    }

    /// The bytes of the image.
    ///
    /// # Panics
    /// If the parser has no image field.
    pub fn picture<'a>(&self, record: &'a [u8]) -> Result<&'a [u8]> {
        let number = self.picture.expect("the parser has an image field");
        let field = &self.wanted[number];
        let key = field.key.as_bytes();
        let mut held = MapEntry::Nothing;
        let find = |name, found| {
            if name == key {
                held = found;
            }
        };
        each_map(record, 1, find).map_err(|error| no_example(record, error))?;
        let values = self.values(record, field, held)?;
        self.one(record, field, &values)
    }

    /// An upper bound of the bytes that `read` appends for a record of this size.
    pub(crate) fn most_bytes(&self, record_bytes: usize) -> usize {
        record_bytes.saturating_mul(self.growth).saturating_add(self.defaults)
    }

    fn fill(&self, record: &[u8], rows: &mut [Row], others: &mut Vec<Value>) -> Result<()> {
        let mut few = [MapEntry::Nothing; FEW];
        let mut many = Vec::new();
        let count = self.features.0.len() + self.lists.0.len();
        let slots = if count <= FEW {
            &mut few[..count]
        } else {
            many.resize(count, MapEntry::Nothing);
            &mut many[..]
        };
        let (features, lists) = slots.split_at_mut(self.features.0.len());
        self.find(record, features, lists).map_err(|error| no_example(record, error))?;
        let mut rows = rows.iter_mut();
        for (field, task) in self.wanted.iter().zip(&self.tasks) {
            if let FieldTarget::Picture = task.into {
                continue;
            }
            if field.is_sequence {
                others.push(self.sequence(record, field, task, lists[task.slot])?);
                continue;
            }
            let values = self.values(record, field, features[task.slot])?;
            match (task.into, &values.kind) {
                (FieldTarget::Row(dtype), _) => {
                    let row = rows.next().expect("a row for each field of one shape");
                    self.row(record, field, dtype, &values, row)?;
                }
                (FieldTarget::Picture, _) => {}
                (
                    FieldTarget::Array(_)
                    | FieldTarget::Bytes
                    | FieldTarget::Text
                    | FieldTarget::List,
                    None,
                ) => {
                    others.push(default(record, field, task)?);
                }
                (FieldTarget::Array(dtype), Some(_)) => {
                    others.push(self.array(record, field, task, dtype, &values)?);
                }
                (FieldTarget::Bytes, Some(_)) => {
                    let bytes = self.one(record, field, &values)?;
                    others.push(Value::Bytes(Piece::from(bytes.to_vec())));
                }
                (FieldTarget::Text, Some(_)) => {
                    let text = text(field, self.one(record, field, &values)?)?;
                    others.push(Value::Text(text.into()));
                }
                (FieldTarget::List, Some(_)) => {
                    others.push(self.list(record, field, task, &values)?)
                }
            }
        }
        Ok(())
    }

    fn find<'a>(
        &self,
        record: &'a [u8],
        features: &mut [MapEntry<'a>],
        lists: &mut [MapEntry<'a>],
    ) -> std::result::Result<(), Malformed> {
        let mut fields = MessageFields(record);
        while let Some((number, part)) = fields.next()? {
            let (keys, slots) = match number {
                1 => (&self.features, &mut *features),
                2 if !lists.is_empty() => (&self.lists, &mut *lists),
                _ => continue,
            };
            let FieldValue::Bytes(map) = part else { continue };
            walk::entries(map, |key, held| {
                if let Some(slot) = keys.find(key) {
                    slots[slot] = held;
                }
            })?;
        }
        Ok(())
    }

    /// The values of a field, which have its type; none if the record lacks them and there is a default.
    #[inline]
    fn values<'a>(&self, record: &[u8], field: &Wanted, held: MapEntry<'a>) -> Result<Values<'a>> {
        let values = Values::of(held).map_err(|error| no_example(record, error))?;
        match values.kind {
            Some(kind) if kind == kind_of(field) => Ok(values),
            None if field.default.is_some() => Ok(values),
            None if matches!(held, MapEntry::Nothing) => Err(missing(record, field)),
            Some(_) | None => Err(wrong(record, field, None, &values)),
        }
    }

    #[inline]
    fn row(
        &self,
        record: &[u8],
        field: &Wanted,
        dtype: Dtype,
        values: &Values<'_>,
        row: &mut [u8],
    ) -> Result<()> {
        if values.kind.is_none() {
            // There is a default, otherwise `values` would have failed.
            row.copy_from_slice(field.default.as_deref().unwrap_or_default());
            return Ok(());
        }
        let mut filled = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(place) = row.get_mut(filled..filled + bytes.len()) {
                place.copy_from_slice(bytes);
            }
            filled += bytes.len();
        };
        let walked = if dtype == Dtype::Int64 {
            values.ints(|value| put(&value.to_ne_bytes()))
        } else {
            values.floats(|some| native(some, &mut put))
        };
        walked.map_err(|error| no_example(record, error))?;
        if filled == row.len() { Ok(()) } else { Err(wrong(record, field, None, values)) }
    }

    fn array(
        &self,
        record: &[u8],
        field: &Wanted,
        task: &FieldTask,
        dtype: Dtype,
        values: &Values<'_>,
    ) -> Result<Value> {
        let mut bytes = Vec::with_capacity(values.most_bytes());
        append(values, dtype, &mut bytes).map_err(|error| no_example(record, error))?;
        bytes.shrink_to_fit();
        if bytes.len() % (task.values * dtype.bytes()) > 0 {
            return Err(wrong(record, field, None, values));
        }
        Ok(groups(field, task, dtype, bytes))
    }

    /// The value of a field that has exactly one.
    fn one<'a>(&self, record: &[u8], field: &Wanted, values: &Values<'a>) -> Result<&'a [u8]> {
        let mut count = 0;
        let mut one: &[u8] = &[];
        let walked = values.bytes(|value| {
            count += 1;
            one = value;
        });
        walked.map_err(|error| no_example(record, error))?;
        if count == 1 { Ok(one) } else { Err(wrong(record, field, None, values)) }
    }

    fn list(
        &self,
        record: &[u8],
        field: &Wanted,
        task: &FieldTask,
        values: &Values<'_>,
    ) -> Result<Value> {
        let mut list = Vec::new();
        let walked = values.bytes(|value| list.push(value.to_vec()));
        walked.map_err(|error| no_example(record, error))?;
        let fits = match field.shape {
            Shape::Fixed(_) => list.len() == task.values,
            Shape::Variable(_) => list.len().is_multiple_of(task.values),
        };
        if !fits {
            return Err(wrong(record, field, None, values));
        }
        if field.of == Type::Text {
            list.iter().try_for_each(|value| text(field, value).map(|_| ()))?;
        }
        Ok(Value::List(pieces(list)))
    }

    /// A list of features, each of which must have the shape.
    fn sequence(
        &self,
        record: &[u8],
        field: &Wanted,
        task: &FieldTask,
        held: MapEntry<'_>,
    ) -> Result<Value> {
        if let MapEntry::Nothing = held {
            return default(record, field, task);
        }
        let (mut bytes, mut list, mut step) = (Vec::new(), Vec::new(), 0);
        let mut problem = None;
        let walked = walk::steps(held, |values| {
            let fits = values.kind == Some(kind_of(field)) && values.count()? == task.values;
            if !fits && problem.is_none() {
                problem = Some(wrong(record, field, Some(step), &values));
            }
            step += 1;
            match task.into {
                _ if !fits => Ok(()),
                FieldTarget::Array(dtype) => append(&values, dtype, &mut bytes),
                FieldTarget::Picture
                | FieldTarget::Row(_)
                | FieldTarget::Bytes
                | FieldTarget::Text
                | FieldTarget::List => values.bytes(|value| list.push(value.to_vec())),
            }
        });
        walked.map_err(|error| no_example(record, error))?;
        if let Some(problem) = problem {
            return Err(problem);
        }
        if field.of == Type::Text {
            list.iter().try_for_each(|value| text(field, value).map(|_| ()))?;
        }
        Ok(match task.into {
            FieldTarget::Array(dtype) => {
                let (Shape::Fixed(inner) | Shape::Variable(inner)) = &field.shape;
                Value::Array(Array { dtype, shape: [&[step], &inner[..]].concat(), bytes })
            }
            FieldTarget::Picture
            | FieldTarget::Row(_)
            | FieldTarget::Bytes
            | FieldTarget::Text
            | FieldTarget::List => Value::List(pieces(list)),
        })
    }
}

impl FieldTask {
    fn is_other(&self) -> bool {
        match self.into {
            FieldTarget::Array(_) | FieldTarget::Bytes | FieldTarget::Text | FieldTarget::List => {
                true
            }
            FieldTarget::Picture | FieldTarget::Row(_) => false,
        }
    }

    /// How many bytes a byte of the record can become.
    fn growth(&self) -> usize {
        match self.into {
            // A number takes a byte or more.
            FieldTarget::Array(Dtype::Int64) => 8,
            // An empty value takes two bytes, and its entry in the list is a vector.
            FieldTarget::List => 1 + size_of::<Vec<u8>>().div_ceil(2),
            FieldTarget::Array(_) | FieldTarget::Bytes | FieldTarget::Text => 1,
            FieldTarget::Picture | FieldTarget::Row(_) => 0,
        }
    }
}

/// Visits every entry of the maps in this field of a record.
fn each_map<'a>(
    record: &'a [u8],
    field: u32,
    mut visit: impl FnMut(&'a [u8], MapEntry<'a>),
) -> std::result::Result<(), Malformed> {
    let mut fields = MessageFields(record);
    while let Some((number, part)) = fields.next()? {
        if let (true, FieldValue::Bytes(map)) = (number == field, part) {
            walk::entries(map, &mut visit)?;
        }
    }
    Ok(())
}

fn append(
    values: &Values<'_>,
    dtype: Dtype,
    bytes: &mut Vec<u8>,
) -> std::result::Result<(), Malformed> {
    if dtype == Dtype::Int64 {
        values.ints(|value| bytes.extend_from_slice(&value.to_ne_bytes()))
    } else {
        values.floats(|some| native(some, &mut |value| bytes.extend_from_slice(value)))
    }
}

/// Floats in the byte order of this machine.
#[inline]
fn native(floats: &[u8], put: &mut impl FnMut(&[u8])) {
    if cfg!(target_endian = "little") {
        return put(floats);
    }
    for float in floats.chunks_exact(4) {
        put(&[float[3], float[2], float[1], float[0]]);
    }
}

fn groups(field: &Wanted, task: &FieldTask, dtype: Dtype, bytes: Vec<u8>) -> Value {
    let (Shape::Fixed(inner) | Shape::Variable(inner)) = &field.shape;
    let count = bytes.len() / (task.values * dtype.bytes()).max(1);
    Value::Array(Array { dtype, shape: [&[count], &inner[..]].concat(), bytes })
}

fn kind_of(field: &Wanted) -> walk::ValueKind {
    match field.of {
        Type::Int64 => walk::ValueKind::Int64,
        Type::Float32 => walk::ValueKind::Float32,
        Type::Bytes | Type::Text | Type::Json | Type::Npy(_) => walk::ValueKind::Bytes,
    }
}

fn pieces(list: Vec<Vec<u8>>) -> Vec<Piece> {
    list.into_iter().map(Piece::from).collect()
}

/// The default for a feature that the record lacks.
fn default(record: &[u8], field: &Wanted, task: &FieldTask) -> Result<Value> {
    let Some(default) = &field.default else { return Err(missing(record, field)) };
    Ok(match task.into {
        FieldTarget::Array(dtype) => groups(field, task, dtype, default.clone()),
        FieldTarget::Text => Value::Text(text(field, default)?.into()),
        FieldTarget::List if field.is_sequence => Value::List(Vec::new()),
        FieldTarget::List => match field.shape {
            Shape::Fixed(_) => Value::List(pieces(vec![default.clone(); task.values])),
            Shape::Variable(_) => Value::List(Vec::new()),
        },
        FieldTarget::Bytes | FieldTarget::Picture | FieldTarget::Row(_) => {
            Value::Bytes(Piece::from(default.clone()))
        }
    })
}

fn check(field: &Wanted) -> Result<()> {
    match field.of {
        Type::Json => return Err(refused(field, "cannot be json_(): use text() or bytes_()")),
        Type::Npy(_) => return Err(refused(field, "cannot be npy(): use bytes_()")),
        Type::Bytes | Type::Text | Type::Int64 | Type::Float32 => {}
    }
    let values = match (&field.shape, field.is_sequence) {
        (Shape::Variable(_), true) => {
            return Err(refused(field, "must have a fixed shape in each step"));
        }
        (Shape::Fixed(shape), false) => shape.iter().product::<usize>(),
        (Shape::Variable(shape) | Shape::Fixed(shape), _) if shape.contains(&0) => {
            return Err(refused(field, "has groups without values"));
        }
        (Shape::Variable(shape) | Shape::Fixed(shape), _) => shape.iter().product(),
    };
    let Some(default) = &field.default else { return Ok(()) };
    let fits = match (field.dtype(), field.field().kind) {
        (Some(dtype), FieldKind::Fixed { .. }) => default.len() == values * dtype.bytes(),
        (Some(dtype), _) => default.len() % (values * dtype.bytes()) == 0,
        (None, FieldKind::List) => {
            default.is_empty() || (matches!(field.shape, Shape::Fixed(_)) && !field.is_sequence)
        }
        (None, _) => true,
    };
    if !fits {
        return Err(refused(field, "has a default that does not have its shape"));
    }
    if field.of == Type::Text && std::str::from_utf8(default).is_err() {
        return Err(refused(field, "has a default that is not UTF-8"));
    }
    Ok(())
}

fn refused(field: &Wanted, why: &str) -> Error {
    Error::new(Kind::InvalidArgument, format!("field {:?} {why}", field.name))
        .with_hint("see fl.example_schema(path), which writes the fields of a file")
}

#[cold]
pub(super) fn no_example(record: &[u8], error: Malformed) -> Error {
    let offset = error.offset(record);
    let what = format!("the record is not a tf.train.Example: {} at byte {offset}", error.what);
    Error::new(Kind::CorruptRecord, what)
}

/// A name as a message shows it.
pub(super) fn shown(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

fn noun(field: &Wanted) -> &'static str {
    if field.is_sequence { "list of features" } else { "feature" }
}

#[cold]
fn missing(record: &[u8], field: &Wanted) -> Error {
    let mut names: Vec<&[u8]> = Vec::new();
    let place = if field.is_sequence { 2 } else { 1 };
    let walked = each_map(record, place, |key, _| {
        if !names.contains(&key) {
            names.push(key);
        }
    });
    if let Err(error) = walked {
        return no_example(record, error);
    }
    let shown: Vec<_> = names.iter().take(NAMED).map(|key| shown(key)).collect();
    let has = match names.len() {
        0 => "none at all".into(),
        count if count > NAMED => format!("{} and {} more", shown.join(", "), count - NAMED),
        _ => shown.join(", "),
    };
    let what = format!("{} {:?} is missing; the record has {has}", noun(field), field.key);
    Error::new(Kind::InvalidField, what)
}

#[cold]
fn wrong(record: &[u8], field: &Wanted, step: Option<usize>, values: &Values<'_>) -> Error {
    let count = match values.count() {
        Ok(count) => count,
        Err(error) => return no_example(record, error),
    };
    let holds = match values.kind {
        None => "has no values of any type".into(),
        Some(kind) if count == 1 => format!("holds 1 value of {}", kind.name()),
        Some(kind) => format!("holds {count} values of {}", kind.name()),
    };
    let of = kind_of(field).name();
    let (Shape::Fixed(shape) | Shape::Variable(shape)) = &field.shape;
    let wanted = match (&field.shape, shape.iter().product::<usize>()) {
        (Shape::Variable(_), 1) => format!("expected any number of {of}"),
        (Shape::Variable(_), group) => format!("expected groups of {group} of {of}"),
        (Shape::Fixed(_), 1) => format!("expected 1 of {of}"),
        (Shape::Fixed(_), values) => format!("expected {values} of {of}"),
    };
    let which = step.map_or(String::new(), |step| format!("step {step} of "));
    let what = format!("{which}{} {:?} {holds}, {wanted}", noun(field), field.key);
    Error::new(Kind::InvalidField, what)
}

fn text<'a>(field: &Wanted, bytes: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let place = error.valid_up_to();
        let what = format!("{} {:?} is not UTF-8 from byte {place} on", noun(field), field.key);
        Error::new(Kind::InvalidField, what)
            .with_hint("use bytes_() if the text may be in another encoding")
    })
}
