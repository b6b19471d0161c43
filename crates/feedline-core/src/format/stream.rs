//! The records of a compressed file, one after another.

use super::container::Splitter;
use super::unpack::{Packing, Unpacker};
use super::{Container, ReadAt, Scanned, Split};
use crate::error::Result;
use crate::sample::in_bytes;

/// Read buffer size, in compressed bytes.
const WINDOW: usize = 128 << 10;
/// The most decompressed bytes of one record, because a few compressed bytes can expand to any size. Half of that for
/// lines, whose end must be searched.
const LARGEST: usize = 256 << 20;

/// A position in a compressed file.
pub(crate) struct Stream {
    splitter: Splitter,
    unpacker: Unpacker,
    /// The bytes read so far, and those that are not decompressed yet.
    read: u64,
    packed: Vec<u8>,
    used: usize,
    /// Decompressed bytes; those before `at` are consumed.
    bytes: Vec<u8>,
    at: usize,
    /// The offset of `bytes` in the decompressed file.
    start: u64,
    is_read: bool,
    /// Whether the file is decompressed to its end.
    is_unpacked: bool,
    /// What is wrong with the stream itself: nothing follows.
    broken: Option<String>,
    is_over: bool,
}

/// The next item of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum NextRecord<'a> {
    /// The span of a record, and its offset in the decompressed file.
    Record(u64, &'a [u8]),
    /// A corrupt stretch: its offset, its length, and what is wrong.
    Corrupt(u64, u64, String),
    /// The end.
    End,
}

impl Stream {
    /// A stream at the beginning of a file.
    pub(crate) fn new(container: &Container, packing: Packing) -> Result<Stream> {
        Ok(Stream {
            splitter: container.splitter(),
            unpacker: Unpacker::new(packing)?,
            read: 0,
            packed: Vec::new(),
            used: 0,
            bytes: Vec::new(),
            at: 0,
            start: 0,
            is_read: false,
            is_unpacked: false,
            broken: None,
            is_over: false,
        })
    }

