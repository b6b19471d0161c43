//! Decisions that are not issued yet, because the driver is still finishing a batch before them. Which
//! samples come into the next batches does not have to wait for that; verdicts do, because one too many ends the
//! run: they are passed in order.

use std::collections::VecDeque;

use super::{
    BadSlot, DeliveredBatch, EpochAction, Fill, Finished, JudgedFault, PolicyAction, Position,
    State, Stop, UnfinishedBatch, Verdict,
};

/// Decisions in order, from a batch on that is being finished.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    decisions: VecDeque<Decision>,
    next_number: u64,
}

/// Something that was decided.
#[derive(Clone, Debug)]
pub(super) enum Decision {
    Good(u64),
    Filtered,
    Fault { fault: JudgedFault, policy_action: PolicyAction },
    Replacement { fault: JudgedFault, by: u64 },
    Finishing { number: u64, batch: Complete, result: Option<Finished> },
    Drop { samples: Vec<(u64, u64)>, repeated: u64 },
    Stop(Stop),
    End,
}

/// A batch that has all of its samples.
#[derive(Clone, Debug)]
pub(super) struct Complete {
    pub(super) samples: Vec<(u64, u64)>,
    pub(super) repeated: u64,
    /// The slot behind those that it settles.
    pub(super) end: u64,
    pub(super) position: Position,
    /// `State::bad_at_finish` when the position was taken.
    pub(super) bad_at_finish: BadAtFinish,
    /// Whether nothing is repeated after it.
    pub(super) is_last: bool,
}

/// Samples that turned out to be bad when their batch was finished.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BadAtFinish {
    skipped: u64,
    repetitions: u64,
}

impl Decision {
    /// Whether nothing is judged after it.
    fn ends_the_run(&self) -> bool {
        match self {
            Decision::Stop(_) | Decision::End => true,
            Decision::Fault { policy_action, .. } => {
                matches!(policy_action, PolicyAction::Raise | PolicyAction::Retry(_))
            }
            Decision::Good(_)
            | Decision::Filtered
            | Decision::Replacement { .. }
            | Decision::Finishing { .. }
            | Decision::Drop { .. } => false,
        }
    }
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.decisions.is_empty()
    }

    /// The slot behind the first batch that is being finished.
    pub(super) fn end_of_batch(&self) -> Option<u64> {
        match self.decisions.front() {
            Some(Decision::Finishing { batch, .. }) => Some(batch.end),
            Some(_) | None => None,
        }
    }

    /// The result of finishing a batch.
    pub(super) fn finished(&mut self, number: u64, finished: Finished) {
        for decision in &mut self.decisions {
            if let Decision::Finishing { number: other, result, .. } = decision
                && *other == number
            {
                *result = Some(finished);
                return;
            }
        }
    }

    fn push(&mut self, decision: Decision) {
        match (self.decisions.back_mut(), decision) {
            (Some(Decision::Good(count)), Decision::Good(more)) => *count += more,
            (_, decision) => self.decisions.push_back(decision),
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }
}

impl State {
    /// Issues a decision, or keeps it until the batches before it are finished.
    pub(super) fn decide(&mut self, decision: Decision, actions: &mut Vec<EpochAction>) {
        if self.is_over || self.is_ending {
            return;
        }
        self.is_ending = decision.ends_the_run();
        if self.pending.is_empty() {
            self.issue(decision, actions);
        } else {
            self.pending.push(decision);
        }
    }

    /// A batch has all of its samples: it is delivered, or finished first.
    pub(super) fn complete(&mut self, batch: Complete, actions: &mut Vec<EpochAction>) {
        if !self.settings.finishes {
            return self.deliver(batch, actions);
        }
        let decision = self.finishing(batch, actions);
        self.pending.push(decision);
    }

    fn finishing(&mut self, batch: Complete, actions: &mut Vec<EpochAction>) -> Decision {
        let number = self.pending.number();
        let samples = batch.samples.clone();
        actions.push(EpochAction::Finish(UnfinishedBatch { number, samples }));
        Decision::Finishing { number, batch, result: None }
    }

    /// Issues what no longer waits for a batch.
    pub(super) fn issue_pending(&mut self, actions: &mut Vec<EpochAction>) {
        while !self.is_over
            && let Some(decision) = self.pending.decisions.pop_front()
        {
            let Decision::Finishing { number, batch, result } = decision else {
                self.issue(decision, actions);
                continue;
            };
            match result {
                None => {
                    let decision = Decision::Finishing { number, batch, result };
                    return self.pending.decisions.push_front(decision);
                }
                Some(Finished::Good) => self.deliver(batch, actions),
                Some(Finished::Bad(slots)) => self.take_out(batch, &slots, actions),
            }
        }
    }

