//! Opens shards with their indices, and finds where the indices are saved.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::format::Container;
use feedline_core::source::index::{BuiltIndex, Index, IndexStorage, Reuse};
use feedline_core::sys::file;
use feedline_core::sys::limits::processors;
use std::env;
use std::path::{Path, PathBuf};

use crate::dataset::at;
use crate::parallel::share;
use crate::report::{Progress, Unit};

/// The file beside shards with the class names, one per line.
pub(crate) const CLASSES: &str = "classes.txt";
/// Threads that scan shards: more than there are processors, because they mostly wait for the disk.
const SCANNERS: usize = 8;

/// The folder in which loaders save indices by default: the same as in python/feedline/records.py.
pub(crate) fn cache() -> IndexStorage {
    let named = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = named("FEEDLINE_CACHE").or_else(|| {
        let caches = named("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache")));
        caches.map(|caches| caches.join("feedline"))
    });
    folder.map_or(IndexStorage::Nowhere, IndexStorage::Folder)
}

/// The indices of shards, in order. A shard that cannot be read has an error in its place.
pub(crate) fn indices(
    paths: &[PathBuf],
    container: &Container,
    storage: &IndexStorage,
    reuse: Reuse,
) -> Result<Vec<Result<BuiltIndex>>> {
    let sizes: Vec<u64> = paths.iter().map(|path| size(path)).collect();
    let total = sizes.iter().sum();
    let progress = Progress::counting("scanning shards", total, Unit::Bytes);
    let work: Vec<_> = paths.iter().cloned().zip(sizes).collect();
    let (container, storage) = (container.clone(), storage.clone());
    let threads = (processors() * 2).min(SCANNERS);
    share(work, threads, progress, move |_: &mut (), (path, size), done| {
        let made = Index::make(path, &container, &storage, reuse);
        done.add(*size);
        made
    })
}

/// Size of a file, 0 if it does not exist.
pub(crate) fn size(path: &Path) -> u64 {
    file::size(path).unwrap_or_default()
}

/// The class names, if a file beside the shards has them.
pub(crate) fn class_names(paths: &[PathBuf]) -> Result<Vec<String>> {
    let folder = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new(""));
    let path = folder.join(CLASSES);
    match file::read_text(&path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io(Kind::InvalidSource, "reading the class names", error)
            .at(at(&path))
            .with_hint("make the file readable, or remove it to number the classes")),
    }
}
