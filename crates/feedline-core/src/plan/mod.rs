//! Which sample comes when: a pure function of a number. There is no list to hold, whatever the size
//! of the data set, and nothing to go through to start in the middle.

mod exclude;
mod permute;
mod shard;

pub use exclude::Excluded;
pub use permute::Permutation;
pub use shard::{Remainder, Shard};

use crate::error::{Error, Kind, Result};
use crate::sample::Ticket;

/// The order of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    samples: u64,
    shuffle: Option<u64>,
    shard: Shard,
    excluded: Excluded,
}

impl Plan {
    /// Over that many samples, in their own order or shuffled by a seed.
    pub fn new(samples: u64, shuffle: Option<u64>, shard: Shard) -> Result<Plan> {
        if samples >= 1 << 62 {
            let message = format!("{samples} samples are more than can be counted");
            return Err(Error::new(Kind::BadSource, message));
        }
        Ok(Plan { samples, shuffle, shard, excluded: Excluded::default() })
    }

    /// Without these samples: the order is what it would be had they never been there.
    #[must_use]
    pub fn without(self, excluded: Excluded) -> Plan {
        let samples = (self.samples + self.excluded.len()).saturating_sub(excluded.len());
        Plan { samples, excluded, ..self }
    }

    /// Among how many ranks an epoch is divided.
    pub fn world(&self) -> u64 {
        self.shard.world()
    }

    /// Which of them is ours.
    pub fn rank(&self) -> u64 {
        self.shard.rank()
    }

    /// Samples of one epoch for this rank.
    pub fn epoch_len(&self) -> u64 {
        self.shard.len(self.samples)
    }

