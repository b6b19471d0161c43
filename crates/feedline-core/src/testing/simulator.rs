//! A world of bad luck for the supervisor: a zygote, workers and a consumer that do what a seed
//! says, and time that costs nothing. Each step is checked against `promises`. What a seed shows
//! once, it shows every time.

mod workers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::promises::Promises;
pub use super::tally::Report;
use super::weather::{Chance, Weather};
use crate::worker::supervisor::{
    Action, Ending, Failure, Happening, Life, Post, Reason, Settings, Stage, Supervisor, Task,
};
use workers::{Ill, State, Stuck, Worker, ZygoteState};

const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
/// Steps after which the consumer has waited long enough and closes.
const PATIENCE: u64 = 1_500;
/// Steps that no run may take.
const TOO_LONG: u64 = 100_000;
/// Times that the clock alone goes on before somebody must do something about those who hang.
const LOOKS_IN_A_ROW: u32 = 12;
/// What a look may come too late, three times over.
const SLACK: Duration = Duration::from_millis(50);

/// Plays one run. The error names the seed, the step and the promise that was broken.
pub fn run(seed: u64) -> Result<Report, String> {
    World::new(seed, false).play()
}

/// Plays one run and tells all that happened in it, a line for each.
pub fn trace(seed: u64) -> (Result<Report, String>, Vec<String>) {
    let mut world = World::new(seed, true);
    let outcome = world.play();
    (outcome, world.story)
}

/// How the consumer submits.
#[derive(Clone, Copy, Debug)]
enum Pinning {
    Pinned,
    Unpinned,
    Mixed,
}

/// What will be so in the world at a time.
enum Event {
    Tell(Happening),
    ZygoteEndIsSeen(u64),
    ZygoteBoots(u64),
    ZygoteDies(u64),
    ZygoteSticks(u64),
    ZygoteGoesOn(u64),
    PingArrives(u64, u32),
    Forks(Life),
    Boots(Life),
    TaskArrives(Life, Task, Option<u64>),
    StopArrives(Life),
    KillArrives(Life),
    SampleEnds(Life),
    Unblocks(Life),
    Dies(Life, Ending),
    Consumes,
    Retires(Post),
    Closes,
}

struct World {
    seed: u64,
    chance: Chance,
    now: Duration,
    weather: Weather,
    settings: Settings,
    supervisor: Supervisor,
    promises: Promises,
    report: Report,
    events: BTreeMap<(Duration, u64), Event>,
    serial: u64,
    zygote: ZygoteState,
    zygote_is_fresh: bool,
    zygote_stuck: Option<Stuck>,
    /// When the last message to the zygote arrives.
    zygote_last_in: Duration,
    /// Counts zygotes; the newest that the supervisor knows to have ended is `zygotes_told`.
    zygotes: u64,
    zygotes_told: u64,
    /// By post, then by generation.
    workers: Vec<Vec<Worker>>,
    /// What is wrong with samples, by task and position.
    ills: HashMap<(Task, u64), Ill>,
    /// How often a poisonous sample has killed, as far as the supervisor was told.
    killings: HashMap<(Task, u64), u32>,
    /// Times that the clock alone went on.
    looks_in_a_row: u32,
    /// Steps in which somebody was looked at or the clock went on.
    quiet_steps: u64,
    pinning: Pinning,
    /// Posts that the consumer pins tasks to.
    in_use: Vec<bool>,
    /// Whether posts retire and come back.
    restless: bool,
    total: Task,
    prefetch: u64,
    submitted: Task,
    consumed: Task,
    consumer_waits: bool,
    close_sent: bool,
    /// Somebody else killed a worker that hung.
    somebody_killed: bool,
    traced: bool,
    story: Vec<String>,
}

