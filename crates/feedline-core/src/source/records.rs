//! Records in shards, numbered over all shards by their indices.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::index::{BuiltIndex, Index, IndexStorage, Reuse, UnsavedIndex};
use super::walk::walk_by;
use super::{Contents, Source};
use crate::error::{Error, Kind, Result};
use crate::fingerprint::Fingerprint;
use crate::format::{Container, Packing, Span, Unpacker, Wanted, tar, text};
use crate::sample::{Extent, Location, shown};
use crate::sys::file::{self, Handle, Identity};
use crate::sys::limits::processors;
use crate::sys::lock::Mutex;
use crate::sys::thread::Threads;

/// How many records are tried to find a good one, from which the default fields are taken.
const GUESSES: usize = 1000;
/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// The longest first row of a CSV file.
const FIRST: usize = 1 << 20;
/// Threads that scan shards: each has a descriptor.
const SCANNERS: usize = 8;
/// The largest manifest that is read, in bytes: a line for each of a million shards.
const LARGEST_MANIFEST: u64 = 256 << 20;

/// Callback for the progress of indexing; returns whether to continue.
pub(crate) type OnProgress<'a> = dyn FnMut(Done) -> bool + 'a;

/// Progress of indexing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of indexed shards.
    pub shards: usize,
    /// Number of all shards.
    pub of: usize,
    /// Bytes of the indexed shards.
    pub bytes: u64,
}

/// Records in shards.
#[derive(Debug)]
pub struct Records {
    root: PathBuf,
    paths: Vec<PathBuf>,
    indices: Vec<Index>,
    unsaved: Vec<UnsavedIndex>,
    /// The end of each shard: the index after its last sample.
    ends: Vec<u64>,
    contents: Contents,
    has_corrupt_spans: bool,
}

/// The entry of one shard in a manifest.
#[derive(Debug, Deserialize)]
struct ManifestEntry {
    records: Option<u64>,
    bytes: Option<u64>,
}

