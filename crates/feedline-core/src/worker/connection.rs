//! A worker's end: takes tasks, writes batches into the arena, answers, and keeps its box.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::arena::{Arena, ArenaPiece};
use super::blackbox::{ALL, Activity, BoxField, Boxes, Owner};
use super::inbox::{self, ReceivedBuffer, WorkerInbox};
use super::wire::{self, Assembler, BatchTiming, BufferLocation, Frame, FrameHead, FrameKind};
use crate::sys::clock;
use crate::sys::limits;
use crate::sys::process;
use crate::sys::socket::{Moved, Socket};

/// Up to this size a buffer travels in the frame: a copy of it costs less than a slot.
const SMALL: usize = 4096;
/// How often a worker looks whether there is memory for it again.
const LOOK: Duration = Duration::from_millis(1);
/// How often a worker looks how much memory it has, in nanoseconds.
const WEIGH_EVERY: u64 = 100_000_000;
/// How often a worker looks between samples whether it is still connected, in nanoseconds: it takes a system call.
const LOOK_EVERY: u64 = 20_000;
/// How many bytes are read at a time.
const CHUNK: usize = 64 << 10;

/// What came of waiting for a task.
pub enum Received {
    /// This.
    ReceivedTask(ReceivedTask),
    /// Nothing yet: a signal came.
    Interrupted,
    /// The trainer is gone.
    Ended,
    /// Code in this process has closed the connection.
    CutOff,
}

/// What the trainer has said.
pub struct ReceivedTask {
    /// What it is.
    pub kind: FrameKind,
    /// Which task it is about.
    pub task: u64,
    /// Of which sample alone, in a trial.
    pub position: Option<u64>,
    /// The task in words of the front.
    pub body: Vec<u8>,
    /// The buffers that go with it.
    pub buffers: Vec<ReceivedBuffer>,
}

/// What became of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    All,
    /// The rest must be sent again with `go_on`: a signal came.
    Interrupted,
    /// The trainer is gone.
    Ended,
    /// Code in this process has closed the connection.
    CutOff,
}

/// One worker process.
pub struct WorkerConnection {
    owner: Owner,
    socket: Socket,
    /// When the socket was last found to be ours, in nanoseconds.
    looked: u64,
    /// Samples that were begun since then.
    begun_since: u32,
    arena: Arena,
    inbox: Option<Arc<WorkerInbox>>,
    boxes: Boxes,
    incoming: Assembler,
    waiting: std::collections::VecDeque<Frame>,
    packed: Option<PackedResult>,
    outgoing: (Vec<u8>, usize),
    weighed: u64,
    timing: BatchTiming,
    /// When the sample at hand was begun, in nanoseconds.
    begun: u64,
}

struct PackedResult {
    kind: FrameKind,
    task: u64,
    /// With each place in a slot: whether the batch itself lay there, so that others may still see it.
    places: Vec<(BufferLocation, bool)>,
    inline: Vec<u8>,
    /// Slots filled for this answer, held until they are lent.
    filled: Vec<ArenaPiece>,
}

impl WorkerConnection {
    /// Takes over what the zygote passed on.
    pub fn open(
        worker_id: u32,
        generation: u32,
        worker_count: u32,
        socket: Socket,
        arena: OwnedFd,
        boxes: OwnedFd,
        inbox: Option<OwnedFd>,
    ) -> io::Result<WorkerConnection> {
        let size = |file: &OwnedFd| -> io::Result<usize> {
            Ok(usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or_default())
        };
        let holder = inbox::holder(worker_id, generation);
        let open_inbox =
            |file: OwnedFd| WorkerInbox::open(&file, size(&file)?, holder).map(Arc::new);
        let connection = WorkerConnection {
            owner: Owner { worker_id, generation },
            looked: 0,
            begun_since: 0,
            socket,
            arena: Arena::open(&arena, size(&arena)?)?,
            inbox: inbox.map(open_inbox).transpose()?,
            boxes: Boxes::open(&boxes, worker_count)?,
            incoming: Assembler::default(),
            waiting: std::collections::VecDeque::new(),
            packed: None,
            outgoing: (Vec::new(), 0),
            weighed: 0,
            timing: BatchTiming::default(),
            begun: 0,
        };
        connection.note(BoxField::Task, 0);
        connection.note(BoxField::Position, 0);
        connection.note(BoxField::IsCutOff, 0);
        connection.note(BoxField::Resident, process::resident_bytes());
        connection.note(BoxField::Descriptors, limits::open_files());
        connection.enter(Activity::Starting);
        connection.note(BoxField::Generation, u64::from(generation) + 1);
        Ok(connection)
    }

