//! Samples that are excluded before anything is shuffled or divided.

use std::fmt;
use std::sync::Arc;

use crate::fingerprint::Fingerprint;

/// The excluded indices, sorted and unique. Takes memory only for these.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Excluded(Option<Arc<Vec<u64>>>);

impl Excluded {
    /// The number of excluded samples.
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |list| list.len() as u64)
    }

    /// Whether none are excluded.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// A hash of the excluded indices, in hexadecimal.
    pub(super) fn in_hex(&self) -> String {
        let indices = self.0.iter().flat_map(|list| list.iter());
        let bytes: Vec<u8> = indices.flat_map(|index| index.to_le_bytes()).collect();
        Fingerprint::of([bytes.as_slice()]).in_hex()
    }

    /// The number of excluded indices below `index`.
    pub(super) fn below(&self, index: u64) -> u64 {
        self.0.as_ref().map_or(0, |list| list.partition_point(|other| *other < index) as u64)
    }

    /// The source index of the `place`th sample that is not excluded.
    pub(super) fn index(&self, place: u64) -> u64 {
        let Some(list) = &self.0 else { return place };
        // The entry at `at` has `at` excluded ones before it.
        let (mut low, mut high) = (0, list.len());
        while low < high {
            let at = usize::midpoint(low, high);
            if list[at] - at as u64 <= place {
                low = at + 1;
            } else {
                high = at;
            }
        }
        place + low as u64
    }
}

impl FromIterator<u64> for Excluded {
    fn from_iter<T: IntoIterator<Item = u64>>(indices: T) -> Excluded {
        let mut list: Vec<_> = indices.into_iter().collect();
        list.sort_unstable();
        list.dedup();
        Excluded((!list.is_empty()).then(|| Arc::new(list)))
    }
}

/// Short, because fingerprints are computed from it.
impl fmt::Debug for Excluded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(list) = &self.0 else { return write!(formatter, "none") };
        let bytes: Vec<u8> = list.iter().flat_map(|index| index.to_le_bytes()).collect();
        write!(formatter, "{} {:?}", list.len(), Fingerprint::of([bytes.as_slice()]))
    }
}
