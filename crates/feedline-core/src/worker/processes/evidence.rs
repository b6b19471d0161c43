//! Finds out how a worker stands and what it died of. It only looks; `certificate` and the supervisor
//! judge.

use std::time::Duration;

use super::Options;
use crate::sys::limits;
use crate::sys::process::Stance;
use crate::worker::blackbox::{Doing, Snapshot};
use crate::worker::certificate::{Certificate, Facts, Posture, certify};
use crate::worker::lastwords::LastWords;
use crate::worker::supervisor::{Death, Seen, Work};

/// Counters that are looked at again and again: what has changed since says who did it.
pub(super) struct Evidence {
    group_kills: Option<u64>,
    machine_kills: Option<u64>,
}

impl Evidence {
    /// From now on.
    pub(super) fn new() -> Evidence {
        let (group_kills, machine_kills) = limits::memory_kills();
        Evidence { group_kills, machine_kills }
    }

    /// What a dead worker died of.
    pub(super) fn certify(
        &mut self,
        death: &Death,
        peak_bytes: u64,
        posture: Option<Posture>,
        words: Option<&LastWords>,
        is_cut_off: bool,
        options: &Options,
    ) -> Certificate {
        let (group, machine) = limits::memory_kills();
        let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let kills = (since(group, self.group_kills), since(machine, self.machine_kills));
        (self.group_kills, self.machine_kills) = (group, machine);
        let memory = limits::memory_of_group();
        certify(&Facts {
            ending: Some(death.ending),
            overdue: death.overdue.then_some(options.settings.deadline).flatten(),
            posture,
            is_cut_off,
            peak_bytes,
            group_kills: kills.0,
            machine_kills: kills.1,
            memory_limit: memory.map(|(limit, _)| limit),
            memory_used: memory.map(|(_, used)| used),
            processor_limit: limits::processor_seconds(),
            address_limit: limits::address_space(),
            shared_free: limits::shared_memory_free(),
            words: words.map(LastWords::text).unwrap_or_default(),
            workers: (options.workers_name, options.settings.posts),
            folders: options.folders.clone(),
        })
    }
}

/// How a process stands, given the processor time it had used at the look before.
pub(super) fn posture(stance: Stance, ticks_before: Option<u64>) -> Posture {
    match stance.letter {
        'T' | 't' => Posture::IsStopped,
        'D' => Posture::WaitsForDevice,
        'S' if ticks_before.is_some_and(|before| before != stance.ticks) => Posture::Runs,
        'S' if stance.waits_for_lock => Posture::WaitsForLock,
        'S' => Posture::Sleeps,
        _ => Posture::Runs,
    }
}

/// What the supervisor is told of a worker.
pub(super) fn seen(
    snapshot: Option<Snapshot>,
    posture: Option<Posture>,
    started: u64,
    forked: Duration,
    is_dumping: bool,
) -> Seen {
    let asleep = posture == Some(Posture::WaitsForLock);
    let stopped = posture == Some(Posture::IsStopped);
    let Some(snapshot) = snapshot else {
        let work = Work::Starting;
        return Seen {
            task: None,
            position: None,
            since: forked,
            work,
            asleep,
            stopped,
            is_dumping,
        };
    };
    let work = match snapshot.doing {
        Doing::Starting => Work::Starting,
        Doing::Waiting => Work::Waiting,
        // Pickling a batch calls methods of the user.
        Doing::Fetching | Doing::Collating | Doing::Answering => Work::Sample,
        Doing::OutOfArena | Doing::Pausing | Doing::Sending => Work::Blocked,
    };
    Seen {
        task: snapshot.task,
        position: snapshot.position.filter(|_| snapshot.doing == Doing::Fetching),
        since: Duration::from_nanos(snapshot.since.saturating_sub(started)),
        work,
        asleep,
        stopped,
        is_dumping,
    }
}
