//! Samples that were loaded before: in memory, or in files that several processes share.
//!
//! A cache never changes a value: an entry belongs to a version of its file, and one that is missing, corrupt or of
//! another version is loaded again. Neither cache waits for anything.

mod disk;
mod memory;
mod segment;

pub(crate) use disk::{CorruptEntry, DiskCache, Stored};
pub(crate) use memory::MemoryCache;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::bytes::Piece;

/// What a cache holds of a sample.
#[derive(Clone)]
pub(crate) struct CachedSample {
    /// The bytes of the file, or the content of the record. Empty if nothing but the image is needed.
    pub bytes: Piece,
    /// The decoded image, if the cache is behind `decode`.
    pub image: Option<CachedImage>,
}

/// A decoded image.
#[derive(Clone)]
pub(crate) struct CachedImage {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// The pixels, row by row, all channels of a pixel together.
    pub pixels: Piece,
}

impl CachedSample {
    /// The bytes that it takes in memory, more or less.
    fn cost(&self) -> u64 {
        const OVERHEAD: u64 = 256;
        let image = self.image.as_ref().map_or(0, |image| image.pixels.len());
        (self.bytes.len() + image) as u64 + OVERHEAD
    }

    /// A copy with memory of its own: what is kept must not keep the rest of a larger buffer.
    fn copied(&self) -> CachedSample {
        let copied = |piece: &Piece| Piece::from(piece.to_vec());
        let image = self
            .image
            .as_ref()
            .map(|image| CachedImage { pixels: copied(&image.pixels), ..image.clone() });
        CachedSample { bytes: copied(&self.bytes), image }
    }
}

/// What a cache has done.
#[derive(Debug, Default)]
pub(crate) struct CacheMeters {
    hits: AtomicU64,
    misses: AtomicU64,
    corrupt: AtomicU64,
}

impl CacheMeters {
    /// A sample was in the cache, or was not.
    pub(crate) fn count(&self, is_hit: bool) {
        let meter = if is_hit { &self.hits } else { &self.misses };
        meter.fetch_add(1, Ordering::Relaxed);
    }

    /// How many entries or files were corrupt.
    pub(crate) fn count_corrupt(&self, count: u64) {
        self.corrupt.fetch_add(count, Ordering::Relaxed);
    }

    /// Hits, misses and corrupt entries so far.
    pub(crate) fn read(&self) -> (u64, u64, u64) {
        let read = |meter: &AtomicU64| meter.load(Ordering::Relaxed);
        (read(&self.hits), read(&self.misses), read(&self.corrupt))
    }
}
