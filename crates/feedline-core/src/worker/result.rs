//! The result of a task: a pickle and its buffers, most of them in the worker's arena.

use std::sync::Arc;

use super::arena::{LentBytes, LentSlot};
use super::wire::{BatchTiming, BufferLocation, Frame, FrameKind, read_table};
use crate::sys::memory::SharedMemory;
use crate::sys::slab::Block;

/// The result of a task, not opened yet.
pub struct TaskResult {
    /// The task.
    pub task: u64,
    /// The kind of the result.
    pub kind: FrameKind,
    /// The worker that sent it.
    pub worker_id: u32,
    /// The number of samples, and the slowest one.
    pub timing: BatchTiming,
    body: Vec<u8>,
    parts: Vec<ResultPart>,
    account: Arc<LentBytes>,
    lend_limit: u64,
}

enum ResultPart {
    Inline { offset: usize, length: usize },
    LentSlot(LentSlot),
}

/// A buffer of a result, owned by the consumer.
pub enum ResultBuffer {
    /// Arena memory, which is returned when this is dropped.
    LentSlot(LentSlot),
    /// Memory of its own.
    Own(Block),
}

impl ResultBuffer {
    /// The address of its first byte.
    pub fn address(&self) -> *mut u8 {
        match self {
            ResultBuffer::LentSlot(lent) => lent.address(),
            ResultBuffer::Own(block) => block.address(),
        }
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            ResultBuffer::LentSlot(lent) => lent.bytes() as usize,
            ResultBuffer::Own(block) => block.bytes(),
        }
    }
}

impl TaskResult {
    /// Parses a frame. Returns `None` if it refers to memory that does not exist.
    pub fn new(
        frame: Frame,
        worker_id: u32,
        arena: &Arc<SharedMemory>,
        account: &Arc<LentBytes>,
        lend_limit: u64,
    ) -> Option<TaskResult> {
        let parts = read_table(&frame.body)?
            .into_iter()
            .map(|location| match location {
                BufferLocation::Inline { offset, length } => Some(ResultPart::Inline {
                    offset: usize::try_from(offset).ok()?,
                    length: usize::try_from(length).ok()?,
                }),
                BufferLocation::Slot { slot, offset, length } => {
                    Some(ResultPart::LentSlot(LentSlot::new(arena, slot, offset, length)?))
                }
            })
            .collect::<Option<Vec<_>>>()?;
        let Frame { kind, task, timing, body } = frame;
        let account = Arc::clone(account);
        Some(TaskResult { task, kind, worker_id, timing, body, parts, account, lend_limit })
    }

    /// Returns the buffers in order. Arena memory is lent up to `lend_limit`; beyond it the
    /// consumer gets copies, so a consumer that keeps all batches blocks no worker. Returns `None`
    /// if there is no memory for a copy.
    pub fn open(self) -> Option<Vec<ResultBuffer>> {
        let TaskResult { body, parts, account, lend_limit, .. } = self;
        parts
            .into_iter()
            .map(|part| match part {
                ResultPart::Inline { offset, length } => copy(body.get(offset..offset + length)?),
                ResultPart::LentSlot(mut lent) => {
                    if account.lent_bytes().saturating_add(lent.bytes()) <= lend_limit {
                        lent.count(&account);
                        return Some(ResultBuffer::LentSlot(lent));
                    }
                    let mut block = Block::new(lent.bytes() as usize)?;
                    lent.read(block.as_mut()).then_some(ResultBuffer::Own(block))
                }
            })
            .collect()
    }
}

fn copy(bytes: &[u8]) -> Option<ResultBuffer> {
    let mut block = Block::new(bytes.len())?;
    block.as_mut().copy_from_slice(bytes);
    Some(ResultBuffer::Own(block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::arena;
    use crate::worker::wire::write_table;

    const FIRST: u64 = 8192;

    fn result(
        arena: &Arc<SharedMemory>,
        account: &Arc<LentBytes>,
        limit: u64,
    ) -> Option<TaskResult> {
        let locations = [
            BufferLocation::Inline { offset: 56, length: 2 },
            BufferLocation::Slot { slot: 0, offset: FIRST, length: 5000 },
        ];
        let mut body = write_table(&locations);
        body.extend_from_slice(b"hi");
        let frame =
            Frame { kind: FrameKind::Result, task: 0, timing: BatchTiming::default(), body };
        TaskResult::new(frame, 0, arena, account, limit)
    }

    #[test]
    fn buffers_are_lent_until_the_consumer_has_too_many_then_copied() {
        let (arena, account) = (arena::create(1 << 20).unwrap().1, Arc::new(LentBytes::default()));
        let mut first = result(&arena, &account, 6000).unwrap().open().unwrap();
        assert!(matches!(first[..], [ResultBuffer::Own(_), ResultBuffer::LentSlot(_)]));
        let second = result(&arena, &account, 6000).unwrap().open().unwrap();
        assert!(matches!(second[..], [ResultBuffer::Own(_), ResultBuffer::Own(_)]));
        first.clear();
        let third = result(&arena, &account, 6000).unwrap().open().unwrap();
        assert!(matches!(third[..], [ResultBuffer::Own(_), ResultBuffer::LentSlot(_)]));
    }

    #[test]
    fn a_result_that_refers_to_memory_outside_the_arena_is_none() {
        let (arena, account) = (arena::create(1 << 20).unwrap().1, Arc::new(LentBytes::default()));
        let body = write_table(&[BufferLocation::Slot { slot: 0, offset: 1 << 40, length: 5 }]);
        let frame =
            Frame { kind: FrameKind::Result, task: 0, timing: BatchTiming::default(), body };
        assert!(TaskResult::new(frame, 0, &arena, &account, 0).is_none());
    }
}
