//! Decides everything about one epoch: which sample is made for which slot, what becomes of a bad one, which
//! samples are in which batch, and when the epoch is over.
//!
//! It is given results and gives back actions. It knows numbers and nothing else: no data, no files, no
//! threads, no clock. What it decides depends on the results alone and never on the order in which they
//! arrive, so that a simulator can put it through any schedule.
//!
//! An epoch has *slots*, numbered from 0, one for each of its samples. The sample of slot n is the one with
//! *sequence* n in the order of this rank. If a sample is bad, its slot is filled with another one, or stays
//! empty; the table in docs/faults.md says when.

mod account;
mod fixed;
mod gathered;
mod limits;
#[cfg(test)]
mod simulator;

pub use account::Account;
pub use limits::{Limit, Limits, Of, Standing, TooMany};

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use crate::random::Random;
use fixed::Fixed;
use gathered::Gathered;

/// Samples that are tried in the place of a bad one, if they are bad as well.
pub const MAX_BAD_REPLACEMENTS: u32 = 8;
/// Samples that are tried in the place of a bad one, if the others are filtered out.
pub const MAX_REPLACEMENTS: u32 = 4096;

/// What an epoch is like.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Samples of this rank in one epoch.
    pub samples: u64,
    /// Samples in a full batch.
    pub batch_size: u64,
    /// Whether batches that are not full are left out.
    pub drop_last: bool,
    /// Which samples are in which batch.
    pub membership: Membership,
    /// What becomes of the slot of a skipped sample.
    pub fill: Fill,
    /// Whether samples may have shapes that do not fit into one batch, and what is done about one then.
    pub misfit: Option<Wish>,
    /// How many faults are allowed.
    pub limit: Option<Limit>,
    /// Samples over which a share is judged.
    pub window: u64,
    /// The number of the epoch: what replaces a bad sample depends on it.
    pub epoch: u64,
}

/// Which samples are in which batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// A batch has the slots that it would have without faults.
    Fixed,
    /// The next good samples, as they come: after one that is left out, the others move up.
    Gathered,
    /// As `Gathered`, with a batch size for each bucket.
    Buckets(Vec<u64>),
}

/// What becomes of the slot of a skipped sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// It stays empty: the batch is smaller.
    Never,
    /// The last sample of the epoch that is not used yet moves into it. If batches are gathered, the next
    /// samples move up instead. Either way the epoch is shorter.
    FromEnd,
    /// As `FromEnd`; at the end the first samples are repeated, so that every rank has as many as the others.
    FromEndAndRepeat,
}

/// What the policy says about a fault, looked at alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Make the sample again after this time.
    Retry(Duration),
    /// End the run with the fault.
    Raise,
    /// Leave the sample out.
    Skip,
    /// Use another sample of the epoch.
    Replace,
    /// Use what the user gave for this; the result that came has it already.
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
        wish: Wish,
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
pub enum Action {
    /// Make a sample, after this time. What came for the slot before is of no use any more.
    Make(Order, Duration),
    /// A sample that was ordered fills another slot now. If it was made, it belongs there; if not, what comes of
    /// it does.
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
        fault: Fault,
        /// What becomes of it.
        verdict: Verdict,
    },
    /// Write down that another sample was found in the place of a bad one.
    RecordReplacement {
        /// As the driver named it.
        fault: Fault,
        /// The sequence of the sample that is used instead.
        by: u64,
    },
    /// Hand over a batch.
    Deliver(Batch),
    /// These samples are in a batch that is left out because it is not full.
    Drop {
        /// Their slots.
        slots: Vec<u64>,
    },
    /// Nothing more comes; raise the error after the batches before it.
    Stop(Stop),
    /// Nothing more comes, and everything adds up.
    End(Account),
}

/// A fault that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One that came as a result, as the driver named it.
    Reported(u64),
    /// The sample of this slot does not fit to most of its batch, such as that of the other slot.
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
    /// The run ends with the fault.
    Raise,
    /// The run ends, for there were too many.
    TooMany(TooMany),
}

