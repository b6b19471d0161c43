//! Batches that are judged as their results come, whatever becomes of others: the calls of an executor. They are
//! an open plan, and each batch is settled alone, in any order. If a sample cannot be used and is not skipped, its
//! batch fails and not the run; only too many faults end the run.

use std::collections::{BTreeMap, VecDeque};

use super::{
    Accepted, DeliveredBatch, EpochAction, JudgedFault, Order, Outcome, PolicyAction, Position,
    Slot, State, Stop, Verdict,
};

#[derive(Clone, Debug, Default)]
pub(super) struct Unordered {
    /// Batches that are not settled, by their first slot.
    open: BTreeMap<u64, UnorderedBatch>,
    /// How many were given.
    batches: u64,
    has_end: bool,
    /// The next slot whose order is given out, and the slot behind the last one.
    next: u64,
    end: u64,
    /// Orders that were neither given out nor cancelled.
    left: u64,
    /// Results that were not judged yet.
    arrived: VecDeque<(Order, Outcome)>,
}

#[derive(Clone, Debug)]
struct UnorderedBatch {
    number: u64,
    slots: Vec<Slot>,
    /// Slots that are not settled.
    missing: usize,
    /// Samples that were good.
    good: u64,
}

impl Unordered {
    pub(super) fn plan(&mut self, size: u64, state: &mut State) {
        if self.has_end || size == 0 {
            return;
        }
        let slots: Vec<_> =
            (self.end..self.end + size).map(|slot| Slot::Awaited(Order::planned(slot))).collect();
        let open = UnorderedBatch { number: self.batches, missing: slots.len(), slots, good: 0 };
        self.open.insert(self.end, open);
        self.batches += 1;
        self.end += size;
        self.left += size;
        state.account.due += size;
    }

    pub(super) fn plan_ends(&mut self) {
        self.has_end = true;
    }

    pub(super) fn orders_left(&self) -> u64 {
        self.left
    }

    /// The next slot of a batch that was not cancelled.
    pub(super) fn next_slot(&self) -> u64 {
        let is_open =
            |(first, open): (&u64, &UnorderedBatch)| self.next < first + open.slots.len() as u64;
        let later = || self.open.range(self.next..).next().map_or(self.end, |(first, _)| *first);
        match self.open.range(..=self.next).next_back().is_some_and(is_open) {
            true => self.next,
            false => later(),
        }
    }

    pub(super) fn next_order(&mut self) -> Option<Order> {
        let slot = self.next_slot();
        if slot == self.end {
            return None;
        }
        self.next = slot + 1;
        self.left -= 1;
        Some(Order::planned(slot))
    }

    /// The first slot that is not settled.
    pub(super) fn cursor(&self) -> u64 {
        self.open.first_key_value().map_or(self.end, |(first, _)| *first)
    }

    /// Everything is needed as soon as it can be made.
    pub(super) fn end_of_batch(&self) -> u64 {
        self.end
    }

    fn slot(&mut self, slot: u64) -> Option<&mut Slot> {
        let (first, open) = self.open.range_mut(..=slot).next_back()?;
        open.slots.get_mut((slot - first) as usize)
    }

    pub(super) fn put(
        &mut self,
        order: Order,
        outcome: Outcome,
        actions: &mut Vec<EpochAction>,
    ) -> Accepted {
        let Some(slot) = self.slot(order.slot) else { return Accepted::Unexpected };
        let accepted = slot.put(order, outcome, actions);
        if let (Accepted::Taken, Slot::Arrived(..)) = (&accepted, &slot) {
            self.arrived.push_back((order, outcome));
        }
        accepted
    }

    pub(super) fn advance(&mut self, state: &mut State, actions: &mut Vec<EpochAction>) {
        while let Some((order, outcome)) = self.arrived.pop_front() {
            self.judge(order, outcome, state, actions);
        }
        if self.has_end && self.open.is_empty() {
            state.finish(actions);
        }
    }

    fn judge(
        &mut self,
        order: Order,
        outcome: Outcome,
        state: &mut State,
        actions: &mut Vec<EpochAction>,
    ) {
        let Some((&first, open)) = self.open.range_mut(..=order.slot).next_back() else { return };
        // Its batch may have failed by another sample.
        let Some(slot) = open.slots.get_mut((order.slot - first) as usize) else { return };
        *slot = match outcome {
            Outcome::Good { .. } => {
                open.good += 1;
                Slot::Used(order)
            }
            Outcome::Filtered => {
                state.limits.add_good(1);
                state.account.filtered += 1;
                Slot::Empty
            }
            Outcome::Bad { fault, policy_action } => {
                let fault = JudgedFault::Reported(fault);
                let verdict = match policy_action {
                    // It is nothing to the other batches, so it is not counted. There is no other sample to use.
                    PolicyAction::Raise | PolicyAction::Retry(_) | PolicyAction::Replace => {
                        Verdict::Fail
                    }
                    PolicyAction::Skip | PolicyAction::Substitute => state.verdict(policy_action),
                };
                actions.push(EpochAction::Record { fault, verdict });
                match verdict {
                    Verdict::Skip => {
                        state.account.skipped += 1;
                        Slot::Empty
                    }
                    Verdict::Substitute => {
                        state.account.replaced += 1;
                        Slot::Used(order)
                    }
                    Verdict::Fail | Verdict::Raise | Verdict::Replace => {
                        state.account.failed += 1;
                        *slot = Slot::Empty;
                        return self.cancel(first, state, actions);
                    }
                    Verdict::TooMany(too_many) => {
                        state.account.failed += 1;
                        *slot = Slot::Empty;
                        while let Some((&first, _)) = self.open.first_key_value() {
                            self.cancel(first, state, actions);
                        }
                        return state.stop(Stop::TooMany(fault, too_many), actions);
                    }
                }
            }
        };
        open.missing -= 1;
        if open.missing == 0 {
            self.deliver(first, state, actions);
        }
    }

    fn deliver(&mut self, first: u64, state: &mut State, actions: &mut Vec<EpochAction>) {
        let Some(UnorderedBatch { number, slots, good, .. }) = self.open.remove(&first) else {
            return;
        };
        let samples: Vec<_> = slots
            .iter()
            .filter_map(|slot| match slot {
                Slot::Used(order) => Some((order.slot, order.sequence)),
                Slot::Awaited(_) | Slot::Arrived(..) | Slot::Empty => None,
            })
            .collect();
        state.limits.add_good(good);
        state.account.delivered += samples.len() as u64;
        // It is not continued elsewhere.
        let position = Position::default();
        actions.push(EpochAction::Deliver(DeliveredBatch {
            number,
            samples,
            repeated: 0,
            position,
        }));
    }

    /// The batch that begins with this slot is not delivered.
    pub(super) fn cancel(&mut self, first: u64, state: &mut State, actions: &mut Vec<EpochAction>) {
        let Some(UnorderedBatch { number, slots, .. }) = self.open.remove(&first) else { return };
        let end = first + slots.len() as u64;
        self.left -= end.saturating_sub(self.next.max(first));
        let is_settled = |slot: &Slot| matches!(slot, Slot::Empty);
        let left = (first..).zip(&slots).filter(|(_, slot)| !is_settled(slot));
        let slots: Vec<_> = left.map(|(slot, _)| slot).collect();
        state.account.cancelled += slots.len() as u64;
        actions.push(EpochAction::Cancel { number, slots });
    }
}
