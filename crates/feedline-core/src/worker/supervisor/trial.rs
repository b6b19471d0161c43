//! What a task has done to workers, and what follows for it: it is sent again, tried alone in a
//! fresh worker, or given up.

use super::messages::{
    ExitKind, Incarnation, Reason, SupervisorAction, SupervisorSettings, TaskNumber, WorkerId,
};
use super::worker_record::{Gone, WorkerStatus};
use super::{Supervisor, Zygote};

/// A task without a result.
#[derive(Debug)]
pub(super) struct OpenTask {
    pub(super) pin: Option<WorkerId>,
    pub(super) holder: Option<Incarnation>,
    /// Where in it workers died or hung.
    deaths_by_sample: Vec<SampleDeaths>,
}

/// What happened at one position of a task.
#[derive(Debug)]
struct SampleDeaths {
    at: Option<u64>,
    deaths: u32,
    hangs: u32,
}

/// What follows for a task whose worker is no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TaskFate {
    Again,
    Trial { position: u64 },
    GiveUp { at: Option<u64>, why: Reason },
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
        let given_up = TaskFate::GiveUp { at, why: Reason::Kills };
        if settings.attempts.is_some_and(|most| deaths_here >= most.max(1)) {
            return given_up;
        }
        let Some(enough) = settings.suspect_after else { return TaskFate::Again };
        match at {
            Some(position) if deaths_here >= enough => TaskFate::Trial { position },
            // Nothing can be tried without knowing where, so one more death decides instead.
            None if deaths_here > enough => given_up,
            Some(_) | None => TaskFate::Again,
        }
    }

    fn hung(&mut self, at: Option<u64>, settings: &SupervisorSettings) -> TaskFate {
        let sample_deaths = self.sample_deaths(at);
        sample_deaths.hangs += 1;
        if sample_deaths.hangs >= settings.hangs {
            TaskFate::GiveUp { at, why: Reason::Hangs }
        } else {
            TaskFate::Again
        }
    }
}

impl Supervisor {
    /// What follows for a task that a dead worker had at hand.
    pub(super) fn judge(&mut self, gone: &Gone, task: TaskNumber) -> TaskFate {
        let first = gone.tasks.first() == Some(&task);
        let Some(open) = self.tasks.get_mut(&task) else { return TaskFate::Again };
        let fate = if gone.overdue {
            match gone.hang {
                Some(hang) if hang.task == task => open.hung(hang.at, &self.settings),
                Some(_) | None => TaskFate::Again,
            }
        } else if first && gone.exit != ExitKind::Lost {
            match gone.trial {
                Some(position) => TaskFate::GiveUp { at: Some(position), why: Reason::Kills },
                None => open.died(gone.at, &self.settings),
            }
        } else {
            TaskFate::Again
        };
        match (fate, gone.trial) {
            // The trial has not ended, so it begins again.
            (TaskFate::Again, Some(position)) if first => TaskFate::Trial { position },
            (TaskFate::Again | TaskFate::Trial { .. } | TaskFate::GiveUp { .. }, _) => fate,
        }
    }

    /// Puts a task that nobody has at hand where it waits to be sent. A trial waits for the worker
    /// where the worker died, whichever worker may do the task otherwise.
    pub(super) fn put_back(&mut self, task: TaskNumber, worker_id: WorkerId, trial: Option<u64>) {
        let Some(open) = self.tasks.get_mut(&task) else { return };
        open.holder = None;
        match (trial, open.pin) {
            (Some(position), _) => {
                self.records[worker_id as usize].trials.insert(task, position);
            }
            (None, Some(pin)) => {
                self.records[pin as usize].waiting.insert(task);
            }
            (None, None) => {
                self.queue.insert(task);
            }
        }
    }

    /// A trial was survived: what was held against the sample is forgotten, and the same worker
    /// does the whole task.
    pub(super) fn survived(&mut self, incarnation: Incarnation, task: TaskNumber) {
        // With a zygote that is being ended the trial begins again elsewhere.
        let can_go_on = self.is_running() && self.zygote == Zygote::Ready;
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let Some(worker) = record.worker_mut(incarnation) else { return };
        if !can_go_on || worker.assigned.front() != Some(&task) {
            return;
        }
        let Some(position) = worker.trial.take() else { return };
        worker.has_worked = true;
        match &mut worker.status {
            WorkerStatus::Ready => {
                self.actions.push(SupervisorAction::Send { incarnation, task, trial: None })
            }
            // It was killed too late: it does not hang there any more.
            WorkerStatus::Overdue { hang, .. } => *hang = None,
            WorkerStatus::Booting
            | WorkerStatus::Stopping { .. }
            | WorkerStatus::Killed { .. }
            | WorkerStatus::Failed => {}
        }
        if let Some(open) = self.tasks.get_mut(&task) {
            open.deaths_by_sample.retain(|sample_deaths| sample_deaths.at != Some(position));
        }
        self.feed(incarnation.worker_id);
        self.distribute();
    }
}
