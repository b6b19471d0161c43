//! What the items of a collection have in common. A part of an item whose type is always the same is written without
//! its type, and whole numbers with the same few bytes each.

use super::tagged::{Cursor, Tag, TaggedValues, deeper, push_counted, push_varint};
use super::{Build, Built, corrupt};
use crate::error::Result;

/// Longer tuples and dictionaries are written as they are: a kind for each part would cost more than it saves.
const MAX_PARTS: usize = 64;

/// The common type of some values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ItemKind {
    /// There was no value.
    Unknown,
    None,
    Bool,
    /// Whole numbers, with their bytes: 1, 2, 4 or 8.
    Int(u8),
    Float,
    Text,
    Bytes,
    /// Tuples of one length.
    Tuple(Vec<ItemKind>),
    /// Lists of any length.
    List(Box<ItemKind>),
    /// Dictionaries with the same keys in the same order; a key is a tagged value.
    Record(Vec<(Vec<u8>, ItemKind)>),
    /// Values of different types, each with its tag.
    Any,
}

fn width(value: i64) -> u8 {
    if i8::try_from(value).is_ok() {
        1
    } else if i16::try_from(value).is_ok() {
        2
    } else if i32::try_from(value).is_ok() {
        4
    } else {
        8
    }
}

impl ItemKind {
    /// Takes a tagged value into account.
    pub(super) fn widen(&mut self, value: &mut Cursor<'_>, depth: usize) -> Result<()> {
        let start = *value;
        let inner = deeper(depth)?;
        let is_common = match (&mut *self, value.tag()?) {
            (ItemKind::Any, _) => false,
            (ItemKind::Unknown, _) => {
                *self = ItemKind::like(&mut start.clone(), inner)?;
                *value = start;
                // The parts of the new kind are unknown, and are set now.
                return self.widen(value, depth);
            }
            (ItemKind::None, Tag::None) | (ItemKind::Bool, Tag::False | Tag::True) => true,
            (ItemKind::Int(bytes), Tag::Int) => {
                *bytes = width(value.int()?).max(*bytes);
                true
            }
            (ItemKind::Float, Tag::Float) => {
                value.take(8)?;
                true
            }
            (ItemKind::Text, Tag::Text) | (ItemKind::Bytes, Tag::Bytes) => {
                value.counted()?;
                true
            }
            (ItemKind::Tuple(parts), Tag::Tuple) => {
                let is_common = value.count()? == parts.len();
                if is_common {
                    parts.iter_mut().try_for_each(|part| part.widen(value, inner))?;
                }
                is_common
            }
            (ItemKind::List(each), Tag::List) => {
                for _ in 0..value.count()? {
                    each.widen(value, inner)?;
                }
                true
            }
            (ItemKind::Record(fields), Tag::Dict) => {
                let mut is_common = value.count()? == fields.len();
                for (key, kind) in fields {
                    is_common = is_common && value.skip(inner)? == *key;
                    if !is_common {
                        break;
                    }
                    kind.widen(value, inner)?;
                }
                is_common
            }
            _ => false,
        };
        if !is_common {
            *self = ItemKind::Any;
            *value = start;
            value.skip(depth)?;
        }
        Ok(())
    }

    /// The kind of a tagged value, whose parts are unknown.
    fn like(value: &mut Cursor<'_>, inner: usize) -> Result<ItemKind> {
        Ok(match value.tag()? {
            Tag::None => ItemKind::None,
            Tag::False | Tag::True => ItemKind::Bool,
            Tag::Int => ItemKind::Int(1),
            Tag::Wide => ItemKind::Any,
            Tag::Float => ItemKind::Float,
            Tag::Text => ItemKind::Text,
            Tag::Bytes => ItemKind::Bytes,
            Tag::Tuple => match value.count()? {
                count if count > MAX_PARTS => ItemKind::Any,
                count => ItemKind::Tuple(vec![ItemKind::Unknown; count]),
            },
            Tag::List => ItemKind::List(Box::new(ItemKind::Unknown)),
            Tag::Dict => match value.count()? {
                count if count > MAX_PARTS => ItemKind::Any,
                count => {
                    let mut fields = Vec::with_capacity(count);
                    for _ in 0..count {
                        fields.push((value.skip(inner)?.to_vec(), ItemKind::Unknown));
                        value.skip(inner)?;
                    }
                    ItemKind::Record(fields)
                }
            },
        })
    }

    /// Makes sure that each value of a list has a byte, so that the number of values can be checked by the bytes.
    pub(super) fn give_bytes(&mut self) {
        match self {
            ItemKind::Unknown => *self = ItemKind::Any,
            ItemKind::Tuple(parts) => parts.iter_mut().for_each(ItemKind::give_bytes),
            ItemKind::Record(fields) => fields.iter_mut().for_each(|(_, kind)| kind.give_bytes()),
            ItemKind::List(each) => {
                each.give_bytes();
                if each.fixed_bytes() == Some(0) {
                    **each = ItemKind::Any;
                }
            }
            ItemKind::None
            | ItemKind::Bool
            | ItemKind::Int(_)
            | ItemKind::Float
            | ItemKind::Text
            | ItemKind::Bytes => {}
            ItemKind::Any => {}
        }
    }

