//! Connects the stages of a run. Only this module knows all of them.

mod activity;
mod budgets;
mod caching;
mod check;
pub mod defaults;
mod driver;
mod extras;
mod fields;
mod gate;
mod handed;
mod ledger;
mod slot_supply;
mod make;
mod mapped;
mod perform;
mod quarantine;
mod reading;
mod records;
mod resume;
mod run;
mod watch;
pub mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::bytes::BufferPool;
use crate::checkpoint::{Checkpoint, Fingerprint};
use crate::collate::{Columns, Pool, Promise};
use crate::config::{Batching, CacheStore, Caching, Function, Given, Settings, Takes};
use crate::deliver::Taken;
use crate::engine::{self, Fill, Membership, PolicyAction, Position};
use crate::error::{Error, Kind, Result};
use crate::event::Event;
use crate::fault::{self, Symptom};
use crate::fetch::MemoryCache;
use crate::format::Parser;
use crate::metrics::{Report, Resource};
use crate::plan::{Excluded, Plan};
use crate::sample::{Batch, Field, FieldKind};
use crate::source::Source;
use crate::sys::lock::Mutex;
use crate::sys::process::OwnerProcess;
use crate::sys::thread::Threads;
use crate::sys::{clock, limits};
use crate::transform::Transform;
use crate::transform::predicate::{Bucketing, FieldLocation, Predicate};
pub use budgets::give_back_idle;
use budgets::{Budgets, Limit};
use caching::SampleCache;
pub use check::check;
use check::{check_cache, check_names, check_prefetch, plan};
pub use fields::given;
use fields::{PICTURE, Write, casts, fields, padding, transform, wanted, writes};
pub use handed::{BatchEnd, Instruction, Part};
pub use ledger::Ledger;
use quarantine::left_out;
pub use quarantine::{excluded, excluded_calls, quarantined};
use run::{Delivery, Receipt, Run};

/// How long closing waits for threads; a read that hangs in the kernel is then left behind.
const GRACE: Duration = Duration::from_secs(1);
/// How long an iterator waits before it checks for events.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes that one sample may take on any machine.
const LARGEST: u64 = 64 << 20;
/// The least bytes of lists that are loaded ahead.
const LISTS_AHEAD: u64 = 12 << 20;

/// State that all epochs of a loader share.
struct Shared {
    source: Arc<dyn Source>,
    plan: Plan,
    transform: Option<Transform>,
    /// Reads the fields of records, if they have any.
    parser: Option<Parser>,
    cache: Option<SampleCache>,
    /// How many samples may be loaded ahead of the consumer, if batches have lists.
    ahead: Option<u64>,
    /// What else is written to rows, and to which.
    writes: Vec<(usize, Write)>,
    columns: Columns,
    /// The user's filter, and the bucketing.
    filter: Option<Predicate<FieldLocation>>,
    bucketing: Option<Bucketing<FieldLocation>>,
    /// The batch size of each bucket.
    sizes: Vec<usize>,
    settings: Settings,
    batching: Batching,
    /// Whether images are written straight into their row of the batch.
    in_rows: bool,
    seed: u64,
    threads: usize,
    readers: usize,
    /// The most bytes that one sample may take.
    largest: u64,
    budgets: Budgets,
    /// Threads for all epochs, if a front calls functions: its worker processes, which stay from epoch to epoch, would
    /// otherwise take the places of threads between two epochs if the system allows no more.
    kept_threads: Option<Threads>,
    /// The most threads that an epoch had.
    thread_peak: AtomicU64,
    pool: Pool,
    buffer_pool: BufferPool,
    ledger: Arc<Ledger>,
    progress: Mutex<Progress>,
    /// Whether the next epoch starts at a checkpoint.
    resumed: AtomicBool,
    closed: AtomicBool,
}

/// The progress of the consumer.
#[derive(Clone, Debug, Default)]
struct Progress {
    epoch: u64,
    position: Position,
}

/// A data set as batches, epoch after epoch.
pub struct Loader {
    shared: Arc<Shared>,
    current: Mutex<Option<Arc<Running>>>,
    home: OwnerProcess,
}

