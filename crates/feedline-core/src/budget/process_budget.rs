//! An amount that the loaders of a process share: each has budgets of its own, which are parts of it.
//!
//! No loader can block another one forever: a sample that its consumer needs next takes its bytes without asking, and
//! the others get their turn one after another, whatever loader they belong to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use super::{Budget, PeakMeter, Reclaim, Share, SharedBudget, WhenFull, reclaim};
use crate::sample::in_bytes;
use crate::sys::lock::Mutex;

/// An amount that several budgets share. Clones are the same.
#[derive(Clone)]
pub struct ProcessBudget(Arc<SharedProcessBudget>);

struct SharedProcessBudget {
    name: &'static str,
    state: Mutex<WholeState>,
    next_number: AtomicUsize,
    /// Threads that have said that they will wait, in any of its budgets.
    announced: AtomicUsize,
}

#[derive(Default)]
struct WholeState {
    /// What each loader may use; the largest of them is the limit of the whole.
    claims: BTreeMap<usize, u64>,
    used: u64,
    idle: u64,
    peak: u64,
    /// Budgets whose first sample waits for room, in the order in which they came.
    queue: VecDeque<(usize, Weak<SharedBudget>)>,
    members: Vec<Weak<SharedBudget>>,
    reclaimers: Vec<Weak<dyn Reclaim>>,
}

/// What one loader may use of a whole, until it is dropped.
pub struct Claim {
    whole: ProcessBudget,
    number: usize,
}

/// A budget as a part of its whole.
pub(super) struct Member {
    pub(super) whole: ProcessBudget,
    number: usize,
    share: Share,
    meter: PeakMeter,
}

/// A holder of some of a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What it is held for.
    pub name: &'static str,
    /// The amount in use.
    pub used: u64,
    /// The amount that is held without need.
    pub idle: u64,
    /// The amount that may be in use.
    pub limit: u64,
}

impl Holder {
    /// For people: "96.0 MiB of 128.0 MiB for batches (8.0 MiB idle)".
    pub(super) fn in_bytes(&self) -> String {
        let held = in_bytes(self.used + self.idle);
        let limit = in_bytes(self.limit);
        let mut text = format!("{held} of {limit} for {}", self.name);
        if self.idle > 0 {
            text.push_str(&format!(" ({} idle)", in_bytes(self.idle)));
        }
        text
    }
}

impl ProcessBudget {
    /// Nothing is in use. Loaders claim what they may use.
    pub fn new(name: &'static str) -> ProcessBudget {
        ProcessBudget(Arc::new(SharedProcessBudget {
            name,
            state: Mutex::default(),
            next_number: AtomicUsize::new(0),
            announced: AtomicUsize::new(0),
        }))
    }

    /// A loader that may use `limit` begins. While it exists, the limit of the whole is at least that.
    pub fn claim(&self, limit: u64) -> Claim {
        let number = self.next_number();
        self.0.state.lock().claims.insert(number, limit);
        self.wake_first();
        Claim { whole: self.clone(), number }
    }

    fn next_number(&self) -> usize {
        self.0.next_number.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn member(&self, share: Share, meter: &PeakMeter) -> Member {
        let (number, meter) = (self.next_number(), meter.clone());
        Member { whole: self.clone(), number, share, meter }
    }

    pub(super) fn join(&self, budget: &Budget) {
        let mut state = self.0.state.lock();
        state.members.retain(|member| member.strong_count() > 0);
        state.members.push(Arc::downgrade(&budget.0));
    }

    pub(super) fn reclaim_from(&self, holder: Weak<dyn Reclaim>) {
        let mut state = self.0.state.lock();
        state.reclaimers.retain(|holder| holder.strong_count() > 0);
        state.reclaimers.push(holder);
    }

    pub(super) fn announced(&self) -> &AtomicUsize {
        &self.0.announced
    }

    pub(super) fn add_idle(&self, amount: u64) {
        self.0.state.lock().idle += amount;
    }

    pub(super) fn remove_idle(&self, amount: u64) {
        self.0.state.lock().idle -= amount;
    }

    /// Wakes the budget whose turn it is.
    fn wake_first(&self) {
        let first = {
            let mut state = self.0.state.lock();
            while state.queue.front().is_some_and(|(_, budget)| budget.strong_count() == 0) {
                state.queue.pop_front();
            }
            state.queue.front().and_then(|(_, budget)| budget.upgrade())
        };
        if let Some(budget) = first {
            // A thread that has just found no room holds this lock until it waits.
            drop(budget.state.lock());
            budget.changed.notify_all();
        }
    }

    /// Reclaims what is idle in excess of the limit, from any loader.
    pub(super) fn trim(&self) {
        let excess = {
            let state = self.0.state.lock();
            state.idle.min(state.used.saturating_add(state.idle).saturating_sub(state.limit()))
        };
        if excess > 0 {
            self.reclaim(excess);
        }
    }

    /// Asks the holders for an amount that they hold without need; returns what they gave back.
    pub(super) fn reclaim(&self, amount: u64) -> u64 {
        let reclaimers = self.0.state.lock().reclaimers.clone();
        // Without the lock: what is given back comes as dropped permits.
        reclaim(&reclaimers, amount)
    }

    /// Gives back everything that is held without need.
    pub fn give_back_idle(&self) {
        self.reclaim(u64::MAX);
    }

    /// What is held, and for what: the largest first.
    pub fn holders(&self) -> Vec<Holder> {
        let members = self.0.state.lock().members.clone();
        let mut holders: Vec<_> = members
            .iter()
            .filter_map(Weak::upgrade)
            .map(|budget| budget.holder())
            .filter(|holder| holder.used + holder.idle > 0)
            .collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.used + holder.idle));
        holders
    }

    /// The name in messages.
    pub fn name(&self) -> &'static str {
        self.0.name
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
        self.0.state.lock().limit()
    }
}

