//! The arena: shared memory in which a worker writes its batches, used again and again while warm.
//!
//! The worker owns the arena and hands out its slots; a flag for each slot, in the arena itself, says
//! whether the trainer has it. So a slot comes back without a message, from any thread of the trainer,
//! and a trainer that holds a batch of a dead worker holds the arena alive with it.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::descriptor::Descriptor;
use crate::sys::memory::Shared;

/// How many slots an arena can have.
const SLOTS: usize = 2048;
/// The flags come first, then the slots.
const FLAGS: u64 = (SLOTS * 4) as u64;
const PAGE: u64 = 4096;
/// A slot is taken for something smaller if no more than this is left unused, on top of a quarter.
const SLACK: u64 = 64 << 10;

const FREE: u32 = 0;
const LENT: u32 = 1;

/// Memory for an arena of up to that many bytes, or less where the system does not let so much address
/// space be reserved, and the descriptor by which the worker maps it.
pub(crate) fn create(bytes: u64) -> io::Result<(Descriptor, Arc<Shared>)> {
    let mut bytes = bytes.max(1 << 20).next_multiple_of(PAGE);
    loop {
        match Shared::create("feedline-arena", (FLAGS + bytes) as usize) {
            Ok((file, shared)) => return Ok((file, Arc::new(shared))),
            Err(error) if bytes <= 1 << 20 => return Err(error),
            Err(_) => bytes = (bytes / 2).next_multiple_of(PAGE),
        }
    }
}

struct ArenaSlot {
    offset: u64,
    capacity: u64,
    /// Shared with every piece of it in this process: alone means that the worker has none.
    held: Arc<()>,
}

/// A worker's own view: who takes and lends slots.
pub(crate) struct Arena {
    shared: Arc<Shared>,
    slots: Vec<Option<ArenaSlot>>,
    /// Parts that no slot has, sorted, none touching another.
    cold: Vec<(u64, u64)>,
    /// Bytes of all slots: pages that may have been touched.
    used: u64,
}

/// Memory of a slot in the worker's hands. While any copy of it lives, the slot is not used again.
#[derive(Clone)]
pub struct ArenaPiece {
    shared: Arc<Shared>,
    slot: u32,
    offset: u64,
    bytes: u64,
    _held: Arc<()>,
}

