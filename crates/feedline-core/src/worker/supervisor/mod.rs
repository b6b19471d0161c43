//! Decides what is done about workers that start, answer, end, or do none of it. It must never do
//! any of it itself: no process, clock, thread or chance is in here, so that a simulator can put it
//! through years of bad luck in a minute.
//!
//! What happened goes into [`Supervisor::handle`], what is to be done comes out of it, in order.
//! The promises, which `testing::simulator` keeps watch over:
//!
//! - A task has one result: `Accept` or `GiveUp`. It is sent again when its worker ends without an
//!   answer.
//! - A post has one worker at a time; the next one is forked when the last one has ended.
//! - More than `max_deaths` deaths `within` a time end the run, and nothing is replaced for ever.
//! - Every wait has an end: what is waited for is under way, or [`Supervisor::next_deadline`] says
//!   when to call again.
//! - Closing always ends, whatever the workers do.
//!
//! A run ends by `Fail` or by `Close`; either stops all workers. `Closed` comes when they are gone
//! and `Close` was said.

mod words;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem;
use std::time::Duration;

pub use words::{Action, Death, Ending, Failure, Happening, Life, Post, Settings, Stage, Task};

/// The wait after the first refusal of a fork; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(10);
/// The longest wait between two tries of a fork.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Deaths of one post before it was ready, in a row, that end the run.
const BOOT_DEATHS: u32 = 3;
/// Ends of the zygote before it was ready, in a row, that end the run.
const ZYGOTE_FAILURES: u32 = 2;
/// Closing ends after this many times the grace, even if a worker cannot be killed.
const CLOSING_GRACES: u32 = 3;
/// Deaths that are remembered.
const HISTORY: usize = 64;

/// What is known of the zygote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Zygote {
    Unborn,
    Booting,
    Ready,
    Gone,
}

/// Where the run stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    Ending { since: Duration, close: bool },
    Closed,
}

/// Where a post stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// There is no worker, nor a time at which to try for one.
    Vacant,
    /// There is no worker; the fork was refused and is tried again.
    Refused {
        again: Duration,
    },
    /// A fork was asked for.
    Booting,
    Ready,
    /// It was asked to stop. The grace runs only once it has nothing at hand: a long task is not a
    /// fault.
    Stopping {
        kill_at: Option<Duration>,
    },
    /// It was killed by us, maybe before anything was heard of it.
    Killed {
        booting: bool,
    },
}

/// A post, with or without a worker.
#[derive(Debug)]
struct Place {
    post: Post,
    standing: Standing,
    /// Forks tried so far.
    forks: u32,
    /// Sent and not answered, in the order of sending.
    at_hand: VecDeque<Task>,
    /// Pinned to this post and not sent. Ordered by number, so that what comes back from the dead
    /// goes first.
    waiting: BTreeSet<Task>,
    /// Not needed but for the tasks it still has.
    retired: bool,
    /// Who died here and may not be replaced.
    fallen: Option<Life>,
    boot_deaths: u32,
    refused_since: Option<Duration>,
    wait: Duration,
}

impl Place {
    fn new(post: Post) -> Place {
        Place {
            post,
            standing: Standing::Vacant,
            forks: 0,
            at_hand: VecDeque::new(),
            waiting: BTreeSet::new(),
            retired: false,
            fallen: None,
            boot_deaths: 0,
            refused_since: None,
            wait: FIRST_WAIT,
        }
    }

    /// The worker that was forked last, or will have been.
    fn last_life(&self) -> Life {
        Life { post: self.post, generation: self.forks.wrapping_sub(1) }
    }

    fn life(&self) -> Option<Life> {
        match self.standing {
            Standing::Vacant | Standing::Refused { .. } => None,
            Standing::Booting
            | Standing::Ready
            | Standing::Stopping { .. }
            | Standing::Killed { .. } => Some(self.last_life()),
        }
    }

