//! Bytes in memory that several samples may share, with the permit for them.

use std::ops::Deref;
use std::sync::Arc;

use crate::budget::Permit;
use crate::sys::lock::Mutex;

/// Buffers that are kept between samples: few, and none of them large.
const KEPT_BUFFERS: usize = 32;
const KEPT_BYTES: usize = 512 << 10;

/// Where memory goes when nobody needs its bytes any more.
#[derive(Clone, Default)]
pub struct Shelf(Arc<Mutex<Vec<Vec<u8>>>>);

impl Shelf {
    /// Memory that was used before, or none. What it holds is old.
    pub fn take(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_default()
    }

    fn put(&self, bytes: Vec<u8>) {
        let mut shelf = self.0.lock();
        if bytes.capacity() > 0 && bytes.capacity() <= KEPT_BYTES && shelf.len() < KEPT_BUFFERS {
            shelf.push(bytes);
        }
    }
}

/// What was read at once.
struct Buffer {
    bytes: Vec<u8>,
    shelf: Option<Shelf>,
    _permit: Option<Permit>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(shelf) = &self.shelf {
            shelf.put(std::mem::take(&mut self.bytes));
        }
    }
}

/// A part of it. The memory and its permit are given back with the last part.
#[derive(Clone)]
pub struct Piece {
    whole: Arc<Buffer>,
    start: usize,
    end: usize,
}

impl Piece {
    /// All of some bytes, which go to a shelf when they are not needed any more.
    pub fn new(bytes: Vec<u8>, permit: Permit, shelf: &Shelf) -> Piece {
        let end = bytes.len();
        let whole = Buffer { bytes, shelf: Some(shelf.clone()), _permit: Some(permit) };
        Piece { whole: Arc::new(whole), start: 0, end }
    }

    /// A part of this part.
    ///
    /// # Panics
    /// If it reaches beyond.
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
        Piece { whole: Arc::new(Buffer { bytes, shelf: None, _permit: None }), start: 0, end }
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
    use crate::budget::Budget;

    #[test]
    fn memory_and_permit_are_given_back_with_the_last_part() {
        let (budget, shelf) = (Budget::new("bytes", 100), Shelf::default());
        let permit = budget.acquire(5, 0).unwrap();
        let whole = Piece::new(b"hello".to_vec(), permit, &shelf);
        let (first, last) = (whole.part(0, 2), whole.part(2, 3));
        assert_eq!((&*first, &*last.part(1, 2)), (&b"he"[..], &b"lo"[..]));
        drop((whole, first));
        assert_eq!(budget.used(), 5);
        drop(last);
        assert_eq!(budget.used(), 0);
        assert_eq!(shelf.take().capacity(), 5);
    }
}