impl WholeState {
    fn limit(&self) -> u64 {
        self.claims.values().copied().max().unwrap_or(0)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.whole.0.state.lock().claims.remove(&self.number);
    }
}

impl Member {
    /// Takes an amount; if there is no room, or another budget has waited for it longer, as `when_full` says.
    pub(super) fn take(
        &self,
        amount: u64,
        when_full: WhenFull,
        budget: &Arc<SharedBudget>,
    ) -> bool {
        let mut state = self.whole.0.state.lock();
        let is_first = state.queue.front().is_none_or(|(number, _)| *number == self.number);
        let has_room = is_first && state.used.saturating_add(amount) <= state.limit();
        if has_room || self.share == Share::Own || when_full == WhenFull::Take {
            state.used += amount;
            state.peak = state.peak.max(state.used);
            self.meter.add(amount);
            return true;
        }
        let is_queued = state.queue.iter().any(|(number, _)| *number == self.number);
        if when_full == WhenFull::Queue && !is_queued {
            state.queue.push_back((self.number, Arc::downgrade(budget)));
        }
        false
    }

    pub(super) fn give_back(&self, amount: u64) {
        self.meter.subtract(amount);
        self.whole.0.state.lock().used -= amount;
        self.whole.wake_first();
    }

    /// Whether there is room that nobody waits for, beside what is idle.
    pub(super) fn has_spare(&self, amount: u64) -> bool {
        if self.share == Share::Own {
            return true;
        }
        let state = self.whole.0.state.lock();
        let taken = state.used.saturating_add(state.idle).saturating_add(amount);
        state.queue.is_empty() && taken <= state.limit()
    }

