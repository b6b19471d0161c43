//! Decides what to do about workers that start, answer, end or hang. It must never act itself: it
//! uses no process, clock, thread or random number, so a simulator can run it through years of
//! failures in a minute.
//!
//! Events go into `Supervisor::handle`, which returns the actions to carry out, in order.
//! `testing::simulator` checks these guarantees:
//!
//! - A task has one result: `Accept` or `GiveUp`. If its worker ends without a result, it is sent
//!   again.
//! - A sample that seems to kill workers is tried alone in a fresh worker before its task is given
//!   up.
//! - A worker has one process at a time; the next is forked when the last one has ended. Only
//!   during a renewal does it have two: the old one works until its successor is ready.
//! - More than `max_deaths` deaths `within` a time end the run, so nothing is replaced forever.
//! - If the machine refuses a process, or kills one because memory is short, fewer processes run, and
//!   workers take turns. No task is blamed for a shortage unless its worker was the only one.
//! - If fewer workers may have tasks at once than there are, each has at most one, and the oldest task of
//!   a worker that could do it goes first.
//! - A worker that exceeds the deadline is killed. Without a deadline, no worker is killed for
//!   being slow. A learned deadline kills only workers that do not use the processor either.
//! - A zygote that neither answers a request nor uses the processor is killed and replaced.
//! - Every wait ends: either an event is on its way, or `Supervisor::next_deadline` says when to
//!   call again.
//! - Closing always ends, whatever the workers do.
//!
//! A run ends by `Fail` or by `Close`; either stops all workers. `Closed` follows when they are
//! gone and `Close` was handled.

mod capacity;
mod concurrency;
mod hang;
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

use capacity::Capacity;
use ends::CountedDeath;
pub use messages::{
    Deadline, Death, ExitKind, GiveUpReason, HangAction, LearnedDeadline, Observation, RunFailure,
    Shortage, SupervisorAction, SupervisorSettings, TaskNumber, WorkerActivity, WorkerStage,
};
pub(crate) use messages::{Incarnation, WorkerEvent, WorkerId};
use renewal::{RENEWAL_PAUSE, ask_to_stop};
use trial::OpenTask;
#[cfg(any(test, feature = "testing"))]
pub(crate) use watch::DUMP_EXTENSIONS;
use watch::WorkerWatch;
use worker_record::{ProcessRole, ProcessStatus, WorkerProcess, WorkerRecord};
use zygote_watch::ZygoteWatch;

/// The wait after the first refused fork. It doubles with each further refusal.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
/// The longest wait between two tries of a fork.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// The number of deaths in a row, before a worker was ready, that end the run.
const MAX_BOOT_DEATHS: u32 = 3;
/// The number of times in a row that the zygote may end before it was ready.
const MAX_ZYGOTE_FAILURES: u32 = 3;
/// Closing ends after this many grace periods, even if a worker cannot be killed.
const CLOSING_GRACES: u32 = 3;
/// The number of deaths that `Supervisor::deaths` keeps.
const MAX_REMEMBERED_DEATHS: usize = 64;
/// The shortest time limit: each look costs something.
const SHORTEST_WATCH: Duration = Duration::from_millis(1);
/// The shortest learned deadline, during which a worker is looked at several times.
const SHORTEST_HANG: Duration = Duration::from_millis(20);

/// The state of the zygote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Zygote {
    NotForked,
    Booting,
    Ready,
    /// We asked it to end, to start a fresh one.
    Ending {
        until: Duration,
    },
    Gone,
}

/// The phase of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    Ending { since: Duration, close: bool },
    Closed,
}

