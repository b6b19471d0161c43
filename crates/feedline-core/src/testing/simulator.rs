//! A world of bad luck for the supervisor: a zygote, workers and a consumer that do what a seed
//! says, and time that costs nothing. Each step is checked against `promises`. What a seed shows
//! once, it shows every time.

mod workers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::failure_rates::{Dice, FailureRates};
use super::promises::PromiseChecker;
pub use super::tally::Report;
use crate::worker::supervisor::{
    ExitKind, Incarnation, Reason, RunFailure, Supervisor, SupervisorAction, SupervisorSettings,
    TaskNumber, WorkerEvent, WorkerId, WorkerStage,
};
use workers::{SampleTrouble, SimulatedState, SimulatedWorker, StuckZygote, ZygoteState};

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
    SimulatedWorld::new(seed, false).play()
}

/// Plays one run and tells all that happened in it, a line for each.
pub fn trace(seed: u64) -> (Result<Report, String>, Vec<String>) {
    let mut world = SimulatedWorld::new(seed, true);
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
enum SimulatedEvent {
    Tell(WorkerEvent),
    ZygoteEndIsSeen(u64),
    ZygoteBoots(u64),
    ZygoteDies(u64),
    ZygoteSticks(u64),
    ZygoteGoesOn(u64),
    PingArrives(u64, u32),
    Forks(Incarnation),
    Boots(Incarnation),
    TaskArrives(Incarnation, TaskNumber, Option<u64>),
    StopArrives(Incarnation),
    KillArrives(Incarnation),
    SampleEnds(Incarnation),
    Unblocks(Incarnation),
    Dies(Incarnation, ExitKind),
    Consumes,
    Retires(WorkerId),
    Closes,
}

struct SimulatedWorld {
    seed: u64,
    dice: Dice,
    now: Duration,
    rates: FailureRates,
    settings: SupervisorSettings,
    supervisor: Supervisor,
    promises: PromiseChecker,
    report: Report,
    events: BTreeMap<(Duration, u64), SimulatedEvent>,
    serial: u64,
    zygote: ZygoteState,
    zygote_is_fresh: bool,
    zygote_stuck: Option<StuckZygote>,
    /// When the last message to the zygote arrives.
    zygote_last_in: Duration,
    /// Counts zygotes; the newest that the supervisor knows to have ended is `zygotes_reported`.
    zygotes: u64,
    zygotes_reported: u64,
    /// By worker, then by generation.
    workers: Vec<Vec<SimulatedWorker>>,
    /// What is wrong with samples, by task and position.
    ills: HashMap<(TaskNumber, u64), SampleTrouble>,
    /// How often a poisonous sample has killed, as far as the supervisor was told.
    killings: HashMap<(TaskNumber, u64), u32>,
    /// Times that the clock alone went on.
    looks_in_a_row: u32,
    /// Steps in which somebody was looked at or the clock went on.
    quiet_steps: u64,
    pinning: Pinning,
    /// workers that the consumer pins tasks to.
    in_use: Vec<bool>,
    /// Whether workers retire and come back.
    restless: bool,
    total: TaskNumber,
    prefetch: u64,
    submitted: TaskNumber,
    consumed: TaskNumber,
    consumer_waits: bool,
    close_sent: bool,
    /// Somebody else killed a worker that hung.
    somebody_killed: bool,
    traced: bool,
    story: Vec<String>,
}

impl SimulatedWorld {
    fn new(seed: u64, traced: bool) -> SimulatedWorld {
        let mut dice = Dice(seed);
        let reach = dice.one_of([50_000, 5_000_000, 60_000_000]);
        let within = dice.micros(1_000, reach);
        let reach = dice.one_of([30_000, 4_000_000]);
        let refused_for = dice.micros(1, reach);
        let settings = SupervisorSettings {
            worker_count: dice.from(1, 8) as u32,
            depth: dice.from(1, 3) as u32,
            max_deaths: dice.one_of([0, 1, 3, 5, 20, 100]),
            within,
            attempts: dice.hits(500).then(|| dice.from(1, 3) as u32),
            refused_for,
            grace: dice.micros(1_000, 500_000),
            replace: !dice.hits(150),
            suspect_after: dice.hits(700).then(|| dice.from(1, 3) as u32),
            deadline: dice.hits(600).then(|| dice.micros(25_000, 2_000_000)),
            start_limit: dice.micros(25_000, 5_000_000),
            hangs: dice.from(1, 3) as u32,
            stall: dice.hits(400).then(|| dice.micros(25_000, 2_000_000)),
            dump_time: dice.micros(1_000, 300_000),
            may_be_fresh: dice.hits(500),
            zygote_patience: dice.micros(60_000, 2_000_000),
            zygote_start: dice.micros(60_000, 5_000_000),
        };
        let rates = FailureRates::new(&mut dice);
        let pinning = dice.one_of([Pinning::Pinned, Pinning::Unpinned, Pinning::Mixed]);
        let worker_count = settings.worker_count as usize;
        let longest = dice.one_of([8, 40, 200]);
        let mut world = SimulatedWorld {
            seed,
            now: Duration::ZERO,
            supervisor: Supervisor::new(settings.clone()),
            promises: PromiseChecker::new(&settings),
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
            zygotes_reported: 0,
            workers: (0..worker_count).map(|_| Vec::new()).collect(),
            pinning,
            in_use: vec![true; worker_count],
            restless: dice.hits(300),
            total: dice.from(1, longest),
            prefetch: dice.from(1, 2 * worker_count as u64 + 2),
            submitted: 0,
            consumed: 0,
            consumer_waits: false,
            close_sent: false,
            somebody_killed: false,
            traced,
            story: Vec::new(),
            rates,
            settings,
            dice,
        };
        world.plan();
        world
    }

    /// Deals out what does not depend on how the run goes.
    fn plan(&mut self) {
        self.report.calm += u64::from(self.rates == FailureRates::default());
        let first = self.soon();
        self.at(first, SimulatedEvent::Consumes);
        if self.dice.hits(200) {
            let reach = self.dice.one_of([1_000, 100_000, 1_000_000]);
            let when = self.dice.micros(0, reach);
            self.at(when, SimulatedEvent::Closes);
        }
        if self.dice.hits(self.rates.closed_descriptors) {
            let when = self.dice.micros(0, 300_000);
            self.at(when, SimulatedEvent::Tell(WorkerEvent::DescriptorsClosed));
        }
        if self.restless {
            for _ in 0..self.dice.from(1, 6) {
                let when = self.dice.micros(0, 400_000);
                let worker_id = self.dice.below(self.in_use.len() as u64) as WorkerId;
                self.at(when, SimulatedEvent::Retires(worker_id));
            }
        }
        if self.traced {
            let messages = format!("{:?} {:?} {:?}", self.settings, self.rates, self.pinning);
            self.story.push(format!("{messages}, {} tasks, {} ahead", self.total, self.prefetch));
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
                    let late = self.promises.is_running() && self.dice.hits(200);
                    let slack = if late { self.soon() } else { Duration::ZERO };
                    self.now = self.now.max(at + slack);
                    self.looks_in_a_row += 1;
                    self.look()?;
                    self.notify(WorkerEvent::TimePassed)?;
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
        let hanging = self.incarnations().find(|incarnation| {
            let worker =
                &self.workers[incarnation.worker_id as usize][incarnation.generation as usize];
            worker.hangs
                && worker.state != SimulatedState::Dead
                && self.promises.is_open(*incarnation)
        });
        match hanging {
            Some(incarnation) if self.dice.hits(600) => {
                self.somebody_killed = true;
                self.happen(SimulatedEvent::Dies(incarnation, ExitKind::Killed(SIGKILL)))
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
        let left = self.incarnations().find(|incarnation| {
            let worker =
                &self.workers[incarnation.worker_id as usize][incarnation.generation as usize];
            worker.state != SimulatedState::Dead && self.zygote_stuck.is_none()
        });
        match left {
            Some(incarnation) => Err(self.broken(&format!("{incarnation:?} is alive after all"))),
            None => Ok(self.report),
        }
    }

    fn happen(&mut self, event: SimulatedEvent) -> Result<(), String> {
        let Some(event) = self.unless_stuck(event) else { return Ok(()) };
        match event {
            SimulatedEvent::Tell(happening) => return self.deliver(happening),
            SimulatedEvent::ZygoteEndIsSeen(zygote) => {
                if zygote > self.zygotes_reported {
                    self.zygotes_reported = zygote;
                    return self.deliver(WorkerEvent::ZygoteEnded);
                }
            }
            SimulatedEvent::ZygoteBoots(zygote) => self.zygote_boots(zygote),
            SimulatedEvent::ZygoteDies(zygote) => self.zygote_dies(zygote),
            SimulatedEvent::ZygoteSticks(zygote) => self.zygote_sticks(zygote),
            SimulatedEvent::ZygoteGoesOn(zygote) => self.zygote_goes_on(zygote),
            SimulatedEvent::PingArrives(zygote, number) => self.ping_arrives(zygote, number),
            SimulatedEvent::Forks(incarnation) => self.forks(incarnation),
            SimulatedEvent::Boots(incarnation) => self.boots(incarnation),
            SimulatedEvent::TaskArrives(incarnation, task, trial) => {
                self.worker(incarnation).inbox.push_back((task, trial));
                self.work(incarnation);
            }
            SimulatedEvent::StopArrives(incarnation) => {
                self.worker(incarnation).stops = true;
                self.work(incarnation);
            }
            SimulatedEvent::KillArrives(incarnation) => {
                self.worker(incarnation).kill_came = true;
                if self.worker(incarnation).state != SimulatedState::Forking {
                    self.die(incarnation, ExitKind::Killed(SIGKILL));
                }
            }
            SimulatedEvent::SampleEnds(incarnation) => self.sample_ends(incarnation),
            SimulatedEvent::Unblocks(incarnation) => self.unblocks(incarnation),
            SimulatedEvent::Dies(incarnation, exit) => self.die(incarnation, exit),
            SimulatedEvent::Consumes => return self.consume(),
            SimulatedEvent::Retires(worker_id) => return self.retire(worker_id),
            SimulatedEvent::Closes => {
                self.report.closed_early +=
                    u64::from(!self.close_sent && self.promises.is_running());
                return self.close();
            }
        }
        Ok(())
    }

    /// Brings a message to the supervisor, if it can still come.
    fn deliver(&mut self, happening: WorkerEvent) -> Result<(), String> {
        match happening {
            WorkerEvent::Ended { incarnation, .. } => {
                let reaped = self.worker(incarnation).zygote > self.zygotes_reported;
                if !reaped && !self.stray() {
                    return Ok(());
                }
                self.count_killing(incarnation)?;
            }
            WorkerEvent::TaskDone { incarnation, task } => {
                let late = self.promises.is_running() && self.promises.is_killed(incarnation);
                self.report.answers_overdue +=
                    u64::from(late && self.promises.has_at_hand(incarnation, task));
                if self.worker(incarnation).state == SimulatedState::Dead
                    && self.promises.is_open(incarnation)
                {
                    self.report.crossings += u64::from(self.promises.is_running());
                }
            }
            WorkerEvent::Submitted { .. }
            | WorkerEvent::ZygoteStarted
            | WorkerEvent::ZygoteReady
            | WorkerEvent::ZygoteAnswered { .. }
            | WorkerEvent::ZygoteSeen { .. }
            | WorkerEvent::HungUp { .. }
            | WorkerEvent::DescriptorsClosed
            | WorkerEvent::ZygoteEnded
            | WorkerEvent::Refused { .. }
            | WorkerEvent::Ready { .. }
            | WorkerEvent::StartFailed { .. }
            | WorkerEvent::Survived { .. }
            | WorkerEvent::Observation { .. }
            | WorkerEvent::Renew { .. }
            | WorkerEvent::Retire { .. }
            | WorkerEvent::TimePassed
            | WorkerEvent::Close => {}
        }
        self.notify(happening)?;
        if self.stray() {
            self.tell_nonsense(happening)?;
        }
        Ok(())
    }

    /// A sample that always kills is found out by one trial.
    fn count_killing(&mut self, incarnation: Incarnation) -> Result<(), String> {
        let is_own = self.promises.is_running()
            && self.promises.can_fork()
            && self.promises.is_open(incarnation)
            && !self.promises.is_killed(incarnation);
        let Some(spot) = self.worker(incarnation).at.filter(|_| is_own) else { return Ok(()) };
        if self.ills.get(&spot) != Some(&SampleTrouble::Poison) {
            return Ok(());
        }
        let times = self.killings.entry(spot).or_default();
        *times += 1;
        let too_often = self.settings.suspect_after.is_some_and(|enough| *times > enough + 1);
        if too_often { Err(self.broken(&format!("{spot:?} kills and kills"))) } else { Ok(()) }
    }

    fn stray(&mut self) -> bool {
        let strays = self.dice.hits(self.rates.stray);
        self.report.strays += u64::from(strays);
        strays
    }

    /// What no world would do, and the supervisor must bear: echoes, and news of workers that never
    /// were.
    fn tell_nonsense(&mut self, echo: WorkerEvent) -> Result<(), String> {
        let worker_id = self.dice.below(10) as WorkerId;
        let incarnation = Incarnation { worker_id, generation: 1_000 };
        let task = self.dice.below(40);
        let nonsense = [
            WorkerEvent::TaskDone { incarnation, task },
            WorkerEvent::Survived { incarnation, task },
            WorkerEvent::Renew { incarnation },
            WorkerEvent::Renew { incarnation: Incarnation { worker_id, generation: 0 } },
            WorkerEvent::Survived { incarnation: Incarnation { worker_id, generation: 0 }, task },
            WorkerEvent::Ended { incarnation, exit: ExitKind::Exited(0), at: None },
            WorkerEvent::Ready { incarnation },
            WorkerEvent::StartFailed { incarnation },
            WorkerEvent::Refused { incarnation, passing: false },
            WorkerEvent::TimePassed,
            WorkerEvent::Submitted { task: 0, worker_id: None },
            WorkerEvent::Retire { worker_id: 1_000 },
            WorkerEvent::HungUp { incarnation },
            WorkerEvent::ZygoteAnswered { ping: Some(1_000_000) },
            WorkerEvent::ZygoteAnswered { ping: None },
        ];
        let is_echo = match echo {
            WorkerEvent::Ended { .. }
            | WorkerEvent::Ready { .. }
            | WorkerEvent::TaskDone { .. }
            | WorkerEvent::Survived { .. }
            | WorkerEvent::Observation { .. }
            | WorkerEvent::HungUp { .. }
            | WorkerEvent::ZygoteStarted
            | WorkerEvent::ZygoteReady
            | WorkerEvent::ZygoteAnswered { .. }
            | WorkerEvent::Refused { .. } => true,
            WorkerEvent::Submitted { .. }
            | WorkerEvent::ZygoteSeen { .. }
            | WorkerEvent::DescriptorsClosed
            | WorkerEvent::ZygoteEnded
            | WorkerEvent::StartFailed { .. }
            | WorkerEvent::Renew { .. }
            | WorkerEvent::Retire { .. }
            | WorkerEvent::TimePassed
            | WorkerEvent::Close => false,
        };
        // Number nought is new until the consumer has said it.
        let is_early = self.submitted == 0 && self.promises.is_running();
        let chosen = match (is_echo, is_early) {
            (true, _) if self.dice.hits(500) => echo,
            (_, true) => WorkerEvent::TimePassed,
            (_, false) => self.dice.one_of(nonsense),
        };
        self.notify(chosen)
    }

    /// One step: the supervisor decides, the promises are checked, the world changes.
    fn notify(&mut self, happening: WorkerEvent) -> Result<(), String> {
        self.report.steps += 1;
        let is_quiet = matches!(
            happening,
            WorkerEvent::TimePassed
                | WorkerEvent::Observation { .. }
                | WorkerEvent::ZygoteSeen { .. }
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
        for incarnation in self.incarnations() {
            let worker =
                &self.workers[incarnation.worker_id as usize][incarnation.generation as usize];
            let incarnations =
                worker.state != SimulatedState::Dead && worker.zygote > self.zygotes_reported;
            if incarnations && !self.promises.is_open(incarnation) && !self.promises.is_closed() {
                return Err(self.broken(&format!("{incarnation:?} is alive and forgotten")));
            }
            if incarnations && self.is_hanging_too_long(incarnation) {
                return Err(self.broken(&format!("{incarnation:?} hangs and is not killed")));
            }
        }
        Ok(())
    }

    /// Whether somebody has been at a sample for longer than anybody may be.
    fn is_hanging_too_long(&self, incarnation: Incarnation) -> bool {
        let Some(deadline) = self.settings.deadline else { return false };
        let worker = &self.workers[incarnation.worker_id as usize][incarnation.generation as usize];
        let Some((task, _)) = worker.at else { return false };
        let latest = worker.since + deadline + self.settings.dump_time * 2 + SLACK;
        let is_watched = self.promises.is_running()
            && self.promises.can_fork()
            && self.promises.has_at_hand(incarnation, task)
            && !self.promises.is_killed(incarnation);
        let is_late = !worker.blocked || worker.stopped;
        is_watched && is_late && self.rates.blind == 0 && self.now > latest
    }

    /// The engine looks at whom it is told to look at.
    fn look(&mut self) -> Result<(), String> {
        if self.supervisor.must_look_at_zygote(self.now) && !self.dice.hits(self.rates.blind) {
            let ran = self.zygote_stuck.as_ref().is_none_or(|stuck| stuck.spins);
            self.notify(WorkerEvent::ZygoteSeen { ran })?;
        }
        let mut incarnations = self.supervisor.to_look_at(self.now);
        if self.stray() {
            // A look that nobody asked for.
            let worker_id = self.dice.below(self.in_use.len() as u64) as WorkerId;
            incarnations.extend(self.supervisor.incarnations(worker_id));
        }
        for incarnation in incarnations {
            if self.dice.hits(self.rates.blind) {
                self.report.looks_missed += 1;
                continue;
            }
            self.report.looks += 1;
            let seen = self.worker(incarnation).seen();
            self.notify(WorkerEvent::Observation { incarnation, seen })?;
        }
        Ok(())
    }

    fn act(&mut self, actions: Vec<SupervisorAction>) -> Result<(), String> {
        for action in actions {
            match action {
                SupervisorAction::StartZygote { fresh } => self.start_zygote(fresh),
                SupervisorAction::EndZygote => self.end_zygote(),
                SupervisorAction::PingZygote { number } => {
                    // No message to the zygote overtakes another.
                    let soon = self.soon();
                    self.zygote_last_in = self.zygote_last_in.max(self.now + soon);
                    let after = self.zygote_last_in - self.now;
                    self.at(after, SimulatedEvent::PingArrives(self.zygotes, number));
                }
                SupervisorAction::ZygoteSlow => self.report.zygotes_slow += 1,
                SupervisorAction::ZygoteHung => {
                    self.report.zygotes_hung += 1;
                    if self.zygote_stuck.is_none() {
                        return Err(self.broken("a zygote was killed that does not hang"));
                    }
                }
                SupervisorAction::Fork { incarnation } => self.fork(incarnation),
                SupervisorAction::Send { incarnation, task, trial } => {
                    self.report.trials += u64::from(trial.is_some());
                    self.arrive(incarnation, SimulatedEvent::TaskArrives(incarnation, task, trial));
                }
                SupervisorAction::Stop { incarnation } => {
                    self.arrive(incarnation, SimulatedEvent::StopArrives(incarnation))
                }
                SupervisorAction::Kill { incarnation } => self.kill(incarnation),
                SupervisorAction::Accept { task } => {
                    self.report.accepted += 1;
                    self.result(task);
                }
                SupervisorAction::Discard { .. } => self.report.discarded += 1,
                SupervisorAction::GiveUp { task, at, why } => {
                    self.check_blame(task, at, why)?;
                    self.result(task);
                }
                SupervisorAction::Dump { .. } => self.report.dumps += 1,
                SupervisorAction::Stalled { .. } => self.report.stalls += 1,
                SupervisorAction::RestartedFresh { .. } => self.report.rebirths += 1,
                SupervisorAction::Retired { .. } => self.report.retired += 1,
                SupervisorAction::Died(death) => match (death.exit, death.stage) {
                    (ExitKind::Lost, _) => self.report.deaths_lost += 1,
                    (_, WorkerStage::Booting) => self.report.deaths_booting += 1,
                    (_, WorkerStage::Idle) => self.report.deaths_idle += 1,
                    (_, WorkerStage::Busy) => self.report.deaths_busy += 1,
                    (_, WorkerStage::Stopping) => self.report.deaths_stopping += 1,
                },
                SupervisorAction::Fail(failure) => self.failed(failure),
                SupervisorAction::Closed => {}
            }
        }
        Ok(())
    }

    /// Whether a task that is given up deserves it, where nothing but its own samples is wrong.
    fn check_blame(
        &mut self,
        task: TaskNumber,
        at: Option<u64>,
        why: Reason,
    ) -> Result<(), String> {
        let ill = at.and_then(|at| self.ills.get(&(task, at)).copied());
        let rates = &self.rates;
        let is_fair = match why {
            Reason::Kills => {
                self.report.gives_up_kills += 1;
                let others = rates.work_death + rates.death_anytime + rates.death_after_answer;
                self.somebody_killed || others > 0 || ill.is_some_and(SampleTrouble::kills)
            }
            Reason::Hangs => {
                self.report.gives_up_hangs += 1;
                // The dead, too, are at the same sample for ever, until their end is told.
                let others =
                    rates.work_hang + rates.slow_sample + rates.asleep + rates.slow_message;
                others + rates.zygote_stuck + rates.blocked > 0
                    || ill.is_some_and(SampleTrouble::hangs)
            }
        };
        self.report.poison_found += u64::from(ill == Some(SampleTrouble::Poison));
        if is_fair { Ok(()) } else { Err(self.broken(&format!("{task} did no harm at {at:?}"))) }
    }

    fn failed(&mut self, failure: RunFailure) {
        let count = match failure {
            RunFailure::TooManyDeaths => &mut self.report.failed_too_many_deaths,
            RunFailure::Death { .. } => &mut self.report.failed_death,
            RunFailure::CannotStart { .. } => &mut self.report.failed_cannot_start,
            RunFailure::DiesStarting { .. } => &mut self.report.failed_dies_starting,
            RunFailure::Refused { passing: true, .. } => &mut self.report.failed_refused_passing,
            RunFailure::Refused { passing: false, .. } => &mut self.report.failed_refused_lasting,
            RunFailure::ZygoteCannotStart => &mut self.report.failed_zygote,
            RunFailure::ZygoteHangs => &mut self.report.failed_zygote_hangs,
            RunFailure::DescriptorsClosed => &mut self.report.failed_descriptors_closed,
        };
        *count += 1;
        // Some consumers take long to notice, longer than closing may take.
        let reach = self.dice.one_of([1_000, 3_000_000]);
        let when = self.dice.micros(1, reach);
        self.at(when, SimulatedEvent::Closes);
    }

    /// Takes what is next in order, and submits more.
    fn consume(&mut self) -> Result<(), String> {
        if !self.promises.is_running() {
            // It has not seen yet that the run has ended; what it submits then is nobody's.
            let (task, worker_id) = (self.submitted, self.choose_worker());
            return self.notify(WorkerEvent::Submitted { task, worker_id });
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
            let (task, worker_id) = (self.submitted, self.choose_worker());
            self.submitted += 1;
            self.make_ill(task);
            self.notify(WorkerEvent::Submitted { task, worker_id })?;
        }
        if self.consumed == self.total {
            self.report.finished += u64::from(!self.close_sent);
            return self.close();
        }
        if self.promises.outcome(self.consumed).is_some() {
            let when = self.soon();
            self.at(when, SimulatedEvent::Consumes);
        } else {
            self.consumer_waits = true;
        }
        Ok(())
    }

    fn choose_worker(&mut self) -> Option<WorkerId> {
        let pins = match self.pinning {
            Pinning::Pinned => true,
            Pinning::Unpinned => false,
            Pinning::Mixed => self.dice.hits(500),
        };
        if !pins {
            return None;
        }
        let used: Vec<usize> =
            (0..self.in_use.len()).filter(|worker_id| self.in_use[*worker_id]).collect();
        let comes_back = used.is_empty() || self.dice.hits(if self.restless { 150 } else { 0 });
        let worker_id = if comes_back {
            self.dice.below(self.in_use.len() as u64) as usize
        } else {
            used[(self.submitted % used.len() as u64) as usize]
        };
        self.report.comebacks += u64::from(!self.in_use[worker_id]);
        self.in_use[worker_id] = true;
        Some(worker_id as WorkerId)
    }

    fn retire(&mut self, worker_id: WorkerId) -> Result<(), String> {
        if !self.promises.is_running() {
            return Ok(());
        }
        self.in_use[worker_id as usize] = false;
        self.report.retirements += 1;
        self.notify(WorkerEvent::Retire { worker_id })
    }

    fn close(&mut self) -> Result<(), String> {
        if self.close_sent {
            return Ok(());
        }
        self.close_sent = true;
        self.notify(WorkerEvent::Close)?;
        if self.stray() { self.notify(WorkerEvent::Close) } else { Ok(()) }
    }

    fn result(&mut self, task: TaskNumber) {
        if task == self.consumed && self.consumer_waits {
            self.consumer_waits = false;
            let when = self.soon();
            self.at(when, SimulatedEvent::Consumes);
        }
    }

    fn exit(&mut self) -> ExitKind {
        self.dice.one_of([
            ExitKind::Killed(SIGKILL),
            ExitKind::Killed(SIGSEGV),
            ExitKind::Exited(0),
            ExitKind::Exited(1),
        ])
    }

    fn worker(&mut self, incarnation: Incarnation) -> &mut SimulatedWorker {
        &mut self.workers[incarnation.worker_id as usize][incarnation.generation as usize]
    }

    /// All workers there ever were.
    fn incarnations(&self) -> impl Iterator<Item = Incarnation> + use<'_> {
        let worker_count = self.workers.iter().zip(0..);
        worker_count.flat_map(|(workers, worker_id)| {
            (0..workers.len() as u32).map(move |generation| Incarnation { worker_id, generation })
        })
    }

    fn soon(&mut self) -> Duration {
        let reach = self.dice.one_of([20, 500, 15_000]);
        self.dice.micros(1, reach)
    }

    fn at(&mut self, after: Duration, event: SimulatedEvent) {
        self.serial += 1;
        self.events.insert((self.now + after, self.serial), event);
    }

    /// A worker says something; what it said before comes before.
    fn say(&mut self, incarnation: Incarnation, happening: WorkerEvent) {
        let mut soon = self.soon();
        if self.dice.hits(self.rates.slow_message) {
            soon += self.dice.micros(0, 500_000);
        }
        let now = self.now;
        let worker = self.worker(incarnation);
        worker.last_out = worker.last_out.max(now + soon);
        let after = worker.last_out - now;
        self.at(after, SimulatedEvent::Tell(happening));
    }

    /// A worker is told something, after what it was told before.
    fn arrive(&mut self, incarnation: Incarnation, event: SimulatedEvent) {
        let soon = self.soon();
        let now = self.now;
        let worker = self.worker(incarnation);
        worker.last_in = worker.last_in.max(now + soon);
        let after = worker.last_in - now;
        self.at(after, event);
    }

    fn broken(&self, why: &str) -> String {
        let SimulatedWorld { seed, report, now, .. } = self;
        format!("seed {seed}, step {}, at {now:?}: {why}", report.steps)
    }
}
