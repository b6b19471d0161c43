//! One epoch as its consumer sees it: an iterator of batches over the threads that make them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::consumer::Receipt;
use super::run::{Delivery, Run};
use super::{Progress, Shared};
use crate::deliver::Taken;
use crate::error::{Error, Kind, Result};
use crate::metrics::Report;
use crate::sample::Batch;
use crate::sys::clock;
use crate::sys::lock::Mutex;
use crate::sys::process::OwnerProcess;
use crate::sys::thread::Threads;

/// How long closing waits for threads; a read that hangs in the kernel is then left behind.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// How long an iterator waits before it checks for events.
const LOOK: Duration = Duration::from_secs(1);

/// The threads of an epoch.
pub(super) struct Running {
    pub(super) run: Arc<Run>,
    threads: Threads,
    started: Instant,
    /// Whether its end is recorded.
    pub(super) ended: Mutex<bool>,
    home: OwnerProcess,
}

impl Running {
    pub(super) fn start(shared: Arc<Shared>, start: Progress) -> Result<Running> {
        let threads = shared.kept_threads.clone().unwrap_or_default();
        let run = Run::start(shared, start, &threads)?;
        let (started, ended) = (clock::now(), Mutex::new(false));
        Ok(Running { run, threads, started, ended, home: OwnerProcess::here() })
    }

    /// Adds its duration, and how busy its stages were.
    pub(super) fn measure(&self, report: &mut Report) {
        let elapsed = self.started.elapsed();
        report.elapsed += elapsed;
        let shared = &self.run.shared;
        report.busy = self.run.meters.shares(elapsed, shared.readers, shared.threads);
        let (hits, misses, corrupt) = self.run.cache_meters.read();
        report.cache_hits += hits;
        report.cache_misses += misses;
        report.cache_corrupt += corrupt;
    }

    /// Ends every wait and all threads.
    pub(super) fn close(&self) {
        if self.home.is_forked() {
            return;
        }
        self.run.close();
        self.threads.wait(GRACE);
        self.run.release();
        self.run.flush_cache();
        self.close_account(None)
            .unwrap_or_else(|_| unreachable!("only an epoch at its end must add up"));
    }

    /// Records the end of the epoch, once: at its end with this many samples dropped, or before.
    fn close_account(&self, dropped: Option<u64>) -> Result<()> {
        let mut ended = self.ended.lock();
        if std::mem::replace(&mut *ended, true) {
            return Ok(());
        }
        let ledger = &self.run.shared.ledger;
        ledger.measure(|report| self.measure(report));
        match dropped {
            Some(dropped) => ledger.epoch_ended(dropped),
            None => {
                ledger.epoch_abandoned();
                Ok(())
            }
        }
    }
}

/// One epoch: an iterator of batches. Dropping it ends its threads.
pub struct Epoch {
    pub(super) running: Arc<Running>,
    /// Whether the consumer has seen its end, or its error.
    pub(super) is_finished: bool,
    /// What to record once the consumer has the batch that was taken last.
    receipt: Option<Receipt>,
}

impl Epoch {
    pub(super) fn new(running: Arc<Running>) -> Epoch {
        Epoch { running, is_finished: false, receipt: None }
    }

    /// The next batch, if there is one within this time. None for the end of the epoch.
    pub fn next_within(&mut self, time: Duration) -> Result<Waited> {
        let waited = self.take_within(time);
        self.confirm();
        waited
    }

    /// Like `next_within`, for a consumer that may still lose the batch: it counts as delivered, and states
    /// include it, only after `confirm`.
    pub fn take_within(&mut self, time: Duration) -> Result<Waited> {
        self.check_home()?;
        self.confirm();
        let (taken, receipt) = self.wait_within(time);
        self.receipt = receipt;
        let run = &self.running.run;
        match taken {
            Taken::NotYet => Ok(Waited::NotYet),
            Taken::Ready(delivery) => Ok(Waited::Batch(Box::new(delivery.batch))),
            Taken::Ended => {
                if run.is_closed() && !self.is_finished {
                    let message = "the epoch was abandoned: the loader was closed, or another epoch was started";
                    return Err(Error::new(Kind::Closed, message));
                }
                self.is_finished = true;
                self.end()?;
                Ok(Waited::End)
            }
            Taken::Failed(error) => {
                self.is_finished = true;
                self.running.close();
                Err(error)
            }
        }
    }

    pub(super) fn check_home(&self) -> Result<()> {
        if self.running.home.is_forked() {
            let message = format!(
                "the epoch was started in process {} and used in its fork, where its threads do not exist",
                self.running.home.pid()
            );
            return Err(Error::new(Kind::UsedAfterFork, message));
        }
        Ok(())
    }

    /// Confirms that the consumer has the batch that was taken last.
    pub fn confirm(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.running.run.confirmed(receipt);
        }
    }

    fn wait_within(&self, time: Duration) -> (Taken<Delivery, Error>, Option<Receipt>) {
        let run = &self.running.run;
        let before = clock::now();
        let taken = run.handoff.take(before + time);
        let waited = before.elapsed();
        let receipt = match &taken {
            Taken::NotYet => {
                run.add_waiting(waited);
                None
            }
            Taken::Ready(delivery) => Some(run.taken(delivery, waited)),
            Taken::Ended | Taken::Failed(_) => None,
        };
        (taken, receipt)
    }

    /// Whether there are events to take. Cheap.
    pub fn has_events(&self) -> bool {
        self.running.run.shared.ledger.has_events()
    }

    pub(super) fn end(&self) -> Result<()> {
        if *self.running.ended.lock() {
            return Ok(());
        }
        let dropped = self.running.run.finish();
        self.running.run.flush_cache();
        let settled = self.running.close_account(Some(dropped));
        self.running.close();
        settled
    }
}

/// The result of a wait.
pub enum Waited {
    /// The next batch.
    Batch(Box<Batch>),
    /// The epoch is over.
    End,
    /// Not yet.
    NotYet,
}

impl Iterator for Epoch {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        loop {
            match self.next_within(LOOK) {
                Ok(Waited::Batch(batch)) => return Some(Ok(*batch)),
                Ok(Waited::End) => return None,
                Ok(Waited::NotYet) => {}
                Err(error) if error.kind() == Kind::Closed => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        self.running.close();
    }
}
