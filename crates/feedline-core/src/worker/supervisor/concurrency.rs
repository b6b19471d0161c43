//! How many workers have pinned tasks at once. If these are fewer than there are workers, each gets one task at a time,
//! and the oldest task goes first. Workers without a task keep their process, so passing the turn costs no fork. If
//! memory is short, the processes of the others end too, and `capacity` decides from then on.

use super::messages::{Shortage, WorkerId};
use super::renewal::ask_to_stop;
use super::worker_record::{ProcessStatus, WorkerProcess, WorkerRecord};
use super::{Supervisor, Zygote};

impl Supervisor {
    /// Lets at most this many workers have pinned tasks at once, and at least one.
    pub(super) fn limit_workers(&mut self, at_once: u32, ends_others: bool) {
        if !self.is_running() {
            return;
        }
        self.at_once = at_once.max(1);
        if ends_others {
            self.shrink(at_once, Shortage::Memory);
        }
        for worker_id in 0..self.settings.worker_count {
            self.send_waiting(worker_id);
        }
    }

    /// Whether some workers wait while others have tasks.
    pub(crate) fn passes_turns(&self) -> bool {
        self.at_once < self.settings.worker_count
    }

    /// Sends the oldest pinned tasks to workers that have none, as long as not too many have one.
    pub(super) fn pass_turns(&mut self) {
        while self.is_running() && self.zygote == Zygote::Ready && self.busy_count() < self.at_once
        {
            let able = self.records.iter().filter(|record| can_take_turn(record));
            let next = able.min_by_key(|record| record.waiting.first().copied());
            let Some(worker_id) = next.map(|record| record.worker_id) else { return };
            self.send_oldest(worker_id);
        }
    }

    fn send_oldest(&mut self, worker_id: WorkerId) {
        if let Some(task) = self.records[worker_id as usize].waiting.pop_first() {
            self.send(worker_id, task, None);
            self.stop_if_retired(worker_id);
        }
    }

    /// The number of workers that have tasks.
    fn busy_count(&self) -> u32 {
        let is_busy = |record: &&WorkerRecord| record.workers().any(WorkerProcess::is_working);
        u32::try_from(self.records.iter().filter(is_busy).count()).unwrap_or(u32::MAX)
    }

    /// If more processes run than may, ends those that have nothing to do at present.
    pub(super) fn end_surplus(&mut self) {
        if !self.is_running() || self.zygote != Zygote::Ready {
            return;
        }
        while self.surplus() > 0 {
            let idle = self.records.iter_mut().filter(|record| is_between_tasks(record));
            // Those stay whose next task is needed first.
            let last =
                idle.max_by_key(|record| record.waiting.first().copied().unwrap_or(u64::MAX));
            let Some(current) = last.and_then(|record| record.current.as_mut()) else { return };
            ask_to_stop(current, self.now, self.settings.grace, &mut self.actions);
        }
    }

    /// How many more processes stay than may run.
    fn surplus(&self) -> u32 {
        let stays = |worker: &&WorkerProcess| match worker.status {
            ProcessStatus::Booting | ProcessStatus::Ready => true,
            ProcessStatus::Stopping { .. }
            | ProcessStatus::Killed { .. }
            | ProcessStatus::Failed
            | ProcessStatus::Overdue { .. } => false,
        };
        let staying = u32::try_from(self.workers().filter(stays).count()).unwrap_or(u32::MAX);
        staying.saturating_sub(self.capacity.most())
    }
}

/// Whether the only process of a worker is ready and has no task, though some may wait for their turn.
fn is_between_tasks(record: &WorkerRecord) -> bool {
    let is_free = |current: &WorkerProcess| {
        current.status == ProcessStatus::Ready && current.assigned.is_empty()
    };
    record.trials.is_empty()
        && record.workers().count() == 1
        && record.current.as_ref().is_some_and(is_free)
}

/// Whether a worker has a pinned task that can be sent now.
fn can_take_turn(record: &WorkerRecord) -> bool {
    let is_free = |current: &WorkerProcess| {
        current.status == ProcessStatus::Ready && current.assigned.is_empty()
    };
    !record.waiting.is_empty()
        && record.trials.is_empty()
        && record.is_handed_over()
        && record.current.as_ref().is_some_and(is_free)
}
