//! The arenas of all pools of a process share one budget, as native loaders do: a loader for training and one for
//! validation together use no more than one alone may use by default.
//!
//! Workers cannot see the boxes of another pool. So the budget is divided: each pool has an *allowance*, which its
//! workers respect, and the trainer moves what a pool does not use to those that have tasks. No wait depends on it: the
//! task that a consumer waits for takes its memory in any case.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

use crate::budget::Share;
use crate::sys::lock::Mutex;
use crate::sys::process::PerProcess;
use crate::worker::blackbox::{BoxField, Boxes};

/// What the pools of this process share. A forked process has its own.
static POOLS: PerProcess<Mutex<Pools>> = PerProcess::new(Mutex::default);

#[derive(Default)]
struct Pools {
    members: Vec<Weak<PoolAllowance>>,
    /// The most that all pools have used at a time.
    peak: u64,
}

/// What the arenas of one pool may use of the budget of the process.
pub(super) struct PoolAllowance {
    boxes: Arc<Boxes>,
    worker_count: u32,
    share: Share,
    /// What the pool may use if there is no other.
    limit: AtomicU64,
    /// What its workers may use now.
    allowed: AtomicU64,
    has_tasks: AtomicBool,
}

/// What is known of a pool when the budget is divided.
#[derive(Clone, Copy, Debug)]
struct PoolUse {
    share: Share,
    limit: u64,
    used: u64,
    has_tasks: bool,
}

/// Divides `total`: each pool keeps what it uses, and pools with tasks get equal parts of the rest; all pools, if none
/// has tasks. A limit that the user set is not divided, but what such a pool uses is missing for the others.
fn divide(total: u64, pools: &[PoolUse]) -> Vec<u64> {
    let used = pools.iter().map(|pool| pool.used).fold(0, u64::saturating_add);
    let within = |pool: &PoolUse| pool.share == Share::Within;
    let is_idle = !pools.iter().any(|pool| within(pool) && pool.has_tasks);
    let shares = |pool: &PoolUse| within(pool) && (pool.has_tasks || is_idle);
    let sharing = pools.iter().filter(|pool| shares(pool)).count().max(1) as u64;
    let part = total.saturating_sub(used) / sharing;
    let allowance = |pool: &PoolUse| match pool.share {
        Share::Own => pool.limit,
        Share::Within if shares(pool) => pool.used.saturating_add(part).min(pool.limit),
        Share::Within => pool.used.min(pool.limit),
    };
    pools.iter().map(allowance).collect()
}

impl PoolAllowance {
    /// A pool begins. Until `rebalance` is called, its workers may use nothing.
    pub(super) fn new(
        boxes: &Arc<Boxes>,
        worker_count: u32,
        share: Share,
        limit: u64,
    ) -> Arc<PoolAllowance> {
        let pool = Arc::new(PoolAllowance {
            boxes: Arc::clone(boxes),
            worker_count,
            share,
            limit: AtomicU64::new(limit),
            allowed: AtomicU64::new(0),
            has_tasks: AtomicBool::new(false),
        });
        let mut pools = POOLS.get().lock();
        pools.members.retain(|member| member.strong_count() > 0);
        pools.members.push(Arc::downgrade(&pool));
        drop(pools);
        rebalance();
        pool
    }

    /// Lowers the limit of this pool.
    pub(super) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        rebalance();
    }

    /// Notes whether the pool has tasks, and divides the budget anew.
    pub(super) fn set_has_tasks(&self, has_tasks: bool) {
        let is_new = self.has_tasks.swap(has_tasks, Ordering::Relaxed) != has_tasks;
        // A pool alone has all of it, whatever it does.
        if is_new || self.is_divided() {
            rebalance();
        }
    }

    fn is_divided(&self) -> bool {
        self.allowed.load(Ordering::Relaxed) != self.limit.load(Ordering::Relaxed)
    }

    /// How many bytes the consumer may keep before batches are copied for it.
    pub(super) fn most_lent(&self) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed) / 2;
        match self.share {
            Share::Own => limit,
            Share::Within => limit / POOLS.get().lock().count_sharing(),
        }
    }

    /// The bytes that the arenas of this pool use now.
    pub(super) fn used(&self) -> u64 {
        self.boxes.sum(BoxField::ArenaUsed)
    }

    fn allow(&self, bytes: u64) {
        self.allowed.store(bytes, Ordering::Relaxed);
        for worker_id in 0..self.worker_count {
            self.boxes.set_for_worker(worker_id, BoxField::ArenaLimit, bytes);
        }
    }

    fn pool_use(&self) -> PoolUse {
        PoolUse {
            share: self.share,
            limit: self.limit.load(Ordering::Relaxed),
            used: self.used(),
            has_tasks: self.has_tasks.load(Ordering::Relaxed),
        }
    }
}

impl Pools {
    fn alive(&self) -> Vec<Arc<PoolAllowance>> {
        self.members.iter().filter_map(Weak::upgrade).collect()
    }

    fn count_sharing(&self) -> u64 {
        let sharing = |pool: &Arc<PoolAllowance>| pool.share == Share::Within;
        self.alive().iter().filter(|pool| sharing(pool)).count().max(1) as u64
    }

