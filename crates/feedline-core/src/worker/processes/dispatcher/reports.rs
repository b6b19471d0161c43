//! Reports what the supervisor has logged, with what is known about the processes and the machine.

use super::super::{CapacityChange, DeathReport, PoolEvent, Stall, ZygoteLate};
use super::{Dispatcher, LEAST_ARENA};
use crate::sys::limits;
use crate::worker::certificate;
use crate::worker::supervisor::{Death, Incarnation, Shortage};

impl Dispatcher {
    /// Reports how many workers run at once. If memory is short, batches that wait get less of it too.
    pub(super) fn change_capacity(&mut self, most: u32, shortage: Option<Shortage>) {
        if shortage == Some(Shortage::Memory) {
            self.arena_limit = (self.arena_limit / 2).max(LEAST_ARENA);
            self.allowance.set_limit(self.arena_limit);
        }
        self.out.push_back(PoolEvent::CapacityChanged(CapacityChange {
            most,
            of: self.options.settings.worker_count,
            shortage,
            os_error: self.os_error,
            largest_worker: self.largest_worker,
            memory: limits::memory_of_group(),
        }));
    }

    pub(super) fn report_zygote(&mut self, is_killed: bool) {
        self.out.push_back(PoolEvent::ZygoteLate(ZygoteLate {
            pid: self.zygote.as_ref().map(|zygote| zygote.pid),
            process_state: self.zygote_state,
            is_killed,
        }));
    }

    pub(super) fn death_report(&mut self, death: Death) -> DeathReport {
        let incarnation = death.incarnation;
        let last = self.snapshot(incarnation);
        let running = self.running.get(&incarnation);
        let pid = running.and_then(|running| running.pid);
        let peak_bytes = running.map_or(0, |running| running.peak_bytes);
        let process_state = running.and_then(|running| running.process_state);
        let crash_log = running.map(|running| &running.crash_log);
        let certificate = self.evidence.certify(
            &death,
            peak_bytes,
            process_state,
            crash_log,
            last.is_some_and(|last| last.is_disconnected),
            &self.options,
        );
        DeathReport { death, pid, last, certificate, peak_bytes }
    }

    pub(super) fn stall(&self, incarnation: Incarnation) -> Stall {
        let running = self.running.get(&incarnation);
        let text = running.map(|running| running.crash_log.text()).unwrap_or_default();
        Stall {
            incarnation,
            pid: running.and_then(|running| running.pid),
            last: self.snapshot(incarnation),
            process_state: running.and_then(|running| running.process_state),
            stack: certificate::frames(&text, &self.options.folders),
        }
    }
}
