//! Keeps readers from treating samples of a vanished source as bad: while it is unavailable they wait here, and one at
//! a time probes whether it is back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::ledger::Ledger;
use super::watch::Watch;
use crate::error::{Error, Kind};
use crate::escape;
use crate::event::Event;
use crate::fault::{Breaker, Change, Pace, SourceAccess, Symptom};
use crate::sys::clock;
use crate::sys::lock::{Deadline, Mutex};

/// How long a reader sleeps before it checks whether another has found the source again.
const NAP: Duration = Duration::from_millis(100);

/// What to do about a failed read.
pub(super) enum AfterFailure {
    /// The sample is at fault.
    OfSample,
    /// The source was unavailable: read the sample again.
    Again,
    /// The source was unavailable for too long.
    GivenUp(Error),
    /// The run is over.
    Closed,
}

/// The gate of one run.
pub(super) struct Gate {
    breaker: Mutex<Breaker>,
    watch: Watch,
    ledger: Arc<Ledger>,
    started: Instant,
    /// Whether the breaker must be notified of successful reads.
    is_suspect: AtomicBool,
}

impl Gate {
    pub(super) fn new(watch: Watch, ledger: Arc<Ledger>) -> Gate {
        let patience = ledger.policy().patience;
        let plain = Pace::default();
        let pace =
            Pace { first: plain.first.min(patience / 8), longest: plain.longest.min(patience / 4) };
        Gate {
            breaker: Mutex::new(Breaker::new(patience, pace)),
            watch,
            ledger,
            started: clock::now(),
            is_suspect: AtomicBool::new(false),
        }
    }

    /// Reports that a file was read.
    pub(super) fn worked(&self, path: &Path) {
        if self.is_suspect.load(Ordering::Relaxed) {
            let change = {
                let mut breaker = self.breaker.lock();
                self.is_suspect.store(false, Ordering::Relaxed);
                breaker.worked(self.started.elapsed())
            };
            self.emit(change, &self.watch.name(path), "");
        }
    }

    /// Whether the source is considered unavailable.
    pub(super) fn is_open(&self) -> bool {
        self.is_suspect.load(Ordering::Relaxed) && !self.breaker.lock().is_closed()
    }

    /// Reports that a read failed. Returns once it is known what to do, at the latest when the patience ends; calls
    /// `before_wait` before any wait.
    pub(super) fn failed(
        &self,
        symptom: &Symptom,
        path: &Path,
        ending: &Deadline,
        before_wait: &mut dyn FnMut(),
    ) -> AfterFailure {
        if !symptom.may_be_of_source() || self.ledger.policy().patience.is_zero() {
            self.worked(path);
            return AfterFailure::OfSample;
        }
        let seen = self.watch.probe(path);
        if seen.is_ok() && !symptom.is_transient_on_disk() {
            self.worked(path);
            return AfterFailure::OfSample;
        }
        self.report_probe(seen, path);
        if self.breaker.lock().is_closed() {
            return AfterFailure::OfSample;
        }
        before_wait();
        loop {
            let (step, change) = self.breaker.lock().may_try(self.started.elapsed());
            self.emit(change, &self.watch.name(path), "");
            match step {
                SourceAccess::Go => return AfterFailure::Again,
                SourceAccess::Wait(time) => {
                    if ending.wait(time.min(NAP)) {
                        return AfterFailure::Closed;
                    }
                }
                SourceAccess::Probe => match self.watch.probe(path) {
                    Ok(()) => return AfterFailure::Again,
                    Err(away) => self.report_probe(Err(away), path),
                },
                SourceAccess::GiveUp => {
                    let name = || self.watch.name(path);
                    let what = self.watch.probe(path).err().map_or_else(name, |(what, _)| what);
                    let patience = self.ledger.policy().patience.as_secs_f64();
                    let message =
                        format!("{} has been unavailable for {patience} s", what.display());
                    return AfterFailure::GivenUp(Error::new(Kind::SourceUnavailable, message));
                }
            }
        }
    }

    /// Reports the result of a probe.
    fn report_probe(&self, seen: Result<(), (PathBuf, String)>, path: &Path) {
        let change = {
            let mut breaker = self.breaker.lock();
            self.is_suspect.store(true, Ordering::Relaxed);
            breaker.failed(seen.is_ok(), self.started.elapsed())
        };
        match seen {
            Ok(()) => {
                let why = "reads fail one after another, although its root answers";
                self.emit(change, &self.watch.name(path), why);
            }
            Err((what, why)) => self.emit(change, &what, &why),
        }
    }

    fn emit(&self, change: Option<Change>, root: &Path, why: &str) {
        let root = || escape::path(root);
        match change {
            None | Some(Change::GaveUp { .. }) => {}
            Some(Change::Opened { .. }) => {
                let why = why.to_owned();
                self.ledger.event(Event::SourceUnavailable { root: root(), why, patience: None });
            }
            Some(Change::HalfOpened) => self.ledger.event(Event::SourceProbed { root: root() }),
            Some(Change::Closed { after }) => {
                self.ledger.event(Event::SourceRecovered { root: root(), after });
            }
        }
    }
}
