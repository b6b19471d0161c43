//! Handles messages of the zygote and the workers, and carries out the supervisor's actions, one at
//! a time under one lock.

mod checks;
mod reports;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::iter;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::allowance::PoolAllowance;
use super::evidence::Evidence;
use super::zygote_process::ZygoteProcess;
use super::{
    FailedTask, PoolEvent, PoolFailure, PoolInner, PoolOptions, PoolPeaks, RenewedWorker,
    StartError,
};
use crate::sys::clock;
use crate::sys::descriptor::Descriptor;
use crate::sys::memory::SharedMemory;
use crate::sys::process::{self, ProcessTree};
use crate::sys::socket::{Socket, Transfer};
use crate::worker::arena::{self, LentBytes};
use crate::worker::blackbox::{Activity, BoxField, Boxes, Owner, Snapshot};
use crate::worker::certificate::{self, ProcessState};
use crate::worker::crash_log::CrashLog;
use crate::worker::inbox::{self, Inbox, TaskBuffers};
use crate::worker::leaks::{Leak, ResourceUse};
use crate::worker::result::TaskResult;
use crate::worker::supervisor::{
    ExitKind, Incarnation, Shortage, Supervisor, SupervisorAction, WorkerEvent,
};
use crate::worker::wire::{Assembler, Frame, FrameHead, FrameKind, HEAD};
use crate::worker::zygote::{ZygoteReport, ZygoteRequest};

pub(super) const ZYGOTE: u64 = u64::MAX;
pub(super) const EVENT_FD: u64 = u64::MAX - 1;
const CHUNK: usize = 64 << 10;
/// EAGAIN, ENOMEM, ENFILE, EMFILE: errors after which a retry can succeed.
const TRANSIENT_ERRORS: [i32; 4] = [11, 12, 23, 24];
/// The signal of the OOM killer.
const SIGKILL: i32 = 9;
/// The exit code of a worker that leaves because it is short of something: EX_TEMPFAIL.
const LEFT: i32 = 75;
/// The results of all workers may always use this much memory.
const LEAST_ARENA: u64 = 1 << 20;
/// EBADF: other code has closed a descriptor.
const EBADF: i32 = 9;
/// How long the workers of a dead zygote may take to end.
const WORKERS_END_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Dispatcher {
    pub(super) supervisor: Supervisor,
    options: PoolOptions,
    boxes: Arc<Boxes>,
    boxes_file: Descriptor,
    inbox: Option<Arc<Inbox>>,
    pub(super) zygote: Option<ZygoteProcess>,
    /// The state of the zygote at the last look.
    zygote_state: Option<ProcessState>,
    pub(super) running: HashMap<Incarnation, RunningWorker>,
    /// Tasks without a result: each may have to be sent again.
    pub(super) stored_tasks: HashMap<u64, StoredTask>,
    pub(super) out: VecDeque<PoolEvent>,
    start_error: Option<StartError>,
    os_error: Option<i32>,
    evidence: Evidence,
    /// The most memory that one worker has used.
    largest_worker: u64,
    pub(super) peaks: Arc<PoolPeaks>,
    /// How long the slowest sample took.
    longest_sample: Duration,
    /// How much memory the results of all workers may use.
    arena_limit: u64,
    /// What they may use beside other pools of this process.
    pub(super) allowance: Arc<PoolAllowance>,
    /// How much of it the consumer has.
    lent: Arc<LentBytes>,
    /// When the memory of all workers was checked last, and when one was memory_renewed to save memory.
    memory_checked: Duration,
    memory_renewed: Option<Duration>,
    /// When the watcher thread wakes up by itself.
    pub(super) watched_until: Option<Duration>,
}

/// A task as it was submitted.
pub(super) struct StoredTask {
    pub(super) kind: FrameKind,
    pub(super) body: Vec<u8>,
    pub(super) task_buffers: Option<Arc<TaskBuffers>>,
    /// The worker it was sent to last.
    pub(super) worker_id: u32,
}