    /// The ticket of the `number`th sample of this rank, counted over all epochs; None if an epoch
    /// has no samples for it.
    pub fn at(&self, number: u64) -> Option<Ticket> {
        let length = self.epoch_len();
        let (epoch, place) = (number.checked_div(length)?, number.checked_rem(length)?);
        let order = self.shard.order(place);
        // Beyond the end only where ranks are padded: then it begins anew.
        let within = order.checked_rem(self.samples)?;
        let index = match self.shuffle {
            None => within,
            Some(seed) => Permutation::new(self.samples, seed, epoch).at(within),
        };
        let index = self.excluded.index(index);
        let position = epoch.saturating_mul(self.shard.span(self.samples)).saturating_add(order);
        Some(Ticket { position, epoch, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shards() -> impl Strategy<Value = (u64, u64, Remainder)> {
        (
            1_u64..9,
            prop_oneof![Just(Remainder::Pad), Just(Remainder::Drop), Just(Remainder::Uneven)],
        )
            .prop_flat_map(|(world, remainder)| (0..world, Just(world), Just(remainder)))
    }

    fn epoch(plan: &Plan, epoch: u64) -> Vec<Ticket> {
        let length = plan.epoch_len();
        (epoch * length..(epoch + 1) * length).map(|number| plan.at(number).unwrap()).collect()
    }

    proptest! {
        #[test]
        fn an_epoch_of_one_rank_is_every_sample_once(samples in 1_u64..500, seed: Option<u64>, at in 0_u64..5) {
            let plan = Plan::new(samples, seed, Shard::default()).unwrap();
            let mut indices: Vec<_> = epoch(&plan, at).iter().map(|ticket| ticket.index).collect();
            indices.sort_unstable();
            prop_assert_eq!(indices, (0..samples).collect::<Vec<_>>());
        }

        #[test]
        fn ranks_share_an_epoch(samples in 1_u64..300, seed: Option<u64>, (_, world, remainder) in shards()) {
            let mut seen = vec![0_u64; samples as usize];
            let mut lengths = Vec::new();
            let mut positions = Vec::new();
            for rank in 0..world {
                let shard = Shard::new(rank, world, remainder).unwrap();
                let plan = Plan::new(samples, seed, shard).unwrap();
                lengths.push(plan.epoch_len());
                for ticket in epoch(&plan, 1) {
                    seen[ticket.index as usize] += 1;
                    positions.push(ticket.position);
                }
            }
            let total: u64 = seen.iter().sum();
            positions.sort_unstable();
            positions.dedup();
            prop_assert_eq!(positions.len() as u64, total, "positions are unique over ranks");
            match remainder {
                Remainder::Pad => {
                    prop_assert!(lengths.iter().all(|length| *length == samples.div_ceil(world)));
                    let (fewest, most) = (seen.iter().min().unwrap(), seen.iter().max().unwrap());
                    prop_assert!(*fewest >= 1 && most - fewest <= 1);
                }
                Remainder::Drop => {
                    prop_assert!(lengths.iter().all(|length| *length == samples / world));
                    prop_assert!(seen.iter().all(|times| *times <= 1));
                }
                Remainder::Uneven => prop_assert!(seen.iter().all(|times| *times == 1)),
            }
        }

        #[test]
        fn every_number_has_a_ticket_and_positions_rise(
            samples in 1_u64..1 << 61, seed: Option<u64>, (rank, world, remainder) in shards(), number: u64,
        ) {
            let shard = Shard::new(rank, world, remainder).unwrap();
            let plan = Plan::new(samples, seed, shard).unwrap();
            if let (Some(ticket), Some(next)) = (plan.at(number), plan.at(number.saturating_add(1))) {
                prop_assert!(ticket.index < samples);
                prop_assert!(next.position >= ticket.position);
            } else {
                prop_assert_eq!(plan.epoch_len(), 0);
            }
        }
    }

    proptest! {
        #[test]
        fn excluded_samples_are_as_if_they_had_never_been_there(
            excluded in prop::collection::btree_set(0_u64..60, 0..20), seed: Option<u64>,
            (rank, world, remainder) in shards(),
        ) {
            let shard = Shard::new(rank, world, remainder).unwrap();
            let kept: Vec<u64> = (0..60).filter(|index| !excluded.contains(index)).collect();
            let short = Plan::new(kept.len() as u64, seed, shard).unwrap();
            let plan = Plan::new(60, seed, shard).unwrap().without(excluded.into_iter().collect());
            prop_assert_eq!(plan.epoch_len(), short.epoch_len());
            for (ours, theirs) in epoch(&plan, 1).iter().zip(epoch(&short, 1)) {
                prop_assert_eq!(ours.index, kept[theirs.index as usize]);
                prop_assert_eq!(ours.position, theirs.position);
            }
        }
    }

    #[test]
    fn epochs_differ_when_shuffled_and_repeat_when_not() {
        let indices = |plan: &Plan, at| -> Vec<_> {
            epoch(plan, at).iter().map(|ticket| ticket.index).collect()
        };
        let shuffled = Plan::new(100, Some(1), Shard::default()).unwrap();
        assert_ne!(indices(&shuffled, 0), indices(&shuffled, 1));
        let plain = Plan::new(100, None, Shard::default()).unwrap();
        assert_eq!(indices(&plain, 0), indices(&plain, 1));
    }

    #[test]
    fn a_trillion_samples_cost_the_memory_of_ten() {
        assert!(size_of::<Plan>() <= 64);
        let plan = Plan::new(1_000_000_000_000, Some(3), Shard::default()).unwrap();
        let tickets: Vec<_> = (0..1000).map(|number| plan.at(number).unwrap().index).collect();
        assert!(tickets.iter().any(|index| *index > 500_000_000_000));
        assert!(plan.at(3_000_000_000_000).is_some_and(|ticket| ticket.epoch == 3));
    }

    #[test]
    fn a_rank_without_samples_has_no_tickets() {
        let shard = Shard::new(3, 4, Remainder::Uneven).unwrap();
        let plan = Plan::new(2, None, shard).unwrap();
        assert_eq!((plan.epoch_len(), plan.at(0)), (0, None));
    }
}
