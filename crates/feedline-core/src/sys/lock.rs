//! Locks and conditions, of the standard library: they are words in memory and nothing else. Libraries
//! that keep a table of waiting threads leave it locked in a forked child, where a new loader would
//! hang on it. A panic while a lock is held does not poison it: panics are answered where they happen.

use std::sync::{self, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::clock;

/// One at a time.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Open.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Waits for its turn.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// To wait until something has changed.
#[derive(Debug, Default)]
pub(crate) struct Condition(sync::Condvar);

impl Condition {
    /// Wakes all who wait.
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits, without the lock, until woken.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// As `wait`, for that long at most.
    pub(crate) fn wait_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        at_most: Duration,
    ) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, at_most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// As `wait`, until then at most; also tells whether that moment has passed.
    pub(crate) fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
    ) -> (MutexGuard<'a, T>, bool) {
        let left = deadline.saturating_duration_since(clock::now());
        let guard = self.wait_for(guard, left);
        (guard, clock::now() >= deadline)
    }
}

/// To wait for a while, unless all is over before.
#[derive(Debug, Default)]
pub struct Deadline {
    is_over: Mutex<bool>,
    changed: Condition,
}

impl Deadline {
    /// All is over: nobody waits any more.
    pub fn end(&self) {
        *self.is_over.lock() = true;
        self.changed.notify_all();
    }

    /// Waits that long; true, and at once, if all is over.
    pub fn wait(&self, time: Duration) -> bool {
        let deadline = clock::now() + time;
        let mut is_over = self.is_over.lock();
        while !*is_over {
            let is_late;
            (is_over, is_late) = self.changed.wait_until(is_over, deadline);
            if is_late {
                break;
            }
        }
        *is_over
    }
}
