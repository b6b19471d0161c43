//! A worker and its processes: usually one, two while one takes over from the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::FIRST_BACKOFF;
use super::messages::{ExitKind, Incarnation, TaskNumber, WorkerId, WorkerStage};
use super::watch::WorkerWatch;

/// The status of a worker process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProcessStatus {
    /// Its fork was requested.
    Booting,
    Ready,
    /// It was asked to stop. The grace period starts when it has no more tasks: a long task is not
    /// a fault.
    Stopping {
        kill_at: Option<Duration>,
    },
    /// We killed it, maybe before its first message.
    Killed {
        booting: bool,
    },
    /// It reported that it cannot start, so we killed it; the run continues.
    Failed,
    /// We killed it because it exceeded the deadline.
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

/// The role of a process within its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProcessRole {
    /// It gets the tasks.
    Current,
    /// It starts, and will take over.
    Successor,
    /// Its successor has taken over; it exits after the tasks it has.
    Predecessor,
}

/// A worker process that was requested and has not ended.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    pub(super) incarnation: Incarnation,
    pub(super) status: ProcessStatus,
    /// Tasks sent and not answered, in the order of sending.
    pub(super) assigned: VecDeque<TaskNumber>,
    /// Whether it was never sent a task.
    pub(super) is_fresh: bool,
    /// Whether it has sent a result, or survived a trial.
    pub(super) has_worked: bool,
    /// The offset at which it tries its one task, if it does.
    pub(super) trial: Option<u64>,
    /// Whether it was asked to stop because it leaks, before its successor starts.
    pub(super) is_renewed: bool,
    pub(super) watch: WorkerWatch,
}

impl WorkerProcess {
    pub(super) fn new(incarnation: Incarnation, watch: WorkerWatch) -> WorkerProcess {
        WorkerProcess {
            incarnation,
            status: ProcessStatus::Booting,
            assigned: VecDeque::new(),
            is_fresh: true,
            has_worked: false,
            trial: None,
            is_renewed: false,
            watch,
        }
    }

    pub(super) fn stage(&self) -> WorkerStage {
        match self.status {
            ProcessStatus::Booting
            | ProcessStatus::Failed
            | ProcessStatus::Killed { booting: true } => WorkerStage::Booting,
            ProcessStatus::Ready if self.assigned.is_empty() => WorkerStage::Idle,
            ProcessStatus::Ready => WorkerStage::Busy,
            ProcessStatus::Stopping { .. } | ProcessStatus::Killed { booting: false } => {
                WorkerStage::Stopping
            }
            ProcessStatus::Overdue { stage, .. } => stage,
        }
    }

    /// Whether it has tasks to work on.
    pub(super) fn is_working(&self) -> bool {
        match self.status {
            ProcessStatus::Ready | ProcessStatus::Stopping { .. } => !self.assigned.is_empty(),
            ProcessStatus::Booting
            | ProcessStatus::Killed { .. }
            | ProcessStatus::Failed
            | ProcessStatus::Overdue { .. } => false,
        }
    }

    /// Whether it is starting, and we have not killed it.
    pub(super) fn is_booting(&self) -> bool {
        self.status == ProcessStatus::Booting
    }

    /// When the supervisor must act on it, if no event comes earlier.
    pub(super) fn next_time(&self) -> Option<Duration> {
        let kill_at = match self.status {
            ProcessStatus::Stopping { kill_at } => kill_at,
            ProcessStatus::Booting
            | ProcessStatus::Ready
            | ProcessStatus::Killed { .. }
            | ProcessStatus::Failed
            | ProcessStatus::Overdue { .. } => None,
        };
        kill_at.or(self.watch.look_at)
    }

    /// Classifies the end of the process.
    pub(super) fn exit_meaning(
        self,
        role: ProcessRole,
        exit: ExitKind,
        at: Option<u64>,
        is_running: bool,
    ) -> ExitMeaning {
        let nothing_left = self.assigned.is_empty();
        let is_renewed = role == ProcessRole::Predecessor || self.is_renewed;
        if is_renewed && is_running && nothing_left {
            return ExitMeaning::Renewed(self.incarnation);
        }
        let hang = match self.status {
            ProcessStatus::Killed { .. } => return ExitMeaning::Expected,
            // When the run ends, unfinished tasks do not matter.
            ProcessStatus::Stopping { .. }
                if exit == ExitKind::Exited(0) && (nothing_left || !is_running) =>
            {
                return ExitMeaning::Expected;
            }
            ProcessStatus::Overdue { hang, .. } => hang,
            ProcessStatus::Booting
            | ProcessStatus::Ready
            | ProcessStatus::Stopping { .. }
            | ProcessStatus::Failed => None,
        };
        ExitMeaning::Death(DeadWorker {
            incarnation: self.incarnation,
            role,
            stage: self.stage(),
            exit,
            at,
            trial: self.trial,
            overdue: matches!(self.status, ProcessStatus::Overdue { .. }),
            is_blameless: false,
            has_left: self.has_worked && matches!(exit, ExitKind::Exited(_)),
            hang,
            tasks: self.assigned.into(),
        })
    }
}

/// The meaning of the end of a worker process.
pub(super) enum ExitMeaning {
    /// We caused it.
    Expected,
    /// A predecessor ended and left no task undone.
    Renewed(Incarnation),
    /// The worker died.
    Death(DeadWorker),
}

/// A worker process that died.
pub(super) struct DeadWorker {
    pub(super) incarnation: Incarnation,
    pub(super) role: ProcessRole,
    pub(super) stage: WorkerStage,
    pub(super) exit: ExitKind,
    pub(super) at: Option<u64>,
    pub(super) trial: Option<u64>,
    pub(super) overdue: bool,
    /// The machine was short of memory, and other processes used it too.
    pub(super) is_blameless: bool,
    /// It exited by itself after it had worked: a fresh process may succeed.
    pub(super) has_left: bool,
    pub(super) hang: Option<HangLocation>,
    pub(super) tasks: Vec<TaskNumber>,
}

