//! Puts samples of similar length together: every bucket has an open batch, and each sample goes to that
//! of its own, in order. At the end the open batches come as they are, bucket by bucket.

use super::gather::{Norm, seat_of};
use super::{Columns, Gathered, Gatherer, Seat};
use crate::fault::Fault;
use crate::sample::{Sample, Stage};

/// The open batches of all buckets. Samples that are here were made, and belong to no batch yet.
pub struct Buckets {
    columns: Columns,
    open: Vec<Open>,
}

struct Open {
    size: usize,
    samples: Vec<Sample>,
    numbers: Vec<u64>,
}

impl Buckets {
    /// Nothing gathered yet; so many samples in the batches of each bucket.
    pub fn new(columns: Columns, sizes: &[usize]) -> Buckets {
        let open = |size: &usize| Open { size: *size, samples: Vec::new(), numbers: Vec::new() };
        Buckets { columns, open: sizes.iter().map(open).collect() }
    }

    fn push(
        &mut self,
        number: u64,
        sample: Sample,
        bucket: usize,
    ) -> Result<Option<Gathered>, Box<(Fault, Seat)>> {
        let open = &mut self.open[bucket];
        // Which samples come into a bucket is not known ahead: its first decides.
        let norm = open.samples.first().filter(|_| self.columns.may_differ());
        let norm = norm.map(|first| Norm::of(&self.columns, first));
        if let Some(error) = norm.and_then(|norm| norm.mismatch(&self.columns, &sample)) {
            let fault = Fault::new(sample.ticket, Stage::Collate, error);
            return Err(Box::new((fault, seat_of(sample))));
        }
        open.samples.push(sample);
        open.numbers.push(number);
        Ok((open.samples.len() == open.size).then(|| open.take(number + 1)).flatten())
    }
}

impl Open {
    fn take(&mut self, end: u64) -> Option<Gathered> {
        let number = *self.numbers.first()?;
        let numbers = std::mem::take(&mut self.numbers);
        let samples = std::mem::take(&mut self.samples);
        Some(Gathered { samples, numbers, number, end, is_scattered: true })
    }
}

/// Where samples become batches.
pub enum Collector {
    /// In their order.
    InOrder(Gatherer),
    /// By their length.
    ByBucket(Buckets),
}

impl Collector {
    /// Takes the next sample, which belongs to that bucket where there are any. Returns the batch that is
    /// complete now. A sample that does not fit to the others is a fault, and gives its seat back.
    pub fn push(
        &mut self,
        number: u64,
        sample: Sample,
        bucket: usize,
    ) -> Result<Option<Gathered>, Box<(Fault, Seat)>> {
        match self {
            Collector::InOrder(gatherer) => gatherer.push(number, sample),
            Collector::ByBucket(buckets) => buckets.push(number, sample, bucket),
        }
    }

    /// How many of the samples that come next must be shown to `set_norm` before the first of them is pushed.
    pub fn undecided(&self) -> Option<u64> {
        match self {
            Collector::InOrder(gatherer) => gatherer.undecided(),
            Collector::ByBucket(_) => None,
        }
    }

