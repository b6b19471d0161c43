//! The worker's end of the connection: receives tasks, writes batches into the arena, sends
//! results, and keeps its black box current.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::arena::{Arena, ArenaPiece, Pages};
use super::blackbox::{ALL, Activity, BoxField, Boxes, Owner};
use super::inbox::{self, ReceivedBuffer, WorkerInbox};
use super::wire::{self, Assembler, BatchTiming, BufferLocation, Frame, FrameHead, FrameKind};
use crate::sys::clock;
use crate::sys::limits;
use crate::sys::process;
use crate::sys::socket::{Socket, Transfer};

/// Up to this size, a buffer is copied into the frame: that costs less than a slot.
const SMALL: usize = 4096;
/// How often a worker that waits for arena memory checks again.
const ARENA_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// How often a worker that waits for a task checks whether slots of its arena have become free.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// After this many checks without a task, a worker returns the pages of its free slots.
const IDLE_CHECKS: u32 = 10;
/// How often a worker measures its memory, in nanoseconds.
const MEASURE_EVERY: u64 = 100_000_000;
/// How often a worker checks its connection between samples, in nanoseconds: each check is a system
/// call.
const CONNECTION_CHECK_INTERVAL: u64 = 20_000;
/// How many bytes are read at a time.
const CHUNK: usize = 64 << 10;

/// The outcome of waiting for a task.
pub enum Received {
    /// A task, or another request.
    Task(ReceivedTask),
    /// A signal interrupted the wait.
    Interrupted,
    /// The trainer is gone.
    Ended,
    /// Code in this process has closed the connection.
    Disconnected,
}

/// A request of the trainer.
pub struct ReceivedTask {
    /// The kind of the request.
    pub kind: FrameKind,
    /// The task it is about.
    pub task: u64,
    /// In a trial, the offset of the sample to load.
    pub offset: Option<u64>,
    /// The task, encoded by the front.
    pub body: Vec<u8>,
    /// The task's buffers.
    pub buffers: Vec<ReceivedBuffer>,
}

/// The outcome of sending a result.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// All bytes were sent.
    All,
    /// A signal interrupted sending; call `resume_send` to send the rest.
    Interrupted,
    /// The trainer is gone.
    Ended,
    /// Code in this process has closed the connection.
    Disconnected,
}

/// A worker's connection to its trainer.
pub struct WorkerConnection {
    owner: Owner,
    socket: Socket,
    /// When the socket was last found to be ours, in nanoseconds.
    checked: u64,
    /// The number of samples begun since then.
    begun_since: u32,
    arena: Arena,
    inbox: Option<Arc<WorkerInbox>>,
    boxes: Boxes,
    incoming: Assembler,
    waiting: std::collections::VecDeque<Frame>,
    packed: Option<PackedResult>,
    outgoing: (Vec<u8>, usize),
    measured: u64,
    timing: BatchTiming,
    /// When the current sample was begun, in nanoseconds.
    begun: u64,
    /// When the current task was begun, in nanoseconds; later by the time it waited for memory.
    task_begun: u64,
    /// What becomes of free slots, by the last result.
    pages: Pages,
    /// How many times in a row it has waited for a task in vain.
    idle_checks: u32,
}

/// What a worker without a task has waited for.
enum Idle {
    /// A task may have arrived, or nothing but a task is worth waiting for.
    HasTask,
    /// Nothing happened.
    Waited,
    /// A signal interrupted the wait.
    Interrupted,
}

struct PackedResult {
    kind: FrameKind,
    task: u64,
    /// For each location in a slot: whether the batch itself was built there, so that other code
    /// may still see it.
    locations: Vec<(BufferLocation, bool)>,
    inline: Vec<u8>,
    /// Slots filled for this result, held until they are lent.
    filled: Vec<ArenaPiece>,
}

