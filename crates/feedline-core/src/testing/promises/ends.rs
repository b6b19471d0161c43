//! What must follow from the end of a worker or a zygote, and from a trial that was survived.

use std::time::Duration;

use super::{CheckedOutcome, CheckedWorker, CheckedZygote, Due, PromiseChecker, Refusals};
use crate::worker::supervisor::{
    ExitKind, Incarnation, Reason, RunFailure, TaskNumber, WorkerStage,
};

/// How often this position is in the list.
fn count(list: &[Option<u64>], at: Option<u64>) -> u32 {
    list.iter().filter(|other| **other == at).count() as u32
}

impl PromiseChecker {
    pub(super) fn book_ended(
        &mut self,
        incarnation: Incarnation,
        exit: ExitKind,
        at: Option<u64>,
        due: &mut Due,
        now: Duration,
    ) {
        let held_worker = self
            .workers_by_id
            .get(incarnation.worker_id as usize)
            .is_some_and(|by_id| by_id.is_holder(incarnation));
        let succeeds =
            self.worker(incarnation).is_some_and(|worker| !worker.renewed) && !held_worker;
        let Some(worker) = self.close_worker(incarnation) else { return };
        if held_worker {
            self.by_id(incarnation.worker_id).refusals = None;
        }
        if let CheckedZygote::ExitKind { .. } = self.zygote {
            return self.release(worker);
        }
        let first = worker.assigned.first().copied();
        let excused = worker.overdue.is_some() || worker.trial.is_some();
        let dead = self.book_end(worker, exit, at, succeeds, due);
        if dead && succeeds {
            self.by_id(incarnation.worker_id).renewal_failed = Some(now);
        }
        if dead && self.is_running() {
            self.book_death(first, excused, due, now);
        }
    }

    /// The tasks of a worker that did nothing wrong go back.
    fn release(&mut self, worker: CheckedWorker) {
        for task in worker.assigned {
            let entry = &mut self.entries[task as usize];
            entry.held = false;
            entry.trial = worker.trial.map(|position| (worker.incarnation.worker_id, position));
        }
    }

    pub(super) fn book_zygote_end(&mut self, due: &mut Due, now: Duration) {
        let before = std::mem::replace(&mut self.zygote, CheckedZygote::None);
        self.awaited = None;
        if before == CheckedZygote::None {
            return;
        }
        let is_rebirth = matches!(before, CheckedZygote::ExitKind { .. });
        let mut gone = Vec::new();
        for by_id in &mut self.workers_by_id {
            by_id.refusals = None;
            for worker in std::mem::take(&mut by_id.workers) {
                let first = gone.iter().all(|(other, _): &(CheckedWorker, bool)| {
                    other.incarnation.worker_id != worker.incarnation.worker_id || other.renewed
                });
                gone.push((worker.clone(), !worker.renewed && !first));
            }
        }
        for (worker, succeeds) in gone {
            if is_rebirth {
                self.release(worker);
            } else {
                let worker_id = worker.incarnation.worker_id;
                if self.book_end(worker, ExitKind::Lost, None, succeeds, due) && succeeds {
                    self.by_id(worker_id).renewal_failed = Some(now);
                }
            }
        }
        if !self.is_running() {
            return;
        }
        match before {
            CheckedZygote::None | CheckedZygote::ExitKind { .. } => {}
            CheckedZygote::Ready => self.book_death(None, false, due, now),
            CheckedZygote::Booting => {
                self.zygote_failures += 1;
                if self.zygote_failures == 3 {
                    due.failure = Some(RunFailure::ZygoteCannotStart);
                }
            }
        }
        due.bear = due.failure.is_none();
    }

    pub(super) fn book_refusal(
        &mut self,
        incarnation: Incarnation,
        passing: bool,
        due: &mut Due,
        now: Duration,
    ) {
        let holds = self.workers_by_id[incarnation.worker_id as usize].is_holder(incarnation);
        let worker = self.close_worker(incarnation);
        let killed = worker.is_none_or(|worker| worker.killed && worker.overdue.is_none());
        if !self.is_running() || killed || self.zygote != CheckedZygote::Ready {
            return;
        }
        if !holds {
            self.by_id(incarnation.worker_id).renewal_failed = Some(now);
            return;
        }
        let needed = self.is_needed(incarnation.worker_id);
        let refused_for = self.settings.refused_for;
        let by_id = self.by_id(incarnation.worker_id);
        let mut row = by_id.refusals.unwrap_or(Refusals { first: now, last: now, count: 0 });
        row.last = now;
        row.count += 1;
        by_id.refusals = needed.then_some(row);
        if !passing || now >= row.first + refused_for {
            due.failure = Some(RunFailure::Refused { worker_id: incarnation.worker_id, passing });
        }
    }

