//! What is known about the columns of every batch before the first one is loaded.

use std::sync::Arc;

use super::Columns;
use crate::sample::{Dtype, FieldKind};

/// The lengths of some axes; None for an axis that differs from batch to batch.
pub type Axes = Vec<Option<usize>>;

/// What is known about one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Its name.
    pub name: Arc<str>,
    /// What it holds.
    pub content: Content,
}

/// What a column holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// An array.
    Array {
        /// Type of its numbers.
        dtype: Dtype,
        /// Shape of the whole column; None if not even the number of axes is known.
        shape: Option<Axes>,
    },
    /// Groups of numbers of all samples, concatenated. The next column has the counts.
    Groups {
        /// Type of its numbers.
        dtype: Dtype,
        /// Shape of one group.
        inner: Vec<usize>,
    },
    /// Bytes, one for each sample.
    Bytes,
    /// Text, one for each sample.
    Text,
    /// A JSON value for each sample.
    Json,
    /// Bytes of all samples, concatenated. The next column has the counts.
    Lists,
}

impl Columns {
    /// The columns that `complete` returns. `rows` is the first axis of a batch if it is the same for all batches;
    /// `ragged` is what is known about the shape of samples without a fixed shape.
    pub(crate) fn promised(
        &self,
        rows: Option<usize>,
        ragged: impl Fn(&str) -> Option<Axes>,
    ) -> Vec<Promise> {
        let mut promised = Vec::new();
        let mut promise = |name: Arc<str>, content| promised.push(Promise { name, content });
        let array = |dtype, shape: &[Option<usize>]| Content::Array {
            dtype,
            shape: Some([&[rows], shape].concat()),
        };
        for (field, cast) in self.fields.iter().zip(self.casts.iter()) {
            let made = |dtype: &Dtype| cast.map_or(*dtype, |cast| cast.dtype);
            let name = Arc::clone(&field.name);
            let beside = |what: &str| Arc::from(format!("{name}_{what}"));
            let (lengths, shapes) = (beside("lengths"), beside("shape"));
            match &field.kind {
                FieldKind::Fixed { dtype, shape } => {
                    promise(name, array(made(dtype), &known(shape)));
                }
                FieldKind::Ragged { dtype } => {
                    let inner = ragged(&name);
                    let content = match &inner {
                        Some(inner) => array(*dtype, inner),
                        None => Content::Array { dtype: *dtype, shape: None },
                    };
                    promise(name, content);
                    if self.pad.is_some() {
                        promise(shapes, array(Dtype::Int64, &[inner.map(|inner| inner.len())]));
                    }
                }
                FieldKind::Variable { dtype, inner } => {
                    let content = if self.pad.is_some() {
                        array(made(dtype), &[&[None], &*known(inner)].concat())
                    } else {
                        Content::Groups { dtype: made(dtype), inner: inner.clone() }
                    };
                    promise(name, content);
                    promise(lengths, array(Dtype::Int64, &[]));
                }
                FieldKind::Bytes => promise(name, Content::Bytes),
                FieldKind::Text => promise(name, Content::Text),
                FieldKind::Json => promise(name, Content::Json),
                FieldKind::List | FieldKind::Texts => {
                    promise(name, Content::Lists);
                    promise(lengths, array(Dtype::Int64, &[]));
                }
            }
        }
        promised
    }
}