pub(super) struct RunningWorker {
    pub(super) pid: Option<u32>,
    pub(super) is_ready: bool,
    socket: Socket,
    incoming: Assembler,
    outgoing: VecDeque<u8>,
    /// The socket had no room for the rest of `outgoing`: both polls wait for room.
    is_blocked: bool,
    arena: Arc<SharedMemory>,
    crash_log: CrashLog,
    /// Its state at the last look, and the processor time it had used.
    process_state: Option<ProcessState>,
    ticks: Option<u64>,
    /// Its state and that of the processes below it at the last look, if the deadline is learned.
    tree: Option<(ProcessTree, Instant)>,
    /// Whether it was asked for its stack since that look.
    is_dumped: bool,
    /// The length of its crash log when it was asked for its stack.
    crash_log_before: Option<usize>,
    used: ResourceUse,
    /// The first and the last task it answered.
    tasks: Option<(u64, u64)>,
    leak: Option<Leak>,
    peak_bytes: u64,
    /// When its fork was requested.
    forked: Duration,
}

fn name(incarnation: Incarnation) -> u64 {
    u64::from(incarnation.worker_id) << 32 | u64::from(incarnation.generation)
}

fn incarnation(name: u64) -> Incarnation {
    Incarnation { worker_id: (name >> 32) as u32, generation: name as u32 }
}

fn owner(incarnation: Incarnation) -> Owner {
    Owner { worker_id: incarnation.worker_id, generation: incarnation.generation }
}

impl Dispatcher {
    pub(super) fn new(options: PoolOptions, inbox: Option<Arc<Inbox>>) -> io::Result<Dispatcher> {
        let worker_count = options.settings.worker_count;
        let (boxes_file, boxes) = Boxes::create(worker_count)?;
        let boxes = Arc::new(boxes);
        let (share, limit) = (options.arena_share, options.arena_bytes);
        Ok(Dispatcher {
            supervisor: Supervisor::new(options.settings.clone()),
            arena_limit: options.arena_bytes,
            allowance: PoolAllowance::new(&boxes, worker_count, share, limit),
            lent: Arc::new(LentBytes::default()),
            largest_worker: 0,
            peaks: Arc::new(PoolPeaks::new(
                options.settings.worker_count,
                options.bounds.descriptors,
                options.arena_bytes,
            )),
            longest_sample: Duration::ZERO,
            options,
            boxes,
            boxes_file,
            inbox,
            zygote: None,
            zygote_state: None,
            running: HashMap::new(),
            stored_tasks: HashMap::new(),
            out: VecDeque::new(),
            start_error: None,
            os_error: None,
            evidence: Evidence::new(),
            memory_checked: Duration::ZERO,
            memory_renewed: None,
            watched_until: None,
        })
    }

    /// What a worker is doing.
    pub(super) fn snapshot(&self, incarnation: Incarnation) -> Option<Snapshot> {
        self.boxes.snapshot(owner(incarnation))
    }

    pub(super) fn deadline(&self, inner: &PoolInner) -> Option<Instant> {
        self.supervisor.next_deadline().map(|then| inner.started + then)
    }

    pub(super) fn set_oldest(&self, oldest: u64) {
        for worker_id in 0..self.options.settings.worker_count {
            self.boxes.set_for_worker(worker_id, BoxField::Oldest, oldest);
        }
    }

    /// Handles the descriptors that are ready, without waiting.
    pub(super) fn pump(&mut self, inner: &PoolInner, names: &[u64]) {
        for name in names {
            match *name {
                EVENT_FD => inner.event_fd.clear(),
                ZYGOTE => self.receive_from_zygote(inner),
                name => self.receive_from_worker(inner, incarnation(name)),
            }
        }
        if self.deadline(inner).is_some_and(|then| then <= clock::now()) {
            self.check_processes(inner);
            self.handle_event(inner, WorkerEvent::TimePassed);
        }
        self.wake_watcher(inner);
    }

