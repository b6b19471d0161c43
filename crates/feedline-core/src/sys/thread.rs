//! Named threads which can be refused, counted, and waited for with a deadline.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::clock;
use super::lock::{Condition, Mutex};

/// Threads of one run. Its count reaches zero when the last one is gone.
#[derive(Clone, Default)]
pub struct Threads {
    alive: Arc<(Mutex<usize>, Condition)>,
    handles: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Threads {
    /// Starts a thread of that name. The system may refuse (EAGAIN): that is an answer for the caller.
    pub fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        // Before the start: a thread that ends at once must already be counted.
        *self.alive.0.lock() += 1;
        let leave = ThreadLeft(Arc::clone(&self.alive));
        #[expect(clippy::disallowed_methods, reason = "this is the home of threads")]
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _leave = leave;
            work();
        });
        self.handles.lock().push(started?);
        Ok(())
    }

    /// How many are at work.
    pub fn count(&self) -> usize {
        *self.alive.0.lock()
    }

    /// Waits until all are gone, for `grace` at most; true if they are. A thread stuck in a read
    /// that the kernel does not end is left behind: it holds nothing but its own share of the run.
    pub fn wait(&self, grace: Duration) -> bool {
        let deadline = clock::now() + grace;
        let (alive, changed) = &*self.alive;
        let mut alive = alive.lock();
        while *alive > 0 {
            let is_late;
            (alive, is_late) = changed.wait_until(alive, deadline);
            if is_late && *alive > 0 {
                return false;
            }
        }
        drop(alive);
        // Their work is done: this only waits until the system has put them away too.
        for handle in self.handles.lock().drain(..) {
            let _ = handle.join();
        }
        true
    }
}

struct ThreadLeft(Arc<(Mutex<usize>, Condition)>);

impl Drop for ThreadLeft {
    fn drop(&mut self) {
        let (alive, changed) = &*self.0;
        *alive.lock() -= 1;
        changed.notify_all();
    }
}

/// How many threads may compute at once here: affinity and CPU quota are counted.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
