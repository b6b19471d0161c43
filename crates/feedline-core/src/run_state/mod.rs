//! The state of a run: the place after the last batch that the consumer has, and what it belongs to. It is small, plain
//! JSON, and never grows with the run.
//!
//! A state may come from another machine, another version or an editor: nothing in it is trusted.

mod numbers;
pub mod version_5;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::{FaultCounts, Position};
use crate::error::{Error, Kind, Result};
use crate::escape;
use crate::fingerprint::Fingerprint;

/// The version that is written. Older ones from `OLDEST` on are read.
const VERSION: u32 = 6;
const OLDEST: u32 = 5;
/// The longest text of a setting; of a longer one only the beginning and a fingerprint are kept.
const LONGEST: usize = 300;

/// The state of a run after a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    version: u32,
    /// The version of Feedline that wrote it.
    pub feedline: String,
    /// The epoch that is not finished, from 0.
    pub epoch: u64,
    /// Batches and samples of this epoch that the consumer of this rank has.
    pub batches: u64,
    /// See `batches`.
    pub samples: u64,
    /// The rank that made it.
    pub rank: u64,
    /// The number of ranks; 0 if unknown, in states of version 5.
    pub world: u64,
    /// The place in the epoch.
    pub position: SavedPosition,
    /// What other ranks had left of the epoch, if they began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<SavedRest>,
    /// With which ranks it can be continued.
    pub ranks: Ranks,
    /// Why it is not `Ranks::Any`, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The data set.
    pub data: Data,
    /// All settings that decide order or values, by name.
    pub settings: BTreeMap<String, String>,
    /// Checksum of all fields above as text: a changed number may still be valid.
    #[serde(default)]
    checksum: u32,
}

/// Which states a run needs to continue with another number of ranks in the middle of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ranks {
    /// That of any rank: all have come equally far.
    Any,
    /// Those of all ranks: each may have used other samples.
    All,
    /// It needs the same number of ranks, each with its own state.
    Same,
}

/// The place in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPosition {
    /// The first slot of this epoch that is not settled.
    pub slot: u64,
    /// Number of samples at the end of the epoch that filled the slots of skipped ones.
    pub filled: u64,
    /// Number of samples, from the start of the epoch, that were tried as repetitions, and how many of those were good.
    pub tried: u64,
    /// See `tried`.
    pub repeated: u64,
    /// Samples that were judged in this epoch.
    pub seen: u64,
    /// Faults among them, which count against the limit.
    pub faults: u64,
    /// When the last of them were seen.
    pub recent: Vec<u64>,
    /// Slots before `slot` whose samples are in no batch yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "numbers")]
    pub waiting: Vec<u64>,
    /// Those of the waiting slots whose sample was replaced, with the replacement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<(u64, u64)>,
}

/// What ranks had left of an epoch that was continued with another number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRest {
    /// The number of ranks that began the epoch.
    pub world: u64,
    /// Each is a rest of the one before it.
    pub layers: Vec<Rest>,
}

/// What is left of an order. Its samples have numbers: those of rank r of n are r, r + n, r + 2n and so on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Rest {
    /// All from this number on.
    From(u64),
    /// Ranks have come differently far: the places of each that are left.
    Ranks {
        /// The first place of each rank.
        #[serde(with = "numbers")]
        from: Vec<u64>,
        /// The end of these places.
        #[serde(with = "numbers")]
        to: Vec<u64>,
        /// Numbers that come before all others.
        #[serde(default, skip_serializing_if = "Vec::is_empty", with = "numbers")]
        waiting: Vec<u64>,
    },
}

/// What a state knows of the data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// The kind of source; empty if unknown.
    pub kind: String,
    /// Number of samples.
    pub samples: u64,
    /// Fingerprint of its contents, in hexadecimal.
    pub fingerprint: String,
}