impl World {
    fn new(seed: u64, traced: bool) -> World {
        let mut chance = Chance(seed);
        let reach = chance.one_of([50_000, 5_000_000, 60_000_000]);
        let within = chance.micros(1_000, reach);
        let reach = chance.one_of([30_000, 4_000_000]);
        let refused_for = chance.micros(1, reach);
        let settings = Settings {
            posts: chance.from(1, 8) as u32,
            depth: chance.from(1, 3) as u32,
            max_deaths: chance.one_of([0, 1, 3, 5, 20, 100]),
            within,
            attempts: chance.hits(500).then(|| chance.from(1, 3) as u32),
            refused_for,
            grace: chance.micros(1_000, 500_000),
            replace: !chance.hits(150),
            suspect_after: chance.hits(700).then(|| chance.from(1, 3) as u32),
            deadline: chance.hits(600).then(|| chance.micros(25_000, 2_000_000)),
            start_limit: chance.micros(25_000, 5_000_000),
            hangs: chance.from(1, 3) as u32,
            stall: chance.hits(400).then(|| chance.micros(25_000, 2_000_000)),
            dump_time: chance.micros(1_000, 300_000),
            may_be_fresh: chance.hits(500),
            zygote_patience: chance.micros(60_000, 2_000_000),
            zygote_start: chance.micros(60_000, 5_000_000),
        };
        let weather = Weather::new(&mut chance);
        let pinning = chance.one_of([Pinning::Pinned, Pinning::Unpinned, Pinning::Mixed]);
        let posts = settings.posts as usize;
        let longest = chance.one_of([8, 40, 200]);
        let mut world = World {
            seed,
            now: Duration::ZERO,
            supervisor: Supervisor::new(settings.clone()),
            promises: Promises::new(&settings),
            report: Report::default(),
            events: BTreeMap::new(),
            serial: 0,
            zygote: ZygoteState::Dead,
            zygote_is_fresh: false,
            zygote_stuck: None,
            zygote_last_in: Duration::ZERO,
            ills: HashMap::new(),
            killings: HashMap::new(),
            looks_in_a_row: 0,
            quiet_steps: 0,
            zygotes: 0,
            zygotes_told: 0,
            workers: (0..posts).map(|_| Vec::new()).collect(),
            pinning,
            in_use: vec![true; posts],
            restless: chance.hits(300),
            total: chance.from(1, longest),
            prefetch: chance.from(1, 2 * posts as u64 + 2),
            submitted: 0,
            consumed: 0,
            consumer_waits: false,
            close_sent: false,
            somebody_killed: false,
            traced,
            story: Vec::new(),
            weather,
            settings,
            chance,
        };
        world.plan();
        world
    }

    /// Deals out what does not depend on how the run goes.
    fn plan(&mut self) {
        self.report.calm += u64::from(self.weather == Weather::default());
        let first = self.soon();
        self.at(first, Event::Consumes);
        if self.chance.hits(200) {
            let reach = self.chance.one_of([1_000, 100_000, 1_000_000]);
            let when = self.chance.micros(0, reach);
            self.at(when, Event::Closes);
        }
        if self.chance.hits(self.weather.closed_descriptors) {
            let when = self.chance.micros(0, 300_000);
            self.at(when, Event::Tell(Happening::DescriptorsClosed));
        }
        if self.restless {
            for _ in 0..self.chance.from(1, 6) {
                let when = self.chance.micros(0, 400_000);
                let post = self.chance.below(self.in_use.len() as u64) as Post;
                self.at(when, Event::Retires(post));
            }
        }
        if self.traced {
            let words = format!("{:?} {:?} {:?}", self.settings, self.weather, self.pinning);
            self.story.push(format!("{words}, {} tasks, {} ahead", self.total, self.prefetch));
        }
    }