    fn is_needed(&self) -> bool {
        self.fallen.is_none() && (!self.retired || !self.waiting.is_empty())
    }

    fn forget_refusals(&mut self) {
        self.refused_since = None;
        self.wait = FIRST_WAIT;
    }
}

/// A task without a result.
#[derive(Debug)]
struct Open {
    pin: Option<Post>,
    holder: Option<Life>,
    /// Workers that died with it being worked on.
    deaths: u32,
}

/// A worker that is no more.
struct Gone {
    life: Life,
    stage: Stage,
    ending: Ending,
    tasks: Vec<Task>,
}

/// The deciding part of the worker stage. See the top of this file for what it promises.
#[derive(Debug)]
pub struct Supervisor {
    settings: Settings,
    now: Duration,
    phase: Phase,
    zygote: Zygote,
    zygote_failures: u32,
    places: Vec<Place>,
    tasks: HashMap<Task, Open>,
    newest: Option<Task>,
    /// For whoever is free. Ordered by number, like `Place::waiting`.
    queue: BTreeSet<Task>,
    deaths: Vec<Death>,
    /// When deaths happened that still count; at the most one more than are borne.
    counted: VecDeque<Duration>,
    actions: Vec<Action>,
}

impl Supervisor {
    /// A supervisor at the start of a run. Nothing is asked for before [`Supervisor::start`].
    pub fn new(settings: Settings) -> Supervisor {
        let settings =
            Settings { posts: settings.posts.max(1), depth: settings.depth.max(1), ..settings };
        Supervisor {
            now: Duration::ZERO,
            phase: Phase::Running,
            zygote: Zygote::Unborn,
            zygote_failures: 0,
            places: (0..settings.posts).map(Place::new).collect(),
            tasks: HashMap::new(),
            newest: None,
            queue: BTreeSet::new(),
            deaths: Vec::new(),
            counted: VecDeque::new(),
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
            Happening::ZygoteReady => self.zygote_ready(),
            Happening::ZygoteEnded => self.zygote_ended(),
            Happening::Refused { life, passing } => self.refused(life, passing),
            Happening::Ready { life } => self.ready(life),
            Happening::StartFailed { life } => self.start_failed(life),
            Happening::Answered { life, task } => self.answered(life, task),
            Happening::Ended { life, ending } => self.ended(life, ending),
            Happening::Retire { post } => self.retire(post),
            Happening::TimePassed => self.time_passed(),
            Happening::Close => self.end_run(true),
        }
        self.go_on_ending();
        mem::take(&mut self.actions)
    }

