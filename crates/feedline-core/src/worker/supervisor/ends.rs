//! The ends of workers and of the zygote: what they mean for the tasks, for the worker, and for the
//! run.

use std::mem;
use std::time::Duration;

use super::messages::{
    Death, ExitKind, Incarnation, Reason, RunFailure, SupervisorAction, TaskNumber, WorkerStage,
};
use super::renewal::RENEWAL_PAUSE;
use super::trial::TaskFate;
use super::worker_record::{ExitMeaning, Gone, Role};
use super::zygote_watch::ZygoteWatch;
use super::{BOOT_DEATHS, HISTORY, Supervisor, ZYGOTE_FAILURES, Zygote};

/// A death that counts for `max_deaths`.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedDeath {
    at: Duration,
    /// The task that may be to blame: if it is given up, the death is forgiven.
    task: Option<TaskNumber>,
}

impl Supervisor {
    pub(super) fn zygote_ended(&mut self) {
        let before = mem::replace(&mut self.zygote, Zygote::Gone);
        self.zygote_watch = ZygoteWatch::default();
        let was_ready = match before {
            Zygote::Ready => true,
            Zygote::Booting => false,
            Zygote::ExitKind { .. } => return self.forget_all(),
            Zygote::NotForked | Zygote::Gone => {
                self.zygote = before;
                return;
            }
        };
        let is_running = self.is_running();
        let mut gone = Vec::new();
        let mut retired = Vec::new();
        for record in &mut self.records {
            record.forget_refusals();
            record.again = None;
            for (role, worker) in record.remove_all() {
                match worker.part(role, ExitKind::Lost, None, is_running) {
                    ExitMeaning::Expected => {}
                    ExitMeaning::Retired(incarnation) => {
                        retired.push(SupervisorAction::Retired { incarnation })
                    }
                    ExitMeaning::Death(dead) => gone.push(dead),
                }
            }
        }
        self.actions.extend(retired);
        if !is_running {
            self.log(gone, false);
            return;
        }
        if was_ready {
            if self.report_death(gone, true) {
                self.start_zygote();
            }
            return;
        }
        // No worker can be alive here, and a few in a row are a bound already: this is no death to
        // count.
        self.zygote_failures += 1;
        if self.zygote_failures < ZYGOTE_FAILURES {
            self.start_zygote();
        } else {
            self.fail(RunFailure::ZygoteCannotStart);
        }
    }

    /// The zygote that we ended is gone, with workers that did nothing wrong.
    fn forget_all(&mut self) {
        for worker_id in 0..self.settings.worker_count {
            let record = &mut self.records[worker_id as usize];
            record.forget_refusals();
            record.again = None;
            for (_, worker) in record.remove_all() {
                for task in worker.assigned {
                    self.put_back(task, worker_id, worker.trial);
                }
            }
        }
        if self.is_running() {
            self.keep_one_open();
            self.start_zygote();
        }
    }

    pub(super) fn ended(&mut self, incarnation: Incarnation, exit: ExitKind, at: Option<u64>) {
        let is_running = self.is_running();
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let Some((role, worker)) = record.remove(incarnation) else { return };
        // It was started, so the next refusal is the first of a new row.
        if role == Role::Holder {
            record.forget_refusals();
        }
        if let Zygote::ExitKind { .. } = self.zygote {
            for task in worker.assigned {
                self.put_back(task, incarnation.worker_id, worker.trial);
            }
            return;
        }
        let gone = match worker.part(role, exit, at, is_running) {
            ExitMeaning::Expected => None,
            ExitMeaning::Retired(incarnation) => {
                self.actions.push(SupervisorAction::Retired { incarnation });
                None
            }
            ExitMeaning::Death(gone) => Some(gone),
        };
        if !is_running {
            self.log(gone, false);
            return;
        }
        // A death in a trial needs no word here: its task is given up, and that forgives it.
        let counts = gone.as_ref().is_some_and(|gone| !gone.overdue);
        if gone.is_none_or(|gone| self.report_death(vec![gone], counts)) {
            self.staff(incarnation.worker_id);
            self.feed(incarnation.worker_id);
            self.distribute();
        }
    }

