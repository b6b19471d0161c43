//! When to look at workers, and what follows from what is seen: a dump of one that makes no
//! progress, and then its death, a word in the log, or a fresh start of all.
//!
//! A worker is looked at no earlier than it can be late, so that watching costs one look for each
//! time that it may take, however many samples it does.

use std::time::Duration;

use super::messages::{
    Incarnation, Observation, SupervisorAction, SupervisorSettings, TaskNumber, WorkerActivity,
};
use super::worker_record::{HangLocation, WorkerRecord, WorkerState, WorkerStatus};
use super::{Supervisor, Zygote};

/// A worker that has not written its stack yet is given this many times the time for it.
pub(crate) const DUMP_EXTENSIONS: u32 = 20;

/// What is watched of one worker.
#[derive(Default, Debug)]
pub(super) struct WorkerWatch {
    /// When to look at it next, if there is anything to see.
    pub(super) look_at: Option<Duration>,
    /// Since when it has had something to do without a pause.
    busy_since: Duration,
    dump: Option<StackDump>,
    /// Where it stalled and was told of, as far as the task is still at hand.
    reported: Vec<SampleInTask>,
}

/// A task, and the position of a sample in it.
type SampleInTask = (Option<TaskNumber>, Option<u64>);

/// A dump that was asked for.
#[derive(Clone, Copy, Debug)]
struct StackDump {
    spot: SampleInTask,
    at: Duration,
    /// Whether the worker slept before. The dump itself wakes it, so that it is not asked later.
    asleep: bool,
}

/// What a worker has passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LimitPassed {
    Deadline,
    Stall,
}

impl WorkerWatch {
    /// Of a worker that begins to start.
    pub(super) fn starting(settings: &SupervisorSettings, now: Duration) -> WorkerWatch {
        let look_at = patience(settings).map(|limit| now.saturating_add(limit));
        WorkerWatch { look_at, ..WorkerWatch::default() }
    }

    /// The worker has been given something to do; what it was doing before goes on being watched.
    pub(super) fn begin(&mut self, settings: &SupervisorSettings, now: Duration) {
        if self.look_at.is_none() {
            self.busy_since = now;
            self.look_at = patience(settings).map(|limit| now.saturating_add(limit));
        }
    }

    /// There is nothing to see for now.
    pub(super) fn end(&mut self) {
        self.look_at = None;
        self.dump = None;
        self.reported.clear();
    }
}

/// How long a sample may take until anybody cares.
fn patience(settings: &SupervisorSettings) -> Option<Duration> {
    match (settings.deadline, settings.stall) {
        (Some(deadline), Some(stall)) => Some(deadline.min(stall)),
        (deadline, stall) => deadline.or(stall),
    }
}

/// The deadline of a worker that is seen so, and the time after which it has stalled.
fn limits(
    worker: &WorkerState,
    seen: &Observation,
    settings: &SupervisorSettings,
) -> (Option<Duration>, Option<Duration>) {
    let deadline = match seen.work {
        WorkerActivity::Starting if worker.is_booting() && seen.stopped => settings.deadline,
        // What users do at the start may take long, and is no sample.
        WorkerActivity::Starting if worker.is_booting() => {
            settings.deadline.map(|deadline| deadline.max(settings.start_limit))
        }
        WorkerActivity::Sample if worker.is_working() => settings.deadline,
        // Whatever it waits for, one that was stopped does not go on when it comes.
        WorkerActivity::Blocked if worker.is_working() && seen.stopped => settings.deadline,
        WorkerActivity::Starting
        | WorkerActivity::Sample
        | WorkerActivity::Waiting
        | WorkerActivity::Blocked => return (None, None),
    };
    let is_before = |stall: &Duration| deadline.is_none_or(|end| *stall < end);
    (deadline, settings.stall.filter(is_before))
}

impl Supervisor {
    /// Whom to look at when [`Supervisor::next_deadline`] has come, right before `TimePassed` is
    /// said: what is found goes into [`super::WorkerEvent::Observation`], for each.
    pub(crate) fn to_look_at(&self, now: Duration) -> Vec<Incarnation> {
        if !self.is_running() {
            return Vec::new();
        }
        let is_due = |worker: &&WorkerState| worker.watch.look_at.is_some_and(|at| at <= now);
        self.workers().filter(is_due).map(|worker| worker.incarnation).collect()
    }

