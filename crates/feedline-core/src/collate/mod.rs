//! From samples to a batch. Rows of the batch are handed out before the samples are loaded, so that each sample is
//! written straight into its row; values without a fixed shape are copied when the batch is complete.

mod cast;
mod gather;
mod lengths;
mod pad;
mod pool;
mod promise;
mod stack;

pub use cast::Cast;
pub(crate) use gather::{BatchSamples, Shapes, slot_of};
pub(crate) use pool::Pool;
pub use promise::{Axes, Content, Promise};

use std::collections::VecDeque;
use std::sync::Arc;

use crate::budget::{Budget, Permit};
use crate::error::{Error, Kind, Result};
use crate::sample::{Batch, Column, Field, FieldKind, Sample, Value};
use crate::sys::slab::{self, Block, Row};

/// The columns of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    /// The fields, one column each.
    pub fields: Arc<[Field]>,
    /// The conversion of each field's numbers, if any.
    pub casts: Arc<[Option<Cast>]>,
    /// Number of samples in a full batch.
    pub size: usize,
    /// The element that pads arrays of different shapes, for each field, as bytes; None if arrays are not padded.
    pub pad: Option<Arc<[Vec<u8>]>>,
    /// Whether arrays of different shapes are concatenated, with their shapes in a column beside them, for code that
    /// splits them again.
    pub joined: bool,
}

/// Memory for one sample in a batch: a row of each column that has rows.
pub(crate) struct BatchSlot {
    /// The rows, in the order of the fields with a fixed shape.
    pub rows: Vec<Row>,
}

impl Columns {
    /// Whether samples can have shapes that do not fit into one batch.
    pub(crate) fn may_differ(&self) -> bool {
        let is_ragged = |field: &Field| matches!(field.kind, FieldKind::Ragged { .. });
        !self.joined && self.fields.iter().any(is_ragged)
    }

    /// The shapes of a sample, as far as they decide which batch it fits into.
    pub(crate) fn shapes(&self, sample: &Sample) -> Shapes {
        let shapes = gather::SampleShapes::of(self, sample).shapes;
        match self.pad {
            // Padded arrays only need the same number of axes.
            Some(_) => shapes.into_iter().map(|shape| vec![shape.len()]).collect(),
            None => shapes,
        }
    }

    /// The error if a sample does not fit into a batch with a sample like `like`.
    pub(crate) fn mismatch(&self, sample: &Sample, like: Option<&Sample>) -> Error {
        let found =
            like.and_then(|like| gather::SampleShapes::of(self, like).mismatch(self, sample));
        found.unwrap_or_else(|| {
            let (index, shapes) =
                (sample.ticket.index, gather::SampleShapes::of(self, sample).shapes);
            let message =
                format!("sample {index} with shapes {shapes:?} does not fit into its batch");
            Error::new(Kind::ShapeMismatch, message)
        })
    }

    /// Bytes of the rows of one batch.
    pub(crate) fn batch_bytes(&self) -> u64 {
        let row: usize = self.fields.iter().filter_map(Field::row_bytes).sum();
        row as u64 * self.size as u64
    }

    /// The slots of a new batch, in order. The permit is returned with the memory.
    pub(crate) fn batch_slots(
        &self,
        pool: &Pool,
        mut permit: Permit,
    ) -> Result<VecDeque<BatchSlot>> {
        let mut batch_slots: VecDeque<BatchSlot> = (0..self.size)
            .map(|_| BatchSlot { rows: Vec::with_capacity(self.fields.len()) })
            .collect();
        for row_bytes in self.fields.iter().filter_map(Field::row_bytes) {
            let bytes = row_bytes * self.size;
            let part = permit.split(bytes as u64);
            let block = pool.take(bytes, permit.slot())?;
            let rows = slab::carve(block, row_bytes, self.size, pool.give_back(part));
            for (batch_slot, row) in batch_slots.iter_mut().zip(rows) {
                batch_slot.rows.push(row);
            }
        }
        Ok(batch_slots)
    }

