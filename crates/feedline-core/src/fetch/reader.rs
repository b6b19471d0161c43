//! Reads files, whole or in parts, into reused memory.

use std::path::Path;

use super::OpenFiles;
use crate::budget::{Budget, Permit};
use crate::bytes::{BufferPool, Piece};
use crate::error::{Error, Kind, Result};
use crate::sample::in_bytes;

/// Bytes of a sample, and a permit for the values derived from them.
pub(crate) struct Fetched {
    /// The bytes, with a permit of their own.
    pub bytes: Piece,
    /// The permit for the values derived from them.
    pub extra: Option<Permit>,
}

/// A range of bytes in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch<'a> {
    /// The file.
    pub path: &'a Path,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

/// Reads files, holding a permit for each byte.
pub struct Reader {
    files: OpenFiles,
    bytes: Budget,
    buffer_pool: BufferPool,
    /// The most bytes that a sample may take, file and image together.
    largest: u64,
}

impl Reader {
    /// A reader with these descriptors, this budget of bytes and this pool of buffers.
    pub fn new(files: OpenFiles, bytes: Budget, buffer_pool: BufferPool) -> Reader {
        Reader { files, bytes, buffer_pool, largest: u64::MAX }
    }

    /// Refuses samples that take more than this many bytes.
    #[must_use]
    pub(crate) fn up_to(self, largest: u64) -> Reader {
        Reader { largest, ..self }
    }

    /// Refuses a sample that no budget could hold, before any of it is read.
    pub(crate) fn check_size(&self, bytes: u64) -> Result<()> {
        if bytes <= self.largest {
            return Ok(());
        }
        let (needed, allowed) = (in_bytes(bytes), in_bytes(self.largest));
        let message = format!("the sample needs {needed} of memory, the limit is {allowed}");
        // Leaves room for batches and other samples.
        let enough = bytes.saturating_mul(2).div_ceil(1 << 30);
        Err(Error::new(Kind::TooLarge, message).with_hint(format!(
            "if the sample is valid, raise the limit: loader(memory=\"{enough}GiB\")"
        )))
    }

    /// Reads a whole file. A file whose size changes meanwhile is a fault: part of it may be old. Calls `before_wait`
    /// before any wait.
    pub fn read(&self, path: &Path, slot: u64, before_wait: &mut dyn FnMut()) -> Result<Piece> {
        let length = self.files.with(path, slot, before_wait, |handle| {
            handle
                .size()
                .map_err(|error| Error::io(Kind::Read, "reading the size of the file", error))
        })?;
        self.check_size(length)?;
        let stretch = Stretch { path, offset: 0, length };
        let (bytes, count) = self.read_up_to(stretch, 0, slot, before_wait)?;
        if (count as u64) < length {
            let message =
                format!("the file shrank from {length} to {count} bytes while it was read");
            return Err(Error::new(Kind::Read, message));
        }
        Ok(bytes)
    }

