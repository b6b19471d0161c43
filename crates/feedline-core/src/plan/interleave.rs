//! The order of tf.data's interleave as a function of a place, without listing or walking over records.
//!
//! A cycle has slots, each with an open shard, that are visited in turn; a visit takes up to `block` records. An
//! exhausted shard is noticed when the next record is requested: its visit ends early, the slot stays empty until its
//! next turn, and then opens the next shard. So a shard of n records that is opened in round t is visited in the rounds
//! t to t + n / block, whatever the other slots do, and gives a whole block in all of them but the last. The table
//! stores when each shard was opened and which visits were short; all else follows by arithmetic.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// The largest table, in bytes.
pub(super) const MOST_BYTES: u64 = 256 << 20;

/// The order of one pass over shards.
#[derive(Debug)]
pub(super) struct Table {
    block: u64,
    /// For each slot, where its shards are in `opened`.
    slots: Vec<u32>,
    /// The round in which a shard was opened, and the shard: slot by slot, in order.
    opened: Vec<(u64, u32)>,
    /// Stretches of equal rounds, and single rounds with short visits, in order.
    all_rounds: Vec<Rounds>,
    short: Vec<ShortVisit>,
    /// Lists of the slots that still had shards when there were none left to open.
    alive_slots: Vec<u32>,
}

/// Rounds in which the same slots are visited.
#[derive(Debug)]
struct Rounds {
    /// Place of its first record.
    place: u64,
    round: u64,
    /// Its short visits; if it has any, it is one round.
    short: Range<u32>,
    /// How many slots have shards, and where they are listed if these are not all.
    lanes: u32,
    alive_slots: Option<u32>,
}

/// A visit that gives less than a block.
#[derive(Debug)]
struct ShortVisit {
    /// Its first place in the round.
    place: u64,
    /// Which of the slots that have shards.
    lane: u32,
    records: u64,
}

impl Table {
    /// The largest table for this many shards and slots, in bytes.
    pub(super) fn most_bytes(shards: u64, cycle: u64) -> u64 {
        let (open, visit, rounds) =
            (size_of::<(u64, u32)>(), size_of::<ShortVisit>(), size_of::<Rounds>());
        let each = (open + visit + 2 * rounds + size_of::<u32>()) as u64;
        let cycle = cycle.min(shards);
        // The list of slots with shards is stored again whenever it has become shorter.
        let lists = cycle.saturating_mul(cycle) / 2 * size_of::<u32>() as u64;
        shards.saturating_mul(each).saturating_add(lists)
    }

