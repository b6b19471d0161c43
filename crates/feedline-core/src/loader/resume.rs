//! The state of a loader, made and loaded: with the same ranks it is a position; with another number of ranks, what
//! those ranks had left is divided again. A state may be corrupt, or edited by hand.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Loader, Progress, Shared};
use crate::engine::{EpochSettings, FaultCounts, Fill, Membership, Position};
use crate::error::{Error, Kind, Result};
use crate::escape;
use crate::plan::{Reached, RestOrder};
use crate::run_state::{Ranks, RunState, SavedPosition, Taken};

/// Larger numbers are not valid counts of samples; sums of smaller numbers never overflow.
const LARGEST: u64 = 1 << 53;
/// How often the samples of an epoch can be tried as repetitions.
const ROUNDS: u64 = 64;

/// What a loader must have in common with a state that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Data and settings: the run continues exactly.
    Exact,
    /// Nothing that is known to differ matters.
    Loose,
}

impl Loader {
    /// The state of the consumer, after the last batch that it has.
    pub fn state(&self) -> RunState {
        let progress = self.shared.progress.lock().clone();
        self.shared.state(&progress)
    }

    /// Makes the next epoch continue from a state of the same data and settings.
    pub fn load_state(&self, state: &RunState) -> Result<()> {
        self.load_states(std::slice::from_ref(state), Fit::Exact)
    }

    /// As `load_state`, from one state or from those of all ranks of a run, in any order.
    pub fn load_states(&self, states: &[RunState], fit: Fit) -> Result<()> {
        self.check_open()?;
        let progress = self.shared.progress_of(states, fit)?;
        if let Some(running) = self.current.lock().take() {
            running.close();
        }
        self.shared.newest_epoch.store(progress.epoch, Ordering::Relaxed);
        *self.shared.progress.lock() = progress;
        self.shared.resumed.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The number of batches that are left of the epoch that runs or comes next: an upper bound if samples may be left
    /// out.
    pub fn batches_left(&self) -> u64 {
        let shared = &self.shared;
        let progress = shared.progress.lock().clone();
        let settings = shared.engine_settings(&progress);
        let is_begun = progress.position != Position::default() || progress.rest.is_some();
        if !is_begun || progress.position.is_at_end(&settings) {
            return self.len();
        }
        let Position { slot, filled, waiting, .. } = &progress.position;
        let from_end = match (&settings.membership, settings.fill) {
            (Membership::Fixed, Fill::FromEnd) => *filled,
            _ => 0,
        };
        let samples = settings.samples.saturating_sub(*slot).saturating_sub(from_end);
        self.batches_of(samples + waiting.len() as u64)
    }
}

impl Shared {
    pub(super) fn state(&self, progress: &Progress) -> RunState {
        let Progress { epoch, rest, position, taken } = progress;
        let rank_and_world = (self.plan.rank(), self.plan.world());
        let mut state = RunState::new(self.identity(), rank_and_world, *epoch);
        let is_begun = *position != Position::default() || rest.is_some();
        if is_begun {
            let (ranks, why) = self.ranks();
            (state.ranks, state.why) = (ranks, why.to_owned());
        }
        (state.batches, state.samples) = (taken.batches, taken.samples);
        state.position = SavedPosition::of(position);
        state.rest = rest.as_ref().map(|rest| rest.saved().clone());
        state
    }

    /// Which states another number of ranks needs in the middle of an epoch, and why.
    fn ranks(&self) -> (Ranks, &'static str) {
        if let Some(why) = self.plan.indivisible() {
            return (Ranks::Same, why);
        }
        if self.plan.world() == 1 {
            return (Ranks::Any, "");
        }
        let settings = self.engine_settings_of(0, 0, self.plan.world());
        match (settings.membership, settings.fill) {
            (Membership::Buckets(_), _) => {
                (Ranks::All, "each rank has other samples in its buckets")
            }
            (Membership::Gathered | Membership::Unordered, _) => {
                (Ranks::All, "samples are left out, so ranks come differently far")
            }
            (Membership::Fixed, Fill::FromEnd | Fill::FromEndAndRepeat)
                if self.settings.faults.may_skip() =>
            {
                (Ranks::All, "faults may be skipped, and each rank fills their places with others")
            }
            (Membership::Fixed, _) => (Ranks::Any, ""),
        }
    }

