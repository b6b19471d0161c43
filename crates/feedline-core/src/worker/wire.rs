//! The messages between trainer and worker: frames on a stream, and the table of a result's
//! buffers.
//!
//! Nothing here waits, or allocates memory because of a length that the other side sent: a length
//! without the bytes that belong to it costs nothing.

/// The length of a frame's head in bytes.
pub const HEAD: usize = 40;

/// The kind of a frame. The trainer sends the first four, the worker sends the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A task.
    Task,
    /// A new epoch begins; the worker answers as for a task.
    Resume,
    /// Exit after the tasks received so far.
    Stop,
    /// Load one sample of a task alone, and discard it, to see whether it kills the worker. Its
    /// offset precedes the body of the task.
    Trial,
    /// The worker can take tasks.
    Ready,
    /// The worker cannot start; the body says why.
    StartFailed,
    /// The result of a task.
    Result,
    /// The result of a task with samples whose faults are still to be judged.
    Faulty,
    /// The result of a task is an exception.
    Raised,
    /// The result of a task: the worker's iterator is exhausted.
    Exhausted,
    /// The worker has survived a trial.
    Survived,
    /// A note that is no answer to a task.
    Note,
}

const ALL: [FrameKind; 12] = [
    FrameKind::Task,
    FrameKind::Resume,
    FrameKind::Stop,
    FrameKind::Trial,
    FrameKind::Ready,
    FrameKind::StartFailed,
    FrameKind::Result,
    FrameKind::Faulty,
    FrameKind::Raised,
    FrameKind::Exhausted,
    FrameKind::Survived,
    FrameKind::Note,
];

/// The number of samples in a result, and the time of the slowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTiming {
    /// The number of samples.
    pub samples: u32,
    /// The offset of the slowest sample.
    pub slowest: u32,
    /// The time that the slowest sample took, in nanoseconds.
    pub nanoseconds: u64,
}

/// The head of a frame, which precedes its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The task that it belongs to.
    pub task: u64,
    /// The length of the body in bytes.
    pub length: u64,
    /// The timing of a result; zero in other frames.
    pub timing: BatchTiming,
}

impl FrameHead {
    /// A head without timing.
    pub(crate) fn new(kind: FrameKind, task: u64, length: u64) -> FrameHead {
        FrameHead { kind, task, length, timing: BatchTiming::default() }
    }

    /// The wire format.
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let code = ALL.iter().position(|kind| *kind == self.kind).unwrap_or_default() as u64;
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&code.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.task.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.timing.samples.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.timing.slowest.to_le_bytes());
        bytes[32..].copy_from_slice(&self.timing.nanoseconds.to_le_bytes());
        bytes
    }

    /// Parses a head; returns `None` if its kind is unknown.
    pub(crate) fn from_bytes(bytes: &[u8; HEAD]) -> Option<FrameHead> {
        let [code, task, length, counts, nanoseconds] =
            [0, 8, 16, 24, 32].map(|at| word(bytes, at).unwrap_or_default());
        let kind = *ALL.get(usize::try_from(code).ok()?)?;
        let timing =
            BatchTiming { samples: counts as u32, slowest: (counts >> 32) as u32, nanoseconds };
        Some(FrameHead { kind, task, length, timing })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// A received frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The task that it belongs to.
    pub task: u64,
    /// The timing of a result; zero in other frames.
    pub timing: BatchTiming,
    /// The body.
    pub body: Vec<u8>,
}

/// The stream does not consist of frames; reading cannot continue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProtocolError;

/// Assembles frames from the chunks of a stream.
#[derive(Default)]
pub(crate) struct Assembler {
    head: Vec<u8>,
    begun: Option<(FrameHead, Vec<u8>)>,
}

impl Assembler {
    /// Consumes all bytes and passes each complete frame to `out`.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        mut out: impl FnMut(Frame),
    ) -> Result<(), ProtocolError> {
        while !bytes.is_empty() || self.is_complete() {
            if let Some((head, mut body)) = self.begun.take() {
                let missing = head.length - body.len() as u64;
                let taken = usize::try_from(missing).unwrap_or(usize::MAX).min(bytes.len());
                body.extend_from_slice(&bytes[..taken]);
                bytes = &bytes[taken..];
                if body.len() as u64 == head.length {
                    out(Frame { kind: head.kind, task: head.task, timing: head.timing, body });
                } else {
                    self.begun = Some((head, body));
                }
            } else {
                let taken = (HEAD - self.head.len()).min(bytes.len());
                self.head.extend_from_slice(&bytes[..taken]);
                bytes = &bytes[taken..];
                if let Ok(head) = <&[u8; HEAD]>::try_from(self.head.as_slice()) {
                    let head = FrameHead::from_bytes(head).ok_or(ProtocolError)?;
                    self.head.clear();
                    self.begun = Some((head, Vec::new()));
                }
            }
        }
        Ok(())
    }

    /// A frame without a body is complete as soon as its head is.
    fn is_complete(&self) -> bool {
        self.begun.as_ref().is_some_and(|(head, body)| head.length == body.len() as u64)
    }
}

