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
//! - A post has one worker at a time; the next one is forked when the last one has ended. Only who
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

mod words;
mod place;
mod trial;
mod watch;
mod zygote_watch;
mod succession;
mod ends;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem;
use std::time::Duration;

use ends::Counted;
use place::{Place, Role, Standing, Worker};
use succession::{RENEWAL_PAUSE, ask_to_stop};
use trial::Open;
#[cfg(any(test, feature = "testing"))]
pub(crate) use watch::DUMP_EXTENSIONS;
use watch::Watch;
pub use words::{
    Action, Death, Ending, Failure, Happening, Life, Post, Reason, Seen, Settings, Stage, Task,
    Work,
};
use zygote_watch::ZygoteWatch;

/// The wait after the first refusal of a fork; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(10);
/// The longest wait between two tries of a fork.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Deaths of one post before it was ready, in a row, that end the run.
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
    Unborn,
    Booting,
    Ready,
    /// We end it, to start again from a fresh one.
    Ending {
        until: Duration,
    },
    Gone,
}

/// Where the run stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    Ending { since: Duration, close: bool },
    Closed,
}

/// The deciding part of the worker stage. See the top of this file for what it promises.
#[derive(Debug)]
pub struct Supervisor {
    settings: Settings,
    now: Duration,
    phase: Phase,
    zygote: Zygote,
    zygote_failures: u32,
    zygote_watch: ZygoteWatch,
    /// Zygotes that hung since the last result.
    hung_zygotes: u32,
    places: Vec<Place>,
    tasks: HashMap<Task, Open>,
    newest: Option<Task>,
    /// For any free worker. Ordered by number, like `Place::waiting`.
    queue: BTreeSet<Task>,
    deaths: Vec<Death>,
    /// Deaths that still count; at most one more than are allowed.
    counted: VecDeque<Counted>,
    /// Whether all workers have been started again from a fresh zygote, or are about to be.
    is_reborn: bool,
    actions: Vec<Action>,
}

impl Supervisor {
    /// A supervisor at the start of a run. Nothing is asked for before [`Supervisor::start`].
    pub fn new(settings: Settings) -> Supervisor {
        let watched = |time: Duration| time.max(SHORTEST_WATCH);
        let settings = Settings {
            posts: settings.posts.max(1),
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
            zygote: Zygote::Unborn,
            zygote_failures: 0,
            zygote_watch: ZygoteWatch::default(),
            hung_zygotes: 0,
            places: (0..settings.posts).map(Place::new).collect(),
            tasks: HashMap::new(),
            newest: None,
            queue: BTreeSet::new(),
            deaths: Vec::new(),
            counted: VecDeque::new(),
            is_reborn: false,
            actions: Vec::new(),
            settings,
        }
    }

    /// Begins the run: every post gets a worker as soon as the zygote is ready, before there is a
    /// task for it.
    pub fn start(&mut self, now: Duration) -> Vec<Action> {
        self.now = self.now.max(now);
        if self.phase == Phase::Running && self.zygote == Zygote::Unborn {
            self.bear_zygote();
        }
        mem::take(&mut self.actions)
    }

    /// Takes in what happened and says what is to be done, in this order. What cannot be (an
    /// unknown worker, a second end) changes nothing.
    pub fn handle(&mut self, happening: Happening, now: Duration) -> Vec<Action> {
        self.now = self.now.max(now);
        if self.phase == Phase::Closed {
            return Vec::new();
        }
        match happening {
            Happening::Submitted { task, post } => self.submitted(task, post),
            Happening::ZygoteStarted => self.zygote_started(),
            Happening::ZygoteReady => self.zygote_ready(),
            Happening::ZygoteAnswered { ping } => self.zygote_answered(ping),
            Happening::ZygoteSeen { ran } => self.zygote_seen(ran),
            Happening::ZygoteEnded => self.zygote_ended(),
            Happening::Refused { life, passing } => self.refused(life, passing),
            Happening::Ready { life } => self.ready(life),
            Happening::StartFailed { life } => self.start_failed(life),
            Happening::Answered { life, task } => self.answered(life, task),
            Happening::HungUp { life } => self.hung_up(life),
            Happening::Ended { life, ending, at } => self.ended(life, ending, at),
            Happening::Survived { life, task } => self.survived(life, task),
            Happening::Seen { life, seen } => self.seen(life, seen),
            Happening::Renew { life } => self.renew(life),
            Happening::Retire { post } => self.retire(post),
            Happening::DescriptorsClosed => self.descriptors_closed(),
            Happening::TimePassed => self.time_passed(),
            Happening::Close => self.end_run(true),
        }
        self.go_on_ending();
        if self.actions.iter().any(Action::is_for_zygote) {
            self.ask_zygote();
        }
        mem::take(&mut self.actions)
    }

