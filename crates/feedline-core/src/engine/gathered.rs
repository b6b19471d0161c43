//! Batches of the next good samples: after one that is left out, those that follow move up. For sources that
//! can only be read forwards, for filters, and for samples of similar length in one batch (buckets).

use std::collections::VecDeque;

use super::{
    Accepted, Complete, Decision, EpochAction, EpochSettings, Fill, Membership, Next, Order,
    Outcome, PolicyAction, Purpose, Slot, State, most_common,
};

#[derive(Clone, Debug)]
pub(super) struct Gathered {
    samples: u64,
    /// Slots before `start` and their samples, which are made once more: they were in no batch when the epoch
    /// was left.
    again: Vec<(u64, u64)>,
    start: u64,
    /// Slots are counted from the first one of `again` on: those that were judged, those that were ordered,
    /// and those that there are.
    judged: u64,
    ordered: u64,
    end: u64,
    /// What is known about the slots between `judged` and `ordered`.
    window: VecDeque<Slot>,
    /// The batches that are being gathered: one, or one for each bucket.
    open: Vec<GatheredBatch>,
    has_buckets: bool,
}

#[derive(Clone, Debug)]
struct GatheredBatch {
    size: u64,
    orders: Vec<Order>,
    /// The shape that its samples must have, and a slot whose sample has it.
    norm: Option<(u64, u32)>,
}

impl Gathered {
    pub(super) fn new(
        settings: &EpochSettings,
        slot: u64,
        tried: u64,
        again: Vec<(u64, u64)>,
    ) -> Gathered {
        let (sizes, has_buckets) = match &settings.membership {
            Membership::Buckets(sizes) => (sizes.clone(), true),
            Membership::Fixed | Membership::Gathered | Membership::Unordered => {
                (vec![settings.batch_size], false)
            }
        };
        let samples = settings.samples;
        let start = slot + tried;
        let open = |size| GatheredBatch { size, orders: Vec::new(), norm: None };
        Gathered {
            samples,
            end: again.len() as u64 + samples.saturating_sub(start),
            again,
            start,
            judged: 0,
            ordered: 0,
            window: VecDeque::new(),
            open: sizes.into_iter().map(open).collect(),
            has_buckets,
        }
    }

    /// The slot with that place.
    fn slot(&self, place: u64) -> u64 {
        match place.checked_sub(self.again.len() as u64) {
            Some(place) => self.start + place,
            None => self.again[place as usize].0,
        }
    }

    fn place(&self, slot: u64) -> Option<u64> {
        match slot.checked_sub(self.start) {
            Some(ahead) => Some(self.again.len() as u64 + ahead),
            None => {
                let found = self.again.binary_search_by_key(&slot, |(slot, _)| *slot);
                found.ok().map(|place| place as u64)
            }
        }
    }

    /// Whether a slot was judged before the epoch was continued.
    fn was_judged(&self, slot: u64) -> bool {
        slot < self.start
    }

    pub(super) fn orders_left(&self) -> u64 {
        self.end - self.ordered
    }

    pub(super) fn next_slot(&self) -> u64 {
        self.slot(self.ordered)
    }

    pub(super) fn next_order(&mut self) -> Option<Order> {
        if self.ordered == self.end {
            return None;
        }
        let slot = self.slot(self.ordered);
        let again = self.again.get(self.ordered as usize);
        let sequence = again.map_or(slot, |(_, sequence)| *sequence);
        let order = Order { slot, sequence, purpose: Purpose::Planned };
        self.order(order);
        Some(order)
    }

    fn order(&mut self, order: Order) {
        self.ordered += 1;
        self.window.push_back(Slot::Awaited(order));
    }

    pub(super) fn put(
        &mut self,
        order: Order,
        outcome: Outcome,
        actions: &mut Vec<EpochAction>,
    ) -> Accepted {
        let ahead = self.place(order.slot).and_then(|place| place.checked_sub(self.judged));
        let slot = ahead.and_then(|ahead| self.window.get_mut(ahead as usize));
        slot.map_or(Accepted::Unexpected, |slot| slot.put(order, outcome, actions))
    }

    /// The first slot that was not judged.
    pub(super) fn cursor(&self) -> u64 {
        self.slot(self.judged)
    }

    pub(super) fn end_of_batch(&self) -> u64 {
        let missing = self.open.iter().map(|open| open.size - open.orders.len() as u64);
        self.slot(self.judged) + missing.min().unwrap_or(1)
    }

    pub(super) fn advance(&mut self, state: &mut State, actions: &mut Vec<EpochAction>) {
        state.issue_pending(actions);
        while !(state.is_over || state.is_ending) {
            if self.judged == self.end {
                if state.settings.fill == Fill::FromEndAndRepeat && !state.pending.is_empty() {
                    // How many samples are missing is known when all batches are finished.
                    return;
                }
                if !self.repeat(state, actions) {
                    return self.finish(state, actions);
                }
                continue;
            }
            let Some(Slot::Arrived(order, outcome)) = self.window.front().copied() else { return };
            if !self.find_norm(state) {
                return;
            }
            self.judge(order, outcome, state, actions);
        }
    }

    /// Decides which shape the samples of the next batch must have: that of most of those that come next. Which
    /// samples come into a bucket, or will be repeated, is not known before: the first decides.
    fn find_norm(&mut self, state: &State) -> bool {
        let open = &mut self.open[0];
        if state.settings.misfit.is_none() || self.has_buckets || open.norm.is_some() {
            return true;
        }
        let planned = self.again.len() as u64 + self.samples.saturating_sub(self.start);
        let next = open.size.min(planned.saturating_sub(self.judged)) as usize;
        let is_here = |slots: &VecDeque<Slot>| !slots.iter().take(next).any(Slot::is_awaited);
        if self.window.len() < next || !is_here(&self.window) {
            return false;
        }
        open.norm = most_common(self.window.iter().take(next).filter_map(Slot::shape));
        true
    }

