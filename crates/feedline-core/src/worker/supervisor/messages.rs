//! The supervisor's words: what can happen, what can be done about it, and what is fixed for a run.

use std::time::Duration;

/// The number of a worker, kept by its replacements.
pub(crate) type WorkerId = u32;

/// The number of a task; numbers grow with each submission.
pub type TaskNumber = u64;

/// One worker process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Incarnation {
    /// The worker it works for.
    pub worker_id: WorkerId,
    /// Counts the forks tried for this worker, from 0.
    pub generation: u32,
}

/// How a worker ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitKind {
    /// With this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// With its zygote, so nobody saw how.
    Lost,
}

/// What a worker was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerStage {
    /// It was not ready yet.
    Booting,
    /// It was ready and had no task.
    Idle,
    /// It had tasks at hand.
    Busy,
    /// It had been asked to stop.
    Stopping,
}

/// The end of a worker that nobody asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Death {
    /// Who died.
    pub incarnation: Incarnation,
    /// How.
    pub exit: ExitKind,
    /// When, since the start of the run.
    pub at: Duration,
    /// What it was doing.
    pub stage: WorkerStage,
    /// What it had at hand; the first was being worked on.
    pub tasks: Vec<TaskNumber>,
    /// Whether the worker gets a new worker.
    pub replaced: bool,
    /// Whether we killed it because a sample took longer than the deadline. It is then not counted
    /// for `max_deaths`.
    pub overdue: bool,
}

/// Why a task was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// It kills workers.
    Kills,
    /// It takes longer than the deadline, again and again.
    Hangs,
}

/// What the black box of a worker says that it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerActivity {
    /// It is not ready yet.
    Starting,
    /// It has nothing to do.
    Waiting,
    /// It is in the user's code.
    Sample,
    /// It waits for memory or for its data source, which no deadline is for.
    Blocked,
}

/// What the engine found when it looked at a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observation {
    /// The task it is at.
    pub task: Option<TaskNumber>,
    /// The position in that task of the sample it is at.
    pub position: Option<u64>,
    /// Since when it does this, from the start of the run.
    pub since: Duration,
    /// What it does.
    pub work: WorkerActivity,
    /// Whether it sleeps on a lock and has used no processor time.
    pub asleep: bool,
    /// Whether it was stopped by a signal.
    pub stopped: bool,
    /// Whether it was asked for its stack and has not written it yet.
    pub is_dumping: bool,
}

