//! Several orders in exact proportions, as a function of a place.
//!
//! Weights become integer numbers of slots in a period; every period has each part exactly that often. Picks are
//! counted over all epochs, so the n-th pick of a part is the n-th sample of its own order, and a part starts over as
//! often as needed.

use crate::error::{Error, Kind, Result};
use crate::plan::Permutation;
use crate::random::Random;

/// The most slots in a period.
const LONGEST: u64 = 8192;
/// The most slots of all patterns of a shuffled mixture together, and the most patterns.
const SLOTS: u64 = 1 << 17;
const PATTERNS: u64 = 256;

/// The order of the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// The number of slots of each part in a period.
    counts: Vec<u64>,
    period: u64,
    seed: Option<u64>,
    /// The part of each slot; for several periods, of which one is drawn and rotated at random.
    slots: Vec<u16>,
    /// The slots of each part, ascending: part by part, period by period.
    places: Vec<u16>,
    /// Where the slots of each part begin within a period of `places`.
    starts: Vec<u64>,
}

impl Pattern {
    /// The pattern for parts with these weights; with a seed, each period has another order.
    pub(super) fn new(weights: &[f64], seed: Option<u64>) -> Result<Pattern> {
        let counts = counts(weights)?;
        let period: u64 = counts.iter().sum();
        let smooth = smooth(&counts);
        let patterns = seed.map_or(1, |_| (SLOTS / period).clamp(1, PATTERNS));
        let mut slots = Vec::with_capacity((patterns * period) as usize);
        let mut places = Vec::with_capacity(slots.capacity());
        for pattern in 0..patterns {
            let permutation = seed.map(|seed| Permutation::new(period, seed, pattern));
            let at = |slot| permutation.map_or(slot, |permutation| permutation.at(slot));
            let first = slots.len();
            slots.extend((0..period).map(|slot| smooth[at(slot) as usize]));
            let mut ascending: Vec<u16> = (0..period as u16).collect();
            ascending.sort_by_key(|slot| slots[first + *slot as usize]);
            places.extend(ascending);
        }
        let starts = counts.iter().scan(0, |next, count| {
            let start = *next;
            *next += count;
            Some(start)
        });
        let starts = starts.collect();
        Ok(Pattern { counts, period, seed, slots, places, starts })
    }

    /// The part of a pick, and the number of picks of that part before it; `pick` counts over all epochs.
    pub(super) fn at(&self, pick: u64) -> (usize, u64) {
        let (period, slot) = (pick / self.period, pick % self.period);
        let (pattern, turn) = match self.seed {
            None => (0, 0),
            Some(seed) => {
                let mut random = Random::keyed(&[seed, period]);
                let patterns = self.slots.len() as u64 / self.period;
                (random.below(patterns), random.below(self.period))
            }
        };
        let first = (pattern * self.period) as usize;
        let at = (slot + turn) % self.period;
        let part = self.slots[first + at as usize] as usize;
        let places =
            &self.places[first + self.starts[part] as usize..][..self.counts[part] as usize];
        let before = |slot: u64| places.partition_point(|place| u64::from(*place) < slot) as u64;
        let within = if at >= turn {
            before(at) - before(turn)
        } else {
            self.counts[part] - before(turn) + before(at)
        };
        (part, period.saturating_mul(self.counts[part]).saturating_add(within))
    }
}

/// The slots of each part in a period: exact if some period allows it, otherwise by the largest remainders.
fn counts(weights: &[f64]) -> Result<Vec<u64>> {
    if weights.is_empty() || weights.len() > 1 << 12 {
        let message = format!("mix: give from 1 to 4096 parts, got {}", weights.len());
        return Err(Error::new(Kind::InvalidArgument, message));
    }
    if let Some(bad) = weights.iter().find(|weight| !weight.is_finite() || **weight <= 0.0) {
        let message = format!("mix: a weight must be a number above 0, got {bad}");
        return Err(Error::new(Kind::InvalidArgument, message).with_hint("remove that part"));
    }
    // Divided one by one: the sum of finite weights may not be finite.
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let sum: f64 = weights.iter().map(|weight| weight / largest).sum();
    let shares: Vec<f64> = weights.iter().map(|weight| weight / largest / sum).collect();
    let slots = |share: &f64, period: u64| share * period as f64;
    let is_exact = |period: &u64| {
        let (near, period) = (1e-9 * *period as f64, *period);
        let off = |share| (slots(share, period) - slots(share, period).round()).abs();
        shares.iter().all(|share| slots(share, period) >= 0.5 && off(share) < near)
    };
    if let Some(period) = (1..=LONGEST).find(is_exact) {
        return Ok(shares.iter().map(|share| slots(share, period).round() as u64).collect());
    }
    let period = LONGEST;
    let mut counts: Vec<u64> = shares.iter().map(|share| slots(share, period) as u64).collect();
    let mut by_rest: Vec<usize> = (0..shares.len()).collect();
    by_rest.sort_by(|one, other| {
        let rest = |part: usize| slots(&shares[part], period).fract();
        rest(*other).total_cmp(&rest(*one))
    });
    let missing = period.saturating_sub(counts.iter().sum());
    for part in by_rest.into_iter().take(missing as usize) {
        counts[part] += 1;
    }
    if let Some(part) = counts.iter().position(|count| *count == 0) {
        let message = format!(
            "mix: weight {} is {:.6} of the total, less than one sample in {LONGEST}",
            weights[part], shares[part]
        );
        return Err(Error::new(Kind::InvalidArgument, message)
            .with_hint("increase its weight, or remove that part"));
    }
    Ok(counts)
}