    fn judge(
        &mut self,
        order: Order,
        outcome: Outcome,
        state: &mut State,
        actions: &mut Vec<EpochAction>,
    ) {
        let bucket = match outcome {
            Outcome::Good { bucket, .. } if self.has_buckets => bucket as usize,
            Outcome::Good { .. } | Outcome::Filtered | Outcome::Bad { .. } => 0,
        };
        let norm = self.open[bucket].norm;
        let next = if self.was_judged(order.slot) {
            self.judge_again(order, outcome, state, actions)
        } else {
            state.judge(order, outcome, norm, actions)
        };
        match next {
            Next::Stop => return,
            Next::Wait(order) => {
                self.window[0] = Slot::Awaited(order);
                return;
            }
            Next::Use | Next::Skipped | Next::Filtered | Next::RepetitionFailed => {
                self.window.pop_front();
                self.judged += 1;
            }
        }
        match next {
            Next::Skipped => state.filled += 1,
            Next::RepetitionFailed => state.failed_repetitions += 1,
            Next::Use => self.add(bucket, order, outcome, state, actions),
            Next::Filtered | Next::Stop | Next::Wait(_) => {}
        }
    }

    /// A sample that was good before the epoch was continued. If it is not any more, it is judged; but one
    /// that was only repeated makes room for another.
    fn judge_again(
        &mut self,
        order: Order,
        outcome: Outcome,
        state: &mut State,
        actions: &mut Vec<EpochAction>,
    ) -> Next {
        let is_repetition = order.slot >= self.samples && order.purpose == Purpose::Planned;
        match outcome {
            Outcome::Good { .. } | Outcome::Bad { policy_action: PolicyAction::Substitute, .. }
                if order.purpose == Purpose::Planned =>
            {
                Next::Use
            }
            Outcome::Filtered
            | Outcome::Bad { policy_action: PolicyAction::Skip | PolicyAction::Replace, .. }
                if is_repetition =>
            {
                state.account.due -= 1;
                state.repeated = state.repeated.saturating_sub(1);
                Next::RepetitionFailed
            }
            Outcome::Good { .. } | Outcome::Filtered | Outcome::Bad { .. } => {
                state.judge(order, outcome, None, actions)
            }
        }
    }

    /// Puts a sample into its batch.
    fn add(
        &mut self,
        bucket: usize,
        order: Order,
        outcome: Outcome,
        state: &mut State,
        actions: &mut Vec<EpochAction>,
    ) {
        let open = &mut self.open[bucket];
        if let (None, Outcome::Good { shape, .. }) = (open.norm, outcome) {
            open.norm = Some((order.slot, shape));
        }
        open.orders.push(order);
        if open.orders.len() as u64 == open.size {
            self.complete(bucket, false, state, actions);
        }
    }

    /// A batch has its samples; `is_last` if nothing is made for the next ones.
    fn complete(
        &mut self,
        bucket: usize,
        is_last: bool,
        state: &mut State,
        actions: &mut Vec<EpochAction>,
    ) {
        let (samples, repeated) = self.open[bucket].take();
        let reached = self.slot(self.judged).max(self.start);
        let slot = reached.min(self.samples);
        let position = state.position(slot, reached - slot, self.waiting());
        let (end, bad_at_finish) = (reached, state.bad_at_finish);
        let batch = Complete { samples, repeated, end, position, bad_at_finish, is_last };
        state.complete(batch, actions);
    }

    /// Slots whose samples are in no batch although later ones are, ascending, and these samples.
    fn waiting(&self) -> Vec<(u64, u64)> {
        if !self.has_buckets {
            return Vec::new();
        }
        let orders = self.open.iter().flat_map(|open| &open.orders);
        let open = orders.map(|order| (order.slot, order.sequence));
        let not_judged = self.again.get(self.judged as usize..).unwrap_or_default();
        let mut waiting: Vec<_> = open.chain(not_judged.iter().copied()).collect();
        waiting.sort_unstable();
        waiting
    }

    /// Has samples repeated in the place of those that were skipped, if ranks must have equally many. False if
    /// there is nothing to repeat.
    fn repeat(&mut self, state: &mut State, actions: &mut Vec<EpochAction>) -> bool {
        if state.settings.fill != Fill::FromEndAndRepeat {
            return false;
        }
        let missing = state.filled.saturating_sub(state.repeated);
        let missing = missing.min(
            self.samples
                .saturating_sub(state.failed_repetitions.max(state.failed_repetitions_at_finish)),
        );
        for _ in 0..missing {
            let Some(order) = state.repeat(self.slot(self.end), actions) else { break };
            self.end += 1;
            self.order(order);
        }
        missing > 0
    }

    /// The last batches are not full.
    fn finish(&mut self, state: &mut State, actions: &mut Vec<EpochAction>) {
        for bucket in 0..self.open.len() {
            if self.open[bucket].orders.is_empty() {
                continue;
            }
            if state.settings.drop_last {
                let (samples, repeated) = self.open[bucket].take();
                state.decide(Decision::Drop { samples, repeated }, actions);
            } else {
                self.complete(bucket, true, state, actions);
            }
        }
        state.finish(actions);
    }
}

impl GatheredBatch {
    /// The samples, and how many of them are repetitions.
    fn take(&mut self) -> (Vec<(u64, u64)>, u64) {
        self.norm = None;
        let orders = std::mem::take(&mut self.orders);
        let repeated = orders.iter().filter(|order| order.purpose == Purpose::Repetition).count();
        (orders.iter().map(|order| (order.slot, order.sequence)).collect(), repeated as u64)
    }
}