    /// Writes a word of the box.
    pub fn note(&self, word: BoxField, value: u64) {
        self.boxes.set(self.owner, word, value);
    }

    /// Looks whether the connection to the trainer is still there, and notes it if not. Code in this process may close descriptors that are
    /// not its own, and open others under their numbers: nothing must be read from those or written to them.
    /// Asked after each piece of the user's code, while the box still says which one that was.
    pub fn check_connection(&mut self) -> bool {
        if self.socket.is_intact() {
            self.looked = clock::nanoseconds();
            self.begun_since = 0;
            return true;
        }
        self.note(BoxField::IsCutOff, 1);
        if self.begun_since > 0 {
            // It may have been any of them.
            self.note(BoxField::Position, ALL);
        }
        false
    }

    /// Notes what the worker is at now.
    pub fn enter(&self, activity: Activity) {
        self.note(BoxField::Since, clock::nanoseconds());
        self.note(BoxField::Stage, activity.code());
    }

    /// Notes resident memory and open descriptors, where the last time is a while ago: asking costs
    /// some system calls.
    pub fn weigh(&mut self) {
        let now = clock::nanoseconds();
        if now.saturating_sub(self.weighed) > WEIGH_EVERY {
            self.weighed = now;
            self.note(BoxField::Resident, process::resident_bytes());
            self.note(BoxField::Descriptors, limits::open_files());
        }
    }

    /// Notes which task begins.
    pub fn begin(&mut self, task: u64) {
        self.timing = BatchTiming::default();
        self.begun = 0;
        self.note(BoxField::Position, 0);
        self.note(BoxField::Task, task + 1);
        self.enter(Activity::Fetching);
    }

    /// Notes at which sample of its batch the worker is. False if the one before has closed the connection; where
    /// samples take less than a look does, that is found later.
    pub fn reach(&mut self, position: u64) -> bool {
        let now = clock::nanoseconds();
        if now.saturating_sub(self.looked) < LOOK_EVERY {
            self.begun_since += 1;
        } else if !self.check_connection() {
            return false;
        }
        self.count(now);
        self.begun = now;
        self.note(BoxField::Position, position);
        self.note(BoxField::Since, now);
        true
    }

    /// Notes that the worker is at all samples of its batch at once; how many is said later.
    pub fn reach_all(&mut self) {
        self.begun = 0;
        self.note(BoxField::Position, ALL);
        self.note(BoxField::Since, clock::nanoseconds());
    }

    /// The samples are made: the last one is counted.
    pub fn made(&mut self) {
        self.count(clock::nanoseconds());
        self.begun = 0;
    }

    /// Counts the sample at hand, which is done.
    fn count(&mut self, now: u64) {
        if self.begun == 0 {
            return;
        }
        self.timing.samples += 1;
        let taken = now.saturating_sub(self.begun);
        if taken > self.timing.nanoseconds {
            self.timing.nanoseconds = taken;
            self.timing.slowest = self.boxes.get(self.owner, BoxField::Position) as u32;
        }
    }

    /// Says how many samples the answer has, where that is not the number of those reached.
    pub fn set_samples(&mut self, samples: u32) {
        self.timing.samples = samples;
    }

    /// Sends a note at once: a body in one frame that answers nothing.
    pub fn notify(&mut self, bytes: &[u8]) -> Sent {
        let task = self.boxes.get(self.owner, BoxField::Task).saturating_sub(1);
        let head = FrameHead::new(FrameKind::Note, task, bytes.len() as u64);
        self.outgoing = ([head.to_bytes().as_slice(), bytes].concat(), 0);
        self.go_on()
    }

