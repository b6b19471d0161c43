//! What an epoch is like.

use super::{Limit, Wish};

/// What an epoch is like.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Samples of this rank in one epoch.
    pub samples: u64,
    /// Samples in a full batch.
    pub batch_size: u64,
    /// Whether batches that are not full are left out.
    pub drop_last: bool,
    /// Which samples are in which batch.
    pub membership: Membership,
    /// What becomes of the slot of a skipped sample.
    pub fill: Fill,
    /// Whether samples may have shapes that do not fit into one batch, and what is done about one then.
    pub misfit: Option<Wish>,
    /// How many faults are allowed.
    pub limit: Option<Limit>,
    /// Samples over which a share is judged.
    pub window: u64,
    /// The number of the epoch: what replaces a bad sample depends on it.
    pub epoch: u64,
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
