//! The true state of zygotes and workers, which the supervisor learns later or never.

use std::collections::VecDeque;
use std::time::Duration;

use super::{SIGKILL, SLACK, SimulatedEvent, SimulatedWorld};
use crate::worker::supervisor::{
    ExitKind, Incarnation, Observation, Shortage, TaskNumber, WorkerActivity, WorkerEvent,
};

/// What is wrong with a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SampleTrouble {
    /// It kills every worker that loads it.
    Poison,
    /// It kills this many more times.
    Kills(u32),
    /// It kills workers that have worked before.
    KillsTired,
    /// It hangs every worker that loads it.
    Hangs,
    /// It hangs this many more times.
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
    /// Whether it uses the processor nevertheless.
    pub(super) spins: bool,
    /// Events that wait until it continues.
    backlog: Vec<SimulatedEvent>,
    /// Since when a request is pending.
    pub(super) asked: Option<Duration>,
}

/// What happens to a worker that loads a sample.
#[derive(Clone, Copy)]
enum SampleOutcome {
    Ends,
    Dies,
    Hangs { asleep: bool },
}

/// The true state of a worker.
pub(super) struct SimulatedWorker {
    pub(super) zygote: u64,
    pub(super) state: SimulatedState,
    /// Tasks, each with the offset of its sample to be tried, if it is a trial.
    pub(super) inbox: VecDeque<(TaskNumber, Option<u64>)>,
    /// The sample in progress.
    pub(super) at: Option<(TaskNumber, u64)>,
    /// When the current activity began.
    pub(super) since: Duration,
    pub(super) blocked: bool,
    asleep: bool,
    pub(super) stopped: bool,
    /// Until when it uses the processor, if it does.
    pub(super) busy_until: Duration,
    /// When it was looked at last.
    looked_at: Option<Duration>,
    /// The number of samples it has finished.
    done: u64,
    pub(super) hangs: bool,
    pub(super) stops: bool,
    is_exiting: bool,
    pub(super) kill_arrived: bool,
    /// When the last message to it arrives, and the last one from it: messages stay in order.
    pub(super) last_in: Duration,
    pub(super) last_out: Duration,
}

impl SimulatedWorker {
    /// The content of its black box, even after its death, and what it has done since the last check.
    pub(super) fn seen(&mut self, now: Duration) -> Observation {
        let last = self.looked_at.replace(now);
        let is_alive = self.state != SimulatedState::Dead;
        let has_progressed = is_alive && last.is_none_or(|last| self.busy_until > last);
        let work = match (self.state, self.at) {
            (_, Some(_)) if self.blocked => WorkerActivity::Blocked,
            (_, Some(_)) => WorkerActivity::Sample,
            (SimulatedState::Forking | SimulatedState::Booting, None) => WorkerActivity::Starting,
            (SimulatedState::Up | SimulatedState::Dead, None) => WorkerActivity::Waiting,
        };
        let (task, offset) = self.at.unzip();
        let (asleep, stopped) = (self.asleep, self.stopped);
        Observation {
            task,
            offset,
            since: self.since,
            work,
            asleep,
            stopped,
            is_dumping: false,
            has_progressed,
        }
    }
}

/// The number of samples of a task.
fn samples(task: TaskNumber) -> u64 {
    1 + task % 3
}

impl SimulatedWorld {
    pub(super) fn start_zygote(&mut self, fresh: bool) {
        // Whatever the previous zygote did, the dispatcher has dropped it.
        self.zygotes_reported = self.zygotes;
        for worker in self.workers.iter_mut().flatten() {
            worker.state = SimulatedState::Dead;
        }
        self.zygotes += 1;
        self.zygote = ZygoteState::Booting;
        self.zygote_is_fresh = fresh;
        self.zygote_stuck = None;
        let zygote = self.zygotes;
        self.at(Duration::ZERO, SimulatedEvent::Deliver(WorkerEvent::ZygoteStarted));
        if self.random.chance(self.rates.zygote_hang) {
            self.report.hangs += 1;
            self.zygote_stuck =
                Some(StuckZygote { spins: false, backlog: Vec::new(), asked: None });
            return;
        }
        let when = self.random.micros(100, 200_000);
        let fails = self.random.chance(self.rates.zygote_failure);
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
        if self.random.chance(200) {
            self.report.zygotes_stubborn += 1;
            return;
        }
        let soon = self.soon();
        self.at(soon, SimulatedEvent::ZygoteDies(self.zygotes));
    }

