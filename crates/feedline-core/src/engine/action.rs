//! What goes into the engine and what comes out: results of orders, and actions.

use core::time::Duration;

use super::{Account, Position, TooMany};

/// The action of the policy for this fault, before limits are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// Make the sample again after this time.
    Retry(Duration),
    /// End the run with the fault; with `Membership::Unordered` only its batch.
    Raise,
    /// Leave the sample out.
    Skip,
    /// Use another sample of the epoch.
    Replace,
    /// Use what the user gave for this; the result has it already.
    Substitute,
}

/// The result of making a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was made.
    Good {
        /// The bucket that it belongs to; 0 if there are none.
        bucket: u32,
        /// Samples fit into one batch if this number is the same.
        shape: u32,
    },
    /// It was made, and the user's filter leaves it out.
    Filtered,
    /// It could not be made.
    Bad {
        /// A name for the fault, chosen by the driver.
        fault: u64,
        /// What the policy says about it.
        policy_action: PolicyAction,
    },
}

/// A sample to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The slot that it is for. A slot has one order at a time.
    pub slot: u64,
    /// Which sample of the epoch.
    pub sequence: u64,
    /// Why it is made.
    pub purpose: Purpose,
}

impl Order {
    /// The order of the sample that a slot has without faults.
    pub fn planned(slot: u64) -> Order {
        Order { slot, sequence: slot, purpose: Purpose::Planned }
    }
}

/// Why a sample is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It is the sample of that slot.
    Planned,
    /// It moves from the end of the epoch into the slot of a skipped one. This is its only turn.
    Fill,
    /// It is used a second time, in the slot of a bad one.
    Replacement,
    /// It is used a second time, so that every rank has as many as the others.
    Repetition,
}

/// What a driver must do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum EpochAction {
    /// Make a sample, after this time. Earlier results for the slot are of no use any more.
    Make(Order, Duration),
    /// Give the rest of the plan with `Engine::plan` and `Engine::plan_ends`. Only with `BatchPlan::Given`.
    ReadPlan,
    /// The orders of all slots below this one that `Engine::next_order` has not given out are given out by this.
    /// Only with `Moves::Remade`.
    Order {
        /// The next slot that `Engine::next_order` gives out, if there is one.
        below: u64,
    },
    /// A sample that was ordered fills another slot now. If it was made, it belongs there; if not, its result
    /// does. With `Moves::Remade`, and if the slots are of two batches, the results of all samples of the later
    /// batch are of no use any more: it is made again without this sample, which a `Make` orders once more.
    Move {
        /// The slot that it was for.
        from: u64,
        /// The slot that it is for.
        to: u64,
    },
    /// Count another attempt at a sample, and log it.
    RecordRetry {
        /// As the driver named it.
        fault: u64,
    },
    /// Write down a fault, before any later action is performed.
    Record {
        /// What it is.
        fault: JudgedFault,
        /// What becomes of it.
        verdict: Verdict,
    },
    /// Write down that another sample was found in the place of a bad one.
    RecordReplacement {
        /// As the driver named it.
        fault: JudgedFault,
        /// The sequence of the sample that is used instead.
        by: u64,
    },
    /// Finish a batch whose samples are known, and report the result with `Engine::finished`. Only if
    /// `EpochSettings::finishes` says so.
    Finish(UnfinishedBatch),
    /// Hand over a batch.
    Deliver(DeliveredBatch),
    /// These samples are in a batch that is left out because it is not full.
    Drop {
        /// Their slots.
        slots: Vec<u64>,
    },
    /// A batch is not delivered: one of its samples has failed, or it was cancelled. These are its samples that have
    /// neither been skipped nor failed; results of them are not awaited any more. Only with `Membership::Unordered`.
    Cancel {
        /// The number of the batch, as it was planned.
        number: u64,
        /// The slots of these samples.
        slots: Vec<u64>,
    },
    /// Nothing more comes; raise the error after the batches before it.
    Stop(Stop),
    /// Nothing more comes, and everything adds up.
    End(Account),
}

/// A fault that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgedFault {
    /// One that was reported with a result, as the driver named it.
    Reported(u64),
    /// The sample of this slot does not fit most of its batch, such as that of the other slot.
    Misfit {
        /// Whose sample does not fit.
        slot: u64,
        /// Which sample of the epoch that is.
        sequence: u64,
        /// Whose sample fits to the batch.
        like: u64,
    },
}

/// What becomes of a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The sample is left out.
    Skip,
    /// Another sample is used instead; `RecordReplacement` says which.
    Replace,
    /// What the user gave is used instead.
    Substitute,
    /// Its batch fails with the fault, and the run goes on. Only with `Membership::Unordered`.
    Fail,
    /// The run ends with the fault.
    Raise,
    /// The run ends, for there were too many.
    TooMany(TooMany),
}

/// Why a run ends before its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// With this fault.
    Raised(JudgedFault),
    /// With this fault, which is one too many.
    TooMany(JudgedFault, TooMany),
    /// This many samples were tried in the place of a bad one, and none could be used.
    NoReplacement {
        /// What is wrong with the sample.
        fault: JudgedFault,
        /// Samples that were tried.
        tried: u32,
        /// Those of them that were bad; the others were filtered out.
        bad: u32,
    },
    /// A result that is not awaited: a bug of the driver.
    Unexpected(Order),
    /// Samples are missing: a bug of the engine.
    DoesNotAddUp(Account),
}

/// A batch whose samples are known, to be finished by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedBatch {
    /// The number of this action in the epoch. A batch that is finished again gets another one.
    pub number: u64,
    /// The slots that it has, in order, and the sequence of the sample in each.
    pub samples: Vec<(u64, u64)>,
}

/// The result of finishing a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It can be delivered.
    Good,
    /// It cannot be delivered with these samples. The batch is finished again when they are judged, with those
    /// that take their slots, if there are any.
    Bad(Vec<BadSlot>),
}

/// A sample that turned out to be bad when its batch was finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSlot {
    /// Its slot.
    pub slot: u64,
    /// A name for the fault, chosen by the driver.
    pub fault: u64,
    /// What the policy says about it. Not a retry: the driver retries by itself.
    pub policy_action: PolicyAction,
}

/// A batch that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveredBatch {
    /// Batches of this epoch are counted from here, without empty ones; with `Membership::Unordered` as they were
    /// planned.
    pub number: u64,
    /// The slots that it has, in order, and the sequence of the sample in each.
    pub samples: Vec<(u64, u64)>,
    /// How many of them repeat others.
    pub repeated: u64,
    /// Where the epoch stands when the consumer has it.
    pub position: Position,
}
