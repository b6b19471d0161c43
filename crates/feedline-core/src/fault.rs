//! What went wrong with one sample, and what is done about it: decided here and nowhere else.

use crate::error::{Error, Kind};
use crate::sample::{Stage, Ticket};

/// One sample could not be made.
#[derive(Debug)]
pub struct Fault {
    /// Which one.
    pub ticket: Ticket,
    /// Where on its path.
    pub stage: Stage,
    /// What happened; names the sample and its place.
    pub error: Error,
}

impl Fault {
    /// A fault of that sample in that stage.
    pub fn new(ticket: Ticket, stage: Stage, error: Error) -> Fault {
        Fault { ticket, stage, error: error.of_sample(ticket.index, stage.name()) }
    }
}

/// What to do about a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// End the run with the fault as its error.
    #[default]
    Raise,
    /// Leave the sample out; what follows moves up, so batches stay full.
    Skip,
    /// Put another sample of the source in its place.
    Replace,
}

/// How many faults of an epoch are borne.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// That many.
    Count(u64),
    /// That share of the samples of the epoch.
    Share(f64),
}

/// The user's wish for faults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultPolicy {
    /// What to do.
    pub then: Then,
    /// Up to how many; without one, any number.
    pub limit: Option<Limit>,
}

/// What is done about a fault.
#[derive(Debug)]
pub enum Verdict {
    /// The sample is left out.
    Skip,
    /// Another sample takes its place.
    Replace,
    /// The run ends with this.
    Stop(Error),
}

impl FaultPolicy {
    /// Decides. Asked in ticket order, so that the verdict depends on the faults and not on timing:
    /// `before` counts the faults of this epoch so far, `expected` its samples.
    pub fn judge(&self, fault: Fault, before: u64, expected: u64) -> (Verdict, Option<Fault>) {
        if !fault.error.kind().is_of_sample() || self.then == Then::Raise {
            return (Verdict::Stop(fault.error), None);
        }
        let allowed = match self.limit {
            None => u64::MAX,
            Some(Limit::Count(count)) => count,
            Some(Limit::Share(share)) => (share * expected as f64).floor() as u64,
        };
        let count = before + 1;
        if count > allowed {
            let limit = match self.limit {
                Some(Limit::Share(share)) => format!("{allowed} ({share} of {expected} samples)"),
                Some(Limit::Count(_)) | None => allowed.to_string(),
            };
            let error = Error::new(
                Kind::TooManyFaults,
                format!(
                    "{count} faults are more than the limit of {limit}; the last one: sample {} failed in {}: {}",
                    fault.ticket.index,
                    fault.stage.name(),
                    fault.error.message(),
                ),
            )
            .at(fault.error.location().cloned())
            .of_sample(fault.ticket.index, fault.stage.name());
            return (Verdict::Stop(error), None);
        }
        match self.then {
            Then::Skip => (Verdict::Skip, Some(fault)),
            Then::Replace => (Verdict::Replace, Some(fault)),
            Then::Raise => unreachable!("returned above"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: Kind) -> Fault {
        let ticket = Ticket { position: 5, epoch: 0, index: 3 };
        Fault::new(ticket, Stage::Worker, Error::new(kind, "cut off"))
    }

    #[test]
    fn the_default_stops_with_the_fault_itself() {
        let (verdict, _) = FaultPolicy::default().judge(fault(Kind::Damaged), 0, 10);
        let Verdict::Stop(error) = verdict else { panic!("{verdict:?}") };
        assert_eq!((error.kind(), error.index()), (Kind::Damaged, Some(3)));
    }

    #[test]
    fn a_limit_is_what_is_still_borne() {
        let policy = FaultPolicy { then: Then::Skip, limit: Some(Limit::Count(2)) };
        assert!(matches!(policy.judge(fault(Kind::Damaged), 1, 10).0, Verdict::Skip));
        let (Verdict::Stop(error), _) = policy.judge(fault(Kind::Damaged), 2, 10) else {
            panic!("the third is one too many")
        };
        insta::assert_snapshot!(error);
    }

    #[test]
    fn a_share_is_of_the_samples_of_the_epoch() {
        let policy = FaultPolicy { then: Then::Skip, limit: Some(Limit::Share(0.01)) };
        assert!(matches!(policy.judge(fault(Kind::Damaged), 9, 1000).0, Verdict::Skip));
        assert!(matches!(policy.judge(fault(Kind::Damaged), 10, 1000).0, Verdict::Stop(_)));
    }

    #[test]
    fn want_of_descriptors_is_never_skipped_over() {
        let policy = FaultPolicy { then: Then::Skip, limit: None };
        assert!(matches!(policy.judge(fault(Kind::OutOfFiles), 0, 10).0, Verdict::Stop(_)));
    }
}
