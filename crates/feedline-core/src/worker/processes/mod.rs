//! Carries out the supervisor's actions: turns them into messages and memory, and turns messages
//! from workers into events. It decides nothing itself.
//!
//! The thread that waits for a result drives everything, so a batch costs no thread switch. While
//! no thread waits, the `feedline-watch` thread handles deaths and workers that become ready, so a
//! replacement works before the trainer asks for its next batch. If workers pass the turn, it also
//! receives results, so that the next worker does not wait for the trainer.

mod allowance;
mod dispatcher;
mod evidence;
mod peaks;
mod zygote_process;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use self::dispatcher::{Dispatcher, EVENT_FD, StoredTask, ZYGOTE};
use self::zygote_process::ZygoteProcess;
pub use peaks::PoolPeaks;

use super::blackbox::Snapshot;
use super::certificate::{Certificate, CodeFolders, ProcessState};
use super::inbox::{Inbox, TaskBuffers};
use super::leaks::{Bounds, Leak};
use super::result::TaskResult;
use super::supervisor::{
    Death, GiveUpReason, Incarnation, RunFailure, Shortage, SupervisorSettings, WorkerEvent,
};
use super::wire::FrameKind;
use crate::budget::Share;
use crate::sys::clock;
use crate::sys::lock::Mutex;
use crate::sys::process::OwnerProcess;
use crate::sys::socket::{EventFd, Poll, Socket};
use crate::sys::thread::Threads;

/// The fixed options of a worker pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// The settings of the supervisor.
    pub settings: SupervisorSettings,
    /// Bytes that the arenas of all workers may use together before a worker waits.
    pub arena_bytes: u64,
    /// Whether that is a default, which the pools of the process share.
    pub(crate) arena_share: Share,
    /// The bytes of task buffers that may be in transit; with zero, frames carry the buffers.
    pub inbox_bytes: u64,
    /// What a worker may use before it is renewed.
    pub bounds: Bounds,
    /// The user's name for the number of workers.
    pub workers_name: &'static str,
    /// The folders of code that is not the user's.
    pub folders: CodeFolders,
}

/// What [`Processes::next`] returns.
pub enum PoolEvent {
    /// The one result of a task.
    TaskResult(TaskResult),
    /// The one result of a task that fails: one of its samples kills workers or hangs.
    GaveUp(FailedTask),
    /// A worker has died.
    Died(DeathReport),
    /// A worker makes no progress.
    Stalled(Stall),
    /// Workers of a forked zygote hang: the next zygote is a fresh interpreter.
    RestartedFresh(Stall),
    /// The zygote does not answer.
    ZygoteLate(ZygoteLate),
    /// From now on another number of workers runs at once.
    CapacityChanged(CapacityChange),
    /// A worker that leaked has been replaced.
    Renewed(RenewedWorker),
    /// A worker has sent a note.
    Note {
        /// The worker.
        worker_id: u32,
        /// The note.
        text: Vec<u8>,
    },
    /// A zygote must be started, which only the trainer's own thread can do.
    StartZygote {
        /// Whether it must be a fresh interpreter, although the last one was a fork.
        fresh: bool,
    },
    /// The run has failed.
    Failed(PoolFailure),
    /// [`Waker::wake`] was called.
    Woken,
    /// The time is up.
    Nothing,
}

/// A task that is not retried.
#[derive(Clone, Debug)]
pub struct FailedTask {
    /// The task's number.
    pub task: u64,
    /// The offset of the sample that is to blame, if it is known.
    pub at: Option<u64>,
    /// Why it is not retried.
    pub why: GiveUpReason,
    /// The worker's journal when the task began.
    pub journal: Option<Vec<u8>>,
}

/// A dead worker: how and why it died, and what it was doing.
#[derive(Clone, Debug)]
pub struct DeathReport {
    /// The supervisor's record of the death.
    pub death: Death,
    /// The process.
    pub pid: Option<u32>,
    /// What the worker was doing.
    pub last: Option<Snapshot>,
    /// The cause of the death.
    pub certificate: Certificate,
    /// The most memory the worker ever used.
    pub peak_bytes: u64,
}

/// From now on another number of workers runs at once.
#[derive(Clone, Debug)]
pub struct CapacityChange {
    /// How many.
    pub most: u32,
    /// How many workers there are.
    pub of: u32,
    /// What is short, if there are fewer than before.
    pub shortage: Option<Shortage>,
    /// The error of the last process that was refused.
    pub os_error: Option<i32>,
    /// The most memory that one worker has used.
    pub largest_worker: u64,
    /// The limit of the tightest memory cgroup, and the bytes it uses.
    pub memory: Option<(u64, u64)>,
}

