//! Open descriptors, cached for the next reader, and never more than the budget: here even urgent samples wait. That is
//! safe, because a thread that holds a descriptor waits for nothing else.
//!
//! If the system has fewer than the budget (EMFILE, ENFILE), the budget shrinks, idle descriptors are closed, and the
//! file is opened again.

use lru::LruCache;
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::budget::{Budget, Closed, Permit, Reclaim, RefusalReason};
use crate::error::{Error, Kind, Result};
use crate::sys::file::{Handle, Identity};
use crate::sys::inspect::Descriptors;
use crate::sys::lock::Mutex;

/// An open file and the permit for its descriptor.
struct OpenFile {
    handle: Handle,
    _permit: Permit,
}

/// The descriptors of a run.
pub struct OpenFiles {
    budget: Budget,
    cached: Arc<CachedDescriptors>,
    /// Identities of indexed files, as they were when indexed.
    known: HashMap<PathBuf, Identity>,
}

/// Descriptors that were used, for the next use. Those that are not in use are given back when any loader needs them.
struct CachedDescriptors(Mutex<LruCache<PathBuf, Arc<OpenFile>>>);

impl CachedDescriptors {
    /// Closes the least recently used descriptor that is not in use.
    fn close_one(&self) -> bool {
        let mut cached = self.0.lock();
        let oldest = cached
            .iter()
            .rev()
            .find(|(_, opened)| Arc::strong_count(opened) == 1)
            .map(|(path, _)| path.clone());
        oldest.is_some_and(|path| cached.pop(&path).is_some())
    }
}

impl Reclaim for CachedDescriptors {
    fn reclaim(&self, amount: u64) -> u64 {
        let mut closed = 0;
        while closed < amount && self.close_one() {
            closed += 1;
        }
        closed
    }
}

impl OpenFiles {
    /// No open files yet.
    pub fn new(budget: Budget) -> OpenFiles {
        let cached = Arc::new(CachedDescriptors(Mutex::new(LruCache::unbounded())));
        budget.reclaim_from(&cached);
        OpenFiles { budget, cached, known: HashMap::new() }
    }

    /// Refuses these files if their identity has changed.
    pub(crate) fn knowing(self, files: Vec<(PathBuf, Identity)>) -> OpenFiles {
        OpenFiles { known: files.into_iter().collect(), ..self }
    }

    /// Runs `work`, which must not wait for a budget, with the file open. Calls `before_wait` before any wait for a
    /// descriptor.
    pub fn with<T>(
        &self,
        path: &Path,
        slot: u64,
        before_wait: &mut dyn FnMut(),
        work: impl FnOnce(&Handle) -> Result<T>,
    ) -> Result<T> {
        let known = self.cached.0.lock().get(path).map(Arc::clone);
        let opened = match known {
            Some(opened) if opened.handle.check_open() => opened,
            Some(_) | None => {
                let opened = Arc::new(self.open(path, slot, before_wait)?);
                self.cached.0.lock().put(path.to_owned(), Arc::clone(&opened));
                opened
            }
        };
        let outcome = work(&opened.handle);
        if outcome.is_err() {
            // The handle may be of an older file: the next attempt opens it again.
            self.cached.0.lock().pop(path);
        }
        drop(opened);
        // After our own use: the waiting thread, perhaps of another loader, needs a descriptor that is not in use.
        if self.budget.is_awaited() {
            self.cached.close_one();
        }
        outcome
    }

    fn open(&self, path: &Path, slot: u64, before_wait: &mut dyn FnMut()) -> Result<OpenFile> {
        // Both the permit and the attempt to open may wait.
        let before_wait = RefCell::new(before_wait);
        let attempt = || {
            let permit = match self.permit(slot, &mut || before_wait.borrow_mut()()) {
                Ok(permit) => permit,
                Err(Closed) => return Ok(Err(closed())),
            };
            match Handle::open(path) {
                Ok(handle) => {
                    let checked = self.check(path, &handle);
                    Ok(checked.map(|()| OpenFile { handle, _permit: permit }))
                }
                Err(error) if is_out_of_descriptors(&error) => Err(refusal(&error)),
                Err(error) => Ok(Err(Error::io(Kind::Read, "opening the file", error))),
            }
        };
        match self.budget.insist(slot, &mut || before_wait.borrow_mut()(), attempt) {
            Ok(opened) => opened,
            Err(RefusalReason::Closed) => Err(closed()),
            Err(RefusalReason::Refused(time)) => {
                let message = format!(
                    "the system had no descriptor left for {} s, not even for one file; this process holds {}",
                    time.as_secs_f32(),
                    Descriptors::here()
                );
                Err(Error::new(Kind::TooManyOpenFiles, message))
            }
        }
    }

    /// The slots of its records are known for another version of the file; at those slots there may be anything
    /// now.
    fn check(&self, path: &Path, handle: &Handle) -> Result<()> {
        let Some(known) = self.known.get(path) else { return Ok(()) };
        let now = handle
            .identity()
            .map_err(|error| Error::io(Kind::Read, "reading the size of the file", error))?;
        if !now.differs(known) {
            return Ok(());
        }
        let (before, after) = (known.stamp.size, now.stamp.size);
        let message = if before == after {
            "the file was replaced or written to after it was indexed".to_owned()
        } else {
            format!("the file had {before} bytes when it was indexed, and has {after} now")
        };
        Err(Error::new(Kind::CorruptRecord, message)
            .with_hint("create the loader again: it indexes the file as it is now"))
    }

