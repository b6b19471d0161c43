//! Decodes and transforms samples, each straight into its row.

use super::caching::Keep;
use super::fields::Write;
use super::run::{ImageWork, Made, MakeResult, OVERHEAD, Run, SampleOrder, Task, caught};
use crate::bytes::Piece;
use crate::collate::BatchSlot;
use crate::error::{Error, Kind, Result};
use crate::fetch::{CachedImage, Fetched};
use crate::sample::{Array, BorrowedArray, Dtype, Extent, Sample, Stage, Ticket, Value};
use crate::transform::{Layout, Native, Output, Prepared, Size, predicate};

impl Run {
    /// Loads a sample from its bytes. A panic of a codec is a fault of the sample.
    pub(super) fn make(&self, task: Task, native: &mut Native) -> MakeResult {
        let Task { order, fetched, image_work, keep } = task;
        let SampleOrder { ticket, mut batch_slot, attempts, .. } = order;
        let work = SampleWork { fetched, image_work, keep };
        let outcome = caught(|| self.values(ticket, &mut batch_slot, work, native));
        match outcome {
            Ok(Some((sample, bucket))) => Ok(Made::Kept(sample, bucket)),
            Ok(None) => Ok(Made::LeftOut(batch_slot)),
            Err(error) => {
                if error.kind() == Kind::CodecPanic {
                    // The working memory may be inconsistent after a panic.
                    *native = Native::default();
                }
                let mut bad = self.fault(ticket, Stage::Worker, error, batch_slot);
                bad.0.attempts = attempts.max(1);
                Err(bad)
            }
        }
    }

    /// A sample with its values in the order of the fields, and its bucket; None if a filter drops it. Rows are taken
    /// out of the slot at the very end, so that a fault leaves it complete. The image comes last, because it costs
    /// most.
    fn values(
        &self,
        ticket: Ticket,
        batch_slot: &mut BatchSlot,
        work: SampleWork,
        native: &mut Native,
    ) -> Result<Option<(Sample, usize)>> {
        let SampleWork { fetched, image_work, keep } = work;
        let shared = &self.shared;
        let keeps_bytes = shared.cache.as_ref().is_some_and(|cache| cache.steps.is_none());
        let keep_bytes = |bytes: &Option<Piece>| {
            if let (Some(keep), Some(bytes), true) = (keep, bytes, keeps_bytes) {
                self.keep(ticket.index, keep, bytes, None);
            }
        };
        let mut others = Vec::new();
        let (bytes, mut permit) = match fetched {
            Some(Fetched { bytes, extra }) => (Some(bytes), extra),
            None => (None, None),
        };
        if let Some(bytes) = &bytes {
            match &shared.parser {
                Some(parser) => {
                    let row = usize::from(shared.transform.is_some() && shared.in_rows);
                    let rows = &mut batch_slot.rows[row..row + parser.rows()];
                    parser.read(bytes, rows, &mut others)?;
                }
                None if shared.transform.is_none() => others.push(Value::Bytes(bytes.clone())),
                None => {}
            }
        }
        for (row, write) in &shared.writes {
            let target = &mut batch_slot.rows[*row];
            match write {
                Write::Array(at) => {
                    let Extent::Memory(arrays) = shared.source.extent(ticket.index) else {
                        return Err(Error::new(Kind::Internal, "a sample has no arrays"));
                    };
                    self.write_array(&arrays[*at], ticket, target, native)?;
                }
                Write::Beside(at) => {
                    let array = &shared.source.beside()[*at];
                    array.memory.copy(array.range(ticket.index).start, target);
                }
                Write::Label => {
                    let label = shared.source.label(ticket.index).unwrap_or(-1);
                    target.copy_from_slice(&label.to_ne_bytes());
                }
                Write::Index => target.copy_from_slice(&(ticket.index as i64).to_ne_bytes()),
            }
        }
        let Some(bucket) = self.bucket(ticket, batch_slot, &others)? else {
            keep_bytes(&bytes);
            return Ok(None);
        };
        if shared.filter.is_some() {
            // A value that is kept must not keep the rest of its buffer in memory.
            for value in &mut others {
                if let Value::Bytes(piece) = value {
                    *piece = piece.to_vec().into();
                }
            }
        }
        if let (Some(transform), Some(bytes)) = (&shared.transform, &bytes) {
            let work = match image_work {
                Some(work) => work,
                None => Box::new(self.image_work(self.encoded(bytes)?, ticket)?),
            };
            if shared.in_rows {
                let row = &mut batch_slot.rows[0];
                self.make_image(ticket, &work, bytes, keep, native, row)?;
            } else {
                let size = work.size();
                let mut pixels = vec![0; self.result_bytes(work.last())];
                self.make_image(ticket, &work, bytes, keep, native, &mut pixels)?;
                let shape = transform.shape_of(size);
                let dtype = shared.settings.output.dtype;
                others.insert(0, Value::Array(Array { dtype, shape, bytes: pixels }));
            }
        }
        keep_bytes(&bytes);
        // Returns the permit for working memory; the values still hold theirs.
        match &mut permit {
            Some(permit) if !others.is_empty() => {
                let held: usize = others.iter().map(held_bytes).sum();
                permit.keep(held as u64 + OVERHEAD);
            }
            Some(_) | None => permit = None,
        }
        if batch_slot.rows.len() + others.len() != shared.columns.fields.len() {
            return Err(Error::new(Kind::Internal, "a field has no value"));
        }
        let rows = std::mem::take(&mut batch_slot.rows);
        Ok(Some((Sample { ticket, rows, values: others, permit }, bucket)))
    }

