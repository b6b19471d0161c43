//! Arrays in memory: each sample is a row of each, copied only once, into its batch.

use super::Source;
use crate::error::{Error, Kind, Result};
use crate::fingerprint::Fingerprint;
use crate::sample::{BorrowedArray, Extent};

/// Arrays of equal length.
#[derive(Debug)]
pub struct Arrays {
    arrays: Vec<BorrowedArray>,
    len: u64,
}

impl Arrays {
    /// Refuses arrays that are smaller than `len` rows.
    pub fn new(arrays: Vec<BorrowedArray>, len: u64) -> Result<Arrays> {
        if arrays.is_empty() {
            return Err(Error::new(Kind::InvalidSource, "there are no arrays")
                .with_hint("give a dict of arrays, such as {\"x\": x, \"y\": y}"));
        }
        for array in &arrays {
            let row = array.field.row_bytes().unwrap_or(0) as u64;
            let end = len
                .checked_sub(1)
                .and_then(|last| last.checked_mul(array.stride as u64))
                .and_then(|start| start.checked_add(row));
            if len > 0 && end.is_none_or(|end| end > array.memory.bytes() as u64) {
                let message = format!(
                    "array {:?} has {} bytes, too few for {len} rows",
                    array.field.name,
                    array.memory.bytes()
                );
                return Err(Error::new(Kind::InvalidSource, message));
            }
        }
        Ok(Arrays { arrays, len })
    }
}

impl Source for Arrays {
    fn kind(&self) -> &'static str {
        "arrays"
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn extent(&self, _index: u64) -> Extent<'_> {
        Extent::Memory(&self.arrays)
    }

    fn label(&self, _index: u64) -> Option<i64> {
        None
    }

    fn has_labels(&self) -> bool {
        false
    }

    /// Computed from names, types and shapes; reading all values would take as long as an epoch.
    fn fingerprint(&self) -> Fingerprint {
        let shapes: Vec<_> = self.arrays.iter().map(|array| format!("{:?}", array.field)).collect();
        let len = self.len.to_le_bytes();
        Fingerprint::of(shapes.iter().map(String::as_bytes).chain([len.as_slice()]))
    }
}
