//! Keeps its own books on a supervisor and says which promise it broke. It must never ask the
//! supervisor what is true: it counts again, from what happened and what was done, in the plainest
//! way.

mod actions;
mod ends;
mod watch;
mod zygote;

use std::time::Duration;

use watch::{CheckedDump, CheckedHang, SampleInTask, Watched};
use zygote::Awaited;

use crate::worker::supervisor::{
    ExitKind, Incarnation, Reason, RunFailure, Supervisor, SupervisorAction, SupervisorSettings,
    TaskNumber, WorkerEvent, WorkerId, WorkerStage,
};

/// A worker that was forked and has not ended, as far as the supervisor was told.
#[derive(Clone)]
struct CheckedWorker {
    incarnation: Incarnation,
    ready: bool,
    stopped: bool,
    killed: bool,
    /// It said that it cannot start, and was killed while the worker went on.
    failed: bool,
    /// It was killed because it hung, and where.
    overdue: Option<CheckedHang>,
    /// Its successor has taken over.
    renewed: bool,
    /// Since when it was asked to stop and has nothing at hand.
    idle_since: Option<Duration>,
    /// Sent and not answered, in the order of sending.
    assigned: Vec<TaskNumber>,
    /// Since when it has had something at hand.
    busy_since: Duration,
    newest_pinned: Option<TaskNumber>,
    /// It was sent nothing yet.
    fresh: bool,
    /// It has answered, or survived a trial.
    worked: bool,
    trial: Option<u64>,
    dump: Option<CheckedDump>,
    reported: Vec<SampleInTask>,
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
            idle_since: None,
            assigned: Vec::new(),
            busy_since: Duration::ZERO,
            newest_pinned: None,
            fresh: true,
            worked: false,
            trial: None,
            dump: None,
            reported: Vec::new(),
        }
    }

    fn is_at_work(&self) -> bool {
        self.ready && !self.stopped && !self.killed
    }
}

/// Refusals of a worker in a row.
#[derive(Clone, Copy)]
struct Refusals {
    first: Duration,
    last: Duration,
    count: u32,
}

#[derive(Clone, Default)]
struct CheckedWorkerId {
    /// Oldest first.
    workers: Vec<CheckedWorker>,
    forks: u32,
    retired: bool,
    fallen: Option<Incarnation>,
    boot_deaths: u32,
    refusals: Option<Refusals>,
    /// When a successor could not start for the last time.
    renewal_failed: Option<Duration>,
}

impl CheckedWorkerId {
    /// Who gets the tasks.
    fn holder(&self) -> Option<&CheckedWorker> {
        self.workers.iter().find(|worker| !worker.renewed)
    }

    fn is_holder(&self, incarnation: Incarnation) -> bool {
        self.holder().is_some_and(|worker| worker.incarnation == incarnation)
    }

    /// Whether nobody works on what came before.
    fn is_handed_over(&self) -> bool {
        self.workers.iter().all(|worker| !worker.renewed || worker.assigned.is_empty())
    }
}

/// How a task came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CheckedOutcome {
    /// With an answer.
    TaskResult,
    /// It cannot be done.
    FailedTask,
}

