//! Decides everything about one epoch: which sample is made for which slot, what becomes of a bad one, which
//! samples are in which batch, and when the epoch is over.
//!
//! It is given results and gives back actions. It knows numbers and nothing else: no data, no files, no
//! threads, no clock, so that a simulator can put it through any schedule. What it decides depends on the results
//! alone and never on the order in which they arrive, but for calls that have no order (`Membership::Unordered`).
//!
//! An epoch has *slots*, numbered from 0, one for each of its samples. The sample of slot n is the one with
//! *sequence* n in the order of this rank. If a sample is bad, its slot is filled with another one, or stays
//! empty; the table in docs/faults.md says when.

mod account;
mod action;
mod fixed;
mod gathered;
mod limits;
mod pending;
mod position;
mod settings;
#[cfg(test)]
mod simulator;
mod state;
mod unordered;

pub use account::Account;
pub use action::{
    BadSlot, DeliveredBatch, EpochAction, Finished, JudgedFault, Order, Outcome, PolicyAction,
    Purpose, Stop, UnfinishedBatch, Verdict,
};
pub use limits::{FaultCounts, Limit, Limits, ShareOf, TooMany};
pub use position::Position;
pub use settings::{BatchPlan, EpochSettings, Fill, Membership, Moves};
pub use state::{MAX_BAD_REPLACEMENTS, MAX_REPLACEMENTS};

use std::collections::{BTreeMap, VecDeque};

use fixed::Fixed;
use gathered::Gathered;
use pending::{BadAtFinish, Complete, Decision, Pending};
use state::{Accepted, Counted, Next, Slot, State, most_common};
use unordered::Unordered;

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
    Unordered(Unordered),
}

impl Engine {
    /// An epoch that continues from a position; from the default one, it begins.
    pub fn new(settings: EpochSettings, position: Position) -> Engine {
        let Position { slot, filled, tried, repeated, waiting, standing } = position;
        let mut limits = Limits::new(settings.limit, settings.window);
        let expected = settings.epoch_samples.unwrap_or(settings.samples);
        limits.begin(standing, (settings.plan == BatchPlan::Known).then_some(expected));
        let batches = match settings.membership {
            Membership::Fixed => Batches::Fixed(Fixed::new(&settings, slot, filled)),
            Membership::Gathered | Membership::Buckets(_) => {
                Batches::Gathered(Gathered::new(&settings, slot, tried, waiting))
            }
            Membership::Unordered => Batches::Unordered(Unordered::default()),
        };
        let state = State {
            settings,
            limits,
            account: Account::default(),
            replacing: BTreeMap::new(),
            failed_repetitions: 0,
            failed_repetitions_at_finish: 0,
            filled,
            tried,
            repeated,
            batch_number: 0,
            untaken: VecDeque::new(),
            pending: Pending::default(),
            bad_at_finish: BadAtFinish::default(),
            is_ending: false,
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
            Batches::Unordered(unordered) => unordered.orders_left(),
        }
    }

    /// The next sample that is to be made anyway; None if all were given out.
    pub fn next_order(&mut self) -> Option<Order> {
        if self.state.is_over || self.state.is_ending {
            return None;
        }
        match &mut self.batches {
            Batches::Fixed(fixed) => fixed.next_order(),
            Batches::Gathered(gathered) => gathered.next_order(),
            Batches::Unordered(unordered) => unordered.next_order(),
        }
    }

    /// The slot of the order that `next_order` gives next.
    pub fn next_slot(&self) -> Option<u64> {
        match &self.batches {
            _ if self.orders_left() == 0 => None,
            Batches::Fixed(fixed) => Some(fixed.next_slot()),
            Batches::Gathered(gathered) => Some(gathered.next_slot()),
            Batches::Unordered(unordered) => Some(unordered.next_slot()),
        }
    }

    /// How many `next_order` has at this moment.
    pub fn orders_left(&self) -> u64 {
        match &self.batches {
            _ if self.state.is_over || self.state.is_ending => 0,
            Batches::Fixed(fixed) => fixed.orders_left(),
            Batches::Gathered(gathered) => gathered.orders_left(),
            Batches::Unordered(unordered) => unordered.orders_left(),
        }
    }

