//! Orders that were not given out yet, and how far they may go ahead of the consumer.

use std::collections::VecDeque;

use crate::collate::Seat;
use crate::sys::lock::{Condition, Mutex};

/// Orders that were not given out yet.
pub(super) struct Line {
    /// For a front that judges by itself: the next number.
    pub(super) next: u64,
    pub(super) seats: VecDeque<Seat>,
}

/// Where the line of orders ends. It may grow at the last moment, when it is known how many samples
/// are missing. Lists have no memory that is taken before they are made: of them, orders go only so far
/// ahead of the consumer.
pub(super) struct LineEnd {
    state: Mutex<Ends>,
    changed: Condition,
}

pub(super) struct Ends {
    end: u64,
    is_settled: bool,
    horizon: u64,
}

impl LineEnd {
    pub(super) fn new(end: u64, is_settled: bool, horizon: u64) -> LineEnd {
        let state = Mutex::new(Ends { end, is_settled, horizon });
        LineEnd { state, changed: Condition::default() }
    }

    pub(super) fn move_to(&self, end: u64) {
        self.state.lock().end = end;
        self.changed.notify_all();
    }

    /// It does not grow any more.
    pub(super) fn settle(&self) {
        self.state.lock().is_settled = true;
        self.changed.notify_all();
    }

    /// Orders may go as far as that.
    pub(super) fn move_horizon(&self, horizon: u64) {
        let mut state = self.state.lock();
        if state.horizon < horizon {
            state.horizon = horizon;
            self.changed.notify_all();
        }
    }

    /// Nobody waits here any more.
    pub(super) fn close(&self) {
        *self.state.lock() = Ends { end: 0, is_settled: true, horizon: 0 };
        self.changed.notify_all();
    }

    /// How far orders may go, as soon as that lies beyond `next`; None if it never will.
    pub(super) fn beyond(&self, next: u64) -> Option<u64> {
        let mut state = self.state.lock();
        loop {
            let Ends { end, is_settled, horizon } = *state;
            if next < end.min(horizon) {
                return Some(end.min(horizon));
            }
            if next >= end && is_settled {
                return None;
            }
            state = self.changed.wait(state);
        }
    }
}