    /// Its sample does not wait any more: the next one is woken.
    pub(super) fn leave(&self) {
        let mut state = self.whole.0.state.lock();
        let is_first = state.queue.front().is_some_and(|(number, _)| *number == self.number);
        state.queue.retain(|(number, _)| *number != self.number);
        drop(state);
        if is_first {
            self.whole.wake_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn parts<const COUNT: usize>(limit: u64) -> (ProcessBudget, [Budget; COUNT], Claim) {
        let whole = ProcessBudget::new("bytes");
        let claim = whole.claim(limit);
        // More than the whole, so that only the whole makes them wait.
        let part =
            |_| Budget::part_of(&whole, Share::Within, "part", 2 * limit, &PeakMeter::default());
        let parts = std::array::from_fn(part);
        (whole, parts, claim)
    }

    fn queued(whole: &ProcessBudget, count: usize) {
        while whole.0.state.lock().queue.len() < count {
            thread::yield_now();
        }
    }

    /// Something that is held without need.
    struct Warm(Mutex<Vec<crate::budget::IdlePermit>>);

    impl Reclaim for Warm {
        fn reclaim(&self, amount: u64) -> u64 {
            let mut held = self.0.lock();
            let count = held.len().min(usize::try_from(amount).unwrap_or(usize::MAX));
            held.drain(..count);
            count as u64
        }
    }

    #[test]
    fn two_parts_together_stay_within_the_whole() {
        let (whole, [one, other], _claim) = parts(10);
        let held = one.acquire(7, 5).unwrap();
        assert!(other.try_acquire(4, 5).is_none());
        let rest = other.try_acquire(3, 5).unwrap();
        assert_eq!((whole.used(), whole.peak(), whole.limit()), (10, 10, 10));
        drop(held);
        drop(other.acquire(7, 6).unwrap());
        drop(rest);
        assert_eq!((whole.used(), one.used(), other.used()), (0, 0, 0));
    }

    #[test]
    fn a_part_whose_limit_the_user_set_counts_but_does_not_wait() {
        let (whole, [shared], _claim) = parts(10);
        let own = Budget::part_of(&whole, Share::Own, "own", 30, &PeakMeter::default());
        let _held = own.try_acquire(30, 1).unwrap();
        assert_eq!(whole.used(), 30);
        assert!(shared.try_acquire(1, 1).is_none());
        let claim = whole.claim(40);
        assert!(shared.try_acquire(1, 1).is_some());
        drop(claim);
        assert_eq!(whole.limit(), 10);
    }

    #[test]
    fn urgent_samples_of_every_part_go_on_when_the_whole_is_full() {
        let (whole, [one, other], _claim) = parts(10);
        let _full = one.acquire(10, 8).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| other.acquire(5, 3).map(drop));
            queued(&whole, 1);
            other.set_urgent_below(4);
            assert_eq!(waiter.join().unwrap(), Ok(()));
        });
        one.set_urgent_below(9);
        drop(one.acquire(5, 8).unwrap());
        assert!(whole.0.state.lock().queue.is_empty(), "nobody waits any more");
    }

    #[test]
    fn parts_that_wait_take_turns() {
        let (whole, [one, other], _claim) = parts(1);
        let full = one.acquire(1, 0).unwrap();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for (count, (name, part, slot)) in
                [("one", &one, 1), ("other", &other, 0)].into_iter().enumerate()
            {
                let order = &order;
                scope.spawn(move || {
                    let permit = part.acquire(1, slot).unwrap();
                    order.lock().push(name);
                    drop(permit);
                });
                queued(&whole, count + 1);
            }
            assert!(one.try_acquire(0, 9).is_some(), "its own turn comes first");
            assert!(other.try_acquire(0, 9).is_none(), "others were here before");
            drop(full);
        });
        assert_eq!(*order.lock(), ["one", "other"]);
    }

    #[test]
    fn closing_a_part_lets_the_next_one_go_on() {
        let (whole, [one, other], _claim) = parts(10);
        let full = one.acquire(10, 0).unwrap();
        thread::scope(|scope| {
            let closed = scope.spawn(|| one.acquire(10, 1).is_ok());
            queued(&whole, 1);
            let next = scope.spawn(|| other.acquire(3, 1).is_ok());
            queued(&whole, 2);
            one.close();
            assert!(!closed.join().unwrap());
            drop(full);
            assert!(next.join().unwrap());
        });
    }

    #[test]
    fn what_one_part_holds_without_need_is_given_back_when_another_needs_it() {
        let (whole, [one, other], _claim) = parts(10);
        let warm = Arc::new(Warm(Mutex::default()));
        one.reclaim_from(&warm);
        for _ in 0..6 {
            warm.0.lock().push(one.try_hold_idle(1).unwrap());
        }
        assert!(other.try_hold_idle(5).is_none(), "idle things displace nobody");
        let _held = other.acquire_after(7, 0, &mut || ()).unwrap();
        assert_eq!((whole.used(), whole.idle(), warm.0.lock().len()), (7, 3, 3));
        assert_eq!(other.reclaim_all(), 3);
        assert_eq!((whole.idle(), one.idle()), (0, 0));
    }

    #[test]
    fn holders_are_listed_by_name_and_amount() {
        let (whole, [one, other], _claim) = parts(10);
        let _held = (one.acquire(2, 0).unwrap(), other.acquire(5, 0).unwrap());
        let shown: Vec<_> =
            whole.holders().iter().map(|holder| (holder.name, holder.used)).collect();
        assert_eq!(shown, [("part", 5), ("part", 2)]);
    }

    #[test]
    fn many_parts_under_a_small_whole_all_come_to_their_end() {
        let (whole, parts, _claim): (_, [Budget; 4], _) = parts(3);
        thread::scope(|scope| {
            for part in &parts {
                for thread in 0..4_u64 {
                    scope.spawn(move || {
                        for round in 0..200 {
                            let permit = part.acquire(1 + (thread + round) % 3, round * 4 + thread);
                            drop(permit.unwrap());
                        }
                    });
                }
            }
        });
        assert!(whole.peak() <= 3);
        assert_eq!(whole.used(), 0);
    }
}
