//! Budgets of bytes and descriptors. A permit is acquired before anything is allocated or opened.
//!
//! `acquire` waits until there is room. Tickets below the urgent mark never wait: the consumer needs them next, and a
//! budget that is full of later samples must not block the first one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::sys::lock::{Condition, Mutex};

/// An amount that can run out. Clones share it.
#[derive(Clone)]
pub struct Budget(Arc<SharedBudget>);

struct SharedBudget {
    name: &'static str,
    state: Mutex<BudgetState>,
    changed: Condition,
    /// Gives back an amount that is held without need.
    reclaim: OnceLock<Reclaim>,
}

/// Gives back at least this amount, if that much is held without need.
pub(crate) type Reclaim = Box<dyn Fn(u64) + Send + Sync>;

struct BudgetState {
    limit: u64,
    used: u64,
    peak: u64,
    urgent_below: u64,
    closed: bool,
    next_waiter: u64,
    waiters: BTreeSet<(u64, u64)>,
    holders: BTreeMap<u64, u64>,
}

/// The run has ended: every wait ends.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

impl Budget {
    /// A budget with this limit. The name appears in messages.
    pub fn new(name: &'static str, limit: u64) -> Budget {
        let state = BudgetState {
            limit,
            used: 0,
            peak: 0,
            urgent_below: 0,
            closed: false,
            next_waiter: 0,
            waiters: BTreeSet::new(),
            holders: BTreeMap::new(),
        };
        Budget(Arc::new(SharedBudget {
            name,
            state: Mutex::new(state),
            changed: Condition::default(),
            reclaim: OnceLock::new(),
        }))
    }

    /// From now on, `reclaim` is called before a sample waits. It can be set once.
    pub(crate) fn reclaim_with(&self, reclaim: Reclaim) {
        let is_set = self.0.reclaim.set(reclaim).is_ok();
        debug_assert!(is_set, "two holders would each be asked for all of it");
    }

    /// Asks for what an amount lacks.
    fn reclaim(&self, amount: u64) {
        let Some(reclaim) = self.0.reclaim.get() else { return };
        let lacking = {
            let state = self.0.state.lock();
            state.used.saturating_add(amount).saturating_sub(state.limit)
        };
        if lacking > 0 {
            // Without the lock: what is given back comes as dropped permits.
            reclaim(lacking);
        }
    }

    /// Takes `amount` for the sample at `slot`, and waits for room unless the sample is urgent. Among waiting
    /// samples, the earliest slot goes first. An amount above the whole limit is granted once the sample is urgent;
    /// otherwise it would wait forever.
    pub(crate) fn acquire(&self, amount: u64, slot: u64) -> Result<Permit, Closed> {
        self.reclaim(amount);
        let mut state = self.0.state.lock();
        let waiter = (slot, state.next_waiter);
        state.next_waiter += 1;
        state.waiters.insert(waiter);
        loop {
            let first = state.waiters.first() == Some(&waiter);
            let verdict = if state.closed {
                Some(Err(Closed))
            } else if slot < state.urgent_below || (first && state.has_room(amount)) {
                Some(Ok(()))
            } else {
                None
            };
            if let Some(verdict) = verdict {
                state.waiters.remove(&waiter);
                if verdict.is_ok() {
                    state.take(amount, slot);
                }
                // The next waiter may have waited only for this one.
                self.0.changed.notify_all();
                return verdict.map(|()| self.permit(amount, slot));
            }
            state = self.0.changed.wait(state);
        }
    }