impl Loader {
    /// Decides everything that depends on the machine. No thread is started yet.
    pub fn new(source: Arc<dyn Source>, settings: Settings) -> Result<Loader> {
        let batching = settings.batching.ok_or_else(|| {
            Error::new(Kind::InvalidArgument, "there is no batch size")
                .with_hint("call batch(size) before loader()")
        })?;
        if source.is_empty() {
            return Err(Error::new(Kind::InvalidSource, "the source has no samples")
                .with_hint("give at least one sample"));
        }
        let excluded = match &settings.exclude {
            Some(path) => left_out(&*source, path)?,
            None => Excluded::default(),
        };
        if excluded.len() == source.len() {
            return Err(Error::new(Kind::InvalidSource, "all samples of the source are excluded")
                .with_hint("check the file given as exclude="));
        }
        let excluded_count = excluded.len();
        let plan = plan(&*source, &settings, excluded)?;
        let seed = settings.seed.or(settings.order_seed()).unwrap_or(0);
        let given = given(&*source);
        let transform = transform(&settings, &given, seed);
        let wanted = wanted(&settings, &given);
        let parser = match (&given, &wanted) {
            (Given::Records(contents), Some(wanted)) => {
                Some(Parser::new(&contents.container, wanted, settings.picture)?)
            }
            (Given::Files | Given::Arrays(_) | Given::Records(_), _) => None,
        };
        let fields = fields(&*source, &given, transform.as_ref(), wanted.as_deref(), &settings);
        check_names(&fields, batching.pad, &settings.functions)?;
        let in_rows = !fields.iter().any(|field| matches!(field.kind, FieldKind::Ragged { .. }));
        let writes = writes(&given, &fields, &*source, batching.index);
        let ahead = ahead(&*source, &fields, batching.size);
        let filter = settings.filter.as_ref().map(|filter| filter.placed(&fields, !in_rows));
        let bucketing = settings.bucketing.as_ref().map(|by| by.placed(&fields, !in_rows));
        let (filter, bucketing) = (filter.transpose()?, bucketing.transpose()?);
        let sizes = bucketing.as_ref().map_or_else(Vec::new, |bucketing| {
            let alike = || vec![batching.size; bucketing.buckets()];
            bucketing.sizes.as_ref().map_or_else(alike, |sizes| sizes.to_vec())
        });
        let joined = !settings.functions.is_empty();
        let casts = casts(&fields, &settings)?;
        let is_padded = batching.pad && !joined;
        let pad = if is_padded { Some(padding(&fields, &casts, &settings)?) } else { None };
        let size = batching.size;
        let columns = Columns { fields: fields.into(), casts, size, pad, joined };

        let threads = settings.threads.or(|| limits::processors() as u64) as usize;
        let fetches = matches!(given, Given::Files | Given::Records(_));
        let readers = if fetches {
            settings.readers.or(|| defaults::readers(threads as u64)) as usize
        } else {
            0
        };
        let least = settings.prefetch.or(|| 0).saturating_add(64 << 20);
        let cached = cached_bytes(&settings);
        let memory = settings.memory.bytes(limits::allowed_memory, || {
            let available = limits::available_memory();
            // A cache comes on top, as far as the machine has the memory.
            let cached = cached.min(available / 2);
            defaults::memory(available).max(least) + cached
        });
        let prefetch = settings.prefetch.or(|| defaults::prefetch(memory));
        check_prefetch(prefetch, memory, settings.memory)?;
        check_cache(cached, memory, prefetch)?;
        let work = memory.saturating_sub(prefetch).max(1);
        let keep = (work.saturating_sub(cached) / (4 * threads as u64)).min(32 << 20) as usize;
        let raised = limits::raise_open_files();
        let files = settings.files.or(|| defaults::files(raised.to, limits::open_files()));
        // The file that a cache in a folder writes to.
        let files = match &settings.cache {
            Some(Caching { store: CacheStore::Folder { .. }, .. }) => (files - 1).max(1),
            Some(Caching { store: CacheStore::Memory(_), .. }) | None => files,
        };
        let memory_limit = Limit::of(settings.memory, memory);
        let files_limit = Limit::of(settings.files, files);
        let budgets = Budgets::new(memory_limit, prefetch, (keep * threads) as u64, files_limit);
        let work_budget = &budgets.work;
        let cache = settings.cache.as_ref().map(|caching| {
            let memory =
                |limit: u64| MemoryCache::new(limit.min(work_budget.limit() * 3 / 4), work_budget);
            SampleCache::new(caching, &*source, transform.as_ref(), parser.is_some(), memory)
        });
        let ledger = Arc::new(Ledger::new(settings.faults.clone())?);
        if raised.is_raised() {
            ledger.event(Event::OpenFilesRaised { from: raised.from, to: raised.to });
        }
        budgets.note_in(&ledger);
        ledger.excluded(excluded_count);
        ledger.empty_shards(&source.empty_shards());
        let shared = Shared {
            source,
            plan,
            transform,
            parser,
            cache,
            ahead,
            writes,
            columns,
            filter,
            bucketing,
            sizes,
            batching,
            in_rows,
            seed,
            threads,
            readers,
            largest: memory.max(LARGEST),
            buffer_pool: BufferPool::new(&budgets.work),
            pool: Pool::new(usize::try_from(prefetch).unwrap_or(usize::MAX), &budgets.batches),
            budgets,
            thread_peak: AtomicU64::new(0),
            kept_threads: joined.then(Threads::kept),
            ledger,
            progress: Mutex::default(),
            resumed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            settings,
        };
        Ok(Loader {
            shared: Arc::new(shared),
            current: Mutex::new(None),
            home: OwnerProcess::here(),
        })
    }

