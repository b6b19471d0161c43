//! Where everything comes together in order: results become batches, faults get their verdict, and ranks
//! that have lost samples get others in their places.

use std::collections::VecDeque;
use std::time::Duration;

use super::Progress;
use super::handed::Remark;
use super::run::{Made, Order, Outcome, Run};
use crate::collate::{Collector, Gathered, Seat};
use crate::deliver::Reorder;
use crate::error::{Error, Kind};
use crate::fault::{Action, Fault, FaultLine, Stop, Symptom, Verdict, wanted};
use crate::sample::{Stage, Ticket};

/// Where everything comes together in order.
pub(super) struct Table {
    pub(super) reorder: Reorder<Outcome>,
    pub(super) collector: Collector,
    /// The number behind the last sample of each batch that the consumer has not taken.
    pub(super) ends: VecDeque<u64>,
    /// Samples that are made again, for a checkpoint found them in no batch; and how many of these could not
    /// be, although they had been counted.
    remade: u64,
    unmade: u64,
    /// The first number, that behind the last of the plan, and that behind all that was ordered: after
    /// the plan come samples that are repeated.
    start: u64,
    plan_end: u64,
    end: u64,
    /// Samples of the epoch.
    length: u64,
    /// Whether places of skipped samples are filled with others at the end, and how far they are.
    fills: bool,
    filling: Filling,
    /// Samples in a row that could not be repeated.
    barren: u64,
    batches: u64,
    /// Good samples, and some that were filtered out, that the ledger has not heard of.
    good: u64,
    filtered: u64,
    /// The number whose sample is being replaced, and how many others were tried for it.
    tried: Option<(u64, u64)>,
    /// What was wrong with that sample.
    replaced: Option<(Ticket, FaultLine, Symptom)>,
    /// Faults that the front judges, if it does, since the last batch.
    remarks: Vec<Remark>,
    /// Of this run: samples in batches, skipped, filtered out, come again, and left out with a short last
    /// batch.
    gathered: u64,
    skipped: u64,
    left_out: u64,
    repeated: u64,
    pub(super) dropped: u64,
    is_over: bool,
    /// Whether all that was ordered is here, and the front is to say how many more it needs.
    awaits_front: bool,
}

/// What is left to do without the lock.
#[derive(Default)]
pub(super) struct Drained {
    pub(super) finished: Vec<Finished>,
    pub(super) again: Option<Again>,
}

/// A batch whose samples are all here, and what goes with it.
pub(super) struct Finished {
    pub(super) batch: u64,
    pub(super) gathered: Gathered,
    pub(super) progress: Progress,
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

/// How far samples came a second time in the places of those that were skipped, so that every rank has as
/// many as the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filling {
    /// Samples of this epoch that were skipped.
    pub skipped: u64,
    /// Samples, from the first of the epoch on, that were tried in their places.
    pub tried: u64,
    /// Those of them that were good.
    pub repeated: u64,
}

impl Filling {
    /// How many are still to be repeated.
    pub fn missing(&self) -> u64 {
        self.skipped.saturating_sub(self.repeated)
    }
}

/// The numbers of an epoch, and how far it was filled before.
pub(super) struct Numbers {
    pub(super) start: u64,
    /// Those before it that are made again.
    pub(super) again: Vec<u64>,
    pub(super) plan_end: u64,
    pub(super) length: u64,
    pub(super) fills: bool,
    pub(super) filling: Filling,
}

