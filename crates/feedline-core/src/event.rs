//! Nothing is decided without an event: reports, logs and metrics are all made from these.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Kind;
use crate::fault::Fault;
use crate::sample::Stage;

/// Something was decided or has happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// An epoch begins.
    EpochStarted {
        /// Which one.
        epoch: u64,
        /// How many samples are due.
        expected: u64,
    },
    /// The consumer took a batch.
    BatchDelivered {
        /// How many it holds.
        samples: u64,
        /// How long the consumer waited for it.
        waited: Duration,
    },
    /// A bad sample was left out.
    SampleSkipped(FaultLine),
    /// Another sample took the place of a bad one.
    SampleReplaced {
        /// The bad one.
        fault: FaultLine,
        /// The index of the other.
        by: u64,
    },
    /// The system refused what a budget allowed, which is smaller now.
    BudgetShrunk {
        /// Which one.
        budget: &'static str,
        /// Before.
        from: u64,
        /// After.
        to: u64,
    },
    /// The system refused some threads; the run goes on with fewer.
    ThreadsRefused {
        /// How many were asked for.
        wanted: usize,
        /// How many there are.
        got: usize,
    },
    /// An epoch came to its end.
    EpochEnded {
        /// Samples of a last short batch that `drop_last` left out.
        dropped: u64,
    },
    /// The consumer left an epoch, or an error ended it, before its end.
    EpochLeft,
}

/// A fault in words, as reports tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultLine {
    /// Which sample of the source.
    pub index: u64,
    /// In which epoch.
    pub epoch: u64,
    /// Where its bytes lie.
    pub path: Option<PathBuf>,
    /// Where on its path.
    pub stage: Stage,
    /// What kind.
    pub kind: Kind,
    /// What happened.
    pub message: String,
}

impl From<&Fault> for FaultLine {
    fn from(fault: &Fault) -> FaultLine {
        FaultLine {
            index: fault.ticket.index,
            epoch: fault.ticket.epoch,
            path: fault.error.location().map(|location| location.path.clone()),
            stage: fault.stage,
            kind: fault.error.kind(),
            message: fault.error.message().to_owned(),
        }
    }
}
