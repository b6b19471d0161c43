//! What must follow when the engine has looked at a worker.

use std::time::Duration;

use super::{Promises, Zygote};
use crate::worker::supervisor::{DUMP_EXTENSIONS, Life, Seen, Task, Work};

/// A task and the position of a sample in it.
pub(super) type Spot = (Option<Task>, Option<u64>);

/// A dump that was asked for.
#[derive(Clone, Copy)]
pub(super) struct Dump {
    pub(super) at: Duration,
    spot: Spot,
    asleep: bool,
}

/// Where a worker was killed because it hung.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hang {
    /// Nothing, if it came to its end after all.
    pub(super) task: Option<Task>,
    pub(super) at: Option<u64>,
}

/// What must come of a look.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Watched {
    Dump(Life),
    Stalled(Life, Seen),
    Reborn(Life, Seen),
    Kill(Life, Hang),
}

impl Promises {
    pub(super) fn book_seen(&mut self, life: Life, seen: Seen, now: Duration) -> Option<Watched> {
        if !self.is_running() || self.zygote != Zygote::Ready {
            return None;
        }
        let settings = self.settings.clone();
        let may_be_reborn = settings.may_be_fresh && !self.reborn;
        let worker = self.worker_mut(life).filter(|worker| !worker.killed && !worker.failed)?;
        // One that does not know of its task yet is late as if it had begun it, which it has not.
        let has_begun = seen.work != Work::Waiting;
        let seen = match worker.at_hand.first() {
            Some(&task) if worker.ready && !has_begun => Seen {
                task: Some(task),
                position: None,
                since: seen.since.max(worker.busy_since),
                work: Work::Sample,
                ..seen
            },
            Some(_) | None => seen,
        };
        let spent = now.saturating_sub(seen.since);
        let starts = !worker.ready && seen.work == Work::Starting;
        let is_at_sample =
            seen.work == Work::Sample || (seen.work == Work::Blocked && seen.stopped);
        let works = worker.ready && !worker.at_hand.is_empty() && is_at_sample;
        let start_limit = if seen.stopped { Duration::ZERO } else { settings.start_limit };
        let overdue = settings.deadline.is_some_and(|deadline| {
            (works && spent >= deadline) || (starts && spent >= deadline.max(start_limit))
        });
        let stalls = (starts || works) && settings.stall.is_some_and(|stall| spent >= stall);
        let spot = (seen.task, seen.position);
        if !overdue && (!stalls || worker.told.contains(&spot)) {
            worker.dump = None;
            return None;
        }
        let same = worker.dump.filter(|dump| dump.spot == spot && seen.since <= dump.at);
        let Some(dump) = same else {
            worker.dump = Some(Dump { at: now, spot, asleep: seen.asleep });
            return Some(Watched::Dump(life));
        };
        let is_late = seen.is_dumping && !seen.stopped;
        if now < dump.at + settings.dump_time * if is_late { DUMP_EXTENSIONS } else { 1 } {
            return None;
        }
        worker.dump = None;
        if dump.asleep && !worker.worked && may_be_reborn {
            return Some(Watched::Reborn(life, seen));
        }
        if overdue {
            let task = seen.task.or(worker.at_hand.first().copied()).filter(|_| has_begun);
            return Some(Watched::Kill(life, Hang { task, at: seen.position }));
        }
        worker.told.push(spot);
        Some(Watched::Stalled(life, seen))
    }
}
