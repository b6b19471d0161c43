//! Puts samples into parts of a batch's size, in order, for a front that has functions called for them. Pure but
//! for moving rows. Also: which shapes a sample has, to compare it with others.

use std::collections::VecDeque;

use super::{Columns, Seat};
use crate::error::{Error, Kind};
use crate::sample::{FieldKind, Sample, Value};

/// Samples that belong together and are all here.
pub struct Gathered {
    /// In order.
    pub samples: Vec<Sample>,
    /// The number of each of them in the run, if anybody asks.
    pub numbers: Vec<u64>,
    /// The number of its first sample in the run: memory for them is waited for in this order.
    pub number: u64,
    /// The number behind its last sample.
    pub end: u64,
    /// Whether its rows lie anywhere, not side by side.
    pub is_scattered: bool,
}

/// Collects the samples of the part that comes next. One that is left out makes its part smaller, and changes
/// no other.
pub struct Gatherer {
    size: usize,
    samples: Vec<Sample>,
    numbers: Vec<u64>,
    free: VecDeque<Seat>,
    /// How many samples this part has lost.
    lost: usize,
}

/// The shapes of a sample.
pub(super) struct Norm {
    /// Which sample.
    index: u64,
    pub(super) shapes: Shapes,
}

/// The shape of each field of a sample; empty where any shape fits.
pub type Shapes = Vec<Vec<usize>>;

impl Gatherer {
    /// Nothing gathered yet, for parts of that size.
    pub fn new(size: usize) -> Gatherer {
        let (samples, numbers) = (Vec::with_capacity(size), Vec::with_capacity(size));
        Gatherer { size, samples, numbers, free: VecDeque::new(), lost: 0 }
    }

    /// Takes the next sample. Returns the part if it is complete now.
    pub fn push(&mut self, number: u64, mut sample: Sample) -> Option<Gathered> {
        if let Some(seat) = self.free.pop_front() {
            let left = move_to(&mut sample, seat);
            self.free.push_back(left);
        }
        self.samples.push(sample);
        self.numbers.push(number);
        self.full(number + 1)
    }

    /// A sample was left out. Returns the part if it is complete now.
    pub fn skip(&mut self, number: u64, seat: Seat) -> Option<Gathered> {
        self.free.push_back(seat);
        self.lost += 1;
        self.full(number + 1)
    }

    /// How many samples the part lacks.
    pub fn missing(&self) -> u64 {
        (self.size - self.lost - self.samples.len()) as u64
    }

    fn full(&mut self, end: u64) -> Option<Gathered> {
        (self.missing() == 0).then(|| self.take(end))
    }

    /// The last, short part, if there is one.
    pub fn finish(&mut self, end: u64) -> Option<Gathered> {
        (self.lost + self.samples.len() > 0).then(|| self.take(end))
    }

    /// What was gathered so far, where the next part has the rest of its seats.
    pub fn flush(&mut self, end: u64) -> Option<Gathered> {
        let used = self.lost + self.samples.len();
        let gathered = self.finish(end);
        self.lost = used;
        gathered
    }

