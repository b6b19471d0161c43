//! What may be asked of an order, step by step, and which step may follow which.

use super::Shard;
use crate::error::{Error, Kind, Result};

/// More samples than any epoch may have.
pub(super) const MOST_SAMPLES: u64 = 1 << 62;

/// One step; each works on the order that those before it made.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderStep {
    /// All samples in another order in each pass.
    Shuffle {
        /// Decides it alone.
        seed: u64,
    },
    /// The samples of each run of places in another order in each pass.
    ShuffleRuns {
        /// Decides it alone.
        seed: u64,
        /// Places of a run, at least one.
        buffer: u64,
    },
    /// Some shards at a time, a few records of each in turn, as tf.data does it.
    Interleave {
        /// How many are open, at least one; None for a number that suits.
        cycle: Option<u64>,
        /// Records of each visit, at least one.
        block: u64,
        /// Takes the shards in another order in each pass.
        seed: Option<u64>,
    },
    /// The part of one rank.
    Shard(Shard),
    /// All but the first ones.
    Skip(u64),
    /// The first ones.
    Take(u64),
    /// This many passes in one epoch.
    Repeat(u64),
    /// Several orders one behind another.
    Concat(Vec<Part>),
    /// Several orders in proportions.
    Mix(Mixture),
}

/// An order of some shards of the source: the next ones after those of the part before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// How many.
    pub shards: usize,
    /// What is asked of them.
    pub steps: Vec<OrderStep>,
}

/// Several orders in proportions. Each begins again as often as it must.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// What is mixed.
    pub parts: Vec<Part>,
    /// One for each part.
    pub weights: Vec<f64>,
    /// Shuffles which part comes when; without, they are spread evenly.
    pub seed: Option<u64>,
    /// Samples of an epoch; as many as all parts have by default.
    pub samples: Option<u64>,
}

impl OrderStep {
    /// The call that it comes from.
    pub fn name(&self) -> &'static str {
        match self {
            OrderStep::Shuffle { .. } | OrderStep::ShuffleRuns { .. } => "shuffle",
            OrderStep::Interleave { .. } => "interleave",
            OrderStep::Shard(_) => "shard",
            OrderStep::Skip(_) => "skip",
            OrderStep::Take(_) => "take",
            OrderStep::Repeat(_) => "repeat",
            OrderStep::Concat(_) => "concat",
            OrderStep::Mix(_) => "mix",
        }
    }

    /// The seed of the user's, if it has one.
    pub fn seed(&self) -> Option<u64> {
        match self {
            OrderStep::Shuffle { seed } | OrderStep::ShuffleRuns { seed, .. } => Some(*seed),
            OrderStep::Interleave { seed, .. } => *seed,
            OrderStep::Mix(mixture) => mixture.seed,
            OrderStep::Shard(_)
            | OrderStep::Skip(_)
            | OrderStep::Take(_)
            | OrderStep::Repeat(_)
            | OrderStep::Concat(_) => None,
        }
    }

    /// How far samples are put out of order, where that has a bound.
    pub fn buffer(&self) -> Option<u64> {
        let inside = |parts: &[Part]| {
            parts.iter().flat_map(|part| &part.steps).filter_map(OrderStep::buffer).max()
        };
        match self {
            OrderStep::ShuffleRuns { buffer, .. } => Some(*buffer),
            OrderStep::Mix(mixture) => inside(&mixture.parts),
            OrderStep::Concat(parts) => inside(parts),
            OrderStep::Shuffle { .. }
            | OrderStep::Interleave { .. }
            | OrderStep::Shard(_)
            | OrderStep::Skip(_)
            | OrderStep::Take(_)
            | OrderStep::Repeat(_) => None,
        }
    }

    /// Whether ranks are told apart by it.
    fn shards(&self) -> bool {
        let inside =
            |parts: &[Part]| parts.iter().any(|part| part.steps.iter().any(OrderStep::shards));
        match self {
            OrderStep::Shard(_) => true,
            OrderStep::Concat(parts) => inside(parts),
            OrderStep::Mix(mixture) => inside(&mixture.parts),
            OrderStep::Shuffle { .. }
            | OrderStep::ShuffleRuns { .. }
            | OrderStep::Interleave { .. }
            | OrderStep::Skip(_)
            | OrderStep::Take(_)
            | OrderStep::Repeat(_) => false,
        }
    }

    /// Refuses a step that cannot follow these.
    pub(crate) fn may_follow(&self, before: &[OrderStep]) -> Result<()> {
        let refused = |why: String, hint: &'static str| {
            let message = format!("{}: {why}", self.name());
            Err(Error::new(Kind::InvalidArgument, message).with_hint(hint))
        };
        let last = before.last().map_or("the source", OrderStep::name);
        match self {
            OrderStep::Interleave { .. } => {
                let is_first = match before {
                    [] => true,
                    [OrderStep::Shard(shard)] => shard.is_by_shard(),
                    _ => false,
                };
                if !is_first {
                    let why =
                        format!("shards can be interleaved only at the start, not after {last}");
                    return refused(
                        why,
                        "call it after the source, or after shard(..., by=\"shard\")",
                    );
                }
            }
            OrderStep::Shard(_) if before.iter().any(OrderStep::shards) => {
                return refused("the ranks have their parts already".into(), "call shard() once");
            }
            OrderStep::Shard(shard) if shard.is_by_shard() && !before.is_empty() => {
                let why =
                    format!("whole shards can be dealt out only at the start, not after {last}");
                return refused(why, "call it after the source, or use by=\"record\"");
            }
            OrderStep::Concat(_) | OrderStep::Mix(_) if !before.is_empty() => {
                return refused(format!("it cannot follow {last}"), "mix first, then go on");
            }
            OrderStep::Shuffle { .. }
            | OrderStep::ShuffleRuns { .. }
            | OrderStep::Shard(_)
            | OrderStep::Skip(_)
            | OrderStep::Take(_)
            | OrderStep::Repeat(_)
            | OrderStep::Concat(_)
            | OrderStep::Mix(_) => {}
        }
        Ok(())
    }
}

/// Refuses steps that cannot follow one another.
pub(super) fn check(steps: &[OrderStep]) -> Result<()> {
    for (at, step) in steps.iter().enumerate() {
        step.may_follow(&steps[..at])?;
        match step {
            OrderStep::Concat(parts) => parts.iter().try_for_each(|part| check(&part.steps))?,
            OrderStep::Mix(mixture) => {
                mixture.parts.iter().try_for_each(|part| check(&part.steps))?
            }
            OrderStep::Shuffle { .. }
            | OrderStep::ShuffleRuns { .. }
            | OrderStep::Interleave { .. }
            | OrderStep::Shard(_)
            | OrderStep::Skip(_)
            | OrderStep::Take(_)
            | OrderStep::Repeat(_) => {}
        }
    }
    Ok(())
}
