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
}

impl Account {
    /// Whether every sample that was due was delivered, skipped, filtered out or dropped.
    pub fn adds_up(&self) -> bool {
        self.delivered + self.skipped + self.filtered + self.dropped == self.due + self.repeated
    }
}