    fn permit(
        &self,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> std::result::Result<Permit, Closed> {
        loop {
            if let Some(permit) = self.budget.try_acquire(1, slot) {
                return Ok(permit);
            }
            if !self.close_one_idle() {
                break;
            }
        }
        before_wait();
        // Announced first, then checked once more: a descriptor that became idle in between would stay in the cache
        // while this thread waits for it.
        let _announced = self.budget.announce();
        self.close_one_idle();
        self.budget.acquire(1, slot)
    }

    /// Closes the descriptor of this loader that was used least recently and is not in use, or one of another loader.
    fn close_one_idle(&self) -> bool {
        self.cached.close_one() || self.budget.reclaim_from_others(1) > 0
    }

    /// The number of open descriptors.
    pub fn count(&self) -> u64 {
        self.budget.used()
    }

    /// Closes all descriptors that are not in use.
    pub(crate) fn close_idle(&self) {
        while self.cached.close_one() {}
    }
}

/// What the system refused, for an event.
fn refusal(error: &std::io::Error) -> String {
    let code = match Errno::from_io_error(error) {
        Some(Errno::NFILE) => "ENFILE",
        Some(_) | None => "EMFILE",
    };
    format!("the system has no descriptor left ({code})")
}

fn closed() -> Error {
    Error::new(Kind::Closed, "the loader is closed")
}

fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|code| code == Errno::MFILE || code == Errno::NFILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::os::unix::fs::MetadataExt as _;

    fn folder(files: usize) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..files {
            file::write(&folder.path().join(number.to_string()), &[number as u8]).unwrap();
        }
        folder
    }

    fn first_byte(handle: &Handle) -> Result<u8> {
        let mut byte = [0];
        handle.read_at(&mut byte, 0).unwrap();
        Ok(byte[0])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn many_readers_never_hold_more_than_the_budget(
            limit in 1_u64..6, threads in 1_usize..6, order in prop::collection::vec(0_usize..12, 1..60),
        ) {
            let folder = folder(12);
            let open = OpenFiles::new(Budget::new("files", limit));
            let in_use = Mutex::new(BTreeMap::new());
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| for (slot, number) in order.iter().enumerate() {
                        let path = folder.path().join(number.to_string());
                        let byte = open.with(&path, slot as u64 + 1, &mut || (), |handle| {
                            // Counted by the readers, not by the budget, which a bug may bypass.
                            *in_use.lock().entry(*number).or_insert(0) += 1;
                            std::thread::yield_now();
                            assert!(in_use.lock().len() as u64 <= limit, "files in use");
                            let byte = first_byte(handle);
                            let mut in_use = in_use.lock();
                            match in_use.remove(number) {
                                Some(readers) if readers > 1 => drop(in_use.insert(*number, readers - 1)),
                                Some(_) | None => {}
                            }
                            byte
                        }).unwrap();
                        assert_eq!(usize::from(byte), *number);
                    });
                }
            });
            prop_assert!(open.budget.peak() <= limit);
            open.close_idle();
            prop_assert_eq!(open.count(), 0);
        }
    }

    #[test]
    fn a_file_used_again_is_not_opened_again() {
        let folder = folder(1);
        let path = folder.path().join("0");
        let open = OpenFiles::new(Budget::new("files", 4));
        open.with(&path, 0, &mut || (), first_byte).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(open.with(&path, 0, &mut || (), first_byte).unwrap(), 0);
    }

    #[test]
    fn a_file_that_changed_after_indexing_is_not_read() {
        let folder = folder(1);
        let path = folder.path().join("0");
        let known = || Handle::open(&path).unwrap().identity().unwrap();
        let before = known();
        let read = |known| {
            let open = OpenFiles::new(Budget::new("files", 4));
            open.knowing(vec![(path.clone(), known)]).with(&path, 0, &mut || (), first_byte)
        };
        assert_eq!(read(before).unwrap(), 0);
        // Another file of the same size and time, moved into its place.
        let other = folder.path().join("other");
        file::write(&other, &[7]).unwrap();
        let times = std::fs::metadata(&path).unwrap();
        let written = rustix::fs::Timespec { tv_sec: times.mtime(), tv_nsec: times.mtime_nsec() };
        let times = rustix::fs::Timestamps { last_access: written, last_modification: written };
        rustix::fs::utimensat(rustix::fs::CWD, &other, &times, rustix::fs::AtFlags::empty())
            .unwrap();
        std::fs::rename(&other, &path).unwrap();
        let error = read(before).unwrap_err();
        assert!(error.message().contains("replaced or written to"), "{error}");
        assert_eq!(read(known()).unwrap(), 7);
        let before = known();
        file::write(&path, &[7, 8, 9]).unwrap();
        let error = read(before).unwrap_err();
        assert!(
            error.message().contains("had 1 bytes when it was indexed, and has 3 now"),
            "{error}"
        );
        assert_eq!(error.kind(), Kind::CorruptRecord);
    }

    #[test]
    fn a_missing_file_is_reported_with_the_system_error() {
        let open = OpenFiles::new(Budget::new("files", 4));
        let error = open.with(Path::new("/no/such/file"), 0, &mut || (), first_byte).unwrap_err();
        assert_eq!((error.kind(), error.os_error()), (Kind::Read, Some(2)));
        assert_eq!(open.count(), 0);
    }
}