    /// Decides what the samples of the next batch must fit to.
    pub fn set_norm<'a>(&mut self, samples: impl Iterator<Item = &'a Sample>) {
        if let Collector::InOrder(gatherer) = self {
            gatherer.set_norm(samples);
        }
    }

    /// A sample was left out. Returns the batch that is complete now.
    pub fn skip(&mut self, number: u64, seat: Seat) -> Option<Gathered> {
        match self {
            Collector::InOrder(gatherer) => gatherer.skip(number, seat),
            Collector::ByBucket(_) => None,
        }
    }

    /// How many samples the next batch lacks, at the least.
    pub fn missing(&self) -> u64 {
        match self {
            Collector::InOrder(gatherer) => gatherer.missing(),
            Collector::ByBucket(buckets) => {
                let missing = buckets.open.iter().map(|open| open.size - open.samples.len());
                missing.min().unwrap_or(1) as u64
            }
        }
    }

    /// The next of the last, short batches.
    pub fn finish(&mut self, end: u64) -> Option<Gathered> {
        match self {
            Collector::InOrder(gatherer) => gatherer.finish(end),
            Collector::ByBucket(buckets) => buckets.open.iter_mut().find_map(|open| open.take(end)),
        }
    }

    /// What was gathered so far, where the next batch has the rest of its seats.
    pub fn flush(&mut self, end: u64) -> Option<Gathered> {
        match self {
            Collector::InOrder(gatherer) => gatherer.flush(end),
            Collector::ByBucket(_) => None,
        }
    }

    /// What was gathered so far, also if that is nothing.
    pub fn take(&mut self, end: u64) -> Gathered {
        match self {
            Collector::InOrder(gatherer) => gatherer.take(end),
            Collector::ByBucket(_) => Gathered {
                samples: Vec::new(),
                numbers: Vec::new(),
                number: end,
                end,
                is_scattered: true,
            },
        }
    }

    /// The numbers of samples that are in no batch although later ones are, ascending.
    pub fn waiting(&self) -> Vec<u64> {
        match self {
            Collector::InOrder(_) => Vec::new(),
            Collector::ByBucket(buckets) => {
                let mut numbers: Vec<_> =
                    buckets.open.iter().flat_map(|open| open.numbers.iter().copied()).collect();
                numbers.sort_unstable();
                numbers
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pool;
    use super::*;
    use crate::budget::Budget;
    use crate::sample::{Column, Dtype, Field, Ticket, Value};
    use proptest::prelude::*;

    fn columns() -> Columns {
        Columns {
            fields: [Field::fixed("x", Dtype::Uint8, &[2])].into(),
            casts: [None].into(),
            size: 4,
            pad: None,
            joined: false,
        }
    }

    proptest! {
        #[test]
        fn each_bucket_has_its_samples_in_order_and_none_is_lost(
            buckets in prop::collection::vec(prop::option::weighted(0.9, 0_usize..3), 0..80),
            sizes in prop::collection::vec(1_usize..6, 3..4),
        ) {
            let (pool, budget) = (Pool::new(1 << 20), Budget::new("bytes", 1 << 20));
            let columns = columns();
            let mut collector = Collector::ByBucket(Buckets::new(columns.clone(), &sizes));
            let mut batches = Vec::new();
            for (number, bucket) in buckets.iter().enumerate() {
                let permit = budget.acquire(2, 0).unwrap();
                let mut seat = columns.lone_seats(1, permit).unwrap().pop_front().unwrap();
                let Some(bucket) = bucket else {
                    prop_assert!(collector.skip(number as u64, seat).is_none());
                    continue;
                };
                seat.rows[0].fill(number as u8);
                let values = seat.rows.into_iter().map(Value::Row).collect();
                let ticket = Ticket { position: 0, epoch: 0, index: number as u64 };
                let sample = Sample { ticket, values, permit: None };
                let pushed = collector.push(number as u64, sample, *bucket);
                batches.extend(pushed.unwrap_or_else(|_| panic!("all of one shape")));
                // Who waits is in no batch, and the next batch lacks what it says.
                let taken: usize = batches.iter().map(|batch: &Gathered| batch.samples.len()).sum();
                let made = buckets[..=number].iter().flatten().count();
                prop_assert_eq!(collector.waiting().len() + taken, made);
                prop_assert!(collector.missing() >= 1);
            }
            while let Some(last) = collector.finish(buckets.len() as u64) {
                batches.push(last);
            }
            prop_assert!(collector.waiting().is_empty());
            let mut found: Vec<Vec<u8>> = vec![Vec::new(); 3];
            for gathered in batches {
                let bucket = buckets[gathered.number as usize].unwrap();
                let is_short = gathered.samples.len() < sizes[bucket];
                prop_assert!(!is_short || gathered.end == buckets.len() as u64);
                let batch = columns.complete(gathered, &pool, &budget).unwrap();
                let Some(Column::Array { shape, memory, .. }) = batch.get("x") else { panic!() };
                prop_assert_eq!(shape[1], 2);
                found[bucket].extend(memory.iter().copied().step_by(2));
            }
            for (bucket, found) in found.iter().enumerate() {
                let own = |number: &usize| buckets[*number] == Some(bucket);
                let expected: Vec<u8> =
                    (0..buckets.len()).filter(own).map(|number| number as u8).collect();
                prop_assert_eq!(found, &expected);
            }
            drop(collector);
            prop_assert_eq!(budget.used(), 0);
        }
    }
}