/// A worker that makes no progress.
#[derive(Clone, Debug)]
pub struct Stall {
    /// The worker process.
    pub incarnation: Incarnation,
    /// The process.
    pub pid: Option<u32>,
    /// What it is doing.
    pub last: Option<Snapshot>,
    /// The state of the process.
    pub process_state: Option<ProcessState>,
    /// The stack, innermost frame first.
    pub stack: Vec<String>,
}

/// A zygote that does not answer.
#[derive(Clone, Copy, Debug)]
pub struct ZygoteLate {
    /// The process.
    pub pid: Option<u32>,
    /// The state of the process.
    pub process_state: Option<ProcessState>,
    /// Whether it was killed because it did not use the processor either.
    pub is_killed: bool,
}

/// A worker that was replaced because it leaked.
#[derive(Clone, Debug)]
pub struct RenewedWorker {
    /// The worker process.
    pub incarnation: Incarnation,
    /// The process.
    pub pid: Option<u32>,
    /// The leak.
    pub leak: Option<Leak>,
    /// The first and the last task it did.
    pub tasks: Option<(u64, u64)>,
}

/// Why a run failed.
pub struct PoolFailure {
    /// The supervisor's reason.
    pub failure: RunFailure,
    /// The error of the worker or the zygote, if it sent one.
    pub start_error: Option<StartError>,
    /// The `errno` of the system call that failed, if one did.
    pub os_error: Option<i32>,
}

/// The error of a process that could not start.
pub enum StartError {
    /// A worker's error, as a result to be opened.
    Worker(TaskResult),
    /// The zygote's error.
    Zygote(Vec<u8>),
}

/// The status of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Its process, after the fork.
    pub pid: Option<u32>,
    /// Whether it takes tasks.
    pub is_ready: bool,
}

/// A supervised pool of worker processes.
pub struct Processes {
    inner: Arc<PoolInner>,
    threads: Threads,
    home: OwnerProcess,
}

/// Ends a wait in [`Processes::next`], from any thread.
pub struct Waker(Weak<PoolInner>);

impl Waker {
    /// Makes the current wait, or the next one, end with `PoolEvent::Woken`.
    pub fn wake(&self) {
        let Some(inner) = self.0.upgrade() else { return };
        if !inner.is_woken.swap(true, Ordering::AcqRel) {
            inner.event_fd.ring();
        }
    }
}

struct PoolInner {
    dispatcher: Mutex<Dispatcher>,
    inbox: Option<Arc<Inbox>>,
    poll: Poll,
    event_fd: EventFd,
    /// What the watcher thread waits for: the zygote, and workers that are not ready yet.
    watch: Poll,
    watch_event_fd: EventFd,
    is_over: AtomicBool,
    is_woken: AtomicBool,
    started: Instant,
    started_nanoseconds: u64,
}

impl Processes {
    /// Creates a pool without workers: its first event asks for a zygote.
    pub fn new(options: PoolOptions) -> io::Result<Processes> {
        let inbox = match options.inbox_bytes {
            0 => None,
            bytes => Some(Arc::new(Inbox::create(bytes)?)),
        };
        let inner = Arc::new(PoolInner {
            dispatcher: Mutex::new(Dispatcher::new(options, inbox.clone())?),
            inbox,
            poll: Poll::new()?,
            event_fd: EventFd::new()?,
            watch: Poll::new()?,
            watch_event_fd: EventFd::new()?,
            is_over: AtomicBool::new(false),
            is_woken: AtomicBool::new(false),
            started: clock::now(),
            started_nanoseconds: clock::nanoseconds(),
        });
        inner.poll.watch(&inner.event_fd, EVENT_FD)?;
        inner.watch.watch(&inner.watch_event_fd, EVENT_FD)?;
        let threads = Threads::default();
        {
            let mut dispatcher = inner.dispatcher.lock();
            let actions = dispatcher.supervisor.start(inner.now());
            dispatcher.apply(&inner, actions);
        }
        let watcher = Arc::clone(&inner);
        threads.spawn("feedline-watch", move || watcher.watch())?;
        Ok(Processes { inner, threads, home: OwnerProcess::here() })
    }

    /// Whether this process is a fork of the one that created the pool. The pool must not be used
    /// here.
    pub fn is_forked(&self) -> bool {
        self.home.is_forked()
    }

