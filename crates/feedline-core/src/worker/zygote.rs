//! What trainer and zygote say to each other: one message, one packet, descriptors beside it.

/// Bytes of a message's head.
const HEAD: usize = 16;

/// What the trainer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZygoteRequest {
    /// A worker for a worker; its socket, arena and the boxes come as descriptors.
    Fork {
        /// Which worker.
        worker_id: u32,
        /// The how-manyeth there.
        generation: u32,
    },
    /// An end to a worker.
    Kill {
        /// Which worker.
        worker_id: u32,
        /// The how-manyeth there.
        generation: u32,
    },
    /// That a worker writes down where it is, into its crash log.
    Dump {
        /// Which worker.
        worker_id: u32,
        /// The how-manyeth there.
        generation: u32,
    },
    /// A sign of life.
    Ping {
        /// To be sent back.
        number: u32,
    },
}

impl ZygoteRequest {
    /// As it goes over the wire: kind, worker, generation, nothing.
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let words = match self {
            ZygoteRequest::Fork { worker_id, generation } => [1, worker_id, generation, 0],
            ZygoteRequest::Kill { worker_id, generation } => [2, worker_id, generation, 0],
            // 3 is the work itself, which Python sends.
            ZygoteRequest::Dump { worker_id, generation } => [4, worker_id, generation, 0],
            // 5 is what Python sends with the work.
            ZygoteRequest::Ping { number } => [6, number, 0, 0],
        };
        let mut bytes = [0; HEAD];
        for (target, word) in bytes.chunks_exact_mut(4).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// What the zygote reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZygoteReport {
    /// It holds the data set and can fork.
    Ready,
    /// A worker was forked.
    Forked {
        /// Which worker.
        worker_id: u32,
        /// The how-manyeth there.
        generation: u32,
        /// Its process.
        pid: u32,
    },
    /// The system refused to fork.
    Refused {
        /// Which worker.
        worker_id: u32,
        /// The how-manyeth there.
        generation: u32,
        /// The number of the system's error.
        error: i32,
    },
    /// A worker has ended and was reaped.
    Ended {
        /// Which worker.
        worker_id: u32,
        /// The how-manyeth there.
        generation: u32,
        /// The exit code, or less than zero: the signal.
        status: i32,
        /// The most memory it ever held, in bytes; zero if that is unknown.
        peak_bytes: u64,
    },
    /// It cannot hold the data set.
    Failed(Vec<u8>),
    /// It has answered a ping, and done all that it was asked for before.
    Alive {
        /// That of the ping.
        number: u32,
    },
}

impl ZygoteReport {
    /// None if it is no report at all.
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
    fn what_is_no_report_is_none() {
        assert_eq!(ZygoteReport::from_bytes(b"short"), None);
        assert_eq!(ZygoteReport::from_bytes(&packet([99, 0, 0, 0], b"")), None);
    }
}