impl Records {
    /// Scans all shards without a saved index, several at a time.
    pub fn new(
        paths: Vec<PathBuf>,
        container: Container,
        storage: &IndexStorage,
        manifest: Option<&Path>,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Records> {
        let Some(first) = paths.first() else {
            return Err(Error::new(Kind::InvalidSource, "the list of shards is empty")
                .with_hint("give at least one path, or a pattern such as \"data/*.tfrecord\""));
        };
        let mut root = first.parent().unwrap_or(Path::new("")).to_owned();
        for path in &paths {
            while !path.starts_with(&root) && root.pop() {}
        }
        let container = match container {
            Container::Csv { delimiter, columns } if columns.is_empty() => {
                let columns = columns_of_first(&paths, delimiter)?;
                Container::Csv { delimiter, columns: columns.into() }
            }
            Container::Csv { .. }
            | Container::Tfrecord { .. }
            | Container::Tar
            | Container::JsonLines
            | Container::Numbers { .. } => container,
        };
        let (mut indices, unsaved) = indices(&paths, &container, storage, on_progress)?;
        if let Some(manifest) = manifest {
            check(&paths, &mut indices, manifest)?;
        }
        let mut ends = Vec::with_capacity(indices.len());
        let mut samples = 0;
        for index in &indices {
            samples += index.len();
            ends.push(samples);
        }
        if samples == 0 {
            return Err(no_records(&paths));
        }
        let guessed = match &container {
            Container::Tar => {
                guess(&paths, &indices, &container, &mut tar::guess, &tar::guess_from_corrupt)?
            }
            Container::JsonLines => {
                let without = |_: &[u8]| text::any_json();
                guess(&paths, &indices, &container, &mut text::guess_json, &without)?
            }
            Container::Csv { delimiter, columns } => {
                let mut of = |record: &[u8]| text::guess_csv(record, columns, *delimiter);
                guess(&paths, &indices, &container, &mut of, &|_| text::any_csv(columns))?
            }
            Container::Tfrecord { .. } | Container::Numbers { .. } => Vec::new(),
        };
        let is_packed = indices.iter().any(|index| index.packing != Packing::Plain);
        let has_corrupt_spans = indices.iter().any(|index| !index.corrupt_spans().is_empty());
        let contents = Contents { container, guessed: guessed.into(), is_packed };
        Ok(Records { root, paths, indices, unsaved, ends, contents, has_corrupt_spans })
    }

    /// The shard of a sample, and its number there.
    fn place(&self, index: u64) -> (usize, u64) {
        let shard = self.ends.partition_point(|end| *end <= index);
        let before = shard.checked_sub(1).map_or(0, |before| self.ends[before]);
        (shard, index - before)
    }

    fn span(&self, index: u64) -> (&Path, Span, u64) {
        let (shard, number) = self.place(index);
        (&self.paths[shard], self.indices[shard].span(number), number)
    }

    /// The shards with their indices.
    pub(crate) fn each_shard(&self) -> impl Iterator<Item = (&Path, &Index)> {
        self.paths.iter().map(PathBuf::as_path).zip(&self.indices)
    }
}

/// The error if no shard has a record.
fn no_records(paths: &[PathBuf]) -> Error {
    let message = match paths {
        [only] => format!("{} has no records", shown(only)),
        _ => format!("none of the {} shards has a record", paths.len()),
    };
    Error::new(Kind::InvalidSource, message)
        .with_hint("check that the shards were written completely")
}

/// The columns of the first CSV file that has any; the others must have the same.
pub fn columns_of_first(paths: &[PathBuf], delimiter: u8) -> Result<Vec<String>> {
    let mut first = None;
    for path in paths {
        match columns_of(path, delimiter) {
            Ok(columns) => return Ok(columns),
            Err(error) => {
                let _ = first.get_or_insert_with(|| error.at(Some(Location::file(path))));
            }
        }
    }
    Err(first.unwrap_or_else(|| Error::new(Kind::InvalidSource, "the list of shards is empty")))
}

/// The columns of a CSV file, from its first bytes.
fn columns_of(path: &Path, delimiter: u8) -> Result<Vec<String>> {
    let failed = |error| Error::io(Kind::InvalidSource, "opening the shard", error);
    let handle = Handle::open(path).map_err(failed)?;
    let mut packed = vec![0; FIRST];
    let count = handle.read_at(&mut packed, 0).map_err(failed)?;
    packed.truncate(count);
    let container = Container::Csv { delimiter, columns: [].into() };
    let mut unpacker = Unpacker::new(Packing::of(&packed, &container)?)?;
    let (mut bytes, mut used) = (Vec::new(), 0);
    while bytes.len() < FIRST {
        let before = bytes.len();
        match unpacker.unpack(&packed[used..], &mut bytes)? {
            0 if bytes.len() == before => break,
            more => used += more,
        }
    }
    text::columns(&bytes, delimiter, count < FIRST)
}

/// The fields that the first good record suggests; those of `without` if none of the first records is good.
fn guess(
    paths: &[PathBuf],
    indices: &[Index],
    container: &Container,
    fields_of: &mut dyn FnMut(&[u8]) -> Result<Vec<Wanted>>,
    without: &dyn Fn(&[u8]) -> Vec<Wanted>,
) -> Result<Vec<Wanted>> {
    let (mut guessed, mut first, mut bad) = (None, None, 0);
    for (path, index) in paths.iter().zip(indices) {
        walk_by(index, path, container, &mut |seen| {
            let Ok(payload) = seen.payload else { return true };
            match fields_of(payload) {
                Ok(fields) => guessed = Some(fields),
                Err(_) => {
                    first.get_or_insert_with(|| without(payload));
                    bad += 1;
                }
            }
            guessed.is_none() && bad < GUESSES
        })?;
        if guessed.is_some() || bad == GUESSES {
            break;
        }
    }
    Ok(guessed.or(first).unwrap_or_default())
}

/// The indices of all shards, built by several threads. The first error ends it.
fn indices(
    paths: &[PathBuf],
    container: &Container,
    storage: &IndexStorage,
    on_progress: &mut OnProgress<'_>,
) -> Result<(Vec<Index>, Vec<UnsavedIndex>)> {
    struct Work {
        paths: Vec<PathBuf>,
        container: Container,
        storage: IndexStorage,
        next: AtomicUsize,
        shards: AtomicUsize,
        bytes: AtomicU64,
        is_over: AtomicBool,
        found: Mutex<Vec<Option<Result<BuiltIndex>>>>,
    }
    impl Work {
        fn run(&self) {
            while !self.is_over.load(Ordering::SeqCst) {
                let number = self.next.fetch_add(1, Ordering::SeqCst);
                let Some(path) = self.paths.get(number) else { return };
                let built = Index::make(path, &self.container, &self.storage, Reuse::Fitting);
                match &built {
                    Ok(built) => self.bytes.fetch_add(built.index.stamp.size, Ordering::SeqCst),
                    Err(_) => u64::from(self.is_over.swap(true, Ordering::SeqCst)),
                };
                self.shards.fetch_add(1, Ordering::SeqCst);
                self.found.lock()[number] = Some(built);
            }
        }
    }
    let work = Arc::new(Work {
        paths: paths.to_vec(),
        container: container.clone(),
        storage: storage.clone(),
        next: AtomicUsize::new(0),
        shards: AtomicUsize::new(0),
        bytes: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        found: Mutex::new(paths.iter().map(|_| None).collect()),
    });
    let scanners = Threads::default();
    let threads = (processors() * 2).min(SCANNERS).min(paths.len());
    for number in 1..threads {
        let work = Arc::clone(&work);
        // If the system refuses a thread, the others do its part.
        let _ = scanners.spawn(&format!("feedline-index-{number}"), move || work.run());
    }
    if threads == 1 || scanners.count() == 0 {
        work.run();
    }
    let mut is_cancelled = false;
    while !scanners.wait(PROGRESS_INTERVAL) && !is_cancelled {
        let (shards, bytes) = (&work.shards, &work.bytes);
        let (shards, bytes) = (shards.load(Ordering::SeqCst), bytes.load(Ordering::SeqCst));
        is_cancelled = !on_progress(Done { shards, of: paths.len(), bytes });
    }
    work.is_over.store(true, Ordering::SeqCst);
    if is_cancelled {
        return Err(Error::new(Kind::Closed, "indexing was interrupted"));
    }
    let (mut found, mut unsaved) = (Vec::with_capacity(paths.len()), Vec::new());
    let mut missing = None;
    for built in std::mem::take(&mut *work.found.lock()) {
        match built {
            Some(Ok(built)) => {
                found.push(built.index);
                unsaved.extend(built.unsaved);
            }
            Some(Err(error)) => return Err(error),
            None => missing = Some(Error::new(Kind::Internal, "a shard was not scanned")),
        }
    }
    missing.map_or(Ok((found, unsaved)), Err)
}

/// Compares with a manifest: `{"name": {"records": 10, "bytes": 1000}, …}`.
pub fn check(paths: &[PathBuf], indices: &mut [Index], manifest: &Path) -> Result<()> {
    let bad = |message: String| {
        Error::new(Kind::InvalidSource, message).at(Some(Location::file(manifest))).with_hint(
            "a manifest is JSON: {\"a.tfrecord\": {\"records\": 10, \"bytes\": 1000}}; \
             feedline index --manifest writes one",
        )
    };
    let bytes = Handle::open(manifest)
        .and_then(|handle| file::read_bounded(&handle, LARGEST_MANIFEST))
        .map_err(|error| bad(format!("the manifest cannot be read: {error}")))?;
    let expected: BTreeMap<String, ManifestEntry> = serde_json::from_slice(&bytes)
        .map_err(|error| bad(format!("this is not a manifest: {error}")))?;
    let mut known = 0;
    for (path, index) in paths.iter().zip(indices) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(expected) = expected.get(&*name) else {
            return Err(bad(format!("the manifest does not list {}", shown(path))));
        };
        index.expect(expected.records, expected.bytes);
        known += 1;
    }
    if known < expected.len() {
        let message =
            format!("the manifest lists {} shards, {known} of them were given", expected.len());
        return Err(bad(message));
    }
    Ok(())
}

