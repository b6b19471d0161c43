//! Puts results in order. Exactly one for each number: a second one is a bug, and is noticed.

use std::collections::{BTreeMap, VecDeque};

/// Results that came before their turn.
pub struct Reorder<T> {
    /// Numbers that are awaited before all others, and their results.
    first: VecDeque<u64>,
    early_first: BTreeMap<u64, T>,
    /// The others: the result of `next`, and those behind it.
    next: u64,
    early: VecDeque<Option<T>>,
    /// The number just popped was one of the first.
    was_first: Option<u64>,
}

impl<T> Reorder<T> {
    /// These numbers are awaited, ascending, and then all from `next` on.
    pub fn new(first: impl IntoIterator<Item = u64>, next: u64) -> Reorder<T> {
        let first = first.into_iter().collect();
        let (early_first, early) = (BTreeMap::new(), VecDeque::new());
        Reorder { first, early_first, next, early, was_first: None }
    }

    /// A result. Gives it back if its turn is over or there is one already.
    pub fn put(&mut self, number: u64, result: T) -> Result<(), T> {
        let Some(ahead) = number.checked_sub(self.next) else {
            let is_awaited = self.first.binary_search(&number).is_ok();
            if !is_awaited || self.early_first.contains_key(&number) {
                return Err(result);
            }
            self.early_first.insert(number, result);
            return Ok(());
        };
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
        let number = self.next();
        let result = if self.first.is_empty() {
            let result = self.early.front_mut()?.take()?;
            self.early.pop_front();
            self.next += 1;
            result
        } else {
            self.early_first.remove(&number)?
        };
        self.was_first = self.first.pop_front();
        Some((number, result))
    }

    /// The number just popped is awaited again.
    pub fn again(&mut self) {
        match self.was_first.take() {
            Some(number) => self.first.push_front(number),
            None => {
                self.next -= 1;
                self.early.push_front(None);
            }
        }
    }

    /// The next `count` results in order, if all of them are here.
    pub fn peek(&self, count: usize) -> Option<impl Iterator<Item = &T>> {
        let others = count.saturating_sub(self.first.len());
        let results = || {
            let firsts = self.first.iter().take(count).map(|number| self.early_first.get(number));
            firsts.chain(self.early.iter().take(others).map(Option::as_ref))
        };
        let is_whole = results().count() == count && results().all(|result| result.is_some());
        is_whole.then(|| results().flatten())
    }

    /// The number that is awaited.
    pub fn next(&self) -> u64 {
        self.first.front().copied().unwrap_or(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_the_order_of_arrival_they_leave_in_order(
            order in Just([1, 3].into_iter().chain(5_u64..45).collect::<Vec<_>>()).prop_shuffle(),
            again in 0_usize..42,
        ) {
            let mut reorder = Reorder::new([1, 3], 5);
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
            prop_assert_eq!(left, [1, 3].into_iter().chain(5..45).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_second_result_is_noticed() {
        let mut reorder = Reorder::new([], 0);
        reorder.put(0, 'a').unwrap();
        assert_eq!(reorder.put(0, 'b'), Err('b'));
        reorder.pop();
        assert_eq!(reorder.put(0, 'c'), Err('c'));
        reorder.again();
        assert_eq!(reorder.put(0, 'd'), Ok(()));
        let mut resumed = Reorder::new([2], 5);
        assert_eq!(resumed.put(3, 'e'), Err('e'));
        resumed.put(2, 'f').unwrap();
        resumed.pop();
        assert_eq!(resumed.put(2, 'g'), Err('g'));
    }
}