/// Why a run ends before its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// With this fault.
    Raised(Fault),
    /// With this fault, which is one too many.
    TooMany(Fault, TooMany),
    /// This many samples were tried in the place of a bad one, and none could be used.
    NoReplacement {
        /// What is wrong with the sample.
        fault: Fault,
        /// Samples that were tried.
        tried: u32,
        /// Those of them that were bad; the others were filtered out.
        bad: u32,
    },
    /// A result came that is not awaited: a bug of the driver.
    Unexpected(Order),
    /// Samples are missing: a bug of the engine.
    DoesNotAddUp(Account),
}

/// A batch that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Batches of this epoch are counted from here, without empty ones.
    pub number: u64,
    /// The slots that it has, in order, and the sequence of the sample in each.
    pub samples: Vec<(u64, u64)>,
    /// How many of them repeat others.
    pub repeated: u64,
    /// Where the epoch stands when the consumer has it.
    pub position: Position,
}

/// Where an epoch stands: a new engine can continue from here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The first slot that is not settled.
    pub slot: u64,
    /// Samples at the end of the epoch that filled other slots; if batches are gathered, skipped samples.
    pub filled: u64,
    /// Samples, from the first one on, that were tried as repetitions.
    pub tried: u64,
    /// How many of them could be used.
    pub repeated: u64,
    /// Slots before `slot` whose samples are in no batch yet, ascending, and the sequences of these samples.
    pub waiting: Vec<(u64, u64)>,
    /// What the next verdict depends on.
    pub standing: Standing,
}

impl Position {
    /// Whether no further batch can come, so that the next epoch is due.
    pub fn is_at_end(&self, settings: &Settings) -> bool {
        let Settings { samples, batch_size, drop_last, .. } = *settings;
        let planned = samples.saturating_sub(self.slot);
        let missing = match settings.fill {
            Fill::FromEndAndRepeat => self.filled.saturating_sub(self.repeated),
            Fill::Never | Fill::FromEnd => 0,
        };
        let left = match (&settings.membership, settings.fill) {
            (Membership::Fixed, Fill::FromEnd) => planned.saturating_sub(self.filled),
            (Membership::Fixed, Fill::Never | Fill::FromEndAndRepeat) => planned,
            (Membership::Gathered, _) => planned + missing,
            (Membership::Buckets(_), _) => {
                let waiting = if drop_last { 0 } else { self.waiting.len() as u64 };
                return planned + missing + waiting == 0;
            }
        };
        left < if drop_last { batch_size } else { 1 }
    }
}

/// The decisions of one epoch.
#[derive(Clone, Debug)]
pub struct Engine {
    state: State,
    batches: Batches,
}

#[derive(Clone, Debug)]
enum Batches {
    Fixed(Fixed),
    Gathered(Gathered),
}

/// What both kinds of batches share.
#[derive(Clone, Debug)]
struct State {
    settings: Settings,
    limits: Limits,
    account: Account,
    /// Bad samples in whose slots others are tried.
    replacing: BTreeMap<u64, Replacing>,
    /// Repetitions that could not be used, in a row.
    useless: u64,
    /// Samples that filled other slots or were skipped, tried as repetitions, and repeated, of the whole epoch.
    filled: u64,
    tried: u64,
    repeated: u64,
    batch_number: u64,
    /// The ends, as slots, of batches that were delivered and not taken yet.
    untaken: VecDeque<u64>,
    is_over: bool,
}

#[derive(Clone, Copy, Debug)]
struct Replacing {
    fault: Fault,
    tried: u32,
    bad: u32,
}

impl Engine {
    /// An epoch that continues from a position; from the default one, it begins.
    pub fn new(settings: Settings, position: Position) -> Engine {
        let Position { slot, filled, tried, repeated, waiting, standing } = position;
        let mut limits = Limits::new(settings.limit, settings.window);
        limits.begin(standing, Some(settings.samples));
        let batches = match settings.membership {
            Membership::Fixed => Batches::Fixed(Fixed::new(&settings, slot, filled)),
            Membership::Gathered | Membership::Buckets(_) => {
                Batches::Gathered(Gathered::new(&settings, slot, tried, waiting))
            }
        };
        let state = State {
            settings,
            limits,
            account: Account::default(),
            replacing: BTreeMap::new(),
            useless: 0,
            filled,
            tried,
            repeated,
            batch_number: 0,
            untaken: VecDeque::new(),
            is_over: false,
        };
        let mut engine = Engine { state, batches };
        engine.state.account.due = engine.due();
        engine
    }

