//! The ends of workers and of the zygote: what they mean for the tasks, for the post, and for the
//! run.

use std::mem;
use std::time::Duration;

use super::place::{Gone, Parting, Role};
use super::succession::RENEWAL_PAUSE;
use super::trial::Fate;
use super::words::{Action, Death, Ending, Failure, Life, Reason, Stage, Task};
use super::zygote_watch::ZygoteWatch;
use super::{BOOT_DEATHS, HISTORY, Supervisor, ZYGOTE_FAILURES, Zygote};

/// A death that counts for `max_deaths`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    at: Duration,
    /// The task that may be to blame: if it is given up, the death is forgiven.
    task: Option<Task>,
}

impl Supervisor {
    pub(super) fn zygote_ended(&mut self) {
        let before = mem::replace(&mut self.zygote, Zygote::Gone);
        self.zygote_watch = ZygoteWatch::default();
        let was_ready = match before {
            Zygote::Ready => true,
            Zygote::Booting => false,
            Zygote::Ending { .. } => return self.forget_all(),
            Zygote::Unborn | Zygote::Gone => {
                self.zygote = before;
                return;
            }
        };
        let is_running = self.is_running();
        let mut gone = Vec::new();
        let mut retired = Vec::new();
        for place in &mut self.places {
            place.forget_refusals();
            place.again = None;
            for (role, worker) in place.remove_all() {
                match worker.part(role, Ending::Lost, None, is_running) {
                    Parting::Expected => {}
                    Parting::Retired(life) => retired.push(Action::Retired { life }),
                    Parting::Death(dead) => gone.push(dead),
                }
            }
        }
        self.actions.extend(retired);
        if !is_running {
            self.log(gone, false);
            return;
        }
        if was_ready {
            if self.bury(gone, true) {
                self.bear_zygote();
            }
            return;
        }
        // No worker can be alive here, and a few in a row are a bound already: this is no death to
        // count.
        self.zygote_failures += 1;
        if self.zygote_failures < ZYGOTE_FAILURES {
            self.bear_zygote();
        } else {
            self.fail(Failure::ZygoteCannotStart);
        }
    }

    /// The zygote that we ended is gone, with workers that did nothing wrong.
    fn forget_all(&mut self) {
        for post in 0..self.settings.posts {
            let place = &mut self.places[post as usize];
            place.forget_refusals();
            place.again = None;
            for (_, worker) in place.remove_all() {
                for task in worker.at_hand {
                    self.put_back(task, post, worker.trial);
                }
            }
        }
        if self.is_running() {
            self.keep_one_open();
            self.bear_zygote();
        }
    }

    pub(super) fn ended(&mut self, life: Life, ending: Ending, at: Option<u64>) {
        let is_running = self.is_running();
        let Some(place) = self.places.get_mut(life.post as usize) else { return };
        let Some((role, worker)) = place.remove(life) else { return };
        // It was born, so the next refusal is the first of a new row.
        if role == Role::Holder {
            place.forget_refusals();
        }
        if let Zygote::Ending { .. } = self.zygote {
            for task in worker.at_hand {
                self.put_back(task, life.post, worker.trial);
            }
            return;
        }
        let gone = match worker.part(role, ending, at, is_running) {
            Parting::Expected => None,
            Parting::Retired(life) => {
                self.actions.push(Action::Retired { life });
                None
            }
            Parting::Death(gone) => Some(gone),
        };
        if !is_running {
            self.log(gone, false);
            return;
        }
        // A death in a trial needs no word here: its task is given up, and that forgives it.
        let counts = gone.as_ref().is_some_and(|gone| !gone.overdue);
        if gone.is_none_or(|gone| self.bury(vec![gone], counts)) {
            self.staff(life.post);
            self.feed(life.post);
            self.distribute();
        }
    }

    /// Takes the tasks of the dead back, counts them all as one death if they count, and says
    /// whether the run goes on.
    fn bury(&mut self, gone: Vec<Gone>, counts: bool) -> bool {
        let mut forbidden = None;
        let mut dies_starting = None;
        let mut given_up = Vec::new();
        let mut blamed = None;
        for dead in &gone {
            let place = &mut self.places[dead.life.post as usize];
            if !self.settings.replace && dead.role != Role::Successor {
                let holds = dead.role == Role::Holder;
                let others = holds && !(place.waiting.is_empty() && self.queue.is_empty());
                if others || !dead.tasks.is_empty() {
                    forbidden = forbidden.or(Some(Failure::Death { life: dead.life }));
                } else if !place.retired && place.holder.is_none() {
                    place.fallen = Some(dead.life);
                }
            }
            // What ends with the zygote says nothing about the worker or its task.
            let is_own = dead.ending != Ending::Lost;
            if is_own && dead.stage == Stage::Booting {
                place.boot_deaths += 1;
                if place.boot_deaths >= BOOT_DEATHS {
                    dies_starting = Some(Failure::DiesStarting { life: dead.life });
                }
            }
            if dead.role == Role::Successor {
                place.renew_after = self.now.saturating_add(RENEWAL_PAUSE);
            }
            if is_own {
                blamed = dead.tasks.first().copied();
            }
            for &task in &dead.tasks {
                match self.judge(dead, task) {
                    Fate::Again => self.put_back(task, dead.life.post, None),
                    Fate::Trial { position } => {
                        self.put_back(task, dead.life.post, Some(position));
                    }
                    Fate::GiveUp { at, why } => given_up.push((task, at, why)),
                }
            }
        }
        if counts {
            self.counted.push_back(Counted { at: self.now, task: blamed });
        }
        for (task, _, why) in &given_up {
            match why {
                Reason::Kills => self.counted.retain(|counted| counted.task != Some(*task)),
                Reason::Hangs => {}
            }
        }
        // The narrower reason is the more useful one to read.
        let too_many = counts && self.count_deaths() > self.settings.max_deaths as usize;
        let too_many = too_many.then_some(Failure::TooManyDeaths);
        let failure = forbidden.or(dies_starting).or(too_many);
        self.keep_one_open();
        self.log(gone, failure.is_none());
        if let Some(failure) = failure {
            self.fail(failure);
            return false;
        }
        for (task, at, why) in given_up {
            self.tasks.remove(&task);
            self.actions.push(Action::GiveUp { task, at, why });
        }
        true
    }

    /// Deaths that count at this time.
    fn count_deaths(&mut self) -> usize {
        while self.counted.front().is_some_and(|old| self.now - old.at > self.settings.within) {
            self.counted.pop_front();
        }
        self.counted.len()
    }

    /// Says and remembers who died. `goes_on` is whether what is needed is replaced.
    fn log(&mut self, gone: impl IntoIterator<Item = Gone>, goes_on: bool) {
        for dead in gone {
            let Gone { life, role, stage, ending, tasks, overdue, .. } = dead;
            let place = &self.places[life.post as usize];
            let goes_without = role == Role::Successor && place.holder.is_some();
            let replaced = goes_on && place.is_needed() && !goes_without;
            let death = Death { life, ending, at: self.now, stage, tasks, replaced, overdue };
            if self.deaths.len() == HISTORY {
                self.deaths.remove(0);
            }
            self.deaths.push(death.clone());
            self.actions.push(Action::Died(death));
        }
    }
}
