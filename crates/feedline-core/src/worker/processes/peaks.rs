//! The most processes that a pool had at a time, the most descriptors that one of its workers had open, and the most
//! shared memory that its results took.

use std::sync::atomic::{AtomicU64, Ordering};

use super::allowance;
use crate::metrics::Resource;

/// The peaks of a pool. They outlive it.
#[derive(Debug)]
pub struct PoolPeaks {
    processes: AtomicU64,
    descriptors: AtomicU64,
    memory: AtomicU64,
    /// The same for all pools of the process, and what they may use.
    process_memory: AtomicU64,
    most_process_memory: AtomicU64,
    most_processes: u64,
    most_descriptors: u64,
    most_memory: u64,
}

impl PoolPeaks {
    /// For this many workers, with a limit on the open files of each and one on the memory of all. The zygote is a
    /// process too.
    pub(super) fn new(worker_count: u32, open_files: u64, memory: u64) -> PoolPeaks {
        PoolPeaks {
            processes: AtomicU64::new(0),
            descriptors: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            process_memory: AtomicU64::new(0),
            most_process_memory: AtomicU64::new(0),
            most_processes: u64::from(worker_count) + 1,
            most_descriptors: open_files,
            most_memory: memory,
        }
    }

    pub(super) fn note_memory(&self, bytes: u64) {
        self.memory.fetch_max(bytes, Ordering::Relaxed);
        let (peak, total) = allowance::note_peak();
        self.process_memory.fetch_max(peak, Ordering::Relaxed);
        self.most_process_memory.fetch_max(total, Ordering::Relaxed);
    }

    pub(super) fn note_processes(&self, workers: usize) {
        self.processes.fetch_max(workers as u64 + 1, Ordering::Relaxed);
    }

    pub(super) fn note_descriptors(&self, descriptors: u64) {
        self.descriptors.fetch_max(descriptors, Ordering::Relaxed);
    }

    /// For the report.
    pub(crate) fn resources(&self) -> [(&'static str, Resource); 3] {
        let of = |peak: &AtomicU64, budget| {
            let peak = peak.load(Ordering::Relaxed);
            Resource { peak, budget, process: None }
        };
        let memory = of(&self.memory, self.most_memory);
        let process = (&self.process_memory, &self.most_process_memory);
        let process = (process.0.load(Ordering::Relaxed), process.1.load(Ordering::Relaxed));
        let process = Some(process).filter(|(_, total)| *total > 0);
        [
            ("processes", of(&self.processes, self.most_processes)),
            ("shared_memory", Resource { process, ..memory }),
            ("worker_files", of(&self.descriptors, self.most_descriptors)),
        ]
    }
}