    /// Samples that are still to be accounted for.
    fn due(&self) -> u64 {
        match &self.batches {
            Batches::Fixed(fixed) => fixed.orders_left(),
            Batches::Gathered(gathered) => gathered.orders_left(),
        }
    }

    /// Decides what can be decided before the first result: an epoch may have nothing left to make.
    pub fn begin(&mut self, actions: &mut Vec<Action>) {
        self.advance(actions);
    }

    /// The next sample that is to be made anyway; None if all were given out.
    pub fn next_order(&mut self) -> Option<Order> {
        if self.state.is_over {
            return None;
        }
        match &mut self.batches {
            Batches::Fixed(fixed) => fixed.next_order(),
            Batches::Gathered(gathered) => gathered.next_order(),
        }
    }

    /// The slot of the order that `next_order` gives next.
    pub fn next_slot(&self) -> Option<u64> {
        match &self.batches {
            _ if self.orders_left() == 0 => None,
            Batches::Fixed(fixed) => Some(fixed.next_slot()),
            Batches::Gathered(gathered) => Some(gathered.next_slot()),
        }
    }

    /// How many `next_order` has at this moment.
    pub fn orders_left(&self) -> u64 {
        match &self.batches {
            _ if self.state.is_over => 0,
            Batches::Fixed(fixed) => fixed.orders_left(),
            Batches::Gathered(gathered) => gathered.orders_left(),
        }
    }

    /// An order as it is now: its sample may have moved to another slot since it was given out.
    pub fn current(&self, order: Order) -> Order {
        match &self.batches {
            Batches::Fixed(fixed) => fixed.current(order),
            Batches::Gathered(_) => order,
        }
    }

    /// What came of an order.
    pub fn result(&mut self, order: Order, outcome: Outcome, actions: &mut Vec<Action>) {
        if self.state.is_over {
            return;
        }
        let accepted = match &mut self.batches {
            Batches::Fixed(fixed) => fixed.put(order, outcome, actions),
            Batches::Gathered(gathered) => gathered.put(order, outcome, actions),
        };
        match accepted {
            Accepted::Taken => self.advance(actions),
            Accepted::Retried => {}
            Accepted::Unexpected => self.state.stop(Stop::Unexpected(order), actions),
        }
    }

    fn advance(&mut self, actions: &mut Vec<Action>) {
        match &mut self.batches {
            Batches::Fixed(fixed) => fixed.advance(&mut self.state, actions),
            Batches::Gathered(gathered) => gathered.advance(&mut self.state, actions),
        }
    }

    /// The consumer has taken the next batch.
    pub fn taken(&mut self) {
        self.state.untaken.pop_front();
    }

    /// The consumer waits for samples of slots below this one.
    pub fn needed_below(&self) -> u64 {
        let next = || match &self.batches {
            Batches::Fixed(fixed) => fixed.end_of_batch(),
            Batches::Gathered(gathered) => gathered.end_of_batch(),
        };
        self.state.untaken.front().copied().unwrap_or_else(next)
    }

    /// The first slot that is not in a batch that was taken, and not settled without one.
    pub fn settled_below(&self) -> u64 {
        let next = || match &self.batches {
            Batches::Fixed(fixed) => fixed.cursor(),
            Batches::Gathered(gathered) => gathered.cursor(),
        };
        self.state.untaken.front().copied().unwrap_or_else(next)
    }

    /// What the next verdict depends on.
    pub fn standing(&self) -> &Standing {
        &self.state.limits.standing
    }

    /// The consumer wants no more: nothing is decided from here on.
    pub fn close(&mut self) {
        self.state.is_over = true;
    }

    /// Whether nothing more comes.
    pub fn is_over(&self) -> bool {
        self.state.is_over
    }
}

/// What a result was good for.
enum Accepted {
    Taken,
    /// The sample is made again.
    Retried,
    Unexpected,
}

