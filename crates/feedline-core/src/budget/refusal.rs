//! What happens when the system refuses what a budget allows (EMFILE, ENFILE, ENOMEM): what is idle is given back, the
//! budget shrinks, and after a pause it is tried again. It is given up only for a sample that has no other to wait for.

use std::time::Duration;

use super::{Budget, Closed, Holder};
use crate::error::{Error, Kind, Result};
use crate::sample::in_bytes;

/// How often, and after which pause, the system is asked again for a sample that cannot wait for others.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// A budget was lowered, because the system refused what it allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk {
    /// The name of the budget.
    pub budget: &'static str,
    /// The limit before.
    pub from: u64,
    /// The limit after.
    pub to: u64,
    /// What the system refused, and with which error.
    pub why: String,
}

/// Is called once in an epoch.
pub(crate) type OnShrunk = Box<dyn Fn(Shrunk) + Send + Sync>;

/// Why something was not granted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// The run has ended.
    Closed,
    /// The system refused it for this long, although nothing was left to wait for.
    Refused(Duration),
}

impl From<Closed> for RefusalReason {
    fn from(_: Closed) -> RefusalReason {
        RefusalReason::Closed
    }
}

impl Budget {
    /// Calls `attempt` until the system grants what it asks for; it returns what was refused. `before_wait` is called
    /// before each pause.
    ///
    /// A sample that is not urgent waits as long as others can still give something back: they are made meanwhile, and
    /// what they hold is freed. A sample that is urgent, or the only one that holds something, is given up after a
    /// number of attempts.
    pub(crate) fn insist<T>(
        &self,
        slot: u64,
        before_wait: &mut dyn FnMut(),
        mut attempt: impl FnMut() -> std::result::Result<T, String>,
    ) -> std::result::Result<T, RefusalReason> {
        let mut attempts = 0;
        loop {
            let why = match attempt() {
                Ok(granted) => return Ok(granted),
                Err(why) => why,
            };
            self.shrink_for(why);
            before_wait();
            self.reclaim_all();
            if self.is_last(slot) {
                attempts += 1;
                if attempts >= ATTEMPTS {
                    return Err(RefusalReason::Refused(PAUSE * ATTEMPTS));
                }
            }
            self.pause(PAUSE)?;
        }
    }

    /// Calls `attempt` until it has got memory; see `insist`.
    pub(crate) fn allocate<T>(
        &self,
        bytes: usize,
        what: &str,
        slot: u64,
        before_wait: &mut dyn FnMut(),
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let refused = || format!("the system refused {} for {what}", in_bytes(bytes as u64));
        let granted = self.insist(slot, before_wait, || {
            attempt().ok_or_else(|| format!("{} (ENOMEM)", refused()))
        });
        granted.map_err(|unmet| match unmet {
            RefusalReason::Closed => Error::new(Kind::Closed, "the loader is closed"),
            RefusalReason::Refused(time) => {
                let holders: Vec<_> =
                    self.holders_of_whole().iter().map(Holder::in_bytes).collect();
                let message = format!(
                    "{} for {} s, although no other sample is left to wait for; Feedline holds {}",
                    refused(),
                    time.as_secs_f32(),
                    if holders.is_empty() { "nothing else".to_owned() } else { holders.join(", ") }
                );
                Error::new(Kind::OutOfMemory, message)
            }
        })
    }

    /// Whether a sample at this slot has no other to wait for.
    fn is_last(&self, slot: u64) -> bool {
        let state = self.0.state.lock();
        slot < state.urgent_below || state.used == 0
    }

    /// Lowers the limit to one less than what is in use, but at least to one.
    fn shrink_for(&self, why: String) {
        let shrunk = {
            let mut state = self.0.state.lock();
            let from = state.limit;
            state.limit = state.limit.min(state.used.saturating_sub(1)).max(1);
            let is_first = !std::mem::replace(&mut state.is_shrunk, true);
            is_first.then(|| Shrunk { budget: self.0.name, from, to: state.limit, why })
        };
        if let (Some(shrunk), Some(on_shrunk)) = (shrunk, self.0.on_shrunk.get()) {
            on_shrunk(shrunk);
        }
    }

