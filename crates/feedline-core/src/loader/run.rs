//! One epoch at work: readers fetch in order, workers make samples in any order, and the thread that completes
//! what comes next gathers it. Every decision is made in order, under one lock, from facts alone.
//!
//! Nobody waits for a budget while holding what an earlier sample needs: orders are given out in
//! order, a reader takes all that its sample will need before a worker sees it, and workers wait only
//! for room for a batch whose samples, and all samples before them, are here.

use crossbeam_channel::{Receiver, Sender, bounded};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::activity::{ActivityRecord, ThreadActivity};
use super::caching::Keep;
use super::consumer::Waiting;
use super::driver::Driver;
use super::extras::Extras;
use super::gate::Gate;
use super::instructions::{Instruction, InstructionQueue};
use super::mapped::Mapped;
use super::perform::Outbox;
use super::slot_supply::{Horizon, SlotSupply};
use super::watch::Watch;
use super::{Progress, Shared};
use crate::budget::Permit;
use crate::collate::BatchSlot;
use crate::deliver::Handoff;
use crate::engine::{self, Engine, Position};
use crate::error::{Error, Kind, Result};
use crate::event::Event;
use crate::fault::{Fault, FaultLine};
use crate::fetch::{CacheMeters, CachedImage, Fetched, OpenFiles, Reader, Streams};
use crate::metrics::Meters;
use crate::plan;
use crate::run_state;
use crate::sample::{Batch, Sample, Stage, Ticket};
use crate::sys::lock::{Deadline, Mutex};
use crate::sys::thread::Threads;
use crate::sys::{clock, limits};
use crate::transform::{Native, Prepared};

/// Samples from memory that a worker takes at once: each costs less than taking it.
const MEMORY_CHUNK: usize = 64;
/// Files that a reader fetches at once, at most.
pub(super) const FILES_CHUNK: usize = 8;
/// How often, and after which pause, the system is asked for threads if it allows none.
const THREAD_ATTEMPTS: u32 = 100;
const THREAD_PAUSE: Duration = Duration::from_millis(50);
/// What a sample costs besides its bytes.
pub(super) const OVERHEAD: u64 = 512;

/// A sample to be made, and where to put it.
pub(super) struct SampleOrder {
    /// As the engine knows it.
    pub(super) of: engine::Order,
    pub(super) ticket: Ticket,
    pub(super) batch_slot: BatchSlot,
    /// Tries so far.
    pub(super) attempts: u32,
}

/// A sample whose bytes are here.
pub(super) struct Task {
    pub(super) order: SampleOrder,
    pub(super) fetched: Option<Fetched>,
    /// In a box, because a task is moved several times and most have none.
    pub(super) image_work: Option<Box<ImageWork>>,
    /// Whether the sample is kept in the cache when it is made.
    pub(super) keep: Option<Keep>,
}

/// What is to be done for the image of a sample.
pub(super) enum ImageWork {
    /// All steps at once.
    Whole(Prepared),
    /// The steps before the cache, then the others.
    Split {
        /// From the file to the image that is kept.
        first: Prepared,
        /// From that image to the row.
        rest: Prepared,
    },
    /// The steps after the cache, which had the image.
    Rest {
        /// The image.
        image: CachedImage,
        /// From it to the row.
        rest: Prepared,
    },
}

impl From<SampleOrder> for Task {
    /// A sample that needs no bytes, or has them in its memory.
    fn from(order: SampleOrder) -> Task {
        Task { order, fetched: None, image_work: None, keep: None }
    }
}

/// One result for each order: what was made, or what was wrong and the slot that is free now.
pub(super) type MakeResult = std::result::Result<Made, Box<(Fault, BatchSlot)>>;

/// The result of making a sample.
pub(super) enum Made {
    /// A sample, and the bucket that it belongs to, where there are any.
    Kept(Sample, usize),
    /// One that the user does not want; the slot is free.
    LeftOut(BatchSlot),
}

/// A batch on its way to the consumer, and how far it brings the run.
pub(super) struct Delivery {
    pub(super) batch: Batch,
    pub(super) end: Position,
}