/// What is known about a slot.
#[derive(Clone, Copy, Debug)]
enum Slot {
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
    fn put(&mut self, order: Order, outcome: Outcome, actions: &mut Vec<Action>) -> Accepted {
        match *self {
            Slot::Awaited(awaited) if awaited == order => {
                if let Outcome::Bad { fault, wish: Wish::Retry(after) } = outcome {
                    actions.push(Action::RecordRetry { fault });
                    actions.push(Action::Make(order, after));
                    return Accepted::Retried;
                }
                *self = Slot::Arrived(order, outcome);
                Accepted::Taken
            }
            Slot::Awaited(_) | Slot::Arrived(..) | Slot::Used(_) | Slot::Empty => {
                Accepted::Unexpected
            }
        }
    }

    fn is_awaited(&self) -> bool {
        matches!(self, Slot::Awaited(_))
    }

    /// The shape of a sample that was made and is not judged yet.
    fn shape(&self) -> Option<(u64, u32)> {
        match self {
            Slot::Arrived(order, Outcome::Good { shape, .. }) => Some((order.slot, *shape)),
            Slot::Awaited(_) | Slot::Arrived(..) | Slot::Used(_) | Slot::Empty => None,
        }
    }
}

/// What becomes of a slot whose result is judged.
enum Next {
    /// The sample that came is used.
    Use,
    /// It waits for another sample.
    Wait(Order),
    /// A bad sample was left out: the slot is filled, or stays empty.
    Skipped,
    /// A sample that was to be repeated cannot be.
    Useless,
    /// The user's filter leaves the sample out.
    Filtered,
    /// The run is over.
    Stop,
}

impl State {
    /// Judges a result whose turn it is. `norm` is a slot and the shape that samples of the batch must have.
    fn judge(
        &mut self,
        order: Order,
        outcome: Outcome,
        norm: Option<(u64, u32)>,
        actions: &mut Vec<Action>,
    ) -> Next {
        let Some((fault, wish)) = self.fault(order, outcome, norm) else {
            return match outcome {
                Outcome::Filtered => self.count_filtered(order, actions),
                Outcome::Good { .. } | Outcome::Bad { .. } => self.count_good(order, actions),
            };
        };
        match order.purpose {
            Purpose::Replacement if wish != Wish::Raise => {
                self.replace(order.slot, true, actions).map_or(Next::Stop, Next::Wait)
            }
            // It was judged when it was its turn.
            Purpose::Repetition if wish != Wish::Raise => Next::Useless,
            Purpose::Planned | Purpose::Fill | Purpose::Replacement | Purpose::Repetition => {
                self.judge_fault(order.slot, fault, wish, actions)
            }
        }
    }

    /// What is wrong with a sample, and what the policy says about it.
    fn fault(
        &self,
        order: Order,
        outcome: Outcome,
        norm: Option<(u64, u32)>,
    ) -> Option<(Fault, Wish)> {
        let Order { slot, sequence, .. } = order;
        match (outcome, norm, self.settings.misfit) {
            (Outcome::Bad { fault, wish }, ..) => Some((Fault::Reported(fault), wish)),
            (Outcome::Good { shape, .. }, Some((like, wanted)), Some(wish)) if shape != wanted => {
                Some((Fault::Misfit { slot, sequence, like }, wish))
            }
            (Outcome::Good { .. } | Outcome::Filtered, ..) => None,
        }
    }

    fn count_good(&mut self, order: Order, actions: &mut Vec<Action>) -> Next {
        match order.purpose {
            Purpose::Planned | Purpose::Fill => self.limits.add_good(1),
            Purpose::Replacement => self.replaced(order, actions),
            Purpose::Repetition => {
                self.useless = 0;
                self.repeated += 1;
                self.account.repeated += 1;
            }
        }
        Next::Use
    }

    fn count_filtered(&mut self, order: Order, actions: &mut Vec<Action>) -> Next {
        match order.purpose {
            Purpose::Planned | Purpose::Fill => {
                self.limits.add_good(1);
                self.account.filtered += 1;
                Next::Filtered
            }
            Purpose::Replacement => {
                self.replace(order.slot, false, actions).map_or(Next::Stop, Next::Wait)
            }
            Purpose::Repetition => Next::Useless,
        }
    }