    /// When to say [`Happening::TimePassed`], if nothing happens before. It is later than the last
    /// time that was said.
    pub fn next_deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running => {
                let workers = self.workers().filter_map(Worker::next_time);
                let again = self.places.iter().filter_map(|place| place.again);
                let zygote = match self.zygote {
                    Zygote::Ending { until } => Some(until),
                    Zygote::Unborn | Zygote::Booting | Zygote::Ready | Zygote::Gone => None,
                };
                workers.chain(again).chain(zygote).chain(self.zygote_watch.look_at).min()
            }
            Phase::Ending { since, close } => {
                let is_asked =
                    |worker: &Worker| matches!(worker.standing, Standing::Stopping { .. });
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
    pub fn deaths(&self) -> &[Death] {
        &self.deaths
    }

    /// Whether neither `Fail` nor `Close` has come.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Whether `Closed` has been said.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Tasks without a result.
    pub fn outstanding(&self) -> usize {
        self.tasks.len()
    }

    /// The worker of a post that gets its tasks, if one was asked for and has not ended.
    pub fn life(&self, post: Post) -> Option<Life> {
        let holder = self.places.get(post as usize)?.holder.as_ref()?;
        Some(holder.life)
    }

    /// All workers of a post that were asked for and have not ended, oldest first: two while one
    /// takes over from the other.
    pub fn lives(&self, post: Post) -> impl Iterator<Item = Life> {
        let workers = self.places.get(post as usize).into_iter().flat_map(Place::workers);
        workers.map(|worker| worker.life)
    }

    fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.places.iter().flat_map(Place::workers)
    }

