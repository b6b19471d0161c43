//! What must follow from the end of a worker or a zygote, and from a trial that was survived.

use std::time::Duration;

use super::{Due, Outcome, Promises, Refusals, Worker, Zygote};
use crate::worker::supervisor::{Ending, Failure, Life, Reason, Stage, Task};

/// How often this position is in the list.
fn count(list: &[Option<u64>], at: Option<u64>) -> u32 {
    list.iter().filter(|other| **other == at).count() as u32
}

impl Promises {
    pub(super) fn book_ended(
        &mut self,
        life: Life,
        ending: Ending,
        at: Option<u64>,
        due: &mut Due,
        now: Duration,
    ) {
        let held_post =
            self.benches.get(life.post as usize).is_some_and(|bench| bench.is_holder(life));
        let succeeds = self.worker(life).is_some_and(|worker| !worker.renewed) && !held_post;
        let Some(worker) = self.close_worker(life) else { return };
        if held_post {
            self.bench(life.post).refusals = None;
        }
        if let Zygote::Ending { .. } = self.zygote {
            return self.release(worker);
        }
        let first = worker.at_hand.first().copied();
        let excused = worker.overdue.is_some() || worker.trial.is_some();
        let dead = self.book_end(worker, ending, at, succeeds, due);
        if dead && succeeds {
            self.bench(life.post).renewal_failed = Some(now);
        }
        if dead && self.is_running() {
            self.book_death(first, excused, due, now);
        }
    }

    /// The tasks of a worker that did nothing wrong go back.
    fn release(&mut self, worker: Worker) {
        for task in worker.at_hand {
            let entry = &mut self.entries[task as usize];
            entry.held = false;
            entry.trial = worker.trial.map(|position| (worker.life.post, position));
        }
    }

    pub(super) fn book_zygote_end(&mut self, due: &mut Due, now: Duration) {
        let before = std::mem::replace(&mut self.zygote, Zygote::None);
        self.awaited = None;
        if before == Zygote::None {
            return;
        }
        let is_rebirth = matches!(before, Zygote::Ending { .. });
        let mut gone = Vec::new();
        for bench in &mut self.benches {
            bench.refusals = None;
            for worker in std::mem::take(&mut bench.workers) {
                let first = gone.iter().all(|(other, _): &(Worker, bool)| {
                    other.life.post != worker.life.post || other.renewed
                });
                gone.push((worker.clone(), !worker.renewed && !first));
            }
        }
        for (worker, succeeds) in gone {
            if is_rebirth {
                self.release(worker);
            } else {
                let post = worker.life.post;
                if self.book_end(worker, Ending::Lost, None, succeeds, due) && succeeds {
                    self.bench(post).renewal_failed = Some(now);
                }
            }
        }
        if !self.is_running() {
            return;
        }
        match before {
            Zygote::None | Zygote::Ending { .. } => {}
            Zygote::Ready => self.book_death(None, false, due, now),
            Zygote::Booting => {
                self.zygote_failures += 1;
                if self.zygote_failures == 3 {
                    due.failure = Some(Failure::ZygoteCannotStart);
                }
            }
        }
        due.bear = due.failure.is_none();
    }

    pub(super) fn book_refusal(&mut self, life: Life, passing: bool, due: &mut Due, now: Duration) {
        let holds = self.benches[life.post as usize].is_holder(life);
        let worker = self.close_worker(life);
        let killed = worker.is_none_or(|worker| worker.killed && worker.overdue.is_none());
        if !self.is_running() || killed || self.zygote != Zygote::Ready {
            return;
        }
        if !holds {
            self.bench(life.post).renewal_failed = Some(now);
            return;
        }
        let needed = self.is_needed(life.post);
        let refused_for = self.settings.refused_for;
        let bench = self.bench(life.post);
        let mut row = bench.refusals.unwrap_or(Refusals { first: now, last: now, count: 0 });
        row.last = now;
        row.count += 1;
        bench.refusals = needed.then_some(row);
        if !passing || now >= row.first + refused_for {
            due.failure = Some(Failure::Refused { post: life.post, passing });
        }
    }