    /// Like `acquire`, but calls `before_wait` before it waits, so that a thread that holds what an earlier sample
    /// needs can hand it on first.
    pub(crate) fn acquire_after(
        &self,
        amount: u64,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<Permit, Closed> {
        if let Some(permit) = self.try_acquire(amount, slot) {
            return Ok(permit);
        }
        self.reclaim(amount);
        if let Some(permit) = self.try_acquire(amount, slot) {
            return Ok(permit);
        }
        before_wait();
        self.acquire(amount, slot)
    }

    /// Takes `amount` if there is room for it now.
    pub(crate) fn try_acquire(&self, amount: u64, slot: u64) -> Option<Permit> {
        let mut state = self.0.state.lock();
        if state.closed || !(slot < state.urgent_below || state.has_room(amount)) {
            return None;
        }
        state.take(amount, slot);
        Some(self.permit(amount, slot))
    }

    /// Takes `amount` if there is room for it now and no sample waits for that room.
    pub(crate) fn try_acquire_spare(&self, amount: u64, slot: u64) -> Option<Permit> {
        let mut state = self.0.state.lock();
        if state.closed || !state.waiters.is_empty() || !state.has_room(amount) {
            return None;
        }
        state.take(amount, slot);
        Some(self.permit(amount, slot))
    }

    fn permit(&self, amount: u64, slot: u64) -> Permit {
        Permit { budget: self.clone(), amount, slot }
    }

    /// From now on, samples before `slot` never wait.
    pub(crate) fn set_urgent_below(&self, slot: u64) {
        let mut state = self.0.state.lock();
        if state.urgent_below != slot {
            state.urgent_below = slot;
            self.0.changed.notify_all();
        }
    }

    /// Lowers the limit after the system refused what the budget allowed: to one less than what is in use, but at least
    /// to one. Returns the limits before and after.
    pub(crate) fn shrink(&self) -> (u64, u64) {
        let mut state = self.0.state.lock();
        let before = state.limit;
        state.limit = state.limit.min(state.used.saturating_sub(1)).max(1);
        (before, state.limit)
    }

    /// Waits for at most this long, or until a permit is returned; ends at once when the budget is closed.
    pub(crate) fn pause(&self, at_most: Duration) -> Result<(), Closed> {
        let mut state = self.0.state.lock();
        if !state.closed {
            state = self.0.changed.wait_for(state, at_most);
        }
        if state.closed { Err(Closed) } else { Ok(()) }
    }

    /// Ends every wait, now and later.
    pub fn close(&self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_all();
    }

    /// Allows waits again, for the next run.
    pub(crate) fn reopen(&self) {
        let mut state = self.0.state.lock();
        state.closed = false;
        state.urgent_below = 0;
    }

    /// The amount held at each slot.
    #[cfg(test)]
    pub(crate) fn holders(&self) -> Vec<(u64, u64)> {
        self.0.state.lock().holders.iter().map(|(slot, amount)| (*slot, *amount)).collect()
    }

    /// The amount in use.
    pub fn used(&self) -> u64 {
        self.0.state.lock().used
    }

    /// The highest amount in use at any time.
    #[cfg(test)]
    pub(crate) fn peak(&self) -> u64 {
        self.0.state.lock().peak
    }

    /// The amount that may be in use.
    pub fn limit(&self) -> u64 {
        self.0.state.lock().limit
    }

    /// The name in messages.
    pub fn name(&self) -> &'static str {
        self.0.name
    }
}

impl BudgetState {
    fn has_room(&self, amount: u64) -> bool {
        self.used.checked_add(amount).is_some_and(|sum| sum <= self.limit)
    }

    fn take(&mut self, amount: u64, slot: u64) {
        self.used += amount;
        self.peak = self.peak.max(self.used);
        *self.holders.entry(slot).or_default() += amount;
    }

    fn release(&mut self, amount: u64, slot: u64) {
        if let Some(held) = self.holders.get_mut(&slot) {
            *held -= amount;
            if *held == 0 {
                self.holders.remove(&slot);
            }
        }
    }

    fn move_holder(&mut self, from: u64, to: u64, amount: u64) {
        self.release(amount, from);
        *self.holders.entry(to).or_default() += amount;
    }
}

/// A part of a budget, returned when dropped.
pub struct Permit {
    budget: Budget,
    amount: u64,
    slot: u64,
}

