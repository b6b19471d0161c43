//! Performs what the engine decides about an epoch of native samples. It keeps the samples that were made
//! until their batch is complete, and the faults until they are judged; it decides nothing.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::by_slot::BySlot;
use super::instructions::{BatchEnd, Instruction};
use super::mapped::{Mapped, PartInProgress};
use super::run::{Made, MakeResult, Run};
use crate::collate::{BatchSamples, BatchSlot, Shapes, slot_of};
use crate::engine::{
    self, Engine, EpochAction, FaultCounts, PolicyAction, Position, Purpose, Verdict,
};
use crate::error::{Error, Kind};
use crate::fault::{Fault, FaultLine, Symptom, wanted};
use crate::sample::{Sample, Stage, Ticket};

/// The engine of an epoch, and what belongs to the numbers that it knows.
pub(super) struct Driver {
    pub(super) engine: Engine,
    samples: BySlot<Sample>,
    /// The memory that bad samples were to be written to: others use it.
    batch_slots: BTreeMap<u64, BatchSlot>,
    /// Faults that were not judged yet, by the number that the engine has for them.
    faults: BTreeMap<u64, PendingFault>,
    next_fault: u64,
    /// Samples that do not fit to their batch, as faults that are needed once more, by slot.
    misfits: BTreeMap<u64, PendingFault>,
    /// A number for each shape of samples.
    shapes: HashMap<Shapes, u32>,
    /// Samples that were filtered out and not counted in the report yet.
    filtered: u64,
    pub(super) batches: u64,
    pub(super) actions: Vec<EpochAction>,
    /// For a front that has functions called for the samples.
    pub(super) mapped: Option<Mapped>,
}

/// A fault that was not judged yet.
pub(super) struct PendingFault {
    symptom: Symptom,
    line: FaultLine,
    /// The error to raise; None for a fault of a front, which raises it by itself.
    error: Option<Error>,
    attempts: u32,
    /// The slot of a sample that was found to be bad when its batch was finished.
    pub(super) slot: Option<u64>,
}

impl PendingFault {
    /// One that a front has reported.
    pub(super) fn reported(symptom: Symptom, line: FaultLine) -> PendingFault {
        PendingFault { symptom, line, error: None, attempts: 0, slot: None }
    }
}

/// What is to be done without the lock, in this order.
pub(super) enum DriverStep {
    /// A sample was filtered out.
    Filtered(u64),
    Retried(FaultLine),
    Record(Box<Recorded>),
    /// The fault, and the index of the sample that is used instead.
    Replaced(Box<FaultLine>, u64),
    Deliver(Box<CompleteBatch>),
    /// Samples that functions are to be called for.
    Hand(Box<PartInProgress>),
    /// An instruction for a front with functions.
    Instruct(Instruction),
    /// The run ends with this error, or with the one that the record before it has led to; and the fault of a
    /// front that is the cause.
    Stop(Option<Box<Error>>, Option<u64>),
    End(engine::Account, FaultCounts),
}

/// What is to be done without the lock.
#[derive(Default)]
pub(super) struct DriverWork {
    pub(super) steps: Vec<DriverStep>,
    pub(super) extras: Vec<Extra>,
}

/// A fault with its verdict.
pub(super) struct Recorded {
    pub(super) symptom: Symptom,
    pub(super) line: FaultLine,
    pub(super) verdict: Verdict,
}

/// A batch whose samples are all here.
pub(super) struct CompleteBatch {
    pub(super) number: u64,
    pub(super) gathered: BatchSamples,
    pub(super) position: Position,
}

/// A sample that must be made beside those that are planned.
pub(super) struct Extra {
    pub(super) order: engine::Order,
    pub(super) batch_slot: Option<BatchSlot>,
    pub(super) attempts: u32,
    pub(super) after: Duration,
}

