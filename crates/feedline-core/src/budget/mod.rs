//! Budgets of bytes and descriptors. A permit is acquired before anything is allocated or opened.
//!
//! `acquire` waits until there is room. Tickets below the urgent mark never wait: the consumer needs them next, and a
//! budget that is full of later samples must not block the first one.
//!
//! What is held without need (a warm buffer, a cached sample) is *idle*. It is counted, but nobody waits for it: it is
//! reclaimed as soon as samples need the room. A budget may be a part of a [`ProcessBudget`], which the loaders of a process
//! share.

mod refusal;
mod process_budget;

pub use process_budget::{Claim, Holder, ProcessBudget};
pub(crate) use refusal::RefusalReason;
pub use refusal::Shrunk;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::sys::lock::{Condition, Mutex};
use process_budget::Member;
use refusal::OnShrunk;

/// An amount that can run out. Clones share it.
#[derive(Clone)]
pub struct Budget(Arc<SharedBudget>);

struct SharedBudget {
    name: &'static str,
    member: Option<Member>,
    state: Mutex<BudgetState>,
    changed: Condition,
    /// Threads that have said that they will wait.
    announced: AtomicUsize,
    /// The limit as it was decided.
    decided: u64,
    on_shrunk: OnceLock<OnShrunk>,
}

/// Holds something without need, and can give it back.
pub(crate) trait Reclaim: Send + Sync {
    /// Gives back at least this amount, if it has that much; returns what it gave back. Must not wait for a budget.
    fn reclaim(&self, amount: u64) -> u64;
}

/// What several budgets have in use together, and the most that they ever had. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeakMeter(Arc<(AtomicU64, AtomicU64)>);

impl PeakMeter {
    fn add(&self, amount: u64) {
        let (used, peak) = &*self.0;
        let now = used.fetch_add(amount, Ordering::Relaxed) + amount;
        peak.fetch_max(now, Ordering::Relaxed);
    }

    fn subtract(&self, amount: u64) {
        self.0.0.fetch_sub(amount, Ordering::Relaxed);
    }

    /// The highest amount in use at any time.
    pub(crate) fn peak(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }
}

/// How a budget relates to the whole that it is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// It waits for room in the whole too: its limit is a default.
    Within,
    /// It counts in the whole, but only its own limit makes it wait: the user has set it.
    Own,
}

/// What happens if a whole has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenFull {
    /// The amount is taken nevertheless.
    Take,
    /// It is not taken, and the budget is queued.
    Queue,
    /// It is not taken.
    Refuse,
}

struct BudgetState {
    limit: u64,
    used: u64,
    idle: u64,
    peak: u64,
    urgent_below: u64,
    closed: bool,
    /// Whether the system has refused in this run what the budget allowed.
    is_shrunk: bool,
    /// Whether a sample waits for room in the whole.
    is_queued: bool,
    next_waiter: u64,
    waiters: BTreeSet<(u64, u64)>,
    holders: BTreeMap<u64, u64>,
    reclaimers: Vec<Weak<dyn Reclaim>>,
}

/// The run has ended: every wait ends.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

impl Budget {
    /// A budget with this limit. The name appears in messages.
    pub fn new(name: &'static str, limit: u64) -> Budget {
        Budget::with(name, limit, None)
    }

    /// A budget that is a part of a whole. `meter` counts it together with others.
    pub(crate) fn part_of(
        whole: &ProcessBudget,
        share: Share,
        name: &'static str,
        limit: u64,
        meter: &PeakMeter,
    ) -> Budget {
        let budget = Budget::with(name, limit, Some(whole.member(share, meter)));
        whole.join(&budget);
        budget
    }

    fn with(name: &'static str, limit: u64, member: Option<Member>) -> Budget {
        let state = BudgetState {
            limit,
            used: 0,
            idle: 0,
            peak: 0,
            urgent_below: 0,
            closed: false,
            is_shrunk: false,
            is_queued: false,
            next_waiter: 0,
            waiters: BTreeSet::new(),
            holders: BTreeMap::new(),
            reclaimers: Vec::new(),
        };
        Budget(Arc::new(SharedBudget {
            name,
            member,
            state: Mutex::new(state),
            changed: Condition::default(),
            announced: AtomicUsize::new(0),
            decided: limit,
            on_shrunk: OnceLock::new(),
        }))
    }

    /// From now on, `holder` is asked to give back what it holds without need.
    pub(crate) fn reclaim_from(&self, holder: &Arc<impl Reclaim + 'static>) {
        let weak = Arc::downgrade(holder);
        let holder: Weak<dyn Reclaim> = weak;
        self.0.state.lock().reclaimers.push(Weak::clone(&holder));
        if let Some(member) = &self.0.member {
            member.whole.reclaim_from(holder);
        }
    }

