//! Batches without an order under a random schedule: given at any time, results in any order, faults of every kind,
//! retries, batches that are cancelled before, while and after they are ordered, limits that are reached. What the
//! engine does must be what a plain model makes of the list of all that has happened.

use super::*;

/// An input of the engine.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Planned(u64),
    Came(u64, Outcome),
    Cancelled(u64),
    PlanEnded,
}

struct Schedule {
    settings: EpochSettings,
    /// Sizes of batches that are still to be given.
    sizes: Vec<u64>,
    natures: Vec<Nature>,
    flaky: Vec<u32>,
    engine: Engine,
    happened: Vec<Happening>,
    /// The slots of each batch that was given and is not settled.
    open: Vec<Range<u64>>,
    /// Slots below this one were ordered, or cancelled.
    ordered: u64,
    /// Orders without a result, and the attempts so far.
    making: Vec<(Order, u32)>,
    is_planned: bool,
    /// All that was done but for attempts, and how often a batch was settled.
    done: Vec<EpochAction>,
    settled: u64,
}

impl Schedule {
    fn new(random: &mut Random) -> Schedule {
        let samples = random.below(40);
        let limit = match random.below(4) {
            0 => Some(Limit::Count(random.below(6))),
            1 => Some(Limit::Share(random.below(10) as f64 / 10.0)),
            _ => None,
        };
        let settings = EpochSettings::unordered(limit, 1 + random.below(12));
        let bad = [0, 10, 40, 100][random.below(4) as usize];
        let has_filter = random.below(4) == 0;
        let mut nature = || match random.below(100) {
            number if number < bad => Nature::Bad(policy_action(random)),
            number if has_filter && number % 5 == 0 => Nature::Filtered,
            _ => Nature::Good { bucket: 0, shape: 0 },
        };
        let natures = (0..samples).map(|_| nature()).collect();
        let flaky = (0..samples).map(|_| random.below(12).saturating_sub(9) as u32).collect();
        // Most calls are alone.
        let sizes = match random.below(2) {
            0 => vec![1; samples as usize],
            _ => sizes(samples, random),
        };
        Schedule {
            engine: Engine::new(settings.clone(), Position::default()),
            settings,
            sizes,
            natures,
            flaky,
            happened: Vec::new(),
            open: Vec::new(),
            ordered: 0,
            making: Vec::new(),
            is_planned: false,
            done: Vec::new(),
            settled: 0,
        }
    }

    fn step(&mut self, random: &mut Random, ahead: usize) {
        match random.below(12) {
            0..=2 => self.plan(random),
            3..=6 if self.making.len() < ahead => self.order(),
            3..=10 => self.come(random),
            _ if random.below(6) == 0 => self.cancel(random),
            _ => self.order(),
        }
        let unordered =
            self.open.iter().flat_map(Clone::clone).filter(|slot| *slot >= self.ordered);
        let left = if self.engine.is_over() { 0 } else { unordered.count() as u64 };
        assert_eq!(self.engine.orders_left(), left);
        assert_eq!(self.engine.next_slot().is_some(), left > 0);
    }

    fn plan(&mut self, random: &mut Random) {
        // Results before it may be the end of the run.
        self.advance(Vec::new());
        if self.engine.is_over() {
            return;
        }
        let first = self.happened.iter().map(|happening| match happening {
            Happening::Planned(size) => *size,
            Happening::Came(..) | Happening::Cancelled(_) | Happening::PlanEnded => 0,
        });
        let first: u64 = first.sum();
        match self.sizes.pop() {
            Some(size) if random.below(50) > 0 => {
                self.happened.push(Happening::Planned(size));
                self.open.push(first..first + size);
                self.engine.plan(size);
            }
            Some(_) | None if !self.is_planned => {
                self.sizes.clear();
                self.is_planned = true;
                self.happened.push(Happening::PlanEnded);
                self.engine.plan_ends();
                self.advance(Vec::new());
            }
            Some(_) | None => {}
        }
    }

    fn order(&mut self) {
        let slot = self.engine.next_slot();
        let order = self.engine.next_order();
        assert_eq!(order.map(|order| order.slot), slot);
        let Some(order) = order else { return };
        assert!(order.slot >= self.ordered, "it was ordered already");
        assert!(self.open.iter().any(|slots| slots.contains(&order.slot)), "it was cancelled");
        self.ordered = order.slot + 1;
        self.making.push((order, 0));
    }