    /// The bytes of every value, if all have the same number.
    pub(super) fn fixed_bytes(&self) -> Option<usize> {
        match self {
            ItemKind::None => Some(0),
            ItemKind::Bool => Some(1),
            ItemKind::Int(bytes) => Some(usize::from(*bytes)),
            ItemKind::Float => Some(8),
            ItemKind::Tuple(parts) => parts.iter().map(ItemKind::fixed_bytes).sum(),
            ItemKind::Record(fields) => fields.iter().map(|(_, kind)| kind.fixed_bytes()).sum(),
            ItemKind::Unknown
            | ItemKind::Text
            | ItemKind::Bytes
            | ItemKind::List(_)
            | ItemKind::Any => None,
        }
    }

    /// Writes a tagged value as one of this kind, which `widen` has seen.
    pub(super) fn encode(
        &self,
        value: &mut Cursor<'_>,
        row: &mut Vec<u8>,
        depth: usize,
    ) -> Result<()> {
        if *self == ItemKind::Any {
            row.extend_from_slice(value.skip(depth)?);
            return Ok(());
        }
        let depth = deeper(depth)?;
        match (self, value.tag()?) {
            (ItemKind::None, Tag::None) => {}
            (ItemKind::Bool, Tag::False) => row.push(0),
            (ItemKind::Bool, Tag::True) => row.push(1),
            (ItemKind::Int(bytes), Tag::Int) => {
                row.extend_from_slice(&value.int()?.to_le_bytes()[..usize::from(*bytes)]);
            }
            (ItemKind::Float, Tag::Float) => row.extend_from_slice(value.take(8)?),
            (ItemKind::Text, Tag::Text) | (ItemKind::Bytes, Tag::Bytes) => {
                push_counted(row, value.counted()?);
            }
            (ItemKind::Tuple(parts), Tag::Tuple) => {
                value.count()?;
                for part in parts {
                    part.encode(value, row, depth)?;
                }
            }
            (ItemKind::List(each), Tag::List) => {
                let count = value.count()?;
                push_varint(row, count as u64);
                for _ in 0..count {
                    each.encode(value, row, depth)?;
                }
            }
            (ItemKind::Record(fields), Tag::Dict) => {
                value.count()?;
                for (_, kind) in fields {
                    value.skip(depth)?;
                    kind.encode(value, row, depth)?;
                }
            }
            _ => return Err(corrupt("a value does not have the type of the others")),
        }
        Ok(())
    }

    /// Builds a value from its bytes.
    pub(super) fn decode<B: Build>(
        &self,
        row: &mut Cursor<'_>,
        build: &mut B,
        depth: usize,
    ) -> Built<B> {
        macro_rules! checked {
            ($read:expr) => {
                match $read {
                    Ok(read) => read,
                    Err(error) => return Err(build.corrupt(error)),
                }
            };
        }
        let depth = checked!(deeper(depth));
        match self {
            ItemKind::None => build.none(),
            ItemKind::Bool => match checked!(row.byte()) {
                0 => build.bool(false),
                1 => build.bool(true),
                _ => Err(build.corrupt(corrupt("a truth value is neither 0 nor 1"))),
            },
            ItemKind::Int(bytes) => build.int(checked!(int(row, *bytes))),
            ItemKind::Float => build.float(checked!(row.float())),
            ItemKind::Text => build.text(checked!(row.counted())),
            ItemKind::Bytes => build.bytes(checked!(row.counted())),
            ItemKind::Tuple(parts) => {
                let mut values = Vec::with_capacity(parts.len());
                for part in parts {
                    values.push(part.decode(row, build, depth)?);
                }
                build.tuple(values)
            }
            ItemKind::List(each) => {
                let count = checked!(row.count());
                let mut values = Vec::with_capacity(count);
                for _ in 0..count {
                    values.push(each.decode(row, build, depth)?);
                }
                build.list(values)
            }
            ItemKind::Record(fields) => {
                let mut pairs = Vec::with_capacity(fields.len());
                for (key, kind) in fields {
                    let key = ItemKind::Any.decode(&mut Cursor { rest: key }, build, depth)?;
                    pairs.push((key, kind.decode(row, build, depth)?));
                }
                build.dict(pairs)
            }
            ItemKind::Unknown => Err(build.corrupt(corrupt("a value has no type"))),
            ItemKind::Any => {
                let tag = checked!(row.tag());
                match tag {
                    Tag::None => build.none(),
                    Tag::False => build.bool(false),
                    Tag::True => build.bool(true),
                    Tag::Int => build.int(checked!(row.int())),
                    Tag::Wide => build.wide(checked!(row.counted())),
                    Tag::Float => build.float(checked!(row.float())),
                    Tag::Text => build.text(checked!(row.counted())),
                    Tag::Bytes => build.bytes(checked!(row.counted())),
                    Tag::Tuple | Tag::List => {
                        let count = checked!(row.count());
                        let mut values = Vec::with_capacity(count);
                        for _ in 0..count {
                            values.push(self.decode(row, build, depth)?);
                        }
                        if tag == Tag::Tuple { build.tuple(values) } else { build.list(values) }
                    }
                    Tag::Dict => {
                        let count = checked!(row.count());
                        let mut pairs = Vec::with_capacity(count);
                        for _ in 0..count {
                            let key = self.decode(row, build, depth)?;
                            pairs.push((key, self.decode(row, build, depth)?));
                        }
                        build.dict(pairs)
                    }
                }
            }
        }
    }