    /// Starts the next epoch, or continues one after `resume`. A running epoch is abandoned: a loader has one at a
    /// time.
    pub fn epoch(&self) -> Result<Epoch> {
        self.check()?;
        let mut current = self.current.lock();
        if let Some(running) = current.take() {
            running.close();
        }
        let shared = &self.shared;
        let start = {
            let mut progress = shared.progress.lock();
            // A checkpoint may be in the middle of an epoch; an abandoned epoch is not continued.
            let resumed = shared.resumed.swap(false, Ordering::SeqCst);
            let is_begun = progress.position != Position::default();
            let settings = shared.engine_settings(progress.epoch);
            if is_begun && (!resumed || progress.position.is_at_end(&settings)) {
                let epoch = progress.epoch + 1;
                *progress = Progress { epoch, ..Progress::default() };
            }
            progress.clone()
        };
        shared.budgets.reopen();
        let running = Arc::new(Running::start(Arc::clone(shared), start)?);
        *current = Some(Arc::clone(&running));
        Ok(Epoch { running, is_finished: false, receipt: None })
    }

    /// The number of batches in a whole epoch without faults; an upper bound with a filter or buckets.
    pub fn len(&self) -> u64 {
        let (samples, size) = (self.shared.plan.epoch_len(), self.shared.batching.size as u64);
        if self.shared.bucketing.is_some() {
            let least = self.shared.sizes.iter().copied().min().unwrap_or(1) as u64;
            let open =
                if self.shared.batching.drop_last { 0 } else { self.shared.sizes.len() as u64 };
            return samples.min((samples + open * (least - 1)) / least);
        }
        if self.shared.batching.drop_last { samples / size } else { samples.div_ceil(size) }
    }

    /// Whether the next epochs have exactly `len` batches: none starts in the middle, and no sample is left out without
    /// a replacement.
    pub fn has_exact_len(&self) -> bool {
        let shared = &self.shared;
        let Progress { epoch, position } = shared.progress.lock().clone();
        let is_whole = position == Position::default()
            || position.is_at_end(&shared.engine_settings(epoch))
            || !shared.resumed.load(Ordering::SeqCst);
        let is_chosen = shared.filter.is_some() || shared.bucketing.is_some();
        is_whole && !is_chosen && (!shared.settings.faults.may_skip() || shared.fills())
    }

    /// The number of samples in every batch, if none can have fewer.
    pub fn rows(&self) -> Option<usize> {
        let Shared { batching, settings, filter, sizes, .. } = &*self.shared;
        let may_lose = settings.faults.may_skip() || filter.is_some();
        let loses = may_lose && settings.faults.fill == Some(false);
        let size = sizes.first().copied().unwrap_or(batching.size);
        let is_of_one_size = sizes.iter().all(|other| *other == size);
        (batching.drop_last && !loses && is_of_one_size).then_some(size)
    }

    /// The columns of the batches, before the first one is loaded.
    pub fn columns(&self) -> Vec<Promise> {
        let Shared { columns, transform, .. } = &*self.shared;
        columns.promised(self.rows(), |name| {
            let transform = transform.as_ref().filter(|_| name == PICTURE)?;
            Some(transform.axes())
        })
    }

