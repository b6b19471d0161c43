//! Keeps its own books on a supervisor and says which promise it broke. It must never ask the
//! supervisor what is true: it counts again, from what happened and what was done, in the plainest
//! way.

mod actions;
mod ends;
mod watch;
mod zygote;

use std::time::Duration;

use watch::{Dump, Hang, Spot, Watched};
use zygote::Awaited;

use crate::worker::supervisor::{
    Action, Ending, Failure, Happening, Life, Post, Reason, Settings, Stage, Supervisor, Task,
};

/// A worker that was forked and has not ended, as far as the supervisor was told.
#[derive(Clone)]
struct Worker {
    life: Life,
    ready: bool,
    stopped: bool,
    killed: bool,
    /// It said that it cannot start, and was killed while the post went on.
    failed: bool,
    /// It was killed because it hung, and where.
    overdue: Option<Hang>,
    /// Its successor has taken over.
    renewed: bool,
    /// Since when it was asked to stop and has nothing at hand.
    idle_since: Option<Duration>,
    /// Sent and not answered, in the order of sending.
    at_hand: Vec<Task>,
    /// Since when it has had something at hand.
    busy_since: Duration,
    newest_pinned: Option<Task>,
    /// It was sent nothing yet.
    fresh: bool,
    /// It has answered, or survived a trial.
    worked: bool,
    trial: Option<u64>,
    dump: Option<Dump>,
    told: Vec<Spot>,
}

impl Worker {
    fn new(life: Life) -> Worker {
        Worker {
            life,
            ready: false,
            stopped: false,
            killed: false,
            failed: false,
            overdue: None,
            renewed: false,
            idle_since: None,
            at_hand: Vec::new(),
            busy_since: Duration::ZERO,
            newest_pinned: None,
            fresh: true,
            worked: false,
            trial: None,
            dump: None,
            told: Vec::new(),
        }
    }

    fn is_at_work(&self) -> bool {
        self.ready && !self.stopped && !self.killed
    }
}

/// Refusals of a post in a row.
#[derive(Clone, Copy)]
struct Refusals {
    first: Duration,
    last: Duration,
    count: u32,
}

#[derive(Clone, Default)]
struct Bench {
    /// Oldest first.
    workers: Vec<Worker>,
    forks: u32,
    retired: bool,
    fallen: Option<Life>,
    boot_deaths: u32,
    refusals: Option<Refusals>,
    /// When a successor could not start for the last time.
    renewal_failed: Option<Duration>,
}

impl Bench {
    /// Who gets the tasks.
    fn holder(&self) -> Option<&Worker> {
        self.workers.iter().find(|worker| !worker.renewed)
    }

    fn is_holder(&self, life: Life) -> bool {
        self.holder().is_some_and(|worker| worker.life == life)
    }

    /// Whether nobody works on what came before.
    fn is_handed_over(&self) -> bool {
        self.workers.iter().all(|worker| !worker.renewed || worker.at_hand.is_empty())
    }
}

/// How a task came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// With an answer.
    Answer,
    /// It cannot be done.
    GivenUp,
}

