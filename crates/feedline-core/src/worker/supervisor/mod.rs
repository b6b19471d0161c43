//! Decides what is done about workers that start, answer, end, or do none of it. It must never do
//! any of it itself: no process, clock, thread or chance is in here, so that a simulator can put it
//! through years of bad luck in a minute.
//!
//! What happened goes into [`Supervisor::handle`], what is to be done comes out of it, in order.
//! The promises, which `testing::simulator` keeps watch over:
//!
//! - A task has one result: `Accept` or `GiveUp`. It is sent again when its worker ends without an
//!   answer.
//! - A sample that seems to kill workers is tried alone in a fresh one before its task is given up.
//! - A worker has one worker at a time; the next one is forked when the last one has ended. Only who
//!   is to be renewed works on until its successor is ready, so that there are two for a while.
//! - More than `max_deaths` deaths `within` a time end the run, and nothing is replaced for ever.
//! - A worker that passes the deadline is killed, and without a deadline none is killed for being
//!   slow.
//! - A zygote that is asked for something and neither answers nor uses the processor is killed and
//!   replaced.
//! - Every wait has an end: what is waited for is under way, or [`Supervisor::next_deadline`] says
//!   when to call again.
//! - Closing always ends, whatever the workers do.
//!
//! A run ends by `Fail` or by `Close`; either stops all workers. `Closed` comes when they are gone
//! and `Close` was said.

mod messages;
mod worker_record;
mod trial;
mod watch;
mod zygote_watch;
mod renewal;
mod ends;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem;
use std::time::Duration;

use ends::CountedDeath;
pub use messages::{
    Death, ExitKind, Observation, Reason, RunFailure, SupervisorAction, SupervisorSettings,
    TaskNumber, WorkerActivity, WorkerStage,
};
pub(crate) use messages::{Incarnation, WorkerEvent, WorkerId};
use renewal::{RENEWAL_PAUSE, ask_to_stop};
use trial::OpenTask;
#[cfg(any(test, feature = "testing"))]
pub(crate) use watch::DUMP_EXTENSIONS;
use watch::WorkerWatch;
use worker_record::{Role, WorkerRecord, WorkerState, WorkerStatus};
use zygote_watch::ZygoteWatch;

/// The wait after the first refusal of a fork; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(10);
/// The longest wait between two tries of a fork.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Deaths of one worker before it was ready, in a row, that end the run.
const BOOT_DEATHS: u32 = 3;
/// Ends of the zygote before it was ready, in a row, that end the run.
const ZYGOTE_FAILURES: u32 = 3;
/// Closing ends after this many times the grace, even if a worker cannot be killed.
const CLOSING_GRACES: u32 = 3;
/// Deaths that are remembered.
const HISTORY: usize = 64;
/// The shortest time that is watched: a look costs something.
const SHORTEST_WATCH: Duration = Duration::from_millis(1);

/// What is known of the zygote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Zygote {
    NotForked,
    Booting,
    Ready,
    /// We end it, to start again from a fresh one.
    ExitKind {
        until: Duration,
    },
    Gone,
}

/// Where the run stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    ExitKind { since: Duration, close: bool },
    Closed,
}

/// The deciding part of the worker stage. See the top of this file for what it promises.
#[derive(Debug)]
pub(crate) struct Supervisor {
    settings: SupervisorSettings,
    now: Duration,
    phase: Phase,
    zygote: Zygote,
    zygote_failures: u32,
    zygote_watch: ZygoteWatch,
    /// Zygotes that hung since the last result.
    hung_zygotes: u32,
    records: Vec<WorkerRecord>,
    tasks: HashMap<TaskNumber, OpenTask>,
    newest: Option<TaskNumber>,
    /// For any free worker. Ordered by number, like `WorkerRecord::waiting`.
    queue: BTreeSet<TaskNumber>,
    deaths: Vec<Death>,
    /// Deaths that still count; at most one more than are allowed.
    counted: VecDeque<CountedDeath>,
    /// Whether all workers have been started again from a fresh zygote, or are about to be.
    is_restarted_fresh: bool,
    actions: Vec<SupervisorAction>,
}

