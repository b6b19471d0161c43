//! The engine of a run for a front without an order: the calls of an executor. Calls that go to a worker together
//! are a batch, and an offset is a place in it.

use feedline_core::engine::{self, Engine, EpochSettings, Order, Position};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::batch_engine::{Action, BadSample, Verdict, name_of, outcome_of, stopped};
use crate::faults::Policy;

/// Decides about the calls of an executor.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct CallEngine(Mutex<Calls>);

struct Calls {
    engine: Engine,
    batches: u64,
    slots: u64,
    /// By number, the slots of each batch that is not settled.
    open: BTreeMap<u64, Open>,
}

struct Open {
    first: u64,
    size: u64,
    /// Its orders without a result, from when it was ordered.
    awaited: Vec<Order>,
}

#[pymethods]
impl CallEngine {
    #[new]
    fn new(policy: &Policy) -> CallEngine {
        let settings = EpochSettings::unordered(policy.0.limit, policy.0.window);
        let engine = Engine::new(settings, Position::default());
        CallEngine(Mutex::new(Calls { engine, batches: 0, slots: 0, open: BTreeMap::new() }))
    }

    /// A batch of this many calls, at least one, is to be made. Returns its number.
    fn plan(&self, calls: u64) -> u64 {
        let mut this = self.lock();
        let (number, first) = (this.batches, this.slots);
        this.open.insert(number, Open { first, size: calls, awaited: Vec::new() });
        this.batches += 1;
        this.slots += calls;
        this.engine.plan(calls);
        number
    }

    /// There are no more batches.
    fn plan_ends(&self) -> Vec<Action> {
        let mut this = self.lock();
        this.engine.plan_ends();
        this.decide(Vec::new())
    }

    /// The next batch that is to be made; None if there is none at this moment.
    fn order(&self) -> Option<u64> {
        self.lock().order()
    }

    /// The result of all calls of a batch that had no result: these are bad, the others good.
    fn add_result(&self, batch: u64, bad: Vec<PyRef<'_, BadSample>>) -> Vec<Action> {
        let bad: Vec<BadSample> = bad.iter().map(|bad| **bad).collect();
        self.lock().add_result(batch, &bad)
    }

    /// One call of a batch is bad, and the others have no result yet.
    fn lost(&self, batch: u64, bad: &BadSample) -> Vec<Action> {
        self.lock().lost(batch, bad)
    }

    /// A batch is not wanted any more.
    fn cancel(&self, batch: u64) -> Vec<Action> {
        let mut this = self.lock();
        let mut actions = Vec::new();
        if let Some(first) = this.open.get(&batch).map(|open| open.first) {
            this.engine.cancel(first, &mut actions);
        }
        this.decide(actions)
    }
}

impl CallEngine {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    fn order(&mut self) -> Option<u64> {
        let slot = self.engine.next_slot()?;
        let mut open = self.open.iter_mut();
        let (number, open) = open.find(|(_, open)| open.first == slot)?;
        open.awaited = (0..open.size).filter_map(|_| self.engine.next_order()).collect();
        Some(*number)
    }

    fn add_result(&mut self, batch: u64, bad: &[BadSample]) -> Vec<Action> {
        let Some(open) = self.open.get_mut(&batch) else { return Vec::new() };
        let mut actions = Vec::new();
        for order in std::mem::take(&mut open.awaited) {
            let bad = bad.iter().find(|bad| open.first + bad.offset == order.slot);
            self.engine.add_result(order, outcome_of(bad), &mut actions);
        }
        self.decide(actions)
    }

    fn lost(&mut self, batch: u64, bad: &BadSample) -> Vec<Action> {
        let Some(open) = self.open.get_mut(&batch) else { return Vec::new() };
        let mut actions = Vec::new();
        let order = Order::planned(open.first + bad.offset);
        open.awaited.retain(|awaited| *awaited != order);
        self.engine.add_result(order, outcome_of(Some(bad)), &mut actions);
        self.decide(actions)
    }

    /// Decides what can be decided, in terms of batches.
    fn decide(&mut self, mut actions: Vec<engine::EpochAction>) -> Vec<Action> {
        self.engine.advance(&mut actions);
        actions.into_iter().map(|action| self.translate(action)).collect()
    }

    fn translate(&mut self, action: engine::EpochAction) -> Action {
        match action {
            engine::EpochAction::Record { fault, verdict } => {
                Action::Record { fault: name_of(fault), verdict: Verdict(verdict) }
            }
            engine::EpochAction::Deliver(engine::DeliveredBatch { number, samples, .. }) => {
                self.open.remove(&number);
                Action::Deliver { batch: number, samples: samples.len() as u64 }
            }
            engine::EpochAction::Cancel { number, slots } => {
                self.open.remove(&number);
                Action::Cancel { batch: number, samples: slots.len() as u64 }
            }
            engine::EpochAction::Stop(stop) => stopped(stop),
            engine::EpochAction::End(_) => Action::End { dropped: 0, repeated: 0 },
            other @ (engine::EpochAction::Make(..)
            | engine::EpochAction::ReadPlan
            | engine::EpochAction::Order { .. }
            | engine::EpochAction::Move { .. }
            | engine::EpochAction::RecordRetry { .. }
            | engine::EpochAction::RecordReplacement { .. }
            | engine::EpochAction::Finish(_)
            | engine::EpochAction::Drop { .. }) => {
                Action::Fail { message: format!("an executor cannot do this: {other:?}") }
            }
        }
    }
}