    /// When to say [`Happening::TimePassed`], if nothing happens before. It is later than the last
    /// time that was said.
    pub fn next_deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running => self
                .places
                .iter()
                .filter_map(|place| match place.standing {
                    Standing::Refused { again } => Some(again),
                    Standing::Stopping { kill_at } => kill_at,
                    Standing::Vacant
                    | Standing::Booting
                    | Standing::Ready
                    | Standing::Killed { .. } => None,
                })
                .min(),
            Phase::Ending { since, close } => {
                let asked = |place: &Place| matches!(place.standing, Standing::Stopping { .. });
                if self.places.iter().any(asked) {
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

    /// The worker of a post that was asked for and has not ended.
    pub fn life(&self, post: Post) -> Option<Life> {
        self.places.get(post as usize)?.life()
    }

    fn submitted(&mut self, task: Task, post: Option<Post>) {
        if !self.is_running() || self.newest.is_some_and(|newest| task <= newest) {
            return;
        }
        self.newest = Some(task);
        let pin = post.map(|post| post % self.settings.posts);
        self.tasks.insert(task, Open { pin, holder: None, deaths: 0 });
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
        for post in 0..self.settings.posts {
            self.staff(post);
        }
    }

    fn zygote_ended(&mut self) {
        let before = mem::replace(&mut self.zygote, Zygote::Gone);
        let was_ready = match before {
            Zygote::Ready => true,
            Zygote::Booting => false,
            Zygote::Unborn | Zygote::Gone => {
                self.zygote = before;
                return;
            }
        };
        let mut gone = Vec::new();
        for place in &mut self.places {
            place.forget_refusals();
            gone.extend(vacate(place, Ending::Lost, self.phase));
        }
        if !self.is_running() {
            self.log(gone, false);
            return;
        }
        if was_ready {
            if self.bury(gone) {
                self.bear_zygote();
            }
            return;
        }
        // No worker can be alive here, and two in a row is a bound already: this is no death to
        // count.
        self.zygote_failures += 1;
        if self.zygote_failures < ZYGOTE_FAILURES {
            self.bear_zygote();
        } else {
            self.fail(Failure::ZygoteCannotStart);
        }
    }

    fn refused(&mut self, life: Life, passing: bool) {
        let Some(place) = self.places.get_mut(life.post as usize) else { return };
        if place.life() != Some(life) {
            return;
        }
        match place.standing {
            Standing::Booting => {}
            Standing::Killed { booting: true } => {
                place.standing = Standing::Vacant;
                return;
            }
            Standing::Vacant
            | Standing::Refused { .. }
            | Standing::Ready
            | Standing::Stopping { .. }
            | Standing::Killed { booting: false } => return,
        }
        let first = *place.refused_since.get_or_insert(self.now);
        let until = first.saturating_add(self.settings.refused_for);
        place.standing = Standing::Vacant;
        if !passing || self.now >= until {
            return self.fail(Failure::Refused { post: life.post, passing });
        }
        if !place.is_needed() {
            return place.forget_refusals();
        }
        // The last wait is cut short: a last try is made when the time is up, and its answer
        // decides.
        let again = self.now.saturating_add(place.wait).min(until);
        place.standing = Standing::Refused { again };
        place.wait = (place.wait * 2).min(LONGEST_WAIT);
    }

    fn ready(&mut self, life: Life) {
        let Some(place) = self.places.get_mut(life.post as usize) else { return };
        if place.life() != Some(life) || place.standing != Standing::Booting {
            return;
        }
        place.standing = Standing::Ready;
        place.boot_deaths = 0;
        self.feed(life.post);
        self.distribute();
    }

    fn start_failed(&mut self, life: Life) {
        let Some(place) = self.places.get(life.post as usize) else { return };
        if self.is_running() && place.life() == Some(life) && place.standing == Standing::Booting {
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
        let place = &mut self.places[life.post as usize];
        if place.at_hand.front() == Some(&task) {
            place.at_hand.pop_front();
        } else {
            place.at_hand.retain(|other| *other != task);
        }
        if let Standing::Stopping { kill_at } = &mut place.standing
            && place.at_hand.is_empty()
        {
            *kill_at = Some(self.now.saturating_add(self.settings.grace));
        }
        self.distribute();
    }

    fn ended(&mut self, life: Life, ending: Ending) {
        let Some(place) = self.places.get_mut(life.post as usize) else { return };
        if place.life() != Some(life) {
            return;
        }
        // It was born, so the next refusal is the first of a new row.
        place.forget_refusals();
        let gone = vacate(place, ending, self.phase);
        if !self.is_running() {
            self.log(gone, false);
            return;
        }
        if gone.is_none_or(|gone| self.bury(vec![gone])) {
            self.staff(life.post);
            self.distribute();
        }
    }

    fn retire(&mut self, post: Post) {
        let running = self.is_running();
        let Some(place) = self.places.get_mut(post as usize) else { return };
        if !running {
            return;
        }
        place.retired = true;
        if let Standing::Refused { .. } = place.standing
            && !place.is_needed()
        {
            place.standing = Standing::Vacant;
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
        for post in 0..self.settings.posts {
            let place = &mut self.places[post as usize];
            match place.standing {
                Standing::Refused { again } if again <= self.now => {
                    place.standing = Standing::Vacant;
                    self.staff(post);
                }
                Standing::Stopping { kill_at: Some(at) } if at <= self.now => self.kill(post),
                Standing::Vacant
                | Standing::Refused { .. }
                | Standing::Booting
                | Standing::Ready
                | Standing::Stopping { .. }
                | Standing::Killed { .. } => {}
            }
        }
    }

    fn bear_zygote(&mut self) {
        self.zygote = Zygote::Booting;
        self.actions.push(Action::BearZygote);
    }

    /// Forks a worker for a post that needs one and can have one.
    fn staff(&mut self, post: Post) {
        let can_fork = self.is_running() && self.zygote == Zygote::Ready;
        let place = &mut self.places[post as usize];
        if can_fork && place.standing == Standing::Vacant && place.is_needed() {
            place.forks = place.forks.wrapping_add(1);
            place.standing = Standing::Booting;
            self.actions.push(Action::Fork { life: place.last_life() });
        }
    }

    /// Sends a worker that is ready what is pinned to it, and the wish to stop after it if the post
    /// has retired.
    fn feed(&mut self, post: Post) {
        let place = &mut self.places[post as usize];
        if place.standing != Standing::Ready {
            return;
        }
        while let Some(task) = place.waiting.pop_first() {
            send(place, task, &mut self.tasks, &mut self.actions);
        }
        if place.retired {
            let is_idle = place.at_hand.is_empty();
            let kill_at = is_idle.then(|| self.now.saturating_add(self.settings.grace));
            place.standing = Standing::Stopping { kill_at };
            self.actions.push(Action::Stop { life: place.last_life() });
        }
    }

    /// Gives the tasks that anybody can do to those with the least at hand.
    fn distribute(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        self.keep_one_open();
        self.staff(0);
        let depth = self.settings.depth as usize;
        while let Some(&task) = self.queue.first() {
            let can_take = |place: &&mut Place| {
                place.standing == Standing::Ready && place.at_hand.len() < depth
            };
            let idlest =
                self.places.iter_mut().filter(can_take).min_by_key(|place| place.at_hand.len());
            let Some(place) = idlest else { return };
            self.queue.pop_first();
            send(place, task, &mut self.tasks, &mut self.actions);
        }
    }

    /// With every post retired nobody would do what anybody can do, so the first post comes back
    /// for it.
    fn keep_one_open(&mut self) {
        if !self.queue.is_empty() && self.places.iter().all(|place| place.retired) {
            self.places[0].retired = false;
        }
    }

    /// Counts a death, or that of a zygote with all its workers as one, takes the tasks back, and
    /// says whether the run goes on.
    fn bury(&mut self, gone: Vec<Gone>) -> bool {
        self.counted.push_back(self.now);
        while self.counted.front().is_some_and(|at| self.now - *at > self.settings.within) {
            self.counted.pop_front();
        }
        let mut forbidden = None;
        let mut dies_starting = None;
        let mut given_up = Vec::new();
        for Gone { life, stage, ending, tasks } in &gone {
            let place = &mut self.places[life.post as usize];
            if !self.settings.replace {
                let undone =
                    !tasks.is_empty() || !place.waiting.is_empty() || !self.queue.is_empty();
                if undone {
                    forbidden = forbidden.or(Some(Failure::Death { life: *life }));
                } else if !place.retired {
                    place.fallen = Some(*life);
                }
            }
            // What ends with the zygote says nothing about the worker or its task.
            let is_own = *ending != Ending::Lost;
            if is_own && *stage == Stage::Booting {
                place.boot_deaths += 1;
                if place.boot_deaths >= BOOT_DEATHS {
                    dies_starting = Some(Failure::DiesStarting { life: *life });
                }
            }
            for (position, &task) in tasks.iter().enumerate() {
                let Some(open) = self.tasks.get_mut(&task) else { continue };
                open.holder = None;
                open.deaths += u32::from(is_own && position == 0);
                if self.settings.attempts.is_some_and(|most| open.deaths >= most.max(1)) {
                    given_up.push(task);
                    continue;
                }
                match open.pin {
                    Some(post) => self.places[post as usize].waiting.insert(task),
                    None => self.queue.insert(task),
                };
            }
        }
        // The narrower reason is the more useful one to read.
        let too_many = (self.counted.len() > self.settings.max_deaths as usize)
            .then_some(Failure::TooManyDeaths);
        let failure = forbidden.or(dies_starting).or(too_many);
        self.keep_one_open();
        self.log(gone, failure.is_none());
        if let Some(failure) = failure {
            self.fail(failure);
            return false;
        }
        for task in given_up {
            self.tasks.remove(&task);
            self.actions.push(Action::GiveUp { task });
        }
        true
    }

    /// Says and remembers who died. `goes_on` is whether what is needed is replaced.
    fn log(&mut self, gone: impl IntoIterator<Item = Gone>, goes_on: bool) {
        for Gone { life, stage, ending, tasks } in gone {
            let replaced = goes_on && self.places[life.post as usize].is_needed();
            let death = Death { life, ending, at: self.now, stage, tasks, replaced };
            if self.deaths.len() == HISTORY {
                self.deaths.remove(0);
            }
            self.deaths.push(death.clone());
            self.actions.push(Action::Died(death));
        }
    }

    fn kill(&mut self, post: Post) {
        let place = &mut self.places[post as usize];
        let booting = place.standing == Standing::Booting;
        place.standing = Standing::Killed { booting };
        self.actions.push(Action::Kill { life: place.last_life() });
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
        for post in 0..self.settings.posts {
            let place = &mut self.places[post as usize];
            match place.standing {
                Standing::Booting => self.kill(post),
                Standing::Ready => {
                    place.standing = Standing::Stopping { kill_at: None };
                    self.actions.push(Action::Stop { life: place.last_life() });
                }
                Standing::Vacant
                | Standing::Refused { .. }
                | Standing::Stopping { .. }
                | Standing::Killed { .. } => {}
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
            for post in 0..self.settings.posts {
                if let Standing::Stopping { .. } = self.places[post as usize].standing {
                    self.kill(post);
                }
            }
        }
        let nobody = self.places.iter().all(|place| place.life().is_none());
        let nothing = nobody && self.zygote != Zygote::Booting;
        if close && (nothing || self.now >= self.closing_ends(since)) {
            self.phase = Phase::Closed;
            self.actions.push(Action::Closed);
        }
    }
}

fn send(place: &mut Place, task: Task, tasks: &mut HashMap<Task, Open>, actions: &mut Vec<Action>) {
    let life = place.last_life();
    place.at_hand.push_back(task);
    if let Some(open) = tasks.get_mut(&task) {
        open.holder = Some(life);
    }
    actions.push(Action::Send { life, task });
}

/// Empties a post, and tells of its worker if that was a death: an end that we did not bring about.
fn vacate(place: &mut Place, ending: Ending, phase: Phase) -> Option<Gone> {
    let life = place.last_life();
    let tasks: Vec<Task> = mem::take(&mut place.at_hand).into();
    let stage = match mem::replace(&mut place.standing, Standing::Vacant) {
        Standing::Vacant | Standing::Refused { .. } | Standing::Killed { .. } => return None,
        Standing::Stopping { .. } => {
            // When the run ends nobody waits for what is at hand.
            let is_done = tasks.is_empty() || phase != Phase::Running;
            if ending == Ending::Exited(0) && is_done {
                return None;
            }
            Stage::Stopping
        }
        Standing::Booting => Stage::Booting,
        Standing::Ready if tasks.is_empty() => Stage::Idle,
        Standing::Ready => Stage::Busy,
    };
    Some(Gone { life, stage, ending, tasks })
}