/// What a loader is compared with.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) data: Data,
    pub(crate) settings: BTreeMap<String, String>,
    /// All settings as version 5 knew them.
    pub(crate) version_5: Fingerprint,
}

/// A difference between a state and something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What differs.
    pub name: String,
    /// As it is in the state.
    pub state: String,
    /// As it is elsewhere.
    pub other: String,
}

/// How many batches and samples the consumer has of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) batches: u64,
    pub(crate) samples: u64,
}

impl RunState {
    /// A state of the present version.
    pub(crate) fn new(identity: &Identity, (rank, world): (u64, u64), epoch: u64) -> RunState {
        RunState {
            version: VERSION,
            feedline: env!("CARGO_PKG_VERSION").to_owned(),
            epoch,
            batches: 0,
            samples: 0,
            rank,
            world,
            position: SavedPosition::default(),
            rest: None,
            ranks: Ranks::Any,
            why: String::new(),
            data: identity.data.clone(),
            settings: identity.settings.clone(),
            checksum: 0,
        }
    }

    /// The version of its format.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The state as JSON.
    pub fn to_json(&self) -> String {
        let mut text = self.without_checksum();
        let checksum = crc32c::crc32c(text.as_bytes());
        // It is the last field, and 0 except in text.
        text.truncate(text.len() - "0}".len());
        text.push_str(&format!("{checksum}}}"));
        text
    }

    fn without_checksum(&self) -> String {
        serde_json::to_string(self).expect("numbers and text can always be written")
    }

    /// Parses untrusted JSON.
    pub fn from_json(json: &str) -> Result<RunState> {
        RunState::from_value(serde_json::from_str(json).map_err(|error| not_a_state(&error))?)
    }

    /// Parses an untrusted list of states, or one state.
    pub fn list_from_json(json: &str) -> Result<Vec<RunState>> {
        let value: Value = serde_json::from_str(json).map_err(|error| not_a_state(&error))?;
        if let Value::Array(states) = value {
            return states.into_iter().map(RunState::from_value).collect();
        }
        Ok(vec![RunState::from_value(value)?])
    }

    fn from_value(value: Value) -> Result<RunState> {
        match value.get("version").and_then(Value::as_u64) {
            None => Err(not_a_state(&"it has no version")),
            Some(version) if version == u64::from(OLDEST) => version_5::read(value),
            Some(version) if version == u64::from(VERSION) => RunState::read(value),
            Some(version) => {
                let message = format!(
                    "the state is of version {version}, this Feedline reads versions {OLDEST} to {VERSION}"
                );
                let hint = match version > u64::from(VERSION) {
                    true => "update Feedline, or load a state that this version has written",
                    false => "start from the beginning",
                };
                Err(Error::new(Kind::StateMismatch, message).with_hint(hint))
            }
        }
    }

    fn read(value: Value) -> Result<RunState> {
        let mut state: RunState =
            serde_json::from_value(value).map_err(|error| not_a_state(&error))?;
        let checksum = std::mem::take(&mut state.checksum);
        if checksum != crc32c::crc32c(state.without_checksum().as_bytes()) {
            return Err(corrupt("checksum mismatch"));
        }
        Ok(state)
    }

    /// What differs between the data sets, and between the settings.
    pub fn differences(&self, other: &RunState) -> Vec<Difference> {
        let mut found = self.data_differences(&other.data);
        found.extend(self.setting_differences(&other.settings));
        found
    }

    /// What differs between its data set and another one.
    pub fn data_differences(&self, other: &Data) -> Vec<Difference> {
        let difference = |name: &str, state: &str, other: &str| Difference {
            name: name.to_owned(),
            state: state.to_owned(),
            other: other.to_owned(),
        };
        let data = &self.data;
        let mut found = Vec::new();
        if !data.kind.is_empty() && data.kind != other.kind {
            found.push(difference("kind of data", &data.kind, &other.kind));
        }
        if data.samples != other.samples {
            let (state, other) = (data.samples.to_string(), other.samples.to_string());
            found.push(difference("number of samples", &state, &other));
        }
        if found.is_empty() && data.fingerprint != other.fingerprint {
            let name = "files or arrays (fingerprint)";
            found.push(difference(name, &data.fingerprint, &other.fingerprint));
        }
        found
    }

