//! A circuit breaker for a source: if a mount is gone, its samples are not bad and must not be skipped.
//!
//! It opens at once when a probe of the source's root fails, or after several failures in a row although the root
//! answers. While it is open, one caller at a time probes, and the others wait. If the root stays away longer than the
//! patience, the breaker gives up. If the root answers all the time, the breaker trusts it after a tenth of the
//! patience: then the samples are at fault, and until an operation succeeds, only a failed probe opens the breaker
//! again.

use core::time::Duration;

/// Failures in a row that open the breaker although the root answers.
const IN_A_ROW: u32 = 5;

/// How often an open breaker probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The first wait.
    pub first: Duration,
    /// Waits double up to this.
    pub longest: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { first: Duration::from_millis(500), longest: Duration::from_secs(5) }
    }
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The source is considered unavailable.
    Opened {
        /// Whether its root did not answer.
        is_root_away: bool,
    },
    /// A caller probes whether it is back.
    HalfOpened,
    /// The source is back, or was never unavailable.
    Closed {
        /// How long it was open.
        after: Duration,
    },
    /// The source was unavailable for too long.
    GaveUp {
        /// How long it was unavailable.
        after: Duration,
    },
}

impl Change {
    /// The name of the change.
    pub fn name(self) -> &'static str {
        match self {
            Change::Opened { .. } => "opened",
            Change::HalfOpened => "half open",
            Change::Closed { .. } => "closed",
            Change::GaveUp { .. } => "gave up",
        }
    }
}

/// What a caller may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceAccess {
    /// Use the source.
    Go,
    /// Probe the root; if it answers, use the source; then report the outcome.
    Probe,
    /// Ask again after this time.
    Wait(Duration),
    /// End the run.
    GiveUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    Closed,
    Open(Away),
    /// A caller has been probing since then.
    HalfOpen(Away, Duration),
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Away {
    since: Duration,
    next_probe: Duration,
    interval: Duration,
    is_root_away: bool,
}

/// The state of one source.
#[derive(Clone, Debug)]
pub struct Breaker {
    patience: Duration,
    pace: Pace,
    state: BreakerState,
    failures: u32,
    /// The root has answered while samples failed: the samples are at fault.
    is_root_trusted: bool,
}

impl Breaker {
    /// A closed breaker. With a patience of zero it stays closed.
    pub fn new(patience: Duration, pace: Pace) -> Breaker {
        let state = BreakerState::Closed;
        Breaker { patience, pace, state, failures: 0, is_root_trusted: false }
    }