/// Why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunFailure {
    /// More workers died than the settings allow.
    TooManyDeaths,
    /// A worker left work undone, and the settings forbid to replace it.
    Death {
        /// Who died.
        incarnation: Incarnation,
    },
    /// A worker said that it cannot start.
    CannotStart {
        /// Which one.
        incarnation: Incarnation,
    },
    /// A worker died again and again before it was ready.
    DiesStarting {
        /// The last that died.
        incarnation: Incarnation,
    },
    /// No worker could be forked for a worker.
    Refused {
        /// For which.
        worker_id: WorkerId,
        /// Whether the reason was one that passes, but did not for too long.
        passing: bool,
    },
    /// The zygote ended again and again before it was ready.
    ZygoteCannotStart,
    /// One zygote after another hung.
    ZygoteHangs,
    /// Other code of the trainer's process has closed descriptors of ours.
    DescriptorsClosed,
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WorkerEvent {
    /// There is a new task. A number that is not above all before it is ignored.
    Submitted {
        /// Its number.
        task: TaskNumber,
        /// The worker that must do it (counted round, if there are fewer), or any free worker.
        worker_id: Option<WorkerId>,
    },
    /// The process of the zygote that was asked for exists; it is not ready yet.
    ZygoteStarted,
    /// The zygote can fork now.
    ZygoteReady,
    /// The zygote has said something.
    ZygoteAnswered {
        /// The number of the ping that it has answered, if it was that.
        ping: Option<u32>,
    },
    /// The engine has looked at the zygote; [`Supervisor::must_look_at_zygote`](super::Supervisor::must_look_at_zygote) says when.
    ZygoteSeen {
        /// Whether it has used the processor, or waited for a device, since it was looked at or
        /// pinged before.
        ran: bool,
    },
    /// The zygote ended, and all its workers with it; there is no `Ended` for them. It is never said
    /// of a zygote after whose start another was asked for.
    ZygoteEnded,
    /// A fork was refused.
    Refused {
        /// Who was not started.
        incarnation: Incarnation,
        /// Whether another try is worth it (EAGAIN, ENOMEM).
        passing: bool,
    },
    /// A worker can take tasks now.
    Ready {
        /// Which one.
        incarnation: Incarnation,
    },
    /// A worker said that it cannot start.
    StartFailed {
        /// Which one.
        incarnation: Incarnation,
    },
    /// A worker answered.
    TaskDone {
        /// Which one.
        incarnation: Incarnation,
        /// What.
        task: TaskNumber,
    },
    /// The socket of a worker was closed at its other end, so it has likely ended.
    HungUp {
        /// Which one.
        incarnation: Incarnation,
    },
    /// A worker was reaped; all its answers were handled before.
    Ended {
        /// Which one.
        incarnation: Incarnation,
        /// How.
        exit: ExitKind,
        /// The position in its first task at hand of the sample it was at, if it was at one.
        at: Option<u64>,
    },
    /// A worker has come through the trial of a task.
    Survived {
        /// Which one.
        incarnation: Incarnation,
        /// What.
        task: TaskNumber,
    },
    /// The engine has looked at a worker; [`Supervisor::to_look_at`](super::Supervisor::to_look_at) says when and at whom.
    Observation {
        /// At which one.
        incarnation: Incarnation,
        /// What it found.
        seen: Observation,
    },
    /// A worker leaks and is to be replaced without a pause. It is ignored unless this is the ready
    /// worker of a worker that has not retired, has no other worker, and tries no task.
    Renew {
        /// Which one.
        incarnation: Incarnation,
    },
    /// A worker is not needed any more, once the tasks it was given are done. A new task that is
    /// pinned to it ends that.
    Retire {
        /// Which one.
        worker_id: WorkerId,
    },
    /// Other code of the trainer's process has closed descriptors of ours, so that nobody can be heard.
    DescriptorsClosed,
    /// [`Supervisor::next_deadline`](super::Supervisor::next_deadline) has come.
    TimePassed,
    /// The consumer wants no more.
    Close,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SupervisorAction {
    /// Start a zygote. It is answered by `ZygoteReady` or `ZygoteEnded`.
    StartZygote {
        /// Whether it must be a fresh interpreter and no fork of the trainer.
        fresh: bool,
    },
    /// End the zygote with all its workers. It is answered by `ZygoteEnded`; if that takes longer
    /// than the grace, another one is started without it.
    EndZygote,
    /// Ask the zygote for a sign of life. It is answered by `ZygoteAnswered`.
    PingZygote {
        /// To be sent back.
        number: u32,
    },
    /// For the log: the zygote takes long to start or to answer, but works.
    ZygoteSlow,
    /// For the log: the zygote hangs; it is ended and replaced, or the run ends.
    ZygoteHung,
    /// Fork a worker. It is answered by `Ready`, `Refused`, `StartFailed` or `Ended`.
    Fork {
        /// Who is to be started.
        incarnation: Incarnation,
    },
    /// Give a task to a worker that is ready.
    Send {
        /// To whom.
        incarnation: Incarnation,
        /// What.
        task: TaskNumber,
        /// The task is tried: only the sample at this position is worked on, with all care, and the
        /// worker says `Survived` instead of an answer.
        trial: Option<u64>,
    },
    /// Ask a worker to end after what it has at hand.
    Stop {
        /// Whom.
        incarnation: Incarnation,
    },
    /// Send SIGKILL. It may come before the fork was answered: then the worker must die as soon as
    /// it is started.
    Kill {
        /// To whom.
        incarnation: Incarnation,
    },
    /// The answer being handled is the one result of this task.
    Accept {
        /// Which one.
        task: TaskNumber,
    },
    /// The answer being handled is late or unknown: throw it away.
    Discard {
        /// Of which task.
        task: TaskNumber,
        /// From whom.
        incarnation: Incarnation,
    },
    /// The one result of this task is that it cannot be done.
    GiveUp {
        /// Which one.
        task: TaskNumber,
        /// The position in it of the sample that is to blame, if it is known.
        at: Option<u64>,
        /// Why.
        why: Reason,
    },
    /// Have a worker write down where its code is; it may take `dump_time`.
    Dump {
        /// Which one.
        incarnation: Incarnation,
    },
    /// For the log: a worker makes no progress, and nothing is done about it.
    Stalled {
        /// Which one.
        incarnation: Incarnation,
        /// What it is at.
        seen: Observation,
    },
    /// For the log: a worker sleeps on a lock that its fork may have copied, so that all start
    /// again from a fresh interpreter.
    RestartedFresh {
        /// Which one.
        incarnation: Incarnation,
        /// What it is at.
        seen: Observation,
    },
    /// For the log: a worker that was replaced without a pause has ended, with nothing left undone.
    Retired {
        /// Which one.
        incarnation: Incarnation,
    },
    /// For the log: a worker died.
    Died(Death),
    /// The run has ended; only the closing is left.
    Fail(RunFailure),
    /// Nothing is left. It comes once, and last.
    Closed,
}

impl SupervisorAction {
    /// Whether the zygote carries it out, and so must answer.
    pub(super) fn is_for_zygote(&self) -> bool {
        match self {
            SupervisorAction::Fork { .. }
            | SupervisorAction::Kill { .. }
            | SupervisorAction::Dump { .. } => true,
            SupervisorAction::StartZygote { .. }
            | SupervisorAction::EndZygote
            | SupervisorAction::PingZygote { .. }
            | SupervisorAction::ZygoteSlow
            | SupervisorAction::ZygoteHung
            | SupervisorAction::Send { .. }
            | SupervisorAction::Stop { .. }
            | SupervisorAction::Accept { .. }
            | SupervisorAction::Discard { .. }
            | SupervisorAction::GiveUp { .. }
            | SupervisorAction::Stalled { .. }
            | SupervisorAction::RestartedFresh { .. }
            | SupervisorAction::Retired { .. }
            | SupervisorAction::Died(_)
            | SupervisorAction::Fail(_)
            | SupervisorAction::Closed => false,
        }
    }
}

/// What a supervisor is told once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SupervisorSettings {
    /// Workers; at least one.
    pub worker_count: u32,
    /// Tasks at hand of a worker above which it gets none that others can do; at least one. Pinned
    /// tasks are sent at once: the caller that submits them bounds them.
    pub depth: u32,
    /// Deaths that are allowed `within` a time.
    pub max_deaths: u32,
    /// The time over which deaths are counted.
    pub within: Duration,
    /// Deaths at the same sample of a task after which it is given up; `None` sends it again for
    /// ever.
    pub attempts: Option<u32>,
    /// Deaths at the same sample of a task after which it is tried alone in a fresh worker; `None`
    /// never tries.
    pub suspect_after: Option<u32>,
    /// How long a worker may be at one sample until it is killed.
    pub deadline: Option<Duration>,
    /// How long a worker may start, if there is a deadline; one that was stopped has the deadline.
    pub start_limit: Duration,
    /// Times that a sample passes the deadline after which its task is given up; at least one.
    pub hangs: u32,
    /// How long a worker may be at one sample, or start, until the log tells of it.
    pub stall: Option<Duration>,
    /// How long a dump may take.
    pub dump_time: Duration,
    /// Whether the zygote is a fork, and a fresh interpreter may help a worker that sleeps on a
    /// lock before its first answer.
    pub may_be_fresh: bool,
    /// How long the zygote may take to answer, and a zygote that is a fork to be ready.
    pub zygote_patience: Duration,
    /// How long a zygote that is a fresh interpreter may take to be ready.
    pub zygote_start: Duration,
    /// How long forks of a worker may be refused, from the first refusal on.
    pub refused_for: Duration,
    /// How long a worker that was asked to stop, and has no more to do, may take until it is
    /// killed.
    pub grace: Duration,
    /// Whether workers are replaced. If not, a death that leaves work undone ends the run, and a
    /// death that leaves none does so when there is work that the dead could have been given.
    pub replace: bool,
}
