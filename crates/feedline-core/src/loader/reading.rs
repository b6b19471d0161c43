//! The fetch stage: readers fetch the bytes of samples in order, retry transient faults, and wait while the source is
//! unavailable.

use serde_json::json;
use std::time::Duration;

use super::activity::{ActivityRecord, ThreadActivity};
use super::caching::Lookup;
use super::gate::AfterFailure;
use super::run::{
    FILES_CHUNK, ImageWork, OVERHEAD, Run, SampleOrder, Task, TaskSink, caught, closed,
};
use crate::bytes::Piece;
use crate::collate::BatchSlot;
use crate::config::InjectedFault;
use crate::error::{Error, Kind, Result};
use crate::event::Slow;
use crate::fault::{Fault, Symptom};
use crate::fetch::{CachedSample, Fetched, Stretch};
use crate::sample::{Extent, Stage, Ticket};
use crate::sys::clock;
use crate::transform::{Prepared, Size, Transform};

/// A sample's bytes, or its fault and the free slot.
pub(super) type Fetching = std::result::Result<Task, Box<(Fault, BatchSlot)>>;

impl Run {
    /// Fetches several samples at a time, because waking a thread for each costs more than reading it. Fetched samples
    /// are handed on before any wait.
    pub(super) fn read(&self, tasks: &TaskSink, activity: &ActivityRecord) {
        if self.shared.source.contents().is_some() {
            return self.read_records(tasks, activity);
        }
        let share = self.shared.batching.size / (self.shared.threads * 2).max(1);
        let chunk = share.clamp(1, FILES_CHUNK);
        let mut orders = Vec::new();
        while let Some(()) = self.next_orders(chunk, &mut orders) {
            let mut ready = Vec::with_capacity(orders.len());
            for order in orders.drain(..) {
                let of = order.of;
                let (index, start) = (order.ticket.index, clock::now());
                activity.begin(of.slot, index, ThreadActivity::Reading);
                let mut has_waited = false;
                let mut hand_on = || {
                    has_waited = true;
                    if !ready.is_empty() {
                        // The channel is closed when the run is: then nothing is needed.
                        tasks.put(self, std::mem::take(&mut ready));
                    }
                };
                let fetched = self.fetch(order, activity, &mut hand_on);
                let time = start.elapsed();
                activity.end();
                self.meters.add(Stage::Fetch, time);
                if !has_waited {
                    self.note_time(index, time, Stage::Fetch);
                }
                match fetched {
                    Ok(task) => ready.push(task),
                    Err(bad) => {
                        if !ready.is_empty() {
                            tasks.put(self, std::mem::take(&mut ready));
                        }
                        self.process_results([(of, Err(bad))], None);
                    }
                }
            }
            if !ready.is_empty() && !tasks.put(self, ready) {
                return;
            }
        }
    }

    /// Reports a slow sample, not counting waits for budgets.
    pub(super) fn note_time(&self, index: u64, time: Duration, stage: Stage) {
        let seconds = time.as_secs_f64();
        if self.shared.ledger.is_slow(seconds) {
            let (index, stage) = (json!(index), stage.name().to_owned());
            self.shared.ledger.slow(Slow { index, seconds, worker: None, stage });
        }
    }

