//! A shuffle without a list: a keyed permutation that can be evaluated at any place.
//!
//! A place is a pair (left, right) on a board of a · b ≥ n fields. Each round rotates one half by an amount that
//! depends on the other half and the key; every round is invertible, so the whole is a permutation of the board. If the
//! result is not one of the n samples, the permutation is applied again until it is (cycle walking, which must
//! terminate). The board is hardly larger than n, so the walk is short. Four rounds are visibly not random; with eight,
//! and twelve for small n, the statistics below find nothing.

use crate::random::mix;

const ROUNDS: usize = 8;
const SMALL_ROUNDS: usize = 12;
const SMALL: u64 = 10_000;

/// The order of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation {
    samples: u64,
    left: u64,
    right: u64,
    rounds: usize,
    key: u64,
}

impl Permutation {
    /// The order of this many samples for a seed and an epoch.
    pub fn new(samples: u64, seed: u64, epoch: u64) -> Permutation {
        let left = (samples as f64).sqrt().ceil().max(1.0) as u64;
        let right = samples.div_ceil(left).max(1);
        let rounds = if samples < SMALL { SMALL_ROUNDS } else { ROUNDS };
        Permutation { samples, left, right, rounds, key: key(seed, epoch) }
    }

    /// The same samples in the order of another epoch.
    pub(super) fn of_epoch(&self, seed: u64, epoch: u64) -> Permutation {
        Permutation { key: key(seed, epoch), ..*self }
    }

    /// The same samples in the order of one run of an epoch.
    pub(super) fn of_run(&self, seed: u64, epoch: u64, run: u64) -> Permutation {
        Permutation { key: mix(key(seed, epoch) ^ mix(run)), ..*self }
    }

    /// The sample at a place; both count from 0.
    ///
    /// # Panics
    /// If the place is not below the number of samples.
    pub fn at(&self, place: u64) -> u64 {
        assert!(place < self.samples, "place {place} of {}", self.samples);
        let mut field = self.turn(place);
        while field >= self.samples {
            field = self.turn(field);
        }
        field
    }

    fn turn(&self, field: u64) -> u64 {
        let (mut left, mut right) = (field / self.right, field % self.right);
        let mut key = self.key;
        for round in 0..self.rounds {
            key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
            if round % 2 == 0 {
                left = add(left, amount(key, right, self.left), self.left);
            } else {
                right = add(right, amount(key, left, self.right), self.right);
            }
        }
        left * self.right + right
    }
}

fn key(seed: u64, epoch: u64) -> u64 {
    mix(mix(seed) ^ mix(!epoch))
}

/// Uniform from 0 to `bound`, exclusive.
fn amount(key: u64, half: u64, bound: u64) -> u64 {
    ((u128::from(mix(key ^ mix(half))) * u128::from(bound)) >> 64) as u64
}

fn add(one: u64, other: u64, bound: u64) -> u64 {
    let sum = one + other;
    if sum >= bound { sum - bound } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(samples: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let permutation = Permutation::new(samples, seed, epoch);
        (0..samples).map(|place| permutation.at(place)).collect()
    }

    /// How many standard deviations chi-squared is from its expectation.
    fn surprise(counts: &[u64], expected: f64) -> f64 {
        let chi: f64 = counts.iter().map(|n| (*n as f64 - expected).powi(2) / expected).sum();
        let freedom = counts.len() as f64 - 1.0;
        (chi - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn it_is_a_permutation_for_every_small_size() {
        for samples in 1..300 {
            let mut seen = order(samples, 5, 2);
            seen.sort_unstable();
            assert_eq!(seen, (0..samples).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_epoch_of_seed_zero_never_changes() {
        // A change here gives every user another order for the same seed.
        assert_eq!(order(12, 0, 0), GOLDEN);
    }

    const GOLDEN: [u64; 12] = [2, 11, 8, 10, 7, 6, 9, 1, 0, 4, 3, 5];

    #[test]
    fn all_orders_of_four_are_equally_likely() {
        let mut counts = vec![0; 256];
        for seed in 0..24_000 {
            let order = order(4, seed, 0);
            counts[(order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3]) as usize] += 1;
        }
        counts.retain(|count| *count > 0);
        assert_eq!(counts.len(), 24);
        assert!(surprise(&counts, 1000.0) < 5.0, "{counts:?}");
    }

    #[test]
    fn every_sample_comes_at_every_place_equally_often() {
        for samples in [3, 7, 16, 30] {
            let seeds = 2000;
            let mut counts = vec![0; (samples * samples) as usize];
            for seed in 0..seeds {
                for (place, sample) in order(samples, seed, 0).into_iter().enumerate() {
                    counts[place * samples as usize + sample as usize] += 1;
                }
            }
            let surprise = surprise(&counts, seeds as f64 / samples as f64);
            assert!(surprise.abs() < 6.0, "n = {samples}: {surprise}");
        }
    }

    #[test]
    fn neighbours_are_independent() {
        for samples in [101_u64, 5_000, 20_000, 1_000_003] {
            let permutation = Permutation::new(samples, 11, 0);
            let pairs = samples.min(100_000) - 1;
            let mut counts = vec![0; 50];
            for place in 0..pairs {
                let (here, next) = (permutation.at(place), permutation.at(place + 1));
                let difference = (next + samples - here) % samples;
                counts[(difference * 50 / samples) as usize] += 1;
            }
            let surprise = surprise(&counts, pairs as f64 / 50.0);
            assert!(surprise < 5.0, "n = {samples}: {surprise} {counts:?}");
        }
    }

    #[test]
    fn adjacent_epochs_and_seeds_are_independent() {
        // Two random orders agree in one place on average: the number is Poisson with mean 1.
        let samples = 400;
        for (name, other) in [("epoch", [0, 1]), ("seed", [1, 0])] {
            let mut common = 0_u64;
            let runs = 500;
            for seed in 0..runs {
                let (one, two) =
                    (order(samples, seed, 3), order(samples, seed + other[0], 3 + other[1]));
                common += one.iter().zip(&two).filter(|(a, b)| a == b).count() as u64;
            }
            let surprise = (common as f64 - runs as f64) / (runs as f64).sqrt();
            assert!(surprise.abs() < 5.0, "{name}: {common} in {runs}");
        }
    }
}
