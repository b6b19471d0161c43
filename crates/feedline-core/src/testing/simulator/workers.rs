//! Zygotes and workers as they are, which the supervisor learns later or never.

use std::collections::VecDeque;
use std::time::Duration;

use super::{SIGKILL, SLACK, SimulatedEvent, SimulatedWorld};
use crate::worker::supervisor::{
    ExitKind, Incarnation, Observation, TaskNumber, WorkerActivity, WorkerEvent,
};

/// What is wrong with a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SampleTrouble {
    /// It kills the worker that works on it.
    Poison,
    /// It kills this many times yet.
    Kills(u32),
    /// It kills who has worked before.
    KillsTired,
    /// It hangs the worker that works on it.
    Hangs,
    /// It hangs this many times yet.
    HangsTimes(u32),
}

impl SampleTrouble {
    pub(super) fn kills(self) -> bool {
        match self {
            SampleTrouble::Poison | SampleTrouble::Kills(_) | SampleTrouble::KillsTired => true,
            SampleTrouble::Hangs | SampleTrouble::HangsTimes(_) => false,
        }
    }

    pub(super) fn hangs(self) -> bool {
        !self.kills()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SimulatedState {
    Forking,
    Booting,
    Up,
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ZygoteState {
    Booting,
    Ready,
    Dead,
}

/// A zygote that does not answer.
pub(super) struct StuckZygote {
    /// It uses the processor all the same.
    pub(super) spins: bool,
    /// What waits until it goes on.
    backlog: Vec<SimulatedEvent>,
    /// Since when something was asked of it.
    asked: Option<Duration>,
}

/// How the work on a sample goes.
#[derive(Clone, Copy)]
enum SampleCourse {
    Ends,
    Dies,
    Hangs { asleep: bool },
}

/// A worker as it is.
pub(super) struct SimulatedWorker {
    pub(super) zygote: u64,
    pub(super) state: SimulatedState,
    /// Tasks, and at which position one is to be tried.
    pub(super) inbox: VecDeque<(TaskNumber, Option<u64>)>,
    /// The sample it is at.
    pub(super) at: Option<(TaskNumber, u64)>,
    /// Since when it does what it does.
    pub(super) since: Duration,
    pub(super) blocked: bool,
    asleep: bool,
    pub(super) stopped: bool,
    /// Samples it has come to the end of.
    done: u64,
    pub(super) hangs: bool,
    pub(super) stops: bool,
    leaves: bool,
    pub(super) kill_came: bool,
    /// When the last message to it arrives, and the last one from it: neither overtakes another.
    pub(super) last_in: Duration,
    pub(super) last_out: Duration,
}

impl SimulatedWorker {
    /// What its black box says, also when it is dead.
    pub(super) fn seen(&self) -> Observation {
        let work = match (self.state, self.at) {
            (_, Some(_)) if self.blocked => WorkerActivity::Blocked,
            (_, Some(_)) => WorkerActivity::Sample,
            (SimulatedState::Forking | SimulatedState::Booting, None) => WorkerActivity::Starting,
            (SimulatedState::Up | SimulatedState::Dead, None) => WorkerActivity::Waiting,
        };
        let (task, position) = self.at.unzip();
        let (asleep, stopped) = (self.asleep, self.stopped);
        Observation { task, position, since: self.since, work, asleep, stopped, is_dumping: false }
    }
}

/// Samples of a task.
fn samples(task: TaskNumber) -> u64 {
    1 + task % 3
}

impl SimulatedWorld {
    pub(super) fn start_zygote(&mut self, fresh: bool) {
        // Whatever the one before did, the engine has let go of it.
        self.zygotes_reported = self.zygotes;
        for worker in self.workers.iter_mut().flatten() {
            worker.state = SimulatedState::Dead;
        }
        self.zygotes += 1;
        self.zygote = ZygoteState::Booting;
        self.zygote_is_fresh = fresh;
        self.zygote_stuck = None;
        let zygote = self.zygotes;
        self.at(Duration::ZERO, SimulatedEvent::Tell(WorkerEvent::ZygoteStarted));
        if self.dice.hits(self.rates.zygote_hang) {
            self.report.hangs += 1;
            self.zygote_stuck =
                Some(StuckZygote { spins: false, backlog: Vec::new(), asked: None });
            return;
        }
        let when = self.dice.micros(100, 200_000);
        let fails = self.dice.hits(self.rates.zygote_failure);
        self.at(
            when,
            if fails {
                SimulatedEvent::ZygoteDies(zygote)
            } else {
                SimulatedEvent::ZygoteBoots(zygote)
            },
        );
    }

    pub(super) fn end_zygote(&mut self) {
        if self.dice.hits(200) {
            self.report.zygotes_stubborn += 1;
            return;
        }
        let soon = self.soon();
        self.at(soon, SimulatedEvent::ZygoteDies(self.zygotes));
    }

    pub(super) fn zygote_boots(&mut self, zygote: u64) {
        self.zygote = ZygoteState::Ready;
        let soon = self.soon();
        self.at(soon, SimulatedEvent::Tell(WorkerEvent::ZygoteReady));
        if self.dice.hits(self.rates.zygote_death) {
            let when = soon + self.dice.micros(0, 300_000);
            self.at(when, SimulatedEvent::ZygoteDies(zygote));
        }
        if self.dice.hits(self.rates.zygote_stuck) {
            let when = soon + self.dice.micros(0, 300_000);
            self.at(when, SimulatedEvent::ZygoteSticks(zygote));
        }
    }

    pub(super) fn zygote_sticks(&mut self, zygote: u64) {
        if zygote != self.zygotes || self.zygote != ZygoteState::Ready {
            return;
        }
        self.report.zygotes_stuck += 1;
        let spins = self.dice.hits(200);
        self.zygote_stuck = Some(StuckZygote { spins, backlog: Vec::new(), asked: None });
        if self.dice.hits(300) {
            let reach = self.dice.one_of([50_000, 3_000_000]);
            let when = self.dice.micros(0, reach);
            self.at(when, SimulatedEvent::ZygoteGoesOn(zygote));
        }
    }

    pub(super) fn zygote_goes_on(&mut self, zygote: u64) {
        if zygote != self.zygotes || self.zygote == ZygoteState::Dead {
            return;
        }
        if let Some(stuck) = self.zygote_stuck.take() {
            self.report.zygotes_went_on += 1;
            for event in stuck.backlog {
                self.at(Duration::ZERO, event);
            }
        }
    }

    pub(super) fn ping_arrives(&mut self, zygote: u64, number: u32) {
        if zygote == self.zygotes && self.zygote == ZygoteState::Ready {
            let soon = self.soon();
            self.at(soon, SimulatedEvent::Tell(WorkerEvent::ZygoteAnswered { ping: Some(number) }));
        }
    }

    /// What only the zygote does waits while it is stuck.
    pub(super) fn unless_stuck(&mut self, event: SimulatedEvent) -> Option<SimulatedEvent> {
        let of_zygote = match &event {
            SimulatedEvent::Forks(incarnation) | SimulatedEvent::KillArrives(incarnation) => {
                Some(*incarnation)
            }
            SimulatedEvent::Tell(
                WorkerEvent::Ended { incarnation, .. } | WorkerEvent::Refused { incarnation, .. },
            ) => Some(*incarnation),
            SimulatedEvent::PingArrives(..) => None,
            SimulatedEvent::Tell(_)
            | SimulatedEvent::ZygoteEndIsSeen(_)
            | SimulatedEvent::ZygoteBoots(_)
            | SimulatedEvent::ZygoteDies(_)
            | SimulatedEvent::ZygoteSticks(_)
            | SimulatedEvent::ZygoteGoesOn(_)
            | SimulatedEvent::Boots(_)
            | SimulatedEvent::TaskArrives(..)
            | SimulatedEvent::StopArrives(_)
            | SimulatedEvent::SampleEnds(_)
            | SimulatedEvent::Unblocks(_)
            | SimulatedEvent::Dies(..)
            | SimulatedEvent::Consumes
            | SimulatedEvent::Retires(_)
            | SimulatedEvent::Closes => return Some(event),
        };
        let zygotes = self.zygotes;
        if of_zygote.is_some_and(|incarnation| self.worker(incarnation).zygote != zygotes) {
            return Some(event);
        }
        let now = self.now;
        let Some(stuck) = &mut self.zygote_stuck else { return Some(event) };
        if matches!(event, SimulatedEvent::PingArrives(..)) {
            stuck.asked.get_or_insert(now);
        }
        stuck.backlog.push(event);
        None
    }

    /// Whether the zygote has owed an answer for longer than it may.
    pub(super) fn is_stuck_too_long(&self) -> bool {
        let Some(StuckZygote { spins: false, asked: Some(asked), .. }) = &self.zygote_stuck else {
            return false;
        };
        // It may have answered something else right before it got stuck.
        let latest = *asked + self.settings.zygote_patience + self.settings.dump_time * 7 + SLACK;
        let is_watched = self.promises.is_running() && self.promises.can_fork();
        is_watched && self.rates.blind == 0 && self.now > latest
    }

    /// All its workers die unseen; what they had said before still comes, maybe after the news of
    /// this.
    pub(super) fn zygote_dies(&mut self, zygote: u64) {
        if zygote != self.zygotes || self.zygote == ZygoteState::Dead {
            return;
        }
        let was_ready = self.zygote == ZygoteState::Ready;
        self.report.zygote_deaths += u64::from(was_ready);
        self.report.zygote_failures += u64::from(!was_ready);
        self.zygote = ZygoteState::Dead;
        self.zygote_stuck = None;
        let workers = self.workers.iter_mut().flatten();
        for worker in workers.filter(|worker| worker.zygote == zygote) {
            worker.state = SimulatedState::Dead;
        }
        let soon = self.soon();
        self.at(soon, SimulatedEvent::ZygoteEndIsSeen(zygote));
    }

    pub(super) fn fork(&mut self, incarnation: Incarnation) {
        let dead = self.zygote == ZygoteState::Dead;
        self.workers[incarnation.worker_id as usize].push(SimulatedWorker {
            zygote: self.zygotes,
            state: if dead { SimulatedState::Dead } else { SimulatedState::Forking },
            inbox: VecDeque::new(),
            at: None,
            since: self.now,
            blocked: false,
            asleep: false,
            stopped: false,
            done: 0,
            hangs: false,
            stops: false,
            leaves: false,
            kill_came: false,
            last_in: self.now,
            last_out: self.now,
        });
        let soon = self.soon();
        self.at(soon, SimulatedEvent::Forks(incarnation));
        if self.restless && self.dice.hits(100) {
            let soon = self.soon();
            self.at(soon, SimulatedEvent::Retires(incarnation.worker_id));
        }
    }

    /// Whether a worker was forked with a lock that nobody will open.
    fn falls_asleep(&mut self) -> bool {
        !self.zygote_is_fresh && self.dice.hits(self.rates.asleep)
    }

    pub(super) fn forks(&mut self, incarnation: Incarnation) {
        if self.worker(incarnation).state == SimulatedState::Dead {
            return;
        }
        let now = self.now;
        let drought = self.rates.drought.is_some_and(|(from, to)| from <= now && now < to);
        let lasting = self.dice.hits(self.rates.lasting_refusal);
        let is_successor = self.supervisor.incarnation(incarnation.worker_id) != Some(incarnation);
        if drought || lasting || self.dice.hits(self.rates.refusal) {
            let passing = !lasting;
            self.report.refusals_passing += u64::from(passing);
            self.report.refusals_lasting += u64::from(lasting);
            self.report.successors_failed += u64::from(is_successor);
            self.worker(incarnation).state = SimulatedState::Dead;
            self.say(incarnation, WorkerEvent::Refused { incarnation, passing });
            return;
        }
        self.worker(incarnation).state = SimulatedState::Booting;
        if self.worker(incarnation).kill_came {
            return self.die(incarnation, ExitKind::Killed(SIGKILL));
        }
        let falls_asleep = self.dice.hits(200) && self.falls_asleep();
        if falls_asleep || self.dice.hits(self.rates.boot_hang) {
            let stopped = self.dice.hits(300);
            let worker = self.worker(incarnation);
            worker.hangs = true;
            worker.asleep = falls_asleep;
            worker.stopped = stopped;
            self.report.hangs += 1;
            return;
        }
        let slow = self.dice.hits(self.rates.slow_start);
        self.report.slow_starts += u64::from(slow);
        let when = self.dice.micros(100, if slow { 20_000_000 } else { 50_000 });
        if self.dice.hits(self.rates.boot_death) {
            self.report.successors_failed += u64::from(is_successor);
            let exit = self.exit();
            return self.at(when, SimulatedEvent::Dies(incarnation, exit));
        }
        self.at(when, SimulatedEvent::Boots(incarnation));
    }

    pub(super) fn boots(&mut self, incarnation: Incarnation) {
        if self.worker(incarnation).state == SimulatedState::Dead {
            return;
        }
        let is_successor = self.supervisor.incarnation(incarnation.worker_id) != Some(incarnation);
        if self.dice.hits(self.rates.start_failure) {
            self.report.start_failures += 1;
            self.report.successors_failed += u64::from(is_successor);
            self.say(incarnation, WorkerEvent::StartFailed { incarnation });
            return self.die(incarnation, ExitKind::Exited(1));
        }
        self.report.successions += u64::from(is_successor);
        self.worker(incarnation).state = SimulatedState::Up;
        self.say(incarnation, WorkerEvent::Ready { incarnation });
        if self.dice.hits(self.rates.death_anytime) {
            let when = self.dice.micros(0, 200_000);
            let exit = self.exit();
            self.at(when, SimulatedEvent::Dies(incarnation, exit));
        }
    }

    /// Takes up the next task, or stops if it was asked to and has none.
    pub(super) fn work(&mut self, incarnation: Incarnation) {
        let now = self.now;
        let worker = self.worker(incarnation);
        if worker.state != SimulatedState::Up
            || worker.at.is_some()
            || worker.hangs
            || worker.leaves
        {
            return;
        }
        worker.since = now;
        let (next, stops) = (worker.inbox.front().copied(), worker.stops);
        if let Some((task, trial)) = next {
            self.begin_sample(incarnation, task, trial.unwrap_or(0));
        } else if stops {
            if self.dice.hits(self.rates.stop_hang) {
                self.worker(incarnation).hangs = true;
                self.report.hangs += 1;
            } else {
                self.worker(incarnation).leaves = true;
                let when = self.dice.micros(10, 20_000);
                let dies = self.dice.hits(self.rates.stop_death);
                let exit = if dies { self.exit() } else { ExitKind::Exited(0) };
                self.at(when, SimulatedEvent::Dies(incarnation, exit));
            }
        }
    }

    fn begin_sample(&mut self, incarnation: Incarnation, task: TaskNumber, position: u64) {
        let now = self.now;
        // Some die between two samples, where nothing can be blamed.
        if self.dice.hits(self.rates.work_death / 3) {
            let exit = self.exit();
            self.worker(incarnation).at = None;
            return self.die(incarnation, exit);
        }
        let blocks = self.dice.hits(self.rates.blocked);
        let worker = self.worker(incarnation);
        worker.at = Some((task, position));
        worker.since = now;
        worker.blocked = blocks;
        if blocks {
            if self.dice.hits(60) {
                let stopped = self.dice.hits(500);
                let worker = self.worker(incarnation);
                worker.hangs = true;
                worker.stopped = stopped;
                self.report.hangs += 1;
                return;
            }
            let when = self.dice.micros(100, 3_000_000);
            return self.at(when, SimulatedEvent::Unblocks(incarnation));
        }
        self.take_course(incarnation, task, position);
    }

    pub(super) fn unblocks(&mut self, incarnation: Incarnation) {
        let now = self.now;
        let worker = self.worker(incarnation);
        if worker.state == SimulatedState::Dead {
            return;
        }
        worker.blocked = false;
        worker.since = now;
        if let Some((task, position)) = worker.at {
            self.take_course(incarnation, task, position);
        }
    }

    fn take_course(&mut self, incarnation: Incarnation, task: TaskNumber, position: u64) {
        let course = self.course(incarnation, task, position);
        let is_slow = self.dice.hits(self.rates.slow_sample);
        let when = self.dice.micros(10, if is_slow { 3_000_000 } else { 20_000 });
        let exit = self.exit();
        match course {
            SampleCourse::Ends => self.at(when, SimulatedEvent::SampleEnds(incarnation)),
            SampleCourse::Dies => self.at(when, SimulatedEvent::Dies(incarnation, exit)),
            SampleCourse::Hangs { asleep } => {
                let worker = self.worker(incarnation);
                worker.hangs = true;
                worker.asleep = asleep;
                self.report.hangs += 1;
            }
        }
    }

    fn course(
        &mut self,
        incarnation: Incarnation,
        task: TaskNumber,
        position: u64,
    ) -> SampleCourse {
        let is_first = self.worker(incarnation).done == 0;
        if is_first && self.falls_asleep() {
            return SampleCourse::Hangs { asleep: true };
        }
        if let Some(ill) = self.ills.get_mut(&(task, position)) {
            match ill {
                SampleTrouble::Poison => return SampleCourse::Dies,
                SampleTrouble::KillsTired if !is_first => return SampleCourse::Dies,
                SampleTrouble::Hangs => return SampleCourse::Hangs { asleep: self.dice.hits(300) },
                SampleTrouble::Kills(times) if *times > 0 => {
                    *times -= 1;
                    return SampleCourse::Dies;
                }
                SampleTrouble::HangsTimes(times) if *times > 0 => {
                    *times -= 1;
                    return SampleCourse::Hangs { asleep: false };
                }
                SampleTrouble::KillsTired
                | SampleTrouble::Kills(_)
                | SampleTrouble::HangsTimes(_) => {}
            }
        }
        if self.dice.hits(self.rates.work_hang) {
            SampleCourse::Hangs { asleep: self.dice.hits(300) }
        } else if self.dice.hits(self.rates.work_death) {
            SampleCourse::Dies
        } else {
            SampleCourse::Ends
        }
    }

    /// Deals out what is wrong with a task.
    pub(super) fn make_ill(&mut self, task: TaskNumber) {
        for position in 0..samples(task) {
            let times = self.dice.from(1, 2) as u32;
            let ills = [
                (self.rates.poison / 2, SampleTrouble::Poison),
                (self.rates.flaky_killer, SampleTrouble::Kills(times)),
                (self.rates.tired_killer, SampleTrouble::KillsTired),
                (self.rates.hanging / 2, SampleTrouble::Hangs),
                (self.rates.hangs_once, SampleTrouble::HangsTimes(1)),
            ];
            for (rate, ill) in ills {
                if self.dice.hits(rate) {
                    self.ills.insert((task, position), ill);
                    break;
                }
            }
        }
    }

    pub(super) fn sample_ends(&mut self, incarnation: Incarnation) {
        let now = self.now;
        let worker = self.worker(incarnation);
        if worker.state == SimulatedState::Dead {
            return;
        }
        worker.done += 1;
        worker.since = now;
        let Some((task, position)) = worker.at.take() else { return };
        let trial = worker.inbox.front().and_then(|(_, trial)| *trial);
        if trial.is_none() && position + 1 < samples(task) {
            return self.begin_sample(incarnation, task, position + 1);
        }
        if trial.is_some() && !self.dice.hits(50) {
            self.worker(incarnation).inbox.pop_front();
            self.report.trials_survived += 1;
            self.say(incarnation, WorkerEvent::Survived { incarnation, task });
            return self.work(incarnation);
        }
        self.report.trials_answered += u64::from(trial.is_some());
        self.finishes(incarnation);
    }

    fn finishes(&mut self, incarnation: Incarnation) {
        let length = self.worker(incarnation).inbox.len();
        let overtakes = length > 1 && self.dice.hits(self.rates.disorder);
        self.report.overtakings += u64::from(overtakes);
        let place = if overtakes { length - 1 } else { 0 };
        let (task, _) =
            self.worker(incarnation).inbox.remove(place).expect("it was working on one");
        self.say(incarnation, WorkerEvent::TaskDone { incarnation, task });
        if self.dice.hits(self.rates.leak) {
            self.report.leaks += 1;
            let soon = self.soon();
            self.at(soon, SimulatedEvent::Tell(WorkerEvent::Renew { incarnation }));
        }
        if self.dice.hits(self.rates.death_after_answer) {
            let exit = self.exit();
            return self.die(incarnation, exit);
        }
        self.work(incarnation);
    }

    pub(super) fn die(&mut self, incarnation: Incarnation, exit: ExitKind) {
        let worker = self.worker(incarnation);
        if worker.state == SimulatedState::Dead {
            return;
        }
        worker.state = SimulatedState::Dead;
        let at = worker.at.map(|(_, position)| position);
        if self.dice.hits(500) {
            self.say(incarnation, WorkerEvent::HungUp { incarnation });
        }
        self.say(incarnation, WorkerEvent::Ended { incarnation, exit, at });
    }

    pub(super) fn kill(&mut self, incarnation: Incarnation) {
        let state = self.worker(incarnation).state;
        let booting = matches!(state, SimulatedState::Forking | SimulatedState::Booting);
        let running = self.promises.is_running();
        let overdue = running && self.worker(incarnation).at.is_some();
        self.report.kills_booting += u64::from(booting);
        self.report.kills_overdue += u64::from(overdue);
        self.report.kills_retired += u64::from(running && !overdue);
        self.report.kills_after_grace += u64::from(!booting && !running);
        let mut when = self.soon();
        if self.dice.hits(self.rates.slow_kill) {
            self.report.kills_too_slow += 1;
            when += self.settings.grace * 4;
        }
        self.at(when, SimulatedEvent::KillArrives(incarnation));
        let born = !matches!(state, SimulatedState::Forking | SimulatedState::Dead);
        if born && self.dice.hits(self.rates.death_while_killed) {
            self.report.deaths_while_killed += 1;
            let exit = self.exit();
            self.at(when / 2, SimulatedEvent::Dies(incarnation, exit));
        }
    }
}