    /// Fetches the bytes of a sample, with a permit for everything derived from them; retries as the policy says.
    /// Waiting for an unavailable source does not count as an attempt.
    pub(super) fn fetch(
        &self,
        mut order: SampleOrder,
        activity: &ActivityRecord,
        before_wait: &mut dyn FnMut(),
    ) -> Fetching {
        loop {
            let of = order.of;
            let (ticket, attempts) = (order.ticket, order.attempts + 1);
            let mut bad = match self.fetch_once(SampleOrder { attempts, ..order }, before_wait) {
                Ok(task) => return Ok(task),
                Err(bad) => bad,
            };
            bad.0.attempts = attempts;
            let symptom = Symptom::of(&bad.0.error);
            let path = match self.shared.source.extent(ticket.index) {
                Extent::File(path) if !self.is_closed() => path,
                Extent::Part { path, .. } | Extent::Packed { path, .. } if !self.is_closed() => {
                    path.to_owned()
                }
                Extent::File(_)
                | Extent::Part { .. }
                | Extent::Packed { .. }
                | Extent::Memory(_) => return Err(bad),
            };
            activity.turn_to(ThreadActivity::Waiting);
            match self.gate.failed(&symptom, &path, &self.ending, before_wait) {
                AfterFailure::OfSample => {}
                AfterFailure::Again => {
                    activity.turn_to(ThreadActivity::Reading);
                    order = SampleOrder { of, ticket, batch_slot: bad.1, attempts: attempts - 1 };
                    continue;
                }
                AfterFailure::GivenUp(error) => {
                    return Err(self.fault(ticket, Stage::Fetch, error, bad.1));
                }
                AfterFailure::Closed => {
                    return Err(self.fault(ticket, Stage::Fetch, closed(), bad.1));
                }
            }
            let policy = self.shared.ledger.policy();
            let Some(wait) = policy.retry_after(&symptom, attempts, &self.key(ticket)) else {
                return Err(bad);
            };
            self.shared.ledger.retried(self.line_of(&bad.0));
            before_wait();
            if self.ending.wait(wait) {
                return Err(self.fault(ticket, Stage::Fetch, closed(), bad.1));
            }
            activity.turn_to(ThreadActivity::Reading);
            order = SampleOrder { of, ticket, batch_slot: bad.1, attempts };
        }
    }

    fn fetch_once(&self, mut order: SampleOrder, before_wait: &mut dyn FnMut()) -> Fetching {
        let (index, number) = (order.ticket.index, order.of.slot);
        let extent = self.shared.source.extent(index);
        if matches!(extent, Extent::Memory(_)) {
            return Ok(order.into());
        }
        if let Some(error) = self.inject_chaos(&order, before_wait) {
            let stage = if error.kind() == Kind::Read { Stage::Fetch } else { Stage::Worker };
            return Err(self.fault(order.ticket, stage, error, order.batch_slot));
        }
        let keep = match self.look_up(&order, &extent, number, before_wait) {
            Lookup::Hit(sample) => return self.prepare_cached(order, sample, number, before_wait),
            Lookup::Miss(keep) => Some(keep),
            Lookup::None => None,
        };
        let read = match &extent {
            Extent::File(path) => self.reader.read(path, number, before_wait).map(Some),
            Extent::Part { path, offset, length } => {
                let stretch = Stretch { path, offset: *offset, length: *length };
                self.read_record(&mut order, stretch, before_wait)
            }
            Extent::Packed { path, record } => {
                self.read_packed(&order, path, *record, before_wait).map(Some)
            }
            Extent::Memory(_) => Ok(None),
        };
        match read {
            Ok(bytes) => {
                match &extent {
                    Extent::File(path) => self.gate.worked(path),
                    Extent::Part { path, .. } | Extent::Packed { path, .. } => {
                        self.gate.worked(path);
                    }
                    Extent::Memory(_) => {}
                }
                match bytes {
                    Some(bytes) => {
                        let prepared = self.prepare(order, bytes, OVERHEAD, number, before_wait);
                        prepared.map(|task| Task { keep, ..task })
                    }
                    None => Ok(order.into()),
                }
            }
            Err(error) => Err(self.fault(order.ticket, Stage::Fetch, error, order.batch_slot)),
        }
    }

