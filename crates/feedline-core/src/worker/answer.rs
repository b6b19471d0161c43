//! What a worker answered: a pickle and the buffers beside it, most of them in the worker's arena.

use std::sync::Arc;

use super::arena::{Account, Lent};
use super::wire::{Frame, Place, Said, Tally, read_table};
use crate::sys::memory::Shared;
use crate::sys::slab::Block;

/// The result of a task, not opened yet.
pub struct Answer {
    /// Which task.
    pub task: u64,
    /// What kind of result.
    pub said: Said,
    /// The post of the worker that gave it.
    pub post: u32,
    /// What it is made of.
    pub tally: Tally,
    body: Vec<u8>,
    parts: Vec<Part>,
    account: Arc<Account>,
    lend_limit: u64,
}

enum Part {
    Inline { offset: usize, length: usize },
    Lent(Lent),
}

/// A buffer of an answer in the consumer's hands.
pub enum Buffer {
    /// Memory of the arena, which goes back when this is dropped.
    Lent(Lent),
    /// Memory of its own.
    Own(Block),
}

impl Buffer {
    /// Where it lies.
    pub fn address(&self) -> *mut u8 {
        match self {
            Buffer::Lent(lent) => lent.address(),
            Buffer::Own(block) => block.address(),
        }
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        match self {
            Buffer::Lent(lent) => lent.bytes() as usize,
            Buffer::Own(block) => block.bytes(),
        }
    }
}

impl Answer {
    /// None if the frame names memory that does not exist.
    pub fn new(
        frame: Frame,
        post: u32,
        arena: &Arc<Shared>,
        account: &Arc<Account>,
        lend_limit: u64,
    ) -> Option<Answer> {
        let parts = read_table(&frame.body)?
            .into_iter()
            .map(|place| match place {
                Place::Inline { offset, length } => Some(Part::Inline {
                    offset: usize::try_from(offset).ok()?,
                    length: usize::try_from(length).ok()?,
                }),
                Place::Slot { slot, offset, length } => {
                    Some(Part::Lent(Lent::new(arena, slot, offset, length)?))
                }
            })
            .collect::<Option<Vec<_>>>()?;
        let Frame { said, task, tally, body } = frame;
        let account = Arc::clone(account);
        Some(Answer { task, said, post, tally, body, parts, account, lend_limit })
    }

    /// Its buffers in order. Memory of the arena is lent as long as the consumer has not too much of
    /// it already: then it gets a copy, so that a consumer who keeps everything holds up nobody. None
    /// if the system has no memory for a copy.
    pub fn open(self) -> Option<Vec<Buffer>> {
        let Answer { body, parts, account, lend_limit, .. } = self;
        parts
            .into_iter()
            .map(|part| match part {
                Part::Inline { offset, length } => copy(body.get(offset..offset + length)?),
                Part::Lent(mut lent) => {
                    if account.lent_bytes().saturating_add(lent.bytes()) <= lend_limit {
                        lent.count(&account);
                        return Some(Buffer::Lent(lent));
                    }
                    let mut block = Block::new(lent.bytes() as usize)?;
                    lent.read(block.as_mut()).then_some(Buffer::Own(block))
                }
            })
            .collect()
    }
}

fn copy(bytes: &[u8]) -> Option<Buffer> {
    let mut block = Block::new(bytes.len())?;
    block.as_mut().copy_from_slice(bytes);
    Some(Buffer::Own(block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::arena;
    use crate::worker::wire::write_table;

    const FIRST: u64 = 8192;

    fn answer(arena: &Arc<Shared>, account: &Arc<Account>, limit: u64) -> Option<Answer> {
        let places = [
            Place::Inline { offset: 56, length: 2 },
            Place::Slot { slot: 0, offset: FIRST, length: 5000 },
        ];
        let mut body = write_table(&places);
        body.extend_from_slice(b"hi");
        let frame = Frame { said: Said::Result, task: 0, tally: Tally::default(), body };
        Answer::new(frame, 0, arena, account, limit)
    }

    #[test]
    fn buffers_are_lent_until_the_consumer_has_too_many_then_copied() {
        let (arena, account) = (arena::create(1 << 20).unwrap().1, Arc::new(Account::default()));
        let mut first = answer(&arena, &account, 6000).unwrap().open().unwrap();
        assert!(matches!(first[..], [Buffer::Own(_), Buffer::Lent(_)]));
        let second = answer(&arena, &account, 6000).unwrap().open().unwrap();
        assert!(matches!(second[..], [Buffer::Own(_), Buffer::Own(_)]));
        first.clear();
        let third = answer(&arena, &account, 6000).unwrap().open().unwrap();
        assert!(matches!(third[..], [Buffer::Own(_), Buffer::Lent(_)]));
    }

    #[test]
    fn an_answer_that_names_memory_outside_of_the_arena_is_none() {
        let (arena, account) = (arena::create(1 << 20).unwrap().1, Arc::new(Account::default()));
        let body = write_table(&[Place::Slot { slot: 0, offset: 1 << 40, length: 5 }]);
        let frame = Frame { said: Said::Result, task: 0, tally: Tally::default(), body };
        assert!(Answer::new(frame, 0, &arena, &account, 0).is_none());
    }
}
