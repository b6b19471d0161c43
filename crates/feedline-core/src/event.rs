//! Every decision has an event: reports, logs, metrics and callbacks are all derived from these.

use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

use crate::budget::Shrunk;
use crate::escape;
use crate::fault::{CALLING, FaultLine, named};

/// Log level of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing is wrong.
    Info,
    /// Something went wrong, and the run continues.
    Warning,
    /// Something went wrong that the run cannot handle.
    Error,
}

impl Level {
    /// Python's name of the level, in lowercase.
    pub fn name(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }

    /// The level with this name.
    pub fn named(name: &str) -> Option<Level> {
        [Level::Info, Level::Warning, Level::Error].into_iter().find(|level| level.name() == name)
    }
}

/// A decision or an occurrence.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An epoch begins.
    EpochStarted {
        /// The epoch.
        epoch: u64,
        /// Number of expected samples, if known.
        expected: Option<u64>,
    },
    /// The consumer took a batch.
    BatchDelivered {
        /// Number of samples in the batch.
        samples: u64,
        /// How long the consumer waited for it.
        waited: Duration,
    },
    /// A sample is retried.
    SampleRetried(FaultLine),
    /// A bad sample was skipped.
    SampleSkipped(FaultLine),
    /// A bad sample was replaced by another.
    SampleReplaced {
        /// The fault of the bad sample.
        fault: FaultLine,
        /// The index of the replacement; null if the user supplied it.
        by: Value,
    },
    /// Samples are repeated, so that every rank has the same number.
    SamplesRepeated {
        /// Number of samples.
        samples: u64,
    },
    /// Samples are excluded from the start, because the user listed them.
    SamplesExcluded {
        /// Number of samples.
        samples: u64,
    },
    /// Some shards have no samples, which is not an error.
    EmptyShardsFound {
        /// Number of shards.
        shards: u64,
        /// The first of them.
        path: String,
    },
    /// Indices of shards could not be saved, so that the next run has to scan these shards again.
    IndexNotSaved {
        /// Number of shards.
        shards: u64,
        /// Where the first of them was to be saved.
        path: String,
        /// The system error.
        why: String,
    },
    /// A fault ends the run: its action is to raise, or there were too many.
    RunStopped {
        /// The last fault.
        fault: FaultLine,
        /// Why it ends the run.
        why: String,
    },
    /// A call of an executor failed, and its future has the exception. The executor continues.
    CallFailed(FaultLine),
    /// A fault could not be written to the quarantine file.
    QuarantineFailed {
        /// The system error.
        why: String,
    },
    /// A source is considered unavailable: reading pauses.
    SourceUnavailable {
        /// The root of the source.
        root: String,
        /// The reason.
        why: String,
        /// How long the run waits for it; set by the ledger.
        patience: Option<Duration>,
    },
    /// A thread probes whether the source is back.
    SourceProbed {
        /// The root of the source.
        root: String,
    },
    /// The source is back: reading continues.
    SourceRecovered {
        /// The root of the source.
        root: String,
        /// How long it was unavailable.
        after: Duration,
    },
    /// A worker died.
    WorkerDied {
        /// The worker id.
        worker: u64,
        /// The cause in a word or two, by which deaths are counted.
        cause: String,
        /// All that is known, on one line.
        text: String,
        /// The death certificate.
        certificate: Value,
    },
    /// A dead worker was replaced.
    WorkerReplaced {
        /// The worker id.
        worker: u64,
    },
    /// A worker was stopped on purpose, and replaced.
    WorkerRenewed {
        /// The worker id.
        worker: u64,
        /// The reason.
        why: String,
    },
    /// A worker has spent a long time on one sample.
    WorkerStalled {
        /// The worker id.
        worker: u64,
        /// The sample, and since when.
        text: String,
        /// The same for programs.
        details: Value,
    },
    /// A new zygote was started.
    ZygoteRestarted {
        /// The reason.
        why: String,
    },
    /// A sample took very long.
    SampleSlow(Slow),
    /// The consumer has waited for a long time without a batch.
    BatchStalled {
        /// For how long.
        waited: Duration,
        /// What the loader is doing.
        text: String,
    },
    /// The system refused what a budget allowed, so the budget was lowered.
    BudgetShrunk(Shrunk),
    /// Nothing more is written to a cache; the run continues with what it has.
    CacheStopped {
        /// Why.
        why: String,
    },
    /// The system refused some threads; the run continues with fewer.
    ThreadsRefused {
        /// Number of requested threads.
        wanted: usize,
        /// Number of running threads.
        got: usize,
    },
    /// The soft limit of open files was raised to the hard limit, for this process and its workers.
    OpenFilesRaised {
        /// The limit before.
        from: u64,
        /// The limit now.
        to: u64,
    },
    /// An epoch ended.
    EpochEnded {
        /// Number of samples of the last short batch that `drop_last` dropped.
        dropped: u64,
        /// The outcome, on one line.
        summary: String,
        /// Whether there was no fault.
        is_clean: bool,
        /// The skipped and replaced samples by cause, if any.
        warning: Option<String>,
    },
    /// The consumer left the epoch, or an error ended it, before its end.
    EpochAbandoned,
    /// Events came faster than they were consumed, and some were dropped.
    EventsDropped {
        /// Number of dropped events.
        count: u64,
    },
    /// Another number of workers runs at once.
    WorkersChanged {
        /// Whether these are more than before.
        is_more: bool,
        /// Its log level.
        level: Level,
        /// How many, and why.
        text: String,
        /// Details for programs.
        details: Value,
    },
    /// An event that a front defines.
    Custom {
        /// Its name.
        name: String,
        /// Its log level.
        level: Level,
        /// The text, on one line.
        text: String,
        /// Details for programs.
        details: Value,
    },
}

