//! Handles the ends of workers and of the zygote: what becomes of their tasks, of the workers, and
//! of the run.

use std::mem;
use std::time::Duration;

use super::messages::{
    Death, ExitKind, GiveUpReason, Incarnation, RunFailure, Shortage, SupervisorAction, TaskNumber,
    WorkerStage,
};
use super::renewal::RENEWAL_PAUSE;
use super::trial::TaskFate;
use super::worker_record::{DeadWorker, ExitMeaning, ProcessRole};
use super::zygote_watch::ZygoteWatch;
use super::{MAX_BOOT_DEATHS, MAX_REMEMBERED_DEATHS, MAX_ZYGOTE_FAILURES, Supervisor, Zygote};

/// A death that counts for `max_deaths`.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedDeath {
    at: Duration,
    /// The task that may be to blame. If it is given up, the death no longer counts.
    task: Option<TaskNumber>,
}

impl Supervisor {
    pub(super) fn zygote_ended(&mut self) {
        let before = mem::replace(&mut self.zygote, Zygote::Gone);
        self.zygote_watch = ZygoteWatch::default();
        let was_ready = match before {
            Zygote::Ready => true,
            Zygote::Booting => false,
            Zygote::Ending { .. } => return self.forget_all(),
            Zygote::NotForked | Zygote::Gone => {
                self.zygote = before;
                return;
            }
        };
        let is_running = self.is_running();
        let mut gone = Vec::new();
        let mut renewed = Vec::new();
        for record in &mut self.records {
            record.forget_refusals();
            record.retry_fork_at = None;
            for (role, worker) in record.remove_all() {
                match worker.exit_meaning(role, ExitKind::Lost, None, is_running) {
                    ExitMeaning::Expected => {}
                    ExitMeaning::Renewed(incarnation) => {
                        renewed.push(SupervisorAction::Renewed { incarnation })
                    }
                    ExitMeaning::Death(dead) => gone.push(dead),
                }
            }
        }
        self.actions.extend(renewed);
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
        // This is not a counted death: no worker can be alive yet, and `MAX_ZYGOTE_FAILURES` bounds
        // the retries.
        self.zygote_failures += 1;
        if self.zygote_failures < MAX_ZYGOTE_FAILURES {
            self.start_zygote();
        } else {
            self.fail(RunFailure::ZygoteCannotStart);
        }
    }

    /// Handles the end of a zygote that we ended; its workers did nothing wrong.
    fn forget_all(&mut self) {
        for worker_id in 0..self.settings.worker_count {
            let record = &mut self.records[worker_id as usize];
            record.forget_refusals();
            record.retry_fork_at = None;
            for (_, worker) in record.remove_all() {
                for task in worker.assigned {
                    self.put_back(task, worker_id, worker.trial);
                }
            }
        }
        if self.is_running() {
            self.keep_one_unretired();
            self.start_zygote();
        }
    }

    pub(super) fn ended(
        &mut self,
        incarnation: Incarnation,
        exit: ExitKind,
        at: Option<u64>,
        shortage: Option<Shortage>,
    ) {
        let is_running = self.is_running();
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let Some((role, worker)) = record.remove(incarnation) else { return };
        // The fork succeeded, so the next refusal is the first of a new series.
        if role == ProcessRole::Current {
            record.forget_refusals();
        }
        if let Zygote::Ending { .. } = self.zygote {
            for task in worker.assigned {
                self.put_back(task, incarnation.worker_id, worker.trial);
            }
            return;
        }
        let mut gone = match worker.exit_meaning(role, exit, at, is_running) {
            ExitMeaning::Expected => None,
            ExitMeaning::Renewed(incarnation) => {
                self.actions.push(SupervisorAction::Renewed { incarnation });
                None
            }
            ExitMeaning::Death(gone) => Some(gone),
        };
        if !is_running {
            self.log(gone, false);
            return;
        }
        if let (Some(gone), Some(shortage)) = (&mut gone, shortage)
            && !gone.overdue
            && self.settings.replace
        {
            // Others used the memory too: with fewer of them the same task may fit.
            let is_shrunk = match shortage {
                Shortage::Memory | Shortage::Processes => {
                    self.shrink(self.process_count(), shortage)
                }
                Shortage::Descriptors | Shortage::Space => false,
            };
            gone.is_blameless = is_shrunk || gone.has_left;
        }
        // A death in a trial needs no special case: its task is given up, so the death does not
        // count.
        let counts = gone.as_ref().is_some_and(|gone| !gone.overdue && !gone.is_blameless);
        if gone.is_none_or(|gone| self.report_death(vec![gone], counts)) {
            if !self.is_limited() {
                self.fork_if_needed(incarnation.worker_id);
            }
            self.send_waiting(incarnation.worker_id);
            self.distribute();
        }
    }

