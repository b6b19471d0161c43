//! The cache of a loader: which part of a sample is kept, under which key, and when.
//!
//! A sample is looked up before its bytes are read, and kept after it was made: what could not be decoded is never kept.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::run::{Run, SampleOrder};
use crate::bytes::Piece;
use crate::config::{CacheStore, Caching};
use crate::event::Event;
use crate::fetch::{
    CachedImage, CachedSample, CorruptEntry, DiskCache, MemoryCache, Reader, Stored,
};
use crate::fingerprint::Fingerprint;
use crate::sample::Extent;
use crate::source::Source;
use crate::sys::file::{self, Stamp};
use crate::transform::Transform;

/// The cache of a loader, for all its epochs.
pub(super) struct SampleCache {
    store: Store,
    /// The steps after `decode` whose result is kept; None for the bytes before it.
    pub(super) steps: Option<usize>,
    /// Whether the bytes of a record are kept beside its image, for its other fields.
    keeps_record: bool,
    /// The versions of indexed files, which are not read if they change.
    indexed: HashMap<PathBuf, Stamp>,
}

enum Store {
    Memory(Arc<MemoryCache>),
    Disk(DiskCache),
}

/// A sample that is to be kept once it is made, and the version of its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep(Option<Stamp>);

/// What a cache says of a sample.
pub(super) enum Lookup {
    /// It is here.
    Hit(CachedSample),
    /// It must be loaded, and is then kept.
    Miss(Keep),
    /// It must be loaded.
    None,
}

impl SampleCache {
    pub(super) fn new(
        caching: &Caching,
        source: &dyn Source,
        transform: Option<&Transform>,
        keeps_record: bool,
        memory: impl FnOnce(u64) -> Arc<MemoryCache>,
    ) -> SampleCache {
        let store = match &caching.store {
            CacheStore::Memory(limit) => Store::Memory(memory(*limit)),
            CacheStore::Folder { path, size } => {
                let channels = transform.map_or(1, Transform::channels);
                Store::Disk(DiskCache::new(
                    path,
                    &name(caching, source, transform),
                    *size,
                    channels,
                ))
            }
        };
        let known = source.known_files();
        let indexed = known.into_iter().map(|(path, identity)| (path, identity.stamp)).collect();
        SampleCache { store, steps: caching.steps, keeps_record, indexed }
    }

    /// Looks for what other processes have added. Returns how many corrupt files there are.
    pub(super) fn begin_epoch(&self) -> u64 {
        match &self.store {
            Store::Memory(_) => 0,
            Store::Disk(cache) => cache.find_new_files(),
        }
    }

    /// Completes what is being written; returns why, if nothing is written any more.
    pub(super) fn flush(&self) -> Option<String> {
        match &self.store {
            Store::Memory(_) => None,
            Store::Disk(cache) => stopped(cache.flush()),
        }
    }

    /// The version of the file of a sample now; None if it is not known.
    fn stamp(&self, extent: &Extent<'_>) -> Option<Stamp> {
        let path: &Path = match extent {
            Extent::File(path) => path,
            Extent::Part { path, .. } | Extent::Packed { path, .. } => path,
            Extent::Memory(_) => return None,
        };
        self.indexed.get(path).copied().or_else(|| file::stamp(path).ok())
    }

    fn get(
        &self,
        index: u64,
        stamp: Stamp,
        epoch: u64,
        reader: &Reader,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<Option<CachedSample>, CorruptEntry> {
        match &self.store {
            Store::Memory(cache) => Ok(cache.get(index, Some(stamp), epoch)),
            Store::Disk(cache) => cache.get(index, Some(stamp), reader, slot, before_wait),
        }
    }

    fn put(&self, index: u64, keep: Keep, epoch: u64, sample: &CachedSample) -> Option<String> {
        match &self.store {
            Store::Memory(cache) => {
                cache.put(index, keep.0, epoch, sample);
                None
            }
            Store::Disk(cache) => stopped(cache.put(index, keep.0, sample)),
        }
    }
}

fn stopped(stored: Stored) -> Option<String> {
    match stored {
        Stored::Done => None,
        Stored::Stopped(why) => Some(why),
    }
}

/// The name of the samples of a source after some steps: the same in all processes and runs that make the same of them.
fn name(caching: &Caching, source: &dyn Source, transform: Option<&Transform>) -> String {
    let made = match (caching.steps, transform) {
        (Some(count), Some(transform)) => {
            // Another version of Feedline may decode differently.
            let (picture, steps) = (&transform.picture, &transform.steps[..count]);
            format!("{} {picture:?} {steps:?}", env!("CARGO_PKG_VERSION"))
        }
        (Some(_), None) | (None, _) => "bytes".to_owned(),
    };
    let source = source.fingerprint().in_hex();
    Fingerprint::of([source.as_bytes(), made.as_bytes()]).in_hex()
}

impl Run {
    /// Looks a sample up. A sample that is tried again is loaded anew.
    pub(super) fn look_up(
        &self,
        order: &SampleOrder,
        extent: &Extent<'_>,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Lookup {
        let Some(cache) = &self.shared.cache else { return Lookup::None };
        if order.attempts > 1 {
            return Lookup::None;
        }
        // Before the file is read: if it is changed meanwhile, the sample has an old stamp, and is loaded again.
        let Some(stamp) = cache.stamp(extent) else { return Lookup::None };
        let index = order.ticket.index;
        let found = cache.get(index, stamp, self.epoch, &self.reader, slot, before_wait);
        self.cache_meters.count(matches!(found, Ok(Some(_))));
        match found {
            Ok(Some(sample)) => Lookup::Hit(sample),
            Ok(None) => Lookup::Miss(Keep(Some(stamp))),
            Err(CorruptEntry) => {
                self.cache_meters.count_corrupt(1);
                Lookup::Miss(Keep(Some(stamp)))
            }
        }
    }

    /// Keeps a sample that was made from these bytes, or its image.
    pub(super) fn keep(&self, index: u64, keep: Keep, bytes: &Piece, image: Option<CachedImage>) {
        let Some(cache) = &self.shared.cache else { return };
        let bytes = match cache.steps {
            Some(_) if !cache.keeps_record => Piece::from(Vec::new()),
            Some(_) | None => bytes.clone(),
        };
        let stopped = cache.put(index, keep, self.epoch, &CachedSample { bytes, image });
        self.note_stopped(stopped);
    }

    /// Completes what is being written to the cache.
    pub(super) fn flush_cache(&self) {
        if let Some(cache) = &self.shared.cache {
            self.note_stopped(cache.flush());
        }
    }

    fn note_stopped(&self, why: Option<String>) {
        if let Some(why) = why {
            self.shared.ledger.event(Event::CacheStopped { why });
        }
    }
}
