//! What became of the samples of an epoch.

/// What became of the samples of an epoch, or of the rest of one that was continued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Samples that have to be accounted for.
    pub due: u64,
    /// Samples in batches.
    pub delivered: u64,
    /// Those of them that were used a second time in the slot of a bad one.
    pub replaced: u64,
    /// Those of them that were repeated so that ranks stay even.
    pub repeated: u64,
    /// Bad samples that were left out.
    pub skipped: u64,
    /// Good samples that the user's filter leaves out.
    pub filtered: u64,
    /// Good samples of batches that are left out because they are not full.
    pub dropped: u64,
    /// Samples whose fault is the end of their batch, or of the run. Only with `Membership::Unordered`.
    pub failed: u64,
    /// Samples that nobody gets, because they were cancelled or their batch has failed.
    pub cancelled: u64,
}

impl Account {
    /// Whether it is known of every sample that was due what became of it.
    pub fn adds_up(&self) -> bool {
        let left_out = self.skipped + self.filtered + self.dropped + self.failed + self.cancelled;
        self.delivered + left_out == self.due + self.repeated
    }
}
