//! A hash that changes with the data it is computed from, the same on every machine.

use serde::{Deserialize, Serialize};

/// A hash that changes with the data it is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// In hexadecimal, for text and file names.
    pub fn in_hex(self) -> String {
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
