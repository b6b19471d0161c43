//! What comes into the slot of a skipped sample: the last sample of the epoch, or one that is repeated.

use core::time::Duration;

use super::super::{EpochAction, Fill, Moves, Order, Purpose, Slot, State};
use super::Fixed;

impl Fixed {
    pub(super) fn wait(&mut self, offset: usize, order: Order) {
        self.open[0].slots[offset] = Slot::Awaited(order);
        self.open[0].later.push_back(offset);
    }

    /// Fills the slot of a skipped sample with the last one of the epoch, unless that was judged.
    pub(super) fn fill(
        &mut self,
        offset: usize,
        state: &mut State,
        actions: &mut Vec<EpochAction>,
    ) {
        self.open[0].slots[offset] = Slot::Empty;
        if state.settings.fill == Fill::Never {
            return;
        }
        let unjudged = self.first + self.open[0].cursor as u64;
        if self.end() <= unjudged {
            return self.repeat(offset, state, actions);
        }
        let end_of_batch = self.end_of_batch();
        let remakes = match state.settings.moves {
            Moves::Remade { ahead } if self.end() > end_of_batch => {
                self.order_ahead(ahead, actions);
                true
            }
            Moves::Remade { .. } | Moves::Sample => false,
        };
        self.filled += 1;
        state.filled += 1;
        let (from, to) = (self.end(), self.first + offset as u64);
        let order = Order { slot: to, sequence: from, purpose: Purpose::Fill };
        let was_ordered = from < self.next;
        let before = self.slot(from).map(|slot| std::mem::replace(slot, Slot::Empty));
        self.wait(offset, order);
        if was_ordered {
            actions.push(EpochAction::Move { from, to });
        }
        if was_ordered && remakes {
            self.forget_results(from);
        }
        if remakes || !was_ordered {
            actions.push(EpochAction::Make(order, Duration::ZERO));
        } else if let Some(Slot::Arrived(_, outcome)) = before {
            self.open[0].slots[offset] = Slot::Arrived(order, outcome);
        } else {
            self.moved.insert(from, to);
        }
    }

    /// The batch of this slot is made again, without the sample of this slot and those behind it.
    fn forget_results(&mut self, from: u64) {
        let Some(batch) = self.batch(from) else { return };
        for slot in batch.first..from {
            batch.slots[(slot - batch.first) as usize] = Slot::Awaited(Order::planned(slot));
        }
    }

    /// Gives out the orders of that many batches, from the first one on, if one of them is about to lose a sample.
    fn order_ahead(&mut self, ahead: u64, actions: &mut Vec<EpochAction>) {
        let missing = (ahead as usize).saturating_sub(self.open.len());
        let below = self.open_end() + (0..missing).map(|behind| self.size_of(behind)).sum::<u64>();
        let below = below.min(self.end());
        if self.end() > below || self.next >= below {
            return;
        }
        while self.open_end() < below {
            self.open_batch();
        }
        self.next = below;
        actions.push(EpochAction::Order { below });
    }

    /// Repeats a sample in a slot whose own one is used elsewhere, if ranks must have equally many.
    pub(super) fn repeat(
        &mut self,
        offset: usize,
        state: &mut State,
        actions: &mut Vec<EpochAction>,
    ) {
        self.open[0].slots[offset] = Slot::Empty;
        if state.settings.fill != Fill::FromEndAndRepeat {
            return;
        }
        if let Some(order) = state.repeat(self.first + offset as u64, actions) {
            self.wait(offset, order);
        }
    }
}