    /// What was gathered so far, also if that is nothing.
    pub fn take(&mut self, end: u64) -> Gathered {
        self.lost = 0;
        self.free.clear();
        let samples = std::mem::replace(&mut self.samples, Vec::with_capacity(self.size));
        let numbers = std::mem::replace(&mut self.numbers, Vec::with_capacity(self.size));
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
    use crate::sample::{Array, Column, Dtype, Field, Ticket};
    use proptest::prelude::*;

    fn columns(fields: Field, size: usize) -> Columns {
        Columns { fields: [fields].into(), casts: [None].into(), size, pad: None, joined: false }
    }

    fn ticket(number: u64) -> Ticket {
        Ticket { position: number, epoch: 0, index: number }
    }

    proptest! {
        #[test]
        fn parts_are_what_they_would_be_without_the_bad_samples_in_them(
            bad in prop::collection::vec(prop::bool::weighted(0.3), 0..60), size in 1_usize..7,
        ) {
            let (pool, budget) = (Pool::new(1 << 20), Budget::new("bytes", 1 << 20));
            let columns = columns(Field::fixed("x", Dtype::Uint8, &[2]), size);
            let mut gatherer = Gatherer::new(size);
            let mut seats = VecDeque::new();
            let mut parts = Vec::new();
            for (number, bad) in bad.iter().enumerate() {
                if seats.is_empty() {
                    let permit = budget.acquire(columns.batch_bytes(), 0).unwrap();
                    seats = columns.seats(&pool, permit).unwrap();
                }
                let mut seat: Seat = seats.pop_front().unwrap();
                if *bad {
                    parts.extend(gatherer.skip(number as u64, seat));
                    continue;
                }
                seat.rows[0].fill(number as u8);
                let values = seat.rows.into_iter().map(Value::Row).collect();
                let sample = Sample { ticket: ticket(number as u64), values, permit: None };
                parts.extend(gatherer.push(number as u64, sample));
            }
            parts.extend(gatherer.finish(bad.len() as u64));
            let numbers: Vec<u8> = (0..bad.len()).map(|at| at as u8).collect();
            let good = |part: &[u8]| -> Vec<u8> {
                part.iter().copied().filter(|at| !bad[usize::from(*at)]).collect()
            };
            let expected: Vec<Vec<u8>> = numbers.chunks(size).map(good).collect();
            prop_assert_eq!(parts.len(), expected.len());
            for (part, expected) in parts.into_iter().zip(&expected) {
                prop_assert!(part.end.is_multiple_of(size as u64) || part.end == bad.len() as u64);
                let batch = columns.complete(part, &pool, &budget).unwrap();
                if expected.is_empty() {
                    prop_assert!(batch.is_empty());
                    continue;
                }
                let Some(Column::Array { shape, memory, .. }) = batch.get("x") else { panic!() };
                prop_assert_eq!(shape, &[expected.len(), 2]);
                let firsts: Vec<u8> = memory.iter().copied().step_by(2).collect();
                prop_assert_eq!(&firsts, expected);
            }
            drop((gatherer, seats));
            prop_assert_eq!(budget.used(), 0);
        }

        #[test]
        fn rows_that_do_not_lie_side_by_side_are_copied(kept in prop::collection::vec(any::<bool>(), 1..20)) {
            let (pool, budget) = (Pool::new(1 << 20), Budget::new("bytes", 1 << 20));
            let columns = columns(Field::fixed("x", Dtype::Uint8, &[2]), kept.len());
            let permit = budget.acquire(columns.batch_bytes(), 0).unwrap();
            let seats = columns.seats(&pool, permit).unwrap();
            let samples: Vec<_> = (0_u64..).zip(seats).filter(|(number, _)| kept[*number as usize]).map(|(number, mut seat)| {
                seat.rows[0].fill(number as u8);
                let values = seat.rows.into_iter().map(Value::Row).collect();
                Sample { ticket: ticket(number), values, permit: None }
            }).collect();
            let expected: Vec<u8> = samples.iter().map(|sample| sample.ticket.index as u8).collect();
            prop_assume!(!samples.is_empty());
            let gathered = Gathered { samples, numbers: Vec::new(), number: 0, end: 0, is_scattered: false };
            let batch = columns.complete(gathered, &pool, &budget).unwrap();
            let Some(Column::Array { memory, .. }) = batch.get("x") else { panic!() };
            prop_assert_eq!(memory.iter().copied().step_by(2).collect::<Vec<u8>>(), expected);
            drop(batch);
            prop_assert_eq!(budget.used(), 0);
        }
    }

    #[test]
    fn a_shape_that_does_not_fit_names_both_samples() {
        let ragged =
            Field { name: "image".into(), kind: FieldKind::Ragged { dtype: Dtype::Uint8 } };
        let columns = columns(ragged, 4);
        let sample = |number, shape: &[usize]| {
            let bytes = vec![0; shape.iter().product()];
            let array = Array { dtype: Dtype::Uint8, shape: shape.to_vec(), bytes };
            Sample { ticket: ticket(number), values: vec![Value::Array(array)], permit: None }
        };
        let (like, odd) = (sample(3, &[2, 2, 3]), sample(7, &[1, 2, 3]));
        assert_ne!(columns.shapes(&like), columns.shapes(&odd));
        insta::assert_snapshot!(columns.mismatch(&odd, Some(&like)).of_sample(7, "collate"));
    }
}