    fn play(&mut self) -> Result<Report, String> {
        let actions = self.supervisor.start(self.now);
        let verdict = self.promises.check_start(&actions);
        verdict.map_err(|why| self.broken(&why))?;
        self.act(actions)?;
        loop {
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let deadline = self.supervisor.next_deadline();
            match (event, deadline) {
                (None, Some(_))
                    if self.looks_in_a_row > LOOKS_IN_A_ROW && self.promises.is_running() =>
                {
                    self.looks_in_a_row = 0;
                    self.nothing_happens()?;
                }
                (_, Some(at)) if event.is_none_or(|event| at <= event) => {
                    // Clocks wake late; closing is promised to the consumer and is not given that
                    // slack.
                    let late = self.promises.is_running() && self.chance.hits(200);
                    let slack = if late { self.soon() } else { Duration::ZERO };
                    self.now = self.now.max(at + slack);
                    self.looks_in_a_row += 1;
                    self.look()?;
                    self.tell(Happening::TimePassed)?;
                }
                (Some(_), _) => {
                    let ((at, _), event) = self.events.pop_first().expect("there is one");
                    self.now = self.now.max(at);
                    self.looks_in_a_row = 0;
                    self.happen(event)?;
                }
                (None, _) if self.promises.is_closed() => break,
                (None, _) => self.nothing_happens()?,
            }
            if self.report.steps - self.quiet_steps >= PATIENCE && !self.close_sent {
                if self.report.calm > 0 {
                    return Err(self.broken("a calm run goes on and on"));
                }
                self.report.closed_impatient += 1;
                self.close()?;
            }
            if self.report.steps >= TOO_LONG {
                return Err(self.broken("the run does not end"));
            }
        }
        self.report.resent = self.promises.resent;
        self.check_end()
    }

    /// Nothing is under way, so whatever is waited for must be something that hangs.
    fn nothing_happens(&mut self) -> Result<(), String> {
        if self.close_sent {
            return Err(self.broken("closing does not end"));
        }
        let hanging = self.lives().find(|life| {
            let worker = &self.workers[life.post as usize][life.generation as usize];
            worker.hangs && worker.state != State::Dead && self.promises.is_open(*life)
        });
        match hanging {
            Some(life) if self.chance.hits(600) => {
                self.somebody_killed = true;
                self.happen(Event::Dies(life, Ending::Killed(SIGKILL)))
            }
            None if self.zygote_stuck.is_none() => {
                Err(self.broken("the consumer waits, and nothing is under way"))
            }
            Some(_) | None => {
                self.report.closed_hanging += 1;
                self.close()
            }
        }
    }

    fn check_end(&mut self) -> Result<Report, String> {
        // With a zygote that is stuck, its workers are killed when the trainer lets it go.
        let left = self.lives().find(|life| {
            let worker = &self.workers[life.post as usize][life.generation as usize];
            worker.state != State::Dead && self.zygote_stuck.is_none()
        });
        match left {
            Some(life) => Err(self.broken(&format!("{life:?} is alive after all"))),
            None => Ok(self.report),
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let Some(event) = self.unless_stuck(event) else { return Ok(()) };
        match event {
            Event::Tell(happening) => return self.deliver(happening),
            Event::ZygoteEndIsSeen(zygote) => {
                if zygote > self.zygotes_told {
                    self.zygotes_told = zygote;
                    return self.deliver(Happening::ZygoteEnded);
                }
            }
            Event::ZygoteBoots(zygote) => self.zygote_boots(zygote),
            Event::ZygoteDies(zygote) => self.zygote_dies(zygote),
            Event::ZygoteSticks(zygote) => self.zygote_sticks(zygote),
            Event::ZygoteGoesOn(zygote) => self.zygote_goes_on(zygote),
            Event::PingArrives(zygote, number) => self.ping_arrives(zygote, number),
            Event::Forks(life) => self.forks(life),
            Event::Boots(life) => self.boots(life),
            Event::TaskArrives(life, task, trial) => {
                self.worker(life).inbox.push_back((task, trial));
                self.work(life);
            }
            Event::StopArrives(life) => {
                self.worker(life).stops = true;
                self.work(life);
            }
            Event::KillArrives(life) => {
                self.worker(life).kill_came = true;
                if self.worker(life).state != State::Forking {
                    self.die(life, Ending::Killed(SIGKILL));
                }
            }
            Event::SampleEnds(life) => self.sample_ends(life),
            Event::Unblocks(life) => self.unblocks(life),
            Event::Dies(life, ending) => self.die(life, ending),
            Event::Consumes => return self.consume(),
            Event::Retires(post) => return self.retire(post),
            Event::Closes => {
                self.report.closed_early +=
                    u64::from(!self.close_sent && self.promises.is_running());
                return self.close();
            }
        }
        Ok(())
    }

    /// Brings a message to the supervisor, if it can still come.
    fn deliver(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Ended { life, .. } => {
                let reaped = self.worker(life).zygote > self.zygotes_told;
                if !reaped && !self.stray() {
                    return Ok(());
                }
                self.count_killing(life)?;
            }
            Happening::Answered { life, task } => {
                let late = self.promises.is_running() && self.promises.is_killed(life);
                self.report.answers_overdue +=
                    u64::from(late && self.promises.has_at_hand(life, task));
                if self.worker(life).state == State::Dead && self.promises.is_open(life) {
                    self.report.crossings += u64::from(self.promises.is_running());
                }
            }
            Happening::Submitted { .. }
            | Happening::ZygoteStarted
            | Happening::ZygoteReady
            | Happening::ZygoteAnswered { .. }
            | Happening::ZygoteSeen { .. }
            | Happening::HungUp { .. }
            | Happening::DescriptorsClosed
            | Happening::ZygoteEnded
            | Happening::Refused { .. }
            | Happening::Ready { .. }
            | Happening::StartFailed { .. }
            | Happening::Survived { .. }
            | Happening::Seen { .. }
            | Happening::Renew { .. }
            | Happening::Retire { .. }
            | Happening::TimePassed
            | Happening::Close => {}
        }
        self.tell(happening)?;
        if self.stray() {
            self.tell_nonsense(happening)?;
        }
        Ok(())
    }

