//! Samples that a front with functions needs in addition to the planned ones, to fill slots or replace others. A
//! separate thread loads them, because a read may take long and the front must not wait for it.

use std::collections::VecDeque;

use super::driver::Extra;
use super::run::Run;
use crate::sys::lock::{Condition, Mutex};
use crate::transform::Native;

/// Samples to load; None when the run is over.
pub(super) struct Extras {
    waiting: Mutex<Option<VecDeque<Extra>>>,
    changed: Condition,
}

impl Default for Extras {
    fn default() -> Extras {
        Extras { waiting: Mutex::new(Some(VecDeque::new())), changed: Condition::default() }
    }
}

impl Extras {
    pub(super) fn put(&self, extras: Vec<Extra>) {
        if let Some(waiting) = &mut *self.waiting.lock() {
            waiting.extend(extras);
        }
        self.changed.notify_all();
    }

    pub(super) fn close(&self) {
        *self.waiting.lock() = None;
        self.changed.notify_all();
    }

    fn take(&self) -> Option<Extra> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(extra) = waiting.as_mut()?.pop_front() {
                return Some(extra);
            }
            waiting = self.changed.wait(waiting);
        }
    }
}

impl Run {
    /// Loads samples until the run is over.
    pub(super) fn make_queued_extras(&self) {
        let mut native = Native::default();
        while let Some(extra) = self.extras.take() {
            self.make_extras(vec![extra], Some(&mut native));
            native.trim(self.keep);
        }
    }
}
