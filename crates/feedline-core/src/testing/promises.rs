//! Keeps its own books on a supervisor and says which promise it broke. It must never ask the
//! supervisor what is true: it counts again, from what happened and what was done, in the plainest
//! way.

use std::time::Duration;

use crate::worker::supervisor::{
    Action, Ending, Failure, Happening, Life, Post, Settings, Stage, Supervisor, Task,
};

/// A worker that was forked and has not ended, as far as the supervisor was told.
#[derive(Clone)]
struct Worker {
    life: Life,
    ready: bool,
    stopped: bool,
    killed: bool,
    /// Since when it was asked to stop and has nothing at hand.
    idle_since: Option<Duration>,
    /// Sent and not answered, in the order of sending.
    at_hand: Vec<Task>,
    newest_pinned: Option<Task>,
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
    worker: Option<Worker>,
    forks: u32,
    retired: bool,
    fallen: Option<Life>,
    boot_deaths: u32,
    refusals: Option<Refusals>,
}

/// How a task came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// With an answer.
    Answer,
    /// It kills workers.
    GivenUp,
}

struct Entry {
    pin: Option<Post>,
    outcome: Option<Outcome>,
    /// Whether a worker has it at hand.
    held: bool,
    /// How often it was sent.
    sent: u32,
    deaths: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Zygote {
    None,
    Booting,
    Ready,
}

/// What must come out of one step, and nothing else of its kind.
#[derive(Default)]
struct Due {
    failure: Option<Failure>,
    accept: Option<Task>,
    discard: Option<(Task, Life)>,
    give_up: Option<Task>,
    died: Vec<(Life, Stage, Ending, Vec<Task>)>,
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
    /// When the deaths were that count, all of them.
    deaths: Vec<Duration>,
    ending_since: Option<Duration>,
    close_at: Option<Duration>,
    closed: bool,
    /// Tasks that were sent more than once.
    pub(super) resent: u64,
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
            deaths: Vec::new(),
            ending_since: None,
            close_at: None,
            closed: false,
            resent: 0,
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

