//! Whether the zygote still answers. It forks, kills and reports the ends of workers, so a zygote that
//! is stopped or hangs would block the run without a word.
//!
//! Nothing is expected of a zygote that was asked for nothing. Whatever is asked of it is followed by a
//! ping; if neither an answer nor any other report comes in time, the engine looks whether the process
//! uses the processor. One that does is given more time, one that does not is killed and replaced.

use std::time::Duration;

use super::messages::{RunFailure, SupervisorAction};
use super::{Supervisor, ZYGOTE_FAILURES, Zygote};

/// How often in a row a zygote that does not answer, but uses the processor, is given more time.
const MOST_EXTENSIONS: u32 = 10;
/// How many dump times pass between the look at which a zygote seems to hang and the one that decides:
/// after a stop of the whole process group, the trainer may run before its zygote does.
const SECOND_LOOK: u32 = 5;
/// Zygotes that hang, without a result in between, until the run ends.
const MOST_HANGS: u32 = 3;

/// What is known of the zygote's answers.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct ZygoteWatch {
    /// When to look at the process, if an answer is awaited.
    pub(super) look_at: Option<Duration>,
    /// The number of the last ping. Requests are answered in order: with this one, all are.
    last_ping: u32,
    /// How often it was given more time since it was heard of last.
    extensions: u32,
    /// It used no processor time at the last look.
    is_suspected: bool,
}

impl Supervisor {
    /// Whether to look at the zygote when [`Supervisor::next_deadline`] has come, right before
    /// `TimePassed`: what is found goes into [`super::WorkerEvent::ZygoteSeen`].
    pub(crate) fn must_look_at_zygote(&self, now: Duration) -> bool {
        self.is_running() && self.zygote_watch.look_at.is_some_and(|at| at <= now)
    }

    /// The process of the zygote exists: it must become ready.
    pub(super) fn zygote_started(&mut self) {
        if self.zygote == Zygote::Booting {
            self.await_zygote(self.start_patience());
        }
    }

    /// Any word from the zygote shows that it does not hang.
    pub(super) fn zygote_answered(&mut self, ping: Option<u32>) {
        if self.zygote != Zygote::Ready || self.zygote_watch.look_at.is_none() {
            return;
        }
        self.await_zygote(self.settings.zygote_patience);
        if ping == Some(self.zygote_watch.last_ping) {
            self.zygote_watch.look_at = None;
        }
    }

    /// Something is asked of the zygote: it must answer.
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
        if self.settings.may_be_fresh && !self.is_restarted_fresh {
            self.settings.zygote_patience
        } else {
            self.settings.zygote_start
        }
    }

    pub(super) fn zygote_seen(&mut self, ran: bool) {
        if !self.must_look_at_zygote(self.now) {
            return;
        }
        let (patience, most) = match self.zygote {
            Zygote::Booting => (self.start_patience(), u32::MAX),
            Zygote::Ready => (self.settings.zygote_patience, MOST_EXTENSIONS),
            Zygote::NotForked | Zygote::ExitKind { .. } | Zygote::Gone => return,
        };
        let watch = &mut self.zygote_watch;
        if ran && watch.extensions < most {
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

    /// Kills the zygote. Its workers did nothing wrong; what they had goes to the next ones.
    fn zygote_hangs(&mut self) {
        self.zygote_watch = ZygoteWatch::default();
        self.actions.push(SupervisorAction::ZygoteHung);
        let is_last = if self.zygote == Zygote::Booting {
            self.zygote_failures += 1;
            self.zygote_failures >= ZYGOTE_FAILURES
        } else {
            self.hung_zygotes += 1;
            self.hung_zygotes >= MOST_HANGS
        };
        self.end_zygote();
        if is_last {
            self.fail(RunFailure::ZygoteHangs);
        }
    }

    /// A look that was due and did not happen is due again soon.
    pub(super) fn put_off_look_at_zygote(&mut self) {
        if self.must_look_at_zygote(self.now) {
            self.zygote_watch.look_at = Some(self.now.saturating_add(self.settings.dump_time));
        }
    }
}
