//! A post and the workers it has: mostly one, two while one takes over from the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::FIRST_WAIT;
use super::watch::Watch;
use super::words::{Ending, Life, Post, Stage, Task};

/// Where a worker stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
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
    /// It said that it cannot start and was killed for it, but others go on.
    Failed,
    /// It was killed by us because it passed the deadline.
    Overdue {
        stage: Stage,
        hang: Option<Hang>,
    },
}

/// Where a worker hung.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hang {
    pub(super) task: Task,
    pub(super) at: Option<u64>,
}

/// What a worker is to its post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// It gets the tasks.
    Holder,
    /// It starts, to take over.
    Successor,
    /// It was taken over from, and ends after what it has at hand.
    Predecessor,
}

/// A worker that was asked for and has not ended.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) life: Life,
    pub(super) standing: Standing,
    /// Sent and not answered, in the order of sending.
    pub(super) at_hand: VecDeque<Task>,
    /// Nothing was ever sent to it.
    pub(super) is_fresh: bool,
    /// It has answered a task, or come through the trial of one.
    pub(super) has_worked: bool,
    /// It tries its one task at hand, at this position.
    pub(super) trial: Option<u64>,
    pub(super) watch: Watch,
}

impl Worker {
    pub(super) fn new(life: Life, watch: Watch) -> Worker {
        Worker {
            life,
            standing: Standing::Booting,
            at_hand: VecDeque::new(),
            is_fresh: true,
            has_worked: false,
            trial: None,
            watch,
        }
    }

    pub(super) fn stage(&self) -> Stage {
        match self.standing {
            Standing::Booting | Standing::Failed | Standing::Killed { booting: true } => {
                Stage::Booting
            }
            Standing::Ready if self.at_hand.is_empty() => Stage::Idle,
            Standing::Ready => Stage::Busy,
            Standing::Stopping { .. } | Standing::Killed { booting: false } => Stage::Stopping,
            Standing::Overdue { stage, .. } => stage,
        }
    }

    /// Whether it works on what it has at hand.
    pub(super) fn is_working(&self) -> bool {
        match self.standing {
            Standing::Ready | Standing::Stopping { .. } => !self.at_hand.is_empty(),
            Standing::Booting
            | Standing::Killed { .. }
            | Standing::Failed
            | Standing::Overdue { .. } => false,
        }
    }

    /// Whether it starts, and nobody has killed it.
    pub(super) fn is_booting(&self) -> bool {
        self.standing == Standing::Booting
    }

    /// When something is to be done about it, if nothing happens before.
    pub(super) fn next_time(&self) -> Option<Duration> {
        let kill_at = match self.standing {
            Standing::Stopping { kill_at } => kill_at,
            Standing::Booting
            | Standing::Ready
            | Standing::Killed { .. }
            | Standing::Failed
            | Standing::Overdue { .. } => None,
        };
        kill_at.or(self.watch.look_at)
    }

    /// Says what its end is.
    pub(super) fn part(
        self,
        role: Role,
        ending: Ending,
        at: Option<u64>,
        is_running: bool,
    ) -> Parting {
        let nothing_left = self.at_hand.is_empty();
        if role == Role::Predecessor && is_running && nothing_left {
            return Parting::Retired(self.life);
        }
        let hang = match self.standing {
            Standing::Killed { .. } => return Parting::Expected,
            // When the run ends nobody waits for what is at hand.
            Standing::Stopping { .. }
                if ending == Ending::Exited(0) && (nothing_left || !is_running) =>
            {
                return Parting::Expected;
            }
            Standing::Overdue { hang, .. } => hang,
            Standing::Booting | Standing::Ready | Standing::Stopping { .. } | Standing::Failed => {
                None
            }
        };
        Parting::Death(Gone {
            life: self.life,
            role,
            stage: self.stage(),
            ending,
            at,
            trial: self.trial,
            overdue: matches!(self.standing, Standing::Overdue { .. }),
            hang,
            tasks: self.at_hand.into(),
        })
    }
}

/// What the end of a worker is.
pub(super) enum Parting {
    /// We brought it about.
    Expected,
    /// A predecessor has left nothing undone.
    Retired(Life),
    /// An end that nobody wanted.
    Death(Gone),
}

/// A worker that is no more.
pub(super) struct Gone {
    pub(super) life: Life,
    pub(super) role: Role,
    pub(super) stage: Stage,
    pub(super) ending: Ending,
    pub(super) at: Option<u64>,
    pub(super) trial: Option<u64>,
    pub(super) overdue: bool,
    pub(super) hang: Option<Hang>,
    pub(super) tasks: Vec<Task>,
}