    /// A sample that always kills is found out by one trial.
    fn count_killing(&mut self, life: Life) -> Result<(), String> {
        let is_own = self.promises.is_running()
            && self.promises.can_fork()
            && self.promises.is_open(life)
            && !self.promises.is_killed(life);
        let Some(spot) = self.worker(life).at.filter(|_| is_own) else { return Ok(()) };
        if self.ills.get(&spot) != Some(&Ill::Poison) {
            return Ok(());
        }
        let times = self.killings.entry(spot).or_default();
        *times += 1;
        let too_often = self.settings.suspect_after.is_some_and(|enough| *times > enough + 1);
        if too_often { Err(self.broken(&format!("{spot:?} kills and kills"))) } else { Ok(()) }
    }

    fn stray(&mut self) -> bool {
        let strays = self.chance.hits(self.weather.stray);
        self.report.strays += u64::from(strays);
        strays
    }

    /// What no world would do, and the supervisor must bear: echoes, and news of workers that never
    /// were.
    fn tell_nonsense(&mut self, echo: Happening) -> Result<(), String> {
        let post = self.chance.below(10) as Post;
        let life = Life { post, generation: 1_000 };
        let task = self.chance.below(40);
        let nonsense = [
            Happening::Answered { life, task },
            Happening::Survived { life, task },
            Happening::Renew { life },
            Happening::Renew { life: Life { post, generation: 0 } },
            Happening::Survived { life: Life { post, generation: 0 }, task },
            Happening::Ended { life, ending: Ending::Exited(0), at: None },
            Happening::Ready { life },
            Happening::StartFailed { life },
            Happening::Refused { life, passing: false },
            Happening::TimePassed,
            Happening::Submitted { task: 0, post: None },
            Happening::Retire { post: 1_000 },
            Happening::HungUp { life },
            Happening::ZygoteAnswered { ping: Some(1_000_000) },
            Happening::ZygoteAnswered { ping: None },
        ];
        let is_echo = match echo {
            Happening::Ended { .. }
            | Happening::Ready { .. }
            | Happening::Answered { .. }
            | Happening::Survived { .. }
            | Happening::Seen { .. }
            | Happening::HungUp { .. }
            | Happening::ZygoteStarted
            | Happening::ZygoteReady
            | Happening::ZygoteAnswered { .. }
            | Happening::Refused { .. } => true,
            Happening::Submitted { .. }
            | Happening::ZygoteSeen { .. }
            | Happening::DescriptorsClosed
            | Happening::ZygoteEnded
            | Happening::StartFailed { .. }
            | Happening::Renew { .. }
            | Happening::Retire { .. }
            | Happening::TimePassed
            | Happening::Close => false,
        };
        // Number nought is new until the consumer has said it.
        let is_early = self.submitted == 0 && self.promises.is_running();
        let chosen = match (is_echo, is_early) {
            (true, _) if self.chance.hits(500) => echo,
            (_, true) => Happening::TimePassed,
            (_, false) => self.chance.one_of(nonsense),
        };
        self.tell(chosen)
    }

