//! Checks the supervisor's promises and names the one it broke. It must never ask the supervisor
//! what is true: it keeps its own records of all events and actions, in the plainest way.

mod actions;
mod capacity;
mod concurrency;
mod ends;
mod watch;
mod zygote;

use std::time::Duration;

use capacity::CheckedCapacity;
use watch::{CheckedDump, CheckedHang, ProgressCheck, SampleLocation, Watched};
use zygote::Awaited;

use crate::worker::supervisor::{
    ExitKind, GiveUpReason, Incarnation, RunFailure, Supervisor, SupervisorAction,
    SupervisorSettings, TaskNumber, WorkerEvent, WorkerId, WorkerStage,
};

/// A worker process that was forked and, as far as the supervisor knows, has not ended.
#[derive(Clone)]
struct CheckedWorker {
    incarnation: Incarnation,
    ready: bool,
    stopped: bool,
    killed: bool,
    /// It reported that it cannot start, and was killed while the run continued.
    failed: bool,
    /// Where it hung, if it was killed for that.
    overdue: Option<CheckedHang>,
    /// Its successor has taken over.
    renewed: bool,
    /// It leaks and was asked to stop before its successor starts.
    leaves: bool,
    /// Since when it was asked to stop and has no tasks.
    idle_since: Option<Duration>,
    /// Tasks sent and not answered, in the order of sending.
    assigned: Vec<TaskNumber>,
    /// Since when it has had tasks.
    busy_since: Duration,
    newest_pinned: Option<TaskNumber>,
    /// It was never sent a task.
    fresh: bool,
    /// It has sent a result, or survived a trial.
    worked: bool,
    trial: Option<u64>,
    dump: Option<CheckedDump>,
    reported: Vec<SampleLocation>,
    /// The looks since it last made progress, at its present sample.
    looks: Vec<ProgressCheck>,
}

impl CheckedWorker {
    fn new(incarnation: Incarnation) -> CheckedWorker {
        CheckedWorker {
            incarnation,
            ready: false,
            stopped: false,
            killed: false,
            failed: false,
            overdue: None,
            renewed: false,
            leaves: false,
            idle_since: None,
            assigned: Vec::new(),
            busy_since: Duration::ZERO,
            newest_pinned: None,
            fresh: true,
            worked: false,
            trial: None,
            dump: None,
            reported: Vec::new(),
            looks: Vec::new(),
        }
    }

    fn takes_tasks(&self) -> bool {
        self.ready && !self.stopped && !self.killed
    }
}

/// A series of refused forks of one worker.
#[derive(Clone, Copy)]
struct Refusals {
    first: Duration,
    last: Duration,
    count: u32,
}

#[derive(Clone, Default)]
struct CheckedWorkerId {
    /// Its processes, oldest first.
    workers: Vec<CheckedWorker>,
    forks: u32,
    retired: bool,
    unreplaced: Option<Incarnation>,
    boot_deaths: u32,
    refusals: Option<Refusals>,
    /// When a successor last failed to start.
    renewal_failed: Option<Duration>,
}

impl CheckedWorkerId {
    /// The process that gets the tasks.
    fn current(&self) -> Option<&CheckedWorker> {
        self.workers.iter().find(|worker| !worker.renewed)
    }

    fn is_current(&self, incarnation: Incarnation) -> bool {
        self.current().is_some_and(|worker| worker.incarnation == incarnation)
    }

    /// Whether no predecessor has unfinished tasks.
    fn is_handed_over(&self) -> bool {
        self.workers.iter().all(|worker| !worker.renewed || worker.assigned.is_empty())
    }
}

/// The outcome of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CheckedOutcome {
    /// It has a result.
    Accepted,
    /// It was given up.
    GivenUp,
}

