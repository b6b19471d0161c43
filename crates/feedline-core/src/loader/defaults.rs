//! What a loader uses if the user does not say: numbers from what the machine allows. Pure, so that
//! `feedline doctor` can say what would be chosen.

/// The most bytes of prefetched batches.
const PREFETCH: u64 = 128 << 20;
/// The most open descriptors.
const FILES: u64 = 256;
/// Descriptors that are left to other code before the rest is shared.
const RESERVED_FILES: u64 = 16;
/// The least and the most memory of a native pipeline, and the most of worker processes.
const LEAST_MEMORY: u64 = 64 << 20;
const MOST_MEMORY: u64 = 4 << 30;
const MOST_WORKER_MEMORY: u64 = 8 << 30;

/// Threads that read, for a number of threads that decode. Readers mostly wait.
pub fn readers(threads: u64) -> u64 {
    (threads * 2).clamp(2, 16)
}

/// Bytes for a native pipeline: a quarter of what is available.
pub fn memory(available: u64) -> u64 {
    (available / 4).clamp(LEAST_MEMORY, MOST_MEMORY)
}

/// Bytes of shared memory for worker processes: a quarter of what is available.
pub fn worker_memory(available: u64) -> u64 {
    (available / 4).clamp(LEAST_MEMORY, MOST_WORKER_MEMORY)
}

/// Bytes of batches that are ready before the consumer asks for them.
pub fn prefetch(memory: u64) -> u64 {
    PREFETCH.min(memory / 2)
}

/// Descriptors for a native pipeline: half of those that are free.
pub fn files(limit: u64, open: u64) -> u64 {
    let free = limit.saturating_sub(open + RESERVED_FILES);
    (free / 2).clamp(1, FILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_stay_within_what_the_machine_allows() {
        assert_eq!((files(64, 10), files(20, 30), files(u64::MAX, 10)), (19, 1, FILES));
        assert_eq!((memory(0), memory(1 << 30), memory(1 << 40)), (64 << 20, 256 << 20, 4 << 30));
        assert_eq!(worker_memory(1 << 40), 8 << 30);
        assert_eq!((prefetch(64 << 20), prefetch(4 << 30)), (32 << 20, 128 << 20));
        assert_eq!((readers(1), readers(4), readers(64)), (2, 8, 16));
    }
}
