//! A simulated world of failures for the supervisor: a zygote, workers and a consumer that act as a
//! seed decides, and a clock that costs no real time. `promises` checks each step. A seed always
//! gives the same run.

mod consumer;
mod hang;
mod impossible;
mod workers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::failure_rates::{FailureRates, Random};
use super::promises::PromiseChecker;
pub use super::tally::SimulationReport;
use crate::worker::supervisor::{
    Deadline, ExitKind, GiveUpReason, Incarnation, RunFailure, Supervisor, SupervisorAction,
    SupervisorSettings, TaskNumber, WorkerEvent, WorkerId, WorkerStage,
};
use workers::{SampleTrouble, SimulatedState, SimulatedWorker, StuckZygote, ZygoteState};

const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
/// The steps after which the consumer closes a run that nothing else ends.
const MAX_STEPS_BEFORE_CLOSE: u64 = 1_500;
/// The steps that no run may exceed.
const MAX_STEPS: u64 = 100_000;
/// How many times the clock alone may advance before a hanging worker is killed or the run is
/// closed; for a learned deadline, workers are looked at more often.
const MAX_LOOKS_IN_A_ROW: u32 = 12;
const MAX_LEARNED_LOOKS_IN_A_ROW: u32 = 300;
/// How late a look may be, in total.
const SLACK: Duration = Duration::from_millis(50);

/// Simulates one run. The error contains the seed, the step and the broken promise.
pub fn run(seed: u64) -> Result<SimulationReport, String> {
    SimulatedWorld::new(seed, false).run()
}

/// Simulates one run and returns a log of all its events and actions.
pub fn trace(seed: u64) -> (Result<SimulationReport, String>, Vec<String>) {
    let mut world = SimulatedWorld::new(seed, true);
    let outcome = world.run();
    (outcome, world.log)
}

/// How the consumer submits tasks.
#[derive(Clone, Copy, Debug)]
enum Pinning {
    Pinned,
    Unpinned,
    Mixed,
}

/// Something that happens in the world at a certain time.
enum SimulatedEvent {
    Deliver(WorkerEvent),
    ZygoteEndIsSeen(u64),
    ZygoteBoots(u64),
    ZygoteDies(u64),
    ZygoteSticks(u64),
    ZygoteContinues(u64),
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
    random: Random,
    now: Duration,
    rates: FailureRates,
    settings: SupervisorSettings,
    supervisor: Supervisor,
    promises: PromiseChecker,
    report: SimulationReport,
    events: BTreeMap<(Duration, u64), SimulatedEvent>,
    serial: u64,
    zygote: ZygoteState,
    zygote_is_fresh: bool,
    zygote_stuck: Option<StuckZygote>,
    /// When the last message to the zygote arrives.
    zygote_last_in: Duration,
    /// Counts zygotes. `zygotes_reported` is the newest one whose end the supervisor knows.
    zygotes: u64,
    zygotes_reported: u64,
    /// Processes by worker, then by generation.
    workers: Vec<Vec<SimulatedWorker>>,
    /// What is wrong with samples, by task and offset.
    troubles: HashMap<(TaskNumber, u64), SampleTrouble>,
    /// How many times a sample that always kills has killed, as far as the supervisor knows.
    kills: HashMap<(TaskNumber, u64), u32>,
    /// How many times in a row the clock alone advanced.
    looks_in_a_row: u32,
    /// Steps that only looked at workers or advanced the clock.
    quiet_steps: u64,
    pinning: Pinning,
    /// The workers to which the consumer pins tasks.
    in_use: Vec<bool>,
    /// Whether workers retire and are needed again.
    retires_workers: bool,
    total: TaskNumber,
    prefetch: u64,
    submitted: TaskNumber,
    consumed: TaskNumber,
    consumer_waits: bool,
    close_sent: bool,
    /// Whether a signal from outside killed a worker that hung.
    killed_from_outside: bool,
    /// How long the slowest sample took.
    longest_sample: Duration,
    traced: bool,
    log: Vec<String>,
}