    /// Registers the requested zygote, which reports when it is ready.
    pub fn zygote_started(&self, socket: Socket, pid: u32) -> io::Result<()> {
        let mut dispatcher = self.inner.dispatcher.lock();
        self.inner.poll.watch(&socket, ZYGOTE)?;
        self.inner.watch.watch(&socket, ZYGOTE)?;
        dispatcher.zygote = Some(ZygoteProcess::new(socket, pid));
        dispatcher.handle_event(&self.inner, WorkerEvent::ZygoteStarted);
        Ok(())
    }

    /// Registers a zygote that an earlier pool has left ready.
    pub fn zygote_ready(&self, socket: Socket, pid: u32) -> io::Result<()> {
        self.zygote_started(socket, pid)?;
        let mut dispatcher = self.inner.dispatcher.lock();
        dispatcher.handle_event(&self.inner, WorkerEvent::ZygoteReady);
        Ok(())
    }

    /// Reports that the zygote could not be started.
    pub fn zygote_refused(&self) {
        let mut dispatcher = self.inner.dispatcher.lock();
        dispatcher.handle_event(&self.inner, WorkerEvent::ZygoteEnded);
    }

    /// Puts buffers where workers can map them; several tasks can use them, one after another.
    /// Returns `None` if there is no inbox.
    pub fn load(&self, buffers: &[&[u8]]) -> Option<Arc<TaskBuffers>> {
        self.inner.inbox.as_ref().map(|inbox| Arc::new(inbox.load(buffers)))
    }

    /// The bytes of the inbox that are in use or warm, and the number of slots in use.
    pub fn inbox_used(&self) -> (u64, usize) {
        self.inner.inbox.as_ref().map_or((0, 0), |inbox| inbox.used())
    }

    /// Submits a task, pinned to a worker or for any free worker.
    pub fn submit(
        &self,
        task: u64,
        kind: FrameKind,
        worker_id: Option<u32>,
        body: Vec<u8>,
        task_buffers: Option<Arc<TaskBuffers>>,
    ) {
        let mut dispatcher = self.inner.dispatcher.lock();
        let stored_task =
            StoredTask { kind, body, task_buffers, worker_id: worker_id.unwrap_or_default() };
        dispatcher.stored_tasks.insert(task, stored_task);
        dispatcher.allowance.set_has_tasks(true);
        dispatcher.handle_event(&self.inner, WorkerEvent::Submitted { task, worker_id });
        if !dispatcher.out.is_empty() {
            self.inner.event_fd.ring();
        }
    }

    /// A handle that ends a wait in `next`.
    pub fn waker(&self) -> Waker {
        Waker(Arc::downgrade(&self.inner))
    }

    /// Retires a worker that is no longer needed.
    pub fn retire(&self, worker_id: u32) {
        let mut dispatcher = self.inner.dispatcher.lock();
        dispatcher.handle_event(&self.inner, WorkerEvent::Retire { worker_id });
    }

    /// Makes a worker take tasks again that has retired.
    pub fn restore(&self, worker_id: u32) {
        let mut dispatcher = self.inner.dispatcher.lock();
        dispatcher.handle_event(&self.inner, WorkerEvent::Restore { worker_id });
    }

    /// Lets at most this many workers have pinned tasks at once. With `ends_others`, because memory is short, the
    /// processes of the others end.
    pub fn limit_workers(&self, at_once: u32, ends_others: bool) {
        let mut dispatcher = self.inner.dispatcher.lock();
        dispatcher.handle_event(&self.inner, WorkerEvent::LimitWorkers { at_once, ends_others });
        dispatcher.watch_results(&self.inner);
        if !dispatcher.out.is_empty() {
            self.inner.event_fd.ring();
        }
    }

