//! What has happened so far, counted from events, and how busy each stage was.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::escape;
use crate::event::{Event, Slow};
use crate::fault::{CALLING, FaultLine};
use crate::sample::Stage;

/// Faults that a report spells out; the others are only counted.
const SPELLED_OUT: usize = 10_000;
/// Samples that are named as the slowest.
pub(crate) const SLOWEST: usize = 10;
/// Seconds from which the text of a report mentions a sample for being slow.
const WORTH_A_WORD: f64 = 0.1;
/// Deaths, retirements and notes that a report spells out.
const LINES: usize = 100;

/// Everything that is known of a loader's epochs. What was delivered for the first time, skipped and left
/// is what was expected.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Whether it is an executor's, whose samples are calls: what was returned, failed, skipped, cancelled
    /// and left is what was expected, and with what was excluded it is what was submitted.
    pub is_of_calls: bool,
    /// Epochs begun.
    pub epochs: u64,
    /// Epochs that came to their end.
    pub completed: u64,
    /// Samples that were due.
    pub expected: u64,
    /// Samples that the consumer got, replacements and repeated ones among them.
    pub delivered: u64,
    /// Samples left out because they were bad.
    pub skipped: u64,
    /// Calls whose future has their exception; of an executor alone.
    pub failed: u64,
    /// Calls that were not made, or whose result nobody gets; of an executor alone.
    pub cancelled: u64,
    /// Bad samples in whose place others were delivered.
    pub replaced: u64,
    /// How often a sample was retried.
    pub retried: u64,
    /// Faults written to the quarantine file.
    pub quarantined: u64,
    /// Samples delivered a second time to keep the ranks even; these are not expected.
    pub repeated: u64,
    /// Samples left out from the start; these are not expected.
    pub excluded: u64,
    /// Good samples that `drop_last` left out; these are not expected.
    pub dropped: u64,
    /// Good samples that a filter left out; these are not expected.
    pub filtered: u64,
    /// Batches that the consumer got.
    pub batches: u64,
    /// The bad samples by index, and how many times each was bad.
    pub faults: BTreeMap<IndexKey, (FaultLine, u64)>,
    /// How many workers were lost, by cause.
    pub workers_lost: BTreeMap<String, u64>,
    /// The first deaths in words.
    pub deaths: Vec<String>,
    /// Workers that were ended on purpose, and why.
    pub retired: Vec<String>,
    /// The samples that took longest, the longest first.
    pub slowest: Vec<Slow>,
    /// How long the consumer waited for batches.
    pub waited: Duration,
    /// How long the epochs took, the consumer's own work among it.
    pub elapsed: Duration,
    /// How busy the stages were: share of the time of their threads.
    pub busy: Vec<(Stage, f64)>,
    /// What the machine refused, and what was done about it.
    pub notes: Vec<String>,
}

/// Numbers by size, then all other keys by their text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IndexKey {
    /// An index of the source.
    Number(u64),
    /// Any other key, as JSON.
    Text(String),
}

impl IndexKey {
    fn of(index: &Value) -> IndexKey {
        index.as_u64().map_or_else(|| IndexKey::Text(index.to_string()), IndexKey::Number)
    }
}