impl DriverStep {
    /// Whether later steps must wait until this one is done.
    pub(super) fn has_turn(&self) -> bool {
        match self {
            DriverStep::Retried(_)
            | DriverStep::Record(_)
            | DriverStep::Replaced(..)
            | DriverStep::Instruct(_)
            | DriverStep::Stop(..) => true,
            DriverStep::Filtered(_)
            | DriverStep::Deliver(_)
            | DriverStep::Hand(_)
            | DriverStep::End(..) => false,
        }
    }
}

impl Driver {
    pub(super) fn new(engine: Engine, mapped: Option<Mapped>) -> Driver {
        Driver {
            engine,
            mapped,
            samples: BySlot::default(),
            batch_slots: BTreeMap::new(),
            faults: BTreeMap::new(),
            next_fault: 0,
            misfits: BTreeMap::new(),
            shapes: HashMap::new(),
            filtered: 0,
            batches: 0,
            actions: Vec::new(),
        }
    }

    /// Decides what can be decided before the first result.
    pub(super) fn begin(&mut self, run: &Run) -> DriverWork {
        let mut todo = DriverWork::default();
        self.engine.advance(&mut self.actions);
        self.follow(run, &mut todo);
        todo
    }

    /// Takes in results.
    pub(super) fn add_results(
        &mut self,
        run: &Run,
        results: impl IntoIterator<Item = (engine::Order, MakeResult)>,
    ) -> DriverWork {
        let mut todo = DriverWork::default();
        for (order, outcome) in results {
            if self.mapped.is_some() {
                self.add_mapped_result(run, order, outcome, &mut todo);
                continue;
            }
            let outcome = self.keep(run, self.engine.current(order), outcome);
            self.engine.add_result(order, outcome, &mut self.actions);
        }
        self.engine.advance(&mut self.actions);
        self.follow(run, &mut todo);
        self.hand_complete(&mut todo.steps);
        todo
    }

    /// Samples that were made are handed to the front, which reports their results to the engine.
    fn add_mapped_result(
        &mut self,
        run: &Run,
        order: engine::Order,
        outcome: MakeResult,
        todo: &mut DriverWork,
    ) {
        if let Ok(Made::Kept(sample, _)) = outcome {
            let handing =
                self.hand(order, sample).map(|handing| DriverStep::Hand(Box::new(handing)));
            todo.steps.extend(handing);
            return;
        }
        let outcome = self.keep(run, self.engine.current(order), outcome);
        if !matches!(outcome, engine::Outcome::Bad { policy_action: PolicyAction::Retry(_), .. }) {
            self.drop_from_part(order);
        }
        self.engine.add_result(order, outcome, &mut self.actions);
    }

    /// Keeps what was made; the numbers for the engine.
    fn keep(&mut self, run: &Run, order: engine::Order, outcome: MakeResult) -> engine::Outcome {
        match outcome {
            Ok(Made::Kept(sample, bucket)) => {
                let shape = match run.shared.columns.may_differ() {
                    true => self.shape(run.shared.columns.shapes(&sample)),
                    false => 0,
                };
                self.samples.insert(order.slot, sample);
                engine::Outcome::Good { bucket: bucket as u32, shape }
            }
            Ok(Made::LeftOut(batch_slot)) => {
                self.count_as_filtered(order);
                self.keep_batch_slot(order, batch_slot);
                engine::Outcome::Filtered
            }
            Err(bad) => {
                let (fault, batch_slot) = *bad;
                self.batch_slots.insert(order.slot, batch_slot);
                let policy_action = run.policy_action(&fault);
                let is_own = matches!(order.purpose, Purpose::Planned | Purpose::Fill);
                let is_reported =
                    is_own || matches!(policy_action, PolicyAction::Raise | PolicyAction::Retry(_));
                let fault = if is_reported { self.add_fault(run.pending(fault)) } else { 0 };
                engine::Outcome::Bad { fault, policy_action }
            }
        }
    }

    pub(super) fn count_as_filtered(&mut self, order: engine::Order) {
        self.filtered += u64::from(matches!(order.purpose, Purpose::Planned | Purpose::Fill));
    }