impl WorkerConnection {
    /// Opens the descriptors that the zygote passed.
    pub fn open(
        worker_id: u32,
        generation: u32,
        worker_count: u32,
        socket: Socket,
        arena: OwnedFd,
        boxes: OwnedFd,
        inbox: Option<OwnedFd>,
    ) -> io::Result<WorkerConnection> {
        // The limit is inherited from the trainer, unless the zygote was forked before that raised it.
        limits::raise_open_files();
        let size = |file: &OwnedFd| -> io::Result<usize> {
            Ok(usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or_default())
        };
        let holder = inbox::holder(worker_id, generation);
        let open_inbox =
            |file: OwnedFd| WorkerInbox::open(&file, size(&file)?, holder).map(Arc::new);
        let connection = WorkerConnection {
            owner: Owner { worker_id, generation },
            checked: 0,
            begun_since: 0,
            socket,
            arena: Arena::open(&arena, size(&arena)?)?,
            inbox: inbox.map(open_inbox).transpose()?,
            boxes: Boxes::open(&boxes, worker_count)?,
            incoming: Assembler::default(),
            waiting: std::collections::VecDeque::new(),
            packed: None,
            outgoing: (Vec::new(), 0),
            measured: 0,
            timing: BatchTiming::default(),
            begun: 0,
            task_begun: 0,
            pages: Pages::Kept,
            idle_checks: 0,
        };
        connection.note(BoxField::ArenaUsed, 0);
        connection.note(BoxField::Task, 0);
        connection.note(BoxField::Offset, 0);
        connection.note(BoxField::IsDisconnected, 0);
        connection.note(BoxField::Resident, process::resident_bytes());
        connection.note(BoxField::Descriptors, limits::open_files());
        connection.enter(Activity::Starting);
        connection.note(BoxField::Generation, u64::from(generation) + 1);
        Ok(connection)
    }

    /// Writes a field of the box.
    pub fn note(&self, word: BoxField, value: u64) {
        self.boxes.set(self.owner, word, value);
    }

    /// Checks that the connection to the trainer is still open, and notes it if not. Code in this
    /// process may close descriptors that it does not own and open others under their numbers:
    /// those must be neither read nor written. This is called after each piece of user code, while
    /// the box still says which one it was.
    pub fn check_connection(&mut self) -> bool {
        if self.socket.is_intact() {
            self.checked = clock::nanoseconds();
            self.begun_since = 0;
            return true;
        }
        self.note(BoxField::IsDisconnected, 1);
        if self.begun_since > 0 {
            // Any of them may have closed it.
            self.note(BoxField::Offset, ALL);
        }
        false
    }

    /// Notes what the worker is doing now.
    pub fn enter(&self, activity: Activity) {
        self.enter_code(activity.code());
    }

    fn enter_code(&self, activity: u64) {
        self.note(BoxField::Since, clock::nanoseconds());
        self.note(BoxField::Activity, activity);
    }

    /// Notes resident memory and open descriptors, if the last time is a while ago: this takes some
    /// system calls.
    pub fn note_usage(&mut self) {
        let now = clock::nanoseconds();
        if now.saturating_sub(self.measured) > MEASURE_EVERY {
            self.measured = now;
            self.note(BoxField::Resident, process::resident_bytes());
            self.note(BoxField::Descriptors, limits::open_files());
        }
    }

    /// Notes which task begins.
    pub fn begin(&mut self, task: u64) {
        self.timing = BatchTiming::default();
        self.begun = 0;
        self.task_begun = clock::nanoseconds();
        self.note(BoxField::Offset, 0);
        self.note(BoxField::Task, task + 1);
        self.enter(Activity::Fetching);
    }

    /// Notes which sample of its batch the worker begins. Returns false if an earlier sample has
    /// closed the connection; with very short samples, this is found a few samples later.
    pub fn begin_sample(&mut self, offset: u64) -> bool {
        let now = clock::nanoseconds();
        if now.saturating_sub(self.checked) < CONNECTION_CHECK_INTERVAL {
            self.begun_since += 1;
        } else if !self.check_connection() {
            return false;
        }
        self.count(now);
        self.begun = now;
        if self.pages == Pages::Returned && self.arena.used() > 0 {
            self.return_free_pages();
        }
        self.note(BoxField::Offset, offset);
        self.note(BoxField::Since, now);
        true
    }

