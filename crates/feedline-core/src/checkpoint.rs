//! The position of a run, small enough to save beside a model: a number, and what it belongs to.

use serde::{Deserialize, Serialize};

use crate::engine::{Position, Standing};
use crate::error::{Error, Kind, Result};

const VERSION: u32 = 5;

/// The position of a run after a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    version: u32,
    /// Number of samples in the source.
    pub samples: u64,
    /// Fingerprint of the source's contents.
    pub source: Fingerprint,
    /// Fingerprint of all settings that decide order or pixels.
    pub settings: Fingerprint,
    /// The epoch that is not finished.
    pub epoch: u64,
    /// The first slot of this epoch that is not settled.
    pub slot: u64,
    /// Number of samples at the end of the epoch that filled the slots of skipped ones.
    pub filled: u64,
    /// Number of samples, from the start of the epoch, that were tried as repetitions, and how many of those were good.
    pub tried: u64,
    /// See `tried`.
    pub repeated: u64,
    /// Faults so far, which count against the limit.
    pub standing: Standing,
    /// Slots before `slot` whose samples are in no batch yet: the first, then the distance of each to the one before
    /// it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<u64>,
    /// Those of the waiting slots whose sample was replaced, with the replacement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replaced: Vec<(u64, u64)>,
    /// Checksum of all fields above as text: a changed number may still be valid.
    #[serde(default)]
    checksum: u32,
}

impl Checkpoint {
    /// A checkpoint of this version.
    pub fn new(
        samples: u64,
        source: Fingerprint,
        settings: Fingerprint,
        epoch: u64,
        position: Position,
    ) -> Checkpoint {
        let Position { slot, filled, tried, repeated, waiting, standing } = position;
        let slots = || waiting.iter().map(|(slot, _)| *slot);
        let before = [0].into_iter().chain(slots());
        let distances = slots().zip(before).map(|(slot, before)| slot - before).collect();
        let replaced = waiting.iter().copied().filter(|(slot, sequence)| slot != sequence);
        Checkpoint {
            version: VERSION,
            samples,
            source,
            settings,
            epoch,
            slot,
            filled,
            tried,
            repeated,
            standing,
            waiting: distances,
            replaced: replaced.collect(),
            checksum: 0,
        }
    }

    /// The position in the epoch; None if a slot number overflows.
    pub fn position(&self) -> Option<Position> {
        let mut slot: u64 = 0;
        let mut next = |distance: &u64| {
            slot = slot.checked_add(*distance)?;
            let other = self.replaced.iter().find(|(replaced, _)| *replaced == slot);
            Some((slot, other.map_or(slot, |(_, sequence)| *sequence)))
        };
        let waiting = self.waiting.iter().map(&mut next).collect::<Option<_>>()?;
        let Checkpoint { slot, filled, tried, repeated, .. } = *self;
        let standing = self.standing.clone();
        Some(Position { slot, filled, tried, repeated, waiting, standing })
    }

    /// The checkpoint as text.
    pub fn to_text(&self) -> String {
        let checksum = self.checksum();
        let whole = Checkpoint { checksum, ..self.clone() };
        serde_json::to_string(&whole).expect("numbers and text can always be written")
    }

    fn checksum(&self) -> u32 {
        let bare = Checkpoint { checksum: 0, ..self.clone() };
        let text = serde_json::to_string(&bare).expect("numbers and text can always be written");
        crc32c::crc32c(text.as_bytes())
    }

    /// Parses untrusted text.
    pub fn from_text(text: &str) -> Result<Checkpoint> {
        let checkpoint: Checkpoint = serde_json::from_str(text).map_err(|error| {
            Error::new(Kind::CheckpointMismatch, format!("this is not a checkpoint: {error}"))
        })?;
        if checkpoint.version != VERSION {
            let message = format!(
                "the checkpoint is of version {}, this Feedline reads version {VERSION}",
                checkpoint.version
            );
            return Err(Error::new(Kind::CheckpointMismatch, message));
        }
        if checkpoint.checksum != checkpoint.checksum() {
            let message = "the checkpoint is corrupt: checksum mismatch";
            return Err(Error::new(Kind::CheckpointMismatch, message).with_hint(
                "resume from an earlier checkpoint; a checkpoint cannot be edited by hand",
            ));
        }
        Ok(Checkpoint { checksum: 0, ..checkpoint })
    }

