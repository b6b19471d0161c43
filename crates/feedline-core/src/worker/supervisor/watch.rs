//! Decides when to look at workers, and what to do about one that makes no progress: it writes its
//! stack, and then it is killed, reported in the log, or restarted with all others from a fresh
//! interpreter.
//!
//! A worker is not looked at before it can be late, so watching costs one look per time limit,
//! however many samples it loads.

use std::time::Duration;

use super::hang::QuietTime;
use super::messages::{
    Deadline, HangAction, Incarnation, Observation, SupervisorAction, SupervisorSettings,
    TaskNumber, WorkerActivity,
};
use super::worker_record::{HangLocation, ProcessStatus, WorkerProcess, WorkerRecord};
use super::{Supervisor, Zygote};

/// A worker that has not written its stack yet gets up to this many dump times.
pub(crate) const DUMP_EXTENSIONS: u32 = 20;

/// When to look at a worker, and what was seen of it.
#[derive(Default, Debug)]
pub(super) struct WorkerWatch {
    /// When to look at it next, if it can be late.
    pub(super) look_at: Option<Duration>,
    /// Since when it has had tasks without a pause.
    busy_since: Duration,
    dump: Option<StackDump>,
    /// For how long it has made no progress, if the deadline is learned.
    quiet: Option<QuietTime>,
    /// Stalls that were reported, as long as their tasks are unfinished.
    reported: Vec<SampleInTask>,
}

/// A task, and the offset of a sample within it.
pub(super) type SampleInTask = (Option<TaskNumber>, Option<u64>);

/// A stack dump that was requested.
#[derive(Clone, Copy, Debug)]
struct StackDump {
    location: SampleInTask,
    at: Duration,
    /// Whether the worker slept before. The dump itself wakes it, so a later look cannot tell.
    asleep: bool,
}

/// The limit that a worker has exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LimitPassed {
    Deadline,
    Stall,
    /// It hangs, as far as one can tell, and this is only reported.
    Quiet,
}

impl WorkerWatch {
    /// The watch of a worker that starts.
    pub(super) fn starting(settings: &SupervisorSettings, now: Duration) -> WorkerWatch {
        let look_at = patience(settings).map(|limit| now.saturating_add(limit));
        WorkerWatch { look_at, ..WorkerWatch::default() }
    }

    /// The worker was sent a task. If it had others, the watch continues.
    pub(super) fn begin(&mut self, settings: &SupervisorSettings, now: Duration) {
        if self.look_at.is_none() {
            self.busy_since = now;
            self.look_at = patience(settings).map(|limit| now.saturating_add(limit));
        }
    }

    /// For how long the worker has made no progress, and what is done if that is too long.
    fn note_progress(
        &mut self,
        limits: &Limits,
        seen: &Observation,
        settings: &SupervisorSettings,
        now: Duration,
    ) -> (Duration, HangAction) {
        let Deadline::Learned(learned) = settings.deadline else {
            return (Duration::ZERO, HangAction::Report);
        };
        self.quiet =
            limits.hang.map(|_| QuietTime::after(self.quiet, seen, now, learned.interval()));
        (self.quiet.map_or(Duration::ZERO, |quiet| quiet.total), learned.action)
    }

    /// The worker has no tasks, or is being killed.
    pub(super) fn end(&mut self) {
        self.look_at = None;
        self.dump = None;
        self.quiet = None;
        self.reported.clear();
    }
}

/// How long a sample may take before the first check.
fn patience(settings: &SupervisorSettings) -> Option<Duration> {
    let deadline = match settings.deadline {
        Deadline::Never => None,
        Deadline::After(time) => Some(time),
        Deadline::Learned(learned) => Some(learned.interval()),
    };
    deadline.into_iter().chain(settings.stall).min()
}

/// The limits of what an observed worker is doing.
#[derive(Default)]
struct Limits {
    /// How long it may take.
    deadline: Option<Duration>,
    /// How long it may make no progress.
    hang: Option<Duration>,
    /// How long it may take until it is reported.
    stall: Option<Duration>,
}