    fn come(&mut self, random: &mut Random) {
        if self.making.is_empty() {
            return;
        }
        let at = random.below(self.making.len() as u64) as usize;
        let (order, attempt) = self.making.swap_remove(at);
        let fault = order.slot;
        let outcome = match self.natures[order.slot as usize] {
            _ if attempt < self.flaky[order.slot as usize] => {
                Outcome::Bad { fault, policy_action: PolicyAction::Retry(Duration::from_secs(1)) }
            }
            Nature::Good { bucket, shape } => Outcome::Good { bucket, shape },
            Nature::Filtered => Outcome::Filtered,
            Nature::Bad(policy_action) => Outcome::Bad { fault, policy_action },
        };
        let mut actions = Vec::new();
        self.engine.add_result(order, outcome, &mut actions);
        if let Outcome::Bad { policy_action: PolicyAction::Retry(after), .. } = outcome {
            let again = [EpochAction::RecordRetry { fault }, EpochAction::Make(order, after)];
            assert_eq!(std::mem::take(&mut actions), again);
            self.making.push((order, attempt + 1));
        } else {
            self.happened.push(Happening::Came(order.slot, outcome));
        }
        // Several results may come before anything is decided.
        if random.below(3) > 0 {
            self.advance(actions);
        } else {
            assert_eq!(actions, []);
        }
    }

    fn cancel(&mut self, random: &mut Random) {
        if self.open.is_empty() {
            return;
        }
        let first = self.open[random.below(self.open.len() as u64) as usize].start;
        self.happened.push(Happening::Cancelled(first));
        let mut actions = Vec::new();
        self.engine.cancel(first, &mut actions);
        self.advance(actions);
    }

    fn advance(&mut self, mut actions: Vec<EpochAction>) {
        self.engine.advance(&mut actions);
        for action in &actions {
            if let EpochAction::Deliver(DeliveredBatch { number, .. })
            | EpochAction::Cancel { number, .. } = action
            {
                self.settle(*number);
            }
        }
        self.done.extend(actions);
    }

    /// Results of a batch that is settled are not awaited.
    fn settle(&mut self, number: u64) {
        let sizes = self.happened.iter().filter_map(|happening| match happening {
            Happening::Planned(size) => Some(*size),
            Happening::Came(..) | Happening::Cancelled(_) | Happening::PlanEnded => None,
        });
        let first: u64 = sizes.take(number as usize).sum();
        let at = self.open.iter().position(|slots| slots.start == first);
        let slots = self.open.remove(at.expect("a batch is settled once"));
        self.making.retain(|(order, _)| !slots.contains(&order.slot));
        self.settled += 1;
    }
}

/// Goes through what has happened, one after another.
#[derive(Default)]
struct Plain {
    batches: Vec<PlainBatch>,
    /// Whether each sample that was counted was bad.
    judged: Vec<bool>,
    account: Account,
    done: Vec<EpochAction>,
    is_planned: bool,
    is_over: bool,
}

struct PlainBatch {
    slots: Range<u64>,
    /// What became of the slots that have a result: whether they are used.
    known: BTreeMap<u64, bool>,
    good: usize,
    is_open: bool,
}

impl Plain {
    fn run(settings: &EpochSettings, happened: &[Happening]) -> Plain {
        let mut plain = Plain::default();
        for happening in happened {
            if !plain.is_over {
                plain.take(settings, *happening);
                plain.end_if_done();
            }
        }
        plain
    }

    fn take(&mut self, settings: &EpochSettings, happening: Happening) {
        match happening {
            Happening::Planned(size) => {
                let first = self.batches.last().map_or(0, |batch| batch.slots.end);
                let (slots, known) = (first..first + size, BTreeMap::new());
                self.batches.push(PlainBatch { slots, known, good: 0, is_open: true });
                self.account.due += size;
            }
            Happening::PlanEnded => self.is_planned = true,
            Happening::Cancelled(first) => {
                let at = self.batches.iter().position(|batch| batch.slots.start == first);
                self.cancel(at.expect("it was given"));
            }
            Happening::Came(slot, outcome) => {
                let at = self.batches.iter().position(|batch| batch.slots.contains(&slot));
                let at = at.expect("it was given");
                if self.batches[at].is_open {
                    self.come(settings, at, slot, outcome);
                }
            }
        }
    }