    /// Checks the answer to `start`.
    pub(super) fn check_start(&mut self, actions: &[Action]) -> Verdict {
        self.zygote = Zygote::Booting;
        keep(actions == [Action::BearZygote], || format!("the start asked for {actions:?}"))
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
        keep(due.give_up.is_none(), || format!("{:?} was not given up", due.give_up))?;
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
                        deaths: 0,
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
                }
            }
            Happening::ZygoteEnded => self.book_zygote_end(&mut due, now),
            Happening::Refused { life, passing } => {
                if self.worker(life).is_some_and(|worker| !worker.ready) {
                    self.book_refusal(life, passing, &mut due, now);
                }
            }
            Happening::Ready { life } => {
                if let Some(worker) = self.worker_mut(life)
                    && !worker.killed
                    && !worker.ready
                {
                    worker.ready = true;
                    let bench = self.bench(life.post);
                    bench.boot_deaths = 0;
                    bench.refusals = None;
                }
            }
            Happening::StartFailed { life } => {
                let boots = self.worker(life).is_some_and(|worker| !worker.ready);
                if running && boots {
                    due.failure = Some(Failure::CannotStart { life });
                }
            }
            Happening::Answered { life, task } => {
                let holds = self.worker(life).is_some_and(|worker| worker.at_hand.contains(&task));
                if running && holds {
                    due.accept = Some(task);
                    let worker = self.worker_mut(life).expect("it holds the task");
                    worker.at_hand.retain(|other| *other != task);
                    if worker.at_hand.is_empty() && worker.stopped {
                        worker.idle_since = Some(now);
                    }
                } else {
                    due.discard = Some((task, life));
                }
            }
            Happening::Ended { life, ending } => {
                if let Some(worker) = self.close_worker(life) {
                    self.benches[life.post as usize].refusals = None;
                    let dead = self.book_end(worker, ending, &mut due);
                    if dead && running {
                        self.book_death(&mut due, now);
                    }
                }
            }
            Happening::Retire { post } => {
                if running && let Some(bench) = self.benches.get_mut(post as usize) {
                    bench.retired = true;
                    if !self.is_needed(post) && self.benches[post as usize].worker.is_none() {
                        self.benches[post as usize].refusals = None;
                    }
                }
            }
            Happening::TimePassed => {}
            Happening::Close => {
                self.close_at.get_or_insert(now);
                self.ending_since.get_or_insert(now);
            }
        }
        self.open_one();
        due
    }

    fn book_zygote_end(&mut self, due: &mut Due, now: Duration) {
        let before = std::mem::replace(&mut self.zygote, Zygote::None);
        if before == Zygote::None {
            return;
        }
        for number in 0..self.benches.len() {
            self.benches[number].refusals = None;
            if let Some(worker) = self.benches[number].worker.take() {
                self.book_end(worker, Ending::Lost, due);
            }
        }
        if !self.is_running() {
            return;
        }
        if before == Zygote::Ready {
            self.book_death(due, now);
        } else {
            self.zygote_failures += 1;
            if self.zygote_failures == 2 {
                due.failure = Some(Failure::ZygoteCannotStart);
            }
        }
        due.bear = due.failure.is_none();
    }

    fn book_refusal(&mut self, life: Life, passing: bool, due: &mut Due, now: Duration) {
        self.close_worker(life);
        if !self.is_running() {
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

    /// Books the end of one worker and says whether it was a death.
    fn book_end(&mut self, worker: Worker, ending: Ending, due: &mut Due) -> bool {
        let Worker { life, at_hand, .. } = worker;
        let running = self.is_running();
        for task in &at_hand {
            self.entries[*task as usize].held = false;
        }
        let good = worker.stopped && ending == Ending::Exited(0);
        if worker.killed || (good && (at_hand.is_empty() || !running)) {
            return false;
        }
        let stage = match (worker.ready, worker.stopped) {
            (false, _) => Stage::Booting,
            (true, true) => Stage::Stopping,
            (true, false) if at_hand.is_empty() => Stage::Idle,
            (true, false) => Stage::Busy,
        };
        if running {
            let undone = !at_hand.is_empty() || self.waits(Some(life.post)) || self.waits(None);
            let forbidden = !self.settings.replace;
            let own = ending != Ending::Lost;
            let bench = self.bench(life.post);
            if forbidden && !undone && !bench.retired {
                bench.fallen = Some(life);
            }
            if own && stage == Stage::Booting {
                bench.boot_deaths += 1;
                if bench.boot_deaths == 3 {
                    due.failure = Some(Failure::DiesStarting { life });
                }
            }
            // A zygote takes many along: the first of them is named.
            let named = matches!(due.failure, Some(Failure::Death { .. }));
            if forbidden && undone && !named {
                due.failure = Some(Failure::Death { life });
            }
            if own && let Some(first) = at_hand.first() {
                let entry = &mut self.entries[*first as usize];
                entry.deaths += 1;
                if self.settings.attempts == Some(entry.deaths) {
                    due.give_up = Some(*first);
                    entry.outcome = Some(Outcome::GivenUp);
                }
            }
        }
        due.died.push((life, stage, ending, at_hand));
        true
    }

    fn book_death(&mut self, due: &mut Due, now: Duration) {
        self.deaths.push(now);
        let within = self.deaths.iter().filter(|at| now - **at <= self.settings.within).count();
        if within as u64 > u64::from(self.settings.max_deaths) && due.failure.is_none() {
            due.failure = Some(Failure::TooManyDeaths);
        }
        if due.failure.is_some()
            && let Some(task) = due.give_up.take()
        {
            self.entries[task as usize].outcome = None;
        }
    }

    /// With all posts retired the first one comes back for a task that anybody can do.
    fn open_one(&mut self) {
        let all_retired = self.benches.iter().all(|bench| bench.retired);
        if all_retired && self.is_running() && self.waits(None) {
            self.benches[0].retired = false;
        }
    }

    fn check_action(&mut self, action: &Action, due: &mut Due, now: Duration) -> Verdict {
        let running = self.is_running();
        let allowed_later = match action {
            Action::BearZygote
            | Action::Fork { .. }
            | Action::Send { .. }
            | Action::Accept { .. }
            | Action::GiveUp { .. }
            | Action::Fail(_) => false,
            Action::Stop { .. }
            | Action::Kill { .. }
            | Action::Discard { .. }
            | Action::Died(_)
            | Action::Closed => true,
        };
        keep(running || allowed_later, || format!("{action:?} after the run had ended"))?;
        match action {
            Action::BearZygote => {
                keep(due.bear, || "a zygote was started that nobody misses".into())?;
                due.bear = false;
                self.zygote = Zygote::Booting;
            }
            Action::Fork { life } => self.check_fork(*life, now)?,
            Action::Send { life, task } => self.check_send(*life, *task)?,
            Action::Stop { life } => {
                let retired = self.bench(life.post).retired;
                let waits = self.waits(Some(life.post));
                keep(!running || (retired && !waits), || format!("{life:?} is still needed"))?;
                let worker = self.known(*life, "Stop")?;
                keep(worker.ready && !worker.stopped && !worker.killed, || {
                    format!("Stop for {life:?}, which is not at work")
                })?;
                worker.stopped = true;
                worker.idle_since = worker.at_hand.is_empty().then_some(now);
            }
            Action::Kill { life } => self.check_kill(*life, now)?,
            Action::Accept { task } => {
                keep(due.accept.take() == Some(*task), || format!("nobody answered {task}"))?;
                let entry = &mut self.entries[*task as usize];
                keep(entry.outcome.is_none(), || format!("{task} got a second result"))?;
                entry.outcome = Some(Outcome::Answer);
            }
            Action::Discard { task, life } => {
                keep(due.discard.take() == Some((*task, *life)), || {
                    format!("a good answer to {task} was thrown away")
                })?;
            }
            Action::GiveUp { task } => {
                keep(due.give_up.take() == Some(*task), || format!("{task} was given up"))?;
            }
            Action::Died(death) => {
                let told = (death.life, death.stage, death.ending, death.tasks.clone());
                let place = due.died.iter().position(|other| *other == told);
                let place = place.ok_or_else(|| format!("the log tells of {death:?}"))?;
                due.died.remove(place);
                let post = death.life.post;
                let goes_on = running && due.failure.is_none() && self.is_needed(post);
                keep(death.replaced == goes_on && death.at == now, || format!("wrong: {death:?}"))?;
            }
            Action::Fail(failure) => {
                keep(due.failure.take() == Some(*failure), || format!("unfounded {failure:?}"))?;
                self.ending_since = Some(now);
            }
            Action::Closed => {
                keep(self.must_be_closed(now), || "Closed came too early".into())?;
                let since = self.close_at.unwrap_or(now);
                keep(now <= since + self.settings.grace * 3, || "Closed came too late".into())?;
                let running = self.benches.iter().filter_map(|bench| bench.worker.as_ref());
                for worker in running {
                    keep(worker.killed, || format!("{:?} was left alive", worker.life))?;
                }
                self.closed = true;
            }
        }
        Ok(())
    }

    fn check_fork(&mut self, life: Life, now: Duration) -> Verdict {
        keep(self.zygote == Zygote::Ready, || format!("{life:?} has no zygote"))?;
        keep(self.is_needed(life.post), || format!("{life:?} is not needed"))?;
        if let Some(at) = self.next_try(life.post) {
            keep(now >= at, || format!("{life:?} was tried again at {now:?}, before {at:?}"))?;
        }
        let bench = self.bench(life.post);
        keep(bench.worker.is_none(), || format!("{life:?} is a second one on its post"))?;
        keep(life.generation == bench.forks, || format!("{life:?} is out of order"))?;
        bench.forks += 1;
        bench.worker = Some(Worker {
            life,
            ready: false,
            stopped: false,
            killed: false,
            idle_since: None,
            at_hand: Vec::new(),
            newest_pinned: None,
        });
        Ok(())
    }

    fn check_send(&mut self, life: Life, task: Task) -> Verdict {
        let entry = self.entries.get(task as usize).ok_or("a task nobody submitted was sent")?;
        let pin = entry.pin;
        keep(entry.outcome.is_none(), || format!("{task} was sent after its result"))?;
        keep(!entry.held, || format!("{task} was sent twice"))?;
        keep(pin.is_none_or(|post| post == life.post), || format!("{task} went to {life:?}"))?;
        let older = (self.settled as Task..task)
            .find(|older| self.entries[*older as usize].pin == pin && self.waits_for(*older));
        keep(older.is_none(), || format!("{task} was sent before {older:?}"))?;
        let depth = self.settings.depth as usize;
        let least = self.at_work().map(|worker| worker.at_hand.len()).min().unwrap_or(0);
        let worker = self.known(life, "Send")?;
        keep(worker.ready && !worker.stopped && !worker.killed, || {
            format!("{task} was sent to {life:?}, which is not at work")
        })?;
        if pin.is_some() {
            let in_order = worker.newest_pinned.is_none_or(|newest| newest < task);
            keep(in_order, || format!("{task} reached {life:?} after a newer one"))?;
            worker.newest_pinned = Some(task);
        } else {
            let held = worker.at_hand.len();
            keep(held < depth && held == least, || format!("{life:?} has enough: {held}"))?;
        }
        worker.at_hand.push(task);
        let entry = &mut self.entries[task as usize];
        entry.held = true;
        entry.sent += 1;
        self.resent += u64::from(entry.sent > 1);
        Ok(())
    }

    fn check_kill(&mut self, life: Life, now: Duration) -> Verdict {
        let grace = self.settings.grace;
        let ending_since = self.ending_since;
        let worker = self.known(life, "Kill")?;
        keep(!worker.killed, || format!("{life:?} was killed twice"))?;
        let may = match ending_since {
            Some(since) => !worker.ready || now >= since + grace,
            None => worker.idle_since.is_some_and(|since| now >= since + grace),
        };
        keep(may, || format!("{life:?} was killed too early"))?;
        worker.killed = true;
        Ok(())
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
            let life = bench.worker.as_ref().map(|worker| worker.life);
            keep(supervisor.life(post as Post) == life, || format!("post {post} forgot {life:?}"))?;
        }
        let latest = |at: Duration, why: &str| {
            keep(deadline.is_some_and(|deadline| deadline <= at), || {
                format!("the deadline is {deadline:?}, but {why} at {at:?}")
            })
        };
        if let Some(since) = self.ending_since {
            let grace = self.settings.grace;
            for worker in self.benches.iter().filter_map(|bench| bench.worker.as_ref()) {
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
        let anybodys = self.waits(None);
        for (post, bench) in self.benches.iter().enumerate() {
            let post = post as Post;
            let Some(worker) = &bench.worker else {
                let next = self.next_try(post);
                if let Some(at) = next {
                    latest(at, "a fork must be tried again")?;
                }
                let idle = self.is_needed(post) && self.zygote == Zygote::Ready && next.is_none();
                keep(!idle, || format!("post {post} needs a worker and gets none"))?;
                continue;
            };
            let life = worker.life;
            if let Some(since) = worker.idle_since
                && !worker.killed
            {
                latest(since + self.settings.grace, "a retired worker must be killed")?;
            }
            if worker.ready && !worker.stopped {
                keep(!bench.retired, || format!("{life:?} was not asked to stop"))?;
                keep(!self.waits(Some(post)), || format!("{life:?} is not given its tasks"))?;
                let free = worker.at_hand.len() < self.settings.depth as usize;
                keep(!(free && anybodys), || format!("{life:?} is free and gets no task"))?;
            }
        }
        Ok(())
    }

    /// Lets go of tasks that the consumer has taken.
    pub(super) fn settle(&mut self, before: Task) {
        self.settled = before as usize;
    }

    fn must_be_closed(&self, now: Duration) -> bool {
        let (Some(since), Some(_)) = (self.ending_since, self.close_at) else { return false };
        let nobody = self.benches.iter().all(|bench| bench.worker.is_none());
        (nobody && self.zygote != Zygote::Booting) || now >= since + self.settings.grace * 3
    }

    fn bench(&mut self, post: Post) -> &mut Bench {
        &mut self.benches[post as usize]
    }

    fn worker(&self, life: Life) -> Option<&Worker> {
        let worker = self.benches.get(life.post as usize)?.worker.as_ref()?;
        (worker.life == life).then_some(worker)
    }

    fn worker_mut(&mut self, life: Life) -> Option<&mut Worker> {
        let worker = self.benches.get_mut(life.post as usize)?.worker.as_mut()?;
        (worker.life == life).then_some(worker)
    }

    fn close_worker(&mut self, life: Life) -> Option<Worker> {
        self.worker(life)?;
        self.bench(life.post).worker.take()
    }

    fn known(&mut self, life: Life, what: &str) -> Result<&mut Worker, String> {
        self.worker_mut(life).ok_or_else(|| format!("{what} for {life:?}, which is not there"))
    }

    fn at_work(&self) -> impl Iterator<Item = &Worker> {
        self.benches
            .iter()
            .filter_map(|bench| bench.worker.as_ref())
            .filter(|worker| worker.ready && !worker.stopped && !worker.killed)
    }

    /// Whether a task has neither an outcome nor a worker.
    fn waits_for(&self, task: Task) -> bool {
        let entry = &self.entries[task as usize];
        entry.outcome.is_none() && !entry.held
    }

    /// Whether there is such a task for this post, or for anybody.
    fn waits(&self, pin: Option<Post>) -> bool {
        (self.settled..self.entries.len())
            .any(|task| self.entries[task].pin == pin && self.waits_for(task as Task))
    }

    fn is_needed(&self, post: Post) -> bool {
        let bench = &self.benches[post as usize];
        bench.fallen.is_none() && (!bench.retired || self.waits(Some(post)))
    }

    /// When a fork that was refused is to be tried again.
    fn next_try(&self, post: Post) -> Option<Duration> {
        let Refusals { first, last, count } = self.benches[post as usize].refusals?;
        let wait = Duration::from_millis((10 << (count - 1).min(10)).min(1000));
        Some((last + wait).min(first + self.settings.refused_for))
    }
}
