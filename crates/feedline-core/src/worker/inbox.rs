//! The inbox: shared memory in which the trainer writes the buffers of tasks, one for all its
//! workers.
//!
//! The trainer owns it and hands out its slots, as a worker does with its arena. A slot is reused
//! when the task has its result *and* the worker has released it: one flag per slot, in the inbox
//! itself, says which worker has it. The slots of a dead worker are reclaimed when its end is
//! known. A worker may write to the buffers it receives: the pages are copy-on-write, so the task
//! is unchanged if it is sent again.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::arena::{self, Arena, ArenaPiece};
use super::wire::{self, BufferLocation};
use crate::sys::descriptor::Descriptor;
use crate::sys::lock::Mutex;
use crate::sys::memory::SharedMemory;
use crate::sys::slab::Block;

/// Up to this size, a buffer is copied into the frame: that costs less than a slot.
const SMALL: usize = 4096;

/// The number under which a worker process has slots. No other process alive at the same time has
/// it.
pub fn holder(worker_id: u32, generation: u32) -> u32 {
    (worker_id << 1 | (generation & 1)) + 1
}

/// The trainer's side of the inbox.
pub(crate) struct Inbox {
    arena: Mutex<Arena>,
    file: Descriptor,
    limit: u64,
}

/// The buffers of a task. They stay in location while this lives, so the task can be sent again.
pub struct TaskBuffers(Vec<TaskBuffer>);

enum TaskBuffer {
    InSlot(ArenaPiece),
    Inline(Vec<u8>),
}

impl Inbox {
    /// Creates an inbox of which up to `limit` bytes are used at once.
    pub(crate) fn create(limit: u64) -> io::Result<Inbox> {
        let (file, shared) = arena::create(limit)?;
        Ok(Inbox { arena: Mutex::new(Arena::over(shared)), file, limit })
    }

    /// The descriptor with which a worker maps it.
    pub(crate) fn file(&self) -> &Descriptor {
        &self.file
    }

    /// Stores buffers. Frames carry those for which there is no room.
    pub(crate) fn load(&self, buffers: &[&[u8]]) -> TaskBuffers {
        TaskBuffers(buffers.iter().map(|bytes| self.store(bytes)).collect())
    }

    fn store(&self, bytes: &[u8]) -> TaskBuffer {
        if bytes.len() > SMALL {
            let piece = self.arena.lock().take(bytes.len() as u64, self.limit);
            // Copy without the lock: only this thread has the piece, and it may be large.
            if let Some(piece) = piece
                && piece.fill(bytes)
            {
                return TaskBuffer::InSlot(piece);
            }
        }
        TaskBuffer::Inline(bytes.to_vec())
    }

    /// Encodes the body of a frame, and lends the slots of its buffers to a worker.
    pub(crate) fn encode(
        &self,
        message: &[u8],
        buffers: Option<&TaskBuffers>,
        holder: u32,
    ) -> Vec<u8> {
        for buffer in buffers.iter().flat_map(|buffers| &buffers.0) {
            if let TaskBuffer::InSlot(piece) = buffer {
                self.arena.lock().lend_to(piece.slot(), holder);
            }
        }
        body(message, buffers)
    }

    /// Takes back all slots of a worker that is gone.
    pub(crate) fn reclaim(&self, holder: u32) {
        self.arena.lock().reclaim(holder);
    }

    /// The bytes of all slots, and the number of slots in use.
    pub(crate) fn used(&self) -> (u64, usize) {
        let arena = self.arena.lock();
        (arena.used(), arena.taken())
    }
}

/// The body of a frame to a worker: a table of buffers, of which the first is the message.
pub fn body(message: &[u8], buffers: Option<&TaskBuffers>) -> Vec<u8> {
    let buffers: Vec<_> = buffers.iter().flat_map(|buffers| &buffers.0).collect();
    let mut inline = Vec::new();
    let table = wire::table_bytes(buffers.len() + 1) as u64;
    let mut append = |bytes: &[u8]| {
        // Numbers must be aligned within the frame.
        inline.resize(inline.len().next_multiple_of(8), 0);
        let offset = table + inline.len() as u64;
        inline.extend_from_slice(bytes);
        BufferLocation::Inline { offset, length: bytes.len() as u64 }
    };
    let mut locations = vec![append(message)];
    locations.extend(buffers.into_iter().map(|buffer| match buffer {
        TaskBuffer::InSlot(piece) => BufferLocation::Slot {
            slot: piece.slot(),
            offset: piece.offset(),
            length: piece.bytes(),
        },
        TaskBuffer::Inline(bytes) => append(bytes),
    }));
    [wire::write_table(&locations), inline].concat()
}

/// A worker's side of the inbox.
pub struct WorkerInbox {
    shared: SharedMemory,
    /// The same memory, copy-on-write. `None` if the system does not allow that.
    private: Option<SharedMemory>,
    holder: u32,
}

