//! What trainer and worker say to each other: frames on a stream, and the table of an answer's buffers.
//!
//! Nothing here waits or allocates by the word of the other side: a length that is not followed by as
//! many bytes costs nothing.

/// Bytes of a frame's head.
pub const HEAD: usize = 40;

/// What a frame is. The first four go to the worker, the others come from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A task to be done.
    Task,
    /// A new epoch begins; answered like a task.
    Resume,
    /// End after what is at hand.
    Stop,
    /// One sample of a task is to be made alone, and thrown away: does it kill? Its position stands
    /// before the body of the task.
    Trial,
    /// The worker can take tasks.
    Ready,
    /// The worker cannot start; the body says why.
    StartFailed,
    /// The result of a task.
    Result,
    /// The result of a task, some of whose samples have faults that are to be judged.
    Faulty,
    /// An exception is the result of a task.
    Raised,
    /// The worker's iterator has nothing more: this is the result of the task.
    Exhausted,
    /// A trial is over, and the worker lives.
    Survived,
    /// Something to be known at once; it answers nothing.
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

/// What an answer is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTiming {
    /// How many samples.
    pub samples: u32,
    /// The position of the one that took longest.
    pub slowest: u32,
    /// How long that took, in nanoseconds.
    pub nanoseconds: u64,
}

/// What stands before the body of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    /// What it is.
    pub kind: FrameKind,
    /// Which task it is about.
    pub task: u64,
    /// Bytes of the body.
    pub length: u64,
    /// What an answer is made of; nothing in other frames.
    pub timing: BatchTiming,
}

impl FrameHead {
    /// Without a tally.
    pub(crate) fn new(kind: FrameKind, task: u64, length: u64) -> FrameHead {
        FrameHead { kind, task, length, timing: BatchTiming::default() }
    }

    /// As it goes over the wire.
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

    /// None if it is no head at all.
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

/// A frame as it came.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: FrameKind,
    /// Which task it is about.
    pub task: u64,
    /// What it is made of.
    pub timing: BatchTiming,
    /// The rest.
    pub body: Vec<u8>,
}

/// The stream is not made of frames; nothing more can be read from it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProtocolError;

/// Makes frames of bytes as they come in.
#[derive(Default)]
pub(crate) struct Assembler {
    head: Vec<u8>,
    begun: Option<(FrameHead, Vec<u8>)>,
}

impl Assembler {
    /// Takes all the bytes, and hands each frame that they complete to `out`.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        mut out: impl FnMut(Frame),
    ) -> Result<(), ProtocolError> {
        while !bytes.is_empty() || self.is_whole() {
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

    /// A frame without a body is whole as soon as its head is.
    fn is_whole(&self) -> bool {
        self.begun.as_ref().is_some_and(|(head, body)| head.length == body.len() as u64)
    }
}

/// Where a buffer of an answer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferLocation {
    /// In the frame itself, from that byte of the body on.
    Inline {
        /// The first byte.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// In a slot of the arena.
    Slot {
        /// Which one.
        slot: u32,
        /// The first byte in the arena.
        offset: u64,
        /// How many.
        length: u64,
    },
}

const INLINE: u64 = u64::MAX;
const ENTRY: usize = 24;

/// Bytes that a table of that many buffers takes at the start of a body.
pub(crate) fn table_bytes(buffers: usize) -> usize {
    8 + buffers * ENTRY
}

/// Writes the table of an answer's buffers.
pub(crate) fn write_table(places: &[BufferLocation]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(table_bytes(places.len()));
    bytes.extend_from_slice(&(places.len() as u64).to_le_bytes());
    for place in places {
        let words = match *place {
            BufferLocation::Inline { offset, length } => [INLINE, offset, length],
            BufferLocation::Slot { slot, offset, length } => [u64::from(slot), offset, length],
        };
        for word in words {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

/// Reads it again. None if the body is too short, or a buffer lies outside of it.
pub(crate) fn read_table(body: &[u8]) -> Option<Vec<BufferLocation>> {
    let count = usize::try_from(word(body, 0)?).ok()?;
    // Before the list is made: a wild count must not make one.
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
        fn frames_arrive_whole_however_the_stream_is_cut(
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
        fn wild_bytes_neither_panic_nor_make_a_list_by_their_word(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut assembler = Assembler::default();
            let _ = assembler.push(&body, |_| {});
            if let Some(places) = read_table(&body) {
                prop_assert!(places.len() * ENTRY <= body.len());
            }
        }

        #[test]
        fn a_table_is_read_as_it_was_written(slots in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u64>()), 0..20)) {
            let places: Vec<_> = slots
                .into_iter()
                .map(|(slot, offset, length)| BufferLocation::Slot { slot, offset, length })
                .collect();
            prop_assert_eq!(read_table(&write_table(&places)), Some(places));
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
    fn a_stream_that_is_no_stream_of_frames_is_garbled() {
        assert_eq!(Assembler::default().push(&[0xff; HEAD], |_| {}), Err(ProtocolError));
    }
}
