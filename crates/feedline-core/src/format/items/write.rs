//! Writes items: first each with its types, then, when all are known, without the types that they have in common.

use super::kind::ItemKind;
use super::tagged::{Cursor, TaggedValues};
use super::{HEADER, ItemsHeader, MAGIC, hash, slots};
use crate::error::{self, Error, Result};

/// Collects items. Write the values of an item to `values`, then call `end_item`.
#[derive(Default)]
pub struct ItemWriter {
    /// Takes the values of the next item: exactly one, which may be a collection.
    pub values: TaggedValues,
    ends: Vec<u64>,
}

impl ItemWriter {
    /// Ends an item.
    pub fn end_item(&mut self) {
        self.ends.push(self.values.0.len() as u64);
    }

    /// The number of items so far.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// All items, as `Items` reads them.
    pub fn finish_list(self) -> Result<Vec<u8>> {
        self.finish(Vec::new())
    }

    /// All items, which are tuples of a key and a value. `Items::find` finds the item of a key. Keys are distinct.
    pub fn finish_mapping(self) -> Result<Vec<u8>> {
        let count = self.count();
        if u32::try_from(count).is_err() {
            let message = format!("a mapping of {count} items is larger than the limit of 2**32");
            return Err(Error::new(error::Kind::InvalidArgument, message));
        }
        let mut table = vec![0u32; slots(count)];
        for (number, row) in self.rows().enumerate() {
            let mut row = Cursor { rest: row };
            row.tag()?;
            row.count()?;
            let mut slot = hash(row.skip(1)?) as usize % table.len();
            while table[slot] != 0 {
                slot = (slot + 1) % table.len();
            }
            table[slot] = number as u32 + 1;
        }
        self.finish(table)
    }

    /// The tagged values, item by item.
    fn rows(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.values.0[start as usize..*end as usize])
    }

    fn finish(mut self, table: Vec<u32>) -> Result<Vec<u8>> {
        let mut kind = ItemKind::Unknown;
        for row in self.rows() {
            kind.widen(&mut Cursor { rest: row }, 0)?;
        }
        kind.give_bytes();
        let mut fixed = kind.fixed_bytes();
        if fixed == Some(0) {
            // So that the number of items can be checked by the bytes.
            (kind, fixed) = (ItemKind::Any, None);
        }
        let mut bytes = vec![0; HEADER];
        kind.write(&mut bytes);
        let kind_bytes = (bytes.len() - HEADER) as u64;
        let rows_start = bytes.len();
        let mut ends = Vec::with_capacity(if fixed.is_none() { self.count() } else { 0 });
        for row in self.rows() {
            kind.encode(&mut Cursor { rest: row }, &mut bytes, 0)?;
            if fixed.is_none() {
                ends.push((bytes.len() - rows_start) as u64);
            }
        }
        let count = self.count() as u64;
        // What is no longer needed goes before the offsets come.
        self.values = TaggedValues::default();
        self.ends = Vec::new();
        let header = ItemsHeader {
            count,
            kind_bytes,
            rows_bytes: (bytes.len() - rows_start) as u64,
            offset_bytes: match fixed {
                Some(_) => 0,
                None if u32::try_from(bytes.len()).is_ok() => 4,
                None => 8,
            },
            table_slots: table.len() as u64,
        };
        for end in ends {
            bytes.extend_from_slice(&end.to_le_bytes()[..header.offset_bytes as usize]);
        }
        for slot in table {
            bytes.extend_from_slice(&slot.to_le_bytes());
        }
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        for (place, field) in header.fields().into_iter().enumerate() {
            let at = MAGIC.len() + 8 * place;
            bytes[at..at + 8].copy_from_slice(&field.to_le_bytes());
        }
        Ok(bytes)
    }
}