    /// Notes what a replacement needs to go on after a task.
    pub fn journal(&self, task: u64, bytes: &[u8]) -> bool {
        self.boxes.write_journal(self.owner, task, bytes)
    }

    /// What held when a task began, in the words of this worker's predecessor.
    pub fn recall(&self, task: u64) -> Option<Vec<u8>> {
        self.boxes.read_journal(self.owner.worker_id, task)
    }

    /// Waits for the next frame.
    pub fn receive(&mut self) -> Received {
        let mut chunk = [0; CHUNK];
        loop {
            // Also after a wait: another thread may have closed it meanwhile.
            if !self.check_connection() {
                return Received::CutOff;
            }
            if let Some(frame) = self.waiting.pop_front() {
                return self.order(frame).map_or(Received::Ended, Received::ReceivedTask);
            }
            match self.socket.receive(&mut chunk) {
                Moved::Bytes(bytes) => {
                    let waiting = &mut self.waiting;
                    let pushed = self.incoming.push(&chunk[..bytes], |it| waiting.push_back(it));
                    if pushed.is_err() {
                        return Received::Ended;
                    }
                }
                Moved::WouldWait => return Received::Interrupted,
                Moved::Ended => return Received::Ended,
                Moved::Closed => return Received::CutOff,
            }
        }
    }

    /// None if the frame is none of the trainer's.
    fn order(&self, frame: Frame) -> Option<ReceivedTask> {
        let Frame { kind, task, body, .. } = frame;
        let (position, body) = match kind {
            FrameKind::Stop => {
                let (body, buffers) = (Vec::new(), Vec::new());
                return Some(ReceivedTask { kind, task, position: None, body, buffers });
            }
            FrameKind::Trial => {
                let (position, rest) = body.split_first_chunk::<8>()?;
                (Some(u64::from_le_bytes(*position)), rest)
            }
            FrameKind::Task | FrameKind::Resume => (None, body.as_slice()),
            FrameKind::Ready
            | FrameKind::StartFailed
            | FrameKind::Result
            | FrameKind::Faulty
            | FrameKind::Raised
            | FrameKind::Exhausted
            | FrameKind::Survived
            | FrameKind::Note => return None,
        };
        let (body, buffers) = inbox::open(body, self.inbox.as_ref())?;
        Some(ReceivedTask { kind, task, position, body, buffers })
    }

    /// Memory of the arena for a part of a task's batch. Waits while the arena is at its limit, but
    /// for the task that the trainer waits for. None if the arena has no such room at all.
    pub fn take(&mut self, bytes: usize) -> Option<ArenaPiece> {
        let task = self.boxes.get(self.owner, BoxField::Task).saturating_sub(1);
        let mut has_waited = false;
        loop {
            let is_urgent = task <= self.boxes.get(self.owner, BoxField::Oldest);
            let limit =
                if is_urgent { u64::MAX } else { self.boxes.get(self.owner, BoxField::ArenaLimit) };
            let piece = self.arena.take(bytes as u64, limit);
            if piece.is_some() || is_urgent {
                if has_waited {
                    self.enter(Activity::Collating);
                }
                return piece;
            }
            if !has_waited {
                self.enter(Activity::OutOfArena);
                has_waited = true;
            }
            clock::pause(LOOK);
        }
    }

    /// Finds a place for each buffer of an answer. Then the caller lets go of the batch and calls
    /// `send`: what somebody holds on to after that is copied, so that trainer and worker never share
    /// memory that either may change.
    pub fn pack(&mut self, kind: FrameKind, task: u64, buffers: &[&[u8]]) {
        let mut packed = PackedResult {
            kind,
            task,
            places: Vec::with_capacity(buffers.len()),
            inline: Vec::new(),
            filled: Vec::new(),
        };
        for bytes in buffers {
            let place = self.place(&mut packed, bytes);
            packed.places.push(place);
        }
        self.packed = Some(packed);
    }