    /// Wakes the watcher thread if a deadline is earlier than its next wake-up. Deadlines move with
    /// each batch, usually to later: that is no reason to wake it.
    fn wake_watcher(&mut self, inner: &PoolInner) {
        if let Some(deadline) = self.supervisor.next_deadline()
            && self.watched_until.is_none_or(|until| deadline < until)
        {
            self.watched_until = Some(deadline);
            inner.watch_event_fd.ring();
        }
    }

    pub(super) fn handle_event(&mut self, inner: &PoolInner, event: WorkerEvent) {
        let actions = self.supervisor.handle(event, inner.now());
        self.apply(inner, actions);
        self.wake_watcher(inner);
    }

    fn receive_from_zygote(&mut self, inner: &PoolInner) {
        let mut packet = vec![0; CHUNK];
        loop {
            let Some(zygote) = &self.zygote else { return };
            match zygote.socket.try_receive(&mut packet) {
                Transfer::Bytes(bytes) => self.zygote_said(inner, &packet[..bytes]),
                Transfer::WouldWait => return,
                Transfer::Ended => return self.zygote_ended(inner),
                Transfer::Closed => return self.descriptors_closed(inner),
            }
        }
    }

    fn zygote_said(&mut self, inner: &PoolInner, packet: &[u8]) {
        let report = ZygoteReport::from_bytes(packet);
        let ping = match report {
            Some(ZygoteReport::Alive { number }) => Some(number),
            Some(_) | None => None,
        };
        match report {
            Some(ZygoteReport::Ready) => self.handle_event(inner, WorkerEvent::ZygoteReady),
            Some(ZygoteReport::Forked { worker_id, generation, pid }) => {
                if let Some(running) = self.running.get_mut(&Incarnation { worker_id, generation })
                {
                    running.pid = Some(pid);
                }
                let forked = self.running.values().filter(|running| running.pid.is_some());
                self.peaks.note_processes(forked.count());
            }
            Some(ZygoteReport::Refused { worker_id, generation, error }) => {
                let incarnation = Incarnation { worker_id, generation };
                self.remove_worker(inner, incarnation);
                self.os_error = Some(error);
                let transient = TRANSIENT_ERRORS.contains(&error);
                self.handle_event(inner, WorkerEvent::Refused { incarnation, transient });
            }
            Some(ZygoteReport::Ended { worker_id, generation, status, peak_bytes }) => {
                let incarnation = Incarnation { worker_id, generation };
                // Messages it sent before it died still count.
                self.receive_from_worker(inner, incarnation);
                if let Some(running) = self.running.get_mut(&incarnation) {
                    running.peak_bytes = peak_bytes;
                }
                let exit =
                    if status < 0 { ExitKind::Killed(-status) } else { ExitKind::Exited(status) };
                self.largest_worker = self.largest_worker.max(peak_bytes);
                let at = self.at(incarnation);
                let shortage = match exit {
                    ExitKind::Killed(SIGKILL) => {
                        self.evidence.has_memory_kill().then_some(Shortage::Memory)
                    }
                    ExitKind::Exited(LEFT) => self
                        .running
                        .get(&incarnation)
                        .and_then(|running| certificate::shortage_of(&running.crash_log.text())),
                    ExitKind::Killed(_) | ExitKind::Exited(_) | ExitKind::Lost => None,
                };
                let event = WorkerEvent::Ended { incarnation, exit, at, shortage };
                let actions = self.supervisor.handle(event, inner.now());
                self.apply(inner, actions);
                self.remove_worker(inner, incarnation);
            }
            Some(ZygoteReport::Failed(text)) => self.start_error = Some(StartError::Zygote(text)),
            Some(ZygoteReport::Alive { .. }) => {}
            None => return self.zygote_ended(inner),
        }
        self.handle_event(inner, WorkerEvent::ZygoteAnswered { ping });
    }

    /// The offset of the sample in progress when a worker died.
    fn at(&self, incarnation: Incarnation) -> Option<u64> {
        let last = self.snapshot(incarnation)?;
        match last.activity {
            Activity::Fetching | Activity::Pausing => last.offset,
            Activity::Starting
            | Activity::Waiting
            | Activity::Collating
            | Activity::Answering
            | Activity::OutOfArena
            | Activity::Sending => None,
        }
    }

