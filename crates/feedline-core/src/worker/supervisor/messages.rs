//! The events that the supervisor handles, the actions that it asks for, and the settings of a run.

use std::time::Duration;

/// The number of a worker. The processes that replace it keep the number.
pub(crate) type WorkerId = u32;

/// The number of a task. Numbers grow with each submission.
pub type TaskNumber = u64;

/// One process of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Incarnation {
    /// The worker that the process belongs to.
    pub worker_id: WorkerId,
    /// The number of forks tried for this worker before this one.
    pub generation: u32,
}

/// How a worker process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitKind {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
    /// It ended together with its zygote, so the exit status is unknown.
    Lost,
}

/// What a worker was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerStage {
    /// It was not ready yet.
    Booting,
    /// It was ready and had no task.
    Idle,
    /// It had tasks.
    Busy,
    /// It had been asked to stop.
    Stopping,
}

/// The unrequested end of a worker process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Death {
    /// The process that died.
    pub incarnation: Incarnation,
    /// How it ended.
    pub exit: ExitKind,
    /// When it died, since the start of the run.
    pub at: Duration,
    /// What it was doing.
    pub stage: WorkerStage,
    /// The tasks that were assigned to it. It was working on the first one.
    pub tasks: Vec<TaskNumber>,
    /// Whether another process replaces it.
    pub replaced: bool,
    /// Whether we killed it because a sample took longer than the deadline. Such a death does not
    /// count for `max_deaths`.
    pub overdue: bool,
}

/// Why a task was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GiveUpReason {
    /// Workers die from it.
    Kills,
    /// It exceeded the deadline too many times.
    Hangs,
}

/// What a worker is doing, as read from its black box.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerActivity {
    /// It is not ready yet.
    Starting,
    /// It has no task.
    Waiting,
    /// It is in the user's code.
    Sample,
    /// It waits for memory or for its data source. No deadline applies.
    Blocked,
}

/// What the dispatcher found when it looked at a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observation {
    /// The task in progress.
    pub task: Option<TaskNumber>,
    /// The offset, within that task, of the sample in progress.
    pub offset: Option<u64>,
    /// When the activity began, since the start of the run.
    pub since: Duration,
    /// What the worker is doing.
    pub work: WorkerActivity,
    /// Whether the worker sleeps on a lock and has used no processor time.
    pub asleep: bool,
    /// Whether a signal has stopped the worker.
    pub stopped: bool,
    /// Whether the worker was asked for its stack and has not written it yet.
    pub is_dumping: bool,
    /// Whether the worker, or a process below it, has used the processor since the last check, or
    /// waits for a processor or a device. True at the first check, because nothing is known then.
    pub has_progressed: bool,
}

/// How long one sample may take before its worker is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deadline {
    /// As long as it needs.
    #[default]
    Never,
    /// This long, whatever its worker does.
    After(Duration),
    /// As long as its worker uses the processor, and a learned time beyond that.
    Learned(LearnedDeadline),
}

/// When a worker counts as hung that neither answers nor uses the processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnedDeadline {
    /// It gets at least this long.
    pub shortest: Duration,
    /// It gets at most this long, however long other samples took.
    pub longest: Duration,
    /// What is done about it.
    pub action: HangAction,
}

/// What is done about a worker that hangs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HangAction {
    /// It is killed and replaced, and its sample is retried.
    Restart,
    /// It is reported once with its stack, as a stall.
    Report,
}

/// Why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunFailure {
    /// More workers died than the settings allow; `Supervisor::deaths` lists them.
    TooManyDeaths,
    /// A worker died with tasks that had no result, and the settings forbid replacing it.
    Death {
        /// The process that died.
        incarnation: Incarnation,
    },
    /// A worker reported that it cannot start.
    CannotStart {
        /// The process.
        incarnation: Incarnation,
    },
    /// A worker died too many times in a row before it was ready.
    DiesStarting {
        /// The last process that died.
        incarnation: Incarnation,
    },
    /// No process could be forked for a worker.
    Refused {
        /// The worker.
        worker_id: WorkerId,
        /// Whether the reason was a transient one that lasted too long.
        transient: bool,
    },
    /// The zygote ended too many times in a row before it was ready.
    ZygoteCannotStart,
    /// Too many zygotes hung in a row.
    ZygoteHangs,
    /// Other code in the trainer process closed our descriptors.
    DescriptorsClosed,
}

/// What the machine has too little of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortage {
    /// It refuses processes, or what a process needs to be started.
    Processes,
    /// Its memory is full.
    Memory,
    /// A worker has as many open descriptors as it may have.
    Descriptors,
    /// A file system to which the user's code writes is full.
    Space,
}

