//! The zygote process as the trainer sees it: its socket, and whether it runs.

use std::time::{Duration, Instant};

use crate::sys::clock;
use crate::sys::process::{self, PidFd};
use crate::sys::socket::Socket;
use crate::worker::certificate::ProcessState;

use super::evidence;

pub(super) struct ZygoteProcess {
    pub(super) socket: Socket,
    pub(super) pid: u32,
    handle: Option<PidFd>,
    /// The processor time it had used at the last look, and when that was.
    last_look: Option<(Duration, Instant)>,
}

impl ZygoteProcess {
    pub(super) fn new(socket: Socket, pid: u32) -> ZygoteProcess {
        let mut zygote = ZygoteProcess { socket, pid, handle: PidFd::open(pid), last_look: None };
        zygote.note_processor_time();
        zygote
    }

    /// Notes the processor time used so far; what it uses after this counts as progress.
    pub(super) fn note_processor_time(&mut self) {
        self.last_look = process::proc_stat(self.pid)
            .map(|proc_stat| (proc_stat.processor_time(), clock::now()));
    }

    /// Its state, and whether it has made progress since the last check.
    pub(super) fn check_progress(&mut self) -> (Option<ProcessState>, bool) {
        let Some(proc_stat) = process::proc_stat(self.pid) else { return (None, false) };
        let (used, now) = (proc_stat.processor_time(), clock::now());
        let progressed = self.last_look.replace((used, now)).is_some_and(|(before, at)| {
            evidence::has_progressed(proc_stat, used.saturating_sub(before), now - at)
        });
        (Some(evidence::process_state(proc_stat, Some(proc_stat.ticks))), progressed)
    }

    /// Kills the zygote; the kernel then kills its workers.
    pub(super) fn kill(&self) {
        self.socket.shut();
        if let Some(handle) = &self.handle {
            handle.kill();
        }
    }
}