    /// Bytes of the rows of one sample.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.fields.iter().filter_map(Field::row_bytes).map(|bytes| bytes as u64).sum()
    }

    /// Slots outside a batch, each with memory of its own, because each is freed at a different time.
    pub(crate) fn lone_slots(
        &self,
        count: usize,
        mut permit: Permit,
    ) -> Result<VecDeque<BatchSlot>> {
        permit.budget().trim();
        let mut batch_slots = VecDeque::with_capacity(count);
        for _ in 0..count {
            let mut rows = Vec::with_capacity(self.fields.len());
            for bytes in self.fields.iter().filter_map(Field::row_bytes) {
                let part = permit.split(bytes as u64);
                let (budget, slot) = (permit.budget(), permit.slot());
                let allocate = || Block::new(bytes);
                let block = budget.allocate(bytes, "a sample", slot, &mut || (), allocate)?;
                let give_back = Box::new(move |block| drop((block, part)));
                rows.extend(slab::carve(block, bytes, 1, give_back));
            }
            batch_slots.push_back(BatchSlot { rows });
        }
        Ok(batch_slots)
    }

    /// Completes the batch. Waits for room for arrays that were not written in place.
    pub(crate) fn complete(
        &self,
        gathered: BatchSamples,
        pool: &Pool,
        budget: &Budget,
    ) -> Result<Batch> {
        let BatchSamples { samples, number, is_scattered, .. } = gathered;
        if samples.is_empty() {
            return Ok(Batch { columns: Vec::new(), tickets: Vec::new(), permit: None });
        }
        let mut tickets = Vec::with_capacity(samples.len());
        let mut permits: Option<Permit> = None;
        let fixed = self.fields.iter().filter_map(Field::row_bytes).count();
        let mut rows: Vec<Vec<Row>> =
            (0..fixed).map(|_| Vec::with_capacity(samples.len())).collect();
        let mut values: Vec<Vec<Value>> =
            (fixed..self.fields.len()).map(|_| Vec::with_capacity(samples.len())).collect();
        for Sample { ticket, rows: of_sample, values: others, permit } in samples {
            tickets.push(ticket);
            for (column, row) in rows.iter_mut().zip(of_sample) {
                column.push(row);
            }
            for (column, value) in values.iter_mut().zip(others) {
                column.push(value);
            }
            match (&mut permits, permit) {
                (Some(sum), Some(permit)) => sum.absorb(permit),
                (None, permit) => permits = permit,
                (Some(_), None) => {}
            }
        }
        let mut columns = Vec::with_capacity(self.fields.len());
        let (mut rows, mut values) = (rows.into_iter(), values.into_iter());
        for (at, field) in self.fields.iter().enumerate() {
            let mut values = || values.next().unwrap_or_default();
            let element = self.pad.as_ref().map(|elements| &*elements[at]);
            match &field.kind {
                FieldKind::Fixed { dtype, shape } => {
                    let rows = rows.next().unwrap_or_default();
                    let in_place =
                        if is_scattered { Err(rows) } else { stack::rows(*dtype, shape, rows) };
                    let column = match in_place {
                        Ok(column) => column,
                        Err(rows) => stack::scattered(*dtype, shape, rows, number, pool, budget)?,
                    };
                    let column = match self.casts[at] {
                        Some(cast) => cast::convert_column(cast, column, number, pool, budget)?,
                        None => column,
                    };
                    columns.push((Arc::clone(&field.name), column));
                }
                FieldKind::Ragged { dtype } if self.joined => {
                    let (all, shapes) = pad::joined(*dtype, values(), number, pool, budget)?;
                    columns.push((Arc::clone(&field.name), all));
                    columns.push((format!("{}_shape", field.name).into(), shapes));
                }
                FieldKind::Ragged { .. } => match element {
                    Some(element) => {
                        let (padded, lengths) =
                            pad::arrays(values(), element, number, pool, budget)?;
                        columns.push((Arc::clone(&field.name), padded));
                        columns.push((format!("{}_shape", field.name).into(), lengths));
                    }
                    None => {
                        let column = stack::arrays(values(), number, pool, budget)?;
                        columns.push((Arc::clone(&field.name), column));
                    }
                },
                FieldKind::Variable { dtype, inner } => {
                    let (dtype, values) = match self.casts[at] {
                        Some(cast) => (cast.dtype, cast::convert_values(cast, values())?),
                        None => (*dtype, values()),
                    };
                    let of = (dtype, &**inner);
                    let (column, lengths) = match element {
                        Some(element) => {
                            lengths::padded(of, values, element, number, pool, budget)?
                        }
                        None => lengths::joined(of, values, number, pool, budget)?,
                    };
                    columns.push((Arc::clone(&field.name), column));
                    columns.push((format!("{}_lengths", field.name).into(), lengths));
                }
                FieldKind::Bytes => {
                    columns.push((Arc::clone(&field.name), Column::Bytes(stack::bytes(values())?)));
                }
                FieldKind::Text => {
                    columns.push((Arc::clone(&field.name), Column::Text(stack::text(values())?)));
                }
                FieldKind::Json => {
                    columns.push((Arc::clone(&field.name), Column::Json(stack::text(values())?)));
                }
                FieldKind::List | FieldKind::Texts => {
                    let (list, lengths) = stack::lists(values(), number, pool, budget)?;
                    let column = if matches!(field.kind, FieldKind::Texts) {
                        Column::Text(stack::texts(&list)?)
                    } else {
                        Column::Bytes(list)
                    };
                    columns.push((Arc::clone(&field.name), column));
                    columns.push((format!("{}_lengths", field.name).into(), lengths));
                }
            }
        }
        if !columns.iter().any(|(_, column)| matches!(column, Column::Bytes(_))) {
            // Everything was copied into memory with permits of its own.
            permits = None;
        }
        Ok(Batch { columns, tickets, permit: permits })
    }
}

/// Memory for a column whose values were not written in place.
fn new_array(bytes: usize, number: u64, pool: &Pool, budget: &Budget) -> Result<Row> {
    let permit = budget
        .acquire(bytes as u64, number)
        .map_err(|_| Error::new(Kind::Closed, "the loader is closed"))?;
    let block = pool.take(bytes, number)?;
    slab::carve(block, bytes, 1, pool.give_back(Some(permit)))
        .pop()
        .ok_or_else(|| wrong_value("an array without memory"))
}

fn wrong_value(what: &str) -> Error {
    Error::new(Kind::Internal, format!("a batch was given {what}"))
}