impl SimulatedWorld {
    fn new(seed: u64, traced: bool) -> SimulatedWorld {
        let mut random = Random(seed);
        let limit = random.one_of([50_000, 5_000_000, 60_000_000]);
        let within = random.micros(1_000, limit);
        let limit = random.one_of([30_000, 4_000_000]);
        let refused_for = random.micros(1, limit);
        let settings = SupervisorSettings {
            worker_count: random.from(1, 8) as u32,
            depth: random.from(1, 3) as u32,
            max_deaths: random.one_of([0, 1, 3, 5, 20, 100]),
            within,
            attempts: random.chance(500).then(|| random.from(1, 3) as u32),
            refused_for,
            grace: random.micros(1_000, 500_000),
            replace: !random.chance(150),
            suspect_after: random.chance(700).then(|| random.from(1, 3) as u32),
            deadline: hang::draw_deadline(&mut random),
            start_limit: random.micros(25_000, 5_000_000),
            hangs: random.from(1, 3) as u32,
            stall: random.chance(400).then(|| random.micros(25_000, 2_000_000)),
            dump_time: random.micros(1_000, 300_000),
            may_be_fresh: random.chance(500),
            zygote_patience: random.micros(60_000, 2_000_000),
            zygote_start: random.micros(60_000, 5_000_000),
        };
        let rates = FailureRates::new(&mut random);
        let pinning = random.one_of([Pinning::Pinned, Pinning::Unpinned, Pinning::Mixed]);
        let worker_count = settings.worker_count as usize;
        let longest = random.one_of([8, 40, 200]);
        let mut world = SimulatedWorld {
            seed,
            now: Duration::ZERO,
            supervisor: Supervisor::new(settings.clone()),
            promises: PromiseChecker::new(&settings),
            report: SimulationReport::default(),
            events: BTreeMap::new(),
            serial: 0,
            zygote: ZygoteState::Dead,
            zygote_is_fresh: false,
            zygote_stuck: None,
            zygote_last_in: Duration::ZERO,
            troubles: HashMap::new(),
            kills: HashMap::new(),
            looks_in_a_row: 0,
            quiet_steps: 0,
            zygotes: 0,
            zygotes_reported: 0,
            workers: (0..worker_count).map(|_| Vec::new()).collect(),
            pinning,
            in_use: vec![true; worker_count],
            retires_workers: random.chance(300),
            total: random.from(1, longest),
            prefetch: random.from(1, 2 * worker_count as u64 + 2),
            submitted: 0,
            consumed: 0,
            consumer_waits: false,
            close_sent: false,
            killed_from_outside: false,
            longest_sample: Duration::ZERO,
            traced,
            log: Vec::new(),
            rates,
            settings,
            random,
        };
        world.plan();
        world
    }

    /// Schedules the events that do not depend on the course of the run.
    fn plan(&mut self) {
        self.report.failure_free += u64::from(self.rates == FailureRates::default());
        let first = self.soon();
        self.at(first, SimulatedEvent::Consumes);
        if self.random.chance(200) {
            let limit = self.random.one_of([1_000, 100_000, 1_000_000]);
            let when = self.random.micros(0, limit);
            self.at(when, SimulatedEvent::Closes);
        }
        if self.random.chance(self.rates.closed_descriptors) {
            let when = self.random.micros(0, 300_000);
            self.at(when, SimulatedEvent::Deliver(WorkerEvent::DescriptorsClosed));
        }
        if self.retires_workers {
            for _ in 0..self.random.from(1, 6) {
                let when = self.random.micros(0, 400_000);
                let worker_id = self.random.below(self.in_use.len() as u64) as WorkerId;
                self.at(when, SimulatedEvent::Retires(worker_id));
                if self.random.chance(500) {
                    let after = self.random.micros(0, 400_000);
                    let restored = WorkerEvent::Restore { worker_id };
                    self.report.restored += 1;
                    self.at(when + after, SimulatedEvent::Deliver(restored));
                }
            }
        }
        if self.random.chance(400) {
            for _ in 0..self.random.from(1, 4) {
                let when = self.random.micros(0, 400_000);
                let at_once = self.random.from(0, self.in_use.len() as u64) as u32;
                let ends_others = self.random.chance(300);
                self.report.limited += 1;
                let limited = WorkerEvent::LimitWorkers { at_once, ends_others };
                self.at(when, SimulatedEvent::Deliver(limited));
            }
        }
        if self.traced {
            let settings = format!("{:?} {:?} {:?}", self.settings, self.rates, self.pinning);
            self.log.push(format!("{settings}, {} tasks, {} ahead", self.total, self.prefetch));
        }
    }

