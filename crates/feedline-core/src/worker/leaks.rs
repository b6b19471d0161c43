//! Whether a worker uses more and more of the machine and is better renewed: decided from numbers alone.

use crate::sample::in_bytes;

/// A share of its descriptors beyond which a worker is renewed, in percent.
const DESCRIPTORS_PERCENT: u64 = 80;
/// Memory is short when less than this share of all is left, in percent, but for `ENOUGH`. A small memory
/// needs a larger share: a successor takes a moment, and some memory of its own.
const LEFT_PERCENT: u64 = 5;
const LEFT_PERCENT_OF_LITTLE: u64 = 12;
const LITTLE_LEFT: u64 = 64 << 20;
const ENOUGH: u64 = 512 << 20;
/// A worker that has grown by less than this is not what fills the memory.
const GROWN: u64 = 32 << 20;

/// What workers may use before they are renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Resident memory of one worker, in bytes.
    pub memory: Option<u64>,
    /// Samples that one worker makes.
    pub samples: Option<u64>,
    /// Descriptors that one worker can have open.
    pub descriptors: u64,
}

/// What a worker uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceUse {
    /// Resident memory in bytes, now and when it was ready.
    pub resident: u64,
    /// What it held when it was ready.
    pub resident_at_first: u64,
    /// Samples made so far.
    pub samples: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// How many it had when it was ready.
    pub descriptors_at_first: u64,
}

/// Why a worker is renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leak {
    /// It holds more memory than it may.
    Memory {
        /// So much.
        resident: u64,
        /// Of so much.
        limit: u64,
    },
    /// It has made as many samples as it may.
    Samples {
        /// This many.
        samples: u64,
    },
    /// It has nearly as many descriptors open as the system allows.
    Descriptors {
        /// When it was ready.
        from: u64,
        /// Now.
        to: u64,
        /// At most.
        limit: u64,
    },
    /// All memory is nearly used, and it has the most of it.
    Shortage {
        /// So much.
        resident: u64,
        /// What is left for all.
        left: u64,
    },
}

impl Leak {
    /// In a word, as reports count it.
    pub fn name(&self) -> &'static str {
        match self {
            Leak::Memory { .. } => "memory",
            Leak::Samples { .. } => "samples",
            Leak::Descriptors { .. } => "descriptors",
            Leak::Shortage { .. } => "shortage of memory",
        }
    }

    /// In words.
    pub fn describe(&self) -> String {
        match self {
            Leak::Memory { resident, limit } => {
                format!(
                    "it held {}, max_worker_memory is {}",
                    in_bytes(*resident),
                    in_bytes(*limit)
                )
            }
            Leak::Samples { samples } => format!("it had made {samples} samples"),
            Leak::Descriptors { from, to, limit } => format!(
                "its open descriptors grew from {from} to {to}, and the system allows {limit}"
            ),
            Leak::Shortage { resident, left } => format!(
                "only {} of memory were left for all, and it held {}, more than the others",
                in_bytes(*left),
                in_bytes(*resident)
            ),
        }
    }
}

/// Whether this worker is over a bound of its own.
pub(crate) fn of_worker(used: ResourceUse, bounds: Bounds) -> Option<Leak> {
    if let Some(limit) = bounds.memory
        && used.resident > limit
    {
        return Some(Leak::Memory { resident: used.resident, limit });
    }
    if let Some(limit) = bounds.samples
        && used.samples >= limit
    {
        return Some(Leak::Samples { samples: used.samples });
    }
    let near = bounds.descriptors.saturating_mul(DESCRIPTORS_PERCENT) / 100;
    // What it started with is no leak: a limit that was tight from the first is not fixed by another.
    if used.descriptors >= near && used.descriptors >= 2 * used.descriptors_at_first.max(8) {
        let (from, to) = (used.descriptors_at_first, used.descriptors);
        return Some(Leak::Descriptors { from, to, limit: bounds.descriptors });
    }
    None
}

/// The worker that is renewed first when memory runs short: the one that has grown most.
pub(crate) fn fattest<T: Copy>(
    workers: &[(T, ResourceUse)],
    left: u64,
    all: u64,
) -> Option<(T, Leak)> {
    let percent = |percent: u64| (all / 100).saturating_mul(percent);
    let short =
        percent(LEFT_PERCENT).max(percent(LEFT_PERCENT_OF_LITTLE).min(LITTLE_LEFT)).min(ENOUGH);
    if left >= short {
        return None;
    }
    let grown = |used: &ResourceUse| used.resident.saturating_sub(used.resident_at_first);
    let (worker, used) = workers.iter().max_by_key(|(_, used)| grown(used))?;
    (grown(used) >= GROWN).then_some((*worker, Leak::Shortage { resident: used.resident, left }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { memory: Some(1 << 30), samples: Some(100), descriptors: 1024 };
    const USED: ResourceUse = ResourceUse {
        resident: 200 << 20,
        resident_at_first: 100 << 20,
        samples: 5,
        descriptors: 20,
        descriptors_at_first: 14,
    };

    #[test]
    fn a_worker_within_its_bounds_stays() {
        assert_eq!(of_worker(USED, BOUNDS), None);
        assert_eq!(of_worker(USED, Bounds { descriptors: 24, ..Bounds::default() }), None);
    }

    #[test]
    fn each_bound_is_told_with_its_numbers() {
        let over = [
            ResourceUse { resident: (1 << 30) + 1, ..USED },
            ResourceUse { samples: 100, ..USED },
            ResourceUse { descriptors: 820, ..USED },
        ];
        let words: Vec<_> =
            over.iter().map(|used| of_worker(*used, BOUNDS).unwrap().describe()).collect();
        insta::assert_snapshot!(words.join("\n"));
    }

    #[test]
    fn when_memory_is_short_the_one_that_has_grown_most_goes() {
        let workers = [(0, USED), (1, ResourceUse { resident: 900 << 20, ..USED }), (2, USED)];
        assert_eq!(fattest(&workers, 4 << 30, 8 << 30), None);
        let (worker, leak) = fattest(&workers, 100 << 20, 8 << 30).unwrap();
        assert_eq!((worker, leak.name()), (1, "shortage of memory"));
        assert!(fattest(&workers, 60 << 20, 512 << 20).is_some());
        let lean = ResourceUse { resident: 101 << 20, ..USED };
        assert_eq!(fattest(&[(0, lean)], 100 << 20, 8 << 30), None);
    }
}
