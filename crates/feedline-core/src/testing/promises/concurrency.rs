//! Checks how many workers have pinned tasks at once, and which of them come first.

use std::time::Duration;

use super::{CheckResult, CheckedWorker, CheckedWorkerId, CheckedZygote, PromiseChecker, ensure};
use crate::worker::supervisor::{Incarnation, Shortage, TaskNumber, WorkerId};

impl PromiseChecker {
    pub(super) fn record_limit(&mut self, at_once: u32, ends_others: bool, now: Duration) {
        if !self.is_running() {
            return;
        }
        self.at_once = at_once.max(1);
        if ends_others {
            self.record_shortage(at_once, Shortage::Memory, now);
        }
    }

    /// Whether some workers wait while others have tasks.
    fn passes_turns(&self) -> bool {
        self.at_once < self.settings.worker_count
    }

    /// The number of workers that have tasks.
    fn busy_count(&self) -> u32 {
        let has_task =
            |worker: &CheckedWorker| worker.ready && !worker.killed && !worker.assigned.is_empty();
        let is_busy = |by_id: &&CheckedWorkerId| by_id.workers.iter().any(has_task);
        self.workers_by_id.iter().filter(is_busy).count() as u32
    }

    /// Whether a worker that takes tasks must not be sent a pinned one now.
    pub(super) fn must_wait_for_turn(&self, worker: &CheckedWorker) -> bool {
        self.passes_turns() && (!worker.assigned.is_empty() || self.busy_count() >= self.at_once)
    }

    /// Whether a worker that could do its pinned task waits for its turn.
    pub(super) fn holds_back(&self) -> bool {
        self.passes_turns() && self.next_turn().is_some()
    }

    /// The oldest pinned task of the workers that could be sent one.
    fn next_turn(&self) -> Option<TaskNumber> {
        (self.settled as TaskNumber..self.tasks.len() as TaskNumber).find(|task| {
            let task_record = &self.tasks[*task as usize];
            let Some(worker_id) = task_record.pin else { return false };
            let is_waiting = task_record.trial.is_none() && self.waits_for(*task);
            is_waiting && self.can_take_turn(worker_id)
        })
    }

    fn can_take_turn(&self, worker_id: WorkerId) -> bool {
        let by_id = &self.workers_by_id[worker_id as usize];
        let is_free = |worker: &CheckedWorker| worker.takes_tasks() && worker.assigned.is_empty();
        self.zygote == CheckedZygote::Ready
            && by_id.is_handed_over()
            && by_id.current().is_some_and(is_free)
            && self.trials(worker_id).next().is_none()
    }

    /// Checks that it is the turn of this task.
    pub(super) fn check_turn(&self, incarnation: Incarnation, task: TaskNumber) -> CheckResult {
        if !self.passes_turns() {
            return Ok(());
        }
        let worker = self.worker(incarnation).ok_or("an unknown worker was sent a task")?;
        ensure(!self.must_wait_for_turn(worker), || {
            format!("{task} was sent, though {} workers have tasks", self.busy_count())
        })?;
        let next = self.next_turn();
        ensure(next == Some(task), || format!("{task} was sent, though it is the turn of {next:?}"))
    }

    /// How many more processes stay than may run.
    fn surplus(&self) -> u32 {
        let stays = |worker: &&CheckedWorker| !worker.stopped && !worker.killed && !worker.failed;
        let workers = self.workers_by_id.iter().flat_map(|by_id| &by_id.workers);
        (workers.filter(stays).count() as u32).saturating_sub(self.capacity.most)
    }

    /// Whether this process may be asked to end because too many run.
    pub(super) fn is_surplus(&self, incarnation: Incarnation) -> bool {
        self.surplus() > 0 && self.is_between_tasks(incarnation.worker_id)
    }

    fn is_between_tasks(&self, worker_id: WorkerId) -> bool {
        let [worker] = &self.workers_by_id[worker_id as usize].workers[..] else { return false };
        worker.takes_tasks()
            && worker.assigned.is_empty()
            && self.trials(worker_id).next().is_none()
    }

    /// Checks that no process without a task stays if too many run.
    pub(super) fn check_surplus(&self) -> CheckResult {
        if self.surplus() == 0 || self.zygote != CheckedZygote::Ready {
            return Ok(());
        }
        let idle = (0..self.settings.worker_count).find(|id| self.is_between_tasks(*id));
        ensure(idle.is_none(), || {
            format!("worker {idle:?} has no task and stays, though too many run")
        })
    }
}
