//! Descriptors that detect when other code in this process has closed them. A program that closes
//! descriptors by number (`os.closerange`, a library that daemonizes the process) also closes ours,
//! and the numbers then belong to whatever is opened next.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::fstat;

/// The device and inode of the file behind a descriptor. Files and sockets have their own; epoll
/// instances and eventfds share one.
pub type FileId = (u64, u64);

/// The file behind a descriptor now.
pub fn file_id(descriptor: impl AsFd) -> io::Result<FileId> {
    let found = fstat(descriptor)?;
    Ok((found.st_dev, found.st_ino))
}

/// A descriptor, and the file that was behind it when we got it.
pub(crate) struct Descriptor {
    owned: ManuallyDrop<OwnedFd>,
    file_id: FileId,
}

impl Descriptor {
    /// Takes over a descriptor.
    pub(crate) fn new(owned: OwnedFd) -> io::Result<Descriptor> {
        let file_id = file_id(&owned)?;
        Ok(Descriptor { owned: ManuallyDrop::new(owned), file_id })
    }

    /// Whether it still refers to the same file. False if other code has closed it, whether or not
    /// its number is in use again.
    pub(crate) fn is_intact(&self) -> bool {
        file_id(&*self.owned).is_ok_and(|now| now == self.file_id)
    }

    /// Releases the descriptor; returns `None` if other code has closed it.
    pub(crate) fn into_owned(mut self) -> Option<OwnedFd> {
        let is_intact = self.is_intact();
        // SAFETY: `self` is forgotten, so it is not used again.
        let owned = unsafe { ManuallyDrop::take(&mut self.owned) };
        std::mem::forget(self);
        if is_intact {
            return Some(owned);
        }
        std::mem::forget(owned);
        None
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // A number that belongs to other code now is not ours to close.
        if self.is_intact() {
            // SAFETY: it is not used after the drop.
            unsafe { ManuallyDrop::drop(&mut self.owned) }
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.owned.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd as _, FromRawFd as _};

    fn socket() -> OwnedFd {
        std::os::unix::net::UnixStream::pair().unwrap().0.into()
    }

    /// Puts another file behind a descriptor, as a program does that closes it and opens another.
    fn replace(descriptor: &Descriptor, by: &OwnedFd) {
        // SAFETY: it is not closed here.
        let mut target =
            ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(descriptor.as_fd().as_raw_fd()) });
        rustix::io::dup2(by, &mut target).unwrap();
    }

    #[test]
    fn a_descriptor_that_others_have_reused_is_not_closed_for_them() {
        let (descriptor, other) = (Descriptor::new(socket()).unwrap(), socket());
        let number = descriptor.as_fd().as_raw_fd();
        assert!(descriptor.is_intact());
        replace(&descriptor, &other);
        assert!(!descriptor.is_intact());
        drop(descriptor);
        // SAFETY: it is ours: the copy of `other` created above.
        let copy = unsafe { OwnedFd::from_raw_fd(number) };
        assert_eq!(file_id(&copy).unwrap(), file_id(&other).unwrap());
    }

    #[test]
    fn a_descriptor_that_others_have_reused_is_not_released() {
        let (descriptor, other) = (Descriptor::new(socket()).unwrap(), socket());
        let number = descriptor.as_fd().as_raw_fd();
        replace(&descriptor, &other);
        assert!(descriptor.into_owned().is_none());
        // SAFETY: as above.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
        assert!(Descriptor::new(other).unwrap().into_owned().is_some());
    }
}