fn known(shape: &[usize]) -> Axes {
    shape.iter().copied().map(Some).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{BatchSamples, BatchSlot, Pool};
    use super::*;
    use crate::budget::{Budget, Permit};
    use crate::sample::{Array, Column, Field, Sample, Ticket, Value};

    fn columns(pad: bool) -> Columns {
        let kinds = [
            ("fixed", FieldKind::Fixed { dtype: Dtype::Float32, shape: vec![2] }),
            ("ragged", FieldKind::Ragged { dtype: Dtype::Uint8 }),
            ("variable", FieldKind::Variable { dtype: Dtype::Int64, inner: vec![4] }),
            ("bytes", FieldKind::Bytes),
            ("text", FieldKind::Text),
            ("json", FieldKind::Json),
            ("list", FieldKind::List),
            ("texts", FieldKind::Texts),
        ];
        let fields = kinds.map(|(name, kind)| Field { name: name.into(), kind });
        let elements = fields.iter().map(|_| vec![0]).collect();
        let pad = pad.then_some(elements);
        Columns {
            casts: vec![None; fields.len()].into(),
            fields: fields.into(),
            size: 2,
            pad,
            joined: false,
        }
    }

    fn sample(index: u64, BatchSlot { rows }: BatchSlot) -> Sample {
        let array = |dtype: Dtype, shape: &[usize]| {
            let bytes = vec![0; dtype.bytes() * shape.iter().product::<usize>()];
            Value::Array(Array { dtype, shape: shape.to_vec(), bytes })
        };
        let values = vec![
            array(Dtype::Uint8, &[3, 5]),
            array(Dtype::Int64, &[index as usize, 4]),
            Value::Bytes(vec![1].into()),
            Value::Text("text".into()),
            Value::Text("{}".into()),
            Value::List(vec![vec![2].into(); index as usize]),
            Value::List(vec![b"a".to_vec().into(); index as usize]),
        ];
        Sample { ticket: Ticket { position: index, epoch: 0, index }, rows, values, permit: None }
    }

    fn is_kept(promise: &Promise, column: &Column) -> bool {
        let fits = |promised: &[Option<usize>], found: &[usize]| {
            promised.len() == found.len()
                && promised
                    .iter()
                    .zip(found)
                    .all(|(one, other)| one.is_none_or(|one| one == *other))
        };
        match (&promise.content, column) {
            (Content::Array { dtype, shape }, Column::Array { dtype: found, shape: of, .. }) => {
                dtype == found && shape.as_ref().is_none_or(|shape| fits(shape, of))
            }
            (Content::Groups { dtype, inner }, Column::Array { dtype: found, shape: of, .. }) => {
                dtype == found && fits(&[&[None], &*known(inner)].concat(), of)
            }
            (Content::Bytes | Content::Lists, Column::Bytes(_))
            | (Content::Text | Content::Lists, Column::Text(_))
            | (Content::Json, Column::Json(_)) => true,
            (
                Content::Array { .. }
                | Content::Groups { .. }
                | Content::Bytes
                | Content::Lists
                | Content::Text
                | Content::Json,
                Column::Array { .. } | Column::Bytes(_) | Column::Text(_) | Column::Json(_),
            ) => false,
        }
    }

    #[test]
    fn every_batch_matches_the_predicted_columns() {
        for pad in [false, true] {
            let budget = Budget::new("bytes", 1 << 16);
            let pool = Pool::new(1 << 16, &budget);
            let columns = columns(pad);
            let permit: Permit = budget.acquire(columns.batch_bytes(), 0).unwrap();
            let batch_slots = columns.batch_slots(&pool, permit).unwrap();
            let samples = batch_slots
                .into_iter()
                .zip(1..)
                .map(|(batch_slot, index)| sample(index, batch_slot));
            let gathered =
                BatchSamples { samples: samples.collect(), number: 0, is_scattered: false };
            let batch = columns.complete(gathered, &pool, &budget).unwrap();

            let ragged = |name: &str| (name == "ragged").then(|| vec![Some(3), None]);
            let promised = columns.promised(Some(2), ragged);
            let names = |of: &mut dyn Iterator<Item = &Arc<str>>| of.cloned().collect::<Vec<_>>();
            assert_eq!(
                names(&mut promised.iter().map(|promise| &promise.name)),
                names(&mut batch.columns.iter().map(|(name, _)| name))
            );
            for (promise, (_, column)) in promised.iter().zip(&batch.columns) {
                assert!(is_kept(promise, column), "{promise:?} but {:?}", column.shape());
            }
        }
    }

    #[test]
    fn axes_that_differ_from_batch_to_batch_are_left_open() {
        let promised = columns(false).promised(None, |_| None);
        let of = |name: &str| {
            promised.iter().find(|promise| &*promise.name == name).map(|promise| &promise.content)
        };
        let open = Content::Array { dtype: Dtype::Float32, shape: Some(vec![None, Some(2)]) };
        assert_eq!(of("fixed"), Some(&open));
        assert_eq!(of("ragged"), Some(&Content::Array { dtype: Dtype::Uint8, shape: None }));
    }
}
