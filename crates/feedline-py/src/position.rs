//! Where an epoch stands, as plain numbers that a state can hold.

use feedline_core::engine::{FaultCounts, Position};
use std::collections::VecDeque;

/// The first slot that is not settled; samples of the end that filled other slots; samples that were tried as
/// repetitions, and how many of them could be used; samples that were judged, faults among them, and when the last
/// faults were seen.
pub(crate) type PositionNumbers = (u64, u64, u64, u64, u64, u64, Vec<u64>);

pub(crate) fn numbers_of(position: &Position) -> PositionNumbers {
    let Position { slot, filled, tried, repeated, standing, .. } = position;
    let FaultCounts { seen, faults, recent } = standing;
    (*slot, *filled, *tried, *repeated, *seen, *faults, recent.iter().copied().collect())
}

pub(crate) fn position_of(numbers: PositionNumbers) -> Position {
    let (slot, filled, tried, repeated, seen, faults, recent) = numbers;
    let standing = FaultCounts { seen, faults, recent: VecDeque::from(recent) };
    Position { slot, filled, tried, repeated, waiting: Vec::new(), standing }
}

/// Positions of batches that the consumer does not have yet, and that of the last one that it has.
#[derive(Default)]
pub(crate) struct Positions {
    undelivered: VecDeque<(u64, Position)>,
    delivered: Option<(u64, Position)>,
}

impl Positions {
    /// An epoch that is continued after this many batches.
    pub(crate) fn from(batches: u64, position: Position) -> Positions {
        let delivered = batches.checked_sub(1).map(|last| (last, position));
        Positions { undelivered: VecDeque::new(), delivered }
    }

    /// The consumer gets a batch next.
    pub(crate) fn add(&mut self, batch: u64, position: Position) {
        self.undelivered.push_back((batch, position));
    }

    /// The consumer has this batch, and all before it.
    pub(crate) fn deliver(&mut self, batch: u64) {
        while self.undelivered.front().is_some_and(|(number, _)| *number <= batch)
            && let Some(first) = self.undelivered.pop_front()
        {
            self.delivered = Some(first);
        }
    }

    /// How many batches of the plan are settled, and the position behind them.
    pub(crate) fn delivered(&self) -> (u64, PositionNumbers) {
        match &self.delivered {
            Some((batch, position)) => (batch + 1, numbers_of(position)),
            None => (0, numbers_of(&Position::default())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(slot: u64) -> Position {
        Position { slot, ..Position::default() }
    }

    #[test]
    fn a_position_counts_once_its_batch_is_the_consumers() {
        let mut positions = Positions::default();
        for batch in 0..4 {
            positions.add(batch, at(10 * (batch + 1)));
        }
        assert_eq!(positions.delivered().1.0, 0);
        positions.deliver(0);
        assert_eq!(positions.delivered(), (1, numbers_of(&at(10))));
        // One that raised was not delivered, and is settled with the next.
        positions.deliver(2);
        assert_eq!(positions.delivered(), (3, numbers_of(&at(30))));
    }

    #[test]
    fn a_position_survives_as_numbers() {
        let standing = FaultCounts { seen: 9, faults: 2, recent: [4, 7].into() };
        let position = Position { filled: 2, tried: 5, repeated: 1, standing, ..at(8) };
        assert_eq!(position_of(numbers_of(&position)), position);
        assert_eq!(Positions::from(3, position.clone()).delivered(), (3, numbers_of(&position)));
    }
}