    /// Waits for the next event. `oldest` is the task that the consumer waits for.
    pub fn next(&self, oldest: u64, at_most: Duration) -> PoolEvent {
        let until = clock::now() + at_most;
        let mut names = Vec::new();
        loop {
            let limit = {
                let mut dispatcher = self.inner.dispatcher.lock();
                dispatcher.set_oldest(oldest);
                dispatcher.pump(&self.inner, &names);
                if let Some(event) = dispatcher.out.pop_front() {
                    return event;
                }
                if self.inner.is_woken.swap(false, Ordering::AcqRel) {
                    return PoolEvent::Woken;
                }
                let now = clock::now();
                if now >= until {
                    return PoolEvent::Nothing;
                }
                let deadline =
                    dispatcher.deadline(&self.inner).map_or(until, |then| then.min(until));
                deadline.saturating_duration_since(now)
            };
            names = match self.inner.poll.wait(Some(limit)) {
                Ok(names) => names,
                Err(_) => {
                    self.inner.dispatcher.lock().descriptors_closed(&self.inner);
                    continue;
                }
            };
            if names.is_empty() && clock::now() < until {
                // A signal may have arrived: the caller handles it and calls again.
                let mut dispatcher = self.inner.dispatcher.lock();
                dispatcher.pump(&self.inner, &[]);
                return dispatcher.out.pop_front().unwrap_or(PoolEvent::Nothing);
            }
        }
    }

    /// The peaks of this pool, for a report.
    pub fn peaks(&self) -> Arc<PoolPeaks> {
        Arc::clone(&self.inner.dispatcher.lock().peaks)
    }

    /// The status of a worker, if its process exists or is being forked.
    pub fn presence(&self, worker_id: u32) -> Option<WorkerStatus> {
        let dispatcher = self.inner.dispatcher.lock();
        let incarnation = dispatcher.supervisor.incarnation(worker_id)?;
        let running = dispatcher.running.get(&incarnation);
        let pid = running.and_then(|running| running.pid);
        Some(WorkerStatus { pid, is_ready: running.is_some_and(|running| running.is_ready) })
    }

    /// What a worker is doing.
    pub fn last_snapshot(&self, worker_id: u32) -> Option<Snapshot> {
        let dispatcher = self.inner.dispatcher.lock();
        dispatcher.snapshot(dispatcher.supervisor.incarnation(worker_id)?)
    }

    /// Ends all workers within the supervisor's grace period. Returns the zygote, which can be
    /// reused.
    pub fn close(&self) -> Option<Socket> {
        {
            let mut dispatcher = self.inner.dispatcher.lock();
            if !dispatcher.supervisor.is_closed() {
                dispatcher.handle_event(&self.inner, WorkerEvent::Close);
            }
        }
        loop {
            let limit = {
                let dispatcher = self.inner.dispatcher.lock();
                if dispatcher.supervisor.is_closed() {
                    break;
                }
                let until =
                    dispatcher.deadline(&self.inner).map_or(Duration::from_millis(50), |then| {
                        then.saturating_duration_since(clock::now())
                    });
                until.min(Duration::from_millis(50))
            };
            let names = self.inner.poll.wait(Some(limit));
            let mut dispatcher = self.inner.dispatcher.lock();
            match names {
                Ok(names) => dispatcher.pump(&self.inner, &names),
                Err(_) => dispatcher.abandon(&self.inner),
            }
        }
        self.inner.is_over.store(true, Ordering::Release);
        self.inner.watch_event_fd.ring();
        self.threads.wait(Duration::from_secs(1));
        let mut dispatcher = self.inner.dispatcher.lock();
        dispatcher.running.clear();
        dispatcher.stored_tasks.clear();
        dispatcher.allowance.set_has_tasks(false);
        dispatcher.out.clear();
        let zygote = dispatcher.zygote.take()?.socket;
        self.inner.poll.forget(&zygote);
        self.inner.watch.forget(&zygote);
        Some(zygote)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // In a fork, the locks may be held by threads that do not exist here.
        if !self.home.is_forked() && !self.inner.is_over.load(Ordering::Acquire) {
            drop(self.close());
        }
    }
}

impl PoolInner {
    fn now(&self) -> Duration {
        clock::now().saturating_duration_since(self.started)
    }

    fn watch(&self) {
        loop {
            let limit = {
                let mut dispatcher = self.dispatcher.lock();
                dispatcher.watched_until = dispatcher.supervisor.next_deadline();
                dispatcher.deadline(self).map(|then| then.saturating_duration_since(clock::now()))
            };
            let is_broken = self.watch.wait(limit).is_err();
            self.watch_event_fd.clear();
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            let mut dispatcher = self.dispatcher.lock();
            match self.poll.wait(Some(Duration::ZERO)) {
                Ok(names) if !is_broken => dispatcher.pump(self, &names),
                Ok(_) | Err(_) => {
                    // The trainer's own thread finds the failure in `next`; there is nothing to
                    // wait for here.
                    dispatcher.descriptors_closed(self);
                    return;
                }
            }
            if !dispatcher.out.is_empty() {
                self.event_fd.ring();
            }
        }
    }
}