/// A sample that took long.
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    /// The index of the sample.
    pub index: Value,
    /// The duration.
    pub seconds: f64,
    /// The worker that loaded it.
    pub worker: Option<u64>,
    /// The stage.
    pub stage: String,
}

impl Slow {
    /// The event for programs.
    pub fn to_json(&self) -> Value {
        json!({
            "index": self.index, "seconds": self.seconds, "worker": self.worker, "stage": self.stage,
        })
    }
}

impl fmt::Display for Slow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} took {:.2} s", named(&self.index, &self.stage), self.seconds)?;
        if !self.stage.is_empty() && self.stage != CALLING {
            write!(formatter, " in {}", self.stage)?;
        }
        match self.worker {
            Some(worker) => write!(formatter, ", worker {worker}"),
            None => Ok(()),
        }
    }
}

impl Event {
    /// Its name, for programs.
    pub fn name(&self) -> &str {
        match self {
            Event::EpochStarted { .. } => "epoch_started",
            Event::BatchDelivered { .. } => "batch_delivered",
            Event::SampleRetried(_) => "sample_retried",
            Event::SampleSkipped(_) => "sample_skipped",
            Event::SampleReplaced { .. } => "sample_replaced",
            Event::SamplesRepeated { .. } => "samples_repeated",
            Event::SamplesExcluded { .. } => "samples_excluded",
            Event::EmptyShardsFound { .. } => "empty_shards_found",
            Event::IndexNotSaved { .. } => "index_not_saved",
            Event::RunStopped { .. } => "run_stopped",
            Event::CallFailed(_) => "call_failed",
            Event::QuarantineFailed { .. } => "quarantine_failed",
            Event::SourceUnavailable { .. } => "source_unavailable",
            Event::SourceProbed { .. } => "source_probed",
            Event::SourceRecovered { .. } => "source_recovered",
            Event::WorkerDied { .. } => "worker_died",
            Event::WorkerReplaced { .. } => "worker_replaced",
            Event::WorkerRenewed { .. } => "worker_renewed",
            Event::WorkerStalled { .. } => "worker_stalled",
            Event::ZygoteRestarted { .. } => "zygote_restarted",
            Event::SampleSlow(_) => "sample_slow",
            Event::BatchStalled { .. } => "batch_stalled",
            Event::BudgetShrunk(_) => "budget_shrunk",
            Event::CacheStopped { .. } => "cache_stopped",
            Event::ThreadsRefused { .. } => "threads_refused",
            Event::OpenFilesRaised { .. } => "open_files_raised",
            Event::EpochEnded { .. } => "epoch_ended",
            Event::EpochAbandoned => "epoch_abandoned",
            Event::EventsDropped { .. } => "events_dropped",
            Event::WorkersChanged { is_more: true, .. } => "workers_increased",
            Event::WorkersChanged { is_more: false, .. } => "workers_reduced",
            Event::Custom { name, .. } => name,
        }
    }

