//! Records of compressed files, read sequentially. A thread that requests a record continues where the last one in that
//! file stopped; records that other threads will request are set aside on the way.
//!
//! A walk holds no descriptor of its own, so that hundreds of files can be read in turns under any limit.

use lru::LruCache;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Reader;
use crate::bytes::Piece;
use crate::error::{Error, Kind, Result};
use crate::format::stream::{NextRecord, Stream};
use crate::format::{Container, Packing};
use crate::sys::lock::Mutex;

/// The least number of records set aside for later requests.
const ASIDE: usize = 256;
/// The most bytes set aside of one file. Records that do not fit are decompressed again.
const ASIDE_BYTES: u64 = 64 << 20;

/// A record of a compressed file.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// The file.
    pub path: &'a Path,
    /// Its compression.
    pub packing: Packing,
    /// The number of the record, from 0.
    pub record: u64,
}

/// The state of all compressed files that are being read.
pub(crate) struct Streams {
    container: Container,
    aside: usize,
    walks: Mutex<LruCache<PathBuf, Arc<Mutex<FileWalk>>>>,
}

struct FileWalk {
    stream: Stream,
    /// The number of the next record.
    next: u64,
    aside: BTreeMap<u64, Vec<u8>>,
    /// Bytes of all records set aside.
    aside_bytes: usize,
}

impl Streams {
    /// Streams of records of this container; `buffer` is how far out of order records may be requested.
    pub(crate) fn new(container: Container, buffer: usize) -> Streams {
        let aside = buffer.saturating_mul(2).max(ASIDE);
        Streams { container, aside, walks: Mutex::new(LruCache::unbounded()) }
    }

    /// The span of a record. The permit is acquired after the walk is released, because a thread must not wait for a
    /// budget while it holds a walk.
    pub(crate) fn read(
        &self,
        wanted: Packed<'_>,
        reader: &Reader,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<Piece> {
        let walk = self.walk(wanted)?;
        let found = walk.lock().go_to(self, wanted, reader, slot, before_wait);
        let bytes = match found {
            Ok(bytes) => bytes,
            Err(error) => {
                // The next attempt starts over, whatever the error.
                self.walks.lock().pop(wanted.path);
                return Err(error);
            }
        };
        let length = bytes.len();
        let permit = reader
            .budget()
            .acquire_after(length as u64, slot, before_wait)
            .map_err(|_| Error::new(Kind::Closed, "the loader is closed"))?;
        Ok(Piece::new(bytes, length, permit, reader.buffer_pool()))
    }

    fn walk(&self, wanted: Packed<'_>) -> Result<Arc<Mutex<FileWalk>>> {
        let mut walks = self.walks.lock();
        if let Some(walk) = walks.get(wanted.path) {
            return Ok(Arc::clone(walk));
        }
        let stream = Stream::new(&self.container, wanted.packing)?;
        let walk = Arc::new(Mutex::new(FileWalk {
            stream,
            next: 0,
            aside: BTreeMap::new(),
            aside_bytes: 0,
        }));
        walks.put(wanted.path.to_owned(), Arc::clone(&walk));
        Ok(walk)
    }

    /// Forgets a file whose last record was taken.
    fn forget(&self, path: &Path) {
        self.walks.lock().pop(path);
    }
}

impl FileWalk {
    fn go_to(
        &mut self,
        streams: &Streams,
        wanted: Packed<'_>,
        reader: &Reader,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<Vec<u8>> {
        if let Some(bytes) = self.aside.remove(&wanted.record) {
            self.aside_bytes -= bytes.len();
            return Ok(bytes);
        }
        if wanted.record < self.next {
            // The record was passed and not set aside: start over.
            self.stream = Stream::new(&streams.container, wanted.packing)?;
            self.next = 0;
            self.aside.clear();
            self.aside_bytes = 0;
        }
        let most = reader.budget().limit().max(ASIDE_BYTES);
        let mut read = |offset: u64, buffer: &mut [u8]| {
            reader.files().with(wanted.path, slot, before_wait, |handle| {
                handle
                    .read_at(buffer, offset)
                    .map_err(|error| Error::io(Kind::Read, "reading the file", error))
            })
        };
        loop {
            let number = self.next;
            match self.stream.next(&mut read)? {
                NextRecord::Record(_, span) if number == wanted.record => {
                    self.next += 1;
                    return Ok(span.to_vec());
                }
                NextRecord::Record(_, span) => {
                    self.next += 1;
                    // Records far before the requested one are not requested any more.
                    if number + streams.aside as u64 > wanted.record {
                        self.aside_bytes += span.len();
                        self.aside.insert(number, span.to_vec());
                        while self.aside.len() > streams.aside || self.aside_bytes as u64 > most {
                            let Some((_, dropped)) = self.aside.pop_first() else { break };
                            self.aside_bytes -= dropped.len();
                        }
                    }
                }
                NextRecord::Corrupt(_, _, what) if number == wanted.record => {
                    return Err(Error::new(Kind::CorruptRecord, what));
                }
                NextRecord::Corrupt(..) => self.next += 1,
                NextRecord::End => {
                    streams.forget(wanted.path);
                    let message = format!("the file shrank: it ends after {number} records");
                    return Err(Error::new(Kind::CorruptRecord, message));
                }
            }
        }
    }
}
