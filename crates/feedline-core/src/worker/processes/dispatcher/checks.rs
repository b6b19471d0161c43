//! Looks at processes: whether workers and the zygote make progress, whether there is room for more workers, and
//! whether a worker leaks.

use std::time::Duration;

use super::super::{PoolInner, evidence};
use super::{Dispatcher, RunningWorker, owner};
use crate::sys::{clock, limits, process};
use crate::worker::blackbox::BoxField;
use crate::worker::leaks::{self, Leak};
use crate::worker::supervisor::{Deadline, Incarnation, Shortage, WorkerEvent};

/// How often the memory of all workers together is checked.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The time between two renewals that save memory.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(2);

impl RunningWorker {
    /// Whether it, or a process below it, has made progress since the last call.
    fn has_progressed(&mut self, pid: u32, has_dumped: bool) -> bool {
        let Some(tree) = process::process_tree(pid) else { return true };
        let now = clock::now();
        self.tree.replace((tree, now)).is_none_or(|(before, at)| {
            evidence::tree_has_progressed(before, tree, now - at, has_dumped)
        })
    }
}

impl Dispatcher {
    /// Reports the state of the workers that may be late to the supervisor, and whether there is room for more.
    pub(super) fn check_processes(&mut self, inner: &PoolInner) {
        if let Some(shortage) = self.supervisor.must_check_room(inner.now()) {
            let is_enough = match shortage {
                // Only a fork shows it.
                Shortage::Processes | Shortage::Descriptors | Shortage::Space => true,
                Shortage::Memory => limits::available_memory() / 3 * 2 > self.largest_worker,
            };
            self.handle_event(inner, WorkerEvent::RoomSeen { is_enough });
        }
        if self.supervisor.must_check_zygote(inner.now())
            && let Some(zygote) = &mut self.zygote
        {
            let (process_state, ran) = zygote.check_progress();
            self.zygote_state = process_state;
            self.handle_event(inner, WorkerEvent::ZygoteSeen { ran });
        }
        for incarnation in self.supervisor.workers_to_check(inner.now()) {
            let snapshot = self.snapshot(incarnation);
            let (mut process_state, mut has_progressed) = (None, true);
            if let Some(running) = self.running.get_mut(&incarnation)
                && let Some(pid) = running.pid
            {
                // The worker is dead and only the zygote's report is missing: its sample is not to
                // blame.
                let Some(proc_stat) =
                    process::proc_stat(pid).filter(|proc_stat| proc_stat.letter != 'Z')
                else {
                    continue;
                };
                process_state = Some(evidence::process_state(proc_stat, running.ticks));
                running.ticks = Some(proc_stat.ticks);
                // Writing its stack on request is no progress.
                let is_dumped = std::mem::take(&mut running.is_dumped);
                if let Deadline::Learned(_) = self.options.settings.deadline {
                    has_progressed = running.has_progressed(pid, is_dumped);
                }
                if !is_dumped {
                    running.process_state = process_state;
                }
            }
            let running = self.running.get(&incarnation);
            let forked = running.map_or(Duration::ZERO, |running| running.forked);
            let is_dumping = running.is_some_and(|running| {
                running
                    .crash_log_before
                    .is_some_and(|before| running.crash_log.text().len() == before)
            });
            let started = inner.started_nanoseconds;
            let seen = evidence::observe(
                snapshot,
                process_state,
                started,
                forked,
                is_dumping,
                has_progressed,
            );
            self.handle_event(inner, WorkerEvent::Observed { incarnation, seen });
        }
    }

    /// Checks, after a result, whether a worker leaks or all of them together use too much memory.
    pub(super) fn check_leaks(
        &mut self,
        inner: &PoolInner,
        incarnation: Incarnation,
        task: u64,
        samples: u32,
    ) {
        let (resident, descriptors) = (
            self.boxes.get(owner(incarnation), BoxField::Resident),
            self.boxes.get(owner(incarnation), BoxField::Descriptors),
        );
        let Some(running) = self.running.get_mut(&incarnation) else { return };
        running.used.resident = resident;
        self.largest_worker = self.largest_worker.max(resident);
        running.used.descriptors = descriptors;
        self.peaks.note_descriptors(descriptors);
        running.used.samples += u64::from(samples);
        running.tasks = Some((running.tasks.map_or(task, |(first, _)| first), task));
        if let Some(leak) = leaks::of_worker(running.used, self.options.bounds) {
            return self.renew(inner, incarnation, leak);
        }
        let now = inner.now();
        if now.saturating_sub(self.memory_checked) < MEMORY_CHECK_INTERVAL {
            return;
        }
        self.memory_checked = now;
        self.evidence.forget_old_kills(now);
        if self.memory_renewed.is_some_and(|then| now.saturating_sub(then) < RENEWAL_INTERVAL) {
            return;
        }
        let all = limits::memory_of_group()
            .map(|(limit, _)| limit)
            .into_iter()
            .chain(limits::machine_memory())
            .min()
            .unwrap_or(u64::MAX);
        let workers: Vec<_> = self
            .running
            .iter()
            .map(|(incarnation, running)| (*incarnation, running.used))
            .collect();
        if let Some((incarnation, leak)) = leaks::most_grown(&workers, limits::memory_left(), all) {
            self.memory_renewed = Some(now);
            self.renew(inner, incarnation, leak);
        }
    }

    fn renew(&mut self, inner: &PoolInner, incarnation: Incarnation, leak: Leak) {
        if let Some(running) = self.running.get_mut(&incarnation) {
            running.leak.get_or_insert(leak);
        }
        self.handle_event(inner, WorkerEvent::Renew { incarnation });
    }
}
