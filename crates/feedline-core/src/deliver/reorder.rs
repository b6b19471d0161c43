//! Puts results in order. Exactly one for each number: a second one is a bug, and is noticed.

use std::collections::VecDeque;

/// Results that came before their turn.
pub struct Reorder<T> {
    /// The result of `next`, and those behind it.
    next: u64,
    early: VecDeque<Option<T>>,
}

impl<T> Reorder<T> {
    /// All numbers from `next` on are awaited.
    pub fn new(next: u64) -> Reorder<T> {
        Reorder { next, early: VecDeque::new() }
    }

    /// A result. Gives it back if its turn is over or there is one already.
    pub fn put(&mut self, number: u64, result: T) -> Result<(), T> {
        let Some(ahead) = number.checked_sub(self.next) else { return Err(result) };
        // Results come ahead of their turn by what is being made at a time, which memory bounds.
        let ahead = ahead as usize;
        if self.early.len() <= ahead {
            self.early.resize_with(ahead + 1, || None);
        }
        match &mut self.early[ahead] {
            Some(_) => Err(result),
            free => {
                *free = Some(result);
                Ok(())
            }
        }
    }

    /// The result whose turn it is.
    pub fn pop(&mut self) -> Option<(u64, T)> {
        let number = self.next;
        let result = self.early.front_mut()?.take()?;
        self.early.pop_front();
        self.next += 1;
        Some((number, result))
    }

    /// The number just popped is awaited again.
    pub fn again(&mut self) {
        self.next -= 1;
        self.early.push_front(None);
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
            order in Just((5_u64..45).collect::<Vec<_>>()).prop_shuffle(), again in 0_usize..40,
        ) {
            let mut reorder = Reorder::new(5);
            let mut left = Vec::new();
            for number in &order {
                reorder.put(*number, number * 10).unwrap();
                while let Some((number, result)) = reorder.pop() {
                    prop_assert_eq!(result, number * 10);
                    if left.len() == again {
                        reorder.again();
                        prop_assert_eq!(reorder.next(), number);
                        reorder.put(number, result).unwrap();
                        reorder.pop().unwrap();
                    }
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
        assert_eq!(Reorder::new(5).put(3, 'e'), Err('e'));
    }
}