    pub(super) fn zygote_boots(&mut self, zygote: u64) {
        self.zygote = ZygoteState::Ready;
        let soon = self.soon();
        self.at(soon, SimulatedEvent::Deliver(WorkerEvent::ZygoteReady));
        if self.random.chance(self.rates.zygote_death) {
            let when = soon + self.random.micros(0, 300_000);
            self.at(when, SimulatedEvent::ZygoteDies(zygote));
        }
        if self.random.chance(self.rates.zygote_stuck) {
            let when = soon + self.random.micros(0, 300_000);
            self.at(when, SimulatedEvent::ZygoteSticks(zygote));
        }
    }

    pub(super) fn zygote_sticks(&mut self, zygote: u64) {
        if zygote != self.zygotes || self.zygote != ZygoteState::Ready {
            return;
        }
        self.report.zygotes_stuck += 1;
        let spins = self.random.chance(200);
        self.zygote_stuck = Some(StuckZygote { spins, backlog: Vec::new(), asked: None });
        if self.random.chance(300) {
            let limit = self.random.one_of([50_000, 3_000_000]);
            let when = self.random.micros(0, limit);
            self.at(when, SimulatedEvent::ZygoteContinues(zygote));
        }
    }

    pub(super) fn zygote_continues(&mut self, zygote: u64) {
        if zygote != self.zygotes || self.zygote == ZygoteState::Dead {
            return;
        }
        if let Some(stuck) = self.zygote_stuck.take() {
            self.report.zygotes_continued += 1;
            for event in stuck.backlog {
                self.at(Duration::ZERO, event);
            }
        }
    }

    pub(super) fn ping_arrives(&mut self, zygote: u64, number: u32) {
        if zygote == self.zygotes && self.zygote == ZygoteState::Ready {
            let soon = self.soon();
            self.at(
                soon,
                SimulatedEvent::Deliver(WorkerEvent::ZygoteAnswered { ping: Some(number) }),
            );
        }
    }

