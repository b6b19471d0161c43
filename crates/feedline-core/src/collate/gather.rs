//! Puts samples into batches, in order. Pure but for moving rows.
//!
//! When a sample is left out, its seat is free and those that follow move up by one: the batches are
//! what they would be had the sample never been there. Or, on request, only those of the same batch move
//! up, and the batch is smaller: no other batch changes by it.

use std::collections::VecDeque;

use super::{Columns, Seat};
use crate::error::{Error, Kind};
use crate::fault::Fault;
use crate::sample::{FieldKind, Sample, Stage, Value};

/// A batch whose samples are all here.
pub struct Gathered {
    /// In order.
    pub samples: Vec<Sample>,
    /// The number of each of them in the run.
    pub numbers: Vec<u64>,
    /// The number of its first sample in the run.
    pub number: u64,
    /// The number behind its last sample.
    pub end: u64,
    /// Whether its rows lie anywhere, not side by side.
    pub is_scattered: bool,
}

/// Collects the samples of the batch that comes next.
pub struct Gatherer {
    columns: Columns,
    samples: Vec<Sample>,
    numbers: Vec<u64>,
    free: VecDeque<Seat>,
    /// Whether samples stay in their batches; then, how many this batch has lost.
    stays: bool,
    lost: usize,
    /// Whether a batch that has lost all of its samples is still one.
    tells_empty: bool,
    /// What the samples of this batch must fit to, if that is known.
    norm: Option<Norm>,
}

/// The shapes that most samples of a batch have.
pub(super) struct Norm {
    /// A sample that has them.
    index: u64,
    /// Of each field; empty where any shape fits.
    pub(super) shapes: Shapes,
}

/// The shape of each field of a sample; empty where any shape fits.
pub type Shapes = Vec<Vec<usize>>;

impl Gatherer {
    /// Nothing gathered yet.
    pub fn new(columns: Columns) -> Gatherer {
        Gatherer {
            samples: Vec::with_capacity(columns.size),
            numbers: Vec::with_capacity(columns.size),
            columns,
            free: VecDeque::new(),
            stays: false,
            lost: 0,
            tells_empty: false,
            norm: None,
        }
    }

    /// Lets every sample stay in the batch that it would be in without faults.
    #[must_use]
    pub fn staying(self, stays: bool) -> Gatherer {
        Gatherer { stays, ..self }
    }

    /// As `staying`, and a batch that has lost all of its samples comes empty.
    #[must_use]
    pub fn telling_empty(self) -> Gatherer {
        Gatherer { stays: true, tells_empty: true, ..self }
    }

    /// How many of the samples that come next must be shown to `set_norm` before the first of them is pushed;
    /// None if that is not needed.
    pub fn undecided(&self) -> Option<u64> {
        (self.norm.is_none() && self.columns.may_differ()).then(|| self.missing())
    }

    /// Decides what the samples of this batch must fit to: the shapes that most of these have. Of as many the first.
    pub fn set_norm<'a>(&mut self, samples: impl Iterator<Item = &'a Sample>) {
        let mut seen: Vec<(Norm, usize)> = Vec::new();
        for sample in samples {
            let norm = Norm::of(&self.columns, sample);
            match seen.iter_mut().find(|(other, _)| other.differs(&self.columns, &norm).is_none()) {
                Some((_, count)) => *count += 1,
                None => seen.push((norm, 1)),
            }
        }
        let most =
            seen.into_iter().reduce(|most, other| if other.1 > most.1 { other } else { most });
        self.norm = most.map(|(norm, _)| norm);
    }

    /// Takes the next sample. Returns the batch if it is complete now. A sample that does not fit
    /// to the norm is a fault, and gives its seat back.
    pub fn push(
        &mut self,
        number: u64,
        mut sample: Sample,
    ) -> Result<Option<Gathered>, Box<(Fault, Seat)>> {
        if self.columns.may_differ() {
            let norm = self.norm.get_or_insert_with(|| Norm::of(&self.columns, &sample));
            if let Some(error) = norm.mismatch(&self.columns, &sample) {
                let fault = Fault::new(sample.ticket, Stage::Collate, error);
                return Err(Box::new((fault, seat_of(sample))));
            }
        }
        if let Some(seat) = self.free.pop_front() {
            let left = move_to(&mut sample, seat);
            self.free.push_back(left);
        }
        self.samples.push(sample);
        self.numbers.push(number);
        Ok(self.full(number + 1))
    }

    /// A sample was left out: those that follow move up. Returns the batch if it is complete now.
    pub fn skip(&mut self, number: u64, seat: Seat) -> Option<Gathered> {
        if !seat.rows.is_empty() {
            self.free.push_back(seat);
            self.let_go();
        }
        self.lost += usize::from(self.stays);
        self.full(number + 1)
    }

    /// Gives back the memory of a batch that nobody needs now: where many samples are left out, their seats
    /// would pile up. Those of the batch that is being gathered are needed, and batches stay whole.
    fn let_go(&mut self) {
        let (size, own) = (self.columns.size, self.columns.size - self.samples.len());
        if !self.stays && self.free.len() >= own + size {
            self.free.drain(own..own + size);
        }
    }

    /// How many samples the batch lacks.
    pub fn missing(&self) -> u64 {
        (self.columns.size - self.lost - self.samples.len()) as u64
    }

    /// The batch, if it is complete. One that has lost all of its samples is none.
    fn full(&mut self, end: u64) -> Option<Gathered> {
        if self.missing() > 0 {
            return None;
        }
        let is_told = self.is_told();
        self.norm = None;
        if self.stays {
            self.lost = 0;
            self.free.clear();
        }
        is_told.then(|| self.take(end))
    }

    /// The last, short batch, if there is one.
    pub fn finish(&mut self, end: u64) -> Option<Gathered> {
        self.is_told().then(|| self.take(end))
    }

    /// What was gathered so far, where the next batch has the rest of its seats.
    pub fn flush(&mut self, end: u64) -> Option<Gathered> {
        let used = self.lost + self.samples.len();
        let gathered = self.finish(end);
        self.lost = used;
        gathered
    }

    /// Whether what was gathered so far is a batch.
    fn is_told(&self) -> bool {
        !self.samples.is_empty() || (self.tells_empty && self.lost > 0)
    }

    /// What was gathered so far, also if that is nothing.
    pub fn take(&mut self, end: u64) -> Gathered {
        self.norm = None;
        if self.stays {
            self.lost = 0;
            self.free.clear();
        }
        let size = self.columns.size;
        let samples = std::mem::replace(&mut self.samples, Vec::with_capacity(size));
        let numbers = std::mem::replace(&mut self.numbers, Vec::with_capacity(size));
        let number = numbers.first().copied().unwrap_or(end);
        Gathered { samples, numbers, number, end, is_scattered: false }
    }
}

