//! A worker and the workers it has: mostly one, two while one takes over from the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::FIRST_WAIT;
use super::messages::{ExitKind, Incarnation, TaskNumber, WorkerId, WorkerStage};
use super::watch::WorkerWatch;

/// Where a worker stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WorkerStatus {
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
        stage: WorkerStage,
        hang: Option<HangLocation>,
    },
}

/// Where a worker hung.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HangLocation {
    pub(super) task: TaskNumber,
    pub(super) at: Option<u64>,
}

/// What a worker is to its worker.
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
pub(super) struct WorkerState {
    pub(super) incarnation: Incarnation,
    pub(super) status: WorkerStatus,
    /// Sent and not answered, in the order of sending.
    pub(super) assigned: VecDeque<TaskNumber>,
    /// Nothing was ever sent to it.
    pub(super) is_fresh: bool,
    /// It has answered a task, or come through the trial of one.
    pub(super) has_worked: bool,
    /// It tries its one task at hand, at this position.
    pub(super) trial: Option<u64>,
    pub(super) watch: WorkerWatch,
}

impl WorkerState {
    pub(super) fn new(incarnation: Incarnation, watch: WorkerWatch) -> WorkerState {
        WorkerState {
            incarnation,
            status: WorkerStatus::Booting,
            assigned: VecDeque::new(),
            is_fresh: true,
            has_worked: false,
            trial: None,
            watch,
        }
    }

    pub(super) fn stage(&self) -> WorkerStage {
        match self.status {
            WorkerStatus::Booting
            | WorkerStatus::Failed
            | WorkerStatus::Killed { booting: true } => WorkerStage::Booting,
            WorkerStatus::Ready if self.assigned.is_empty() => WorkerStage::Idle,
            WorkerStatus::Ready => WorkerStage::Busy,
            WorkerStatus::Stopping { .. } | WorkerStatus::Killed { booting: false } => {
                WorkerStage::Stopping
            }
            WorkerStatus::Overdue { stage, .. } => stage,
        }
    }

    /// Whether it works on what it has at hand.
    pub(super) fn is_working(&self) -> bool {
        match self.status {
            WorkerStatus::Ready | WorkerStatus::Stopping { .. } => !self.assigned.is_empty(),
            WorkerStatus::Booting
            | WorkerStatus::Killed { .. }
            | WorkerStatus::Failed
            | WorkerStatus::Overdue { .. } => false,
        }
    }

    /// Whether it starts, and nobody has killed it.
    pub(super) fn is_booting(&self) -> bool {
        self.status == WorkerStatus::Booting
    }

    /// When something is to be done about it, if nothing happens before.
    pub(super) fn next_time(&self) -> Option<Duration> {
        let kill_at = match self.status {
            WorkerStatus::Stopping { kill_at } => kill_at,
            WorkerStatus::Booting
            | WorkerStatus::Ready
            | WorkerStatus::Killed { .. }
            | WorkerStatus::Failed
            | WorkerStatus::Overdue { .. } => None,
        };
        kill_at.or(self.watch.look_at)
    }

    /// Says what its end is.
    pub(super) fn part(
        self,
        role: Role,
        exit: ExitKind,
        at: Option<u64>,
        is_running: bool,
    ) -> ExitMeaning {
        let nothing_left = self.assigned.is_empty();
        if role == Role::Predecessor && is_running && nothing_left {
            return ExitMeaning::Retired(self.incarnation);
        }
        let hang = match self.status {
            WorkerStatus::Killed { .. } => return ExitMeaning::Expected,
            // When the run ends nobody waits for what is at hand.
            WorkerStatus::Stopping { .. }
                if exit == ExitKind::Exited(0) && (nothing_left || !is_running) =>
            {
                return ExitMeaning::Expected;
            }
            WorkerStatus::Overdue { hang, .. } => hang,
            WorkerStatus::Booting
            | WorkerStatus::Ready
            | WorkerStatus::Stopping { .. }
            | WorkerStatus::Failed => None,
        };
        ExitMeaning::Death(Gone {
            incarnation: self.incarnation,
            role,
            stage: self.stage(),
            exit,
            at,
            trial: self.trial,
            overdue: matches!(self.status, WorkerStatus::Overdue { .. }),
            hang,
            tasks: self.assigned.into(),
        })
    }
}

/// What the end of a worker is.
pub(super) enum ExitMeaning {
    /// We brought it about.
    Expected,
    /// A predecessor has left nothing undone.
    Retired(Incarnation),
    /// An end that nobody wanted.
    Death(Gone),
}