    /// From now on, `on_shrunk` is called when the limit is lowered, once in an epoch. It can be set once.
    pub(crate) fn notify_shrunk(&self, on_shrunk: OnShrunk) {
        let is_set = self.0.on_shrunk.set(on_shrunk).is_ok();
        debug_assert!(is_set, "a budget has one loader");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    #[test]
    fn a_refusal_of_the_system_shrinks_the_limit_once_and_never_to_nothing() {
        let budget = Budget::new("files", 100);
        let events = Arc::new(crate::sys::lock::Mutex::new(Vec::new()));
        let noted = Arc::clone(&events);
        budget.notify_shrunk(Box::new(move |shrunk| noted.lock().push(shrunk)));
        let held: Vec<_> = (0..20).map(|slot| budget.acquire(1, slot).unwrap()).collect();
        let mut left = 3;
        let granted = budget.insist(30, &mut || (), || {
            left -= 1;
            if left > 0 { Err("no descriptor".to_owned()) } else { Ok(7) }
        });
        assert_eq!((granted, budget.limit()), (Ok(7), 19));
        let shrunk = Shrunk { budget: "files", from: 100, to: 19, why: "no descriptor".to_owned() };
        assert_eq!(*events.lock(), [shrunk]);
        drop(held);
        let mut refused = true;
        let again = budget.insist(30, &mut || (), || {
            if std::mem::take(&mut refused) { Err(String::new()) } else { Ok(()) }
        });
        assert_eq!((again, budget.limit(), events.lock().len()), (Ok(()), 1, 1));
        budget.reopen();
        assert_eq!(budget.limit(), 100, "the next epoch tries again");
    }

    #[test]
    fn a_sample_that_has_no_other_to_wait_for_is_given_up() {
        let budget = Budget::new("bytes", 100);
        let refused: std::result::Result<(), _> =
            budget.insist(5, &mut || (), || Err(String::new()));
        assert_eq!(refused, Err(RefusalReason::Refused(PAUSE * ATTEMPTS)));
    }

    #[test]
    fn a_sample_that_is_not_urgent_waits_for_the_others() {
        let budget = Budget::new("bytes", 100);
        let _held = budget.acquire(60, 3).unwrap();
        let attempts = AtomicU32::new(0);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                budget.insist(5, &mut || (), || {
                    attempts.fetch_add(1, Ordering::SeqCst);
                    Err::<(), _>(String::new())
                })
            });
            let mut below = 0;
            while attempts.load(Ordering::SeqCst) < ATTEMPTS + 10 {
                // Others become urgent; each time it tries again at once.
                below = 1 - below;
                budget.set_urgent_below(below);
                thread::yield_now();
            }
            assert!(!waiter.is_finished());
            budget.set_urgent_below(6);
            assert_eq!(waiter.join().unwrap(), Err(RefusalReason::Refused(PAUSE * ATTEMPTS)));
        });
    }

    #[test]
    fn an_error_about_memory_lists_its_holders() {
        let budget = Budget::new("batches", 1 << 30);
        let _held = budget.acquire(96 << 20, 3).unwrap();
        budget.set_urgent_below(9);
        let refused = budget.allocate(5 << 20, "a batch", 5, &mut || (), || None::<()>);
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), Kind::OutOfMemory);
        for part in ["refused 5.0 MiB for a batch", "holds 96.0 MiB of 96.0 MiB for batches"] {
            assert!(error.message().contains(part), "{}", error.message());
        }
    }

    #[test]
    fn closing_ends_the_attempts() {
        let budget = Budget::new("bytes", 100);
        let _held = budget.acquire(60, 3).unwrap();
        let refused: std::result::Result<(), _> =
            budget.insist(5, &mut || budget.close(), || Err(String::new()));
        assert_eq!(refused, Err(RefusalReason::Closed));
    }
}
