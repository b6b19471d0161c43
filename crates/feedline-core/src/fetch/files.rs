//! Open descriptors, kept for the next reader while there is room, and never more than the budget: here
//! even urgent samples wait, which is safe, because nobody who holds a descriptor waits for anything.
//!
//! Where the system has fewer than the budget says (EMFILE, ENFILE), that is an answer: the budget
//! shrinks, idle descriptors are closed, and the file is opened again.

use lru::LruCache;
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::budget::{Budget, Closed, Permit};
use crate::error::{Error, Kind, Result};
use crate::event::Event;
use crate::sys::file::{Handle, Identity};
use crate::sys::lock::Mutex;

/// How often, and after which pause, a file is retried while the system has no descriptor for us.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// A file and the permit for its descriptor.
struct Opened {
    handle: Handle,
    _permit: Permit,
}

/// The descriptors of a run.
pub struct OpenFiles {
    budget: Budget,
    idle: Mutex<LruCache<PathBuf, Arc<Opened>>>,
    waiting: AtomicUsize,
    /// Files whose content is known ahead, as they were then.
    known: HashMap<PathBuf, Identity>,
    on_event: Box<dyn Fn(Event) + Send + Sync>,
}

impl OpenFiles {
    /// None are open yet.
    pub fn new(budget: Budget, on_event: Box<dyn Fn(Event) + Send + Sync>) -> OpenFiles {
        let idle = Mutex::new(LruCache::unbounded());
        OpenFiles { budget, idle, waiting: AtomicUsize::new(0), known: HashMap::new(), on_event }
    }

    /// Refuses these files where they are not any more what they were.
    pub(crate) fn knowing(self, files: Vec<(PathBuf, Identity)>) -> OpenFiles {
        OpenFiles { known: files.into_iter().collect(), ..self }
    }

    /// Does `work`, which must not wait for a budget, with the file open. `before_wait` is called
    /// before any wait for a descriptor.
    pub fn with<T>(
        &self,
        path: &Path,
        position: u64,
        before_wait: &mut dyn FnMut(),
        work: impl FnOnce(&Handle) -> Result<T>,
    ) -> Result<T> {
        let known = self.idle.lock().get(path).map(Arc::clone);
        let opened = match known {
            Some(opened) if opened.handle.check_open() => opened,
            Some(_) | None => {
                let opened = Arc::new(self.open(path, position, before_wait)?);
                self.idle.lock().put(path.to_owned(), Arc::clone(&opened));
                opened
            }
        };
        let outcome = work(&opened.handle);
        if outcome.is_err() {
            // It may be a handle of what was there before: the next attempt opens it again.
            self.idle.lock().pop(path);
        }
        drop(opened);
        // After our own use: the thread that waits needs a descriptor that nobody holds.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.close_one_idle();
        }
        outcome
    }

    fn open(&self, path: &Path, position: u64, before_wait: &mut dyn FnMut()) -> Result<Opened> {
        for _ in 0..TRIES {
            let permit = self.permit(position, before_wait).map_err(closed)?;
            match Handle::open(path) {
                Ok(handle) => {
                    self.check(path, &handle)?;
                    return Ok(Opened { handle, _permit: permit });
                }
                Err(error) if is_want_of_descriptors(&error) => {
                    let (from, to) = self.budget.shrink();
                    if from != to {
                        (self.on_event)(Event::BudgetShrunk { budget: "files", from, to });
                    }
                    drop(permit);
                    before_wait();
                    while self.close_one_idle() {}
                    self.budget.pause(PAUSE).map_err(closed)?;
                }
                Err(error) => return Err(Error::io(Kind::Read, "opening the file", error)),
            }
        }
        let seconds = (PAUSE * TRIES as u32).as_secs_f32();
        let message = format!(
            "the system had no descriptor left for {seconds} s, not even for one file; this program holds {}",
            crate::sys::limits::open_files()
        );
        Err(Error::new(Kind::TooManyOpenFiles, message))
    }

    /// Where its records lie is known of another file, or of this one as it was: what lies there now may be anything.
    fn check(&self, path: &Path, handle: &Handle) -> Result<()> {
        let Some(known) = self.known.get(path) else { return Ok(()) };
        let now = handle
            .identity()
            .map_err(|error| Error::io(Kind::Read, "looking at the file", error))?;
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
            .with_hint("make the loader again: it looks at the file as it is now"))
    }

    fn permit(
        &self,
        position: u64,
        before_wait: &mut dyn FnMut(),
    ) -> std::result::Result<Permit, Closed> {
        loop {
            if let Some(permit) = self.budget.try_acquire(1, position) {
                return Ok(permit);
            }
            if !self.close_one_idle() {
                break;
            }
        }
        before_wait();
        // Announced first, then looked once more: a descriptor that became idle in between would
        // otherwise stay in the cache while we wait for it.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.close_one_idle();
        let permit = self.budget.acquire(1, position);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        permit
    }

    /// Closes the descriptor that was used least recently and is not in use.
    fn close_one_idle(&self) -> bool {
        let mut idle = self.idle.lock();
        let oldest = idle
            .iter()
            .rev()
            .find(|(_, opened)| Arc::strong_count(opened) == 1)
            .map(|(path, _)| path.clone());
        oldest.is_some_and(|path| idle.pop(&path).is_some())
    }

    /// How many are open.
    pub fn count(&self) -> u64 {
        self.budget.used()
    }

    /// Closes all that are not in use.
    pub(crate) fn close_idle(&self) {
        while self.close_one_idle() {}
    }
}

fn closed(_: Closed) -> Error {
    Error::new(Kind::Closed, "the loader is closed")
}

fn is_want_of_descriptors(error: &std::io::Error) -> bool {
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
            let open = OpenFiles::new(Budget::new("files", limit), Box::new(drop));
            let in_use = Mutex::new(BTreeMap::new());
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| for (position, number) in order.iter().enumerate() {
                        let path = folder.path().join(number.to_string());
                        let byte = open.with(&path, position as u64 + 1, &mut || (), |handle| {
                            // Asked of those who read, not of the budget, which may be passed by.
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
        let open = OpenFiles::new(Budget::new("files", 4), Box::new(drop));
        open.with(&path, 0, &mut || (), first_byte).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(open.with(&path, 0, &mut || (), first_byte).unwrap(), 0);
    }

    #[test]
    fn a_file_that_is_not_any_more_what_was_indexed_is_not_read() {
        let folder = folder(1);
        let path = folder.path().join("0");
        let known = || Handle::open(&path).unwrap().identity().unwrap();
        let before = known();
        let read = |known| {
            let open = OpenFiles::new(Budget::new("files", 4), Box::new(drop));
            open.knowing(vec![(path.clone(), known)]).with(&path, 0, &mut || (), first_byte)
        };
        assert_eq!(read(before).unwrap(), 0);
        // Another file of the same size and time, put in its place.
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
    fn a_file_that_is_not_there_is_named_by_the_system() {
        let open = OpenFiles::new(Budget::new("files", 4), Box::new(drop));
        let error = open.with(Path::new("/no/such/file"), 0, &mut || (), first_byte).unwrap_err();
        assert_eq!((error.kind(), error.os_error()), (Kind::Read, Some(2)));
        assert_eq!(open.count(), 0);
    }
}
