//! Randomness as a function of a key: the same draws for the same (seed, position), on any thread, at any time, on any
//! machine.

/// Spreads every bit of a number over all of them (the finalizer of SplitMix64).
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// A sequence of draws for one key.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The draws for these numbers, in this order.
    pub fn keyed(parts: &[u64]) -> Random {
        let state = parts.iter().fold(0x6665_6564_6c69_6e65, |state, part| mix(state ^ mix(*part)));
        Random { state }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let bits = mix(self.state);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits
    }

    /// Fills words with random bits.
    pub fn fill(&mut self, words: &mut [u32]) {
        for pair in words.chunks_mut(2) {
            let bits = self.bits();
            for (word, part) in pair.iter_mut().zip([bits as u32, (bits >> 32) as u32]) {
                *word = part;
            }
        }
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in [low, high).
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + self.unit() * (high - low)
    }

    /// Uniform from 0 to `bound`, exclusive; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_depend_on_every_part_of_the_key_and_its_order() {
        let first = |parts: &[u64]| Random::keyed(parts).bits();
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        let all = [first(&[1, 2]), first(&[2, 1]), first(&[1, 3]), first(&[0, 2]), first(&[1])];
        assert!((0..5).all(|one| (0..one).all(|other| all[one] != all[other])));
    }

    #[test]
    fn words_are_the_bits_in_order() {
        let mut words = [0; 5];
        Random::keyed(&[3]).fill(&mut words);
        let mut draws = Random::keyed(&[3]);
        let (first, second) = (draws.bits(), draws.bits());
        assert_eq!(
            words[..4],
            [first as u32, (first >> 32) as u32, second as u32, (second >> 32) as u32]
        );
        assert_ne!(words[4], 0);
    }

    #[test]
    fn draws_are_uniform() {
        let mut counts = [0_u32; 10];
        for position in 0..100_000 {
            counts[Random::keyed(&[7, position]).below(10) as usize] += 1;
        }
        // Nine degrees of freedom; chance exceeds 40 once in 100,000 runs, and this run is fixed.
        let chi: f64 = counts.iter().map(|n| (f64::from(*n) - 1e4).powi(2) / 1e4).sum();
        assert!(chi < 40.0, "{counts:?}");
    }
}
