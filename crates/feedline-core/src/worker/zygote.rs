//! What trainer and zygote say to each other: one message, one packet, descriptors beside it.

/// Bytes of a message's head.
const HEAD: usize = 16;

/// What the trainer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A worker for a post; its socket, arena and the boxes come as descriptors.
    Fork {
        /// Which post.
        post: u32,
        /// The how-manyeth there.
        generation: u32,
    },
    /// An end to a worker.
    Kill {
        /// Which post.
        post: u32,
        /// The how-manyeth there.
        generation: u32,
    },
    /// That a worker writes down where it is, into its last words.
    Dump {
        /// Which post.
        post: u32,
        /// The how-manyeth there.
        generation: u32,
    },
    /// A sign of life.
    Ping {
        /// To be sent back.
        number: u32,
    },
}

impl Request {
    /// As it goes over the wire: kind, post, generation, nothing.
    pub fn to_bytes(self) -> [u8; HEAD] {
        let words = match self {
            Request::Fork { post, generation } => [1, post, generation, 0],
            Request::Kill { post, generation } => [2, post, generation, 0],
            // 3 is the work itself, which Python sends.
            Request::Dump { post, generation } => [4, post, generation, 0],
            // 5 is what Python sends with the work.
            Request::Ping { number } => [6, number, 0, 0],
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
pub enum Report {
    /// It holds the data set and can fork.
    Ready,
    /// A worker was forked.
    Forked {
        /// Which post.
        post: u32,
        /// The how-manyeth there.
        generation: u32,
        /// Its process.
        pid: u32,
    },
    /// The system refused to fork.
    Refused {
        /// Which post.
        post: u32,
        /// The how-manyeth there.
        generation: u32,
        /// The number of the system's error.
        error: i32,
    },
    /// A worker has ended and was reaped.
    Ended {
        /// Which post.
        post: u32,
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

impl Report {
    /// None if it is no report at all.
    pub fn from_bytes(bytes: &[u8]) -> Option<Report> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let word = |at: usize| -> u32 {
            head[at * 4..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let (post, generation, value) = (word(1), word(2), word(3));
        Some(match word(0) {
            1 => Report::Ready,
            2 => Report::Forked { post, generation, pid: value },
            3 => Report::Refused { post, generation, error: value.cast_signed() },
            4 => {
                let peak_bytes = rest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                Report::Ended { post, generation, status: value.cast_signed(), peak_bytes }
            }
            5 => Report::Failed(rest.to_vec()),
            6 => Report::Alive { number: post },
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
        let ended = Report::Ended { post: 3, generation: 7, status: -9, peak_bytes: 4096 };
        let peak = 4096_u64.to_le_bytes();
        assert_eq!(Report::from_bytes(&packet([4, 3, 7, -9], &peak)), Some(ended));
        let failed = Report::Failed(b"why".to_vec());
        assert_eq!(Report::from_bytes(&packet([5, 0, 0, 0], b"why")), Some(failed));
        let alive = Report::Alive { number: 9 };
        assert_eq!(Report::from_bytes(&packet([6, 9, 0, 0], b"")), Some(alive));
    }

    #[test]
    fn what_is_no_report_is_none() {
        assert_eq!(Report::from_bytes(b"short"), None);
        assert_eq!(Report::from_bytes(&packet([99, 0, 0, 0], b"")), None);
    }
}
