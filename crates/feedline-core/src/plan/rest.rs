//! The rest of an epoch that other ranks have begun, divided among the ranks of now, by arithmetic.
//!
//! The samples of an epoch are numbered over all ranks: with n ranks, rank r has the numbers r, r + n, r + 2n and so on.
//! What is left of them is an order again, which is shared one by one. A run may be continued several times in one epoch
//! with another number of ranks; then each rest is numbered anew over the rest before it.

use super::{Memo, Plan, Shard};
use crate::error::{Error, Kind, Result};
use crate::run_state::{Rest, SavedRest};
use crate::sample::Ticket;

/// The most entries of the table of ranks that have come differently far.
const MOST_ENTRIES: usize = 1 << 24;
/// How often an epoch can be continued with other ranks that have come differently far.
const MOST_LAYERS: usize = 64;

/// What is left of an epoch, and this rank's part of it.
pub(crate) struct RestOrder {
    /// The plan of the ranks that began the epoch.
    origin: Plan,
    layers: Vec<Layer>,
    shard: Shard,
    /// How many numbers are left.
    numbers: u64,
    saved: SavedRest,
}

/// One rest: its numbers become numbers of the rest before it, or of the epoch.
enum Layer {
    /// All numbers from this one on.
    From(u64),
    Ranks(Table),
}

/// What ranks that have come differently far have left, row by row: a row has one place of each rank that has it left.
struct Table {
    world: u64,
    /// Numbers that come first.
    waiting: Vec<u64>,
    stretches: Vec<Stretch>,
}

/// Rows of the same ranks.
struct Stretch {
    /// The number of its first place among those in stretches.
    first: u64,
    row: u64,
    ranks: Vec<u32>,
}

/// Where a rank has come to in its part of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// The first place that was not used.
    pub place: u64,
    /// Places at the end that were used before their turn.
    pub from_end: u64,
    /// Places before `place` that are in no batch yet.
    pub waiting: Vec<u64>,
}

impl RestOrder {
    /// What `saved` says is left, for the shard of `plan`. Refuses numbers that no run can have written.
    pub(crate) fn new(plan: &Plan, saved: SavedRest) -> Result<RestOrder> {
        let corrupt = |what: &str| {
            let message = format!("the state is corrupt: {what}");
            Error::new(Kind::StateMismatch, message).with_hint("load an earlier state")
        };
        if saved.layers.len() > MOST_LAYERS {
            let message = format!(
                "the state was continued with other ranks {} times in one epoch, more than {MOST_LAYERS}",
                saved.layers.len()
            );
            return Err(Error::new(Kind::StateMismatch, message)
                .with_hint("finish the epoch before the next change of the number of ranks"));
        }
        let origin = plan.with_world(saved.world).map_err(|_| corrupt("its number of ranks"))?;
        let mut numbers = origin.numbers();
        let mut layers = Vec::with_capacity(saved.layers.len());
        for rest in &saved.layers {
            let layer = match rest {
                Rest::From(start) if *start <= numbers => {
                    numbers -= start;
                    Layer::From(*start)
                }
                Rest::From(_) => return Err(corrupt("it has used more samples than there are")),
                Rest::Ranks { from, to, waiting } => {
                    let table = Table::new(from, to, waiting, numbers)
                        .ok_or_else(|| corrupt("its ranks have used samples that do not exist"))?;
                    numbers = table.numbers();
                    Layer::Ranks(table)
                }
            };
            layers.push(layer);
        }
        Ok(RestOrder { origin, layers, shard: plan.division(), numbers, saved })
    }

    /// Only these numbers of an epoch of `plan`, in this order, all of them for one rank.
    pub(crate) fn only(plan: &Plan, chosen: Vec<u64>) -> RestOrder {
        let world = plan.world();
        let zeros = vec![0; world as usize];
        let rest = Rest::Ranks { from: zeros.clone(), to: zeros, waiting: chosen.clone() };
        let numbers = chosen.len() as u64;
        let end = Stretch { first: 0, row: 0, ranks: Vec::new() };
        RestOrder {
            origin: plan.clone(),
            layers: vec![Layer::Ranks(Table { world, waiting: chosen, stretches: vec![end] })],
            shard: plan.division().among(0, 1),
            numbers,
            saved: SavedRest { world, layers: vec![rest] },
        }
    }

