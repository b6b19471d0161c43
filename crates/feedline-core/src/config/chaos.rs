//! Trouble on purpose, for tests: which samples fail, pass after a retry or take long is a function of a
//! seed, so that a run can be compared with what it must come to.

use core::time::Duration;
use serde_json::Value;

use super::arguments::{Arguments, Real, WholeNumber};
use crate::error::{Error, Kind, Result};
use crate::random::Random;

/// How much trouble.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chaos {
    seed: u64,
    eio: f64,
    raise: f64,
    slow: f64,
    time: Duration,
}

/// What happens to one attempt to load a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// Nothing.
    Nothing,
    /// The read fails with an error that may be gone the next time.
    Eio,
    /// The sample is bad, now and always.
    Corrupt,
    /// It takes that long.
    Slow(Duration),
}

impl Chaos {
    pub(super) fn parse(from: &Arguments<'_>) -> Result<Option<Chaos>> {
        let config = match from.get("chaos") {
            None => return Ok(None),
            Some(Value::Object(config)) => config,
            Some(other) => return Err(from.bad("chaos", "rates by name", other)),
        };
        let config = Arguments::of_json("chaos", config);
        let rate = |name| Ok::<_, Error>(config.read(name, Real(0.0, 1.0))?.unwrap_or(0.0));
        let seconds = config.read("seconds", Real(0.0, 3600.0))?.unwrap_or(0.1);
        let chaos = Chaos {
            seed: config.read("seed", WholeNumber(0, u64::MAX))?.unwrap_or(0),
            eio: rate("eio")?,
            raise: rate("raise")?,
            slow: rate("slow")?,
            time: Duration::from_secs_f64(seconds),
        };
        config.finish()?;
        Ok(Some(chaos))
    }

    /// What happens to an attempt to load a sample; attempts count from 1.
    pub(crate) fn injected_fault(&self, index: u64, attempt: u32) -> InjectedFault {
        let draw = |what: u64, try_: u64| Random::keyed(&[self.seed, index, what, try_]).unit();
        if draw(0, 0) < self.raise {
            InjectedFault::Corrupt
        } else if draw(1, u64::from(attempt)) < self.eio {
            InjectedFault::Eio
        } else if draw(2, u64::from(attempt)) < self.slow {
            InjectedFault::Slow(self.time)
        } else {
            InjectedFault::Nothing
        }
    }
}

impl InjectedFault {
    /// The error that it is, if it is one.
    pub(crate) fn error(self) -> Option<Error> {
        match self {
            InjectedFault::Nothing | InjectedFault::Slow(_) => None,
            InjectedFault::Eio => {
                let error = std::io::Error::from(rustix::io::Errno::IO);
                Some(Error::io(Kind::Read, "reading the file", error))
            }
            InjectedFault::Corrupt => {
                Some(Error::new(Kind::CorruptImage, "corrupted on purpose, by chaos="))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_as_frequent_as_asked_for_and_a_retry_may_help() {
        let config = serde_json::json!(
            {"call": "loader", "chaos": {"seed": 3, "eio": 0.2, "raise": 0.1, "slow": 0.5, "seconds": 1}}
        );
        let chaos = Chaos::parse(&Arguments::of_call(&config).unwrap()).unwrap().unwrap();
        let count = |attempt, wanted| {
            (0..10_000).filter(|index| chaos.injected_fault(*index, attempt) == wanted).count()
        };
        assert!((900..1100).contains(&count(1, InjectedFault::Corrupt)));
        assert_eq!(count(1, InjectedFault::Corrupt), count(2, InjectedFault::Corrupt));
        assert!((1650..1950).contains(&count(1, InjectedFault::Eio)));
        let again = (0..10_000)
            .filter(|index| {
                [1, 2].iter().all(|try_| chaos.injected_fault(*index, *try_) == InjectedFault::Eio)
            })
            .count();
        assert!((300..450).contains(&again), "{again}");
        assert!((3400..3800).contains(&count(1, InjectedFault::Slow(Duration::from_secs(1)))));
    }
}
