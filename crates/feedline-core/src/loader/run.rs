//! One epoch at work: readers fetch in order, workers make samples in any order, whoever completes
//! what comes next gathers it. Every decision is made in order, under one lock, from facts alone.
//!
//! Nobody waits for a budget while holding what an earlier sample needs: orders are given out in
//! order, a reader takes all that its sample will need before a worker sees it, and workers wait only
//! for room for a batch whose samples, and all samples before them, are here.

use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Progress, Shared};
use crate::budget::Permit;
use crate::collate::{Gathered, Gatherer, Seat};
use crate::deliver::{Handoff, Reorder};
use crate::error::{Error, Kind, Result};
use crate::event::Event;
use crate::fault::{Fault, FaultLine, Standing, Stop, Symptom, Verdict};
use crate::fetch::{Fetched, OpenFiles, Reader};
use crate::metrics::Meters;
use crate::random::Random;
use crate::sample::{Array, Batch, Extent, FieldKind, Loaned, Sample, Stage, Ticket, Value};
use crate::sys::clock;
use crate::sys::lock::Mutex;
use crate::sys::thread::Crew;
use crate::worker::{Native, Prepared, Recipe};

/// Samples from memory that a worker takes at once: each costs less than taking it.
const MEMORY_CHUNK: usize = 64;
/// Files that a reader fetches at once, at the most.
const FILES_CHUNK: usize = 8;
/// Others that are tried in the place of a bad sample before the run is stopped.
const REPLACEMENTS: u64 = 8;
/// What a sample costs besides its bytes.
const OVERHEAD: u64 = 512;

/// A sample to be made, and where to put it.
struct Order {
    number: u64,
    ticket: Ticket,
    seat: Seat,
}

/// A sample whose bytes are here.
struct Task {
    order: Order,
    fetched: Option<Fetched>,
    prepared: Option<Prepared>,
}

/// One result for each order: the sample, or what was wrong and the seat that is free now.
type Outcome = std::result::Result<Sample, Box<(Fault, Seat)>>;

/// A batch on its way to the consumer, and how far it brings the run.
pub(super) struct Delivery {
    pub(super) batch: Batch,
    end: Progress,
}

pub(super) struct Run {
    pub(super) shared: Arc<Shared>,
    pub(super) handoff: Handoff<Delivery, Error>,
    pub(super) meters: Meters,
    reader: Reader,
    line: Mutex<Line>,
    table: Mutex<Table>,
    waiting: Mutex<Duration>,
    closed: AtomicBool,
}

/// Orders that were not given out yet.
struct Line {
    next: u64,
    end: u64,
    seats: VecDeque<Seat>,
}

/// Where everything comes together in order.
struct Table {
    reorder: Reorder<Outcome>,
    gatherer: Gatherer,
    /// The number behind the last sample of each batch that the consumer has not taken.
    ends: VecDeque<u64>,
    start: u64,
    end: u64,
    batches: u64,
    /// Good samples that the ledger has not heard of.
    good: u64,
    /// The number whose sample is being replaced, and how many others were tried for it.
    tried: Option<(u64, u64)>,
    /// What was wrong with that sample.
    replaced: Option<(Ticket, FaultLine)>,
    /// Samples in batches, skipped, and left out with a short last batch.
    gathered: u64,
    skipped: u64,
    dropped: u64,
    is_over: bool,
}

/// What is left to do without the lock.
#[derive(Default)]
struct Drained {
    finished: Vec<(u64, Gathered, Standing)>,
    replace: Option<Replacing>,
}

/// A bad sample in whose place another is to be made.
struct Replacing {
    number: u64,
    ticket: Ticket,
    seat: Seat,
    attempt: u64,
}