    /// Where states lead to. Refuses those that do not fit.
    fn progress_of(&self, states: &[RunState], fit: Fit) -> Result<Progress> {
        let states = complete(states)?;
        if fit == Fit::Exact {
            states.iter().try_for_each(|state| state.must_fit(self.identity()))?;
        }
        let first = earliest(&states);
        let is_counted = |samples: u64| {
            first.epoch.checked_mul(samples.max(1)).is_some_and(|product| product <= LARGEST)
        };
        if !is_counted(self.plan.epoch_len()) {
            return Err(corrupt(&format!("epoch {} does not belong to this run", first.epoch)));
        }
        let rest = match &first.rest {
            Some(saved) => Some(Arc::new(RestOrder::new(&self.plan, saved.clone())?)),
            None => None,
        };
        if rest.is_none() && states.iter().all(|state| is_start(state)) {
            return Ok(Progress::at_epoch(first.epoch));
        }
        let is_own = |state: &&&RunState| state.rank == self.plan.rank() || state.world == 0;
        let own = states.iter().find(is_own);
        let settings = self.engine_settings_of(first.epoch, 0, self.plan.world());
        // A state of another batch size may be within a batch of this one.
        let is_cut = fit == Fit::Loose
            && settings.membership == Membership::Fixed
            && !first.position.slot.is_multiple_of(settings.batch_size);
        let has_same_ranks = first.world == self.plan.world() || first.world == 0;
        match own {
            Some(own) if has_same_ranks && own.epoch > first.epoch => {
                Ok(Progress::at_epoch(own.epoch))
            }
            Some(own) if has_same_ranks && !is_cut => self.own_progress(own, rest, fit),
            None if has_same_ranks && !is_cut && first.ranks == Ranks::Any => {
                self.own_progress(first, rest, fit)
            }
            None if has_same_ranks && first.ranks != Ranks::Any => Err(self.refuse_rank(first)),
            Some(_) | None => self.divided_progress(&states, rest.as_deref(), fit),
        }
    }

    /// The progress of this rank from its own state, or from one that is as good.
    fn own_progress(
        &self,
        state: &RunState,
        rest: Option<Arc<RestOrder>>,
        fit: Fit,
    ) -> Result<Progress> {
        let taken = Taken { batches: state.batches, samples: state.samples };
        let mut progress = Progress { epoch: state.epoch, rest, taken, ..Progress::default() };
        let settings = self.engine_settings(&progress);
        let mut position = state.position.position();
        if state.rank != self.plan.rank() || fit == Fit::Loose {
            // At the end of an uneven epoch the other rank may have more, as may a larger data set.
            position.slot = position.slot.min(settings.samples);
        }
        progress.position = possible(position, &settings)?;
        Ok(progress)
    }

