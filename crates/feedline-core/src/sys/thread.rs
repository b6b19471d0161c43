//! Named threads that are counted and waited for with a deadline.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::clock;
use super::lock::{Condition, Mutex};

/// The threads of one run.
#[derive(Clone, Default)]
pub struct Threads {
    alive: Arc<(Mutex<usize>, Condition)>,
    handles: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Threads {
    /// Starts a thread. The system may refuse (EAGAIN), which the caller must handle.
    pub fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        // Count before the start: a thread that ends at once must already be counted.
        *self.alive.0.lock() += 1;
        let guard = ThreadGuard(Arc::clone(&self.alive));
        #[expect(clippy::disallowed_methods, reason = "this is the home of threads")]
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _guard = guard;
            work();
        });
        self.handles.lock().push(started?);
        Ok(())
    }

    /// The number of running threads.
    pub fn count(&self) -> usize {
        *self.alive.0.lock()
    }

    /// Waits at most `grace` until all threads have ended, and returns whether they have. A thread
    /// stuck in a read that the kernel does not end is abandoned: it holds only its own share of
    /// the run.
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
        // Their work is done: this only waits for the system to free them.
        for handle in self.handles.lock().drain(..) {
            let _ = handle.join();
        }
        true
    }
}

struct ThreadGuard(Arc<(Mutex<usize>, Condition)>);

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        let (alive, changed) = &*self.0;
        *alive.lock() -= 1;
        changed.notify_all();
    }
}