/// A worker: its processes and the tasks that wait for it.
#[derive(Debug)]
pub(super) struct WorkerRecord {
    pub(super) worker_id: WorkerId,
    pub(super) current: Option<WorkerProcess>,
    pub(super) successor: Option<WorkerProcess>,
    pub(super) predecessor: Option<WorkerProcess>,
    /// When to retry a refused fork. There is no current process until then.
    pub(super) retry_fork_at: Option<Duration>,
    /// The number of forks tried.
    forks: u32,
    /// Tasks pinned to this worker and not sent. Ordered by number, so that the tasks of a dead
    /// process go first.
    pub(super) waiting: BTreeSet<TaskNumber>,
    /// Tasks to be tried by a fresh process, and the offset of the sample; they go before
    /// `waiting`.
    pub(super) trials: BTreeMap<TaskNumber, u64>,
    /// Whether it is needed only for the tasks it still has.
    pub(super) retired: bool,
    /// The process that died here and may not be replaced.
    pub(super) unreplaced: Option<Incarnation>,
    pub(super) boot_deaths: u32,
    pub(super) refused_since: Option<Duration>,
    pub(super) fork_backoff: Duration,
    /// No successor is forked before this time.
    pub(super) renew_after: Duration,
}

impl WorkerRecord {
    pub(super) fn new(worker_id: WorkerId) -> WorkerRecord {
        WorkerRecord {
            worker_id,
            current: None,
            successor: None,
            predecessor: None,
            retry_fork_at: None,
            forks: 0,
            waiting: BTreeSet::new(),
            trials: BTreeMap::new(),
            retired: false,
            unreplaced: None,
            boot_deaths: 0,
            refused_since: None,
            fork_backoff: FIRST_BACKOFF,
            renew_after: Duration::ZERO,
        }
    }

    /// The identity of the next process.
    pub(super) fn next_incarnation(&mut self) -> Incarnation {
        let incarnation = Incarnation { worker_id: self.worker_id, generation: self.forks };
        self.forks = self.forks.wrapping_add(1);
        incarnation
    }

    /// Its processes, oldest first.
    pub(super) fn workers(&self) -> impl Iterator<Item = &WorkerProcess> {
        [&self.predecessor, &self.current, &self.successor].into_iter().flatten()
    }

    pub(super) fn workers_mut(&mut self) -> impl Iterator<Item = &mut WorkerProcess> {
        [&mut self.predecessor, &mut self.current, &mut self.successor].into_iter().flatten()
    }

    pub(super) fn worker_mut(&mut self, incarnation: Incarnation) -> Option<&mut WorkerProcess> {
        self.workers_mut().find(|worker| worker.incarnation == incarnation)
    }

    pub(super) fn role(&self, incarnation: Incarnation) -> Option<ProcessRole> {
        let matches = |worker: &Option<WorkerProcess>| {
            worker.as_ref().is_some_and(|it| it.incarnation == incarnation)
        };
        if matches(&self.current) {
            Some(ProcessRole::Current)
        } else if matches(&self.successor) {
            Some(ProcessRole::Successor)
        } else if matches(&self.predecessor) {
            Some(ProcessRole::Predecessor)
        } else {
            None
        }
    }

    /// Removes a process. If it was the current one, its successor takes its place.
    pub(super) fn remove(
        &mut self,
        incarnation: Incarnation,
    ) -> Option<(ProcessRole, WorkerProcess)> {
        let role = self.role(incarnation)?;
        let worker = match role {
            ProcessRole::Current => std::mem::replace(&mut self.current, self.successor.take()),
            ProcessRole::Successor => self.successor.take(),
            ProcessRole::Predecessor => self.predecessor.take(),
        };
        worker.map(|worker| (role, worker))
    }

    /// Removes all processes, oldest first.
    pub(super) fn remove_all(&mut self) -> Vec<(ProcessRole, WorkerProcess)> {
        let predecessor = self.predecessor.take().map(|worker| (ProcessRole::Predecessor, worker));
        let current = self.current.take().map(|worker| (ProcessRole::Current, worker));
        let successor = self.successor.take().map(|worker| (ProcessRole::Successor, worker));
        [predecessor, current, successor].into_iter().flatten().collect()
    }

    /// Whether it has no process, and a refused fork is not retried later.
    pub(super) fn is_vacant(&self) -> bool {
        self.current.is_none() && self.retry_fork_at.is_none()
    }

    pub(super) fn is_needed(&self) -> bool {
        let has_work = !self.waiting.is_empty() || !self.trials.is_empty();
        self.unreplaced.is_none() && (!self.retired || has_work)
    }

    /// Whether the order of pinned tasks allows sending some to the current process: its
    /// predecessor has none left.
    pub(super) fn is_handed_over(&self) -> bool {
        self.predecessor.as_ref().is_none_or(|worker| worker.assigned.is_empty())
    }

    /// Whether the current process may be sent an unpinned task.
    pub(super) fn can_take(&self, depth: usize) -> bool {
        let is_free = |worker: &WorkerProcess| {
            worker.status == ProcessStatus::Ready
                && worker.trial.is_none()
                && worker.assigned.len() < depth
        };
        self.trials.is_empty() && !self.retired && self.current.as_ref().is_some_and(is_free)
    }

    pub(super) fn forget_refusals(&mut self) {
        self.refused_since = None;
        self.fork_backoff = FIRST_BACKOFF;
    }
}
