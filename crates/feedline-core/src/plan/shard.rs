//! Divides an epoch among the ranks of a distributed run, by arithmetic.

use crate::error::{Error, Kind, Result};

/// What to do if the samples cannot be divided evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remainder {
    /// Repeat some samples, so that every rank has the same number.
    #[default]
    Pad,
    /// Drop the last samples of the order, so that every rank has the same number.
    Drop,
    /// Give some ranks more samples than others.
    Uneven,
}

impl Remainder {
    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Remainder::Pad => "pad",
            Remainder::Drop => "drop",
            Remainder::Uneven => "uneven",
        }
    }
}

/// What is distributed among the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Samples.
    #[default]
    Record,
    /// Whole shards: no shard is read by two ranks.
    Shard,
}

/// The part of one rank: every `world`th sample or shard, from `rank` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    rank: u64,
    world: u64,
    remainder: Remainder,
    by: By,
}

impl Default for Shard {
    fn default() -> Shard {
        Shard { rank: 0, world: 1, remainder: Remainder::Pad, by: By::Record }
    }
}

impl Shard {
    /// Refuses a rank outside the world.
    pub fn new(rank: u64, world: u64, remainder: Remainder, by: By) -> Result<Shard> {
        if world == 0 || world > 1 << 32 {
            let message = format!("shard: world must be from 1 to 2^32, got {world}");
            return Err(Error::new(Kind::InvalidArgument, message));
        }
        if rank >= world {
            let message = format!("shard: rank must be below world={world}, got {rank}");
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint(format!("ranks count from 0 to {}", world - 1)));
        }
        Ok(Shard { rank, world, remainder, by })
    }

    pub(super) fn rank(&self) -> u64 {
        self.rank
    }

    pub(super) fn world(&self) -> u64 {
        self.world
    }

    /// Whether whole shards are distributed.
    pub(crate) fn is_by_shard(&self) -> bool {
        self.by == By::Shard
    }

    /// Number of samples of this rank in an epoch of `samples`, distributed one by one.
    pub(super) fn len(&self, samples: u64) -> u64 {
        let (even, rest) = (samples / self.world, samples % self.world);
        match self.remainder {
            Remainder::Pad => samples.div_ceil(self.world),
            Remainder::Drop => even,
            Remainder::Uneven => even + u64::from(self.rank < rest),
        }
    }

    /// The most samples that any rank has.
    pub(super) fn most(&self, samples: u64) -> u64 {
        samples.div_ceil(self.world)
    }

    /// The place of the `place`th sample of a rank in the order of all ranks.
    pub(super) fn order_of(&self, rank: u64, place: u64) -> u64 {
        place.saturating_mul(self.world).saturating_add(rank)
    }

    /// The same division, as another rank of this many sees it. Refuses a rank outside the world.
    pub(super) fn checked_among(&self, rank: u64, world: u64) -> Result<Shard> {
        Shard::new(rank, world, self.remainder, self.by)
    }

    /// What is done if the samples cannot be divided evenly.
    pub(super) fn remainder(&self) -> Remainder {
        self.remainder
    }

    /// The same division, as another rank of this many sees it.
    pub(super) fn among(&self, rank: u64, world: u64) -> Shard {
        Shard { rank, world, ..*self }
    }

    /// The shards of this rank.
    pub(super) fn shards(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let (rank, world) = (self.rank as usize, self.world as usize);
        (rank..count).step_by(world)
    }

    /// Number of samples of this rank if shards of these lengths are distributed, and the most that any rank has.
    pub(super) fn fit(&self, lengths: &[u64]) -> Result<(u64, u64)> {
        let ranks = self.world.min(lengths.len() as u64);
        let of = |rank| Shard { rank, ..*self }.shards(lengths.len()).map(|at| lengths[at]).sum();
        let own = of(self.rank);
        let counts: Vec<u64> = (0..ranks).map(of).collect();
        let most = counts.iter().copied().max().unwrap_or(0);
        let least = counts.iter().copied().min().unwrap_or(0);
        let least = if ranks < self.world { 0 } else { least };
        if least == 0 && most > 0 && self.remainder != Remainder::Uneven {
            let rank =
                counts.iter().position(|count| *count == 0).map_or(ranks, |rank| rank as u64);
            let message = format!(
                "shard: rank {rank} of {} would have no samples: there are only {} shards{}",
                self.world,
                lengths.len(),
                match lengths.iter().filter(|length| **length == 0).count() {
                    0 => String::new(),
                    empty => format!(", of which {empty} have no samples"),
                }
            );
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("use by=\"record\", or remainder=\"uneven\""));
        }
        Ok(match self.remainder {
            Remainder::Pad => (most, most),
            Remainder::Drop => (least, least),
            Remainder::Uneven => (own, most),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(rank: u64, world: u64, remainder: Remainder, by: By) -> Shard {
        Shard::new(rank, world, remainder, by).unwrap()
    }

    #[test]
    fn a_rank_outside_the_world_is_refused_with_both_numbers() {
        let message = Shard::new(4, 4, Remainder::Pad, By::Record).unwrap_err().to_string();
        assert!(message.contains("world=4, got 4"), "{message}");
        assert!(Shard::new(0, 0, Remainder::Pad, By::Record).is_err());
    }

    #[test]
    fn padding_takes_the_first_samples_again_as_torch_does() {
        let order = |rank| -> Vec<_> {
            let shard = shard(rank, 4, Remainder::Pad, By::Record);
            (0..shard.len(10)).map(|place| shard.order_of(rank, place) % 10).collect()
        };
        assert_eq!(
            [order(0), order(1), order(2), order(3)],
            [vec![0, 4, 8], vec![1, 5, 9], vec![2, 6, 0], vec![3, 7, 1],]
        );
    }

    #[test]
    fn whole_shards_are_distributed_as_the_remainder_says() {
        let fit = |rank, remainder| shard(rank, 2, remainder, By::Shard).fit(&[5, 1, 4, 2, 0]);
        let both = |remainder| [0, 1].map(|rank| fit(rank, remainder).unwrap());
        assert_eq!(both(Remainder::Pad), [(9, 9), (9, 9)]);
        assert_eq!(both(Remainder::Drop), [(3, 3), (3, 3)]);
        assert_eq!(both(Remainder::Uneven), [(9, 9), (3, 9)]);
    }

    #[test]
    fn a_rank_without_a_shard_is_refused_by_every_rank_except_for_uneven() {
        for rank in 0..4 {
            let message =
                shard(rank, 4, Remainder::Pad, By::Shard).fit(&[5, 1, 1]).unwrap_err().to_string();
            assert!(message.contains("rank 3 of 4"), "{message}");
        }
        assert!(shard(0, 4, Remainder::Drop, By::Shard).fit(&[5, 0, 1, 1]).is_err());
        assert_eq!(shard(3, 4, Remainder::Uneven, By::Shard).fit(&[5, 1, 1]).unwrap(), (0, 5));
    }
}
