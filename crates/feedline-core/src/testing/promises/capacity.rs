//! Checks how many processes run at once if the machine is short of something, and that workers take turns then.

use std::time::Duration;

use super::{CheckResult, CheckedWorker, CheckedZygote, PromiseChecker, ensure};
use crate::worker::supervisor::{ExitKind, Incarnation, Shortage, TaskNumber, WorkerId};

/// How many processes may run at once.
pub(super) struct CheckedCapacity {
    pub(super) most: u32,
    logged: u32,
    shortage: Shortage,
    check_at: Duration,
    pause: Duration,
}

impl CheckedCapacity {
    pub(super) fn new(worker_count: u32) -> CheckedCapacity {
        CheckedCapacity {
            most: worker_count,
            logged: worker_count,
            shortage: Shortage::Processes,
            check_at: Duration::ZERO,
            pause: Duration::from_secs(1),
        }
    }
}

impl PromiseChecker {
    /// How many processes exist.
    pub(super) fn processes(&self) -> u32 {
        self.workers_by_id.iter().map(|by_id| by_id.workers.len() as u32).sum()
    }

    /// Whether fewer may run than there are workers.
    pub(super) fn is_limited(&self) -> bool {
        self.capacity.most < self.settings.worker_count
    }

    pub(super) fn has_room(&self) -> bool {
        // A refused fork that is retried keeps its place.
        let retries =
            (0..self.settings.worker_count).filter(|worker_id| self.is_retried(*worker_id)).count();
        !self.is_limited() || self.processes() + (retries as u32) < self.capacity.most
    }

    /// Whether a refused fork of this worker is retried later.
    pub(super) fn is_retried(&self, worker_id: WorkerId) -> bool {
        let has_process = self.workers_by_id[worker_id as usize].current().is_some();
        !has_process && self.next_fork_retry(worker_id).is_some()
    }

    /// Whether the death of this process for a shortage leaves its task without blame.
    pub(in crate::testing) fn is_blameless(
        &self,
        incarnation: Incarnation,
        exit: ExitKind,
        shortage: Shortage,
    ) -> bool {
        let Some(worker) = self.worker(incarnation) else { return false };
        let others = self.processes() - 1;
        let shrinks = !matches!(shortage, Shortage::Descriptors | Shortage::Space)
            && others.max(1) < self.capacity.most;
        let left = worker.worked && matches!(exit, ExitKind::Exited(_));
        self.settings.replace && self.is_running() && (shrinks || left)
    }

    /// Records a shortage while `others` run, and returns whether fewer may run from now on.
    pub(super) fn record_shortage(
        &mut self,
        others: u32,
        shortage: Shortage,
        now: Duration,
    ) -> bool {
        let capacity = &mut self.capacity;
        if others.max(1) >= capacity.most {
            return false;
        }
        capacity.most = others.max(1);
        capacity.shortage = shortage;
        capacity.check_at = now + capacity.pause;
        capacity.pause = (capacity.pause * 2).min(Duration::from_secs(300));
        true
    }

    pub(super) fn record_room(&mut self, is_enough: bool, now: Duration) {
        if self.is_running() && self.is_limited() && self.capacity.check_at <= now {
            self.capacity.check_at = now + self.capacity.pause;
            self.capacity.most += u32::from(is_enough);
        }
    }

    /// Nobody has looked when it was time.
    pub(super) fn record_missed_room(&mut self, now: Duration) {
        self.record_room(false, now);
    }

    pub(super) fn check_capacity_changed(
        &mut self,
        most: u32,
        shortage: Option<Shortage>,
    ) -> CheckResult {
        ensure(self.must_log_capacity(), || "the capacity was logged without need".into())?;
        let wanted = (most < self.capacity.logged).then_some(self.capacity.shortage);
        ensure(most == self.capacity.most && shortage == wanted, || {
            format!("{most} for {shortage:?} was logged, not {} for {wanted:?}", self.capacity.most)
        })?;
        self.capacity.logged = most;
        Ok(())
    }

    fn must_log_capacity(&self) -> bool {
        let boots = |worker: &CheckedWorker| {
            !worker.ready && !worker.killed && !worker.failed && !worker.stopped
        };
        let is_booting = self.workers_by_id.iter().flat_map(|by_id| &by_id.workers).any(boots);
        self.is_running() && !is_booting && self.capacity.most != self.capacity.logged
    }

    /// The oldest task of a worker without a process.
    pub(super) fn oldest_parked(&self) -> Option<TaskNumber> {
        (self.settled as TaskNumber..self.tasks.len() as TaskNumber).find(|task| {
            let task_record = &self.tasks[*task as usize];
            let worker_id = match (task_record.trial, task_record.pin) {
                (Some((worker_id, _)), _) | (None, Some(worker_id)) => worker_id,
                (None, None) => return false,
            };
            self.waits_for(*task) && self.workers_by_id[worker_id as usize].current().is_none()
        })
    }

    /// Whether a process has nothing to do, also not soon.
    fn is_idle(&self, worker_id: WorkerId) -> bool {
        let [worker] = &self.workers_by_id[worker_id as usize].workers[..] else { return false };
        let waits = self.waits(Some(worker_id)) || self.trials(worker_id).next().is_some();
        worker.takes_tasks() && worker.assigned.is_empty() && !waits
    }

    /// Whether an idle process must end now, so that another worker gets one.
    fn must_make_room(&self) -> bool {
        let is_ending = |worker: &CheckedWorker| worker.stopped || worker.killed || worker.failed;
        let ends = self.workers_by_id.iter().flat_map(|by_id| &by_id.workers).any(is_ending);
        self.zygote == CheckedZygote::Ready
            && !self.has_room()
            && !ends
            && self.oldest_parked().is_some()
    }

    /// Whether this process may be asked to end in favour of another worker.
    pub(super) fn may_make_room(&self, incarnation: Incarnation) -> bool {
        self.must_make_room() && self.is_idle(incarnation.worker_id)
    }

    /// Checks what must hold after each step of a run.
    pub(super) fn check_capacity(&self, deadline: Option<Duration>) -> CheckResult {
        ensure(!self.must_log_capacity(), || "the log misses the capacity".into())?;
        if !self.is_limited() {
            return Ok(());
        }
        self.check_surplus()?;
        ensure(deadline.is_some_and(|at| at <= self.capacity.check_at), || {
            format!("the deadline is {deadline:?}, but room must be checked")
        })?;
        let idle = (0..self.settings.worker_count).find(|worker_id| self.is_idle(*worker_id));
        ensure(!self.must_make_room() || idle.is_none(), || {
            format!("worker {idle:?} has nothing to do, but makes no room")
        })
    }
}