    /// How many numbers are left, of all ranks together.
    pub(crate) fn numbers(&self) -> u64 {
        self.numbers
    }

    /// Number of samples of this rank.
    pub(crate) fn len(&self) -> u64 {
        self.shard.len(self.numbers)
    }

    /// Number of samples of this rank in the whole epoch, if all were divided among these ranks.
    pub(crate) fn epoch_len(&self) -> u64 {
        self.origin.numbers().div_ceil(self.shard.world())
    }

    /// As it is saved.
    pub(crate) fn saved(&self) -> &SavedRest {
        &self.saved
    }

    /// The ticket of the sample at a place of this rank; None after the last.
    pub(super) fn at(&self, memo: &Memo, epoch: u64, place: u64) -> Option<Ticket> {
        if place >= self.len() {
            return None;
        }
        // The first numbers are repeated as padding.
        let mut number = self.shard.order_of(self.shard.rank(), place) % self.numbers;
        for layer in self.layers.iter().rev() {
            number = match layer {
                Layer::From(start) => start + number,
                Layer::Ranks(table) => table.at(number),
            };
        }
        let world = self.origin.world();
        Some(self.origin.ticket(memo, epoch, number % world, number / world))
    }
}

impl Table {
    /// None if the places are not below `numbers`, or the table would be too large.
    fn new(from: &[u64], to: &[u64], waiting: &[u64], numbers: u64) -> Option<Table> {
        let world = from.len() as u64;
        let is_possible = !from.is_empty()
            && from.len() == to.len()
            && from.len() <= u32::MAX as usize
            && waiting.iter().all(|number| *number < numbers)
            && waiting.is_sorted_by(|one, other| one < other)
            && (0..world).zip(from.iter().zip(to)).all(|(rank, (from, to))| {
                from <= to && *to <= numbers.saturating_sub(rank).div_ceil(world)
            });
        if !is_possible {
            return None;
        }
        let mut rows: Vec<u64> = from.iter().chain(to).copied().collect();
        rows.sort_unstable();
        rows.dedup();
        let (mut first, mut entries) = (0, 0);
        let mut stretches = Vec::with_capacity(rows.len());
        for pair in rows.windows(2) {
            let (row, end) = (pair[0], pair[1]);
            let has = |rank: &u32| from[*rank as usize] <= row && end <= to[*rank as usize];
            let ranks: Vec<u32> = (0..from.len() as u32).filter(has).collect();
            if ranks.is_empty() {
                continue;
            }
            entries += ranks.len();
            if entries > MOST_ENTRIES {
                return None;
            }
            let count = (end - row) * ranks.len() as u64;
            stretches.push(Stretch { first, row, ranks });
            first += count;
        }
        // A last one without ranks marks the end.
        stretches.push(Stretch { first, row: 0, ranks: Vec::new() });
        Some(Table { world, waiting: waiting.to_vec(), stretches })
    }

    fn numbers(&self) -> u64 {
        let in_rows = self.stretches.last().map_or(0, |end| end.first);
        self.waiting.len() as u64 + in_rows
    }

    /// The number in the order before; below `numbers`.
    fn at(&self, number: u64) -> u64 {
        let waiting = self.waiting.len() as u64;
        let Some(number) = number.checked_sub(waiting) else {
            return self.waiting[number as usize];
        };
        let after = self.stretches.partition_point(|stretch| stretch.first <= number);
        let stretch = &self.stretches[after - 1];
        let (beyond, width) = (number - stretch.first, stretch.ranks.len() as u64);
        let rank = stretch.ranks[(beyond % width) as usize];
        (stretch.row + beyond / width) * self.world + u64::from(rank)
    }
}

