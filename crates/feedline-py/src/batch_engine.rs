//! The engine of an epoch for a front whose batches are made as a whole, by a worker or by the trainer: slots
//! become batches and offsets in them, and results of samples come together.

use feedline_core::engine::{
    self, BadSlot, BatchPlan, Engine, EpochSettings, FaultCounts, Finished, Membership, Moves,
    Order, Outcome, PolicyAction, UnfinishedBatch,
};
use feedline_core::error::{Error, Kind};
use feedline_core::loader;
use feedline_core::random::Random;
use pyo3::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::errors::raise;
use crate::faults::{Ledger, Policy};
use crate::position::{PositionNumbers, Positions, position_of};

/// What becomes of the slot of a skipped sample.
#[pyclass(module = "feedline._native", frozen, eq, eq_int, from_py_object)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fill {
    Never,
    FromEnd,
    FromEndAndRepeat,
}

/// What becomes of a fault. `Ledger.record` writes it down.
#[pyclass(module = "feedline._native", frozen, from_py_object)]
#[derive(Clone, Copy)]
pub(crate) struct Verdict(pub(crate) engine::Verdict);

#[pymethods]
impl Verdict {
    /// "skip", "replace", "substitute", "fail", "raise" or "too many".
    #[getter]
    fn name(&self) -> &'static str {
        match self.0 {
            engine::Verdict::Skip => "skip",
            engine::Verdict::Replace => "replace",
            engine::Verdict::Substitute => "substitute",
            engine::Verdict::Fail => "fail",
            engine::Verdict::Raise => "raise",
            engine::Verdict::TooMany(_) => "too many",
        }
    }
}

/// A sample of a batch that could not be made, or does not fit the others.
#[pyclass(module = "feedline._native", frozen)]
#[derive(Clone, Copy)]
pub(crate) struct BadSample {
    pub(crate) offset: u64,
    fault: u64,
    policy_action: PolicyAction,
    is_misfit: bool,
}

#[pymethods]
impl BadSample {
    /// `fault` is a name for it, chosen by the front; `action` is what the policy says: "raise", "skip", "replace",
    /// or "substitute" if the user gave a sample for this.
    #[new]
    #[pyo3(signature = (offset, fault, action, *, is_misfit = false))]
    fn new(offset: u64, fault: u64, action: &str, is_misfit: bool) -> PyResult<BadSample> {
        let policy_action = match action {
            "raise" => PolicyAction::Raise,
            "skip" => PolicyAction::Skip,
            "replace" => PolicyAction::Replace,
            "substitute" => PolicyAction::Substitute,
            other => {
                let message = format!("there is no action {other:?}");
                return Err(raise(Error::new(Kind::Internal, message)));
            }
        };
        Ok(BadSample { offset, fault, policy_action, is_misfit })
    }
}

/// The outcome of a sample, which is good if it is not among the bad ones.
pub(crate) fn outcome_of(bad: Option<&BadSample>) -> Outcome {
    match bad {
        Some(bad) => Outcome::Bad { fault: bad.fault, policy_action: bad.policy_action },
        None => Outcome::Good { bucket: 0, shape: 0 },
    }
}

/// What the front must do, in this order. Batches are counted as they were planned; an offset is a place in a batch,
/// a sequence one of the samples as they were planned.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) enum Action {
    /// Plan all batches that there are, and say that these are all.
    ReadPlan {},
    /// Have a batch made, with this many of its samples, the first ones.
    Order { batch: u64, samples: u64 },
    /// Have a batch made again, with this many of its samples, the first ones; not at all if there are none.
    Remake { batch: u64, samples: u64 },
    /// Have a batch completed: by offset, the sequences of other samples that are to be made, the offsets that
    /// samples move from, what stays empty, and where the sample is used that the user gave.
    Amend {
        batch: u64,
        fills: BTreeMap<u64, u64>,
        moves: BTreeMap<u64, u64>,
        left_out: BTreeSet<u64>,
        given: BTreeSet<u64>,
    },
    /// Write down a fault.
    Record { fault: u64, verdict: Verdict },
    /// Write down that another sample was found in the place of a bad one.
    RecordReplacement { fault: u64, by: u64 },
    /// Hand over a batch.
    Deliver { batch: u64, samples: u64 },
    /// There is nothing to deliver of a batch.
    Discard { batch: u64 },
    /// A batch is not delivered. `samples` of its samples were neither skipped nor failed. Only for an executor.
    Cancel { batch: u64, samples: u64 },
    /// Raise this fault, after the batches before it.
    Raise { fault: u64 },
    /// This many samples were tried in the place of a bad one, and all were bad.
    NoReplacement { fault: u64, tried: u32 },
    /// A bug.
    Fail { message: String },
    /// Nothing more comes.
    End { dropped: u64, repeated: u64 },
}