impl Norm {
    /// The shapes of a sample.
    pub(super) fn of(columns: &Columns, sample: &Sample) -> Norm {
        let shapes = columns.fields.iter().zip(&sample.values).map(|(field, value)| match value {
            Value::Array(array) if matches!(field.kind, FieldKind::Ragged { .. }) => {
                array.shape.clone()
            }
            // Those of a variable length are made for it.
            Value::Array(_) | Value::Row(_) | Value::Bytes(_) | Value::Text(_) | Value::List(_) => {
                Vec::new()
            }
        });
        Norm { index: sample.ticket.index, shapes: shapes.collect() }
    }

    /// The first field whose shape cannot stand beside that of the other. If they are padded, only the number of
    /// axes counts.
    fn differs(&self, columns: &Columns, other: &Norm) -> Option<usize> {
        let pairs = self.shapes.iter().zip(&other.shapes);
        let mut fits = pairs.map(|(ours, theirs)| match columns.pad {
            Some(_) => ours.len() == theirs.len(),
            None => ours == theirs,
        });
        fits.position(|fits| !fits)
    }

    /// What keeps a sample from this batch.
    pub(super) fn mismatch(&self, columns: &Columns, sample: &Sample) -> Option<Error> {
        let found = Norm::of(columns, sample);
        let at = self.differs(columns, &found)?;
        let message = format!(
            "{} of sample {} has shape {:?}, that of sample {} in the same batch {:?}",
            columns.fields[at].name, found.index, found.shapes[at], self.index, self.shapes[at]
        );
        Some(Error::new(Kind::ShapeMismatch, message))
    }
}

/// Copies the rows of a sample to another seat; returns the one it leaves.
fn move_to(sample: &mut Sample, seat: Seat) -> Seat {
    let rows = sample.values.iter_mut().filter_map(|value| match value {
        Value::Row(row) => Some(row),
        Value::Array(_) | Value::Bytes(_) | Value::Text(_) | Value::List(_) => None,
    });
    let mut left = Vec::with_capacity(seat.rows.len());
    for (row, mut target) in rows.zip(seat.rows) {
        target.copy_from_slice(row);
        left.push(std::mem::replace(row, target));
    }
    Seat { rows: left }
}

/// The memory that a sample was written to.
pub fn seat_of(sample: Sample) -> Seat {
    let rows = sample
        .values
        .into_iter()
        .filter_map(|value| match value {
            Value::Row(row) => Some(row),
            Value::Array(_) | Value::Bytes(_) | Value::Text(_) | Value::List(_) => None,
        })
        .collect();
    Seat { rows }
}

#[cfg(test)]
mod tests {
    use super::super::Pool;
    use super::*;
    use crate::budget::Budget;
    use crate::sample::{Column, Dtype, Field, Ticket};
    use proptest::prelude::*;

    fn columns(size: usize) -> Columns {
        Columns {
            fields: [Field::fixed("x", Dtype::Uint8, &[2])].into(),
            casts: [None].into(),
            size,
            pad: None,
            joined: false,
        }
    }