    /// The name of the state.
    pub fn state(&self) -> &'static str {
        match self.state {
            BreakerState::Closed => "closed",
            BreakerState::Open(_) => "open",
            BreakerState::HalfOpen(..) => "half open",
            BreakerState::GivenUp => "given up",
        }
    }

    /// Whether the source may be used without asking.
    pub fn is_closed(&self) -> bool {
        self.state == BreakerState::Closed
    }

    /// Reports that using the source failed in a way that may be the source's fault, or that a probe failed.
    pub fn failed(&mut self, is_probe_good: bool, now: Duration) -> Option<Change> {
        if self.patience.is_zero() {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        match self.state {
            BreakerState::GivenUp => None,
            BreakerState::Closed => {
                let is_row = self.failures >= IN_A_ROW && !self.is_root_trusted;
                if is_probe_good && !is_row {
                    return None;
                }
                let away = Away {
                    since: now,
                    next_probe: now + self.pace.first,
                    interval: self.pace.first,
                    is_root_away: !is_probe_good,
                };
                self.state = BreakerState::Open(away);
                Some(Change::Opened { is_root_away: !is_probe_good })
            }
            // The caller had started before the breaker opened; what it learned about the root still counts.
            BreakerState::Open(away) => {
                let is_root_away = away.is_root_away || !is_probe_good;
                self.state = BreakerState::Open(Away { is_root_away, ..away });
                None
            }
            BreakerState::HalfOpen(away, _) => self.probed(away, is_probe_good, now),
        }
    }

    /// Reports that a probe did not bring the source back.
    fn probed(&mut self, away: Away, is_root_here: bool, now: Duration) -> Option<Change> {
        let after = now.saturating_sub(away.since);
        if is_root_here && !away.is_root_away && after >= self.patience / 10 {
            self.is_root_trusted = true;
            return Some(self.close(after));
        }
        if after >= self.patience {
            self.state = BreakerState::GivenUp;
            return Some(Change::GaveUp { after });
        }
        let interval = (away.interval * 2).min(self.pace.longest);
        // Restart the clock for a root that is back: now the samples may be at fault.
        let since = if is_root_here && away.is_root_away { now } else { away.since };
        self.state = BreakerState::Open(Away {
            since,
            next_probe: now + interval,
            interval,
            is_root_away: !is_root_here,
        });
        None
    }

    fn close(&mut self, after: Duration) -> Change {
        self.state = BreakerState::Closed;
        self.failures = 0;
        Change::Closed { after }
    }

    /// Reports that using the source worked.
    pub fn worked(&mut self, now: Duration) -> Option<Change> {
        self.failures = 0;
        self.is_root_trusted = false;
        match self.state {
            BreakerState::Closed | BreakerState::GivenUp => None,
            BreakerState::Open(away) | BreakerState::HalfOpen(away, _) => {
                Some(self.close(now.saturating_sub(away.since)))
            }
        }
    }

    /// What the caller may do now. A caller that gets `Probe` must report the outcome; if it does not, another caller
    /// gets `Probe` after the longest wait.
    pub fn may_try(&mut self, now: Duration) -> (SourceAccess, Option<Change>) {
        let (away, probed_since) = match self.state {
            BreakerState::Closed => return (SourceAccess::Go, None),
            BreakerState::GivenUp => return (SourceAccess::GiveUp, None),
            BreakerState::Open(away) => (away, None),
            BreakerState::HalfOpen(away, since) => (away, Some(since)),
        };
        let next = match probed_since {
            None => away.next_probe,
            Some(since) => since + self.pace.longest.max(away.interval),
        };
        if now < next {
            return (SourceAccess::Wait(next - now), None);
        }
        self.state = BreakerState::HalfOpen(away, now);
        (SourceAccess::Probe, Some(Change::HalfOpened))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENCE: Duration = Duration::from_secs(300);

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn breaker() -> Breaker {
        Breaker::new(PATIENCE, Pace::default())
    }

    #[test]
    fn a_root_that_does_not_answer_opens_it_at_once() {
        let mut breaker = breaker();
        let change = breaker.failed(false, seconds(1.0));
        assert_eq!(change, Some(Change::Opened { is_root_away: true }));
        assert_eq!(breaker.may_try(seconds(1.2)).0, SourceAccess::Wait(seconds(0.3)));
        assert_eq!(breaker.may_try(seconds(1.5)), (SourceAccess::Probe, Some(Change::HalfOpened)));
        assert!(
            matches!(breaker.may_try(seconds(1.6)).0, SourceAccess::Wait(_)),
            "one probes at a time"
        );
        assert_eq!(breaker.worked(seconds(1.7)), Some(Change::Closed { after: seconds(0.7) }));
        assert_eq!(breaker.may_try(seconds(1.7)).0, SourceAccess::Go);
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        let mut breaker = breaker();
        for _ in 0..20 {
            for _ in 0..4 {
                assert_eq!(breaker.failed(true, seconds(0.0)), None);
            }
            breaker.worked(seconds(0.0));
        }
        for _ in 0..4 {
            breaker.failed(true, seconds(0.0));
        }
        let change = breaker.failed(true, seconds(0.0));
        assert_eq!(change, Some(Change::Opened { is_root_away: false }));
    }

    #[test]
    fn a_root_that_answers_all_the_time_is_trusted() {
        let mut breaker = breaker();
        for _ in 0..5 {
            breaker.failed(true, seconds(0.0));
        }
        let mut now = seconds(0.0);
        while !breaker.is_closed() {
            match breaker.may_try(now).0 {
                SourceAccess::Wait(time) => now += time,
                SourceAccess::Probe => drop(breaker.failed(true, now)),
                SourceAccess::Go | SourceAccess::GiveUp => panic!("it is open"),
            }
        }
        assert!(now >= PATIENCE / 10 && now < PATIENCE / 5, "{now:?}");
        for _ in 0..50 {
            assert_eq!(breaker.failed(true, now), None, "not again for the same reason");
        }
        assert!(breaker.failed(false, now).is_some(), "an unavailable root counts");
    }

    #[test]
    fn without_patience_no_caller_waits() {
        let mut breaker = Breaker::new(Duration::ZERO, Pace::default());
        for _ in 0..10 {
            assert_eq!(breaker.failed(false, seconds(0.0)), None);
        }
        assert_eq!(breaker.may_try(seconds(0.0)).0, SourceAccess::Go);
    }

    #[test]
    fn a_probe_without_an_outcome_is_followed_by_another() {
        let mut breaker = breaker();
        breaker.failed(false, seconds(0.0));
        assert_eq!(breaker.may_try(seconds(0.5)).0, SourceAccess::Probe);
        assert_eq!(breaker.may_try(seconds(5.6)).0, SourceAccess::Probe);
    }

    proptest! {
        /// Callers at random times, and a source that is unavailable for some time.
        #[test]
        fn an_outage_is_waited_out_or_given_up_in_time(
            outage in 0.1_f64..400.0, callers in 1_usize..6, starts in prop::collection::vec(0.0_f64..2.0, 6),
        ) {
            let mut breaker = breaker();
            let (gone, back) = (1.0, 1.0 + outage);
            let is_away = |now: f64| (gone..back).contains(&now);
            let mut wakes: Vec<f64> = starts[..callers].to_vec();
            let (mut opened, mut closed, mut gave_up, mut probes) = (0, 0, None, 0);
            for _ in 0..5000 {
                let (who, now) = wakes.iter().copied().enumerate()
                    .min_by(|one, other| one.1.total_cmp(&other.1)).unwrap();
                if now > back + 20.0 {
                    break;
                }
                let (step, _) = breaker.may_try(seconds(now));
                let change = match step {
                    SourceAccess::Wait(time) => {
                        wakes[who] = now + time.as_secs_f64().max(1e-6);
                        continue;
                    }
                    SourceAccess::GiveUp => {
                        gave_up.get_or_insert(now);
                        break;
                    }
                    SourceAccess::Go | SourceAccess::Probe => {
                        probes += u64::from(step == SourceAccess::Probe);
                        wakes[who] = now + 0.3;
                        if is_away(now) { breaker.failed(false, seconds(now)) } else { breaker.worked(seconds(now)) }
                    }
                };
                match change {
                    Some(Change::Opened { .. }) => opened += 1,
                    Some(Change::Closed { .. }) => closed += 1,
                    Some(Change::GaveUp { .. }) => { gave_up.get_or_insert(now); }
                    Some(Change::HalfOpened) | None => {}
                }
            }
            if outage < 299.0 {
                prop_assert_eq!(gave_up, None);
                prop_assert_eq!(opened, closed, "every opening is followed by a closing");
                prop_assert!(breaker.is_closed());
            } else if outage > 310.0 {
                let at = gave_up.unwrap();
                prop_assert!(at > 300.0 && at < 310.0, "{}", at);
            }
            prop_assert!(probes < 80, "{} probes", probes);
        }
    }
}
