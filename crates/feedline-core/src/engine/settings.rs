//! Settings of one epoch.

use super::{Limit, PolicyAction};

/// Settings of one epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochSettings {
    /// Samples of this rank in one epoch. If batches are given one after another, the samples of those that were
    /// given: none at first, and those before the position if the epoch is continued.
    pub samples: u64,
    /// Samples of this rank in the whole epoch, if `samples` are those that other ranks have left of it: a share of
    /// faults is of these.
    pub epoch_samples: Option<u64>,
    /// Samples in a full batch. Not used if batches are given.
    pub batch_size: u64,
    /// How the engine knows which slots a batch has. Anything but `Known` needs `Membership::Fixed`, or
    /// `Unordered`, which has `Open`.
    pub plan: BatchPlan,
    /// What becomes of a sample that was ordered and now fills another slot.
    pub moves: Moves,
    /// Whether batches that are not full are left out.
    pub drop_last: bool,
    /// Which samples are in which batch.
    pub membership: Membership,
    /// What becomes of the slot of a skipped sample.
    pub fill: Fill,
    /// Whether samples may have shapes that do not fit into one batch, and what is done about one then.
    pub misfit: Option<PolicyAction>,
    /// Whether the driver finishes a batch when its samples are known, before it is delivered: collates them, or
    /// calls functions for all of them. It may find samples then that are bad after all.
    pub finishes: bool,
    /// How many faults are allowed.
    pub limit: Option<Limit>,
    /// Samples over which a share is judged.
    pub window: u64,
    /// The number of the epoch: what replaces a bad sample depends on it.
    pub epoch: u64,
}

impl EpochSettings {
    /// Batches that are given one after another and judged in any order.
    pub fn unordered(limit: Option<Limit>, window: u64) -> EpochSettings {
        EpochSettings {
            samples: 0,
            epoch_samples: None,
            batch_size: 0,
            plan: BatchPlan::Open,
            moves: Moves::Sample,
            drop_last: false,
            membership: Membership::Unordered,
            fill: Fill::Never,
            misfit: None,
            finishes: false,
            limit,
            window,
            epoch: 0,
        }
    }
}

/// How the engine knows which slots a batch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchPlan {
    /// From `samples` and `batch_size`.
    Known,
    /// Batches are given one after another with `Engine::plan`. The engine asks for all of them when it judges the
    /// first fault.
    Given,
    /// As `Given`, but how many there are is not known before the last one is given. The end of the epoch cannot
    /// fill slots (`Fill::Never`), and a replacement is one of the samples up to the end of its batch.
    Open,
}

/// What becomes of a sample that was ordered and now fills the slot of another batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// It moves, whether it was made or not.
    Sample,
    /// Batches are made as a whole: its batch is made again without it, and it is made again for its new slot.
    Remade {
        /// Batches, counted from the one that is judged, that were ordered when one of them loses a sample. What
        /// was ordered must not depend on when results come.
        ahead: u64,
    },
}

/// Which samples are in which batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// A batch has the slots that it would have without faults.
    Fixed,
    /// The next good samples, as they come: after one that is left out, the others move up.
    Gathered,
    /// As `Gathered`, with a batch size for each bucket.
    Buckets(Vec<u64>),
    /// Batches that are given (`BatchPlan::Open`), each judged when its results come and delivered alone, in any order.
    /// Nothing fills a slot, nothing is finished, and the epoch cannot be continued.
    Unordered,
}

/// What becomes of the slot of a skipped sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// It stays empty: the batch is smaller.
    Never,
    /// The last sample of the epoch that is not used yet moves into it. If batches are gathered, the next
    /// samples move up instead. Either way the epoch is shorter.
    FromEnd,
    /// As `FromEnd`; at the end the first samples are repeated, so that every rank has as many as the others.
    FromEndAndRepeat,
}
