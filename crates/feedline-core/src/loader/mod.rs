//! Wires the stages of a run. Only here are all of them known.

mod activity;
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::bytes::BufferPool;
use crate::checkpoint::{Checkpoint, Fingerprint};
use crate::collate::{Columns, Pool, Promise};
use crate::config::{Batching, Function, Given, Padding, Settings, Takes};
use crate::deliver::Taken;
use crate::engine::{self, Fill, Membership, Position, Wish};
use crate::error::{Error, Kind, Result};
use crate::event::Event;
use crate::fault::{self, Symptom};
use crate::format::Parser;
use crate::metrics::Report;
use crate::plan::{self, Excluded, Plan};
use crate::sample::{Batch, Field, FieldKind};
use crate::source::Source;
use crate::sys::lock::Mutex;
use crate::sys::process::OwnerProcess;
use crate::sys::thread::{Threads, processors};
use crate::sys::{clock, limits};
use crate::transform::Transform;
use crate::transform::predicate::{Bucketing, FieldLocation, Predicate};
pub use fields::given;
use fields::{PICTURE, Write, casts, fields, padding, transform, wanted, writes};
pub use handed::{BatchEnd, Instruction, Part};
pub use ledger::Ledger;
use quarantine::left_out;
pub use quarantine::{excluded, excluded_calls, quarantined};
use run::{Delivery, Receipt, Run};

/// How long closing waits for threads; a read that the kernel does not end is left behind then.
const GRACE: Duration = Duration::from_secs(1);
/// How long an iterator waits before it looks around.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes of batches that are made ahead, where the user says nothing.
const PREFETCH: u64 = 128 << 20;
/// Bytes that one sample may take on any machine.
const LARGEST: u64 = 64 << 20;
/// Bytes of lists that are made ahead, at the least.
const LISTS_AHEAD: u64 = 12 << 20;
/// Descriptors that are used at most, where the user says nothing.
const FILES: u64 = 256;

/// What every epoch of a loader uses.
struct Shared {
    source: Arc<dyn Source>,
    plan: Plan,
    transform: Option<Transform>,
    /// What makes fields of records, where they have any.
    parser: Option<Parser>,
    /// How many samples may be made ahead of the consumer, where batches have lists.
    ahead: Option<u64>,
    /// What else is written to rows, and to which.
    writes: Vec<(usize, Write)>,
    columns: Columns,
    /// Which samples the user wants, and which come together.
    filter: Option<Predicate<FieldLocation>>,
    bucketing: Option<Bucketing<FieldLocation>>,
    /// Samples of the batches of each bucket.
    sizes: Vec<usize>,
    settings: Settings,
    batching: Batching,
    /// Whether pictures are written straight into their row of the batch.
    in_rows: bool,
    seed: u64,
    threads: usize,
    readers: usize,
    /// Bytes that one sample may take.
    largest: u64,
    /// Bytes of working memory that each worker keeps between samples.
    keep: usize,
    /// For files and what is made of them.
    work: Budget,
    /// For batches, until the consumer lets go of them.
    batches: Budget,
    files: Budget,
    pool: Pool,
    buffer_pool: BufferPool,
    ledger: Arc<Ledger>,
    progress: Mutex<Progress>,
    /// The next epoch begins where a checkpoint stands.
    resumed: AtomicBool,
    closed: AtomicBool,
}

