//! Samples that become a batch, and which shapes they have, to compare them with others.

use super::{BatchSlot, Columns};
use crate::error::{Error, Kind};
use crate::sample::{FieldKind, Sample, Value};

/// Samples that belong together and are all here.
pub(crate) struct Gathered {
    /// In order.
    pub samples: Vec<Sample>,
    /// The slot of its first sample: memory for them is waited for in this order.
    pub number: u64,
    /// Whether its rows lie anywhere, not side by side.
    pub is_scattered: bool,
}

/// The shapes of a sample.
pub(super) struct Norm {
    /// Which sample.
    index: u64,
    pub(super) shapes: Shapes,
}

/// The shape of each field of a sample; empty where any shape fits.
pub(crate) type Shapes = Vec<Vec<usize>>;

impl Norm {
    /// The shapes of a sample.
    pub(super) fn of(columns: &Columns, sample: &Sample) -> Norm {
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
        fn rows_that_do_not_lie_side_by_side_are_copied(kept in prop::collection::vec(any::<bool>(), 1..20)) {
            let (pool, budget) = (Pool::new(1 << 20), Budget::new("bytes", 1 << 20));
            let columns = columns(Field::fixed("x", Dtype::Uint8, &[2]), kept.len());
            let permit = budget.acquire(columns.batch_bytes(), 0).unwrap();
            let batch_slots = columns.batch_slots(&pool, permit).unwrap();
            let samples: Vec<_> = (0_u64..).zip(batch_slots).filter(|(number, _)| kept[*number as usize]).map(|(number, mut batch_slot)| {
                batch_slot.rows[0].fill(number as u8);
                Sample { ticket: ticket(number), rows: batch_slot.rows, values: Vec::new(), permit: None }
            }).collect();
            let expected: Vec<u8> = samples.iter().map(|sample| sample.ticket.index as u8).collect();
            prop_assume!(!samples.is_empty());
            let gathered = Gathered { samples, number: 0, is_scattered: false };
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
        insta::assert_snapshot!(columns.mismatch(&odd, Some(&like)).of_sample(7, "collate"));
    }
}
