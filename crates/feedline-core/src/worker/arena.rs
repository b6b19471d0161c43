//! The arena: shared memory in which a worker writes its batches, reused while its pages are warm.
//!
//! The worker owns the arena and hands out its slots. One flag per slot, in the arena itself, says
//! whether the trainer has the slot. So any thread of the trainer returns a slot without a message,
//! and a batch of a dead worker keeps its arena alive.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::descriptor::Descriptor;
use crate::sys::memory::SharedMemory;

/// The maximum number of slots.
const SLOTS: usize = 2048;
/// The flags are stored before the slots.
const FLAGS: u64 = (SLOTS * 4) as u64;
const PAGE: u64 = 4096;
/// A warm slot is reused for fewer bytes if at most a quarter of them plus this many stay unused.
const SLACK: u64 = 64 << 10;

const FREE: u32 = 0;
const LENT: u32 = 1;

/// Creates the memory of an arena, and the descriptor with which the worker maps it. The arena is
/// smaller than `bytes` if the system does not allow reserving that much address space.
pub(crate) fn create(bytes: u64) -> io::Result<(Descriptor, Arc<SharedMemory>)> {
    let mut bytes = bytes.max(1 << 20).next_multiple_of(PAGE);
    loop {
        match SharedMemory::create("feedline-arena", (FLAGS + bytes) as usize) {
            Ok((file, shared)) => return Ok((file, Arc::new(shared))),
            Err(error) if bytes <= 1 << 20 => return Err(error),
            Err(_) => bytes = (bytes / 2).next_multiple_of(PAGE),
        }
    }
}

struct ArenaSlot {
    offset: u64,
    capacity: u64,
    /// Shared with every piece of the slot in this process; a count of 1 means that the worker has
    /// none.
    held: Arc<()>,
}

/// The worker's view of an arena: it takes and lends slots.
pub(crate) struct Arena {
    shared: Arc<SharedMemory>,
    slots: Vec<Option<ArenaSlot>>,
    /// Ranges without a slot, sorted, none touching another.
    cold: Vec<(u64, u64)>,
    /// The bytes of all slots, whose pages may have been touched.
    used: u64,
}

/// The memory of a slot that the worker has. The slot is not reused while any clone of the piece
/// lives.
#[derive(Clone)]
pub struct ArenaPiece {
    shared: Arc<SharedMemory>,
    slot: u32,
    offset: u64,
    bytes: u64,
    _held: Arc<()>,
}

impl ArenaPiece {
    /// The address of its first byte.
    pub fn address(&self) -> *mut u8 {
        self.shared.address(self.offset, self.bytes).unwrap_or(std::ptr::null_mut())
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of its slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Its first byte in the arena.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Copies bytes into it; false if they do not fit.
    pub fn fill(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 <= self.bytes && self.shared.write(self.offset, bytes)
    }
}

impl Arena {
    /// Maps an arena that the trainer created.
    pub(crate) fn open(file: impl AsFd, bytes: usize) -> io::Result<Arena> {
        Ok(Arena::over(Arc::new(SharedMemory::open(file, bytes)?)))
    }

    pub(super) fn over(shared: Arc<SharedMemory>) -> Arena {
        let room = shared.bytes() as u64 - FLAGS;
        Arena { shared, slots: Vec::new(), cold: vec![(FLAGS, room)], used: 0 }
    }

    /// The bytes of all slots.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// The number of slots in use, by the worker or the trainer.
    pub(crate) fn taken(&self) -> usize {
        (0..self.slots.len()).filter(|slot| !self.is_free(*slot)).count()
    }