/// Something that happened to the worker pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WorkerEvent {
    /// A task was submitted. It is ignored unless its number is greater than all earlier ones.
    Submitted {
        /// The task's number.
        task: TaskNumber,
        /// The worker that must do the task (modulo the worker count), or `None` for any worker.
        worker_id: Option<WorkerId>,
    },
    /// The requested zygote process exists; it is not ready yet.
    ZygoteStarted,
    /// The zygote can fork now.
    ZygoteReady,
    /// A message arrived from the zygote.
    ZygoteAnswered {
        /// The number of the ping that the zygote answered, if the message was an answer.
        ping: Option<u32>,
    },
    /// The dispatcher looked at the zygote; `Supervisor::must_check_zygote` says when to look.
    ZygoteSeen {
        /// Whether the zygote has used the processor, or waited for a device, since the last check
        /// or ping.
        ran: bool,
    },
    /// The zygote ended, and all its workers with it; no `Ended` follows for them. This event is
    /// not sent for a zygote after another one was requested.
    ZygoteEnded,
    /// A fork was refused.
    Refused {
        /// The process that was not started.
        incarnation: Incarnation,
        /// Whether a retry can succeed (EAGAIN, ENOMEM).
        transient: bool,
    },
    /// A worker can take tasks now.
    Ready {
        /// The process.
        incarnation: Incarnation,
    },
    /// A worker reported that it cannot start.
    StartFailed {
        /// The process.
        incarnation: Incarnation,
    },
    /// A worker sent the result of a task.
    TaskDone {
        /// The process.
        incarnation: Incarnation,
        /// The task.
        task: TaskNumber,
    },
    /// The other end of a worker's socket was closed, so the worker has probably ended.
    HungUp {
        /// The process.
        incarnation: Incarnation,
    },
    /// A worker was reaped. All its messages were handled before this event.
    Ended {
        /// The process.
        incarnation: Incarnation,
        /// How it ended.
        exit: ExitKind,
        /// The offset, within its first task, of the sample in progress, if there was one.
        at: Option<u64>,
        /// What was short: the system killed it for that, or it ended by itself, so that a fresh
        /// process can do its task.
        shortage: Option<Shortage>,
    },
    /// The dispatcher checked whether there is room for one more process;
    /// `Supervisor::must_check_room` says when.
    RoomSeen {
        /// Whether there is.
        is_enough: bool,
    },
    /// A worker survived the trial of a task.
    Survived {
        /// The process.
        incarnation: Incarnation,
        /// The task.
        task: TaskNumber,
    },
    /// A worker has loaded a sample that took longer than all samples before it.
    LongestSample {
        /// How long it took.
        took: Duration,
    },
    /// The dispatcher looked at a worker; `Supervisor::workers_to_check` says when and at
    /// which.
    Observed {
        /// The process.
        incarnation: Incarnation,
        /// What the dispatcher found.
        seen: Observation,
    },
    /// A worker leaks and should be replaced without a pause. The event is ignored unless the
    /// process is ready, is the only one of its worker, tries no task, and the worker has not
    /// retired.
    Renew {
        /// The process.
        incarnation: Incarnation,
    },
    /// A worker is no longer needed after the tasks it already has. A new task that is pinned to it
    /// ends the retirement.
    Retire {
        /// The worker.
        worker_id: WorkerId,
    },
    /// A worker that has retired is needed again.
    Restore {
        /// The worker.
        worker_id: WorkerId,
    },
    /// Another number of workers may have pinned tasks at once.
    LimitWorkers {
        /// How many; at least one.
        at_once: u32,
        /// Whether memory is short, so that no more processes than these may run.
        ends_others: bool,
    },
    /// Other code in the trainer process closed our descriptors, so no worker can be reached.
    DescriptorsClosed,
    /// The time of `Supervisor::next_deadline` has come.
    TimePassed,
    /// The consumer closes the run.
    Close,
}