    pub(super) fn seen(&mut self, incarnation: Incarnation, seen: Observation) {
        let (now, settings) = (self.now, &self.settings);
        let may_restart_fresh = settings.may_be_fresh && !self.is_restarted_fresh;
        if !self.is_running() || self.zygote != Zygote::Ready {
            return;
        }
        let Some(record) = self.records.get_mut(incarnation.worker_id as usize) else { return };
        let Some(worker) = record.worker_mut(incarnation) else { return };
        if !worker.is_booting() && !worker.is_working() {
            return;
        }
        // One that was stopped before it could begin what it was sent does not know of it: it is late all
        // the same, but its task is not to blame.
        let has_begun = seen.work != WorkerActivity::Waiting;
        let seen = match (has_begun, worker.assigned.front()) {
            (false, Some(&task)) if worker.is_working() => Observation {
                task: Some(task),
                position: None,
                since: seen.since.max(worker.watch.busy_since),
                work: WorkerActivity::Sample,
                ..seen
            },
            (false, _) | (true, _) => seen,
        };
        let (deadline, stall) = limits(worker, &seen, settings);
        let spent = now.saturating_sub(seen.since);
        let passed = if deadline.is_some_and(|deadline| spent >= deadline) {
            Some(LimitPassed::Deadline)
        } else {
            stall.is_some_and(|stall| spent >= stall).then_some(LimitPassed::Stall)
        };
        let spot = (seen.task, seen.position);
        // When it can be late next, whatever it does from now on.
        let later = patience(settings).map(|limit| now.saturating_add(limit));
        // When it can be late next, if it has stalled.
        let after_stall = deadline.map(|deadline| seen.since.saturating_add(deadline)).or(later);
        let watch = &mut worker.watch;
        let Some(passed) = passed else {
            watch.dump = None;
            let on_time = stall.or(deadline).map(|limit| seen.since.saturating_add(limit));
            watch.look_at = on_time.or(later);
            return;
        };
        if passed == LimitPassed::Stall && watch.reported.contains(&spot) {
            watch.dump = None;
            watch.look_at = after_stall;
            return;
        }
        // It may have gone on since the dump and come to the same sample again.
        let dump = watch.dump.filter(|dump| dump.spot == spot && seen.since <= dump.at);
        let Some(dump) = dump else {
            watch.dump = Some(StackDump { spot, at: now, asleep: seen.asleep });
            watch.look_at = Some(now.saturating_add(settings.dump_time));
            self.actions.push(SupervisorAction::Dump { incarnation });
            return;
        };
        // On a busy machine its turn to write may come late; one that was stopped has none.
        let is_late = seen.is_dumping && !seen.stopped;
        let times = if is_late { DUMP_EXTENSIONS } else { 1 };
        if now < dump.at.saturating_add(settings.dump_time * times) {
            let dumped = dump.at.saturating_add(settings.dump_time);
            let again = now.saturating_add(settings.dump_time);
            watch.look_at = Some(if now < dumped { dumped } else { again });
            return;
        }
        watch.dump = None;
        if dump.asleep && !worker.has_worked && may_restart_fresh {
            return self.restart_fresh(incarnation, seen);
        }
        match passed {
            LimitPassed::Deadline => {
                let task = seen.task.or(worker.assigned.front().copied());
                let hang =
                    task.filter(|_| has_begun).map(|task| HangLocation { task, at: seen.position });
                worker.status = WorkerStatus::Overdue { stage: worker.stage(), hang };
                worker.watch.end();
                self.actions.push(SupervisorAction::Kill { incarnation });
            }
            LimitPassed::Stall => {
                let assigned = &worker.assigned;
                watch.reported.retain(|(task, _)| task.is_none_or(|task| assigned.contains(&task)));
                watch.reported.push(spot);
                watch.look_at = after_stall;
                self.actions.push(SupervisorAction::Stalled { incarnation, seen });
            }
        }
    }

    /// All workers are to come from a fresh interpreter: none of them is worth keeping, because all
    /// were forked with the same locks.
    fn restart_fresh(&mut self, incarnation: Incarnation, seen: Observation) {
        self.is_restarted_fresh = true;
        self.actions.push(SupervisorAction::RestartedFresh { incarnation, seen });
        self.end_zygote();
    }

    /// A look that was due and did not happen is due again soon.
    pub(super) fn put_off_looks(&mut self) {
        let (now, soon) = (self.now, self.now.saturating_add(self.settings.dump_time));
        for worker in self.records.iter_mut().flat_map(WorkerRecord::workers_mut) {
            if worker.watch.look_at.is_some_and(|at| at <= now) {
                worker.watch.look_at = Some(soon);
            }
        }
    }
}