    /// Whether it loads a part of the samples, as one of several ranks.
    pub fn is_shard(&self) -> bool {
        self.shared.plan.world() > 1
    }

    /// Whether an epoch has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The report so far.
    pub fn report(&self) -> Report {
        let mut report = self.shared.ledger.report();
        if let Some(running) = &*self.current.lock()
            && !*running.ended.lock()
        {
            running.measure(&mut report);
        }
        report.note_resources(self.shared.resources());
        report
    }

    /// Whether there are events to take. Cheap.
    pub fn has_events(&self) -> bool {
        self.shared.ledger.has_events()
    }

    /// The events that were not taken yet, in order.
    pub fn take_events(&self) -> Vec<Event> {
        self.shared.ledger.take_events()
    }

    /// The position of the consumer, after the last batch it took.
    pub fn checkpoint(&self) -> Checkpoint {
        self.shared.checkpoint(self.shared.progress.lock().clone())
    }

    /// Makes the next epoch continue from a checkpoint.
    pub fn resume(&self, checkpoint: &Checkpoint) -> Result<()> {
        self.check()?;
        checkpoint.must_fit(&self.checkpoint())?;
        let shared = &self.shared;
        let epoch = checkpoint.epoch;
        let position = resume::position(checkpoint, &shared.engine_settings(epoch))?;
        if let Some(running) = self.current.lock().take() {
            running.close();
        }
        let progress = Progress { epoch, position };
        *self.shared.progress.lock() = progress;
        self.shared.resumed.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Ends the running epoch and all its threads. The loader cannot be used again.
    pub fn close(&self) {
        if self.home.is_forked() || self.shared.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(running) = self.current.lock().take() {
            running.close();
        }
        if let Some(threads) = &self.shared.kept_threads {
            threads.end(GRACE);
        }
        self.shared.pool.close();
        self.shared.buffer_pool.close();
    }

    /// Refuses use in a forked process, where locks may be held forever.
    pub fn check_home(&self) -> Result<()> {
        if self.home.is_forked() {
            let message = format!(
                "the loader was created in process {} and used in its fork {}, where its threads do not exist",
                self.home.pid(),
                OwnerProcess::here().pid()
            );
            return Err(Error::new(Kind::UsedAfterFork, message));
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.check_home()?;
        if self.shared.closed.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Closed, "the loader is closed"));
        }
        Ok(())
    }

    /// The budgets and counts that were decided, for people.
    pub fn decided(&self) -> Decided {
        let Shared { threads, readers, budgets, .. } = &*self.shared;
        let Budgets { work, batches, decoders, files, .. } = budgets;
        Decided {
            threads: *threads,
            readers: *readers,
            files: files.limit(),
            prefetch: batches.limit(),
            memory: batches.limit() + work.limit() + decoders.limit(),
        }
    }
}

