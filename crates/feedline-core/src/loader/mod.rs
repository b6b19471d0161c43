//! Connects the stages of a run. Only this module knows all of them.

mod activity;
mod budgets;
mod build;
mod by_slot;
mod caching;
mod check;
mod consumer;
pub mod defaults;
mod driver;
mod epoch;
mod extras;
mod fields;
mod gate;
mod identity;
mod instructions;
mod ledger;
mod slot_supply;
mod make;
mod mapped;
mod perform;
mod quarantine;
mod reading;
mod records;
mod replay;
mod resume;
mod run;
mod watch;
pub mod workers;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::bytes::BufferPool;
use crate::collate::{Columns, Pool, Promise};
use crate::config::{Batching, Settings, Takes};
use crate::engine::{self, Fill, Membership, PolicyAction, Position};
use crate::error::{Error, Kind, Result};
use crate::event::Event;
use crate::fault::Symptom;
use crate::format::Parser;
use crate::metrics::{Report, Resource};
use crate::plan::{Plan, RestOrder};
use crate::run_state::{Identity, Taken};
use crate::source::Source;
use crate::sys::lock::Mutex;
use crate::sys::process::OwnerProcess;
use crate::sys::thread::Threads;
use crate::transform::Transform;
use crate::transform::predicate::{Bucketing, FieldLocation, Predicate};
use budgets::Budgets;
pub use budgets::give_back_idle;
use caching::SampleCache;
pub use check::check;
pub use epoch::{Epoch, Waited};
use epoch::{GRACE, Running};
pub use fields::given;
use fields::{PICTURE, Write};
pub use identity::data;
pub use instructions::{BatchEnd, Instruction, Part};
pub use ledger::Ledger;
pub use quarantine::{excluded, excluded_calls, quarantined};
pub use replay::BatchMembers;
pub use resume::Fit;

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
    /// Whether the next epoch starts from a state that was loaded.
    resumed: AtomicBool,
    /// The epoch that runs, or was begun last.
    newest_epoch: AtomicU64,
    /// What states are compared by, once it was asked for: a large data set has a long list of files.
    identity: OnceLock<Identity>,
    closed: AtomicBool,
}

/// The progress of the consumer.
#[derive(Clone, Default)]
struct Progress {
    epoch: u64,
    /// What is left of the epoch, if other ranks began it.
    rest: Option<Arc<RestOrder>>,
    position: Position,
    taken: Taken,
}

impl Progress {
    /// The start of an epoch.
    fn at_epoch(epoch: u64) -> Progress {
        Progress { epoch, ..Progress::default() }
    }
}

/// A data set as batches, epoch after epoch.
pub struct Loader {
    shared: Arc<Shared>,
    current: Mutex<Option<Arc<Running>>>,
    home: OwnerProcess,
}

impl Loader {
    /// Starts the next epoch, or continues one after `load_state`. A running epoch is abandoned: a loader has one at a
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
            // A state may be in the middle of an epoch; an abandoned epoch is not continued.
            let resumed = shared.resumed.swap(false, Ordering::SeqCst);
            let is_begun = progress.position != Position::default();
            let settings = shared.engine_settings(&progress);
            if is_begun && (!resumed || progress.position.is_at_end(&settings)) {
                *progress = Progress::at_epoch(progress.epoch + 1);
            }
            progress.clone()
        };
        shared.newest_epoch.store(start.epoch, Ordering::Relaxed);
        shared.budgets.reopen();
        let running = Arc::new(Running::start(Arc::clone(shared), start)?);
        *current = Some(Arc::clone(&running));
        Ok(Epoch::new(running))
    }

    /// The number of batches in a whole epoch without faults; an upper bound with a filter or buckets.
    pub fn len(&self) -> u64 {
        self.batches_of(self.shared.plan.epoch_len())
    }

    fn batches_of(&self, samples: u64) -> u64 {
        let size = self.shared.batching.size as u64;
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
        let is_whole = {
            let progress = shared.progress.lock();
            (progress.position == Position::default() && progress.rest.is_none())
                || progress.position.is_at_end(&shared.engine_settings(&progress))
                || !shared.resumed.load(Ordering::SeqCst)
        };
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
        let budget = (self.threads + self.readers + usize::from(self.has_functions())) as u64;
        let peak = self.thread_peak.load(Ordering::Relaxed);
        let threads = Resource { peak, budget, process: None };
        self.budgets.resources().into_iter().chain([("threads", threads)])
    }

    /// The settings of the engine for an epoch.
    fn engine_settings(&self, progress: &Progress) -> engine::EpochSettings {
        let world = self.plan.world();
        let Some(rest) = &progress.rest else {
            return self.engine_settings_of(progress.epoch, self.plan.epoch_len(), world);
        };
        let settings = self.engine_settings_of(progress.epoch, rest.len(), world);
        engine::EpochSettings { epoch_samples: Some(rest.epoch_len()), ..settings }
    }

    /// The settings of the engine for an epoch of this many samples of one of `world` ranks.
    fn engine_settings_of(&self, epoch: u64, samples: u64, world: u64) -> engine::EpochSettings {
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
        let fill = match (self.fills_among(world), never_fills) {
            (true, _) => Fill::FromEndAndRepeat,
            (false, true) => Fill::Never,
            (false, false) => Fill::FromEnd,
        };
        engine::EpochSettings {
            samples,
            epoch_samples: None,
            batch_size: self.batching.size as u64,
            drop_last: self.batching.drop_last,
            plan: engine::BatchPlan::Known,
            moves: engine::Moves::Sample,
            membership,
            fill,
            // Functions may return any shape.
            misfit: (self.columns.may_differ() || self.has_functions())
                .then(|| self.misfit_action()),
            finishes: functions.iter().any(|function| function.takes == Takes::Batch),
            limit: policy.limit,
            window: policy.window,
            epoch,
        }
    }

    fn misfit_action(&self) -> PolicyAction {
        let error = Error::new(Kind::ShapeMismatch, "");
        self.settings.faults.rule(&Symptom::of(&error)).action.into()
    }

    /// Whether each sample has memory of its own until its batch is complete, because it is unknown which others will
    /// be in it.
    fn has_lone_slots(&self) -> bool {
        self.bucketing.is_some() || (self.filter.is_some() && !self.has_functions())
    }

    /// Whether samples are filtered, natively or by a function.
    fn has_filter(&self) -> bool {
        let functions = &self.settings.functions;
        self.filter.is_some() || functions.iter().any(|function| function.takes == Takes::Choice)
    }

    /// Whether a front calls functions for the samples.
    fn has_functions(&self) -> bool {
        !self.settings.functions.is_empty()
    }

    /// Whether samples are repeated in place of skipped ones, because all ranks must have the same number.
    fn fills(&self) -> bool {
        self.fills_among(self.plan.world())
    }

    fn fills_among(&self, world: u64) -> bool {
        self.settings.faults.fill.unwrap_or(true) && world > 1
    }
}