impl Plan {
    /// What is left of an epoch after ranks have come this far: one entry for each of `world` ranks, or one for all of
    /// them. `before` is the rest that they shared, if they had not begun the epoch.
    pub(crate) fn rest_after(
        &self,
        before: Option<&RestOrder>,
        world: u64,
        reached: &[Reached],
    ) -> Result<SavedRest> {
        let numbers = self.shared_numbers(before, world)?;
        let mut saved = match before {
            Some(rest) => rest.saved.clone(),
            None => SavedRest { world, layers: Vec::new() },
        };
        if let [Reached { place, from_end: 0, waiting }] = reached
            && waiting.is_empty()
        {
            let start = place.saturating_mul(world).min(numbers);
            match saved.layers.last_mut() {
                Some(Rest::From(earlier)) => *earlier += start,
                Some(Rest::Ranks { .. }) | None => saved.layers.push(Rest::From(start)),
            }
            return Ok(saved);
        }
        let (mut from, mut to, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, reached) in (0..world).zip(reached) {
            let different = numbers.saturating_sub(rank).div_ceil(world);
            let len = self.len_among(before, rank, world, numbers);
            let end = len.saturating_sub(reached.from_end).min(different);
            from.push(reached.place.min(end));
            to.push(end);
            waiting.extend(
                reached.waiting.iter().map(|place| (place * world + rank) % numbers.max(1)),
            );
        }
        // A replacement may wait twice, or be the sample of a rank's own.
        waiting.sort_unstable();
        waiting.dedup();
        saved.layers.push(Rest::Ranks { from, to, waiting });
        Ok(saved)
    }

    /// How many numbers this many ranks share: those of an epoch, or of a rest.
    pub(crate) fn shared_numbers(&self, before: Option<&RestOrder>, world: u64) -> Result<u64> {
        match before {
            Some(rest) => Ok(rest.numbers),
            None => Ok(self.with_world(world)?.numbers()),
        }
    }