struct CheckedTask {
    pin: Option<WorkerId>,
    outcome: Option<CheckedOutcome>,
    /// Whether a worker has it at hand.
    held: bool,
    /// How often it was sent.
    sent: u32,
    /// Where it killed and hung, how often.
    killed_at: Vec<Option<u64>>,
    hung_at: Vec<Option<u64>>,
    /// It is to be tried by this worker at this position.
    trial: Option<(WorkerId, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckedZygote {
    None,
    Booting,
    Ready,
    /// It was asked to end.
    ExitKind {
        since: Duration,
    },
}

/// What must come out of one step, and nothing else of its kind.
#[derive(Default)]
struct Due {
    failure: Option<RunFailure>,
    accept: Option<TaskNumber>,
    discard: Option<(TaskNumber, Incarnation)>,
    give_up: Vec<(TaskNumber, Option<u64>, Reason)>,
    retired: Vec<Incarnation>,
    /// A trial was survived.
    again: Option<(Incarnation, TaskNumber)>,
    renewal: Option<Incarnation>,
    /// A predecessor that is to stop.
    stop: Option<Incarnation>,
    kill: Option<Incarnation>,
    watched: Option<Watched>,
    end_zygote: bool,
    /// The zygote was asked for something.
    ping: bool,
    zygote_slow: bool,
    zygote_hung: bool,
    died: Vec<(Incarnation, WorkerStage, ExitKind, Vec<TaskNumber>, bool)>,
    bear: bool,
    closed: bool,
}

/// The books.
pub(super) struct PromiseChecker {
    settings: SupervisorSettings,
    workers_by_id: Vec<CheckedWorkerId>,
    entries: Vec<CheckedTask>,
    /// All tasks before this one have an outcome.
    settled: usize,
    zygote: CheckedZygote,
    zygote_failures: u32,
    hung_zygotes: u32,
    awaited: Option<Awaited>,
    last_ping: u32,
    /// When the deaths were that count, all of them, and with which task being worked on.
    deaths: Vec<(Duration, Option<TaskNumber>)>,
    ending_since: Option<Duration>,
    close_at: Option<Duration>,
    closed: bool,
    /// Tasks that were sent more than once.
    pub(super) resent: u64,
    /// Whether all were started again from a fresh zygote.
    restarted_fresh: bool,
}

type Checked = Result<(), String>;

fn keep(holds: bool, otherwise: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(otherwise()) }
}

impl PromiseChecker {
    pub(super) fn new(settings: &SupervisorSettings) -> PromiseChecker {
        PromiseChecker {
            settings: settings.clone(),
            workers_by_id: vec![CheckedWorkerId::default(); settings.worker_count as usize],
            entries: Vec::new(),
            settled: 0,
            zygote: CheckedZygote::None,
            zygote_failures: 0,
            hung_zygotes: 0,
            awaited: None,
            last_ping: 0,
            deaths: Vec::new(),
            ending_since: None,
            close_at: None,
            closed: false,
            resent: 0,
            restarted_fresh: false,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.ending_since.is_none()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn outcome(&self, task: TaskNumber) -> Option<CheckedOutcome> {
        self.entries.get(task as usize)?.outcome
    }

    /// Whether this worker may be alive: asked for, and its end not told.
    pub(super) fn is_open(&self, incarnation: Incarnation) -> bool {
        self.worker(incarnation).is_some()
    }

    /// Whether this worker was killed, as far as the supervisor has said.
    pub(super) fn is_killed(&self, incarnation: Incarnation) -> bool {
        self.worker(incarnation).is_some_and(|worker| worker.killed)
    }

    /// Whether this worker has this task at hand.
    pub(super) fn has_at_hand(&self, incarnation: Incarnation, task: TaskNumber) -> bool {
        self.worker(incarnation).is_some_and(|worker| worker.assigned.contains(&task))
    }

    /// Whether the zygote is ready and is not being ended.
    pub(super) fn can_fork(&self) -> bool {
        self.zygote == CheckedZygote::Ready
    }

    /// Checks the answer to `start`.
    pub(super) fn check_start(&mut self, actions: &[SupervisorAction]) -> Checked {
        self.zygote = CheckedZygote::Booting;
        keep(actions == [SupervisorAction::StartZygote { fresh: false }], || {
            format!("the start asked for {actions:?}")
        })
    }

    /// Checks what the supervisor made of a happening.
    pub(super) fn check(
        &mut self,
        happening: WorkerEvent,
        actions: &[SupervisorAction],
        now: Duration,
        supervisor: &Supervisor,
    ) -> Checked {
        let was_closed = self.closed;
        let mut due = self.book(happening, now);
        if was_closed {
            return keep(actions.is_empty(), || format!("after Closed came {actions:?}"));
        }
        for action in actions {
            keep(!self.closed, || format!("after Closed came {action:?}"))?;
            self.check_action(action, &mut due, now)?;
        }
        keep(due.failure.is_none(), || format!("{:?} did not come", due.failure))?;
        keep(due.accept.is_none(), || format!("the answer to {:?} was not taken", due.accept))?;
        keep(due.discard.is_none(), || format!("{:?} was not thrown away", due.discard))?;
        keep(due.give_up.is_empty(), || format!("{:?} was not given up", due.give_up))?;
        keep(due.retired.is_empty(), || format!("the log misses {:?}", due.retired))?;
        keep(due.again.is_none(), || format!("{:?} was not sent again", due.again))?;
        keep(due.renewal.is_none(), || format!("{:?} was not forked", due.renewal))?;
        keep(due.stop.is_none(), || format!("{:?} was not asked to stop", due.stop))?;
        keep(due.kill.is_none(), || format!("{:?} was not killed", due.kill))?;
        keep(due.watched.is_none(), || format!("{:?} did not come", due.watched))?;
        let owes_ping = due.ping && self.is_running() && self.zygote == CheckedZygote::Ready;
        keep(!owes_ping, || "the zygote was asked for something without a ping".into())?;
        keep(!due.zygote_slow, || "the log does not tell of a slow zygote".into())?;
        keep(!due.zygote_hung, || "the log does not tell of a hung zygote".into())?;
        keep(!due.end_zygote, || "the zygote was not ended".into())?;
        keep(due.died.is_empty(), || format!("the log misses {:?}", due.died))?;
        keep(!due.bear, || "the zygote was not started again".into())?;
        if !self.closed {
            due.closed = self.must_be_closed(now);
            keep(!due.closed, || "nothing is left, but Closed did not come".into())?;
        }
        self.check_rest(happening, now, supervisor)
    }

    /// Books what happened, and says what must follow.
    fn book(&mut self, happening: WorkerEvent, now: Duration) -> Due {
        let mut due = Due::default();
        let running = self.is_running();
        match happening {
            WorkerEvent::Submitted { task, worker_id } => {
                if running && task == self.entries.len() as TaskNumber {
                    self.entries.push(CheckedTask {
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
                    let fallen = could.find_map(|(_, by_id)| by_id.fallen);
                    due.failure = fallen.map(|incarnation| RunFailure::Death { incarnation });
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
            WorkerEvent::ZygoteStarted => self.book_zygote_started(now),
            WorkerEvent::ZygoteAnswered { ping } => self.book_zygote_answer(ping, now),
            WorkerEvent::ZygoteSeen { ran } => self.book_zygote_seen(ran, &mut due, now),
            WorkerEvent::HungUp { incarnation } => due.ping = self.is_open(incarnation),
            WorkerEvent::DescriptorsClosed => {
                due.failure = running.then_some(RunFailure::DescriptorsClosed);
            }
            WorkerEvent::ZygoteEnded => self.book_zygote_end(&mut due, now),
            WorkerEvent::Refused { incarnation, passing } => {
                if self.worker(incarnation).is_some_and(|worker| !worker.ready && !worker.failed) {
                    self.book_refusal(incarnation, passing, &mut due, now);
                }
            }
            WorkerEvent::Ready { incarnation } => self.book_ready(incarnation, &mut due),
            WorkerEvent::StartFailed { incarnation } => {
                let boots =
                    |worker: &CheckedWorker| !worker.ready && !worker.killed && !worker.failed;
                if running
                    && self.zygote == CheckedZygote::Ready
                    && self.worker(incarnation).is_some_and(boots)
                {
                    if self.workers_by_id[incarnation.worker_id as usize].is_holder(incarnation) {
                        due.failure = Some(RunFailure::CannotStart { incarnation });
                    } else {
                        due.kill = Some(incarnation);
                        self.worker_mut(incarnation).expect("it boots").failed = true;
                    }
                }
            }
            WorkerEvent::TaskDone { incarnation, task } => {
                let holds =
                    self.worker(incarnation).is_some_and(|worker| worker.assigned.contains(&task));
                if running && holds {
                    due.accept = Some(task);
                    self.hung_zygotes = 0;
                    let worker = self.worker_mut(incarnation).expect("it holds the task");
                    worker.assigned.retain(|other| *other != task);
                    worker.worked = true;
                    worker.trial = None;
                    if worker.assigned.is_empty() {
                        worker.dump = None;
                        worker.reported.clear();
                        worker.idle_since = worker.stopped.then_some(now);
                    }
                } else {
                    due.discard = Some((task, incarnation));
                }
            }
            WorkerEvent::Ended { incarnation, exit, at } => {
                self.book_ended(incarnation, exit, at, &mut due, now)
            }
            WorkerEvent::Survived { incarnation, task } => {
                let tries =
                    |worker: &CheckedWorker| worker.trial.is_some() && worker.assigned == [task];
                if running
                    && self.zygote == CheckedZygote::Ready
                    && self.worker(incarnation).is_some_and(tries)
                {
                    self.book_survival(incarnation, task, &mut due);
                }
            }
            WorkerEvent::Observation { incarnation, seen } => {
                due.watched = self.book_seen(incarnation, seen, now)
            }
            WorkerEvent::Renew { incarnation } => {
                if running && self.can_be_renewed(incarnation, now) {
                    let generation = self.workers_by_id[incarnation.worker_id as usize].forks;
                    due.renewal = Some(Incarnation { generation, ..incarnation });
                }
            }
            WorkerEvent::Retire { worker_id } => {
                if running && let Some(by_id) = self.workers_by_id.get_mut(worker_id as usize) {
                    by_id.retired = true;
                    if !self.is_needed(worker_id)
                        && self.workers_by_id[worker_id as usize].holder().is_none()
                    {
                        self.workers_by_id[worker_id as usize].refusals = None;
                    }
                }
            }
            WorkerEvent::TimePassed => {
                self.book_missed_look(now);
                if let CheckedZygote::ExitKind { since } = self.zygote
                    && running
                    && now >= since + self.settings.grace
                {
                    self.book_zygote_end(&mut due, now);
                }
            }
            WorkerEvent::Close => {
                self.close_at.get_or_insert(now);
                self.ending_since.get_or_insert(now);
            }
        }
        self.open_one();
        due
    }

    fn book_ready(&mut self, incarnation: Incarnation, due: &mut Due) {
        let Some(worker) = self.worker_mut(incarnation) else { return };
        if worker.killed || worker.ready || worker.failed {
            return;
        }
        worker.ready = true;
        worker.dump = None;
        worker.reported.clear();
        let by_id = self.by_id(incarnation.worker_id);
        by_id.boot_deaths = 0;
        by_id.refusals = None;
        let before = by_id
            .workers
            .iter_mut()
            .find(|other| !other.renewed && other.incarnation != incarnation);
        if let Some(before) = before {
            before.renewed = true;
            due.stop = before.is_at_work().then_some(before.incarnation);
        }
    }

    fn can_be_renewed(&self, incarnation: Incarnation, now: Duration) -> bool {
        let Some(by_id) = self.workers_by_id.get(incarnation.worker_id as usize) else {
            return false;
        };
        let [worker] = &by_id.workers[..] else { return false };
        let pause = Duration::from_secs(1);
        let waited = by_id.renewal_failed.is_none_or(|at| now >= at + pause);
        let at_work =
            worker.incarnation == incarnation && worker.is_at_work() && worker.trial.is_none();
        at_work
            && waited
            && !worker.renewed
            && !by_id.retired
            && self.zygote == CheckedZygote::Ready
    }

    /// With all workers retired the first one comes back for a task that anybody can do.
    fn open_one(&mut self) {
        let all_retired = self.workers_by_id.iter().all(|by_id| by_id.retired);
        if all_retired && self.is_running() && self.waits(None) {
            self.workers_by_id[0].retired = false;
        }
    }

    /// What must be so after each step.
    fn check_rest(
        &self,
        happening: WorkerEvent,
        now: Duration,
        supervisor: &Supervisor,
    ) -> Checked {
        let deadline = supervisor.next_deadline();
        if happening == WorkerEvent::TimePassed {
            keep(deadline.is_none_or(|at| at > now), || "the deadline did not move".into())?;
        }
        keep(supervisor.is_closed() == self.closed, || "is_closed() is wrong".into())?;
        keep(supervisor.is_running() == self.is_running(), || "is_running() is wrong".into())?;
        for (worker_id, by_id) in self.workers_by_id.iter().enumerate() {
            let worker_id = worker_id as WorkerId;
            let incarnations: Vec<Incarnation> =
                by_id.workers.iter().map(|worker| worker.incarnation).collect();
            let reported: Vec<Incarnation> = supervisor.incarnations(worker_id).collect();
            keep(reported == incarnations, || {
                format!("post {worker_id} has {incarnations:?}, not {reported:?}")
            })?;
            let holder = by_id.holder().map(|worker| worker.incarnation);
            keep(supervisor.incarnation(worker_id) == holder, || {
                format!("post {worker_id} forgot {holder:?}")
            })?;
            keep(incarnations.len() <= 2, || format!("post {worker_id} has {incarnations:?}"))?;
        }
        let latest = |at: Duration, why: &str| {
            keep(deadline.is_some_and(|deadline| deadline <= at), || {
                format!("the deadline is {deadline:?}, but {why} at {at:?}")
            })
        };
        if let Some(since) = self.ending_since {
            let grace = self.settings.grace;
            for worker in self.workers_by_id.iter().flat_map(|by_id| &by_id.workers) {
                let incarnation = worker.incarnation;
                keep(worker.ready || worker.killed, || format!("{incarnation:?} boots on"))?;
                keep(worker.stopped || worker.killed, || format!("{incarnation:?} works on"))?;
                if !worker.killed {
                    keep(now < since + grace, || format!("{incarnation:?} outlives its grace"))?;
                    latest(since + grace, "a worker must be killed")?;
                }
            }
            if self.close_at.is_some() && !self.closed {
                latest(since + grace * 3, "closing must end")?;
            }
            return Ok(());
        }
        let open = self.entries.iter().skip(self.settled).filter(|entry| entry.outcome.is_none());
        keep(supervisor.outstanding() == open.count(), || "outstanding() is wrong".into())?;
        if let CheckedZygote::ExitKind { since } = self.zygote {
            return latest(since + self.settings.grace, "the zygote must have ended");
        }
        if let Some(awaited) = self.awaited {
            latest(awaited.look_at, "the zygote must be looked at")?;
        }
        let anybodys = self.waits(None);
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
            let Some(worker) = by_id.holder() else {
                let next = self.next_try(worker_id);
                if let Some(at) = next {
                    latest(at, "a fork must be retried")?;
                }
                let idle = self.is_needed(worker_id)
                    && self.zygote == CheckedZygote::Ready
                    && next.is_none();
                keep(!idle, || format!("post {worker_id} needs a worker and gets none"))?;
                continue;
            };
            let incarnation = worker.incarnation;
            if !worker.is_at_work() || worker.trial.is_some() {
                continue;
            }
            let handed_over = by_id.is_handed_over();
            if self.trials(worker_id).next().is_some() {
                let waits = worker.fresh && !handed_over;
                keep(waits, || format!("{incarnation:?} is not given its trial, nor stopped"))?;
                continue;
            }
            let waits = self.waits(Some(worker_id));
            keep(!handed_over || !waits, || format!("{incarnation:?} is not given its tasks"))?;
            let stays = !by_id.retired || waits;
            keep(stays, || format!("{incarnation:?} was not asked to stop"))?;
            let free = worker.assigned.len() < self.settings.depth as usize && !by_id.retired;
            keep(!(free && anybodys), || format!("{incarnation:?} is free and gets no task"))?;
        }
        Ok(())
    }

    /// Lets go of tasks that the consumer has taken.
    pub(super) fn settle(&mut self, before: TaskNumber) {
        self.settled = before as usize;
    }

    fn must_be_closed(&self, now: Duration) -> bool {
        let (Some(since), Some(_)) = (self.ending_since, self.close_at) else { return false };
        let nobody = self.workers_by_id.iter().all(|by_id| by_id.workers.is_empty());
        (nobody && self.zygote != CheckedZygote::Booting) || now >= since + self.settings.grace * 3
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
            .ok_or_else(|| format!("{what} for {incarnation:?}, which is not there"))
    }

    /// Who could be given a task that anybody can do, if it had room for it.
    fn able(&self) -> impl Iterator<Item = &CheckedWorker> {
        let workers_by_id = (0..).zip(&self.workers_by_id);
        let open = workers_by_id.filter(|(worker_id, by_id)| {
            !by_id.retired && self.trials(*worker_id).next().is_none()
        });
        open.filter_map(|(_, by_id)| by_id.holder())
            .filter(|worker| worker.is_at_work() && worker.trial.is_none())
    }

    /// Tasks that wait to be tried by this worker.
    fn trials(&self, worker_id: WorkerId) -> impl Iterator<Item = TaskNumber> {
        let waiting = self.settled..self.entries.len();
        waiting.map(|task| task as TaskNumber).filter(move |task| {
            let trial = self.entries[*task as usize].trial;
            trial.is_some_and(|(other, _)| other == worker_id) && self.waits_for(*task)
        })
    }

    /// Whether a task has neither an outcome nor a worker.
    fn waits_for(&self, task: TaskNumber) -> bool {
        let entry = &self.entries[task as usize];
        entry.outcome.is_none() && !entry.held
    }

    /// Whether there is such a task for this worker, or for anybody.
    fn waits(&self, pin: Option<WorkerId>) -> bool {
        (self.settled..self.entries.len()).any(|task| {
            let entry = &self.entries[task];
            let is_tried = pin.is_none() && entry.trial.is_some();
            entry.pin == pin && self.waits_for(task as TaskNumber) && !is_tried
        })
    }

    fn is_needed(&self, worker_id: WorkerId) -> bool {
        let by_id = &self.workers_by_id[worker_id as usize];
        by_id.fallen.is_none() && {
            let tries = self.trials(worker_id).next().is_some();
            !by_id.retired || tries || self.waits(Some(worker_id))
        }
    }

    /// When a fork that was refused is to be retried.
    fn next_try(&self, worker_id: WorkerId) -> Option<Duration> {
        let Refusals { first, last, count } = self.workers_by_id[worker_id as usize].refusals?;
        let wait = Duration::from_millis((10 << (count - 1).min(10)).min(1000));
        Some((last + wait).min(first + self.settings.refused_for))
    }
}
