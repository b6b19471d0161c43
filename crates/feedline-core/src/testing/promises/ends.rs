//! Checks what must follow from the end of a worker or a zygote, and from a survived trial.

use std::time::Duration;

use super::{CheckedOutcome, CheckedWorker, CheckedZygote, Expected, PromiseChecker, Refusals};
use crate::worker::supervisor::{
    ExitKind, GiveUpReason, Incarnation, RunFailure, Shortage, TaskNumber, WorkerStage,
};

/// How many times this offset is in the list.
fn count(list: &[Option<u64>], at: Option<u64>) -> u32 {
    list.iter().filter(|other| **other == at).count() as u32
}

impl PromiseChecker {
    pub(super) fn record_ended(
        &mut self,
        incarnation: Incarnation,
        exit: ExitKind,
        at: Option<u64>,
        shortage: Option<Shortage>,
        expected: &mut Expected,
        now: Duration,
    ) {
        let was_current = self
            .workers_by_id
            .get(incarnation.worker_id as usize)
            .is_some_and(|by_id| by_id.is_current(incarnation));
        let succeeds =
            self.worker(incarnation).is_some_and(|worker| !worker.renewed) && !was_current;
        let Some(worker) = self.close_worker(incarnation) else { return };
        if was_current {
            self.by_id(incarnation.worker_id).refusals = None;
        }
        if let CheckedZygote::Ending { .. } = self.zygote {
            return self.release(worker);
        }
        let first = worker.assigned.first().copied();
        let may_be_blameless = self.is_running()
            && self.settings.replace
            && worker.overdue.is_none()
            && self.is_death(&worker, exit);
        let left = worker.worked && matches!(exit, ExitKind::Exited(_));
        let blameless = match shortage.filter(|_| may_be_blameless) {
            None => false,
            Some(Shortage::Descriptors | Shortage::Space) => left,
            Some(shortage) => self.record_shortage(self.processes(), shortage, now) || left,
        };
        let excused = worker.overdue.is_some() || worker.trial.is_some() || blameless;
        let dead = self.record_end(worker, exit, at, succeeds, blameless, expected);
        if dead && succeeds {
            self.by_id(incarnation.worker_id).renewal_failed = Some(now);
        }
        if dead && self.is_running() {
            self.record_death(first, excused, expected, now);
        }
    }

    /// Takes back the tasks of a worker that did nothing wrong.
    fn release(&mut self, worker: CheckedWorker) {
        for task in worker.assigned {
            let task_record = &mut self.tasks[task as usize];
            task_record.held = false;
            task_record.trial = worker.trial.map(|offset| (worker.incarnation.worker_id, offset));
        }
    }