    fn ticket(number: u64) -> Ticket {
        Ticket { position: number, epoch: 0, index: number }
    }

    proptest! {
        #[test]
        fn batches_are_what_they_would_be_without_the_bad_samples(
            bad in prop::collection::vec(prop::bool::weighted(0.3), 0..60), size in 1_usize..7,
            stays: bool,
        ) {
            let (pool, budget) = (Pool::new(1 << 20), Budget::new("bytes", 1 << 20));
            let columns = columns(size);
            let mut gatherer = Gatherer::new(columns.clone()).staying(stays);
            let mut seats = VecDeque::new();
            let mut batches = Vec::new();
            for (number, bad) in bad.iter().enumerate() {
                if seats.is_empty() {
                    let permit = budget.acquire(columns.batch_bytes(), 0).unwrap();
                    seats = columns.seats(&pool, permit).unwrap();
                }
                let mut seat: Seat = seats.pop_front().unwrap();
                if *bad {
                    batches.extend(gatherer.skip(number as u64, seat));
                    continue;
                }
                seat.rows[0].fill(number as u8);
                let values = seat.rows.into_iter().map(Value::Row).collect();
                let sample = Sample { ticket: ticket(number as u64), values, permit: None };
                let pushed = gatherer.push(number as u64, sample);
                batches.extend(pushed.unwrap_or_else(|_| panic!("all of one shape")));
            }
            batches.extend(gatherer.finish(bad.len() as u64));
            let numbers: Vec<u8> = (0..bad.len()).map(|at| at as u8).collect();
            let good = |part: &[u8]| -> Vec<u8> {
                part.iter().copied().filter(|at| !bad[usize::from(*at)]).collect()
            };
            let expected: Vec<Vec<u8>> = if stays {
                numbers.chunks(size).map(good).filter(|part| !part.is_empty()).collect()
            } else {
                good(&numbers).chunks(size).map(<[u8]>::to_vec).collect()
            };
            prop_assert_eq!(batches.len(), expected.len());
            for (batch, expected) in batches.into_iter().zip(&expected) {
                if stays {
                    prop_assert!(batch.end.is_multiple_of(size as u64) || batch.end == bad.len() as u64);
                }
                let batch = columns.complete(batch, &pool, &budget).unwrap();
                let Some(Column::Array { shape, memory, .. }) = batch.get("x") else { panic!() };
                prop_assert_eq!(shape, &[expected.len(), 2]);
                let firsts: Vec<u8> = memory.iter().copied().step_by(2).collect();
                prop_assert_eq!(&firsts, expected);
            }
            drop((gatherer, seats));
            prop_assert_eq!(budget.used(), 0);
        }
    }

    #[test]
    fn seats_of_samples_that_are_left_out_do_not_pile_up() {
        let (pool, budget) = (Pool::new(0), Budget::new("bytes", 1 << 20));
        let columns = columns(4);
        let mut gatherer = Gatherer::new(columns.clone());
        let mut batches = 0;
        for block in 0..50_u64 {
            let permit = budget.acquire(columns.batch_bytes(), 0).unwrap();
            for (number, seat) in (block * 4..).zip(columns.seats(&pool, permit).unwrap()) {
                if number % 9 > 0 {
                    batches += usize::from(gatherer.skip(number, seat).is_some());
                    continue;
                }
                let values = seat.rows.into_iter().map(Value::Row).collect();
                let sample = Sample { ticket: ticket(number), values, permit: None };
                let Ok(gathered) = gatherer.push(number, sample) else { panic!("of one shape") };
                let Some(gathered) = gathered else { continue };
                batches += 1;
                columns.complete(gathered, &pool, &budget).unwrap();
            }
            assert!(budget.used() <= 3 * columns.batch_bytes(), "{}", budget.used());
        }
        assert_eq!(batches, 5);
    }

    #[test]
    fn a_shape_that_does_not_fit_names_both_samples() {
        use crate::sample::Array;
        let ragged =
            Field { name: "image".into(), kind: FieldKind::Ragged { dtype: Dtype::Uint8 } };
        let columns = Columns {
            fields: [ragged].into(),
            casts: [None].into(),
            size: 4,
            pad: None,
            joined: false,
        };
        let mut gatherer = Gatherer::new(columns);
        let sample = |number, shape: &[usize]| {
            let bytes = vec![0; shape.iter().product()];
            let array = Array { dtype: Dtype::Uint8, shape: shape.to_vec(), bytes };
            Sample { ticket: ticket(number), values: vec![Value::Array(array)], permit: None }
        };
        assert!(gatherer.push(3, sample(3, &[2, 2, 3])).is_ok());
        let Err(refused) = gatherer.push(7, sample(7, &[1, 2, 3])) else { panic!("it fits") };
        insta::assert_snapshot!(refused.0.error);
    }
}
