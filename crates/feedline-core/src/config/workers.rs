//! The config of worker processes: how many, how much memory, how many deaths are allowed.

use serde_json::Value;

use super::amount::{BytesOrAuto, Choice, CountOrAuto, Memory, SecondsOrAuto, TimeLimit};
use super::arguments::{Arguments, OneOf, Real, Truth, WholeNumber};
use crate::error::{Error, Kind, Result};

/// What was asked for, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Workers {
    /// How many.
    pub worker_count: u32,
    /// Tasks that are queued at one worker, if tasks are not pinned to workers.
    pub depth: u32,
    /// Bytes of all arenas together.
    pub memory: Choice,
    /// How many deaths are allowed within `death_window`.
    pub max_deaths: Choice,
    /// In what time, in seconds.
    pub death_window: f64,
    /// At most this many attempts at a task whose worker dies; None for no limit.
    pub attempts: Option<u32>,
    /// Whether a worker that dies is replaced.
    pub replace: bool,
    /// Deaths at one sample after which it is run alone; None: never.
    pub suspect_after: Option<u32>,
    /// How long one sample may take.
    pub deadline: Option<TimeLimit>,
    /// How long a worker may neither answer nor use the processor, in place of a learned time.
    pub hang_seconds: Option<f64>,
    /// How often a sample may pass its deadline before it is given up.
    pub hangs: u32,
    /// Seconds without progress after which a warning comes.
    pub stall: Option<f64>,
    /// Bytes of resident memory beyond which a worker is renewed.
    pub max_worker_memory: Option<u64>,
    /// Samples after which a worker is renewed.
    pub max_samples_per_worker: Option<u64>,
    /// Whether workers that hang after a fork may be started from a fresh interpreter.
    pub may_be_fresh: bool,
    /// Whether buffers go with tasks, in shared memory.
    pub has_inbox: bool,
    /// Whether the front calls their number `num_workers`.
    pub is_torch: bool,
    /// Whether tasks are calls, which may wait for anything, and not samples.
    pub makes_calls: bool,
}

impl Workers {
    /// Parses the config of one call.
    pub fn parse(config: &str) -> Result<Workers> {
        let value: Value = serde_json::from_str(config).map_err(|error| {
            Error::new(Kind::InvalidArgument, format!("the settings are no call: {error}"))
        })?;
        let from = Arguments::of_call(&value)?;
        let worker_count =
            from.read("workers", WholeNumber(1, 4096))?.ok_or_else(|| from.lacks("workers"))?;
        let window = from.read("death_window", Real(0.001, 1e9))?.unwrap_or(60.0);
        let workers = Workers {
            worker_count: worker_count as u32,
            depth: from.read("depth", WholeNumber(1, 1024))?.unwrap_or(1) as u32,
            memory: from.read("memory", Memory(1 << 20))?.unwrap_or_default(),
            max_deaths: from.read("max_deaths", CountOrAuto(0, 1 << 20))?.unwrap_or_default(),
            death_window: window,
            attempts: from.read("attempts", WholeNumber(1, 1000))?.map(|attempts| attempts as u32),
            replace: from
                .read("on_death", OneOf(&[("replace", true), ("raise", false)]))?
                .unwrap_or(true),
            suspect_after: from
                .read("suspect_after", WholeNumber(1, 1000))?
                .map(|deaths| deaths as u32),
            deadline: from.read("deadline", SecondsOrAuto(0.001, 1e9))?,
            hang_seconds: from.read("hang_seconds", Real(0.1, 1e9))?,
            hangs: from.read("hangs", WholeNumber(1, 1 << 20))?.unwrap_or(1) as u32,
            stall: from.read("stall", Real(0.001, 1e9))?,
            max_worker_memory: from
                .read("max_worker_memory", BytesOrAuto(1 << 20))?
                .and_then(Choice::given),
            max_samples_per_worker: from
                .read("max_samples_per_worker", WholeNumber(1, u64::MAX >> 1))?,
            may_be_fresh: from.read("may_be_fresh", Truth)?.unwrap_or(false),
            has_inbox: from.read("has_inbox", Truth)?.unwrap_or(false),
            is_torch: from.call() == "DataLoader",
            makes_calls: from.call() == "Executor",
        };
        from.finish()?;
        Ok(workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_has_a_default() {
        let workers = Workers::parse(r#"{"call": "DataLoader", "workers": 3}"#).unwrap();
        assert_eq!(
            (workers.worker_count, workers.max_deaths, workers.replace),
            (3, Choice::Auto, true)
        );
        assert!((workers.death_window - 60.0).abs() < 1e-9);
    }

    #[test]
    fn a_bad_word_is_refused_with_its_value() {
        for (config, kind) in [
            (r#"{"call": "DataLoader", "workers": 2, "max_deaths": -1}"#, "-1"),
            (r#"{"call": "DataLoader", "workers": 2, "death_window": 0}"#, "got 0"),
            (r#"{"call": "DataLoader", "workers": 2, "memory": "lots"}"#, "lots"),
            (r#"{"call": "DataLoader", "workers": 2, "on_death": "cry"}"#, "cry"),
            (r#"{"call": "Executor", "workers": 0}"#, "got 0"),
            (r#"{"call": "Executor"}"#, "workers is missing"),
            (r#"{"call": "Executor", "workers": 1, "attempts": 0}"#, "got 0"),
            (r#"{"call": "Executor", "workers": 1, "deadline": 0}"#, "got 0"),
            (
                r#"{"call": "Executor", "workers": 1, "deadline": "soon"}"#,
                "\"auto\", None or a number",
            ),
            (r#"{"call": "Executor", "workers": 1, "hang_seconds": 0}"#, "got 0"),
            (r#"{"call": "Executor", "workers": 1, "stall": -1}"#, "got -1"),
            (r#"{"call": "Executor", "workers": 1, "max_worker_memory": "some"}"#, "some"),
            (r#"{"call": "Executor", "workers": 1, "max_samples_per_worker": 0}"#, "got 0"),
            (r#"{"call": "Executor", "workers": 1, "spare": 1}"#, "spare"),
            ("[]", "[]"),
            ("nonsense", "no call"),
        ] {
            let error = Workers::parse(config).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArgument);
            assert!(error.message().contains(kind), "{config}: {error}");
        }
    }
}
