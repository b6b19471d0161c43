//! The only clock. Code that decides takes times as arguments.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The current time, which never goes backwards.
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the clock's home")]
    Instant::now()
}

/// Sleeps. Only for short waits in polling loops.
pub(crate) fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "this is the clock's home")]
    std::thread::sleep(time);
}

/// Nanoseconds of the monotonic clock, the same in all processes of this machine.
pub fn nanoseconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Seconds since 1970, for display. They may go backwards.
pub fn unix_seconds() -> f64 {
    #[expect(clippy::disallowed_methods, reason = "this is the clock's home")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
