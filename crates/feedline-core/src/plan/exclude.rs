//! Samples that are left out before anything is shuffled or divided.

use std::fmt;
use std::sync::Arc;

use crate::checkpoint::Fingerprint;

/// The indices that are left out: sorted, each once. Takes memory for these only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Excluded(Option<Arc<Vec<u64>>>);

impl Excluded {
    /// How many there are.
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |list| list.len() as u64)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// How many lie below that index.
    pub(super) fn below(&self, index: u64) -> u64 {
        self.0.as_ref().map_or(0, |list| list.partition_point(|other| *other < index) as u64)
    }

    /// The index in the source of the `place`th sample that is left.
    pub(super) fn index(&self, place: u64) -> u64 {
        let Some(list) = &self.0 else { return place };
        // The entry at `at` has `at` excluded ones before it, so that many samples before it are left.
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

/// Short, for fingerprints are made of it.
impl fmt::Debug for Excluded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(list) = &self.0 else { return write!(formatter, "none") };
        let bytes: Vec<u8> = list.iter().flat_map(|index| index.to_le_bytes()).collect();
        write!(formatter, "{} {:?}", list.len(), Fingerprint::of([bytes.as_slice()]))
    }
}