    /// Reads a part of a file, with a permit for `more` bytes.
    pub(crate) fn read_part(
        &self,
        stretch: Stretch<'_>,
        more: u64,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<Piece> {
        self.check_size(stretch.length.saturating_add(more))?;
        let (bytes, count) = self.read_up_to(stretch, more, slot, before_wait)?;
        if (count as u64) < stretch.length {
            return Err(shrunk(stretch, count));
        }
        Ok(bytes)
    }

    /// Reads a part of a file into `target`, without a permit.
    pub(crate) fn read_into(
        &self,
        path: &Path,
        offset: u64,
        target: &mut [u8],
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<()> {
        let count = self.files.with(path, slot, before_wait, |handle| {
            handle.read_at(target, offset).map_err(failed)
        })?;
        if count < target.len() {
            return Err(shrunk(Stretch { path, offset, length: target.len() as u64 }, count));
        }
        Ok(())
    }

    fn read_up_to(
        &self,
        stretch: Stretch<'_>,
        more: u64,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<(Piece, usize)> {
        let Stretch { path, offset, length } = stretch;
        // Without an open file: a thread that waits for bytes must not keep others from a descriptor.
        let permit = self
            .bytes
            .acquire_after(length.saturating_add(more), slot, before_wait)
            .map_err(|_| Error::new(Kind::Closed, "the loader is closed"))?;
        let length = usize::try_from(length).map_err(|_| {
            Error::new(Kind::TooLarge, format!("{length} bytes do not fit in memory"))
        })?;
        let mut bytes = self.buffer(length, slot, before_wait)?;
        self.files.with(path, slot, before_wait, |handle| {
            let count = handle.read_at(&mut bytes[..length], offset).map_err(failed)?;
            Ok((Piece::new(bytes, length, permit, &self.buffer_pool), count))
        })
    }

    /// A buffer of at least this length. If the system has no memory, it is asked again when others have returned some.
    fn buffer(&self, length: usize, slot: u64, before_wait: &mut dyn FnMut()) -> Result<Vec<u8>> {
        let mut bytes = self.buffer_pool.take();
        // A reused buffer is not cleared, because all of it is overwritten.
        if bytes.len() >= length {
            return Ok(bytes);
        }
        bytes.clear();
        self.bytes.allocate(length, "a file", slot, before_wait, || {
            bytes.try_reserve_exact(length).ok()
        })?;
        bytes.resize(length, 0);
        Ok(bytes)
    }

    /// Its open files.
    pub fn files(&self) -> &OpenFiles {
        &self.files
    }

    /// Its pool of buffers.
    pub(crate) fn buffer_pool(&self) -> &BufferPool {
        &self.buffer_pool
    }

    /// Its budget of bytes.
    pub fn budget(&self) -> &Budget {
        &self.bytes
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io(Kind::Read, "reading the file", error)
}

fn shrunk(stretch: Stretch<'_>, count: usize) -> Error {
    let (end, wanted) = (stretch.offset + count as u64, stretch.offset + stretch.length);
    let message = format!("the file shrank: it ends at byte {end}, the record at byte {wanted}");
    Error::new(Kind::CorruptRecord, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;

    fn reader(bytes: u64) -> Reader {
        let files = OpenFiles::new(Budget::new("files", 2));
        let budget = Budget::new("bytes", bytes);
        let buffer_pool = BufferPool::new(&budget);
        Reader::new(files, budget, buffer_pool)
    }

    #[test]
    fn bytes_are_counted_as_long_as_they_are_held() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        file::write(&path, b"hello").unwrap();
        let reader = reader(100);
        let fetched = reader.read(&path, 0, &mut || ()).unwrap();
        assert_eq!((&*fetched, reader.bytes.used()), (b"hello".as_slice(), 5));
        drop(fetched);
        assert_eq!(reader.bytes.used(), 0);
        // A shorter file in a reused buffer has no rest of the longer one.
        file::write(&path.with_extension("b"), b"hi").unwrap();
        assert_eq!(&*reader.read(&path.with_extension("b"), 0, &mut || ()).unwrap(), b"hi");
    }

    #[test]
    fn a_part_beyond_the_end_says_where_the_file_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        file::write(&path, b"hello").unwrap();
        let (reader, path) = (reader(100), path.as_path());
        let stretch = Stretch { path, offset: 1, length: 3 };
        let part = reader.read_part(stretch, 20, 0, &mut || ()).unwrap();
        assert_eq!((&*part, reader.bytes.used()), (b"ell".as_slice(), 23));
        let stretch = Stretch { path, offset: 3, length: 9 };
        let error = reader.read_part(stretch, 0, 0, &mut || ()).map(drop).unwrap_err();
        assert!(error.message().contains("ends at byte 5, the record at byte 12"), "{error}");
    }

    #[test]
    fn a_sample_that_no_budget_can_hold_is_refused_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse.png");
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        let sparse =
            rustix::fs::open(&path, flags, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        rustix::fs::ftruncate(&sparse, 1 << 40).unwrap();
        let reader = reader(100).up_to(64 << 20);
        let error = reader.read(&path, 0, &mut || ()).map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge);
        let text = error.to_string();
        assert!(text.contains("needs 1024.0 GiB of memory, the limit is 64.0 MiB"), "{text}");
        assert!(text.contains("memory=\"2048GiB\""), "{text}");
        let stretch = Stretch { path: &path, offset: 5, length: 65 << 20 };
        assert!(reader.read_part(stretch, 0, 0, &mut || ()).is_err());
        assert_eq!(reader.bytes.used(), 0);
    }

    #[test]
    fn a_folder_is_not_read_as_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let error = reader(100).read(folder.path(), 0, &mut || ()).map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Read);
        assert!(error.message().contains("not a regular file"), "{error}");
    }
}
