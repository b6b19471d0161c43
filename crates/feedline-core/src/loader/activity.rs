//! What each thread is doing, and since when: read when the consumer has waited long. Costs a few stores.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sys::clock;

/// No sample in progress.
const NOTHING: u64 = u64::MAX;

/// What a thread does with a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadActivity {
    /// Reads its bytes.
    Reading,
    /// Waits before a retry.
    Waiting,
    /// Decodes and transforms it.
    Making,
}

impl ThreadActivity {
    pub(super) fn name(self) -> &'static str {
        match self {
            ThreadActivity::Reading => "reading",
            ThreadActivity::Waiting => "waiting to read again",
            ThreadActivity::Making => "making",
        }
    }
}

/// What one thread is doing.
pub(super) struct ActivityRecord {
    number: AtomicU64,
    index: AtomicU64,
    since: AtomicU64,
    doing: AtomicU64,
}

impl Default for ActivityRecord {
    fn default() -> ActivityRecord {
        ActivityRecord {
            number: AtomicU64::new(NOTHING),
            index: AtomicU64::new(0),
            since: AtomicU64::new(0),
            doing: AtomicU64::new(0),
        }
    }
}

impl ActivityRecord {
    /// The thread starts a sample.
    pub(super) fn begin(&self, number: u64, index: u64, doing: ThreadActivity) {
        self.index.store(index, Ordering::Relaxed);
        self.since.store(clock::nanoseconds(), Ordering::Relaxed);
        self.doing.store(doing as u64, Ordering::Relaxed);
        self.number.store(number, Ordering::Release);
    }

    /// The thread continues with another activity.
    pub(super) fn turn_to(&self, doing: ThreadActivity) {
        self.doing.store(doing as u64, Ordering::Relaxed);
    }

    /// The thread has finished the sample.
    pub(super) fn end(&self) {
        self.number.store(NOTHING, Ordering::Release);
    }

    /// Number in the run, index in the source, activity, and its duration.
    pub(super) fn current(&self) -> Option<(u64, u64, ThreadActivity, Duration)> {
        let number = self.number.load(Ordering::Acquire);
        if number == NOTHING {
            return None;
        }
        let doing = match self.doing.load(Ordering::Relaxed) {
            0 => ThreadActivity::Reading,
            1 => ThreadActivity::Waiting,
            _ => ThreadActivity::Making,
        };
        let since = self.since.load(Ordering::Relaxed);
        let time = Duration::from_nanos(clock::nanoseconds().saturating_sub(since));
        Some((number, self.index.load(Ordering::Relaxed), doing, time))
    }
}