    fn place(&mut self, packed: &mut PackedResult, bytes: &[u8]) -> (BufferLocation, bool) {
        let length = bytes.len() as u64;
        if bytes.len() > SMALL {
            let found = self.arena.find(bytes.as_ptr() as usize, bytes.len());
            if let Some((slot, offset)) = found
                && !self.arena.is_lent(slot)
                && !packed.has_slot(slot)
            {
                return (BufferLocation::Slot { slot, offset, length }, true);
            }
            if let Some(piece) = self.take(bytes.len())
                && piece.fill(bytes)
            {
                let place =
                    BufferLocation::Slot { slot: piece.slot(), offset: piece.offset(), length };
                packed.filled.push(piece);
                return (place, false);
            }
        }
        (packed.append(bytes), false)
    }

    /// Sends what was packed.
    pub fn send(&mut self) -> Sent {
        let Some(mut packed) = self.packed.take() else { return Sent::All };
        if self.boxes.get(self.owner, BoxField::Stage) == Activity::Answering.code() {
            self.enter(Activity::Sending);
        }
        for number in 0..packed.places.len() {
            if let (BufferLocation::Slot { slot, offset, length }, true) = packed.places[number]
                && self.arena.is_held(slot)
            {
                packed.places[number].0 = self.moved(&mut packed, offset, length);
            }
        }
        for (place, _) in &packed.places {
            if let BufferLocation::Slot { slot, .. } = place {
                self.arena.lend(*slot);
            }
        }
        let table = wire::table_bytes(packed.places.len()) as u64;
        let places: Vec<_> = packed
            .places
            .iter()
            .map(|(place, _)| match *place {
                BufferLocation::Inline { offset, length } => {
                    BufferLocation::Inline { offset: offset + table, length }
                }
                BufferLocation::Slot { .. } => *place,
            })
            .collect();
        let length = table + packed.inline.len() as u64;
        let head = FrameHead { kind: packed.kind, task: packed.task, length, timing: self.timing };
        let mut bytes = Vec::with_capacity(wire::HEAD + length as usize);
        bytes.extend_from_slice(&head.to_bytes());
        bytes.extend_from_slice(&wire::write_table(&places));
        bytes.extend_from_slice(&packed.inline);
        self.outgoing = (bytes, 0);
        self.go_on()
    }

    /// A copy of a part of the arena, elsewhere.
    fn moved(&mut self, packed: &mut PackedResult, offset: u64, length: u64) -> BufferLocation {
        let mut copy = vec![0; length as usize];
        self.arena.read(offset, &mut copy);
        if let Some(piece) = self.take(copy.len())
            && piece.fill(&copy)
        {
            let place = BufferLocation::Slot { slot: piece.slot(), offset: piece.offset(), length };
            packed.filled.push(piece);
            return place;
        }
        packed.append(&copy)
    }

    /// Goes on sending after a signal.
    pub fn go_on(&mut self) -> Sent {
        if !self.check_connection() {
            return Sent::CutOff;
        }
        let (bytes, done) = &mut self.outgoing;
        while *done < bytes.len() {
            match self.socket.send(&bytes[*done..]) {
                Moved::Bytes(sent) => *done += sent,
                Moved::WouldWait => return Sent::Interrupted,
                Moved::Ended => return Sent::Ended,
                Moved::Closed => return Sent::CutOff,
            }
        }
        Sent::All
    }
}

impl PackedResult {
    fn has_slot(&self, wanted: u32) -> bool {
        self.places
            .iter()
            .any(|(place, _)| matches!(place, BufferLocation::Slot { slot, .. } if *slot == wanted))
    }

    fn append(&mut self, bytes: &[u8]) -> BufferLocation {
        // Numbers must lie aligned in the frame, since arrays may be made on it.
        self.inline.resize(self.inline.len().next_multiple_of(8), 0);
        let offset = self.inline.len() as u64;
        self.inline.extend_from_slice(bytes);
        BufferLocation::Inline { offset, length: bytes.len() as u64 }
    }
}