pub(super) struct Run {
    pub(super) shared: Arc<Shared>,
    pub(super) handoff: Handoff<Delivery, Error>,
    pub(super) meters: Meters,
    pub(super) cache_meters: CacheMeters,
    pub(super) reader: Reader,
    /// For records of compressed files, where there are any.
    pub(super) streams: Option<Streams>,
    pub(super) gate: Gate,
    /// Ends waits for nothing but time.
    pub(super) ending: Deadline,
    pub(super) horizon: Horizon,
    slot_supply: Mutex<SlotSupply>,
    pub(super) driver: Mutex<Driver>,
    pub(super) outbox: Mutex<Outbox>,
    /// For a front that has functions called for the samples: what it is given, and samples that are made for it
    /// beside those that are planned.
    pub(super) instructions: InstructionQueue,
    pub(super) extras: Extras,
    pub(super) waiting: Mutex<Waiting>,
    /// What each thread is doing: first the readers, then the workers.
    pub(super) activities: Vec<ActivityRecord>,
    /// Which sample comes when in this epoch.
    order: plan::EpochOrder,
    pub(super) epoch: u64,
    /// What is left of the epoch, if other ranks began it.
    pub(super) rest: Option<Arc<plan::RestOrder>>,
    /// What the consumer has of this epoch.
    pub(super) taken: Mutex<run_state::Taken>,
    /// Good samples of batches that are left out because they are not full.
    pub(super) dropped: AtomicU64,
    closed: AtomicBool,
    /// Bytes of working memory that each worker keeps between samples, and the permit for them.
    pub(super) keep: usize,
    kept: Mutex<Option<Permit>>,
}

/// Where a reader puts samples whose bytes are here.
pub(super) enum TaskSink {
    /// For workers.
    InstructionQueue(Sender<Vec<Task>>),
    /// There is no thread for workers: the reader makes them.
    Here(Box<RefCell<MakerMemory>>),
}

/// What a thread uses again for each sample that it makes.
#[derive(Default)]
pub(super) struct MakerMemory {
    native: Native,
    results: Vec<(engine::Order, MakeResult)>,
}

impl TaskSink {
    /// Hands tasks on. Returns false if nobody needs them any more.
    pub(super) fn put(&self, run: &Run, tasks: Vec<Task>) -> bool {
        match self {
            TaskSink::InstructionQueue(queue) => queue.send(tasks).is_ok(),
            TaskSink::Here(memory) => {
                let MakerMemory { native, results } = &mut *memory.borrow_mut();
                run.make_all(tasks, &ActivityRecord::default(), native, results);
                !run.is_closed()
            }
        }
    }
}

/// How many threads read, and how many make samples.
#[derive(Debug, PartialEq, Eq)]
struct Divided {
    readers: usize,
    workers: usize,
}

/// Divides fewer threads than were wanted in the same proportion. A reader that is alone also makes the samples.
fn divide(threads: usize, readers: usize, workers: usize) -> Divided {
    if threads >= readers + workers {
        return Divided { readers, workers };
    }
    if readers == 0 {
        return Divided { readers, workers: threads };
    }
    let makers = match threads {
        0 | 1 => 0,
        _ => (threads * workers / (readers + workers)).clamp(1, threads - 1),
    };
    Divided { readers: threads - makers, workers: makers }
}

