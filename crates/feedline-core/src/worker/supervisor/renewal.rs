//! A worker that leaks is replaced without a pause: its successor starts while it still works, and
//! then takes the worker over.

use std::time::Duration;

use super::messages::{Incarnation, SupervisorAction};
use super::worker_record::{WorkerState, WorkerStatus};
use super::{Supervisor, WorkerWatch, Zygote};

/// After a successor could not start, none is tried for so long.
pub(super) const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

impl Supervisor {
    pub(super) fn renew(&mut self, incarnation: Incarnation) {
        let can_fork = self.is_running() && self.zygote == Zygote::Ready;
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let is_at_work = |worker: &WorkerState| {
            worker.incarnation == incarnation
                && worker.status == WorkerStatus::Ready
                && worker.trial.is_none()
        };
        let is_alone = record.successor.is_none() && record.predecessor.is_none();
        let has_waited = self.now >= record.renew_after;
        // Who is alone on a worker that has retired was asked to stop, so it is not at work.
        if can_fork && is_alone && has_waited && record.holder.as_ref().is_some_and(is_at_work) {
            let incarnation = record.next_life();
            record.successor = Some(WorkerState::new(
                incarnation,
                WorkerWatch::starting(&self.settings, self.now),
            ));
            self.actions.push(SupervisorAction::Fork { incarnation });
        }
    }

    /// A successor is ready: it holds the worker from now on, and its predecessor ends after what it
    /// has at hand.
    pub(super) fn take_over(&mut self, incarnation: Incarnation) {
        let record = &mut self.records[incarnation.worker_id as usize];
        record.predecessor = std::mem::replace(&mut record.holder, record.successor.take());
        if let Some(predecessor) = &mut record.predecessor
            && predecessor.status == WorkerStatus::Ready
        {
            ask_to_stop(predecessor, self.now, self.settings.grace, &mut self.actions);
        }
    }
}

/// Asks a worker that is ready to end after what it has at hand.
pub(super) fn ask_to_stop(
    worker: &mut WorkerState,
    now: Duration,
    grace: Duration,
    actions: &mut Vec<SupervisorAction>,
) {
    let kill_at = worker.assigned.is_empty().then(|| now.saturating_add(grace));
    worker.status = WorkerStatus::Stopping { kill_at };
    actions.push(SupervisorAction::Stop { incarnation: worker.incarnation });
}
