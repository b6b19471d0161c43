//! What has happened so far, counted from events, and how busy each stage was.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::event::{Event, FaultLine};
use crate::sample::Stage;

/// Faults that a report spells out; the others are only counted.
const SPELLED_OUT: usize = 10_000;

/// Everything that is known of a loader's epochs. The sum of what was delivered, skipped and left is
/// what was expected.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Epochs begun.
    pub epochs: u64,
    /// Epochs that came to their end.
    pub completed: u64,
    /// Samples that were due.
    pub expected: u64,
    /// Samples that the consumer got, replacements among them.
    pub delivered: u64,
    /// Samples left out because they were bad.
    pub skipped: u64,
    /// Bad samples in whose place others were delivered.
    pub replaced: u64,
    /// Good samples that `drop_last` left out; these are not expected.
    pub dropped: u64,
    /// Batches that the consumer got.
    pub batches: u64,
    /// The bad samples by index, and how many times each was bad.
    pub faults: BTreeMap<u64, (FaultLine, u64)>,
    /// How long the consumer waited for batches.
    pub waited: Duration,
    /// How long the epochs took, the consumer's own work among it.
    pub elapsed: Duration,
    /// How busy the stages were: share of the time of their threads.
    pub busy: Vec<(Stage, f64)>,
    /// What the machine refused, and what was done about it.
    pub notes: Vec<String>,
}

