//! A file of cached samples: their bytes, one behind another, then a table of them. It gets its name when it is complete,
//! so a process that reads it finds all of it, and one that is killed leaves nothing behind.
//!
//! ```text
//! magic │ bytes of each sample … │ a row for each sample … │ number of rows, checksum of the rows, magic
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{CachedImage, CachedSample};
use crate::bytes::Piece;
use crate::sys::atomic_file::{AtomicFile, Existing};
use crate::sys::file::{Handle, Stamp};

const MAGIC: &[u8; 8] = b"FLCACHE1";
/// Bytes of a row of the table: seven numbers.
const ROW: usize = 7 * 8;
/// Bytes behind the table.
const END: usize = 3 * 8;
/// Bytes before those of a sample: the size of its image and the length of its other bytes.
const HEAD: usize = 3 * 8;

/// Where a sample is in a segment, and what it was loaded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentRow {
    pub index: u64,
    pub stamp: Option<Stamp>,
    pub offset: u64,
    pub length: u64,
    pub checksum: u32,
}

impl SegmentRow {
    fn write(&self, bytes: &mut Vec<u8>) {
        let stamp = self.stamp.unwrap_or(Stamp { size: 0, written: 0 });
        let fields = [
            self.index,
            u64::from(self.stamp.is_some()),
            stamp.size,
            stamp.written as u64,
            self.offset,
            self.length,
            u64::from(self.checksum),
        ];
        fields.iter().for_each(|field| bytes.extend_from_slice(&field.to_le_bytes()));
    }

    fn read(bytes: &[u8]) -> Option<SegmentRow> {
        let mut fields = bytes.chunks_exact(8).map(number);
        let mut next = || fields.next();
        let (index, has_stamp) = (next()?, next()?);
        let stamp = Stamp { size: next()?, written: next()? as i64 };
        let (offset, length, checksum) = (next()?, next()?, next()?);
        let stamp = (has_stamp == 1).then_some(stamp);
        Some(SegmentRow { index, stamp, offset, length, checksum: u32::try_from(checksum).ok()? })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// A segment that is being written.
pub(super) struct SegmentWriter {
    file: AtomicFile,
    path: PathBuf,
    offset: u64,
    rows: Vec<SegmentRow>,
}

impl SegmentWriter {
    /// The bytes of a file without samples.
    pub(super) const EMPTY: u64 = (MAGIC.len() + END) as u64;

    pub(super) fn new(path: PathBuf) -> io::Result<SegmentWriter> {
        let mut file = AtomicFile::new(&path)?;
        file.add(MAGIC)?;
        Ok(SegmentWriter { file, path, offset: MAGIC.len() as u64, rows: Vec::new() })
    }

    /// The bytes that the file would have.
    pub(super) fn bytes(&self) -> u64 {
        self.offset + (self.rows.len() * ROW + END) as u64
    }

    /// The bytes by which a sample makes it longer.
    pub(super) fn cost(sample: &CachedSample) -> u64 {
        let image = sample.image.as_ref().map_or(0, |image| image.pixels.len());
        (HEAD + sample.bytes.len() + image + ROW) as u64
    }

    pub(super) fn add(
        &mut self,
        index: u64,
        stamp: Option<Stamp>,
        sample: &CachedSample,
    ) -> io::Result<()> {
        let (height, width, pixels) = match &sample.image {
            Some(image) => (image.height, image.width, &*image.pixels),
            None => (0, 0, &[][..]),
        };
        let mut head = Vec::with_capacity(HEAD);
        for field in [height, width, sample.bytes.len()] {
            head.extend_from_slice(&(field as u64).to_le_bytes());
        }
        let mut checksum = 0;
        let mut length = 0;
        for part in [&head, &*sample.bytes, pixels] {
            checksum = crc32c::crc32c_append(checksum, part);
            length += part.len() as u64;
            self.file.add(part)?;
        }
        self.rows.push(SegmentRow { index, stamp, offset: self.offset, length, checksum });
        self.offset += length;
        Ok(())
    }

    /// Writes the table and gives the file its name.
    pub(super) fn finish(mut self) -> io::Result<(Arc<Path>, Vec<SegmentRow>)> {
        let mut table = Vec::with_capacity(self.rows.len() * ROW + END);
        self.rows.iter().for_each(|row| row.write(&mut table));
        let checksum = crc32c::crc32c(&table);
        table.extend_from_slice(&(self.rows.len() as u64).to_le_bytes());
        table.extend_from_slice(&u64::from(checksum).to_le_bytes());
        table.extend_from_slice(MAGIC);
        self.file.add(&table)?;
        self.file.finish(Existing::Stays)?;
        Ok((self.path.into(), self.rows))
    }
}

/// The table of a segment; None if the file is not a complete one.
pub(super) fn table(handle: &Handle) -> io::Result<Option<Vec<SegmentRow>>> {
    let size = handle.size()?;
    let mut end = [0; END];
    let Some(table_end) = size.checked_sub(END as u64) else { return Ok(None) };
    if handle.read_at(&mut end, table_end)? < END || &end[16..] != MAGIC {
        return Ok(None);
    }
    let (count, checksum) = (number(&end[..8]), number(&end[8..16]));
    let Some(start) = count.checked_mul(ROW as u64).and_then(|bytes| table_end.checked_sub(bytes))
    else {
        return Ok(None);
    };
    let mut table = vec![0; (table_end - start) as usize];
    if handle.read_at(&mut table, start)? < table.len()
        || u64::from(crc32c::crc32c(&table)) != checksum
    {
        return Ok(None);
    }
    let rows: Option<Vec<_>> = table.chunks_exact(ROW).map(SegmentRow::read).collect();
    let is_inside =
        |row: &SegmentRow| row.offset.checked_add(row.length).is_some_and(|end| end <= start);
    Ok(rows.filter(|rows| rows.iter().all(is_inside)))
}

/// The sample in the bytes of its row; None if they are not those that were written.
pub(super) fn sample(row: &SegmentRow, bytes: &Piece, channels: usize) -> Option<CachedSample> {
    if bytes.len() as u64 != row.length || crc32c::crc32c(bytes) != row.checksum {
        return None;
    }
    let head = bytes.get(..HEAD)?;
    let field = |at: usize| usize::try_from(number(&head[8 * at..8 * at + 8])).ok();
    let (height, width, length) = (field(0)?, field(1)?, field(2)?);
    let pixels_start = HEAD.checked_add(length).filter(|start| *start <= bytes.len())?;
    let pixels = bytes.part(pixels_start, bytes.len() - pixels_start);
    let image = match (height, width) {
        (0, 0) => None,
        _ => Some(CachedImage { height, width, pixels }),
    };
    let is_whole = match &image {
        None => bytes.len() == pixels_start,
        Some(image) => height.checked_mul(width)?.checked_mul(channels)? == image.pixels.len(),
    };
    is_whole.then(|| CachedSample { bytes: bytes.part(HEAD, length), image })
}