/// Spreads the parts of a period evenly: each gains its count in every slot, and the part with the most is picked and
/// pays one period.
fn smooth(counts: &[u64]) -> Vec<u16> {
    let period: i64 = counts.iter().map(|count| *count as i64).sum();
    let mut gained = vec![0_i64; counts.len()];
    let next = |_| {
        for (gained, count) in gained.iter_mut().zip(counts) {
            *gained += *count as i64;
        }
        // The first of equals.
        let most = (0..counts.len()).rev().max_by_key(|part| gained[*part]).unwrap_or(0);
        gained[most] -= period;
        most as u16
    };
    (0..period).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whole_weights_are_exact_in_every_period(
            weights in prop::collection::vec(1_u32..60, 1..9), seed: Option<u64>, from in 0_u64..1 << 40,
        ) {
            let parts: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
            let pattern = Pattern::new(&parts, seed).unwrap();
            let sum = u64::from(weights.iter().sum::<u32>());
            prop_assert!(sum.is_multiple_of(pattern.period));
            let first = from * pattern.period;
            let mut seen = vec![Vec::new(); weights.len()];
            for pick in first..first + pattern.period {
                let (part, before) = pattern.at(pick);
                seen[part].push(before);
            }
            for (part, found) in seen.iter().enumerate() {
                let each = u64::from(weights[part]) * pattern.period / sum;
                // Each once, and in order.
                prop_assert_eq!(found, &(from * each..(from + 1) * each).collect::<Vec<_>>());
            }
        }

        #[test]
        fn every_start_of_a_smooth_mixture_is_near_its_proportions(
            weights in prop::collection::vec(1_u32..60, 1..9), picks in 1_u64..3000,
        ) {
            let parts: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
            let pattern = Pattern::new(&parts, None).unwrap();
            let mut counts = vec![0_u64; weights.len()];
            (0..picks).for_each(|pick| counts[pattern.at(pick).0] += 1);
            let sum: f64 = parts.iter().sum();
            for (count, weight) in counts.iter().zip(&parts) {
                let wanted = picks as f64 * weight / sum;
                prop_assert!((*count as f64 - wanted).abs() <= weights.len() as f64, "{counts:?} of {parts:?}");
            }
        }

        #[test]
        fn any_weights_are_met_within_a_slot_of_the_longest_period(
            weights in prop::collection::vec(0.01_f64..1.0, 1..40),
        ) {
            let counts = counts(&weights).unwrap();
            let (period, sum): (u64, f64) = (counts.iter().sum(), weights.iter().sum());
            for (count, weight) in counts.iter().zip(&weights) {
                prop_assert!((*count as f64 - weight / sum * period as f64).abs() <= 1.0);
            }
        }
    }

    #[test]
    fn weights_become_the_smallest_period() {
        assert_eq!(counts(&[0.7, 0.2, 0.1]).unwrap(), [7, 2, 1]);
        assert_eq!(counts(&[1.0, 1.0]).unwrap(), [1, 1]);
        assert_eq!(counts(&[200.0, 100.0, 300.0]).unwrap(), [2, 1, 3]);
        assert_eq!(counts(&[0.333, 0.667]).unwrap(), [333, 667]);
        assert_eq!(counts(&[f64::MAX, f64::MAX]).unwrap(), [1, 1]);
    }

    #[test]
    fn periods_are_shuffled_by_the_seed_and_by_nothing_else() {
        let parts = |seed, period: u64| -> Vec<_> {
            let pattern = Pattern::new(&[5.0, 3.0, 1.0], seed).unwrap();
            (period * 9..period * 9 + 9).map(|pick| pattern.at(pick).0).collect()
        };
        assert_eq!(parts(Some(1), 4), parts(Some(1), 4));
        assert_eq!(parts(None, 0), parts(None, 7));
        let different: std::collections::BTreeSet<_> =
            (0..200).map(|at| parts(Some(1), at)).collect();
        assert!(different.len() > 100, "{}", different.len());
        assert_ne!(parts(Some(1), 0), parts(Some(2), 0));
    }

    #[test]
    fn weights_that_are_too_small_are_refused_with_the_weight() {
        for (weights, words) in [
            (vec![1.0, 0.0], "got 0"),
            (vec![1.0, f64::NAN], "got NaN"),
            (vec![1.0, -2.5], "got -2.5"),
            (vec![1.0, 1e-6], "0.000001"),
            (vec![], "got 0"),
        ] {
            let message = Pattern::new(&weights, None).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
    }
}
