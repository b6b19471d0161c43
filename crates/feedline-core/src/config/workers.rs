//! The words for worker processes: how many, how much memory, how many deaths are borne.

use serde_json::Value;

use super::Choice;
use super::words::Call;
use crate::error::{Error, Kind, Result};

/// What was asked for, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Workers {
    /// How many.
    pub posts: u32,
    /// Tasks that one worker has at hand, where they are not pinned to it.
    pub depth: u32,
    /// Bytes of all arenas together.
    pub memory: Choice,
    /// How many deaths are borne within `death_window`.
    pub max_deaths: Choice,
    /// In what time, in seconds.
    pub death_window: f64,
    /// How often a task is tried that is at hand when workers die; None: for ever.
    pub attempts: Option<u32>,
    /// Whether the dead are replaced at all.
    pub replace: bool,
}

impl Workers {
    /// From the words of one call.
    pub fn parse(words: &str) -> Result<Workers> {
        let value: Value = serde_json::from_str(words).map_err(|error| {
            Error::new(Kind::BadSetting, format!("the settings are no call: {error}"))
        })?;
        let call = Call::new(&value)?;
        let posts = call.whole("workers", 1, 4096)?.ok_or_else(|| call.lacks("workers"))?;
        let window = call.real("death_window", 0.001, 1e9)?.unwrap_or(60.0);
        let workers = Workers {
            posts: posts as u32,
            depth: call.whole("depth", 1, 1024)?.unwrap_or(1) as u32,
            memory: call.bytes_or_auto("memory", 1 << 20)?,
            max_deaths: call.count_or_auto("max_deaths", 0, 1 << 20)?,
            death_window: window,
            attempts: call.whole("attempts", 1, 1000)?.map(|attempts| attempts as u32),
            replace: call
                .choice("on_death", &[("replace", true), ("raise", false)])?
                .unwrap_or(true),
        };
        call.finish()?;
        Ok(workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_has_a_default() {
        let workers = Workers::parse(r#"{"call": "DataLoader", "workers": 3}"#).unwrap();
        assert_eq!((workers.posts, workers.max_deaths, workers.replace), (3, Choice::Auto, true));
        assert!((workers.death_window - 60.0).abs() < 1e-9);
    }

    #[test]
    fn a_bad_word_is_refused_with_its_value() {
        for (words, said) in [
            (r#"{"call": "DataLoader", "workers": 2, "max_deaths": -1}"#, "-1"),
            (r#"{"call": "DataLoader", "workers": 2, "death_window": 0}"#, "got 0"),
            (r#"{"call": "DataLoader", "workers": 2, "memory": "lots"}"#, "lots"),
            (r#"{"call": "DataLoader", "workers": 2, "on_death": "cry"}"#, "cry"),
            (r#"{"call": "Executor", "workers": 0}"#, "got 0"),
            (r#"{"call": "Executor"}"#, "workers is missing"),
            (r#"{"call": "Executor", "workers": 1, "attempts": 0}"#, "got 0"),
            (r#"{"call": "Executor", "workers": 1, "spare": 1}"#, "spare"),
            ("[]", "[]"),
            ("nonsense", "no call"),
        ] {
            let error = Workers::parse(words).unwrap_err();
            assert_eq!(error.kind(), Kind::BadSetting);
            assert!(error.message().contains(said), "{words}: {error}");
        }
    }
}