    /// The progress of this rank if other ranks made the states: what they have left is divided again.
    fn divided_progress(
        &self,
        states: &[&RunState],
        rest: Option<&RestOrder>,
        fit: Fit,
    ) -> Result<Progress> {
        let first = earliest(states);
        let world = first.world;
        if world == 0 {
            return Err(corrupt("the number of its ranks is unknown"));
        }
        self.must_divide(states)?;
        let numbers = self.plan.shared_numbers(rest, world)?;
        let mut reached = Vec::with_capacity(states.len());
        let (mut standing, mut taken) = (FaultCounts::default(), Taken::default());
        let mut is_over = true;
        for state in states {
            let samples = self.plan.len_among(rest, state.rank, world, numbers);
            if state.epoch > first.epoch {
                // It has nothing left of this epoch.
                reached.push(Reached { place: samples, ..Reached::default() });
                continue;
            }
            let mut settings = self.engine_settings_of(state.epoch, samples, world);
            if fit == Fit::Loose {
                // Another batch size may have been used.
                settings.batch_size = 1;
            }
            let mut position = state.position.position();
            if fit == Fit::Loose {
                position.slot = position.slot.min(samples);
            }
            let position = possible(position, &settings)?;
            is_over &= position.is_at_end(&settings);
            standing.seen += position.standing.seen;
            standing.faults += position.standing.faults;
            taken.samples += state.samples.min(LARGEST);
            taken.batches = taken.batches.max(state.batches);
            reached.push(reached_by(&position, &settings.membership));
        }
        if is_over {
            return Ok(Progress::at_epoch(first.epoch + 1));
        }
        if reached.iter().all(|other| *other == reached[0]) && reached[0] == level(&reached[0]) {
            reached.truncate(1);
        }
        let saved = self.plan.rest_after(rest, world, &reached)?;
        let rest = Arc::new(RestOrder::new(&self.plan, saved)?);
        if rest.numbers() == 0 {
            return Ok(Progress::at_epoch(first.epoch + 1));
        }
        // Each rank goes on with its part of the counts. If only one state is known, all had the same.
        let (known, ranks) = (states.len() as u64, self.plan.world());
        let part = |count: u64| count.saturating_mul(world) / known / ranks;
        let (seen, faults) = (part(standing.seen), part(standing.faults));
        let standing = FaultCounts { seen, faults: faults.min(seen), ..FaultCounts::default() };
        taken.samples = part(taken.samples);
        let position = Position { standing, ..Position::default() };
        Ok(Progress { epoch: first.epoch, rest: Some(rest), position, taken })
    }

    /// Refuses states that are not enough for another number of ranks.
    fn must_divide(&self, states: &[&RunState]) -> Result<()> {
        let RunState { world, rank, epoch, .. } = *states[0];
        let here = format!("this is rank {} of {}", self.plan.rank(), self.plan.world());
        let indivisible = self.plan.indivisible();
        let same = states.iter().find(|state| state.ranks == Ranks::Same);
        if let Some(why) = indivisible.or_else(|| same.map(|state| state.why.as_str())) {
            let message = format!(
                "the state of rank {rank} of {world} in the middle of epoch {epoch} can only be resumed with \
                 {world} ranks, because {}; {here}",
                escape::one_line(why)
            );
            return Err(Error::new(Kind::StateMismatch, message)
                .with_hint("change the number of ranks between two epochs"));
        }
        let is_all = states.len() as u64 == world;
        if let Some(state) = states.iter().find(|state| state.ranks == Ranks::All)
            && !is_all
        {
            let message = format!(
                "the state of rank {rank} of {world} is not enough for another number of ranks, because {}; {here}",
                escape::one_line(&state.why)
            );
            return Err(Error::new(Kind::StateMismatch, message).with_hint(
                "save the states of all ranks, and call load_state_dict([state_of_rank_0, ...])",
            ));
        }
        let has_own = |state: &&&RunState| {
            let SavedPosition { filled, waiting, .. } = &state.position;
            *filled > 0 || !waiting.is_empty()
        };
        if !is_all && states.iter().find(has_own).is_some() {
            return Err(corrupt("it has samples of its own, but does not say so"));
        }
        Ok(())
    }

    fn refuse_rank(&self, state: &RunState) -> Error {
        let RunState { rank, world, why, .. } = state;
        let why = if why.is_empty() { "" } else { &format!(", and {}", escape::one_line(why)) };
        let own = self.plan.rank();
        let message = format!("the state is of rank {rank} of {world}, this is rank {own}{why}");
        Error::new(Kind::StateMismatch, message)
            .with_hint("load the state of this rank, or a list of the states of all ranks")
    }
}

/// One that is in the epoch that some ranks have not finished.
fn earliest<'a>(states: &[&'a RunState]) -> &'a RunState {
    let first = states.iter().min_by_key(|state| state.epoch);
    first.expect("`complete` refuses an empty list")
}

