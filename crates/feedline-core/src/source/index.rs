//! The index of a shard: the spans of its records, found by one scan, saved for the next time, and checked against the
//! size and modification time of the file.

use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::fingerprint::Fingerprint;
use crate::format::{Container, CorruptSpan, Packing, ReadAt, Scanned, Span, stream};
use crate::sample::Location;
use crate::sys::atomic_file::{AtomicFile, Existing};
use crate::sys::file::{self, Handle, Identity, Stamp};

/// Version of the index file. Other versions are not read, but built again.
const VERSION: u32 = 3;
/// The extension of an index beside its shard.
const BESIDE: &str = "flindex";
/// The largest index file that is read, in bytes; a larger one is built again.
const LARGEST: u64 = 1 << 30;

/// Where indices are saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexStorage {
    /// In this folder; an index beside the shard is read too.
    Folder(PathBuf),
    /// Beside the shard.
    Beside,
    /// Nowhere.
    Nowhere,
}

/// Whether a saved index is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// If it matches the shard.
    Fitting,
    /// Never: what is known about the shard is discarded.
    Nothing,
}

/// An index, and how it was obtained.
#[derive(Debug)]
pub struct BuiltIndex {
    /// The index of the shard.
    pub index: Index,
    /// Whether the shard was scanned for it.
    pub is_new: bool,
    /// Set if a new one could not be saved.
    pub unsaved: Option<UnsavedIndex>,
}

/// An index that could not be saved: the shard is scanned again by the next run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsavedIndex {
    /// Where it was to be saved.
    pub path: PathBuf,
    /// The system error.
    pub why: String,
}

impl UnsavedIndex {
    /// The same as an error, for callers that need the file.
    pub fn into_error(self) -> Error {
        let message = format!("writing the index: {}", self.why);
        Error::new(Kind::InvalidSource, message).at(at(&self.path))
    }
}

/// The records of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// Size and time of the indexed file.
    pub stamp: Stamp,
    /// The identity of the file, if it was opened.
    pub identity: Option<Identity>,
    /// Its compression. If it is compressed, spans are offsets in the decompressed bytes.
    pub packing: Packing,
    spans: Spans,
    /// What is wrong, by the number of the span; usually few.
    corrupt: Vec<CorruptSpan>,
}

/// Adjacent spans need one number each.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Spans {
    Touching { starts: Vec<u64>, end: u64 },
    Apart(Vec<Span>),
}

/// The header before the numbers.
#[derive(Serialize, Deserialize)]
struct Head {
    version: u32,
    container: String,
    packing: String,
    size: u64,
    written: i64,
    spans: u64,
    corrupt: Vec<(u64, String)>,
}

/// How a fault of a truncated shard begins.
const TRUNCATED: &str = "the shard ends after";

impl Index {
    /// An index of the result of a scan.
    pub fn new(stamp: Stamp, packing: Packing, scanned: Scanned) -> Index {
        let Scanned { spans, corrupt } = scanned;
        let touch = spans.windows(2).all(|pair| pair[0].start + pair[0].length == pair[1].start);
        let spans = match spans.last() {
            Some(last) if touch => Spans::Touching {
                end: last.start + last.length,
                starts: spans.iter().map(|span| span.start).collect(),
            },
            Some(_) | None => Spans::Apart(spans),
        };
        Index { stamp, identity: None, packing, spans, corrupt }
    }

    /// The index of a shard: the saved one if it matches, otherwise a new one, which is then saved.
    pub fn of(path: &Path, container: &Container, storage: &IndexStorage) -> Result<Index> {
        // If the folder cannot be written, the next run scans the shard again.
        Index::make(path, container, storage, Reuse::Fitting).map(|made| made.index)
    }

