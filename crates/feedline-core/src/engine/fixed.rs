//! Batches that have the slots they would have without faults. The slot of a skipped sample is filled from
//! the end of the epoch, so that no other batch changes.
//!
//! Batches are judged one after another. In a batch, first its own samples are judged, in order; then those
//! that fill its slots, in rounds until none is bad. So what the drivers have to make for a batch is known
//! at once and not sample by sample.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use super::{
    Accepted, Action, Fill, Next, Order, Outcome, Purpose, Settings, Slot, State, most_common,
};

#[derive(Clone, Debug)]
pub(super) struct Fixed {
    size: u64,
    samples: u64,
    /// The first slot of the batch that is being judged.
    first: u64,
    /// Batches of which a sample was ordered, from that one on.
    open: VecDeque<Open>,
    /// The next slot whose order is given out.
    next: u64,
    /// Samples from here on fill other slots.
    end: u64,
    /// Slots whose samples were ordered before they were needed elsewhere and have no result yet, and the slots
    /// that they fill.
    moved: BTreeMap<u64, u64>,
}

/// A batch that is not complete.
#[derive(Clone, Debug)]
struct Open {
    slots: Vec<Slot>,
    /// The first slot, as an offset, that was not judged.
    cursor: usize,
    /// Slots that were judged and wait for other samples, in the order of judging.
    later: VecDeque<usize>,
    /// The shape that its samples must have, and a slot whose sample has it.
    norm: Option<(u64, u32)>,
    has_norm: bool,
}

impl Fixed {
    pub(super) fn new(settings: &Settings, first: u64, filled: u64) -> Fixed {
        let samples = settings.samples;
        let end = samples.saturating_sub(filled);
        let size = settings.batch_size;
        let (open, moved) = (VecDeque::new(), BTreeMap::new());
        Fixed { size, samples, first, open, next: first, end, moved }
    }

    pub(super) fn orders_left(&self) -> u64 {
        self.end.saturating_sub(self.next)
    }

    pub(super) fn next_slot(&self) -> u64 {
        self.next
    }

    pub(super) fn next_order(&mut self) -> Option<Order> {
        let slot = self.next;
        if slot >= self.end {
            return None;
        }
        self.next += 1;
        if slot == self.open_end() {
            self.open_batch();
        }
        Some(planned(slot))
    }

    /// The slot behind the batches of which samples were ordered.
    fn open_end(&self) -> u64 {
        (self.first + self.open.len() as u64 * self.size).min(self.samples)
    }

    fn open_batch(&mut self) {
        let first = self.open_end();
        let end = (first + self.size).min(self.samples);
        let slots = (first..end).map(|slot| Slot::Awaited(planned(slot))).collect();
        let later = VecDeque::new();
        self.open.push_back(Open { slots, cursor: 0, later, norm: None, has_norm: false });
    }

    fn slot(&mut self, slot: u64) -> Option<&mut Slot> {
        let ahead = slot.checked_sub(self.first)?;
        let batch = self.open.get_mut((ahead / self.size) as usize)?;
        batch.slots.get_mut((ahead % self.size) as usize)
    }

    /// An order as it is now: its sample may have moved to another slot.
    pub(super) fn current(&self, order: Order) -> Order {
        match self.moved.get(&order.slot) {
            Some(slot) if order.purpose == Purpose::Planned => {
                Order { slot: *slot, sequence: order.sequence, purpose: Purpose::Fill }
            }
            Some(_) | None => order,
        }
    }

    pub(super) fn put(
        &mut self,
        order: Order,
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) -> Accepted {
        let current = self.current(order);
        if current != order {
            self.moved.remove(&order.slot);
        }
        let slot = self.slot(current.slot);
        slot.map_or(Accepted::Unexpected, |slot| slot.put(current, outcome, actions))
    }

    /// The first slot that is not in a batch.
    pub(super) fn cursor(&self) -> u64 {
        self.first
    }

    pub(super) fn end_of_batch(&self) -> u64 {
        (self.first + self.size).min(self.samples)
    }

    pub(super) fn advance(&mut self, state: &mut State, actions: &mut Vec<Action>) {
        let repeats = state.settings.fill == Fill::FromEndAndRepeat;
        while !state.is_over {
            let end = if repeats { self.samples } else { self.end };
            if self.first >= end {
                return state.finish(actions);
            }
            if self.open.is_empty() {
                if self.first < self.end {
                    return;
                }
                self.open_batch();
            }
            if !self.judge_batch(state, actions) {
                return;
            }
            self.complete(state, actions);
        }
    }