impl Run {
    /// Starts the threads of the epoch that `start` lies in.
    pub(super) fn start(shared: Arc<Shared>, from: Progress, crew: &Crew) -> Result<Arc<Run>> {
        let start = from.number;
        let length = shared.plan.epoch_len();
        let epoch = start.checked_div(length).unwrap_or(0);
        let end = (epoch + 1) * length;
        let ledger = Arc::clone(&shared.ledger);
        let on_event = Box::new(move |event| ledger.event(event));
        let files = OpenFiles::new(shared.files.clone(), on_event);
        let table = Table {
            reorder: Reorder::new(start),
            gatherer: Gatherer::new(shared.columns.clone()),
            ends: VecDeque::new(),
            start,
            end,
            batches: 0,
            good: 0,
            tried: None,
            replaced: None,
            gathered: 0,
            skipped: 0,
            dropped: 0,
            is_over: false,
        };
        let run = Arc::new(Run {
            handoff: Handoff::default(),
            meters: Meters::default(),
            reader: Reader::new(files, shared.work.clone()),
            line: Mutex::new(Line { next: start, end, seats: VecDeque::new() }),
            table: Mutex::new(table),
            waiting: Mutex::default(),
            closed: AtomicBool::new(false),
            shared,
        });
        let expected = end - start;
        run.shared.ledger.epoch_started(epoch, Some(length), Some(expected), from.standing);
        if expected == 0 {
            run.handoff.end(0, None);
            return Ok(run);
        }
        run.update_urgent(&run.table.lock());
        run.spawn(crew)?;
        Ok(run)
    }

    fn spawn(self: &Arc<Run>, crew: &Crew) -> Result<()> {
        let (readers, workers) = (self.shared.readers, self.shared.threads);
        let (sender, receiver) = bounded::<Vec<Task>>(workers.max(2));
        let mut started = (0, 0);
        let mut refused = None;
        for number in 0..workers.max(readers) {
            if number < workers {
                let (run, tasks) = (Arc::clone(self), receiver.clone());
                let work = move || run.guarded(|run| run.work(readers > 0, &tasks));
                match crew.spawn(&format!("feedline-work-{number}"), work) {
                    Ok(()) => started.0 += 1,
                    Err(error) => refused = Some(error),
                }
            }
            if number < readers {
                let (run, tasks) = (Arc::clone(self), sender.clone());
                let read = move || run.guarded(|run| run.read(&tasks));
                match crew.spawn(&format!("feedline-read-{number}"), read) {
                    Ok(()) => started.1 += 1,
                    Err(error) => refused = Some(error),
                }
            }
        }
        if let Some(error) = refused {
            if started.0 == 0 || (readers > 0 && started.1 == 0) {
                self.close();
                return Err(Error::io(Kind::OutOfThreads, "starting the threads", error));
            }
            let (wanted, got) = (workers + readers, started.0 + started.1);
            self.shared.ledger.event(Event::ThreadsRefused { wanted, got });
        }
        Ok(())
    }