    /// The same for callers that need to know whether it is new, and whether it was saved.
    pub fn make(
        path: &Path,
        container: &Container,
        storage: &IndexStorage,
        reuse: Reuse,
    ) -> Result<BuiltIndex> {
        let failed = |error| {
            Error::io(Kind::InvalidSource, "opening the shard", error)
                .at(at(path))
                .with_hint("a shard must be a readable file: check it with ls -lL")
        };
        let handle = Handle::open(path).map_err(failed)?;
        let identity = handle.identity().map_err(failed)?;
        let stamp = identity.stamp;
        let mut first = [0; Packing::FIRST];
        let count = handle.read_at(&mut first, 0).map_err(failed)?;
        let packing =
            Packing::of(&first[..count], container).map_err(|error| error.at(at(path)))?;
        let stored = stored_at(path, container, storage);
        let old = match reuse {
            Reuse::Fitting => {
                stored.iter().find_map(|place| Index::read(place, container, &handle))
            }
            Reuse::Nothing => None,
        };
        let old = old.filter(|old| old.packing == packing);
        let mut read = |offset: u64, buffer: &mut [u8]| {
            handle.read_at(buffer, offset).map_err(|error| {
                Error::io(Kind::InvalidSource, "reading the shard", error).at(at(path))
            })
        };
        if let Some(old) = &old
            && old.stamp == stamp
            && old.covers(container, &mut read)?
        {
            let index = Index { identity: Some(identity), ..old.clone() };
            return Ok(BuiltIndex { index, is_new: false, unsaved: None });
        }
        let scanned = match packing {
            Packing::Plain => container.scan(stamp.size, &mut read),
            Packing::Gzip | Packing::Zlib | Packing::Zstd | Packing::Xz | Packing::Bzip2 => {
                stream::scan(container, packing, &mut read)
            }
        };
        let mut scanned = scanned.map_err(|error| error.at(at(path)))?;
        if let Some(what) = old.and_then(|old| old.truncated(&scanned)) {
            scanned.push_corrupt(stamp.size, 0, what);
        }
        let index = Index { identity: Some(identity), ..Index::new(stamp, packing, scanned) };
        let unsaved = stored.first().and_then(|path| {
            let error = index.write(path, container, storage).err()?;
            Some(UnsavedIndex { path: path.clone(), why: error.to_string() })
        });
        Ok(BuiltIndex { index, is_new: true, unsaved })
    }