    /// Writes a value as a tagged one again; the inverse of `encode`.
    pub(super) fn retag(
        &self,
        row: &mut Cursor<'_>,
        values: &mut TaggedValues,
        depth: usize,
    ) -> Result<()> {
        let inner = deeper(depth)?;
        match self {
            ItemKind::None => values.none(),
            ItemKind::Bool => values.bool(row.byte()? != 0),
            ItemKind::Int(bytes) => values.int(int(row, *bytes)?),
            ItemKind::Float => values.float(row.float()?),
            ItemKind::Text => values.text(row.counted()?),
            ItemKind::Bytes => values.bytes(row.counted()?),
            ItemKind::Tuple(parts) => {
                values.tuple(parts.len());
                for part in parts {
                    part.retag(row, values, inner)?;
                }
            }
            ItemKind::List(each) => {
                let count = row.count()?;
                values.list(count);
                for _ in 0..count {
                    each.retag(row, values, inner)?;
                }
            }
            ItemKind::Record(fields) => {
                values.dict(fields.len());
                for (key, kind) in fields {
                    values.0.extend_from_slice(key);
                    kind.retag(row, values, inner)?;
                }
            }
            ItemKind::Any => values.0.extend_from_slice(row.skip(depth)?),
            ItemKind::Unknown => return Err(corrupt("a value has no type")),
        }
        Ok(())
    }

    /// Writes the kind itself.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            ItemKind::None => bytes.push(b'n'),
            ItemKind::Bool => bytes.push(b'o'),
            ItemKind::Int(width) => bytes.extend([b'i', *width]),
            ItemKind::Float => bytes.push(b'f'),
            ItemKind::Text => bytes.push(b't'),
            ItemKind::Bytes => bytes.push(b'b'),
            ItemKind::Tuple(parts) => {
                bytes.push(b'T');
                push_varint(bytes, parts.len() as u64);
                parts.iter().for_each(|part| part.write(bytes));
            }
            ItemKind::List(each) => {
                bytes.push(b'L');
                each.write(bytes);
            }
            ItemKind::Record(fields) => {
                bytes.push(b'R');
                push_varint(bytes, fields.len() as u64);
                for (key, kind) in fields {
                    push_counted(bytes, key);
                    kind.write(bytes);
                }
            }
            ItemKind::Unknown | ItemKind::Any => bytes.push(b'a'),
        }
    }

    /// Reads what `write` wrote.
    pub(super) fn read(bytes: &mut Cursor<'_>, depth: usize) -> Result<ItemKind> {
        let depth = deeper(depth)?;
        Ok(match bytes.byte()? {
            b'n' => ItemKind::None,
            b'o' => ItemKind::Bool,
            b'i' => match bytes.byte()? {
                width @ (1 | 2 | 4 | 8) => ItemKind::Int(width),
                _ => return Err(corrupt("whole numbers have an unknown size")),
            },
            b'f' => ItemKind::Float,
            b't' => ItemKind::Text,
            b'b' => ItemKind::Bytes,
            b'T' => {
                let count = parts(bytes)?;
                ItemKind::Tuple(
                    (0..count).map(|_| ItemKind::read(bytes, depth)).collect::<Result<_>>()?,
                )
            }
            b'L' => match ItemKind::read(bytes, depth)? {
                each if each.fixed_bytes() == Some(0) => {
                    return Err(corrupt("the values of a list have no bytes"));
                }
                each => ItemKind::List(Box::new(each)),
            },
            b'R' => {
                let mut fields = Vec::new();
                for _ in 0..parts(bytes)? {
                    let key = bytes.counted()?.to_vec();
                    fields.push((key, ItemKind::read(bytes, depth)?));
                }
                ItemKind::Record(fields)
            }
            b'a' => ItemKind::Any,
            _ => return Err(corrupt("the items have an unknown type")),
        })
    }
}

fn parts(bytes: &mut Cursor<'_>) -> Result<usize> {
    match bytes.count()? {
        count if count <= MAX_PARTS => Ok(count),
        _ => Err(corrupt("the items have too many parts")),
    }
}

fn int(row: &mut Cursor<'_>, bytes: u8) -> Result<i64> {
    Ok(match bytes {
        1 => i64::from(i8::from_le_bytes(row.array()?)),
        2 => i64::from(i16::from_le_bytes(row.array()?)),
        4 => i64::from(i32::from_le_bytes(row.array()?)),
        _ => i64::from_le_bytes(row.array()?),
    })
}
