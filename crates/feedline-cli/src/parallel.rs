//! Distributes work over threads, with a progress bar.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::sys::lock::Mutex;
use feedline_core::sys::thread::Threads;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::report::Progress;

/// How often the bar is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Work done so far, counted by the threads.
#[derive(Default)]
pub(crate) struct Done(AtomicU64);

impl Done {
    pub(crate) fn add(&self, steps: u64) {
        self.0.fetch_add(steps, Ordering::Relaxed);
    }
}

struct Shared<T, R, F> {
    work: Vec<T>,
    next: AtomicUsize,
    done: Done,
    results: Mutex<Vec<Option<R>>>,
    each: F,
}

/// Maps `work` with several threads, each with a state of its own. The results are in the order of the work.
pub(crate) fn share<S, T, R, F>(
    work: Vec<T>,
    threads: usize,
    mut progress: Progress,
    each: F,
) -> Result<Vec<R>>
where
    S: Default,
    T: Send + Sync + 'static,
    R: Send + 'static,
    F: Fn(&mut S, &T, &Done) -> R + Send + Sync + 'static,
{
    let threads = threads.clamp(1, work.len().max(1));
    let results = Mutex::new(work.iter().map(|_| None).collect());
    let (next, done) = (AtomicUsize::new(0), Done::default());
    let shared = Arc::new(Shared { work, next, done, results, each });
    let run = |shared: Arc<Shared<T, R, F>>| {
        let mut state = S::default();
        loop {
            let number = shared.next.fetch_add(1, Ordering::Relaxed);
            let Some(work) = shared.work.get(number) else { return };
            let result = (shared.each)(&mut state, work, &shared.done);
            shared.results.lock()[number] = Some(result);
        }
    };
    let parallel = Threads::default();
    for number in 0..threads {
        let shared = Arc::clone(&shared);
        // If the system refuses a thread, the others do its part.
        let _ = parallel.spawn(&format!("feedline-{number}"), move || run(shared));
    }
    if parallel.count() == 0 {
        run(Arc::clone(&shared));
    }
    while !parallel.wait(REDRAW_INTERVAL) {
        progress.set(shared.done.0.load(Ordering::Relaxed));
    }
    progress.set(shared.done.0.load(Ordering::Relaxed));
    progress.finish();
    let results = std::mem::take(&mut *shared.results.lock());
    let lost = || Error::new(Kind::Internal, "a thread ended without a result");
    results.into_iter().map(|result| result.ok_or_else(lost)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_work_whichever_thread_did_it() {
        let work: Vec<u64> = (0..1000).collect();
        let progress = Progress::new("counting", 1000);
        let doubled = share(work, 4, progress, |_: &mut (), number, done| {
            done.add(1);
            number * 2
        });
        assert_eq!(doubled.unwrap(), (0..1000).map(|number| number * 2).collect::<Vec<_>>());
    }

    #[test]
    fn a_thread_that_panics_is_an_error_and_not_a_shorter_list() {
        let progress = Progress::new("counting", 3);
        let outcome = share(vec![1, 2, 3], 1, progress, |_: &mut (), number, _| {
            assert!(*number < 2, "on purpose");
        });
        assert_eq!(outcome.unwrap_err().kind(), Kind::Internal);
    }
}
