//! Memory for the next orders, and how far these may run ahead of the consumer.

use std::collections::VecDeque;

use crate::collate::BatchSlot;
use crate::engine;
use crate::sys::lock::{Condition, Mutex};

/// Memory for orders that were not given out yet, and a list for those that are being given out.
#[derive(Default)]
pub(super) struct SlotSupply {
    pub(super) batch_slots: VecDeque<BatchSlot>,
    pub(super) given: Vec<engine::Order>,
}

/// The slot up to which orders are given out. Lists have no memory that is reserved before they are loaded, so a
/// horizon limits how far their orders run ahead of the consumer.
pub(super) struct Horizon {
    /// None if nothing more is given out.
    slot: Mutex<Option<u64>>,
    changed: Condition,
}

impl Horizon {
    pub(super) fn new(slot: u64) -> Horizon {
        Horizon { slot: Mutex::new(Some(slot)), changed: Condition::default() }
    }

    /// Moves the horizon to a slot; it never moves back.
    pub(super) fn move_to(&self, slot: u64) {
        let mut horizon = self.slot.lock();
        if horizon.is_some_and(|horizon| horizon < slot) {
            *horizon = Some(slot);
            self.changed.notify_all();
        }
    }

    /// Stops giving out orders.
    pub(super) fn close(&self) {
        *self.slot.lock() = None;
        self.changed.notify_all();
    }

    /// The horizon, once it is beyond `next`; None if it never will be.
    pub(super) fn beyond(&self, next: u64) -> Option<u64> {
        let mut horizon = self.slot.lock();
        loop {
            match *horizon {
                None => return None,
                Some(slot) if next < slot => return Some(slot),
                Some(_) => horizon = self.changed.wait(horizon),
            }
        }
    }
}