    /// Its log level.
    pub fn level(&self) -> Level {
        match self {
            Event::EpochStarted { .. }
            | Event::BatchDelivered { .. }
            | Event::SamplesRepeated { .. }
            | Event::SamplesExcluded { .. }
            | Event::SourceProbed { .. }
            | Event::WorkerReplaced { .. }
            | Event::WorkerRenewed { .. }
            | Event::SampleSlow(_)
            // The raised error says more.
            | Event::RunStopped { .. }
            | Event::CallFailed(_)
            | Event::OpenFilesRaised { .. }
            | Event::EpochAbandoned => Level::Info,
            Event::SampleRetried(_)
            | Event::SampleSkipped(_)
            | Event::SampleReplaced { .. }
            | Event::EmptyShardsFound { .. }
            | Event::IndexNotSaved { .. }
            | Event::QuarantineFailed { .. }
            | Event::SourceUnavailable { .. }
            | Event::SourceRecovered { .. }
            | Event::WorkerDied { .. }
            | Event::WorkerStalled { .. }
            | Event::ZygoteRestarted { .. }
            | Event::BatchStalled { .. }
            | Event::BudgetShrunk(_)
            | Event::CacheStopped { .. }
            | Event::ThreadsRefused { .. }
            | Event::EventsDropped { .. } => Level::Warning,
            Event::EpochEnded { is_clean, .. } => {
                if *is_clean {
                    Level::Info
                } else {
                    Level::Warning
                }
            }
            Event::WorkersChanged { level, .. } | Event::Custom { level, .. } => *level,
        }
    }

    /// The details for programs.
    pub fn to_json(&self) -> Value {
        match self {
            Event::EpochStarted { epoch, expected } => {
                json!({"epoch": epoch, "expected": expected})
            }
            Event::BatchDelivered { samples, waited } => {
                json!({"samples": samples, "seconds_waited": waited.as_secs_f64()})
            }
            Event::SampleRetried(fault)
            | Event::SampleSkipped(fault)
            | Event::CallFailed(fault) => fault_json(fault),
            Event::SampleReplaced { fault, by } => with(fault_json(fault), "by", by.clone()),
            Event::SamplesRepeated { samples } | Event::SamplesExcluded { samples } => {
                json!({"samples": samples})
            }
            Event::EmptyShardsFound { shards, path } => json!({"shards": shards, "path": path}),
            Event::IndexNotSaved { shards, path, why } => {
                json!({"shards": shards, "path": path, "why": why})
            }
            Event::RunStopped { fault, why } => {
                with(fault_json(fault), "why", Value::from(why.as_str()))
            }
            Event::QuarantineFailed { why }
            | Event::CacheStopped { why }
            | Event::ZygoteRestarted { why } => json!({"why": why}),
            Event::SourceUnavailable { root, why, patience } => {
                json!({"root": root, "why": why, "patience": patience.map(|time| time.as_secs_f64())})
            }
            Event::SourceProbed { root } => json!({"root": root}),
            Event::SourceRecovered { root, after } => {
                json!({"root": root, "seconds": after.as_secs_f64()})
            }
            Event::WorkerDied { worker, cause, text, certificate } => {
                let known = if certificate.is_object() { certificate.clone() } else { json!({}) };
                let known = with(known, "worker", Value::from(*worker));
                let known = with(known, "cause", Value::from(cause.as_str()));
                with(known, "text", Value::from(text.as_str()))
            }
            Event::WorkerReplaced { worker } => json!({"worker": worker}),
            Event::WorkerRenewed { worker, why } => json!({"worker": worker, "why": why}),
            Event::WorkerStalled { worker, text, details } => {
                let details = if details.is_object() { details.clone() } else { json!({}) };
                let details = with(details, "worker", Value::from(*worker));
                with(details, "text", Value::from(text.as_str()))
            }
            Event::SampleSlow(slow) => slow.to_json(),
            Event::BatchStalled { waited, text } => {
                json!({"seconds_waited": waited.as_secs_f64(), "text": text})
            }
            Event::BudgetShrunk(Shrunk { budget, from, to, why }) => {
                json!({"budget": budget, "from": from, "to": to, "why": why})
            }
            Event::ThreadsRefused { wanted, got } => json!({"wanted": wanted, "got": got}),
            Event::OpenFilesRaised { from, to } => json!({"from": from, "to": to}),
            Event::EpochEnded { dropped, summary, warning, .. } => {
                json!({"dropped": dropped, "summary": summary, "warning": warning})
            }
            Event::EpochAbandoned => json!({}),
            Event::EventsDropped { count } => json!({"count": count}),
            Event::WorkersChanged { details, .. } | Event::Custom { details, .. } => {
                details.clone()
            }
        }
    }