    /// Takes `amount` for the sample at `slot`, and waits for room unless the sample is urgent. Among waiting
    /// samples, the earliest slot goes first. An amount above the whole limit is granted once the sample is urgent;
    /// otherwise it would wait forever.
    ///
    /// Idle memory is left alone: the caller uses it again, or calls `trim`.
    pub(crate) fn acquire(&self, amount: u64, slot: u64) -> Result<Permit, Closed> {
        let mut state = self.0.state.lock();
        let waiter = (slot, state.next_waiter);
        state.next_waiter += 1;
        state.waiters.insert(waiter);
        let verdict = loop {
            if state.closed {
                break Err(Closed);
            }
            let is_first = state.waiters.first() == Some(&waiter);
            let is_urgent = slot < state.urgent_below;
            if is_urgent || (is_first && state.has_room(amount)) {
                let queue = if is_urgent { WhenFull::Take } else { WhenFull::Queue };
                if self.take(&mut state, amount, slot, queue) {
                    break Ok(());
                }
            }
            state = self.0.changed.wait(state);
        };
        state.waiters.remove(&waiter);
        let is_queued = std::mem::take(&mut state.is_queued);
        drop(state);
        // The next waiter may have waited only for this one.
        self.0.changed.notify_all();
        if is_queued && let Some(member) = &self.0.member {
            member.leave();
        }
        verdict.map(|()| self.permit(amount, slot))
    }

    /// Like `acquire`, but calls `before_wait` before it waits, so that a thread that holds what an earlier sample
    /// needs can hand it on first; and reclaims idle memory in excess of the limits.
    pub(crate) fn acquire_after(
        &self,
        amount: u64,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<Permit, Closed> {
        let permit = match self.try_acquire(amount, slot) {
            Some(permit) => permit,
            None => {
                before_wait();
                self.acquire(amount, slot)?
            }
        };
        self.trim();
        Ok(permit)
    }

    /// Takes `amount` if there is room for it now.
    pub(crate) fn try_acquire(&self, amount: u64, slot: u64) -> Option<Permit> {
        let mut state = self.0.state.lock();
        if state.closed {
            return None;
        }
        let is_urgent = slot < state.urgent_below;
        let when_full = if is_urgent { WhenFull::Take } else { WhenFull::Refuse };
        let is_taken =
            (is_urgent || state.has_room(amount)) && self.take(&mut state, amount, slot, when_full);
        is_taken.then(|| self.permit(amount, slot))
    }

    /// Takes `amount` if there is room for it now, also beside what is idle, and no sample waits for that room.
    pub(crate) fn try_acquire_spare(&self, amount: u64, slot: u64) -> Option<Permit> {
        let mut state = self.0.state.lock();
        let is_taken = state.has_spare(amount)
            && self.has_spare_in_whole(amount)
            && self.take(&mut state, amount, slot, WhenFull::Refuse);
        is_taken.then(|| self.permit(amount, slot))
    }

    /// Counts `amount` as idle if there is room for it and no sample waits for that room.
    pub(crate) fn try_hold_idle(&self, amount: u64) -> Option<IdlePermit> {
        let mut state = self.0.state.lock();
        if !state.has_spare(amount) || !self.has_spare_in_whole(amount) {
            return None;
        }
        self.add_idle(&mut state, amount);
        Some(IdlePermit { budget: self.clone(), amount })
    }

    /// Counts as idle what was in use before, and exists already.
    pub(crate) fn hold_idle(&self, amount: u64) -> IdlePermit {
        self.add_idle(&mut self.0.state.lock(), amount);
        IdlePermit { budget: self.clone(), amount }
    }

    fn add_idle(&self, state: &mut BudgetState, amount: u64) {
        state.idle += amount;
        if let Some(member) = &self.0.member {
            member.whole.add_idle(amount);
        }
    }

    /// Reclaims what is idle in excess of the limits, of this budget and of the whole.
    pub(crate) fn trim(&self) {
        let (excess, reclaimers) = {
            let state = self.0.state.lock();
            let excess = state.excess();
            (excess, if excess > 0 { state.reclaimers.clone() } else { Vec::new() })
        };
        // Without the lock: what is given back comes as dropped permits.
        reclaim(&reclaimers, excess);
        if let Some(member) = &self.0.member {
            member.whole.trim();
        }
    }

    /// Gives back everything that is held without need, by this budget and by all others of the whole. Returns how much.
    pub(crate) fn reclaim_all(&self) -> u64 {
        match &self.0.member {
            Some(member) => member.whole.reclaim(u64::MAX),
            None => {
                let reclaimers = self.0.state.lock().reclaimers.clone();
                reclaim(&reclaimers, u64::MAX)
            }
        }
    }

    /// Asks all holders of the whole for an amount that they hold without need. Returns how much they gave back.
    pub(crate) fn reclaim_from_others(&self, amount: u64) -> u64 {
        self.0.member.as_ref().map_or(0, |member| member.whole.reclaim(amount))
    }

    /// Says that this thread will wait, so that others give back what they do not need any more. Ends when dropped.
    pub(crate) fn announce(&self) -> Announced<'_> {
        self.0.announced.fetch_add(1, Ordering::SeqCst);
        if let Some(member) = &self.0.member {
            member.whole.announced().fetch_add(1, Ordering::SeqCst);
        }
        Announced(self)
    }

