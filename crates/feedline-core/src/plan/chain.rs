//! A chain of steps: each maps a place to a place of the step before it. A place is followed from the last step to the
//! first, which gives a sample.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::interleave::{MOST_BYTES, Table};
use super::mix::Pattern;
use super::step::{MOST_SAMPLES, Mixture, OrderStep, PlanPart};
use super::{Permutation, Shard};
use crate::error::{Error, Kind, Result};
use crate::sample::in_bytes;
use crate::sys::lock::Mutex;

/// Default number of open shards of an interleave.
const CYCLE: u64 = 16;
/// The most bytes of tables of other passes, besides the current one.
const KEPT_BYTES: u64 = 16 << 20;

/// Steps over shards, prepared for any place of any pass.
pub(super) struct Chain {
    root: Root,
    links: Vec<Link>,
    /// Number of samples in a pass.
    pub(super) len: u64,
    /// The same for the rank that has most.
    pub(super) most: u64,
    /// The rank of this part, and how many parts there are.
    pub(super) rank: u64,
    pub(super) world: u64,
    /// Number of different places of all ranks together, if the last step divides them one by one: it does not depend
    /// on the number of ranks.
    pub(super) divided: Option<u64>,
}

/// What the places of the first step refer to.
enum Root {
    /// Contiguous samples, from this one on.
    Whole(u64),
    /// Some shards, concatenated: the first place and the first sample of each.
    Shards(Vec<(u64, u64)>),
    Interleave(Interleave),
    /// Concatenated orders: where each begins.
    Concat(Vec<(u64, Chain)>),
    /// A mixture of orders, in epochs of this many samples.
    Mix {
        pattern: Pattern,
        parts: Vec<Chain>,
        samples: u64,
    },
}

struct Interleave {
    id: usize,
    shards: Vec<Range<u64>>,
    cycle: u64,
    block: u64,
    tables: Tables,
}

/// The order of the shards.
enum Tables {
    Same(Table),
    /// Shuffled again in each pass.
    Drawn(u64, Permutation),
}

/// One step on top of another.
enum Link {
    /// Starts over after this many places.
    Restart(u64),
    Shuffle {
        seed: u64,
        permutation: Permutation,
    },
    /// Runs of this many places, and the last one.
    Runs {
        seed: u64,
        whole: Permutation,
        buffer: u64,
        last: Permutation,
        last_run: u64,
    },
    /// Every n-th of the places before.
    Shard {
        shard: Shard,
        before: u64,
    },
    Skip(u64),
    /// Passes of this many places each.
    Repeat {
        times: u64,
        before: u64,
    },
}

/// The tables of the latest passes.
#[derive(Default)]
pub(super) struct Memo(Mutex<VecDeque<Known>>);

struct Known {
    id: usize,
    pass: u64,
    table: Arc<Table>,
}

impl Chain {
    /// A chain over these shards of contiguous samples. `ids` counts the steps with tables of their own.
    pub(super) fn new(
        shards: &[Range<u64>],
        steps: &[OrderStep],
        ids: &mut usize,
    ) -> Result<Chain> {
        let (mut chain, steps) = Chain::root(shards, steps, ids)?;
        for step in steps {
            chain.push(step)?;
        }
        Ok(chain)
    }

