//! Does what the engine decides: writes down faults, hands over batches, makes the samples that are needed
//! beside those that are planned.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::activity::ActivityRecord;
use super::driver::{CompleteBatch, DriverStep, DriverWork, Extra, Recorded};
use super::instructions::{Instruction, Part};
use super::mapped::PartInProgress;
use super::run::{Delivery, MakeResult, Run, SampleOrder, closed};
use crate::collate::BatchSlot;
use crate::engine;
use crate::error::{Error, Kind, Result};
use crate::sample::Stage;
use crate::sys::clock;
use crate::transform::Native;

/// What became of steps that are to be done.
pub(super) enum Queued {
    /// There are none.
    None,
    /// This thread can do them at once.
    Direct(Vec<DriverStep>),
    /// They are in the outbox.
    InOrder,
}

/// Steps that must be done one after another: a batch is delivered when all faults before it are written down.
#[derive(Default)]
pub(super) struct Outbox {
    steps: VecDeque<DriverStep>,
    /// Whether a thread is performing a step.
    is_busy: bool,
    /// The error that the last record has led to.
    error: Option<Error>,
}

impl Run {
    pub(super) fn process_results_once(
        &self,
        results: impl IntoIterator<Item = (engine::Order, MakeResult)>,
    ) -> Vec<Extra> {
        let start = clock::now();
        let (queued, extras) = {
            let mut driver = self.driver.lock();
            let DriverWork { steps, extras } = driver.add_results(self, results);
            self.update_urgent(&driver);
            (self.queue(steps), extras)
        };
        self.perform(queued);
        self.meters.add(Stage::Collate, start.elapsed());
        extras
    }

    /// Makes samples that are needed beside those that are planned.
    pub(super) fn make_extras(&self, extras: Vec<Extra>, mut native: Option<&mut Native>) {
        let mut extras = VecDeque::from(extras);
        let mut own = Native::default();
        let activity = ActivityRecord::default();
        while let Some(extra) = extras.pop_front() {
            let native = native.as_deref_mut().unwrap_or(&mut own);
            let of = extra.order;
            let Some(outcome) = self.make_extra(extra, native, &activity) else { return };
            extras.extend(self.process_results_once([(of, outcome)]));
        }
    }

    /// None if the run is closed.
    pub(super) fn make_extra(
        &self,
        extra: Extra,
        native: &mut Native,
        activity: &ActivityRecord,
    ) -> Option<MakeResult> {
        let Extra { order: of, batch_slot, attempts, after } = extra;
        let batch_slot = match batch_slot {
            Some(batch_slot) => batch_slot,
            None => match self.take_lone_slot(of.slot) {
                Ok(batch_slot) => batch_slot?,
                Err(error) => {
                    self.stop(error);
                    return None;
                }
            },
        };
        let order = SampleOrder { of, ticket: self.ticket_of(of)?, batch_slot, attempts };
        Some(self.retry(order, after, native, activity))
    }

    pub(super) fn take_lone_slot(&self, slot: u64) -> Result<Option<BatchSlot>> {
        let columns = &self.shared.columns;
        match self.shared.budgets.batches.acquire(columns.row_bytes(), slot) {
            Ok(permit) => Ok(columns.lone_slots(1, permit)?.pop_front()),
            Err(_) => Ok(None),
        }
    }

    /// Puts steps behind those that must be done before them, unless this thread can do them at once.
    pub(super) fn queue(&self, steps: Vec<DriverStep>) -> Queued {
        if steps.is_empty() {
            return Queued::None;
        }
        let mut outbox = self.outbox.lock();
        if !outbox.is_busy && outbox.steps.is_empty() && !steps.iter().any(DriverStep::has_turn) {
            return Queued::Direct(steps);
        }
        outbox.steps.extend(steps);
        Queued::InOrder
    }

    /// Does steps, or all that are queued, unless another thread is at it. No lock is held meanwhile.
    pub(super) fn perform(&self, queued: Queued) {
        match queued {
            Queued::None => return,
            Queued::Direct(steps) => {
                return steps.into_iter().for_each(|step| self.do_step(step, &mut None));
            }
            Queued::InOrder => {}
        }
        loop {
            let mut outbox = self.outbox.lock();
            if outbox.is_busy {
                return;
            }
            let Some(step) = outbox.steps.pop_front() else { return };
            outbox.is_busy = true;
            let mut error = outbox.error.take();
            drop(outbox);
            self.do_step(step, &mut error);
            let mut outbox = self.outbox.lock();
            outbox.is_busy = false;
            outbox.error = error;
        }
    }

    pub(super) fn do_step(&self, step: DriverStep, error: &mut Option<Error>) {
        let ledger = &self.shared.ledger;
        match step {
            DriverStep::Filtered(samples) => ledger.filtered(samples),
            DriverStep::Retried(line) => ledger.retried(line),
            DriverStep::Record(recorded) => {
                let Recorded { symptom, line, verdict } = *recorded;
                *error = ledger.record(&symptom, line, verdict);
            }
            DriverStep::Replaced(line, index) => ledger.replaced(*line, index.into()),
            DriverStep::Deliver(complete) => self.deliver(*complete),
            DriverStep::Hand(handing) => self.hand(*handing),
            DriverStep::Instruct(instruction) => self.instructions.put(instruction),
            DriverStep::Stop(own, cause) => {
                let error = own.map(|error| *error).or_else(|| error.take());
                // Without an error, the cause is raised itself.
                let error = if cause.is_some() { error } else { error.or_else(|| Some(closed())) };
                self.end(error, cause);
            }
            DriverStep::End(account, standing) => {
                ledger.set_fault_counts(standing);
                ledger.repeated(account.repeated);
                self.dropped.store(account.dropped, Ordering::SeqCst);
                self.end(None, None);
            }
        }
    }

    /// Nothing comes after the batches that were delivered: the end, an error, or a fault of the front that has
    /// functions called for the samples.
    pub(super) fn end(&self, error: Option<Error>, cause: Option<u64>) {
        if self.shared.has_functions() {
            self.instructions.put(match (error, cause) {
                (None, None) => Instruction::End,
                (error, cause) => Instruction::Stop { cause, error },
            });
        } else {
            let batches = self.driver.lock().batches;
            self.handoff.end(batches, error);
        }
        self.horizon.close();
    }

    /// Hands samples to the front that has functions called for them.
    fn hand(&self, handing: PartInProgress) {
        let PartInProgress { number, gathered, keys, may_be_batch } = handing;
        let shared = &self.shared;
        match shared.columns.complete(gathered, &shared.pool, &shared.budgets.batches) {
            Ok(batch) => {
                let part = Part { batch, keys, may_be_batch };
                match number {
                    Some(number) => self.instructions.put_part(number, part),
                    None => self.instructions.put(Instruction::Part(Box::new(part))),
                }
            }
            Err(error) if error.kind() == Kind::Closed => {}
            Err(error) => self.stop(error),
        }
    }

    pub(super) fn deliver(&self, complete: CompleteBatch) {
        let CompleteBatch { number, gathered, position } = complete;
        let shared = &self.shared;
        match shared.columns.complete(gathered, &shared.pool, &shared.budgets.batches) {
            Ok(batch) => {
                self.handoff.put(number, Delivery { batch, end: position });
            }
            Err(error) if error.kind() == Kind::Closed => {}
            Err(error) => self.handoff.end(number, Some(error)),
        }
    }
}