    fn submitted(&mut self, task: Task, post: Option<Post>) {
        if !self.is_running() || self.newest.is_some_and(|newest| task <= newest) {
            return;
        }
        self.newest = Some(task);
        let pin = post.map(|post| post % self.settings.posts);
        self.tasks.insert(task, Open::new(pin));
        let fallen = match pin {
            Some(post) => {
                let place = &mut self.places[post as usize];
                place.waiting.insert(task);
                place.retired = false;
                place.fallen
            }
            None => {
                self.queue.insert(task);
                self.places.iter().find_map(|place| place.fallen)
            }
        };
        if let Some(life) = fallen {
            return self.fail(Failure::Death { life });
        }
        if let Some(post) = pin {
            self.staff(post);
            self.feed(post);
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
        for post in 0..self.settings.posts {
            self.staff(post);
        }
    }

    fn refused(&mut self, life: Life, passing: bool) {
        let is_running = self.is_running();
        let Some(place) = self.places.get_mut(life.post as usize) else { return };
        let Some(role) = place.role(life) else { return };
        let Some(worker) = place.worker_mut(life) else { return };
        let was_wanted = match worker.standing {
            // One that took too long to be forked, and then was not, is missed as before.
            Standing::Booting | Standing::Overdue { stage: Stage::Booting, .. } => true,
            Standing::Killed { booting: true } => false,
            Standing::Ready
            | Standing::Stopping { .. }
            | Standing::Killed { booting: false }
            | Standing::Failed
            | Standing::Overdue { .. } => return,
        };
        place.remove(life);
        // A zygote that is being ended may refuse whatever it likes.
        if !was_wanted || !is_running || self.zygote != Zygote::Ready {
            return;
        }
        if role == Role::Successor {
            place.renew_after = self.now.saturating_add(RENEWAL_PAUSE);
            return;
        }
        let first = *place.refused_since.get_or_insert(self.now);
        let until = first.saturating_add(self.settings.refused_for);
        if !passing || self.now >= until {
            return self.fail(Failure::Refused { post: life.post, passing });
        }
        if !place.is_needed() {
            return place.forget_refusals();
        }
        // The last wait is cut short: a last try is made when the time is up, and its answer
        // decides.
        place.again = Some(self.now.saturating_add(place.wait).min(until));
        place.wait = (place.wait * 2).min(LONGEST_WAIT);
    }

    fn ready(&mut self, life: Life) {
        let Some(place) = self.places.get_mut(life.post as usize) else { return };
        let Some(worker) = place.worker_mut(life) else { return };
        if !worker.is_booting() {
            return;
        }
        worker.standing = Standing::Ready;
        worker.watch.end();
        place.boot_deaths = 0;
        place.forget_refusals();
        if place.role(life) == Some(Role::Successor) {
            self.take_over(life);
        }
        self.feed(life.post);
        self.distribute();
    }

    fn start_failed(&mut self, life: Life) {
        if !self.is_running() || self.zygote != Zygote::Ready {
            return;
        }
        let Some(place) = self.places.get_mut(life.post as usize) else { return };
        let Some(role) = place.role(life) else { return };
        let Some(worker) = place.worker_mut(life) else { return };
        if !worker.is_booting() {
            return;
        }
        if role == Role::Successor {
            worker.standing = Standing::Failed;
            worker.watch.end();
            self.actions.push(Action::Kill { life });
        } else {
            self.fail(Failure::CannotStart { life });
        }
    }

    /// This is called for each batch, so it looks at nothing but the task, its worker, and what is
    /// next.
    fn answered(&mut self, life: Life, task: Task) {
        let is_held = self.tasks.get(&task).is_some_and(|open| open.holder == Some(life));
        if !is_held || !self.is_running() {
            self.actions.push(Action::Discard { task, life });
            return;
        }
        self.tasks.remove(&task);
        self.actions.push(Action::Accept { task });
        self.hung_zygotes = 0;
        let place = &mut self.places[life.post as usize];
        if let Some(worker) = place.worker_mut(life) {
            worker.has_worked = true;
            worker.trial = None;
            if worker.at_hand.front() == Some(&task) {
                worker.at_hand.pop_front();
            } else {
                worker.at_hand.retain(|other| *other != task);
            }
            if worker.at_hand.is_empty() {
                worker.watch.end();
                if let Standing::Stopping { kill_at } = &mut worker.standing {
                    *kill_at = Some(self.now.saturating_add(self.settings.grace));
                }
                // What waited for the end of a trial, or for a predecessor, waits no longer.
                self.feed(life.post);
            }
        }
        self.distribute();
    }

    fn retire(&mut self, post: Post) {
        let running = self.is_running();
        let Some(place) = self.places.get_mut(post as usize) else { return };
        if !running {
            return;
        }
        place.retired = true;
        if place.again.is_some() && !place.is_needed() {
            place.again = None;
            place.forget_refusals();
        }
        self.keep_one_open();
        self.feed(post);
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
        for post in 0..self.settings.posts {
            let place = &mut self.places[post as usize];
            if place.again.is_some_and(|again| again <= self.now) {
                place.again = None;
                self.staff(post);
            }
        }
        self.kill_where(|standing, now| match standing {
            Standing::Stopping { kill_at } => kill_at.is_some_and(|at| at <= now),
            Standing::Booting
            | Standing::Ready
            | Standing::Killed { .. }
            | Standing::Failed
            | Standing::Overdue { .. } => false,
        });
        self.put_off_looks();
        self.put_off_look_at_zygote();
    }

    /// The socket of a worker was closed at its other end: the zygote must say how it ended.
    fn hung_up(&mut self, life: Life) {
        let place = self.places.get_mut(life.post as usize);
        if place.and_then(|place| place.worker_mut(life)).is_some() {
            self.ask_zygote();
        }
    }

    fn bear_zygote(&mut self) {
        self.zygote = Zygote::Booting;
        self.zygote_watch = ZygoteWatch::default();
        self.actions.push(Action::BearZygote { fresh: self.is_reborn });
    }

    fn end_zygote(&mut self) {
        self.zygote = Zygote::Ending { until: self.now.saturating_add(self.settings.grace) };
        for worker in self.places.iter_mut().flat_map(Place::workers_mut) {
            worker.watch.end();
        }
        self.actions.push(Action::EndZygote);
    }

    /// Forks a worker for a post that needs one and can have one.
    fn staff(&mut self, post: Post) {
        let can_fork = self.is_running() && self.zygote == Zygote::Ready;
        let place = &mut self.places[post as usize];
        let is_vacant = place.holder.is_none() && place.again.is_none();
        if can_fork && is_vacant && place.is_needed() {
            let life = place.next_life();
            place.holder = Some(Worker::new(life, Watch::starting(&self.settings, self.now)));
            self.actions.push(Action::Fork { life });
        }
    }

    /// Sends the holder of a post, if it is ready, what is to be tried or what is pinned to it, and
    /// the wish to stop after it if the post has retired. Whom a zygote takes along is not worth it.
    fn feed(&mut self, post: Post) {
        if self.zygote != Zygote::Ready {
            return;
        }
        let place = &mut self.places[post as usize];
        let is_handed_over = place.is_handed_over();
        let Some(holder) = &mut place.holder else { return };
        if holder.standing != Standing::Ready || holder.trial.is_some() {
            return;
        }
        let trial = place.trials.first_key_value().map(|(task, position)| (*task, *position));
        if let Some((task, position)) = trial {
            // Whether the sample or what the worker did before is to blame, only a fresh one shows.
            if !holder.is_fresh {
                ask_to_stop(holder, self.now, self.settings.grace, &mut self.actions);
            } else if is_handed_over {
                place.trials.remove(&task);
                self.send(post, task, Some(position));
            }
            return;
        }
        while is_handed_over && let Some(task) = self.places[post as usize].waiting.pop_first() {
            self.send(post, task, None);
        }
        let place = &mut self.places[post as usize];
        if let Some(holder) = &mut place.holder
            && place.retired
            && place.waiting.is_empty()
        {
            ask_to_stop(holder, self.now, self.settings.grace, &mut self.actions);
        }
    }

    fn send(&mut self, post: Post, task: Task, trial: Option<u64>) {
        let Some(holder) = &mut self.places[post as usize].holder else { return };
        let life = holder.life;
        holder.at_hand.push_back(task);
        holder.is_fresh = false;
        holder.trial = trial;
        holder.watch.begin(&self.settings, self.now);
        if let Some(open) = self.tasks.get_mut(&task) {
            open.holder = Some(life);
        }
        self.actions.push(Action::Send { life, task, trial });
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
            let at_hand = |place: &&Place| {
                place.holder.as_ref().map_or(usize::MAX, |worker| worker.at_hand.len())
            };
            let able = self.places.iter().filter(|place| place.can_take(depth));
            let Some(post) = able.min_by_key(at_hand).map(|place| place.post) else { return };
            self.queue.pop_first();
            self.send(post, task, None);
        }
    }

