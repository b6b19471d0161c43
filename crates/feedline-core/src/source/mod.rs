//! Where the samples lie: numbered from 0, each with its bytes in a file or its values in memory.

pub mod concat;
pub mod files;
pub mod folder;
pub mod index;
pub mod memory;
pub mod numbers;
pub mod paths;
pub mod records;
pub mod walk;
pub mod zip;

use std::path::PathBuf;
use std::sync::Arc;

use crate::checkpoint::Fingerprint;
use crate::format::{Container, Packing, Wanted};
use crate::sample::{BorrowedArray, Extent, Location};
use crate::sys::file::Identity;

/// The image files that are found by name. Those that cannot be decoded are faults of their sample:
/// leaving them out would lose them in silence, and shift every index against torchvision's.
pub const EXTENSIONS: &[&str] = &["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"];

/// What the records of a source are.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// What they lie in.
    pub container: Container,
    /// The fields that are parsed where the user names none.
    pub guessed: Arc<[Wanted]>,
    /// Whether some lie in compressed files, which can only be read from front to back.
    pub is_packed: bool,
}

/// A numbered source. Two calls with the same index say the same.
pub trait Source: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sources that it consists of, one behind another, where it does.
    fn parts(&self) -> Option<Vec<Arc<dyn Source>>> {
        None
    }

    /// Where the bytes of a sample are to be had; the index is below `len`.
    fn extent(&self, index: u64) -> Extent<'_>;

    /// What is known to be wrong with a sample before anything is read.
    fn damage(&self, _index: u64) -> Option<String> {
        None
    }

    /// What its records are, where samples are records.
    fn contents(&self) -> Option<&Contents> {
        None
    }

    /// How the file of a sample is compressed.
    fn packing(&self, _index: u64) -> Packing {
        Packing::Plain
    }

    /// Arrays of which each sample has a row besides.
    fn beside(&self) -> &[BorrowedArray] {
        &[]
    }

    /// Bytes of a sample, about, where they are known.
    fn mean_bytes(&self) -> u64 {
        0
    }

    /// The label of a sample, in a source that has them.
    fn label(&self, index: u64) -> Option<i64>;

    /// Whether it has labels.
    fn has_labels(&self) -> bool;

    /// Names of the labels, where they have any.
    fn classes(&self) -> Arc<[String]> {
        Arc::new([])
    }

    /// How many samples each shard has, where it has shards; the samples stand in their order.
    fn shards(&self) -> Vec<u64> {
        vec![self.len()]
    }

    /// The files whose content is known ahead, as they were then: one that differs later is not read.
    fn known_files(&self) -> Vec<(PathBuf, Identity)> {
        Vec::new()
    }

    /// The shards that have no samples at all.
    fn empty_shards(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Differs when the samples do.
    fn fingerprint(&self) -> Fingerprint;

    /// The folder that all files lie below, where there is one.
    fn root(&self) -> Option<PathBuf> {
        None
    }

    /// Where people can look at a sample.
    fn location(&self, index: u64) -> Option<Location> {
        match self.extent(index) {
            Extent::File(path) => Some(Location::file(path)),
            Extent::Part { path, offset, .. } => {
                Some(Location { path: path.to_owned(), offset: Some(offset), record: None })
            }
            Extent::Packed { path, record } => {
                Some(Location { path: path.to_owned(), offset: None, record: Some(record) })
            }
            Extent::Memory(_) => None,
        }
    }
}
