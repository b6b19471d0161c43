//! Puts samples in order for a front that has functions called for them: it gets them in parts of a batch's size,
//! with the faults that were met on the way, and judges those itself.

use std::collections::VecDeque;
use std::time::Duration;

use super::handed::Remark;
use super::run::{Made, Order, Outcome, Run, order_of_number};
use crate::collate::{Gathered, Gatherer, Seat};
use crate::deliver::Reorder;
use crate::error::{Error, Kind};
use crate::fault::{Action, Fault, FaultLine, Symptom, wanted};
use crate::sample::{Stage, Ticket};

/// The parts of an epoch that are being made.
pub(super) struct Parts {
    reorder: Reorder<Outcome>,
    gatherer: Gatherer,
    /// The number behind the last sample of each part that the front has not taken.
    ends: VecDeque<u64>,
    /// The number behind the last sample of the plan, and that behind all that was ordered: after the plan come
    /// samples that are repeated.
    plan_end: u64,
    end: u64,
    /// Whether the front fills the slots of skipped samples at the end.
    fills: bool,
    /// Parts that are complete.
    count: u64,
    /// Samples that were filtered out, and are not counted in the report yet.
    filtered: u64,
    /// The number whose sample is being replaced, and how many others were tried for it.
    tried: Option<(u64, u64)>,
    /// What was wrong with that sample.
    replaced: Option<(Ticket, FaultLine, Symptom)>,
    /// Faults since the last part.
    remarks: Vec<Remark>,
    is_over: bool,
    /// Whether all that was ordered is here, and the front must say how many more it needs.
    awaits_front: bool,
}

/// What is left to do without the lock.
#[derive(Default)]
pub(super) struct Drained {
    pub(super) finished: Vec<Finished>,
    pub(super) again: Option<Again>,
}

/// A part whose samples are all here, and what goes with it.
pub(super) struct Finished {
    pub(super) part: u64,
    pub(super) gathered: Gathered,
    pub(super) remarks: Vec<Remark>,
}

/// Something that is to be made for the number whose turn it is.
pub(super) enum Again {
    /// The same sample, after that time.
    Retry(Order, Duration),
    /// Another in the place of a bad one.
    Replace(Replacing),
}

/// A bad sample in whose place another is to be made.
pub(super) struct Replacing {
    pub(super) number: u64,
    pub(super) ticket: Ticket,
    pub(super) seat: Seat,
    pub(super) attempt: u64,
}

/// How far samples were repeated in the place of those that were skipped, so that every rank has as many as the
/// others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filling {
    /// Samples of this epoch that were skipped.
    pub skipped: u64,
    /// Samples, from the first of the epoch on, that were tried in their places.
    pub tried: u64,
    /// Those of them that were good.
    pub repeated: u64,
}

impl Parts {
    pub(super) fn new(size: usize, start: u64, plan_end: u64, fills: bool) -> Parts {
        Parts {
            reorder: Reorder::new(start),
            gatherer: Gatherer::new(size),
            ends: VecDeque::new(),
            plan_end,
            end: start.max(plan_end),
            fills,
            count: 0,
            filtered: 0,
            tried: None,
            replaced: None,
            remarks: Vec::new(),
            is_over: false,
            awaits_front: false,
        }
    }

    /// Takes in results; goes as far as they reach in order.
    pub(super) fn drain(&mut self, run: &Run, outcomes: Vec<(u64, Outcome)>) -> Drained {
        let mut drained = Drained::default();
        for (number, outcome) in outcomes {
            if self.reorder.put(number, outcome).is_err() && !self.is_over {
                let message = format!("sample number {number} has two results");
                self.stop(run, Error::new(Kind::Internal, message));
            }
        }
        while !self.is_over
            && drained.again.is_none()
            && let Some((number, outcome)) = self.reorder.pop()
        {
            match outcome {
                Ok(Made::LeftOut(seat)) => {
                    self.filtered += u64::from(number < self.plan_end);
                    let gathered = self.gatherer.skip(number, seat);
                    self.complete(gathered, &mut drained);
                }
                Ok(Made::Kept(sample, _)) => {
                    if let Some((_, line, symptom)) = self.replaced.take() {
                        self.tried = None;
                        let (action, by) = (Action::Replace, Some(sample.ticket.index));
                        self.remarks.push(Remark { number, symptom, line, action, by });
                    }
                    let gathered = self.gatherer.push(number, sample);
                    self.complete(gathered, &mut drained);
                }
                Err(bad)
                    if self.replaced.is_some() && bad.0.error.kind() != Kind::NoReplacement =>
                {
                    // Another one that was tried is bad as well: the next is tried.
                    drained.again = self.try_another(number, bad.1);
                }
                Err(bad) if number >= self.plan_end && bad.0.error.kind().is_of_sample() => {
                    // Judged when it was its turn, or good then: the next is repeated instead.
                    let gathered = self.gatherer.skip(number, bad.1);
                    self.complete(gathered, &mut drained);
                }
                Err(bad) => self.note_fault(run, number, *bad, &mut drained),
            }
        }
        run.shared.ledger.filtered(std::mem::take(&mut self.filtered));
        let is_at_end = self.reorder.next() == self.end && !self.awaits_front;
        if !self.is_over && drained.again.is_none() && is_at_end {
            if self.fills {
                // What is missing is known when the front has judged all of this.
                self.awaits_front = true;
                let gathered = self.gatherer.flush(self.end);
                self.complete(gathered, &mut drained);
            } else {
                self.finish(run, &mut drained);
            }
        }
        self.update_urgent(run);
        drained
    }

