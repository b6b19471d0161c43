//! Memory that is divided into rows: threads write into one batch at the same time, and the
//! consumer gets that memory without a copy.
//!
//! A [`Row`] is the only access to its bytes. Adjacent rows can be joined into one. When the last
//! row of a block is dropped, the block returns to its origin.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::process::OwnerProcess;

const ALIGNMENT: usize = 64;

/// Owned memory, aligned for vector instructions and for DLPack. Large blocks come straight from
/// the system: the allocator would keep memory that one thread takes and another frees, and the
/// total would grow.
pub struct Block {
    start: NonNull<u8>,
    bytes: usize,
}

/// Blocks of at least this size come straight from the system.
const LARGE: usize = 256 << 10;

// SAFETY: a block is plain memory with one owner.
unsafe impl Send for Block {}
// SAFETY: shared access to a block offers no way to write.
unsafe impl Sync for Block {}

impl Block {
    /// Allocates zeroed memory; returns `None` if the system has none left. Zero bytes take no
    /// memory.
    pub fn new(bytes: usize) -> Option<Block> {
        let start = if bytes == 0 {
            Some(NonNull::<Aligned>::dangling().cast())
        } else if bytes >= LARGE {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping, at no particular place.
            let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags) };
            start.ok().and_then(|start| NonNull::new(start.cast()))
        } else {
            let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
            // SAFETY: the layout is not empty.
            NonNull::new(unsafe { alloc::alloc_zeroed(layout) })
        };
        start.map(|start| Block { start, bytes })
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of its first byte.
    pub fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block owns these bytes, all of which were initialized when it was created.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.bytes >= LARGE {
            // SAFETY: mapped in `new` with this length, and no reference to it is left.
            let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
            debug_assert!(unmapped.is_ok());
        } else if self.bytes > 0 {
            let layout = Layout::from_size_align(self.bytes, ALIGNMENT)
                .expect("the same layout was valid when the block was allocated");
            // SAFETY: allocated in `new` with this very layout.
            unsafe { alloc::dealloc(self.start.as_ptr(), layout) };
        }
    }
}

#[repr(align(64))]
struct Aligned;

/// What happens to a block when its last row is dropped.
pub(crate) type GiveBack = Box<dyn FnOnce(Block) + Send + Sync>;

struct DividedBlock {
    block: Option<Block>,
    give_back: Option<GiveBack>,
    home: OwnerProcess,
}

impl Drop for DividedBlock {
    fn drop(&mut self) {
        let (Some(block), Some(give_back)) = (self.block.take(), self.give_back.take()) else {
            return;
        };
        if self.home.is_forked() {
            // In a forked child, the pool's lock may be held by a thread that does not exist here.
            std::mem::forget(give_back);
        } else {
            give_back(block);
        }
    }
}

/// A part of a block with exclusive access.
pub struct Row {
    divided: Arc<DividedBlock>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a row is the only access to its bytes, as a `&mut [u8]` would be.
unsafe impl Send for Row {}
// SAFETY: shared access to a row only reads.
unsafe impl Sync for Row {}

/// Divides a block into `rows` rows of `row_bytes` each, in order. The rest stays unused.
///
/// # Panics
/// If the block is smaller than that.
pub(crate) fn carve(block: Block, row_bytes: usize, rows: usize, give_back: GiveBack) -> Vec<Row> {
    assert!(row_bytes.checked_mul(rows).is_some_and(|needed| needed <= block.bytes));
    let start = block.start;
    let divided = Arc::new(DividedBlock {
        block: Some(block),
        give_back: Some(give_back),
        home: OwnerProcess::here(),
    });
    (0..rows)
        .map(|number| Row {
            divided: Arc::clone(&divided),
            // SAFETY: within the block by the assertion above.
            start: unsafe { start.add(number * row_bytes) },
            bytes: row_bytes,
        })
        .collect()
}

impl Row {
    /// Joins rows that are adjacent in one block, in this order. Returns them unchanged if they are
    /// not, or if there are none.
    pub fn join(rows: Vec<Row>) -> Result<Row, Vec<Row>> {
        let adjacent = rows.windows(2).all(|pair| {
            Arc::ptr_eq(&pair[0].divided, &pair[1].divided)
                && pair[0].end() == pair[1].start.as_ptr()
        });
        let Some(first) = rows.first().filter(|_| adjacent) else {
            return Err(rows);
        };
        Ok(Row {
            divided: Arc::clone(&first.divided),
            start: first.start,
            bytes: rows.iter().map(|row| row.bytes).sum(),
        })
    }