/// Whether it is at the start of an epoch.
fn is_start(state: &RunState) -> bool {
    state.position == SavedPosition::default() && state.rest.is_none()
}

/// One state, or those of all ranks of one run, by rank.
fn complete(states: &[RunState]) -> Result<Vec<&RunState>> {
    let refused = |message: String| {
        Err(Error::new(Kind::StateMismatch, message)
            .with_hint("give one state, or the states that all ranks made after the same batch"))
    };
    let mut states: Vec<_> = states.iter().collect();
    states.sort_by_key(|state| state.rank);
    let Some(first) = states.first() else {
        return refused("there is no state in the list".into());
    };
    if states.len() == 1 {
        return Ok(states);
    }
    let world = first.world;
    let first = earliest(&states);
    for (rank, state) in (0..).zip(&states) {
        if state.world != world || state.rank != rank || states.len() as u64 != world {
            let ranks: Vec<_> =
                states.iter().map(|state| format!("{} of {}", state.rank, state.world)).collect();
            return refused(format!("the states are not those of all ranks: {}", ranks.join(", ")));
        }
        let is_beside = state.epoch == first.epoch && state.rest == first.rest;
        let is_next = state.epoch == first.epoch.saturating_add(1) && is_start(state);
        if !is_beside && !is_next {
            return refused(format!(
                "rank {} is in epoch {}, but rank {rank} in epoch {}, or it was resumed elsewhere",
                first.rank, first.epoch, state.epoch
            ));
        }
    }
    Ok(states)
}

/// How far a rank has come in its part of the order.
fn reached_by(position: &Position, membership: &Membership) -> Reached {
    let from_end = if *membership == Membership::Fixed { position.filled } else { 0 };
    let waiting = position.waiting.iter().map(|(_, sequence)| *sequence).collect();
    Reached { place: position.slot, from_end, waiting }
}

/// The same place, with nothing that belongs to one rank alone.
fn level(reached: &Reached) -> Reached {
    Reached { place: reached.place, ..Reached::default() }
}

fn corrupt(what: &str) -> Error {
    let message = format!("the state is corrupt: {what}");
    Error::new(Kind::StateMismatch, message).with_hint("load an earlier state")
}

/// Refuses a position that no epoch of this kind can have written.
fn possible(position: Position, settings: &EpochSettings) -> Result<Position> {
    find_impossible(&position, settings).map_or(Ok(position), |what| Err(corrupt(&what)))
}

