//! Pairs of sockets between processes, and waiting for many of them at once.

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
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

/// What came of a call that does not wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Moved {
    /// That many bytes.
    Bytes(usize),
    /// None now.
    WouldWait,
    /// The other side is gone.
    Ended,
    /// Other code of this process has closed the descriptor.
    Closed,
}

/// One end of a pair.
pub struct Socket(Descriptor);

impl Socket {
    /// Two ends of a stream of bytes.
    pub fn pair() -> io::Result<(Socket, Socket)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok((Socket(Descriptor::new(ours)?), Socket(Descriptor::new(theirs)?)))
    }

    /// Takes over a descriptor.
    ///
    /// # Safety
    /// It is open, a socket, and belongs to nobody else.
    pub unsafe fn take(descriptor: RawFd) -> io::Result<Socket> {
        // SAFETY: the caller's word.
        Descriptor::new(unsafe { OwnedFd::from_raw_fd(descriptor) }).map(Socket)
    }

    /// Ends it for both sides, also where a fork has a copy of the descriptor.
    pub(crate) fn shut(&self) {
        // It may be at its end already.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }

    /// Whether nobody else has closed it.
    pub(crate) fn is_intact(&self) -> bool {
        self.0.is_intact()
    }

    /// Gives the descriptor away; None if other code of this process has closed it.
    pub fn into_descriptor(self) -> Option<OwnedFd> {
        self.0.into_owned()
    }

    /// Reads what is there, without waiting.
    pub(crate) fn try_receive(&self, buffer: &mut [u8]) -> Moved {
        // Before reading: its number may belong to the socket of other workers by now.
        if !self.0.is_intact() {
            return Moved::Closed;
        }
        receive(&self.0, buffer, RecvFlags::DONTWAIT)
    }

    /// Reads, waiting for something to come. A signal ends the wait with `WouldWait`.
    pub fn receive(&self, buffer: &mut [u8]) -> Moved {
        receive(&self.0, buffer, RecvFlags::empty())
    }

    /// Sends what fits, without waiting.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> Moved {
        if !self.0.is_intact() {
            return Moved::Closed;
        }
        sent(send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
    }

    /// Sends, waiting for room. A signal ends the wait with `WouldWait`.
    pub fn send(&self, bytes: &[u8]) -> Moved {
        sent(send(&self.0, bytes, SendFlags::NOSIGNAL))
    }

    /// Sends one message and descriptors with it, without waiting.
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

fn receive(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> Moved {
    match recv(socket, buffer, flags) {
        Ok((0, _)) => Moved::Ended,
        Ok((bytes, _)) => Moved::Bytes(bytes),
        Err(Errno::AGAIN | Errno::INTR) => Moved::WouldWait,
        Err(Errno::BADF | Errno::NOTSOCK) => Moved::Closed,
        Err(_) => Moved::Ended,
    }
}

fn sent(result: rustix::io::Result<usize>) -> Moved {
    match result {
        Ok(bytes) => Moved::Bytes(bytes),
        Err(Errno::AGAIN | Errno::INTR) => Moved::WouldWait,
        Err(Errno::BADF | Errno::NOTSOCK) => Moved::Closed,
        Err(_) => Moved::Ended,
    }
}

/// Which of many descriptors have something to say.
pub(crate) struct Poll(Descriptor);

impl Poll {
    /// None yet.
    pub(crate) fn new() -> io::Result<Poll> {
        Descriptor::new(epoll::create(epoll::CreateFlags::CLOEXEC)?).map(Poll)
    }

    /// Watches a descriptor for something to read, under a name.
    pub(crate) fn watch(&self, descriptor: impl AsFd, name: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(name);
        Ok(epoll::add(&self.0, descriptor, data, epoll::EventFlags::IN)?)
    }

    /// As `watch`, also for room to write.
    pub(crate) fn watch_both(&self, descriptor: impl AsFd, name: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(name);
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        Ok(epoll::add(&self.0, descriptor, data, both)?)
    }

    /// No more. That it was never watched, or is closed, is no matter.
    pub(crate) fn forget(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.0, descriptor);
    }

    /// The names of those that have something, after `at_most`, or at once when there are some. A
    /// signal ends the wait with none. An error means that other code of this process has closed the
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

/// Ends the wait of another thread.
pub(crate) struct EventFd(Descriptor);

impl EventFd {
    /// Silent.
    pub(crate) fn new() -> io::Result<EventFd> {
        Descriptor::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?).map(EventFd)
    }

    /// The thread that watches it wakes.
    pub(crate) fn ring(&self) {
        // A number that belongs to a file of somebody else now is not ours to write to.
        if !self.0.is_intact() {
            return;
        }
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silent again.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
