//! Seeds the global generators of a process for one sample, at the cost of writing their memory: seeding them through
//! Python takes several times as long as many transforms.
#![allow(unsafe_code, reason = "the states of generators are written in place")]

use feedline_core::random::Random;
use pyo3::prelude::*;

/// Words of the state of a Mersenne Twister.
const WORDS: usize = 624;

/// Where the states of generators are, and the seed of a run.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct SampleSeeds {
    seed: u64,
    random: Option<usize>,
    numpy: Option<usize>,
    gauss: Option<usize>,
}

#[pymethods]
impl SampleSeeds {
    /// Addresses of the memory of Mersenne Twisters: `random` is a word with the position and then the state, `numpy`
    /// the state and then the position; `gauss` is a word that says whether NumPy keeps a normal number. The caller
    /// has checked that they are that, and keeps their objects alive.
    #[new]
    #[pyo3(signature = (seed, *, random = None, numpy = None, gauss = None))]
    fn new(
        seed: u64,
        random: Option<usize>,
        numpy: Option<usize>,
        gauss: Option<usize>,
    ) -> SampleSeeds {
        SampleSeeds { seed, random, numpy, gauss }
    }

    /// Seeds them for a sample. Returns a seed for other generators, below 2**63.
    fn begin(&self, epoch: u64, sample: u64) -> u64 {
        let mut draws = Random::keyed(&[self.seed, epoch, sample]);
        let seed = draws.bits() >> 1;
        if let Some(address) = self.random {
            let position = address as *mut u32;
            // SAFETY: the caller vouches for the address, and holds the GIL, without which nobody uses it.
            unsafe { fill(position.add(1), position, &mut draws) };
        }
        if let Some(address) = self.numpy {
            let state = address as *mut u32;
            // SAFETY: as above; the position is behind the state.
            unsafe { fill(state, state.add(WORDS), &mut draws) };
        }
        if let Some(address) = self.gauss {
            // SAFETY: as above.
            unsafe { (address as *mut u32).write(0) };
        }
        seed
    }
}

/// Writes a state, and the position that makes the generator use all of it.
///
/// # Safety
/// The addresses are those of `WORDS` words and of one word, which nobody else uses meanwhile.
unsafe fn fill(state: *mut u32, position: *mut u32, draws: &mut Random) {
    // SAFETY: the caller vouches for it.
    let words = unsafe {
        position.write(WORDS as u32);
        std::slice::from_raw_parts_mut(state, WORDS)
    };
    draws.fill(words);
    // A state of zeros alone would give zeros alone.
    words[0] |= 0x8000_0000;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_depend_on_seed_epoch_and_sample_alone() {
        let state = |seed, epoch, sample| {
            let (mut random, mut numpy, mut gauss) =
                ([0_u32; WORDS + 1], [0_u32; WORDS + 1], 1_u32);
            let seeds = SampleSeeds::new(
                seed,
                Some(random.as_mut_ptr() as usize),
                Some(numpy.as_mut_ptr() as usize),
                Some(&raw mut gauss as usize),
            );
            let other = seeds.begin(epoch, sample);
            assert_eq!((random[0], numpy[WORDS], gauss), (WORDS as u32, WORDS as u32, 0));
            (random, numpy, other)
        };
        assert_eq!(state(1, 2, 3), state(1, 2, 3));
        for other in [state(2, 2, 3), state(1, 3, 3), state(1, 2, 4)] {
            let same = state(1, 2, 3);
            assert!(other.0[1..] != same.0[1..] && other.1 != same.1 && other.2 != same.2);
        }
    }
}