impl WorkerInbox {
    /// Maps the inbox that the trainer created.
    pub fn open(file: impl AsFd, bytes: usize, holder: u32) -> io::Result<WorkerInbox> {
        let shared = SharedMemory::open(&file, bytes)?;
        Ok(WorkerInbox {
            shared,
            private: SharedMemory::open_copy_on_write(&file, bytes).ok(),
            holder,
        })
    }
}

/// A buffer of a received task. Dropping it returns the slot to the trainer.
pub struct ReceivedBuffer {
    content: BufferMemory,
}

enum BufferMemory {
    InSlot { view: Arc<WorkerInbox>, slot: u32, offset: u64, bytes: u64, copy: Option<Block> },
    Own { original: Vec<u8>, copy: Block },
}

impl ReceivedBuffer {
    /// The address of its first byte; it may be written to.
    pub fn address(&self) -> *mut u8 {
        match &self.content {
            BufferMemory::InSlot { copy: Some(copy), .. } | BufferMemory::Own { copy, .. } => {
                copy.address()
            }
            BufferMemory::InSlot { view, offset, bytes, copy: None, .. } => view
                .private
                .as_ref()
                .and_then(|private| private.address(*offset, *bytes))
                .unwrap_or(std::ptr::null_mut()),
        }
    }

    /// The address of the unchanged bytes. They must not be written to.
    pub fn original(&self) -> *const u8 {
        match &self.content {
            BufferMemory::InSlot { view, offset, bytes, .. } => {
                view.shared.address(*offset, *bytes).unwrap_or(std::ptr::null_mut())
            }
            BufferMemory::Own { original, .. } => original.as_ptr(),
        }
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        match &self.content {
            BufferMemory::InSlot { bytes, .. } => *bytes as usize,
            BufferMemory::Own { original, .. } => original.len(),
        }
    }

    fn in_slot(
        view: &Arc<WorkerInbox>,
        slot: u32,
        offset: u64,
        bytes: u64,
    ) -> Option<ReceivedBuffer> {
        if !arena::is_valid_range(&view.shared, slot, offset, bytes) {
            return None;
        }
        let mut copy = None;
        if view.private.is_none() {
            let mut block = Block::new(bytes as usize)?;
            view.shared.read(offset, block.as_mut());
            copy = Some(block);
        }
        let view = Arc::clone(view);
        Some(ReceivedBuffer { content: BufferMemory::InSlot { view, slot, offset, bytes, copy } })
    }

    fn own(bytes: &[u8]) -> Option<ReceivedBuffer> {
        let mut copy = Block::new(bytes.len())?;
        copy.as_mut().copy_from_slice(bytes);
        Some(ReceivedBuffer { content: BufferMemory::Own { original: bytes.to_vec(), copy } })
    }
}

impl Drop for ReceivedBuffer {
    fn drop(&mut self) {
        if let BufferMemory::InSlot { view, slot, offset, bytes, .. } = &self.content {
            // In a child that a user function has forked, the slot still belongs to the worker.
            if view.shared.home().is_forked() {
                return;
            }
            if let Some(private) = &view.private {
                private.forget(*offset, *bytes);
            }
            arena::give_back(&view.shared, *slot, view.holder);
        }
    }
}