/// A post, with or without a worker.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) post: Post,
    pub(super) holder: Option<Worker>,
    pub(super) successor: Option<Worker>,
    pub(super) predecessor: Option<Worker>,
    /// There is no holder, because the fork was refused; it is retried then.
    pub(super) again: Option<Duration>,
    /// Forks tried so far.
    forks: u32,
    /// Pinned to this post and not sent. Ordered by number, so that what comes back from the dead
    /// goes first.
    pub(super) waiting: BTreeSet<Task>,
    /// To be tried by a fresh worker of this post, and at which position; before all that waits.
    pub(super) trials: BTreeMap<Task, u64>,
    /// Not needed but for the tasks it still has.
    pub(super) retired: bool,
    /// Who died here and may not be replaced.
    pub(super) fallen: Option<Life>,
    pub(super) boot_deaths: u32,
    pub(super) refused_since: Option<Duration>,
    pub(super) wait: Duration,
    /// A successor is not tried before.
    pub(super) renew_after: Duration,
}

impl Place {
    pub(super) fn new(post: Post) -> Place {
        Place {
            post,
            holder: None,
            successor: None,
            predecessor: None,
            again: None,
            forks: 0,
            waiting: BTreeSet::new(),
            trials: BTreeMap::new(),
            retired: false,
            fallen: None,
            boot_deaths: 0,
            refused_since: None,
            wait: FIRST_WAIT,
            renew_after: Duration::ZERO,
        }
    }

    /// The name of the next worker.
    pub(super) fn next_life(&mut self) -> Life {
        let life = Life { post: self.post, generation: self.forks };
        self.forks = self.forks.wrapping_add(1);
        life
    }

    /// Its workers, oldest first.
    pub(super) fn workers(&self) -> impl Iterator<Item = &Worker> {
        [&self.predecessor, &self.holder, &self.successor].into_iter().flatten()
    }

    pub(super) fn workers_mut(&mut self) -> impl Iterator<Item = &mut Worker> {
        [&mut self.predecessor, &mut self.holder, &mut self.successor].into_iter().flatten()
    }

    pub(super) fn worker_mut(&mut self, life: Life) -> Option<&mut Worker> {
        self.workers_mut().find(|worker| worker.life == life)
    }

    pub(super) fn role(&self, life: Life) -> Option<Role> {
        let is = |worker: &Option<Worker>| worker.as_ref().is_some_and(|it| it.life == life);
        if is(&self.holder) {
            Some(Role::Holder)
        } else if is(&self.successor) {
            Some(Role::Successor)
        } else if is(&self.predecessor) {
            Some(Role::Predecessor)
        } else {
            None
        }
    }

    /// Lets go of a worker. If it was the holder, who was to succeed it does so now.
    pub(super) fn remove(&mut self, life: Life) -> Option<(Role, Worker)> {
        let role = self.role(life)?;
        let worker = match role {
            Role::Holder => std::mem::replace(&mut self.holder, self.successor.take()),
            Role::Successor => self.successor.take(),
            Role::Predecessor => self.predecessor.take(),
        };
        worker.map(|worker| (role, worker))
    }

    /// Lets go of all workers, oldest first.
    pub(super) fn remove_all(&mut self) -> Vec<(Role, Worker)> {
        let predecessor = self.predecessor.take().map(|worker| (Role::Predecessor, worker));
        let holder = self.holder.take().map(|worker| (Role::Holder, worker));
        let successor = self.successor.take().map(|worker| (Role::Successor, worker));
        [predecessor, holder, successor].into_iter().flatten().collect()
    }

    pub(super) fn is_needed(&self) -> bool {
        let has_work = !self.waiting.is_empty() || !self.trials.is_empty();
        self.fallen.is_none() && (!self.retired || has_work)
    }

    /// Whether the order of the post's tasks allows the holder to be sent some: nobody before it
    /// works any more.
    pub(super) fn is_handed_over(&self) -> bool {
        self.predecessor.as_ref().is_none_or(|worker| worker.at_hand.is_empty())
    }

    /// Whether the holder may be given a task that anybody can do.
    pub(super) fn can_take(&self, depth: usize) -> bool {
        let is_free = |worker: &Worker| {
            worker.standing == Standing::Ready
                && worker.trial.is_none()
                && worker.at_hand.len() < depth
        };
        self.trials.is_empty() && !self.retired && self.holder.as_ref().is_some_and(is_free)
    }

    pub(super) fn forget_refusals(&mut self) {
        self.refused_since = None;
        self.wait = FIRST_WAIT;
    }
}