    pub(super) fn record_zygote_end(&mut self, expected: &mut Expected, now: Duration) {
        let before = std::mem::replace(&mut self.zygote, CheckedZygote::None);
        self.awaited = None;
        if before == CheckedZygote::None {
            return;
        }
        let was_ending = matches!(before, CheckedZygote::Ending { .. });
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
            if was_ending {
                self.release(worker);
            } else {
                let worker_id = worker.incarnation.worker_id;
                if self.record_end(worker, ExitKind::Lost, None, succeeds, false, expected)
                    && succeeds
                {
                    self.by_id(worker_id).renewal_failed = Some(now);
                }
            }
        }
        if !self.is_running() {
            return;
        }
        match before {
            CheckedZygote::None | CheckedZygote::Ending { .. } => {}
            CheckedZygote::Ready => self.record_death(None, false, expected, now),
            CheckedZygote::Booting => {
                self.zygote_failures += 1;
                if self.zygote_failures == 3 {
                    expected.failure = Some(RunFailure::ZygoteCannotStart);
                }
            }
        }
        expected.start_zygote = expected.failure.is_none();
    }

    pub(super) fn record_refusal(
        &mut self,
        incarnation: Incarnation,
        transient: bool,
        expected: &mut Expected,
        now: Duration,
    ) {
        let holds = self.workers_by_id[incarnation.worker_id as usize].is_current(incarnation);
        let worker = self.close_worker(incarnation);
        let killed = worker.is_none_or(|worker| worker.killed && worker.overdue.is_none());
        if !self.is_running() || killed || self.zygote != CheckedZygote::Ready {
            return;
        }
        if !holds {
            let by_id = self.by_id(incarnation.worker_id);
            by_id.renewal_failed = Some(now);
            let current = by_id.workers.iter_mut().find(|worker| !worker.renewed);
            if let Some(current) = current
                && transient
                && current.takes_tasks()
                && current.trial.is_none()
            {
                current.leaves = true;
                expected.stop = Some(current.incarnation);
            }
            return;
        }
        let others = self.processes();
        if transient && others > 0 && self.record_shortage(others, Shortage::Processes, now) {
            self.by_id(incarnation.worker_id).refusals = None;
            return;
        }
        let needed = self.is_needed(incarnation.worker_id);
        let refused_for = self.settings.refused_for;
        let by_id = self.by_id(incarnation.worker_id);
        let mut refusals = by_id.refusals.unwrap_or(Refusals { first: now, last: now, count: 0 });
        refusals.last = now;
        refusals.count += 1;
        by_id.refusals = needed.then_some(refusals);
        if !transient || now >= refusals.first + refused_for {
            expected.failure =
                Some(RunFailure::Refused { worker_id: incarnation.worker_id, transient });
        }
    }

    /// Records the end of one process, and returns whether it was a death. `succeeds` says whether
    /// it was to take over from another one.
    fn record_end(
        &mut self,
        worker: CheckedWorker,
        exit: ExitKind,
        at: Option<u64>,
        succeeds: bool,
        blameless: bool,
        expected: &mut Expected,
    ) -> bool {
        let is_death = self.is_death(&worker, exit);
        let CheckedWorker { incarnation, assigned, trial, overdue, .. } = worker;
        let running = self.is_running();
        for task in &assigned {
            let task_record = &mut self.tasks[*task as usize];
            task_record.held = false;
            task_record.trial = trial.map(|offset| (incarnation.worker_id, offset));
        }
        if running && (worker.renewed || worker.leaves) && assigned.is_empty() {
            expected.renewed.push(incarnation);
        }
        if !is_death {
            return false;
        }
        let stage = match (worker.ready, worker.stopped) {
            (false, _) => WorkerStage::Booting,
            (true, true) => WorkerStage::Stopping,
            // A worker that is killed for a hang was busy, even if it still answered.
            (true, false) if assigned.is_empty() && overdue.is_none() => WorkerStage::Idle,
            (true, false) => WorkerStage::Busy,
        };
        if running {
            let own = exit != ExitKind::Lost && !blameless;
            if own && stage == WorkerStage::Booting {
                let by_id = self.by_id(incarnation.worker_id);
                by_id.boot_deaths += 1;
                if by_id.boot_deaths == 3 {
                    expected.failure = Some(RunFailure::DiesStarting { incarnation });
                }
            }
            self.record_loss(incarnation, worker.renewed, succeeds, !assigned.is_empty(), expected);
            if let Some(hang) = overdue {
                if let Some(task) = hang.task.filter(|task| assigned.contains(task)) {
                    self.record_hang(task, hang.at, expected);
                }
            } else if own && let Some(first) = assigned.first() {
                self.record_kill(*first, at, trial, incarnation, expected);
            }
        }
        expected.died.push((incarnation, stage, exit, assigned, overdue.is_some()));
        true
    }

    /// Whether the end of a process was not asked for.
    fn is_death(&self, worker: &CheckedWorker, exit: ExitKind) -> bool {
        let running = self.is_running();
        let nothing_left = worker.assigned.is_empty();
        if running && (worker.renewed || worker.leaves) && nothing_left {
            return false;
        }
        let good = worker.stopped && exit == ExitKind::Exited(0);
        let asked = worker.killed && worker.overdue.is_none() && !worker.failed;
        let left = good && (nothing_left || !running);
        !(asked || left && worker.overdue.is_none())
    }

    /// Records what a death means if workers are not replaced.
    fn record_loss(
        &mut self,
        incarnation: Incarnation,
        renewed: bool,
        succeeds: bool,
        held: bool,
        expected: &mut Expected,
    ) {
        if self.settings.replace || succeeds {
            return;
        }
        let waits = !renewed && (self.waits(Some(incarnation.worker_id)) || self.waits(None));
        if held || waits {
            // If many end with the zygote, the first one is reported.
            if !matches!(expected.failure, Some(RunFailure::Death { .. })) {
                expected.failure = Some(RunFailure::Death { incarnation });
            }
            return;
        }
        let by_id = self.by_id(incarnation.worker_id);
        if !by_id.retired && by_id.current().is_none() {
            by_id.unreplaced = Some(incarnation);
        }
    }

    fn record_hang(&mut self, task: TaskNumber, at: Option<u64>, expected: &mut Expected) {
        let task_record = &mut self.tasks[task as usize];
        task_record.hung_at.push(at);
        if count(&task_record.hung_at, at) >= self.settings.hangs {
            task_record.outcome = Some(CheckedOutcome::GivenUp);
            expected.give_up.push((task, at, GiveUpReason::Hangs));
        }
    }

    fn record_kill(
        &mut self,
        task: TaskNumber,
        at: Option<u64>,
        trial: Option<u64>,
        incarnation: Incarnation,
        expected: &mut Expected,
    ) {
        let task_record = &mut self.tasks[task as usize];
        if trial.is_some() {
            task_record.outcome = Some(CheckedOutcome::GivenUp);
            expected.give_up.push((task, trial, GiveUpReason::Kills));
            return;
        }
        task_record.killed_at.push(at);
        let here = count(&task_record.killed_at, at);
        let enough = self.settings.suspect_after;
        let too_often = self.settings.attempts.is_some_and(|max| here >= max);
        let unknown = at.is_none() && enough.is_some_and(|enough| here > enough);
        if too_often || unknown {
            task_record.outcome = Some(CheckedOutcome::GivenUp);
            expected.give_up.push((task, at, GiveUpReason::Kills));
        } else if let Some(offset) = at
            && enough.is_some_and(|enough| here >= enough)
        {
            task_record.trial = Some((incarnation.worker_id, offset));
        }
    }

    /// Counts a death, unless it is excused. Deaths by a task that is given up no longer count.
    fn record_death(
        &mut self,
        first: Option<TaskNumber>,
        excused: bool,
        expected: &mut Expected,
        now: Duration,
    ) {
        if !excused {
            self.deaths.push((now, first));
        }
        for (task, _, why) in &expected.give_up {
            if *why == GiveUpReason::Kills {
                self.deaths.retain(|(_, blamed)| *blamed != Some(*task));
            }
        }
        let within = self.deaths.iter().filter(|(at, _)| now - *at <= self.settings.within).count();
        if within as u64 > u64::from(self.settings.max_deaths) && expected.failure.is_none() {
            expected.failure = Some(RunFailure::TooManyDeaths);
        }
        if expected.failure.is_some() {
            for (task, _, _) in expected.give_up.drain(..) {
                self.tasks[task as usize].outcome = None;
            }
        }
    }

    /// Clears the sample; the same worker does the whole task.
    pub(super) fn record_survival(
        &mut self,
        incarnation: Incarnation,
        task: TaskNumber,
        expected: &mut Expected,
    ) {
        let Some(worker) = self.worker_mut(incarnation) else { return };
        let offset = worker.trial.take();
        worker.worked = true;
        let goes_on = worker.takes_tasks();
        if let Some(hang) = &mut worker.overdue {
            hang.task = None;
        }
        expected.again = goes_on.then_some((incarnation, task));
        let task_record = &mut self.tasks[task as usize];
        task_record.killed_at.retain(|at| *at != offset);
        task_record.hung_at.retain(|at| *at != offset);
    }
}