impl Run {
    /// Starts the threads of an epoch, from where it stands.
    pub(super) fn start(
        shared: Arc<Shared>,
        from: Progress,
        epoch_threads: &Threads,
    ) -> Result<Arc<Run>> {
        let settings = shared.engine_settings(&from);
        let Progress { epoch, rest, position, taken } = from;
        let files =
            OpenFiles::new(shared.budgets.files.clone()).knowing(shared.source.known_files());
        let start = position.slot;
        let engine = Engine::new(settings, position);
        let due = engine.orders_left();
        let horizon = Horizon::new(shared.ahead.map_or(u64::MAX, |ahead| start + ahead));
        let mapped = shared.has_functions().then(|| Mapped::new(shared.columns.size));
        let (keep, kept) = shared.budgets.keep(shared.threads);
        let watch = Watch::new(shared.source.root().filter(|_| shared.readers > 0));
        let run = Arc::new(Run {
            handoff: Handoff::default(),
            meters: Meters::default(),
            cache_meters: CacheMeters::default(),
            reader: Reader::new(files, shared.budgets.work.clone(), shared.buffer_pool.clone())
                .up_to(shared.largest),
            streams: shared.source.contents().filter(|contents| contents.is_packed).map(
                |contents| {
                    let buffer =
                        shared.settings.order.iter().filter_map(plan::OrderStep::buffer).max();
                    Streams::new(contents.container.clone(), buffer.unwrap_or(0) as usize)
                },
            ),
            gate: Gate::new(watch, Arc::clone(&shared.ledger)),
            ending: Deadline::default(),
            horizon,
            slot_supply: Mutex::default(),
            driver: Mutex::new(Driver::new(engine, mapped)),
            outbox: Mutex::default(),
            instructions: InstructionQueue::default(),
            extras: Extras::default(),
            waiting: Mutex::default(),
            activities: (0..shared.readers + shared.threads)
                .map(|_| ActivityRecord::default())
                .collect(),
            order: match &rest {
                Some(rest) => shared.plan.rest_of_epoch(epoch, Arc::clone(rest)),
                None => shared.plan.epoch(epoch),
            },
            epoch,
            rest,
            taken: Mutex::new(taken),
            dropped: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            keep,
            kept: Mutex::new(kept),
            shared,
        });
        if let Some(cache) = &run.shared.cache {
            run.cache_meters.count_corrupt(cache.begin_epoch());
        }
        run.shared.ledger.epoch_started(epoch, Some(due));
        run.spawn(epoch_threads)?;
        run.begin();
        Ok(run)
    }

    fn spawn(self: &Arc<Run>, epoch_threads: &Threads) -> Result<()> {
        let (readers, workers) = (self.shared.readers, self.shared.threads);
        let extras = usize::from(self.shared.has_functions());
        let wanted = readers + workers + extras;
        let got = self.reserve(epoch_threads, wanted, 1 + extras)?;
        self.shared.thread_peak.fetch_max(got as u64, Ordering::Relaxed);
        if got < wanted {
            self.shared.ledger.event(Event::ThreadsRefused { wanted, got });
        }
        let divided = divide(got - extras, readers, workers);
        let (sender, receiver) = bounded::<Vec<Task>>(workers.max(2));
        for number in 0..divided.workers {
            let (run, tasks) = (Arc::clone(self), receiver.clone());
            let work = move || {
                run.guarded(|run| match readers {
                    0 => run.work_on_orders(&run.activities[readers + number]),
                    _ => run.work_on_tasks(&tasks, &run.activities[readers + number]),
                })
            };
            epoch_threads.run(&format!("feedline-work-{number}"), work);
        }
        for number in 0..divided.readers {
            let (run, tasks) = (Arc::clone(self), sender.clone());
            let makes_samples = divided.workers == 0;
            let read = move || {
                run.guarded(|run| {
                    let tasks = match makes_samples {
                        true => TaskSink::Here(Box::default()),
                        false => TaskSink::InstructionQueue(tasks),
                    };
                    run.read(&tasks, &run.activities[number]);
                })
            };
            epoch_threads.run(&format!("feedline-read-{number}"), read);
        }
        if extras > 0 {
            let run = Arc::clone(self);
            epoch_threads.run("feedline-extra", move || run.guarded(Run::make_queued_extras));
        }
        Ok(())
    }

    /// Threads for this epoch: as many as are wanted, or as the system allows. If it does not even allow the least
    /// number, it is asked again for a while: other threads and processes may end.
    fn reserve(&self, epoch_threads: &Threads, wanted: usize, least: usize) -> Result<usize> {
        for _ in 0..THREAD_ATTEMPTS {
            let (got, refused) = epoch_threads.reserve(wanted);
            let Some(error) = refused.filter(|_| got < least) else { return Ok(got) };
            if self.ending.wait(THREAD_PAUSE) {
                return Err(Error::io(Kind::OutOfThreads, "starting the threads", error));
            }
        }
        let (got, refused) = epoch_threads.reserve(wanted);
        let Some(error) = refused.filter(|_| got < least) else { return Ok(got) };
        self.close();
        let what = format!(
            "starting threads, tried for {} s ({})",
            (THREAD_PAUSE * THREAD_ATTEMPTS).as_secs(),
            limits::task_holders()
        );
        Err(Error::io(Kind::OutOfThreads, &what, error))
    }