/// How far the consumer has come.
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
    /// Decides everything that is left to the machine. No thread is started yet.
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
                .with_hint("look at the file that exclude= names"));
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

        let threads = settings.threads.or(|| processors() as u64) as usize;
        let fetches = matches!(given, Given::Files | Given::Records(_));
        let readers = if fetches {
            settings.readers.or(|| (threads as u64 * 2).clamp(2, 16)) as usize
        } else {
            0
        };
        let least = settings.prefetch.or(|| 0).saturating_add(64 << 20);
        let memory = settings
            .memory
            .or(|| (limits::available_memory() / 4).clamp(64 << 20, 4 << 30).max(least));
        let prefetch = settings.prefetch.or(|| PREFETCH.min(memory / 2));
        let work = memory.saturating_sub(prefetch).max(1);
        let keep = (work / (4 * threads as u64)).min(32 << 20) as usize;
        let files = settings.files.or(|| {
            let free = limits::raise_open_files().saturating_sub(limits::open_files() + 16);
            (free / 2).clamp(1, FILES)
        });
        let ledger = Arc::new(Ledger::new(settings.faults.clone())?);
        ledger.excluded(excluded_count);
        ledger.empty_shards(&source.empty_shards());
        let shared = Shared {
            source,
            plan,
            transform,
            parser,
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
            keep,
            largest: memory.max(LARGEST),
            work: Budget::new("bytes", work - (keep * threads) as u64),
            batches: Budget::new("bytes of batches", prefetch),
            files: Budget::new("files", files),
            buffer_pool: BufferPool::default(),
            pool: Pool::new(usize::try_from(prefetch).unwrap_or(usize::MAX)),
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

    /// Starts the next epoch, or goes on with one after `resume`. An epoch that is still running is
    /// left: a loader has one at a time.
    pub fn epoch(&self) -> Result<Epoch> {
        self.check()?;
        let mut current = self.current.lock();
        if let Some(running) = current.take() {
            running.close();
        }
        let shared = &self.shared;
        let start = {
            let mut progress = shared.progress.lock();
            // A checkpoint may stand in the middle of an epoch; leaving one does not.
            let resumed = shared.resumed.swap(false, Ordering::SeqCst);
            let is_begun = progress.position != Position::default();
            let settings = shared.engine_settings(progress.epoch);
            if is_begun && (!resumed || progress.position.is_at_end(&settings)) {
                let epoch = progress.epoch + 1;
                *progress = Progress { epoch, ..Progress::default() };
            }
            progress.clone()
        };
        shared.batches.reopen();
        shared.work.reopen();
        shared.files.reopen();
        let running = Arc::new(Running::start(Arc::clone(shared), start)?);
        *current = Some(Arc::clone(&running));
        Ok(Epoch { running, is_finished: false, receipt: None })
    }

    /// Batches of a whole epoch without faults; at most this many where samples are filtered or come in
    /// buckets.
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

    /// Whether the next epochs have exactly that many: none begins in its middle, and no sample is left
    /// out without another in its place.
    pub fn has_exact_len(&self) -> bool {
        let shared = &self.shared;
        let Progress { epoch, position } = shared.progress.lock().clone();
        let is_whole = position == Position::default()
            || position.is_at_end(&shared.engine_settings(epoch))
            || !shared.resumed.load(Ordering::SeqCst);
        let is_chosen = shared.filter.is_some() || shared.bucketing.is_some();
        is_whole && !is_chosen && (!shared.settings.faults.may_skip() || shared.fills())
    }

    /// How many samples every batch has, where none can have fewer.
    pub fn rows(&self) -> Option<usize> {
        let Shared { batching, settings, filter, sizes, .. } = &*self.shared;
        let may_lose = settings.faults.may_skip() || filter.is_some();
        let loses = may_lose && settings.faults.fill == Some(false);
        let size = sizes.first().copied().unwrap_or(batching.size);
        let is_of_one_size = sizes.iter().all(|other| *other == size);
        (batching.drop_last && !loses && is_of_one_size).then_some(size)
    }

    /// The columns of the batches, before the first one is made.
    pub fn columns(&self) -> Vec<Promise> {
        let Shared { columns, transform, .. } = &*self.shared;
        columns.promised(self.rows(), |name| {
            let transform = transform.as_ref().filter(|_| name == PICTURE)?;
            Some(transform.axes())
        })
    }

    /// Whether it has a part of the samples, as one of several ranks.
    pub fn is_shard(&self) -> bool {
        self.shared.plan.world() > 1
    }

    /// Whether an epoch has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What has happened so far.
    pub fn report(&self) -> Report {
        let mut report = self.shared.ledger.report();
        if let Some(running) = &*self.current.lock()
            && !*running.ended.lock()
        {
            running.measure(&mut report);
        }
        report
    }

    /// Whether there is anything to tell. Costs next to nothing.
    pub fn has_events(&self) -> bool {
        self.shared.ledger.has_events()
    }

    /// What was not told yet, in order.
    pub fn take_events(&self) -> Vec<Event> {
        self.shared.ledger.take_events()
    }

    /// Where the consumer stands: after the last batch it took.
    pub fn checkpoint(&self) -> Checkpoint {
        self.shared.checkpoint(self.shared.progress.lock().clone())
    }

    /// Makes the next epoch go on after a checkpoint.
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

    /// Ends the epoch that is running. No thread is left, and the loader cannot be used again.
    pub fn close(&self) {
        if self.home.is_left() || self.shared.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(running) = self.current.lock().take() {
            running.close();
        }
        self.shared.pool.close();
        self.shared.buffer_pool.close();
    }

    /// Refuses use in a forked process, where locks may be held for ever.
    pub fn check_home(&self) -> Result<()> {
        if self.home.is_left() {
            let message = format!(
                "the loader was made in process {} and used in its fork {}, where its threads do not exist",
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

    /// The budgets and counts that were decided, for people to read.
    pub fn decided(&self) -> Decided {
        let shared = &self.shared;
        Decided {
            threads: shared.threads,
            readers: shared.readers,
            files: shared.files.limit(),
            prefetch: shared.batches.limit(),
            memory: shared.batches.limit()
                + shared.work.limit()
                + (shared.keep * shared.threads) as u64,
        }
    }
}

/// What was decided from settings and machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Worker threads.
    pub threads: usize,
    /// Threads that read files.
    pub readers: usize,
    /// Descriptors at most.
    pub files: u64,
    /// Bytes of batches at most.
    pub prefetch: u64,
    /// Bytes at most.
    pub memory: u64,
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
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
        // By name only: what a function does cannot be read. Where it runs makes no difference.
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

    /// What the engine must know about an epoch.
    fn engine_settings(&self, epoch: u64) -> engine::Settings {
        let (policy, functions) = (&self.settings.faults, &self.settings.functions);
        let never_fills = policy.fill == Some(false);
        let is_packed = self.source.contents().is_some_and(|contents| contents.is_packed);
        let membership = match &self.bucketing {
            Some(_) => Membership::Buckets(self.sizes.iter().map(|size| *size as u64).collect()),
            None if never_fills => Membership::Fixed,
            // A compressed shard can only be read forwards; what a filter keeps is not known ahead.
            None if self.has_filter() || is_packed => Membership::Gathered,
            None => Membership::Fixed,
        };
        let fill = match (self.fills(), never_fills) {
            (true, _) => Fill::FromEndAndRepeat,
            (false, true) => Fill::Never,
            (false, false) => Fill::FromEnd,
        };
        engine::Settings {
            samples: self.plan.epoch_len(),
            batch_size: self.batching.size as u64,
            drop_last: self.batching.drop_last,
            plan: engine::Plan::Known,
            moves: engine::Moves::Sample,
            membership,
            fill,
            // What functions return may have any shape.
            misfit: (self.columns.may_differ() || self.hands_on()).then(|| self.wish_for_misfit()),
            finishes: functions.iter().any(|function| function.takes == Takes::Batch),
            limit: policy.limit,
            window: policy.window,
            epoch,
        }
    }

    fn wish_for_misfit(&self) -> Wish {
        let error = Error::new(Kind::ShapeMismatch, "");
        match self.settings.faults.rule(&Symptom::of(&error)).action {
            fault::Action::Raise => Wish::Raise,
            fault::Action::Skip => Wish::Skip,
            fault::Action::Replace => Wish::Replace,
        }
    }

    /// Whether each sample has memory of its own until its batch is complete: nobody knows which others will be
    /// in it.
    fn has_lone_slots(&self) -> bool {
        self.bucketing.is_some() || (self.filter.is_some() && !self.hands_on())
    }

    /// Whether samples are filtered, natively or by a function.
    fn has_filter(&self) -> bool {
        let functions = &self.settings.functions;
        self.filter.is_some() || functions.iter().any(|function| function.takes == Takes::Choice)
    }

    /// Whether a front has functions called for the samples.
    fn hands_on(&self) -> bool {
        !self.settings.functions.is_empty()
    }

    /// Whether samples are repeated in the places of skipped ones: ranks must have as many as each other.
    fn fills(&self) -> bool {
        self.settings.faults.fill.unwrap_or(true) && self.plan.world() > 1
    }
}

/// The order that is asked for. Refuses one that leaves nothing to anybody.
fn plan(source: &dyn Source, settings: &Settings, excluded: Excluded) -> Result<Plan> {
    let plan = Plan::new(&source.shards(), &settings.order, excluded)?;
    if plan.is_empty() && !source.is_empty() {
        let steps: Vec<_> = settings.order.iter().map(plan::OrderStep::name).collect();
        let message = format!("{} leaves none of {} samples", steps.join(", "), source.len());
        return Err(Error::new(Kind::InvalidArgument, message).with_hint("skip fewer samples"));
    }
    Ok(plan)
}

/// Refuses settings that do not fit to a source.
pub fn check(source: &dyn Source, settings: &Settings) -> Result<()> {
    plan(source, settings, Excluded::default())?;
    let pads = settings.padding != Padding::default() && settings.functions.is_empty();
    if settings.filter.is_none()
        && settings.bucketing.is_none()
        && settings.casts.is_empty()
        && settings.batching.is_none()
    {
        return Ok(());
    }
    let given = given(source);
    let transform = transform(settings, &given, 0);
    let wanted = wanted(settings, &given);
    let fields = fields(source, &given, transform.as_ref(), wanted.as_deref(), settings);
    if let Some(filter) = &settings.filter {
        filter.placed(&fields, false)?;
    }
    if let Some(bucketing) = &settings.bucketing {
        bucketing.placed(&fields, false)?;
    }
    let casts = casts(&fields, settings)?;
    if pads {
        padding(&fields, &casts, settings)?;
    }
    if let Some(batching) = settings.batching {
        check_names(&fields, batching.pad, &settings.functions)?;
    }
    Ok(())
}

/// The threads of an epoch.
struct Running {
    run: Arc<Run>,
    threads: Threads,
    started: Instant,
    /// Whether its end is written down.
    ended: Mutex<bool>,
    home: OwnerProcess,
}

impl Running {
    fn start(shared: Arc<Shared>, start: Progress) -> Result<Running> {
        let threads = Threads::default();
        let run = Run::start(shared, start, &threads)?;
        let (started, ended) = (clock::now(), Mutex::new(false));
        Ok(Running { run, threads, started, ended, home: OwnerProcess::here() })
    }

    /// Adds how long it took, and how busy its stages were.
    fn measure(&self, report: &mut Report) {
        let elapsed = self.started.elapsed();
        report.elapsed += elapsed;
        let shared = &self.run.shared;
        report.busy = self.run.meters.shares(elapsed, shared.readers, shared.threads);
    }

    /// Ends every wait and all threads.
    fn close(&self) {
        if self.home.is_left() {
            return;
        }
        self.run.close();
        self.threads.wait(GRACE);
        self.run.close_files();
        self.settle(None).unwrap_or_else(|_| unreachable!("only what is at its end must add up"));
    }

    /// Writes down how the epoch ended, once: at its end with this many samples dropped, or before.
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
    /// The consumer has seen its end, or its error.
    is_finished: bool,
    /// What is to be written down when the consumer has the batch that was taken last.
    receipt: Option<Receipt>,
}

impl Epoch {
    /// The next batch if it comes within that time. None for the end of the epoch.
    pub fn next_within(&mut self, time: Duration) -> Result<Waited> {
        let waited = self.take_within(time);
        self.confirm();
        waited
    }

    /// As `next_within`, for a consumer that may still lose the batch on its way: it counts as delivered, and
    /// a checkpoint has it behind itself, from `confirm` on.
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
                    let message =
                        "the epoch was left: the loader was closed, or another epoch begun";
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
        if self.running.home.is_left() {
            let message = format!(
                "the epoch was started in process {} and used in its fork, where its threads do not exist",
                self.running.home.pid()
            );
            return Err(Error::new(Kind::UsedAfterFork, message));
        }
        Ok(())
    }

    /// The consumer has the batch that was taken last.
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

    /// Whether there is anything to tell. Costs next to nothing.
    pub fn has_events(&self) -> bool {
        self.running.run.shared.ledger.has_events()
    }

    fn end(&self) -> Result<()> {
        if *self.running.ended.lock() {
            return Ok(());
        }
        let dropped = self.running.run.finish();
        let settled = self.running.settle(Some(dropped));
        self.running.close();
        settled
    }
}

/// What came of waiting.
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

/// Of lists, a few batches and this many bytes are made ahead: what lies longer in memory has to be
/// fetched from there again.
fn ahead(source: &dyn Source, fields: &[Field], size: usize) -> Option<u64> {
    let has_lists = fields.iter().any(|field| field.row_bytes().is_none());
    let by_bytes = LISTS_AHEAD / source.mean_bytes().max(1);
    (has_lists && source.mean_bytes() > 0).then(|| by_bytes.max(3 * size as u64))
}

/// Two columns of one name would hide each other. Some fields bring a second column with them: their
/// lengths, or the shapes of pictures. Functions are given samples, which have neither.
fn check_names(fields: &[Field], is_padded: bool, functions: &[Function]) -> Result<()> {
    for (at, field) in fields.iter().enumerate() {
        if fields[..at].iter().any(|earlier| earlier.name == field.name) {
            let message = format!("a batch would have two fields named {:?}", field.name);
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("rename the array, or leave out index=True"));
        }
    }
    if !functions.is_empty() {
        return Ok(());
    }
    for field in fields {
        let brought = match field.kind {
            FieldKind::Variable { .. } | FieldKind::List | FieldKind::Texts => "lengths",
            FieldKind::Ragged { .. } if is_padded => "shape",
            FieldKind::Ragged { .. }
            | FieldKind::Fixed { .. }
            | FieldKind::Bytes
            | FieldKind::Text
            | FieldKind::Json => continue,
        };
        let brought = format!("{}_{brought}", field.name);
        if fields.iter().any(|other| *other.name == *brought) {
            let message = format!(
                "a batch would have two fields named {brought:?}: one of the data, and one that \
                 comes with {:?} and says how long its values are",
                field.name
            );
            return Err(Error::new(Kind::InvalidArgument, message).with_hint(format!(
                "give one of them another name: parse({{\"other\": fl.int64(key={brought:?})}})"
            )));
        }
    }
    Ok(())
}