    /// Takes back the tasks of dead workers and returns whether the run continues. If `counts`, all
    /// of them together count as one death.
    fn report_death(&mut self, gone: Vec<DeadWorker>, counts: bool) -> bool {
        let mut forbidden = None;
        let mut dies_starting = None;
        let mut given_up = Vec::new();
        let mut blamed = None;
        for dead in &gone {
            let record = &mut self.records[dead.incarnation.worker_id as usize];
            if !self.settings.replace && dead.role != ProcessRole::Successor {
                let is_current = dead.role == ProcessRole::Current;
                let has_waiting =
                    is_current && !(record.waiting.is_empty() && self.queue.is_empty());
                if has_waiting || !dead.tasks.is_empty() {
                    forbidden =
                        forbidden.or(Some(RunFailure::Death { incarnation: dead.incarnation }));
                } else if !record.retired && record.current.is_none() {
                    record.unreplaced = Some(dead.incarnation);
                }
            }
            // A worker that ends with the zygote is not to blame, and neither is its task.
            let is_own = dead.exit != ExitKind::Lost && !dead.is_blameless;
            if is_own && dead.stage == WorkerStage::Booting {
                record.boot_deaths += 1;
                if record.boot_deaths >= MAX_BOOT_DEATHS {
                    dies_starting =
                        Some(RunFailure::DiesStarting { incarnation: dead.incarnation });
                }
            }
            if dead.role == ProcessRole::Successor {
                record.renew_after = self.now.saturating_add(RENEWAL_PAUSE);
            }
            if is_own {
                blamed = dead.tasks.first().copied();
            }
            for &task in &dead.tasks {
                match self.judge(dead, task) {
                    TaskFate::Again => self.put_back(task, dead.incarnation.worker_id, None),
                    TaskFate::Trial { offset } => {
                        self.put_back(task, dead.incarnation.worker_id, Some(offset));
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
                GiveUpReason::Kills => self.counted.retain(|counted| counted.task != Some(*task)),
                GiveUpReason::Hangs => {}
            }
        }
        // Report the most specific reason.
        let too_many = counts && self.count_deaths() > self.settings.max_deaths as usize;
        let too_many = too_many.then_some(RunFailure::TooManyDeaths);
        let failure = forbidden.or(dies_starting).or(too_many);
        self.keep_one_unretired();
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

    /// The number of deaths in the last `within`.
    fn count_deaths(&mut self) -> usize {
        while self.counted.front().is_some_and(|old| self.now - old.at > self.settings.within) {
            self.counted.pop_front();
        }
        self.counted.len()
    }

    /// Logs and remembers deaths. `goes_on` says whether needed workers are replaced.
    fn log(&mut self, gone: impl IntoIterator<Item = DeadWorker>, goes_on: bool) {
        for dead in gone {
            let DeadWorker { incarnation, role, stage, exit, tasks, overdue, .. } = dead;
            let record = &self.records[incarnation.worker_id as usize];
            let works_without = role == ProcessRole::Successor && record.current.is_some();
            let replaced = goes_on && record.is_needed() && !works_without;
            let death = Death { incarnation, exit, at: self.now, stage, tasks, replaced, overdue };
            if self.deaths.len() == MAX_REMEMBERED_DEATHS {
                self.deaths.remove(0);
            }
            self.deaths.push(death.clone());
            self.actions.push(SupervisorAction::Died(death));
        }
    }
}
