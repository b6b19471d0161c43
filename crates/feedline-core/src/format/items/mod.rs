//! Many small values in one stretch of bytes, each of which is decoded alone when it is needed.
//!
//! ```text
//! header │ kind: the common type │ row of each item │ end of each row │ hash table of keys
//! ```
//!
//! Rows of a fixed size (numbers, tuples of numbers) have no ends, and only a mapping has a table. Bytes that were not
//! written by [`ItemWriter`], or were changed since, give an error or wrong values, and never a panic.

mod kind;
mod tagged;
mod write;

#[cfg(test)]
mod tests;

pub use tagged::{MAX_DEPTH, TaggedValues};
pub use write::ItemWriter;

use kind::ItemKind;
use tagged::{Cursor, Tag};

use crate::error::{self, Error, Result};

const MAGIC: &[u8; 8] = b"FLITEMS1";
const HEADER: usize = MAGIC.len() + 5 * 8;

/// What a [`Build`] returns.
pub type Built<B> = std::result::Result<<B as Build>::Value, <B as Build>::Error>;

/// Builds a value while it is decoded, from the inside to the outside.
pub trait Build {
    /// What is built.
    type Value;
    /// What building may fail with.
    type Error;

    /// The value of a type that has only one.
    fn none(&mut self) -> Built<Self>;
    /// A truth value.
    fn bool(&mut self, value: bool) -> Built<Self>;
    /// A whole number.
    fn int(&mut self, value: i64) -> Built<Self>;
    /// A whole number in two's complement, the lowest byte first.
    fn wide(&mut self, value: &[u8]) -> Built<Self>;
    /// A number with a fraction.
    fn float(&mut self, value: f64) -> Built<Self>;
    /// A text; corrupt bytes may be no UTF-8.
    fn text(&mut self, value: &[u8]) -> Built<Self>;
    /// Bytes.
    fn bytes(&mut self, value: &[u8]) -> Built<Self>;
    /// A tuple.
    fn tuple(&mut self, values: Vec<Self::Value>) -> Built<Self>;
    /// A list.
    fn list(&mut self, values: Vec<Self::Value>) -> Built<Self>;
    /// A dictionary.
    fn dict(&mut self, pairs: Vec<(Self::Value, Self::Value)>) -> Built<Self>;
    /// The error for corrupt bytes.
    fn corrupt(&mut self, error: Error) -> Self::Error;
}

/// The numbers at the start.
struct ItemsHeader {
    count: u64,
    kind_bytes: u64,
    rows_bytes: u64,
    /// Bytes of each end of a row; 0 if all rows have the same size.
    offset_bytes: u64,
    table_slots: u64,
}

impl ItemsHeader {
    fn fields(&self) -> [u64; 5] {
        [self.count, self.kind_bytes, self.rows_bytes, self.offset_bytes, self.table_slots]
    }
}

/// How rows are found.
#[derive(Clone, Copy, Debug)]
enum Rows {
    /// All have this many bytes.
    Fixed(usize),
    /// The ends of all rows, as numbers of 4 or 8 bytes from this place on.
    Ends { start: usize, is_wide: bool },
}

/// Where everything is in the bytes that an [`ItemWriter`] wrote. It does not hold the bytes.
#[derive(Debug)]
pub struct Items {
    count: usize,
    total_bytes: usize,
    kind: ItemKind,
    rows_start: usize,
    rows_bytes: usize,
    rows: Rows,
    table_start: usize,
    table_slots: usize,
}

impl Items {
    /// Reads the header.
    pub fn open(bytes: &[u8]) -> Result<Items> {
        let mut header = Cursor { rest: bytes };
        if header.take(MAGIC.len())? != MAGIC {
            return Err(corrupt("the bytes are not packed items of this version"));
        }
        let mut field = || -> Result<usize> {
            usize::try_from(u64::from_le_bytes(header.array()?))
                .map_err(|_| corrupt("a size is too large"))
        };
        let (count, kind_bytes, rows_bytes) = (field()?, field()?, field()?);
        let (offset_bytes, table_slots) = (field()?, field()?);
        let mut described = Cursor { rest: header.take(kind_bytes)? };
        let kind = ItemKind::read(&mut described, 0)?;
        let rows_start = HEADER + kind_bytes;
        header.take(rows_bytes)?;
        let ends_start = rows_start + rows_bytes;
        let ends = count.checked_mul(offset_bytes).ok_or_else(|| corrupt("too many items"))?;
        header.take(ends)?;
        let rows = match (kind.fixed_bytes(), offset_bytes) {
            (Some(size @ 1..), 0) if count.checked_mul(size) == Some(rows_bytes) => {
                Rows::Fixed(size)
            }
            (None, 4 | 8) => Rows::Ends { start: ends_start, is_wide: offset_bytes == 8 },
            _ => return Err(corrupt("the sizes of the items contradict each other")),
        };
        let is_mapping = table_slots > 0;
        if is_mapping && (table_slots != slots(count) || header.rest.len() != 4 * table_slots) {
            return Err(corrupt("the table of keys has a wrong size"));
        }
        if !is_mapping && !header.rest.is_empty() {
            return Err(corrupt("there are bytes after the last item"));
        }
        let table_start = ends_start + ends;
        let total_bytes = bytes.len();
        Ok(Items {
            count,
            total_bytes,
            kind,
            rows_start,
            rows_bytes,
            rows,
            table_start,
            table_slots,
        })
    }