    fn come(&mut self, settings: &EpochSettings, at: usize, slot: u64, outcome: Outcome) {
        let used = match outcome {
            Outcome::Good { .. } => {
                self.batches[at].good += 1;
                true
            }
            Outcome::Filtered => {
                self.account.filtered += 1;
                self.judged.push(false);
                false
            }
            Outcome::Bad {
                policy_action: PolicyAction::Raise | PolicyAction::Replace | PolicyAction::Retry(_),
                ..
            } => {
                self.record(slot, Verdict::Fail);
                self.account.failed += 1;
                self.batches[at].known.insert(slot, false);
                return self.cancel(at);
            }
            Outcome::Bad { policy_action, .. } => {
                self.judged.push(true);
                if let Some(too_many) = self.too_many(settings) {
                    self.record(slot, Verdict::TooMany(too_many));
                    self.account.failed += 1;
                    self.batches[at].known.insert(slot, false);
                    (0..self.batches.len()).for_each(|at| self.cancel(at));
                    self.is_over = true;
                    let stop = Stop::TooMany(JudgedFault::Reported(slot), too_many);
                    return self.done.push(EpochAction::Stop(stop));
                }
                let is_skipped = policy_action == PolicyAction::Skip;
                self.record(slot, if is_skipped { Verdict::Skip } else { Verdict::Substitute });
                self.account.skipped += u64::from(is_skipped);
                self.account.replaced += u64::from(!is_skipped);
                !is_skipped
            }
        };
        let batch = &mut self.batches[at];
        batch.known.insert(slot, used);
        if batch.known.len() as u64 == batch.slots.end - batch.slots.start {
            batch.is_open = false;
            self.judged.extend(vec![false; batch.good]);
            let used = batch.known.iter().filter(|(_, used)| **used);
            let samples: Vec<_> = used.map(|(slot, _)| (*slot, *slot)).collect();
            self.account.delivered += samples.len() as u64;
            let position = Position::default();
            let batch = DeliveredBatch { number: at as u64, samples, repeated: 0, position };
            self.done.push(EpochAction::Deliver(batch));
        }
    }

    fn record(&mut self, slot: u64, verdict: Verdict) {
        self.done.push(EpochAction::Record { fault: JudgedFault::Reported(slot), verdict });
    }

    fn cancel(&mut self, at: usize) {
        let batch = &mut self.batches[at];
        if std::mem::take(&mut batch.is_open) {
            let left_out = |slot: &u64| batch.known.get(slot) == Some(&false);
            let slots: Vec<_> = batch.slots.clone().filter(|slot| !left_out(slot)).collect();
            self.account.cancelled += slots.len() as u64;
            self.done.push(EpochAction::Cancel { number: at as u64, slots });
        }
    }

    fn too_many(&self, settings: &EpochSettings) -> Option<TooMany> {
        let faults = |judged: &[bool]| judged.iter().filter(|is_bad| **is_bad).count() as u64;
        let (faults, allowed, share) = match settings.limit? {
            Limit::Count(count) => (faults(&self.judged), count, None),
            Limit::Share(share) => {
                let first = self.judged.len().checked_sub(settings.window as usize)?;
                let allowed = (share * settings.window as f64).floor() as u64;
                // No more are remembered than make a difference.
                let faults = faults(&self.judged[first..]).min(allowed + 1);
                (faults, allowed, Some((share, ShareOf::Last(settings.window))))
            }
        };
        (faults > allowed).then_some(TooMany { faults, allowed, share })
    }

    fn end_if_done(&mut self) {
        if self.is_planned && !self.is_over && self.batches.iter().all(|batch| !batch.is_open) {
            self.is_over = true;
            self.done.push(EpochAction::End(self.account));
        }
    }
}

fn check(seed: u64) {
    let mut random = Random::keyed(&[seed, 1]);
    let mut schedule = Schedule::new(&mut random);
    let ahead = 1 + random.below(20) as usize;
    while !schedule.engine.is_over() {
        schedule.step(&mut random, ahead);
    }
    let plain = Plain::run(&schedule.settings, &schedule.happened);
    assert_eq!(schedule.done, plain.done);
    assert!(plain.is_over && plain.account.adds_up(), "{:?}", plain.account);
    assert_eq!((schedule.settled, schedule.open.len()), (plain.batches.len() as u64, 0));
}

#[test]
fn batches_without_an_order_are_judged_as_they_come() {
    check_all(check);
}

#[test]
fn a_batch_that_is_given_after_the_end_of_the_run_can_be_cancelled() {
    let mut schedule = Schedule::new(&mut Random::keyed(&[0]));
    let settings = EpochSettings { limit: Some(Limit::Count(0)), ..schedule.settings.clone() };
    let mut engine = Engine::new(settings, Position::default());
    engine.plan(1);
    let order = engine.next_order().expect("it was given");
    engine.add_result(
        order,
        Outcome::Bad { fault: 0, policy_action: PolicyAction::Skip },
        &mut schedule.done,
    );
    engine.advance(&mut schedule.done);
    assert!(matches!(schedule.done.last(), Some(EpochAction::Stop(Stop::TooMany(..)))));
    engine.plan(2);
    assert_eq!(engine.next_order(), None);
    let mut actions = Vec::new();
    engine.cancel(1, &mut actions);
    assert_eq!(actions, [EpochAction::Cancel { number: 1, slots: vec![1, 2] }]);
}
