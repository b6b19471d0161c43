//! Where the consumer waits for the next batch, and learns how an epoch ended.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::sys::lock::{Condition, Mutex};

/// The result of a wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken<T, E> {
    /// The next batch.
    Ready(T),
    /// All batches were taken.
    Ended,
    /// An error that follows the batches before it. Later calls return `Ended`.
    Failed(E),
    /// The deadline has passed without a batch.
    NotYet,
}

/// Batches by number, and the end of the epoch.
pub(crate) struct Handoff<T, E> {
    state: Mutex<HandoffState<T, E>>,
    changed: Condition,
}

struct HandoffState<T, E> {
    is_closed: bool,
    next: u64,
    ready: BTreeMap<u64, T>,
    end: Option<(u64, Option<E>)>,
}

impl<T, E> Default for Handoff<T, E> {
    fn default() -> Handoff<T, E> {
        let state = HandoffState { is_closed: false, next: 0, ready: BTreeMap::new(), end: None };
        Handoff { state: Mutex::new(state), changed: Condition::default() }
    }
}

impl<T, E> Handoff<T, E> {
    /// Adds a finished batch. After `close`, it is dropped.
    pub(crate) fn put(&self, number: u64, batch: T) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.ready.insert(number, batch);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Nothing follows from `number` on: the end, or an error. The earliest call counts.
    pub(crate) fn end(&self, number: u64, error: Option<E>) {
        let mut state = self.state.lock();
        if state.end.as_ref().is_none_or(|(earlier, _)| number < *earlier) {
            state.end = Some((number, error));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the next batch or the end, until the deadline.
    pub(crate) fn take(&self, deadline: Instant) -> Taken<T, E> {
        let mut state = self.state.lock();
        loop {
            let next = state.next;
            if let Some(batch) = state.ready.remove(&next) {
                state.next += 1;
                return Taken::Ready(batch);
            }
            if let Some((number, error)) = &mut state.end
                && next >= *number
            {
                return error.take().map_or(Taken::Ended, Taken::Failed);
            }
            let is_late;
            (state, is_late) = self.changed.wait_until(state, deadline);
            let is_there = state.ready.contains_key(&next)
                || state.end.as_ref().is_some_and(|(number, _)| *number <= next);
            if is_late && !is_there {
                return Taken::NotYet;
            }
        }
    }

    /// Drops the batches that were not taken; nothing follows.
    pub(crate) fn close(&self) {
        let ready = {
            let mut state = self.state.lock();
            let next = state.next;
            state.is_closed = true;
            // An error that is due is still raised; an error behind the batches dropped here is not.
            if state.end.as_ref().is_none_or(|(number, _)| *number > next) {
                state.end = Some((next, None));
            }
            std::mem::take(&mut state.ready)
        };
        self.changed.notify_all();
        drop(ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;

    fn take(handoff: &Handoff<char, &'static str>) -> Taken<char, &'static str> {
        handoff.take(clock::now())
    }

    #[test]
    fn batches_leave_in_order_and_the_error_after_them() {
        let handoff = Handoff::default();
        handoff.put(1, 'b');
        assert_eq!(take(&handoff), Taken::NotYet);
        handoff.end(2, Some("oh"));
        handoff.put(0, 'a');
        assert_eq!(take(&handoff), Taken::Ready('a'));
        assert_eq!(take(&handoff), Taken::Ready('b'));
        assert_eq!(take(&handoff), Taken::Failed("oh"));
        assert_eq!(take(&handoff), Taken::Ended);
    }

    #[test]
    fn of_two_ends_the_earlier_counts() {
        let handoff = Handoff::default();
        handoff.end(3, None);
        handoff.end(0, Some("first"));
        handoff.end(1, Some("later"));
        assert_eq!(take(&handoff), Taken::Failed("first"));
    }

    #[test]
    fn closing_ends_the_wait() {
        let handoff = Handoff::<char, &'static str>::default();
        std::thread::scope(|scope| {
            let waiter =
                scope.spawn(|| handoff.take(clock::now() + std::time::Duration::from_secs(60)));
            handoff.close();
            assert_eq!(waiter.join().unwrap(), Taken::Ended);
        });
        handoff.put(0, 'a');
        assert_eq!(take(&handoff), Taken::Ended, "a batch that comes too late is not delivered");
    }
}
