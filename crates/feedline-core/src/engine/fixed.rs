//! Batches that have the slots they would have without faults. The slot of a skipped sample is filled from
//! the end of the epoch, so that no other batch changes.
//!
//! Batches are judged one after another. In a batch, first its own samples are judged, in order; then those
//! that fill its slots, in rounds until none is bad. So what the drivers have to make for a batch is known
//! at once and not sample by sample.

mod filling;

use std::collections::{BTreeMap, VecDeque};

use super::{
    Accepted, BadSlot, BatchPlan, Complete, Counted, EpochAction, EpochSettings, Fill, Finished,
    Next, Order, Outcome, Purpose, Slot, State, Stop, UnfinishedBatch, most_common,
};

#[derive(Clone, Debug)]
pub(super) struct Fixed {
    /// Samples in a full batch; 0 if batches are given.
    size: u64,
    /// Sizes of batches that were given and of which no sample was ordered.
    given: VecDeque<u64>,
    /// The first slot of the batch that was given with fewer samples than it should have.
    short: Option<u64>,
    planning: Planning,
    samples: u64,
    /// The first slot of the batch that is being judged.
    first: u64,
    /// Batches of which a sample was ordered, from that one on.
    open: VecDeque<OpenBatch>,
    /// The next slot whose order is given out.
    next: u64,
    /// Samples at the end of the epoch that fill other slots.
    filled: u64,
    /// Those of them that filled slots before the epoch was continued, and are not planned yet.
    owed: u64,
    /// Slots whose samples were ordered before they were needed elsewhere and have no result yet, and the slots
    /// that they fill.
    moved: BTreeMap<u64, u64>,
    /// How often a batch was to be finished.
    finishes: u64,
}

/// Whether the plan is known to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planning {
    Ended,
    /// Batches are given as they come.
    Going,
    /// The driver was asked for the rest.
    Asked,
}

/// A batch that is not complete.
#[derive(Clone, Debug)]
struct OpenBatch {
    first: u64,
    slots: Vec<Slot>,
    /// The first slot, as an offset, that was not judged.
    cursor: usize,
    /// Slots that were judged and wait for other samples, in the order of judging.
    later: VecDeque<usize>,
    /// The shape that its samples must have, and a slot whose sample has it.
    norm: Option<(u64, u32)>,
    has_norm: bool,
    /// Slots, as offsets, with what the user gave for a bad sample.
    substituted: Vec<usize>,
    finishing: Finishing,
}

/// What comes next for a batch whose slots are settled.
enum Finish {
    Complete,
    Again,
    Wait,
}

/// Whether the driver finishes a batch.
#[derive(Clone, Debug)]
enum Finishing {
    /// Not yet, or not any more.
    No,
    /// It does, by this number.
    Asked(u64),
    /// It did.
    Done(Finished),
}

impl Fixed {
    pub(super) fn new(settings: &EpochSettings, first: u64, filled: u64) -> Fixed {
        let samples = settings.samples;
        let (size, planning) = match settings.plan {
            BatchPlan::Known => (settings.batch_size, Planning::Ended),
            BatchPlan::Given | BatchPlan::Open => (0, Planning::Going),
        };
        Fixed {
            size,
            given: VecDeque::new(),
            short: None,
            planning,
            samples,
            first,
            open: VecDeque::new(),
            next: first,
            filled,
            owed: if size == 0 { filled } else { 0 },
            moved: BTreeMap::new(),
            finishes: 0,
        }
    }

    pub(super) fn plan(&mut self, size: u64, state: &mut State) {
        if self.planning == Planning::Ended {
            return;
        }
        self.given.push_back(size);
        self.samples += size;
        let used = self.owed.min(size);
        self.owed -= used;
        state.account.due += size - used;
        state.settings.samples = self.samples;
    }

    pub(super) fn plan_short(&mut self, size: u64, state: &mut State) {
        if self.planning != Planning::Ended {
            self.short = Some(self.samples);
            self.plan(size, state);
        }
    }