impl Report {
    /// Counts one event.
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::EpochStarted { expected, .. } => {
                self.epochs += 1;
                self.expected += expected.unwrap_or(0);
            }
            Event::BatchDelivered { samples, waited } => {
                self.batches += 1;
                self.delivered += samples;
                self.waited += *waited;
            }
            Event::SampleRetried(_) => self.retried += 1,
            Event::SampleSkipped(fault) => {
                self.skipped += 1;
                self.note_fault(fault);
            }
            Event::SampleReplaced { fault, .. } => {
                self.replaced += 1;
                self.note_fault(fault);
            }
            Event::CallFailed(fault) => self.note_failed(fault),
            // The error that ends the pool is that of this call too.
            Event::RunStopped { fault, .. } if self.is_of_calls => self.note_failed(fault),
            Event::SamplesRepeated { samples } => self.repeated += samples,
            Event::SamplesExcluded { samples } => self.excluded += samples,
            Event::WorkerDied { cause, text, .. } => {
                *self.workers_lost.entry(cause.clone()).or_default() += 1;
                note(&mut self.deaths, text.clone());
            }
            Event::WorkerRenewed { .. } => note(&mut self.retired, event.to_string()),
            Event::SampleSlow(slow) => self.note_slow(slow),
            Event::EmptyShardsFound { .. }
            | Event::BudgetShrunk { .. }
            | Event::ThreadsRefused { .. }
            | Event::QuarantineFailed { .. }
            | Event::SourceUnavailable { .. }
            | Event::SourceRecovered { .. }
            | Event::ZygoteRestarted { .. }
            | Event::WorkerStalled { .. }
            | Event::BatchStalled { .. } => note(&mut self.notes, event.to_string()),
            Event::EpochEnded { dropped, .. } => {
                self.completed += 1;
                self.dropped += dropped;
                self.expected = self.expected.saturating_sub(*dropped);
            }
            Event::SourceProbed { .. }
            | Event::WorkerReplaced { .. }
            | Event::RunStopped { .. }
            | Event::EpochAbandoned
            | Event::EventsDropped { .. }
            | Event::Told { .. } => {}
        }
    }

    fn note_fault(&mut self, fault: &FaultLine) {
        let full = self.faults.len() >= SPELLED_OUT;
        let key = IndexKey::of(&fault.index);
        match self.faults.get_mut(&key) {
            Some((_, times)) => *times += 1,
            None if full => {}
            None => {
                self.faults.insert(key, (fault.clone(), 1));
            }
        }
    }

    fn note_failed(&mut self, fault: &FaultLine) {
        self.failed += 1;
        self.note_fault(fault);
    }

    fn note_slow(&mut self, slow: &Slow) {
        let at = self.slowest.partition_point(|other| other.seconds >= slow.seconds);
        self.slowest.insert(at, slow.clone());
        self.slowest.truncate(SLOWEST);
    }

    /// Samples that were due and neither delivered nor skipped: of epochs not at their end.
    pub fn pending(&self) -> u64 {
        let known = self.delivered + self.skipped + self.failed + self.cancelled;
        (self.expected + self.repeated).saturating_sub(known)
    }

    /// All calls of an executor.
    pub(crate) fn submitted(&self) -> u64 {
        self.expected + self.excluded
    }

    /// The stage whose threads had the least rest.
    pub(crate) fn busiest(&self) -> Option<(Stage, f64)> {
        self.busy.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        if self.is_of_calls { self.calls_to_json() } else { self.samples_to_json() }
    }

    fn calls_to_json(&self) -> Value {
        json!({
            "submitted": self.submitted(),
            "returned": self.delivered,
            "failed": self.failed,
            "skipped": self.skipped,
            "excluded": self.excluded,
            "cancelled": self.cancelled,
            "pending": self.pending(),
            "replaced": self.replaced,
            "retried": self.retried,
            "quarantined": self.quarantined,
            "faults": self.faults_to_json(),
            "workers_lost": self.workers_lost,
            "deaths": self.deaths,
            "retired": self.retired,
            "slowest": self.slowest.iter().map(Slow::to_json).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    fn faults_to_json(&self) -> Vec<Value> {
        let fault = |(line, times): &(FaultLine, u64)| {
            let mut fault = json!({
                "index": line.index,
                "path": line.path,
                "offset": line.offset,
                "record": line.record,
                "stage": line.stage,
                "kind": line.kind,
                "reason": line.message,
                "traceback": line.traceback,
                "attempts": line.attempts,
                "worker": line.worker,
                "epoch": line.epoch,
                "times": times,
            });
            if let Some(call) = &line.call {
                fault["call"] = call.clone();
            }
            fault
        };
        self.faults.values().map(fault).collect()
    }

    fn samples_to_json(&self) -> Value {
        let busy: serde_json::Map<_, _> = self
            .busy
            .iter()
            .map(|(stage, share)| (stage.name().to_owned(), json!(share)))
            .collect();
        let slowest: Vec<_> = self.slowest.iter().map(Slow::to_json).collect();
        json!({
            "epochs": self.epochs,
            "completed": self.completed,
            "expected": self.expected,
            "delivered": self.delivered,
            "skipped": self.skipped,
            "replaced": self.replaced,
            "retried": self.retried,
            "quarantined": self.quarantined,
            "repeated": self.repeated,
            "excluded": self.excluded,
            "dropped": self.dropped,
            "filtered": self.filtered,
            "pending": self.pending(),
            "batches": self.batches,
            "faults": self.faults_to_json(),
            "workers_lost": self.workers_lost,
            "deaths": self.deaths,
            "retired": self.retired,
            "slowest": slowest,
            "seconds_waited": self.waited.as_secs_f64(),
            "seconds": self.elapsed.as_secs_f64(),
            "busiest": self.busiest().map(|(stage, _)| stage.name()),
            "busy": busy,
            "notes": self.notes,
        })
    }
}

/// A line more, while there are few.
fn note(lines: &mut Vec<String>, line: String) {
    if lines.len() < LINES {
        lines.push(line);
    }
}

impl Report {
    /// The counts of an executor, as a sum.
    fn sum_of_calls(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.delivered == 1 { "" } else { "s" };
        write!(formatter, "{} call{plural} returned", self.delivered)?;
        write!(formatter, " + {} failed + {} skipped", self.failed, self.skipped)?;
        for (count, what) in [
            (self.excluded, "excluded"),
            (self.cancelled, "cancelled"),
            (self.pending(), "not finished"),
        ] {
            if count > 0 {
                write!(formatter, " + {count} {what}")?;
            }
        }
        write!(formatter, " = {} submitted", self.submitted())?;
        for (count, what) in [
            (self.replaced, "replaced"),
            (self.retried, "retried"),
            (self.quarantined, "written to quarantine"),
        ] {
            if count > 0 {
                write!(formatter, "; {count} {what}")?;
            }
        }
        Ok(())
    }

    /// The counts of a loader, as a sum, and where its time went.
    fn sum_of_samples(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.epochs == 1 { "" } else { "s" };
        write!(formatter, "{} epoch{plural}, {} completed: ", self.epochs, self.completed)?;
        write!(formatter, "{} samples delivered", self.delivered)?;
        write!(formatter, " + {} skipped", self.skipped)?;
        if self.pending() > 0 {
            write!(formatter, " + {} not asked for", self.pending())?;
        }
        if self.repeated > 0 {
            write!(formatter, " - {} repeated", self.repeated)?;
        }
        write!(formatter, " = {} expected", self.expected)?;
        for (count, what) in [
            (self.replaced, "replaced by others"),
            (self.retried, "retried"),
            (self.quarantined, "written to quarantine"),
            (self.excluded, "excluded"),
            (self.dropped, "dropped with short last batches"),
            (self.filtered, "filtered out"),
        ] {
            if count > 0 {
                write!(formatter, "; {count} {what}")?;
            }
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
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_of_calls {
            self.sum_of_calls(formatter)?;
        } else {
            self.sum_of_samples(formatter)?;
        }
        if !self.workers_lost.is_empty() {
            let lost: u64 = self.workers_lost.values().sum();
            let causes: Vec<_> =
                self.workers_lost.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
            let plural = if lost == 1 { "" } else { "s" };
            write!(formatter, "\n{lost} worker{plural} lost: {}", causes.join(", "))?;
        }
        for line in self.deaths.iter().chain(&self.retired) {
            write!(formatter, "\n  {}", escape::one_line(line))?;
        }
        for note in &self.notes {
            write!(formatter, "\nnote: {}", escape::one_line(note))?;
        }
        let slowest = self.slowest.iter().filter(|slow| slow.seconds >= WORTH_A_WORD);
        let slowest: Vec<_> = slowest.map(ToString::to_string).collect();
        if !slowest.is_empty() {
            write!(formatter, "\nslowest: {}", escape::one_line(&slowest.join("; ")))?;
        }
        for (line, times) in self.faults.values() {
            write!(formatter, "\n  {} failed", line.name())?;
            if line.stage != CALLING {
                write!(formatter, " in {}", line.stage)?;
            }
            if *times > 1 {
                write!(formatter, " ({times} times)")?;
            }
            if line.stage == CALLING {
                write!(formatter, ": {}", line.kind)?;
            }
            write!(formatter, ": {}", escape::one_line(&line.message))?;
            if line.path.is_some() {
                write!(formatter, "\n    in {}", line.place())?;
            }
        }
        let spelled: u64 = self.faults.values().map(|(_, times)| times).sum();
        match (self.skipped + self.replaced + self.failed).saturating_sub(spelled) {
            0 => Ok(()),
            more => write!(formatter, "\n  and {more} more faults"),
        }
    }
}

/// Busy time of the stages, added up by their threads.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    fetch: AtomicU64,
    worker: AtomicU64,
    collate: AtomicU64,
}

impl Meters {
    /// That stage worked for that long.
    pub(crate) fn add(&self, stage: Stage, time: Duration) {
        let meter = match stage {
            Stage::Source | Stage::Plan | Stage::Fetch => &self.fetch,
            Stage::Worker => &self.worker,
            Stage::Collate | Stage::Deliver => &self.collate,
        };
        meter.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Shares of `elapsed`, for stages with that many threads each.
    pub(crate) fn shares(
        &self,
        elapsed: Duration,
        readers: usize,
        workers: usize,
    ) -> Vec<(Stage, f64)> {
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
    fn bad(index: u64) -> FaultLine {
        FaultLine {
            path: Some("data/cat/7.jpg".into()),
            stage: "worker".into(),
            message: "the image is truncated".into(),
            ..FaultLine::new(index, "CorruptImageError")
        }
    }

    #[test]
    fn a_report_reads_well_and_adds_up() {
        let mut report = Report::default();
        let delivered =
            |samples| Event::BatchDelivered { samples, waited: Duration::from_millis(250) };
        report.apply(&Event::EpochStarted { epoch: 0, expected: Some(10) });
        report.apply(&Event::SampleSkipped(bad(7)));
        report.apply(&delivered(4));
        report.apply(&delivered(4));
        report.apply(&Event::EpochEnded {
            dropped: 1,
            summary: String::new(),
            is_clean: false,
            warning: None,
        });
        report.apply(&Event::EpochStarted { epoch: 1, expected: Some(10) });
        report.apply(&Event::SampleSkipped(bad(7)));
        report.apply(&Event::BudgetShrunk { budget: "files", from: 64, to: 10 });
        report.apply(&delivered(4));
        let death = json!({"worker": 3, "cause": "out of memory", "text": "worker 3 was killed"});
        report.apply(&Event::from_words("worker_died", death).unwrap());
        for (index, seconds) in [(1, 0.05), (2, 2.0), (3, 1.0)] {
            let stage = "worker".to_owned();
            let slow = Slow { index: json!(index), seconds, worker: Some(1), stage };
            report.apply(&Event::SampleSlow(slow));
        }
        report.apply(&Event::EpochAbandoned);
        report.busy = vec![(Stage::Fetch, 0.25), (Stage::Worker, 0.97)];
        assert_eq!(report.pending(), 5);
        insta::assert_snapshot!(report);
        insta::assert_snapshot!("json", serde_json::to_string_pretty(&report.to_json()).unwrap());
    }

    #[test]
    fn the_report_of_an_executor_speaks_of_calls_and_adds_up() {
        let mut report = Report { is_of_calls: true, expected: 12, ..Report::default() };
        let call = |text: &str, arguments: Value| FaultLine {
            stage: CALLING.into(),
            message: "there is no such page".into(),
            call: Some(json!({"function": "crawl.load", "arguments": arguments})),
            attempts: 2,
            ..FaultLine::new(text, "LookupError")
        };
        report.apply(&Event::BatchDelivered { samples: 7, waited: Duration::ZERO });
        report.apply(&Event::CallFailed(call("load('/a')", json!(["/a"]))));
        report.apply(&Event::SampleSkipped(call("load('/b')", json!(["/b"]))));
        report.apply(&Event::SampleRetried(call("load('/c')", json!(["/c"]))));
        report.apply(&Event::SamplesExcluded { samples: 3 });
        report.cancelled = 1;
        let (index, stage) = (json!("load('/d')"), CALLING.to_owned());
        report.apply(&Event::SampleSlow(Slow { index, seconds: 2.0, worker: Some(1), stage }));
        assert_eq!((report.pending(), report.submitted()), (2, 15));
        insta::assert_snapshot!(report);
        insta::assert_snapshot!(
            "calls_json",
            serde_json::to_string_pretty(&report.to_json()).unwrap()
        );
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