    fn zygote_ended(&mut self, inner: &PoolInner) {
        if let Some(zygote) = self.zygote.take() {
            inner.poll.forget(&zygote.socket);
            inner.watch.forget(&zygote.socket);
        }
        // The kernel closes the files of a process before it kills its children, so workers may
        // still run. Results they send until they are dead count, and their black boxes must not be
        // read earlier.
        let until = clock::now() + WORKERS_END_TIMEOUT;
        for pid in self.running.values().filter_map(|running| running.pid) {
            process::wait_for_end(pid, until.saturating_duration_since(clock::now()));
        }
        let incarnations: Vec<_> = self.running.keys().copied().collect();
        for incarnation in &incarnations {
            self.receive_from_worker(inner, *incarnation);
        }
        let actions = self.supervisor.handle(WorkerEvent::ZygoteEnded, inner.now());
        self.apply(inner, actions);
        for incarnation in incarnations {
            self.remove_worker(inner, incarnation);
        }
    }

    fn remove_worker(&mut self, inner: &PoolInner, incarnation: Incarnation) {
        if let Some(running) = self.running.remove(&incarnation) {
            // What the consumer still has of its arena is freed with the last tensor on it.
            self.boxes.set(owner(incarnation), BoxField::ArenaUsed, 0);
            inner.poll.forget(&running.socket);
            inner.watch.forget(&running.socket);
            if let Some(inbox) = &self.inbox {
                inbox.reclaim(inbox::holder(incarnation.worker_id, incarnation.generation));
            }
        }
    }

    fn receive_from_worker(&mut self, inner: &PoolInner, incarnation: Incarnation) {
        let mut chunk = [0; CHUNK];
        let mut frames = Vec::new();
        let mut has_hung_up = false;
        loop {
            let Some(running) = self.running.get_mut(&incarnation) else { return };
            let moved = running.socket.try_receive(&mut chunk);
            let bytes = match moved {
                Transfer::Bytes(bytes) => bytes,
                Transfer::WouldWait => break,
                Transfer::Ended => {
                    // The end of the stream does not say how the worker ended; the zygote will.
                    inner.poll.forget(&running.socket);
                    inner.watch.forget(&running.socket);
                    has_hung_up = true;
                    break;
                }
                Transfer::Closed => return self.descriptors_closed(inner),
            };
            if running.incoming.push(&chunk[..bytes], |frame| frames.push(frame)).is_err() {
                inner.poll.forget(&running.socket);
                inner.watch.forget(&running.socket);
                self.send_to_zygote(ZygoteRequest::Kill {
                    worker_id: incarnation.worker_id,
                    generation: incarnation.generation,
                });
                break;
            }
            if bytes < CHUNK {
                break;
            }
        }
        for frame in frames {
            self.worker_said(inner, incarnation, frame);
        }
        if has_hung_up {
            self.handle_event(inner, WorkerEvent::HungUp { incarnation });
        }
        self.flush(inner, incarnation);
    }

    /// Other code in this process closed our descriptors, so no worker can be reached.
    pub(super) fn descriptors_closed(&mut self, inner: &PoolInner) {
        self.handle_event(inner, WorkerEvent::DescriptorsClosed);
    }

    /// Kills the zygote without waiting for answers, so that closing ends.
    pub(super) fn abandon(&mut self, inner: &PoolInner) {
        if let Some(zygote) = &self.zygote {
            zygote.kill();
        }
        self.zygote_ended(inner);
    }

