//! The steps of an order, and which step may follow which.

use super::Shard;
use crate::error::{Error, Kind, Result};

/// The most samples of an epoch.
pub(super) const MOST_SAMPLES: u64 = 1 << 62;

/// One step; each works on the order of those before it.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderStep {
    /// Shuffle all samples, again in each pass.
    Shuffle {
        /// The seed that alone decides the order.
        seed: u64,
    },
    /// Shuffle the samples within each run of places, again in each pass.
    ShuffleRuns {
        /// The seed that alone decides the order.
        seed: u64,
        /// Places in a run, at least one.
        buffer: u64,
    },
    /// Read several shards at a time, a few records of each in turn, as tf.data does.
    Interleave {
        /// Number of open shards, at least one; None for a default.
        cycle: Option<u64>,
        /// Records of each visit, at least one.
        block: u64,
        /// Shuffles the shards, again in each pass.
        seed: Option<u64>,
    },
    /// The part of one rank.
    Shard(Shard),
    /// All but the first samples.
    Skip(u64),
    /// Only the first samples.
    Take(u64),
    /// This many passes in one epoch.
    Repeat(u64),
    /// Several orders, concatenated.
    Concat(Vec<PlanPart>),
    /// Several orders in proportions.
    Mix(Mixture),
}

/// An order of some shards of the source: those after the shards of the part before it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanPart {
    /// Number of shards.
    pub shards: usize,
    /// The steps over them.
    pub steps: Vec<OrderStep>,
}

/// Several orders in proportions. Each starts over as often as needed.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// The orders to mix.
    pub parts: Vec<PlanPart>,
    /// One weight for each part.
    pub weights: Vec<f64>,
    /// Shuffles the order of the parts; without a seed, they are spread evenly.
    pub seed: Option<u64>,
    /// Number of samples in an epoch; by default as many as all parts have.
    pub samples: Option<u64>,
}

impl OrderStep {
    /// The name of the call.
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

    /// The user's seed, if it has one.
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

    /// How far samples can be out of order, if that has a bound.
    pub fn buffer(&self) -> Option<u64> {
        let inside = |parts: &[PlanPart]| {
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

    /// Whether it divides samples among ranks.
    pub(super) fn shards(&self) -> bool {
        let inside =
            |parts: &[PlanPart]| parts.iter().any(|part| part.steps.iter().any(OrderStep::shards));
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
                return refused(
                    "the samples are already divided among the ranks".into(),
                    "call shard() once",
                );
            }
            OrderStep::Shard(shard) if shard.is_by_shard() && !before.is_empty() => {
                let why =
                    format!("whole shards can be distributed only at the start, not after {last}");
                return refused(why, "call it after the source, or use by=\"record\"");
            }
            OrderStep::Concat(_) | OrderStep::Mix(_) if !before.is_empty() => {
                return refused(format!("it cannot follow {last}"), "call mix() first");
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

/// The steps with another number of ranks, as the first of them sees it.
pub(super) fn with_world(steps: &[OrderStep], world: u64) -> Result<Vec<OrderStep>> {
    let inside = |parts: &[PlanPart]| -> Result<Vec<PlanPart>> {
        let part = |part: &PlanPart| {
            Ok(PlanPart { shards: part.shards, steps: with_world(&part.steps, world)? })
        };
        parts.iter().map(part).collect()
    };
    let step = |step: &OrderStep| {
        Ok(match step {
            OrderStep::Shard(shard) => OrderStep::Shard(shard.checked_among(0, world)?),
            OrderStep::Concat(parts) => OrderStep::Concat(inside(parts)?),
            OrderStep::Mix(mixture) => {
                OrderStep::Mix(Mixture { parts: inside(&mixture.parts)?, ..mixture.clone() })
            }
            OrderStep::Shuffle { .. }
            | OrderStep::ShuffleRuns { .. }
            | OrderStep::Interleave { .. }
            | OrderStep::Skip(_)
            | OrderStep::Take(_)
            | OrderStep::Repeat(_) => step.clone(),
        })
    };
    steps.iter().map(step).collect()
}

/// The shard among the steps, which have at most one, or the same in each part.
pub(super) fn shard_in(steps: &[OrderStep]) -> Option<Shard> {
    let inside = |parts: &[PlanPart]| parts.iter().find_map(|part| shard_in(&part.steps));
    steps.iter().find_map(|step| match step {
        OrderStep::Shard(shard) => Some(*shard),
        OrderStep::Concat(parts) => inside(parts),
        OrderStep::Mix(mixture) => inside(&mixture.parts),
        OrderStep::Shuffle { .. }
        | OrderStep::ShuffleRuns { .. }
        | OrderStep::Interleave { .. }
        | OrderStep::Skip(_)
        | OrderStep::Take(_)
        | OrderStep::Repeat(_) => None,
    })
}

/// The steps as calls, without ranks: saved states are compared by this text, so it must not change.
pub(super) fn described(steps: &[OrderStep]) -> String {
    let part = |part: &PlanPart| format!("{} shards: {}", part.shards, described(&part.steps));
    let seeded =
        |seed: &Option<u64>| seed.map_or_else(String::new, |seed| format!(", seed={seed}"));
    let step = |step: &OrderStep| match step {
        OrderStep::Shuffle { seed } => format!("shuffle(seed={seed})"),
        OrderStep::ShuffleRuns { seed, buffer } => format!("shuffle(seed={seed}, buffer={buffer})"),
        OrderStep::Interleave { cycle, block, seed } => {
            let cycle = cycle.map_or_else(|| "auto".to_owned(), |cycle| cycle.to_string());
            format!("interleave(cycle={cycle}, block={block}{})", seeded(seed))
        }
        OrderStep::Shard(shard) => {
            let by = if shard.is_by_shard() { "shard" } else { "record" };
            format!("shard(remainder={}, by={by})", shard.remainder().name())
        }
        OrderStep::Skip(samples) => format!("skip({samples})"),
        OrderStep::Take(samples) => format!("take({samples})"),
        OrderStep::Repeat(times) => format!("repeat({times})"),
        OrderStep::Concat(parts) => {
            let parts: Vec<_> = parts.iter().map(part).collect();
            format!("concat({})", parts.join("; "))
        }
        OrderStep::Mix(Mixture { parts, weights, seed, samples }) => {
            let parts: Vec<_> = parts.iter().map(part).collect();
            let samples =
                samples.map_or_else(String::new, |samples| format!(", samples={samples}"));
            format!("mix({}, weights={weights:?}{}{samples})", parts.join("; "), seeded(seed))
        }
    };
    steps.iter().map(step).collect::<Vec<_>>().join(", ")
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