    /// The address of its first byte.
    pub fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn end(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(self.bytes)
    }
}

impl Deref for Row {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the row owns these bytes, and `divided` keeps them alive.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Row {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

/// Memory with another owner (such as a NumPy array), which keeps it alive. It is only read.
pub struct Borrowed {
    start: *const u8,
    bytes: usize,
    _owner: Box<dyn Send + Sync>,
}

// SAFETY: reads only; the owner may be dropped in any thread.
unsafe impl Send for Borrowed {}
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// # Safety
    /// `start` is valid for reading `bytes` bytes for as long as `owner` lives.
    pub unsafe fn new(start: *const u8, bytes: usize, owner: Box<dyn Send + Sync>) -> Borrowed {
        Borrowed { start, bytes, _owner: owner }
    }

    /// Takes the memory of a vector.
    pub fn of(bytes: Vec<u8>) -> Borrowed {
        // SAFETY: the heap memory of a vector stays where it is while the vector is moved.
        unsafe { Borrowed::new(bytes.as_ptr(), bytes.len(), Box::new(bytes)) }
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies the bytes at `offset` into `target`. Python code may write to this memory at the same
    /// time; then the copy is old, new or torn, as for every reader of an array.
    ///
    /// # Panics
    /// If the range reaches beyond the end.
    pub fn copy(&self, offset: usize, target: &mut [u8]) {
        assert!(offset.checked_add(target.len()).is_some_and(|end| end <= self.bytes));
        // SAFETY: in bounds by the assertion; `target` is borrowed alone, so they do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(self.start.add(offset), target.as_mut_ptr(), target.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    fn rows(row_bytes: usize, count: usize) -> Vec<Row> {
        carve(Block::new(row_bytes * count).unwrap(), row_bytes, count, Box::new(drop))
    }

    #[test]
    fn rows_written_separately_are_read_as_one() {
        let mut rows = rows(3, 4);
        for (number, row) in rows.iter_mut().enumerate() {
            row.fill(number as u8);
        }
        let whole = Row::join(rows).unwrap_or_else(|_| panic!("adjacent rows join"));
        assert_eq!(&*whole, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
    }

    #[test]
    fn rows_out_of_order_or_of_two_blocks_do_not_join() {
        let mut swapped = rows(3, 2);
        swapped.swap(0, 1);
        assert!(Row::join(swapped).is_err());
        let (mut one, mut other) = (rows(3, 1), rows(3, 1));
        one.append(&mut other);
        assert!(Row::join(one).is_err());
        assert!(Row::join(Vec::new()).is_err());
    }

    #[test]
    fn a_block_is_returned_when_its_last_row_is_dropped_in_any_thread() {
        let (sender, receiver) = sync_channel(1);
        let block = Block::new(8).unwrap();
        let mut rows =
            carve(block, 4, 2, Box::new(move |block| sender.send(block.bytes()).unwrap()));
        drop(rows.pop());
        assert!(receiver.try_recv().is_err());
        std::thread::scope(|scope| {
            scope.spawn(move || drop(rows));
        });
        assert_eq!(receiver.try_recv(), Ok(8));
    }

    #[test]
    fn large_blocks_are_zeroed_and_writable_to_their_last_byte() {
        let mut row = rows(LARGE + 7, 1).pop().unwrap();
        assert!(row.iter().all(|byte| *byte == 0));
        row.fill(3);
        assert_eq!(row[LARGE + 6], 3);
    }

    #[test]
    fn an_empty_block_needs_no_allocation() {
        let rows = rows(0, 3);
        assert!(rows.iter().all(|row| row.is_empty()));
        assert!(Row::join(rows).is_ok());
    }
}