/// Something that the dispatcher must do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SupervisorAction {
    /// Start a zygote. `ZygoteReady` or `ZygoteEnded` answers it.
    StartZygote {
        /// Whether the zygote must be a fresh interpreter instead of a fork of the trainer.
        fresh: bool,
    },
    /// End the zygote with all its workers. `ZygoteEnded` answers it; if it takes longer than the
    /// grace period, another zygote is started without waiting.
    EndZygote,
    /// Ask the zygote for a sign of life. `ZygoteAnswered` answers it.
    PingZygote {
        /// The number that the answer repeats.
        number: u32,
    },
    /// For the log: the zygote is slow to start or to answer, but it uses the processor.
    ZygoteSlow,
    /// For the log: the zygote hangs. It is ended and replaced, or the run ends.
    ZygoteHung,
    /// Fork a worker. `Ready`, `Refused`, `StartFailed` or `Ended` answers it.
    Fork {
        /// The process to start.
        incarnation: Incarnation,
    },
    /// Send a task to a worker that is ready.
    Send {
        /// The process.
        incarnation: Incarnation,
        /// The task.
        task: TaskNumber,
        /// For a trial: the worker loads only the sample at this offset and reports `Survived`
        /// instead of a result.
        trial: Option<u64>,
    },
    /// Ask a worker to exit after the tasks it has.
    Stop {
        /// The process.
        incarnation: Incarnation,
    },
    /// Send SIGKILL. If the fork is not answered yet, the worker must be killed as soon as it
    /// starts.
    Kill {
        /// The process.
        incarnation: Incarnation,
    },
    /// The result being handled is the one result of this task.
    Accept {
        /// The task.
        task: TaskNumber,
    },
    /// The result being handled is late or unknown: discard it.
    Discard {
        /// The task.
        task: TaskNumber,
        /// The process that sent it.
        incarnation: Incarnation,
    },
    /// The task fails: this is its one result.
    GiveUp {
        /// The task.
        task: TaskNumber,
        /// The offset, within the task, of the sample that is to blame, if it is known.
        at: Option<u64>,
        /// Why the task fails.
        why: GiveUpReason,
    },
    /// Make a worker write its stack, which may take `dump_time`.
    Dump {
        /// The process.
        incarnation: Incarnation,
    },
    /// For the log: a worker makes no progress. Nothing else is done about it.
    Stalled {
        /// The process.
        incarnation: Incarnation,
        /// What it is doing.
        seen: Observation,
    },
    /// For the log: a worker sleeps on a lock that its fork may have copied, so all workers restart
    /// from a fresh interpreter.
    RestartedFresh {
        /// The process.
        incarnation: Incarnation,
        /// What it is doing.
        seen: Observation,
    },
    /// For the log: from now on at most this many processes run at once.
    CapacityChanged {
        /// How many.
        most: u32,
        /// What is short if there are fewer than before; `None` if there are more.
        shortage: Option<Shortage>,
    },
    /// For the log: a worker that was replaced without a pause has ended and left no task undone.
    Renewed {
        /// The process.
        incarnation: Incarnation,
    },
    /// For the log: a worker died.
    Died(Death),
    /// The run has failed; only closing remains.
    Fail(RunFailure),
    /// All workers are gone. This is the last action, and it occurs once.
    Closed,
}

impl SupervisorAction {
    /// Whether the zygote carries out the action and so must answer.
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
            | SupervisorAction::CapacityChanged { .. }
            | SupervisorAction::Renewed { .. }
            | SupervisorAction::Died(_)
            | SupervisorAction::Fail(_)
            | SupervisorAction::Closed => false,
        }
    }
}

/// The settings of one run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SupervisorSettings {
    /// The number of workers; at least one.
    pub worker_count: u32,
    /// The number of tasks per worker above which it gets no unpinned tasks; at least one. Pinned
    /// tasks are sent at once: the caller that submits them bounds them.
    pub depth: u32,
    /// The number of deaths allowed in the time `within`.
    pub max_deaths: u32,
    /// The time over which deaths are counted.
    pub within: Duration,
    /// The number of deaths at the same sample after which its task is given up; `None` retries
    /// forever.
    pub attempts: Option<u32>,
    /// The number of deaths at the same sample after which its task is tried alone in a fresh
    /// worker; `None` never tries.
    pub suspect_after: Option<u32>,
    /// How long one sample may take before its worker is killed.
    pub deadline: Deadline,
    /// How long a worker may take to start if there is a deadline. A worker that a signal has
    /// stopped gets only the deadline.
    pub start_limit: Duration,
    /// The number of times a sample may exceed the deadline before its task is given up; at least
    /// one.
    pub hangs: u32,
    /// How long one sample, or the start of a worker, may take before it is logged.
    pub stall: Option<Duration>,
    /// How long a worker may take to write its stack.
    pub dump_time: Duration,
    /// Whether the zygote is a fork, so that a fresh interpreter may help a worker that sleeps on a
    /// lock before its first result.
    pub may_be_fresh: bool,
    /// How long the zygote may take to answer, and a forked zygote to become ready.
    pub zygote_patience: Duration,
    /// How long a fresh-interpreter zygote may take to become ready.
    pub zygote_start: Duration,
    /// How long forks of a worker may be refused, counted from the first refusal.
    pub refused_for: Duration,
    /// How long a worker without tasks may take to exit after it was asked to stop, before it is
    /// killed.
    pub grace: Duration,
    /// Whether dead workers are replaced. If not, a death that leaves tasks undone ends the run at
    /// once; any other death ends it when a task is submitted that the dead worker could have been
    /// sent.
    pub replace: bool,
}