    /// Takes a warm slot of that size, or a new one if all slots together stay within `limit`.
    /// Returns `None` if there is no room now.
    pub(crate) fn take(&mut self, bytes: u64, limit: u64) -> Option<ArenaPiece> {
        let needed = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let fits =
            |slot: &ArenaSlot| (needed..=needed + needed / 4 + SLACK).contains(&slot.capacity);
        let warm = (0..self.slots.len())
            .filter(|number| self.is_free(*number))
            .filter_map(|number| Some((number, self.slots[number].as_ref()?)))
            .filter(|(_, slot)| fits(slot))
            .min_by_key(|(_, slot)| slot.capacity)
            .map(|(number, _)| number);
        if let Some(number) = warm {
            return self.piece(number, bytes);
        }
        // Free slots make room for the new one.
        let mut number = self.slots.len();
        while self.used + needed > limit && number > 0 {
            number -= 1;
            if self.is_free(number) {
                self.cool(number);
            }
        }
        if self.used + needed > limit {
            return None;
        }
        let number = self.grow(needed)?;
        self.piece(number, bytes)
    }

    /// The slot and the offset of an address, if all `length` bytes from there are in one slot.
    pub(crate) fn find(&self, address: usize, length: usize) -> Option<(u32, u64)> {
        let offset = self.shared.offset(address, length)?;
        let number = self.slots.iter().position(|slot| {
            slot.as_ref().is_some_and(|slot| {
                offset >= slot.offset && offset + length as u64 <= slot.offset + slot.capacity
            })
        })?;
        Some((number as u32, offset))
    }

    /// Whether the worker itself has a piece of a slot.
    pub(crate) fn is_held(&self, slot: u32) -> bool {
        let slot = self.slots.get(slot as usize).and_then(Option::as_ref);
        slot.is_some_and(|slot| Arc::strong_count(&slot.held) > 1)
    }

    /// Whether the other side has the slot.
    pub(crate) fn is_lent(&self, slot: u32) -> bool {
        self.shared.flag(slot as usize * 4).load(Ordering::Acquire) != FREE
    }

    /// Hands the slot to the other side.
    pub(crate) fn lend(&self, slot: u32) {
        self.lend_to(slot, LENT);
    }

    /// Like `lend`, if there are several borrowers: each has a number above zero.
    pub(crate) fn lend_to(&self, slot: u32, holder: u32) {
        self.shared.flag(slot as usize * 4).store(holder, Ordering::Release);
    }