    fn worker_said(&mut self, inner: &PoolInner, incarnation: Incarnation, frame: Frame) {
        let Some(running) = self.running.get_mut(&incarnation) else { return };
        match frame.kind {
            FrameKind::Ready => {
                running.is_ready = true;
                let owner = owner(incarnation);
                running.used.resident_at_first = self.boxes.get(owner, BoxField::Resident);
                running.used.descriptors_at_first = self.boxes.get(owner, BoxField::Descriptors);
                if !self.supervisor.passes_turns() {
                    inner.watch.forget(&running.socket);
                }
                self.handle_event(inner, WorkerEvent::Ready { incarnation });
            }
            FrameKind::Survived => {
                self.handle_event(inner, WorkerEvent::Survived { incarnation, task: frame.task })
            }
            FrameKind::Note => self
                .out
                .push_back(PoolEvent::Note { worker_id: incarnation.worker_id, text: frame.body }),
            FrameKind::StartFailed => {
                let limit = self.allowance.most_lent();
                let result = TaskResult::new(
                    frame,
                    incarnation.worker_id,
                    &running.arena,
                    &self.lent,
                    limit,
                );
                self.start_error = result.map(StartError::Worker);
                self.handle_event(inner, WorkerEvent::StartFailed { incarnation });
            }
            FrameKind::Result | FrameKind::Faulty | FrameKind::Raised | FrameKind::Exhausted => {
                self.peaks.note_memory(self.allowance.used());
                let (task, samples) = (frame.task, frame.timing.samples);
                let longest = Duration::from_nanos(frame.timing.nanoseconds);
                let limit = self.allowance.most_lent();
                let result = TaskResult::new(
                    frame,
                    incarnation.worker_id,
                    &running.arena,
                    &self.lent,
                    limit,
                );
                let Some(result) = result else {
                    // A worker with corrupt memory sends invalid messages: treat it as dead.
                    let Incarnation { worker_id, generation } = incarnation;
                    return self.send_to_zygote(ZygoteRequest::Kill { worker_id, generation });
                };
                let actions = self
                    .supervisor
                    .handle(WorkerEvent::TaskDone { incarnation, task }, inner.now());
                if actions.contains(&SupervisorAction::Accept { task }) {
                    self.stored_tasks.remove(&task);
                    self.allowance.set_has_tasks(!self.stored_tasks.is_empty());
                    self.out.push_back(PoolEvent::TaskResult(result));
                }
                self.apply(inner, actions);
                if longest > self.longest_sample {
                    self.longest_sample = longest;
                    self.handle_event(inner, WorkerEvent::LongestSample { took: longest });
                }
                self.check_leaks(inner, incarnation, task, samples);
            }
            FrameKind::Task | FrameKind::Resume | FrameKind::Stop | FrameKind::Trial => {}
        }
    }