    /// Refuses to resume with other data or settings, naming the difference.
    pub(crate) fn must_fit(&self, now: &Checkpoint) -> Result<()> {
        let message = if self.samples != now.samples {
            format!(
                "the checkpoint was made with {} samples, the source has {}",
                self.samples, now.samples
            )
        } else if self.source != now.source {
            "the checkpoint was made with other files or arrays than these".to_owned()
        } else if self.settings != now.settings {
            "the checkpoint was made with another order, shard, transforms or batch size".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::new(Kind::CheckpointMismatch, message))
    }
}

/// A hash that changes with the data it is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// In hexadecimal, for a file name.
    pub(crate) fn in_hex(self) -> String {
        format!("{:016x}", self.0)
    }

    /// Hash of a list of byte strings: FNV-1a, the same on every machine.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Fingerprint {
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for part in parts {
            // The length keeps ["ab", "c"] apart from ["a", "bc"].
            for byte in part.iter().copied().chain((part.len() as u64).to_le_bytes()) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        Fingerprint(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(samples: u64, source: &[u8], settings: &[u8], waiting: &[(u64, u64)]) -> Checkpoint {
        let standing = Standing { seen: 7, faults: 2, recent: [3, 5].into() };
        let (filled, waiting) = (2, waiting.to_vec());
        let position = Position { slot: 7, filled, tried: 0, repeated: 0, waiting, standing };
        let (source, settings) = (Fingerprint::of([source]), Fingerprint::of([settings]));
        Checkpoint::new(samples, source, settings, 1, position)
    }

    #[test]
    fn a_checkpoint_survives_a_round_trip_through_text() {
        let checkpoint = made(10, b"a", b"b", &[]);
        assert_eq!(Checkpoint::from_text(&checkpoint.to_text()).unwrap(), checkpoint);
        assert!(checkpoint.to_text().len() < 300);
        let mut waiting: Vec<_> =
            (0..200).map(|at| (1_000_000 + at * 7, 1_000_000 + at * 7)).collect();
        waiting[7].1 = 12;
        let bucketed = made(10, b"a", b"b", &waiting);
        let read = Checkpoint::from_text(&bucketed.to_text()).unwrap();
        assert_eq!((read.position().unwrap().waiting, &read), (waiting, &bucketed));
        assert!(bucketed.to_text().len() < 800);
    }

    #[test]
    fn a_checkpoint_with_a_changed_byte_is_refused_or_equal() {
        let checkpoint = made(10, b"a", b"b", &[(3, 3), (5, 1)]);
        let text = checkpoint.to_text().into_bytes();
        for (at, other) in
            (0..text.len()).flat_map(|at| [(at, b'0'), (at, b'7'), (at, b'-'), (at, b' ')])
        {
            let mut changed = text.clone();
            changed[at] = other;
            let read = Checkpoint::from_text(&String::from_utf8(changed).unwrap());
            assert!(read.is_err() || read.unwrap() == checkpoint, "byte {at} is {other}");
        }
    }

    #[test]
    fn a_mismatch_names_the_difference() {
        let now = made(10, b"a", b"b", &[]);
        let refusals: Vec<_> = [(9, b"a", b"b"), (10, b"x", b"b"), (10, b"a", b"x")]
            .iter()
            .map(|(samples, source, settings)| made(*samples, *source, *settings, &[]))
            .map(|old| old.must_fit(&now).unwrap_err().to_string())
            .chain([
                Checkpoint::from_text("hello").unwrap_err().to_string(),
                Checkpoint::from_text(&now.to_text().replace("\"version\":5", "\"version\":9"))
                    .unwrap_err()
                    .to_string(),
            ])
            .collect();
        insta::assert_snapshot!(refusals.join("\n\n"));
    }
}
