//! A value with its type in front of it: what items are written as at first, and what a part of an item stays if its
//! type differs from item to item.

use super::corrupt;
use crate::error::Result;

/// How deep values may be nested. It bounds the recursion of everything that walks them.
pub const MAX_DEPTH: usize = 32;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    None = 0,
    False = 1,
    True = 2,
    Int = 3,
    Wide = 4,
    Float = 5,
    Text = 6,
    Bytes = 7,
    Tuple = 8,
    List = 9,
    Dict = 10,
}

impl Tag {
    fn of(code: u8) -> Option<Tag> {
        Some(match code {
            0 => Tag::None,
            1 => Tag::False,
            2 => Tag::True,
            3 => Tag::Int,
            4 => Tag::Wide,
            5 => Tag::Float,
            6 => Tag::Text,
            7 => Tag::Bytes,
            8 => Tag::Tuple,
            9 => Tag::List,
            10 => Tag::Dict,
            _ => return None,
        })
    }
}

/// Bytes that are read from the front. Every read is checked.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    pub rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or_else(|| corrupt("a value ends after its item"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) =
            self.rest.split_first_chunk().ok_or_else(|| corrupt("a value ends after its item"))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn tag(&mut self) -> Result<Tag> {
        Tag::of(self.byte()?).ok_or_else(|| corrupt("a value has an unknown type"))
    }

    /// A number in groups of seven bits, the lowest first.
    pub(super) fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(corrupt("a number has too many bytes"))
    }

    pub(super) fn int(&mut self) -> Result<i64> {
        let folded = self.varint()?;
        Ok((folded >> 1) as i64 ^ -((folded & 1) as i64))
    }

    pub(super) fn float(&mut self) -> Result<f64> {
        Ok(f64::from_le_bytes(self.array()?))
    }

    /// Bytes behind their length.
    pub(super) fn counted(&mut self) -> Result<&'a [u8]> {
        let length = self.varint()?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// The number of values of a collection. Each of them has at least one byte, so a corrupt number neither allocates
    /// nor loops for long.
    pub(super) fn count(&mut self) -> Result<usize> {
        usize::try_from(self.varint()?)
            .ok()
            .filter(|count| *count <= self.rest.len())
            .ok_or_else(|| corrupt("a collection ends after its item"))
    }

    /// Skips a tagged value, and returns its bytes.
    pub(super) fn skip(&mut self, depth: usize) -> Result<&'a [u8]> {
        let before = self.rest;
        let depth = deeper(depth)?;
        match self.tag()? {
            Tag::None | Tag::False | Tag::True => {}
            Tag::Int => drop(self.varint()?),
            Tag::Float => drop(self.take(8)?),
            Tag::Wide | Tag::Text | Tag::Bytes => drop(self.counted()?),
            Tag::Tuple | Tag::List => {
                for _ in 0..self.count()? {
                    self.skip(depth)?;
                }
            }
            Tag::Dict => {
                for _ in 0..self.count()? {
                    self.skip(depth)?;
                    self.skip(depth)?;
                }
            }
        }
        Ok(&before[..before.len() - self.rest.len()])
    }
}

/// One level deeper; an error beyond the limit.
pub(super) fn deeper(depth: usize) -> Result<usize> {
    if depth >= MAX_DEPTH {
        return Err(corrupt("values are nested too deeply"));
    }
    Ok(depth + 1)
}

pub(super) fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

pub(super) fn push_counted(bytes: &mut Vec<u8>, value: &[u8]) {
    push_varint(bytes, value.len() as u64);
    bytes.extend_from_slice(value);
}

/// Tagged values, one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaggedValues(pub(super) Vec<u8>);

impl TaggedValues {
    /// Adds the value of a type that has only one.
    pub fn none(&mut self) {
        self.0.push(Tag::None as u8);
    }

    /// Adds a truth value.
    pub fn bool(&mut self, value: bool) {
        self.0.push(if value { Tag::True } else { Tag::False } as u8);
    }

    /// Adds a whole number.
    pub fn int(&mut self, value: i64) {
        self.0.push(Tag::Int as u8);
        push_varint(&mut self.0, (value << 1 ^ value >> 63) as u64);
    }

    /// Adds a whole number that has more than 64 bits: two's complement, the lowest byte first.
    pub fn wide(&mut self, value: &[u8]) {
        self.0.push(Tag::Wide as u8);
        push_counted(&mut self.0, value);
    }

    /// Adds a number with a fraction.
    pub fn float(&mut self, value: f64) {
        self.0.push(Tag::Float as u8);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Adds a text, as UTF-8; lone surrogates are allowed, because names of files have them.
    pub fn text(&mut self, value: &[u8]) {
        self.0.push(Tag::Text as u8);
        push_counted(&mut self.0, value);
    }

    /// Adds bytes.
    pub fn bytes(&mut self, value: &[u8]) {
        self.0.push(Tag::Bytes as u8);
        push_counted(&mut self.0, value);
    }

    /// Begins a tuple: the next `count` values are its own.
    pub fn tuple(&mut self, count: usize) {
        self.collection(Tag::Tuple, count);
    }

    /// Begins a list: the next `count` values are its own.
    pub fn list(&mut self, count: usize) {
        self.collection(Tag::List, count);
    }

    /// Begins a dictionary: the next `count` pairs of values are its keys and values.
    pub fn dict(&mut self, count: usize) {
        self.collection(Tag::Dict, count);
    }

    fn collection(&mut self, tag: Tag, count: usize) {
        self.0.push(tag as u8);
        push_varint(&mut self.0, count as u64);
    }
}
