//! Anonymous memory that several processes share. It is freed with its last user.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::descriptor::Descriptor;
use super::process::OwnerProcess;

/// A mapping of shared memory. Pages cost nothing until they are touched.
pub struct SharedMemory {
    start: NonNull<u8>,
    bytes: usize,
    home: OwnerProcess,
}

// SAFETY: the mapping is plain memory; access that needs an order goes through the atomic words.
unsafe impl Send for SharedMemory {}
// SAFETY: as above. Bytes that both sides may touch are only reached as raw addresses, and an
// atomic word says which side may use them.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Creates zeroed memory, and the descriptor with which another process can map it.
    pub(crate) fn create(name: &str, bytes: usize) -> io::Result<(Descriptor, SharedMemory)> {
        let file = Descriptor::new(memfd_create(name, MemfdFlags::CLOEXEC)?)?;
        ftruncate(&file, bytes as u64)?;
        let shared = SharedMemory::open(&file, bytes)?;
        Ok((file, shared))
    }

    /// Maps memory that another process created.
    pub fn open(file: impl AsFd, bytes: usize) -> io::Result<SharedMemory> {
        SharedMemory::map(file, bytes, MapFlags::SHARED | MapFlags::NORESERVE)
    }

    /// Maps memory copy-on-write: what this process writes is invisible to others, until `forget`
    /// discards it.
    pub fn open_copy_on_write(file: impl AsFd, bytes: usize) -> io::Result<SharedMemory> {
        SharedMemory::map(file, bytes, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    fn map(file: impl AsFd, bytes: usize, flags: MapFlags) -> io::Result<SharedMemory> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at no particular address; the file is never truncated.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedMemory { start, bytes, home: OwnerProcess::here() })
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The process that mapped it.
    pub fn home(&self) -> OwnerProcess {
        self.home
    }

    /// The address of `offset`; `None` if `length` bytes from there are not all inside.
    pub fn address(&self, offset: u64, length: u64) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        if end > self.bytes as u64 {
            return None;
        }
        // SAFETY: inside the mapping by the check above.
        Some(unsafe { self.start.as_ptr().add(offset as usize) })
    }

    /// The offset of an address, if all its `length` bytes are inside.
    pub fn offset(&self, address: usize, length: usize) -> Option<u64> {
        let offset = address.checked_sub(self.start.as_ptr() as usize)?;
        let end = offset.checked_add(length)?;
        (end <= self.bytes).then_some(offset as u64)
    }

    /// An atomic word that both sides may change.
    ///
    /// # Panics
    /// If the word is outside or not aligned: offsets of words are constants.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: inside, aligned (mappings begin at a page), and only ever used as an atomic.
        unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Like `word`, with 32 bits.
    ///
    /// # Panics
    /// Like `word`.
    pub(crate) fn flag(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes);
        // SAFETY: as in `word`.
        unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// Copies bytes in; returns false if they do not fit. No other code may use that part.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(target) = self.address(offset, bytes.len() as u64) else { return false };
        // SAFETY: the target is inside the mapping, and a slice of ours cannot overlap it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        true
    }

    /// Copies bytes out; returns false if they are outside. Bytes that another process writes
    /// meanwhile may be torn.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> bool {
        let Some(source) = self.address(offset, target.len() as u64) else { return false };
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        true
    }

    /// Returns the pages of a part to the system; they read as zero afterwards.
    pub(crate) fn give_back(&self, offset: u64, length: u64) {
        if let Some(address) = self.address(offset, length) {
            // If the system cannot, the pages stay: that uses more memory, but is no error.
            // SAFETY: inside our own mapping; the caller owns the part.
            let _ = unsafe { madvise(address.cast(), length as usize, Advice::LinuxRemove) };
        }
    }
}

impl SharedMemory {
    /// In a copy-on-write mapping: discards what was written to a part, so the shared content is
    /// visible again. This affects whole pages, including those at both ends.
    pub fn forget(&self, offset: u64, length: u64) {
        if let Some(address) = self.address(offset, length) {
            // SAFETY: inside our own mapping, from the start of a page; the caller owns the part.
            let _ = unsafe { madvise(address.cast(), length as usize, Advice::LinuxDontNeed) };
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; code that hands out addresses keeps the mapping
        // alive.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_on_write_pages_are_invisible_to_others_until_forgotten() {
        let (file, shared) = SharedMemory::create("feedline-test", 8192).unwrap();
        let private = SharedMemory::open_copy_on_write(&file, 8192).unwrap();
        shared.write(0, b"first");
        let mut seen = [0; 5];
        assert!(private.read(0, &mut seen) && seen == *b"first");
        private.write(0, b"mine!");
        shared.write(4096, b"other");
        assert!(shared.read(0, &mut seen) && seen == *b"first");
        assert!(private.read(4096, &mut seen) && seen == *b"other");
        shared.write(0, b"again");
        private.forget(0, 5);
        assert!(private.read(0, &mut seen) && seen == *b"again");
    }
}