impl Supervisor {
    /// A supervisor at the start of a run. Nothing is asked for before [`Supervisor::start`].
    pub(crate) fn new(settings: SupervisorSettings) -> Supervisor {
        let watched = |time: Duration| time.max(SHORTEST_WATCH);
        let settings = SupervisorSettings {
            worker_count: settings.worker_count.max(1),
            depth: settings.depth.max(1),
            suspect_after: settings.suspect_after.map(|deaths| deaths.max(1)),
            deadline: settings.deadline.map(watched),
            hangs: settings.hangs.max(1),
            stall: settings.stall.map(watched),
            dump_time: watched(settings.dump_time),
            zygote_patience: watched(settings.zygote_patience),
            zygote_start: watched(settings.zygote_start),
            ..settings
        };
        Supervisor {
            now: Duration::ZERO,
            phase: Phase::Running,
            zygote: Zygote::NotForked,
            zygote_failures: 0,
            zygote_watch: ZygoteWatch::default(),
            hung_zygotes: 0,
            records: (0..settings.worker_count).map(WorkerRecord::new).collect(),
            tasks: HashMap::new(),
            newest: None,
            queue: BTreeSet::new(),
            deaths: Vec::new(),
            counted: VecDeque::new(),
            is_restarted_fresh: false,
            actions: Vec::new(),
            settings,
        }
    }

    /// Begins the run: every worker gets a worker as soon as the zygote is ready, before there is a
    /// task for it.
    pub(crate) fn start(&mut self, now: Duration) -> Vec<SupervisorAction> {
        self.now = self.now.max(now);
        if self.phase == Phase::Running && self.zygote == Zygote::NotForked {
            self.start_zygote();
        }
        mem::take(&mut self.actions)
    }

    /// Takes in what happened and says what is to be done, in this order. What cannot be (an
    /// unknown worker, a second end) changes nothing.
    pub(crate) fn handle(
        &mut self,
        happening: WorkerEvent,
        now: Duration,
    ) -> Vec<SupervisorAction> {
        self.now = self.now.max(now);
        if self.phase == Phase::Closed {
            return Vec::new();
        }
        match happening {
            WorkerEvent::Submitted { task, worker_id } => self.submitted(task, worker_id),
            WorkerEvent::ZygoteStarted => self.zygote_started(),
            WorkerEvent::ZygoteReady => self.zygote_ready(),
            WorkerEvent::ZygoteAnswered { ping } => self.zygote_answered(ping),
            WorkerEvent::ZygoteSeen { ran } => self.zygote_seen(ran),
            WorkerEvent::ZygoteEnded => self.zygote_ended(),
            WorkerEvent::Refused { incarnation, passing } => self.refused(incarnation, passing),
            WorkerEvent::Ready { incarnation } => self.ready(incarnation),
            WorkerEvent::StartFailed { incarnation } => self.start_failed(incarnation),
            WorkerEvent::TaskDone { incarnation, task } => self.answered(incarnation, task),
            WorkerEvent::HungUp { incarnation } => self.hung_up(incarnation),
            WorkerEvent::Ended { incarnation, exit, at } => self.ended(incarnation, exit, at),
            WorkerEvent::Survived { incarnation, task } => self.survived(incarnation, task),
            WorkerEvent::Observation { incarnation, seen } => self.seen(incarnation, seen),
            WorkerEvent::Renew { incarnation } => self.renew(incarnation),
            WorkerEvent::Retire { worker_id } => self.retire(worker_id),
            WorkerEvent::DescriptorsClosed => self.descriptors_closed(),
            WorkerEvent::TimePassed => self.time_passed(),
            WorkerEvent::Close => self.end_run(true),
        }
        self.go_on_ending();
        if self.actions.iter().any(SupervisorAction::is_for_zygote) {
            self.ask_zygote();
        }
        mem::take(&mut self.actions)
    }