    /// Takes the tasks of the dead back, counts them all as one death if they count, and says
    /// whether the run goes on.
    fn report_death(&mut self, gone: Vec<Gone>, counts: bool) -> bool {
        let mut forbidden = None;
        let mut dies_starting = None;
        let mut given_up = Vec::new();
        let mut blamed = None;
        for dead in &gone {
            let record = &mut self.records[dead.incarnation.worker_id as usize];
            if !self.settings.replace && dead.role != Role::Successor {
                let holds = dead.role == Role::Holder;
                let others = holds && !(record.waiting.is_empty() && self.queue.is_empty());
                if others || !dead.tasks.is_empty() {
                    forbidden =
                        forbidden.or(Some(RunFailure::Death { incarnation: dead.incarnation }));
                } else if !record.retired && record.holder.is_none() {
                    record.fallen = Some(dead.incarnation);
                }
            }
            // What ends with the zygote says nothing about the worker or its task.
            let is_own = dead.exit != ExitKind::Lost;
            if is_own && dead.stage == WorkerStage::Booting {
                record.boot_deaths += 1;
                if record.boot_deaths >= BOOT_DEATHS {
                    dies_starting =
                        Some(RunFailure::DiesStarting { incarnation: dead.incarnation });
                }
            }
            if dead.role == Role::Successor {
                record.renew_after = self.now.saturating_add(RENEWAL_PAUSE);
            }
            if is_own {
                blamed = dead.tasks.first().copied();
            }
            for &task in &dead.tasks {
                match self.judge(dead, task) {
                    TaskFate::Again => self.put_back(task, dead.incarnation.worker_id, None),
                    TaskFate::Trial { position } => {
                        self.put_back(task, dead.incarnation.worker_id, Some(position));
                    }
                    TaskFate::GiveUp { at, why } => given_up.push((task, at, why)),
                }
            }
        }
        if counts {
            self.counted.push_back(CountedDeath { at: self.now, task: blamed });
        }
        for (task, _, why) in &given_up {
            match why {
                Reason::Kills => self.counted.retain(|counted| counted.task != Some(*task)),
                Reason::Hangs => {}
            }
        }
        // The narrower reason is the more useful one to read.
        let too_many = counts && self.count_deaths() > self.settings.max_deaths as usize;
        let too_many = too_many.then_some(RunFailure::TooManyDeaths);
        let failure = forbidden.or(dies_starting).or(too_many);
        self.keep_one_open();
        self.log(gone, failure.is_none());
        if let Some(failure) = failure {
            self.fail(failure);
            return false;
        }
        for (task, at, why) in given_up {
            self.tasks.remove(&task);
            self.actions.push(SupervisorAction::GiveUp { task, at, why });
        }
        true
    }

    /// Deaths that count at this time.
    fn count_deaths(&mut self) -> usize {
        while self.counted.front().is_some_and(|old| self.now - old.at > self.settings.within) {
            self.counted.pop_front();
        }
        self.counted.len()
    }

    /// Says and remembers who died. `goes_on` is whether what is needed is replaced.
    fn log(&mut self, gone: impl IntoIterator<Item = Gone>, goes_on: bool) {
        for dead in gone {
            let Gone { incarnation, role, stage, exit, tasks, overdue, .. } = dead;
            let record = &self.records[incarnation.worker_id as usize];
            let goes_without = role == Role::Successor && record.holder.is_some();
            let replaced = goes_on && record.is_needed() && !goes_without;
            let death = Death { incarnation, exit, at: self.now, stage, tasks, replaced, overdue };
            if self.deaths.len() == HISTORY {
                self.deaths.remove(0);
            }
            self.deaths.push(death.clone());
            self.actions.push(SupervisorAction::Died(death));
        }
    }
}