    /// A sample that takes the place of another one is looked for until one is kept: they share a slot.
    fn keep_batch_slot(&mut self, order: engine::Order, batch_slot: BatchSlot) {
        if order.purpose != Purpose::Planned {
            self.batch_slots.insert(order.slot, batch_slot);
        }
    }

    fn shape(&mut self, shapes: Shapes) -> u32 {
        let next = self.shapes.len() as u32;
        *self.shapes.entry(shapes).or_insert(next)
    }

    pub(super) fn add_fault(&mut self, fault: PendingFault) -> u64 {
        self.next_fault += 1;
        self.faults.insert(self.next_fault, fault);
        self.next_fault
    }

    /// Does to samples and faults what the actions of the engine say, and notes what is left to do.
    fn follow(&mut self, run: &Run, todo: &mut DriverWork) {
        if self.actions.is_empty() {
            return;
        }
        let DriverWork { steps, extras } = todo;
        let mut attempts = 0;
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                EpochAction::Make(order, after) => {
                    let attempts = std::mem::take(&mut attempts);
                    self.forget(order.slot, steps);
                    let batch_slot = self.take_batch_slot(order.slot);
                    extras.push(Extra { order, batch_slot, attempts, after });
                }
                EpochAction::Move { from, to } => {
                    self.move_sample(from, to);
                    let left = self.mapped.as_mut().and_then(|mapped| mapped.move_made(from, to));
                    steps.extend(
                        left.map(|key| DriverStep::Instruct(Instruction::Forget(vec![key]))),
                    );
                }
                EpochAction::RecordRetry { fault } => {
                    if let Some(fault) = self.faults.remove(&fault) {
                        attempts = fault.attempts;
                        steps.push(DriverStep::Retried(fault.line));
                    }
                }
                EpochAction::Record { fault, verdict } => {
                    self.follow_verdict(run, fault, verdict, steps);
                }
                EpochAction::RecordReplacement { fault, by } => {
                    if let Some(fault) = self.take_fault(fault) {
                        let index = run.ticket(by).map_or(0, |ticket| ticket.index);
                        steps.push(DriverStep::Replaced(Box::new(fault.line), index));
                    }
                }
                // Native plans are known, samples move, and batches have an order.
                EpochAction::ReadPlan | EpochAction::Order { .. } | EpochAction::Cancel { .. } => {}
                EpochAction::Finish(batch) => {
                    let mapped = self.mapped.as_mut().map(|mapped| mapped.finish(batch));
                    steps.extend(mapped.map(DriverStep::Instruct));
                }
                EpochAction::Deliver(batch) => {
                    self.count_filtered(steps);
                    steps.push(self.deliver(run, batch));
                }
                EpochAction::Drop { slots } => match &mut self.mapped {
                    Some(mapped) => {
                        steps.push(DriverStep::Instruct(Instruction::Forget(
                            mapped.take(slots.into_iter()),
                        )));
                    }
                    None => slots.iter().for_each(|slot| drop(self.samples.take(*slot))),
                },
                EpochAction::Stop(stop) => {
                    let cause = self.cause(stop);
                    let error = self.error(run, stop);
                    steps.push(DriverStep::Stop(error.map(Box::new), cause));
                }
                EpochAction::End(account) => {
                    self.count_filtered(steps);
                    steps.push(DriverStep::End(account, self.engine.standing().clone()));
                }
            }
        }
        self.actions = actions;
    }

    fn follow_verdict(
        &mut self,
        run: &Run,
        fault: engine::JudgedFault,
        verdict: Verdict,
        steps: &mut Vec<DriverStep>,
    ) {
        let slot = self.slot_of(fault);
        if let Some(recorded) = self.record(run, fault, verdict) {
            steps.push(DriverStep::Record(Box::new(recorded)));
        }
        if verdict == Verdict::Skip
            && let Some(slot) = slot
        {
            self.forget(slot, steps);
        }
    }

    fn deliver(&mut self, run: &Run, batch: engine::DeliveredBatch) -> DriverStep {
        self.batches = batch.number + 1;
        match &mut self.mapped {
            Some(mapped) => {
                let keys = mapped.take(batch.samples.iter().map(|(slot, _)| *slot));
                let end = BatchEnd(batch.position);
                DriverStep::Instruct(Instruction::Deliver { keys, end })
            }
            None => DriverStep::Deliver(Box::new(self.collect(run, batch))),
        }
    }

    fn count_filtered(&mut self, steps: &mut Vec<DriverStep>) {
        let filtered = std::mem::take(&mut self.filtered);
        if filtered > 0 {
            steps.push(DriverStep::Filtered(filtered));
        }
    }

    /// What was made for a slot belongs to another one.
    fn move_sample(&mut self, from: u64, to: u64) {
        drop((self.samples.take(to), self.batch_slots.remove(&to)));
        if let Some(sample) = self.samples.take(from) {
            self.samples.insert(to, sample);
        }
        if let Some(batch_slot) = self.batch_slots.remove(&from) {
            self.batch_slots.insert(to, batch_slot);
        }
    }

    /// The memory that another sample can be written to.
    fn take_batch_slot(&mut self, slot: u64) -> Option<BatchSlot> {
        let sample = self.samples.take(slot);
        self.batch_slots.remove(&slot).or_else(|| sample.map(slot_of))
    }

    /// Tells a front that what it made for a slot is not needed.
    fn forget(&mut self, slot: u64, steps: &mut Vec<DriverStep>) {
        let key = self.mapped.as_mut().and_then(|mapped| mapped.forget(slot));
        steps.extend(key.map(|key| DriverStep::Instruct(Instruction::Forget(vec![key]))));
    }

    /// The slot of a sample that was made, and is bad after all.
    fn slot_of(&self, fault: engine::JudgedFault) -> Option<u64> {
        match fault {
            engine::JudgedFault::Reported(number) => self.faults.get(&number)?.slot,
            engine::JudgedFault::Misfit { slot, .. } => Some(slot),
        }
    }

    fn record(
        &mut self,
        run: &Run,
        fault: engine::JudgedFault,
        verdict: Verdict,
    ) -> Option<Recorded> {
        let is_needed = !matches!(verdict, Verdict::Skip | Verdict::Substitute);
        let found = match fault {
            engine::JudgedFault::Reported(number) => self.faults.remove(&number)?,
            engine::JudgedFault::Misfit { slot, like, .. } => self.misfit(run, slot, like)?,
        };
        let (symptom, line) = (found.symptom.clone(), found.line.clone());
        if is_needed {
            match fault {
                engine::JudgedFault::Reported(number) => self.faults.insert(number, found),
                engine::JudgedFault::Misfit { slot, .. } => self.misfits.insert(slot, found),
            };
        }
        Some(Recorded { symptom, line, verdict })
    }

    fn misfit(&self, run: &Run, slot: u64, like: u64) -> Option<PendingFault> {
        if let Some(mapped) = &self.mapped {
            return mapped.misfit(run, slot, like);
        }
        let sample = self.samples.get(slot)?;
        let error = run.shared.columns.mismatch(sample, self.samples.get(like));
        let error = error.at(run.shared.source.location(sample.ticket.index));
        Some(run.pending(Fault::new(sample.ticket, Stage::Collate, error)))
    }

    fn take_fault(&mut self, fault: engine::JudgedFault) -> Option<PendingFault> {
        match fault {
            engine::JudgedFault::Reported(number) => self.faults.remove(&number),
            engine::JudgedFault::Misfit { slot, .. } => self.misfits.remove(&slot),
        }
    }

    /// The fault that a run ends with, if a front has reported it.
    fn cause(&self, stop: engine::Stop) -> Option<u64> {
        let fault = match stop {
            engine::Stop::Raised(fault)
            | engine::Stop::TooMany(fault, _)
            | engine::Stop::NoReplacement { fault, .. } => fault,
            engine::Stop::Unexpected(_) | engine::Stop::DoesNotAddUp(_) => return None,
        };
        match fault {
            engine::JudgedFault::Reported(number) => {
                self.faults.get(&number)?.error.is_none().then_some(number)
            }
            engine::JudgedFault::Misfit { .. } => None,
        }
    }

    fn collect(&mut self, run: &Run, batch: engine::DeliveredBatch) -> CompleteBatch {
        let engine::DeliveredBatch { number, samples: slots, position, .. } = batch;
        let first = slots.first().map_or(0, |(slot, _)| *slot);
        let mut samples = Vec::with_capacity(slots.len());
        samples.extend(slots.iter().filter_map(|(slot, _)| self.samples.take(*slot)));
        let gathered =
            BatchSamples { samples, number: first, is_scattered: run.shared.has_lone_slots() };
        CompleteBatch { number, gathered, position }
    }

    /// The error that a run ends with; None if its record has led to one.
    fn error(&mut self, run: &Run, stop: engine::Stop) -> Option<Error> {
        let internal = |message: String| Some(Error::new(Kind::Internal, message));
        match stop {
            engine::Stop::TooMany(..) => None,
            engine::Stop::Raised(fault) => self.take_fault(fault)?.error,
            engine::Stop::NoReplacement { fault, tried, bad } => {
                let fault = self.take_fault(fault)?;
                let index = fault.line.index.as_u64().unwrap_or(0);
                let (were, hint) = (if bad == tried { "bad" } else { "bad or filtered out" }, "");
                let (message, hint) = match tried {
                    0 => {
                        let message = "a batch was bad, and there is no other to take its place";
                        let hint =
                            "use by_type to \"skip\" or \"raise\" what map_batch functions raise";
                        (message.to_owned(), hint)
                    }
                    _ => {
                        let tried = format!("{tried} samples tried in place of sample {index}");
                        (format!("{tried} were {were} as well"), hint)
                    }
                };
                let error = Error::new(Kind::NoReplacement, message);
                let error = if hint.is_empty() { error } else { error.with_hint(hint) };
                Some(error.at(run.shared.source.location(index)).of_sample(
                    index,
                    fault.line.epoch,
                    Stage::Worker.name(),
                ))
            }
            engine::Stop::Unexpected(order) => {
                internal(format!("sample number {} has two results", order.slot))
            }
            engine::Stop::DoesNotAddUp(account) => {
                internal(format!("the samples of the epoch do not add up: {account:?}"))
            }
        }
    }
}