/// What was decided from the settings and the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Number of worker threads.
    pub threads: usize,
    /// Number of threads that read files.
    pub readers: usize,
    /// Limit of descriptors.
    pub files: u64,
    /// Limit of the bytes of batches.
    pub prefetch: u64,
    /// Limit of memory in bytes.
    pub memory: u64,
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// The peak of each resource, and its budget.
    fn resources(&self) -> impl Iterator<Item = (&'static str, Resource)> {
        let budget = (self.threads + self.readers + usize::from(self.hands_on())) as u64;
        let peak = self.thread_peak.load(Ordering::Relaxed);
        let threads = Resource { peak, budget, process: None };
        self.budgets.resources().into_iter().chain([("threads", threads)])
    }

    fn checkpoint(&self, progress: Progress) -> Checkpoint {
        let mut settings = format!(
            "{:?} {:?} {:?} {} {:?} {:?}",
            self.plan,
            self.transform,
            self.columns,
            self.batching.drop_last,
            self.settings.filter,
            self.settings.bucketing
        );
        // By name only: the code of a function is unknown. Where it runs makes no difference.
        for Function { takes, name, .. } in &self.settings.functions {
            settings.push_str(&format!(" {takes:?} {name}"));
        }
        Checkpoint::new(
            self.source.len(),
            self.source.fingerprint(),
            Fingerprint::of([settings.as_bytes()]),
            progress.epoch,
            progress.position,
        )
    }

    /// The settings of the engine for an epoch.
    fn engine_settings(&self, epoch: u64) -> engine::EpochSettings {
        let (policy, functions) = (&self.settings.faults, &self.settings.functions);
        let never_fills = policy.fill == Some(false);
        let is_packed = self.source.contents().is_some_and(|contents| contents.is_packed);
        let membership = match &self.bucketing {
            Some(_) => Membership::Buckets(self.sizes.iter().map(|size| *size as u64).collect()),
            None if never_fills => Membership::Fixed,
            // A compressed shard can only be read sequentially; what a filter keeps is not known ahead.
            None if self.has_filter() || is_packed => Membership::Gathered,
            None => Membership::Fixed,
        };
        let fill = match (self.fills(), never_fills) {
            (true, _) => Fill::FromEndAndRepeat,
            (false, true) => Fill::Never,
            (false, false) => Fill::FromEnd,
        };
        engine::EpochSettings {
            samples: self.plan.epoch_len(),
            batch_size: self.batching.size as u64,
            drop_last: self.batching.drop_last,
            plan: engine::BatchPlan::Known,
            moves: engine::Moves::Sample,
            membership,
            fill,
            // Functions may return any shape.
            misfit: (self.columns.may_differ() || self.hands_on()).then(|| self.wish_for_misfit()),
            finishes: functions.iter().any(|function| function.takes == Takes::Batch),
            limit: policy.limit,
            window: policy.window,
            epoch,
        }
    }

    fn wish_for_misfit(&self) -> PolicyAction {
        let error = Error::new(Kind::ShapeMismatch, "");
        match self.settings.faults.rule(&Symptom::of(&error)).action {
            fault::Action::Raise => PolicyAction::Raise,
            fault::Action::Skip => PolicyAction::Skip,
            fault::Action::Replace => PolicyAction::Replace,
        }
    }

    /// Whether each sample has memory of its own until its batch is complete, because it is unknown which others will
    /// be in it.
    fn has_lone_slots(&self) -> bool {
        self.bucketing.is_some() || (self.filter.is_some() && !self.hands_on())
    }

    /// Whether samples are filtered, natively or by a function.
    fn has_filter(&self) -> bool {
        let functions = &self.settings.functions;
        self.filter.is_some() || functions.iter().any(|function| function.takes == Takes::Choice)
    }

    /// Whether a front calls functions for the samples.
    fn hands_on(&self) -> bool {
        !self.settings.functions.is_empty()
    }

    /// Whether samples are repeated in place of skipped ones, because all ranks must have the same number.
    fn fills(&self) -> bool {
        self.settings.faults.fill.unwrap_or(true) && self.plan.world() > 1
    }
}

/// The bytes of a cache in memory.
fn cached_bytes(settings: &Settings) -> u64 {
    match &settings.cache {
        Some(Caching { store: CacheStore::Memory(bytes), .. }) => *bytes,
        Some(Caching { store: CacheStore::Folder { .. }, .. }) | None => 0,
    }
}

/// The threads of an epoch.
struct Running {
    run: Arc<Run>,
    threads: Threads,
    started: Instant,
    /// Whether its end is recorded.
    ended: Mutex<bool>,
    home: OwnerProcess,
}

impl Running {
    fn start(shared: Arc<Shared>, start: Progress) -> Result<Running> {
        let threads = shared.kept_threads.clone().unwrap_or_default();
        let run = Run::start(shared, start, &threads)?;
        let (started, ended) = (clock::now(), Mutex::new(false));
        Ok(Running { run, threads, started, ended, home: OwnerProcess::here() })
    }

    /// Adds its duration, and how busy its stages were.
    fn measure(&self, report: &mut Report) {
        let elapsed = self.started.elapsed();
        report.elapsed += elapsed;
        let shared = &self.run.shared;
        report.busy = self.run.meters.shares(elapsed, shared.readers, shared.threads);
        let (hits, misses, corrupt) = self.run.cache_meters.read();
        report.cache_hits += hits;
        report.cache_misses += misses;
        report.cache_corrupt += corrupt;
    }

    /// Ends every wait and all threads.
    fn close(&self) {
        if self.home.is_forked() {
            return;
        }
        self.run.close();
        self.threads.wait(GRACE);
        self.run.release();
        self.run.flush_cache();
        self.settle(None).unwrap_or_else(|_| unreachable!("only an epoch at its end must add up"));
    }

