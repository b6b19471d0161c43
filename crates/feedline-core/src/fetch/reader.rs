//! Reads whole files into memory that is used again.

use std::path::Path;
use std::sync::Arc;

use super::OpenFiles;
use crate::budget::{Budget, Permit};
use crate::error::{Error, Kind, Result};
use crate::sys::lock::Mutex;

/// Buffers that are kept between samples: few, and none of them large.
const KEPT_BUFFERS: usize = 32;
const KEPT_BYTES: usize = 512 << 10;

/// Bytes of a sample with their permit. Dropping it gives both back.
pub struct Fetched {
    bytes: Vec<u8>,
    /// For these bytes, and for what will be made of them.
    pub permit: Permit,
    home: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Fetched {
    /// What was read.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes for good, and the permit.
    pub fn into_parts(mut self) -> (Vec<u8>, Option<Permit>) {
        let bytes = std::mem::take(&mut self.bytes);
        let amount = self.permit.amount();
        (bytes, self.permit.split(amount))
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        let mut home = self.home.lock();
        if self.bytes.capacity() > 0
            && self.bytes.capacity() <= KEPT_BYTES
            && home.len() < KEPT_BUFFERS
        {
            home.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// Reads files, holding a permit for each byte.
pub struct Reader {
    files: OpenFiles,
    bytes: Budget,
    buffers: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Reader {
    /// With these descriptors and that budget of bytes.
    pub fn new(files: OpenFiles, bytes: Budget) -> Reader {
        Reader { files, bytes, buffers: Arc::default() }
    }

    /// All of a file. One that changes its size meanwhile is a fault: half of it may be old.
    /// `before_wait` is called before any wait.
    pub fn read(
        &self,
        path: &Path,
        position: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<Fetched> {
        let size = self.files.with(path, position, before_wait, |handle| {
            handle.size().map_err(|error| Error::io(Kind::ReadFailed, "looking at the file", error))
        })?;
        // Without the file in hand: who waits for bytes must not keep others from a descriptor.
        let permit = self
            .bytes
            .acquire_after(size, position, before_wait)
            .map_err(|_| Error::new(Kind::Closed, "the loader is closed"))?;
        self.files.with(path, position, before_wait, |handle| {
            let length = usize::try_from(size).map_err(|_| {
                Error::new(Kind::TooLarge, format!("a file of {size} bytes does not fit in memory"))
            })?;
            let mut bytes = self.buffers.lock().pop().unwrap_or_default();
            bytes.truncate(length);
            if bytes.capacity() < length && bytes.try_reserve_exact(length - bytes.len()).is_err() {
                let message = format!("the system refused {length} bytes for a file");
                return Err(Error::new(Kind::OutOfMemory, message));
            }
            bytes.resize(length, 0);
            let count = handle
                .read_at(&mut bytes, 0)
                .map_err(|error| Error::io(Kind::ReadFailed, "reading the file", error))?;
            if count < length {
                let message =
                    format!("the file shrank from {length} to {count} bytes while it was read");
                return Err(Error::new(Kind::ReadFailed, message));
            }
            Ok(Fetched { bytes, permit, home: Arc::clone(&self.buffers) })
        })
    }

    /// Its descriptors.
    pub fn files(&self) -> &OpenFiles {
        &self.files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;

    fn reader(bytes: u64) -> Reader {
        let files = OpenFiles::new(Budget::new("files", 2), Box::new(drop));
        Reader::new(files, Budget::new("bytes", bytes))
    }

    #[test]
    fn bytes_are_counted_as_long_as_they_are_held() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        file::write(&path, b"hello").unwrap();
        let reader = reader(100);
        let fetched = reader.read(&path, 0, &mut || ()).unwrap();
        assert_eq!((fetched.bytes(), reader.bytes.used()), (b"hello".as_slice(), 5));
        drop(fetched);
        assert_eq!(reader.bytes.used(), 0);
        // A shorter file in a buffer that was used before has no rest of the other.
        file::write(&path.with_extension("b"), b"hi").unwrap();
        assert_eq!(reader.read(&path.with_extension("b"), 0, &mut || ()).unwrap().bytes(), b"hi");
    }

    #[test]
    fn a_folder_is_not_read_as_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let error = reader(100).read(folder.path(), 0, &mut || ()).map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::ReadFailed);
        assert!(error.message().contains("not a regular file"), "{error}");
    }
}
