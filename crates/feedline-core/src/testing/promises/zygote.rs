//! Checks what must follow from the zygote's answers, or from their absence.

use std::time::Duration;

use super::{CheckResult, CheckedZygote, Expected, PromiseChecker, ensure};
use crate::worker::supervisor::RunFailure;

/// An answer that is pending.
#[derive(Clone, Copy)]
pub(super) struct Awaited {
    pub(super) look_at: Duration,
    extensions: u32,
    suspected: bool,
}

impl Awaited {
    fn until(look_at: Duration) -> Awaited {
        Awaited { look_at, extensions: 0, suspected: false }
    }
}

impl PromiseChecker {
    /// The zygote process exists, so it must become ready in time.
    pub(super) fn record_zygote_started(&mut self, now: Duration) {
        if self.zygote == CheckedZygote::Booting {
            self.awaited = Some(Awaited::until(now + self.start_patience()));
        }
    }

    pub(super) fn record_zygote_answer(&mut self, ping: Option<u32>, now: Duration) {
        if self.zygote != CheckedZygote::Ready || self.awaited.is_none() {
            return;
        }
        let is_all = ping == Some(self.last_ping);
        let later = Awaited::until(now + self.settings.zygote_patience);
        self.awaited = (!is_all).then_some(later);
    }

    fn start_patience(&self) -> Duration {
        if self.is_fork() { self.settings.zygote_patience } else { self.settings.zygote_start }
    }

    fn is_fork(&self) -> bool {
        self.settings.may_be_fresh && !self.restarted_fresh
    }

    pub(super) fn record_zygote_seen(&mut self, ran: bool, expected: &mut Expected, now: Duration) {
        let patience = match self.zygote {
            CheckedZygote::Booting => self.start_patience(),
            CheckedZygote::Ready => self.settings.zygote_patience,
            CheckedZygote::None | CheckedZygote::Ending { .. } => return,
        };
        let is_running = self.is_running();
        let may_load = self.zygote == CheckedZygote::Booting && !self.is_fork();
        let Some(awaited) = self.awaited.as_mut().filter(|it| is_running && it.look_at <= now)
        else {
            return;
        };
        if ran && (may_load || awaited.extensions < 10) {
            expected.zygote_slow = awaited.extensions == 0;
            awaited.extensions += 1;
            awaited.suspected = false;
            awaited.look_at = now + patience;
        } else if !ran && !awaited.suspected {
            awaited.suspected = true;
            awaited.look_at = now + self.settings.dump_time * 5;
        } else {
            expected.zygote_hung = true;
            expected.end_zygote = true;
            self.awaited = None;
            let too_many = if self.zygote == CheckedZygote::Booting {
                self.zygote_failures += 1;
                self.zygote_failures == 3
            } else {
                self.hung_zygotes += 1;
                self.hung_zygotes == 3
            };
            expected.failure = too_many.then_some(RunFailure::ZygoteHangs);
        }
    }

    /// Postpones a look that did not happen.
    pub(super) fn record_missed_look(&mut self, now: Duration) {
        let later = now + self.settings.dump_time;
        let is_running = self.is_running();
        if let Some(awaited) = self.awaited.as_mut().filter(|it| is_running && it.look_at <= now) {
            awaited.look_at = later;
        }
    }

    pub(super) fn check_ping(
        &mut self,
        number: u32,
        expected: &mut Expected,
        now: Duration,
    ) -> CheckResult {
        ensure(self.zygote == CheckedZygote::Ready, || "a ping without a zygote".into())?;
        ensure(expected.ping, || "a ping without a request before it".into())?;
        expected.ping = false;
        ensure(number == self.last_ping.wrapping_add(1), || format!("ping {number} out of order"))?;
        self.last_ping = number;
        let until = now + self.settings.zygote_patience;
        self.awaited.get_or_insert(Awaited::until(until));
        Ok(())
    }
}
