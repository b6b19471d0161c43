//! What all kinds of batches share: verdicts, replacements, repetitions, the account.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use super::{
    Account, BadAtFinish, BadSlot, Decision, EpochAction, EpochSettings, FaultCounts, JudgedFault,
    Limits, Membership, Order, Outcome, Pending, PolicyAction, Position, Purpose, Stop,
};
use crate::random::Random;

/// Samples that are tried in the place of a bad one, if they are bad as well.
pub const MAX_BAD_REPLACEMENTS: u32 = 8;
/// Samples that are tried in the place of a bad one, if the others are filtered out.
pub const MAX_REPLACEMENTS: u32 = 4096;

/// What all kinds of batches share.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) settings: EpochSettings,
    pub(super) limits: Limits,
    pub(super) account: Account,
    /// Bad samples in whose slots others are tried.
    pub(super) replacing: BTreeMap<u64, Replacing>,
    /// Repetitions that could not be used, in a row.
    pub(super) failed_repetitions: u64,
    /// Repetitions that turned out to be bad when their batches were finished, in a row.
    pub(super) failed_repetitions_at_finish: u64,
    /// Samples that filled other slots or were skipped, tried as repetitions, and repeated, of the whole epoch.
    pub(super) filled: u64,
    pub(super) tried: u64,
    pub(super) repeated: u64,
    pub(super) batch_number: u64,
    /// The ends, as slots, of batches that were delivered and not taken yet.
    pub(super) untaken: VecDeque<u64>,
    /// Decisions that wait for a batch before them to be finished.
    pub(super) pending: Pending,
    pub(super) bad_at_finish: BadAtFinish,
    /// Whether the last decision was made, though it may be pending.
    pub(super) is_ending: bool,
    pub(super) is_over: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Replacing {
    fault: JudgedFault,
    tried: u32,
    bad: u32,
}

/// What a result was good for.
pub(super) enum Accepted {
    /// Also if the sample is made again.
    Taken,
    Unexpected,
}

/// What is known about a slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    /// Its order was given out, or will be.
    Awaited(Order),
    /// Its result is here and was not judged yet.
    Arrived(Order, Outcome),
    /// Its sample can be used.
    Used(Order),
    /// It has none.
    Empty,
}

impl Slot {
    /// Takes in a result, if it is the one that is awaited. A retry is decided at once: it changes nothing
    /// for any other sample.
    pub(super) fn put(
        &mut self,
        order: Order,
        outcome: Outcome,
        actions: &mut Vec<EpochAction>,
    ) -> Accepted {
        match *self {
            Slot::Awaited(awaited) if awaited == order => {
                if let Outcome::Bad { fault, policy_action: PolicyAction::Retry(after) } = outcome {
                    actions.push(EpochAction::RecordRetry { fault });
                    actions.push(EpochAction::Make(order, after));
                    return Accepted::Taken;
                }
                *self = Slot::Arrived(order, outcome);
                Accepted::Taken
            }
            Slot::Awaited(_) | Slot::Arrived(..) | Slot::Used(_) | Slot::Empty => {
                Accepted::Unexpected
            }
        }
    }

    pub(super) fn is_awaited(&self) -> bool {
        matches!(self, Slot::Awaited(_))
    }

    /// The shape of a sample that was made and is not judged yet.
    pub(super) fn shape(&self) -> Option<(u64, u32)> {
        match self {
            Slot::Arrived(order, Outcome::Good { shape, .. }) => Some((order.slot, *shape)),
            Slot::Awaited(_) | Slot::Arrived(..) | Slot::Used(_) | Slot::Empty => None,
        }
    }
}

/// How a sample that is used was counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counted {
    Good,
    /// As a bad one: what the user gave for it is used.
    Substituted,
}

/// What becomes of a slot whose result is judged.
pub(super) enum Next {
    /// The sample that was made is used.
    Use,
    /// It waits for another sample.
    Wait(Order),
    /// A bad sample was left out: the slot is filled, or stays empty.
    Skipped,
    /// A sample that was to be repeated cannot be.
    RepetitionFailed,
    /// The user's filter leaves the sample out.
    Filtered,
    /// The run is over.
    Stop,
}

