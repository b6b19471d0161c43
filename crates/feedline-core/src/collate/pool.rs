//! Reuses the memory of batches: pages that were touched before need no page fault.

use std::sync::{Arc, Weak};

use crate::budget::Permit;
use crate::error::{Error, Kind, Result};
use crate::sys::lock::Mutex;
use crate::sys::slab::{Block, GiveBack};

/// Free blocks. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Free>>);

#[derive(Default)]
struct Free {
    blocks: Vec<Block>,
    bytes: usize,
    limit: usize,
    is_closed: bool,
}

impl Pool {
    /// A pool that keeps up to `limit` bytes.
    pub(crate) fn new(limit: usize) -> Pool {
        Pool(Arc::new(Mutex::new(Free { limit, ..Free::default() })))
    }

    /// A free block of at least this size and at most twice that, or a new one.
    pub(crate) fn take(&self, bytes: usize) -> Result<Block> {
        {
            let mut free = self.0.lock();
            // From the back: the block returned last is warm in the caches.
            let fitting = free
                .blocks
                .iter()
                .rposition(|block| block.bytes() >= bytes && block.bytes() / 2 <= bytes);
            if let Some(at) = fitting {
                let block = free.blocks.remove(at);
                free.bytes -= block.bytes();
                return Ok(block);
            }
        }
        Block::new(bytes).ok_or_else(|| {
            let message = format!("the system refused {bytes} bytes for a batch");
            Error::new(Kind::OutOfMemory, message)
        })
    }

    /// The callback that returns a block to this pool when its last row is dropped, if the pool still exists.
    pub(crate) fn give_back(&self, permit: Option<Permit>) -> GiveBack {
        let home: Weak<Mutex<Free>> = Arc::downgrade(&self.0);
        Box::new(move |block| {
            let evicted = home.upgrade().map(|home| home.lock().put(block));
            // Only now, so that a thread that waits for the permit finds the block here.
            drop(permit);
            drop(evicted);
        })
    }

    /// Frees all blocks, and keeps none from now on.
    pub(crate) fn close(&self) {
        let mut free = self.0.lock();
        free.is_closed = true;
        free.bytes = 0;
        free.blocks.clear();
    }

    /// Bytes in free blocks.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

impl Free {
    /// Adds a block; returns those that it displaces, for the caller to free without the lock.
    fn put(&mut self, block: Block) -> Vec<Block> {
        if self.is_closed {
            return vec![block];
        }
        self.bytes += block.bytes();
        self.blocks.push(block);
        let mut evicted = Vec::new();
        // Always keep one: a batch larger than the limit is needed again.
        while self.bytes > self.limit && self.blocks.len() > 1 {
            let oldest = self.blocks.remove(0);
            self.bytes -= oldest.bytes();
            evicted.push(oldest);
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::slab::carve;

    #[test]
    fn memory_is_reused_and_the_pool_stays_within_its_limit() {
        let pool = Pool::new(100);
        let rows = carve(pool.take(60).unwrap(), 60, 1, pool.give_back(None));
        let address = rows[0].address();
        drop(rows);
        assert_eq!(pool.free_bytes(), 60);
        let again = carve(pool.take(50).unwrap(), 50, 1, pool.give_back(None));
        assert_eq!((again[0].address(), pool.free_bytes()), (address, 0));
        let other = carve(pool.take(60).unwrap(), 60, 1, pool.give_back(None));
        drop((again, other));
        assert_eq!(pool.free_bytes(), 60);
        let large = carve(pool.take(500).unwrap(), 500, 1, pool.give_back(None));
        drop(large);
        assert_eq!(pool.free_bytes(), 500);
    }

    #[test]
    fn a_block_outlives_its_pool() {
        let pool = Pool::new(100);
        let rows = carve(pool.take(8).unwrap(), 8, 1, pool.give_back(None));
        drop(pool);
        assert_eq!(rows[0].len(), 8);
    }
}
