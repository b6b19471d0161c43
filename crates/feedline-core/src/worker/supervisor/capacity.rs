//! How many worker processes may run at once. If the machine refuses a process, or kills one because memory is short,
//! fewer run from then on, and workers without a process wait for their turn: a process that has nothing to do ends,
//! and one is forked for the worker whose task is the oldest. Tasks stay with their workers, so the results are the
//! same. Later one more process is tried, if there is room for it.

use std::time::Duration;

use super::messages::{Shortage, SupervisorAction, TaskNumber, WorkerId};
use super::renewal::ask_to_stop;
use super::worker_record::{ProcessStatus, WorkerProcess, WorkerRecord};
use super::{Supervisor, Zygote};

/// The pause before one more process is tried. It doubles with each further shortage.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// How many processes may run at once.
#[derive(Debug)]
pub(super) struct Capacity {
    most: u32,
    /// The number that was logged last.
    logged: u32,
    shortage: Shortage,
    /// When one more process may be tried, if there are fewer than workers.
    grow_at: Duration,
    pause: Duration,
}

impl Capacity {
    pub(super) fn new(worker_count: u32) -> Capacity {
        Capacity {
            most: worker_count,
            logged: worker_count,
            shortage: Shortage::Processes,
            grow_at: Duration::ZERO,
            pause: FIRST_PAUSE,
        }
    }

    pub(super) fn most(&self) -> u32 {
        self.most
    }
}

impl Supervisor {
    /// What was short, if it is time to check whether there is room for one more process.
    pub(crate) fn must_check_room(&self, now: Duration) -> Option<Shortage> {
        let is_due = self.is_running() && self.is_limited() && self.capacity.grow_at <= now;
        is_due.then_some(self.capacity.shortage)
    }

    /// When `must_check_room` is due.
    pub(super) fn room_check_at(&self) -> Option<Duration> {
        self.is_limited().then_some(self.capacity.grow_at)
    }

    /// The time of a check has passed, and nobody has looked.
    pub(super) fn postpone_room_check(&mut self) {
        if self.must_check_room(self.now).is_some() {
            self.capacity.grow_at = self.now.saturating_add(self.capacity.pause);
        }
    }

    pub(super) fn room_seen(&mut self, is_enough: bool) {
        if self.must_check_room(self.now).is_none() {
            return;
        }
        self.capacity.grow_at = self.now.saturating_add(self.capacity.pause);
        self.capacity.most += u32::from(is_enough);
        if !self.is_limited() {
            self.take_turns();
        }
    }

    /// Whether fewer processes may run than there are workers.
    pub(super) fn is_limited(&self) -> bool {
        self.capacity.most < self.settings.worker_count
    }

    /// Whether another process may be forked.
    pub(super) fn has_room(&self) -> bool {
        // A refused fork that is retried keeps its place.
        let retries = self.records.iter().filter(|record| record.retry_fork_at.is_some()).count();
        !self.is_limited() || self.process_count() as usize + retries < self.capacity.most as usize
    }

    /// The number of processes that were requested and have not ended.
    pub(super) fn process_count(&self) -> u32 {
        u32::try_from(self.workers().count()).unwrap_or(u32::MAX)
    }

    /// Lets at most `most` processes run from now on, and at least one. Returns whether these are fewer than before.
    pub(super) fn shrink(&mut self, most: u32, shortage: Shortage) -> bool {
        let most = most.max(1);
        if most >= self.capacity.most {
            return false;
        }
        self.capacity.most = most;
        self.capacity.shortage = shortage;
        self.capacity.grow_at = self.now.saturating_add(self.capacity.pause);
        self.capacity.pause = (self.capacity.pause * 2).min(LONGEST_PAUSE);
        true
    }

    /// The oldest task of the workers that have no process.
    pub(super) fn oldest_parked(&self) -> Option<TaskNumber> {
        self.records.iter().filter(|record| record.current.is_none()).filter_map(oldest).min()
    }

    /// Gives processes to the workers with the oldest tasks.
    pub(super) fn take_turns(&mut self) {
        self.fork_oldest();
        self.make_room();
        if self.is_running() {
            self.distribute();
        }
    }

    /// Forks processes while there is room: for the workers with the oldest tasks first.
    pub(super) fn fork_oldest(&mut self) {
        while self.is_running() && self.zygote == Zygote::Ready && self.has_room() {
            let next = self
                .records
                .iter()
                .filter(|record| record.is_vacant() && record.is_needed())
                .min_by_key(|record| (oldest(record).unwrap_or(TaskNumber::MAX), record.worker_id));
            let Some(worker_id) = next.map(|record| record.worker_id) else { return };
            self.fork(worker_id);
        }
    }

    /// If a worker without a process has tasks and there is no room, ends a process that has nothing to do.
    fn make_room(&mut self) {
        let is_full = self.is_running() && self.zygote == Zygote::Ready && !self.has_room();
        if !is_full || self.oldest_parked().is_none() || self.workers().any(is_ending) {
            return;
        }
        let idle = self.records.iter_mut().find(|record| is_idle(record));
        if let Some(current) = idle.and_then(|record| record.current.as_mut()) {
            ask_to_stop(current, self.now, self.settings.grace, &mut self.actions);
        }
    }

    /// Logs how many processes may run, once it is known whether the last ones could be started.
    pub(super) fn log_capacity(&mut self) {
        let Capacity { most, logged, shortage, .. } = self.capacity;
        if most != logged && self.is_running() && !self.workers().any(WorkerProcess::is_booting) {
            self.capacity.logged = most;
            let shortage = (most < logged).then_some(shortage);
            self.actions.push(SupervisorAction::CapacityChanged { most, shortage });
        }
    }

    /// Forks a process for a worker that has none.
    pub(super) fn fork(&mut self, worker_id: WorkerId) {
        let record = &mut self.records[worker_id as usize];
        let incarnation = record.next_incarnation();
        let watch = super::WorkerWatch::starting(&self.settings, self.now);
        record.current = Some(WorkerProcess::new(incarnation, watch));
        self.actions.push(SupervisorAction::Fork { incarnation });
    }
}

/// The oldest task that waits for a worker.
fn oldest(record: &WorkerRecord) -> Option<TaskNumber> {
    let trial = record.trials.keys().next();
    record.waiting.first().into_iter().chain(trial).min().copied()
}

/// Whether the only process of a worker is ready and has nothing to do.
fn is_idle(record: &WorkerRecord) -> bool {
    let is_idle = |current: &WorkerProcess| {
        current.status == ProcessStatus::Ready && current.assigned.is_empty()
    };
    record.workers().count() == 1
        && oldest(record).is_none()
        && record.current.as_ref().is_some_and(is_idle)
}

/// Whether a process is about to end.
fn is_ending(worker: &WorkerProcess) -> bool {
    match worker.status {
        ProcessStatus::Booting | ProcessStatus::Ready => false,
        ProcessStatus::Stopping { .. }
        | ProcessStatus::Killed { .. }
        | ProcessStatus::Failed
        | ProcessStatus::Overdue { .. } => true,
    }
}