    fn run(&mut self) -> Result<SimulationReport, String> {
        let actions = self.supervisor.start(self.now);
        let verdict = self.promises.check_start(&actions);
        verdict.map_err(|why| self.broken(&why))?;
        self.act(actions)?;
        let max_looks = match self.settings.deadline {
            Deadline::Never | Deadline::After(_) => MAX_LOOKS_IN_A_ROW,
            Deadline::Learned(_) => MAX_LEARNED_LOOKS_IN_A_ROW,
        };
        loop {
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let deadline = self.supervisor.next_deadline();
            match (event, deadline) {
                (None, Some(_))
                    if self.looks_in_a_row > max_looks && self.promises.is_running() =>
                {
                    self.looks_in_a_row = 0;
                    self.nothing_happens()?;
                }
                (_, Some(at)) if event.is_none_or(|event| at <= event) => {
                    // Timers fire late. Closing has a guaranteed limit, so it gets no slack.
                    let late = self.promises.is_running() && self.random.chance(200);
                    let slack = if late { self.soon() } else { Duration::ZERO };
                    self.now = self.now.max(at + slack);
                    self.looks_in_a_row += 1;
                    self.check_processes()?;
                    self.notify(WorkerEvent::TimePassed)?;
                }
                (Some(_), _) => {
                    let ((at, _), event) = self.events.pop_first().expect("there is one");
                    self.now = self.now.max(at);
                    self.looks_in_a_row = 0;
                    self.apply(event)?;
                }
                (None, _) if self.promises.is_closed() => break,
                (None, _) => self.nothing_happens()?,
            }
            if self.report.steps - self.quiet_steps >= MAX_STEPS_BEFORE_CLOSE && !self.close_sent {
                if self.report.failure_free > 0 {
                    return Err(self.broken("a run without failures does not end"));
                }
                self.report.closed_impatient += 1;
                self.close()?;
            }
            if self.report.steps >= MAX_STEPS {
                return Err(self.broken("the run does not end"));
            }
        }
        self.report.resent = self.promises.resent;
        self.report.held_back = self.promises.held_back;
        self.report.surplus_ended = self.promises.surplus_ended;
        self.check_end()
    }