impl Permit {
    /// The amount it permits.
    #[cfg(test)]
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// Takes over another permit of the same budget.
    ///
    /// # Panics
    /// If it is from another budget.
    pub(crate) fn absorb(&mut self, mut other: Permit) {
        assert!(Arc::ptr_eq(&self.budget.0, &other.budget.0), "permits of two budgets");
        let amount = std::mem::take(&mut other.amount);
        if other.slot != self.slot {
            let mut state = self.budget.0.state.lock();
            state.move_holder(other.slot, self.slot, amount);
        }
        self.amount += amount;
    }

    /// Splits off a permit for `amount`; None if this one is smaller.
    pub fn split(&mut self, amount: u64) -> Option<Permit> {
        self.amount = self.amount.checked_sub(amount)?;
        Some(Permit { budget: self.budget.clone(), amount, slot: self.slot })
    }

    /// Returns all but `amount`.
    pub fn keep(&mut self, amount: u64) {
        let surplus = self.amount.saturating_sub(amount);
        if surplus > 0 {
            self.give_back(surplus);
            self.amount -= surplus;
        }
    }

    fn give_back(&self, amount: u64) {
        let mut state = self.budget.0.state.lock();
        state.used -= amount;
        state.release(amount, self.slot);
        self.budget.0.changed.notify_all();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.give_back(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn waiting(budget: &Budget, count: usize) {
        while budget.0.state.lock().waiters.len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn a_permit_returns_its_amount() {
        let budget = Budget::new("bytes", 10);
        let permit = budget.acquire(7, 3).unwrap();
        assert_eq!((budget.used(), budget.holders()), (7, vec![(3, 7)]));
        assert!(budget.try_acquire(4, 4).is_none());
        drop(permit);
        assert_eq!((budget.used(), budget.holders(), budget.peak()), (0, vec![], 7));
    }

    #[test]
    fn a_part_can_be_returned_early() {
        let budget = Budget::new("bytes", 10);
        let mut permit = budget.acquire(7, 3).unwrap();
        permit.keep(2);
        assert_eq!((budget.used(), permit.amount()), (2, 2));
        drop(permit);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_earliest_position_goes_first() {
        let budget = Budget::new("bytes", 1);
        let all = budget.acquire(1, 0).unwrap();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for (count, slot) in [9, 5, 7].into_iter().enumerate() {
                let (budget, order) = (&budget, &order);
                scope.spawn(move || {
                    let permit = budget.acquire(1, slot).unwrap();
                    order.lock().push(slot);
                    drop(permit);
                });
                waiting(budget, count + 1);
            }
            drop(all);
        });
        assert_eq!(*order.lock(), [5, 7, 9]);
    }

    #[test]
    fn urgent_samples_never_wait_even_beyond_the_limit() {
        let budget = Budget::new("bytes", 10);
        let _later = budget.acquire(10, 8).unwrap();
        budget.set_urgent_below(3);
        let _urgent = budget.acquire(100, 2).unwrap();
        assert_eq!(budget.used(), 110);
        assert!(budget.try_acquire(1, 3).is_none());
    }

    #[test]
    fn becoming_urgent_ends_a_wait() {
        let budget = Budget::new("bytes", 1);
        let _all = budget.acquire(1, 9).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.acquire(1, 4).is_ok());
            waiting(&budget, 1);
            budget.set_urgent_below(5);
            assert!(waiter.join().unwrap());
        });
    }

    #[test]
    fn closing_ends_every_wait() {
        let budget = Budget::new("bytes", 1);
        let _all = budget.acquire(1, 0).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.acquire(1, 1).map(drop));
            waiting(&budget, 1);
            budget.close();
            assert_eq!(waiter.join().unwrap(), Err(Closed));
        });
        assert_eq!(budget.acquire(0, 2).map(drop), Err(Closed));
    }

    #[test]
    fn a_refusal_of_the_system_shrinks_the_limit_but_never_to_nothing() {
        let budget = Budget::new("files", 100);
        let _held: Vec<_> = (0..20).map(|slot| budget.acquire(1, slot).unwrap()).collect();
        assert_eq!(budget.shrink(), (100, 19));
        assert_eq!(Budget::new("files", 5).shrink(), (5, 1));
    }
}