    pub(super) fn plan_ends(&mut self, state: &mut State) {
        self.planning = Planning::Ended;
        // With an open plan this may be known early or late, and verdicts must not depend on that.
        if state.settings.plan == BatchPlan::Given {
            state.limits.expected = Some(self.samples);
        }
    }

    /// Whether a fault cannot be judged yet because the end of the epoch is not known.
    fn waits_for_plan(&mut self, state: &State, actions: &mut Vec<EpochAction>) -> bool {
        if state.settings.plan != BatchPlan::Given || self.planning == Planning::Ended {
            return false;
        }
        if self.planning == Planning::Going {
            self.planning = Planning::Asked;
            actions.push(EpochAction::ReadPlan);
        }
        true
    }

    /// Samples from here on fill other slots.
    fn end(&self) -> u64 {
        self.samples.saturating_sub(self.filled)
    }

    pub(super) fn orders_left(&self) -> u64 {
        self.end().saturating_sub(self.next)
    }

    pub(super) fn next_slot(&self) -> u64 {
        self.next
    }

    pub(super) fn next_order(&mut self) -> Option<Order> {
        let slot = self.next;
        if slot >= self.end() {
            return None;
        }
        self.next += 1;
        while slot >= self.open_end() {
            self.open_batch();
        }
        Some(Order::planned(slot))
    }

    /// The slot behind the batches of which samples were ordered.
    fn open_end(&self) -> u64 {
        self.open.back().map_or(self.first, |open| open.first + open.slots.len() as u64)
    }

    /// The size of a batch of which no sample was ordered, that many batches behind the others.
    fn size_of(&self, behind: usize) -> u64 {
        if self.size == 0 {
            return self.given.get(behind).copied().unwrap_or(0);
        }
        let first = self.open_end() + behind as u64 * self.size;
        self.size.min(self.samples.saturating_sub(first))
    }

    fn open_batch(&mut self) {
        let (first, size) = (self.open_end(), self.size_of(0));
        self.given.pop_front();
        let slots = (first..first + size).map(|slot| Slot::Awaited(Order::planned(slot))).collect();
        self.open.push_back(OpenBatch {
            first,
            slots,
            cursor: 0,
            later: VecDeque::new(),
            norm: None,
            has_norm: false,
            substituted: Vec::new(),
            finishing: Finishing::No,
        });
    }

    /// The batch with a slot, of those of which samples were ordered.
    fn batch(&mut self, slot: u64) -> Option<&mut OpenBatch> {
        let ahead = slot.checked_sub(self.first)?;
        let guess = ahead.checked_div(self.size).unwrap_or(0) as usize;
        let has_it =
            |open: &OpenBatch| (open.first..open.first + open.slots.len() as u64).contains(&slot);
        let at = match self.open.get(guess) {
            Some(open) if has_it(open) => guess,
            Some(_) | None => {
                self.open.partition_point(|open| open.first <= slot).checked_sub(1)?
            }
        };
        self.open.get_mut(at)
    }

    fn slot(&mut self, slot: u64) -> Option<&mut Slot> {
        let batch = self.batch(slot)?;
        batch.slots.get_mut((slot - batch.first) as usize)
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
        actions: &mut Vec<EpochAction>,
    ) -> Accepted {
        let current = self.current(order);
        if current != order {
            self.moved.remove(&order.slot);
        }
        let slot = self.slot(current.slot);
        slot.map_or(Accepted::Unexpected, |slot| slot.put(current, outcome, actions))
    }

    /// The result of finishing a batch; only the first one is ever finished.
    pub(super) fn finished(&mut self, number: u64, finished: Finished) {
        if let Some(open) = self.open.front_mut()
            && matches!(open.finishing, Finishing::Asked(asked) if asked == number)
        {
            open.finishing = Finishing::Done(finished);
        }
    }

