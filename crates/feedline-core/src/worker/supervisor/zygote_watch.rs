//! Checks whether the zygote still answers. It forks, kills and reaps workers, so a zygote that is
//! stopped or hangs would block the run silently.
//!
//! An idle zygote is not checked. A ping follows each request; if no message arrives in time, the
//! dispatcher looks whether the zygote works. If it does, it gets more time; if not, it is killed
//! and replaced. Some processor time is not enough: a zygote that polls uses a little of it forever.

use std::time::Duration;

use super::messages::{RunFailure, SupervisorAction};
use super::{MAX_ZYGOTE_FAILURES, Supervisor, Zygote};

/// How many times in a row a zygote that does not answer, but uses the processor, gets more time.
const MAX_EXTENSIONS: u32 = 10;
/// The time between the look at which a zygote seems to hang and the look that decides, in dump
/// times: when a stopped process group continues, the trainer may run before its zygote does.
const SECOND_LOOK: u32 = 5;
/// The number of zygotes that may hang, without a result in between, before the run ends.
const MAX_HANGS: u32 = 3;

/// The requests that the zygote has not answered.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct ZygoteWatch {
    /// When to look at the process, if an answer is pending.
    pub(super) look_at: Option<Duration>,
    /// The number of the last ping. The zygote answers in order: with this answer, no request is
    /// pending.
    last_ping: u32,
    /// How many times it got more time since its last message.
    extensions: u32,
    /// Whether it used no processor time at the last look.
    is_suspected: bool,
}

impl Supervisor {
    /// Whether to look at the zygote when the time of `Supervisor::next_deadline` has come, right
    /// before `TimePassed`. [`super::WorkerEvent::ZygoteSeen`] carries what was found.
    pub(crate) fn must_check_zygote(&self, now: Duration) -> bool {
        self.is_running() && self.zygote_watch.look_at.is_some_and(|at| at <= now)
    }

    /// The zygote process exists and must become ready.
    pub(super) fn zygote_started(&mut self) {
        if self.zygote == Zygote::Booting {
            self.await_zygote(self.start_patience());
        }
    }

    /// Any message from the zygote shows that it does not hang.
    pub(super) fn zygote_answered(&mut self, ping: Option<u32>) {
        if self.zygote != Zygote::Ready || self.zygote_watch.look_at.is_none() {
            return;
        }
        self.await_zygote(self.settings.zygote_patience);
        if ping == Some(self.zygote_watch.last_ping) {
            self.zygote_watch.look_at = None;
        }
    }

    /// Sends a ping after a request, which the zygote must answer.
    pub(super) fn ask_zygote(&mut self) {
        if !self.is_running() || self.zygote != Zygote::Ready {
            return;
        }
        if self.zygote_watch.look_at.is_none() {
            self.await_zygote(self.settings.zygote_patience);
        }
        let number = self.zygote_watch.last_ping.wrapping_add(1);
        self.zygote_watch.last_ping = number;
        self.actions.push(SupervisorAction::PingZygote { number });
    }

    fn await_zygote(&mut self, patience: Duration) {
        let last_ping = self.zygote_watch.last_ping;
        let look_at = Some(self.now.saturating_add(patience));
        self.zygote_watch = ZygoteWatch { look_at, last_ping, ..ZygoteWatch::default() };
    }

    /// How long a zygote may take to start: a fresh interpreter imports and unpickles, a fork does not.
    fn start_patience(&self) -> Duration {
        if self.is_fork() { self.settings.zygote_patience } else { self.settings.zygote_start }
    }

    /// Whether the zygote is a fork of the trainer, and not a fresh interpreter.
    fn is_fork(&self) -> bool {
        self.settings.may_be_fresh && !self.is_restarted_fresh
    }

    pub(super) fn zygote_seen(&mut self, ran: bool) {
        if !self.must_check_zygote(self.now) {
            return;
        }
        let (patience, max_extensions) = match self.zygote {
            Zygote::Booting if self.is_fork() => (self.start_patience(), MAX_EXTENSIONS),
            // To load a large data set may take any time.
            Zygote::Booting => (self.start_patience(), u32::MAX),
            Zygote::Ready => (self.settings.zygote_patience, MAX_EXTENSIONS),
            Zygote::NotForked | Zygote::Ending { .. } | Zygote::Gone => return,
        };
        let watch = &mut self.zygote_watch;
        if ran && watch.extensions < max_extensions {
            if watch.extensions == 0 {
                self.actions.push(SupervisorAction::ZygoteSlow);
            }
            watch.extensions += 1;
            watch.is_suspected = false;
            watch.look_at = Some(self.now.saturating_add(patience));
        } else if !ran && !watch.is_suspected {
            watch.is_suspected = true;
            watch.look_at = Some(self.now.saturating_add(self.settings.dump_time * SECOND_LOOK));
        } else {
            self.zygote_hangs();
        }
    }

    /// Kills the zygote. Its workers did nothing wrong; their tasks go to the next ones.
    fn zygote_hangs(&mut self) {
        self.zygote_watch = ZygoteWatch::default();
        self.actions.push(SupervisorAction::ZygoteHung);
        let is_last = if self.zygote == Zygote::Booting {
            self.zygote_failures += 1;
            self.zygote_failures >= MAX_ZYGOTE_FAILURES
        } else {
            self.hung_zygotes += 1;
            self.hung_zygotes >= MAX_HANGS
        };
        self.end_zygote();
        if is_last {
            self.fail(RunFailure::ZygoteHangs);
        }
    }

    /// Postpones a look that was due and did not happen.
    pub(super) fn postpone_due_zygote_look(&mut self) {
        if self.must_check_zygote(self.now) {
            self.zygote_watch.look_at = Some(self.now.saturating_add(self.settings.dump_time));
        }
    }
}