    /// Notes that the worker loads all samples of its batch at once; `set_samples` sets their
    /// number.
    pub fn begin_all_samples(&mut self) {
        self.begun = 0;
        self.note(BoxField::Offset, ALL);
        self.note(BoxField::Since, clock::nanoseconds());
    }

    /// Counts the last sample when all are loaded.
    pub fn finish_samples(&mut self) {
        self.count(clock::nanoseconds());
        self.begun = 0;
    }

    /// Counts the current sample as finished.
    fn count(&mut self, now: u64) {
        if self.begun == 0 {
            return;
        }
        self.timing.samples += 1;
        let taken = now.saturating_sub(self.begun);
        if taken > self.timing.nanoseconds {
            self.timing.nanoseconds = taken;
            self.timing.slowest = self.boxes.get(self.owner, BoxField::Offset) as u32;
        }
    }

    /// Sets the number of samples in the result, if it differs from the number of samples begun.
    pub fn set_samples(&mut self, samples: u32) {
        self.timing.samples = samples;
    }

    /// Sends a note at once, in a frame that is no answer to a task.
    pub fn notify(&mut self, bytes: &[u8]) -> Sent {
        let task = self.boxes.get(self.owner, BoxField::Task).saturating_sub(1);
        let head = FrameHead::new(FrameKind::Note, task, bytes.len() as u64);
        self.outgoing = ([head.to_bytes().as_slice(), bytes].concat(), 0);
        self.resume_send()
    }

    /// Writes what a replacement needs to continue after a task.
    pub fn write_journal(&self, task: u64, bytes: &[u8]) -> bool {
        self.boxes.write_journal(self.owner, task, bytes)
    }

    /// The state when a task began, from the journal of this worker or its predecessor.
    pub fn read_journal(&self, task: u64) -> Option<Vec<u8>> {
        self.boxes.read_journal(self.owner.worker_id, task)
    }

    /// Waits for the next frame.
    pub fn receive(&mut self) -> Received {
        let mut chunk = [0; CHUNK];
        loop {
            // Check after a wait, too: another thread may have closed it meanwhile.
            if !self.check_connection() {
                return Received::Disconnected;
            }
            if let Some(frame) = self.waiting.pop_front() {
                return self.parse(frame).map_or(Received::Ended, Received::Task);
            }
            match self.wait_while_idle() {
                Idle::HasTask => {}
                Idle::Waited => continue,
                Idle::Interrupted => return Received::Interrupted,
            }
            match self.socket.receive(&mut chunk) {
                Transfer::Bytes(bytes) => {
                    let waiting = &mut self.waiting;
                    let pushed = self.incoming.push(&chunk[..bytes], |it| waiting.push_back(it));
                    if pushed.is_err() {
                        return Received::Ended;
                    }
                }
                Transfer::WouldWait => return Received::Interrupted,
                Transfer::Ended => return Received::Ended,
                Transfer::Closed => return Received::Disconnected,
            }
        }
    }