    fn setting_differences(&self, others: &BTreeMap<String, String>) -> Vec<Difference> {
        let names: std::collections::BTreeSet<_> =
            self.settings.keys().chain(others.keys()).collect();
        let value = |settings: &BTreeMap<String, String>, name: &String| {
            settings.get(name).cloned().unwrap_or_else(|| "none".to_owned())
        };
        let difference = |name: &String| {
            let (state, other) = (value(&self.settings, name), value(others, name));
            (state != other).then(|| Difference { name: name.clone(), state, other })
        };
        names.into_iter().filter_map(difference).collect()
    }

    /// Refuses a loader with other data or settings, and says what differs.
    pub(crate) fn must_fit(&self, identity: &Identity) -> Result<()> {
        let mut found = self.data_differences(&identity.data);
        found.extend(match self.version {
            OLDEST => {
                let now = [(version_5::SETTINGS.to_owned(), identity.version_5.in_hex())];
                self.setting_differences(&now.into())
            }
            _ => self.setting_differences(&identity.settings),
        });
        if found.is_empty() {
            return Ok(());
        }
        let found: Vec<_> = found
            .iter()
            .map(|Difference { name, state, other }| {
                format!("{name}: {state} in the state, {other} here")
            })
            .collect();
        let found = found.join("; ");
        let message = format!("the state does not fit this loader: {}", escape::one_line(&found));
        Err(Error::new(Kind::StateMismatch, message))
    }
}

impl SavedPosition {
    /// A position, to be saved.
    pub(crate) fn of(position: &Position) -> SavedPosition {
        let Position { slot, filled, tried, repeated, waiting, standing } = position;
        let FaultCounts { seen, faults, recent } = standing;
        let replaced = waiting.iter().copied().filter(|(slot, sequence)| slot != sequence);
        SavedPosition {
            slot: *slot,
            filled: *filled,
            tried: *tried,
            repeated: *repeated,
            seen: *seen,
            faults: *faults,
            recent: recent.iter().copied().collect(),
            waiting: waiting.iter().map(|(slot, _)| *slot).collect(),
            replaced: replaced.collect(),
        }
    }

    /// The position that was saved. It may be impossible.
    pub(crate) fn position(&self) -> Position {
        let sequence = |slot: u64| {
            let other = self.replaced.iter().find(|(replaced, _)| *replaced == slot);
            other.map_or(slot, |(_, sequence)| *sequence)
        };
        let SavedPosition { slot, filled, tried, repeated, seen, faults, .. } = *self;
        let recent = self.recent.iter().copied().collect();
        let waiting = self.waiting.iter().map(|slot| (*slot, sequence(*slot))).collect();
        let standing = FaultCounts { seen, faults, recent };
        Position { slot, filled, tried, repeated, waiting, standing }
    }
}

/// Text of a setting that is not too long for a state.
pub(crate) fn short(text: String) -> String {
    if text.len() <= LONGEST {
        return text;
    }
    let print = Fingerprint::of([text.as_bytes()]).in_hex();
    let mut end = LONGEST - 60;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}... (fingerprint {print})", &text[..end])
}

fn not_a_state(why: &dyn std::fmt::Display) -> Error {
    let message = format!("this is not a state of a loader: {why}");
    Error::new(Kind::StateMismatch, message)
        .with_hint("give what loader.state_dict() returned, unchanged")
}

fn corrupt(what: &str) -> Error {
    let message = format!("the state is corrupt: {what}");
    Error::new(Kind::StateMismatch, message)
        .with_hint("load an earlier state; a state cannot be edited by hand")
}

#[cfg(test)]
mod tests;