impl Source for Records {
    fn kind(&self) -> &'static str {
        "records"
    }

    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn extent(&self, index: u64) -> Extent<'_> {
        let (shard, record) = self.place(index);
        let (path, of) = (self.paths[shard].as_path(), &self.indices[shard]);
        if of.packing != Packing::Plain {
            return Extent::Packed { path, record };
        }
        let Span { start: offset, length } = of.span(record);
        Extent::Part { path, offset, length }
    }

    fn shards(&self) -> Vec<u64> {
        self.indices.iter().map(Index::len).collect()
    }

    fn known_files(&self) -> Vec<(PathBuf, Identity)> {
        let known = self.each_shard().filter_map(|(path, index)| Some((path, index.identity?)));
        known.map(|(path, identity)| (path.to_owned(), identity)).collect()
    }

    fn empty_shards(&self) -> Vec<PathBuf> {
        let empty = self.each_shard().filter(|(_, index)| index.is_empty());
        empty.map(|(path, _)| path.to_owned()).collect()
    }

    fn unsaved_indices(&self) -> Vec<UnsavedIndex> {
        self.unsaved.clone()
    }

    fn corruption(&self, index: u64) -> Option<String> {
        if !self.has_corrupt_spans {
            return None;
        }
        let (shard, number) = self.place(index);
        let what = self.indices[shard].corruption(number)?;
        Some(format!("record {number} is corrupt: {what}"))
    }

    fn contents(&self) -> Option<&Contents> {
        Some(&self.contents)
    }

    fn label(&self, _index: u64) -> Option<i64> {
        None
    }

    fn has_labels(&self) -> bool {
        false
    }

    fn root(&self) -> Option<PathBuf> {
        Some(self.root.clone())
    }

    fn location(&self, index: u64) -> Option<Location> {
        let (path, span, number) = self.span(index);
        Some(Location { path: path.to_owned(), offset: Some(span.start), record: Some(number) })
    }

    /// Computed from names, sizes and counts, so that a copied shard has the same.
    fn fingerprint(&self) -> Fingerprint {
        let shards: Vec<_> = self
            .each_shard()
            .map(|(path, index)| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                format!("{name} {} {}", index.stamp.size, index.len())
            })
            .collect();
        let container = format!("{:?}", self.contents.container);
        Fingerprint::of(shards.iter().chain([&container]).map(String::as_bytes))
    }

    fn packing(&self, index: u64) -> Packing {
        self.indices[self.place(index).0].packing
    }

    fn mean_bytes(&self) -> u64 {
        let bytes: u64 = self.indices.iter().map(|index| index.stamp.size).sum();
        bytes / self.len().max(1)
    }
}
