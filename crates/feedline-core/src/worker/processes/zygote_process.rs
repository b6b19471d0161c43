//! The zygote process as the trainer sees it: its socket, and whether it runs.

use crate::sys::process::{self, PidFd};
use crate::sys::socket::Socket;
use crate::worker::certificate::ProcessState;

use super::evidence;

pub(super) struct ZygoteProcess {
    pub(super) socket: Socket,
    pub(super) pid: u32,
    handle: Option<PidFd>,
    /// The processor time it had used at the last look.
    ticks: Option<u64>,
}

impl ZygoteProcess {
    pub(super) fn new(socket: Socket, pid: u32) -> ZygoteProcess {
        let ticks = process::proc_stat(pid).map(|proc_stat| proc_stat.ticks);
        ZygoteProcess { socket, pid, handle: PidFd::open(pid), ticks }
    }

    /// Notes the processor time used so far; what it uses after this counts as progress.
    pub(super) fn note_ticks(&mut self) {
        self.ticks = process::proc_stat(self.pid).map(|proc_stat| proc_stat.ticks);
    }

    /// Its state, and whether it has used the processor or waited for a device since the last look.
    pub(super) fn look(&mut self) -> (Option<ProcessState>, bool) {
        let Some(proc_stat) = process::proc_stat(self.pid) else { return (None, false) };
        let before = self.ticks.replace(proc_stat.ticks);
        let ran = proc_stat.letter == 'D' || before.is_some_and(|before| before != proc_stat.ticks);
        (Some(evidence::process_state(proc_stat, Some(proc_stat.ticks))), ran)
    }

    /// Kills the zygote; the kernel then kills its workers.
    pub(super) fn kill(&self) {
        self.socket.shut();
        if let Some(handle) = &self.handle {
            handle.kill();
        }
    }
}