/// Where a buffer of a result is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferLocation {
    /// In the body of the frame.
    Inline {
        /// The first byte.
        offset: u64,
        /// The length in bytes.
        length: u64,
    },
    /// In a slot of the arena.
    Slot {
        /// The slot.
        slot: u32,
        /// The first byte in the arena.
        offset: u64,
        /// The length in bytes.
        length: u64,
    },
}

const INLINE: u64 = u64::MAX;
const ENTRY: usize = 24;

/// The length in bytes of a table of that many buffers, at the start of a body.
pub(crate) fn table_bytes(buffers: usize) -> usize {
    8 + buffers * ENTRY
}

/// Writes the table of a result's buffers.
pub(crate) fn write_table(locations: &[BufferLocation]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(table_bytes(locations.len()));
    bytes.extend_from_slice(&(locations.len() as u64).to_le_bytes());
    for location in locations {
        let words = match *location {
            BufferLocation::Inline { offset, length } => [INLINE, offset, length],
            BufferLocation::Slot { slot, offset, length } => [u64::from(slot), offset, length],
        };
        for word in words {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

/// Parses a table. Returns `None` if the body is too short or a buffer is outside it.
pub(crate) fn read_table(body: &[u8]) -> Option<Vec<BufferLocation>> {
    let count = usize::try_from(word(body, 0)?).ok()?;
    // Check before allocating: a corrupt count must not allocate a huge list.
    if count > body.len() / ENTRY {
        return None;
    }
    (0..count)
        .map(|number| {
            let at = table_bytes(number);
            let [slot, offset, length] =
                [word(body, at)?, word(body, at + 8)?, word(body, at + 16)?];
            if slot != INLINE {
                return Some(BufferLocation::Slot {
                    slot: u32::try_from(slot).ok()?,
                    offset,
                    length,
                });
            }
            let is_inside = offset.checked_add(length)? <= body.len() as u64;
            is_inside.then_some(BufferLocation::Inline { offset, length })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(frame: &Frame) -> Vec<u8> {
        let length = frame.body.len() as u64;
        let head = FrameHead { kind: frame.kind, task: frame.task, length, timing: frame.timing };
        [head.to_bytes().as_slice(), &frame.body].concat()
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let counts = (any::<u32>(), any::<u32>(), any::<u64>());
        let body = prop::collection::vec(any::<u8>(), 0..100);
        (0..ALL.len(), any::<u64>(), counts, body).prop_map(|(kind, task, counts, body)| {
            let (samples, slowest, nanoseconds) = counts;
            let timing = BatchTiming { samples, slowest, nanoseconds };
            Frame { kind: ALL[kind], task, timing, body }
        })
    }

    proptest! {
        #[test]
        fn frames_are_complete_however_the_stream_is_split(
            frames in prop::collection::vec(frame(), 0..6),
            cuts in prop::collection::vec(1usize..50, 1..40),
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(bytes).collect();
            let mut assembler = Assembler::default();
            let mut arrived = Vec::new();
            let (mut rest, mut cuts) = (stream.as_slice(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                assembler.push(piece, |frame| arrived.push(frame)).unwrap();
                rest = after;
            }
            prop_assert_eq!(arrived, frames);
        }

        #[test]
        fn random_bytes_neither_panic_nor_allocate_more_than_their_length(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut assembler = Assembler::default();
            let _ = assembler.push(&body, |_| {});
            if let Some(locations) = read_table(&body) {
                prop_assert!(locations.len() * ENTRY <= body.len());
            }
        }

        #[test]
        fn a_table_is_read_as_it_was_written(slots in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u64>()), 0..20)) {
            let locations: Vec<_> = slots
                .into_iter()
                .map(|(slot, offset, length)| BufferLocation::Slot { slot, offset, length })
                .collect();
            prop_assert_eq!(read_table(&write_table(&locations)), Some(locations));
        }
    }

    #[test]
    fn a_buffer_outside_of_the_frame_is_refused() {
        let mut body = write_table(&[BufferLocation::Inline { offset: 32, length: 5 }]);
        body.extend_from_slice(b"1234");
        assert_eq!(read_table(&body), None);
        body.push(b'5');
        assert!(read_table(&body).is_some());
    }

    #[test]
    fn a_stream_that_does_not_consist_of_frames_is_an_error() {
        assert_eq!(Assembler::default().push(&[0xff; HEAD], |_| {}), Err(ProtocolError));
    }
}