/// Decides about the batches of one epoch.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct BatchEngine(Mutex<Batches>);

struct Batches {
    engine: Engine,
    ledger: Arc<loader::Ledger>,
    /// The batches that are not settled.
    planned: VecDeque<PlannedBatch>,
    /// The number of the first one of these.
    settled: u64,
    /// The number of the next batch that is ordered.
    ordered: u64,
    slots: u64,
    /// The slots of faults that were not judged yet, by name.
    faults: BTreeMap<u64, u64>,
    /// Batches that are to be completed.
    changed: BTreeSet<u64>,
    positions: Positions,
}

/// What is in the place of a sample of a batch.
#[derive(Clone, Copy)]
enum Place {
    Fill(u64),
    Moved(u64),
    Empty,
    Given,
}

/// What is known about a batch.
#[derive(Default)]
struct PlannedBatch {
    /// Its first slot, and how many it has.
    first: u64,
    size: u64,
    awaited: Vec<Order>,
    /// By offset, what is not the batch's own sample.
    places: BTreeMap<u64, Place>,
    bad: Vec<BadSlot>,
    /// Whether what has come is the batch, collated.
    is_collated: bool,
    /// How it is to be finished.
    unfinished: Option<UnfinishedBatch>,
}

#[pymethods]
impl BatchEngine {
    /// `has_end` says that the plan can be read to its end when that is needed. `ahead` batches are made at a time.
    /// An epoch that is continued has a number of `batches` that are settled, and the position behind them.
    #[new]
    #[pyo3(signature = (policy, ledger, *, epoch, drop_last, fill, has_end, ahead, batches = 0, position = None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        policy: &Policy,
        ledger: &Ledger,
        epoch: u64,
        drop_last: bool,
        fill: Fill,
        has_end: bool,
        ahead: u64,
        batches: u64,
        position: Option<PositionNumbers>,
    ) -> BatchEngine {
        let position = position.map(position_of).unwrap_or_default();
        let settings = EpochSettings {
            samples: position.slot,
            epoch_samples: None,
            batch_size: 0,
            plan: if has_end { BatchPlan::Given } else { BatchPlan::Open },
            moves: Moves::Remade { ahead },
            drop_last,
            membership: Membership::Fixed,
            fill: match fill {
                Fill::FromEnd if has_end => engine::Fill::FromEnd,
                Fill::FromEndAndRepeat if has_end => engine::Fill::FromEndAndRepeat,
                Fill::Never | Fill::FromEnd | Fill::FromEndAndRepeat => engine::Fill::Never,
            },
            misfit: None,
            finishes: true,
            limit: policy.0.limit,
            window: policy.0.window,
            epoch,
        };
        BatchEngine(Mutex::new(Batches {
            slots: position.slot,
            positions: Positions::from(batches, position.clone()),
            engine: Engine::new(settings, position),
            ledger: Arc::clone(&ledger.0),
            planned: VecDeque::new(),
            settled: batches,
            ordered: batches,
            faults: BTreeMap::new(),
            changed: BTreeSet::new(),
        }))
    }

    /// The next batch has `samples` samples, of which the account expects `expected`. If it is the last one, these
    /// may be fewer than it should have.
    fn plan(&self, samples: u64, expected: u64, is_short: bool) {
        self.lock().plan(samples, expected, is_short);
    }

    /// There are no more batches.
    fn plan_ends(&self) -> Vec<Action> {
        let mut batches = self.lock();
        batches.engine.plan_ends();
        batches.decide(Vec::new())
    }

    /// The next batch that is to be made anyway, and how many of its samples, the first ones; None if all that are
    /// planned were given out.
    fn order(&self) -> Option<(u64, u64)> {
        self.lock().order()
    }

    /// Both at once.
    fn plan_and_order(&self, samples: u64, expected: u64, is_short: bool) -> Option<(u64, u64)> {
        let mut batches = self.lock();
        batches.plan(samples, expected, is_short);
        batches.order()
    }

    /// The result of a batch: it was made but for the samples that are bad. If it is collated, it is without them.
    /// Returns None if all that is to be done is to hand over this batch, as for nearly all of them.
    fn add_result(
        &self,
        batch: u64,
        bad: Vec<PyRef<'_, BadSample>>,
        is_collated: bool,
    ) -> Option<Vec<Action>> {
        let bad: Vec<BadSample> = bad.iter().map(|bad| **bad).collect();
        let actions = self.lock().add_result(batch, &bad, is_collated);
        match actions[..] {
            [Action::Deliver { batch: delivered, .. }] if delivered == batch => None,
            _ => Some(actions),
        }
    }

    /// The consumer has a batch: the position is the one behind it, and the ledger counts it. One native call, so that
    /// no signal handler can run in between.
    fn delivered(&self, batch: u64, samples: u64, waited_seconds: f64) {
        let waited = Duration::try_from_secs_f64(waited_seconds).unwrap_or_default();
        let mut batches = self.lock();
        batches.positions.deliver(batch);
        batches.ledger.delivered(samples, waited);
    }

    /// How many batches are settled as the consumer sees it, and the position behind them.
    #[getter]
    fn position(&self) -> (u64, PositionNumbers) {
        self.lock().positions.delivered()
    }
}