impl State {
    /// Judges a result whose turn it is. `norm` is a slot and the shape that samples of the batch must have.
    pub(super) fn judge(
        &mut self,
        order: Order,
        outcome: Outcome,
        norm: Option<(u64, u32)>,
        actions: &mut Vec<EpochAction>,
    ) -> Next {
        let Some((fault, policy_action)) = self.fault(order, outcome, norm) else {
            return match outcome {
                Outcome::Filtered => self.count_filtered(order, actions),
                Outcome::Good { .. } | Outcome::Bad { .. } => self.count_good(order, actions),
            };
        };
        match order.purpose {
            Purpose::Replacement if policy_action != PolicyAction::Raise => {
                self.replace(order.slot, true, actions).map_or(Next::Stop, Next::Wait)
            }
            // It was judged when it was its turn.
            Purpose::Repetition if policy_action != PolicyAction::Raise => Next::RepetitionFailed,
            Purpose::Planned | Purpose::Fill | Purpose::Replacement | Purpose::Repetition => {
                self.judge_fault(order.slot, fault, policy_action, actions)
            }
        }
    }

    /// What is wrong with a sample, and what the policy says about it.
    pub(super) fn fault(
        &self,
        order: Order,
        outcome: Outcome,
        norm: Option<(u64, u32)>,
    ) -> Option<(JudgedFault, PolicyAction)> {
        let Order { slot, sequence, .. } = order;
        match (outcome, norm, self.settings.misfit) {
            (Outcome::Bad { fault, policy_action }, ..) => {
                Some((JudgedFault::Reported(fault), policy_action))
            }
            (Outcome::Good { shape, .. }, Some((like, wanted)), Some(policy_action))
                if shape != wanted =>
            {
                Some((JudgedFault::Misfit { slot, sequence, like }, policy_action))
            }
            (Outcome::Good { .. } | Outcome::Filtered, ..) => None,
        }
    }

    pub(super) fn count_good(&mut self, order: Order, actions: &mut Vec<EpochAction>) -> Next {
        match order.purpose {
            Purpose::Planned | Purpose::Fill => self.decide(Decision::Good(1), actions),
            // It is reported with its batch: whether it can be used is known when that is finished.
            Purpose::Replacement if self.settings.membership == Membership::Fixed => {}
            Purpose::Replacement => self.replaced(order, actions),
            Purpose::Repetition => {
                self.failed_repetitions = 0;
                self.repeated += 1;
                self.account.repeated += 1;
            }
        }
        Next::Use
    }

    pub(super) fn count_filtered(&mut self, order: Order, actions: &mut Vec<EpochAction>) -> Next {
        match order.purpose {
            Purpose::Planned | Purpose::Fill => {
                self.decide(Decision::Filtered, actions);
                Next::Filtered
            }
            Purpose::Replacement => {
                self.replace(order.slot, false, actions).map_or(Next::Stop, Next::Wait)
            }
            Purpose::Repetition => Next::RepetitionFailed,
        }
    }

    /// A sample of a batch that is complete is used.
    pub(super) fn confirm(&mut self, order: Order, actions: &mut Vec<EpochAction>) {
        match order.purpose {
            Purpose::Planned | Purpose::Fill | Purpose::Repetition => {}
            Purpose::Replacement => self.replaced(order, actions),
        }
    }

    /// Judges a sample that was used and is bad after all, as was found when its batch was finished. `was` says
    /// how it was counted.
    pub(super) fn judge_used(
        &mut self,
        order: Order,
        bad: BadSlot,
        was: Counted,
        actions: &mut Vec<EpochAction>,
    ) -> Next {
        let BadSlot { slot, fault, policy_action } = bad;
        match (order.purpose, was) {
            (Purpose::Planned | Purpose::Fill, Counted::Good) => self.limits.take_back_good(),
            (Purpose::Planned | Purpose::Fill, Counted::Substituted) => self.account.replaced -= 1,
            (Purpose::Replacement, _) if policy_action != PolicyAction::Raise => {
                return self.replace(slot, true, actions).map_or(Next::Stop, Next::Wait);
            }
            (Purpose::Replacement, _) => {}
            (Purpose::Repetition, _) => {
                self.repeated -= 1;
                self.account.repeated -= 1;
                self.failed_repetitions_at_finish += 1;
                if policy_action != PolicyAction::Raise {
                    return Next::RepetitionFailed;
                }
            }
        }
        self.judge_fault(slot, JudgedFault::Reported(fault), policy_action, actions)
    }

