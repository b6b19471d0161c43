//! Where a run stands, small enough to keep beside a model: a number and what it belongs to.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};
use crate::fault::Standing;

const VERSION: u32 = 4;

/// Where a run stands after a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    version: u32,
    /// Samples of the source.
    pub samples: u64,
    /// Of what the source lists.
    pub source: Fingerprint,
    /// Of all settings that decide order or pixels.
    pub settings: Fingerprint,
    /// Samples of this rank that are behind, over all epochs.
    pub position: u64,
    /// Faults of this epoch so far, which count against the limit.
    pub standing: Standing,
    /// How far the places of its skipped samples are filled.
    #[serde(default)]
    pub filling: Filling,
    /// Samples before `position` that are in no batch yet: the first, and each as the distance to the one
    /// before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<u64>,
    /// Of all of the above, as text: a number that was changed may still be a possible one.
    #[serde(default)]
    checksum: u32,
}

/// How far samples came a second time in the places of those that were skipped, so that every rank has as
/// many as the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filling {
    /// Samples of this epoch that were skipped.
    pub skipped: u64,
    /// Samples, from the first of the epoch on, that were tried in their places.
    pub tried: u64,
    /// Those of them that were good.
    pub repeated: u64,
}

impl Filling {
    /// How many are still to be repeated.
    pub fn missing(&self) -> u64 {
        self.skipped.saturating_sub(self.repeated)
    }
}

impl Checkpoint {
    /// Of this version.
    pub fn new(
        samples: u64,
        source: Fingerprint,
        settings: Fingerprint,
        position: u64,
        standing: Standing,
        filling: Filling,
    ) -> Checkpoint {
        let waiting = Vec::new();
        let version = VERSION;
        let checksum = 0;
        Checkpoint {
            version,
            samples,
            source,
            settings,
            position,
            standing,
            filling,
            waiting,
            checksum,
        }
    }

    /// With samples, ascending, that were made and are in no batch yet.
    #[must_use]
    pub fn with_waiting(self, numbers: &[u64]) -> Checkpoint {
        let before = [0].iter().chain(numbers);
        let waiting = numbers.iter().zip(before).map(|(number, before)| number - before).collect();
        Checkpoint { waiting, ..self }
    }

    /// These samples; None if their numbers are larger than any.
    pub fn waiting(&self) -> Option<Vec<u64>> {
        let mut number: u64 = 0;
        let mut next = |distance: &u64| {
            number = number.checked_add(*distance)?;
            Some(number)
        };
        self.waiting.iter().map(&mut next).collect()
    }

    /// As text.
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

    /// From text, whoever wrote it.
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
            return Err(Error::new(Kind::CheckpointMismatch, message)
                .with_hint("go on from an earlier one; a checkpoint cannot be changed by hand"));
        }
        Ok(Checkpoint { checksum: 0, ..checkpoint })
    }

    /// Refuses to go on with other data or settings, saying what differs.
    pub fn must_fit(&self, now: &Checkpoint) -> Result<()> {
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

/// A number that differs when what it was made from does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// As a part of a file name.
    pub fn in_hex(self) -> String {
        format!("{:016x}", self.0)
    }

    /// Of bytes, part after part: FNV-1a, the same on every machine.
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

    fn made(samples: u64, source: &[u8], settings: &[u8]) -> Checkpoint {
        let standing = Standing { seen: 7, faults: 2, recent: [3, 5].into() };
        let filling = Filling { skipped: 2, tried: 0, repeated: 0 };
        Checkpoint::new(
            samples,
            Fingerprint::of([source]),
            Fingerprint::of([settings]),
            7,
            standing,
            filling,
        )
    }

    #[test]
    fn a_checkpoint_survives_being_text() {
        let checkpoint = made(10, b"a", b"b");
        assert_eq!(Checkpoint::from_text(&checkpoint.to_text()).unwrap(), checkpoint);
        assert!(checkpoint.to_text().len() < 300);
        let numbers: Vec<u64> = (0..200).map(|at| 1_000_000 + at * 7).collect();
        let bucketed = checkpoint.with_waiting(&numbers);
        let read = Checkpoint::from_text(&bucketed.to_text()).unwrap();
        assert_eq!((read.waiting(), &read), (Some(numbers), &bucketed));
        assert!(bucketed.to_text().len() < 800);
    }

    #[test]
    fn a_checkpoint_in_which_any_byte_was_changed_is_refused_or_the_same() {
        let checkpoint = made(10, b"a", b"b").with_waiting(&[3, 5]);
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
    fn what_differs_is_named() {
        let now = made(10, b"a", b"b");
        let refusals: Vec<_> = [made(9, b"a", b"b"), made(10, b"x", b"b"), made(10, b"a", b"x")]
            .iter()
            .map(|old| old.must_fit(&now).unwrap_err().to_string())
            .chain([
                Checkpoint::from_text("hello").unwrap_err().to_string(),
                Checkpoint::from_text(&now.to_text().replace("\"version\":4", "\"version\":9"))
                    .unwrap_err()
                    .to_string(),
            ])
            .collect();
        insta::assert_snapshot!(refusals.join("\n\n"));
    }
}