    /// Advances to the next record. `read` reads the compressed file.
    pub(crate) fn next(&mut self, read: &mut ReadAt<'_>) -> Result<NextRecord<'_>> {
        loop {
            let is_end = self.is_unpacked;
            let from = self.start + self.at as u64;
            let split = match self.splitter.split(&self.bytes[self.at..], is_end) {
                Split::More(needed) if needed > LARGEST => {
                    let what = format!(
                        "it is larger than {}, the limit for a record of a compressed shard; \
                         nothing after it can be read",
                        in_bytes(LARGEST as u64 / 2)
                    );
                    self.is_over = true;
                    Split::Corrupt(self.bytes.len() - self.at, what)
                }
                split @ (Split::Record(_)
                | Split::Ignored(_)
                | Split::Corrupt(..)
                | Split::More(_)
                | Split::End) => split,
            };
            match split {
                _ if self.is_over && self.at == self.bytes.len() => return Ok(NextRecord::End),
                Split::Record(length) => {
                    let begin = self.at;
                    self.at += length;
                    return Ok(NextRecord::Record(from, &self.bytes[begin..begin + length]));
                }
                Split::Ignored(length) => self.at += length,
                Split::Corrupt(length, what) => {
                    self.at += length;
                    let what = match self.broken.take() {
                        Some(broken) => {
                            self.is_over = true;
                            format!("{broken}; {what}")
                        }
                        None => what,
                    };
                    return Ok(NextRecord::Corrupt(from, length as u64, what));
                }
                Split::End => match self.broken.take() {
                    Some(broken) => {
                        self.is_over = true;
                        self.at = self.bytes.len();
                        return Ok(NextRecord::Corrupt(from, 0, broken));
                    }
                    None => return Ok(NextRecord::End),
                },
                Split::More(_) if is_end => {
                    self.is_over = true;
                    let length = (self.bytes.len() - self.at) as u64;
                    self.at = self.bytes.len();
                    let what = "the stream ends in the middle of a record".to_owned();
                    return Ok(NextRecord::Corrupt(from, length, what));
                }
                Split::More(needed) => self.fill(needed, read)?,
            }
        }
    }

    /// Decompresses until there are `needed` bytes, or until the end.
    fn fill(&mut self, needed: usize, read: &mut ReadAt<'_>) -> Result<()> {
        self.bytes.drain(..self.at);
        self.start += self.at as u64;
        self.at = 0;
        while self.bytes.len() < needed {
            if self.used == self.packed.len() && !self.is_read {
                self.packed.resize(WINDOW, 0);
                let count = read(self.read, &mut self.packed)?;
                self.packed.truncate(count);
                self.read += count as u64;
                self.is_read = count < WINDOW;
                self.used = 0;
            }
            let before = self.bytes.len();
            match self.unpacker.unpack(&self.packed[self.used..], &mut self.bytes) {
                Ok(0) if self.bytes.len() == before => {
                    if self.is_read {
                        self.broken = self.unpacker.end().err().map(|error| error.message().into());
                        self.is_unpacked = true;
                        return Ok(());
                    }
                    if self.used < self.packed.len() {
                        // The decompressor needs bytes that are not read yet: keep the rest.
                        self.packed.drain(..self.used);
                        let kept = self.packed.len();
                        self.used = 0;
                        self.packed.resize(kept + WINDOW, 0);
                        let count = read(self.read, &mut self.packed[kept..])?;
                        self.packed.truncate(kept + count);
                        self.read += count as u64;
                        self.is_read = count < WINDOW;
                    }
                }
                Ok(used) => self.used += used,
                Err(error) => {
                    self.broken = Some(error.message().to_owned());
                    self.is_unpacked = true;
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The spans of all records, as offsets in the decompressed file.
pub(crate) fn scan(
    container: &Container,
    packing: Packing,
    read: &mut ReadAt<'_>,
) -> Result<Scanned> {
    let mut stream = Stream::new(container, packing)?;
    let mut scanned = Scanned::default();
    loop {
        match stream.next(read)? {
            NextRecord::Record(start, span) => scanned.push(start, span.len() as u64),
            NextRecord::Corrupt(start, length, what) => scanned.push_corrupt(start, length, what),
            NextRecord::End => return Ok(scanned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pack::Packer;
    use super::super::tfrecord;
    use super::*;
    const RECORDS: Container = Container::Tfrecord { check: true };

    fn plain(records: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for record in 0..records {
            tfrecord::write(&vec![record as u8; (record as usize * 37) % 1000], &mut bytes);
        }
        bytes
    }

    fn packed(bytes: &[u8], packing: Packing) -> Vec<u8> {
        let (mut packer, mut packed) = (Packer::new(packing).unwrap(), Vec::new());
        packer.pack(bytes, &mut packed).unwrap();
        packer.finish(&mut packed).unwrap();
        packed
    }

    fn scanned(file: &[u8], packing: Packing) -> Scanned {
        let mut read = |offset: u64, buffer: &mut [u8]| {
            let rest = &file[(offset as usize).min(file.len())..];
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        };
        scan(&RECORDS, packing, &mut read).unwrap()
    }

    fn by_plain_scan(bytes: &[u8]) -> Scanned {
        scanned(bytes, Packing::Plain)
    }

    #[test]
    fn records_are_found_in_every_packing_and_in_several_members() {
        let bytes = plain(500);
        let expected = by_plain_scan(&bytes);
        assert_eq!((expected.spans.len(), expected.corrupt.len()), (500, 0));
        for packing in Packing::ALL.into_iter().skip(1) {
            let file = packed(&bytes, packing);
            assert_eq!(Packing::of(&file, &RECORDS).unwrap(), packing);
            assert_eq!(scanned(&file, packing), expected, "{packing:?}");
        }
        for packing in [Packing::Gzip, Packing::Zstd, Packing::Xz, Packing::Bzip2] {
            let (first, last) = bytes.split_at(bytes.len() / 3);
            let file = [packed(first, packing), packed(last, packing)].concat();
            assert_eq!(scanned(&file, packing), expected, "two members of {packing:?}");
        }
        assert_eq!(Packing::of(&bytes, &RECORDS).unwrap(), Packing::Plain);
    }

    #[test]
    fn every_truncation_of_a_compressed_file_is_noticed_and_the_records_before_are_kept() {
        let bytes = plain(30);
        let expected = by_plain_scan(&bytes);
        for packing in Packing::ALL.into_iter().skip(1) {
            let file = packed(&bytes, packing);
            for length in 0..file.len() {
                let found = scanned(&file[..length], packing);
                assert_eq!(
                    found.corrupt.len(),
                    1,
                    "{packing:?} truncated at {length}: {:?}",
                    found.corrupt
                );
                let good = found.corrupt[0].span as usize;
                assert_eq!(found.spans[..good], expected.spans[..good], "{packing:?} at {length}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_an_error_or_changes_nothing() {
        let bytes = plain(12);
        let expected = by_plain_scan(&bytes);
        for packing in Packing::ALL.into_iter().skip(1) {
            let file = packed(&bytes, packing);
            for at in 0..file.len() {
                let mut flipped = file.clone();
                flipped[at] ^= 0x10;
                let found = scanned(&flipped, packing);
                // Some bytes of a gzip header, such as a time, mean nothing to a reader; and what zstd's checksum does
                // not cover is covered by the records' own.
                let same = found.spans == expected.spans && found.corrupt.is_empty();
                assert!(same || !found.corrupt.is_empty(), "{packing:?}, byte {at}");
            }
        }
    }
}
