//! The fetch stage for records: adjacent records of a chunk are read at once, whatever their order. If there is nothing
//! to decode, the thread that reads a record also completes its sample.

use std::path::Path;

use super::activity::{ActivityRecord, ThreadActivity};
use super::caching::{Keep, Lookup};
use super::run::{MakeResult, OVERHEAD, Run, SampleOrder, Task, TaskSink};
use crate::bytes::Piece;
use crate::engine;
use crate::error::{Error, Kind, Result};
use crate::fetch::{CachedSample, Packed, Stretch};
use crate::format::Container;
use crate::sample::{Extent, Stage};
use crate::sys::clock;
use crate::transform::Native;

/// The most records in a chunk, and the bytes that a chunk should have.
const RECORDS: u64 = 64;
const BYTES: u64 = 256 << 10;
/// The most bytes read at once.
const RUN: u64 = 512 << 10;

/// A record of a chunk, and its place in the file.
struct WantedRecord<'a> {
    at: Stretch<'a>,
    order: SampleOrder,
    keep: Option<Keep>,
}

/// Samples that are ready, and where they go.
struct Ready<'a> {
    run: &'a Run,
    tasks: &'a TaskSink,
    ready: Vec<Task>,
    /// Used again for each chunk.
    results: Vec<(engine::Order, MakeResult)>,
    native: Native,
    is_closed: bool,
}

impl Ready<'_> {
    /// Hands on what is ready.
    fn hand_on(&mut self) {
        let Ready { run, tasks, ready, results, native, is_closed } = self;
        if ready.is_empty() {
            return;
        }
        ready.sort_unstable_by_key(|task| task.order.of.slot);
        if run.shared.transform.is_some() {
            // Nobody listens any more when the run is closed: then nothing is needed.
            *is_closed |= !tasks.put(run, std::mem::take(ready));
            return;
        }
        let start = clock::now();
        results.extend(ready.drain(..).map(|task| (task.order.of, run.make(task, native))));
        run.meters.add(Stage::Worker, start.elapsed());
        run.process_results(results.drain(..), Some(native));
    }
}

impl Run {
    /// Fetches chunks of records until there are none left.
    pub(super) fn read_records(&self, tasks: &TaskSink, activity: &ActivityRecord) {
        let mean = self.shared.source.mean_bytes().max(1);
        let chunk = (BYTES / mean).clamp(1, RECORDS) as usize;
        let mut orders = Vec::new();
        let mut ready = Ready {
            run: self,
            tasks,
            ready: Vec::new(),
            results: Vec::new(),
            native: Native::default(),
            is_closed: false,
        };
        while let Some(()) = self.next_orders(chunk, &mut orders) {
            ready.ready.reserve(orders.len());
            let start = clock::now();
            let alone = self.read_chunk(&mut orders, &mut ready, activity);
            self.meters.add(Stage::Fetch, start.elapsed());
            ready.hand_on();
            // Records that need special care come last, so that no record that was read waits for them.
            for order in alone {
                let of = order.of;
                activity.begin(of.slot, order.ticket.index, ThreadActivity::Reading);
                let fetched = self.fetch(order, activity, &mut || ready.hand_on());
                activity.end();
                match fetched {
                    Ok(task) => ready.ready.push(task),
                    Err(bad) => {
                        ready.hand_on();
                        self.process_results([(of, Err(bad))], None);
                    }
                }
            }
            ready.hand_on();
            if ready.is_closed {
                return;
            }
        }
    }

    /// Reads the records that need no special care; returns the others, in order.
    fn read_chunk(
        &self,
        orders: &mut Vec<SampleOrder>,
        ready: &mut Ready<'_>,
        activity: &ActivityRecord,
    ) -> Vec<SampleOrder> {
        // A wait for a later sample must not keep an earlier one of the chunk, which is not read yet.
        let Some(first) = orders.iter().map(|order| order.of.slot).min() else { return Vec::new() };
        let source = &*self.shared.source;
        let mut alone = Vec::new();
        let mut wanted: Vec<WantedRecord<'_>> = Vec::with_capacity(orders.len());
        for order in orders.drain(..) {
            let index = order.ticket.index;
            match source.extent(index) {
                Extent::Part { path, offset, length }
                    if self.shared.settings.chaos.is_none()
                        && source.corruption(index).is_none() =>
                {
                    let extent = Extent::Part { path, offset, length };
                    let keep = match self.look_up(&order, &extent, first, &mut || ready.hand_on()) {
                        Lookup::Hit(sample) => {
                            self.take_cached(order, sample, first, ready, &mut alone);
                            continue;
                        }
                        Lookup::Miss(keep) => Some(keep),
                        Lookup::None => None,
                    };
                    wanted.push(WantedRecord { at: Stretch { path, offset, length }, order, keep });
                }
                Extent::Part { .. }
                | Extent::Packed { .. }
                | Extent::File(_)
                | Extent::Memory(_) => alone.push(order),
            }
        }
        let is_numbers = self.container().is_some_and(|of| matches!(of, Container::Numbers { .. }));
        wanted.sort_unstable_by_key(|wanted| {
            (std::ptr::from_ref(wanted.at.path).cast::<u8>(), wanted.at.offset)
        });
        let mut rest = wanted.into_iter().peekable();
        while let Some(next) = rest.next() {
            activity.begin(next.order.of.slot, next.order.ticket.index, ThreadActivity::Reading);
            if is_numbers {
                match self.read_numbers(next, first, ready) {
                    Ok(task) => ready.ready.push(task),
                    Err(order) => alone.push(order),
                }
                continue;
            }
            let mut run = next.at;
            let mut those = vec![next];
            while let Some(next) = rest.next_if(|next| {
                std::ptr::eq(next.at.path, run.path)
                    && next.at.offset == run.offset + run.length
                    && run.length + next.at.length <= RUN
            }) {
                run.length += next.at.length;
                those.push(next);
            }
            self.read_run(run, those, first, ready, &mut alone);
        }
        activity.end();
        alone.sort_unstable_by_key(|order| order.of.slot);
        alone
    }