    /// Books the end of one worker and says whether it was a death. `succeeds` is whether it was to
    /// take over from another.
    fn book_end(
        &mut self,
        worker: CheckedWorker,
        exit: ExitKind,
        at: Option<u64>,
        succeeds: bool,
        due: &mut Due,
    ) -> bool {
        let CheckedWorker { incarnation, assigned, trial, overdue, .. } = worker;
        let running = self.is_running();
        for task in &assigned {
            let entry = &mut self.entries[*task as usize];
            entry.held = false;
            entry.trial = trial.map(|position| (incarnation.worker_id, position));
        }
        if running && worker.renewed && assigned.is_empty() {
            due.retired.push(incarnation);
            return false;
        }
        let good = worker.stopped && exit == ExitKind::Exited(0);
        let asked = worker.killed && overdue.is_none() && !worker.failed;
        let left = good && (assigned.is_empty() || !running);
        if asked || (left && overdue.is_none()) {
            return false;
        }
        let stage = match (worker.ready, worker.stopped) {
            (false, _) => WorkerStage::Booting,
            (true, true) => WorkerStage::Stopping,
            // A worker that is killed for a hang was busy, whatever it still answered.
            (true, false) if assigned.is_empty() && overdue.is_none() => WorkerStage::Idle,
            (true, false) => WorkerStage::Busy,
        };
        if running {
            let own = exit != ExitKind::Lost;
            if own && stage == WorkerStage::Booting {
                let by_id = self.by_id(incarnation.worker_id);
                by_id.boot_deaths += 1;
                if by_id.boot_deaths == 3 {
                    due.failure = Some(RunFailure::DiesStarting { incarnation });
                }
            }
            self.book_loss(incarnation, worker.renewed, succeeds, !assigned.is_empty(), due);
            if let Some(hang) = overdue {
                if let Some(task) = hang.task.filter(|task| assigned.contains(task)) {
                    self.book_hang(task, hang.at, due);
                }
            } else if own && let Some(first) = assigned.first() {
                self.book_kill(*first, at, trial, incarnation, due);
            }
        }
        due.died.push((incarnation, stage, exit, assigned, overdue.is_some()));
        true
    }

    /// Books what a death means where nobody may be replaced.
    fn book_loss(
        &mut self,
        incarnation: Incarnation,
        renewed: bool,
        succeeds: bool,
        held: bool,
        due: &mut Due,
    ) {
        if self.settings.replace || succeeds {
            return;
        }
        let waits = !renewed && (self.waits(Some(incarnation.worker_id)) || self.waits(None));
        if held || waits {
            // A zygote takes many along: the first of them is named.
            if !matches!(due.failure, Some(RunFailure::Death { .. })) {
                due.failure = Some(RunFailure::Death { incarnation });
            }
            return;
        }
        let by_id = self.by_id(incarnation.worker_id);
        if !by_id.retired && by_id.holder().is_none() {
            by_id.fallen = Some(incarnation);
        }
    }

    fn book_hang(&mut self, task: TaskNumber, at: Option<u64>, due: &mut Due) {
        let entry = &mut self.entries[task as usize];
        entry.hung_at.push(at);
        if count(&entry.hung_at, at) >= self.settings.hangs {
            entry.outcome = Some(CheckedOutcome::FailedTask);
            due.give_up.push((task, at, Reason::Hangs));
        }
    }

    fn book_kill(
        &mut self,
        task: TaskNumber,
        at: Option<u64>,
        trial: Option<u64>,
        incarnation: Incarnation,
        due: &mut Due,
    ) {
        let entry = &mut self.entries[task as usize];
        if trial.is_some() {
            entry.outcome = Some(CheckedOutcome::FailedTask);
            due.give_up.push((task, trial, Reason::Kills));
            return;
        }
        entry.killed_at.push(at);
        let here = count(&entry.killed_at, at);
        let enough = self.settings.suspect_after;
        let too_often = self.settings.attempts.is_some_and(|most| here >= most);
        let unknown = at.is_none() && enough.is_some_and(|enough| here > enough);
        if too_often || unknown {
            entry.outcome = Some(CheckedOutcome::FailedTask);
            due.give_up.push((task, at, Reason::Kills));
        } else if let Some(position) = at
            && enough.is_some_and(|enough| here >= enough)
        {
            entry.trial = Some((incarnation.worker_id, position));
        }
    }

    /// Counts a death, unless it is excused, and forgives those of a task that kills.
    fn book_death(
        &mut self,
        first: Option<TaskNumber>,
        excused: bool,
        due: &mut Due,
        now: Duration,
    ) {
        if !excused {
            self.deaths.push((now, first));
        }
        for (task, _, why) in &due.give_up {
            if *why == Reason::Kills {
                self.deaths.retain(|(_, blamed)| *blamed != Some(*task));
            }
        }
        let within = self.deaths.iter().filter(|(at, _)| now - *at <= self.settings.within).count();
        if within as u64 > u64::from(self.settings.max_deaths) && due.failure.is_none() {
            due.failure = Some(RunFailure::TooManyDeaths);
        }
        if due.failure.is_some() {
            for (task, _, _) in due.give_up.drain(..) {
                self.entries[task as usize].outcome = None;
            }
        }
    }

    /// The sample is cleared, and the same worker does the whole task.
    pub(super) fn book_survival(
        &mut self,
        incarnation: Incarnation,
        task: TaskNumber,
        due: &mut Due,
    ) {
        let Some(worker) = self.worker_mut(incarnation) else { return };
        let position = worker.trial.take();
        worker.worked = true;
        let goes_on = worker.is_at_work();
        if let Some(hang) = &mut worker.overdue {
            hang.task = None;
        }
        due.again = goes_on.then_some((incarnation, task));
        let entry = &mut self.entries[task as usize];
        entry.killed_at.retain(|at| *at != position);
        entry.hung_at.retain(|at| *at != position);
    }
}