/// A worker that is no more.
pub(super) struct Gone {
    pub(super) incarnation: Incarnation,
    pub(super) role: Role,
    pub(super) stage: WorkerStage,
    pub(super) exit: ExitKind,
    pub(super) at: Option<u64>,
    pub(super) trial: Option<u64>,
    pub(super) overdue: bool,
    pub(super) hang: Option<HangLocation>,
    pub(super) tasks: Vec<TaskNumber>,
}

/// A worker, with or without a worker.
#[derive(Debug)]
pub(super) struct WorkerRecord {
    pub(super) worker_id: WorkerId,
    pub(super) holder: Option<WorkerState>,
    pub(super) successor: Option<WorkerState>,
    pub(super) predecessor: Option<WorkerState>,
    /// There is no holder, because the fork was refused; it is retried then.
    pub(super) again: Option<Duration>,
    /// Forks tried so far.
    forks: u32,
    /// Pinned to this worker and not sent. Ordered by number, so that what comes back from the dead
    /// goes first.
    pub(super) waiting: BTreeSet<TaskNumber>,
    /// To be tried by a fresh worker of this worker, and at which position; before all that waits.
    pub(super) trials: BTreeMap<TaskNumber, u64>,
    /// Not needed but for the tasks it still has.
    pub(super) retired: bool,
    /// Who died here and may not be replaced.
    pub(super) fallen: Option<Incarnation>,
    pub(super) boot_deaths: u32,
    pub(super) refused_since: Option<Duration>,
    pub(super) wait: Duration,
    /// A successor is not tried before.
    pub(super) renew_after: Duration,
}

impl WorkerRecord {
    pub(super) fn new(worker_id: WorkerId) -> WorkerRecord {
        WorkerRecord {
            worker_id,
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
    pub(super) fn next_life(&mut self) -> Incarnation {
        let incarnation = Incarnation { worker_id: self.worker_id, generation: self.forks };
        self.forks = self.forks.wrapping_add(1);
        incarnation
    }

    /// Its workers, oldest first.
    pub(super) fn workers(&self) -> impl Iterator<Item = &WorkerState> {
        [&self.predecessor, &self.holder, &self.successor].into_iter().flatten()
    }

    pub(super) fn workers_mut(&mut self) -> impl Iterator<Item = &mut WorkerState> {
        [&mut self.predecessor, &mut self.holder, &mut self.successor].into_iter().flatten()
    }

    pub(super) fn worker_mut(&mut self, incarnation: Incarnation) -> Option<&mut WorkerState> {
        self.workers_mut().find(|worker| worker.incarnation == incarnation)
    }

    pub(super) fn role(&self, incarnation: Incarnation) -> Option<Role> {
        let is = |worker: &Option<WorkerState>| {
            worker.as_ref().is_some_and(|it| it.incarnation == incarnation)
        };
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
    pub(super) fn remove(&mut self, incarnation: Incarnation) -> Option<(Role, WorkerState)> {
        let role = self.role(incarnation)?;
        let worker = match role {
            Role::Holder => std::mem::replace(&mut self.holder, self.successor.take()),
            Role::Successor => self.successor.take(),
            Role::Predecessor => self.predecessor.take(),
        };
        worker.map(|worker| (role, worker))
    }

    /// Lets go of all workers, oldest first.
    pub(super) fn remove_all(&mut self) -> Vec<(Role, WorkerState)> {
        let predecessor = self.predecessor.take().map(|worker| (Role::Predecessor, worker));
        let holder = self.holder.take().map(|worker| (Role::Holder, worker));
        let successor = self.successor.take().map(|worker| (Role::Successor, worker));
        [predecessor, holder, successor].into_iter().flatten().collect()
    }

    pub(super) fn is_needed(&self) -> bool {
        let has_work = !self.waiting.is_empty() || !self.trials.is_empty();
        self.fallen.is_none() && (!self.retired || has_work)
    }

    /// Whether the order of the worker's tasks allows the holder to be sent some: nobody before it
    /// works any more.
    pub(super) fn is_handed_over(&self) -> bool {
        self.predecessor.as_ref().is_none_or(|worker| worker.assigned.is_empty())
    }

    /// Whether the holder may be given a task that anybody can do.
    pub(super) fn can_take(&self, depth: usize) -> bool {
        let is_free = |worker: &WorkerState| {
            worker.status == WorkerStatus::Ready
                && worker.trial.is_none()
                && worker.assigned.len() < depth
        };
        self.trials.is_empty() && !self.retired && self.holder.as_ref().is_some_and(is_free)
    }

    pub(super) fn forget_refusals(&mut self) {
        self.refused_since = None;
        self.wait = FIRST_WAIT;
    }
}