    /// When to say [`WorkerEvent::TimePassed`], if nothing happens before. It is later than the last
    /// time that was said.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running => {
                let workers = self.workers().filter_map(WorkerState::next_time);
                let again = self.records.iter().filter_map(|record| record.again);
                let zygote = match self.zygote {
                    Zygote::ExitKind { until } => Some(until),
                    Zygote::NotForked | Zygote::Booting | Zygote::Ready | Zygote::Gone => None,
                };
                workers.chain(again).chain(zygote).chain(self.zygote_watch.look_at).min()
            }
            Phase::ExitKind { since, close } => {
                let is_asked =
                    |worker: &WorkerState| matches!(worker.status, WorkerStatus::Stopping { .. });
                if self.workers().any(is_asked) {
                    Some(since.saturating_add(self.settings.grace))
                } else if close {
                    Some(self.closing_ends(since))
                } else {
                    None
                }
            }
            Phase::Closed => None,
        }
    }

    /// The last deaths, newest last. When the zygote dies each of its workers is in here, though
    /// together they count as one for `max_deaths`.
    #[cfg(test)]
    pub(crate) fn deaths(&self) -> &[Death] {
        &self.deaths
    }

    /// Whether neither `Fail` nor `Close` has come.
    pub(crate) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Whether `Closed` has been said.
    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Tasks without a result.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn outstanding(&self) -> usize {
        self.tasks.len()
    }

    /// The worker of a worker that gets its tasks, if one was asked for and has not ended.
    pub(crate) fn incarnation(&self, worker_id: WorkerId) -> Option<Incarnation> {
        let holder = self.records.get(worker_id as usize)?.holder.as_ref()?;
        Some(holder.incarnation)
    }

    /// All workers of a worker that were asked for and have not ended, oldest first: two while one
    /// takes over from the other.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn incarnations(&self, worker_id: WorkerId) -> impl Iterator<Item = Incarnation> {
        let workers =
            self.records.get(worker_id as usize).into_iter().flat_map(WorkerRecord::workers);
        workers.map(|worker| worker.incarnation)
    }

    fn workers(&self) -> impl Iterator<Item = &WorkerState> {
        self.records.iter().flat_map(WorkerRecord::workers)
    }

    fn submitted(&mut self, task: TaskNumber, worker_id: Option<WorkerId>) {
        if !self.is_running() || self.newest.is_some_and(|newest| task <= newest) {
            return;
        }
        self.newest = Some(task);
        let pin = worker_id.map(|worker_id| worker_id % self.settings.worker_count);
        self.tasks.insert(task, OpenTask::new(pin));
        let fallen = match pin {
            Some(worker_id) => {
                let record = &mut self.records[worker_id as usize];
                record.waiting.insert(task);
                record.retired = false;
                record.fallen
            }
            None => {
                self.queue.insert(task);
                self.records.iter().find_map(|record| record.fallen)
            }
        };
        if let Some(incarnation) = fallen {
            return self.fail(RunFailure::Death { incarnation });
        }
        if let Some(worker_id) = pin {
            self.staff(worker_id);
            self.feed(worker_id);
        }
        self.distribute();
    }

    fn zygote_ready(&mut self) {
        if self.zygote != Zygote::Booting {
            return;
        }
        self.zygote = Zygote::Ready;
        self.zygote_failures = 0;
        self.zygote_watch = ZygoteWatch::default();
        for worker_id in 0..self.settings.worker_count {
            self.staff(worker_id);
        }
    }

    fn refused(&mut self, incarnation: Incarnation, passing: bool) {
        let is_running = self.is_running();
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let Some(role) = record.role(incarnation) else { return };
        let Some(worker) = record.worker_mut(incarnation) else { return };
        let was_wanted = match worker.status {
            // One that took too long to be forked, and then was not, is missed as before.
            WorkerStatus::Booting | WorkerStatus::Overdue { stage: WorkerStage::Booting, .. } => {
                true
            }
            WorkerStatus::Killed { booting: true } => false,
            WorkerStatus::Ready
            | WorkerStatus::Stopping { .. }
            | WorkerStatus::Killed { booting: false }
            | WorkerStatus::Failed
            | WorkerStatus::Overdue { .. } => return,
        };
        record.remove(incarnation);
        // A zygote that is being ended may refuse whatever it likes.
        if !was_wanted || !is_running || self.zygote != Zygote::Ready {
            return;
        }
        if role == Role::Successor {
            record.renew_after = self.now.saturating_add(RENEWAL_PAUSE);
            return;
        }
        let first = *record.refused_since.get_or_insert(self.now);
        let until = first.saturating_add(self.settings.refused_for);
        if !passing || self.now >= until {
            return self.fail(RunFailure::Refused { worker_id: incarnation.worker_id, passing });
        }
        if !record.is_needed() {
            return record.forget_refusals();
        }
        // The last wait is cut short: a last try is made when the time is up, and its answer
        // decides.
        record.again = Some(self.now.saturating_add(record.wait).min(until));
        record.wait = (record.wait * 2).min(LONGEST_WAIT);
    }

    fn ready(&mut self, incarnation: Incarnation) {
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let Some(worker) = record.worker_mut(incarnation) else { return };
        if !worker.is_booting() {
            return;
        }
        worker.status = WorkerStatus::Ready;
        worker.watch.end();
        record.boot_deaths = 0;
        record.forget_refusals();
        if record.role(incarnation) == Some(Role::Successor) {
            self.take_over(incarnation);
        }
        self.feed(incarnation.worker_id);
        self.distribute();
    }

    fn start_failed(&mut self, incarnation: Incarnation) {
        if !self.is_running() || self.zygote != Zygote::Ready {
            return;
        }
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let Some(role) = record.role(incarnation) else { return };
        let Some(worker) = record.worker_mut(incarnation) else { return };
        if !worker.is_booting() {
            return;
        }
        if role == Role::Successor {
            worker.status = WorkerStatus::Failed;
            worker.watch.end();
            self.actions.push(SupervisorAction::Kill { incarnation });
        } else {
            self.fail(RunFailure::CannotStart { incarnation });
        }
    }

    /// This is called for each batch, so it looks at nothing but the task, its worker, and what is
    /// next.
    fn answered(&mut self, incarnation: Incarnation, task: TaskNumber) {
        let is_held = self.tasks.get(&task).is_some_and(|open| open.holder == Some(incarnation));
        if !is_held || !self.is_running() {
            self.actions.push(SupervisorAction::Discard { task, incarnation });
            return;
        }
        self.tasks.remove(&task);
        self.actions.push(SupervisorAction::Accept { task });
        self.hung_zygotes = 0;
        let record = &mut self.records[incarnation.worker_id as usize];
        if let Some(worker) = record.worker_mut(incarnation) {
            worker.has_worked = true;
            worker.trial = None;
            if worker.assigned.front() == Some(&task) {
                worker.assigned.pop_front();
            } else {
                worker.assigned.retain(|other| *other != task);
            }
            if worker.assigned.is_empty() {
                worker.watch.end();
                if let WorkerStatus::Stopping { kill_at } = &mut worker.status {
                    *kill_at = Some(self.now.saturating_add(self.settings.grace));
                }
                // What waited for the end of a trial, or for a predecessor, waits no longer.
                self.feed(incarnation.worker_id);
            }
        }
        self.distribute();
    }

    fn retire(&mut self, worker_id: WorkerId) {
        let running = self.is_running();
        let Some(record) = self.records.get_mut(worker_id as usize) else { return };
        if !running {
            return;
        }
        record.retired = true;
        if record.again.is_some() && !record.is_needed() {
            record.again = None;
            record.forget_refusals();
        }
        self.keep_one_open();
        self.feed(worker_id);
        self.distribute();
    }

    fn time_passed(&mut self) {
        if !self.is_running() {
            return;
        }
        if let Zygote::ExitKind { until } = self.zygote
            && until <= self.now
        {
            self.zygote_ended();
        }
        for worker_id in 0..self.settings.worker_count {
            let record = &mut self.records[worker_id as usize];
            if record.again.is_some_and(|again| again <= self.now) {
                record.again = None;
                self.staff(worker_id);
            }
        }
        self.kill_where(|status, now| match status {
            WorkerStatus::Stopping { kill_at } => kill_at.is_some_and(|at| at <= now),
            WorkerStatus::Booting
            | WorkerStatus::Ready
            | WorkerStatus::Killed { .. }
            | WorkerStatus::Failed
            | WorkerStatus::Overdue { .. } => false,
        });
        self.put_off_looks();
        self.put_off_look_at_zygote();
    }

    /// The socket of a worker was closed at its other end: the zygote must say how it ended.
    fn hung_up(&mut self, incarnation: Incarnation) {
        let record = self.records.get_mut(incarnation.worker_id as usize);
        if record.and_then(|record| record.worker_mut(incarnation)).is_some() {
            self.ask_zygote();
        }
    }

    fn start_zygote(&mut self) {
        self.zygote = Zygote::Booting;
        self.zygote_watch = ZygoteWatch::default();
        self.actions.push(SupervisorAction::StartZygote { fresh: self.is_restarted_fresh });
    }

    fn end_zygote(&mut self) {
        self.zygote = Zygote::ExitKind { until: self.now.saturating_add(self.settings.grace) };
        for worker in self.records.iter_mut().flat_map(WorkerRecord::workers_mut) {
            worker.watch.end();
        }
        self.actions.push(SupervisorAction::EndZygote);
    }

    /// Forks a worker for a worker that needs one and can have one.
    fn staff(&mut self, worker_id: WorkerId) {
        let can_fork = self.is_running() && self.zygote == Zygote::Ready;
        let record = &mut self.records[worker_id as usize];
        let is_vacant = record.holder.is_none() && record.again.is_none();
        if can_fork && is_vacant && record.is_needed() {
            let incarnation = record.next_life();
            record.holder = Some(WorkerState::new(
                incarnation,
                WorkerWatch::starting(&self.settings, self.now),
            ));
            self.actions.push(SupervisorAction::Fork { incarnation });
        }
    }

    /// Sends the holder of a worker, if it is ready, what is to be tried or what is pinned to it, and
    /// the wish to stop after it if the worker has retired. Whom a zygote takes along is not worth it.
    fn feed(&mut self, worker_id: WorkerId) {
        if self.zygote != Zygote::Ready {
            return;
        }
        let record = &mut self.records[worker_id as usize];
        let is_handed_over = record.is_handed_over();
        let Some(holder) = &mut record.holder else { return };
        if holder.status != WorkerStatus::Ready || holder.trial.is_some() {
            return;
        }
        let trial = record.trials.first_key_value().map(|(task, position)| (*task, *position));
        if let Some((task, position)) = trial {
            // Whether the sample or what the worker did before is to blame, only a fresh one shows.
            if !holder.is_fresh {
                ask_to_stop(holder, self.now, self.settings.grace, &mut self.actions);
            } else if is_handed_over {
                record.trials.remove(&task);
                self.send(worker_id, task, Some(position));
            }
            return;
        }
        while is_handed_over
            && let Some(task) = self.records[worker_id as usize].waiting.pop_first()
        {
            self.send(worker_id, task, None);
        }
        let record = &mut self.records[worker_id as usize];
        if let Some(holder) = &mut record.holder
            && record.retired
            && record.waiting.is_empty()
        {
            ask_to_stop(holder, self.now, self.settings.grace, &mut self.actions);
        }
    }

    fn send(&mut self, worker_id: WorkerId, task: TaskNumber, trial: Option<u64>) {
        let Some(holder) = &mut self.records[worker_id as usize].holder else { return };
        let incarnation = holder.incarnation;
        holder.assigned.push_back(task);
        holder.is_fresh = false;
        holder.trial = trial;
        holder.watch.begin(&self.settings, self.now);
        if let Some(open) = self.tasks.get_mut(&task) {
            open.holder = Some(incarnation);
        }
        self.actions.push(SupervisorAction::Send { incarnation, task, trial });
    }

    /// Gives the tasks that anybody can do to those with the least at hand.
    fn distribute(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        self.keep_one_open();
        self.staff(0);
        if self.zygote != Zygote::Ready {
            return;
        }
        let depth = self.settings.depth as usize;
        while let Some(&task) = self.queue.first() {
            let assigned = |record: &&WorkerRecord| {
                record.holder.as_ref().map_or(usize::MAX, |worker| worker.assigned.len())
            };
            let able = self.records.iter().filter(|record| record.can_take(depth));
            let Some(worker_id) = able.min_by_key(assigned).map(|record| record.worker_id) else {
                return;
            };
            self.queue.pop_first();
            self.send(worker_id, task, None);
        }
    }

    /// With every worker retired nobody would do what anybody can do, so the first worker comes back
    /// for it.
    fn keep_one_open(&mut self) {
        if !self.queue.is_empty() && self.records.iter().all(|record| record.retired) {
            self.records[0].retired = false;
        }
    }

    /// Kills every worker that stands so.
    fn kill_where(&mut self, is_meant: impl Fn(WorkerStatus, Duration) -> bool) {
        for worker in self.records.iter_mut().flat_map(WorkerRecord::workers_mut) {
            if is_meant(worker.status, self.now) {
                worker.status = WorkerStatus::Killed { booting: worker.is_booting() };
                worker.watch.end();
                self.actions.push(SupervisorAction::Kill { incarnation: worker.incarnation });
            }
        }
    }

    fn descriptors_closed(&mut self) {
        if self.is_running() {
            self.fail(RunFailure::DescriptorsClosed);
        }
    }

    fn fail(&mut self, failure: RunFailure) {
        self.actions.push(SupervisorAction::Fail(failure));
        self.end_run(false);
    }

    fn end_run(&mut self, close: bool) {
        match &mut self.phase {
            Phase::Running => self.phase = Phase::ExitKind { since: self.now, close },
            Phase::ExitKind { close: closes, .. } => {
                *closes |= close;
                return;
            }
            Phase::Closed => return,
        }
        for worker in self.records.iter_mut().flat_map(WorkerRecord::workers_mut) {
            let incarnation = worker.incarnation;
            match worker.status {
                WorkerStatus::Booting => {
                    worker.status = WorkerStatus::Killed { booting: true };
                    self.actions.push(SupervisorAction::Kill { incarnation });
                }
                WorkerStatus::Ready => {
                    worker.status = WorkerStatus::Stopping { kill_at: None };
                    self.actions.push(SupervisorAction::Stop { incarnation });
                }
                WorkerStatus::Stopping { .. }
                | WorkerStatus::Killed { .. }
                | WorkerStatus::Failed
                | WorkerStatus::Overdue { .. } => {}
            }
        }
    }

    /// When closing ends in any case.
    fn closing_ends(&self, since: Duration) -> Duration {
        since.saturating_add(self.settings.grace.saturating_mul(CLOSING_GRACES))
    }

    /// Kills who was given its time to stop, and says when nothing is left.
    fn go_on_ending(&mut self) {
        let Phase::ExitKind { since, close } = self.phase else { return };
        if self.now >= since.saturating_add(self.settings.grace) {
            self.kill_where(|status, _| matches!(status, WorkerStatus::Stopping { .. }));
        }
        let nobody = self.workers().next().is_none();
        let nothing = nobody && self.zygote != Zygote::Booting;
        if close && (nothing || self.now >= self.closing_ends(since)) {
            self.phase = Phase::Closed;
            self.actions.push(SupervisorAction::Closed);
        }
    }
}
