//! Bytes in memory that several samples may share, with the permit for them.

use std::ops::Deref;
use std::sync::Arc;

use crate::budget::{Budget, IdlePermit, Permit, Reclaim};
use crate::sys::lock::Mutex;

/// Limits of the buffers kept between samples: total bytes, and bytes of the largest buffer.
const KEPT: usize = 24 << 20;
const LARGEST: usize = 1 << 20;

/// Buffers that are free to be used again.
#[derive(Clone)]
pub struct BufferPool(Arc<PooledBuffers>);

struct PooledBuffers {
    budget: Budget,
    free: Mutex<FreeBuffers>,
}

#[derive(Default)]
struct FreeBuffers {
    /// Each counts as idle.
    buffers: Vec<(Vec<u8>, IdlePermit)>,
    bytes: usize,
    is_closed: bool,
}

impl BufferPool {
    /// No buffers yet. They count as idle in this budget, and are freed when samples need the room.
    pub fn new(budget: &Budget) -> BufferPool {
        let pooled = Arc::new(PooledBuffers { budget: budget.clone(), free: Mutex::default() });
        budget.reclaim_from(&pooled);
        BufferPool(pooled)
    }

    /// A buffer that was used before, or an empty one. Its content is stale.
    pub fn take(&self) -> Vec<u8> {
        let mut free = self.0.free.lock();
        let Some((bytes, _)) = free.buffers.pop() else { return Vec::new() };
        free.bytes -= bytes.capacity();
        bytes
    }

    fn put(&self, bytes: Vec<u8>) {
        let capacity = bytes.capacity();
        let mut free = self.0.free.lock();
        let fits = capacity > 0 && capacity <= LARGEST && free.bytes + capacity <= KEPT;
        if fits && !free.is_closed {
            free.bytes += capacity;
            free.buffers.push((bytes, self.0.budget.hold_idle(capacity as u64)));
        }
    }

    /// Frees all buffers, and keeps none from now on.
    pub fn close(&self) {
        *self.0.free.lock() = FreeBuffers { is_closed: true, ..FreeBuffers::default() };
    }
}

impl Reclaim for PooledBuffers {
    fn reclaim(&self, amount: u64) -> u64 {
        let mut given_back = Vec::new();
        let mut bytes = 0;
        {
            let mut free = self.free.lock();
            while bytes < amount
                && let Some(buffer) = free.buffers.pop()
            {
                free.bytes -= buffer.0.capacity();
                bytes += buffer.0.capacity() as u64;
                given_back.push(buffer);
            }
        }
        // Freed without the lock.
        drop(given_back);
        bytes
    }
}

/// A buffer, shared by the pieces of it.
struct Buffer {
    bytes: Vec<u8>,
    buffer_pool: Option<BufferPool>,
    _permit: Option<Permit>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(buffer_pool) = &self.buffer_pool {
            buffer_pool.put(std::mem::take(&mut self.bytes));
        }
    }
}

/// A part of a buffer. The memory and its permit are returned with the last part.
#[derive(Clone)]
pub struct Piece {
    whole: Arc<Buffer>,
    start: usize,
    end: usize,
}

impl Piece {
    /// The bytes up to `end`. The buffer returns to the pool with the last piece.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub fn new(bytes: Vec<u8>, end: usize, permit: Permit, buffer_pool: &BufferPool) -> Piece {
        assert!(end <= bytes.len(), "a piece beyond its memory");
        let whole = Buffer { bytes, buffer_pool: Some(buffer_pool.clone()), _permit: Some(permit) };
        Piece { whole: Arc::new(whole), start: 0, end }
    }

    /// A part of this part.
    ///
    /// # Panics
    /// If it reaches beyond this part.
    #[must_use]
    pub fn part(&self, start: usize, length: usize) -> Piece {
        assert!(start + length <= self.len(), "a part beyond its piece");
        let start = self.start + start;
        Piece { whole: Arc::clone(&self.whole), start, end: start + length }
    }
}

impl From<Vec<u8>> for Piece {
    fn from(bytes: Vec<u8>) -> Piece {
        let end = bytes.len();
        Piece { whole: Arc::new(Buffer { bytes, buffer_pool: None, _permit: None }), start: 0, end }
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole.bytes[self.start..self.end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_permit_are_returned_with_the_last_part() {
        let budget = Budget::new("bytes", 100);
        let buffer_pool = BufferPool::new(&budget);
        let permit = budget.acquire(5, 0).unwrap();
        let whole = Piece::new(b"hello, old".to_vec(), 5, permit, &buffer_pool);
        let (first, last) = (whole.part(0, 2), whole.part(2, 3));
        assert_eq!((&*first, &*last.part(1, 2)), (&b"he"[..], &b"lo"[..]));
        drop((whole, first));
        assert_eq!(budget.used(), 5);
        drop(last);
        assert_eq!(budget.used(), 0);
        assert_eq!(buffer_pool.take(), b"hello, old");
    }

    #[test]
    fn a_pool_keeps_no_more_than_its_limits_and_nothing_when_closed() {
        let buffer_pool = BufferPool::new(&Budget::new("bytes", 100));
        buffer_pool.put(vec![0; LARGEST + 1]);
        assert_eq!(buffer_pool.take().capacity(), 0);
        for _ in 0..2 * KEPT / LARGEST {
            buffer_pool.put(vec![0; LARGEST]);
        }
        let kept =
            std::iter::from_fn(|| Some(buffer_pool.take()).filter(|bytes| !bytes.is_empty()));
        assert_eq!(kept.map(|bytes| bytes.len()).sum::<usize>(), KEPT);
        buffer_pool.put(vec![0; 5]);
        buffer_pool.close();
        buffer_pool.put(vec![0; 5]);
        assert_eq!(buffer_pool.take().capacity(), 0);
    }
}