    /// The first place of the chain from the first steps, and the remaining steps.
    fn root<'a>(
        shards: &[Range<u64>],
        steps: &'a [OrderStep],
        ids: &mut usize,
    ) -> Result<(Chain, &'a [OrderStep])> {
        let all = count(shards);
        match steps {
            [OrderStep::Mix(mixture), rest @ ..] => Ok((Chain::mix(shards, mixture, ids)?, rest)),
            [OrderStep::Concat(parts), rest @ ..] => Ok((Chain::concat(shards, parts, ids)?, rest)),
            [OrderStep::Interleave { cycle, block, seed }, rest @ ..] => {
                let interleave = Interleave::new(shards.to_vec(), *cycle, *block, *seed, ids)?;
                Ok((Chain::of(Root::Interleave(interleave), all, all), rest))
            }
            [OrderStep::Shard(shard), rest @ ..] if shard.is_by_shard() => {
                let lengths: Vec<_> = shards.iter().map(|shard| shard.end - shard.start).collect();
                let (len, most) = shard.fit(&lengths)?;
                let own: Vec<_> =
                    shard.shards(shards.len()).map(|number| shards[number].clone()).collect();
                let samples = count(&own);
                let (root, rest) = match rest {
                    [OrderStep::Interleave { cycle, block, seed }, rest @ ..] => {
                        let own = Interleave::new(own, *cycle, *block, *seed, ids)?;
                        (Root::Interleave(own), rest)
                    }
                    rest => (Root::Shards(side_by_side(&own)), rest),
                };
                let (rank, world) = (shard.rank(), shard.world());
                let mut chain = Chain { rank, world, ..Chain::of(root, len, most) };
                if len > samples {
                    chain.links.push(Link::Restart(samples));
                }
                Ok((chain, rest))
            }
            steps => {
                let first = shards.first().map_or(0, |shard| shard.start);
                Ok((Chain::of(Root::Whole(first), all, all), steps))
            }
        }
    }

    fn of(root: Root, len: u64, most: u64) -> Chain {
        Chain { root, links: Vec::new(), len, most, rank: 0, world: 1, divided: None }
    }

    fn mix(shards: &[Range<u64>], mixture: &Mixture, ids: &mut usize) -> Result<Chain> {
        let parts = Chain::parts(shards, &mixture.parts, ids)?;
        if let Some(empty) = parts.iter().position(|part| part.len == 0) {
            let message = format!("mix: part {empty} has no samples");
            return Err(Error::new(Kind::InvalidArgument, message).with_hint("remove that part"));
        }
        let pattern = Pattern::new(&mixture.weights, mixture.seed)?;
        let (rank, world) = parts.first().map_or((0, 1), |part| (part.rank, part.world));
        let sum =
            |len: fn(&Chain) -> u64| counted(parts.iter().map(|part| u128::from(len(part))).sum());
        let samples = mixture.samples.map_or_else(|| sum(|part| part.len), Ok)?;
        let most = mixture.samples.map_or_else(|| sum(|part| part.most), Ok)?;
        let root = Root::Mix { pattern, parts, samples };
        Ok(Chain { rank, world, ..Chain::of(root, samples, most) })
    }

    fn concat(shards: &[Range<u64>], parts: &[PlanPart], ids: &mut usize) -> Result<Chain> {
        let parts = Chain::parts(shards, parts, ids)?;
        let (rank, world) = parts.first().map_or((0, 1), |part| (part.rank, part.world));
        let most = counted(parts.iter().map(|part| u128::from(part.most)).sum())?;
        let mut len = 0;
        let mut placed = Vec::with_capacity(parts.len());
        for part in parts {
            let first = len;
            len += part.len;
            placed.push((first, part));
        }
        Ok(Chain { rank, world, ..Chain::of(Root::Concat(placed), len, most) })
    }

    /// The chains of parts that divide the shards among them.
    fn parts(shards: &[Range<u64>], parts: &[PlanPart], ids: &mut usize) -> Result<Vec<Chain>> {
        let named: usize = parts.iter().map(|part| part.shards).sum();
        if named != shards.len() {
            let message =
                format!("the parts have {named} shards, but the source has {}", shards.len());
            return Err(Error::new(Kind::InvalidArgument, message));
        }
        let mut rest = shards;
        let mut chains: Vec<Chain> = Vec::with_capacity(parts.len());
        for part in parts {
            let (own, others) = rest.split_at(part.shards);
            rest = others;
            let chain = Chain::new(own, &part.steps, ids)?;
            if let Some(first) = chains.first()
                && (first.rank, first.world) != (chain.rank, chain.world)
            {
                let message = format!(
                    "parts must have the same shard: one is rank {} of {}, another rank {} of {}",
                    first.rank, first.world, chain.rank, chain.world
                );
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint("call shard() once, behind mix() or concat()"));
            }
            chains.push(chain);
        }
        Ok(chains)
    }

    /// Adds a step on top.
    fn push(&mut self, step: &OrderStep) -> Result<()> {
        let before = self.len;
        self.divided = None;
        match step {
            OrderStep::Shuffle { seed } => {
                let permutation = Permutation::new(before, *seed, 0);
                self.links.push(Link::Shuffle { seed: *seed, permutation });
            }
            OrderStep::ShuffleRuns { seed, buffer } => {
                let buffer = (*buffer).max(1);
                let whole = Permutation::new(buffer, *seed, 0);
                let last = Permutation::new(before % buffer, *seed, 0);
                let last_run = before / buffer;
                self.links.push(Link::Runs { seed: *seed, whole, buffer, last, last_run });
            }
            OrderStep::Shard(shard) => {
                (self.rank, self.world) = (shard.rank(), shard.world());
                (self.len, self.most) = (shard.len(before), shard.most(self.most));
                self.divided = Some(before);
                self.links.push(Link::Shard { shard: *shard, before });
            }
            OrderStep::Skip(samples) => {
                self.len = before.saturating_sub(*samples);
                self.most = self.most.saturating_sub(*samples);
                self.links.push(Link::Skip(*samples));
            }
            OrderStep::Take(samples) => {
                self.len = before.min(*samples);
                self.most = self.most.min(*samples);
            }
            OrderStep::Repeat(times) => {
                let times = *times;
                self.len = counted(u128::from(before) * u128::from(times))?;
                self.most = counted(u128::from(self.most) * u128::from(times))?;
                self.links.push(Link::Repeat { times, before });
            }
            OrderStep::Interleave { .. } | OrderStep::Mix(_) | OrderStep::Concat(_) => {
                let message = format!("{} cannot follow other steps", step.name());
                return Err(Error::new(Kind::Internal, message));
            }
        }
        Ok(())
    }

    /// Number of places of all ranks together in a pass.
    pub(super) fn whole(&self) -> u64 {
        self.divided.unwrap_or_else(|| self.most.saturating_mul(self.world))
    }

    /// The sample at a place of a rank in a pass; the place is below `len`. Whole shards are those of the chain's own
    /// rank.
    pub(super) fn at(&self, memo: &Memo, pass: u64, rank: u64, place: u64) -> u64 {
        let (mut pass, mut place) = (pass, place);
        for link in self.links.iter().rev() {
            match link {
                Link::Restart(before) => place %= before,
                Link::Shuffle { seed, permutation } => {
                    place = permutation.of_epoch(*seed, pass).at(place);
                }
                Link::Runs { seed, whole, buffer, last, last_run } => {
                    let (run, within) = (place / buffer, place % buffer);
                    let permutation = if run == *last_run { last } else { whole };
                    place = run * buffer + permutation.of_run(*seed, pass, run).at(within);
                }
                Link::Shard { shard, before } => place = shard.order_of(rank, place) % before,
                Link::Skip(samples) => place += samples,
                Link::Repeat { times, before } => {
                    pass = pass.wrapping_mul(*times).wrapping_add(place / before);
                    place %= before;
                }
            }
        }
        match &self.root {
            Root::Whole(first) => first + place,
            Root::Shards(shards) => {
                let (from, first) = shards[shards.partition_point(|(from, _)| *from <= place) - 1];
                first + (place - from)
            }
            Root::Interleave(interleave) => interleave.at(memo, pass, place),
            Root::Concat(parts) => {
                let (from, part) = &parts[parts.partition_point(|(from, _)| *from <= place) - 1];
                part.at(memo, pass, rank, place - from)
            }
            Root::Mix { pattern, parts, samples } => {
                let (part, number) =
                    pattern.at(pass.saturating_mul(*samples).saturating_add(place));
                let part = &parts[part];
                part.at(memo, number / part.len, rank, number % part.len)
            }
        }
    }
}