    /// Records the end of the epoch, once: at its end with this many samples dropped, or before.
    fn settle(&self, dropped: Option<u64>) -> Result<()> {
        let mut ended = self.ended.lock();
        if std::mem::replace(&mut *ended, true) {
            return Ok(());
        }
        let ledger = &self.run.shared.ledger;
        ledger.measure(|report| self.measure(report));
        match dropped {
            Some(dropped) => ledger.epoch_ended(dropped),
            None => {
                ledger.epoch_abandoned();
                Ok(())
            }
        }
    }
}

/// One epoch: an iterator of batches. Dropping it ends its threads.
pub struct Epoch {
    running: Arc<Running>,
    /// Whether the consumer has seen its end, or its error.
    is_finished: bool,
    /// What to record once the consumer has the batch that was taken last.
    receipt: Option<Receipt>,
}

impl Epoch {
    /// The next batch, if there is one within this time. None for the end of the epoch.
    pub fn next_within(&mut self, time: Duration) -> Result<Waited> {
        let waited = self.take_within(time);
        self.confirm();
        waited
    }

    /// Like `next_within`, for a consumer that may still lose the batch: it counts as delivered, and checkpoints
    /// include it, only after `confirm`.
    pub fn take_within(&mut self, time: Duration) -> Result<Waited> {
        self.check_home()?;
        self.confirm();
        let (taken, receipt) = self.wait_within(time);
        self.receipt = receipt;
        let run = &self.running.run;
        match taken {
            Taken::NotYet => Ok(Waited::NotYet),
            Taken::Ready(delivery) => Ok(Waited::Batch(Box::new(delivery.batch))),
            Taken::Ended => {
                if run.is_closed() && !self.is_finished {
                    let message = "the epoch was abandoned: the loader was closed, or another epoch was started";
                    return Err(Error::new(Kind::Closed, message));
                }
                self.is_finished = true;
                self.end()?;
                Ok(Waited::End)
            }
            Taken::Failed(error) => {
                self.is_finished = true;
                self.running.close();
                Err(error)
            }
        }
    }

    fn check_home(&self) -> Result<()> {
        if self.running.home.is_forked() {
            let message = format!(
                "the epoch was started in process {} and used in its fork, where its threads do not exist",
                self.running.home.pid()
            );
            return Err(Error::new(Kind::UsedAfterFork, message));
        }
        Ok(())
    }

    /// Confirms that the consumer has the batch that was taken last.
    pub fn confirm(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.running.run.delivered(receipt);
        }
    }

    fn wait_within(&self, time: Duration) -> (Taken<Delivery, Error>, Option<Receipt>) {
        let run = &self.running.run;
        let before = clock::now();
        let taken = run.handoff.take(before + time);
        let waited = before.elapsed();
        let receipt = match &taken {
            Taken::NotYet => {
                run.add_waiting(waited);
                None
            }
            Taken::Ready(delivery) => Some(run.taken(delivery, waited)),
            Taken::Ended | Taken::Failed(_) => None,
        };
        (taken, receipt)
    }

    /// Whether there are events to take. Cheap.
    pub fn has_events(&self) -> bool {
        self.running.run.shared.ledger.has_events()
    }

    fn end(&self) -> Result<()> {
        if *self.running.ended.lock() {
            return Ok(());
        }
        let dropped = self.running.run.finish();
        self.running.run.flush_cache();
        let settled = self.running.settle(Some(dropped));
        self.running.close();
        settled
    }
}

/// The result of a wait.
pub enum Waited {
    /// The next batch.
    Batch(Box<Batch>),
    /// The epoch is over.
    End,
    /// Not yet.
    NotYet,
}

impl Iterator for Epoch {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        loop {
            match self.next_within(LOOK) {
                Ok(Waited::Batch(batch)) => return Some(Ok(*batch)),
                Ok(Waited::End) => return None,
                Ok(Waited::NotYet) => {}
                Err(error) if error.kind() == Kind::Closed => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        self.running.close();
    }
}

/// How far ahead lists are loaded: a few batches and this many bytes, so that they are still in the CPU cache when they
/// are used.
fn ahead(source: &dyn Source, fields: &[Field], size: usize) -> Option<u64> {
    let has_lists = fields.iter().any(|field| field.row_bytes().is_none());
    let by_bytes = LISTS_AHEAD / source.mean_bytes().max(1);
    (has_lists && source.mean_bytes() > 0).then(|| by_bytes.max(3 * size as u64))
}
