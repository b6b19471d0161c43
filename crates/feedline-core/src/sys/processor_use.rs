//! How busy the processors are, measured between two calls.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{clock, file, limits, process};

/// Measures how many of the processors that this process may use are idle.
#[derive(Debug)]
pub struct ProcessorMeter {
    usable: f64,
    last: Option<Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    /// The time that all processors of the machine were idle.
    idle: Duration,
    /// The time that this process and those below it have used.
    used: Duration,
}

impl ProcessorMeter {
    /// Begins to measure.
    pub fn start() -> ProcessorMeter {
        ProcessorMeter { usable: limits::processors() as f64, last: Reading::now() }
    }

    /// How many processors were idle on average since the last call. None if the system does not say.
    pub fn idle_processors(&mut self) -> Option<f64> {
        let now = Reading::now()?;
        let before = self.last.replace(now)?;
        Some(idle(self.usable, before, now))
    }
}

impl Reading {
    fn now() -> Option<Reading> {
        let text = file::read_text(Path::new("/proc/stat")).ok()?;
        let used = process::process_tree(std::process::id())?.processor_time;
        Some(Reading { at: clock::now(), idle: process::ticks(idle_ticks(&text)?), used })
    }
}

/// A quota allows fewer processors than the machine has idle, and other programs may use those that are allowed.
fn idle(usable: f64, before: Reading, now: Reading) -> f64 {
    let elapsed = (now.at - before.at).as_secs_f64().max(f64::MIN_POSITIVE);
    let share =
        |before: Duration, now: Duration| now.saturating_sub(before).as_secs_f64() / elapsed;
    let left = usable - share(before.used, now.used);
    share(before.idle, now.idle).min(left).max(0.0)
}

/// The time for which processors did nothing, or waited for a device, from /proc/stat.
fn idle_ticks(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("cpu "))?;
    let mut words = line.split_whitespace().skip(4).map(|word| word.parse::<u64>().ok());
    Some(words.next()?? + words.next()??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_time_of_all_processors_is_parsed() {
        let text = "cpu  10 20 30 400 50 0 0 0 0 0\ncpu0 5 10 15 200 25 0 0\n";
        assert_eq!(idle_ticks(text), Some(450));
        assert_eq!((idle_ticks(""), idle_ticks("cpu  1 2 3")), (None, None));
    }

    #[test]
    fn idle_processors_are_those_that_are_allowed_and_not_in_use() {
        let at = clock::now();
        let before = Reading { at, idle: Duration::ZERO, used: Duration::ZERO };
        let after = |idle, used| Reading {
            at: at + Duration::from_secs(2),
            idle: Duration::from_secs(idle),
            used: Duration::from_secs(used),
        };
        // The machine has three idle ones, of four that may be used.
        assert_eq!(idle(4.0, before, after(6, 2)), 3.0);
        // A quota of two, of which one is in use.
        assert_eq!(idle(2.0, before, after(100, 2)), 1.0);
        assert_eq!(idle(2.0, before, after(100, 8)), 0.0);
    }

    #[test]
    fn this_machine_says_how_idle_it_is() {
        let mut meter = ProcessorMeter::start();
        let idle = meter.idle_processors().expect("there is a /proc");
        assert!((0.0..=limits::processors() as f64).contains(&idle), "{idle}");
    }
}
