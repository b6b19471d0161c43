//! States of version 5, which were text and knew their settings by one fingerprint.

use serde::{Deserialize, Serialize};

use super::{Data, Ranks, RunState, SavedPosition, corrupt, not_a_state};
use crate::engine::FaultCounts;
use crate::error::Result;
use crate::fingerprint::Fingerprint;

/// The name of the only setting of such a state.
pub const SETTINGS: &str = "all (version 5)";

/// As it was written. The checksum is computed from the fields in this order.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Version5 {
    version: u32,
    samples: u64,
    source: Fingerprint,
    settings: Fingerprint,
    epoch: u64,
    slot: u64,
    filled: u64,
    tried: u64,
    repeated: u64,
    standing: FaultCounts,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replaced: Vec<(u64, u64)>,
    #[serde(default)]
    checksum: u32,
}

/// A state of the present version. Its ranks and its counts of batches and samples are unknown.
pub(super) fn read(value: serde_json::Value) -> Result<RunState> {
    let old: Version5 = serde_json::from_value(value).map_err(|error| not_a_state(&error))?;
    let bare = Version5 { checksum: 0, ..old.clone() };
    let text = serde_json::to_string(&bare).expect("numbers can always be written");
    if crc32c::crc32c(text.as_bytes()) != old.checksum {
        return Err(corrupt("checksum mismatch"));
    }
    let mut slot: u64 = 0;
    let mut waiting = Vec::with_capacity(old.waiting.len());
    for distance in old.waiting {
        slot = slot.checked_add(distance).ok_or_else(|| corrupt("its numbers are too large"))?;
        waiting.push(slot);
    }
    let FaultCounts { seen, faults, recent } = old.standing;
    let position = SavedPosition {
        slot: old.slot,
        filled: old.filled,
        tried: old.tried,
        repeated: old.repeated,
        seen,
        faults,
        recent: recent.into(),
        waiting,
        replaced: old.replaced,
    };
    Ok(RunState {
        version: old.version,
        feedline: "an earlier version".to_owned(),
        epoch: old.epoch,
        batches: 0,
        samples: old.slot,
        rank: 0,
        world: 0,
        position,
        rest: None,
        ranks: Ranks::Same,
        why: "it is of version 5".to_owned(),
        data: Data { kind: String::new(), samples: old.samples, fingerprint: old.source.in_hex() },
        settings: [(SETTINGS.to_owned(), old.settings.in_hex())].into(),
        checksum: 0,
    })
}