    /// Parses a frame. Returns `None` if the trainer does not send such frames.
    fn parse(&self, frame: Frame) -> Option<ReceivedTask> {
        let Frame { kind, task, body, .. } = frame;
        let (offset, body) = match kind {
            FrameKind::Stop => {
                let (body, buffers) = (Vec::new(), Vec::new());
                return Some(ReceivedTask { kind, task, offset: None, body, buffers });
            }
            FrameKind::Trial => {
                let (offset, rest) = body.split_first_chunk::<8>()?;
                (Some(u64::from_le_bytes(*offset)), rest)
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
        Some(ReceivedTask { kind, task, offset, body, buffers })
    }

    /// Waits a moment for a task while the arena has slots. The pages of those that became free are
    /// returned after a while, and at once if other workers may need the memory.
    fn wait_while_idle(&mut self) -> Idle {
        if self.arena.used() == 0 {
            return Idle::HasTask;
        }
        match self.socket.wait_readable(IDLE_CHECK_INTERVAL) {
            None => {}
            Some(Transfer::WouldWait) => return Idle::Interrupted,
            Some(Transfer::Bytes(_) | Transfer::Ended | Transfer::Closed) => {
                self.idle_checks = 0;
                return Idle::HasTask;
            }
        }
        self.idle_checks += 1;
        let limit = self.boxes.get(self.owner, BoxField::ArenaLimit);
        let others = self.boxes.sum_of_others(self.owner, BoxField::ArenaUsed);
        let is_scarce = others.saturating_add(self.arena.used()) > limit / 2;
        if is_scarce || self.pages == Pages::Returned || self.idle_checks >= IDLE_CHECKS {
            self.return_free_pages();
        }
        Idle::Waited
    }

    fn return_free_pages(&mut self) {
        self.arena.return_free_pages();
        self.note(BoxField::ArenaUsed, self.arena.used());
    }

    /// Takes arena memory for a part of a batch. Waits while the arenas of all workers are at their
    /// limit, except for the task that the trainer waits for. Returns `None` if the arena can never
    /// hold it.
    pub fn take(&mut self, bytes: usize) -> Option<ArenaPiece> {
        let task = self.boxes.get(self.owner, BoxField::Task).saturating_sub(1);
        if self.pages == Pages::Returned {
            self.return_free_pages();
        }
        let began = clock::nanoseconds();
        let mut activity_before = None;
        loop {
            let is_urgent = task <= self.boxes.get(self.owner, BoxField::Oldest);
            let piece = self.arena.take(bytes as u64, self.own_limit(bytes as u64, is_urgent));
            self.note(BoxField::ArenaUsed, self.arena.used());
            if piece.is_some() || is_urgent {
                if let Some(code) = activity_before {
                    self.enter_code(code);
                    self.task_begun += clock::nanoseconds() - began;
                }
                return piece;
            }
            if activity_before.is_none() {
                activity_before = Some(self.boxes.get(self.owner, BoxField::Activity));
                self.enter(Activity::OutOfArena);
            }
            clock::pause(ARENA_CHECK_INTERVAL);
        }
    }

    /// How many bytes this arena may use, if it takes that many more: what the others leave. The
    /// intention is written down before looking at the others, so that two workers never take the
    /// same bytes.
    fn own_limit(&self, bytes: u64, is_urgent: bool) -> u64 {
        let wanted = self.arena.used().saturating_add(Arena::slot_bytes(bytes));
        self.note(BoxField::ArenaUsed, wanted);
        if is_urgent {
            return u64::MAX;
        }
        let others = self.boxes.sum_of_others(self.owner, BoxField::ArenaUsed);
        // After the intention too: the trainer may lower the limit for another pool at this moment.
        self.boxes.get(self.owner, BoxField::ArenaLimit).saturating_sub(others)
    }

    /// Chooses a location for each buffer of a result. Then the caller releases the batch and calls
    /// `send`: buffers that other code still holds are copied, so trainer and worker never share
    /// memory that either may change.
    pub fn pack(&mut self, kind: FrameKind, task: u64, buffers: &[&[u8]]) {
        let mut packed = PackedResult {
            kind,
            task,
            locations: Vec::with_capacity(buffers.len()),
            inline: Vec::new(),
            filled: Vec::new(),
        };
        for bytes in buffers {
            let location = self.locate(&mut packed, bytes);
            packed.locations.push(location);
        }
        self.packed = Some(packed);
    }

    fn locate(&mut self, packed: &mut PackedResult, bytes: &[u8]) -> (BufferLocation, bool) {
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
                let location =
                    BufferLocation::Slot { slot: piece.slot(), offset: piece.offset(), length };
                packed.filled.push(piece);
                return (location, false);
            }
        }
        (packed.append(bytes), false)
    }

