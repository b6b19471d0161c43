//! Judges faults: what went wrong with a sample, and what to do about it, for native pipelines, torch loaders and
//! executors alike. Pure: times and counts are arguments.

mod breaker;
mod causes;
mod line;
mod policy;
mod symptom;

pub use crate::engine::{FaultCounts, Limit};
pub use breaker::{Breaker, Change, Pace, SourceAccess};
pub use causes::Causes;
pub use line::{CALLING, FaultLine, named};
pub use policy::{Action, Backoff, FaultPolicy, ResolvedRule, Rule, is_of_sample, wanted};
pub use symptom::Symptom;

use crate::error::Error;
use crate::sample::{Stage, Ticket};

/// A sample could not be loaded.
#[derive(Debug)]
pub struct Fault {
    /// The sample.
    pub ticket: Ticket,
    /// The stage that failed.
    pub stage: Stage,
    /// The number of attempts.
    pub attempts: u32,
    /// The error, which names the sample and its place.
    pub error: Error,
}

impl Fault {
    /// A fault of this sample in this stage, at the first attempt.
    pub fn new(ticket: Ticket, stage: Stage, error: Error) -> Fault {
        Fault {
            ticket,
            stage,
            attempts: 1,
            error: error.of_sample(ticket.index, ticket.epoch, stage.name()),
        }
    }

    /// The fault as in reports and the quarantine file.
    pub fn line(&self) -> FaultLine {
        let location = self.error.location();
        FaultLine {
            epoch: self.ticket.epoch,
            path: location.map(|location| location.path.to_string_lossy().into_owned()),
            offset: location.and_then(|location| location.offset),
            record: location.and_then(|location| location.record),
            stage: self.stage.name().to_owned(),
            message: self.error.message().to_owned(),
            attempts: self.attempts,
            ..FaultLine::new(self.ticket.index, self.error.kind().name())
        }
    }
}