    /// Parses an event from a front: its name and its details.
    ///
    /// # Errors
    /// A message that names the missing key.
    pub fn from_json(name: &str, details: Value) -> Result<Event, String> {
        let text = |key: &str| details.get(key).and_then(Value::as_str).map(str::to_owned);
        let needed = |key: &str| text(key).ok_or_else(|| lacks(name, key));
        let worker =
            || details.get("worker").and_then(Value::as_u64).ok_or_else(|| lacks(name, "worker"));
        let seconds = |key: &str| {
            let number = details.get(key).and_then(Value::as_f64);
            Duration::try_from_secs_f64(number.unwrap_or(0.0)).unwrap_or_default()
        };
        let level = || {
            let named = text("level").and_then(|level| Level::named(&level));
            named.unwrap_or(Level::Info)
        };
        let root = || text("root").unwrap_or_else(|| "the source".to_owned());
        Ok(match name {
            "worker_died" => Event::WorkerDied {
                worker: worker()?,
                cause: needed("cause")?,
                text: needed("text")?,
                certificate: details,
            },
            "worker_replaced" => Event::WorkerReplaced { worker: worker()? },
            "worker_renewed" => Event::WorkerRenewed { worker: worker()?, why: needed("why")? },
            "worker_stalled" => {
                Event::WorkerStalled { worker: worker()?, text: needed("text")?, details }
            }
            "zygote_restarted" => Event::ZygoteRestarted { why: needed("why")? },
            "open_files_raised" => {
                let limit = |key: &str| {
                    details.get(key).and_then(Value::as_u64).ok_or_else(|| lacks(name, key))
                };
                Event::OpenFilesRaised { from: limit("from")?, to: limit("to")? }
            }
            "source_unavailable" => {
                let why = text("why").unwrap_or_else(|| "it does not answer".to_owned());
                Event::SourceUnavailable { root: root(), why, patience: None }
            }
            "source_probed" => Event::SourceProbed { root: root() },
            "source_recovered" => {
                Event::SourceRecovered { root: root(), after: seconds("seconds") }
            }
            "batch_stalled" => {
                Event::BatchStalled { waited: seconds("seconds_waited"), text: needed("text")? }
            }
            "workers_increased" | "workers_reduced" => Event::WorkersChanged {
                is_more: name == "workers_increased",
                level: level(),
                text: needed("text")?,
                details,
            },
            other => Event::Custom {
                name: other.to_owned(),
                level: level(),
                text: needed("text")?,
                details,
            },
        })
    }
}

fn lacks(name: &str, key: &str) -> String {
    format!("an event {name:?} must have {key:?}")
}

fn fault_json(fault: &FaultLine) -> Value {
    serde_json::to_value(fault).unwrap_or_default()
}

fn with(mut value: Value, key: &str, more: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.insert(key.to_owned(), more);
    }
    value
}