    /// The largest limit of a pool is that of all of them.
    fn total(pools: &[Arc<PoolAllowance>]) -> u64 {
        pools.iter().map(|pool| pool.limit.load(Ordering::Relaxed)).max().unwrap_or(0)
    }
}

/// Notes what all pools use now. Returns the most that they have used at a time, and what they may use.
pub(super) fn note_peak() -> (u64, u64) {
    let mut pools = POOLS.get().lock();
    let alive = pools.alive();
    let used = alive.iter().map(|pool| pool.used()).fold(0, u64::saturating_add);
    pools.peak = pools.peak.max(used);
    (pools.peak, Pools::total(&alive))
}

/// Divides the budget anew. Allowances are lowered first: only what no worker can have taken since is given to others.
fn rebalance() {
    let state = POOLS.get().lock();
    let pools = state.alive();
    let total = Pools::total(&pools);
    let uses: Vec<_> = pools.iter().map(|pool| pool.pool_use()).collect();
    let targets = divide(total, &uses);
    for (pool, target) in pools.iter().zip(&targets) {
        if *target < pool.allowed.load(Ordering::Relaxed) || pool.share == Share::Own {
            pool.allow(*target);
        }
    }
    // A worker writes down what it takes before it reads its limit: what is not seen here, it did not take.
    fence(Ordering::SeqCst);
    let held = |pool: &Arc<PoolAllowance>| match pool.share {
        Share::Own => pool.used(),
        Share::Within => pool.used().max(pool.allowed.load(Ordering::Relaxed)),
    };
    let all = pools.iter().map(held).fold(0, u64::saturating_add);
    let mut room = total.saturating_sub(all);
    for (pool, target) in pools.iter().zip(&targets) {
        let allowed = pool.allowed.load(Ordering::Relaxed);
        let base = held(pool).max(allowed);
        let more = target.saturating_sub(base).min(room);
        if more > 0 || *target > allowed {
            pool.allow((*target).min(base + more));
            room -= more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(used: u64, has_tasks: bool) -> PoolUse {
        PoolUse { share: Share::Within, limit: 100, used, has_tasks }
    }

    #[test]
    fn a_pool_alone_has_everything() {
        assert_eq!(divide(100, &[pool(30, true)]), [100]);
        assert_eq!(divide(100, &[pool(30, false)]), [100], "its pages stay warm between tasks");
    }

    #[test]
    fn pools_with_tasks_share_what_nobody_uses() {
        assert_eq!(divide(100, &[pool(10, true), pool(50, true)]), [30, 70]);
    }

    #[test]
    fn a_pool_without_tasks_keeps_only_what_it_uses() {
        assert_eq!(divide(100, &[pool(10, true), pool(50, false)]), [50, 50]);
    }

    #[test]
    fn a_limit_of_the_user_is_kept_and_its_use_is_missing_for_the_others() {
        let own = PoolUse { share: Share::Own, limit: 60, used: 40, has_tasks: true };
        assert_eq!(divide(100, &[own, pool(10, true)]), [60, 60]);
    }

    proptest! {
        #[test]
        fn allowances_stay_within_the_whole_and_no_pool_loses_what_it_uses(
            pools in prop::collection::vec((0_u64..200, any::<bool>()), 1..6),
        ) {
            let pools: Vec<_> = pools.iter().map(|(used, tasks)| pool((*used).min(100), *tasks)).collect();
            let allowed = divide(100, &pools);
            let used: u64 = pools.iter().map(|pool| pool.used).sum();
            prop_assert!(allowed.iter().sum::<u64>() <= used.max(100));
            for (pool, allowed) in pools.iter().zip(&allowed) {
                prop_assert!(*allowed >= pool.used.min(pool.limit));
            }
        }
    }

    #[test]
    fn two_pools_never_have_more_than_one_and_a_dropped_one_gives_back() {
        let create = || Arc::new(Boxes::create(1).unwrap().1);
        let limit = |boxes: &Boxes| {
            boxes.get(
                crate::worker::blackbox::Owner { worker_id: 0, generation: 0 },
                BoxField::ArenaLimit,
            )
        };
        let (one_boxes, other_boxes) = (create(), create());
        let one = PoolAllowance::new(&one_boxes, 1, Share::Within, 1000);
        one.set_has_tasks(true);
        assert_eq!(limit(&one_boxes), 1000);
        let owner = crate::worker::blackbox::Owner { worker_id: 0, generation: 0 };
        one_boxes.set(owner, BoxField::ArenaUsed, 400);
        let other = PoolAllowance::new(&other_boxes, 1, Share::Within, 1000);
        other.set_has_tasks(true);
        assert_eq!((limit(&one_boxes), limit(&other_boxes)), (700, 300));
        assert_eq!(other.most_lent(), 250);
        one.set_has_tasks(false);
        assert_eq!((limit(&one_boxes), limit(&other_boxes)), (400, 600));
        drop(one);
        other.set_has_tasks(true);
        assert_eq!(limit(&other_boxes), 1000);
    }
}
