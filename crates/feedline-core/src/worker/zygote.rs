//! The messages between trainer and zygote: one message per packet, with descriptors attached.

/// Bytes of a message's head.
const HEAD: usize = 16;

/// A request of the trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZygoteRequest {
    /// Fork a worker. Its socket, arena, boxes and crash log are attached as descriptors.
    Fork {
        /// The worker.
        worker_id: u32,
        /// The generation of its process.
        generation: u32,
    },
    /// Kill a worker.
    Kill {
        /// The worker.
        worker_id: u32,
        /// The generation of its process.
        generation: u32,
    },
    /// Make a worker write its stack into its crash log.
    Dump {
        /// The worker.
        worker_id: u32,
        /// The generation of its process.
        generation: u32,
    },
    /// Answer with a sign of life.
    Ping {
        /// The number that the answer repeats.
        number: u32,
    },
}

impl ZygoteRequest {
    /// The wire format: kind, worker id, generation, padding.
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let words = match self {
            ZygoteRequest::Fork { worker_id, generation } => [1, worker_id, generation, 0],
            ZygoteRequest::Kill { worker_id, generation } => [2, worker_id, generation, 0],
            // Python sends kind 3, the work itself,
            ZygoteRequest::Dump { worker_id, generation } => [4, worker_id, generation, 0],
            // and kind 5 along with the work.
            ZygoteRequest::Ping { number } => [6, number, 0, 0],
        };
        let mut bytes = [0; HEAD];
        for (target, word) in bytes.chunks_exact_mut(4).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// A report of the zygote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZygoteReport {
    /// It has loaded the data set and can fork.
    Ready,
    /// A worker was forked.
    Forked {
        /// The worker.
        worker_id: u32,
        /// The generation of its process.
        generation: u32,
        /// The process id.
        pid: u32,
    },
    /// The system refused to fork.
    Refused {
        /// The worker.
        worker_id: u32,
        /// The generation of its process.
        generation: u32,
        /// The `errno`.
        error: i32,
    },
    /// A worker has ended and was reaped.
    Ended {
        /// The worker.
        worker_id: u32,
        /// The generation of its process.
        generation: u32,
        /// The exit code, or the negative signal number.
        status: i32,
        /// The most memory it ever used, in bytes; zero if unknown.
        peak_bytes: u64,
    },
    /// It cannot load the data set; the bytes say why.
    Failed(Vec<u8>),
    /// It has answered a ping, after all earlier requests.
    Alive {
        /// The number of the ping.
        number: u32,
    },
}

impl ZygoteReport {
    /// Parses a packet; returns `None` if it is not a report.
    pub fn from_bytes(bytes: &[u8]) -> Option<ZygoteReport> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let word = |at: usize| -> u32 {
            head[at * 4..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let (worker_id, generation, value) = (word(1), word(2), word(3));
        Some(match word(0) {
            1 => ZygoteReport::Ready,
            2 => ZygoteReport::Forked { worker_id, generation, pid: value },
            3 => ZygoteReport::Refused { worker_id, generation, error: value.cast_signed() },
            4 => {
                let peak_bytes = rest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                ZygoteReport::Ended {
                    worker_id,
                    generation,
                    status: value.cast_signed(),
                    peak_bytes,
                }
            }
            5 => ZygoteReport::Failed(rest.to_vec()),
            6 => ZygoteReport::Alive { number: worker_id },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(words: [i32; 4], rest: &[u8]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).chain(rest.iter().copied()).collect()
    }

    #[test]
    fn reports_are_read_as_the_zygote_writes_them() {
        let ended =
            ZygoteReport::Ended { worker_id: 3, generation: 7, status: -9, peak_bytes: 4096 };
        let peak = 4096_u64.to_le_bytes();
        assert_eq!(ZygoteReport::from_bytes(&packet([4, 3, 7, -9], &peak)), Some(ended));
        let failed = ZygoteReport::Failed(b"why".to_vec());
        assert_eq!(ZygoteReport::from_bytes(&packet([5, 0, 0, 0], b"why")), Some(failed));
        let alive = ZygoteReport::Alive { number: 9 };
        assert_eq!(ZygoteReport::from_bytes(&packet([6, 9, 0, 0], b"")), Some(alive));
    }

    #[test]
    fn an_invalid_packet_is_no_report() {
        assert_eq!(ZygoteReport::from_bytes(b"short"), None);
        assert_eq!(ZygoteReport::from_bytes(&packet([99, 0, 0, 0], b"")), None);
    }
}
