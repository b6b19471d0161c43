//! How many faults are too many, in numbers alone.
//!
//! A count is exact: one fault more ends the run. A share is of the last `window` samples, and nothing is
//! decided before that many were seen: one early fault of a long run is no sign of a bad data set. In an
//! epoch that is shorter than the window, the share is of the epoch.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How many faults are allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// That many of an epoch.
    Count(u64),
    /// That share of the last samples, or of an epoch that is shorter than the window.
    Share(f64),
}

impl Limit {
    /// The limit unless the user sets one: if every other sample is bad, something else is wrong.
    pub const DEFAULT: Limit = Limit::Share(0.5);

    /// As a user gives it: a count, or a share below one.
    pub fn of(number: f64, is_whole: bool) -> Option<Limit> {
        match (is_whole, number) {
            (true, number) if number >= 0.0 => Some(Limit::Count(number as u64)),
            (false, number) if (0.0..1.0).contains(&number) => Some(Limit::Share(number)),
            _ => None,
        }
    }
}

/// What the next verdict depends on, small enough for a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    /// Samples that were judged, good ones included.
    pub seen: u64,
    /// Faults among them.
    pub faults: u64,
    /// When the last faults were seen, counted from 1: as many as a share can depend on.
    pub recent: VecDeque<u64>,
}

/// Counts samples and faults of an epoch, and says when there are too many.
#[derive(Clone, Debug)]
pub struct Limits {
    /// None for any number of faults.
    pub limit: Option<Limit>,
    /// Samples over which a share is judged.
    pub window: u64,
    /// Samples of the epoch, if that is known.
    pub expected: Option<u64>,
    /// What was seen so far.
    pub standing: FaultCounts,
}

/// More faults than are allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TooMany {
    /// This many faults.
    pub faults: u64,
    /// This many are allowed.
    pub allowed: u64,
    /// The share that this follows from, and of how many samples; None for a count.
    pub share: Option<(f64, ShareOf)>,
}

/// What a share is taken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareOf {
    /// All samples of the epoch.
    Epoch(u64),
    /// The last samples.
    Last(u64),
}

impl Limits {
    /// Nothing was seen yet.
    pub fn new(limit: Option<Limit>, window: u64) -> Limits {
        Limits { limit, window, expected: None, standing: FaultCounts::default() }
    }

    /// An epoch begins, or continues.
    pub fn begin(&mut self, standing: FaultCounts, expected: Option<u64>) {
        self.standing = standing;
        self.expected = expected;
    }

    /// Good samples were seen.
    pub fn add_good(&mut self, samples: u64) {
        self.standing.seen += samples;
    }

    /// A sample that was counted as good is bad after all: the last good one is not counted any more.
    pub fn take_back_good(&mut self) {
        let standing = &mut self.standing;
        // Faults after it were seen one sample earlier.
        let mut at = standing.seen;
        for seen_at in standing.recent.iter_mut().rev() {
            if *seen_at != at {
                break;
            }
            *seen_at -= 1;
            at -= 1;
        }
        standing.seen = standing.seen.saturating_sub(1);
    }

    /// A fault was seen. Returns whether it is one too many.
    pub fn add_fault(&mut self) -> Option<TooMany> {
        let standing = &mut self.standing;
        standing.seen += 1;
        standing.faults += 1;
        if let Some(Limit::Share(share)) = self.limit {
            standing.recent.push_back(standing.seen);
            let most = allowed(share, self.window) as usize + 1;
            while standing.recent.len() > most {
                standing.recent.pop_front();
            }
        }
        self.too_many()
    }

    /// The epoch is over. Says whether there were too many faults, which is known only now if the number of
    /// samples was not known before.
    pub fn end(&mut self) -> Option<TooMany> {
        self.expected = Some(self.standing.seen);
        if self.standing.seen < self.window { self.too_many() } else { None }
    }

    /// Whether samples were seen, and all of them were bad.
    pub fn has_only_faults(&self) -> bool {
        self.standing.faults > 0 && self.standing.seen == self.standing.faults
    }

    fn too_many(&self) -> Option<TooMany> {
        let FaultCounts { seen, faults, recent } = &self.standing;
        let window = self.window;
        let (faults, allowed, share) = match (self.limit?, self.expected) {
            (Limit::Count(count), _) => (*faults, count, None),
            (Limit::Share(share), Some(expected)) if expected < window => {
                (*faults, allowed(share, expected), Some((share, ShareOf::Epoch(expected))))
            }
            (Limit::Share(_), _) if *seen < window => return None,
            (Limit::Share(share), _) => {
                let within = recent.iter().filter(|seen_at| **seen_at > seen - window).count();
                (within as u64, allowed(share, window), Some((share, ShareOf::Last(window))))
            }
        };
        (faults > allowed).then_some(TooMany { faults, allowed, share })
    }
}

fn allowed(share: f64, samples: u64) -> u64 {
    (share * samples as f64).floor() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_share_of_a_short_epoch_is_of_its_samples() {
        let mut limits = Limits::new(Some(Limit::Share(0.1)), 1000);
        limits.begin(FaultCounts::default(), Some(24));
        assert_eq!((limits.add_fault(), limits.add_fault()), (None, None));
        let share = Some((0.1, ShareOf::Epoch(24)));
        assert_eq!(limits.add_fault(), Some(TooMany { faults: 3, allowed: 2, share }));
    }

    #[test]
    fn an_epoch_of_unknown_length_is_judged_at_its_end() {
        let mut limits = Limits::new(Some(Limit::Share(0.1)), 1000);
        assert!((0..5).all(|_| limits.add_fault().is_none()));
        limits.add_good(15);
        let share = Some((0.1, ShareOf::Epoch(20)));
        assert_eq!(limits.end(), Some(TooMany { faults: 5, allowed: 2, share }));
    }

    proptest! {
        #[test]
        fn a_verdict_is_the_same_after_the_standing_was_saved_and_restored(
            faults in prop::collection::vec(prop::bool::weighted(0.3), 1..200),
            window in 1_u64..50, share in 0.0_f64..1.0, cut in 0_usize..200, known: bool,
        ) {
            let expected = known.then_some(faults.len() as u64);
            let mut whole = Limits::new(Some(Limit::Share(share)), window);
            whole.begin(FaultCounts::default(), expected);
            let mut parts = whole.clone();
            for (at, is_fault) in faults.iter().enumerate() {
                if at == cut {
                    let text = serde_json::to_string(&parts.standing).unwrap();
                    parts = Limits::new(parts.limit, window);
                    parts.begin(serde_json::from_str(&text).unwrap(), expected);
                }
                if *is_fault {
                    prop_assert_eq!(whole.add_fault(), parts.add_fault());
                } else {
                    whole.add_good(1);
                    parts.add_good(1);
                }
            }
            prop_assert_eq!(whole.end(), parts.end());
        }

        #[test]
        fn a_share_is_exactly_that_of_the_last_window(
            faults in prop::collection::vec(prop::bool::weighted(0.4), 1..120), window in 1_u64..30,
        ) {
            let mut limits = Limits::new(Some(Limit::Share(0.25)), window);
            limits.begin(FaultCounts::default(), Some(1 << 40));
            for (at, is_fault) in faults.iter().enumerate() {
                if !is_fault {
                    limits.add_good(1);
                    continue;
                }
                let first = (at + 1).saturating_sub(window as usize);
                let within = faults[first..=at].iter().filter(|fault| **fault).count() as u64;
                let is_over = at as u64 + 1 >= window && within > allowed(0.25, window);
                prop_assert_eq!(limits.add_fault().is_some(), is_over);
            }
        }
    }
}