struct Entry {
    pin: Option<Post>,
    outcome: Option<Outcome>,
    /// Whether a worker has it at hand.
    held: bool,
    /// How often it was sent.
    sent: u32,
    /// Where it killed and hung, how often.
    killed_at: Vec<Option<u64>>,
    hung_at: Vec<Option<u64>>,
    /// It is to be tried by this post at this position.
    trial: Option<(Post, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Zygote {
    None,
    Booting,
    Ready,
    /// It was asked to end.
    Ending {
        since: Duration,
    },
}

/// What must come out of one step, and nothing else of its kind.
#[derive(Default)]
struct Due {
    failure: Option<Failure>,
    accept: Option<Task>,
    discard: Option<(Task, Life)>,
    give_up: Vec<(Task, Option<u64>, Reason)>,
    retired: Vec<Life>,
    /// A trial was survived.
    again: Option<(Life, Task)>,
    renewal: Option<Life>,
    /// A predecessor that is to stop.
    stop: Option<Life>,
    kill: Option<Life>,
    watched: Option<Watched>,
    end_zygote: bool,
    /// The zygote was asked for something.
    ping: bool,
    zygote_slow: bool,
    zygote_hung: bool,
    died: Vec<(Life, Stage, Ending, Vec<Task>, bool)>,
    bear: bool,
    closed: bool,
}

/// The books.
pub(super) struct Promises {
    settings: Settings,
    benches: Vec<Bench>,
    entries: Vec<Entry>,
    /// All tasks before this one have an outcome.
    settled: usize,
    zygote: Zygote,
    zygote_failures: u32,
    hung_zygotes: u32,
    awaited: Option<Awaited>,
    last_ping: u32,
    /// When the deaths were that count, all of them, and with which task being worked on.
    deaths: Vec<(Duration, Option<Task>)>,
    ending_since: Option<Duration>,
    close_at: Option<Duration>,
    closed: bool,
    /// Tasks that were sent more than once.
    pub(super) resent: u64,
    /// Whether all were started again from a fresh zygote.
    reborn: bool,
}

type Verdict = Result<(), String>;

fn keep(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}

impl Promises {
    pub(super) fn new(settings: &Settings) -> Promises {
        Promises {
            settings: settings.clone(),
            benches: vec![Bench::default(); settings.posts as usize],
            entries: Vec::new(),
            settled: 0,
            zygote: Zygote::None,
            zygote_failures: 0,
            hung_zygotes: 0,
            awaited: None,
            last_ping: 0,
            deaths: Vec::new(),
            ending_since: None,
            close_at: None,
            closed: false,
            resent: 0,
            reborn: false,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.ending_since.is_none()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn outcome(&self, task: Task) -> Option<Outcome> {
        self.entries.get(task as usize)?.outcome
    }

    /// Whether this worker may be alive: asked for, and its end not told.
    pub(super) fn is_open(&self, life: Life) -> bool {
        self.worker(life).is_some()
    }

    /// Whether this worker was killed, as far as the supervisor has said.
    pub(super) fn is_killed(&self, life: Life) -> bool {
        self.worker(life).is_some_and(|worker| worker.killed)
    }

    /// Whether this worker has this task at hand.
    pub(super) fn has_at_hand(&self, life: Life, task: Task) -> bool {
        self.worker(life).is_some_and(|worker| worker.at_hand.contains(&task))
    }

    /// Whether the zygote is ready and is not being ended.
    pub(super) fn can_fork(&self) -> bool {
        self.zygote == Zygote::Ready
    }

    /// Checks the answer to `start`.
    pub(super) fn check_start(&mut self, actions: &[Action]) -> Verdict {
        self.zygote = Zygote::Booting;
        keep(actions == [Action::BearZygote { fresh: false }], || {
            format!("the start asked for {actions:?}")
        })
    }

    /// Checks what the supervisor made of a happening.
    pub(super) fn check(
        &mut self,
        happening: Happening,
        actions: &[Action],
        now: Duration,
        supervisor: &Supervisor,
    ) -> Verdict {
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
        let owes_ping = due.ping && self.is_running() && self.zygote == Zygote::Ready;
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
    fn book(&mut self, happening: Happening, now: Duration) -> Due {
        let mut due = Due::default();
        let running = self.is_running();
        match happening {
            Happening::Submitted { task, post } => {
                if running && task == self.entries.len() as Task {
                    self.entries.push(Entry {
                        pin: post,
                        outcome: None,
                        held: false,
                        sent: 0,
                        killed_at: Vec::new(),
                        hung_at: Vec::new(),
                        trial: None,
                    });
                    let mut could = self
                        .benches
                        .iter_mut()
                        .enumerate()
                        .filter(|(number, _)| post.is_none_or(|post| post as usize == *number));
                    let fallen = could.find_map(|(_, bench)| bench.fallen);
                    due.failure = fallen.map(|life| Failure::Death { life });
                    if let Some(post) = post {
                        self.benches[post as usize].retired = false;
                    }
                }
            }
            Happening::ZygoteReady => {
                if self.zygote == Zygote::Booting {
                    self.zygote = Zygote::Ready;
                    self.zygote_failures = 0;
                    self.awaited = None;
                    self.last_ping = 0;
                }
            }
            Happening::ZygoteStarted => self.book_zygote_started(now),
            Happening::ZygoteAnswered { ping } => self.book_zygote_answer(ping, now),
            Happening::ZygoteSeen { ran } => self.book_zygote_seen(ran, &mut due, now),
            Happening::HungUp { life } => due.ping = self.is_open(life),
            Happening::DescriptorsClosed => {
                due.failure = running.then_some(Failure::DescriptorsClosed);
            }
            Happening::ZygoteEnded => self.book_zygote_end(&mut due, now),
            Happening::Refused { life, passing } => {
                if self.worker(life).is_some_and(|worker| !worker.ready && !worker.failed) {
                    self.book_refusal(life, passing, &mut due, now);
                }
            }
            Happening::Ready { life } => self.book_ready(life, &mut due),
            Happening::StartFailed { life } => {
                let boots = |worker: &Worker| !worker.ready && !worker.killed && !worker.failed;
                if running && self.zygote == Zygote::Ready && self.worker(life).is_some_and(boots) {
                    if self.benches[life.post as usize].is_holder(life) {
                        due.failure = Some(Failure::CannotStart { life });
                    } else {
                        due.kill = Some(life);
                        self.worker_mut(life).expect("it boots").failed = true;
                    }
                }
            }
            Happening::Answered { life, task } => {
                let holds = self.worker(life).is_some_and(|worker| worker.at_hand.contains(&task));
                if running && holds {
                    due.accept = Some(task);
                    self.hung_zygotes = 0;
                    let worker = self.worker_mut(life).expect("it holds the task");
                    worker.at_hand.retain(|other| *other != task);
                    worker.worked = true;
                    worker.trial = None;
                    if worker.at_hand.is_empty() {
                        worker.dump = None;
                        worker.told.clear();
                        worker.idle_since = worker.stopped.then_some(now);
                    }
                } else {
                    due.discard = Some((task, life));
                }
            }
            Happening::Ended { life, ending, at } => {
                self.book_ended(life, ending, at, &mut due, now)
            }
            Happening::Survived { life, task } => {
                let tries = |worker: &Worker| worker.trial.is_some() && worker.at_hand == [task];
                if running && self.zygote == Zygote::Ready && self.worker(life).is_some_and(tries) {
                    self.book_survival(life, task, &mut due);
                }
            }
            Happening::Seen { life, seen } => due.watched = self.book_seen(life, seen, now),
            Happening::Renew { life } => {
                if running && self.can_be_renewed(life, now) {
                    let generation = self.benches[life.post as usize].forks;
                    due.renewal = Some(Life { generation, ..life });
                }
            }
            Happening::Retire { post } => {
                if running && let Some(bench) = self.benches.get_mut(post as usize) {
                    bench.retired = true;
                    if !self.is_needed(post) && self.benches[post as usize].holder().is_none() {
                        self.benches[post as usize].refusals = None;
                    }
                }
            }
            Happening::TimePassed => {
                self.book_missed_look(now);
                if let Zygote::Ending { since } = self.zygote
                    && running
                    && now >= since + self.settings.grace
                {
                    self.book_zygote_end(&mut due, now);
                }
            }
            Happening::Close => {
                self.close_at.get_or_insert(now);
                self.ending_since.get_or_insert(now);
            }
        }
        self.open_one();
        due
    }

    fn book_ready(&mut self, life: Life, due: &mut Due) {
        let Some(worker) = self.worker_mut(life) else { return };
        if worker.killed || worker.ready || worker.failed {
            return;
        }
        worker.ready = true;
        worker.dump = None;
        worker.told.clear();
        let bench = self.bench(life.post);
        bench.boot_deaths = 0;
        bench.refusals = None;
        let before = bench.workers.iter_mut().find(|other| !other.renewed && other.life != life);
        if let Some(before) = before {
            before.renewed = true;
            due.stop = before.is_at_work().then_some(before.life);
        }
    }

    fn can_be_renewed(&self, life: Life, now: Duration) -> bool {
        let Some(bench) = self.benches.get(life.post as usize) else { return false };
        let [worker] = &bench.workers[..] else { return false };
        let pause = Duration::from_secs(1);
        let waited = bench.renewal_failed.is_none_or(|at| now >= at + pause);
        let at_work = worker.life == life && worker.is_at_work() && worker.trial.is_none();
        at_work && waited && !worker.renewed && !bench.retired && self.zygote == Zygote::Ready
    }

    /// With all posts retired the first one comes back for a task that anybody can do.
    fn open_one(&mut self) {
        let all_retired = self.benches.iter().all(|bench| bench.retired);
        if all_retired && self.is_running() && self.waits(None) {
            self.benches[0].retired = false;
        }
    }

    /// What must be so after each step.
    fn check_rest(&self, happening: Happening, now: Duration, supervisor: &Supervisor) -> Verdict {
        let deadline = supervisor.next_deadline();
        if happening == Happening::TimePassed {
            keep(deadline.is_none_or(|at| at > now), || "the deadline did not move".into())?;
        }
        keep(supervisor.is_closed() == self.closed, || "is_closed() is wrong".into())?;
        keep(supervisor.is_running() == self.is_running(), || "is_running() is wrong".into())?;
        for (post, bench) in self.benches.iter().enumerate() {
            let post = post as Post;
            let lives: Vec<Life> = bench.workers.iter().map(|worker| worker.life).collect();
            let told: Vec<Life> = supervisor.lives(post).collect();
            keep(told == lives, || format!("post {post} has {lives:?}, not {told:?}"))?;
            let holder = bench.holder().map(|worker| worker.life);
            keep(supervisor.life(post) == holder, || format!("post {post} forgot {holder:?}"))?;
            keep(lives.len() <= 2, || format!("post {post} has {lives:?}"))?;
        }
        let latest = |at: Duration, why: &str| {
            keep(deadline.is_some_and(|deadline| deadline <= at), || {
                format!("the deadline is {deadline:?}, but {why} at {at:?}")
            })
        };
        if let Some(since) = self.ending_since {
            let grace = self.settings.grace;
            for worker in self.benches.iter().flat_map(|bench| &bench.workers) {
                let life = worker.life;
                keep(worker.ready || worker.killed, || format!("{life:?} boots on"))?;
                keep(worker.stopped || worker.killed, || format!("{life:?} works on"))?;
                if !worker.killed {
                    keep(now < since + grace, || format!("{life:?} outlives its grace"))?;
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
        if let Zygote::Ending { since } = self.zygote {
            return latest(since + self.settings.grace, "the zygote must have ended");
        }
        if let Some(awaited) = self.awaited {
            latest(awaited.look_at, "the zygote must be looked at")?;
        }
        let anybodys = self.waits(None);
        for (post, bench) in self.benches.iter().enumerate() {
            let post = post as Post;
            for worker in &bench.workers {
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
            let Some(worker) = bench.holder() else {
                let next = self.next_try(post);
                if let Some(at) = next {
                    latest(at, "a fork must be retried")?;
                }
                let idle = self.is_needed(post) && self.zygote == Zygote::Ready && next.is_none();
                keep(!idle, || format!("post {post} needs a worker and gets none"))?;
                continue;
            };
            let life = worker.life;
            if !worker.is_at_work() || worker.trial.is_some() {
                continue;
            }
            let handed_over = bench.is_handed_over();
            if self.trials(post).next().is_some() {
                let waits = worker.fresh && !handed_over;
                keep(waits, || format!("{life:?} is not given its trial, nor stopped"))?;
                continue;
            }
            let waits = self.waits(Some(post));
            keep(!handed_over || !waits, || format!("{life:?} is not given its tasks"))?;
            let stays = !bench.retired || waits;
            keep(stays, || format!("{life:?} was not asked to stop"))?;
            let free = worker.at_hand.len() < self.settings.depth as usize && !bench.retired;
            keep(!(free && anybodys), || format!("{life:?} is free and gets no task"))?;
        }
        Ok(())
    }

    /// Lets go of tasks that the consumer has taken.
    pub(super) fn settle(&mut self, before: Task) {
        self.settled = before as usize;
    }

    fn must_be_closed(&self, now: Duration) -> bool {
        let (Some(since), Some(_)) = (self.ending_since, self.close_at) else { return false };
        let nobody = self.benches.iter().all(|bench| bench.workers.is_empty());
        (nobody && self.zygote != Zygote::Booting) || now >= since + self.settings.grace * 3
    }

    fn bench(&mut self, post: Post) -> &mut Bench {
        &mut self.benches[post as usize]
    }

    fn worker(&self, life: Life) -> Option<&Worker> {
        let bench = self.benches.get(life.post as usize)?;
        bench.workers.iter().find(|worker| worker.life == life)
    }

    fn worker_mut(&mut self, life: Life) -> Option<&mut Worker> {
        let bench = self.benches.get_mut(life.post as usize)?;
        bench.workers.iter_mut().find(|worker| worker.life == life)
    }

    fn close_worker(&mut self, life: Life) -> Option<Worker> {
        let bench = self.benches.get_mut(life.post as usize)?;
        let place = bench.workers.iter().position(|worker| worker.life == life)?;
        Some(bench.workers.remove(place))
    }

    fn known(&mut self, life: Life, what: &str) -> Result<&mut Worker, String> {
        self.worker_mut(life).ok_or_else(|| format!("{what} for {life:?}, which is not there"))
    }

    /// Who could be given a task that anybody can do, if it had room for it.
    fn able(&self) -> impl Iterator<Item = &Worker> {
        let benches = (0..).zip(&self.benches);
        let open =
            benches.filter(|(post, bench)| !bench.retired && self.trials(*post).next().is_none());
        open.filter_map(|(_, bench)| bench.holder())
            .filter(|worker| worker.is_at_work() && worker.trial.is_none())
    }

    /// Tasks that wait to be tried by this post.
    fn trials(&self, post: Post) -> impl Iterator<Item = Task> {
        let waiting = self.settled..self.entries.len();
        waiting.map(|task| task as Task).filter(move |task| {
            let trial = self.entries[*task as usize].trial;
            trial.is_some_and(|(other, _)| other == post) && self.waits_for(*task)
        })
    }

    /// Whether a task has neither an outcome nor a worker.
    fn waits_for(&self, task: Task) -> bool {
        let entry = &self.entries[task as usize];
        entry.outcome.is_none() && !entry.held
    }

    /// Whether there is such a task for this post, or for anybody.
    fn waits(&self, pin: Option<Post>) -> bool {
        (self.settled..self.entries.len()).any(|task| {
            let entry = &self.entries[task];
            let is_tried = pin.is_none() && entry.trial.is_some();
            entry.pin == pin && self.waits_for(task as Task) && !is_tried
        })
    }

    fn is_needed(&self, post: Post) -> bool {
        let bench = &self.benches[post as usize];
        bench.fallen.is_none() && {
            let tries = self.trials(post).next().is_some();
            !bench.retired || tries || self.waits(Some(post))
        }
    }

    /// When a fork that was refused is to be retried.
    fn next_try(&self, post: Post) -> Option<Duration> {
        let Refusals { first, last, count } = self.benches[post as usize].refusals?;
        let wait = Duration::from_millis((10 << (count - 1).min(10)).min(1000));
        Some((last + wait).min(first + self.settings.refused_for))
    }
}