    /// An order as it is now: its sample may have moved to another slot since it was given out.
    pub fn current(&self, order: Order) -> Order {
        match &self.batches {
            Batches::Fixed(fixed) => fixed.current(order),
            Batches::Gathered(_) | Batches::Unordered(_) => order,
        }
    }

    /// The next batch of the plan has this many samples. Not with `BatchPlan::Known`.
    pub fn plan(&mut self, size: u64) {
        match &mut self.batches {
            Batches::Fixed(fixed) => fixed.plan(size, &mut self.state),
            Batches::Gathered(_) => {}
            Batches::Unordered(unordered) => unordered.plan(size, &mut self.state),
        }
    }

    /// Like `plan`, for the last batch, if it has fewer samples than it should have: it is dropped if short batches
    /// are, and its samples can fill the slots of others.
    pub fn plan_short(&mut self, size: u64) {
        if let Batches::Fixed(fixed) = &mut self.batches {
            fixed.plan_short(size, &mut self.state);
        }
    }

    /// All batches were given.
    pub fn plan_ends(&mut self) {
        match &mut self.batches {
            Batches::Fixed(fixed) => fixed.plan_ends(&mut self.state),
            Batches::Gathered(_) => {}
            Batches::Unordered(unordered) => unordered.plan_ends(),
        }
    }

    /// The batch that was given with this slot as its first one is not wanted any more. Results that were reported before are
    /// judged. Only with `Membership::Unordered`.
    pub fn cancel(&mut self, first: u64, actions: &mut Vec<EpochAction>) {
        self.advance(actions);
        match &mut self.batches {
            Batches::Unordered(unordered) => unordered.cancel(first, &mut self.state, actions),
            Batches::Fixed(_) | Batches::Gathered(_) => {}
        }
    }

    /// The result of an order. It is judged by `advance`.
    pub fn add_result(&mut self, order: Order, outcome: Outcome, actions: &mut Vec<EpochAction>) {
        if self.state.is_over || self.state.is_ending {
            return;
        }
        let accepted = match &mut self.batches {
            Batches::Fixed(fixed) => fixed.put(order, outcome, actions),
            Batches::Gathered(gathered) => gathered.put(order, outcome, actions),
            Batches::Unordered(unordered) => unordered.put(order, outcome, actions),
        };
        if let Accepted::Unexpected = accepted {
            self.state.stop(Stop::Unexpected(order), actions);
        }
    }

    /// Decides what can be decided by now: also before the first result, for an epoch that was continued may have
    /// nothing left to make.
    pub fn advance(&mut self, actions: &mut Vec<EpochAction>) {
        match &mut self.batches {
            Batches::Fixed(fixed) => fixed.advance(&mut self.state, actions),
            Batches::Gathered(gathered) => gathered.advance(&mut self.state, actions),
            Batches::Unordered(unordered) => unordered.advance(&mut self.state, actions),
        }
    }

    /// The result of an `EpochAction::Finish`. It is judged by `advance`.
    pub fn finished(&mut self, number: u64, finished: Finished) {
        if self.state.is_over {
            return;
        }
        match &mut self.batches {
            Batches::Fixed(fixed) => fixed.finished(number, finished),
            Batches::Gathered(_) => self.state.pending.finished(number, finished),
            Batches::Unordered(_) => {}
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
            Batches::Unordered(unordered) => unordered.end_of_batch(),
        };
        let State { untaken, pending, .. } = &self.state;
        untaken.front().copied().or_else(|| pending.end_of_batch()).unwrap_or_else(next)
    }

    /// The first slot that is not in a batch that was taken, and not settled without one.
    pub fn settled_below(&self) -> u64 {
        let next = || match &self.batches {
            Batches::Fixed(fixed) => fixed.cursor(),
            Batches::Gathered(gathered) => gathered.cursor(),
            Batches::Unordered(unordered) => unordered.cursor(),
        };
        let State { untaken, pending, .. } = &self.state;
        untaken.front().copied().or_else(|| pending.end_of_batch()).unwrap_or_else(next)
    }

    /// Whether each batch has the slots that it would have without faults.
    pub fn has_fixed_batches(&self) -> bool {
        matches!(self.batches, Batches::Fixed(_))
    }

    /// What the next verdict depends on.
    pub fn standing(&self) -> &FaultCounts {
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
