//! Socket pairs between processes, and waiting for many of them at once.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, send, sendmsg, socketpair,
};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::descriptor::Descriptor;

/// The outcome of sending or receiving.
#[derive(Debug, PartialEq, Eq)]
pub enum Transfer {
    /// This many bytes were transferred.
    Bytes(usize),
    /// No bytes can be transferred now.
    WouldWait,
    /// The other side is gone.
    Ended,
    /// Other code in this process has closed the descriptor.
    Closed,
}

/// One end of a socket pair.
pub struct Socket(Descriptor);

impl Socket {
    /// Creates the two ends of a byte stream.
    pub fn pair() -> io::Result<(Socket, Socket)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok((Socket(Descriptor::new(ours)?), Socket(Descriptor::new(theirs)?)))
    }

    /// Takes over a descriptor.
    ///
    /// # Safety
    /// It is open, a socket, and has no other owner.
    pub unsafe fn take(descriptor: RawFd) -> io::Result<Socket> {
        // SAFETY: guaranteed by the caller.
        Descriptor::new(unsafe { OwnedFd::from_raw_fd(descriptor) }).map(Socket)
    }

    /// Ends the connection for both sides, even if a fork has a copy of the descriptor.
    pub(crate) fn shut(&self) {
        // It may have ended already.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }

    /// Whether no other code has closed it.
    pub(crate) fn is_intact(&self) -> bool {
        self.0.is_intact()
    }

    /// Releases the descriptor; returns `None` if other code in this process has closed it.
    pub fn into_descriptor(self) -> Option<OwnedFd> {
        self.0.into_owned()
    }

    /// Reads the available bytes without waiting.
    pub(crate) fn try_receive(&self, buffer: &mut [u8]) -> Transfer {
        // Check before reading: the number may belong to the socket of another worker by now.
        if !self.0.is_intact() {
            return Transfer::Closed;
        }
        receive(&self.0, buffer, RecvFlags::DONTWAIT)
    }

    /// Reads, and waits for data. A signal ends the wait with `WouldWait`.
    pub fn receive(&self, buffer: &mut [u8]) -> Transfer {
        receive(&self.0, buffer, RecvFlags::empty())
    }

    /// Waits until there is something to receive, for at most that long. Returns `Bytes(0)` if
    /// there is, and `WouldWait` if a signal ended the wait.
    pub(crate) fn wait_readable(&self, at_most: Duration) -> Option<Transfer> {
        let timeout = Timespec::try_from(at_most).ok();
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => None,
            Err(Errno::INTR) => Some(Transfer::WouldWait),
            // Receiving shows what is wrong.
            Ok(_) | Err(_) => Some(Transfer::Bytes(0)),
        }
    }

    /// Sends what fits without waiting.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> Transfer {
        if !self.0.is_intact() {
            return Transfer::Closed;
        }
        send_outcome(send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
    }

    /// Sends, and waits for room. A signal ends the wait with `WouldWait`.
    pub fn send(&self, bytes: &[u8]) -> Transfer {
        send_outcome(send(&self.0, bytes, SendFlags::NOSIGNAL))
    }

    /// Sends one message with descriptors attached, without waiting.
    pub(crate) fn try_send_with(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        if !self.0.is_intact() {
            return Err(Errno::BADF.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn receive(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> Transfer {
    match recv(socket, buffer, flags) {
        Ok((0, _)) => Transfer::Ended,
        Ok((bytes, _)) => Transfer::Bytes(bytes),
        Err(Errno::AGAIN | Errno::INTR) => Transfer::WouldWait,
        Err(Errno::BADF | Errno::NOTSOCK) => Transfer::Closed,
        Err(_) => Transfer::Ended,
    }
}

fn send_outcome(result: rustix::io::Result<usize>) -> Transfer {
    match result {
        Ok(bytes) => Transfer::Bytes(bytes),
        Err(Errno::AGAIN | Errno::INTR) => Transfer::WouldWait,
        Err(Errno::BADF | Errno::NOTSOCK) => Transfer::Closed,
        Err(_) => Transfer::Ended,
    }
}

/// Waits for events of many descriptors (epoll).
pub(crate) struct Poll(Descriptor);

impl Poll {
    /// Creates an instance without descriptors.
    pub(crate) fn new() -> io::Result<Poll> {
        Descriptor::new(epoll::create(epoll::CreateFlags::CLOEXEC)?).map(Poll)
    }

    /// Waits for data on a descriptor; `name` identifies it.
    pub(crate) fn watch(&self, descriptor: impl AsFd, name: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(name);
        Ok(epoll::add(&self.0, descriptor, data, epoll::EventFlags::IN)?)
    }

    /// Like `watch`, and also waits for room to write.
    pub(crate) fn watch_both(&self, descriptor: impl AsFd, name: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(name);
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        Ok(epoll::add(&self.0, descriptor, data, both)?)
    }

    /// Removes a descriptor. It may be closed, or never have been added.
    pub(crate) fn forget(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.0, descriptor);
    }

    /// Waits up to `at_most` and returns the names of the descriptors that are ready. A signal ends
    /// the wait with none. An error means that other code in this process has closed the epoll
    /// descriptor.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> io::Result<Vec<u64>> {
        let limit = at_most.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        let mut events = Vec::with_capacity(16);
        match epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), limit.as_ref()) {
            Ok(_) => Ok(events.iter().map(|event| event.data.u64()).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Wakes another thread that waits in a [`Poll`].
pub(crate) struct EventFd(Descriptor);

impl EventFd {
    /// Creates an eventfd that is not signalled.
    pub(crate) fn new() -> io::Result<EventFd> {
        Descriptor::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?).map(EventFd)
    }

    /// Wakes the thread that watches it.
    pub(crate) fn ring(&self) {
        // A number that belongs to another file now is not ours to write to.
        if !self.0.is_intact() {
            return;
        }
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Resets the signal.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
