//! Decides what becomes of a task whose worker died or hung: it is sent again, tried alone in a
//! fresh worker, or given up.

use super::messages::{
    ExitKind, GiveUpReason, Incarnation, SupervisorAction, SupervisorSettings, TaskNumber, WorkerId,
};
use super::worker_record::{DeadWorker, ProcessStatus};
use super::{Supervisor, Zygote};

/// A task without a result.
#[derive(Debug)]
pub(super) struct OpenTask {
    pub(super) pin: Option<WorkerId>,
    pub(super) holder: Option<Incarnation>,
    /// The samples at which workers died or hung.
    deaths_by_sample: Vec<SampleDeaths>,
}

/// The deaths and hangs at one offset of a task.
#[derive(Debug)]
struct SampleDeaths {
    at: Option<u64>,
    deaths: u32,
    hangs: u32,
}

/// What to do with a task whose worker has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TaskFate {
    Again,
    Trial { offset: u64 },
    GiveUp { at: Option<u64>, why: GiveUpReason },
}

impl OpenTask {
    pub(super) fn new(pin: Option<WorkerId>) -> OpenTask {
        OpenTask { pin, holder: None, deaths_by_sample: Vec::new() }
    }

    fn sample_deaths(&mut self, at: Option<u64>) -> &mut SampleDeaths {
        let known = self.deaths_by_sample.iter().position(|sample_deaths| sample_deaths.at == at);
        let index = known.unwrap_or_else(|| {
            self.deaths_by_sample.push(SampleDeaths { at, deaths: 0, hangs: 0 });
            self.deaths_by_sample.len() - 1
        });
        &mut self.deaths_by_sample[index]
    }

    fn died(&mut self, at: Option<u64>, settings: &SupervisorSettings) -> TaskFate {
        let sample_deaths = self.sample_deaths(at);
        sample_deaths.deaths += 1;
        let deaths_here = sample_deaths.deaths;
        let given_up = TaskFate::GiveUp { at, why: GiveUpReason::Kills };
        if settings.attempts.is_some_and(|most| deaths_here >= most.max(1)) {
            return given_up;
        }
        let Some(enough) = settings.suspect_after else { return TaskFate::Again };
        match at {
            Some(offset) if deaths_here >= enough => TaskFate::Trial { offset },
            // A trial needs an offset. Without one, one more death decides.
            None if deaths_here > enough => given_up,
            Some(_) | None => TaskFate::Again,
        }
    }

    fn hung(&mut self, at: Option<u64>, settings: &SupervisorSettings) -> TaskFate {
        let sample_deaths = self.sample_deaths(at);
        sample_deaths.hangs += 1;
        if sample_deaths.hangs >= settings.hangs {
            TaskFate::GiveUp { at, why: GiveUpReason::Hangs }
        } else {
            TaskFate::Again
        }
    }
}

impl Supervisor {
    /// Decides about a task that was assigned to a dead worker.
    pub(super) fn judge(&mut self, gone: &DeadWorker, task: TaskNumber) -> TaskFate {
        let first = gone.tasks.first() == Some(&task);
        let Some(open) = self.tasks.get_mut(&task) else { return TaskFate::Again };
        let fate = if gone.overdue {
            match gone.hang {
                Some(hang) if hang.task == task => open.hung(hang.at, &self.settings),
                Some(_) | None => TaskFate::Again,
            }
        } else if first && gone.exit != ExitKind::Lost && !gone.is_blameless {
            match gone.trial {
                Some(offset) => TaskFate::GiveUp { at: Some(offset), why: GiveUpReason::Kills },
                None => open.died(gone.at, &self.settings),
            }
        } else {
            TaskFate::Again
        };
        match (fate, gone.trial) {
            // The trial was interrupted, so it starts again.
            (TaskFate::Again, Some(offset)) if first => TaskFate::Trial { offset },
            (TaskFate::Again | TaskFate::Trial { .. } | TaskFate::GiveUp { .. }, _) => fate,
        }
    }

    /// Queues a task to be sent again. A trial stays with the worker at which the process died,
    /// even if the task is unpinned.
    pub(super) fn put_back(&mut self, task: TaskNumber, worker_id: WorkerId, trial: Option<u64>) {
        let Some(open) = self.tasks.get_mut(&task) else { return };
        open.holder = None;
        match (trial, open.pin) {
            (Some(offset), _) => {
                self.records[worker_id as usize].trials.insert(task, offset);
            }
            (None, Some(pin)) => {
                self.records[pin as usize].waiting.insert(task);
            }
            (None, None) => {
                self.queue.insert(task);
            }
        }
    }

    /// Handles a survived trial: the sample is cleared, and the same worker does the whole task.
    pub(super) fn survived(&mut self, incarnation: Incarnation, task: TaskNumber) {
        // If the zygote is being ended, the trial starts again elsewhere.
        let can_go_on = self.is_running() && self.zygote == Zygote::Ready;
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let Some(worker) = record.worker_mut(incarnation) else { return };
        if !can_go_on || worker.assigned.front() != Some(&task) {
            return;
        }
        let Some(offset) = worker.trial.take() else { return };
        worker.has_worked = true;
        match &mut worker.status {
            ProcessStatus::Ready => {
                self.actions.push(SupervisorAction::Send { incarnation, task, trial: None })
            }
            // It was killed after it had finished: it no longer hangs.
            ProcessStatus::Overdue { hang, .. } => *hang = None,
            ProcessStatus::Booting
            | ProcessStatus::Stopping { .. }
            | ProcessStatus::Killed { .. }
            | ProcessStatus::Failed => {}
        }
        if let Some(open) = self.tasks.get_mut(&task) {
            open.deaths_by_sample.retain(|sample_deaths| sample_deaths.at != Some(offset));
        }
        self.send_waiting(incarnation.worker_id);
        self.distribute();
    }
}