    /// The first slot that is not in a batch.
    pub(super) fn cursor(&self) -> u64 {
        self.first
    }

    pub(super) fn end_of_batch(&self) -> u64 {
        let size =
            self.open.front().map_or_else(|| self.size_of(0), |open| open.slots.len() as u64);
        self.first + size
    }

    pub(super) fn advance(&mut self, state: &mut State, actions: &mut Vec<EpochAction>) {
        let repeats = state.settings.fill == Fill::FromEndAndRepeat;
        while !state.is_over {
            let end = if repeats { self.samples } else { self.end() };
            if self.first >= end {
                return match self.planning {
                    Planning::Ended => state.finish(actions),
                    Planning::Going | Planning::Asked => {}
                };
            }
            if state.settings.plan == BatchPlan::Open {
                // The samples that a replacement is chosen from.
                state.settings.samples = self.end_of_batch();
            }
            if self.open.is_empty() {
                if self.first < self.end() {
                    return;
                }
                self.open_batch();
            }
            if !self.judge_batch(state, actions) {
                return;
            }
            match self.finish_batch(state, actions) {
                Finish::Complete => self.complete(state, actions),
                // What was bad may be settled already.
                Finish::Again => {}
                Finish::Wait => return,
            }
        }
    }

    /// Whether all slots of the first batch are settled.
    fn judge_batch(&mut self, state: &mut State, actions: &mut Vec<EpochAction>) -> bool {
        if !self.find_norm(state) {
            return false;
        }
        while self.open[0].cursor < self.open[0].slots.len() {
            let offset = self.open[0].cursor;
            let slot = self.first + offset as u64;
            let is_own = slot < self.end();
            if is_own && self.open[0].slots[offset].is_awaited() {
                return false;
            }
            if state.settings.misfit.is_none()
                && let Slot::Arrived(order, Outcome::Good { .. }) = self.open[0].slots[offset]
                && is_own
            {
                // Nearly all of them, so it must cost next to nothing.
                state.limits.add_good(1);
                self.open[0].slots[offset] = Slot::Used(order);
                self.open[0].cursor += 1;
                continue;
            }
            if self.waits_for_plan(state, actions) {
                return false;
            }
            // Before it is judged: a sample does not fill its own slot.
            self.open[0].cursor += 1;
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
        let own = self.end().saturating_sub(self.first) as usize;
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

    fn judge(&mut self, offset: usize, state: &mut State, actions: &mut Vec<EpochAction>) {
        let open = &mut self.open[0];
        let Slot::Arrived(order, outcome) = open.slots[offset] else { return };
        if let (None, Outcome::Good { shape, .. }) = (open.norm, outcome) {
            open.norm = Some((order.slot, shape));
        }
        let next = state.judge(order, outcome, open.norm, actions);
        if let (Next::Use, Outcome::Bad { .. }) = (&next, outcome) {
            open.substituted.push(offset);
        }
        self.apply_verdict(offset, order, next, state, actions);
    }

    /// What becomes of a slot that was judged.
    fn apply_verdict(
        &mut self,
        offset: usize,
        order: Order,
        next: Next,
        state: &mut State,
        actions: &mut Vec<EpochAction>,
    ) {
        match next {
            Next::Use => self.open[0].slots[offset] = Slot::Used(order),
            Next::Wait(order) => self.wait(offset, order),
            Next::Filtered => self.open[0].slots[offset] = Slot::Empty,
            Next::RepetitionFailed => {
                state.failed_repetitions += 1;
                self.repeat(offset, state, actions);
            }
            Next::Skipped => self.fill(offset, state, actions),
            Next::Stop => {}
        }
    }

    /// Has the first batch finished, if that is asked for.
    fn finish_batch(&mut self, state: &mut State, actions: &mut Vec<EpochAction>) -> Finish {
        if !state.settings.finishes {
            return Finish::Complete;
        }
        match &self.open[0].finishing {
            Finishing::No => {
                let (samples, _) = self.samples_and_repeated();
                if samples.is_empty() {
                    return Finish::Complete;
                }
                let number = self.finishes;
                self.finishes += 1;
                self.open[0].finishing = Finishing::Asked(number);
                actions.push(EpochAction::Finish(UnfinishedBatch { number, samples }));
                Finish::Wait
            }
            Finishing::Asked(_) => Finish::Wait,
            Finishing::Done(Finished::Good) => Finish::Complete,
            Finishing::Done(Finished::Bad(bad)) => {
                let mut bad = bad.clone();
                if self.waits_for_plan(state, actions) {
                    return Finish::Wait;
                }
                self.open[0].finishing = Finishing::No;
                bad.sort_unstable_by_key(|bad| bad.slot);
                for bad in bad {
                    self.judge_used(bad, state, actions);
                    if state.is_over {
                        break;
                    }
                }
                Finish::Again
            }
        }
    }

    fn judge_used(&mut self, bad: BadSlot, state: &mut State, actions: &mut Vec<EpochAction>) {
        let ahead = bad.slot.checked_sub(self.first).map(|ahead| ahead as usize);
        let Some(offset) = ahead.filter(|ahead| *ahead < self.open[0].slots.len()) else {
            return state.stop(Stop::Unexpected(Order::planned(bad.slot)), actions);
        };
        let Slot::Used(order) = self.open[0].slots[offset] else {
            return state.stop(Stop::Unexpected(Order::planned(bad.slot)), actions);
        };
        let substituted = &mut self.open[0].substituted;
        let was = match substituted.contains(&offset) {
            true => Counted::Substituted,
            false => Counted::Good,
        };
        substituted.retain(|other| *other != offset);
        let next = state.judge_used(order, bad, was, actions);
        if let Next::Use = next {
            self.open[0].substituted.push(offset);
        }
        self.apply_verdict(offset, order, next, state, actions);
    }

    /// The samples of the first batch.
    fn used(&self) -> impl Iterator<Item = Order> {
        self.open[0].slots.iter().filter_map(|slot| match slot {
            Slot::Used(order) => Some(*order),
            Slot::Awaited(_) | Slot::Arrived(..) | Slot::Empty => None,
        })
    }

    /// The slots and sequences of these, and how many of them are repetitions.
    fn samples_and_repeated(&self) -> (Vec<(u64, u64)>, u64) {
        let mut samples = Vec::with_capacity(self.open[0].slots.len());
        let mut repeated = 0;
        for order in self.used() {
            samples.push((order.slot, order.sequence));
            repeated += u64::from(order.purpose == Purpose::Repetition);
        }
        (samples, repeated)
    }

    /// Hands over the first batch.
    fn complete(&mut self, state: &mut State, actions: &mut Vec<EpochAction>) {
        if !state.replacing.is_empty() {
            self.used().for_each(|order| state.confirm(order, actions));
        }
        let (samples, repeated) = self.samples_and_repeated();
        let length = self.open[0].slots.len() as u64;
        // A batch that was given is full as it was given, but for the last one.
        let full = match self.size {
            0 => length + u64::from(self.short == Some(self.first)),
            size => size,
        };
        self.open.pop_front();
        self.first += length;
        if samples.is_empty() {
            return;
        }
        let is_short = match state.settings.fill {
            Fill::Never => length < full,
            Fill::FromEnd | Fill::FromEndAndRepeat => (samples.len() as u64) < full,
        };
        if is_short && state.settings.drop_last {
            return state.drop_batch(samples, repeated, actions);
        }
        let position = state.position(self.first, state.tried, Vec::new());
        let (end, bad_at_finish) = (self.first, state.bad_at_finish);
        let batch = Complete { samples, repeated, end, position, bad_at_finish, is_last: false };
        state.deliver(batch, actions);
    }
}