    /// No event is scheduled, so the run must be waiting for a process that hangs.
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
            Some(incarnation) if self.random.chance(600) => {
                self.killed_from_outside = true;
                self.apply(SimulatedEvent::Dies(incarnation, ExitKind::Killed(SIGKILL)))
            }
            None if self.zygote_stuck.is_none() => {
                Err(self.broken("the consumer waits, but no event is scheduled"))
            }
            Some(_) | None => {
                self.report.closed_hanging += 1;
                self.close()
            }
        }
    }

    fn check_end(&mut self) -> Result<SimulationReport, String> {
        // The workers of a stuck zygote are killed when the trainer drops it.
        let left = self.incarnations().find(|incarnation| {
            let worker =
                &self.workers[incarnation.worker_id as usize][incarnation.generation as usize];
            worker.state != SimulatedState::Dead && self.zygote_stuck.is_none()
        });
        match left {
            Some(incarnation) => Err(self.broken(&format!("{incarnation:?} is still alive"))),
            None => Ok(self.report),
        }
    }

    fn apply(&mut self, event: SimulatedEvent) -> Result<(), String> {
        let Some(event) = self.unless_stuck(event) else { return Ok(()) };
        match event {
            SimulatedEvent::Deliver(event) => return self.deliver(event),
            SimulatedEvent::ZygoteEndIsSeen(zygote) => {
                if zygote > self.zygotes_reported {
                    self.zygotes_reported = zygote;
                    return self.deliver(WorkerEvent::ZygoteEnded);
                }
            }
            SimulatedEvent::ZygoteBoots(zygote) => self.zygote_boots(zygote),
            SimulatedEvent::ZygoteDies(zygote) => self.zygote_dies(zygote),
            SimulatedEvent::ZygoteSticks(zygote) => self.zygote_sticks(zygote),
            SimulatedEvent::ZygoteContinues(zygote) => self.zygote_continues(zygote),
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
                self.worker(incarnation).kill_arrived = true;
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

    /// Delivers a message to the supervisor, if it can still arrive.
    fn deliver(&mut self, event: WorkerEvent) -> Result<(), String> {
        match event {
            WorkerEvent::Ended { incarnation, exit, shortage, .. } => {
                let reaped = self.worker(incarnation).zygote > self.zygotes_reported;
                if !reaped && !self.stray() {
                    return Ok(());
                }
                if !shortage.is_some_and(|kind| self.promises.is_blameless(incarnation, exit, kind))
                {
                    self.count_kill(incarnation)?;
                }
            }
            WorkerEvent::TaskDone { incarnation, task } => {
                let late = self.promises.is_running() && self.promises.is_killed(incarnation);
                self.report.answers_overdue +=
                    u64::from(late && self.promises.is_assigned(incarnation, task));
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
            | WorkerEvent::LongestSample { .. }
            | WorkerEvent::Observed { .. }
            | WorkerEvent::Renew { .. }
            | WorkerEvent::RoomSeen { .. }
            | WorkerEvent::Retire { .. }
            | WorkerEvent::Restore { .. }
            | WorkerEvent::LimitWorkers { .. }
            | WorkerEvent::TimePassed
            | WorkerEvent::Close => {}
        }
        self.notify(event)?;
        if self.stray() {
            self.notify_impossible(event)?;
        }
        Ok(())
    }

    /// One trial must be enough to detect a sample that always kills.
    fn count_kill(&mut self, incarnation: Incarnation) -> Result<(), String> {
        let is_own = self.promises.is_running()
            && self.promises.can_fork()
            && self.promises.is_open(incarnation)
            && !self.promises.is_killed(incarnation);
        let Some(sample) = self.worker(incarnation).at.filter(|_| is_own) else { return Ok(()) };
        if self.troubles.get(&sample) != Some(&SampleTrouble::Poison) {
            return Ok(());
        }
        let times = self.kills.entry(sample).or_default();
        *times += 1;
        let too_often = self.settings.suspect_after.is_some_and(|enough| *times > enough + 1);
        if too_often {
            Err(self.broken(&format!("{sample:?} kills too many times")))
        } else {
            Ok(())
        }
    }

    /// One step: the supervisor decides, the promises are checked, the world changes.
    fn notify(&mut self, event: WorkerEvent) -> Result<(), String> {
        self.report.steps += 1;
        let is_quiet = matches!(
            event,
            WorkerEvent::TimePassed | WorkerEvent::Observed { .. } | WorkerEvent::ZygoteSeen { .. }
        );
        self.quiet_steps += u64::from(is_quiet);
        let actions = self.supervisor.handle(event, self.now);
        if self.traced {
            self.log.push(format!("{:>12?} {event:?}", self.now));
            self.log.extend(actions.iter().map(|action| format!("{:>14} {action:?}", "->")));
        }
        let verdict = self.promises.check(event, &actions, self.now, &self.supervisor);
        verdict.map_err(|why| self.broken(&format!("{event:?} made {actions:?}: {why}")))?;
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

    /// Whether a worker has spent longer on a sample than allowed.
    fn is_hanging_too_long(&self, incarnation: Incarnation) -> bool {
        let worker = &self.workers[incarnation.worker_id as usize][incarnation.generation as usize];
        let Some((task, _)) = worker.at else { return false };
        let Some(latest) = self.latest_kill(worker) else { return false };
        let is_watched = self.promises.is_running()
            && self.promises.can_fork()
            && self.promises.is_assigned(incarnation, task)
            && !self.promises.is_killed(incarnation);
        let is_late = !worker.blocked || worker.stopped;
        is_watched && is_late && self.rates.missed_look == 0 && self.now > latest
    }

    /// Looks at the workers that the supervisor asks for.
    fn check_processes(&mut self) -> Result<(), String> {
        if self.supervisor.must_check_zygote(self.now)
            && !self.random.chance(self.rates.missed_look)
        {
            let ran = self.zygote_stuck.as_ref().is_none_or(|stuck| stuck.spins);
            self.notify(WorkerEvent::ZygoteSeen { ran })?;
        }
        if self.supervisor.must_check_room(self.now).is_some()
            && !self.random.chance(self.rates.missed_look)
        {
            let is_enough = self.random.chance(600);
            self.notify(WorkerEvent::RoomSeen { is_enough })?;
        }
        let mut incarnations = self.supervisor.workers_to_check(self.now);
        if self.stray() {
            // An unrequested look.
            let worker_id = self.random.below(self.in_use.len() as u64) as WorkerId;
            incarnations.extend(self.supervisor.incarnations(worker_id));
        }
        for incarnation in incarnations {
            if self.random.chance(self.rates.missed_look) {
                self.report.looks_missed += 1;
                continue;
            }
            self.report.looks += 1;
            let now = self.now;
            let seen = self.worker(incarnation).seen(now);
            self.notify(WorkerEvent::Observed { incarnation, seen })?;
        }
        Ok(())
    }

    fn act(&mut self, actions: Vec<SupervisorAction>) -> Result<(), String> {
        for action in actions {
            match action {
                SupervisorAction::StartZygote { fresh } => self.start_zygote(fresh),
                SupervisorAction::EndZygote => self.end_zygote(),
                SupervisorAction::PingZygote { number } => {
                    // Messages to the zygote stay in order.
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
                    self.send_to(
                        incarnation,
                        SimulatedEvent::TaskArrives(incarnation, task, trial),
                    );
                }
                SupervisorAction::Stop { incarnation } => {
                    self.send_to(incarnation, SimulatedEvent::StopArrives(incarnation))
                }
                SupervisorAction::Kill { incarnation } => {
                    self.check_learned_kill(incarnation)?;
                    self.kill(incarnation);
                }
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
                SupervisorAction::RestartedFresh { .. } => self.report.fresh_restarts += 1,
                SupervisorAction::CapacityChanged { shortage, .. } => {
                    self.report.capacity_reduced += u64::from(shortage.is_some());
                    self.report.capacity_increased += u64::from(shortage.is_none());
                }
                SupervisorAction::Renewed { .. } => self.report.renewed += 1,
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

    /// Checks that a task deserves to be given up, if only its own samples are at fault.
    fn check_blame(
        &mut self,
        task: TaskNumber,
        at: Option<u64>,
        why: GiveUpReason,
    ) -> Result<(), String> {
        let trouble = at.and_then(|at| self.troubles.get(&(task, at)).copied());
        let rates = &self.rates;
        let is_fair = match why {
            GiveUpReason::Kills => {
                self.report.given_up_for_kills += 1;
                let others = rates.work_death + rates.death_anytime + rates.death_after_answer;
                self.killed_from_outside || others > 0 || trouble.is_some_and(SampleTrouble::kills)
            }
            GiveUpReason::Hangs => {
                self.report.given_up_for_hangs += 1;
                // A dead worker, too, seems to hang at its sample until its end is reported.
                let others =
                    rates.work_hang + rates.slow_sample + rates.asleep + rates.slow_message;
                others + rates.zygote_stuck + rates.blocked > 0
                    || trouble.is_some_and(SampleTrouble::hangs)
            }
        };
        self.report.poison_found += u64::from(trouble == Some(SampleTrouble::Poison));
        if is_fair {
            Ok(())
        } else {
            Err(self.broken(&format!("{task} is not to blame at {at:?}")))
        }
    }

    fn failed(&mut self, failure: RunFailure) {
        let count = match failure {
            RunFailure::TooManyDeaths => &mut self.report.failed_too_many_deaths,
            RunFailure::Death { .. } => &mut self.report.failed_death,
            RunFailure::CannotStart { .. } => &mut self.report.failed_cannot_start,
            RunFailure::DiesStarting { .. } => &mut self.report.failed_dies_starting,
            RunFailure::Refused { transient: true, .. } => {
                &mut self.report.failed_refused_transient
            }
            RunFailure::Refused { transient: false, .. } => {
                &mut self.report.failed_refused_permanent
            }
            RunFailure::ZygoteCannotStart => &mut self.report.failed_zygote,
            RunFailure::ZygoteHangs => &mut self.report.failed_zygote_hangs,
            RunFailure::DescriptorsClosed => &mut self.report.failed_descriptors_closed,
        };
        *count += 1;
        // Some consumers are slow to notice, slower than closing may be.
        let limit = self.random.one_of([1_000, 3_000_000]);
        let when = self.random.micros(1, limit);
        self.at(when, SimulatedEvent::Closes);
    }

    fn result(&mut self, task: TaskNumber) {
        if task == self.consumed && self.consumer_waits {
            self.consumer_waits = false;
            let when = self.soon();
            self.at(when, SimulatedEvent::Consumes);
        }
    }

    fn exit(&mut self) -> ExitKind {
        self.random.one_of([
            ExitKind::Killed(SIGKILL),
            ExitKind::Killed(SIGSEGV),
            ExitKind::Exited(0),
            ExitKind::Exited(1),
        ])
    }

    fn worker(&mut self, incarnation: Incarnation) -> &mut SimulatedWorker {
        &mut self.workers[incarnation.worker_id as usize][incarnation.generation as usize]
    }

    /// All processes that ever existed.
    fn incarnations(&self) -> impl Iterator<Item = Incarnation> + use<'_> {
        let worker_count = self.workers.iter().zip(0..);
        worker_count.flat_map(|(workers, worker_id)| {
            (0..workers.len() as u32).map(move |generation| Incarnation { worker_id, generation })
        })
    }

    fn soon(&mut self) -> Duration {
        let limit = self.random.one_of([20, 500, 15_000]);
        self.random.micros(1, limit)
    }

    fn at(&mut self, after: Duration, event: SimulatedEvent) {
        self.serial += 1;
        self.events.insert((self.now + after, self.serial), event);
    }

    /// Sends an event from a worker; its events stay in order.
    fn send_event(&mut self, incarnation: Incarnation, event: WorkerEvent) {
        let mut soon = self.soon();
        if self.random.chance(self.rates.slow_message) {
            soon += self.random.micros(0, 500_000);
        }
        let now = self.now;
        let worker = self.worker(incarnation);
        worker.last_out = worker.last_out.max(now + soon);
        let after = worker.last_out - now;
        self.at(after, SimulatedEvent::Deliver(event));
    }

    /// Sends a message to a worker; its messages stay in order.
    fn send_to(&mut self, incarnation: Incarnation, event: SimulatedEvent) {
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