impl Report {
    /// Counts one event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::EpochStarted { expected, .. } => {
                self.epochs += 1;
                self.expected += expected;
            }
            Event::BatchDelivered { samples, waited } => {
                self.batches += 1;
                self.delivered += samples;
                self.waited += *waited;
            }
            Event::SampleSkipped(fault) => {
                self.skipped += 1;
                self.note_fault(fault);
            }
            Event::SampleReplaced { fault, .. } => {
                self.replaced += 1;
                self.note_fault(fault);
            }
            Event::BudgetShrunk { budget, from, to } => {
                self.notes.push(format!("the system refused more {budget}: {from} became {to}"));
            }
            Event::ThreadsRefused { wanted, got } => {
                self.notes.push(format!("the system allowed {got} of {wanted} threads"));
            }
            Event::EpochEnded { dropped } => {
                self.completed += 1;
                self.dropped += dropped;
                self.expected -= dropped;
            }
            Event::EpochLeft => {}
        }
    }

    fn note_fault(&mut self, fault: &FaultLine) {
        let full = self.faults.len() >= SPELLED_OUT;
        match self.faults.get_mut(&fault.index) {
            Some((_, times)) => *times += 1,
            None if full => {}
            None => {
                self.faults.insert(fault.index, (fault.clone(), 1));
            }
        }
    }

    /// Samples that were due and neither delivered nor skipped: of epochs not at their end.
    pub fn pending(&self) -> u64 {
        self.expected.saturating_sub(self.delivered + self.skipped)
    }

    /// The stage whose threads had the least rest.
    pub fn busiest(&self) -> Option<(Stage, f64)> {
        self.busy.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let faults: Vec<_> = self
            .faults
            .values()
            .map(|(line, times)| {
                json!({
                    "index": line.index,
                    "path": line.path.as_ref().map(|path| path.to_string_lossy()),
                    "stage": line.stage.name(),
                    "kind": line.kind.name(),
                    "reason": line.message,
                    "epoch": line.epoch,
                    "times": times,
                })
            })
            .collect();
        let busy: serde_json::Map<_, _> = self
            .busy
            .iter()
            .map(|(stage, share)| (stage.name().to_owned(), json!(share)))
            .collect();
        json!({
            "epochs": self.epochs,
            "completed": self.completed,
            "expected": self.expected,
            "delivered": self.delivered,
            "skipped": self.skipped,
            "replaced": self.replaced,
            "dropped": self.dropped,
            "pending": self.pending(),
            "batches": self.batches,
            "faults": faults,
            "seconds_waited": self.waited.as_secs_f64(),
            "seconds": self.elapsed.as_secs_f64(),
            "busiest": self.busiest().map(|(stage, _)| stage.name()),
            "busy": busy,
            "notes": self.notes,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.epochs == 1 { "" } else { "s" };
        write!(formatter, "{} epoch{plural}, {} completed: ", self.epochs, self.completed)?;
        write!(formatter, "{} samples delivered", self.delivered)?;
        write!(formatter, " + {} skipped", self.skipped)?;
        if self.pending() > 0 {
            write!(formatter, " + {} not asked for", self.pending())?;
        }
        write!(formatter, " = {} expected", self.expected)?;
        if self.replaced > 0 {
            write!(formatter, "; {} replaced by others", self.replaced)?;
        }
        if self.dropped > 0 {
            write!(formatter, "; {} dropped with short last batches", self.dropped)?;
        }
        write!(
            formatter,
            "\n{} batches in {:.2} s; the consumer waited {:.2} s",
            self.batches,
            self.elapsed.as_secs_f64(),
            self.waited.as_secs_f64()
        )?;
        if let Some((stage, share)) = self.busiest() {
            write!(formatter, "; busiest stage: {} ({:.0} %)", stage.name(), share * 100.0)?;
        }
        for note in &self.notes {
            write!(formatter, "\nnote: {note}")?;
        }
        for (line, times) in self.faults.values() {
            write!(formatter, "\n  sample {} failed in {}", line.index, line.stage.name())?;
            if *times > 1 {
                write!(formatter, " ({times} times)")?;
            }
            write!(formatter, ": {}", line.message)?;
            if let Some(path) = &line.path {
                write!(formatter, "\n    in {}", path.display())?;
            }
        }
        let spelled: u64 = self.faults.values().map(|(_, times)| times).sum();
        match (self.skipped + self.replaced).saturating_sub(spelled) {
            0 => Ok(()),
            more => write!(formatter, "\n  and {more} more faults"),
        }
    }
}

/// Busy time of the stages, added up by their threads.
#[derive(Debug, Default)]
pub struct Meters {
    fetch: AtomicU64,
    worker: AtomicU64,
    collate: AtomicU64,
}

impl Meters {
    /// That stage worked for that long.
    pub fn add(&self, stage: Stage, time: Duration) {
        let meter = match stage {
            Stage::Source | Stage::Plan | Stage::Fetch => &self.fetch,
            Stage::Worker => &self.worker,
            Stage::Collate | Stage::Deliver => &self.collate,
        };
        meter.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Shares of `elapsed`, for stages with that many threads each.
    pub fn shares(&self, elapsed: Duration, readers: usize, workers: usize) -> Vec<(Stage, f64)> {
        let share = |meter: &AtomicU64, threads: usize| {
            let busy = meter.load(Ordering::Relaxed) as f64 / 1e9;
            (busy / (elapsed.as_secs_f64() * threads.max(1) as f64).max(1e-9)).min(1.0)
        };
        vec![
            (Stage::Fetch, share(&self.fetch, readers)),
            (Stage::Worker, share(&self.worker, workers)),
            (Stage::Collate, share(&self.collate, workers)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn bad(index: u64) -> FaultLine {
        FaultLine {
            index,
            epoch: 0,
            path: Some("data/cat/7.jpg".into()),
            stage: Stage::Worker,
            kind: Kind::Damaged,
            message: "the image is cut off".into(),
        }
    }

    #[test]
    fn a_report_reads_well_and_adds_up() {
        let mut report = Report::default();
        let delivered =
            |samples| Event::BatchDelivered { samples, waited: Duration::from_millis(250) };
        report.apply(&Event::EpochStarted { epoch: 0, expected: 10 });
        report.apply(&Event::SampleSkipped(bad(7)));
        report.apply(&delivered(4));
        report.apply(&delivered(4));
        report.apply(&Event::EpochEnded { dropped: 1 });
        report.apply(&Event::EpochStarted { epoch: 1, expected: 10 });
        report.apply(&Event::SampleSkipped(bad(7)));
        report.apply(&Event::BudgetShrunk { budget: "files", from: 64, to: 10 });
        report.apply(&delivered(4));
        report.apply(&Event::EpochLeft);
        report.busy = vec![(Stage::Fetch, 0.25), (Stage::Worker, 0.97)];
        assert_eq!(report.pending(), 5);
        insta::assert_snapshot!(report);
        insta::assert_snapshot!("json", serde_json::to_string_pretty(&report.to_json()).unwrap());
    }

    #[test]
    fn faults_beyond_the_list_are_still_counted() {
        let mut report = Report::default();
        for index in 0..SPELLED_OUT as u64 + 3 {
            report.apply(&Event::SampleSkipped(bad(index)));
        }
        assert!(report.to_string().ends_with("and 3 more faults"));
    }
}