    /// A fault, whose turn it is: retried, or noted for the front, which judges it.
    fn note_fault(&mut self, run: &Run, number: u64, bad: (Fault, Seat), drained: &mut Drained) {
        let (fault, seat) = bad;
        let ledger = &run.shared.ledger;
        let (symptom, line) = (Symptom::of(&fault.error), run.line_of(&fault));
        let (ticket, attempts) = (fault.ticket, fault.attempts);
        // Reads were retried where they failed. What fails later is retried here.
        let wait = ledger.policy().retry_after(&symptom, attempts, &run.key(ticket));
        if let Some(wait) = wait
            && fault.stage != Stage::Collate
        {
            ledger.retried(line);
            self.reorder.again();
            let of = order_of_number(number);
            drained.again = Some(Again::Retry(Order { number, of, ticket, seat, attempts }, wait));
            return;
        }
        let action = wanted(ledger.policy(), &symptom, &line);
        match action {
            Action::Skip => {
                self.remarks.push(Remark { number, symptom, line, action, by: None });
                let gathered = self.gatherer.skip(number, seat);
                self.complete(gathered, drained);
            }
            Action::Replace => {
                self.replaced = Some((ticket, line, symptom));
                drained.again = self.try_another(number, seat);
            }
            Action::Raise => {
                self.remarks.push(Remark { number, symptom, line, action, by: None });
                let gathered = self.gatherer.take(number + 1);
                self.complete(Some(gathered), drained);
                self.stop(run, fault.error);
            }
        }
    }

    /// The order to put another sample in the place of a bad one.
    fn try_another(&mut self, number: u64, seat: Seat) -> Option<Again> {
        self.reorder.again();
        let attempt = self.tried.filter(|tried| tried.0 == number).map_or(0, |tried| tried.1);
        let ticket = self.replaced.as_ref().map(|(ticket, ..)| *ticket)?;
        Some(Again::Replace(Replacing { number, ticket, seat, attempt }))
    }

    /// Samples were tried in the place of a bad one.
    pub(super) fn note_tried(&mut self, number: u64, tried: u64) {
        self.tried = Some((number, tried));
    }

    fn complete(&mut self, gathered: Option<Gathered>, drained: &mut Drained) {
        let Some(gathered) = gathered else { return };
        self.ends.push_back(gathered.end);
        let (part, remarks) = (self.count, std::mem::take(&mut self.remarks));
        drained.finished.push(Finished { part, gathered, remarks });
        self.count += 1;
    }

    /// The front has judged all that was ordered, and needs this many more.
    pub(super) fn fill(&mut self, run: &Run, more: u64) -> Drained {
        let mut drained = Drained::default();
        if !std::mem::take(&mut self.awaits_front) || self.is_over {
            return drained;
        }
        if more > 0 {
            self.end += more;
            run.line_end.move_to(self.end);
        } else {
            self.finish(run, &mut drained);
        }
        drained
    }

    /// The last sample of the epoch is here.
    fn finish(&mut self, run: &Run, drained: &mut Drained) {
        self.is_over = true;
        run.line_end.settle();
        let gathered = self.gatherer.finish(self.end);
        self.complete(gathered, drained);
        run.handoff.end(self.count, None);
    }

    /// Ends the run with an error, after the parts that are complete.
    pub(super) fn stop(&mut self, run: &Run, error: Error) {
        if !self.is_over {
            self.is_over = true;
            run.line_end.settle();
            run.handoff.end(self.count, Some(error));
        }
    }

    /// The front takes the next part.
    pub(super) fn taken(&mut self, run: &Run) {
        self.ends.pop_front();
        self.update_urgent(run);
    }

    /// Says which samples must not wait.
    pub(super) fn update_urgent(&self, run: &Run) {
        let (taken, next) = (self.ends.front().copied(), self.reorder.next());
        run.set_urgent(taken.unwrap_or(next + self.gatherer.missing()), taken.unwrap_or(next));
    }
}