    /// One step: the supervisor decides, the promises are checked, the world changes.
    fn tell(&mut self, happening: Happening) -> Result<(), String> {
        self.report.steps += 1;
        let is_quiet = matches!(
            happening,
            Happening::TimePassed | Happening::Seen { .. } | Happening::ZygoteSeen { .. }
        );
        self.quiet_steps += u64::from(is_quiet);
        let actions = self.supervisor.handle(happening, self.now);
        if self.traced {
            self.story.push(format!("{:>12?} {happening:?}", self.now));
            self.story.extend(actions.iter().map(|action| format!("{:>14} {action:?}", "->")));
        }
        let verdict = self.promises.check(happening, &actions, self.now, &self.supervisor);
        verdict.map_err(|why| self.broken(&format!("{happening:?} made {actions:?}: {why}")))?;
        self.act(actions)?;
        if self.is_stuck_too_long() {
            return Err(self.broken("the zygote hangs and is not killed"));
        }
        for life in self.lives() {
            let worker = &self.workers[life.post as usize][life.generation as usize];
            let lives = worker.state != State::Dead && worker.zygote > self.zygotes_told;
            if lives && !self.promises.is_open(life) && !self.promises.is_closed() {
                return Err(self.broken(&format!("{life:?} is alive and forgotten")));
            }
            if lives && self.is_hanging_too_long(life) {
                return Err(self.broken(&format!("{life:?} hangs and is not killed")));
            }
        }
        Ok(())
    }

    /// Whether somebody has been at a sample for longer than anybody may be.
    fn is_hanging_too_long(&self, life: Life) -> bool {
        let Some(deadline) = self.settings.deadline else { return false };
        let worker = &self.workers[life.post as usize][life.generation as usize];
        let Some((task, _)) = worker.at else { return false };
        let latest = worker.since + deadline + self.settings.dump_time * 2 + SLACK;
        let is_watched = self.promises.is_running()
            && self.promises.can_fork()
            && self.promises.has_at_hand(life, task)
            && !self.promises.is_killed(life);
        let is_late = !worker.blocked || worker.stopped;
        is_watched && is_late && self.weather.blind == 0 && self.now > latest
    }

    /// The engine looks at whom it is told to look at.
    fn look(&mut self) -> Result<(), String> {
        if self.supervisor.must_look_at_zygote(self.now) && !self.chance.hits(self.weather.blind) {
            let ran = self.zygote_stuck.as_ref().is_none_or(|stuck| stuck.spins);
            self.tell(Happening::ZygoteSeen { ran })?;
        }
        let mut lives = self.supervisor.to_look_at(self.now);
        if self.stray() {
            // A look that nobody asked for.
            let post = self.chance.below(self.in_use.len() as u64) as Post;
            lives.extend(self.supervisor.lives(post));
        }
        for life in lives {
            if self.chance.hits(self.weather.blind) {
                self.report.looks_missed += 1;
                continue;
            }
            self.report.looks += 1;
            let seen = self.worker(life).seen();
            self.tell(Happening::Seen { life, seen })?;
        }
        Ok(())
    }