impl Table {
    pub(super) fn new(collector: Collector, numbers: Numbers) -> Table {
        let Numbers { start, again, plan_end, length, fills, filling } = numbers;
        Table {
            remade: again.len() as u64,
            unmade: 0,
            reorder: Reorder::new(again, start),
            collector,
            ends: VecDeque::new(),
            start,
            plan_end,
            end: start.max(plan_end),
            length,
            fills,
            filling,
            barren: 0,
            batches: 0,
            good: 0,
            filtered: 0,
            tried: None,
            replaced: None,
            remarks: Vec::new(),
            gathered: 0,
            skipped: 0,
            left_out: 0,
            repeated: 0,
            dropped: 0,
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
            && self.norm_is_known()
            && let Some((number, outcome)) = self.reorder.pop()
        {
            let mut by = 0;
            let outcome = match outcome {
                Ok(Made::LeftOut(seat)) => {
                    self.leave_out(run, number, seat, &mut drained);
                    continue;
                }
                Ok(Made::Kept(sample, bucket)) => {
                    by = sample.ticket.index;
                    self.collector.push(number, sample, bucket).map_err(|bad| {
                        let (fault, seat) = *bad;
                        run.fault(fault.ticket, fault.stage, fault.error, seat)
                    })
                }
                Err(bad) => Err(bad),
            };
            match outcome {
                Ok(gathered) => {
                    self.is_good(run, number, by);
                    self.complete(run, number, gathered, &mut drained);
                }
                Err(bad)
                    if self.replaced.is_some() && bad.0.error.kind() != Kind::NoReplacement =>
                {
                    // Another one that was tried does not fit either: the next is tried.
                    drained.again = self.try_another(number, bad.1);
                }
                Err(bad) if number >= self.plan_end && bad.0.error.kind().is_of_sample() => {
                    // Judged when it was its turn, or good then: the next is repeated instead.
                    self.is_barren(number);
                    let gathered = self.collector.skip(number, bad.1);
                    self.complete(run, number, gathered, &mut drained);
                }
                Err(bad) => self.judge(run, number, *bad, &mut drained),
            }
        }
        let is_at_end = self.reorder.next() == self.end && !self.awaits_front;
        if !self.is_over && drained.again.is_none() && is_at_end {
            self.fill_or_finish(run, &mut drained);
        }
        run.update_urgent_of_table(self);
        drained
    }

    /// Whether it is decided which shapes the next batch has. Most of its samples decide, so all must be here: the
    /// first alone might be the odd one, and then all others would be taken for bad.
    fn norm_is_known(&mut self) -> bool {
        let Some(count) = self.collector.undecided() else { return true };
        let count = count.min(self.end - self.reorder.next());
        let Some(outcomes) = self.reorder.peek(count as usize) else { return false };
        self.collector.set_norm(outcomes.filter_map(|outcome| match outcome {
            Ok(Made::Kept(sample, _)) => Some(sample),
            Ok(Made::LeftOut(_)) | Err(_) => None,
        }));
        true
    }

    /// A sample that the user does not want: those that follow move up.
    fn leave_out(&mut self, run: &Run, number: u64, seat: Seat, drained: &mut Drained) {
        if number >= self.plan_end {
            self.is_barren(number);
        } else {
            self.filtered += 1;
            self.left_out += 1;
            self.good += u64::from(number >= self.start);
        }
        let gathered = self.collector.skip(number, seat);
        self.complete(run, number, gathered, drained);
    }

    /// A sample that should come again cannot.
    fn is_barren(&mut self, number: u64) {
        self.barren += 1;
        if number < self.start {
            self.unmade += 1;
            self.filling.repeated = self.filling.repeated.saturating_sub(1);
        }
    }

    fn is_good(&mut self, run: &Run, number: u64, by: u64) {
        if let Some((_, line, symptom)) = self.replaced.take() {
            self.tried = None;
            if run.shared.hands_on() {
                let (action, by) = (Action::Replace, Some(by));
                self.remarks.push(Remark { number, symptom, line, action, by });
            } else if number >= self.start {
                run.shared.ledger.replaced(line, by.into());
            }
        } else if number < self.start {
            // Counted when it was made for the first time.
        } else if number >= self.plan_end {
            self.filling.repeated += 1;
            self.barren = 0;
            self.repeated += 1;
        } else {
            self.good += 1;
        }
    }

    /// A fault, whose turn it is.
    fn judge(&mut self, run: &Run, number: u64, bad: (Fault, Seat), drained: &mut Drained) {
        let (fault, seat) = bad;
        let ledger = &run.shared.ledger;
        let (symptom, line) = (Symptom::of(&fault.error), run.line_of(&fault));
        let (ticket, attempts) = (fault.ticket, fault.attempts);
        // Reads were retried where they failed. What fails later is retried here, where nothing
        // that comes before it can be waiting for what it takes.
        let wait = ledger.policy().retry_after(&symptom, attempts, &run.key(ticket));
        if let Some(wait) = wait
            && fault.stage != Stage::Collate
        {
            ledger.retried(line);
            self.reorder.again();
            let of = super::run::order_of_number(number);
            drained.again = Some(Again::Retry(Order { number, of, ticket, seat, attempts }, wait));
            return;
        }
        let verdict = if run.shared.hands_on() {
            // Judged by the front, when it is its turn there.
            let action = wanted(ledger.policy(), &symptom, &line);
            if action != Action::Replace {
                let (symptom, line) = (symptom.clone(), line.clone());
                self.remarks.push(Remark { number, symptom, line, action, by: None });
            }
            match action {
                Action::Skip => Verdict::Skip,
                Action::Replace => Verdict::Replace,
                Action::Raise => {
                    let gathered = self.collector.take(number + 1);
                    self.complete(run, number, Some(gathered), drained);
                    Verdict::Stop(Stop::Raised)
                }
            }
        } else if number < self.start && wanted(ledger.policy(), &symptom, &line) == Action::Replace
        {
            // Judged and counted when it was replaced for the first time.
            Verdict::Replace
        } else {
            self.tell_good(run);
            ledger.judge(&symptom, line.clone())
        };
        match verdict {
            Verdict::Skip => {
                self.skipped += 1;
                self.filling.skipped += u64::from(self.fills);
                let gathered = self.collector.skip(number, seat);
                self.complete(run, number, gathered, drained);
            }
            Verdict::Replace => {
                self.replaced = Some((ticket, line, symptom));
                drained.again = self.try_another(number, seat);
            }
            Verdict::Stop(Stop::Raised) => self.stop(run, fault.error),
            Verdict::Stop(Stop::TooMany(error)) => self.stop(run, error),
        }
    }

    /// The order to put another sample in the place of a bad one.
    fn try_another(&mut self, number: u64, seat: Seat) -> Option<Again> {
        self.reorder.again();
        let attempt = self.tried.filter(|tried| tried.0 == number).map_or(0, |tried| tried.1);
        let ticket = self.replaced.as_ref().map(|(ticket, ..)| *ticket)?;
        Some(Again::Replace(Replacing { number, ticket, seat, attempt }))
    }

    /// So many others were tried in the place of a bad sample.
    pub(super) fn note_tried(&mut self, number: u64, tried: u64) {
        self.tried = Some((number, tried));
    }

    fn tell_good(&mut self, run: &Run) {
        if !run.shared.hands_on() {
            run.shared.ledger.good(std::mem::take(&mut self.good));
        }
        run.shared.ledger.filtered(std::mem::take(&mut self.filtered));
    }

    fn complete(
        &mut self,
        run: &Run,
        number: u64,
        gathered: Option<Gathered>,
        drained: &mut Drained,
    ) {
        if let Some(tried) = (number + 1).checked_sub(self.plan_end) {
            self.filling.tried = self.filling.tried.max(tried);
        }
        let Some(gathered) = gathered else { return };
        self.gathered += gathered.samples.len() as u64;
        self.ends.push_back(gathered.end);
        self.tell_good(run);
        let progress = run.progress(gathered.end, run.shared.ledger.standing(), self.filling);
        let (batch, remarks) = (self.batches, std::mem::take(&mut self.remarks));
        drained.finished.push(Finished { batch, gathered, progress, remarks });
        self.batches += 1;
    }

    /// All that was ordered is here: samples are missing in the places of skipped ones, or it is the end.
    fn fill_or_finish(&mut self, run: &Run, drained: &mut Drained) {
        if self.fills && run.shared.hands_on() {
            // What is missing is known when the front has judged all of this.
            self.awaits_front = true;
            let gathered = self.collector.flush(self.end);
            return self.complete(run, self.end - 1, gathered, drained);
        }
        // Where none of all samples can be repeated, nothing can be done.
        let hope = self.length.saturating_sub(self.barren);
        let more = if self.fills { self.filling.missing().min(hope) } else { 0 };
        if more > 0 {
            self.end += more;
            run.line_end.move_to(self.end);
        } else {
            self.finish(run, drained);
        }
    }

    /// The front has judged all that was ordered, and needs so many more.
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

    /// The last sample of the epoch is here: everything must add up.
    fn finish(&mut self, run: &Run, drained: &mut Drained) {
        self.is_over = true;
        run.line_end.settle();
        while let Some(gathered) = self.collector.finish(self.end) {
            if run.shared.batching.drop_last && !run.shared.hands_on() {
                self.dropped += gathered.samples.len() as u64;
            } else {
                self.complete(run, self.end - 1, Some(gathered), drained);
            }
        }
        self.tell_good(run);
        if !run.shared.hands_on() {
            // In the places of those that could not be made again others were repeated.
            run.shared.ledger.repeated(self.repeated.saturating_sub(self.unmade));
        }
        let due = self.plan_end.saturating_sub(self.start) + self.remade + self.repeated;
        let sum = self.gathered + self.skipped + self.left_out + self.dropped + self.unmade;
        let error = (sum != due).then(|| {
            let message = format!(
                "{} samples were delivered, {} skipped, {} filtered out and {} dropped, but {due} were due",
                self.gathered, self.skipped, self.left_out, self.dropped
            );
            Error::new(Kind::Internal, message)
        });
        run.handoff.end(self.batches, error);
    }

    /// Ends the run with an error, after the batches that are complete.
    pub(super) fn stop(&mut self, run: &Run, error: Error) {
        if !self.is_over {
            self.is_over = true;
            run.line_end.settle();
            run.handoff.end(self.batches, Some(error));
        }
    }
}
