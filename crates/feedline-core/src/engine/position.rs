//! Where an epoch stands: a new engine can continue from there.

use super::{EpochSettings, FaultCounts, Fill, Membership};

/// Where an epoch stands: a new engine can continue from here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The first slot that is not settled.
    pub slot: u64,
    /// Samples at the end of the epoch that filled other slots; if batches are gathered, skipped samples.
    pub filled: u64,
    /// Samples, from the first one on, that were tried as repetitions.
    pub tried: u64,
    /// How many of them could be used.
    pub repeated: u64,
    /// Slots before `slot` whose samples are in no batch yet, ascending, and the sequences of these samples.
    pub waiting: Vec<(u64, u64)>,
    /// What the next verdict depends on.
    pub standing: FaultCounts,
}

impl Position {
    /// Whether samples of the end of the epoch were used: if batches are given, the engine must have all of them
    /// before anything is ordered.
    pub fn needs_plan(&self) -> bool {
        self.filled > 0
    }

    /// Whether no further batch can come, so that the next epoch is due.
    pub fn is_at_end(&self, settings: &EpochSettings) -> bool {
        let EpochSettings { samples, batch_size, drop_last, .. } = *settings;
        let planned = samples.saturating_sub(self.slot);
        let missing = match settings.fill {
            Fill::FromEndAndRepeat => self.filled.saturating_sub(self.repeated),
            Fill::Never | Fill::FromEnd => 0,
        };
        let left = match (&settings.membership, settings.fill) {
            (Membership::Fixed, Fill::FromEnd) => planned.saturating_sub(self.filled),
            (Membership::Fixed, Fill::Never | Fill::FromEndAndRepeat) => planned,
            (Membership::Gathered | Membership::Unordered, _) => planned + missing,
            (Membership::Buckets(_), _) => {
                let waiting = if drop_last { 0 } else { self.waiting.len() as u64 };
                return planned + missing + waiting == 0;
            }
        };
        left < if drop_last { batch_size } else { 1 }
    }
}