/// One line for a log.
impl fmt::Display for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::EpochStarted { epoch, expected: Some(expected) } => {
                write!(formatter, "epoch {epoch} begins: {expected} samples expected")
            }
            Event::EpochStarted { epoch, expected: None } => {
                write!(formatter, "epoch {epoch} begins")
            }
            Event::BatchDelivered { samples, waited } => {
                write!(formatter, "a batch of {samples}, waited for {:.3} s", waited.as_secs_f64())
            }
            Event::SampleRetried(fault) => write!(formatter, "retried: {fault}"),
            Event::SampleSkipped(fault) => write!(formatter, "skipped: {fault}"),
            Event::SampleReplaced { fault, by: Value::Null } => {
                write!(formatter, "replaced: {fault}")
            }
            Event::SampleReplaced { fault, by } => {
                write!(formatter, "replaced by sample {by}: {fault}")
            }
            Event::SamplesRepeated { samples } => {
                write!(
                    formatter,
                    "{samples} samples are repeated so that all ranks have the same number of samples"
                )
            }
            Event::SamplesExcluded { samples } => {
                write!(formatter, "{samples} samples are excluded")
            }
            Event::EmptyShardsFound { shards: 1, path } => {
                write!(formatter, "{path} has no records")
            }
            Event::EmptyShardsFound { shards, path } => {
                write!(formatter, "{shards} shards have no records; the first is {path}")
            }
            Event::IndexNotSaved { shards, path, why } => {
                let indices =
                    if *shards == 1 { "the index of a shard" } else { "the indices of shards" };
                write!(
                    formatter,
                    "{indices} could not be saved ({path}: {why}), so the next run scans "
                )?;
                match shards {
                    1 => write!(formatter, "it again"),
                    shards => write!(formatter, "{shards} shards again"),
                }
            }
            Event::RunStopped { fault, why } => write!(formatter, "stopped, {why}: {fault}"),
            Event::CallFailed(fault) => write!(formatter, "{fault}"),
            Event::QuarantineFailed { why } => {
                write!(formatter, "a fault could not be written to the quarantine file: {why}")
            }
            Event::SourceUnavailable { root, why, patience } => {
                write!(formatter, "{root} is unavailable, reading pauses")?;
                if let Some(patience) = patience {
                    write!(formatter, " for at most {} s", patience.as_secs_f64())?;
                }
                write!(formatter, ": {why}")
            }
            Event::SourceProbed { root } => write!(formatter, "probing whether {root} is back"),
            Event::SourceRecovered { root, after } => {
                write!(
                    formatter,
                    "{root} is back after {:.1} s, reading continues",
                    after.as_secs_f64()
                )
            }
            Event::WorkerDied { text, .. }
            | Event::WorkerStalled { text, .. }
            | Event::WorkersChanged { text, .. }
            | Event::Custom { text, .. } => formatter.write_str(&escape::lines(text)),
            Event::WorkerReplaced { worker } => write!(formatter, "worker {worker} was replaced"),
            Event::WorkerRenewed { worker, why } => {
                write!(formatter, "worker {worker} was renewed: {why}")
            }
            Event::ZygoteRestarted { why } => write!(formatter, "the zygote was restarted: {why}"),
            Event::SampleSlow(slow) => write!(formatter, "{slow}"),
            Event::BatchStalled { waited, text } => {
                write!(formatter, "no batch for {:.0} s: {text}", waited.as_secs_f64())
            }
            Event::BudgetShrunk(Shrunk { budget, from, to, why }) => {
                write!(
                    formatter,
                    "{why}: what is idle is given back, and the budget for {budget} goes from {from} to {to}"
                )
            }
            Event::CacheStopped { why } => {
                write!(formatter, "nothing more is written to the cache: {why}")
            }
            Event::ThreadsRefused { wanted, got } => {
                write!(formatter, "the system allowed {got} of {wanted} threads")
            }
            Event::OpenFilesRaised { from, to } => {
                write!(formatter, "the soft limit of open files was raised from {from} to {to}")
            }
            Event::EpochEnded { summary, .. } => formatter.write_str(summary),
            Event::EpochAbandoned => write!(formatter, "the epoch was abandoned before its end"),
            Event::EventsDropped { count } => {
                write!(formatter, "{count} events were dropped: they came too fast")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad() -> FaultLine {
        FaultLine {
            path: Some("data/cat/7.jpg".into()),
            stage: "worker".into(),
            message: "the image is truncated".into(),
            time: 1.5,
            ..FaultLine::new(7_u64, "CorruptImageError")
        }
    }

    #[test]
    fn events_read_well_and_have_their_details() {
        let event = |name: &str, details: Value| Event::from_json(name, details).unwrap();
        let events = [
            Event::EpochStarted { epoch: 1, expected: Some(10) },
            Event::OpenFilesRaised { from: 1024, to: 4096 },
            Event::IndexNotSaved {
                shards: 3,
                path: "/home/u/.cache/feedline/1.index".into(),
                why: "No space left on device (os error 28)".into(),
            },
            Event::SampleRetried(FaultLine { attempts: 2, ..bad() }),
            Event::SampleSkipped(bad()),
            Event::SampleReplaced { fault: bad(), by: json!(3) },
            Event::RunStopped { fault: bad(), why: "5 faults are more than 4".into() },
            event("source_unavailable", json!({"root": "/mnt/data"})),
            event("source_recovered", json!({"root": "/mnt/data", "seconds": 12.25})),
            event(
                "worker_died",
                json!({"worker": 3, "cause": "SIGKILL", "text": "worker 3 was killed", "pid": 5}),
            ),
            event("worker_renewed", json!({"worker": 1, "why": "it grew to 3 GiB"})),
            event("deadline", json!({"text": "sample 7 was late", "level": "warning"})),
        ];
        let lines: Vec<_> = events
            .iter()
            .map(|event| {
                format!(
                    "{:<8} {} | {event} | {}",
                    event.level().name(),
                    event.name(),
                    event.to_json()
                )
            })
            .collect();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn an_event_without_a_required_key_is_refused() {
        let refused = Event::from_json("worker_died", json!({"worker": 1, "cause": "x"}));
        assert_eq!(refused.unwrap_err(), "an event \"worker_died\" must have \"text\"");
        assert!(Event::from_json("anything", json!({})).is_err());
    }
}