    /// A panic of our own must end the run with an error: a thread that is gone answers nobody.
    fn guarded(&self, work: impl FnOnce(&Run)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(self))) {
            let message = format!("a thread panicked: {}", panic_message(&*panic));
            let error = Error::new(Kind::Internal, message);
            if self.shared.has_functions() {
                return self
                    .instructions
                    .put(Instruction::Stop { cause: None, error: Some(error) });
            }
            self.handoff.end(0, Some(error));
            self.close();
        }
    }

    /// The next samples to make, in order, into a list that is used again; None at the end. Waits for room for a
    /// new batch.
    pub(super) fn next_orders(&self, most: usize, orders: &mut Vec<SampleOrder>) -> Option<()> {
        let mut slot_supply = self.slot_supply.lock();
        let first = self.driver.lock().engine.next_slot()?;
        let left = usize::try_from(self.horizon.beyond(first)? - first).unwrap_or(usize::MAX);
        if self.is_closed() {
            return None;
        }
        let most = most.min(left);
        if slot_supply.batch_slots.is_empty() {
            match self.take_batch_slots(most, first) {
                Ok(batch_slots) => slot_supply.batch_slots = batch_slots?,
                Err(error) => {
                    drop(slot_supply);
                    self.stop(error);
                    return None;
                }
            }
        }
        let count = most.min(slot_supply.batch_slots.len());
        let SlotSupply { batch_slots, given } = &mut *slot_supply;
        given.clear();
        {
            let driver = &mut *self.driver.lock();
            let engine = &mut driver.engine;
            given.extend(std::iter::from_fn(|| engine.next_order()).take(count));
            if let Some(mapped) = &mut driver.mapped {
                mapped.ordered(given);
            }
        }
        if given.is_empty() {
            return None;
        }
        orders.reserve(given.len());
        for (batch_slot, of) in batch_slots.drain(..given.len()).zip(given) {
            if let Some(ticket) = self.ticket_of(*of) {
                orders.push(SampleOrder { of: *of, ticket, batch_slot, attempts: 0 });
            }
        }
        Some(())
    }

    /// Memory for the next samples: of a batch, or of each for itself. None if the run is closed.
    fn take_batch_slots(&self, most: usize, first: u64) -> Result<Option<VecDeque<BatchSlot>>> {
        let shared = &self.shared;
        let columns = &shared.columns;
        let lone = shared.has_lone_slots().then_some(most);
        let bytes = lone.map_or(columns.batch_bytes(), |lone| columns.row_bytes() * lone as u64);
        let Ok(permit) = shared.budgets.batches.acquire(bytes, first) else { return Ok(None) };
        if self.is_closed() {
            return Ok(None);
        }
        let batch_slots = match lone {
            Some(lone) => columns.lone_slots(lone, permit),
            None => columns.batch_slots(&shared.pool, permit),
        };
        batch_slots.map(Some)
    }

    /// The ticket of a sample of this epoch.
    pub(super) fn ticket(&self, sequence: u64) -> Option<Ticket> {
        self.order.at(sequence)
    }

    /// What the waits of a sample are keyed by.
    pub(super) fn key(&self, ticket: Ticket) -> [u64; 2] {
        [self.shared.seed, ticket.position]
    }

    pub(super) fn fault(
        &self,
        ticket: Ticket,
        stage: Stage,
        error: Error,
        batch_slot: BatchSlot,
    ) -> Box<(Fault, BatchSlot)> {
        let error = error.at(self.shared.source.location(ticket.index));
        Box::new((Fault::new(ticket, stage, error), batch_slot))
    }

    pub(super) fn line_of(&self, fault: &Fault) -> FaultLine {
        let plan = &self.shared.plan;
        FaultLine { rank: (plan.world() > 1).then(|| plan.rank()), ..fault.line() }
    }

    // ---- worker ----

    /// Makes samples whose bytes were read.
    fn work_on_tasks(&self, tasks: &Receiver<Vec<Task>>, activity: &ActivityRecord) {
        let (mut native, mut results) = (Native::default(), Vec::new());
        while let Ok(tasks) = tasks.recv() {
            self.make_all(tasks, activity, &mut native, &mut results);
        }
    }

    /// Makes samples that are in memory.
    fn work_on_orders(&self, activity: &ActivityRecord) {
        let most = if self.shared.transform.is_some() { 4 } else { MEMORY_CHUNK };
        let (mut native, mut results) = (Native::default(), Vec::new());
        let mut orders = Vec::new();
        while let Some(()) = self.next_orders(most, &mut orders) {
            self.make_all(orders.drain(..), activity, &mut native, &mut results);
        }
    }

    fn make_all<T: Into<Task>>(
        &self,
        tasks: impl IntoIterator<Item = T>,
        activity: &ActivityRecord,
        native: &mut Native,
        results: &mut Vec<(engine::Order, MakeResult)>,
    ) {
        if self.is_closed() {
            return;
        }
        // Rows of arrays are copied in less time than it takes to look at a clock.
        let is_timed = self.shared.transform.is_some() || self.shared.readers > 0;
        let start = clock::now();
        for task in tasks {
            let task = task.into();
            let of = task.order.of;
            if !is_timed {
                results.push((of, self.make(task, native)));
                continue;
            }
            let (index, start) = (task.order.ticket.index, clock::now());
            activity.begin(of.slot, index, ThreadActivity::Making);
            results.push((of, self.make(task, native)));
            self.note_time(index, start.elapsed(), Stage::Worker);
        }
        activity.end();
        native.trim(self.keep);
        self.meters.add(Stage::Worker, start.elapsed());
        self.process_results(results.drain(..), Some(native));
    }

    // ---- collate and deliver ----

    /// Takes in results, and does whatever has become possible by them.
    pub(super) fn process_results(
        &self,
        results: impl IntoIterator<Item = (engine::Order, MakeResult)>,
        native: Option<&mut Native>,
    ) {
        let extras = self.process_results_once(results);
        self.make_extras(extras, native);
    }

    /// Makes a sample once more, after a wait.
    pub(super) fn retry(
        &self,
        order: SampleOrder,
        wait: Duration,
        native: &mut Native,
        activity: &ActivityRecord,
    ) -> MakeResult {
        if !wait.is_zero() && self.ending.wait(wait) {
            return Err(self.fault(order.ticket, Stage::Worker, closed(), order.batch_slot));
        }
        self.fetch(order, activity, &mut || ()).and_then(|task| self.make(task, native))
    }

    /// Says which samples must not wait: those of the batch that the consumer takes next.
    pub(super) fn update_urgent(&self, driver: &Driver) {
        self.set_urgent(driver.engine.needed_below(), driver.engine.settled_below());
    }

    pub(super) fn set_urgent(&self, below: u64, settled: u64) {
        let budgets = &self.shared.budgets;
        for budget in [&budgets.work, &budgets.batches] {
            budget.set_urgent_below(below);
        }
        if let Some(ahead) = self.shared.ahead {
            self.horizon.move_to(settled + ahead);
        }
    }

    /// The consumer took the last batch: the run stands at the end of the epoch. Returns how many
    /// samples were left out with a short last batch.
    pub(super) fn finish(&self) -> u64 {
        *self.shared.progress.lock() = Progress::at_epoch(self.epoch + 1);
        self.dropped.load(Ordering::SeqCst)
    }

    /// Ends the run with an error, after the batches that are complete.
    pub(super) fn stop(&self, error: Error) {
        self.driver.lock().engine.close();
        self.end(Some(error), None);
    }

    /// Whether the run was ended from outside.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends every wait and every thread.
    pub(super) fn close(&self) {
        // Once: the budgets may serve the next epoch by the time an old one is dropped.
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.shared.budgets.close();
        self.horizon.close();
        self.ending.end();
        self.handoff.close();
        self.extras.close();
        self.instructions.close();
    }

    /// Gives back what the threads held, when they are gone.
    pub(super) fn release(&self) {
        self.reader.files().close_idle();
        self.kept.lock().take();
    }
}

/// What `work` returns; a panic becomes an error.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = format!("the decoder panicked: {}", panic_message(&*panic));
        Err(Error::new(Kind::CodecPanic, message))
    })
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

pub(super) fn closed() -> Error {
    Error::new(Kind::Closed, "the loader is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_that_the_system_allows_are_divided() {
        let numbers = |threads, readers, workers| {
            let divided = divide(threads, readers, workers);
            (divided.readers, divided.workers)
        };
        assert_eq!(numbers(6, 4, 2), (4, 2));
        assert_eq!(numbers(3, 4, 2), (2, 1));
        assert_eq!(numbers(2, 16, 1), (1, 1));
        assert_eq!(numbers(1, 4, 2), (1, 0), "the reader makes the samples");
        assert_eq!(numbers(2, 0, 8), (0, 2));
    }
}
