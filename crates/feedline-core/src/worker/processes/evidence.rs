//! Collects the state of workers and the evidence of their deaths. It only collects; `certificate`
//! and the supervisor decide.

use std::time::Duration;

use super::PoolOptions;
use crate::sys::limits;
use crate::sys::process::ProcStat;
use crate::worker::blackbox::{Activity, Snapshot};
use crate::worker::certificate::{Certificate, DeathFacts, ProcessState, certify};
use crate::worker::crash_log::CrashLog;
use crate::worker::supervisor::{Death, Observation, WorkerActivity};

/// Kill counters of the OOM killer at the last look: a change since then shows who killed a worker.
pub(super) struct Evidence {
    group_kills: Option<u64>,
    machine_kills: Option<u64>,
}

impl Evidence {
    /// Reads the counters for the first time.
    pub(super) fn new() -> Evidence {
        let (group_kills, machine_kills) = limits::memory_kills();
        Evidence { group_kills, machine_kills }
    }

    /// The certificate of a dead worker.
    pub(super) fn certify(
        &mut self,
        death: &Death,
        peak_bytes: u64,
        process_state: Option<ProcessState>,
        crash_log: Option<&CrashLog>,
        is_disconnected: bool,
        options: &PoolOptions,
    ) -> Certificate {
        let (group, machine) = limits::memory_kills();
        let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let kills = (since(group, self.group_kills), since(machine, self.machine_kills));
        (self.group_kills, self.machine_kills) = (group, machine);
        let memory = limits::memory_of_group();
        certify(&DeathFacts {
            exit: Some(death.exit),
            overdue: death.overdue.then_some(options.settings.deadline).flatten(),
            process_state,
            is_disconnected,
            peak_bytes,
            group_kills: kills.0,
            machine_kills: kills.1,
            memory_limit: memory.map(|(limit, _)| limit),
            memory_used: memory.map(|(_, used)| used),
            processor_limit: limits::processor_seconds(),
            address_limit: limits::address_space(),
            shared_free: limits::shared_memory_free(),
            crash_log: crash_log.map(CrashLog::text).unwrap_or_default(),
            workers: (options.workers_name, options.settings.worker_count),
            folders: options.folders.clone(),
        })
    }
}

/// The state of a process, given the processor time it had used at the previous look.
pub(super) fn process_state(proc_stat: ProcStat, ticks_before: Option<u64>) -> ProcessState {
    match proc_stat.letter {
        'T' | 't' => ProcessState::IsStopped,
        'D' => ProcessState::WaitsForDevice,
        'S' if ticks_before.is_some_and(|before| before != proc_stat.ticks) => ProcessState::Runs,
        'S' if proc_stat.waits_for_lock => ProcessState::WaitsForLock,
        'S' => ProcessState::Sleeps,
        _ => ProcessState::Runs,
    }
}

/// Combines a worker's black box and process state for the supervisor.
pub(super) fn observe(
    snapshot: Option<Snapshot>,
    process_state: Option<ProcessState>,
    started: u64,
    forked: Duration,
    is_dumping: bool,
) -> Observation {
    let asleep = process_state == Some(ProcessState::WaitsForLock);
    let stopped = process_state == Some(ProcessState::IsStopped);
    let Some(snapshot) = snapshot else {
        let work = WorkerActivity::Starting;
        return Observation {
            task: None,
            position: None,
            since: forked,
            work,
            asleep,
            stopped,
            is_dumping,
        };
    };
    let work = match snapshot.activity {
        Activity::Starting => WorkerActivity::Starting,
        Activity::Waiting => WorkerActivity::Waiting,
        // Pickling a batch calls methods of the user.
        Activity::Fetching | Activity::Collating | Activity::Answering => WorkerActivity::Sample,
        Activity::OutOfArena | Activity::Pausing | Activity::Sending => WorkerActivity::Blocked,
    };
    Observation {
        task: snapshot.task,
        position: snapshot.position.filter(|_| snapshot.activity == Activity::Fetching),
        since: Duration::from_nanos(snapshot.since.saturating_sub(started)),
        work,
        asleep,
        stopped,
        is_dumping,
    }
}
