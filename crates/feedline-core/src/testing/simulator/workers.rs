//! Zygotes and workers as they are, which the supervisor learns later or never.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Event, SIGKILL, SLACK, World};
use crate::worker::supervisor::{Ending, Happening, Life, Seen, Task, Work};

/// What is wrong with a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ill {
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

impl Ill {
    pub(super) fn kills(self) -> bool {
        match self {
            Ill::Poison | Ill::Kills(_) | Ill::KillsTired => true,
            Ill::Hangs | Ill::HangsTimes(_) => false,
        }
    }

    pub(super) fn hangs(self) -> bool {
        !self.kills()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
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
pub(super) struct Stuck {
    /// It uses the processor all the same.
    pub(super) spins: bool,
    /// What waits until it goes on.
    backlog: Vec<Event>,
    /// Since when something was asked of it.
    asked: Option<Duration>,
}

/// How the work on a sample goes.
#[derive(Clone, Copy)]
enum Course {
    Ends,
    Dies,
    Hangs { asleep: bool },
}

/// A worker as it is.
pub(super) struct Worker {
    pub(super) zygote: u64,
    pub(super) state: State,
    /// Tasks, and at which position one is to be tried.
    pub(super) inbox: VecDeque<(Task, Option<u64>)>,
    /// The sample it is at.
    pub(super) at: Option<(Task, u64)>,
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

impl Worker {
    /// What its black box says, also when it is dead.
    pub(super) fn seen(&self) -> Seen {
        let work = match (self.state, self.at) {
            (_, Some(_)) if self.blocked => Work::Blocked,
            (_, Some(_)) => Work::Sample,
            (State::Forking | State::Booting, None) => Work::Starting,
            (State::Up | State::Dead, None) => Work::Waiting,
        };
        let (task, position) = self.at.unzip();
        let (asleep, stopped) = (self.asleep, self.stopped);
        Seen { task, position, since: self.since, work, asleep, stopped, is_dumping: false }
    }
}

/// Samples of a task.
fn samples(task: Task) -> u64 {
    1 + task % 3
}

impl World {
    pub(super) fn bear_zygote(&mut self, fresh: bool) {
        // Whatever the one before did, the engine has let go of it.
        self.zygotes_told = self.zygotes;
        for worker in self.workers.iter_mut().flatten() {
            worker.state = State::Dead;
        }
        self.zygotes += 1;
        self.zygote = ZygoteState::Booting;
        self.zygote_is_fresh = fresh;
        self.zygote_stuck = None;
        let zygote = self.zygotes;
        self.at(Duration::ZERO, Event::Tell(Happening::ZygoteStarted));
        if self.chance.hits(self.weather.zygote_hang) {
            self.report.hangs += 1;
            self.zygote_stuck = Some(Stuck { spins: false, backlog: Vec::new(), asked: None });
            return;
        }
        let when = self.chance.micros(100, 200_000);
        let fails = self.chance.hits(self.weather.zygote_failure);
        self.at(when, if fails { Event::ZygoteDies(zygote) } else { Event::ZygoteBoots(zygote) });
    }

    pub(super) fn end_zygote(&mut self) {
        if self.chance.hits(200) {
            self.report.zygotes_stubborn += 1;
            return;
        }
        let soon = self.soon();
        self.at(soon, Event::ZygoteDies(self.zygotes));
    }

    pub(super) fn zygote_boots(&mut self, zygote: u64) {
        self.zygote = ZygoteState::Ready;
        let soon = self.soon();
        self.at(soon, Event::Tell(Happening::ZygoteReady));
        if self.chance.hits(self.weather.zygote_death) {
            let when = soon + self.chance.micros(0, 300_000);
            self.at(when, Event::ZygoteDies(zygote));
        }
        if self.chance.hits(self.weather.zygote_stuck) {
            let when = soon + self.chance.micros(0, 300_000);
            self.at(when, Event::ZygoteSticks(zygote));
        }
    }

    pub(super) fn zygote_sticks(&mut self, zygote: u64) {
        if zygote != self.zygotes || self.zygote != ZygoteState::Ready {
            return;
        }
        self.report.zygotes_stuck += 1;
        let spins = self.chance.hits(200);
        self.zygote_stuck = Some(Stuck { spins, backlog: Vec::new(), asked: None });
        if self.chance.hits(300) {
            let reach = self.chance.one_of([50_000, 3_000_000]);
            let when = self.chance.micros(0, reach);
            self.at(when, Event::ZygoteGoesOn(zygote));
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
            self.at(soon, Event::Tell(Happening::ZygoteAnswered { ping: Some(number) }));
        }
    }

    /// What only the zygote does waits while it is stuck.
    pub(super) fn unless_stuck(&mut self, event: Event) -> Option<Event> {
        let of_zygote = match &event {
            Event::Forks(life) | Event::KillArrives(life) => Some(*life),
            Event::Tell(Happening::Ended { life, .. } | Happening::Refused { life, .. }) => {
                Some(*life)
            }
            Event::PingArrives(..) => None,
            Event::Tell(_)
            | Event::ZygoteEndIsSeen(_)
            | Event::ZygoteBoots(_)
            | Event::ZygoteDies(_)
            | Event::ZygoteSticks(_)
            | Event::ZygoteGoesOn(_)
            | Event::Boots(_)
            | Event::TaskArrives(..)
            | Event::StopArrives(_)
            | Event::SampleEnds(_)
            | Event::Unblocks(_)
            | Event::Dies(..)
            | Event::Consumes
            | Event::Retires(_)
            | Event::Closes => return Some(event),
        };
        let zygotes = self.zygotes;
        if of_zygote.is_some_and(|life| self.worker(life).zygote != zygotes) {
            return Some(event);
        }
        let now = self.now;
        let Some(stuck) = &mut self.zygote_stuck else { return Some(event) };
        if matches!(event, Event::PingArrives(..)) {
            stuck.asked.get_or_insert(now);
        }
        stuck.backlog.push(event);
        None
    }

    /// Whether the zygote has owed an answer for longer than it may.
    pub(super) fn is_stuck_too_long(&self) -> bool {
        let Some(Stuck { spins: false, asked: Some(asked), .. }) = &self.zygote_stuck else {
            return false;
        };
        // It may have answered something else right before it got stuck.
        let latest = *asked + self.settings.zygote_patience + self.settings.dump_time * 7 + SLACK;
        let is_watched = self.promises.is_running() && self.promises.can_fork();
        is_watched && self.weather.blind == 0 && self.now > latest
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
            worker.state = State::Dead;
        }
        let soon = self.soon();
        self.at(soon, Event::ZygoteEndIsSeen(zygote));
    }

    pub(super) fn fork(&mut self, life: Life) {
        let dead = self.zygote == ZygoteState::Dead;
        self.workers[life.post as usize].push(Worker {
            zygote: self.zygotes,
            state: if dead { State::Dead } else { State::Forking },
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
        self.at(soon, Event::Forks(life));
        if self.restless && self.chance.hits(100) {
            let soon = self.soon();
            self.at(soon, Event::Retires(life.post));
        }
    }

    /// Whether a worker was forked with a lock that nobody will open.
    fn falls_asleep(&mut self) -> bool {
        !self.zygote_is_fresh && self.chance.hits(self.weather.asleep)
    }

    pub(super) fn forks(&mut self, life: Life) {
        if self.worker(life).state == State::Dead {
            return;
        }
        let now = self.now;
        let drought = self.weather.drought.is_some_and(|(from, to)| from <= now && now < to);
        let lasting = self.chance.hits(self.weather.lasting_refusal);
        let is_successor = self.supervisor.life(life.post) != Some(life);
        if drought || lasting || self.chance.hits(self.weather.refusal) {
            let passing = !lasting;
            self.report.refusals_passing += u64::from(passing);
            self.report.refusals_lasting += u64::from(lasting);
            self.report.successors_failed += u64::from(is_successor);
            self.worker(life).state = State::Dead;
            self.say(life, Happening::Refused { life, passing });
            return;
        }
        self.worker(life).state = State::Booting;
        if self.worker(life).kill_came {
            return self.die(life, Ending::Killed(SIGKILL));
        }
        let falls_asleep = self.chance.hits(200) && self.falls_asleep();
        if falls_asleep || self.chance.hits(self.weather.boot_hang) {
            let stopped = self.chance.hits(300);
            let worker = self.worker(life);
            worker.hangs = true;
            worker.asleep = falls_asleep;
            worker.stopped = stopped;
            self.report.hangs += 1;
            return;
        }
        let slow = self.chance.hits(self.weather.slow_start);
        self.report.slow_starts += u64::from(slow);
        let when = self.chance.micros(100, if slow { 20_000_000 } else { 50_000 });
        if self.chance.hits(self.weather.boot_death) {
            self.report.successors_failed += u64::from(is_successor);
            let ending = self.ending();
            return self.at(when, Event::Dies(life, ending));
        }
        self.at(when, Event::Boots(life));
    }

    pub(super) fn boots(&mut self, life: Life) {
        if self.worker(life).state == State::Dead {
            return;
        }
        let is_successor = self.supervisor.life(life.post) != Some(life);
        if self.chance.hits(self.weather.start_failure) {
            self.report.start_failures += 1;
            self.report.successors_failed += u64::from(is_successor);
            self.say(life, Happening::StartFailed { life });
            return self.die(life, Ending::Exited(1));
        }
        self.report.successions += u64::from(is_successor);
        self.worker(life).state = State::Up;
        self.say(life, Happening::Ready { life });
        if self.chance.hits(self.weather.death_anytime) {
            let when = self.chance.micros(0, 200_000);
            let ending = self.ending();
            self.at(when, Event::Dies(life, ending));
        }
    }

    /// Takes up the next task, or stops if it was asked to and has none.
    pub(super) fn work(&mut self, life: Life) {
        let now = self.now;
        let worker = self.worker(life);
        if worker.state != State::Up || worker.at.is_some() || worker.hangs || worker.leaves {
            return;
        }
        worker.since = now;
        let (next, stops) = (worker.inbox.front().copied(), worker.stops);
        if let Some((task, trial)) = next {
            self.begin_sample(life, task, trial.unwrap_or(0));
        } else if stops {
            if self.chance.hits(self.weather.stop_hang) {
                self.worker(life).hangs = true;
                self.report.hangs += 1;
            } else {
                self.worker(life).leaves = true;
                let when = self.chance.micros(10, 20_000);
                let dies = self.chance.hits(self.weather.stop_death);
                let ending = if dies { self.ending() } else { Ending::Exited(0) };
                self.at(when, Event::Dies(life, ending));
            }
        }
    }

    fn begin_sample(&mut self, life: Life, task: Task, position: u64) {
        let now = self.now;
        // Some die between two samples, where nothing can be blamed.
        if self.chance.hits(self.weather.work_death / 3) {
            let ending = self.ending();
            self.worker(life).at = None;
            return self.die(life, ending);
        }
        let blocks = self.chance.hits(self.weather.blocked);
        let worker = self.worker(life);
        worker.at = Some((task, position));
        worker.since = now;
        worker.blocked = blocks;
        if blocks {
            if self.chance.hits(60) {
                let stopped = self.chance.hits(500);
                let worker = self.worker(life);
                worker.hangs = true;
                worker.stopped = stopped;
                self.report.hangs += 1;
                return;
            }
            let when = self.chance.micros(100, 3_000_000);
            return self.at(when, Event::Unblocks(life));
        }
        self.take_course(life, task, position);
    }

    pub(super) fn unblocks(&mut self, life: Life) {
        let now = self.now;
        let worker = self.worker(life);
        if worker.state == State::Dead {
            return;
        }
        worker.blocked = false;
        worker.since = now;
        if let Some((task, position)) = worker.at {
            self.take_course(life, task, position);
        }
    }

    fn take_course(&mut self, life: Life, task: Task, position: u64) {
        let course = self.course(life, task, position);
        let is_slow = self.chance.hits(self.weather.slow_sample);
        let when = self.chance.micros(10, if is_slow { 3_000_000 } else { 20_000 });
        let ending = self.ending();
        match course {
            Course::Ends => self.at(when, Event::SampleEnds(life)),
            Course::Dies => self.at(when, Event::Dies(life, ending)),
            Course::Hangs { asleep } => {
                let worker = self.worker(life);
                worker.hangs = true;
                worker.asleep = asleep;
                self.report.hangs += 1;
            }
        }
    }

    fn course(&mut self, life: Life, task: Task, position: u64) -> Course {
        let is_first = self.worker(life).done == 0;
        if is_first && self.falls_asleep() {
            return Course::Hangs { asleep: true };
        }
        if let Some(ill) = self.ills.get_mut(&(task, position)) {
            match ill {
                Ill::Poison => return Course::Dies,
                Ill::KillsTired if !is_first => return Course::Dies,
                Ill::Hangs => return Course::Hangs { asleep: self.chance.hits(300) },
                Ill::Kills(times) if *times > 0 => {
                    *times -= 1;
                    return Course::Dies;
                }
                Ill::HangsTimes(times) if *times > 0 => {
                    *times -= 1;
                    return Course::Hangs { asleep: false };
                }
                Ill::KillsTired | Ill::Kills(_) | Ill::HangsTimes(_) => {}
            }
        }
        if self.chance.hits(self.weather.work_hang) {
            Course::Hangs { asleep: self.chance.hits(300) }
        } else if self.chance.hits(self.weather.work_death) {
            Course::Dies
        } else {
            Course::Ends
        }
    }

    /// Deals out what is wrong with a task.
    pub(super) fn make_ill(&mut self, task: Task) {
        for position in 0..samples(task) {
            let times = self.chance.from(1, 2) as u32;
            let ills = [
                (self.weather.poison / 2, Ill::Poison),
                (self.weather.flaky_killer, Ill::Kills(times)),
                (self.weather.tired_killer, Ill::KillsTired),
                (self.weather.hanging / 2, Ill::Hangs),
                (self.weather.hangs_once, Ill::HangsTimes(1)),
            ];
            for (rate, ill) in ills {
                if self.chance.hits(rate) {
                    self.ills.insert((task, position), ill);
                    break;
                }
            }
        }
    }

    pub(super) fn sample_ends(&mut self, life: Life) {
        let now = self.now;
        let worker = self.worker(life);
        if worker.state == State::Dead {
            return;
        }
        worker.done += 1;
        worker.since = now;
        let Some((task, position)) = worker.at.take() else { return };
        let trial = worker.inbox.front().and_then(|(_, trial)| *trial);
        if trial.is_none() && position + 1 < samples(task) {
            return self.begin_sample(life, task, position + 1);
        }
        if trial.is_some() && !self.chance.hits(50) {
            self.worker(life).inbox.pop_front();
            self.report.trials_survived += 1;
            self.say(life, Happening::Survived { life, task });
            return self.work(life);
        }
        self.report.trials_answered += u64::from(trial.is_some());
        self.finishes(life);
    }

    fn finishes(&mut self, life: Life) {
        let length = self.worker(life).inbox.len();
        let overtakes = length > 1 && self.chance.hits(self.weather.disorder);
        self.report.overtakings += u64::from(overtakes);
        let place = if overtakes { length - 1 } else { 0 };
        let (task, _) = self.worker(life).inbox.remove(place).expect("it was working on one");
        self.say(life, Happening::Answered { life, task });
        if self.chance.hits(self.weather.leak) {
            self.report.leaks += 1;
            let soon = self.soon();
            self.at(soon, Event::Tell(Happening::Renew { life }));
        }
        if self.chance.hits(self.weather.death_after_answer) {
            let ending = self.ending();
            return self.die(life, ending);
        }
        self.work(life);
    }

    pub(super) fn die(&mut self, life: Life, ending: Ending) {
        let worker = self.worker(life);
        if worker.state == State::Dead {
            return;
        }
        worker.state = State::Dead;
        let at = worker.at.map(|(_, position)| position);
        if self.chance.hits(500) {
            self.say(life, Happening::HungUp { life });
        }
        self.say(life, Happening::Ended { life, ending, at });
    }

    pub(super) fn kill(&mut self, life: Life) {
        let state = self.worker(life).state;
        let booting = matches!(state, State::Forking | State::Booting);
        let running = self.promises.is_running();
        let overdue = running && self.worker(life).at.is_some();
        self.report.kills_booting += u64::from(booting);
        self.report.kills_overdue += u64::from(overdue);
        self.report.kills_retired += u64::from(running && !overdue);
        self.report.kills_after_grace += u64::from(!booting && !running);
        let mut when = self.soon();
        if self.chance.hits(self.weather.slow_kill) {
            self.report.kills_too_slow += 1;
            when += self.settings.grace * 4;
        }
        self.at(when, Event::KillArrives(life));
        let born = !matches!(state, State::Forking | State::Dead);
        if born && self.chance.hits(self.weather.death_while_killed) {
            self.report.deaths_while_killed += 1;
            let ending = self.ending();
            self.at(when / 2, Event::Dies(life, ending));
        }
    }
}
