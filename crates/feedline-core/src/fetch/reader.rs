//! Reads files, whole or in parts, into memory that is used again.

use std::path::Path;

use super::OpenFiles;
use crate::budget::{Budget, Permit};
use crate::bytes::{BufferPool, Piece};
use crate::error::{Error, Kind, Result};
use crate::sample::in_bytes;

/// Bytes of a sample, and a permit for what will be made of them.
pub(crate) struct Fetched {
    /// What was read; its permit is its own.
    pub bytes: Piece,
    /// For what will be made of it.
    pub extra: Option<Permit>,
}

/// Where bytes are to be read: in a file, from an offset, this many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch<'a> {
    /// The file.
    pub path: &'a Path,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

/// Reads files, holding a permit for each byte.
pub struct Reader {
    files: OpenFiles,
    bytes: Budget,
    buffer_pool: BufferPool,
    /// Bytes that a sample may take, file and picture together.
    largest: u64,
}

impl Reader {
    /// With these descriptors, that budget of bytes, and memory from there.
    pub fn new(files: OpenFiles, bytes: Budget, buffer_pool: BufferPool) -> Reader {
        Reader { files, bytes, buffer_pool, largest: u64::MAX }
    }

    /// Refuses samples that take more than this many bytes.
    #[must_use]
    pub(crate) fn up_to(self, largest: u64) -> Reader {
        Reader { largest, ..self }
    }

    /// Refuses a sample that takes this many bytes, before any of it is read, if no budget could hold it.
    pub(crate) fn check_size(&self, bytes: u64) -> Result<()> {
        if bytes <= self.largest {
            return Ok(());
        }
        let (needed, allowed) = (in_bytes(bytes), in_bytes(self.largest));
        let message = format!("the sample needs {needed} of memory, and may take {allowed}");
        // Room for batches and other samples beside it.
        let enough = bytes.saturating_mul(2).div_ceil(1 << 30);
        Err(Error::new(Kind::TooLarge, message)
            .with_hint(format!("if it is good, allow it: loader(memory=\"{enough}GiB\")")))
    }

    /// All of a file. One that changes its size meanwhile is a fault: half of it may be old.
    /// `before_wait` is called before any wait.
    pub fn read(&self, path: &Path, position: u64, before_wait: &mut dyn FnMut()) -> Result<Piece> {
        let length = self.files.with(path, position, before_wait, |handle| {
            handle.size().map_err(|error| Error::io(Kind::Read, "looking at the file", error))
        })?;
        self.check_size(length)?;
        let stretch = Stretch { path, offset: 0, length };
        let (bytes, count) = self.read_up_to(stretch, 0, position, before_wait)?;
        if (count as u64) < length {
            let message =
                format!("the file shrank from {length} to {count} bytes while it was read");
            return Err(Error::new(Kind::Read, message));
        }
        Ok(bytes)
    }

    /// A part of a file, and a permit for `more` bytes with it.
    pub(crate) fn read_part(
        &self,
        stretch: Stretch<'_>,
        more: u64,
        position: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<Piece> {
        self.check_size(stretch.length.saturating_add(more))?;
        let (bytes, count) = self.read_up_to(stretch, more, position, before_wait)?;
        if (count as u64) < stretch.length {
            return Err(shrunk(stretch, count));
        }
        Ok(bytes)
    }

    /// Reads a part of a file to where it is wanted; nothing is held for it.
    pub(crate) fn read_into(
        &self,
        path: &Path,
        offset: u64,
        target: &mut [u8],
        position: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<()> {
        let count = self.files.with(path, position, before_wait, |handle| {
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
        position: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<(Piece, usize)> {
        let Stretch { path, offset, length } = stretch;
        // Without the file in hand: who waits for bytes must not keep others from a descriptor.
        let permit = self
            .bytes
            .acquire_after(length.saturating_add(more), position, before_wait)
            .map_err(|_| Error::new(Kind::Closed, "the loader is closed"))?;
        self.files.with(path, position, before_wait, |handle| {
            let length = usize::try_from(length).map_err(|_| {
                Error::new(Kind::TooLarge, format!("{length} bytes do not fit in memory"))
            })?;
            let mut bytes = self.buffer_pool.take();
            // Of what was used before, nothing is cleared: it is written to.
            if bytes.len() < length {
                bytes.clear();
                if bytes.try_reserve_exact(length).is_err() {
                    let message = format!("the system refused {length} bytes for a file");
                    return Err(Error::new(Kind::OutOfMemory, message));
                }
                bytes.resize(length, 0);
            }
            let count = handle.read_at(&mut bytes[..length], offset).map_err(failed)?;
            Ok((Piece::new(bytes, length, permit, &self.buffer_pool), count))
        })
    }

    /// Its descriptors.
    pub fn files(&self) -> &OpenFiles {
        &self.files
    }

    /// Where memory goes that is not needed any more.
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
    let message =
        format!("the file has shrunk: it ends at byte {end}, and the record at byte {wanted}");
    Error::new(Kind::CorruptRecord, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;

    fn reader(bytes: u64) -> Reader {
        let files = OpenFiles::new(Budget::new("files", 2), Box::new(drop));
        Reader::new(files, Budget::new("bytes", bytes), BufferPool::default())
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
        // A shorter file in a buffer that was used before has no rest of the other.
        file::write(&path.with_extension("b"), b"hi").unwrap();
        assert_eq!(&*reader.read(&path.with_extension("b"), 0, &mut || ()).unwrap(), b"hi");
    }

    #[test]
    fn a_part_is_read_alone_and_one_beyond_the_end_says_where_the_file_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        file::write(&path, b"hello").unwrap();
        let (reader, path) = (reader(100), path.as_path());
        let stretch = Stretch { path, offset: 1, length: 3 };
        let part = reader.read_part(stretch, 20, 0, &mut || ()).unwrap();
        assert_eq!((&*part, reader.bytes.used()), (b"ell".as_slice(), 23));
        let stretch = Stretch { path, offset: 3, length: 9 };
        let error = reader.read_part(stretch, 0, 0, &mut || ()).map(drop).unwrap_err();
        assert!(error.message().contains("ends at byte 5, and the record at byte 12"), "{error}");
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
        assert!(text.contains("needs 1024.0 GiB of memory, and may take 64.0 MiB"), "{text}");
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