    /// The number of items.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether items can be found by key.
    pub fn is_mapping(&self) -> bool {
        self.table_slots > 0
    }

    /// Decodes the item with this number from `bytes`, which must be those that were opened.
    pub fn get<B: Build>(&self, bytes: &[u8], number: usize, build: &mut B) -> Built<B> {
        let row = match self.row(bytes, number) {
            Ok(row) => row,
            Err(error) => return Err(build.corrupt(error)),
        };
        let mut row = Cursor { rest: row };
        let value = self.kind.decode(&mut row, build, 0)?;
        if !row.rest.is_empty() {
            return Err(build.corrupt(corrupt("an item ends before its row")));
        }
        Ok(value)
    }

    /// The number of the item with this key, which is the only value in `key`.
    pub fn find(&self, bytes: &[u8], key: &TaggedValues) -> Result<Option<usize>> {
        if self.table_slots == 0 {
            return Err(corrupt("there is no table of keys"));
        }
        let first = hash(&key.0) as usize % self.table_slots;
        let mut found = TaggedValues::default();
        for probe in 0..self.table_slots {
            let at = self.table_start + 4 * ((first + probe) % self.table_slots);
            let slot = Cursor { rest: bytes.get(at..).unwrap_or_default() }.array()?;
            let Some(number) = (u32::from_le_bytes(slot) as usize).checked_sub(1) else {
                return Ok(None);
            };
            let mut row = Cursor { rest: self.row(bytes, number)? };
            found.0.clear();
            self.key(&mut row, &mut found)?;
            if found == *key {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Reads the key of an item of a mapping, as a tagged value.
    fn key(&self, row: &mut Cursor<'_>, key: &mut TaggedValues) -> Result<()> {
        if let ItemKind::Tuple(parts) = &self.kind
            && parts.len() == 2
        {
            return parts[0].retag(row, key, 1);
        }
        if self.kind == ItemKind::Any && row.tag()? == Tag::Tuple && row.count()? == 2 {
            key.0.extend_from_slice(row.skip(1)?);
            return Ok(());
        }
        Err(corrupt("an item of a mapping is no pair"))
    }

    fn row<'a>(&self, bytes: &'a [u8], number: usize) -> Result<&'a [u8]> {
        if number >= self.count || bytes.len() != self.total_bytes {
            return Err(corrupt("an item is outside the bytes"));
        }
        let (start, end) = match self.rows {
            Rows::Fixed(size) => (number * size, (number + 1) * size),
            Rows::Ends { start, is_wide } => {
                let end = |number: usize| -> Result<usize> {
                    let width = if is_wide { 8 } else { 4 };
                    let mut field = Cursor { rest: &bytes[start + number * width..] };
                    Ok(if is_wide {
                        u64::from_le_bytes(field.array()?) as usize
                    } else {
                        u32::from_le_bytes(field.array()?) as usize
                    })
                };
                (if number == 0 { 0 } else { end(number - 1)? }, end(number)?)
            }
        };
        if end > self.rows_bytes {
            return Err(corrupt("an item ends after all items"));
        }
        bytes
            .get(self.rows_start..)
            .and_then(|rows| rows.get(start..end))
            .ok_or_else(|| corrupt("an item ends before it begins"))
    }
}

/// The slots of the table of keys: a power of two, and at most half of them are used.
fn slots(count: usize) -> usize {
    (2 * count).next_power_of_two().max(2)
}

/// FNV-1a, and a last round that mixes the upper bits into the lower ones, which choose the slot.
fn hash(bytes: &[u8]) -> u64 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

fn corrupt(what: &str) -> Error {
    Error::new(error::Kind::CorruptRecord, format!("the packed items are corrupt: {what}"))
        .with_hint("pack the items again")
}
