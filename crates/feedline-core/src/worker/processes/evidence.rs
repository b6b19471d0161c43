//! Collects the state of workers and the evidence of their deaths. It only collects; `certificate`
//! and the supervisor decide.

use std::time::Duration;

use super::PoolOptions;
use crate::sys::limits;
use crate::sys::process::{ProcStat, ProcessTree};
use crate::worker::blackbox::{Activity, Snapshot};
use crate::worker::certificate::{Certificate, DeathFacts, Overdue, ProcessState, certify};
use crate::worker::crash_log::CrashLog;
use crate::worker::supervisor::{
    Deadline, Death, ExitKind, LearnedDeadline, Observation, WorkerActivity,
};

/// How long a kill of the OOM killer may be noticed before the end of the worker that it killed.
const KILL_TO_END: Duration = Duration::from_secs(5);

/// Kills of the OOM killer that belong to no dead worker yet.
pub(super) struct Evidence {
    group: KillCounter,
    machine: KillCounter,
}

/// A counter of the OOM killer.
#[derive(Default)]
struct KillCounter {
    /// The kills that belong to dead workers, or to other processes.
    explained: Option<u64>,
    /// When there were more for the first time.
    grew_at: Option<Duration>,
}

impl KillCounter {
    /// The kills that are not explained yet.
    fn unexplained(&self, now: Option<u64>) -> Option<u64> {
        Some(now?.saturating_sub(self.explained?))
    }

    /// A dead worker explains one of them.
    fn explain_one(&mut self, now: Option<u64>) {
        if self.unexplained(now).is_some_and(|kills| kills > 0) {
            self.explained = self.explained.map(|explained| explained + 1);
        }
    }

    /// Kills without a dead worker were those of other processes.
    fn forget_old(&mut self, count: Option<u64>, now: Duration) {
        if self.unexplained(count).unwrap_or(0) == 0 {
            self.grew_at = None;
        } else if now.saturating_sub(*self.grew_at.get_or_insert(now)) > KILL_TO_END {
            self.explained = count;
            self.grew_at = None;
        }
    }
}

impl Evidence {
    /// Reads the counters for the first time.
    pub(super) fn new() -> Evidence {
        let (group, machine) = limits::memory_kills();
        let counter = |count| KillCounter { explained: count, grew_at: None };
        Evidence { group: counter(group), machine: counter(machine) }
    }

    /// Whether the OOM killer has killed a process that belongs to no dead worker yet.
    pub(super) fn has_memory_kill(&self) -> bool {
        let (group, machine) = limits::memory_kills();
        let kills = match self.group.unexplained(group) {
            Some(kills) => kills,
            None => self.machine.unexplained(machine).unwrap_or(0),
        };
        kills > 0
    }

    /// Forgets kills that no end of a worker has followed.
    pub(super) fn forget_old_kills(&mut self, now: Duration) {
        let (group, machine) = limits::memory_kills();
        self.group.forget_old(group, now);
        self.machine.forget_old(machine, now);
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
        let kills = (self.group.unexplained(group), self.machine.unexplained(machine));
        if matches!(death.exit, ExitKind::Killed(9)) && !death.overdue {
            self.group.explain_one(group);
            self.machine.explain_one(machine);
        }
        let memory = limits::memory_of_group();
        certify(&DeathFacts {
            exit: Some(death.exit),
            overdue: match options.settings.deadline {
                Deadline::After(deadline) if death.overdue => Some(Overdue::Deadline(deadline)),
                Deadline::Learned(LearnedDeadline { .. }) if death.overdue => Some(Overdue::Hang),
                Deadline::Never | Deadline::After(_) | Deadline::Learned(_) => None,
            },
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

/// The share of the time, in percent, for which a process that sleeps must have used the processor
/// to count as working. One that polls for something that never comes uses less.
const WORKING_PERCENT: u32 = 1;

/// Whether a process made progress in the time since the last check. One that waits for a device or
/// for the processor does.
pub(super) fn has_progressed(proc_stat: ProcStat, used: Duration, elapsed: Duration) -> bool {
    matches!(proc_stat.letter, 'D' | 'R') || used * 100 >= elapsed * WORKING_PERCENT
}

/// A process that wrote its stack in the meantime must have used this share of the time to count as
/// working, in percent.
const DUMPING_PERCENT: u32 = 50;

/// Whether a worker, or a process below it, made progress between two checks. A worker under a
/// debugger stands still because a person wants it to.
pub(super) fn tree_has_progressed(
    before: ProcessTree,
    now: ProcessTree,
    elapsed: Duration,
    has_dumped: bool,
) -> bool {
    let used = now.processor_time.saturating_sub(before.processor_time);
    if has_dumped {
        return used * 100 >= elapsed * DUMPING_PERCENT;
    }
    now.waits || now.is_traced || used * 100 >= elapsed * WORKING_PERCENT
}

/// Combines a worker's black box and process state for the supervisor.
pub(super) fn observe(
    snapshot: Option<Snapshot>,
    process_state: Option<ProcessState>,
    started: u64,
    forked: Duration,
    is_dumping: bool,
    has_progressed: bool,
) -> Observation {
    let asleep = process_state == Some(ProcessState::WaitsForLock);
    let stopped = process_state == Some(ProcessState::IsStopped);
    let Some(snapshot) = snapshot else {
        let work = WorkerActivity::Starting;
        return Observation {
            task: None,
            offset: None,
            since: forked,
            work,
            asleep,
            stopped,
            is_dumping,
            has_progressed,
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
        offset: snapshot.offset.filter(|_| snapshot.activity == Activity::Fetching),
        since: Duration::from_nanos(snapshot.since.saturating_sub(started)),
        work,
        asleep,
        stopped,
        is_dumping,
        has_progressed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(letter: char) -> ProcStat {
        ProcStat { letter, ticks: 0, waits_for_lock: false }
    }

    #[test]
    fn a_process_that_polls_makes_no_progress_and_one_that_waits_for_a_processor_does() {
        let elapsed = Duration::from_secs(5);
        assert!(!has_progressed(seen('S'), Duration::from_millis(10), elapsed));
        assert!(has_progressed(seen('S'), Duration::from_millis(50), elapsed));
        assert!(has_progressed(seen('R'), Duration::ZERO, elapsed));
        assert!(has_progressed(seen('D'), Duration::ZERO, elapsed));
        assert!(!has_progressed(seen('T'), Duration::ZERO, elapsed));
    }

    #[test]
    fn a_worker_makes_progress_while_any_process_below_it_does() {
        let elapsed = Duration::from_secs(5);
        let quiet = ProcessTree::default();
        let used = |millis| ProcessTree {
            processor_time: Duration::from_millis(millis),
            ..ProcessTree::default()
        };
        let progressed = |now, has_dumped| tree_has_progressed(quiet, now, elapsed, has_dumped);
        assert!(!progressed(quiet, false));
        assert!(!progressed(used(40), false));
        assert!(progressed(used(50), false));
        assert!(progressed(ProcessTree { waits: true, ..quiet }, false));
        assert!(progressed(ProcessTree { is_traced: true, ..quiet }, false));
        // Writing a stack takes some processor time.
        assert!(!progressed(ProcessTree { waits: true, ..used(200) }, true));
        assert!(progressed(used(4_000), true));
    }
}
