//! The order of samples as a pure function of a number. There is no list in memory, whatever the size of the data set,
//! and starting in the middle costs nothing.
//!
//! The user's calls are steps, and their order matters: take then shuffle is not shuffle then take.

mod chain;
mod exclude;
mod interleave;
mod mix;
mod permute;
mod shard;
mod step;

pub(crate) use exclude::Excluded;
pub use permute::Permutation;
pub use shard::{By, Remainder, Shard};
pub use step::PlanPart;
pub(crate) use step::{Mixture, OrderStep};

use std::fmt;
use std::sync::Arc;

use crate::checkpoint::Fingerprint;
use crate::error::{Error, Kind, Result};
use crate::sample::Ticket;
use chain::{Chain, Memo};
use step::MOST_SAMPLES;

/// The order of a run.
#[derive(Clone)]
pub struct Plan(Arc<PreparedPlan>);

struct PreparedPlan {
    chain: Chain,
    excluded: Excluded,
    /// Short, because fingerprints are computed from it.
    description: String,
}

/// The order of one epoch.
pub struct EpochOrder {
    plan: Plan,
    epoch: u64,
    memo: Memo,
}

impl Plan {
    /// A plan over shards with this many samples each. Excluded samples are as if they did not exist.
    pub fn new(shards: &[u64], steps: &[OrderStep], excluded: Excluded) -> Result<Plan> {
        let all: u128 = shards.iter().map(|samples| u128::from(*samples)).sum();
        if all >= u128::from(MOST_SAMPLES) {
            let message = format!("{all} samples are too many to count");
            return Err(Error::new(Kind::InvalidSource, message));
        }
        step::check(steps)?;
        let (mut index, mut place) = (0, 0);
        let left = |samples: &u64| {
            let first = place;
            index += samples;
            place = index - excluded.below(index);
            first..place
        };
        let left: Vec<_> = shards.iter().map(left).collect();
        let chain = Chain::new(&left, steps, &mut 0)?;
        let mut description = format!("{all} samples without {excluded:?}, {steps:?}");
        if shards.len() > 1 {
            let bytes: Vec<u8> = shards.iter().flat_map(|samples| samples.to_le_bytes()).collect();
            description += &format!(", shards {:?}", Fingerprint::of([bytes.as_slice()]));
        }
        Ok(Plan(Arc::new(PreparedPlan { chain, excluded, description })))
    }

    /// Number of ranks that share an epoch.
    pub fn world(&self) -> u64 {
        self.0.chain.world
    }

    /// This rank.
    pub fn rank(&self) -> u64 {
        self.0.chain.rank
    }

    /// Number of samples of this rank in one epoch.
    pub(crate) fn epoch_len(&self) -> u64 {
        self.0.chain.len
    }

    /// Whether no rank has any samples.
    pub fn is_empty(&self) -> bool {
        self.0.chain.most == 0
    }

    /// The order of an epoch, counted from 0.
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        EpochOrder { plan: self.clone(), epoch, memo: Memo::default() }
    }

    /// The ticket of the `number`th sample of this rank, counted over all epochs; None if an epoch has no samples for
    /// it. A caller that needs many tickets uses the order of their epoch instead.
    pub fn at(&self, number: u64) -> Option<Ticket> {
        let length = self.epoch_len();
        self.epoch(number.checked_div(length)?).at(number % length)
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Plan({})", self.0.description)
    }
}

impl EpochOrder {
    /// The ticket of the sample at a place among this rank's samples of the epoch; None after the last.
    pub fn at(&self, place: u64) -> Option<Ticket> {
        let PreparedPlan { chain, excluded, .. } = &*self.plan.0;
        if place >= chain.len {
            return None;
        }
        let index = excluded.index(chain.at(&self.memo, self.epoch, place));
        let before = self.epoch.saturating_mul(chain.most).saturating_add(place);
        let position = before.saturating_mul(chain.world).saturating_add(chain.rank);
        Some(Ticket { position, epoch: self.epoch, index })
    }
}

#[cfg(test)]
mod tests;