    fn judge_fault(
        &mut self,
        slot: u64,
        fault: Fault,
        wish: Wish,
        actions: &mut Vec<Action>,
    ) -> Next {
        let too_many = self.limits.add_fault();
        let verdict = match (wish, too_many) {
            (Wish::Raise | Wish::Retry(_), _) => Verdict::Raise,
            (_, Some(too_many)) => Verdict::TooMany(too_many),
            (Wish::Skip, None) => Verdict::Skip,
            (Wish::Replace, None) => Verdict::Replace,
            (Wish::Substitute, None) => Verdict::Substitute,
        };
        actions.push(Action::Record { fault, verdict });
        match verdict {
            Verdict::Skip => {
                self.account.skipped += 1;
                Next::Skipped
            }
            Verdict::Substitute => {
                self.account.replaced += 1;
                Next::Use
            }
            Verdict::Replace => {
                self.replacing.insert(slot, Replacing { fault, tried: 0, bad: 0 });
                self.replace(slot, false, actions).map_or(Next::Stop, Next::Wait)
            }
            Verdict::Raise => {
                self.stop(Stop::Raised(fault), actions);
                Next::Stop
            }
            Verdict::TooMany(too_many) => {
                self.stop(Stop::TooMany(fault, too_many), actions);
                Next::Stop
            }
        }
    }

    /// The next sample to try in a slot; None if the run is over because none can be used.
    fn replace(&mut self, slot: u64, was_bad: bool, actions: &mut Vec<Action>) -> Option<Order> {
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
        actions.push(Action::Make(order, Duration::ZERO));
        Some(order)
    }

    /// A replacement can be used.
    fn replaced(&mut self, order: Order, actions: &mut Vec<Action>) {
        if let Some(Replacing { fault, .. }) = self.replacing.remove(&order.slot) {
            self.account.replaced += 1;
            actions.push(Action::RecordReplacement { fault, by: order.sequence });
        }
    }

    /// The next sample to repeat in a slot; None if all were tried in vain.
    fn repeat(&mut self, slot: u64, actions: &mut Vec<Action>) -> Option<Order> {
        if self.useless >= self.settings.samples {
            return None;
        }
        let sequence = self.tried % self.settings.samples;
        self.tried += 1;
        let order = Order { slot, sequence, purpose: Purpose::Repetition };
        actions.push(Action::Make(order, Duration::ZERO));
        Some(order)
    }

    /// The batch of these slots is complete.
    fn deliver(
        &mut self,
        samples: Vec<(u64, u64)>,
        repeated: u64,
        end: u64,
        position: Position,
        actions: &mut Vec<Action>,
    ) {
        self.account.delivered += samples.len() as u64;
        self.untaken.push_back(end);
        let number = self.batch_number;
        self.batch_number += 1;
        actions.push(Action::Deliver(Batch { number, samples, repeated, position }));
    }

    fn drop_batch(&mut self, samples: Vec<(u64, u64)>, repeated: u64, actions: &mut Vec<Action>) {
        // Samples that only repeat others are not missed.
        self.account.dropped += samples.len() as u64 - repeated;
        self.account.repeated -= repeated;
        let slots = samples.into_iter().map(|(slot, _)| slot).collect();
        actions.push(Action::Drop { slots });
    }

    fn position(&self, slot: u64, tried: u64, waiting: Vec<(u64, u64)>) -> Position {
        let State { filled, repeated, .. } = *self;
        let standing = self.limits.standing.clone();
        Position { slot, filled, tried, repeated, waiting, standing }
    }

    fn stop(&mut self, stop: Stop, actions: &mut Vec<Action>) {
        self.is_over = true;
        actions.push(Action::Stop(stop));
    }

    fn finish(&mut self, actions: &mut Vec<Action>) {
        self.is_over = true;
        let account = self.account;
        actions.push(if account.adds_up() {
            Action::End(account)
        } else {
            Action::Stop(Stop::DoesNotAddUp(account))
        });
    }
}

/// The shape that most of these samples have, and the first slot with it. Of equally many, the first.
fn most_common(shapes: impl Iterator<Item = (u64, u32)>) -> Option<(u64, u32)> {
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
