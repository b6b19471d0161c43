//! Shards with their indices, and where these are kept.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::format::Container;
use feedline_core::source::index::{Index, Keep, Made, Reuse};
use feedline_core::sys::file;
use feedline_core::sys::thread::processors;
use std::env;
use std::path::{Path, PathBuf};

use crate::dataset::at;
use crate::parallel::share;
use crate::report::{Progress, Unit};

/// The file beside shards with the names of the classes, one in each line.
pub(crate) const CLASSES: &str = "classes.txt";
/// Threads that look through shards: more than there are processors, since most of it is waiting.
const SCANNERS: usize = 8;

/// The folder in which loaders keep indices where nothing else is said: that of python/feedline/records.py.
pub(crate) fn cache() -> Keep {
    let named = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = named("FEEDLINE_CACHE").or_else(|| {
        let caches = named("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache")));
        caches.map(|caches| caches.join("feedline"))
    });
    folder.map_or(Keep::Nowhere, Keep::Folder)
}

/// The indices of shards, in their order. A shard that cannot be read is an answer like the others.
pub(crate) fn indices(
    paths: &[PathBuf],
    container: &Container,
    keep: &Keep,
    reuse: Reuse,
) -> Result<Vec<Result<Made>>> {
    let sizes: Vec<u64> = paths.iter().map(|path| size(path)).collect();
    let total = sizes.iter().sum();
    let progress = Progress::counting("looking through shards", total, Unit::Bytes);
    let work: Vec<_> = paths.iter().cloned().zip(sizes).collect();
    let (container, keep) = (container.clone(), keep.clone());
    let threads = (processors() * 2).min(SCANNERS);
    share(work, threads, progress, move |_: &mut (), (path, size), done| {
        let made = Index::make(path, &container, &keep, reuse);
        done.add(*size);
        made
    })
}

/// Of a file; none is known of one that is not there.
pub(crate) fn size(path: &Path) -> u64 {
    file::size(path).unwrap_or_default()
}

/// The names of the classes, where a file beside the shards tells them.
pub(crate) fn class_names(paths: &[PathBuf]) -> Result<Vec<String>> {
    let folder = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new(""));
    let path = folder.join(CLASSES);
    match file::read_text(&path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => {
            Err(Error::io(Kind::InvalidSource, "reading the names of the classes", error)
                .at(at(&path))
                .with_hint(
                    "make the file readable, or remove it: classes are then named by numbers",
                ))
        }
    }
}