    /// A panic of our own must end the run with an error: a thread that is gone answers nobody.
    fn guarded(&self, work: impl FnOnce(&Run)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(self))) {
            let message = format!("a thread panicked: {}", words_of(&*panic));
            self.handoff.end(0, Some(Error::new(Kind::Internal, message)));
            self.close();
        }
    }

    // ---- fetch ----

    /// Fetches some samples at a time: a thread that is woken for each of them costs more than it
    /// reads. What is fetched is handed on before any wait.
    fn read(&self, tasks: &Sender<Vec<Task>>) {
        let share = self.shared.batching.size / (self.shared.threads * 2).max(1);
        let chunk = share.clamp(1, FILES_CHUNK);
        while let Some(orders) = self.next_orders(chunk) {
            let mut ready = Vec::with_capacity(orders.len());
            for order in orders {
                let (number, start) = (order.number, clock::now());
                let mut hand_on = || {
                    if !ready.is_empty() {
                        // Nobody listens any more when the run is closed: then nothing is needed.
                        let _ = tasks.send(std::mem::take(&mut ready));
                    }
                };
                let fetched = self.fetch(order, &mut hand_on);
                self.meters.add(Stage::Fetch, start.elapsed());
                match fetched {
                    Ok(task) => ready.push(task),
                    Err(bad) => {
                        hand_on();
                        self.settle(vec![(number, Err(bad))], None);
                    }
                }
            }
            if !ready.is_empty() && tasks.send(ready).is_err() {
                return;
            }
        }
    }

    /// The next samples to make, in order; None at the end. Waits for room for a new batch.
    fn next_orders(&self, most: usize) -> Option<Vec<Order>> {
        let shared = &self.shared;
        let mut line = self.line.lock();
        if self.closed.load(Ordering::SeqCst) || line.next == line.end {
            return None;
        }
        if line.seats.is_empty() {
            let permit = shared.batches.acquire(shared.columns.batch_bytes(), line.next).ok()?;
            if self.closed.load(Ordering::SeqCst) {
                return None;
            }
            match shared.columns.seats(&shared.pool, permit) {
                Ok(seats) => line.seats = seats,
                Err(error) => {
                    drop(line);
                    self.stop(error);
                    return None;
                }
            }
        }
        let count = most.min(line.seats.len()).min((line.end - line.next) as usize);
        let first = line.next;
        line.next += count as u64;
        let seats = line.seats.drain(..count);
        let orders = seats.zip(first..).filter_map(|(seat, number)| {
            shared.plan.at(number).map(|ticket| Order { number, ticket, seat })
        });
        Some(orders.collect())
    }

    /// Gets the bytes of a sample, and a permit for all that will be made of them.
    fn fetch(
        &self,
        order: Order,
        before_wait: &mut dyn FnMut(),
    ) -> std::result::Result<Task, Box<(Fault, Seat)>> {
        let Extent::File(path) = self.shared.source.extent(order.ticket.index) else {
            return Ok(Task { order, fetched: None, prepared: None });
        };
        let mut fetched = match self.reader.read(&path, order.number, before_wait) {
            Ok(fetched) => fetched,
            Err(error) => return Err(self.fault(order.ticket, Stage::Fetch, error, order.seat)),
        };
        let Some(recipe) = &self.shared.recipe else {
            let grown = fetched.permit.grow(OVERHEAD, before_wait);
            return match grown {
                Ok(()) => Ok(Task { order, fetched: Some(fetched), prepared: None }),
                Err(_) => Err(self.fault(order.ticket, Stage::Fetch, closed(), order.seat)),
            };
        };
        let outcome = caught(|| Prepared::new(recipe, fetched.bytes(), order.ticket));
        let outcome = outcome.and_then(|prepared| {
            let result = if self.shared.in_rows { 0 } else { self.result_bytes(&prepared) };
            let work = prepared.working_bytes.saturating_sub(self.shared.keep);
            let more = (work + result) as u64 + OVERHEAD;
            fetched.permit.grow(more, before_wait).map_err(|_| closed())?;
            Ok(prepared)
        });
        match outcome {
            Ok(prepared) => Ok(Task { order, fetched: Some(fetched), prepared: Some(prepared) }),
            Err(error) => Err(self.fault(order.ticket, Stage::Worker, error, order.seat)),
        }
    }

    fn result_bytes(&self, prepared: &Prepared) -> usize {
        let pixels = prepared.size.width * prepared.size.height;
        let settings = &self.shared.settings;
        let channels = self.shared.recipe.as_ref().map_or(0, Recipe::channels);
        pixels * channels * settings.output.dtype.bytes()
    }

    fn fault(&self, ticket: Ticket, stage: Stage, error: Error, seat: Seat) -> Box<(Fault, Seat)> {
        let error = error.at(self.shared.source.location(ticket.index));
        Box::new((Fault::new(ticket, stage, error), seat))
    }

    // ---- worker ----

    fn work(&self, from_readers: bool, tasks: &Receiver<Vec<Task>>) {
        let mut native = Native::default();
        while let Some(tasks) = self.next_tasks(from_readers, tasks) {
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            let start = clock::now();
            let outcomes: Vec<_> = tasks
                .into_iter()
                .map(|task| (task.order.number, self.make(task, &mut native)))
                .collect();
            native.trim(self.shared.keep);
            self.meters.add(Stage::Worker, start.elapsed());
            self.settle(outcomes, Some(&mut native));
        }
    }

    fn next_tasks(&self, from_readers: bool, tasks: &Receiver<Vec<Task>>) -> Option<Vec<Task>> {
        if from_readers {
            return tasks.recv().ok();
        }
        let most = if self.shared.recipe.is_some() { 4 } else { MEMORY_CHUNK };
        let orders = self.next_orders(most)?;
        Some(
            orders.into_iter().map(|order| Task { order, fetched: None, prepared: None }).collect(),
        )
    }

    /// Makes a sample of its bytes. A panic of a codec is a fault of the sample.
    fn make(&self, task: Task, native: &mut Native) -> Outcome {
        let Task { order: Order { ticket, mut seat, .. }, fetched, prepared } = task;
        let outcome = caught(|| self.values(ticket, &mut seat, fetched, prepared, native));
        match outcome {
            Ok((values, permit)) => Ok(Sample { ticket, values, permit }),
            Err(error) => {
                if error.kind() == Kind::CodecPanicked {
                    // What it left in the working memory cannot be trusted.
                    *native = Native::default();
                }
                Err(self.fault(ticket, Stage::Worker, error, seat))
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
            FieldKind::Ragged { .. } => others.pop_front(),
            FieldKind::Bytes => bytes.take().map(Value::Bytes),
            FieldKind::Text => None,
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

    // ---- collate and deliver ----

    /// Takes in results, and does whatever has become possible by them.
    fn settle(&self, outcomes: Vec<(u64, Outcome)>, mut native: Option<&mut Native>) {
        let mut outcomes = outcomes;
        loop {
            let start = clock::now();
            let drained = self.table.lock().drain(self, outcomes);
            for (number, gathered, standing) in drained.finished {
                let end = Progress { number: gathered.end, standing };
                let shared = &self.shared;
                match shared.columns.complete(gathered, &shared.pool, &shared.batches) {
                    Ok(batch) => self.handoff.put(number, Delivery { batch, end }),
                    Err(error) if error.kind() == Kind::Closed => {}
                    Err(error) => self.handoff.end(number, Some(error)),
                }
            }
            self.meters.add(Stage::Collate, start.elapsed());
            let Some(bad) = drained.replace else { return };
            let mut own = Native::default();
            let native = native.as_deref_mut().unwrap_or(&mut own);
            let number = bad.number;
            outcomes = vec![(number, self.replace(bad, native))];
        }
    }

    /// Makes another sample in the place of a bad one, whose choice depends on the ticket alone.
    fn replace(&self, bad: Replacing, native: &mut Native) -> Outcome {
        let Replacing { number, ticket, mut seat, attempt } = bad;
        for attempt in attempt..REPLACEMENTS {
            let key = [self.shared.seed, ticket.position, u64::MAX - attempt];
            let index = Random::keyed(&key).below(self.shared.source.len());
            let other = Ticket { index, ..ticket };
            self.table.lock().tried = Some((number, attempt + 1));
            let outcome = self
                .fetch(Order { number, ticket: other, seat }, &mut || ())
                .and_then(|task| self.make(task, native));
            match outcome {
                Ok(sample) => return Ok(sample),
                Err(bad) => seat = bad.1,
            }
        }
        let message = format!(
            "{REPLACEMENTS} samples tried in place of sample {} were bad as well",
            ticket.index
        );
        let error = Error::new(Kind::NoReplacement, message);
        Err(self.fault(ticket, Stage::Worker, error, seat))
    }

    /// Says which samples must not wait: those of the batch that the consumer takes next.
    fn update_urgent(&self, table: &Table) {
        let below = match table.ends.front() {
            Some(end) => *end,
            None => table.reorder.next() + table.gatherer.missing(),
        };
        for budget in [&self.shared.work, &self.shared.batches] {
            budget.set_urgent_below(below);
        }
    }

    /// The consumer has this batch now.
    pub(super) fn taken(&self, delivery: &Delivery, waited: Duration) {
        {
            let mut table = self.table.lock();
            table.ends.pop_front();
            self.update_urgent(&table);
        }
        let waited = waited + std::mem::take(&mut *self.waiting.lock());
        let samples = delivery.batch.len() as u64;
        self.shared.ledger.delivered(samples, waited);
        self.shared.progress.lock().clone_from(&delivery.end);
    }

    pub(super) fn add_waiting(&self, waited: Duration) {
        *self.waiting.lock() += waited;
    }

    /// The consumer took the last batch: the run stands at the end of the epoch. Returns how many
    /// samples were left out with a short last batch.
    pub(super) fn finish(&self) -> u64 {
        let table = self.table.lock();
        *self.shared.progress.lock() =
            Progress { number: table.end, standing: Standing::default() };
        table.dropped
    }

    /// Ends the run with an error, after the batches that are complete.
    fn stop(&self, error: Error) {
        let mut table = self.table.lock();
        if !table.is_over {
            table.is_over = true;
            self.handoff.end(table.batches, Some(error));
        }
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
        for budget in [&self.shared.work, &self.shared.batches, &self.shared.files] {
            budget.close();
        }
        self.handoff.close();
    }

    /// Closes what the threads left open, when they are gone.
    pub(super) fn close_files(&self) {
        self.reader.files().close_idle();
    }
}

impl Table {
    /// Takes in results; goes as far as they reach in order.
    fn drain(&mut self, run: &Run, outcomes: Vec<(u64, Outcome)>) -> Drained {
        let mut drained = Drained::default();
        for (number, outcome) in outcomes {
            if self.reorder.put(number, outcome).is_err() && !self.is_over {
                let message = format!("sample number {number} has two results");
                self.stop(run, Error::new(Kind::Internal, message));
            }
        }
        while !self.is_over
            && let Some((number, outcome)) = self.reorder.pop()
        {
            let by = outcome.as_ref().map_or(0, |sample| sample.ticket.index);
            let outcome = match outcome {
                Ok(sample) => self.gatherer.push(number, sample).map_err(|bad| {
                    let (fault, seat) = *bad;
                    run.fault(fault.ticket, fault.stage, fault.error, seat)
                }),
                Err(bad) => Err(bad),
            };
            if outcome.is_ok()
                && let Some((_, fault)) = self.replaced.take()
            {
                self.tried = None;
                run.shared.ledger.replaced(fault, by.into());
            } else {
                self.good += u64::from(outcome.is_ok());
            }
            match outcome {
                Ok(None) => {}
                Ok(Some(gathered)) => self.complete(run, gathered, &mut drained),
                Err(bad)
                    if self.replaced.is_some() && bad.0.error.kind() != Kind::NoReplacement =>
                {
                    // Another one that was tried does not fit either: the next is tried.
                    drained.replace = self.try_another(number, bad.1);
                    break;
                }
                Err(bad) => {
                    let (fault, seat) = *bad;
                    let line = fault.line();
                    self.tell_good(run);
                    match run.shared.ledger.judge(&Symptom::of(&fault.error), line.clone()) {
                        Verdict::Skip => {
                            self.skipped += 1;
                            self.gatherer.skip(seat);
                        }
                        Verdict::Replace => {
                            self.replaced = Some((fault.ticket, line));
                            drained.replace = self.try_another(number, seat);
                            break;
                        }
                        Verdict::Stop(Stop::Raised) => self.stop(run, fault.error),
                        Verdict::Stop(Stop::TooMany(error)) => self.stop(run, error),
                    }
                }
            }
        }
        if !self.is_over && self.reorder.next() == self.end {
            self.finish(run, &mut drained);
        }
        run.update_urgent(self);
        drained
    }

    /// The order to put another sample in the place of a bad one.
    fn try_another(&mut self, number: u64, seat: Seat) -> Option<Replacing> {
        self.reorder.again();
        let attempt = self.tried.filter(|tried| tried.0 == number).map_or(0, |tried| tried.1);
        let ticket = self.replaced.as_ref().map(|(ticket, _)| *ticket)?;
        Some(Replacing { number, ticket, seat, attempt })
    }

    fn tell_good(&mut self, run: &Run) {
        run.shared.ledger.good(std::mem::take(&mut self.good));
    }

    fn complete(&mut self, run: &Run, gathered: Gathered, drained: &mut Drained) {
        self.gathered += gathered.samples.len() as u64;
        self.ends.push_back(gathered.end);
        self.tell_good(run);
        drained.finished.push((self.batches, gathered, run.shared.ledger.standing()));
        self.batches += 1;
    }

    /// The last sample of the epoch is here: everything must add up.
    fn finish(&mut self, run: &Run, drained: &mut Drained) {
        self.is_over = true;
        if let Some(gathered) = self.gatherer.finish(self.end) {
            if run.shared.batching.drop_last {
                self.dropped = gathered.samples.len() as u64;
            } else {
                self.complete(run, gathered, drained);
            }
        }
        let due = self.end - self.start;
        let sum = self.gathered + self.skipped + self.dropped;
        let error = (sum != due).then(|| {
            let message = format!(
                "{} samples were delivered, {} skipped and {} dropped, but {due} were due",
                self.gathered, self.skipped, self.dropped
            );
            Error::new(Kind::Internal, message)
        });
        run.handoff.end(self.batches, error);
    }

    fn stop(&mut self, run: &Run, error: Error) {
        self.is_over = true;
        run.handoff.end(self.batches, Some(error));
    }
}

/// What `work` returns; a panic becomes an error.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = format!("the decoder panicked: {}", words_of(&*panic));
        Err(Error::new(Kind::CodecPanicked, message))
    })
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no words".into())
}

fn closed() -> Error {
    Error::new(Kind::Closed, "the loader is closed")
}