    /// Writes an image to its row. What the steps before the cache make is kept.
    fn make_image(
        &self,
        ticket: Ticket,
        work: &ImageWork,
        bytes: &Piece,
        keep: Option<Keep>,
        native: &mut Native,
        row: &mut [u8],
    ) -> Result<()> {
        let Some(transform) = &self.shared.transform else {
            return Err(Error::new(Kind::Internal, "an image without a transform"));
        };
        match work {
            ImageWork::Whole(prepared) => {
                native.make(transform, prepared, self.encoded(bytes)?, row)
            }
            ImageWork::Split { first, rest } => {
                let Size { height, width } = first.size;
                let mut pixels = vec![0; height * width * transform.channels()];
                let plain = Output::plain(Dtype::Uint8, Layout::Hwc);
                native.make_as(&plain, transform, first, self.encoded(bytes)?, &mut pixels)?;
                native.make(transform, rest, &pixels, row)?;
                if let Some(keep) = keep {
                    let image = CachedImage { height, width, pixels: pixels.into() };
                    self.keep(ticket.index, keep, bytes, Some(image));
                }
                Ok(())
            }
            ImageWork::Rest { image, rest } => native.make(transform, rest, &image.pixels, row),
        }
    }

    /// The bucket of a sample, or the first if there are none; None if a filter drops the sample.
    fn bucket(
        &self,
        ticket: Ticket,
        batch_slot: &BatchSlot,
        others: &[Value],
    ) -> Result<Option<usize>> {
        let shared = &self.shared;
        let sample = predicate::MadeSample { ticket, rows: &batch_slot.rows, others };
        if let Some(filter) = &shared.filter
            && !filter.keeps(&sample)?
        {
            return Ok(None);
        }
        shared.bucketing.as_ref().map_or(Ok(0), |bucketing| bucketing.bucket(&sample)).map(Some)
    }

    /// The bytes of the encoded image in a record or file.
    pub(super) fn encoded<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        match &self.shared.parser {
            Some(parser) if self.shared.settings.picture.is_some() => parser.picture(bytes),
            Some(_) | None => Ok(bytes),
        }
    }

    fn write_array(
        &self,
        array: &BorrowedArray,
        ticket: Ticket,
        target: &mut [u8],
        native: &mut Native,
    ) -> Result<()> {
        let range = array.range(ticket.index);
        match &self.shared.transform {
            Some(transform) if &*array.field.name == "image" => {
                let mut pixels = vec![0; range.len()];
                array.memory.copy(range.start, &mut pixels);
                let prepared = Prepared::new(transform, &[], ticket)?;
                native.make(transform, &prepared, &pixels, target)
            }
            Some(_) | None => {
                array.memory.copy(range.start, target);
                Ok(())
            }
        }
    }
}

/// What a task has besides its order.
struct SampleWork {
    fetched: Option<Fetched>,
    image_work: Option<Box<ImageWork>>,
    keep: Option<Keep>,
}

impl ImageWork {
    /// The steps that write to the row.
    fn last(&self) -> &Prepared {
        match self {
            ImageWork::Whole(prepared) => prepared,
            ImageWork::Split { rest, .. } | ImageWork::Rest { rest, .. } => rest,
        }
    }

    /// The size of the result.
    fn size(&self) -> Size {
        self.last().size
    }
}

/// Bytes of a value without a row, as far as they are its own.
fn held_bytes(value: &Value) -> usize {
    match value {
        Value::Array(array) => array.bytes.len(),
        Value::Text(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(list) => list.iter().map(|bytes| bytes.len()).sum(),
    }
}
