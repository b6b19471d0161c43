//! The order of samples as a pure function of a number. There is no list in memory, whatever the size of the data set,
//! and starting in the middle costs nothing.
//!
//! The user's calls are steps, and their order matters: take then shuffle is not shuffle then take.

mod chain;
mod exclude;
mod interleave;
mod mix;
mod permute;
mod rest;
mod shard;
mod step;

pub(crate) use exclude::Excluded;
pub use permute::Permutation;
pub(crate) use rest::{Reached, RestOrder};
pub use shard::{By, Remainder, Shard};
pub use step::PlanPart;
pub(crate) use step::{Mixture, OrderStep};

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::fingerprint::Fingerprint;
use crate::sample::Ticket;
use chain::{Chain, Memo};
use step::MOST_SAMPLES;

/// The order of a run.
#[derive(Clone)]
pub struct Plan(Arc<PreparedPlan>);

struct PreparedPlan {
    chain: Chain,
    shards: Vec<u64>,
    steps: Vec<OrderStep>,
    excluded: Excluded,
    /// Short, because fingerprints are computed from it.
    description: String,
}

/// The order of one epoch.
pub struct EpochOrder {
    plan: Plan,
    epoch: u64,
    /// If other ranks have begun the epoch.
    rest: Option<Arc<RestOrder>>,
    memo: Memo,
}

/// Positions of samples that are repeated as padding: outside those of the others, which do not depend on the number of
/// ranks.
const PADDED: u64 = 1 << 63;

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
        let (shards, steps) = (shards.to_vec(), steps.to_vec());
        Ok(Plan(Arc::new(PreparedPlan { chain, shards, steps, excluded, description })))
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
        EpochOrder { plan: self.clone(), epoch, rest: None, memo: Memo::default() }
    }

    /// The order of the rest of an epoch that other ranks have begun.
    pub(crate) fn rest_of_epoch(&self, epoch: u64, rest: Arc<RestOrder>) -> EpochOrder {
        EpochOrder { rest: Some(rest), ..self.epoch(epoch) }
    }

    /// The number, among those of all ranks, of the sample at a place of this rank; None after its last place.
    pub(crate) fn number_at(&self, place: u64) -> Option<u64> {
        let place = (place < self.epoch_len()).then_some(place)?;
        place.checked_mul(self.world())?.checked_add(self.rank())
    }

    /// The number of the sample with this index in an epoch, found by looking at each; None if the epoch does not have
    /// it. If it comes several times, the first. Ranks that divide whole shards know their own samples only.
    pub(crate) fn find(&self, epoch: u64, index: u64) -> Option<u64> {
        let (memo, world) = (Memo::default(), self.world());
        let is_found =
            |number: &u64| self.ticket(&memo, epoch, number % world, number / world).index == index;
        match self.indivisible() {
            None => (0..self.numbers()).find(is_found),
            Some(_) => (0..).map_while(|place| self.number_at(place)).find(is_found),
        }
    }

    /// The same plan as the first of this many ranks sees it.
    fn with_world(&self, world: u64) -> Result<Plan> {
        let PreparedPlan { shards, steps, excluded, .. } = &*self.0;
        let mut steps = step::with_world(steps, world)?;
        if world > 1 && !steps.iter().any(OrderStep::shards) {
            steps.push(OrderStep::Shard(Shard::default().checked_among(0, world)?));
        }
        Plan::new(shards, &steps, excluded.clone())
    }

    /// How the samples are divided among the ranks.
    fn division(&self) -> Shard {
        let shard = step::shard_in(&self.0.steps).unwrap_or_default();
        shard.among(self.rank(), self.world())
    }

    /// Whether the last step divides the samples one by one, or nothing does.
    fn divides_last(&self) -> bool {
        self.0.chain.divided.is_some() || !self.0.steps.iter().any(OrderStep::shards)
    }

    /// Number of different places of all ranks together in an epoch.
    fn numbers(&self) -> u64 {
        self.0.chain.whole()
    }

    /// Why the rest of an epoch cannot be divided among another number of ranks, if that is so.
    pub(crate) fn indivisible(&self) -> Option<&'static str> {
        let shard = step::shard_in(&self.0.steps)?;
        if shard.is_by_shard() {
            return Some("whole shards are divided among the ranks (by=\"shard\")");
        }
        let is_uneven = shard.remainder() == Remainder::Uneven && !self.divides_last();
        is_uneven.then_some("other calls follow shard(remainder=\"uneven\")")
    }

    /// The order, without ranks and shards, for people.
    pub(crate) fn described(&self) -> String {
        let mut steps = self.0.steps.as_slice();
        if let [before @ .., OrderStep::Shard(shard)] = steps
            && !shard.is_by_shard()
        {
            steps = before;
        }
        step::described(steps)
    }

    /// What is done if samples cannot be divided evenly.
    pub(crate) fn remainder(&self) -> Remainder {
        self.division().remainder()
    }

    /// The shards of the source, for people; None if it has one.
    pub(crate) fn described_shards(&self) -> Option<String> {
        let shards = &self.0.shards;
        let bytes: Vec<u8> = shards.iter().flat_map(|samples| samples.to_le_bytes()).collect();
        let print = || Fingerprint::of([bytes.as_slice()]).in_hex();
        (shards.len() > 1).then(|| format!("{} with lengths {}", shards.len(), print()))
    }

    /// The excluded samples, for people; None if there are none.
    pub(crate) fn described_excluded(&self) -> Option<String> {
        let excluded = &self.0.excluded;
        (!excluded.is_empty()).then(|| format!("{} samples {}", excluded.len(), excluded.in_hex()))
    }

    /// The ticket of a place of a rank in an epoch. The place is below the number of samples of that rank.
    fn ticket(&self, memo: &Memo, epoch: u64, rank: u64, place: u64) -> Ticket {
        let PreparedPlan { chain, excluded, .. } = &*self.0;
        let index = excluded.index(chain.at(memo, epoch, rank, place));
        let number = place.saturating_mul(chain.world).saturating_add(rank);
        let position = match number.checked_sub(chain.whole()) {
            None => epoch.saturating_mul(chain.whole()).saturating_add(number).min(PADDED - 1),
            Some(beyond) => PADDED | (epoch << 32).wrapping_add(beyond),
        };
        Ticket { position, epoch, index }
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
        if let Some(rest) = &self.rest {
            return rest.at(&self.memo, self.epoch, place);
        }
        let chain = &self.plan.0.chain;
        (place < chain.len).then(|| self.plan.ticket(&self.memo, self.epoch, chain.rank, place))
    }
}

#[cfg(test)]
mod tests;
