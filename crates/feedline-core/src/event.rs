//! Nothing is decided without an event: reports, logs, metrics and callbacks are all made from these.

use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

use crate::escape;
use crate::fault::{CALLING, FaultLine, named};

/// How loud an event is in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Info,
    /// Something went wrong, and the run goes on.
    Warning,
    /// Something was not.
    Error,
}

impl Level {
    /// Python's name of it, in lowercase.
    pub fn name(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }

    /// The level of that name.
    pub fn named(name: &str) -> Option<Level> {
        [Level::Info, Level::Warning, Level::Error].into_iter().find(|level| level.name() == name)
    }
}

/// Something was decided or has happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An epoch begins.
    EpochStarted {
        /// Which one.
        epoch: u64,
        /// How many samples are due, where it is known.
        expected: Option<u64>,
    },
    /// The consumer took a batch.
    BatchDelivered {
        /// How many it holds.
        samples: u64,
        /// How long the consumer waited for it.
        waited: Duration,
    },
    /// A sample is retried.
    SampleRetried(FaultLine),
    /// A bad sample was left out.
    SampleSkipped(FaultLine),
    /// Another sample took the place of a bad one.
    SampleReplaced {
        /// The bad one.
        fault: FaultLine,
        /// The index of the other; null for one that the user gave.
        by: Value,
    },
    /// Samples come a second time, so that every rank has as many as the others.
    SamplesRepeated {
        /// How many.
        samples: u64,
    },
    /// Samples are left out from the start, because the user named them.
    SamplesExcluded {
        /// How many.
        samples: u64,
    },
    /// Shards have no samples; nothing is wrong with them.
    EmptyShardsFound {
        /// How many.
        shards: u64,
        /// The first of them.
        path: String,
    },
    /// A fault ends the run: it is to be raised, or there were too many.
    RunStopped {
        /// The last one.
        fault: FaultLine,
        /// Why it ends the run.
        why: String,
    },
    /// A call of an executor failed, and its future has the exception. Nothing else ends.
    CallFailed(FaultLine),
    /// A fault could not be written down.
    QuarantineFailed {
        /// What the system said.
        why: String,
    },
    /// A source is taken to be unavailable: reading pauses.
    SourceUnavailable {
        /// Its root.
        root: String,
        /// What was seen of it.
        why: String,
        /// For how long it is waited; the ledger knows.
        patience: Option<Duration>,
    },
    /// Somebody looks whether it is back.
    SourceProbed {
        /// Its root.
        root: String,
    },
    /// It is back: reading goes on.
    SourceRecovered {
        /// Its root.
        root: String,
        /// How long it was unavailable.
        after: Duration,
    },
    /// A worker died.
    WorkerDied {
        /// Which one.
        worker: u64,
        /// The cause in a word or two, by which deaths are counted.
        cause: String,
        /// All that is known, in a line.
        text: String,
        /// The certificate.
        certificate: Value,
    },
    /// Another worker took the place of a dead one.
    WorkerReplaced {
        /// Which one.
        worker: u64,
    },
    /// A worker was ended on purpose, and replaced.
    WorkerRenewed {
        /// Which one.
        worker: u64,
        /// Why.
        why: String,
    },
    /// A worker has been at one sample for long.
    WorkerStalled {
        /// Which one.
        worker: u64,
        /// At what, and since when.
        text: String,
        /// The same for programs.
        details: Value,
    },
    /// A new zygote was born.
    ZygoteRestarted {
        /// Why it was needed.
        why: String,
    },
    /// A sample took very long.
    SampleSlow(Slow),
    /// The consumer has waited for long, and no batch came.
    BatchStalled {
        /// For how long.
        waited: Duration,
        /// What is being done.
        text: String,
    },
    /// The system refused what a budget allowed, which is smaller now.
    BudgetShrunk {
        /// Which one.
        budget: &'static str,
        /// Before.
        from: u64,
        /// After.
        to: u64,
    },
    /// The system refused some threads; the run goes on with fewer.
    ThreadsRefused {
        /// How many were asked for.
        wanted: usize,
        /// How many there are.
        got: usize,
    },
    /// An epoch came to its end.
    EpochEnded {
        /// Samples of a last short batch that `drop_last` left out.
        dropped: u64,
        /// In a line, what came of it.
        summary: String,
        /// Whether there was anything to bear.
        is_clean: bool,
        /// What was skipped or replaced, by cause, if anything was.
        warning: Option<String>,
    },
    /// The consumer left an epoch, or an error ended it, before its end.
    EpochAbandoned,
    /// Events came faster than they were taken, and some are gone.
    EventsDropped {
        /// How many.
        count: u64,
    },
    /// What a front has to tell besides.
    Told {
        /// Its name.
        name: String,
        /// How loud.
        level: Level,
        /// In a line.
        text: String,
        /// For programs.
        details: Value,
    },
}

/// A sample that took long.
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    /// Which one.
    pub index: Value,
    /// How long.
    pub seconds: f64,
    /// Which worker had it.
    pub worker: Option<u64>,
    /// Where on its path.
    pub stage: String,
}

