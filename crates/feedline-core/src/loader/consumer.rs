//! The consumer of a running epoch: what it has taken, and what the threads are doing while it waits.

use std::time::Duration;

use super::Progress;
use super::activity::ActivityRecord;
use super::run::{Delivery, Run};
use crate::engine::Position;
use crate::event::Event;
use crate::run_state::Taken;

/// Samples that are named when the consumer has waited for long.
const SPELLED_OUT: usize = 4;

/// What is written down when the consumer has a batch.
pub(super) struct Receipt {
    samples: u64,
    waited: Duration,
    end: Position,
}

/// How long the consumer has waited for the next batch.
#[derive(Default)]
pub(super) struct Waiting {
    time: Duration,
    is_reported: bool,
}

impl Run {
    /// The consumer takes this batch. What is to be written down when it has it.
    pub(super) fn taken(&self, delivery: &Delivery, waited: Duration) -> Receipt {
        {
            let mut driver = self.driver.lock();
            driver.engine.taken();
            self.update_urgent(&driver);
        }
        let waited = waited + std::mem::take(&mut *self.waiting.lock()).time;
        Receipt { samples: delivery.batch.len() as u64, waited, end: delivery.end.clone() }
    }

    /// The consumer has the batch of a receipt.
    pub(super) fn confirmed(&self, receipt: Receipt) {
        self.delivered(receipt.samples, receipt.waited, receipt.end);
    }

    /// The consumer has a batch, which brings it to this position.
    pub(super) fn delivered(&self, samples: u64, waited: Duration, position: Position) {
        self.shared.ledger.delivered(samples, waited);
        let taken = {
            let mut taken = self.taken.lock();
            *taken = Taken { batches: taken.batches + 1, samples: taken.samples + samples };
            *taken
        };
        let (epoch, rest) = (self.epoch, self.rest.clone());
        *self.shared.progress.lock() = Progress { epoch, rest, position, taken };
    }

    /// Adds a wait that brought no batch. After `stall`, logs once what the threads are doing.
    pub(super) fn add_waiting(&self, waited: Duration) {
        let mut waiting = self.waiting.lock();
        waiting.time += waited;
        let Some(stall) = self.shared.settings.stall else { return };
        if waiting.time >= stall && !std::mem::replace(&mut waiting.is_reported, true) {
            let (waited, text) = (waiting.time, self.what_is_done());
            self.shared.ledger.event(Event::BatchStalled { waited, text });
        }
    }

    /// What the threads are at, the samples that come first before the others.
    fn what_is_done(&self) -> String {
        let mut doing: Vec<_> =
            self.activities.iter().filter_map(ActivityRecord::current).collect();
        doing.sort_unstable_by_key(|(number, ..)| *number);
        let mut shown: Vec<_> = doing
            .iter()
            .take(SPELLED_OUT)
            .map(|(_, index, doing, time)| {
                let place = self.shared.source.location(*index);
                let place = place.map_or_else(String::new, |place| format!(" ({place})"));
                let seconds = time.as_secs_f64();
                format!("{} sample {index}{place} for {seconds:.1} s", doing.name())
            })
            .collect();
        if self.gate.is_open() {
            shown.insert(0, "the source is unavailable".to_owned());
        }
        match doing.len().saturating_sub(SPELLED_OUT) {
            0 if shown.is_empty() => shown.push("all threads are idle".to_owned()),
            0 => {}
            more => shown.push(format!("{more} more")),
        }
        shown.join(", ")
    }
}