    /// Books the end of one worker and says whether it was a death. `succeeds` is whether it was to
    /// take over from another.
    fn book_end(
        &mut self,
        worker: Worker,
        ending: Ending,
        at: Option<u64>,
        succeeds: bool,
        due: &mut Due,
    ) -> bool {
        let Worker { life, at_hand, trial, overdue, .. } = worker;
        let running = self.is_running();
        for task in &at_hand {
            let entry = &mut self.entries[*task as usize];
            entry.held = false;
            entry.trial = trial.map(|position| (life.post, position));
        }
        if running && worker.renewed && at_hand.is_empty() {
            due.retired.push(life);
            return false;
        }
        let good = worker.stopped && ending == Ending::Exited(0);
        let asked = worker.killed && overdue.is_none() && !worker.failed;
        let left = good && (at_hand.is_empty() || !running);
        if asked || (left && overdue.is_none()) {
            return false;
        }
        let stage = match (worker.ready, worker.stopped) {
            (false, _) => Stage::Booting,
            (true, true) => Stage::Stopping,
            // A worker that is killed for a hang was busy, whatever it still answered.
            (true, false) if at_hand.is_empty() && overdue.is_none() => Stage::Idle,
            (true, false) => Stage::Busy,
        };
        if running {
            let own = ending != Ending::Lost;
            if own && stage == Stage::Booting {
                let bench = self.bench(life.post);
                bench.boot_deaths += 1;
                if bench.boot_deaths == 3 {
                    due.failure = Some(Failure::DiesStarting { life });
                }
            }
            self.book_loss(life, worker.renewed, succeeds, !at_hand.is_empty(), due);
            if let Some(hang) = overdue {
                if let Some(task) = hang.task.filter(|task| at_hand.contains(task)) {
                    self.book_hang(task, hang.at, due);
                }
            } else if own && let Some(first) = at_hand.first() {
                self.book_kill(*first, at, trial, life, due);
            }
        }
        due.died.push((life, stage, ending, at_hand, overdue.is_some()));
        true
    }

    /// Books what a death means where nobody may be replaced.
    fn book_loss(&mut self, life: Life, renewed: bool, succeeds: bool, held: bool, due: &mut Due) {
        if self.settings.replace || succeeds {
            return;
        }
        let waits = !renewed && (self.waits(Some(life.post)) || self.waits(None));
        if held || waits {
            // A zygote takes many along: the first of them is named.
            if !matches!(due.failure, Some(Failure::Death { .. })) {
                due.failure = Some(Failure::Death { life });
            }
            return;
        }
        let bench = self.bench(life.post);
        if !bench.retired && bench.holder().is_none() {
            bench.fallen = Some(life);
        }
    }

    fn book_hang(&mut self, task: Task, at: Option<u64>, due: &mut Due) {
        let entry = &mut self.entries[task as usize];
        entry.hung_at.push(at);
        if count(&entry.hung_at, at) >= self.settings.hangs {
            entry.outcome = Some(Outcome::GivenUp);
            due.give_up.push((task, at, Reason::Hangs));
        }
    }

    fn book_kill(
        &mut self,
        task: Task,
        at: Option<u64>,
        trial: Option<u64>,
        life: Life,
        due: &mut Due,
    ) {
        let entry = &mut self.entries[task as usize];
        if trial.is_some() {
            entry.outcome = Some(Outcome::GivenUp);
            due.give_up.push((task, trial, Reason::Kills));
            return;
        }
        entry.killed_at.push(at);
        let here = count(&entry.killed_at, at);
        let enough = self.settings.suspect_after;
        let too_often = self.settings.attempts.is_some_and(|most| here >= most);
        let unknown = at.is_none() && enough.is_some_and(|enough| here > enough);
        if too_often || unknown {
            entry.outcome = Some(Outcome::GivenUp);
            due.give_up.push((task, at, Reason::Kills));
        } else if let Some(position) = at
            && enough.is_some_and(|enough| here >= enough)
        {
            entry.trial = Some((life.post, position));
        }
    }

    /// Counts a death, unless it is excused, and forgives those of a task that kills.
    fn book_death(&mut self, first: Option<Task>, excused: bool, due: &mut Due, now: Duration) {
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
            due.failure = Some(Failure::TooManyDeaths);
        }
        if due.failure.is_some() {
            for (task, _, _) in due.give_up.drain(..) {
                self.entries[task as usize].outcome = None;
            }
        }
    }

    /// The sample is cleared, and the same worker does the whole task.
    pub(super) fn book_survival(&mut self, life: Life, task: Task, due: &mut Due) {
        let Some(worker) = self.worker_mut(life) else { return };
        let position = worker.trial.take();
        worker.worked = true;
        let goes_on = worker.is_at_work();
        if let Some(hang) = &mut worker.overdue {
            hang.task = None;
        }
        due.again = goes_on.then_some((life, task));
        let entry = &mut self.entries[task as usize];
        entry.killed_at.retain(|at| *at != position);
        entry.hung_at.retain(|at| *at != position);
    }
}