    /// Number of samples of one of several ranks that share these numbers.
    pub(crate) fn len_among(
        &self,
        before: Option<&RestOrder>,
        rank: u64,
        world: u64,
        numbers: u64,
    ) -> u64 {
        match before.is_some() || self.divides_last() {
            true => self.division().among(rank, world).len(numbers),
            // All ranks have as many: other plans are refused.
            false => numbers / world.max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{By, Excluded, OrderStep, Remainder};
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn plan(samples: u64, rank: u64, world: u64, remainder: Remainder) -> Plan {
        let shard = Shard::new(rank, world, remainder, By::Record).unwrap();
        let steps = [OrderStep::Shuffle { seed: 5 }, OrderStep::Shard(shard)];
        Plan::new(&[samples], &steps, Excluded::default()).unwrap()
    }

    fn ranks(samples: u64, world: u64) -> Vec<Plan> {
        (0..world).map(|rank| plan(samples, rank, world, Remainder::Uneven)).collect()
    }

    /// The tickets of all ranks after what each has used, and what they used: the first places, and the last.
    fn used_and_left(
        orders: &[(u64, Vec<Ticket>)],
        reached: &[Reached],
    ) -> (Vec<Ticket>, Vec<Ticket>) {
        let (mut used, mut left) = (Vec::new(), Vec::new());
        for ((_, tickets), reached) in orders.iter().zip(reached) {
            for (place, ticket) in (0..).zip(tickets) {
                let is_last = place >= tickets.len() as u64 - reached.from_end;
                let is_used = place < reached.place || is_last;
                let waits = reached.waiting.contains(&place) && place < reached.place;
                if is_used && !waits { used.push(*ticket) } else { left.push(*ticket) }
            }
        }
        (used, left)
    }

    fn tickets(plan: &Plan, rest: Option<&Arc<RestOrder>>) -> Vec<Ticket> {
        let order = match rest {
            Some(rest) => plan.rest_of_epoch(1, Arc::clone(rest)),
            None => plan.epoch(1),
        };
        let len = rest.map_or(plan.epoch_len(), |rest| rest.len());
        assert_eq!(order.at(len), None);
        (0..len).map(|place| order.at(place).unwrap()).collect()
    }

    /// How far a rank of `len` samples comes, drawn from a number.
    fn drawn(len: u64, mut draw: u64) -> Reached {
        let mut below = |most: u64| {
            let found = draw % (most + 1);
            draw /= most + 1;
            found
        };
        let place = below(len);
        let from_end = below((len - place).min(3));
        let waiting = (0..place.min(2)).filter(|_| below(1) == 1).collect();
        Reached { place, from_end, waiting }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]
        #[test]
        fn every_sample_comes_once_whatever_the_ranks_have_used(
            samples in 0_u64..60, worlds in prop::collection::vec(1_u64..6, 2..5), draws: [u64; 32],
        ) {
            let mut draws = draws.into_iter().cycle();
            let mut all = tickets(&plan(samples, 0, 1, Remainder::Pad), None);
            all.sort();
            let mut done = Vec::new();
            let mut before: Option<SavedRest> = None;
            for (at, world) in worlds.iter().enumerate() {
                let plans = ranks(samples, *world);
                let rest = |plan: &Plan| {
                    before.clone().map(|saved| Arc::new(RestOrder::new(plan, saved).unwrap()))
                };
                let orders: Vec<_> = plans
                    .iter()
                    .map(|plan| (plan.rank(), tickets(plan, rest(plan).as_ref())))
                    .collect();
                if at == worlds.len() - 1 {
                    done.extend(orders.into_iter().flat_map(|(_, tickets)| tickets));
                    break;
                }
                let reached: Vec<_> = orders
                    .iter()
                    .map(|(_, tickets)| drawn(tickets.len() as u64, draws.next().unwrap()))
                    .collect();
                let (used, left) = used_and_left(&orders, &reached);
                done.extend(used);
                let earlier = rest(&plans[0]);
                let saved = plans[0].rest_after(earlier.as_deref(), *world, &reached).unwrap();
                let json = serde_json::to_string(&saved).unwrap();
                let read: SavedRest = serde_json::from_str(&json).unwrap();
                prop_assert_eq!(&read, &saved);
                let whole = RestOrder::new(&plan(samples, 0, 1, Remainder::Pad), read).unwrap();
                prop_assert_eq!(whole.numbers(), left.len() as u64);
                before = Some(saved);
            }
            done.sort();
            prop_assert_eq!(done, all);
        }

        #[test]
        fn equal_ranks_leave_the_end_of_the_order_of_one_rank(
            samples in 1_u64..200, world in 1_u64..9, other in 1_u64..9, place in 0_u64..30,
            remainder in prop_oneof![Just(Remainder::Pad), Just(Remainder::Drop)],
        ) {
            let first = plan(samples, 0, world, remainder);
            let reached = [Reached { place: place.min(first.epoch_len()), ..Reached::default() }];
            let saved = first.rest_after(None, world, &reached).unwrap();
            let all = tickets(&plan(samples, 0, 1, Remainder::Pad), None);
            let left = &all[(reached[0].place * world).min(samples) as usize..];
            let mut lens = Vec::new();
            for rank in 0..other {
                let own = plan(samples, rank, other, remainder);
                let rest = Arc::new(RestOrder::new(&own, saved.clone()).unwrap());
                let found = tickets(&own, Some(&rest));
                let expected = (rank as usize..).step_by(other as usize).take(found.len());
                let expected: Vec<_> = expected.map(|at| left[at % left.len()]).collect();
                lens.push(found.len());
                prop_assert_eq!(found, expected);
            }
            let even = left.len() as u64 / other;
            let len = if remainder == Remainder::Pad { (left.len() as u64).div_ceil(other) } else { even };
            prop_assert!(lens.iter().all(|found| *found as u64 == len));
        }
    }

    #[test]
    fn impossible_rests_are_refused() {
        let plan = plan(10, 0, 1, Remainder::Pad);
        let ranks = |from: &[u64], to: &[u64], waiting: &[u64]| Rest::Ranks {
            from: from.to_vec(),
            to: to.to_vec(),
            waiting: waiting.to_vec(),
        };
        for layers in [
            vec![Rest::From(11)],
            vec![Rest::From(5), Rest::From(6)],
            vec![ranks(&[], &[], &[])],
            vec![ranks(&[0, 0], &[5], &[])],
            vec![ranks(&[3, 0], &[2, 5], &[])],
            vec![ranks(&[0, 0], &[6, 5], &[])],
            vec![ranks(&[0, 0], &[5, 5], &[10])],
            vec![ranks(&[2, 2], &[5, 5], &[1, 1])],
            vec![Rest::From(0); MOST_LAYERS + 1],
        ] {
            let saved = SavedRest { world: 2, layers };
            assert!(RestOrder::new(&plan, saved.clone()).is_err(), "{saved:?}");
        }
        for world in [0, u64::MAX] {
            assert!(RestOrder::new(&plan, SavedRest { world, layers: vec![] }).is_err());
        }
    }
}
