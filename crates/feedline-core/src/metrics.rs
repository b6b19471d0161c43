//! What has happened so far, counted from events, and how busy each stage was.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::escape;
use crate::event::{Event, Slow};
use crate::fault::{CALLING, FaultLine};
use crate::sample::{Stage, in_bytes};

/// How many faults a report lists; the others are only counted.
const LISTED_FAULTS: usize = 10_000;
/// How many samples are listed as the slowest.
pub(crate) const SLOWEST: usize = 10;
/// From how many seconds on the text of a report lists a sample as slow.
const SLOW_SECONDS: f64 = 0.1;
/// The resource that is counted in bytes.
const MEMORY: &str = "memory";
/// How many deaths, retirements and notes a report lists.
const LISTED_NOTES: usize = 100;

/// The account of a loader's epochs: samples delivered for the first time, skipped and pending add up to the expected
/// ones.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Whether it is an executor's, whose samples are calls: returned, failed, skipped, cancelled and pending calls add
    /// up to the expected ones, and with the excluded ones to the submitted ones.
    pub is_of_calls: bool,
    /// Number of started epochs.
    pub epochs: u64,
    /// Number of completed epochs.
    pub completed: u64,
    /// Number of expected samples.
    pub expected: u64,
    /// Number of delivered samples, including replacements and repeated ones.
    pub delivered: u64,
    /// Number of samples skipped because they were bad.
    pub skipped: u64,
    /// Number of calls whose future has their exception; executors only.
    pub failed: u64,
    /// Number of calls that were not started, or whose result was discarded; executors only.
    pub cancelled: u64,
    /// Number of bad samples that were replaced by others.
    pub replaced: u64,
    /// Number of retries.
    pub retried: u64,
    /// Number of faults written to the quarantine file.
    pub quarantined: u64,
    /// Number of samples delivered a second time so that all ranks have the same number; these are not expected.
    pub repeated: u64,
    /// Number of samples excluded from the start; these are not expected.
    pub excluded: u64,
    /// Number of good samples that `drop_last` dropped; these are not expected.
    pub dropped: u64,
    /// Number of good samples that a filter dropped; these are not expected.
    pub filtered: u64,
    /// Number of delivered batches.
    pub batches: u64,
    /// The bad samples by index, and how many times each was bad.
    pub faults: BTreeMap<IndexKey, (FaultLine, u64)>,
    /// The number of lost workers, by cause.
    pub workers_lost: BTreeMap<String, u64>,
    /// Descriptions of the first deaths.
    pub deaths: Vec<String>,
    /// Workers that were stopped on purpose, and why.
    pub renewed: Vec<String>,
    /// The samples that took longest, the longest first.
    pub slowest: Vec<Slow>,
    /// How long the consumer waited for batches.
    pub waited: Duration,
    /// How long the epochs took, including the consumer's own work.
    pub elapsed: Duration,
    /// How busy the stages were: the share of their threads' time.
    pub busy: Vec<(Stage, f64)>,
    /// Number of samples that a cache had.
    pub cache_hits: u64,
    /// Number of samples that a cache did not have.
    pub cache_misses: u64,
    /// Number of entries and files of a cache that were corrupt; their samples count as misses.
    pub cache_corrupt: u64,
    /// The peak of each resource, and its budget.
    pub resources: BTreeMap<&'static str, Resource>,
    /// What the machine refused, and what was done about it.
    pub notes: Vec<String>,
}

/// How much of a resource was used at most, and how much was allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The most in use at a time.
    pub peak: u64,
    /// What may be in use.
    pub budget: u64,
    /// The same for all loaders of the process, if they share it.
    pub process: Option<(u64, u64)>,
}

impl Resource {
    fn to_json(self) -> Value {
        let (process_peak, process_budget) = self.process.unzip();
        json!({
            "peak": self.peak,
            "budget": self.budget,
            "process_peak": process_peak,
            "process_budget": process_budget,
        })
    }
}

