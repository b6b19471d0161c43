//! Learns how long a worker may neither answer nor use the processor, and measures for how long it has done
//! neither.
//!
//! The time is the sum of what passed between checks, and no pair of checks counts for more than two intervals. So a
//! trainer that was suspended together with its workers does not take its own absence for theirs.

use std::time::Duration;

use super::messages::{LearnedDeadline, Observation};
use super::watch::SampleInTask;

/// A sample may take this many times as long as the longest one before it.
const TIMES_LONGEST: u32 = 20;
/// How many times a worker is looked at until it counts as hung, at least.
const LOOKS: u32 = 20;
/// How many intervals the time between two checks may count for.
const MOST_INTERVALS: u32 = 2;

impl LearnedDeadline {
    /// The same with bounds that are in order, and not below `least`.
    pub(super) fn in_order(self, least: Duration) -> LearnedDeadline {
        let shortest = self.shortest.max(least);
        LearnedDeadline { shortest, longest: self.longest.max(shortest), ..self }
    }

    /// How long a worker may make no progress at a sample.
    pub(super) fn of_sample(&self, longest_sample: Duration) -> Duration {
        longest_sample.saturating_mul(TIMES_LONGEST).clamp(self.shortest, self.longest)
    }

    /// How often a worker is looked at.
    pub(super) fn interval(&self) -> Duration {
        self.shortest / LOOKS
    }
}

/// For how long a worker has made no progress at a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuietTime {
    location: SampleInTask,
    /// When the worker began the sample: it may come to the same sample again.
    begun: Duration,
    looked_at: Duration,
    pub(super) total: Duration,
}

impl QuietTime {
    /// After a look at `now`.
    pub(super) fn after(
        before: Option<QuietTime>,
        seen: &Observation,
        now: Duration,
        interval: Duration,
    ) -> QuietTime {
        let location = (seen.task, seen.offset);
        let is_same = |before: &QuietTime| {
            before.location == location && before.begun == seen.since && !seen.has_progressed
        };
        let total = before.filter(is_same).map_or(Duration::ZERO, |before| {
            let passed = now.saturating_sub(before.looked_at).min(interval * MOST_INTERVALS);
            before.total.saturating_add(passed)
        });
        QuietTime { location, begun: seen.since, looked_at: now, total }
    }
}
