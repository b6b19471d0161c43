//! Anonymous memory that is written once and then never changes: forked processes inherit it, others map it through
//! its descriptor, and nobody has a copy. The kernel guarantees it with seals, so the bytes can be borrowed safely.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use super::descriptor::Descriptor;

const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// A read-only mapping of sealed memory.
pub struct Sealed {
    start: NonNull<u8>,
    bytes: usize,
    file: Descriptor,
}

// SAFETY: the memory never changes, and the descriptor is only read.
unsafe impl Send for Sealed {}
// SAFETY: as above.
unsafe impl Sync for Sealed {}

impl Sealed {
    /// Copies bytes into new memory; there must be at least one.
    pub fn create(name: &str, bytes: &[u8]) -> io::Result<Sealed> {
        let mut file =
            File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.write_all(bytes)?;
        fcntl_add_seals(&file, SEALS)?;
        Sealed::open(file.into())
    }

    /// Maps the memory behind a descriptor. It is an error if it is not sealed: it could change or shrink, which would
    /// end this process.
    pub fn open(file: OwnedFd) -> io::Result<Sealed> {
        let refuse = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        match fcntl_get_seals(&file) {
            Ok(seals) if seals.contains(SEALS) => {}
            _ => return refuse("the descriptor is not one of sealed memory"),
        }
        let file = Descriptor::new(file)?;
        let bytes = usize::try_from(fstat(&file)?.st_size).unwrap_or_default();
        if bytes == 0 {
            return refuse("the sealed memory is empty");
        }
        // A private mapping: older kernels refuse a shared one of memory that is sealed against writing. Its pages are
        // shared all the same, because it is never written to.
        // SAFETY: a new mapping at no particular address; the seals keep the file from shrinking.
        let start =
            unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Sealed { start, bytes, file })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped with this length as long as `self`, and the seals keep it from changing.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// The descriptor, with which another process can open it; `None` if other code has closed it.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.is_intact().then(|| self.file.as_fd())
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and borrowed by nobody any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mapping_has_the_same_bytes_and_nobody_can_change_them() {
        let sealed = Sealed::create("feedline-test", b"some items").unwrap();
        let copy = sealed.descriptor().unwrap().try_clone_to_owned().unwrap();
        let mut writer = File::from(copy.try_clone().unwrap());
        assert!(writer.write_all(b"other").is_err());
        assert!(writer.set_len(3).is_err());
        let other = Sealed::open(copy).unwrap();
        drop(sealed);
        assert_eq!(other.as_slice(), b"some items");
    }

    #[test]
    fn memory_that_could_change_is_refused() {
        let open = memfd_create("feedline-test", MemfdFlags::ALLOW_SEALING).unwrap();
        File::from(open.try_clone().unwrap()).write_all(b"items").unwrap();
        assert!(Sealed::open(open).is_err());
        assert!(Sealed::open(std::os::unix::net::UnixStream::pair().unwrap().0.into()).is_err());
        assert!(Sealed::create("feedline-test", b"").is_err());
    }
}