    /// Holds back events that need the zygote while it is stuck.
    pub(super) fn unless_stuck(&mut self, event: SimulatedEvent) -> Option<SimulatedEvent> {
        let of_zygote = match &event {
            SimulatedEvent::Forks(incarnation) | SimulatedEvent::KillArrives(incarnation) => {
                Some(*incarnation)
            }
            SimulatedEvent::Deliver(
                WorkerEvent::Ended { incarnation, .. } | WorkerEvent::Refused { incarnation, .. },
            ) => Some(*incarnation),
            SimulatedEvent::PingArrives(..) => None,
            SimulatedEvent::Deliver(_)
            | SimulatedEvent::ZygoteEndIsSeen(_)
            | SimulatedEvent::ZygoteBoots(_)
            | SimulatedEvent::ZygoteDies(_)
            | SimulatedEvent::ZygoteSticks(_)
            | SimulatedEvent::ZygoteContinues(_)
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

    /// Whether an answer of the zygote is overdue.
    pub(super) fn is_stuck_too_long(&self) -> bool {
        let Some(StuckZygote { spins: false, asked: Some(asked), .. }) = &self.zygote_stuck else {
            return false;
        };
        // It may have answered another request right before it got stuck.
        let latest = *asked + self.settings.zygote_patience + self.settings.dump_time * 7 + SLACK;
        let is_watched = self.promises.is_running() && self.promises.can_fork();
        is_watched && self.rates.missed_look == 0 && self.now > latest
    }

    /// All its workers die silently. Messages they sent before still arrive, maybe after the end of
    /// the zygote is reported.
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
            busy_until: Duration::ZERO,
            looked_at: None,
            done: 0,
            hangs: false,
            stops: false,
            is_exiting: false,
            kill_arrived: false,
            last_in: self.now,
            last_out: self.now,
        });
        let soon = self.soon();
        self.at(soon, SimulatedEvent::Forks(incarnation));
        if self.retires_workers && self.random.chance(100) {
            let soon = self.soon();
            self.at(soon, SimulatedEvent::Retires(incarnation.worker_id));
        }
    }

    /// Whether a worker was forked with a lock that no thread will release.
    fn falls_asleep(&mut self) -> bool {
        !self.zygote_is_fresh && self.random.chance(self.rates.asleep)
    }

    pub(super) fn forks(&mut self, incarnation: Incarnation) {
        if self.worker(incarnation).state == SimulatedState::Dead {
            return;
        }
        let now = self.now;
        let no_forks = self.rates.no_forks.is_some_and(|(from, to)| from <= now && now < to);
        let permanent = self.random.chance(self.rates.permanent_refusal);
        let is_successor = self.supervisor.incarnation(incarnation.worker_id) != Some(incarnation);
        if no_forks || permanent || self.random.chance(self.rates.refusal) {
            let transient = !permanent;
            self.report.refusals_transient += u64::from(transient);
            self.report.refusals_permanent += u64::from(permanent);
            self.report.successors_failed += u64::from(is_successor);
            self.worker(incarnation).state = SimulatedState::Dead;
            self.send_event(incarnation, WorkerEvent::Refused { incarnation, transient });
            return;
        }
        self.worker(incarnation).state = SimulatedState::Booting;
        if self.worker(incarnation).kill_arrived {
            return self.die(incarnation, ExitKind::Killed(SIGKILL));
        }
        let falls_asleep = self.random.chance(200) && self.falls_asleep();
        if falls_asleep || self.random.chance(self.rates.boot_hang) {
            let stopped = self.random.chance(300);
            let worker = self.worker(incarnation);
            worker.hangs = true;
            worker.asleep = falls_asleep;
            worker.stopped = stopped;
            self.report.hangs += 1;
            return;
        }
        let slow = self.random.chance(self.rates.slow_start);
        self.report.slow_starts += u64::from(slow);
        let when = self.random.micros(100, if slow { 20_000_000 } else { 50_000 });
        if self.random.chance(self.rates.boot_death) {
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
        if self.random.chance(self.rates.start_failure) {
            self.report.start_failures += 1;
            self.report.successors_failed += u64::from(is_successor);
            self.send_event(incarnation, WorkerEvent::StartFailed { incarnation });
            return self.die(incarnation, ExitKind::Exited(1));
        }
        self.report.successions += u64::from(is_successor);
        self.worker(incarnation).state = SimulatedState::Up;
        self.send_event(incarnation, WorkerEvent::Ready { incarnation });
        if self.random.chance(self.rates.death_anytime) {
            let when = self.random.micros(0, 200_000);
            let exit = self.exit();
            self.at(when, SimulatedEvent::Dies(incarnation, exit));
        }
    }

    /// Begins the next task, or stops if it was asked to and has none.
    pub(super) fn work(&mut self, incarnation: Incarnation) {
        let now = self.now;
        let worker = self.worker(incarnation);
        if worker.state != SimulatedState::Up
            || worker.at.is_some()
            || worker.hangs
            || worker.is_exiting
        {
            return;
        }
        worker.since = now;
        let (next, stops) = (worker.inbox.front().copied(), worker.stops);
        if let Some((task, trial)) = next {
            self.begin_sample(incarnation, task, trial.unwrap_or(0));
        } else if stops {
            if self.random.chance(self.rates.stop_hang) {
                self.worker(incarnation).hangs = true;
                self.report.hangs += 1;
            } else {
                self.worker(incarnation).is_exiting = true;
                let when = self.random.micros(10, 20_000);
                let dies = self.random.chance(self.rates.stop_death);
                let exit = if dies { self.exit() } else { ExitKind::Exited(0) };
                self.at(when, SimulatedEvent::Dies(incarnation, exit));
            }
        }
    }

    fn begin_sample(&mut self, incarnation: Incarnation, task: TaskNumber, offset: u64) {
        let now = self.now;
        // Some workers die between two samples, where no sample is to blame.
        if self.random.chance(self.rates.work_death / 3) {
            let exit = self.exit();
            self.worker(incarnation).at = None;
            return self.die(incarnation, exit);
        }
        let blocks = self.random.chance(self.rates.blocked);
        let worker = self.worker(incarnation);
        worker.at = Some((task, offset));
        worker.since = now;
        worker.blocked = blocks;
        if blocks {
            if self.random.chance(60) {
                let stopped = self.random.chance(500);
                let worker = self.worker(incarnation);
                worker.hangs = true;
                worker.stopped = stopped;
                self.report.hangs += 1;
                return;
            }
            let when = self.random.micros(100, 3_000_000);
            return self.at(when, SimulatedEvent::Unblocks(incarnation));
        }
        self.schedule_outcome(incarnation, task, offset);
    }

    pub(super) fn unblocks(&mut self, incarnation: Incarnation) {
        let now = self.now;
        let worker = self.worker(incarnation);
        if worker.state == SimulatedState::Dead {
            return;
        }
        worker.blocked = false;
        worker.since = now;
        if let Some((task, offset)) = worker.at {
            self.schedule_outcome(incarnation, task, offset);
        }
    }

    fn schedule_outcome(&mut self, incarnation: Incarnation, task: TaskNumber, offset: u64) {
        let outcome = self.outcome(incarnation, task, offset);
        let is_slow = self.random.chance(self.rates.slow_sample);
        let when = self.random.micros(10, if is_slow { 3_000_000 } else { 20_000 });
        let exit = self.exit();
        let is_hang = matches!(outcome, SampleOutcome::Hangs { .. });
        let busy_until = self.draw_busy_time((!is_hang).then_some(when));
        self.report.spins += u64::from(is_hang && busy_until == Duration::MAX);
        self.worker(incarnation).busy_until = busy_until;
        match outcome {
            SampleOutcome::Ends => self.at(when, SimulatedEvent::SampleEnds(incarnation)),
            SampleOutcome::Dies => self.at(when, SimulatedEvent::Dies(incarnation, exit)),
            SampleOutcome::Hangs { asleep } => {
                let worker = self.worker(incarnation);
                worker.hangs = true;
                worker.asleep = asleep;
                self.report.hangs += 1;
            }
        }
    }

    fn outcome(
        &mut self,
        incarnation: Incarnation,
        task: TaskNumber,
        offset: u64,
    ) -> SampleOutcome {
        let is_first = self.worker(incarnation).done == 0;
        if is_first && self.falls_asleep() {
            return SampleOutcome::Hangs { asleep: true };
        }
        if let Some(trouble) = self.troubles.get_mut(&(task, offset)) {
            match trouble {
                SampleTrouble::Poison => return SampleOutcome::Dies,
                SampleTrouble::KillsTired if !is_first => return SampleOutcome::Dies,
                SampleTrouble::Hangs => {
                    return SampleOutcome::Hangs { asleep: self.random.chance(300) };
                }
                SampleTrouble::Kills(times) if *times > 0 => {
                    *times -= 1;
                    return SampleOutcome::Dies;
                }
                SampleTrouble::HangsTimes(times) if *times > 0 => {
                    *times -= 1;
                    return SampleOutcome::Hangs { asleep: false };
                }
                SampleTrouble::KillsTired
                | SampleTrouble::Kills(_)
                | SampleTrouble::HangsTimes(_) => {}
            }
        }
        if self.random.chance(self.rates.work_hang) {
            SampleOutcome::Hangs { asleep: self.random.chance(300) }
        } else if self.random.chance(self.rates.work_death) {
            SampleOutcome::Dies
        } else {
            SampleOutcome::Ends
        }
    }

    /// Decides what is wrong with the samples of a task.
    pub(super) fn assign_troubles(&mut self, task: TaskNumber) {
        for offset in 0..samples(task) {
            let times = self.random.from(1, 2) as u32;
            let troubles = [
                (self.rates.poison / 2, SampleTrouble::Poison),
                (self.rates.flaky_killer, SampleTrouble::Kills(times)),
                (self.rates.tired_killer, SampleTrouble::KillsTired),
                (self.rates.hanging / 2, SampleTrouble::Hangs),
                (self.rates.hangs_once, SampleTrouble::HangsTimes(1)),
            ];
            for (rate, trouble) in troubles {
                if self.random.chance(rate) {
                    self.troubles.insert((task, offset), trouble);
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
        let took = now - worker.since;
        worker.since = now;
        let Some((task, offset)) = worker.at.take() else { return };
        if took > self.longest_sample {
            self.longest_sample = took;
            self.send_event(incarnation, WorkerEvent::LongestSample { took });
        }
        let worker = self.worker(incarnation);
        let trial = worker.inbox.front().and_then(|(_, trial)| *trial);
        if trial.is_none() && offset + 1 < samples(task) {
            return self.begin_sample(incarnation, task, offset + 1);
        }
        if trial.is_some() && !self.random.chance(50) {
            self.worker(incarnation).inbox.pop_front();
            self.report.trials_survived += 1;
            self.send_event(incarnation, WorkerEvent::Survived { incarnation, task });
            return self.work(incarnation);
        }
        self.report.trials_answered += u64::from(trial.is_some());
        self.finish_task(incarnation);
    }

    fn finish_task(&mut self, incarnation: Incarnation) {
        let length = self.worker(incarnation).inbox.len();
        let overtakes = length > 1 && self.random.chance(self.rates.disorder);
        self.report.overtakings += u64::from(overtakes);
        let place = if overtakes { length - 1 } else { 0 };
        let (task, _) =
            self.worker(incarnation).inbox.remove(place).expect("it was working on one");
        self.send_event(incarnation, WorkerEvent::TaskDone { incarnation, task });
        if self.random.chance(self.rates.leak) {
            self.report.leaks += 1;
            let soon = self.soon();
            self.at(soon, SimulatedEvent::Deliver(WorkerEvent::Renew { incarnation }));
        }
        if self.random.chance(self.rates.death_after_answer) {
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
        let at = worker.at.map(|(_, offset)| offset);
        let is_asked = worker.kill_arrived;
        let is_short = !is_asked && self.random.chance(self.rates.shortage);
        let kinds = [Shortage::Memory, Shortage::Processes, Shortage::Descriptors, Shortage::Space];
        let shortage = match exit {
            _ if !is_short => None,
            ExitKind::Killed(SIGKILL) => Some(Shortage::Memory),
            ExitKind::Exited(_) => Some(self.random.one_of(kinds)),
            ExitKind::Killed(_) | ExitKind::Lost => None,
        };
        self.report.shortages += u64::from(shortage.is_some());
        if self.random.chance(500) {
            self.send_event(incarnation, WorkerEvent::HungUp { incarnation });
        }
        self.send_event(incarnation, WorkerEvent::Ended { incarnation, exit, at, shortage });
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
        if self.random.chance(self.rates.slow_kill) {
            self.report.kills_too_slow += 1;
            when += self.settings.grace * 4;
        }
        self.at(when, SimulatedEvent::KillArrives(incarnation));
        let is_forked = !matches!(state, SimulatedState::Forking | SimulatedState::Dead);
        if is_forked && self.random.chance(self.rates.death_while_killed) {
            self.report.deaths_while_killed += 1;
            let exit = self.exit();
            self.at(when / 2, SimulatedEvent::Dies(incarnation, exit));
        }
    }
}