fn find_impossible(position: &Position, settings: &EpochSettings) -> Option<String> {
    let Position { slot, filled, tried, repeated, waiting, standing } = position;
    let EpochSettings { samples, batch_size, membership, fill, .. } = settings;
    let is_fixed = *membership == Membership::Fixed;
    let is_at_batch = !is_fixed || slot == samples || slot.is_multiple_of(*batch_size);
    if slot > samples || !is_at_batch {
        return Some(format!("slot {slot} is not the beginning of a batch"));
    }
    let is_counted = standing.seen <= LARGEST
        && standing.faults <= standing.seen
        && standing.recent.len() as u64 <= standing.faults
        && standing.recent.iter().all(|seen_at| (1..=standing.seen).contains(seen_at))
        && standing.recent.iter().is_sorted();
    if !is_counted {
        return Some("it counts more faults than samples".to_owned());
    }
    let most_tried = samples.saturating_add(1).saturating_mul(ROUNDS).min(LARGEST);
    let repeats = *fill == Fill::FromEndAndRepeat;
    let is_filled = repeated <= tried
        && *tried <= most_tried
        && filled <= samples
        && (repeats || *tried == 0)
        && (*fill != Fill::Never || *filled == 0)
        && (is_fixed || *tried == 0 || slot == samples);
    if !is_filled {
        return Some("it repeats more samples than there are".to_owned());
    }
    let most_waiting = match membership {
        Membership::Buckets(sizes) => sizes.iter().sum(),
        Membership::Fixed | Membership::Gathered | Membership::Unordered => 0,
    };
    let is_in_epoch = waiting.iter().all(|(of, sequence)| *of < slot + tried && sequence < samples)
        && waiting.is_sorted_by(|(one, _), (other, _)| one < other)
        && waiting.len() as u64 <= most_waiting;
    (!is_in_epoch).then(|| "it has waiting samples that do not belong to its epoch".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{BatchPlan, Moves};

    fn settings(membership: Membership, fill: Fill) -> EpochSettings {
        EpochSettings {
            samples: 10,
            epoch_samples: None,
            batch_size: 4,
            drop_last: false,
            plan: BatchPlan::Known,
            moves: Moves::Sample,
            membership,
            fill,
            misfit: None,
            finishes: false,
            limit: None,
            window: 1000,
            epoch: 0,
        }
    }

    fn buckets() -> EpochSettings {
        settings(Membership::Buckets(vec![2, 2]), Fill::FromEndAndRepeat)
    }

    fn at(slot: u64) -> Position {
        Position { slot, ..Position::default() }
    }

    fn waiting(slot: u64, waiting: &[(u64, u64)]) -> Position {
        Position { waiting: waiting.to_vec(), ..at(slot) }
    }

    #[test]
    fn positions_of_a_run_are_accepted() {
        let standing = FaultCounts { seen: 10, faults: 3, recent: [2, 9, 10].into() };
        let open = Position { standing, filled: 3, tried: 2, repeated: 1, ..at(10) };
        let with_waiting = Position { waiting: vec![(9, 9), (11, 1)], ..open.clone() };
        for good in
            [at(0), at(7), at(10), waiting(7, &[(0, 0), (2, 5), (6, 6)]), open, with_waiting]
        {
            assert_eq!(find_impossible(&good, &buckets()), None, "{good:?}");
        }
        let fixed = settings(Membership::Fixed, Fill::FromEnd);
        for good in [at(0), at(8), at(10), Position { filled: 3, ..at(4) }] {
            assert_eq!(find_impossible(&good, &fixed), None, "{good:?}");
        }
    }

    #[test]
    fn impossible_positions_are_refused() {
        let standing = |seen, faults, recent: &[u64]| {
            let recent = recent.iter().copied().collect();
            Position { standing: FaultCounts { seen, faults, recent }, ..at(7) }
        };
        let filling = |filled, tried, repeated| Position { filled, tried, repeated, ..at(10) };
        for bad in [
            at(u64::MAX),
            at(11),
            standing(3, 4, &[]),
            standing(9, 1, &[1, 2]),
            standing(9, 2, &[0, 2]),
            standing(9, 2, &[4, 10]),
            standing(9, 2, &[4, 3]),
            standing(u64::MAX, 0, &[]),
            filling(u64::MAX, 0, 0),
            filling(0, u64::MAX, 0),
            filling(5, 1, 2),
            waiting(7, &[(7, 7)]),
            waiting(7, &[(2, 2), (2, 2)]),
            waiting(7, &[(2, 10)]),
            waiting(7, &[(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]),
        ] {
            assert!(find_impossible(&bad, &buckets()).is_some(), "{bad:?}");
        }
        let fixed = settings(Membership::Fixed, Fill::FromEnd);
        for bad in [at(7), filling(2, 1, 1), waiting(8, &[(2, 2)])] {
            assert!(find_impossible(&bad, &fixed).is_some(), "{bad:?}");
        }
        let never = settings(Membership::Fixed, Fill::Never);
        assert!(find_impossible(&Position { filled: 1, ..at(4) }, &never).is_some());
    }
}