struct CheckedTask {
    pin: Option<WorkerId>,
    outcome: Option<CheckedOutcome>,
    /// Whether it is assigned to a worker.
    held: bool,
    /// How many times it was sent.
    sent: u32,
    /// The offsets at which it killed and hung workers, with repetitions.
    killed_at: Vec<Option<u64>>,
    hung_at: Vec<Option<u64>>,
    /// The worker that must try it, and at which offset.
    trial: Option<(WorkerId, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckedZygote {
    None,
    Booting,
    Ready,
    /// It was asked to end.
    Ending {
        since: Duration,
    },
}

/// The actions that must follow one event, and no others of their kind.
#[derive(Default)]
struct Expected {
    failure: Option<RunFailure>,
    accept: Option<TaskNumber>,
    discard: Option<(TaskNumber, Incarnation)>,
    give_up: Vec<(TaskNumber, Option<u64>, GiveUpReason)>,
    renewed: Vec<Incarnation>,
    /// A task to send again after its trial was survived.
    again: Option<(Incarnation, TaskNumber)>,
    renewal: Option<Incarnation>,
    /// A predecessor that must stop.
    stop: Option<Incarnation>,
    kill: Option<Incarnation>,
    watched: Option<Watched>,
    end_zygote: bool,
    /// The zygote was asked for something.
    ping: bool,
    zygote_slow: bool,
    zygote_hung: bool,
    died: Vec<(Incarnation, WorkerStage, ExitKind, Vec<TaskNumber>, bool)>,
    start_zygote: bool,
    closed: bool,
}

/// The checker's own records.
pub(super) struct PromiseChecker {
    settings: SupervisorSettings,
    workers_by_id: Vec<CheckedWorkerId>,
    tasks: Vec<CheckedTask>,
    /// All tasks before this one have an outcome.
    settled: usize,
    zygote: CheckedZygote,
    zygote_failures: u32,
    capacity: CheckedCapacity,
    hung_zygotes: u32,
    awaited: Option<Awaited>,
    last_ping: u32,
    /// All counted deaths: their time, and the task in progress.
    deaths: Vec<(Duration, Option<TaskNumber>)>,
    ending_since: Option<Duration>,
    close_at: Option<Duration>,
    closed: bool,
    /// Tasks that were sent more than once.
    pub(super) resent: u64,
    /// Steps after which a worker without a task had to wait for its turn.
    pub(super) held_back: u64,
    /// Processes that ended because fewer may run.
    pub(super) surplus_ended: u64,
    /// How many workers may have pinned tasks at once.
    at_once: u32,
    /// Whether all workers were restarted from a fresh zygote.
    restarted_fresh: bool,
    /// How long the slowest sample took.
    longest_sample: Duration,
}

type CheckResult = Result<(), String>;

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> CheckResult {
    if holds { Ok(()) } else { Err(otherwise()) }
}

impl PromiseChecker {
    pub(super) fn new(settings: &SupervisorSettings) -> PromiseChecker {
        PromiseChecker {
            settings: settings.clone(),
            workers_by_id: vec![CheckedWorkerId::default(); settings.worker_count as usize],
            tasks: Vec::new(),
            settled: 0,
            zygote: CheckedZygote::None,
            zygote_failures: 0,
            capacity: CheckedCapacity::new(settings.worker_count),
            hung_zygotes: 0,
            awaited: None,
            last_ping: 0,
            deaths: Vec::new(),
            ending_since: None,
            close_at: None,
            closed: false,
            resent: 0,
            held_back: 0,
            surplus_ended: 0,
            at_once: settings.worker_count,
            restarted_fresh: false,
            longest_sample: Duration::ZERO,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.ending_since.is_none()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn outcome(&self, task: TaskNumber) -> Option<CheckedOutcome> {
        self.tasks.get(task as usize)?.outcome
    }

    /// Whether this process was requested and its end was not reported.
    pub(super) fn is_open(&self, incarnation: Incarnation) -> bool {
        self.worker(incarnation).is_some()
    }

    /// Whether the supervisor has killed this process.
    pub(super) fn is_killed(&self, incarnation: Incarnation) -> bool {
        self.worker(incarnation).is_some_and(|worker| worker.killed)
    }

    /// Whether the supervisor has killed this process because it took too long.
    pub(super) fn is_overdue(&self, incarnation: Incarnation) -> bool {
        self.worker(incarnation).is_some_and(|worker| worker.overdue.is_some())
    }

    /// Whether this task is assigned to this process.
    pub(super) fn is_assigned(&self, incarnation: Incarnation, task: TaskNumber) -> bool {
        self.worker(incarnation).is_some_and(|worker| worker.assigned.contains(&task))
    }

    /// Whether the zygote is ready and is not being ended.
    pub(super) fn can_fork(&self) -> bool {
        self.zygote == CheckedZygote::Ready
    }

    /// Checks the actions of `start`.
    pub(super) fn check_start(&mut self, actions: &[SupervisorAction]) -> CheckResult {
        self.zygote = CheckedZygote::Booting;
        ensure(actions == [SupervisorAction::StartZygote { fresh: false }], || {
            format!("start returned {actions:?}")
        })
    }

    /// Checks the actions that followed an event.
    pub(super) fn check(
        &mut self,
        event: WorkerEvent,
        actions: &[SupervisorAction],
        now: Duration,
        supervisor: &Supervisor,
    ) -> CheckResult {
        let was_closed = self.closed;
        let mut expected = self.record(event, now);
        if was_closed {
            return ensure(actions.is_empty(), || format!("after Closed came {actions:?}"));
        }
        for action in actions {
            ensure(!self.closed, || format!("after Closed came {action:?}"))?;
            self.check_action(action, &mut expected, now)?;
        }
        ensure(expected.failure.is_none(), || format!("{:?} did not come", expected.failure))?;
        ensure(expected.accept.is_none(), || {
            format!("the result of {:?} was not accepted", expected.accept)
        })?;
        ensure(expected.discard.is_none(), || format!("{:?} was not discarded", expected.discard))?;
        ensure(expected.give_up.is_empty(), || format!("{:?} was not given up", expected.give_up))?;
        ensure(expected.renewed.is_empty(), || format!("the log misses {:?}", expected.renewed))?;
        ensure(expected.again.is_none(), || format!("{:?} was not sent again", expected.again))?;
        ensure(expected.renewal.is_none(), || format!("{:?} was not forked", expected.renewal))?;
        ensure(expected.stop.is_none(), || format!("{:?} was not asked to stop", expected.stop))?;
        ensure(expected.kill.is_none(), || format!("{:?} was not killed", expected.kill))?;
        ensure(expected.watched.is_none(), || format!("{:?} did not come", expected.watched))?;
        let owes_ping = expected.ping && self.is_running() && self.zygote == CheckedZygote::Ready;
        ensure(!owes_ping, || "the zygote was asked for something without a ping".into())?;
        ensure(!expected.zygote_slow, || "the log misses a slow zygote".into())?;
        ensure(!expected.zygote_hung, || "the log misses a hung zygote".into())?;
        ensure(!expected.end_zygote, || "the zygote was not ended".into())?;
        ensure(expected.died.is_empty(), || format!("the log misses {:?}", expected.died))?;
        ensure(!expected.start_zygote, || "the zygote was not started again".into())?;
        if !self.closed {
            expected.closed = self.must_be_closed(now);
            ensure(!expected.closed, || "all workers are gone, but Closed did not come".into())?;
        }
        self.held_back += u64::from(self.is_running() && self.holds_back());
        self.check_rest(event, now, supervisor)
    }

    /// Records an event, and returns what must follow.
    fn record(&mut self, event: WorkerEvent, now: Duration) -> Expected {
        let mut expected = Expected::default();
        let running = self.is_running();
        match event {
            WorkerEvent::Submitted { task, worker_id } => {
                if running && task == self.tasks.len() as TaskNumber {
                    self.tasks.push(CheckedTask {
                        pin: worker_id,
                        outcome: None,
                        held: false,
                        sent: 0,
                        killed_at: Vec::new(),
                        hung_at: Vec::new(),
                        trial: None,
                    });
                    let mut could =
                        self.workers_by_id.iter_mut().enumerate().filter(|(number, _)| {
                            worker_id.is_none_or(|worker_id| worker_id as usize == *number)
                        });
                    let unreplaced = could.find_map(|(_, by_id)| by_id.unreplaced);
                    expected.failure =
                        unreplaced.map(|incarnation| RunFailure::Death { incarnation });
                    if let Some(worker_id) = worker_id {
                        self.workers_by_id[worker_id as usize].retired = false;
                    }
                }
            }
            WorkerEvent::ZygoteReady => {
                if self.zygote == CheckedZygote::Booting {
                    self.zygote = CheckedZygote::Ready;
                    self.zygote_failures = 0;
                    self.awaited = None;
                    self.last_ping = 0;
                }
            }
            WorkerEvent::ZygoteStarted => self.record_zygote_started(now),
            WorkerEvent::ZygoteAnswered { ping } => self.record_zygote_answer(ping, now),
            WorkerEvent::ZygoteSeen { ran } => self.record_zygote_seen(ran, &mut expected, now),
            WorkerEvent::HungUp { incarnation } => expected.ping = self.is_open(incarnation),
            WorkerEvent::DescriptorsClosed => {
                expected.failure = running.then_some(RunFailure::DescriptorsClosed);
            }
            WorkerEvent::ZygoteEnded => self.record_zygote_end(&mut expected, now),
            WorkerEvent::Refused { incarnation, transient } => {
                if self.worker(incarnation).is_some_and(|worker| !worker.ready && !worker.failed) {
                    self.record_refusal(incarnation, transient, &mut expected, now);
                }
            }
            WorkerEvent::Ready { incarnation } => self.record_ready(incarnation, &mut expected),
            WorkerEvent::StartFailed { incarnation } => {
                let boots =
                    |worker: &CheckedWorker| !worker.ready && !worker.killed && !worker.failed;
                if running
                    && self.zygote == CheckedZygote::Ready
                    && self.worker(incarnation).is_some_and(boots)
                {
                    if self.workers_by_id[incarnation.worker_id as usize].is_current(incarnation) {
                        expected.failure = Some(RunFailure::CannotStart { incarnation });
                    } else {
                        expected.kill = Some(incarnation);
                        self.worker_mut(incarnation).expect("it boots").failed = true;
                    }
                }
            }
            WorkerEvent::TaskDone { incarnation, task } => {
                let has_task =
                    self.worker(incarnation).is_some_and(|worker| worker.assigned.contains(&task));
                if running && has_task {
                    expected.accept = Some(task);
                    self.hung_zygotes = 0;
                    let worker = self.worker_mut(incarnation).expect("it has the task");
                    worker.assigned.retain(|other| *other != task);
                    worker.worked = true;
                    worker.trial = None;
                    if worker.assigned.is_empty() {
                        worker.dump = None;
                        worker.reported.clear();
                        worker.looks.clear();
                        worker.looks.clear();
                        worker.idle_since = worker.stopped.then_some(now);
                    }
                } else {
                    expected.discard = Some((task, incarnation));
                }
            }
            WorkerEvent::Ended { incarnation, exit, at, shortage } => {
                self.record_ended(incarnation, exit, at, shortage, &mut expected, now)
            }
            WorkerEvent::RoomSeen { is_enough } => self.record_room(is_enough, now),
            WorkerEvent::Survived { incarnation, task } => {
                let tries =
                    |worker: &CheckedWorker| worker.trial.is_some() && worker.assigned == [task];
                if running
                    && self.zygote == CheckedZygote::Ready
                    && self.worker(incarnation).is_some_and(tries)
                {
                    self.record_survival(incarnation, task, &mut expected);
                }
            }
            WorkerEvent::LongestSample { took } => {
                self.longest_sample = self.longest_sample.max(took)
            }
            WorkerEvent::Observed { incarnation, seen } => {
                expected.watched = self.record_observation(incarnation, seen, now)
            }
            WorkerEvent::Renew { incarnation } => {
                if running && self.can_be_renewed(incarnation, now) && self.is_limited() {
                    expected.stop = Some(incarnation);
                    self.worker_mut(incarnation).expect("it works").leaves = true;
                } else if running && self.can_be_renewed(incarnation, now) {
                    let generation = self.workers_by_id[incarnation.worker_id as usize].forks;
                    expected.renewal = Some(Incarnation { generation, ..incarnation });
                }
            }
            WorkerEvent::Restore { worker_id } => {
                if running && let Some(by_id) = self.workers_by_id.get_mut(worker_id as usize) {
                    by_id.retired = false;
                }
            }
            WorkerEvent::Retire { worker_id } => {
                if running && let Some(by_id) = self.workers_by_id.get_mut(worker_id as usize) {
                    by_id.retired = true;
                    if !self.is_needed(worker_id)
                        && self.workers_by_id[worker_id as usize].current().is_none()
                    {
                        self.workers_by_id[worker_id as usize].refusals = None;
                    }
                }
            }
            WorkerEvent::LimitWorkers { at_once, ends_others } => {
                self.record_limit(at_once, ends_others, now)
            }
            WorkerEvent::TimePassed => {
                self.record_missed_look(now);
                self.record_missed_room(now);
                if let CheckedZygote::Ending { since } = self.zygote
                    && running
                    && now >= since + self.settings.grace
                {
                    self.record_zygote_end(&mut expected, now);
                }
            }
            WorkerEvent::Close => {
                self.close_at.get_or_insert(now);
                self.ending_since.get_or_insert(now);
            }
        }
        self.keep_one_unretired();
        expected
    }

    fn record_ready(&mut self, incarnation: Incarnation, expected: &mut Expected) {
        let Some(worker) = self.worker_mut(incarnation) else { return };
        if worker.killed || worker.ready || worker.failed {
            return;
        }
        worker.ready = true;
        worker.dump = None;
        worker.reported.clear();
        worker.looks.clear();
        let by_id = self.by_id(incarnation.worker_id);
        by_id.boot_deaths = 0;
        by_id.refusals = None;
        let before = by_id
            .workers
            .iter_mut()
            .find(|other| !other.renewed && other.incarnation != incarnation);
        if let Some(before) = before {
            before.renewed = true;
            expected.stop = before.takes_tasks().then_some(before.incarnation);
        }
    }

    fn can_be_renewed(&self, incarnation: Incarnation, now: Duration) -> bool {
        let Some(by_id) = self.workers_by_id.get(incarnation.worker_id as usize) else {
            return false;
        };
        let [worker] = &by_id.workers[..] else { return false };
        let pause = Duration::from_secs(1);
        let waited = by_id.renewal_failed.is_none_or(|at| now >= at + pause);
        let is_working =
            worker.incarnation == incarnation && worker.takes_tasks() && worker.trial.is_none();
        is_working
            && waited
            && !worker.renewed
            && !by_id.retired
            && self.zygote == CheckedZygote::Ready
    }

    /// If all workers have retired or may not be replaced, the first one that may have a process is
    /// needed again for an unpinned task.
    fn keep_one_unretired(&mut self) {
        let is_gone = |by_id: &CheckedWorkerId| by_id.retired || by_id.unreplaced.is_some();
        let all_gone = self.workers_by_id.iter().all(is_gone);
        if all_gone && self.is_running() && self.waits(None) {
            let first = self.workers_by_id.iter_mut().find(|by_id| by_id.unreplaced.is_none());
            if let Some(by_id) = first {
                by_id.retired = false;
            }
        }
    }

    /// Checks what must hold after each step.
    fn check_rest(
        &self,
        event: WorkerEvent,
        now: Duration,
        supervisor: &Supervisor,
    ) -> CheckResult {
        let deadline = supervisor.next_deadline();
        if event == WorkerEvent::TimePassed {
            ensure(deadline.is_none_or(|at| at > now), || "the deadline did not move".into())?;
        }
        ensure(supervisor.is_closed() == self.closed, || "is_closed() is wrong".into())?;
        ensure(supervisor.is_running() == self.is_running(), || "is_running() is wrong".into())?;
        for (worker_id, by_id) in self.workers_by_id.iter().enumerate() {
            let worker_id = worker_id as WorkerId;
            let incarnations: Vec<Incarnation> =
                by_id.workers.iter().map(|worker| worker.incarnation).collect();
            let reported: Vec<Incarnation> = supervisor.incarnations(worker_id).collect();
            ensure(reported == incarnations, || {
                format!("worker {worker_id} has {incarnations:?}, not {reported:?}")
            })?;
            let current = by_id.current().map(|worker| worker.incarnation);
            ensure(supervisor.incarnation(worker_id) == current, || {
                format!("worker {worker_id} forgot {current:?}")
            })?;
            ensure(incarnations.len() <= 2, || format!("worker {worker_id} has {incarnations:?}"))?;
        }
        let latest = |at: Duration, why: &str| {
            ensure(deadline.is_some_and(|deadline| deadline <= at), || {
                format!("the deadline is {deadline:?}, but {why} at {at:?}")
            })
        };
        if let Some(since) = self.ending_since {
            let grace = self.settings.grace;
            for worker in self.workers_by_id.iter().flat_map(|by_id| &by_id.workers) {
                let incarnation = worker.incarnation;
                ensure(worker.ready || worker.killed, || format!("{incarnation:?} still boots"))?;
                ensure(worker.stopped || worker.killed, || format!("{incarnation:?} still works"))?;
                if !worker.killed {
                    ensure(now < since + grace, || format!("{incarnation:?} outlives its grace"))?;
                    latest(since + grace, "a worker must be killed")?;
                }
            }
            if self.close_at.is_some() && !self.closed {
                latest(since + grace * 3, "closing must end")?;
            }
            return Ok(());
        }
        let open = self
            .tasks
            .iter()
            .skip(self.settled)
            .filter(|task_record| task_record.outcome.is_none());
        ensure(supervisor.outstanding() == open.count(), || "outstanding() is wrong".into())?;
        if let CheckedZygote::Ending { since } = self.zygote {
            return latest(since + self.settings.grace, "the zygote must have ended");
        }
        if let Some(awaited) = self.awaited {
            latest(awaited.look_at, "the zygote must be looked at")?;
        }
        self.check_capacity(deadline)?;
        let parked = self.oldest_parked().filter(|_| !self.has_room());
        let has_unpinned = self.oldest_unpinned().is_some_and(|oldest| {
            // A worker that has no process waits with an older task.
            parked.is_none_or(|parked| oldest < parked)
        });
        for (worker_id, by_id) in self.workers_by_id.iter().enumerate() {
            let worker_id = worker_id as WorkerId;
            for worker in &by_id.workers {
                if let Some(since) = worker.idle_since
                    && !worker.killed
                {
                    latest(since + self.settings.grace, "a retired worker must be killed")?;
                }
                if let Some(dump) = worker.dump
                    && !worker.killed
                {
                    let until = now.max(dump.at + self.settings.dump_time);
                    latest(until + self.settings.dump_time, "a dump must be looked at")?;
                }
            }
            let Some(worker) = by_id.current() else {
                let next = self.next_fork_retry(worker_id);
                if let Some(at) = next {
                    latest(at, "a fork must be retried")?;
                }
                let idle = self.is_needed(worker_id)
                    && self.zygote == CheckedZygote::Ready
                    && self.has_room()
                    && next.is_none();
                ensure(!idle, || format!("worker {worker_id} needs a process and gets none"))?;
                continue;
            };
            let incarnation = worker.incarnation;
            if !worker.takes_tasks() || worker.trial.is_some() {
                continue;
            }
            let handed_over = by_id.is_handed_over();
            if self.trials(worker_id).next().is_some() {
                let waits = worker.fresh && !handed_over;
                ensure(waits, || format!("{incarnation:?} is not given its trial, nor stopped"))?;
                continue;
            }
            let waits = self.waits(Some(worker_id));
            let held_back = self.must_wait_for_turn(worker);
            ensure(!handed_over || !waits || held_back, || {
                format!("{incarnation:?} is not given its tasks")
            })?;
            let stays = !by_id.retired || waits;
            ensure(stays, || format!("{incarnation:?} was not asked to stop"))?;
            let free = worker.assigned.len() < self.settings.depth as usize && !by_id.retired;
            ensure(!(free && has_unpinned), || {
                format!("{incarnation:?} is free and gets no task")
            })?;
        }
        Ok(())
    }

    /// Forgets tasks that the consumer has taken.
    pub(super) fn settle(&mut self, before: TaskNumber) {
        self.settled = before as usize;
    }

    fn must_be_closed(&self, now: Duration) -> bool {
        let (Some(since), Some(_)) = (self.ending_since, self.close_at) else { return false };
        let no_workers = self.workers_by_id.iter().all(|by_id| by_id.workers.is_empty());
        (no_workers && self.zygote != CheckedZygote::Booting)
            || now >= since + self.settings.grace * 3
    }

    fn by_id(&mut self, worker_id: WorkerId) -> &mut CheckedWorkerId {
        &mut self.workers_by_id[worker_id as usize]
    }

    fn worker(&self, incarnation: Incarnation) -> Option<&CheckedWorker> {
        let by_id = self.workers_by_id.get(incarnation.worker_id as usize)?;
        by_id.workers.iter().find(|worker| worker.incarnation == incarnation)
    }

    fn worker_mut(&mut self, incarnation: Incarnation) -> Option<&mut CheckedWorker> {
        let by_id = self.workers_by_id.get_mut(incarnation.worker_id as usize)?;
        by_id.workers.iter_mut().find(|worker| worker.incarnation == incarnation)
    }

    fn close_worker(&mut self, incarnation: Incarnation) -> Option<CheckedWorker> {
        let by_id = self.workers_by_id.get_mut(incarnation.worker_id as usize)?;
        let place = by_id.workers.iter().position(|worker| worker.incarnation == incarnation)?;
        Some(by_id.workers.remove(place))
    }

    fn known(
        &mut self,
        incarnation: Incarnation,
        what: &str,
    ) -> Result<&mut CheckedWorker, String> {
        self.worker_mut(incarnation)
            .ok_or_else(|| format!("{what} for {incarnation:?}, which does not exist"))
    }

    /// The processes that could be sent an unpinned task if they had room.
    fn available(&self) -> impl Iterator<Item = &CheckedWorker> {
        let workers_by_id = (0..).zip(&self.workers_by_id);
        let open = workers_by_id.filter(|(worker_id, by_id)| {
            !by_id.retired && self.trials(*worker_id).next().is_none()
        });
        open.filter_map(|(_, by_id)| by_id.current())
            .filter(|worker| worker.takes_tasks() && worker.trial.is_none())
    }

    /// Tasks that wait to be tried by this worker.
    fn trials(&self, worker_id: WorkerId) -> impl Iterator<Item = TaskNumber> {
        let waiting = self.settled..self.tasks.len();
        waiting.map(|task| task as TaskNumber).filter(move |task| {
            let trial = self.tasks[*task as usize].trial;
            trial.is_some_and(|(other, _)| other == worker_id) && self.waits_for(*task)
        })
    }

    /// Whether a task has neither an outcome nor a worker.
    fn waits_for(&self, task: TaskNumber) -> bool {
        let task_record = &self.tasks[task as usize];
        task_record.outcome.is_none() && !task_record.held
    }

    /// The oldest task that waits for any worker.
    fn oldest_unpinned(&self) -> Option<TaskNumber> {
        (self.settled as TaskNumber..self.tasks.len() as TaskNumber).find(|task| {
            let task_record = &self.tasks[*task as usize];
            task_record.pin.is_none() && task_record.trial.is_none() && self.waits_for(*task)
        })
    }

    /// Whether such a task waits for this worker, or for any worker.
    fn waits(&self, pin: Option<WorkerId>) -> bool {
        (self.settled..self.tasks.len()).any(|task| {
            let task_record = &self.tasks[task];
            let is_tried = pin.is_none() && task_record.trial.is_some();
            task_record.pin == pin && self.waits_for(task as TaskNumber) && !is_tried
        })
    }

    fn is_needed(&self, worker_id: WorkerId) -> bool {
        let by_id = &self.workers_by_id[worker_id as usize];
        by_id.unreplaced.is_none() && {
            let tries = self.trials(worker_id).next().is_some();
            !by_id.retired || tries || self.waits(Some(worker_id))
        }
    }

    /// When to retry a refused fork.
    fn next_fork_retry(&self, worker_id: WorkerId) -> Option<Duration> {
        let Refusals { first, last, count } = self.workers_by_id[worker_id as usize].refusals?;
        let wait = Duration::from_millis((10 << (count - 1).min(10)).min(1000));
        Some((last + wait).min(first + self.settings.refused_for))
    }
}
