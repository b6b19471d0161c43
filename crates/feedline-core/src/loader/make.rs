//! Makes samples of their bytes, each straight into its place.

use std::collections::VecDeque;

use super::run::{OVERHEAD, Order, Outcome, Run, Task, caught};
use crate::budget::Permit;
use crate::collate::Seat;
use crate::error::{Error, Kind, Result};
use crate::fetch::Fetched;
use crate::sample::{Array, Extent, FieldKind, Loaned, Sample, Stage, Ticket, Value};
use crate::worker::{Native, Prepared};

impl Run {
    /// Makes a sample of its bytes. A panic of a codec is a fault of the sample.
    pub(super) fn make(&self, task: Task, native: &mut Native) -> Outcome {
        let Task { order: Order { ticket, mut seat, attempts, .. }, fetched, prepared } = task;
        let outcome = caught(|| self.values(ticket, &mut seat, fetched, prepared, native));
        match outcome {
            Ok((values, permit)) => Ok(Sample { ticket, values, permit }),
            Err(error) => {
                if error.kind() == Kind::CodecPanicked {
                    // What it left in the working memory cannot be trusted.
                    *native = Native::default();
                }
                let mut bad = self.fault(ticket, Stage::Worker, error, seat);
                bad.0.attempts = attempts.max(1);
                Err(bad)
            }
        }
    }

    /// The values of a sample, in the order of the fields. Rows are taken out of the seat at the
    /// very end, so that a fault leaves it whole.
    fn values(
        &self,
        ticket: Ticket,
        seat: &mut Seat,
        fetched: Option<Fetched>,
        prepared: Option<Prepared>,
        native: &mut Native,
    ) -> Result<(Vec<Value>, Option<Permit>)> {
        let shared = &self.shared;
        let mut permit = None;
        let mut others = VecDeque::new();
        let mut bytes = None;
        if let Some(fetched) = fetched {
            match &shared.recipe {
                None => {
                    let (whole, for_it) = fetched.into_parts();
                    (bytes, permit) = (Some(whole), for_it);
                }
                Some(recipe) => {
                    let prepared = match prepared {
                        Some(prepared) => prepared,
                        None => Prepared::new(recipe, fetched.bytes(), ticket)?,
                    };
                    if shared.in_rows {
                        native.make(recipe, &prepared, fetched.bytes(), &mut seat.rows[0])?;
                    } else {
                        let mut row = vec![0; self.result_bytes(&prepared)];
                        native.make(recipe, &prepared, fetched.bytes(), &mut row)?;
                        let (_, mut for_it) = fetched.into_parts();
                        if let Some(for_it) = &mut for_it {
                            for_it.keep(row.len() as u64 + OVERHEAD);
                        }
                        let shape = recipe.shape_of(prepared.size);
                        let dtype = shared.settings.output.dtype;
                        others.push_back(Value::Array(Array { dtype, shape, bytes: row }));
                        permit = for_it;
                    }
                }
            }
        }
        let arrays: &[Loaned] = match shared.source.extent(ticket.index) {
            Extent::Memory(arrays) => arrays,
            Extent::File(_) => &[],
        };
        let mut row = 0;
        for field in shared.columns.fields.iter() {
            if field.row_bytes().is_none() {
                continue;
            }
            let target = &mut seat.rows[row];
            row += 1;
            if let Some(array) = arrays.iter().find(|array| array.field.name == field.name) {
                self.write_array(array, ticket, target, native)?;
            } else if &*field.name == "label" {
                let label = shared.source.label(ticket.index).unwrap_or(-1);
                target.copy_from_slice(&label.to_ne_bytes());
            } else if &*field.name == "index" {
                target.copy_from_slice(&(ticket.index as i64).to_ne_bytes());
            }
        }
        let mut rows = seat.rows.drain(..);
        let values = shared.columns.fields.iter().map(|field| match &field.kind {
            FieldKind::Fixed { .. } => rows.next().map(Value::Row),
            FieldKind::Ragged { .. }
            | FieldKind::Variable { .. }
            | FieldKind::Text
            | FieldKind::Json
            | FieldKind::List => others.pop_front(),
            FieldKind::Bytes => bytes.take().map(Value::Bytes),
        });
        let values: Option<Vec<_>> = values.collect();
        let values = values.ok_or_else(|| Error::new(Kind::Internal, "a field has no value"))?;
        Ok((values, permit))
    }

    fn write_array(
        &self,
        array: &Loaned,
        ticket: Ticket,
        target: &mut [u8],
        native: &mut Native,
    ) -> Result<()> {
        let range = array.range(ticket.index);
        match &self.shared.recipe {
            Some(recipe) if &*array.field.name == "image" => {
                let mut pixels = vec![0; range.len()];
                array.memory.copy(range.start, &mut pixels);
                let prepared = Prepared::new(recipe, &[], ticket)?;
                native.make(recipe, &prepared, &pixels, target)
            }
            Some(_) | None => {
                array.memory.copy(range.start, target);
                Ok(())
            }
        }
    }
}
