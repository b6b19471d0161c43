//! Reuses the memory of batches: pages that were touched before need no page fault.

use std::sync::{Arc, Weak};

use crate::budget::{Budget, IdlePermit, Permit, Reclaim};
use crate::error::Result;
use crate::sys::lock::Mutex;
use crate::sys::slab::{Block, GiveBack};

/// Free blocks. Clones share them.
#[derive(Clone)]
pub(crate) struct Pool(Arc<PooledBlocks>);

struct PooledBlocks {
    budget: Budget,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// The oldest first. Each counts as idle.
    blocks: Vec<(Block, IdlePermit)>,
    bytes: usize,
    limit: usize,
    is_closed: bool,
}

impl Pool {
    /// A pool that keeps up to `limit` bytes, and gives them back when samples need them.
    pub(crate) fn new(limit: usize, budget: &Budget) -> Pool {
        let free = Mutex::new(Free { limit, ..Free::default() });
        let pooled = Arc::new(PooledBlocks { budget: budget.clone(), free });
        budget.reclaim_from(&pooled);
        Pool(pooled)
    }

    /// A free block of at least this size and at most twice that, or a new one. If the system has no memory, it is
    /// asked again when others have returned some; `slot` says who waits.
    pub(crate) fn take(&self, bytes: usize, slot: u64) -> Result<Block> {
        {
            let mut free = self.0.free.lock();
            // From the back: the block returned last is warm in the caches.
            let fitting = free
                .blocks
                .iter()
                .rposition(|(block, _)| block.bytes() >= bytes && block.bytes() / 2 <= bytes);
            if let Some(at) = fitting {
                let (block, _) = free.blocks.remove(at);
                free.bytes -= block.bytes();
                return Ok(block);
            }
        }
        // Other blocks and what else is idle make room for a new one.
        self.0.budget.trim();
        let budget = &self.0.budget;
        budget.allocate(bytes, "a batch", slot, &mut || (), || Block::new(bytes))
    }

    /// The callback that returns a block to this pool when its last row is dropped, if the pool still exists.
    pub(crate) fn give_back(&self, permit: Option<Permit>) -> GiveBack {
        let home: Weak<PooledBlocks> = Arc::downgrade(&self.0);
        Box::new(move |block| {
            let evicted = home.upgrade().map(|home| home.put(block));
            // Only now, so that a thread that waits for the permit finds the block here.
            drop(permit);
            drop(evicted);
        })
    }

    /// Frees all blocks, and keeps none from now on.
    pub(crate) fn close(&self) {
        let mut free = self.0.free.lock();
        free.is_closed = true;
        free.bytes = 0;
        free.blocks.clear();
    }

    /// Bytes in free blocks.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        self.0.free.lock().bytes
    }
}

impl PooledBlocks {
    /// Adds a block; returns those that it displaces, for the caller to free without the lock.
    fn put(&self, block: Block) -> Vec<(Block, IdlePermit)> {
        let permit = self.budget.hold_idle(block.bytes() as u64);
        let mut free = self.free.lock();
        if free.is_closed {
            return vec![(block, permit)];
        }
        free.bytes += block.bytes();
        free.blocks.push((block, permit));
        let mut evicted = Vec::new();
        // Always keep one: a batch larger than the limit is needed again.
        while free.bytes > free.limit && free.blocks.len() > 1 {
            evicted.push(free.remove_oldest());
        }
        evicted
    }
}

impl Free {
    fn remove_oldest(&mut self) -> (Block, IdlePermit) {
        let oldest = self.blocks.remove(0);
        self.bytes -= oldest.0.bytes();
        oldest
    }
}

impl Reclaim for PooledBlocks {
    fn reclaim(&self, amount: u64) -> u64 {
        let mut given_back = Vec::new();
        let mut bytes = 0;
        {
            let mut free = self.free.lock();
            while bytes < amount && !free.blocks.is_empty() {
                let oldest = free.remove_oldest();
                bytes += oldest.0.bytes() as u64;
                given_back.push(oldest);
            }
        }
        // Freed without the lock.
        drop(given_back);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::slab::carve;

    #[test]
    fn memory_is_reused_and_the_pool_stays_within_its_limit() {
        let pool = Pool::new(100, &Budget::new("bytes", 1000));
        let rows = carve(pool.take(60, 0).unwrap(), 60, 1, pool.give_back(None));
        let address = rows[0].address();
        drop(rows);
        assert_eq!(pool.free_bytes(), 60);
        let again = carve(pool.take(50, 0).unwrap(), 50, 1, pool.give_back(None));
        assert_eq!((again[0].address(), pool.free_bytes()), (address, 0));
        let other = carve(pool.take(60, 0).unwrap(), 60, 1, pool.give_back(None));
        drop((again, other));
        assert_eq!(pool.free_bytes(), 60);
        let large = carve(pool.take(500, 0).unwrap(), 500, 1, pool.give_back(None));
        drop(large);
        assert_eq!(pool.free_bytes(), 500);
    }

    #[test]
    fn a_block_outlives_its_pool() {
        let pool = Pool::new(100, &Budget::new("bytes", 1000));
        let rows = carve(pool.take(8, 0).unwrap(), 8, 1, pool.give_back(None));
        drop(pool);
        assert_eq!(rows[0].len(), 8);
    }
}
