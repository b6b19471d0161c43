//! A cache in memory. Its bytes are a part of the budget, and it gives them back when samples need them.

use lru::LruCache;
use std::sync::Arc;

use super::CachedSample;
use crate::budget::{Budget, IdlePermit, Reclaim};
use crate::sys::file::Stamp;
use crate::sys::lock::Mutex;

/// Samples in memory, the most useful ones.
///
/// An epoch uses each sample once, in an order of its own. The sample that was used least recently is then the next one
/// as likely as any other, so replacing it by a new one would only lose hits: a full cache keeps what it has. It replaces
/// only what a whole epoch has not used.
pub(crate) struct MemoryCache {
    limit: u64,
    budget: Budget,
    state: Mutex<MemoryState>,
}

struct MemoryState {
    /// By index, from the least to the most recently used.
    held: LruCache<u64, HeldSample>,
    bytes: u64,
}

struct HeldSample {
    stamp: Option<Stamp>,
    sample: CachedSample,
    epoch: u64,
    cost: u64,
    _permit: IdlePermit,
}

impl MemoryCache {
    /// A cache of at most `limit` bytes, which are taken from a budget. When samples wait for the budget, it shrinks.
    pub(crate) fn new(limit: u64, budget: &Budget) -> Arc<MemoryCache> {
        let state = Mutex::new(MemoryState { held: LruCache::unbounded(), bytes: 0 });
        let cache = Arc::new(MemoryCache { limit, budget: budget.clone(), state });
        budget.reclaim_from(&cache);
        cache
    }

    /// The sample, if it was loaded from this version of its file.
    pub(crate) fn get(&self, index: u64, stamp: Option<Stamp>, epoch: u64) -> Option<CachedSample> {
        let mut state = self.state.lock();
        let held = state.held.get_mut(&index)?;
        if held.stamp == stamp {
            held.epoch = epoch;
            return Some(held.sample.clone());
        }
        state.remove(index);
        None
    }

    /// Keeps a sample, if there is room for it.
    pub(crate) fn put(&self, index: u64, stamp: Option<Stamp>, epoch: u64, sample: &CachedSample) {
        let cost = sample.cost();
        if cost > self.limit {
            return;
        }
        // Before the copy is made.
        let Some(permit) = self.make_room(cost, epoch) else { return };
        let held = HeldSample { stamp, sample: sample.copied(), epoch, cost, _permit: permit };
        let mut state = self.state.lock();
        state.remove(index);
        state.held.put(index, held);
    }

    /// A permit for some bytes, in place of samples that were not used for an epoch if there is no room.
    fn make_room(&self, cost: u64, epoch: u64) -> Option<IdlePermit> {
        let mut state = self.state.lock();
        loop {
            if state.bytes + cost <= self.limit
                && let Some(permit) = self.budget.try_hold_idle(cost)
            {
                // Counted before the copy is made, so that threads together stay below the limit.
                state.bytes += cost;
                return Some(permit);
            }
            let (index, oldest) = state.held.peek_lru()?;
            if oldest.epoch.saturating_add(1) >= epoch {
                return None;
            }
            let index = *index;
            state.remove(index);
        }
    }

    /// The bytes that it holds.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}

impl Reclaim for MemoryCache {
    /// Those that were used least recently go first.
    fn reclaim(&self, amount: u64) -> u64 {
        let mut state = self.state.lock();
        let before = state.bytes;
        let target = before.saturating_sub(amount);
        while state.bytes > target {
            let Some((index, _)) = state.held.peek_lru() else { break };
            let index = *index;
            state.remove(index);
        }
        before - state.bytes
    }
}

impl MemoryState {
    fn remove(&mut self, index: u64) {
        if let Some(held) = self.held.pop(&index) {
            self.bytes -= held.cost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Piece;

    fn sample(bytes: usize) -> CachedSample {
        CachedSample { bytes: Piece::from(vec![7; bytes]), image: None }
    }

    fn stamp(written: i64) -> Option<Stamp> {
        Some(Stamp { size: 1, written })
    }

    #[test]
    fn a_sample_is_found_until_its_file_changes() {
        let cache = MemoryCache::new(10_000, &Budget::new("bytes", 10_000));
        cache.put(3, stamp(1), 0, &sample(100));
        assert_eq!(&*cache.get(3, stamp(1), 0).unwrap().bytes, [7; 100]);
        assert!(cache.get(4, stamp(1), 0).is_none());
        assert!(cache.get(3, stamp(2), 0).is_none());
        assert!(cache.get(3, stamp(1), 0).is_none(), "the old version is forgotten");
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn a_full_cache_keeps_what_it_has_and_replaces_what_an_epoch_did_not_use() {
        let budget = Budget::new("bytes", 100_000);
        let cache = MemoryCache::new(3 * (100 + 256), &budget);
        for index in 0..5 {
            cache.put(index, None, 0, &sample(100));
        }
        let held = |epoch| (0..9).filter(|index| cache.get(*index, None, epoch).is_some()).count();
        assert_eq!(held(1), 3);
        assert!(cache.get(0, None, 1).is_some());
        // Epoch 2 uses one of them; in epoch 3, the two others make room.
        assert!(cache.get(1, None, 2).is_some());
        for index in 5..9 {
            cache.put(index, None, 3, &sample(100));
        }
        assert!(cache.get(1, None, 3).is_some() && cache.get(5, None, 3).is_some());
        assert!(cache.get(0, None, 3).is_none() && cache.get(7, None, 3).is_none());
        assert_eq!((budget.used(), budget.idle()), (0, cache.bytes()));
    }

    #[test]
    fn a_sample_that_waits_for_bytes_gets_those_of_the_cache() {
        let budget = Budget::new("bytes", 2_000);
        let cache = MemoryCache::new(1_500, &budget);
        for index in 0..4 {
            cache.put(index, None, 0, &sample(100));
        }
        assert_eq!((cache.bytes(), budget.idle()), (4 * 356, 4 * 356));
        let permit = budget.acquire_after(1_500, 9, &mut || ()).unwrap();
        assert_eq!(permit.amount(), 1_500);
        assert!(budget.used() + budget.idle() <= 2_000);
        // What was used least recently went first, and nothing new is kept while others wait or the budget is full.
        assert!(cache.get(0, None, 0).is_none() && cache.get(3, None, 0).is_some());
        cache.put(7, None, 0, &sample(300));
        assert!(cache.get(7, None, 0).is_none());
    }

    #[test]
    fn a_sample_that_is_larger_than_the_cache_is_not_kept() {
        let cache = MemoryCache::new(500, &Budget::new("bytes", 10_000));
        cache.put(1, None, 0, &sample(100));
        cache.put(2, None, 9, &sample(600));
        assert!(cache.get(1, None, 9).is_some() && cache.get(2, None, 9).is_none());
    }
}