    /// Whether all slots of the first batch are settled.
    fn judge_batch(&mut self, state: &mut State, actions: &mut Vec<Action>) -> bool {
        if !self.find_norm(state) {
            return false;
        }
        while self.open[0].cursor < self.open[0].slots.len() {
            let offset = self.open[0].cursor;
            let slot = self.first + offset as u64;
            let is_own = slot < self.end;
            if is_own && self.open[0].slots[offset].is_awaited() {
                return false;
            }
            // Before it is judged: a sample does not fill its own slot.
            self.open[0].cursor += 1;
            if state.settings.misfit.is_none()
                && let Slot::Arrived(order, Outcome::Good { .. }) = self.open[0].slots[offset]
                && is_own
            {
                // Nearly all of them, so it must cost next to nothing.
                state.limits.add_good(1);
                self.open[0].slots[offset] = Slot::Used(order);
                continue;
            }
            if is_own {
                self.judge(offset, state, actions);
            } else {
                self.repeat(offset, state, actions);
            }
            if state.is_over {
                return false;
            }
        }
        while let Some(offset) = self.open[0].later.front().copied() {
            if self.open[0].slots[offset].is_awaited() {
                return false;
            }
            self.open[0].later.pop_front();
            self.judge(offset, state, actions);
            if state.is_over {
                return false;
            }
        }
        true
    }

    /// Decides which shape the samples of the batch must have: that of most of them, so all must be here.
    /// The first alone might be the odd one, and then all others would count as bad.
    fn find_norm(&mut self, state: &State) -> bool {
        let own = self.end.saturating_sub(self.first) as usize;
        let open = &mut self.open[0];
        if state.settings.misfit.is_none() || open.has_norm {
            return true;
        }
        let own = &open.slots[..own.min(open.slots.len())];
        if own.iter().any(Slot::is_awaited) {
            return false;
        }
        open.norm = most_common(own.iter().filter_map(Slot::shape));
        open.has_norm = true;
        true
    }

    fn judge(&mut self, offset: usize, state: &mut State, actions: &mut Vec<Action>) {
        let open = &mut self.open[0];
        let Slot::Arrived(order, outcome) = open.slots[offset] else { return };
        if let (None, Outcome::Good { shape, .. }) = (open.norm, outcome) {
            open.norm = Some((order.slot, shape));
        }
        match state.judge(order, outcome, open.norm, actions) {
            Next::Use => open.slots[offset] = Slot::Used(order),
            Next::Wait(order) => self.wait(offset, order),
            Next::Filtered => open.slots[offset] = Slot::Empty,
            Next::Useless => {
                state.useless += 1;
                self.repeat(offset, state, actions);
            }
            Next::Skipped => self.fill(offset, state, actions),
            Next::Stop => {}
        }
    }

    fn wait(&mut self, offset: usize, order: Order) {
        self.open[0].slots[offset] = Slot::Awaited(order);
        self.open[0].later.push_back(offset);
    }

    /// Fills the slot of a skipped sample with the last one of the epoch, unless that was judged.
    fn fill(&mut self, offset: usize, state: &mut State, actions: &mut Vec<Action>) {
        self.open[0].slots[offset] = Slot::Empty;
        if state.settings.fill == Fill::Never {
            return;
        }
        let unjudged = self.first + self.open[0].cursor as u64;
        if self.end <= unjudged {
            return self.repeat(offset, state, actions);
        }
        self.end -= 1;
        state.filled += 1;
        let (from, to) = (self.end, self.first + offset as u64);
        let order = Order { slot: to, sequence: from, purpose: Purpose::Fill };
        let before = self.slot(from).map(|slot| std::mem::replace(slot, Slot::Empty));
        self.wait(offset, order);
        if from >= self.next {
            actions.push(Action::Make(order, Duration::ZERO));
            return;
        }
        actions.push(Action::Move { from, to });
        if let Some(Slot::Arrived(_, outcome)) = before {
            self.open[0].slots[offset] = Slot::Arrived(order, outcome);
        } else {
            self.moved.insert(from, to);
        }
    }

    /// Repeats a sample in a slot whose own one is used elsewhere, if ranks must have equally many.
    fn repeat(&mut self, offset: usize, state: &mut State, actions: &mut Vec<Action>) {
        self.open[0].slots[offset] = Slot::Empty;
        if state.settings.fill != Fill::FromEndAndRepeat {
            return;
        }
        if let Some(order) = state.repeat(self.first + offset as u64, actions) {
            self.wait(offset, order);
        }
    }

    /// Hands over the first batch.
    fn complete(&mut self, state: &mut State, actions: &mut Vec<Action>) {
        let Some(open) = self.open.pop_front() else { return };
        let length = open.slots.len() as u64;
        self.first += length;
        let used = open.slots.iter().filter_map(|slot| match slot {
            Slot::Used(order) => Some(order),
            Slot::Awaited(_) | Slot::Arrived(..) | Slot::Empty => None,
        });
        let repeated =
            used.clone().filter(|order| order.purpose == Purpose::Repetition).count() as u64;
        let samples: Vec<_> = used.map(|order| (order.slot, order.sequence)).collect();
        if samples.is_empty() {
            return;
        }
        let is_short = match state.settings.fill {
            Fill::Never => length < self.size,
            Fill::FromEnd | Fill::FromEndAndRepeat => (samples.len() as u64) < self.size,
        };
        if is_short && state.settings.drop_last {
            return state.drop_batch(samples, repeated, actions);
        }
        let position = state.position(self.first, state.tried, Vec::new());
        state.deliver(samples, repeated, self.first, position, actions);
    }
}

fn planned(slot: u64) -> Order {
    Order { slot, sequence: slot, purpose: Purpose::Planned }
}
