//! The engine under a random schedule: orders, results, finished batches and a consumer, in any order.

use super::*;

pub(super) struct SimulatedRun<'a> {
    world: &'a World,
    pub(super) start: Position,
    pub(super) engine: Engine,
    /// Batches of the plan that were given, if they are.
    given: usize,
    /// Slots below this one were ordered.
    ordered: u64,
    /// Orders that have no result yet, with the attempts so far.
    making: Vec<(Order, u32)>,
    /// What each slot has a result of: the sequence that was made for it last.
    made: BTreeMap<u64, u64>,
    /// Batches that are to be finished: one at a time, or gathered ones.
    unfinished: Vec<UnfinishedBatch>,
    /// Slots with what the user gave for a bad sample.
    substituted: BTreeSet<u64>,
    pub(super) delivered: Vec<DeliveredBatch>,
    pub(super) taken: usize,
    pub(super) seen: Vec<Observed>,
}

impl SimulatedRun<'_> {
    pub(super) fn new(world: &World, position: Position) -> SimulatedRun<'_> {
        let mut run = SimulatedRun {
            world,
            engine: Engine::new(world.settings_from(position.slot), position.clone()),
            ordered: position.slot,
            given: world.given_before(position.slot),
            start: position,
            making: Vec::new(),
            made: BTreeMap::new(),
            unfinished: Vec::new(),
            substituted: BTreeSet::new(),
            delivered: Vec::new(),
            taken: 0,
            seen: Vec::new(),
        };
        if world.settings.plan != BatchPlan::Known && run.start.needs_plan() {
            run.give_all_batches();
        }
        let mut actions = Vec::new();
        run.engine.advance(&mut actions);
        run.perform(actions);
        run
    }

    /// One step, chosen by chance.
    pub(super) fn step(&mut self, random: &mut Random, ahead: usize) {
        self.give_batches(random);
        let can_order = self.making.len() < ahead && self.engine.orders_left() > 0;
        if can_order && (self.making.is_empty() || random.below(2) == 0) {
            let left = self.engine.orders_left();
            let order = self.engine.next_order().expect("it said that there are orders");
            assert_eq!(self.engine.orders_left(), left - 1);
            self.ordered = order.slot + 1;
            self.order(order, 0);
            self.order_rest_of_batch();
        } else if !self.unfinished.is_empty() && (self.making.is_empty() || random.below(3) == 0) {
            let at = random.below(self.unfinished.len() as u64) as usize;
            let batch = self.unfinished.swap_remove(at);
            self.finish(batch);
        } else if !self.making.is_empty() {
            let (order, attempt) =
                self.making.swap_remove(random.below(self.making.len() as u64) as usize);
            let current = self.engine.current(order);
            assert_eq!(current.sequence, order.sequence);
            assert_eq!(
                self.made.insert(current.slot, order.sequence).filter(|_| attempt == 0),
                None
            );
            let mut actions = Vec::new();
            let outcome = self.world.outcome(order, current.slot, attempt);
            if let Outcome::Bad { policy_action: PolicyAction::Substitute, .. } = outcome {
                self.substituted.insert(current.slot);
            }
            self.engine.add_result(order, outcome, &mut actions);
            // Several results may come before anything is decided.
            if self.making.is_empty() || random.below(3) > 0 {
                self.engine.advance(&mut actions);
            }
            self.perform_results(actions, order, attempt);
        } else {
            let mut actions = Vec::new();
            self.engine.advance(&mut actions);
            assert!(!actions.is_empty(), "nothing is being made, and the epoch is not over");
            self.perform(actions);
        }
        if self.taken < self.delivered.len() && random.below(3) == 0 {
            self.engine.taken();
            self.taken += 1;
        }
        assert!(self.engine.needed_below() >= self.engine.settled_below());
        let settled = self.engine.settled_below();
        if let Some(next) = self.delivered.get(self.taken) {
            let end = next.position.slot + next.position.tried;
            assert!(settled <= end, "what was not taken is not settled");
        } else if let Some(last) = self.delivered.last() {
            assert!(settled >= last.position.slot, "what was taken is settled");
        }
    }

    /// Gives some batches of the plan; some if nothing else can be done.
    fn give_batches(&mut self, random: &mut Random) {
        if self.world.settings.plan == BatchPlan::Known {
            return;
        }
        let is_idle = self.making.is_empty() && self.engine.orders_left() == 0;
        let count = random.below(3) + u64::from(is_idle && self.unfinished.is_empty());
        for _ in 0..count {
            self.give_batch();
        }
    }

    fn give_all_batches(&mut self) {
        while self.given <= self.world.sizes.len() {
            self.give_batch();
        }
    }

    fn give_batch(&mut self) {
        match self.world.sizes.get(self.given) {
            Some(size) if self.world.ends_short && self.given + 1 == self.world.sizes.len() => {
                self.engine.plan_short(*size);
            }
            Some(size) => self.engine.plan(*size),
            None => self.engine.plan_ends(),
        }
        self.given += 1;
    }

    /// What is made as a whole is ordered as a whole.
    fn order_rest_of_batch(&mut self) {
        let Moves::Remade { .. } = self.world.settings.moves else { return };
        let end = self.world.batch_of(self.ordered.saturating_sub(1)).end;
        while self.ordered < end {
            let Some(order) = self.engine.next_order() else { return };
            self.ordered = order.slot + 1;
            self.order(order, 0);
        }
    }

    /// A sample that fills a slot and was not ordered before is in a batch that is not ordered ahead.
    fn check_ahead(&self, order: Order) {
        let Moves::Remade { ahead } = self.world.settings.moves else { return };
        let mut end = order.slot;
        for _ in 0..ahead {
            end = self.world.batch_of(end).end;
        }
        assert!(order.sequence >= end, "{order:?} should have been ordered");
    }

    /// The batch of a slot is made again, without the samples from this slot on.
    fn remake(&mut self, from: u64) {
        let batch = self.world.batch_of(from);
        self.making.retain(|(order, _)| !batch.contains(&order.slot));
        for slot in batch.clone() {
            self.made.remove(&slot);
            self.substituted.remove(&slot);
        }
        for slot in batch.start..from {
            self.order(Order::planned(slot), 0);
        }
    }

    fn finish(&mut self, batch: UnfinishedBatch) {
        let UnfinishedBatch { number, samples } = batch;
        for (slot, sequence) in &samples {
            assert_eq!(self.made.get(slot), Some(sequence), "another sample is in slot {slot}");
        }
        let bad = self.world.find_unfit(&samples, |slot| self.substituted.contains(&slot));
        let given = bad.iter().filter(|bad| bad.policy_action == PolicyAction::Substitute);
        self.substituted.extend(given.map(|bad| bad.slot));
        let finished = if bad.is_empty() { Finished::Good } else { Finished::Bad(bad) };
        self.engine.finished(number, finished);
        let mut actions = Vec::new();
        self.engine.advance(&mut actions);
        self.perform(actions);
    }

    fn order(&mut self, order: Order, attempt: u32) {
        assert!(order.sequence < self.world.settings.samples, "{order:?}");
        let slots: Vec<_> =
            self.making.iter().map(|(other, _)| self.engine.current(*other).slot).collect();
        assert!(!slots.contains(&order.slot), "{order:?} has an order already");
        if attempt == 0 {
            self.made.remove(&order.slot);
            self.substituted.remove(&order.slot);
        }
        self.making.push((order, attempt));
    }

    fn is_fixed(&self) -> bool {
        self.world.settings.membership == Membership::Fixed
    }

    fn perform(&mut self, actions: Vec<EpochAction>) {
        self.perform_results(actions, Order::planned(0), 0);
    }

    fn perform_results(&mut self, actions: Vec<EpochAction>, result: Order, attempt: u32) {
        let mut is_planned = false;
        for action in actions {
            match action {
                EpochAction::Make(order, after) => {
                    let is_retry = after > Duration::ZERO;
                    if order.purpose == Purpose::Fill && order.sequence >= self.ordered {
                        self.check_ahead(order);
                    }
                    assert!(
                        !is_retry || order.sequence == result.sequence,
                        "only what has failed is retried"
                    );
                    self.order(order, if is_retry { attempt + 1 } else { 0 });
                }
                EpochAction::Move { from, to } => {
                    assert!(from > to, "a sample of an earlier slot fills a later one");
                    let is_remade = matches!(self.world.settings.moves, Moves::Remade { .. });
                    if is_remade && !self.world.batch_of(to).contains(&from) {
                        self.remake(from);
                        continue;
                    }
                    self.made.remove(&to);
                    self.substituted.remove(&to);
                    if self.substituted.remove(&from) {
                        self.substituted.insert(to);
                    }
                    if let Some(sequence) = self.made.remove(&from) {
                        self.made.insert(to, sequence);
                    }
                }
                EpochAction::ReadPlan => {
                    assert_eq!(self.world.settings.plan, BatchPlan::Given);
                    self.give_all_batches();
                    is_planned = true;
                }
                EpochAction::Order { below } => {
                    for slot in self.ordered..below {
                        self.order(Order::planned(slot), 0);
                    }
                    self.ordered = below;
                }
                EpochAction::RecordRetry { fault } => {
                    assert_eq!(shown(JudgedFault::Reported(fault)), (result.sequence, false))
                }
                EpochAction::Record { fault, verdict } => {
                    let fault = shown(fault);
                    if !matches!(verdict, Verdict::TooMany(_)) {
                        self.seen.push(Observed::Verdict(fault, verdict));
                    }
                }
                EpochAction::RecordReplacement { fault, by } => {
                    self.seen.push(Observed::Replaced(shown(fault), by));
                }
                EpochAction::Finish(unfinished) => {
                    let is_alone = self.unfinished.is_empty() || !self.is_fixed();
                    assert!(self.world.settings.finishes && is_alone);
                    self.unfinished.push(unfinished);
                }
                EpochAction::Deliver(batch) => {
                    let is_finished = self.unfinished.is_empty() || !self.is_fixed();
                    assert!(is_finished, "it is being finished");
                    for (slot, sequence) in &batch.samples {
                        assert_eq!(
                            self.made.get(slot),
                            Some(sequence),
                            "another sample is in slot {slot}"
                        );
                    }
                    let samples = batch.samples.iter().map(|(_, sequence)| *sequence).collect();
                    self.seen.push(Observed::Batch(samples, batch.repeated));
                    assert_eq!(batch.number, self.delivered.len() as u64);
                    self.delivered.push(batch);
                }
                EpochAction::Drop { .. } => {}
                EpochAction::Cancel { number, .. } => panic!("batch {number} was cancelled"),
                EpochAction::Stop(stop) => {
                    let (name, fault) = match stop {
                        Stop::Raised(fault) => ("raised", fault),
                        Stop::TooMany(fault, _) => ("too many", fault),
                        Stop::NoReplacement { fault, .. } => ("no replacement", fault),
                        Stop::Unexpected(order) => panic!("{order:?} was not expected"),
                        Stop::DoesNotAddUp(account) => panic!("it does not add up: {account:?}"),
                    };
                    self.seen.push(Observed::Stop(name, shown(fault)));
                }
                EpochAction::End(account) => {
                    assert!(account.adds_up());
                    self.seen.push(Observed::End(account));
                }
            }
        }
        if is_planned {
            let mut actions = Vec::new();
            self.engine.advance(&mut actions);
            self.perform_results(actions, result, attempt);
        }
    }
}