    /// Whether a saved index can be that of a shard of its size: records are in order and inside the file, and the gaps
    /// between them hold no record.
    fn covers(&self, container: &Container, read: &mut ReadAt<'_>) -> Result<bool> {
        let mut gaps = Vec::new();
        let mut end = 0;
        for span in (0..self.len()).map(|number| self.span(number)) {
            if span.start < end {
                return Ok(false);
            }
            if span.start > end {
                gaps.push(end..span.start);
            }
            end = span.start + span.length;
        }
        match self.packing {
            Packing::Plain if end > self.stamp.size => return Ok(false),
            Packing::Plain if end < self.stamp.size => gaps.push(end..self.stamp.size),
            Packing::Plain => {}
            // Only decompressing all of it could show what is in the gaps.
            Packing::Gzip | Packing::Zlib | Packing::Zstd | Packing::Xz | Packing::Bzip2 => {
                return Ok(gaps.is_empty() || has_gaps(container));
            }
        }
        for gap in gaps {
            if !has_gaps(container) || holds_record(container, &gap, read)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Saves it: in a folder for this user alone, beside its shard readable for all.
    fn write(
        &self,
        place: &Path,
        container: &Container,
        storage: &IndexStorage,
    ) -> std::io::Result<()> {
        let mut atomic_file = match storage {
            IndexStorage::Folder(_) => AtomicFile::private(place)?,
            IndexStorage::Beside | IndexStorage::Nowhere => AtomicFile::guarded(place)?,
        };
        atomic_file.add(&self.to_bytes(container))?;
        atomic_file.finish(Existing::Replaced)
    }

    /// The fault of a shard that has only the first records of what it had before.
    fn truncated(&self, now: &Scanned) -> Option<String> {
        let (before, left) = (self.len(), now.spans.len() as u64);
        if left >= before || !now.corrupt.is_empty() {
            return None;
        }
        let same = now.spans.iter().zip(0..).all(|(span, number)| *span == self.span(number));
        if !same {
            return None;
        }
        // A corrupt span that is gone now was repaired, unless it was itself such a fault.
        let gone = |corrupt: &&CorruptSpan| corrupt.span >= left;
        if let Some(truncated) =
            self.corrupt.iter().find(|corrupt| corrupt.what.starts_with(TRUNCATED))
        {
            return Some(truncated.what.clone());
        }
        let good = before - self.corrupt.iter().filter(gone).count() as u64;
        (good > left)
            .then(|| format!("{TRUNCATED} {left} records, but had {good} when it was indexed"))
    }

    /// Adds a fault if the shard does not have this many records, or bytes.
    pub fn expect(&mut self, records: Option<u64>, bytes: Option<u64>) {
        let what = match (records, bytes) {
            (Some(records), _) if records != self.len() => {
                format!("the manifest says {records} records, the shard has {}", self.len())
            }
            (_, Some(bytes)) if bytes != self.stamp.size => {
                format!("the manifest says {bytes} bytes, the shard has {}", self.stamp.size)
            }
            _ => return,
        };
        let mut spans: Vec<_> = (0..self.len()).map(|number| self.span(number)).collect();
        let mut corrupt = std::mem::take(&mut self.corrupt);
        corrupt.push(CorruptSpan { span: spans.len() as u64, what });
        spans.push(Span { start: self.stamp.size, length: 0 });
        let identity = self.identity;
        *self = Index::new(self.stamp, self.packing, Scanned { spans, corrupt });
        self.identity = identity;
    }

    /// Number of records, including corrupt spans.
    pub fn len(&self) -> u64 {
        match &self.spans {
            Spans::Touching { starts, .. } => starts.len() as u64,
            Spans::Apart(spans) => spans.len() as u64,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The span of a record.
    pub fn span(&self, number: u64) -> Span {
        let at = number as usize;
        match &self.spans {
            Spans::Touching { starts, end } => {
                let start = starts[at];
                Span { start, length: starts.get(at + 1).unwrap_or(end) - start }
            }
            Spans::Apart(spans) => spans[at],
        }
    }

    /// What is wrong with a span, if known.
    pub fn corruption(&self, number: u64) -> Option<&str> {
        let at = self.corrupt.binary_search_by_key(&number, |corrupt| corrupt.span).ok()?;
        Some(&self.corrupt[at].what)
    }

    /// All that is wrong.
    pub fn corrupt_spans(&self) -> &[CorruptSpan] {
        &self.corrupt
    }

    fn to_bytes(&self, container: &Container) -> Vec<u8> {
        let mut numbers = Vec::new();
        let mut end = 0;
        for span in (0..self.len()).map(|number| self.span(number)) {
            // The gap before it is nearly always zero: one byte.
            put(span.start.wrapping_sub(end), &mut numbers);
            put(span.length, &mut numbers);
            end = span.start + span.length;
        }
        let head = Head {
            version: VERSION,
            container: container.name().to_owned(),
            packing: self.packing.name().to_owned(),
            size: self.stamp.size,
            written: self.stamp.written,
            spans: self.len(),
            corrupt: self.corrupt.iter().map(|d| (d.span, d.what.clone())).collect(),
        };
        let mut bytes = serde_json::to_vec(&head).expect("text and numbers can always be written");
        bytes.push(b'\n');
        bytes.extend(numbers);
        // The checksum covers the header too: one span fewer there would hide a record.
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Reads a saved index; None if it is not valid, or if a user wrote it who can write neither to the shard nor as
    /// this user: an index could hide records.
    fn read(place: &Path, container: &Container, shard: &Handle) -> Option<Index> {
        let handle = Handle::open(place).ok()?;
        if !handle.is_written_by_owner_of(shard).ok()? {
            return None;
        }
        let bytes = file::read_bounded(&handle, LARGEST).ok()?;
        let (checked, crc) = bytes.split_last_chunk::<4>()?;
        if u32::from_le_bytes(*crc) != crc32c::crc32c(checked) {
            return None;
        }
        let line = memchr::memchr(b'\n', checked)?;
        let head: Head = serde_json::from_slice(&checked[..line]).ok()?;
        let mut numbers = &checked[line + 1..];
        if head.version != VERSION || head.container != container.name() {
            return None;
        }
        let mut scanned = Scanned::default();
        let mut end = 0_u64;
        for _ in 0..head.spans {
            let start = end.checked_add(take(&mut numbers)?)?;
            let length = take(&mut numbers)?;
            scanned.push(start, length);
            end = start.checked_add(length)?;
        }
        if !numbers.is_empty() {
            return None;
        }
        scanned.corrupt =
            head.corrupt.into_iter().map(|(span, what)| CorruptSpan { span, what }).collect();
        let packing = Packing::ALL.into_iter().find(|packing| packing.name() == head.packing)?;
        Some(Index::new(Stamp { size: head.size, written: head.written }, packing, scanned))
    }
}

/// Whether a format has bytes outside records: headers, folders and empty lines.
fn has_gaps(container: &Container) -> bool {
    match container {
        Container::Tfrecord { .. } | Container::Numbers { .. } => false,
        Container::Tar | Container::JsonLines | Container::Csv { .. } => true,
    }
}

/// Whether a part of a shard that an index leaves out contains a record or corrupt bytes.
fn holds_record(container: &Container, gap: &Range<u64>, read: &mut ReadAt<'_>) -> Result<bool> {
    let size = gap.end - gap.start;
    let mut read = |offset: u64, buffer: &mut [u8]| {
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = left.min(buffer.len());
        read(gap.start + offset, &mut buffer[..length])
    };
    // Only the first row is a header: after it, a row is a line that is not empty.
    let has_rows = matches!(container, Container::Csv { .. }) && gap.start > 0;
    let container = if has_rows { &Container::JsonLines } else { container };
    let found = container.scan(size, &mut read)?;
    Ok(!found.spans.is_empty())
}

/// Where the index of a shard may be saved; it is written to the first place.
fn stored_at(path: &Path, container: &Container, storage: &IndexStorage) -> Vec<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(BESIDE);
    let beside = PathBuf::from(name);
    match storage {
        IndexStorage::Beside => vec![beside],
        IndexStorage::Nowhere => vec![],
        IndexStorage::Folder(folder) => {
            let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let parts = [whole.as_os_str().as_encoded_bytes(), container.name().as_bytes()];
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let file = format!("{name}-{}.{BESIDE}", Fingerprint::of(parts).in_hex());
            vec![folder.join(file), beside]
        }
    }
}

fn at(path: &Path) -> Option<Location> {
    Some(Location::file(path))
}

/// A varint: seven bits per byte, the lowest first.
fn put(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn take(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tfrecord;

    fn shard(records: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for record in records {
            tfrecord::write(record, &mut bytes);
        }
        bytes
    }

    fn index(path: &Path, storage: &IndexStorage) -> Index {
        Index::of(path, &Container::Tfrecord { check: true }, storage).unwrap()
    }

    #[test]
    fn an_index_is_saved_and_built_again_when_the_shard_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        let storage = IndexStorage::Folder(folder.path().join("cache"));
        file::write(&path, &shard(&[b"one", b"", b"three"])).unwrap();
        let first = index(&path, &storage);
        assert_eq!((first.len(), first.span(2)), (3, Span { start: 35, length: 21 }));
        let stored = stored_at(&path, &Container::Tfrecord { check: true }, &storage);
        let handle = Handle::open(&path).unwrap();
        let again = Index::read(&stored[0], &Container::Tfrecord { check: true }, &handle).unwrap();
        assert_eq!(Index { identity: first.identity, ..again }, first);
        assert_eq!(Index::read(&stored[0], &Container::Tar, &handle), None);
        file::write(&path, &shard(&[b"another", b"two", b"three", b"four"])).unwrap();
        let other = index(&path, &storage);
        assert_eq!((other.len(), other.corrupt_spans().len()), (4, 0));
    }

    #[test]
    fn a_saved_index_with_a_flipped_bit_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        file::write(&path, &shard(&[b"one", b"two"])).unwrap();
        index(&path, &IndexStorage::Beside);
        let place = folder.path().join("a.tfrecord.flindex");
        let bytes = file::read_bytes(&place).unwrap();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            file::write(&place, &flipped).unwrap();
            let handle = Handle::open(&path).unwrap();
            let read = Index::read(&place, &Container::Tfrecord { check: true }, &handle);
            assert_eq!(read, None, "byte {at}");
        }
    }

    #[test]
    fn an_index_whose_header_has_fewer_spans_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        file::write(&path, b"id\n1\n2\n3\n").unwrap();
        let container = Container::Csv { delimiter: b',', columns: ["id".to_owned()].into() };
        let records = Index::of(&path, &container, &IndexStorage::Beside).unwrap().len();
        let place = folder.path().join("a.csv.flindex");
        let bytes = file::read_bytes(&place).unwrap();
        let line = memchr::memchr(b'\n', &bytes).unwrap();
        let head = String::from_utf8(bytes[..line].to_vec()).unwrap();
        let said = format!("\"spans\":{records}");
        assert!(head.contains(&said), "{head}");
        let mut forged = head.replace(&said, &format!("\"spans\":{}", records - 1)).into_bytes();
        forged.extend(&bytes[line..bytes.len() - 4]);
        for trailer in
            [bytes[bytes.len() - 4..].to_vec(), crc32c::crc32c(&forged).to_le_bytes().into()]
        {
            file::write(&place, &[forged.clone(), trailer].concat()).unwrap();
            assert_eq!(Index::of(&path, &container, &IndexStorage::Beside).unwrap().len(), records);
        }
    }

    #[test]
    fn an_index_that_leaves_records_out_is_not_used() {
        let columns: std::sync::Arc<[String]> = ["id".to_owned()].into();
        let shards: [(Container, Vec<u8>); 3] = [
            (Container::Tfrecord { check: true }, shard(&[b"one", b"two", b"three"])),
            (Container::JsonLines, b"{\"a\":1}\n\n{\"a\":2}\n{\"a\":3}\n".to_vec()),
            (Container::Csv { delimiter: b',', columns }, b"id\n1\n\n2\n3\n".to_vec()),
        ];
        for (container, bytes) in shards {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.shard");
            file::write(&path, &bytes).unwrap();
            let make =
                || Index::make(&path, &container, &IndexStorage::Beside, Reuse::Fitting).unwrap();
            let made = make().index;
            assert!(!make().is_new, "{}: an index that is right is used", container.name());
            assert_eq!(made.len(), 3);
            for hidden in 0..3 {
                let mut spans: Vec<_> = (0..3).map(|number| made.span(number)).collect();
                spans.remove(hidden);
                let scanned = Scanned { spans, corrupt: vec![] };
                let forged = Index::new(made.stamp, Packing::Plain, scanned);
                let place = folder.path().join("a.shard.flindex");
                forged.write(&place, &container, &IndexStorage::Beside).unwrap();
                assert_eq!(make().index.len(), 3, "{} without {hidden}", container.name());
            }
        }
    }

    #[test]
    fn an_index_that_others_can_write_to_is_built_again() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        file::write(&path, &shard(&[b"one", b"two"])).unwrap();
        let container = Container::Tfrecord { check: true };
        let make = || {
            Index::make(&path, &container, &IndexStorage::Beside, Reuse::Fitting).unwrap().is_new
        };
        assert!(make() && !make());
        let place = folder.path().join("a.tfrecord.flindex");
        for mode in [0o666, 0o664, 0o646] {
            std::fs::set_permissions(&place, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(make() && !make(), "{mode:o}");
        }
        // Only root can change the owner of files.
        if std::os::unix::fs::chown(&place, Some(12345), None).is_ok() {
            assert!(make());
            std::os::unix::fs::chown(&place, Some(12345), None).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert!(!make(), "the owner of the shard can write anything into the shard");
        }
    }

    #[test]
    fn an_index_that_is_not_a_regular_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        file::write(&path, &shard(&[b"one", b"two"])).unwrap();
        let place = folder.path().join("a.tfrecord.flindex");
        std::os::unix::fs::symlink("/dev/zero", &place).unwrap();
        assert_eq!(index(&path, &IndexStorage::Beside).len(), 2);
        std::fs::remove_file(&place).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &place, kind, mode, 0).unwrap();
        assert_eq!(index(&path, &IndexStorage::Beside).len(), 2);
    }

    #[test]
    fn a_shard_truncated_between_two_records_is_noticed_by_its_index() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        file::write(&path, &shard(&[b"one", b"two", b"three"])).unwrap();
        index(&path, &IndexStorage::Beside);
        file::write(&path, &shard(&[b"one", b"two"])).unwrap();
        let truncated = index(&path, &IndexStorage::Beside);
        assert_eq!(truncated.len(), 3);
        let what = truncated.corruption(2).unwrap();
        assert_eq!(what, "the shard ends after 2 records, but had 3 when it was indexed");
        assert_eq!(index(&path, &IndexStorage::Beside), truncated, "the truncation is remembered");
    }

    #[test]
    fn an_index_that_is_built_again_discards_what_was_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        let container = Container::Tfrecord { check: true };
        file::write(&path, &shard(&[b"one", b"two", b"three"])).unwrap();
        let make = |reuse| Index::make(&path, &container, &IndexStorage::Beside, reuse).unwrap();
        assert!(make(Reuse::Fitting).is_new);
        assert!(!make(Reuse::Fitting).is_new);
        file::write(&path, &shard(&[b"one", b"two"])).unwrap();
        assert_eq!(make(Reuse::Fitting).index.corrupt_spans().len(), 1);
        let rebuilt = make(Reuse::Nothing);
        assert!(rebuilt.is_new && rebuilt.unsaved.is_none());
        assert_eq!((rebuilt.index.len(), rebuilt.index.corrupt_spans().len()), (2, 0));
        assert_eq!(make(Reuse::Fitting).index, rebuilt.index, "the new index is saved");
    }

    #[test]
    fn an_index_that_cannot_be_saved_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        file::write(&path, &shard(&[b"one"])).unwrap();
        let storage = IndexStorage::Folder(path.join("below a file"));
        let container = Container::Tfrecord { check: true };
        let made = Index::make(&path, &container, &storage, Reuse::Fitting).unwrap();
        assert_eq!(made.index.len(), 1);
        let message = made.unsaved.unwrap().into_error().to_string();
        assert!(message.contains("writing the index: "), "{message}");
    }

    #[test]
    fn a_manifest_that_disagrees_is_a_fault_of_the_shard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        file::write(&path, &shard(&[b"one", b"two"])).unwrap();
        let mut made = index(&path, &IndexStorage::Nowhere);
        made.expect(Some(2), Some(made.stamp.size));
        assert!(made.corrupt_spans().is_empty());
        made.expect(Some(5), None);
        assert_eq!(made.corruption(2), Some("the manifest says 5 records, the shard has 2"));
    }
}