    /// Takes back everything that was lent to a borrower that is gone.
    pub(crate) fn reclaim(&self, holder: u32) {
        for slot in 0..self.slots.len() {
            let flag = self.shared.flag(slot * 4);
            let _ = flag.compare_exchange(holder, FREE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Copies bytes out of the arena; returns false if the range is not inside.
    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) -> bool {
        self.shared.read(offset, target)
    }

    fn is_free(&self, number: usize) -> bool {
        !self.is_held(number as u32) && !self.is_lent(number as u32)
    }

    fn piece(&self, number: usize, bytes: u64) -> Option<ArenaPiece> {
        let slot = self.slots[number].as_ref()?;
        Some(ArenaPiece {
            shared: Arc::clone(&self.shared),
            slot: number as u32,
            offset: slot.offset,
            bytes,
            _held: Arc::clone(&slot.held),
        })
    }

    fn grow(&mut self, needed: u64) -> Option<usize> {
        let number = match self.slots.iter().position(Option::is_none) {
            Some(number) => number,
            None if self.slots.len() < SLOTS => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return None,
        };
        let place = self.cold.iter().position(|(_, length)| *length >= needed)?;
        let (offset, length) = self.cold[place];
        if length == needed {
            self.cold.remove(place);
        } else {
            self.cold[place] = (offset + needed, length - needed);
        }
        self.slots[number] = Some(ArenaSlot { offset, capacity: needed, held: Arc::new(()) });
        self.used += needed;
        Some(number)
    }

    fn cool(&mut self, number: usize) {
        let Some(slot) = self.slots[number].take() else { return };
        self.shared.give_back(slot.offset, slot.capacity);
        self.used -= slot.capacity;
        let at = self.cold.partition_point(|(offset, _)| *offset < slot.offset);
        self.cold.insert(at, (slot.offset, slot.capacity));
        if let Some((offset, length)) = self.cold.get(at + 1).copied()
            && slot.offset + slot.capacity == offset
        {
            self.cold[at].1 += length;
            self.cold.remove(at + 1);
        }
        if at > 0 && self.cold[at - 1].0 + self.cold[at - 1].1 == slot.offset {
            self.cold[at - 1].1 += self.cold[at].1;
            self.cold.remove(at);
        }
    }
}

/// Whether the arena can have a slot at this offset. The other side wrote these numbers, so they
/// may be wrong.
pub(super) fn is_valid_range(shared: &SharedMemory, slot: u32, offset: u64, bytes: u64) -> bool {
    (slot as usize) < SLOTS && offset >= FLAGS && shared.address(offset, bytes).is_some()
}

/// Returns a slot that was lent to a borrower.
pub(super) fn give_back(shared: &SharedMemory, slot: u32, holder: u32) {
    let flag = shared.flag(slot as usize * 4);
    let _ = flag.compare_exchange(holder, FREE, Ordering::AcqRel, Ordering::Relaxed);
}

/// The bytes of an arena that the consumer has.
#[derive(Debug, Default)]
pub struct LentBytes(AtomicU64);

impl LentBytes {
    /// The bytes that are lent now.
    pub(crate) fn lent_bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A slot that the trainer has. Dropping it returns the slot to the worker.
pub struct LentSlot {
    shared: Arc<SharedMemory>,
    slot: u32,
    offset: u64,
    bytes: u64,
    counted: Option<Arc<LentBytes>>,
}

impl LentSlot {
    /// A slot that a worker says it has lent; `None` if there is no such memory.
    pub fn new(shared: &Arc<SharedMemory>, slot: u32, offset: u64, bytes: u64) -> Option<LentSlot> {
        if !is_valid_range(shared, slot, offset, bytes) {
            return None;
        }
        Some(LentSlot { shared: Arc::clone(shared), slot, offset, bytes, counted: None })
    }

    /// Counts the slot as lent to the consumer.
    pub fn count(&mut self, account: &Arc<LentBytes>) {
        account.0.fetch_add(self.bytes, Ordering::Relaxed);
        self.counted = Some(Arc::clone(account));
    }

    /// The address of its first byte.
    pub fn address(&self) -> *mut u8 {
        self.shared.address(self.offset, self.bytes).unwrap_or(std::ptr::null_mut())
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies its bytes out; returns false if `target` is longer.
    pub fn read(&self, target: &mut [u8]) -> bool {
        self.shared.read(self.offset, target)
    }
}

impl Drop for LentSlot {
    fn drop(&mut self) {
        // In a forked child, the slot still belongs to the parent.
        if self.shared.home().is_forked() {
            return;
        }
        self.shared.flag(self.slot as usize * 4).store(FREE, Ordering::Release);
        if let Some(account) = &self.counted {
            account.0.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEBIBYTE: u64 = 1 << 20;

    fn arena(bytes: u64) -> (Arc<SharedMemory>, Arena) {
        let shared = create(bytes).unwrap().1;
        (Arc::clone(&shared), Arena::over(shared))
    }

    fn lend(arena: &Arena, shared: &Arc<SharedMemory>, piece: &ArenaPiece) -> LentSlot {
        arena.lend(piece.slot());
        LentSlot::new(shared, piece.slot(), piece.offset(), piece.bytes()).unwrap()
    }

    #[test]
    fn a_slot_is_reused_when_both_sides_have_released_it() {
        let (shared, mut arena) = arena(8 * MEBIBYTE);
        let piece = arena.take(100_000, MEBIBYTE).unwrap();
        let (slot, lent) = (piece.slot(), lend(&arena, &shared, &piece));
        drop(piece);
        assert_ne!(arena.take(100_000, MEBIBYTE).unwrap().slot(), slot);
        drop(lent);
        assert_eq!(arena.take(100_000, MEBIBYTE).unwrap().slot(), slot);
    }

    #[test]
    fn a_piece_that_the_worker_keeps_is_not_reused() {
        let (shared, mut arena) = arena(8 * MEBIBYTE);
        let kept = arena.take(100, MEBIBYTE).unwrap();
        drop(lend(&arena, &shared, &kept));
        assert_ne!(arena.take(100, MEBIBYTE).unwrap().slot(), kept.slot());
    }

    #[test]
    fn the_limit_holds_and_unused_slots_make_room() {
        let (shared, mut arena) = arena(64 * MEBIBYTE);
        let first = arena.take(3 * MEBIBYTE, 4 * MEBIBYTE).unwrap();
        let lent = lend(&arena, &shared, &first);
        drop(first);
        assert!(arena.take(2 * MEBIBYTE, 4 * MEBIBYTE).is_none());
        drop(lent);
        let second = arena.take(4 * MEBIBYTE, 4 * MEBIBYTE).unwrap();
        assert_eq!((arena.used(), second.bytes()), (4 * MEBIBYTE, 4 * MEBIBYTE));
    }

    #[test]
    fn the_consumers_bytes_are_counted_until_they_are_returned() {
        let (shared, mut arena) = arena(MEBIBYTE);
        let piece = arena.take(5000, MEBIBYTE).unwrap();
        let account = Arc::new(LentBytes::default());
        let mut lent = lend(&arena, &shared, &piece);
        lent.count(&account);
        assert_eq!(account.lent_bytes(), 5000);
        drop(lent);
        assert_eq!(account.lent_bytes(), 0);
    }

    #[test]
    fn a_slot_that_is_not_in_the_arena_is_refused() {
        let (shared, _) = arena(MEBIBYTE);
        assert!(LentSlot::new(&shared, 0, FLAGS, MEBIBYTE + 1).is_none());
        assert!(LentSlot::new(&shared, 0, 0, 10).is_none());
        assert!(LentSlot::new(&shared, SLOTS as u32, FLAGS, 10).is_none());
        assert!(LentSlot::new(&shared, 0, u64::MAX, 10).is_none());
    }

    #[test]
    fn reclaim_returns_only_the_slots_of_that_borrower() {
        let (_, mut arena) = arena(8 * MEBIBYTE);
        let slots: Vec<_> = [7, 8, 7]
            .map(|holder| {
                let piece = arena.take(100_000, MEBIBYTE).unwrap();
                arena.lend_to(piece.slot(), holder);
                piece.slot()
            })
            .into();
        arena.reclaim(7);
        assert_eq!(
            slots.iter().map(|slot| arena.is_lent(*slot)).collect::<Vec<_>>(),
            [false, true, false]
        );
    }

    proptest! {
        #[test]
        fn no_two_live_pieces_ever_overlap(
            steps in prop::collection::vec((0usize..6, 1u64..600_000, any::<prop::sample::Index>()), 1..120)
        ) {
            let (shared, mut arena) = arena(4 * MEBIBYTE);
            let (mut pieces, mut lents): (Vec<ArenaPiece>, Vec<LentSlot>) = (Vec::new(), Vec::new());
            for (what, bytes, which) in steps {
                match what {
                    0..=2 => pieces.extend(arena.take(bytes, 3 * MEBIBYTE)),
                    3 if !pieces.is_empty() => {
                        let piece = pieces.swap_remove(which.index(pieces.len()));
                        lents.push(lend(&arena, &shared, &piece));
                    }
                    4 if !pieces.is_empty() => drop(pieces.swap_remove(which.index(pieces.len()))),
                    5 if !lents.is_empty() => drop(lents.swap_remove(which.index(lents.len()))),
                    _ => {}
                }
                let mut parts: Vec<(u64, u64)> = pieces
                    .iter()
                    .map(|piece| (piece.offset, piece.bytes))
                    .chain(lents.iter().map(|lent| (lent.offset, lent.bytes)))
                    .collect();
                parts.sort_unstable();
                for pair in parts.windows(2) {
                    prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
                }
                prop_assert!(arena.used() <= 3 * MEBIBYTE);
                let cold: u64 = arena.cold.iter().map(|(_, length)| *length).sum();
                prop_assert_eq!(cold + arena.used(), shared.bytes() as u64 - FLAGS);
            }
        }
    }
}