/// The decision logic of the worker pool. The top of this file lists its guarantees.
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
    /// Unpinned tasks that are not sent. Ordered by number, like `WorkerRecord::waiting`.
    queue: BTreeSet<TaskNumber>,
    deaths: Vec<Death>,
    /// Deaths in the last `within`; at most one more than allowed.
    counted: VecDeque<CountedDeath>,
    /// Whether all workers were restarted from a fresh zygote, or are about to be.
    is_restarted_fresh: bool,
    /// How long the slowest sample took so far.
    longest_sample: Duration,
    capacity: Capacity,
    /// How many workers have pinned tasks at once.
    at_once: u32,
    actions: Vec<SupervisorAction>,
}

impl Supervisor {
    /// Creates a supervisor. It asks for nothing before `Supervisor::start`.
    pub(crate) fn new(settings: SupervisorSettings) -> Supervisor {
        let watched = |time: Duration| time.max(SHORTEST_WATCH);
        let settings = SupervisorSettings {
            worker_count: settings.worker_count.max(1),
            depth: settings.depth.max(1),
            suspect_after: settings.suspect_after.map(|deaths| deaths.max(1)),
            deadline: match settings.deadline {
                Deadline::Never => Deadline::Never,
                Deadline::After(time) => Deadline::After(watched(time)),
                Deadline::Learned(learned) => Deadline::Learned(learned.in_order(SHORTEST_HANG)),
            },
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
            longest_sample: Duration::ZERO,
            capacity: Capacity::new(settings.worker_count),
            at_once: settings.worker_count,
            actions: Vec::new(),
            settings,
        }
    }

    /// Begins the run. Every worker is forked as soon as the zygote is ready, before it has a task.
    pub(crate) fn start(&mut self, now: Duration) -> Vec<SupervisorAction> {
        self.now = self.now.max(now);
        if self.phase == Phase::Running && self.zygote == Zygote::NotForked {
            self.start_zygote();
        }
        mem::take(&mut self.actions)
    }

    /// Handles an event and returns the actions to carry out, in order. An impossible event (an
    /// unknown worker, a second end) changes nothing.
    pub(crate) fn handle(&mut self, event: WorkerEvent, now: Duration) -> Vec<SupervisorAction> {
        self.now = self.now.max(now);
        if self.phase == Phase::Closed {
            return Vec::new();
        }
        match event {
            WorkerEvent::Submitted { task, worker_id } => self.submitted(task, worker_id),
            WorkerEvent::ZygoteStarted => self.zygote_started(),
            WorkerEvent::ZygoteReady => self.zygote_ready(),
            WorkerEvent::ZygoteAnswered { ping } => self.zygote_answered(ping),
            WorkerEvent::ZygoteSeen { ran } => self.zygote_seen(ran),
            WorkerEvent::ZygoteEnded => self.zygote_ended(),
            WorkerEvent::Refused { incarnation, transient } => self.refused(incarnation, transient),
            WorkerEvent::Ready { incarnation } => self.ready(incarnation),
            WorkerEvent::StartFailed { incarnation } => self.start_failed(incarnation),
            WorkerEvent::TaskDone { incarnation, task } => self.task_done(incarnation, task),
            WorkerEvent::HungUp { incarnation } => self.hung_up(incarnation),
            WorkerEvent::Ended { incarnation, exit, at, shortage } => {
                self.ended(incarnation, exit, at, shortage)
            }
            WorkerEvent::RoomSeen { is_enough } => self.room_seen(is_enough),
            WorkerEvent::Survived { incarnation, task } => self.survived(incarnation, task),
            WorkerEvent::LongestSample { took } => {
                self.longest_sample = self.longest_sample.max(took)
            }
            WorkerEvent::Observed { incarnation, seen } => self.observed(incarnation, seen),
            WorkerEvent::Renew { incarnation } => self.renew(incarnation),
            WorkerEvent::Retire { worker_id } => self.retire(worker_id),
            WorkerEvent::Restore { worker_id } => self.restore(worker_id),
            WorkerEvent::LimitWorkers { at_once, ends_others } => {
                self.limit_workers(at_once, ends_others)
            }
            WorkerEvent::DescriptorsClosed => self.descriptors_closed(),
            WorkerEvent::TimePassed => self.time_passed(),
            WorkerEvent::Close => self.end_run(true),
        }
        self.continue_ending();
        if self.is_limited() {
            self.end_surplus();
            self.take_turns();
        }
        if self.passes_turns() {
            self.pass_turns();
        }
        self.log_capacity();
        if self.actions.iter().any(SupervisorAction::is_for_zygote) {
            self.ask_zygote();
        }
        mem::take(&mut self.actions)
    }

