//! Checks that a checkpoint can come from this run: it may be corrupt, or edited by hand.

use crate::checkpoint::Checkpoint;
use crate::engine::{EpochSettings, Fill, Membership, Position};
use crate::error::{Error, Kind, Result};

/// Larger numbers are not valid counts of samples; sums of smaller numbers never overflow.
const LARGEST: u64 = 1 << 53;
/// How often the samples of an epoch can be tried as repetitions.
const ROUNDS: u64 = 64;

/// The position of a checkpoint in its epoch. Refuses numbers that no epoch of this kind can have written.
pub(super) fn position(checkpoint: &Checkpoint, settings: &EpochSettings) -> Result<Position> {
    let refused = |what: &str| {
        let message = format!("the checkpoint is corrupt: {what}");
        Error::new(Kind::CheckpointMismatch, message).with_hint("continue from an earlier one")
    };
    let position = checkpoint.position().ok_or_else(|| refused("its numbers are too large"))?;
    let is_counted =
        checkpoint.epoch.checked_mul(settings.samples.max(1)).is_some_and(|it| it <= LARGEST);
    if !is_counted {
        return Err(refused(&format!("epoch {} does not belong to this run", checkpoint.epoch)));
    }
    find_impossible(&position, settings).map_or(Ok(position), |what| Err(refused(&what)))
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
    use crate::engine::{BatchPlan, Moves, Standing};

    fn settings(membership: Membership, fill: Fill) -> EpochSettings {
        EpochSettings {
            samples: 10,
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
    fn checkpoints_of_a_run_are_accepted() {
        let standing = Standing { seen: 10, faults: 3, recent: [2, 9, 10].into() };
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
    fn impossible_checkpoints_are_refused() {
        let standing = |seen, faults, recent: &[u64]| {
            let recent = recent.iter().copied().collect();
            Position { standing: Standing { seen, faults, recent }, ..at(7) }
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