impl Run {
    /// What the policy says about a fault, looked at alone.
    pub(super) fn policy_action(&self, fault: &Fault) -> PolicyAction {
        let (symptom, policy) = (Symptom::of(&fault.error), self.shared.ledger.policy());
        let after = policy.retry_after(&symptom, fault.attempts, &self.key(fault.ticket));
        match after.filter(|_| fault.stage != Stage::Collate) {
            Some(after) => PolicyAction::Retry(after),
            None => self.policy_action_for(&symptom, &self.line_of(fault)),
        }
    }

    /// The same for a fault that is not retried any more.
    pub(super) fn policy_action_for(&self, symptom: &Symptom, line: &FaultLine) -> PolicyAction {
        wanted(self.shared.ledger.policy(), symptom, line).into()
    }

    pub(super) fn pending(&self, fault: Fault) -> PendingFault {
        let (symptom, line) = (Symptom::of(&fault.error), self.line_of(&fault));
        let Fault { error, attempts, .. } = fault;
        PendingFault { symptom, line, error: Some(error), attempts, slot: None }
    }

    /// The ticket of an order. A sample that replaces another one is made with the random numbers of that.
    pub(super) fn ticket_of(&self, order: engine::Order) -> Option<Ticket> {
        let ticket = self.ticket(order.sequence)?;
        match order.purpose {
            Purpose::Planned | Purpose::Fill | Purpose::Repetition => Some(ticket),
            Purpose::Replacement => {
                Some(Ticket { index: ticket.index, ..self.ticket(order.slot)? })
            }
        }
    }
}
