//! Combines two sources: each sample has the fields of both.

use std::path::PathBuf;
use std::sync::Arc;

use super::index::UnsavedIndex;
use super::{Contents, Source};
use crate::error::{Error, Kind, Result};
use crate::fingerprint::Fingerprint;
use crate::format::Packing;
use crate::sample::{BorrowedArray, Extent, Location};
use crate::sys::file::Identity;

/// Files, records or arrays, with arrays beside them.
pub struct Zip {
    main: Arc<dyn Source>,
    beside: Vec<BorrowedArray>,
    print: Fingerprint,
}

impl Zip {
    /// The samples of `main`, each with a row of `other`, which must be arrays.
    pub fn new(main: Arc<dyn Source>, other: &dyn Source) -> Result<Zip> {
        if main.len() != other.len() {
            let message =
                format!("zip: {} samples, but {} rows beside them", main.len(), other.len());
            return Err(Error::new(Kind::InvalidSource, message)
                .with_hint("give both the same number; take(...) shortens a source"));
        }
        let arrays: &[BorrowedArray] = match other.extent(0) {
            Extent::Memory(arrays) if other.contents().is_none() => arrays,
            Extent::Memory(_) | Extent::File(_) | Extent::Part { .. } | Extent::Packed { .. } => {
                return Err(Error::new(
                    Kind::InvalidSource,
                    "zip: only arrays can be zipped to a source",
                )
                .with_hint("give files or records first and arrays(...) to zip"));
            }
        };
        let beside: Vec<_> = main.beside().iter().chain(arrays).cloned().collect();
        let names: Vec<_> = beside.iter().map(|array| format!("{:?}", array.field)).collect();
        let print = Fingerprint::of(names.iter().map(String::as_bytes));
        Ok(Zip { main, beside, print })
    }
}

impl Source for Zip {
    fn kind(&self) -> &'static str {
        "zip"
    }

    fn len(&self) -> u64 {
        self.main.len()
    }

    fn extent(&self, index: u64) -> Extent<'_> {
        self.main.extent(index)
    }

    fn shards(&self) -> Vec<u64> {
        self.main.shards()
    }

    fn known_files(&self) -> Vec<(PathBuf, Identity)> {
        self.main.known_files()
    }

    fn empty_shards(&self) -> Vec<PathBuf> {
        self.main.empty_shards()
    }

    fn unsaved_indices(&self) -> Vec<UnsavedIndex> {
        self.main.unsaved_indices()
    }

    fn beside(&self) -> &[BorrowedArray] {
        &self.beside
    }

    fn corruption(&self, index: u64) -> Option<String> {
        self.main.corruption(index)
    }

    fn contents(&self) -> Option<&Contents> {
        self.main.contents()
    }

    fn packing(&self, index: u64) -> Packing {
        self.main.packing(index)
    }

    fn mean_bytes(&self) -> u64 {
        self.main.mean_bytes()
    }

    fn label(&self, index: u64) -> Option<i64> {
        self.main.label(index)
    }

    fn has_labels(&self) -> bool {
        self.main.has_labels()
    }

    fn classes(&self) -> Arc<[String]> {
        self.main.classes()
    }

    fn fingerprint(&self) -> Fingerprint {
        let both = [self.main.fingerprint().in_hex(), self.print.in_hex()];
        Fingerprint::of(both.iter().map(String::as_bytes))
    }

    fn root(&self) -> Option<PathBuf> {
        self.main.root()
    }

    fn location(&self, index: u64) -> Option<Location> {
        self.main.location(index)
    }
}