    fn act(&mut self, actions: Vec<Action>) -> Result<(), String> {
        for action in actions {
            match action {
                Action::BearZygote { fresh } => self.bear_zygote(fresh),
                Action::EndZygote => self.end_zygote(),
                Action::PingZygote { number } => {
                    // No message to the zygote overtakes another.
                    let soon = self.soon();
                    self.zygote_last_in = self.zygote_last_in.max(self.now + soon);
                    let after = self.zygote_last_in - self.now;
                    self.at(after, Event::PingArrives(self.zygotes, number));
                }
                Action::ZygoteSlow => self.report.zygotes_slow += 1,
                Action::ZygoteHung => {
                    self.report.zygotes_hung += 1;
                    if self.zygote_stuck.is_none() {
                        return Err(self.broken("a zygote was killed that does not hang"));
                    }
                }
                Action::Fork { life } => self.fork(life),
                Action::Send { life, task, trial } => {
                    self.report.trials += u64::from(trial.is_some());
                    self.arrive(life, Event::TaskArrives(life, task, trial));
                }
                Action::Stop { life } => self.arrive(life, Event::StopArrives(life)),
                Action::Kill { life } => self.kill(life),
                Action::Accept { task } => {
                    self.report.accepted += 1;
                    self.result(task);
                }
                Action::Discard { .. } => self.report.discarded += 1,
                Action::GiveUp { task, at, why } => {
                    self.check_blame(task, at, why)?;
                    self.result(task);
                }
                Action::Dump { .. } => self.report.dumps += 1,
                Action::Stalled { .. } => self.report.stalls += 1,
                Action::Reborn { .. } => self.report.rebirths += 1,
                Action::Retired { .. } => self.report.retired += 1,
                Action::Died(death) => match (death.ending, death.stage) {
                    (Ending::Lost, _) => self.report.deaths_lost += 1,
                    (_, Stage::Booting) => self.report.deaths_booting += 1,
                    (_, Stage::Idle) => self.report.deaths_idle += 1,
                    (_, Stage::Busy) => self.report.deaths_busy += 1,
                    (_, Stage::Stopping) => self.report.deaths_stopping += 1,
                },
                Action::Fail(failure) => self.failed(failure),
                Action::Closed => {}
            }
        }
        Ok(())
    }

    /// Whether a task that is given up deserves it, where nothing but its own samples is wrong.
    fn check_blame(&mut self, task: Task, at: Option<u64>, why: Reason) -> Result<(), String> {
        let ill = at.and_then(|at| self.ills.get(&(task, at)).copied());
        let weather = &self.weather;
        let is_fair = match why {
            Reason::Kills => {
                self.report.gives_up_kills += 1;
                let others =
                    weather.work_death + weather.death_anytime + weather.death_after_answer;
                self.somebody_killed || others > 0 || ill.is_some_and(Ill::kills)
            }
            Reason::Hangs => {
                self.report.gives_up_hangs += 1;
                // The dead, too, are at the same sample for ever, until their end is told.
                let others =
                    weather.work_hang + weather.slow_sample + weather.asleep + weather.slow_message;
                others + weather.zygote_stuck + weather.blocked > 0 || ill.is_some_and(Ill::hangs)
            }
        };
        self.report.poison_found += u64::from(ill == Some(Ill::Poison));
        if is_fair { Ok(()) } else { Err(self.broken(&format!("{task} did no harm at {at:?}"))) }
    }

    fn failed(&mut self, failure: Failure) {
        let count = match failure {
            Failure::TooManyDeaths => &mut self.report.failed_too_many_deaths,
            Failure::Death { .. } => &mut self.report.failed_death,
            Failure::CannotStart { .. } => &mut self.report.failed_cannot_start,
            Failure::DiesStarting { .. } => &mut self.report.failed_dies_starting,
            Failure::Refused { passing: true, .. } => &mut self.report.failed_refused_passing,
            Failure::Refused { passing: false, .. } => &mut self.report.failed_refused_lasting,
            Failure::ZygoteCannotStart => &mut self.report.failed_zygote,
            Failure::ZygoteHangs => &mut self.report.failed_zygote_hangs,
            Failure::DescriptorsClosed => &mut self.report.failed_descriptors_closed,
        };
        *count += 1;
        // Some consumers take long to notice, longer than closing may take.
        let reach = self.chance.one_of([1_000, 3_000_000]);
        let when = self.chance.micros(1, reach);
        self.at(when, Event::Closes);
    }

