//! Builds a loader: decides everything that depends on the source, the settings and the machine. It starts no thread.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use super::budgets::{Budgets, Limit};
use super::caching::SampleCache;
use super::check::{check_cache, check_names, check_prefetch, plan};
use super::fields::{Write, casts, fields, given, padding, transform, wanted, writes};
use super::quarantine::left_out;
use super::{Ledger, Loader, Shared, defaults};
use crate::bytes::BufferPool;
use crate::collate::{Columns, Pool};
use crate::config::{Batching, CacheStore, Caching, Given, Settings};
use crate::error::{Error, Kind, Result};
use crate::event::Event;
use crate::fetch::MemoryCache;
use crate::format::Parser;
use crate::plan::Excluded;
use crate::sample::{Field, FieldKind};
use crate::source::Source;
use crate::sys::limits::{self, RaisedLimit};
use crate::sys::lock::Mutex;
use crate::sys::process::OwnerProcess;
use crate::sys::thread::Threads;
use crate::transform::Transform;
use crate::transform::predicate::{Bucketing, FieldLocation, Predicate};

/// Bytes that one sample may take on any machine.
const LARGEST: u64 = 64 << 20;
/// The least bytes of lists that are loaded ahead.
const LISTS_AHEAD: u64 = 12 << 20;

impl Loader {
    /// Decides everything that depends on the machine. No thread is started yet.
    pub fn new(source: Arc<dyn Source>, settings: Settings) -> Result<Loader> {
        let batching = settings.batching.ok_or_else(|| {
            Error::new(Kind::InvalidArgument, "there is no batch size")
                .with_hint("call batch(size) before loader()")
        })?;
        let excluded = excluded_samples(&*source, &settings)?;
        let excluded_count = excluded.len();
        let plan = plan(&*source, &settings, excluded)?;
        let seed = settings.seed.or(settings.order_seed()).unwrap_or(0);
        let given = given(&*source);
        let SampleLayout {
            transform,
            parser,
            columns,
            writes,
            ahead,
            filter,
            bucketing,
            sizes,
            in_rows,
        } = sample_layout(&*source, &settings, &given, batching, seed)?;
        let Shares { threads, readers, memory, prefetch, keep, files, raised } =
            shares(&settings, matches!(given, Given::Files | Given::Records(_)))?;
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
        ledger.unsaved_indices(&source.unsaved_indices());
        let has_functions = !settings.functions.is_empty();
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
            kept_threads: has_functions.then(Threads::kept),
            ledger,
            progress: Mutex::default(),
            resumed: AtomicBool::new(false),
            newest_epoch: AtomicU64::new(0),
            identity: OnceLock::new(),
            closed: AtomicBool::new(false),
            settings,
        };
        Ok(Loader {
            shared: Arc::new(shared),
            current: Mutex::new(None),
            home: OwnerProcess::here(),
        })
    }
}

/// What a sample consists of, and how it becomes a row of a batch.
struct SampleLayout {
    transform: Option<Transform>,
    parser: Option<Parser>,
    columns: Columns,
    writes: Vec<(usize, Write)>,
    ahead: Option<u64>,
    filter: Option<Predicate<FieldLocation>>,
    bucketing: Option<Bucketing<FieldLocation>>,
    sizes: Vec<usize>,
    in_rows: bool,
}

fn sample_layout(
    source: &dyn Source,
    settings: &Settings,
    given: &Given,
    batching: Batching,
    seed: u64,
) -> Result<SampleLayout> {
    let transform = transform(settings, given, seed);
    let wanted = wanted(settings, given);
    let parser = match (given, &wanted) {
        (Given::Records(contents), Some(wanted)) => {
            Some(Parser::new(&contents.container, wanted, settings.picture)?)
        }
        (Given::Files | Given::Arrays(_) | Given::Records(_), _) => None,
    };
    let fields = fields(source, given, transform.as_ref(), wanted.as_deref(), settings);
    check_names(&fields, batching.pad, &settings.functions)?;
    let in_rows = !fields.iter().any(|field| matches!(field.kind, FieldKind::Ragged { .. }));
    let writes = writes(given, &fields, source, batching.index);
    let ahead = ahead(source, &fields, batching.size);
    let filter = settings.filter.as_ref().map(|filter| filter.placed(&fields, !in_rows));
    let bucketing = settings.bucketing.as_ref().map(|by| by.placed(&fields, !in_rows));
    let (filter, bucketing) = (filter.transpose()?, bucketing.transpose()?);
    let sizes = bucketing.as_ref().map_or_else(Vec::new, |bucketing| {
        let alike = || vec![batching.size; bucketing.buckets()];
        bucketing.sizes.as_ref().map_or_else(alike, |sizes| sizes.to_vec())
    });
    let joined = !settings.functions.is_empty();
    let casts = casts(&fields, settings)?;
    let is_padded = batching.pad && !joined;
    let pad = if is_padded { Some(padding(&fields, &casts, settings)?) } else { None };
    let size = batching.size;
    let columns = Columns { fields: fields.into(), casts, size, pad, joined };
    Ok(SampleLayout {
        transform,
        parser,
        columns,
        writes,
        ahead,
        filter,
        bucketing,
        sizes,
        in_rows,
    })
}

/// What a loader takes of the machine.
struct Shares {
    threads: usize,
    readers: usize,
    memory: u64,
    prefetch: u64,
    /// Bytes that each worker keeps between samples.
    keep: usize,
    files: u64,
    raised: RaisedLimit,
}

/// `fetches` says that there is something to read.
fn shares(settings: &Settings, fetches: bool) -> Result<Shares> {
    let threads = settings.threads.or(|| limits::processors() as u64) as usize;
    let readers = if fetches {
        settings.readers.or(|| defaults::readers(threads as u64)) as usize
    } else {
        0
    };
    let least = settings.prefetch.or(|| 0).saturating_add(64 << 20);
    let cached = cached_bytes(settings);
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
    Ok(Shares { threads, readers, memory, prefetch, keep, files, raised })
}

/// The samples that are left out from the start. Some must be left.
fn excluded_samples(source: &dyn Source, settings: &Settings) -> Result<Excluded> {
    if source.is_empty() {
        return Err(Error::new(Kind::InvalidSource, "the source has no samples")
            .with_hint("give at least one sample"));
    }
    let excluded = match &settings.exclude {
        Some(path) => left_out(source, path)?,
        None => Excluded::default(),
    };
    if excluded.len() == source.len() {
        return Err(Error::new(Kind::InvalidSource, "all samples of the source are excluded")
            .with_hint("check the file given as exclude="));
    }
    Ok(excluded)
}

/// The bytes of a cache in memory.
fn cached_bytes(settings: &Settings) -> u64 {
    match &settings.cache {
        Some(Caching { store: CacheStore::Memory(bytes), .. }) => *bytes,
        Some(Caching { store: CacheStore::Folder { .. }, .. }) | None => 0,
    }
}

/// How far ahead lists are loaded: a few batches and this many bytes, so that they are still in the CPU cache when they
/// are used.
fn ahead(source: &dyn Source, fields: &[Field], size: usize) -> Option<u64> {
    let has_lists = fields.iter().any(|field| field.row_bytes().is_none());
    let by_bytes = LISTS_AHEAD / source.mean_bytes().max(1);
    (has_lists && source.mean_bytes() > 0).then(|| by_bytes.max(3 * size as u64))
}