    /// Samples that turned out to be bad are left out of their batch, and the rest is finished again. Those of
    /// later batches are known already, so nothing moves up.
    fn take_out(&mut self, mut batch: Complete, slots: &[BadSlot], actions: &mut Vec<EpochAction>) {
        let full = batch.samples.len();
        for &BadSlot { slot, fault, policy_action } in slots {
            let fault = JudgedFault::Reported(fault);
            if slot >= self.settings.samples && policy_action == PolicyAction::Skip {
                // It was judged when it was its turn.
                self.repeated -= 1;
                if batch.repeated > 0 {
                    batch.repeated -= 1;
                    self.account.repeated -= 1;
                } else {
                    // It was repeated before the epoch was continued.
                    self.account.due -= 1;
                }
                self.bad_at_finish.repetitions += 1;
                self.failed_repetitions_at_finish += 1;
            } else {
                if batch.samples.contains(&(slot, slot)) {
                    // Another one that replaces a bad one was not counted as good.
                    self.limits.take_back_good();
                }
                let stop = Stop::NoReplacement { fault, tried: 0, bad: 0 };
                self.issue(Decision::Fault { fault, policy_action }, actions);
                if policy_action == PolicyAction::Replace && !self.is_over {
                    self.issue(Decision::Stop(stop), actions);
                }
            }
            if self.is_over {
                return;
            }
            if policy_action == PolicyAction::Skip {
                let is_planned = u64::from(slot < self.settings.samples);
                self.filled += is_planned;
                self.bad_at_finish.skipped += is_planned;
                batch.samples.retain(|(other, _)| *other != slot);
            }
        }
        if batch.samples.is_empty() {
        } else if self.settings.drop_last && batch.samples.len() < full {
            self.drop_batch(batch.samples, batch.repeated, actions);
        } else {
            let decision = self.finishing(batch, actions);
            self.pending.decisions.push_front(decision);
        }
    }

    fn issue(&mut self, decision: Decision, actions: &mut Vec<EpochAction>) {
        match decision {
            Decision::Good(samples) => self.limits.add_good(samples),
            Decision::Filtered => {
                self.limits.add_good(1);
                self.account.filtered += 1;
            }
            Decision::Fault { fault, policy_action } => {
                self.issue_fault(fault, policy_action, actions)
            }
            Decision::Replacement { fault, by } => {
                self.account.replaced += 1;
                actions.push(EpochAction::RecordReplacement { fault, by });
            }
            Decision::Finishing { .. } => self.pending.push(decision),
            Decision::Drop { samples, repeated } => self.drop_batch(samples, repeated, actions),
            Decision::Stop(stop) => {
                self.is_over = true;
                actions.push(EpochAction::Stop(stop));
            }
            Decision::End => self.end(actions),
        }
    }

    /// What becomes of a fault, which is counted.
    pub(super) fn verdict(&mut self, policy_action: PolicyAction) -> Verdict {
        match (policy_action, self.limits.add_fault()) {
            (PolicyAction::Raise | PolicyAction::Retry(_), _) => Verdict::Raise,
            (_, Some(too_many)) => Verdict::TooMany(too_many),
            (PolicyAction::Skip, None) => Verdict::Skip,
            (PolicyAction::Replace, None) => Verdict::Replace,
            (PolicyAction::Substitute, None) => Verdict::Substitute,
        }
    }

    fn issue_fault(
        &mut self,
        fault: JudgedFault,
        policy_action: PolicyAction,
        actions: &mut Vec<EpochAction>,
    ) {
        let verdict = self.verdict(policy_action);
        actions.push(EpochAction::Record { fault, verdict });
        match verdict {
            Verdict::Skip => self.account.skipped += 1,
            Verdict::Substitute => self.account.replaced += 1,
            // Not of what is judged in order: it ends the run.
            Verdict::Replace | Verdict::Fail => {}
            Verdict::Raise => self.issue(Decision::Stop(Stop::Raised(fault)), actions),
            Verdict::TooMany(too_many) => {
                self.issue(Decision::Stop(Stop::TooMany(fault, too_many)), actions);
            }
        }
    }

    /// Hands over a batch.
    pub(super) fn deliver(&mut self, batch: Complete, actions: &mut Vec<EpochAction>) {
        let Complete { samples, repeated, end, mut position, bad_at_finish, is_last } = batch;
        // What was issued since the position was taken belongs to batches before this one.
        position.filled += self.bad_at_finish.skipped - bad_at_finish.skipped;
        position.repeated -= self.bad_at_finish.repetitions - bad_at_finish.repetitions;
        if is_last && self.settings.finishes && self.settings.fill == Fill::FromEndAndRepeat {
            position.repeated = position.repeated.max(position.filled);
            position.tried = position.tried.max(position.repeated);
        }
        position.standing = self.limits.standing.clone();
        self.failed_repetitions_at_finish = 0;
        self.account.delivered += samples.len() as u64;
        self.untaken.push_back(end);
        let number = self.batch_number;
        self.batch_number += 1;
        actions.push(EpochAction::Deliver(DeliveredBatch { number, samples, repeated, position }));
    }
}