impl Interleave {
    fn new(
        shards: Vec<Range<u64>>,
        cycle: Option<u64>,
        block: u64,
        seed: Option<u64>,
        ids: &mut usize,
    ) -> Result<Interleave> {
        let count = shards.len() as u64;
        let cycle = cycle.unwrap_or(CYCLE).min(count).max(1);
        let bytes = Table::most_bytes(count, cycle);
        if bytes > MOST_BYTES || count > u64::from(u32::MAX) {
            let message = format!(
                "interleave: cycle={cycle} over {count} shards needs a table of {}, more than {}",
                in_bytes(bytes),
                in_bytes(MOST_BYTES)
            );
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("use a smaller cycle, such as cycle=512, or fewer and larger shards"));
        }
        let block = block.max(1);
        let tables = match seed {
            None => Tables::Same(Table::new(
                shards.iter().map(|shard| shard.end - shard.start),
                cycle,
                block,
            )),
            Some(seed) => Tables::Drawn(seed, Permutation::new(count, seed, 0)),
        };
        *ids += 1;
        Ok(Interleave { id: *ids, shards, cycle, block, tables })
    }

    fn at(&self, memo: &Memo, pass: u64, place: u64) -> u64 {
        let (shard, record) = match &self.tables {
            Tables::Same(table) => table.at(place),
            Tables::Drawn(seed, permutation) => {
                let permutation = permutation.of_epoch(*seed, pass);
                let table = memo.get(self.id, pass, || {
                    let lengths = (0..self.shards.len()).map(|at| {
                        let shard = &self.shards[permutation.at(at as u64) as usize];
                        shard.end - shard.start
                    });
                    Table::new(lengths, self.cycle, self.block)
                });
                let (shard, record) = table.at(place);
                (permutation.at(u64::from(shard)) as u32, record)
            }
        };
        self.shards[shard as usize].start + record
    }
}

impl Memo {
    fn get(&self, id: usize, pass: u64, make: impl FnOnce() -> Table) -> Arc<Table> {
        let mut known = self.0.lock();
        if let Some(known) = known.iter().find(|known| known.id == id && known.pass == pass) {
            return Arc::clone(&known.table);
        }
        let table = Arc::new(make());
        known.push_front(Known { id, pass, table: Arc::clone(&table) });
        let mut bytes = 0;
        known.retain(|known| {
            let before = bytes;
            bytes += known.table.bytes();
            before == 0 || bytes <= KEPT_BYTES
        });
        table
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// The first place and the first sample of each shard, if the shards are concatenated.
fn side_by_side(shards: &[Range<u64>]) -> Vec<(u64, u64)> {
    let mut place = 0;
    let mut places = Vec::with_capacity(shards.len());
    for shard in shards {
        places.push((place, shard.start));
        place += shard.end - shard.start;
    }
    places
}

fn count(shards: &[Range<u64>]) -> u64 {
    shards.iter().map(|shard| shard.end - shard.start).sum()
}

/// Refuses a number of samples that would overflow over many epochs.
fn counted(samples: u128) -> Result<u64> {
    u64::try_from(samples).ok().filter(|samples| *samples < MOST_SAMPLES).ok_or_else(|| {
        let message = format!("an epoch of {samples} samples is too many to count");
        Error::new(Kind::InvalidArgument, message).with_hint("repeat fewer times")
    })
}
