//! The one clock. Code that decides takes times as arguments; only the edges call this.

use std::time::{Duration, Instant};

/// The present moment, never going backwards.
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the clock's home")]
    Instant::now()
}

/// What `work` returns, and how long it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = now();
    let result = work();
    (result, start.elapsed())
}
