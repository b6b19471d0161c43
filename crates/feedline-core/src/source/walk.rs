//! Walks over all records of a shard and checks each, for code that inspects a data set rather than loads it.

use std::ops::Range;
use std::path::Path;

use super::index::{Index, IndexStorage};
use crate::error::{Error, Kind, Result};
use crate::format::stream::{NextRecord, Stream};
use crate::format::{Container, Packing, ReadAt, Span};
use crate::sample::{Location, in_bytes};
use crate::sys::file::Handle;

/// The least bytes read at once.
const WINDOW: u64 = 1 << 20;
/// The largest record that is checked, in bytes.
const LARGEST: u64 = 256 << 20;

/// A record, or a corrupt stretch.
pub struct WalkedRecord<'a> {
    /// Its number in the shard, as a loader counts.
    pub number: u64,
    /// Its span; in compressed shards, in the decompressed bytes.
    pub span: Span,
    /// All of its bytes, including framing; empty if they could not be read.
    pub bytes: &'a [u8],
    /// Its content, or what is wrong.
    pub payload: Result<&'a [u8]>,
}

/// Walks over a shard; `each` returns whether to continue. Returns the index of the shard.
pub fn walk(
    path: &Path,
    container: &Container,
    each: &mut dyn FnMut(WalkedRecord<'_>) -> bool,
) -> Result<Index> {
    let index = Index::of(path, container, &IndexStorage::Nowhere)?;
    walk_by(&index, path, container, each)?;
    Ok(index)
}

/// The same with a known index.
pub fn walk_by(
    index: &Index,
    path: &Path,
    container: &Container,
    each: &mut dyn FnMut(WalkedRecord<'_>) -> bool,
) -> Result<()> {
    walk_part(index, path, container, 0..index.len(), each)
}

/// The same for only the records with these numbers. A compressed shard is decompressed from its beginning in any case.
pub fn walk_part(
    index: &Index,
    path: &Path,
    container: &Container,
    numbers: Range<u64>,
    each: &mut dyn FnMut(WalkedRecord<'_>) -> bool,
) -> Result<()> {
    let failed =
        |error| Error::io(Kind::Read, "reading the shard", error).at(Some(Location::file(path)));
    let handle = Handle::open(path).map_err(failed)?;
    let mut read = |offset: u64, buffer: &mut [u8]| handle.read_at(buffer, offset).map_err(failed);
    match index.packing {
        Packing::Plain => plain(index, container, numbers, &mut read, each),
        Packing::Gzip | Packing::Zlib | Packing::Zstd | Packing::Xz | Packing::Bzip2 => {
            packed(index, container, numbers, &mut read, each)
        }
    }
}

/// Walks over the first records of a shard without an index, for which all of the shard would be read; `each` returns
/// whether to continue. It ends where a shard is corrupt.
pub fn walk_first(
    path: &Path,
    container: &Container,
    each: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<()> {
    let failed =
        |error| Error::io(Kind::Read, "reading the shard", error).at(Some(Location::file(path)));
    let handle = Handle::open(path).map_err(failed)?;
    let mut first = [0; Packing::FIRST];
    let count = handle.read_at(&mut first, 0).map_err(failed)?;
    let mut read = |offset: u64, buffer: &mut [u8]| handle.read_at(buffer, offset).map_err(failed);
    let mut stream = Stream::new(container, Packing::of(&first[..count], container)?)?;
    while let NextRecord::Record(_, bytes) = stream.next(&mut read)? {
        if !container.payload(bytes).is_ok_and(&mut *each) {
            break;
        }
    }
    Ok(())
}

fn packed(
    index: &Index,
    container: &Container,
    numbers: Range<u64>,
    read: &mut ReadAt<'_>,
    each: &mut dyn FnMut(WalkedRecord<'_>) -> bool,
) -> Result<()> {
    let mut stream = Stream::new(container, index.packing)?;
    let mut number = 0;
    while number < numbers.end {
        let next = stream.next(read)?;
        let is_wanted = numbers.contains(&number);
        let seen = match next {
            NextRecord::Record(_, _) | NextRecord::Corrupt(_, _, _) if !is_wanted => {
                number += 1;
                continue;
            }
            NextRecord::Record(start, bytes) => {
                let span = Span { start, length: bytes.len() as u64 };
                let payload = container.payload(bytes).map_err(|error| named(number, &error));
                WalkedRecord { number, span, bytes, payload }
            }
            NextRecord::Corrupt(start, length, what) => {
                let payload = Err(corrupt(number, &what));
                WalkedRecord { number, span: Span { start, length }, bytes: &[], payload }
            }
            NextRecord::End => break,
        };
        if !each(seen) {
            return Ok(());
        }
        number += 1;
    }
    // Faults that a stream cannot show: that the shard is empty, or ends earlier than it did.
    for number in number.max(numbers.start)..numbers.end {
        let what =
            index.corruption(number).unwrap_or("it is missing from the shard since it was indexed");
        let (span, payload) = (index.span(number), Err(corrupt(number, what)));
        if !each(WalkedRecord { number, span, bytes: &[], payload }) {
            return Ok(());
        }
    }
    Ok(())
}

fn plain(
    index: &Index,
    container: &Container,
    numbers: Range<u64>,
    read: &mut ReadAt<'_>,
    each: &mut dyn FnMut(WalkedRecord<'_>) -> bool,
) -> Result<()> {
    let (mut window, mut start) = (Vec::new(), 0_u64);
    for number in numbers {
        let span = index.span(number);
        if let Some(what) = index.corruption(number) {
            let payload = Err(corrupt(number, what));
            if !each(WalkedRecord { number, span, bytes: &[], payload }) {
                return Ok(());
            }
            continue;
        }
        if span.length > LARGEST {
            let (size, most) = (in_bytes(span.length), in_bytes(LARGEST));
            let message = format!("record {number} has {size}, more than the limit of {most}");
            let payload = Err(Error::new(Kind::TooLarge, message));
            if !each(WalkedRecord { number, span, bytes: &[], payload }) {
                return Ok(());
            }
            continue;
        }
        let end = span.start + span.length;
        if span.start < start || end > start + window.len() as u64 {
            // The size of a span was already compared with that of the file.
            let left = index.stamp.size.saturating_sub(span.start);
            window.resize(span.length.max(WINDOW).min(left) as usize, 0);
            start = span.start;
            let count = read(start, &mut window)?;
            window.truncate(count);
        }
        let from = (span.start - start) as usize;
        let seen = match window.get(from..from + span.length as usize) {
            Some(bytes) => {
                let payload = container.payload(bytes).map_err(|error| named(number, &error));
                WalkedRecord { number, span, bytes, payload }
            }
            None => {
                let payload = Err(corrupt(number, "the file shrank while it was read"));
                WalkedRecord { number, span, bytes: &[], payload }
            }
        };
        if !each(seen) {
            return Ok(());
        }
    }
    Ok(())
}

fn named(number: u64, error: &Error) -> Error {
    corrupt(number, error.message())
}

fn corrupt(number: u64, what: &str) -> Error {
    Error::new(Kind::CorruptRecord, format!("record {number} is corrupt: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tfrecord;
    use crate::sys::file;

    #[test]
    fn every_record_is_visited_once_and_faults_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        let mut bytes = Vec::new();
        for record in ["one", "two", "three"] {
            tfrecord::write(record.as_bytes(), &mut bytes);
        }
        bytes[19 + 12] ^= 1;
        file::write(&path, &bytes).unwrap();
        let mut seen = Vec::new();
        walk(&path, &Container::Tfrecord { check: true }, &mut |record| {
            let what = record.payload.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            seen.push((record.number, record.span.start, what.map_err(|error| error.kind())));
            true
        })
        .unwrap();
        let three = Ok("three".to_owned());
        assert_eq!(seen[0], (0, 0, Ok("one".to_owned())));
        assert_eq!(seen[1], (1, 19, Err(Kind::CorruptRecord)));
        assert_eq!(seen[2..], [(2, 38, three)]);
    }

    #[test]
    fn the_first_records_need_no_index() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        let mut bytes = Vec::new();
        for record in ["one", "two", "three"] {
            tfrecord::write(record.as_bytes(), &mut bytes);
        }
        let first = |bytes: &[u8], most: usize| {
            file::write(&path, bytes).unwrap();
            let mut seen = Vec::new();
            walk_first(&path, &Container::Tfrecord { check: true }, &mut |record| {
                seen.push(String::from_utf8_lossy(record).into_owned());
                seen.len() < most
            })
            .unwrap();
            seen
        };
        assert_eq!(first(&bytes, 9), ["one", "two", "three"]);
        assert_eq!(first(&bytes, 2), ["one", "two"]);
        let packed = flate2::read::GzEncoder::new(&bytes[..], flate2::Compression::fast());
        let packed: Vec<u8> = std::io::Read::bytes(packed).map(|byte| byte.unwrap()).collect();
        assert_eq!(first(&packed, 2), ["one", "two"]);
        assert_eq!(first(&bytes[..25], 9), ["one"]);
        assert_eq!(first(b"", 9), [""; 0]);
    }

    #[test]
    fn a_part_of_a_shard_is_the_same_compressed_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let container = Container::Tfrecord { check: true };
        let mut bytes = Vec::new();
        for record in ["one", "two", "three", "four"] {
            tfrecord::write(record.as_bytes(), &mut bytes);
        }
        let seen = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            file::write(&path, bytes).unwrap();
            let mut index = Index::of(&path, &container, &IndexStorage::Nowhere).unwrap();
            index.expect(Some(7), None);
            let mut seen = Vec::new();
            walk_part(&index, &path, &container, 2..index.len(), &mut |record| {
                let what = record.payload.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                seen.push((record.number, what.map_err(|error| error.message().to_owned())));
                true
            })
            .unwrap();
            seen
        };
        let expected = [
            (2, Ok("three".to_owned())),
            (3, Ok("four".to_owned())),
            (4, Err("record 4 is corrupt: the manifest says 7 records, the shard has 4".into())),
        ];
        assert_eq!(seen("plain", &bytes), expected);
        assert_eq!(seen("packed", &zstd::encode_all(&*bytes, 1).unwrap()), expected);
    }
}
