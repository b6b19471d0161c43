//! The consumer of a simulated run: submits tasks, retires workers and closes.

use super::{Pinning, SimulatedEvent, SimulatedWorld};
use crate::worker::supervisor::{WorkerEvent, WorkerId};

impl SimulatedWorld {
    /// Takes the next result in order, and submits more tasks.
    pub(super) fn consume(&mut self) -> Result<(), String> {
        if !self.promises.is_running() {
            // The consumer has not noticed the end of the run; what it submits now is ignored.
            let (task, worker_id) = (self.submitted, self.choose_worker());
            return self.notify(WorkerEvent::Submitted { task, worker_id });
        }
        self.consumer_waits = false;
        if self.consumed < self.submitted && self.promises.outcome(self.consumed).is_some() {
            self.consumed += 1;
            self.promises.settle(self.consumed);
        }
        while self.submitted < self.total
            && self.submitted - self.consumed < self.prefetch
            && self.promises.is_running()
        {
            let (task, worker_id) = (self.submitted, self.choose_worker());
            self.submitted += 1;
            self.assign_troubles(task);
            self.notify(WorkerEvent::Submitted { task, worker_id })?;
        }
        if self.consumed == self.total {
            self.report.finished += u64::from(!self.close_sent);
            return self.close();
        }
        if self.promises.outcome(self.consumed).is_some() {
            let when = self.soon();
            self.at(when, SimulatedEvent::Consumes);
        } else {
            self.consumer_waits = true;
        }
        Ok(())
    }

    pub(super) fn choose_worker(&mut self) -> Option<WorkerId> {
        let pins = match self.pinning {
            Pinning::Pinned => true,
            Pinning::Unpinned => false,
            Pinning::Mixed => self.random.chance(500),
        };
        if !pins {
            return None;
        }
        let used: Vec<usize> =
            (0..self.in_use.len()).filter(|worker_id| self.in_use[*worker_id]).collect();
        let reactivates =
            used.is_empty() || self.random.chance(if self.retires_workers { 150 } else { 0 });
        let worker_id = if reactivates {
            self.random.below(self.in_use.len() as u64) as usize
        } else {
            used[(self.submitted % used.len() as u64) as usize]
        };
        self.report.reactivations += u64::from(!self.in_use[worker_id]);
        self.in_use[worker_id] = true;
        Some(worker_id as WorkerId)
    }

    pub(super) fn retire(&mut self, worker_id: WorkerId) -> Result<(), String> {
        if !self.promises.is_running() {
            return Ok(());
        }
        self.in_use[worker_id as usize] = false;
        self.report.retirements += 1;
        self.notify(WorkerEvent::Retire { worker_id })
    }

    pub(super) fn close(&mut self) -> Result<(), String> {
        if self.close_sent {
            return Ok(());
        }
        self.close_sent = true;
        self.notify(WorkerEvent::Close)?;
        if self.stray() { self.notify(WorkerEvent::Close) } else { Ok(()) }
    }
}