    pub(super) fn judge_fault(
        &mut self,
        slot: u64,
        fault: JudgedFault,
        policy_action: PolicyAction,
        actions: &mut Vec<EpochAction>,
    ) -> Next {
        self.decide(Decision::Fault { fault, policy_action }, actions);
        if self.is_over || self.is_ending {
            return Next::Stop;
        }
        match policy_action {
            PolicyAction::Skip => Next::Skipped,
            PolicyAction::Substitute => Next::Use,
            PolicyAction::Replace => {
                self.replacing.insert(slot, Replacing { fault, tried: 0, bad: 0 });
                self.replace(slot, false, actions).map_or(Next::Stop, Next::Wait)
            }
            PolicyAction::Raise | PolicyAction::Retry(_) => Next::Stop,
        }
    }

    /// The next sample to try in a slot; None if the run is over because none can be used.
    pub(super) fn replace(
        &mut self,
        slot: u64,
        was_bad: bool,
        actions: &mut Vec<EpochAction>,
    ) -> Option<Order> {
        let (samples, epoch) = (self.settings.samples, self.settings.epoch);
        let replacing = self.replacing.get_mut(&slot)?;
        replacing.bad += u32::from(was_bad);
        let Replacing { fault, tried, bad } = *replacing;
        if bad == MAX_BAD_REPLACEMENTS || tried == MAX_REPLACEMENTS {
            self.stop(Stop::NoReplacement { fault, tried, bad }, actions);
            return None;
        }
        replacing.tried += 1;
        let sequence = Random::keyed(&[epoch, slot, u64::from(tried)]).below(samples);
        let order = Order { slot, sequence, purpose: Purpose::Replacement };
        actions.push(EpochAction::Make(order, Duration::ZERO));
        Some(order)
    }

    /// A replacement can be used.
    pub(super) fn replaced(&mut self, order: Order, actions: &mut Vec<EpochAction>) {
        if let Some(Replacing { fault, .. }) = self.replacing.remove(&order.slot) {
            self.decide(Decision::Replacement { fault, by: order.sequence }, actions);
        }
    }

    /// The next sample to repeat in a slot; None if all were tried in vain.
    pub(super) fn repeat(&mut self, slot: u64, actions: &mut Vec<EpochAction>) -> Option<Order> {
        if self.failed_repetitions.max(self.failed_repetitions_at_finish) >= self.settings.samples {
            return None;
        }
        let sequence = self.tried % self.settings.samples;
        self.tried += 1;
        let order = Order { slot, sequence, purpose: Purpose::Repetition };
        actions.push(EpochAction::Make(order, Duration::ZERO));
        Some(order)
    }

    pub(super) fn drop_batch(
        &mut self,
        samples: Vec<(u64, u64)>,
        repeated: u64,
        actions: &mut Vec<EpochAction>,
    ) {
        // Samples that only repeat others are not missed.
        self.account.dropped += samples.len() as u64 - repeated;
        self.account.repeated -= repeated;
        let slots = samples.into_iter().map(|(slot, _)| slot).collect();
        actions.push(EpochAction::Drop { slots });
    }

    pub(super) fn position(&self, slot: u64, tried: u64, waiting: Vec<(u64, u64)>) -> Position {
        let State { filled, repeated, .. } = *self;
        // How verdicts stand is known when the batch is delivered.
        Position { slot, filled, tried, repeated, waiting, standing: FaultCounts::default() }
    }

    pub(super) fn stop(&mut self, stop: Stop, actions: &mut Vec<EpochAction>) {
        self.decide(Decision::Stop(stop), actions);
    }

    /// All samples were judged.
    pub(super) fn finish(&mut self, actions: &mut Vec<EpochAction>) {
        self.decide(Decision::End, actions);
    }

    pub(super) fn end(&mut self, actions: &mut Vec<EpochAction>) {
        self.is_over = true;
        let account = self.account;
        actions.push(if account.adds_up() {
            EpochAction::End(account)
        } else {
            EpochAction::Stop(Stop::DoesNotAddUp(account))
        });
    }
}

/// The shape that most of these samples have, and the first slot with it. Of equally many, the first.
pub(super) fn most_common(shapes: impl Iterator<Item = (u64, u32)>) -> Option<(u64, u32)> {
    let mut seen: Vec<(u64, u32, u64)> = Vec::new();
    for (slot, shape) in shapes {
        match seen.iter_mut().find(|(_, other, _)| *other == shape) {
            Some((.., count)) => *count += 1,
            None => seen.push((slot, shape, 1)),
        }
    }
    let most = seen.into_iter().reduce(|most, other| if other.2 > most.2 { other } else { most });
    most.map(|(slot, shape, _)| (slot, shape))
}