    /// Takes what is next in order, and submits more.
    fn consume(&mut self) -> Result<(), String> {
        if !self.promises.is_running() {
            // It has not seen yet that the run has ended; what it submits then is nobody's.
            let (task, post) = (self.submitted, self.choose_post());
            return self.tell(Happening::Submitted { task, post });
        }
        self.consumer_waits = false;
        if self.consumed < self.submitted && self.promises.outcome(self.consumed).is_some() {
            self.consumed += 1;
            self.promises.settle(self.consumed);
        }
        while self.submitted < self.total
            && self.submitted - self.consumed < self.prefetch
            && self.promises.is_running()
        {
            let (task, post) = (self.submitted, self.choose_post());
            self.submitted += 1;
            self.make_ill(task);
            self.tell(Happening::Submitted { task, post })?;
        }
        if self.consumed == self.total {
            self.report.finished += u64::from(!self.close_sent);
            return self.close();
        }
        if self.promises.outcome(self.consumed).is_some() {
            let when = self.soon();
            self.at(when, Event::Consumes);
        } else {
            self.consumer_waits = true;
        }
        Ok(())
    }

    fn choose_post(&mut self) -> Option<Post> {
        let pins = match self.pinning {
            Pinning::Pinned => true,
            Pinning::Unpinned => false,
            Pinning::Mixed => self.chance.hits(500),
        };
        if !pins {
            return None;
        }
        let used: Vec<usize> = (0..self.in_use.len()).filter(|post| self.in_use[*post]).collect();
        let comes_back = used.is_empty() || self.chance.hits(if self.restless { 150 } else { 0 });
        let post = if comes_back {
            self.chance.below(self.in_use.len() as u64) as usize
        } else {
            used[(self.submitted % used.len() as u64) as usize]
        };
        self.report.comebacks += u64::from(!self.in_use[post]);
        self.in_use[post] = true;
        Some(post as Post)
    }

    fn retire(&mut self, post: Post) -> Result<(), String> {
        if !self.promises.is_running() {
            return Ok(());
        }
        self.in_use[post as usize] = false;
        self.report.retirements += 1;
        self.tell(Happening::Retire { post })
    }

    fn close(&mut self) -> Result<(), String> {
        if self.close_sent {
            return Ok(());
        }
        self.close_sent = true;
        self.tell(Happening::Close)?;
        if self.stray() { self.tell(Happening::Close) } else { Ok(()) }
    }

    fn result(&mut self, task: Task) {
        if task == self.consumed && self.consumer_waits {
            self.consumer_waits = false;
            let when = self.soon();
            self.at(when, Event::Consumes);
        }
    }

    fn ending(&mut self) -> Ending {
        self.chance.one_of([
            Ending::Killed(SIGKILL),
            Ending::Killed(SIGSEGV),
            Ending::Exited(0),
            Ending::Exited(1),
        ])
    }

    fn worker(&mut self, life: Life) -> &mut Worker {
        &mut self.workers[life.post as usize][life.generation as usize]
    }

    /// All workers there ever were.
    fn lives(&self) -> impl Iterator<Item = Life> + use<'_> {
        let posts = self.workers.iter().zip(0..);
        posts.flat_map(|(workers, post)| {
            (0..workers.len() as u32).map(move |generation| Life { post, generation })
        })
    }

    fn soon(&mut self) -> Duration {
        let reach = self.chance.one_of([20, 500, 15_000]);
        self.chance.micros(1, reach)
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.serial += 1;
        self.events.insert((self.now + after, self.serial), event);
    }

    /// A worker says something; what it said before comes before.
    fn say(&mut self, life: Life, happening: Happening) {
        let mut soon = self.soon();
        if self.chance.hits(self.weather.slow_message) {
            soon += self.chance.micros(0, 500_000);
        }
        let now = self.now;
        let worker = self.worker(life);
        worker.last_out = worker.last_out.max(now + soon);
        let after = worker.last_out - now;
        self.at(after, Event::Tell(happening));
    }

    /// A worker is told something, after what it was told before.
    fn arrive(&mut self, life: Life, event: Event) {
        let soon = self.soon();
        let now = self.now;
        let worker = self.worker(life);
        worker.last_in = worker.last_in.max(now + soon);
        let after = worker.last_in - now;
        self.at(after, event);
    }

    fn broken(&self, why: &str) -> String {
        let World { seed, report, now, .. } = self;
        format!("seed {seed}, step {}, at {now:?}: {why}", report.steps)
    }
}
