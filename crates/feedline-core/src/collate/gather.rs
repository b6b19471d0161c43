//! The samples of a batch, and their shapes, which must fit together.

use super::{BatchSlot, Columns};
use crate::error::{Error, Kind};
use crate::sample::{FieldKind, Sample, Value};

/// All samples of a batch.
pub(crate) struct BatchSamples {
    /// The samples in order.
    pub samples: Vec<Sample>,
    /// The slot of the first sample: batches wait for memory in this order.
    pub number: u64,
    /// Whether the rows are not contiguous.
    pub is_scattered: bool,
}

/// The shapes of the fields of a sample.
pub(super) struct SampleShapes {
    index: u64,
    pub(super) shapes: Shapes,
}

/// The shape of each field of a sample; empty where any shape fits.
pub(crate) type Shapes = Vec<Vec<usize>>;

impl SampleShapes {
    /// The shapes of a sample.
    pub(super) fn of(columns: &Columns, sample: &Sample) -> SampleShapes {
        let mut values = sample.values.iter();
        let shapes = columns.fields.iter().map(|field| {
            let value = field.row_bytes().is_none().then(|| values.next()).flatten();
            match value {
                Some(Value::Array(array)) if matches!(field.kind, FieldKind::Ragged { .. }) => {
                    array.shape.clone()
                }
                // Arrays of a variable length are made for it.
                Some(Value::Array(_) | Value::Bytes(_) | Value::Text(_) | Value::List(_))
                | None => Vec::new(),
            }
        });
        SampleShapes { index: sample.ticket.index, shapes: shapes.collect() }
    }

    /// The first field whose shape does not fit the other sample's. With padding, only the number of axes must be
    /// equal.
    fn differs(&self, columns: &Columns, other: &SampleShapes) -> Option<usize> {
        let pairs = self.shapes.iter().zip(&other.shapes);
        let mut fits = pairs.map(|(ours, theirs)| match columns.pad {
            Some(_) => ours.len() == theirs.len(),
            None => ours == theirs,
        });
        fits.position(|fits| !fits)
    }

    /// The error if a sample does not fit into this batch.
    pub(super) fn mismatch(&self, columns: &Columns, sample: &Sample) -> Option<Error> {
        let found = SampleShapes::of(columns, sample);
        let at = self.differs(columns, &found)?;
        let message = format!(
            "{} of sample {} has shape {:?}, that of sample {} in the same batch {:?}",
            columns.fields[at].name, found.index, found.shapes[at], self.index, self.shapes[at]
        );
        Some(Error::new(Kind::ShapeMismatch, message))
    }
}

/// The memory that a sample was written to.
pub(crate) fn slot_of(sample: Sample) -> BatchSlot {
    BatchSlot { rows: sample.rows }
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
        fn rows_that_are_not_contiguous_are_copied(kept in prop::collection::vec(any::<bool>(), 1..20)) {
            let budget = Budget::new("bytes", 1 << 20);
        let pool = Pool::new(1 << 20, &budget);
            let columns = columns(Field::fixed("x", Dtype::Uint8, &[2]), kept.len());
            let permit = budget.acquire(columns.batch_bytes(), 0).unwrap();
            let batch_slots = columns.batch_slots(&pool, permit).unwrap();
            let samples: Vec<_> = (0_u64..).zip(batch_slots).filter(|(number, _)| kept[*number as usize]).map(|(number, mut batch_slot)| {
                batch_slot.rows[0].fill(number as u8);
                Sample { ticket: ticket(number), rows: batch_slot.rows, values: Vec::new(), permit: None }
            }).collect();
            let expected: Vec<u8> = samples.iter().map(|sample| sample.ticket.index as u8).collect();
            prop_assume!(!samples.is_empty());
            let gathered = BatchSamples { samples, number: 0, is_scattered: false };
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
            let values = vec![Value::Array(array)];
            Sample { ticket: ticket(number), rows: Vec::new(), values, permit: None }
        };
        let (like, odd) = (sample(3, &[2, 2, 3]), sample(7, &[1, 2, 3]));
        assert_ne!(columns.shapes(&like), columns.shapes(&odd));
        insta::assert_snapshot!(columns.mismatch(&odd, Some(&like)).of_sample(7, 0, "collate"));
    }
}