    /// When to send [`WorkerEvent::TimePassed`] if no event comes earlier. It is later than the
    /// time of the last event.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running => {
                let workers = self.workers().filter_map(WorkerProcess::next_time);
                let retries = self.records.iter().filter_map(|record| record.retry_fork_at);
                let zygote = match self.zygote {
                    Zygote::Ending { until } => Some(until),
                    Zygote::NotForked | Zygote::Booting | Zygote::Ready | Zygote::Gone => None,
                };
                let room = self.room_check_at();
                let zygote = zygote.into_iter().chain(self.zygote_watch.look_at);
                workers.chain(retries).chain(zygote).chain(room).min()
            }
            Phase::Ending { since, close } => {
                let is_asked = |worker: &WorkerProcess| {
                    matches!(worker.status, ProcessStatus::Stopping { .. })
                };
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

    /// The last deaths, newest last. When the zygote dies, the list gets each of its workers,
    /// although together they count as one death for `max_deaths`.
    #[cfg(test)]
    pub(crate) fn deaths(&self) -> &[Death] {
        &self.deaths
    }

    /// Whether neither `Fail` nor `Close` has occurred.
    pub(crate) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Whether `Closed` was returned.
    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// The number of tasks without a result.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn outstanding(&self) -> usize {
        self.tasks.len()
    }

    /// The process that gets a worker's tasks, if one was requested and has not ended.
    pub(crate) fn incarnation(&self, worker_id: WorkerId) -> Option<Incarnation> {
        let current = self.records.get(worker_id as usize)?.current.as_ref()?;
        Some(current.incarnation)
    }

    /// All processes of a worker that were requested and have not ended, oldest first. There are
    /// two while one takes over from the other.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn incarnations(&self, worker_id: WorkerId) -> impl Iterator<Item = Incarnation> {
        let workers =
            self.records.get(worker_id as usize).into_iter().flat_map(WorkerRecord::workers);
        workers.map(|worker| worker.incarnation)
    }

    fn workers(&self) -> impl Iterator<Item = &WorkerProcess> {
        self.records.iter().flat_map(WorkerRecord::workers)
    }

    fn submitted(&mut self, task: TaskNumber, worker_id: Option<WorkerId>) {
        if !self.is_running() || self.newest.is_some_and(|newest| task <= newest) {
            return;
        }
        self.newest = Some(task);
        let pin = worker_id.map(|worker_id| worker_id % self.settings.worker_count);
        self.tasks.insert(task, OpenTask::new(pin));
        let unreplaced = match pin {
            Some(worker_id) => {
                let record = &mut self.records[worker_id as usize];
                record.waiting.insert(task);
                record.retired = false;
                record.unreplaced
            }
            None => {
                self.queue.insert(task);
                self.records.iter().find_map(|record| record.unreplaced)
            }
        };
        if let Some(incarnation) = unreplaced {
            return self.fail(RunFailure::Death { incarnation });
        }
        if let Some(worker_id) = pin {
            self.fork_if_needed(worker_id);
            self.send_waiting(worker_id);
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
        // If not all may run, those with the oldest tasks are forked at the end of this step.
        if !self.is_limited() {
            for worker_id in 0..self.settings.worker_count {
                self.fork_if_needed(worker_id);
            }
        }
    }

    fn refused(&mut self, incarnation: Incarnation, transient: bool) {
        let is_running = self.is_running();
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let Some(role) = record.role(incarnation) else { return };
        let Some(worker) = record.worker_mut(incarnation) else { return };
        let was_wanted = match worker.status {
            // A worker that took too long to be forked is still needed.
            ProcessStatus::Booting | ProcessStatus::Overdue { stage: WorkerStage::Booting, .. } => {
                true
            }
            ProcessStatus::Killed { booting: true } => false,
            ProcessStatus::Ready
            | ProcessStatus::Stopping { .. }
            | ProcessStatus::Killed { booting: false }
            | ProcessStatus::Failed
            | ProcessStatus::Overdue { .. } => return,
        };
        record.remove(incarnation);
        // The refusal of a zygote that is being ended has no meaning.
        if !was_wanted || !is_running || self.zygote != Zygote::Ready {
            return;
        }
        if role == ProcessRole::Successor {
            // There is no room for both: the old process ends first.
            if let Some(current) = &mut record.current
                && transient
                && current.status == ProcessStatus::Ready
                && current.trial.is_none()
            {
                current.is_renewed = true;
                ask_to_stop(current, self.now, self.settings.grace, &mut self.actions);
            }
            record.renew_after = self.now.saturating_add(RENEWAL_PAUSE);
            return;
        }
        if transient
            && self.process_count() > 0
            && self.shrink(self.process_count(), Shortage::Processes)
        {
            return self.records[incarnation.worker_id as usize].forget_refusals();
        }
        let record = &mut self.records[incarnation.worker_id as usize];
        let first = *record.refused_since.get_or_insert(self.now);
        let until = first.saturating_add(self.settings.refused_for);
        if !transient || self.now >= until {
            return self.fail(RunFailure::Refused { worker_id: incarnation.worker_id, transient });
        }
        if !record.is_needed() {
            return record.forget_refusals();
        }
        // Cap the last wait: one last fork is tried when the time is up, and its answer decides.
        record.retry_fork_at = Some(self.now.saturating_add(record.fork_backoff).min(until));
        record.fork_backoff = (record.fork_backoff * 2).min(LONGEST_BACKOFF);
    }

    fn ready(&mut self, incarnation: Incarnation) {
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let Some(worker) = record.worker_mut(incarnation) else { return };
        if !worker.is_booting() {
            return;
        }
        worker.status = ProcessStatus::Ready;
        worker.watch.end();
        record.boot_deaths = 0;
        record.forget_refusals();
        if record.role(incarnation) == Some(ProcessRole::Successor) {
            self.take_over(incarnation);
        }
        self.send_waiting(incarnation.worker_id);
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
        if role == ProcessRole::Successor {
            worker.status = ProcessStatus::Failed;
            worker.watch.end();
            self.actions.push(SupervisorAction::Kill { incarnation });
        } else {
            self.fail(RunFailure::CannotStart { incarnation });
        }
    }

    /// This runs for each batch, so it touches only the task, its worker, and the next task.
    fn task_done(&mut self, incarnation: Incarnation, task: TaskNumber) {
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
                if let ProcessStatus::Stopping { kill_at } = &mut worker.status {
                    *kill_at = Some(self.now.saturating_add(self.settings.grace));
                }
                // Tasks that waited for the end of a trial, or for a predecessor, can be sent now.
                self.send_waiting(incarnation.worker_id);
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
        if record.retry_fork_at.is_some() && !record.is_needed() {
            record.retry_fork_at = None;
            record.forget_refusals();
        }
        self.keep_one_unretired();
        self.send_waiting(worker_id);
        self.distribute();
    }

    fn restore(&mut self, worker_id: WorkerId) {
        let running = self.is_running();
        let Some(record) = self.records.get_mut(worker_id as usize) else { return };
        if !running {
            return;
        }
        record.retired = false;
        self.fork_if_needed(worker_id);
        self.distribute();
    }

    fn time_passed(&mut self) {
        if !self.is_running() {
            return;
        }
        if let Zygote::Ending { until } = self.zygote
            && until <= self.now
        {
            self.zygote_ended();
        }
        for worker_id in 0..self.settings.worker_count {
            let record = &mut self.records[worker_id as usize];
            if record.retry_fork_at.is_some_and(|at| at <= self.now) {
                record.retry_fork_at = None;
                // It has kept its place, so there is room.
                if self.zygote == Zygote::Ready && self.records[worker_id as usize].is_needed() {
                    self.fork(worker_id);
                }
            }
        }
        self.kill_where(|status, now| match status {
            ProcessStatus::Stopping { kill_at } => kill_at.is_some_and(|at| at <= now),
            ProcessStatus::Booting
            | ProcessStatus::Ready
            | ProcessStatus::Killed { .. }
            | ProcessStatus::Failed
            | ProcessStatus::Overdue { .. } => false,
        });
        self.postpone_due_checks();
        self.postpone_due_zygote_look();
        self.postpone_room_check();
    }

    /// The other end of a worker's socket was closed: the zygote must report how the worker ended.
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
        self.zygote = Zygote::Ending { until: self.now.saturating_add(self.settings.grace) };
        for worker in self.records.iter_mut().flat_map(WorkerRecord::workers_mut) {
            worker.watch.end();
        }
        self.actions.push(SupervisorAction::EndZygote);
    }

    /// Forks a process for a worker that needs one, if there is room for it.
    fn fork_if_needed(&mut self, worker_id: WorkerId) {
        let can_fork = self.is_running() && self.zygote == Zygote::Ready && self.has_room();
        let record = &self.records[worker_id as usize];
        if can_fork && record.is_vacant() && record.is_needed() {
            self.fork(worker_id);
        }
    }

    /// Sends a worker its trials or pinned tasks if it is ready, and asks it to stop if it has
    /// retired. It sends nothing while the zygote is being ended, because its workers end with it.
    fn send_waiting(&mut self, worker_id: WorkerId) {
        if self.zygote != Zygote::Ready {
            return;
        }
        let record = &mut self.records[worker_id as usize];
        let is_handed_over = record.is_handed_over();
        let Some(current) = &mut record.current else { return };
        if current.status != ProcessStatus::Ready || current.trial.is_some() {
            return;
        }
        let trial = record.trials.first_key_value().map(|(task, offset)| (*task, *offset));
        if let Some((task, offset)) = trial {
            // Only a fresh worker shows whether the sample is to blame or the tasks before it.
            if !current.is_fresh {
                ask_to_stop(current, self.now, self.settings.grace, &mut self.actions);
            } else if is_handed_over {
                record.trials.remove(&task);
                self.send(worker_id, task, Some(offset));
            }
            return;
        }
        // If workers pass the turn, tasks are sent at the end of each step, the oldest first.
        while is_handed_over
            && !self.passes_turns()
            && let Some(task) = self.records[worker_id as usize].waiting.pop_first()
        {
            self.send(worker_id, task, None);
        }
        self.stop_if_retired(worker_id);
    }

    /// Asks a ready worker to stop if it has retired and no more tasks wait for it.
    fn stop_if_retired(&mut self, worker_id: WorkerId) {
        let record = &mut self.records[worker_id as usize];
        if let Some(current) = &mut record.current
            && record.retired
            && record.waiting.is_empty()
        {
            ask_to_stop(current, self.now, self.settings.grace, &mut self.actions);
        }
    }

    fn send(&mut self, worker_id: WorkerId, task: TaskNumber, trial: Option<u64>) {
        let Some(current) = &mut self.records[worker_id as usize].current else { return };
        let incarnation = current.incarnation;
        current.assigned.push_back(task);
        current.is_fresh = false;
        current.trial = trial;
        current.watch.begin(&self.settings, self.now);
        if let Some(open) = self.tasks.get_mut(&task) {
            open.holder = Some(incarnation);
        }
        self.actions.push(SupervisorAction::Send { incarnation, task, trial });
    }

    /// Sends unpinned tasks to the workers with the fewest tasks.
    fn distribute(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        self.keep_one_unretired();
        if let Some(worker_id) = self.first_replaceable() {
            self.fork_if_needed(worker_id);
        }
        if self.zygote != Zygote::Ready {
            return;
        }
        let depth = self.settings.depth as usize;
        let parked = self.oldest_parked().filter(|_| !self.has_room());
        while let Some(&task) = self.queue.first() {
            // An older task waits until a process has nothing to do.
            if parked.is_some_and(|parked| parked < task) {
                return;
            }
            let assigned = |record: &&WorkerRecord| {
                record.current.as_ref().map_or(usize::MAX, |worker| worker.assigned.len())
            };
            let able = self.records.iter().filter(|record| record.can_take(depth));
            let Some(worker_id) = able.min_by_key(assigned).map(|record| record.worker_id) else {
                return;
            };
            self.queue.pop_first();
            self.send(worker_id, task, None);
        }
    }

    /// If every worker has retired or may not be replaced, no worker would do the unpinned tasks,
    /// so the first one that may have a process is needed again.
    fn keep_one_unretired(&mut self) {
        let is_gone = |record: &WorkerRecord| record.retired || record.unreplaced.is_some();
        if !self.queue.is_empty()
            && self.records.iter().all(is_gone)
            && let Some(worker_id) = self.first_replaceable()
        {
            self.records[worker_id as usize].retired = false;
        }
    }

    /// The first worker that may have a process.
    fn first_replaceable(&self) -> Option<WorkerId> {
        let record = self.records.iter().find(|record| record.unreplaced.is_none());
        record.map(|record| record.worker_id)
    }

    /// Kills every worker whose status matches.
    fn kill_where(&mut self, should_kill: impl Fn(ProcessStatus, Duration) -> bool) {
        for worker in self.records.iter_mut().flat_map(WorkerRecord::workers_mut) {
            if should_kill(worker.status, self.now) {
                worker.status = ProcessStatus::Killed { booting: worker.is_booting() };
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
            Phase::Running => self.phase = Phase::Ending { since: self.now, close },
            Phase::Ending { close: closes, .. } => {
                *closes |= close;
                return;
            }
            Phase::Closed => return,
        }
        for worker in self.records.iter_mut().flat_map(WorkerRecord::workers_mut) {
            let incarnation = worker.incarnation;
            match worker.status {
                ProcessStatus::Booting => {
                    worker.status = ProcessStatus::Killed { booting: true };
                    self.actions.push(SupervisorAction::Kill { incarnation });
                }
                ProcessStatus::Ready => {
                    worker.status = ProcessStatus::Stopping { kill_at: None };
                    self.actions.push(SupervisorAction::Stop { incarnation });
                }
                ProcessStatus::Stopping { .. }
                | ProcessStatus::Killed { .. }
                | ProcessStatus::Failed
                | ProcessStatus::Overdue { .. } => {}
            }
        }
    }

    /// When closing ends at the latest.
    fn closing_ends(&self, since: Duration) -> Duration {
        since.saturating_add(self.settings.grace.saturating_mul(CLOSING_GRACES))
    }

    /// Kills the workers whose grace period is over, and reports when all are gone.
    fn continue_ending(&mut self) {
        let Phase::Ending { since, close } = self.phase else { return };
        if self.now >= since.saturating_add(self.settings.grace) {
            self.kill_where(|status, _| matches!(status, ProcessStatus::Stopping { .. }));
        }
        let no_workers = self.workers().next().is_none();
        let all_gone = no_workers && self.zygote != Zygote::Booting;
        if close && (all_gone || self.now >= self.closing_ends(since)) {
            self.phase = Phase::Closed;
            self.actions.push(SupervisorAction::Closed);
        }
    }
}