impl ArenaPiece {
    /// Where it lies.
    pub fn address(&self) -> *mut u8 {
        self.shared.address(self.offset, self.bytes).unwrap_or(std::ptr::null_mut())
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Which slot it is of.
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
    /// Maps what the trainer made.
    pub(crate) fn open(file: impl AsFd, bytes: usize) -> io::Result<Arena> {
        Ok(Arena::over(Arc::new(Shared::open(file, bytes)?)))
    }

    pub(super) fn over(shared: Arc<Shared>) -> Arena {
        let room = shared.bytes() as u64 - FLAGS;
        Arena { shared, slots: Vec::new(), cold: vec![(FLAGS, room)], used: 0 }
    }

    /// Bytes of all slots.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// How many slots somebody has, on either side.
    pub(crate) fn taken(&self) -> usize {
        (0..self.slots.len()).filter(|slot| !self.is_free(*slot)).count()
    }

    /// Memory of that size: a warm slot, else a new one while all slots together stay within `limit`.
    /// None when that cannot be now.
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
        // What nobody uses makes room for what is wanted now.
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

    /// The piece of a slot that an address lies in, if `length` bytes from it on are all inside.
    pub(crate) fn find(&self, address: usize, length: usize) -> Option<(u32, u64)> {
        let offset = self.shared.offset(address, length)?;
        let number = self.slots.iter().position(|slot| {
            slot.as_ref().is_some_and(|slot| {
                offset >= slot.offset && offset + length as u64 <= slot.offset + slot.capacity
            })
        })?;
        Some((number as u32, offset))
    }

    /// True when the worker itself has a piece of a slot.
    pub(crate) fn is_held(&self, slot: u32) -> bool {
        let slot = self.slots.get(slot as usize).and_then(Option::as_ref);
        slot.is_some_and(|slot| Arc::strong_count(&slot.held) > 1)
    }

    /// True when the other side has it.
    pub(crate) fn is_lent(&self, slot: u32) -> bool {
        self.shared.flag(slot as usize * 4).load(Ordering::Acquire) != FREE
    }

    /// From now on the other side has it.
    pub(crate) fn lend(&self, slot: u32) {
        self.lend_to(slot, LENT);
    }

    /// As `lend`, where there are several on the other side: each has a number above zero.
    pub(crate) fn lend_to(&self, slot: u32, holder: u32) {
        self.shared.flag(slot as usize * 4).store(holder, Ordering::Release);
    }

    /// Takes back all that was lent to somebody, who is gone.
    pub(crate) fn reclaim(&self, holder: u32) {
        for slot in 0..self.slots.len() {
            let flag = self.shared.flag(slot * 4);
            let _ = flag.compare_exchange(holder, FREE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Copies bytes out of the arena; false if they are not inside.
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

/// Whether a slot can be where the other side says.
pub(super) fn is_place(shared: &Shared, slot: u32, offset: u64, bytes: u64) -> bool {
    (slot as usize) < SLOTS && offset >= FLAGS && shared.address(offset, bytes).is_some()
}

/// Gives a slot back that was lent to a holder.
pub(super) fn give_back(shared: &Shared, slot: u32, holder: u32) {
    let flag = shared.flag(slot as usize * 4);
    let _ = flag.compare_exchange(holder, FREE, Ordering::AcqRel, Ordering::Relaxed);
}

/// How much of an arena the consumer has in its hands.
#[derive(Debug, Default)]
pub struct LentBytes(AtomicU64);

impl LentBytes {
    /// Bytes that were lent and have not come back.
    pub(crate) fn lent_bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A slot in the trainer's hands. Its drop gives the slot back to the worker.
pub struct LentSlot {
    shared: Arc<Shared>,
    slot: u32,
    offset: u64,
    bytes: u64,
    counted: Option<Arc<LentBytes>>,
}

impl LentSlot {
    /// A slot of which a worker said that it is the trainer's now; None if there is no such memory.
    pub fn new(shared: &Arc<Shared>, slot: u32, offset: u64, bytes: u64) -> Option<LentSlot> {
        if !is_place(shared, slot, offset, bytes) {
            return None;
        }
        Some(LentSlot { shared: Arc::clone(shared), slot, offset, bytes, counted: None })
    }

    /// From now on the consumer has it, and it counts.
    pub fn count(&mut self, account: &Arc<LentBytes>) {
        account.0.fetch_add(self.bytes, Ordering::Relaxed);
        self.counted = Some(Arc::clone(account));
    }

    /// Where it lies.
    pub fn address(&self) -> *mut u8 {
        self.shared.address(self.offset, self.bytes).unwrap_or(std::ptr::null_mut())
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies it out.
    pub fn read(&self, target: &mut [u8]) -> bool {
        self.shared.read(self.offset, target)
    }
}

impl Drop for LentSlot {
    fn drop(&mut self) {
        // In a forked child the slot is still the parent's.
        if self.shared.home().is_left() {
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

    fn arena(bytes: u64) -> (Arc<Shared>, Arena) {
        let shared = create(bytes).unwrap().1;
        (Arc::clone(&shared), Arena::over(shared))
    }

    fn lend(arena: &Arena, shared: &Arc<Shared>, piece: &ArenaPiece) -> LentSlot {
        arena.lend(piece.slot());
        LentSlot::new(shared, piece.slot(), piece.offset(), piece.bytes()).unwrap()
    }

    #[test]
    fn a_slot_is_used_again_when_both_sides_have_let_go_of_it() {
        let (shared, mut arena) = arena(8 * MEBIBYTE);
        let piece = arena.take(100_000, MEBIBYTE).unwrap();
        let (slot, lent) = (piece.slot(), lend(&arena, &shared, &piece));
        drop(piece);
        assert_ne!(arena.take(100_000, MEBIBYTE).unwrap().slot(), slot);
        drop(lent);
        assert_eq!(arena.take(100_000, MEBIBYTE).unwrap().slot(), slot);
    }

    #[test]
    fn a_piece_that_the_worker_keeps_is_not_given_out_again() {
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
    fn the_consumers_bytes_are_counted_until_they_come_back() {
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
    fn what_was_lent_to_one_who_is_gone_comes_back_and_nothing_else_does() {
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
