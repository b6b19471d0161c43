//! What went wrong with a sample, and what the policy wants to be done about it, for native pipelines, torch
//! loaders and executors alike; the engine decides. Pure: times and counts come as arguments.

mod breaker;
mod causes;
mod line;
mod policy;
mod symptom;

pub use crate::engine::{Limit, Standing};
pub use breaker::{Breaker, Change, Pace, Try};
pub use causes::Causes;
pub use line::{CALLING, FaultLine, named};
pub use policy::{Action, Backoff, FaultPolicy, Rule, Ruling, is_of_sample, wanted};
pub use symptom::Symptom;

use crate::error::Error;
use crate::sample::{Stage, Ticket};

/// One sample could not be made.
#[derive(Debug)]
pub struct Fault {
    /// Which one.
    pub ticket: Ticket,
    /// Where on its path.
    pub stage: Stage,
    /// How often it was tried.
    pub attempts: u32,
    /// What happened; names the sample and its place.
    pub error: Error,
}

impl Fault {
    /// A fault of that sample in that stage, at the first try.
    pub fn new(ticket: Ticket, stage: Stage, error: Error) -> Fault {
        Fault { ticket, stage, attempts: 1, error: error.of_sample(ticket.index, stage.name()) }
    }

    /// As reports and the quarantine file tell it.
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