    /// Sends the packed result.
    pub fn send(&mut self) -> Sent {
        let Some(mut packed) = self.packed.take() else { return Sent::All };
        if self.boxes.get(self.owner, BoxField::Activity) == Activity::Answering.code() {
            self.enter(Activity::Sending);
        }
        for number in 0..packed.locations.len() {
            if let (BufferLocation::Slot { slot, offset, length }, true) = packed.locations[number]
                && self.arena.is_held(slot)
            {
                packed.locations[number].0 = self.copy_elsewhere(&mut packed, offset, length);
            }
        }
        for (location, _) in &packed.locations {
            if let BufferLocation::Slot { slot, .. } = location {
                self.arena.lend(*slot);
            }
        }
        if packed.bytes_in_slots() > 0 {
            let made_in = clock::nanoseconds().saturating_sub(self.task_begun);
            self.pages = Pages::of_result(packed.bytes_in_slots(), Duration::from_nanos(made_in));
        }
        let table = wire::table_bytes(packed.locations.len()) as u64;
        let locations: Vec<_> = packed
            .locations
            .iter()
            .map(|(location, _)| match *location {
                BufferLocation::Inline { offset, length } => {
                    BufferLocation::Inline { offset: offset + table, length }
                }
                BufferLocation::Slot { .. } => *location,
            })
            .collect();
        let length = table + packed.inline.len() as u64;
        let head = FrameHead { kind: packed.kind, task: packed.task, length, timing: self.timing };
        let mut bytes = Vec::with_capacity(wire::HEAD + length as usize);
        bytes.extend_from_slice(&head.to_bytes());
        bytes.extend_from_slice(&wire::write_table(&locations));
        bytes.extend_from_slice(&packed.inline);
        self.outgoing = (bytes, 0);
        self.resume_send()
    }

    /// Copies a part of the arena to another location.
    fn copy_elsewhere(
        &mut self,
        packed: &mut PackedResult,
        offset: u64,
        length: u64,
    ) -> BufferLocation {
        let mut copy = vec![0; length as usize];
        self.arena.read(offset, &mut copy);
        if let Some(piece) = self.take(copy.len())
            && piece.fill(&copy)
        {
            let location =
                BufferLocation::Slot { slot: piece.slot(), offset: piece.offset(), length };
            packed.filled.push(piece);
            return location;
        }
        packed.append(&copy)
    }

    /// Continues sending after a signal.
    pub fn resume_send(&mut self) -> Sent {
        if !self.check_connection() {
            return Sent::Disconnected;
        }
        let (bytes, done) = &mut self.outgoing;
        while *done < bytes.len() {
            match self.socket.send(&bytes[*done..]) {
                Transfer::Bytes(sent) => *done += sent,
                Transfer::WouldWait => return Sent::Interrupted,
                Transfer::Ended => return Sent::Ended,
                Transfer::Closed => return Sent::Disconnected,
            }
        }
        Sent::All
    }
}

impl PackedResult {
    fn has_slot(&self, wanted: u32) -> bool {
        self.locations
            .iter()
            .any(|(location, _)| matches!(location, BufferLocation::Slot { slot, .. } if *slot == wanted))
    }

    fn bytes_in_slots(&self) -> u64 {
        let in_slot = |(location, _): &(BufferLocation, bool)| match location {
            BufferLocation::Slot { length, .. } => *length,
            BufferLocation::Inline { .. } => 0,
        };
        self.locations.iter().map(in_slot).sum()
    }

    fn append(&mut self, bytes: &[u8]) -> BufferLocation {
        // Numbers must be aligned within the frame, since arrays may refer to them in location.
        self.inline.resize(self.inline.len().next_multiple_of(8), 0);
        let offset = self.inline.len() as u64;
        self.inline.extend_from_slice(bytes);
        BufferLocation::Inline { offset, length: bytes.len() as u64 }
    }
}
