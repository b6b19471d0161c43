//! Replaces a worker that leaks without a pause: the successor starts while the old process still
//! works, and then takes over.

use std::time::Duration;

use super::messages::{Incarnation, SupervisorAction};
use super::worker_record::{ProcessStatus, WorkerProcess};
use super::{Supervisor, WorkerWatch, Zygote};

/// The pause after a successor could not start, before the next one is tried.
pub(super) const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

impl Supervisor {
    pub(super) fn renew(&mut self, incarnation: Incarnation) {
        let can_fork = self.is_running() && self.zygote == Zygote::Ready;
        let is_limited = self.is_limited();
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let is_ready = |worker: &WorkerProcess| {
            worker.incarnation == incarnation
                && worker.status == ProcessStatus::Ready
                && worker.trial.is_none()
        };
        let is_alone = record.successor.is_none() && record.predecessor.is_none();
        let may_renew = !record.retired && self.now >= record.renew_after;
        if !can_fork || !is_alone || !may_renew || !record.current.as_ref().is_some_and(is_ready) {
            return;
        }
        if is_limited {
            // There is no room for two: the old process ends first.
            if let Some(current) = &mut record.current {
                current.is_renewed = true;
                ask_to_stop(current, self.now, self.settings.grace, &mut self.actions);
            }
        } else {
            let incarnation = record.next_incarnation();
            record.successor = Some(WorkerProcess::new(
                incarnation,
                WorkerWatch::starting(&self.settings, self.now),
            ));
            self.actions.push(SupervisorAction::Fork { incarnation });
        }
    }

    /// Makes a ready successor the current process; its predecessor exits after the tasks it has.
    pub(super) fn take_over(&mut self, incarnation: Incarnation) {
        let record = &mut self.records[incarnation.worker_id as usize];
        record.predecessor = std::mem::replace(&mut record.current, record.successor.take());
        if let Some(predecessor) = &mut record.predecessor
            && predecessor.status == ProcessStatus::Ready
        {
            ask_to_stop(predecessor, self.now, self.settings.grace, &mut self.actions);
        }
    }
}

/// Asks a ready worker to exit after the tasks it has.
pub(super) fn ask_to_stop(
    worker: &mut WorkerProcess,
    now: Duration,
    grace: Duration,
    actions: &mut Vec<SupervisorAction>,
) {
    let kill_at = worker.assigned.is_empty().then(|| now.saturating_add(grace));
    worker.status = ProcessStatus::Stopping { kill_at };
    actions.push(SupervisorAction::Stop { incarnation: worker.incarnation });
}
