//! Named threads that are counted and waited for with a deadline.
//!
//! Threads can be reserved before their work is known: the system may refuse some of them, and what each one does can
//! depend on how many there are.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::clock;
use super::lock::{Condition, Mutex};

/// Bytes of a name that the kernel keeps.
const NAME: usize = 15;

/// The threads of one run, or of several runs one after another.
#[derive(Clone, Default)]
pub struct Threads(Arc<SharedThreads>);

#[derive(Default)]
struct SharedThreads {
    state: Mutex<ThreadsState>,
    changed: Condition,
    /// Whether a thread that has done its work waits for more.
    is_kept: bool,
}

#[derive(Default)]
struct ThreadsState {
    work: VecDeque<NamedWork>,
    /// Threads that wait for work.
    idle: usize,
    /// Threads that work, or have work that they did not begin yet.
    busy: usize,
    /// The most threads that existed at a time.
    peak: usize,
    is_ended: bool,
    handles: Vec<JoinHandle<()>>,
}

type NamedWork = (String, Box<dyn FnOnce() + Send>);

impl Threads {
    /// Threads that stay when their work is done, for the next run, until `end`. So other code cannot take their place
    /// in a system that allows no more threads.
    pub fn kept() -> Threads {
        Threads(Arc::new(SharedThreads { is_kept: true, ..SharedThreads::default() }))
    }

    /// Sees to it that this many threads wait for work. Returns how many there are, and what the system said if there
    /// are fewer.
    pub fn reserve(&self, count: usize) -> (usize, Option<io::Error>) {
        loop {
            let mut state = self.0.state.lock();
            if state.idle >= count {
                return (count, None);
            }
            // Counted before the start: a thread that begins at once must already be counted.
            state.idle += 1;
            state.peak = state.peak.max(state.idle + state.busy);
            let shared = Arc::clone(&self.0);
            #[expect(clippy::disallowed_methods, reason = "this is the home of threads")]
            let started = std::thread::Builder::new()
                .name("feedline".to_owned())
                .spawn(move || shared.work_until_ended());
            match started {
                Ok(handle) => {
                    state.handles.retain(|handle| !handle.is_finished());
                    state.handles.push(handle);
                }
                Err(error) => {
                    state.idle -= 1;
                    return (state.idle, Some(error));
                }
            }
        }
    }

    /// Gives work to a thread that was reserved.
    ///
    /// # Panics
    /// If none was reserved.
    pub fn run(&self, name: &str, work: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        assert!(state.idle > 0, "no thread was reserved for {name}");
        state.idle -= 1;
        state.busy += 1;
        state.work.push_back((name.to_owned(), Box::new(work)));
        self.0.changed.notify_all();
    }

    /// Starts a thread. The system may refuse (EAGAIN), which the caller must handle.
    pub fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        match self.reserve(1) {
            (_, None) => {
                self.run(name, work);
                Ok(())
            }
            (_, Some(error)) => Err(error),
        }
    }

    /// The number of threads that work.
    pub fn count(&self) -> usize {
        self.0.state.lock().busy
    }

    /// The most threads that existed at a time.
    pub fn peak(&self) -> usize {
        self.0.state.lock().peak
    }

    /// Waits at most `grace` until the work of all threads is done, and returns whether it is. A thread stuck in a read
    /// that the kernel does not end is abandoned: it holds only its own share of the run. Threads that are not kept
    /// end.
    pub fn wait(&self, grace: Duration) -> bool {
        let deadline = clock::now() + grace;
        if !self.0.is_kept {
            self.0.state.lock().is_ended = true;
            self.0.changed.notify_all();
        }
        let mut state = self.0.state.lock();
        let is_done = |state: &ThreadsState| state.busy == 0 && (self.0.is_kept || state.idle == 0);
        while !is_done(&state) {
            let is_late;
            (state, is_late) = self.0.changed.wait_until(state, deadline);
            if is_late && !is_done(&state) {
                return false;
            }
        }
        if self.0.is_kept {
            return true;
        }
        let handles = std::mem::take(&mut state.handles);
        drop(state);
        // Their work is done: this only waits for the system to free them.
        for handle in handles {
            let _ = handle.join();
        }
        true
    }

    /// Ends threads that are kept, as soon as their work is done; waits at most `grace` for them.
    pub fn end(&self, grace: Duration) {
        let deadline = clock::now() + grace;
        let mut state = self.0.state.lock();
        state.is_ended = true;
        self.0.changed.notify_all();
        while state.busy + state.idle > 0 {
            let is_late;
            (state, is_late) = self.0.changed.wait_until(state, deadline);
            if is_late {
                return;
            }
        }
        let handles = std::mem::take(&mut state.handles);
        drop(state);
        for handle in handles {
            let _ = handle.join();
        }
    }
}

impl SharedThreads {
    /// One thread: does what it is given until there is no more.
    fn work_until_ended(&self) {
        loop {
            let mut state = self.state.lock();
            let (name, work) = loop {
                if let Some(work) = state.work.pop_front() {
                    break work;
                }
                if state.is_ended {
                    state.idle -= 1;
                    self.changed.notify_all();
                    return;
                }
                state = self.changed.wait(state);
            };
            drop(state);
            take_name(&name);
            let done = WorkDone(self);
            work();
            drop(done);
            if !self.is_kept {
                return;
            }
            take_name("feedline-idle");
        }
    }
}

/// Counts work as done, also if it panics.
struct WorkDone<'a>(&'a SharedThreads);

impl Drop for WorkDone<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.busy -= 1;
        if self.0.is_kept && !std::thread::panicking() {
            state.idle += 1;
        }
        self.0.changed.notify_all();
    }
}

/// Names this thread for /proc, debuggers and profilers.
fn take_name(name: &str) {
    let short = &name.as_bytes()[..name.len().min(NAME)];
    if let Ok(name) = CString::new(short) {
        // Without a name it works as well.
        let _ = rustix::thread::set_name(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const GRACE: Duration = Duration::from_secs(60);

    #[test]
    fn reserved_threads_get_their_work_and_end() {
        let (threads, done) = (Threads::default(), Arc::new(AtomicUsize::new(0)));
        assert_eq!(threads.reserve(3).0, 3);
        for number in 0..2 {
            let done = Arc::clone(&done);
            threads.run(&format!("test-{number}"), move || {
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        assert!(threads.wait(GRACE));
        assert_eq!((done.load(Ordering::SeqCst), threads.count(), threads.peak()), (2, 0, 3));
    }

    #[test]
    fn threads_that_are_kept_do_the_work_of_the_next_run() {
        let (threads, ids) = (Threads::kept(), Arc::new(Mutex::new(Vec::new())));
        for _ in 0..3 {
            assert_eq!(threads.reserve(1).0, 1);
            let ids = Arc::clone(&ids);
            threads.run("test", move || ids.lock().push(std::thread::current().id()));
            assert!(threads.wait(GRACE));
        }
        let ids = ids.lock();
        assert!(ids.len() == 3 && ids.iter().all(|id| *id == ids[0]));
        threads.end(GRACE);
        assert_eq!((threads.peak(), threads.0.state.lock().idle), (1, 0));
    }
}