    /// With every post retired nobody would do what anybody can do, so the first post comes back
    /// for it.
    fn keep_one_open(&mut self) {
        if !self.queue.is_empty() && self.places.iter().all(|place| place.retired) {
            self.places[0].retired = false;
        }
    }

    /// Kills every worker that stands so.
    fn kill_where(&mut self, is_meant: impl Fn(Standing, Duration) -> bool) {
        for worker in self.places.iter_mut().flat_map(Place::workers_mut) {
            if is_meant(worker.standing, self.now) {
                worker.standing = Standing::Killed { booting: worker.is_booting() };
                worker.watch.end();
                self.actions.push(Action::Kill { life: worker.life });
            }
        }
    }

    fn descriptors_closed(&mut self) {
        if self.is_running() {
            self.fail(Failure::DescriptorsClosed);
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.actions.push(Action::Fail(failure));
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
        for worker in self.places.iter_mut().flat_map(Place::workers_mut) {
            let life = worker.life;
            match worker.standing {
                Standing::Booting => {
                    worker.standing = Standing::Killed { booting: true };
                    self.actions.push(Action::Kill { life });
                }
                Standing::Ready => {
                    worker.standing = Standing::Stopping { kill_at: None };
                    self.actions.push(Action::Stop { life });
                }
                Standing::Stopping { .. }
                | Standing::Killed { .. }
                | Standing::Failed
                | Standing::Overdue { .. } => {}
            }
        }
    }

    /// When closing ends in any case.
    fn closing_ends(&self, since: Duration) -> Duration {
        since.saturating_add(self.settings.grace.saturating_mul(CLOSING_GRACES))
    }

    /// Kills who was given its time to stop, and says when nothing is left.
    fn go_on_ending(&mut self) {
        let Phase::Ending { since, close } = self.phase else { return };
        if self.now >= since.saturating_add(self.settings.grace) {
            self.kill_where(|standing, _| matches!(standing, Standing::Stopping { .. }));
        }
        let nobody = self.workers().next().is_none();
        let nothing = nobody && self.zygote != Zygote::Booting;
        if close && (nothing || self.now >= self.closing_ends(since)) {
            self.phase = Phase::Closed;
            self.actions.push(Action::Closed);
        }
    }
}
