//! Decides from numbers alone whether a worker leaks and should be renewed.

use crate::sample::in_bytes;

/// The percentage of its descriptor limit at which a worker is renewed.
const DESCRIPTORS_PERCENT: u64 = 80;
/// Memory is short when less than this percentage is left, capped by `ENOUGH`. A small memory needs
/// a larger share: a successor takes a moment to start, and memory of its own.
const LEFT_PERCENT: u64 = 5;
const SMALL_MEMORY_LEFT_PERCENT: u64 = 12;
const SMALL_MEMORY_LEFT: u64 = 64 << 20;
const ENOUGH: u64 = 512 << 20;
/// A worker that has grown by less than this does not cause the shortage.
const GROWN: u64 = 32 << 20;

/// The resources that a worker may use before it is renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Resident memory of one worker, in bytes.
    pub memory: Option<u64>,
    /// Samples that one worker may load.
    pub samples: Option<u64>,
    /// The limit on open descriptors of one process.
    pub descriptors: u64,
}

/// The resources that a worker uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceUse {
    /// Resident memory in bytes.
    pub resident: u64,
    /// Resident memory when the worker was ready, in bytes.
    pub resident_at_first: u64,
    /// Samples loaded so far.
    pub samples: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Open descriptors when the worker was ready.
    pub descriptors_at_first: u64,
}

/// Why a worker is renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leak {
    /// It uses more memory than it may.
    Memory {
        /// The memory it uses, in bytes.
        resident: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// It has loaded as many samples as it may.
    Samples {
        /// The number of samples.
        samples: u64,
    },
    /// It has nearly as many open descriptors as the system allows.
    Descriptors {
        /// The number when it was ready.
        from: u64,
        /// The number now.
        to: u64,
        /// The limit.
        limit: u64,
    },
    /// Memory is nearly used up, and this worker has grown most.
    Shortage {
        /// The memory it uses, in bytes.
        resident: u64,
        /// The bytes left for all processes.
        left: u64,
    },
}

impl Leak {
    /// A short name, as used in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Leak::Memory { .. } => "memory",
            Leak::Samples { .. } => "samples",
            Leak::Descriptors { .. } => "descriptors",
            Leak::Shortage { .. } => "shortage of memory",
        }
    }

    /// A description with numbers, for the log.
    pub fn describe(&self) -> String {
        match self {
            Leak::Memory { resident, limit } => {
                format!(
                    "it held {}, max_worker_memory is {}",
                    in_bytes(*resident),
                    in_bytes(*limit)
                )
            }
            Leak::Samples { samples } => format!("it had loaded {samples} samples"),
            Leak::Descriptors { from, to, limit } => format!(
                "its open descriptors grew from {from} to {to}, and the system allows {limit}"
            ),
            Leak::Shortage { resident, left } => format!(
                "only {} of memory was left for all processes, and it held {}, more than the others",
                in_bytes(*left),
                in_bytes(*resident)
            ),
        }
    }
}

/// Returns the limit that a worker exceeds, if any.
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
    // The descriptors a worker started with are no leak: a restart does not help against a tight
    // limit.
    if used.descriptors >= near && used.descriptors >= 2 * used.descriptors_at_first.max(8) {
        let (from, to) = (used.descriptors_at_first, used.descriptors);
        return Some(Leak::Descriptors { from, to, limit: bounds.descriptors });
    }
    None
}

/// The worker to renew when memory runs short: the one that has grown most.
pub(crate) fn most_grown<T: Copy>(
    workers: &[(T, ResourceUse)],
    left: u64,
    all: u64,
) -> Option<(T, Leak)> {
    let percent = |percent: u64| (all / 100).saturating_mul(percent);
    let short = percent(LEFT_PERCENT)
        .max(percent(SMALL_MEMORY_LEFT_PERCENT).min(SMALL_MEMORY_LEFT))
        .min(ENOUGH);
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
    fn each_leak_is_described_with_its_numbers() {
        let over = [
            ResourceUse { resident: (1 << 30) + 1, ..USED },
            ResourceUse { samples: 100, ..USED },
            ResourceUse { descriptors: 820, ..USED },
        ];
        let texts: Vec<_> =
            over.iter().map(|used| of_worker(*used, BOUNDS).unwrap().describe()).collect();
        insta::assert_snapshot!(texts.join("\n"));
    }

    #[test]
    fn when_memory_is_short_the_worker_that_has_grown_most_is_renewed() {
        let workers = [(0, USED), (1, ResourceUse { resident: 900 << 20, ..USED }), (2, USED)];
        assert_eq!(most_grown(&workers, 4 << 30, 8 << 30), None);
        let (worker, leak) = most_grown(&workers, 100 << 20, 8 << 30).unwrap();
        assert_eq!((worker, leak.name()), (1, "shortage of memory"));
        assert!(most_grown(&workers, 60 << 20, 512 << 20).is_some());
        let lean = ResourceUse { resident: 101 << 20, ..USED };
        assert_eq!(most_grown(&[(0, lean)], 100 << 20, 8 << 30), None);
    }
}