impl BatchEngine {
    /// What the limit of the policy depends on.
    pub(crate) fn standing(&self) -> FaultCounts {
        self.lock().engine.standing().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Batches> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlannedBatch {
    /// It is made, or made again, with these samples of its own.
    fn begin(&mut self, awaited: Vec<Order>) {
        let PlannedBatch { first, size, .. } = *self;
        let empty = awaited.len() as u64..size;
        let places = empty.map(|offset| (offset, Place::Empty)).collect();
        *self = PlannedBatch { first, size, awaited, places, ..PlannedBatch::default() };
    }
}

impl Batches {
    /// The batch with a slot, and its first slot.
    fn batch_of(&self, slot: u64) -> (u64, u64) {
        let at = self.planned.partition_point(|batch| batch.first <= slot).saturating_sub(1);
        let first = self.planned.get(at).map_or(0, |batch| batch.first);
        (self.settled + at as u64, first)
    }

    /// A batch that is not settled.
    fn planned(&mut self, batch: u64) -> Option<&mut PlannedBatch> {
        self.planned.get_mut(batch.checked_sub(self.settled)? as usize)
    }

    fn plan(&mut self, samples: u64, expected: u64, is_short: bool) {
        if expected > 0 {
            self.ledger.expect(expected);
        }
        let planned = PlannedBatch { first: self.slots, size: samples, ..PlannedBatch::default() };
        self.planned.push_back(planned);
        self.slots += samples;
        if is_short {
            return self.engine.plan_short(samples);
        }
        self.engine.plan(samples);
    }

    fn order(&mut self) -> Option<(u64, u64)> {
        let batch = self.ordered;
        let planned = self.planned.get_mut((batch - self.settled) as usize)?;
        let end = planned.first + planned.size;
        let mut awaited = Vec::with_capacity(planned.size as usize);
        while self.engine.next_slot().is_some_and(|slot| slot < end) {
            awaited.extend(self.engine.next_order());
        }
        let samples = awaited.len() as u64;
        if samples == 0 {
            return None;
        }
        self.ordered += 1;
        planned.begin(awaited);
        Some((batch, samples))
    }

    fn add_result(&mut self, batch: u64, bad: &[BadSample], is_collated: bool) -> Vec<Action> {
        let mut actions = Vec::new();
        let at = batch.checked_sub(self.settled);
        let Some(made) = at.and_then(|at| self.planned.get_mut(at as usize)) else {
            return Vec::new();
        };
        let first = made.first;
        made.is_collated = is_collated;
        self.faults.extend(bad.iter().map(|bad| (bad.fault, first + bad.offset)));
        let awaited = std::mem::take(&mut made.awaited);
        for order in &awaited {
            let own = bad.iter().find(|bad| first + bad.offset == order.slot && !bad.is_misfit);
            self.engine.add_result(*order, outcome_of(own), &mut actions);
        }
        for bad in bad {
            let slot = first + bad.offset;
            // Also one that was good before and is bad now that it was made again.
            if bad.is_misfit || !awaited.iter().any(|order| order.slot == slot) {
                made.bad.push(BadSlot { slot, fault: bad.fault, policy_action: bad.policy_action });
            }
        }
        if let Some(unfinished) = made.unfinished.take() {
            self.finish(batch, first, unfinished);
        }
        self.decide(actions)
    }

    fn finish(&mut self, batch: u64, first: u64, unfinished: UnfinishedBatch) {
        let Some(made) = self.planned.get_mut((batch - self.settled) as usize) else { return };
        if !made.bad.is_empty() {
            let bad = std::mem::take(&mut made.bad);
            self.engine.finished(unfinished.number, Finished::Bad(bad));
        } else if made.is_collated {
            self.engine.finished(unfinished.number, Finished::Good);
        } else {
            let offsets: BTreeSet<_> =
                unfinished.samples.iter().map(|(slot, _)| slot - first).collect();
            made.unfinished = Some(unfinished);
            let empty = (0..made.size).filter(|offset| !offsets.contains(offset));
            made.places.extend(empty.map(|offset| (offset, Place::Empty)));
            self.changed.insert(batch);
        }
    }

    /// Decides what can be decided, in terms of batches.
    fn decide(&mut self, mut actions: Vec<engine::EpochAction>) -> Vec<Action> {
        let mut issued = Vec::new();
        let mut decided = Vec::new();
        loop {
            self.engine.advance(&mut actions);
            let mut is_finished = false;
            std::mem::swap(&mut actions, &mut decided);
            for action in decided.drain(..) {
                is_finished |= matches!(action, engine::EpochAction::Finish(_));
                self.translate(action, &mut issued);
            }
            if !is_finished {
                break;
            }
        }
        self.settle_below(self.engine.settled_below(), &mut issued);
        for batch in std::mem::take(&mut self.changed) {
            issued.extend(self.planned(batch).map(|made| amended(batch, &made.places)));
        }
        issued
    }

    fn translate(&mut self, action: engine::EpochAction, issued: &mut Vec<Action>) {
        match action {
            engine::EpochAction::ReadPlan => issued.push(Action::ReadPlan {}),
            engine::EpochAction::Order { below } => self.order_below(below, issued),
            engine::EpochAction::Make(order, Duration::ZERO) => self.make(order),
            engine::EpochAction::Make(..) | engine::EpochAction::RecordRetry { .. } => {
                issued.push(Action::Fail { message: "the front retries by itself".to_owned() });
            }
            engine::EpochAction::Move { from, to } => self.move_sample(from, to, issued),
            engine::EpochAction::Record { fault, verdict } => {
                let (fault, verdict) = (name_of(fault), Verdict(verdict));
                self.judged(fault, verdict);
                issued.push(Action::Record { fault, verdict });
            }
            engine::EpochAction::RecordReplacement { fault, by } => {
                issued.push(Action::RecordReplacement { fault: name_of(fault), by });
            }
            engine::EpochAction::Finish(unfinished) => {
                let slot = unfinished.samples.first().map_or(0, |(slot, _)| *slot);
                let (batch, first) = self.batch_of(slot);
                self.settle_below(first, issued);
                self.finish(batch, first, unfinished);
            }
            engine::EpochAction::Deliver(delivered) => {
                self.engine.taken();
                let slot = delivered.samples.first().map_or(0, |(slot, _)| *slot);
                let (batch, first) = self.batch_of(slot);
                self.settle_below(first, issued);
                self.forget_first();
                self.positions.add(batch, delivered.position);
                issued.push(Action::Deliver { batch, samples: delivered.samples.len() as u64 });
            }
            // What is judged in order is not cancelled.
            engine::EpochAction::Drop { .. } | engine::EpochAction::Cancel { .. } => {}
            engine::EpochAction::Stop(stop) => issued.push(stopped(stop)),
            engine::EpochAction::End(account) => {
                issued.push(Action::End { dropped: account.dropped, repeated: account.repeated });
            }
        }
    }

    /// Nothing is delivered of batches that are settled and were not delivered.
    fn settle_below(&mut self, slot: u64, issued: &mut Vec<Action>) {
        while self.planned.front().is_some_and(|batch| batch.first + batch.size <= slot) {
            issued.push(Action::Discard { batch: self.settled });
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        self.planned.pop_front();
        self.changed.remove(&self.settled);
        self.settled += 1;
        self.ordered = self.ordered.max(self.settled);
    }

    fn order_below(&mut self, below: u64, issued: &mut Vec<Action>) {
        while let Some(planned) = self.planned.get_mut((self.ordered - self.settled) as usize)
            && planned.first < below
        {
            let end = below.min(planned.first + planned.size);
            let awaited: Vec<_> = (planned.first..end).map(Order::planned).collect();
            issued.push(Action::Order { batch: self.ordered, samples: awaited.len() as u64 });
            planned.begin(awaited);
            self.ordered += 1;
        }
    }

    /// What is in the place of a sample that was judged.
    fn judged(&mut self, fault: u64, verdict: Verdict) {
        let place = match verdict.0 {
            engine::Verdict::Skip => Place::Empty,
            engine::Verdict::Substitute => Place::Given,
            engine::Verdict::Replace
            | engine::Verdict::Fail
            | engine::Verdict::Raise
            | engine::Verdict::TooMany(_) => return,
        };
        if let Some(slot) = self.faults.remove(&fault) {
            self.put(slot, place);
        }
    }

    /// The batch is not what has come any more.
    fn put(&mut self, slot: u64, place: Place) -> u64 {
        let (batch, first) = self.batch_of(slot);
        if let Some(made) = self.planned(batch) {
            made.places.insert(slot - first, place);
        }
        batch
    }

    fn make(&mut self, order: Order) {
        let batch = self.put(order.slot, Place::Fill(order.sequence));
        if let Some(made) = self.planned(batch) {
            made.awaited.push(order);
            made.is_collated = false;
            self.changed.insert(batch);
        }
    }

    fn move_sample(&mut self, from: u64, to: u64, issued: &mut Vec<Action>) {
        let (batch, first) = self.batch_of(from);
        if self.batch_of(to).0 == batch {
            self.put(from, Place::Empty);
            self.put(to, Place::Moved(from - first));
            if let Some(made) = self.planned(batch) {
                made.is_collated = false;
            }
            self.changed.insert(batch);
            self.faults.values_mut().filter(|slot| **slot == from).for_each(|slot| *slot = to);
            return;
        }
        if let Some(made) = self.planned(batch) {
            made.begin((first..from).map(Order::planned).collect());
        }
        let is_same = |action: &Action| matches!(action, Action::Remake { batch: other, .. } if *other == batch);
        issued.retain(|action| !is_same(action));
        issued.push(Action::Remake { batch, samples: from - first });
    }
}

fn amended(batch: u64, places: &BTreeMap<u64, Place>) -> Action {
    let (mut fills, mut moves) = (BTreeMap::new(), BTreeMap::new());
    let (mut left_out, mut given) = (BTreeSet::new(), BTreeSet::new());
    for (offset, place) in places {
        match place {
            Place::Fill(sequence) => drop(fills.insert(*offset, *sequence)),
            Place::Moved(source) => drop(moves.insert(*offset, *source)),
            Place::Empty => drop(left_out.insert(*offset)),
            Place::Given => drop(given.insert(*offset)),
        }
    }
    Action::Amend { batch, fills, moves, left_out, given }
}

pub(crate) fn name_of(fault: engine::JudgedFault) -> u64 {
    match fault {
        engine::JudgedFault::Reported(fault) => fault,
        // Not without `EpochSettings::misfit`.
        engine::JudgedFault::Misfit { slot, .. } => slot,
    }
}

pub(crate) fn stopped(stop: engine::Stop) -> Action {
    match stop {
        engine::Stop::Raised(fault) | engine::Stop::TooMany(fault, _) => {
            Action::Raise { fault: name_of(fault) }
        }
        engine::Stop::NoReplacement { fault, tried, .. } => {
            Action::NoReplacement { fault: name_of(fault), tried }
        }
        engine::Stop::Unexpected(order) => {
            Action::Fail { message: format!("the result of slot {} is not awaited", order.slot) }
        }
        engine::Stop::DoesNotAddUp(account) => {
            Action::Fail { message: format!("the samples of the epoch do not add up: {account:?}") }
        }
    }
}

/// A number that depends on these numbers alone.
#[pyfunction]
pub(crate) fn keyed_bits(parts: Vec<u64>) -> u64 {
    Random::keyed(&parts).bits()
}