    /// The size of the table in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = size_of_val(&*self.slots)
            + size_of_val(&*self.opened)
            + size_of_val(&*self.all_rounds)
            + size_of_val(&*self.short)
            + size_of_val(&*self.alive_slots);
        bytes as u64
    }

    /// The table for shards of these lengths in this order. Neither cycle nor block is zero.
    pub(super) fn new(
        lengths: impl ExactSizeIterator<Item = u64>,
        cycle: u64,
        block: u64,
    ) -> Table {
        let cycle = cycle.min(lengths.len() as u64).max(1) as u32;
        // The round in which each slot opens its next shard.
        let mut turns: BinaryHeap<_> = (0..cycle).map(|slot| Reverse((0_u64, slot))).collect();
        let mut opened = Vec::with_capacity(lengths.len());
        let mut ends = Vec::with_capacity(lengths.len());
        for (shard, length) in (0..).zip(lengths) {
            let Some(mut turn) = turns.peek_mut() else { break };
            let Reverse((round, slot)) = *turn;
            opened.push((slot, round, shard));
            let last = round + length / block;
            ends.push((last, slot, length % block));
            *turn = Reverse((last + 1, slot));
        }
        opened.sort_unstable();
        ends.sort_unstable();
        let slots = (0..=cycle)
            .map(|slot| opened.partition_point(|(of, _, _)| *of < slot) as u32)
            .collect();
        let opened = opened.into_iter().map(|(_, round, shard)| (round, shard)).collect();
        let mut deaths: Vec<_> = turns.into_iter().map(|Reverse(turn)| turn).collect();
        deaths.sort_unstable();
        let mut table = Table {
            block,
            slots,
            opened,
            all_rounds: Vec::new(),
            short: Vec::with_capacity(ends.len()),
            alive_slots: Vec::new(),
        };
        table.lay_out(cycle, &ends, &deaths);
        table
    }

    /// Stores where each stretch of rounds begins: `ends` are the last visits of shards, `deaths` the rounds from which
    /// on a slot stays empty.
    fn lay_out(&mut self, cycle: u32, ends: &[(u64, u32, u64)], deaths: &[(u64, u32)]) {
        let (mut place, mut round) = (0, 0);
        let (mut next_end, mut next_death) = (0, 0);
        let mut alive: Vec<u32> = (0..cycle).collect();
        let mut alive_slots = None;
        while let Some((end, _, _)) = ends.get(next_end) {
            let dead = deaths[next_death..].partition_point(|(from, _)| *from <= round);
            if dead > 0 {
                let dying = &deaths[next_death..next_death + dead];
                alive.retain(|slot| dying.binary_search(&(round, *slot)).is_err());
                next_death += dead;
                alive_slots = Some(self.alive_slots.len() as u32);
                self.alive_slots.extend_from_slice(&alive);
            }
            let lanes = alive.len() as u32;
            let first = self.short.len() as u32;
            let whole = u64::from(lanes) * self.block;
            if *end > round {
                self.all_rounds.push(Rounds {
                    place,
                    round,
                    short: first..first,
                    lanes,
                    alive_slots,
                });
                place += (end - round) * whole;
                round = *end;
            }
            let mut missing = 0;
            while let Some((_, slot, records)) = ends.get(next_end).filter(|end| end.0 == round) {
                let lane = alive.partition_point(|other| other < slot) as u32;
                let start = u64::from(lane) * self.block - missing;
                self.short.push(ShortVisit { place: start, lane, records: *records });
                missing += self.block - records;
                next_end += 1;
            }
            let short = first..self.short.len() as u32;
            self.all_rounds.push(Rounds { place, round, short, lanes, alive_slots });
            place += whole - missing;
            round += 1;
        }
    }

    /// The shard of the record at a place, and the number of the record in it. The place is below the sum of all
    /// lengths.
    pub(super) fn at(&self, place: u64) -> (u32, u64) {
        let after = self.all_rounds.partition_point(|rounds| rounds.place <= place);
        let rounds = &self.all_rounds[after - 1];
        let beyond = place - rounds.place;
        let whole = u64::from(rounds.lanes) * self.block;
        let (round, lane, within) = if rounds.short.is_empty() {
            let rest = beyond % whole;
            (rounds.round + beyond / whole, rest / self.block, rest % self.block)
        } else {
            let short = &self.short[rounds.short.start as usize..rounds.short.end as usize];
            let (lane, within) = self.lane(short, beyond);
            (rounds.round, lane, within)
        };
        let slot = match rounds.alive_slots {
            None => lane as usize,
            Some(first) => self.alive_slots[first as usize + lane as usize] as usize,
        };
        let shards = &self.opened[self.slots[slot] as usize..self.slots[slot + 1] as usize];
        let (since, shard) = shards[shards.partition_point(|(since, _)| *since <= round) - 1];
        (shard, (round - since) * self.block + within)
    }

    /// The lane of a place in a round with short visits, and the place in its visit.
    fn lane(&self, short: &[ShortVisit], place: u64) -> (u64, u64) {
        let Some(before) = short.partition_point(|visit| visit.place <= place).checked_sub(1)
        else {
            return (place / self.block, place % self.block);
        };
        let visit = &short[before];
        let beyond = place - visit.place;
        match beyond.checked_sub(visit.records) {
            None => (u64::from(visit.lane), beyond),
            Some(beyond) => (u64::from(visit.lane) + 1 + beyond / self.block, beyond % self.block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// What TensorFlow's iterator does, record by record.
    fn simulated(lengths: &[u64], cycle: u64, block: u64) -> Vec<(u32, u64)> {
        let mut waiting: VecDeque<_> = (0..).zip(lengths.iter().copied()).collect();
        let mut slots: Vec<Option<(u32, u64, u64)>> = vec![None; cycle as usize];
        let mut found = Vec::new();
        let mut at = 0;
        while !waiting.is_empty() || slots.iter().any(Option::is_some) {
            if slots[at].is_none() {
                slots[at] = waiting.pop_front().map(|(shard, length)| (shard, length, 0));
            }
            for _ in 0..block {
                let Some((shard, length, given)) = &mut slots[at] else { break };
                if given < length {
                    found.push((*shard, *given));
                    *given += 1;
                } else {
                    slots[at] = None;
                }
            }
            at = (at + 1) % slots.len();
        }
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn every_place_matches_a_walk_over_all_records(
            lengths in prop::collection::vec(prop_oneof![Just(0_u64), 1_u64..6, 0_u64..40], 0..30),
            cycle in 1_u64..35, block in 1_u64..9,
        ) {
            let table = Table::new(lengths.iter().copied(), cycle, block);
            let expected = simulated(&lengths, cycle, block);
            let found: Vec<_> = (0..expected.len() as u64).map(|place| table.at(place)).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn a_table_is_no_larger_than_predicted(
            lengths in prop::collection::vec(0_u64..1 << 40, 0..200), cycle in 1_u64..300, block in 1_u64..99,
        ) {
            let most = Table::most_bytes(lengths.len() as u64, cycle);
            let table = Table::new(lengths.into_iter(), cycle, block);
            prop_assert!(table.bytes() <= most + 8, "{} of {most}", table.bytes());
        }
    }

    #[test]
    fn two_million_million_records_cost_the_memory_of_their_shards() {
        let table = Table::new((0..2000_u32).map(|shard| 1_000_000_000 + u64::from(shard)), 512, 3);
        assert!(table.all_rounds.len() <= 4000 && table.alive_slots.len() < 512 * 512 / 2);
        // The first records of all open shards, and then of the first shard again.
        assert_eq!(
            [0, 2, 3, 1535, 1536].map(|place| table.at(place)),
            [(0, 0), (0, 2), (1, 0), (511, 2), (0, 3)]
        );
    }
}