impl Limits {
    /// The limit that was exceeded, if a worker has spent this long at its sample, and was quiet for
    /// the last part of it.
    fn passed(&self, spent: Duration, quiet: Duration, action: HangAction) -> Option<LimitPassed> {
        let is_hung = self.hang.is_some_and(|hang| quiet >= hang);
        if self.deadline.is_some_and(|deadline| spent >= deadline) {
            return Some(LimitPassed::Deadline);
        }
        let is_stalled = self.stall.is_some_and(|stall| spent >= stall);
        match action {
            HangAction::Restart if is_hung => Some(LimitPassed::Deadline),
            HangAction::Restart | HangAction::Report if is_stalled => Some(LimitPassed::Stall),
            HangAction::Report if is_hung => Some(LimitPassed::Quiet),
            HangAction::Restart | HangAction::Report => None,
        }
    }
}

/// The limits of an observed worker.
fn limits(
    worker: &WorkerProcess,
    seen: &Observation,
    settings: &SupervisorSettings,
    longest_sample: Duration,
) -> Limits {
    let is_starting = match seen.work {
        WorkerActivity::Starting if worker.is_booting() => true,
        WorkerActivity::Sample if worker.is_working() => false,
        // A stopped worker does not continue when its wait is over.
        WorkerActivity::Blocked if worker.is_working() && seen.stopped => false,
        WorkerActivity::Starting
        | WorkerActivity::Sample
        | WorkerActivity::Waiting
        | WorkerActivity::Blocked => return Limits::default(),
    };
    let stall = settings.stall;
    match settings.deadline {
        Deadline::Never => Limits { stall, ..Limits::default() },
        Deadline::After(time) => {
            // User code that runs at the start may take long, and is not a sample.
            let is_patient = is_starting && !seen.stopped;
            let deadline = if is_patient { time.max(settings.start_limit) } else { time };
            let stall = stall.filter(|stall| *stall < deadline);
            Limits { deadline: Some(deadline), hang: None, stall }
        }
        Deadline::Learned(learned) => {
            let of_sample = learned.of_sample(longest_sample);
            let hang = if is_starting { learned.longest } else { of_sample };
            Limits { deadline: None, hang: Some(hang), stall }
        }
    }
}

impl Supervisor {
    /// The workers to look at when the time of `Supervisor::next_deadline` has come, right before
    /// `TimePassed`. One [`super::WorkerEvent::Observed`] for each carries what was found.
    pub(crate) fn workers_to_check(&self, now: Duration) -> Vec<Incarnation> {
        if !self.is_running() {
            return Vec::new();
        }
        let is_due = |worker: &&WorkerProcess| worker.watch.look_at.is_some_and(|at| at <= now);
        self.workers().filter(is_due).map(|worker| worker.incarnation).collect()
    }