    pub(super) fn apply(&mut self, inner: &PoolInner, actions: Vec<SupervisorAction>) {
        for action in actions {
            match action {
                SupervisorAction::StartZygote { fresh } => {
                    self.out.push_back(PoolEvent::StartZygote { fresh })
                }
                SupervisorAction::EndZygote => self.abandon(inner),
                SupervisorAction::PingZygote { number } => {
                    if let Some(zygote) = &mut self.zygote {
                        zygote.note_processor_time();
                    }
                    self.send_to_zygote(ZygoteRequest::Ping { number });
                }
                SupervisorAction::ZygoteSlow => self.report_zygote(false),
                SupervisorAction::ZygoteHung => self.report_zygote(true),
                SupervisorAction::Fork { incarnation } => self.fork(inner, incarnation),
                SupervisorAction::Send { incarnation, task, trial } => {
                    self.send(inner, incarnation, task, trial)
                }
                SupervisorAction::Stop { incarnation } => {
                    let head = FrameHead::new(FrameKind::Stop, 0, 0);
                    self.dispatch(inner, incarnation, &head.to_bytes(), &[]);
                }
                SupervisorAction::Dump { incarnation } => {
                    let Incarnation { worker_id, generation } = incarnation;
                    if let Some(running) = self.running.get_mut(&incarnation) {
                        running.is_dumped = true;
                        running.crash_log_before = Some(running.crash_log.text().len());
                    }
                    self.send_to_zygote(ZygoteRequest::Dump { worker_id, generation });
                }
                SupervisorAction::Kill { incarnation: Incarnation { worker_id, generation } } => {
                    self.send_to_zygote(ZygoteRequest::Kill { worker_id, generation });
                }
                // `worker_said` has already kept or dropped the result.
                SupervisorAction::Accept { .. } | SupervisorAction::Discard { .. } => {}
                SupervisorAction::GiveUp { task, at, why } => {
                    let stored_task = self.stored_tasks.remove(&task);
                    self.allowance.set_has_tasks(!self.stored_tasks.is_empty());
                    let journal = stored_task.and_then(|stored_task| {
                        self.boxes.read_journal(stored_task.worker_id, task)
                    });
                    self.out.push_back(PoolEvent::GaveUp(FailedTask { task, at, why, journal }));
                }
                SupervisorAction::Died(death) => {
                    let death_report = self.death_report(death);
                    self.out.push_back(PoolEvent::Died(death_report));
                }
                SupervisorAction::Stalled { incarnation, .. } => {
                    let stall = self.stall(incarnation);
                    self.out.push_back(PoolEvent::Stalled(stall));
                }
                SupervisorAction::RestartedFresh { incarnation, .. } => {
                    let stall = self.stall(incarnation);
                    self.out.push_back(PoolEvent::RestartedFresh(stall));
                }
                SupervisorAction::CapacityChanged { most, shortage } => {
                    self.change_capacity(most, shortage)
                }
                SupervisorAction::Renewed { incarnation } => {
                    let running = self.running.get(&incarnation);
                    self.out.push_back(PoolEvent::Renewed(RenewedWorker {
                        incarnation,
                        pid: running.and_then(|running| running.pid),
                        leak: running.and_then(|running| running.leak.clone()),
                        tasks: running.and_then(|running| running.tasks),
                    }));
                }
                SupervisorAction::Fail(failure) => {
                    let (start_error, os_error) = (self.start_error.take(), self.os_error);
                    self.out.push_back(PoolEvent::Failed(PoolFailure {
                        failure,
                        start_error,
                        os_error,
                    }));
                }
                SupervisorAction::Closed => {}
            }
        }
    }

    fn fork(&mut self, inner: &PoolInner, incarnation: Incarnation) {
        if let Err(error) = self.try_fork(inner, incarnation) {
            self.remove_worker(inner, incarnation);
            if error.raw_os_error() == Some(EBADF) {
                return self.descriptors_closed(inner);
            }
            self.os_error = error.raw_os_error();
            let transient =
                error.raw_os_error().is_some_and(|code| TRANSIENT_ERRORS.contains(&code));
            self.handle_event(inner, WorkerEvent::Refused { incarnation, transient });
        }
    }

    fn try_fork(&mut self, inner: &PoolInner, incarnation: Incarnation) -> io::Result<()> {
        let Some(zygote) = &self.zygote else { return Ok(()) };
        let inbox_file = self.inbox.as_ref().map(|inbox| inbox.file());
        // The worker would map whatever file these descriptor numbers refer to now.
        if !iter::once(&self.boxes_file).chain(inbox_file).all(Descriptor::is_intact) {
            return Err(io::Error::from_raw_os_error(EBADF));
        }
        let (ours, theirs) = Socket::pair()?;
        // This reserves address space only, enough for a batch that is larger than the limit.
        let reserve = self.options.arena_bytes.max(4 << 30);
        let (arena_file, arena) = arena::create(reserve)?;
        let (crash_log_file, crash_log) = CrashLog::create()?;
        inner.poll.watch(&ours, name(incarnation))?;
        inner.watch.watch(&ours, name(incarnation))?;
        let Incarnation { worker_id, generation } = incarnation;
        let request = ZygoteRequest::Fork { worker_id, generation }.to_bytes();
        let mut descriptors = vec![
            theirs.as_fd(),
            arena_file.as_fd(),
            self.boxes_file.as_fd(),
            crash_log_file.as_fd(),
        ];
        descriptors.extend(inbox_file.map(AsFd::as_fd));
        zygote.socket.try_send_with(&request, &descriptors)?;
        let running = RunningWorker {
            pid: None,
            is_ready: false,
            socket: ours,
            incoming: Assembler::default(),
            outgoing: VecDeque::new(),
            is_blocked: false,
            arena,
            crash_log,
            process_state: None,
            ticks: None,
            tree: None,
            is_dumped: false,
            crash_log_before: None,
            used: ResourceUse::default(),
            tasks: None,
            leak: None,
            peak_bytes: 0,
            forked: inner.now(),
        };
        self.running.insert(incarnation, running);
        Ok(())
    }

