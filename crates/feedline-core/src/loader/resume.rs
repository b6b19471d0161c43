//! Whether a checkpoint can be one of this run: it may have been damaged, or changed by hand.

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Kind, Result};

/// Larger numbers are no counts of samples; sums of such numbers never overflow.
const LARGEST: u64 = 1 << 53;
/// How often the samples of an epoch can be tried in the places of skipped ones.
const ROUNDS: u64 = 64;

/// What a checkpoint is compared with.
pub(super) struct Run {
    /// Samples of an epoch of this rank.
    pub(super) epoch_len: u64,
    /// Whether samples are repeated in the places of skipped ones.
    pub(super) fills: bool,
    /// How many samples can wait for the rest of their batches.
    pub(super) most_waiting: u64,
}

/// Refuses numbers that no run of this kind can have written.
pub(super) fn check(checkpoint: &Checkpoint, run: &Run) -> Result<()> {
    find_impossible(checkpoint, run).map_or(Ok(()), |what| {
        let message = format!("the checkpoint is corrupt: {what}");
        Err(Error::new(Kind::CheckpointMismatch, message).with_hint("go on from an earlier one"))
    })
}

fn find_impossible(checkpoint: &Checkpoint, run: &Run) -> Option<String> {
    let Checkpoint { position, filling, standing, .. } = checkpoint;
    let length = run.epoch_len;
    if *position > LARGEST || (length == 0 && *position > 0) {
        return Some(format!("position {position} is not one of this run"));
    }
    let is_counted = standing.seen <= LARGEST
        && standing.faults <= standing.seen
        && standing.recent.len() as u64 <= standing.faults
        && standing.recent.iter().all(|place| (1..=standing.seen).contains(place))
        && standing.recent.iter().is_sorted();
    if !is_counted {
        return Some("it counts more faults than samples".to_owned());
    }
    let most_tried = length.saturating_add(1).saturating_mul(ROUNDS).min(LARGEST);
    let is_filled = filling.repeated <= filling.tried
        && filling.tried <= most_tried
        && filling.skipped <= length + filling.tried
        && (run.fills || filling.tried == 0);
    if !is_filled {
        return Some("it has more samples repeated than there are".to_owned());
    }
    let waiting = checkpoint.waiting()?;
    let first = first_number(*position, length, !waiting.is_empty() || filling.missing() > 0);
    let end = position + filling.tried;
    let is_in_epoch = waiting.iter().all(|number| (first..end).contains(number))
        && waiting.is_sorted_by(|one, other| one < other)
        && waiting.len() as u64 <= run.most_waiting;
    (!is_in_epoch).then(|| "samples wait in it that do not belong to its epoch".to_owned())
}

/// The first number of the epoch that a checkpoint belongs to. Exactly behind an epoch, that is this epoch if
/// something of it `is_open`.
fn first_number(position: u64, length: u64, is_open: bool) -> u64 {
    let Some(begun) = position.checked_div(length) else { return 0 };
    let is_behind = is_open && begun > 0 && position.is_multiple_of(length);
    (begun - u64::from(is_behind)) * length
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Filling, Fingerprint};
    use crate::fault::Standing;

    fn run() -> Run {
        Run { epoch_len: 10, fills: true, most_waiting: 4 }
    }

    fn at(position: u64) -> Checkpoint {
        let none = Fingerprint::of([]);
        Checkpoint::new(10, none, none, position, Standing::default(), Filling::default())
    }

    #[test]
    fn what_a_run_writes_is_accepted() {
        let standing = Standing { seen: 14, faults: 3, recent: [2, 9, 14].into() };
        let filling = Filling { skipped: 3, tried: 2, repeated: 1 };
        let mut open = at(20);
        (open.standing, open.filling) = (standing, filling);
        for good in [
            at(0),
            at(7),
            at(20),
            at(1 << 40),
            at(17).with_waiting(&[10, 12, 16]),
            at(20).with_waiting(&[10, 19]),
            open.clone(),
            open.with_waiting(&[19, 21]),
        ] {
            check(&good, &run()).unwrap();
        }
    }

    #[test]
    fn what_no_run_can_write_is_refused() {
        let standing = |seen, faults, recent: &[u64]| {
            let recent = recent.iter().copied().collect();
            let mut checkpoint = at(7);
            checkpoint.standing = Standing { seen, faults, recent };
            checkpoint
        };
        let filling = |skipped, tried, repeated| {
            let mut checkpoint = at(10);
            checkpoint.filling = Filling { skipped, tried, repeated };
            checkpoint
        };
        for bad in [
            at(u64::MAX),
            at(LARGEST + 1),
            standing(3, 4, &[]),
            standing(9, 1, &[1, 2]),
            standing(9, 2, &[0, 2]),
            standing(9, 2, &[4, 10]),
            standing(9, 2, &[4, 3]),
            standing(u64::MAX, 0, &[]),
            filling(u64::MAX, 0, 0),
            filling(0, u64::MAX, 0),
            filling(5, 1, 2),
            at(17).with_waiting(&[9, 12]),
            at(17).with_waiting(&[17]),
            at(17).with_waiting(&[12, 12]),
            at(17).with_waiting(&[10, 11, 12, 13, 14]),
            at(20).with_waiting(&[9]),
        ] {
            assert_eq!(
                check(&bad, &run()).unwrap_err().kind(),
                Kind::CheckpointMismatch,
                "{bad:?}"
            );
        }
        let plain = Run { fills: false, most_waiting: 0, ..run() };
        assert!(check(&filling(2, 1, 1), &plain).is_err());
        assert!(check(&at(17).with_waiting(&[12]), &plain).is_err());
    }
}
