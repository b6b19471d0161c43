//! Sources of samples, numbered from 0: each sample is bytes in a file or values in memory.

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

use index::UnsavedIndex;

use crate::fingerprint::Fingerprint;
use crate::format::{Container, Packing, Wanted};
use crate::sample::{BorrowedArray, Extent, Location};
use crate::sys::file::Identity;

/// Extensions of image files. Files that cannot be decoded are faults of their sample: excluding them would lose them
/// silently, and shift every index relative to torchvision's.
pub const EXTENSIONS: &[&str] = &["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"];

/// The format of the records of a source.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// The file format.
    pub container: Container,
    /// The fields that are parsed by default.
    pub guessed: Arc<[Wanted]>,
    /// Whether some files are compressed, and can only be read sequentially.
    pub is_packed: bool,
}

/// A numbered source. Two calls with the same index return the same.
pub trait Source: Send + Sync {
    /// Its kind, in one word. Saved states have it, so it must not change.
    fn kind(&self) -> &'static str;

    /// Number of samples.
    fn len(&self) -> u64;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The concatenated sources, if it is a concatenation.
    fn parts(&self) -> Option<Vec<Arc<dyn Source>>> {
        None
    }

    /// Where the bytes of a sample are; the index is below `len`.
    fn extent(&self, index: u64) -> Extent<'_>;

    /// What is known to be wrong with a sample before it is read.
    fn corruption(&self, _index: u64) -> Option<String> {
        None
    }

    /// The format of its records, if samples are records.
    fn contents(&self) -> Option<&Contents> {
        None
    }

    /// The compression of the file of a sample.
    fn packing(&self, _index: u64) -> Packing {
        Packing::Plain
    }

    /// Arrays beside the samples: each sample also has a row of each.
    fn beside(&self) -> &[BorrowedArray] {
        &[]
    }

    /// Approximate bytes of a sample, if known.
    fn mean_bytes(&self) -> u64 {
        0
    }

    /// The label of a sample, if the source has labels.
    fn label(&self, index: u64) -> Option<i64>;

    /// Whether it has labels.
    fn has_labels(&self) -> bool;

    /// Names of the labels, if they have any.
    fn classes(&self) -> Arc<[String]> {
        Arc::new([])
    }

    /// Number of samples in each shard, if it has shards; samples are in the order of the shards.
    fn shards(&self) -> Vec<u64> {
        vec![self.len()]
    }

    /// Indexed files and their identities when they were indexed: a file that differs later is not read.
    fn known_files(&self) -> Vec<(PathBuf, Identity)> {
        Vec::new()
    }

    /// The shards without samples.
    fn empty_shards(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// The indices that could not be saved.
    fn unsaved_indices(&self) -> Vec<UnsavedIndex> {
        Vec::new()
    }

    /// A hash that changes with the samples.
    fn fingerprint(&self) -> Fingerprint;

    /// The folder that contains all files, if there is one.
    fn root(&self) -> Option<PathBuf> {
        None
    }

    /// The location of a sample, for people.
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
