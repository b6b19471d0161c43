//! Values by slot, in little memory for slots that are close to each other.

use std::collections::{BTreeMap, VecDeque};

/// Values by slot, mostly of slots close to each other.
pub(super) struct BySlot<T> {
    first: u64,
    near: VecDeque<Option<T>>,
    others: BTreeMap<u64, T>,
}

impl<T> Default for BySlot<T> {
    fn default() -> BySlot<T> {
        BySlot { first: 0, near: VecDeque::new(), others: BTreeMap::new() }
    }
}

impl<T> BySlot<T> {
    /// Slots further apart than this are rare.
    const NEAR: u64 = 1 << 16;

    pub(super) fn insert(&mut self, slot: u64, value: T) {
        self.others.remove(&slot);
        if self.near.is_empty() {
            self.first = slot;
        }
        match slot.checked_sub(self.first) {
            Some(ahead) if ahead < Self::NEAR => {
                let ahead = ahead as usize;
                if self.near.len() <= ahead {
                    self.near.resize_with(ahead + 1, || None);
                }
                self.near[ahead] = Some(value);
            }
            Some(_) | None => {
                self.others.insert(slot, value);
            }
        }
    }

    pub(super) fn get(&self, slot: u64) -> Option<&T> {
        let near = slot.checked_sub(self.first).and_then(|ahead| self.near.get(ahead as usize));
        near.and_then(Option::as_ref).or_else(|| self.others.get(&slot))
    }

    pub(super) fn take(&mut self, slot: u64) -> Option<T> {
        let near = slot.checked_sub(self.first).and_then(|ahead| self.near.get_mut(ahead as usize));
        let found = near.and_then(Option::take);
        while let Some(None) = self.near.front() {
            self.near.pop_front();
            self.first += 1;
        }
        found.or_else(|| if self.others.is_empty() { None } else { self.others.remove(&slot) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_are_found_again_whatever_the_order_of_their_slots(
            steps in prop::collection::vec((0_u64..200_000, prop::bool::ANY), 0..200),
        ) {
            let (mut values, mut plain) = (BySlot::default(), BTreeMap::new());
            for (slot, is_taken) in steps {
                let slot = if slot % 3 == 0 { slot } else { slot % 40 };
                if is_taken {
                    prop_assert_eq!(values.take(slot), plain.remove(&slot));
                } else {
                    values.insert(slot, slot);
                    plain.insert(slot, slot);
                }
                prop_assert_eq!(values.get(slot), plain.get(&slot));
            }
        }
    }
}
