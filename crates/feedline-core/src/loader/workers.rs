//! Derives the options of worker processes from settings and machine.

use std::time::Duration;

use super::budgets::Limit;
use super::defaults;
use crate::config::{Choice, TimeLimit, Workers};
use crate::error::{Error, Kind, Result};
use crate::sys::limits;
use crate::worker::certificate::CodeFolders;
use crate::worker::leaks::Bounds;
use crate::worker::processes::{PoolOptions, Processes};
use crate::worker::supervisor::{Deadline, HangAction, LearnedDeadline, SupervisorSettings};

/// How long a refused fork is retried.
const REFUSED_FOR: Duration = Duration::from_secs(20);
/// How long workers may finish their current work when the run ends.
const GRACE: Duration = Duration::from_millis(300);

/// How long the zygote may take to answer by default, and at least; also how long a fresh interpreter may take to
/// start.
const ZYGOTE_PATIENCE: Duration = Duration::from_secs(60);
const LEAST_PATIENCE: Duration = Duration::from_secs(5);
const ZYGOTE_START: Duration = Duration::from_secs(300);

/// How long a worker may take to start, if there is a deadline for samples.
const START_LIMIT: Duration = Duration::from_secs(300);

/// How long a worker may take to dump its stack.
const DUMP_TIME: Duration = Duration::from_millis(200);

/// How long a worker may neither answer nor use the processor, by default. At most less than the ten minutes after
/// which NCCL ends a distributed run.
const SHORTEST_HANG: Duration = Duration::from_secs(300);
const LONGEST_HANG: Duration = Duration::from_secs(540);

fn deadline(workers: &Workers) -> Deadline {
    let given = workers.hang_seconds.map(Duration::from_secs_f64);
    match workers.deadline {
        None => Deadline::Never,
        Some(TimeLimit::Seconds(seconds)) => Deadline::After(Duration::from_secs_f64(seconds)),
        Some(TimeLimit::Auto) => Deadline::Learned(LearnedDeadline {
            shortest: given.unwrap_or(SHORTEST_HANG),
            longest: given.unwrap_or(LONGEST_HANG),
            // A call may wait for anything outside, and must not be made twice without being asked for.
            action: if workers.makes_calls { HangAction::Report } else { HangAction::Restart },
        }),
    }
}

/// The options of the worker pool on this machine.
pub fn options(workers: &Workers, folders: CodeFolders) -> PoolOptions {
    let auto = || defaults::worker_memory(limits::available_memory());
    let memory = workers.memory.bytes(limits::allowed_memory, auto);
    // Tasks and results share it.
    let memory = if workers.has_inbox { memory / 2 } else { memory };
    // A machine that is out of memory may kill all workers at once: that alone is no reason to give up.
    let max_deaths = match workers.max_deaths {
        Choice::Exactly(deaths) => u32::try_from(deaths).unwrap_or(u32::MAX),
        Choice::Auto | Choice::Percent(_) => (2 * workers.worker_count).max(5),
    };
    let stall = workers.stall.map(Duration::from_secs_f64);
    let deadline = deadline(workers);
    let fixed = match deadline {
        Deadline::After(time) => Some(time),
        Deadline::Never | Deadline::Learned(_) => None,
    };
    // A user who wants slow samples to be ended or reported earlier wants the same for the zygote.
    let wanted = fixed.into_iter().chain(stall).min();
    let zygote_patience =
        wanted.map_or(ZYGOTE_PATIENCE, |time| time.clamp(LEAST_PATIENCE, ZYGOTE_PATIENCE));
    PoolOptions {
        settings: SupervisorSettings {
            worker_count: workers.worker_count,
            depth: workers.depth,
            max_deaths,
            within: Duration::from_secs_f64(workers.death_window),
            attempts: workers.attempts,
            refused_for: REFUSED_FOR,
            grace: GRACE,
            replace: workers.replace,
            suspect_after: workers.suspect_after,
            deadline,
            start_limit: START_LIMIT,
            hangs: workers.hangs,
            stall,
            dump_time: DUMP_TIME,
            zygote_patience,
            zygote_start: ZYGOTE_START,
            may_be_fresh: workers.may_be_fresh,
        },
        arena_bytes: memory.max(1 << 20),
        arena_share: Limit::of(workers.memory, memory).share,
        inbox_bytes: if workers.has_inbox { memory.max(1 << 20) } else { 0 },
        bounds: Bounds {
            memory: workers.max_worker_memory,
            samples: workers.max_samples_per_worker,
            descriptors: limits::most_open_files(),
        },
        workers_name: if workers.is_torch { "num_workers" } else { "workers" },
        folders,
    }
}

/// Starts the supervisor. The workers follow once the zygote is ready.
pub fn start(workers: &Workers, folders: CodeFolders) -> Result<Processes> {
    Processes::new(options(workers, folders)).map_err(|error| {
        let kind = match error.raw_os_error() {
            Some(23 | 24) => Kind::TooManyOpenFiles,
            Some(11) => Kind::OutOfThreads,
            Some(_) | None => Kind::OutOfMemory,
        };
        Error::io(kind, "supervising worker processes", error)
    })
}