    /// Makes a task of a record that the cache has. If anything is wrong with it, it is read alone.
    fn take_cached(
        &self,
        order: SampleOrder,
        sample: CachedSample,
        first: u64,
        ready: &mut Ready<'_>,
        alone: &mut Vec<SampleOrder>,
    ) {
        let (of, ticket) = (order.of, order.ticket);
        match self.prepare_cached(order, sample, first, &mut || ready.hand_on()) {
            Ok(task) => ready.ready.push(task),
            Err(bad) => alone.push(SampleOrder { of, ticket, batch_slot: bad.1, attempts: 0 }),
        }
    }

    /// Reads adjacent records. If anything is wrong with one, it is read alone.
    fn read_run(
        &self,
        run: Stretch<'_>,
        those: Vec<WantedRecord<'_>>,
        first: u64,
        ready: &mut Ready<'_>,
        alone: &mut Vec<SampleOrder>,
    ) {
        let more = OVERHEAD * those.len() as u64;
        let read = self.reader.read_part(run, more, first, &mut || ready.hand_on());
        let Ok(bytes) = read else {
            alone.extend(those.into_iter().map(|wanted| wanted.order));
            return;
        };
        self.gate.worked(run.path);
        for WantedRecord { at, order, keep } in those {
            let span = bytes.part((at.offset - run.offset) as usize, at.length as usize);
            let Ok(payload) = self.opened(span) else {
                alone.push(order);
                continue;
            };
            let (of, ticket) = (order.of, order.ticket);
            let made = self.prepare(order, payload, 0, first, &mut || ready.hand_on());
            match made {
                Ok(task) => ready.ready.push(Task { keep, ..task }),
                Err(bad) => alone.push(SampleOrder { of, ticket, batch_slot: bad.1, attempts: 0 }),
            }
        }
    }

    fn read_numbers(
        &self,
        wanted: WantedRecord<'_>,
        first: u64,
        ready: &mut Ready<'_>,
    ) -> std::result::Result<Task, SampleOrder> {
        let WantedRecord { at, mut order, .. } = wanted;
        let target = &mut order.batch_slot.rows[0];
        let read = self.reader.read_into(at.path, at.offset, target, first, &mut || {
            ready.hand_on();
        });
        match read {
            Ok(()) => Ok(order.into()),
            Err(_) => Err(order),
        }
    }

    /// Reads one record alone.
    pub(super) fn read_record(
        &self,
        order: &mut SampleOrder,
        at: Stretch<'_>,
        before_wait: &mut dyn FnMut(),
    ) -> Result<Option<Piece>> {
        if let Some(what) = self.shared.source.corruption(order.ticket.index) {
            return Err(Error::new(Kind::CorruptRecord, what));
        }
        let number = order.of.slot;
        if let Some(Container::Numbers { .. }) = self.container() {
            let target = &mut order.batch_slot.rows[0];
            self.reader.read_into(at.path, at.offset, target, number, before_wait)?;
            return Ok(None);
        }
        let span = self.reader.read_part(at, 0, number, before_wait)?;
        self.opened(span).map(Some).map_err(|error| self.named(error, order))
    }

    /// Reads one record of a compressed file.
    pub(super) fn read_packed(
        &self,
        order: &SampleOrder,
        path: &Path,
        record: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<Piece> {
        let index = order.ticket.index;
        if let Some(what) = self.shared.source.corruption(index) {
            return Err(Error::new(Kind::CorruptRecord, what));
        }
        let Some(streams) = &self.streams else {
            return Err(Error::new(Kind::Internal, "a compressed record without its stream"));
        };
        let packing = self.shared.source.packing(index);
        let wanted = Packed { path, packing, record };
        let span = streams.read(wanted, &self.reader, order.of.slot, before_wait)?;
        self.opened(span).map_err(|error| self.named(error, order))
    }

    /// Adds the record to the message about a corrupt record.
    fn named(&self, error: Error, order: &SampleOrder) -> Error {
        let location = self.shared.source.location(order.ticket.index);
        match location.and_then(|location| location.record) {
            Some(record) if error.kind() == Kind::CorruptRecord => {
                let message = format!("record {record} is corrupt: {}", error.message());
                Error::new(Kind::CorruptRecord, message)
            }
            Some(_) | None => error,
        }
    }

    /// The content of a record.
    fn opened(&self, span: Piece) -> Result<Piece> {
        let Some(container) = self.container() else { return Ok(span) };
        let (start, length) = {
            let part = container.payload(&span)?;
            (part.as_ptr() as usize - span.as_ptr() as usize, part.len())
        };
        Ok(span.part(start, length))
    }

    fn container(&self) -> Option<&Container> {
        self.shared.source.contents().map(|contents| &contents.container)
    }
}
