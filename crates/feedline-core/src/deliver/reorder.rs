//! Puts results in order. Exactly one for each number: a second one is a bug, and is noticed.

use std::collections::BTreeMap;

/// Results that came before their turn.
pub struct Reorder<T> {
    next: u64,
    early: BTreeMap<u64, T>,
}

impl<T> Reorder<T> {
    /// The first number that is awaited.
    pub fn new(first: u64) -> Reorder<T> {
        Reorder { next: first, early: BTreeMap::new() }
    }

    /// A result. Gives it back if its turn is over or there is one already.
    pub fn put(&mut self, number: u64, result: T) -> Result<(), T> {
        if number < self.next || self.early.contains_key(&number) {
            return Err(result);
        }
        self.early.insert(number, result);
        Ok(())
    }

    /// The result whose turn it is.
    pub fn pop(&mut self) -> Option<(u64, T)> {
        let result = self.early.remove(&self.next)?;
        self.next += 1;
        Some((self.next - 1, result))
    }

    /// The number just popped is awaited again.
    pub fn again(&mut self) {
        self.next -= 1;
    }

    /// The number that is awaited.
    pub fn next(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_the_order_of_arrival_they_leave_in_order(
            order in Just((5_u64..45).collect::<Vec<_>>()).prop_shuffle()
        ) {
            let mut reorder = Reorder::new(5);
            let mut left = Vec::new();
            for number in &order {
                reorder.put(*number, number * 10).unwrap();
                while let Some((number, result)) = reorder.pop() {
                    prop_assert_eq!(result, number * 10);
                    left.push(number);
                }
            }
            prop_assert_eq!(left, (5..45).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_second_result_is_noticed() {
        let mut reorder = Reorder::new(0);
        reorder.put(0, 'a').unwrap();
        assert_eq!(reorder.put(0, 'b'), Err('b'));
        reorder.pop();
        assert_eq!(reorder.put(0, 'c'), Err('c'));
        reorder.again();
        assert_eq!(reorder.put(0, 'd'), Ok(()));
    }
}
