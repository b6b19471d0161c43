//! The one clock. Code that decides takes times as arguments; only the edges call this.

use std::time::Instant;

/// The present moment, never going backwards.
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the clock's home")]
    Instant::now()
}