impl Slow {
    /// For programs.
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
            Event::BudgetShrunk { .. } => "budget_shrunk",
            Event::ThreadsRefused { .. } => "threads_refused",
            Event::EpochEnded { .. } => "epoch_ended",
            Event::EpochAbandoned => "epoch_abandoned",
            Event::EventsDropped { .. } => "events_dropped",
            Event::Told { name, .. } => name,
        }
    }

    /// How loud it is.
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
            // The error that is raised says it louder.
            | Event::RunStopped { .. }
            | Event::CallFailed(_)
            | Event::EpochAbandoned => Level::Info,
            Event::SampleRetried(_)
            | Event::SampleSkipped(_)
            | Event::SampleReplaced { .. }
            | Event::EmptyShardsFound { .. }
            | Event::QuarantineFailed { .. }
            | Event::SourceUnavailable { .. }
            | Event::SourceRecovered { .. }
            | Event::WorkerDied { .. }
            | Event::WorkerStalled { .. }
            | Event::ZygoteRestarted { .. }
            | Event::BatchStalled { .. }
            | Event::BudgetShrunk { .. }
            | Event::ThreadsRefused { .. }
            | Event::EventsDropped { .. } => Level::Warning,
            Event::EpochEnded { is_clean, .. } => {
                if *is_clean {
                    Level::Info
                } else {
                    Level::Warning
                }
            }
            Event::Told { level, .. } => *level,
        }
    }

    /// What it knows, for programs.
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
            Event::RunStopped { fault, why } => {
                with(fault_json(fault), "why", Value::from(why.as_str()))
            }
            Event::QuarantineFailed { why } | Event::ZygoteRestarted { why } => json!({"why": why}),
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
            Event::BudgetShrunk { budget, from, to } => {
                json!({"budget": budget, "from": from, "to": to})
            }
            Event::ThreadsRefused { wanted, got } => json!({"wanted": wanted, "got": got}),
            Event::EpochEnded { dropped, summary, warning, .. } => {
                json!({"dropped": dropped, "summary": summary, "warning": warning})
            }
            Event::EpochAbandoned => json!({}),
            Event::EventsDropped { count } => json!({"count": count}),
            Event::Told { details, .. } => details.clone(),
        }
    }

    /// From a front's words: its name and what it knows.
    ///
    /// # Errors
    /// In words, what is missing.
    pub fn from_words(name: &str, details: Value) -> Result<Event, String> {
        let text = |key: &str| details.get(key).and_then(Value::as_str).map(str::to_owned);
        let needed = |key: &str| text(key).ok_or_else(|| lacks(name, key));
        let worker =
            || details.get("worker").and_then(Value::as_u64).ok_or_else(|| lacks(name, "worker"));
        let seconds = |key: &str| {
            let number = details.get(key).and_then(Value::as_f64);
            Duration::try_from_secs_f64(number.unwrap_or(0.0)).unwrap_or_default()
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
            other => {
                let level = text("level").and_then(|level| Level::named(&level));
                Event::Told {
                    name: other.to_owned(),
                    level: level.unwrap_or(Level::Info),
                    text: needed("text")?,
                    details,
                }
            }
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
                write!(formatter, "epoch {epoch} begins: {expected} samples are due")
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
                write!(formatter, "{samples} samples come again to keep the ranks even")
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
            Event::SourceProbed { root } => write!(formatter, "looking whether {root} is back"),
            Event::SourceRecovered { root, after } => {
                write!(
                    formatter,
                    "{root} is back after {:.1} s, reading goes on",
                    after.as_secs_f64()
                )
            }
            Event::WorkerDied { text, .. }
            | Event::WorkerStalled { text, .. }
            | Event::Told { text, .. } => formatter.write_str(&escape::lines(text)),
            Event::WorkerReplaced { worker } => write!(formatter, "worker {worker} was replaced"),
            Event::WorkerRenewed { worker, why } => {
                write!(formatter, "worker {worker} was renewed: {why}")
            }
            Event::ZygoteRestarted { why } => write!(formatter, "the zygote was restarted: {why}"),
            Event::SampleSlow(slow) => write!(formatter, "{slow}"),
            Event::BatchStalled { waited, text } => {
                write!(formatter, "no batch for {:.0} s: {text}", waited.as_secs_f64())
            }
            Event::BudgetShrunk { budget, from, to } => {
                write!(formatter, "the system refused more {budget}: {from} became {to}")
            }
            Event::ThreadsRefused { wanted, got } => {
                write!(formatter, "the system allowed {got} of {wanted} threads")
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
    fn events_read_well_and_know_what_they_tell() {
        let told = |name: &str, details: Value| Event::from_words(name, details).unwrap();
        let events = [
            Event::EpochStarted { epoch: 1, expected: Some(10) },
            Event::SampleRetried(FaultLine { attempts: 2, ..bad() }),
            Event::SampleSkipped(bad()),
            Event::SampleReplaced { fault: bad(), by: json!(3) },
            Event::RunStopped { fault: bad(), why: "5 faults are more than 4".into() },
            told("source_unavailable", json!({"root": "/mnt/data"})),
            told("source_recovered", json!({"root": "/mnt/data", "seconds": 12.25})),
            told(
                "worker_died",
                json!({"worker": 3, "cause": "SIGKILL", "text": "worker 3 was killed", "pid": 5}),
            ),
            told("worker_renewed", json!({"worker": 1, "why": "it grew to 3 GiB"})),
            told("deadline", json!({"text": "sample 7 was late", "level": "warning"})),
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
    fn an_event_without_what_it_must_have_is_refused() {
        let refused = Event::from_words("worker_died", json!({"worker": 1, "cause": "x"}));
        assert_eq!(refused.unwrap_err(), "an event \"worker_died\" must have \"text\"");
        assert!(Event::from_words("anything", json!({})).is_err());
    }
}