/// Decodes a frame into its message and its buffers. Returns `None` if the frame refers to memory
/// that does not exist.
pub fn open(
    body: &[u8],
    view: Option<&Arc<WorkerInbox>>,
) -> Option<(Vec<u8>, Vec<ReceivedBuffer>)> {
    let mut locations = wire::read_table(body)?.into_iter();
    let inline = |offset: u64, length: u64| {
        body.get(usize::try_from(offset).ok()?..usize::try_from(offset + length).ok()?)
    };
    let message = match locations.next()? {
        BufferLocation::Inline { offset, length } => inline(offset, length)?.to_vec(),
        BufferLocation::Slot { .. } => return None,
    };
    let buffers = locations.map(|location| match location {
        BufferLocation::Inline { offset, length } => ReceivedBuffer::own(inline(offset, length)?),
        BufferLocation::Slot { slot, offset, length } => {
            ReceivedBuffer::in_slot(view?, slot, offset, length)
        }
    });
    Some((message, buffers.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 20;

    fn both() -> (Inbox, Arc<WorkerInbox>) {
        let inbox = Inbox::create(LIMIT).unwrap();
        let bytes = rustix::fs::fstat(inbox.file()).unwrap().st_size as usize;
        let view = WorkerInbox::open(inbox.file(), bytes, holder(3, 1)).unwrap();
        (inbox, Arc::new(view))
    }

    fn content(buffer: &mut ReceivedBuffer) -> Vec<u8> {
        let mut target = vec![0; buffer.bytes()];
        match &mut buffer.content {
            BufferMemory::InSlot { view, offset, .. } => {
                assert!(view.private.as_ref().unwrap().read(*offset, &mut target));
            }
            BufferMemory::Own { copy, .. } => target.copy_from_slice(copy.as_mut()),
        }
        target
    }

    fn original(buffer: &ReceivedBuffer) -> Vec<u8> {
        let mut target = vec![0; buffer.bytes()];
        match &buffer.content {
            BufferMemory::InSlot { view, offset, .. } => {
                assert!(view.shared.read(*offset, &mut target));
            }
            BufferMemory::Own { original, .. } => target.clone_from(original),
        }
        target
    }

    fn change(buffer: &mut ReceivedBuffer) {
        match &mut buffer.content {
            BufferMemory::InSlot { view, offset, .. } => {
                assert!(view.private.as_ref().unwrap().write(*offset, &[99]));
            }
            BufferMemory::Own { copy, .. } => copy.as_mut()[0] = 99,
        }
    }

    #[test]
    fn small_and_large_buffers_arrive() {
        let (inbox, view) = both();
        let large: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
        let buffers = inbox.load(&[b"small", &large, b""]);
        let body = inbox.encode(b"do this", Some(&buffers), holder(3, 1));
        assert!(body.len() < 1000, "the large buffer is not in the frame");
        let (message, mut buffers) = open(&body, Some(&view)).unwrap();
        assert_eq!(message, b"do this");
        let arrived: Vec<_> = buffers.iter_mut().map(content).collect();
        assert_eq!(arrived, [b"small".to_vec(), large, Vec::new()]);
    }

    #[test]
    fn a_worker_may_write_to_a_buffer_and_the_next_one_gets_it_unchanged() {
        let (inbox, view) = both();
        let large = vec![5; 10_000];
        let buffers = inbox.load(&[&large, b"abc"]);
        for _ in 0..2 {
            let body = inbox.encode(b"", Some(&buffers), holder(3, 1));
            let (_, buffers) = open(&body, Some(&view)).unwrap();
            for (mut buffer, wanted) in buffers.into_iter().zip([large.as_slice(), b"abc"]) {
                assert_eq!(content(&mut buffer), wanted);
                change(&mut buffer);
                assert_eq!(content(&mut buffer)[0], 99);
                assert_eq!(original(&buffer), wanted);
            }
        }
    }

    #[test]
    fn a_slot_is_reused_when_task_and_worker_have_released_it() {
        let (inbox, view) = both();
        let load = || inbox.load(&[&[1; 600_000]]);
        let buffers = load();
        let body = inbox.encode(b"", Some(&buffers), holder(3, 1));
        let (_, received) = open(&body, Some(&view)).unwrap();
        drop(buffers);
        assert!(matches!(load().0[..], [TaskBuffer::Inline(_)]), "the worker still has it");
        drop(received);
        assert!(matches!(load().0[..], [TaskBuffer::InSlot(_)]));
        let kept = load();
        assert!(matches!(load().0[..], [TaskBuffer::Inline(_)]), "the task may be sent again");
        drop(kept);
        assert_eq!(inbox.used().1, 0);
    }

    #[test]
    fn the_slots_of_a_dead_worker_are_reclaimed() {
        let (inbox, _) = both();
        let buffers = inbox.load(&[&[1; 600_000]]);
        // It was sent and never opened.
        inbox.encode(b"", Some(&buffers), holder(3, 1));
        drop(buffers);
        assert_eq!(inbox.used().1, 1);
        inbox.reclaim(holder(3, 0));
        assert_eq!(inbox.used().1, 1, "that was another generation");
        inbox.reclaim(holder(3, 1));
        assert_eq!(inbox.used().1, 0);
    }

    #[test]
    fn the_slots_of_a_resent_task_belong_to_its_new_worker() {
        let (inbox, view) = both();
        let buffers = inbox.load(&[&[1; 600_000]]);
        let body = inbox.encode(b"", Some(&buffers), holder(3, 1));
        let (_, received) = open(&body, Some(&view)).unwrap();
        inbox.encode(b"", Some(&buffers), holder(4, 0));
        drop((buffers, received));
        assert_eq!(inbox.used().1, 1, "a late release takes nothing from another worker");
    }

    #[test]
    fn a_frame_that_refers_to_memory_outside_the_inbox_is_none() {
        let (_, view) = both();
        let wild = |location| {
            let message = BufferLocation::Inline { offset: 56, length: 0 };
            open(&wire::write_table(&[message, location]), Some(&view)).is_none()
        };
        assert!(wild(BufferLocation::Slot { slot: 0, offset: 1 << 40, length: 5 }));
        assert!(wild(BufferLocation::Slot { slot: 1 << 20, offset: 8192, length: 5 }));
        assert!(wild(BufferLocation::Slot { slot: 0, offset: 0, length: 5 }));
        assert!(open(&wire::write_table(&[]), Some(&view)).is_none());
    }
}
