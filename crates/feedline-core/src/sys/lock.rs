//! Mutexes and condition variables of the standard library, which are plain words in memory.
//! Libraries that keep a table of waiting threads leave it locked in a forked child, where a new
//! loader would hang on it. A panic does not poison a lock: panics are handled where they happen.

use std::sync::{self, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::clock;

/// A mutex.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Blocks until the lock is free.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub(crate) struct Condition(sync::Condvar);

impl Condition {
    /// Wakes all waiting threads.
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Releases the lock and waits until woken.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Like `wait`, for at most that long.
    pub(crate) fn wait_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        at_most: Duration,
    ) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, at_most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Like `wait`, until the deadline at most; also returns whether the deadline has passed.
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

/// A pause that can be ended early.
#[derive(Debug, Default)]
pub struct Deadline {
    is_over: Mutex<bool>,
    changed: Condition,
}

impl Deadline {
    /// Ends all current and future waits.
    pub fn end(&self) {
        *self.is_over.lock() = true;
        self.changed.notify_all();
    }

    /// Waits that long. Returns true, at once, after `end`.
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
