//! How an epoch is divided among the ranks of a distributed run: by arithmetic.

use crate::error::{Error, Kind, Result};

/// What is done when the samples cannot be divided evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remainder {
    /// Some samples come twice, so that every rank has as many as the others.
    #[default]
    Pad,
    /// The last samples of the order are left out, so that every rank has as many as the others.
    Drop,
    /// Some ranks have one sample more.
    Uneven,
}

/// The part of one rank: every `world`th sample, from `rank` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    rank: u64,
    world: u64,
    remainder: Remainder,
}

impl Default for Shard {
    fn default() -> Shard {
        Shard { rank: 0, world: 1, remainder: Remainder::Pad }
    }
}

impl Shard {
    /// Refuses a rank that is not in the world.
    pub fn new(rank: u64, world: u64, remainder: Remainder) -> Result<Shard> {
        if world == 0 || world > 1 << 32 {
            let message = format!("shard: world must be from 1 to 2^32, got {world}");
            return Err(Error::new(Kind::BadSetting, message));
        }
        if rank >= world {
            let message = format!("shard: rank must be below world={world}, got {rank}");
            return Err(Error::new(Kind::BadSetting, message)
                .with_hint(format!("ranks count from 0 to {}", world - 1)));
        }
        Ok(Shard { rank, world, remainder })
    }

    pub(super) fn rank(&self) -> u64 {
        self.rank
    }

    pub(super) fn world(&self) -> u64 {
        self.world
    }

    /// Samples of this rank in an epoch of `samples`.
    pub(super) fn len(&self, samples: u64) -> u64 {
        let (even, rest) = (samples / self.world, samples % self.world);
        match self.remainder {
            Remainder::Pad => samples.div_ceil(self.world),
            Remainder::Drop => even,
            Remainder::Uneven => even + u64::from(self.rank < rest),
        }
    }

    /// Where the `place`th sample of this rank stands in the order of all ranks.
    pub(super) fn order(&self, place: u64) -> u64 {
        place.saturating_mul(self.world).saturating_add(self.rank)
    }

    /// How many places an epoch has over all ranks.
    pub(super) fn span(&self, samples: u64) -> u64 {
        samples.div_ceil(self.world).saturating_mul(self.world)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_outside_the_world_is_refused_with_both_numbers() {
        let message = Shard::new(4, 4, Remainder::Pad).unwrap_err().to_string();
        assert!(message.contains("world=4, got 4"), "{message}");
        assert!(Shard::new(0, 0, Remainder::Pad).is_err());
    }

    #[test]
    fn padding_takes_the_first_samples_again_as_torch_does() {
        let order = |rank| -> Vec<_> {
            let shard = Shard::new(rank, 4, Remainder::Pad).unwrap();
            (0..shard.len(10)).map(|place| shard.order(place) % 10).collect()
        };
        assert_eq!(
            [order(0), order(1), order(2), order(3)],
            [vec![0, 4, 8], vec![1, 5, 9], vec![2, 6, 0], vec![3, 7, 1],]
        );
    }
}