    fn send_to_zygote(&mut self, request: ZygoteRequest) {
        if let Some(zygote) = &self.zygote {
            // A zygote that takes no message is dead or dying, and its workers with it.
            let _ = zygote.socket.try_send_with(&request.to_bytes(), &[]);
        }
    }

    fn send(&mut self, inner: &PoolInner, incarnation: Incarnation, task: u64, trial: Option<u64>) {
        let Some(stored_task) = self.stored_tasks.get_mut(&task) else { return };
        stored_task.worker_id = incarnation.worker_id;
        let task_buffers = stored_task.task_buffers.as_deref();
        let body = match &self.inbox {
            Some(inbox) => inbox.encode(
                &stored_task.body,
                task_buffers,
                inbox::holder(incarnation.worker_id, incarnation.generation),
            ),
            None => inbox::body(&stored_task.body, task_buffers),
        };
        let (kind, body) = match trial {
            Some(offset) => (FrameKind::Trial, [offset.to_le_bytes().as_slice(), &body].concat()),
            None => (stored_task.kind, body),
        };
        let head = FrameHead::new(kind, task, body.len() as u64).to_bytes();
        self.dispatch(inner, incarnation, &head, &body);
    }

    fn dispatch(
        &mut self,
        inner: &PoolInner,
        incarnation: Incarnation,
        head: &[u8; HEAD],
        body: &[u8],
    ) {
        let Some(running) = self.running.get_mut(&incarnation) else { return };
        let was_empty = running.outgoing.is_empty();
        running.outgoing.extend(head);
        running.outgoing.extend(body);
        if was_empty {
            self.flush(inner, incarnation);
        }
    }

    /// Workers that pass the turn wait for each other's results, even while no caller waits: then the watcher thread
    /// receives them, too.
    pub(super) fn watch_results(&self, inner: &PoolInner) {
        for (incarnation, running) in &self.running {
            // One that is blocked is watched until there is room.
            if running.is_ready && !running.is_blocked {
                inner.watch.forget(&running.socket);
                if self.supervisor.passes_turns() {
                    let _ = inner.watch.watch(&running.socket, name(*incarnation));
                }
            }
        }
    }

    fn flush(&mut self, inner: &PoolInner, incarnation: Incarnation) {
        let passes_turns = self.supervisor.passes_turns();
        let Some(running) = self.running.get_mut(&incarnation) else { return };
        while !running.outgoing.is_empty() {
            let (first, _) = running.outgoing.as_slices();
            match running.socket.try_send(first) {
                Transfer::Bytes(bytes) => drop(running.outgoing.drain(..bytes)),
                Transfer::WouldWait => {
                    // The watcher thread must continue when there is room, even while no caller
                    // waits.
                    if !running.is_blocked {
                        running.is_blocked = true;
                        for poll in [&inner.poll, &inner.watch] {
                            poll.forget(&running.socket);
                            let _ = poll.watch_both(&running.socket, name(incarnation));
                        }
                    }
                    return;
                }
                // The worker is dying: the task will be sent again.
                Transfer::Ended => return running.outgoing.clear(),
                Transfer::Closed => {
                    running.outgoing.clear();
                    return self.descriptors_closed(inner);
                }
            }
        }
        if running.is_blocked {
            running.is_blocked = false;
            for (poll, is_watched) in [(&inner.watch, passes_turns), (&inner.poll, true)] {
                poll.forget(&running.socket);
                if is_watched {
                    let _ = poll.watch(&running.socket, name(incarnation));
                }
            }
        }
    }
}