    /// Whether a thread waits, or is about to, for this budget or for the whole.
    pub(crate) fn is_awaited(&self) -> bool {
        let whole = self.0.member.as_ref().map(|member| member.whole.announced());
        self.0.announced.load(Ordering::SeqCst) > 0
            || whole.is_some_and(|announced| announced.load(Ordering::SeqCst) > 0)
    }

    fn permit(&self, amount: u64, slot: u64) -> Permit {
        Permit { budget: self.clone(), amount, slot }
    }

    fn has_spare_in_whole(&self, amount: u64) -> bool {
        self.0.member.as_ref().is_none_or(|member| member.has_spare(amount))
    }

    /// Takes an amount for which this budget has room. The whole may be full.
    fn take(&self, state: &mut BudgetState, amount: u64, slot: u64, when_full: WhenFull) -> bool {
        if let Some(member) = &self.0.member
            && !member.take(amount, when_full, &self.0)
        {
            state.is_queued |= when_full == WhenFull::Queue;
            return false;
        }
        state.take(amount, slot);
        true
    }

    /// From now on, samples before `slot` never wait.
    pub(crate) fn set_urgent_below(&self, slot: u64) {
        let mut state = self.0.state.lock();
        if state.urgent_below != slot {
            state.urgent_below = slot;
            self.0.changed.notify_all();
        }
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

    /// Allows waits again, for the next run, up to the limit that was decided first.
    pub(crate) fn reopen(&self) {
        let mut state = self.0.state.lock();
        state.closed = false;
        state.is_shrunk = false;
        state.limit = self.0.decided;
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

    /// The amount that is held without need.
    pub fn idle(&self) -> u64 {
        self.0.state.lock().idle
    }

    /// The highest amount in use at any time.
    pub fn peak(&self) -> u64 {
        self.0.state.lock().peak
    }

    /// The amount that may be in use.
    pub fn limit(&self) -> u64 {
        self.0.state.lock().limit
    }

    /// The amount that may be in use, as it was decided.
    pub fn decided(&self) -> u64 {
        self.0.decided
    }

    /// The name in messages.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// What is held of the whole, and for what; of this budget alone if there is no whole.
    pub fn holders_of_whole(&self) -> Vec<Holder> {
        match &self.0.member {
            Some(member) => member.whole.holders(),
            None => vec![self.0.holder()],
        }
    }
}

impl SharedBudget {
    fn holder(&self) -> Holder {
        let state = self.state.lock();
        Holder { name: self.name, used: state.used, idle: state.idle, limit: state.limit }
    }
}

/// Asks one holder after another, until that much is given back. Returns how much it was.
fn reclaim(holders: &[Weak<dyn Reclaim>], amount: u64) -> u64 {
    let mut given_back = 0;
    for holder in holders.iter().filter_map(Weak::upgrade) {
        if given_back >= amount {
            break;
        }
        given_back += holder.reclaim(amount - given_back);
    }
    given_back
}

/// A wait that was announced.
pub(crate) struct Announced<'a>(&'a Budget);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let shared = &self.0.0;
        shared.announced.fetch_sub(1, Ordering::SeqCst);
        if let Some(member) = &shared.member {
            member.whole.announced().fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl BudgetState {
    fn has_room(&self, amount: u64) -> bool {
        self.used.checked_add(amount).is_some_and(|sum| sum <= self.limit)
    }

    /// Whether there is room that nobody waits for, beside what is idle.
    fn has_spare(&self, amount: u64) -> bool {
        let taken = self.used.saturating_add(self.idle).saturating_add(amount);
        !self.closed && self.waiters.is_empty() && taken <= self.limit
    }

    /// What is idle beyond the limit.
    fn excess(&self) -> u64 {
        self.idle.min(self.used.saturating_add(self.idle).saturating_sub(self.limit))
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
    /// The budget that it is a part of.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The slot of the sample that it is for.
    pub(crate) fn slot(&self) -> u64 {
        self.slot
    }

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
        {
            let mut state = self.budget.0.state.lock();
            state.used -= amount;
            state.release(amount, self.slot);
            self.budget.0.changed.notify_all();
        }
        // Without the lock: it wakes other budgets.
        if let Some(member) = &self.budget.0.member {
            member.give_back(amount);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.give_back(self.amount);
    }
}

/// What is held without need, until it is dropped.
pub(crate) struct IdlePermit {
    budget: Budget,
    amount: u64,
}

impl Drop for IdlePermit {
    fn drop(&mut self) {
        self.budget.0.state.lock().idle -= self.amount;
        if let Some(member) = &self.budget.0.member {
            member.whole.remove_idle(self.amount);
        }
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
}