/// A sort key: numbers by size, then other keys by their text.
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
            // The error that ends the pool is also the error of this call.
            Event::RunStopped { fault, .. } if self.is_of_calls => self.note_failed(fault),
            Event::SamplesRepeated { samples } => self.repeated += samples,
            Event::SamplesExcluded { samples } => self.excluded += samples,
            Event::WorkerDied { cause, text, .. } => {
                *self.workers_lost.entry(cause.clone()).or_default() += 1;
                note(&mut self.deaths, text.clone());
            }
            Event::WorkerRenewed { .. } => note(&mut self.renewed, event.to_string()),
            Event::SampleSlow(slow) => self.note_slow(slow),
            Event::EmptyShardsFound { .. }
            | Event::IndexNotSaved { .. }
            | Event::BudgetShrunk(_)
            | Event::CacheStopped { .. }
            | Event::ThreadsRefused { .. }
            | Event::QuarantineFailed { .. }
            | Event::SourceUnavailable { .. }
            | Event::SourceRecovered { .. }
            | Event::ZygoteRestarted { .. }
            | Event::WorkerStalled { .. }
            | Event::WorkersChanged { .. }
            | Event::BatchStalled { .. } => note(&mut self.notes, event.to_string()),
            Event::EpochEnded { dropped, .. } => {
                self.completed += 1;
                self.dropped += dropped;
                self.expected = self.expected.saturating_sub(*dropped);
            }
            Event::SourceProbed { .. }
            | Event::WorkerReplaced { .. }
            | Event::OpenFilesRaised { .. }
            | Event::RunStopped { .. }
            | Event::EpochAbandoned
            | Event::EventsDropped { .. }
            | Event::Custom { .. } => {}
        }
    }

    /// Adds peaks; of two for the same resource, the higher one counts.
    pub(crate) fn note_resources(
        &mut self,
        resources: impl IntoIterator<Item = (&'static str, Resource)>,
    ) {
        for (name, resource) in resources {
            let known = self.resources.entry(name).or_insert(resource);
            let peak = known.peak.max(resource.peak);
            *known = Resource { peak, ..resource };
        }
    }

    fn note_fault(&mut self, fault: &FaultLine) {
        let full = self.faults.len() >= LISTED_FAULTS;
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

    /// Number of expected samples that were neither delivered nor skipped, in epochs that have not ended.
    pub fn pending(&self) -> u64 {
        let known = self.delivered + self.skipped + self.failed + self.cancelled;
        (self.expected + self.repeated).saturating_sub(known)
    }

    /// Number of all calls of an executor.
    pub(crate) fn submitted(&self) -> u64 {
        self.expected + self.excluded
    }

    /// The busiest stage.
    pub(crate) fn busiest(&self) -> Option<(Stage, f64)> {
        self.busy.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// The report for programs.
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
            "renewed": self.renewed,
            "slowest": self.slowest.iter().map(Slow::to_json).collect::<Vec<_>>(),
            "resources": self.resources_to_json(),
            "notes": self.notes,
        })
    }

    fn resources_to_json(&self) -> Value {
        let resources = self.resources.iter();
        resources.map(|(name, resource)| ((*name).to_owned(), resource.to_json())).collect()
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
            "renewed": self.renewed,
            "slowest": slowest,
            "seconds_waited": self.waited.as_secs_f64(),
            "seconds": self.elapsed.as_secs_f64(),
            "busiest": self.busiest().map(|(stage, _)| stage.name()),
            "busy": busy,
            "cache_hits": self.cache_hits,
            "cache_misses": self.cache_misses,
            "cache_corrupt": self.cache_corrupt,
            "resources": self.resources_to_json(),
            "notes": self.notes,
        })
    }
}

/// Adds a line, up to a limit.
fn note(lines: &mut Vec<String>, line: String) {
    if lines.len() < LISTED_NOTES {
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
            write!(formatter, " + {} not delivered", self.pending())?;
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
        let asked = self.cache_hits + self.cache_misses;
        if asked > 0 {
            let (hits, share) = (self.cache_hits, 100.0 * self.cache_hits as f64 / asked as f64);
            write!(formatter, "\ncache: {hits} of {asked} samples ({share:.0} %)")?;
            if self.cache_corrupt > 0 {
                write!(formatter, "; {} corrupt entries were loaded again", self.cache_corrupt)?;
            }
        }
        Ok(())
    }
}

impl Report {
    fn peaks(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.resources.is_empty() {
            return Ok(());
        }
        let shown = |(name, resource): (&&str, &Resource)| {
            let amount =
                |number| if name.ends_with(MEMORY) { in_bytes(number) } else { number.to_string() };
            let (peak, budget) = (amount(resource.peak), amount(resource.budget));
            format!("{} {peak} of {budget}", name.replace('_', " "))
        };
        let shown: Vec<_> = self.resources.iter().map(shown).collect();
        write!(formatter, "\npeaks: {}", shown.join("; "))
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
        for line in self.deaths.iter().chain(&self.renewed) {
            write!(formatter, "\n  {}", escape::one_line(line))?;
        }
        for note in &self.notes {
            write!(formatter, "\nnote: {}", escape::one_line(note))?;
        }
        let slowest = self.slowest.iter().filter(|slow| slow.seconds >= SLOW_SECONDS);
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
        let listed: u64 = self.faults.values().map(|(_, times)| times).sum();
        match (self.skipped + self.replaced + self.failed).saturating_sub(listed) {
            0 => {}
            more => write!(formatter, "\n  and {more} more faults")?,
        }
        self.peaks(formatter)
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
    /// Adds busy time to a stage.
    pub(crate) fn add(&self, stage: Stage, time: Duration) {
        let meter = match stage {
            Stage::Source | Stage::Plan | Stage::Fetch => &self.fetch,
            Stage::Worker => &self.worker,
            Stage::Collate | Stage::Deliver => &self.collate,
        };
        meter.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Shares of `elapsed`, for stages with this many threads each.
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
    use crate::budget::Shrunk;
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
        let why = "the system has no descriptor left (EMFILE)".to_owned();
        report.apply(&Event::BudgetShrunk(Shrunk { budget: "files", from: 64, to: 10, why }));
        report.note_resources([
            ("files", Resource { peak: 10, budget: 64, process: Some((20, 64)) }),
            ("memory", Resource { peak: 96 << 20, budget: 128 << 20, process: None }),
            ("files", Resource { peak: 7, budget: 64, process: Some((20, 64)) }),
        ]);
        report.apply(&delivered(4));
        let death = json!({"worker": 3, "cause": "out of memory", "text": "worker 3 was killed"});
        report.apply(&Event::from_json("worker_died", death).unwrap());
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
    fn the_report_of_an_executor_counts_calls_and_adds_up() {
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
        for index in 0..LISTED_FAULTS as u64 + 3 {
            report.apply(&Event::SampleSkipped(bad(index)));
        }
        assert!(report.to_string().ends_with("and 3 more faults"));
    }
}
