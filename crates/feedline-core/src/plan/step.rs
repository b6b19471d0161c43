//! What may be asked of an order, step by step, and which step may follow which.

use super::Shard;
use crate::error::{Error, Kind, Result};

/// More samples than any epoch may have.
pub(super) const MOST_SAMPLES: u64 = 1 << 62;

/// One step; each works on the order that those before it made.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
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
    pub steps: Vec<Step>,
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

impl Step {
    /// The call that it comes from.
    pub fn name(&self) -> &'static str {
        match self {
            Step::Shuffle { .. } | Step::ShuffleRuns { .. } => "shuffle",
            Step::Interleave { .. } => "interleave",
            Step::Shard(_) => "shard",
            Step::Skip(_) => "skip",
            Step::Take(_) => "take",
            Step::Repeat(_) => "repeat",
            Step::Concat(_) => "concat",
            Step::Mix(_) => "mix",
        }
    }

    /// The seed of the user's, if it has one.
    pub fn seed(&self) -> Option<u64> {
        match self {
            Step::Shuffle { seed } | Step::ShuffleRuns { seed, .. } => Some(*seed),
            Step::Interleave { seed, .. } => *seed,
            Step::Mix(mixture) => mixture.seed,
            Step::Shard(_) | Step::Skip(_) | Step::Take(_) | Step::Repeat(_) | Step::Concat(_) => {
                None
            }
        }
    }

    /// How far samples are put out of order, where that has a bound.
    pub fn buffer(&self) -> Option<u64> {
        let inside = |parts: &[Part]| {
            parts.iter().flat_map(|part| &part.steps).filter_map(Step::buffer).max()
        };
        match self {
            Step::ShuffleRuns { buffer, .. } => Some(*buffer),
            Step::Mix(mixture) => inside(&mixture.parts),
            Step::Concat(parts) => inside(parts),
            Step::Shuffle { .. }
            | Step::Interleave { .. }
            | Step::Shard(_)
            | Step::Skip(_)
            | Step::Take(_)
            | Step::Repeat(_) => None,
        }
    }

    /// Whether ranks are told apart by it.
    fn shards(&self) -> bool {
        let inside = |parts: &[Part]| parts.iter().any(|part| part.steps.iter().any(Step::shards));
        match self {
            Step::Shard(_) => true,
            Step::Concat(parts) => inside(parts),
            Step::Mix(mixture) => inside(&mixture.parts),
            Step::Shuffle { .. }
            | Step::ShuffleRuns { .. }
            | Step::Interleave { .. }
            | Step::Skip(_)
            | Step::Take(_)
            | Step::Repeat(_) => false,
        }
    }

    /// Refuses a step that cannot follow these.
    pub fn may_follow(&self, before: &[Step]) -> Result<()> {
        let refused = |why: String, hint: &'static str| {
            let message = format!("{}: {why}", self.name());
            Err(Error::new(Kind::InvalidArgument, message).with_hint(hint))
        };
        let last = before.last().map_or("the source", Step::name);
        match self {
            Step::Interleave { .. } => {
                let is_first = match before {
                    [] => true,
                    [Step::Shard(shard)] => shard.is_by_shard(),
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
            Step::Shard(_) if before.iter().any(Step::shards) => {
                return refused("the ranks have their parts already".into(), "call shard() once");
            }
            Step::Shard(shard) if shard.is_by_shard() && !before.is_empty() => {
                let why =
                    format!("whole shards can be dealt out only at the start, not after {last}");
                return refused(why, "call it after the source, or use by=\"record\"");
            }
            Step::Concat(_) | Step::Mix(_) if !before.is_empty() => {
                return refused(format!("it cannot follow {last}"), "mix first, then go on");
            }
            Step::Shuffle { .. }
            | Step::ShuffleRuns { .. }
            | Step::Shard(_)
            | Step::Skip(_)
            | Step::Take(_)
            | Step::Repeat(_)
            | Step::Concat(_)
            | Step::Mix(_) => {}
        }
        Ok(())
    }
}

/// Refuses steps that cannot follow one another.
pub(super) fn check(steps: &[Step]) -> Result<()> {
    for (at, step) in steps.iter().enumerate() {
        step.may_follow(&steps[..at])?;
        match step {
            Step::Concat(parts) => parts.iter().try_for_each(|part| check(&part.steps))?,
            Step::Mix(mixture) => mixture.parts.iter().try_for_each(|part| check(&part.steps))?,
            Step::Shuffle { .. }
            | Step::ShuffleRuns { .. }
            | Step::Interleave { .. }
            | Step::Shard(_)
            | Step::Skip(_)
            | Step::Take(_)
            | Step::Repeat(_) => {}
        }
    }
    Ok(())
}
