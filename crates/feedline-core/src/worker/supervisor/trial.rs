//! What a task has done to workers, and what follows for it: it is sent again, tried alone in a
//! fresh worker, or given up.

use super::place::{Gone, Standing};
use super::words::{Action, Ending, Life, Post, Reason, Settings, Task};
use super::{Supervisor, Zygote};

/// A task without a result.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) pin: Option<Post>,
    pub(super) holder: Option<Life>,
    /// Where in it workers died or hung.
    spots: Vec<Spot>,
}

/// What happened at one position of a task.
#[derive(Debug)]
struct Spot {
    at: Option<u64>,
    deaths: u32,
    hangs: u32,
}

/// What follows for a task whose worker is no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Again,
    Trial { position: u64 },
    GiveUp { at: Option<u64>, why: Reason },
}

impl Open {
    pub(super) fn new(pin: Option<Post>) -> Open {
        Open { pin, holder: None, spots: Vec::new() }
    }

    fn spot(&mut self, at: Option<u64>) -> &mut Spot {
        let known = self.spots.iter().position(|spot| spot.at == at);
        let index = known.unwrap_or_else(|| {
            self.spots.push(Spot { at, deaths: 0, hangs: 0 });
            self.spots.len() - 1
        });
        &mut self.spots[index]
    }

    fn died(&mut self, at: Option<u64>, settings: &Settings) -> Fate {
        let spot = self.spot(at);
        spot.deaths += 1;
        let deaths_here = spot.deaths;
        let given_up = Fate::GiveUp { at, why: Reason::Kills };
        if settings.attempts.is_some_and(|most| deaths_here >= most.max(1)) {
            return given_up;
        }
        let Some(enough) = settings.suspect_after else { return Fate::Again };
        match at {
            Some(position) if deaths_here >= enough => Fate::Trial { position },
            // Nothing can be tried without knowing where, so one more death decides instead.
            None if deaths_here > enough => given_up,
            Some(_) | None => Fate::Again,
        }
    }

    fn hung(&mut self, at: Option<u64>, settings: &Settings) -> Fate {
        let spot = self.spot(at);
        spot.hangs += 1;
        if spot.hangs >= settings.hangs {
            Fate::GiveUp { at, why: Reason::Hangs }
        } else {
            Fate::Again
        }
    }
}

impl Supervisor {
    /// What follows for a task that a dead worker had at hand.
    pub(super) fn judge(&mut self, gone: &Gone, task: Task) -> Fate {
        let first = gone.tasks.first() == Some(&task);
        let Some(open) = self.tasks.get_mut(&task) else { return Fate::Again };
        let fate = if gone.overdue {
            match gone.hang {
                Some(hang) if hang.task == task => open.hung(hang.at, &self.settings),
                Some(_) | None => Fate::Again,
            }
        } else if first && gone.ending != Ending::Lost {
            match gone.trial {
                Some(position) => Fate::GiveUp { at: Some(position), why: Reason::Kills },
                None => open.died(gone.at, &self.settings),
            }
        } else {
            Fate::Again
        };
        match (fate, gone.trial) {
            // The trial has not ended, so it begins again.
            (Fate::Again, Some(position)) if first => Fate::Trial { position },
            (Fate::Again | Fate::Trial { .. } | Fate::GiveUp { .. }, _) => fate,
        }
    }

    /// Puts a task that nobody has at hand where it waits to be sent. A trial waits for the post
    /// where the worker died, whichever worker may do the task otherwise.
    pub(super) fn put_back(&mut self, task: Task, post: Post, trial: Option<u64>) {
        let Some(open) = self.tasks.get_mut(&task) else { return };
        open.holder = None;
        match (trial, open.pin) {
            (Some(position), _) => {
                self.places[post as usize].trials.insert(task, position);
            }
            (None, Some(pin)) => {
                self.places[pin as usize].waiting.insert(task);
            }
            (None, None) => {
                self.queue.insert(task);
            }
        }
    }

    /// A trial was survived: what was held against the sample is forgotten, and the same worker
    /// does the whole task.
    pub(super) fn survived(&mut self, life: Life, task: Task) {
        // With a zygote that is being ended the trial begins again elsewhere.
        let can_go_on = self.is_running() && self.zygote == Zygote::Ready;
        let Some(place) = self.places.get_mut(life.post as usize) else { return };
        let Some(worker) = place.worker_mut(life) else { return };
        if !can_go_on || worker.at_hand.front() != Some(&task) {
            return;
        }
        let Some(position) = worker.trial.take() else { return };
        worker.has_worked = true;
        match &mut worker.standing {
            Standing::Ready => self.actions.push(Action::Send { life, task, trial: None }),
            // It was killed too late: it does not hang there any more.
            Standing::Overdue { hang, .. } => *hang = None,
            Standing::Booting
            | Standing::Stopping { .. }
            | Standing::Killed { .. }
            | Standing::Failed => {}
        }
        if let Some(open) = self.tasks.get_mut(&task) {
            open.spots.retain(|spot| spot.at != Some(position));
        }
        self.feed(life.post);
        self.distribute();
    }
}
