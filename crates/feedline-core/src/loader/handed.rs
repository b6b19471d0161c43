//! An epoch for a front that runs functions of its own on the samples: it gets them in order, with the
//! faults that were met on the way, and judges those together with its own when it is their turn. What is
//! delivered, and how far the run has come, it says itself.

use std::sync::Arc;
use std::time::Duration;

use super::parts::Filling;
use super::{Epoch, Ledger, Loader};
use crate::deliver::Taken;
use crate::engine::Position;
use crate::error::{Error, Kind, Result};
use crate::fault::{Action, FaultLine, Standing, Symptom};
use crate::sample::{Batch, FieldKind, Location};

/// A fault that the front judges.
#[derive(Clone, Debug)]
pub struct Remark {
    /// The number of the sample in the run.
    pub number: u64,
    /// What it looks like to a policy.
    pub symptom: Symptom,
    /// In words.
    pub line: FaultLine,
    /// What the policy wants: the sample is left out, or replaced already, or the run stands here.
    pub action: Action,
    /// The index of the sample in its place.
    pub by: Option<u64>,
}

/// Samples in order, and what became of those between them.
pub struct Part {
    /// As many as the batch size says, less those that are missing; none at all perhaps.
    pub batch: Batch,
    /// The number of each sample.
    pub numbers: Vec<u64>,
    /// The number behind the last one that was tried.
    pub end: u64,
    /// In order.
    pub remarks: Vec<Remark>,
}

/// How far the consumer has come.
#[derive(Clone, Debug, Default)]
pub struct Stand {
    /// The number behind the last sample that is delivered or judged.
    pub number: u64,
    /// What the next verdict depends on.
    pub standing: Standing,
    /// How far places of skipped samples are filled.
    pub filling: Filling,
}

impl Epoch {
    /// The next samples if they come within that time; None for "not yet", and within for the end.
    pub fn next_part(&mut self, time: Duration) -> Result<Option<Option<Box<Part>>>> {
        self.check_home()?;
        match self.wait_within(time).0 {
            Taken::NotYet => Ok(None),
            Taken::Ready(delivery) => {
                let super::run::Delivery { batch, numbers, behind, remarks, .. } = delivery;
                Ok(Some(Some(Box::new(Part { batch, numbers, end: behind, remarks }))))
            }
            Taken::Ended if self.running.run.is_closed() && !self.is_finished => {
                let message = "the epoch was left: the loader was closed, or another epoch begun";
                Err(Error::new(Kind::Closed, message))
            }
            Taken::Ended => Ok(Some(None)),
            // What came before is still being worked on: the front ends the epoch.
            Taken::Failed(error) => Err(error),
        }
    }

    /// The first number of this epoch that is made, and how many samples a whole epoch has.
    pub fn start_and_length(&self) -> (u64, u64) {
        let run = &self.running.run;
        (run.start_number, run.shared.plan.epoch_len())
    }

    /// The number behind the last sample of the plan: those that follow are repeated.
    pub fn plan_end(&self) -> u64 {
        self.running.run.plan_end()
    }

    /// Whether places of skipped samples are to be filled, at the end, and how far they are.
    pub fn filling(&self) -> Option<Filling> {
        let shared = &self.running.run.shared;
        shared.fills().then(|| {
            let Position { filled: skipped, tried, repeated, .. } = shared.progress.lock().position;
            Filling { skipped, tried, repeated }
        })
    }

    /// All that came was judged, and so many more are needed in the places of skipped ones.
    pub fn fill(&self, more: u64) {
        self.running.run.fill(more);
    }

    /// The consumer has a batch of so many samples, for which it waited, and the run stands there.
    pub fn took(&self, samples: u64, waited: Duration, stand: Stand) {
        let shared = &self.running.run.shared;
        shared.ledger.delivered(samples, waited);
        let Stand { number, standing, filling } = stand;
        *shared.progress.lock() = self.running.run.progress(number, standing, filling);
    }

    /// The consumer has seen the end, and so many good samples were left out with a short last batch.
    pub fn finish(&mut self, dropped: u64) -> Result<()> {
        self.is_finished = true;
        if *self.running.ended.lock() {
            return Ok(());
        }
        self.running.run.finish();
        let settled = self.running.settle(Some(dropped));
        self.running.close();
        settled
    }

    /// Calls this whenever something can be taken, from any thread.
    pub fn on_ready(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.running.run.handoff.on_change(Box::new(wake));
    }
}

impl Loader {
    /// The account of all epochs.
    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.shared.ledger)
    }

    /// Where a sample lies.
    pub fn location(&self, index: u64) -> Option<Location> {
        self.shared.source.location(index)
    }

    /// The names of the fields, and how each becomes a column.
    pub fn fields(&self) -> Vec<(String, &'static str)> {
        let kind = |kind: &FieldKind| match kind {
            FieldKind::Fixed { .. } => "fixed",
            FieldKind::Ragged { .. } => "ragged",
            FieldKind::Variable { .. } => "variable",
            FieldKind::Bytes | FieldKind::Text | FieldKind::Json => "listed",
            FieldKind::List | FieldKind::Texts => "lists",
        };
        let fields = self.shared.columns.fields.iter();
        fields.map(|field| (field.name.to_string(), kind(&field.kind))).collect()
    }

    /// The seed of everything random, and the rank if there are several.
    pub fn seed_and_rank(&self) -> (u64, Option<u64>) {
        let plan = &self.shared.plan;
        (self.shared.seed, (plan.world() > 1).then(|| plan.rank()))
    }

    /// Refuses a loader that was closed, or that is another process's.
    pub fn check_open(&self) -> Result<()> {
        self.check()
    }
}