    /// Turns bytes into a task, with a permit for everything derived from them; `slot` is that of the first sample
    /// that waits for this one.
    pub(super) fn prepare(
        &self,
        order: SampleOrder,
        bytes: Piece,
        overhead: u64,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Fetching {
        let outcome = caught(|| {
            let image_work = match &self.shared.transform {
                Some(_) => Some(self.image_work(self.encoded(&bytes)?, order.ticket)?),
                None => None,
            };
            Ok(image_work)
        });
        self.with_permit(order, bytes, outcome, overhead, slot, before_wait)
    }

    /// Like `prepare`, for a sample that the cache has.
    pub(super) fn prepare_cached(
        &self,
        order: SampleOrder,
        sample: CachedSample,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Fetching {
        let CachedSample { bytes, image } = sample;
        let cache = self.shared.cache.as_ref();
        let (Some(image), Some(transform), Some(steps)) =
            (image, &self.shared.transform, cache.and_then(|cache| cache.steps))
        else {
            return self.prepare(order, bytes, OVERHEAD, slot, before_wait);
        };
        let size = Size { height: image.height, width: image.width };
        let rest = Prepared::continued(transform, steps, size, order.ticket);
        let outcome = rest.map(|rest| Some(ImageWork::Rest { image, rest }));
        self.with_permit(order, bytes, outcome, OVERHEAD, slot, before_wait)
    }

    /// What is to be done for an image, from the encoded bytes on.
    pub(super) fn image_work(&self, encoded: &[u8], ticket: Ticket) -> Result<ImageWork> {
        let Some(transform) = &self.shared.transform else {
            return Err(Error::new(Kind::Internal, "an image without a transform"));
        };
        let Some(steps) = self.shared.cache.as_ref().and_then(|cache| cache.steps) else {
            return Ok(ImageWork::Whole(Prepared::new(transform, encoded, ticket)?));
        };
        let first = Prepared::up_to(transform, steps, encoded, ticket)?;
        let rest = Prepared::continued(transform, steps, first.size, ticket)?;
        Ok(ImageWork::Split { first, rest })
    }

    /// The bytes of memory that making an image takes, and those of its result.
    fn image_bytes(&self, work: &ImageWork) -> (usize, usize) {
        let channels = self.shared.transform.as_ref().map_or(0, Transform::channels);
        let (working, rest) = match work {
            ImageWork::Whole(prepared) => (prepared.working_bytes, prepared),
            ImageWork::Split { first, rest } => {
                let kept = first.size.width * first.size.height * channels;
                (first.working_bytes + kept + rest.working_bytes, rest)
            }
            ImageWork::Rest { rest, .. } => (rest.working_bytes, rest),
        };
        (working, self.result_bytes(rest))
    }

    /// A task for what was prepared, with a permit for everything that is made of it.
    fn with_permit(
        &self,
        order: SampleOrder,
        bytes: Piece,
        outcome: Result<Option<ImageWork>>,
        overhead: u64,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Fetching {
        let shared = &self.shared;
        let outcome = outcome.and_then(|image_work| {
            let mut more = overhead;
            if let Some(parser) = &shared.parser {
                more += parser.most_bytes(bytes.len()) as u64;
            }
            if let Some(image_work) = &image_work {
                let (working, result) = self.image_bytes(image_work);
                let result = if shared.in_rows { 0 } else { result };
                more += (working.saturating_sub(self.keep) + result) as u64;
            }
            let extra = match more {
                0 => None,
                more => {
                    self.reader.check_size(more.saturating_add(bytes.len() as u64))?;
                    let budget = self.reader.budget();
                    Some(budget.acquire_after(more, slot, before_wait).map_err(|_| closed())?)
                }
            };
            Ok((image_work.map(Box::new), extra))
        });
        match outcome {
            Ok((image_work, extra)) => {
                let fetched = Some(Fetched { bytes, extra });
                Ok(Task { order, fetched, image_work, keep: None })
            }
            Err(error) => Err(self.fault(order.ticket, Stage::Worker, error, order.batch_slot)),
        }
    }

    /// Injects chaos.
    fn inject_chaos(&self, order: &SampleOrder, before_wait: &mut dyn FnMut()) -> Option<Error> {
        let chaos = self.shared.settings.chaos.as_ref()?;
        let injected_fault = chaos.injected_fault(order.ticket.index, order.attempts);
        if let InjectedFault::Slow(time) = injected_fault {
            before_wait();
            self.ending.wait(time);
        }
        injected_fault.error()
    }

    pub(super) fn result_bytes(&self, prepared: &Prepared) -> usize {
        let pixels = prepared.size.width * prepared.size.height;
        let settings = &self.shared.settings;
        let channels = self.shared.transform.as_ref().map_or(0, Transform::channels);
        pixels * channels * settings.output.dtype.bytes()
    }
}
