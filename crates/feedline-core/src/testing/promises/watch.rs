//! Checks what must follow after the dispatcher looked at a worker.

use std::time::Duration;

use super::{CheckedZygote, PromiseChecker};
use crate::worker::supervisor::{
    DUMP_EXTENSIONS, Deadline, HangAction, Incarnation, LearnedDeadline, Observation, TaskNumber,
    WorkerActivity,
};

/// A task and the offset of a sample within it.
pub(super) type SampleLocation = (Option<TaskNumber>, Option<u64>);

/// A stack dump that was requested.
#[derive(Clone, Copy)]
pub(super) struct CheckedDump {
    pub(super) at: Duration,
    location: SampleLocation,
    asleep: bool,
}

/// Where a worker hung that was killed for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CheckedHang {
    /// `None` if it finished after all.
    pub(super) task: Option<TaskNumber>,
    pub(super) at: Option<u64>,
}

/// A look at a worker, if the deadline is learned.
#[derive(Clone, Copy)]
pub(super) struct ProgressCheck {
    at: Duration,
    seen: Observation,
}

/// How long a worker made no progress, from all checks of its sample. Between two checks at most a tenth of
/// the shortest deadline counts.
fn quiet(looks: &[ProgressCheck], shortest: Duration) -> Duration {
    let passed = looks.windows(2).map(|pair| (pair[1].at - pair[0].at).min(shortest / 20 * 2));
    passed.sum()
}

/// The action that must follow a look.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Watched {
    Dump(Incarnation),
    Stalled(Incarnation, Observation),
    RestartedFresh(Incarnation, Observation),
    Kill(Incarnation, CheckedHang),
}

impl PromiseChecker {
    pub(super) fn record_observation(
        &mut self,
        incarnation: Incarnation,
        seen: Observation,
        now: Duration,
    ) -> Option<Watched> {
        if !self.is_running() || self.zygote != CheckedZygote::Ready {
            return None;
        }
        let settings = self.settings.clone();
        let may_restart_fresh = settings.may_be_fresh && !self.restarted_fresh;
        let longest_sample = self.longest_sample;
        let worker =
            self.worker_mut(incarnation).filter(|worker| !worker.killed && !worker.failed)?;
        // A worker that has not received its task yet is late as if it had begun it, which it has
        // not.
        let has_begun = seen.work != WorkerActivity::Waiting;
        let seen = match worker.assigned.first() {
            Some(&task) if worker.ready && !has_begun => Observation {
                task: Some(task),
                offset: None,
                since: seen.since.max(worker.busy_since),
                work: WorkerActivity::Sample,
                ..seen
            },
            Some(_) | None => seen,
        };
        let spent = now.saturating_sub(seen.since);
        let starts = !worker.ready && seen.work == WorkerActivity::Starting;
        let is_at_sample = seen.work == WorkerActivity::Sample
            || (seen.work == WorkerActivity::Blocked && seen.stopped);
        let works = worker.ready && !worker.assigned.is_empty() && is_at_sample;
        let start_limit = if seen.stopped { Duration::ZERO } else { settings.start_limit };
        let location = (seen.task, seen.offset);
        let is_slow = (starts || works) && settings.stall.is_some_and(|stall| spent >= stall);
        let mut stalls = is_slow;
        let overdue = match settings.deadline {
            Deadline::Never => false,
            Deadline::After(deadline) => {
                (works && spent >= deadline) || (starts && spent >= deadline.max(start_limit))
            }
            Deadline::Learned(LearnedDeadline { shortest, longest, action }) => {
                if !starts && !works {
                    worker.looks.clear();
                }
                let is_other = |look: &ProgressCheck| {
                    (look.seen.task, look.seen.offset) != location || look.seen.since != seen.since
                };
                if seen.has_progressed || worker.looks.last().is_some_and(is_other) {
                    worker.looks.clear();
                }
                if starts || works {
                    worker.looks.push(ProgressCheck { at: now, seen });
                }
                let learned = (longest_sample * 20).max(shortest).min(longest);
                let limit = if starts { longest } else { learned };
                let hangs = (starts || works) && quiet(&worker.looks, shortest) >= limit;
                stalls |= hangs && action == HangAction::Report;
                hangs && action == HangAction::Restart
            }
        };
        if !overdue && (!stalls || worker.reported.contains(&location)) {
            worker.dump = None;
            return None;
        }
        let same = worker.dump.filter(|dump| dump.location == location && seen.since <= dump.at);
        let Some(dump) = same else {
            worker.dump = Some(CheckedDump { at: now, location, asleep: seen.asleep });
            return Some(Watched::Dump(incarnation));
        };
        let is_late = seen.is_dumping && !seen.stopped;
        if now < dump.at + settings.dump_time * if is_late { DUMP_EXTENSIONS } else { 1 } {
            return None;
        }
        worker.dump = None;
        if dump.asleep && !worker.worked && may_restart_fresh && (overdue || is_slow) {
            return Some(Watched::RestartedFresh(incarnation, seen));
        }
        if overdue {
            let task = seen.task.or(worker.assigned.first().copied()).filter(|_| has_begun);
            return Some(Watched::Kill(incarnation, CheckedHang { task, at: seen.offset }));
        }
        worker.reported.push(location);
        Some(Watched::Stalled(incarnation, seen))
    }
}