    pub(super) fn observed(&mut self, incarnation: Incarnation, seen: Observation) {
        let (now, settings) = (self.now, &self.settings);
        let longest_sample = self.longest_sample;
        let may_restart_fresh = settings.may_be_fresh && !self.is_restarted_fresh;
        if !self.is_running() || self.zygote != Zygote::Ready {
            return;
        }
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let Some(worker) = record.worker_mut(incarnation) else { return };
        if !worker.is_booting() && !worker.is_working() {
            return;
        }
        // A worker that was stopped before it began its task does not report the task. It is late
        // nevertheless, but the task is not to blame.
        let has_begun = seen.work != WorkerActivity::Waiting;
        let seen = match (has_begun, worker.assigned.front()) {
            (false, Some(&task)) if worker.is_working() => Observation {
                task: Some(task),
                offset: None,
                since: seen.since.max(worker.watch.busy_since),
                work: WorkerActivity::Sample,
                ..seen
            },
            (false, _) | (true, _) => seen,
        };
        let limits = limits(worker, &seen, settings, longest_sample);
        let spent = now.saturating_sub(seen.since);
        let location = (seen.task, seen.offset);
        let (quiet, action) = worker.watch.note_progress(&limits, &seen, settings, now);
        let passed = limits.passed(spent, quiet, action);
        // When it can be late next, whatever it does from now on.
        let later = patience(settings).map(|limit| now.saturating_add(limit));
        // When it can be late next after a stall.
        let deadline_at = limits.deadline.map(|deadline| seen.since.saturating_add(deadline));
        let after_stall = deadline_at.or(later);
        let watch = &mut worker.watch;
        let Some(passed) = passed else {
            watch.dump = None;
            let on_time =
                limits.stall.map(|stall| seen.since.saturating_add(stall)).or(deadline_at);
            watch.look_at = match limits.hang {
                // The time without progress is measured between checks.
                Some(_) => on_time.into_iter().chain(later).min(),
                None => on_time.or(later),
            };
            return;
        };
        if passed != LimitPassed::Deadline && watch.reported.contains(&location) {
            watch.dump = None;
            watch.look_at = after_stall;
            return;
        }
        // The worker may have continued since the dump and reached the same sample again.
        let dump = watch.dump.filter(|dump| dump.location == location && seen.since <= dump.at);
        let Some(dump) = dump else {
            watch.dump = Some(StackDump { location, at: now, asleep: seen.asleep });
            watch.look_at = Some(now.saturating_add(settings.dump_time));
            self.actions.push(SupervisorAction::Dump { incarnation });
            return;
        };
        // On a busy machine the worker may write late. A stopped worker never writes.
        let is_late = seen.is_dumping && !seen.stopped;
        let times = if is_late { DUMP_EXTENSIONS } else { 1 };
        if now < dump.at.saturating_add(settings.dump_time * times) {
            let dumped = dump.at.saturating_add(settings.dump_time);
            let again = now.saturating_add(settings.dump_time);
            watch.look_at = Some(if now < dumped { dumped } else { again });
            return;
        }
        watch.dump = None;
        // All calls in progress would be made again.
        let may_restart_fresh = may_restart_fresh && passed != LimitPassed::Quiet;
        if dump.asleep && !worker.has_worked && may_restart_fresh {
            return self.restart_fresh(incarnation, seen);
        }
        match passed {
            LimitPassed::Deadline => {
                let task = seen.task.or(worker.assigned.front().copied());
                let hang =
                    task.filter(|_| has_begun).map(|task| HangLocation { task, at: seen.offset });
                worker.status = ProcessStatus::Overdue { stage: worker.stage(), hang };
                worker.watch.end();
                self.actions.push(SupervisorAction::Kill { incarnation });
            }
            LimitPassed::Stall | LimitPassed::Quiet => {
                let assigned = &worker.assigned;
                watch.reported.retain(|(task, _)| task.is_none_or(|task| assigned.contains(&task)));
                watch.reported.push(location);
                watch.look_at = after_stall;
                self.actions.push(SupervisorAction::Stalled { incarnation, seen });
            }
        }
    }

    /// Restarts all workers from a fresh interpreter. None is worth keeping: all were forked with
    /// the same locks.
    fn restart_fresh(&mut self, incarnation: Incarnation, seen: Observation) {
        self.is_restarted_fresh = true;
        self.actions.push(SupervisorAction::RestartedFresh { incarnation, seen });
        self.end_zygote();
    }

    /// Postpones checks that were due and did not happen.
    pub(super) fn postpone_due_checks(&mut self) {
        let (now, soon) = (self.now, self.now.saturating_add(self.settings.dump_time));
        for worker in self.records.iter_mut().flat_map(WorkerRecord::workers_mut) {
            if worker.watch.look_at.is_some_and(|at| at <= now) {
                worker.watch.look_at = Some(soon);
            }
        }
    }
}
