//! Does what the supervisor decides: turns its actions into messages and memory, and what sockets say
//! into happenings. Decides nothing itself.
//!
//! The thread that waits for an answer drives everything, so that a batch costs no switch of
//! threads. While nobody waits, a thread of ours watches for deaths and for workers that become ready:
//! a replacement is at work before the trainer comes back.

mod dispatcher;
mod evidence;
mod zygote_process;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use self::dispatcher::{Dispatcher, EVENT_FD, StoredTask, ZYGOTE};
use self::zygote_process::ZygoteProcess;
use super::blackbox::Snapshot;
use super::certificate::{Certificate, CodeFolders, ProcessState};
use super::inbox::{Inbox, TaskBuffers};
use super::leaks::{Bounds, Leak};
use super::result::TaskResult;
use super::supervisor::{Death, Incarnation, Reason, RunFailure, SupervisorSettings, WorkerEvent};
use super::wire::FrameKind;
use crate::sys::clock;
use crate::sys::lock::Mutex;
use crate::sys::process::OwnerProcess;
use crate::sys::socket::{EventFd, Poll, Socket};
use crate::sys::thread::Threads;

/// What is fixed for a set of workers.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// For the supervisor.
    pub settings: SupervisorSettings,
    /// Bytes that the arena of one worker may use before it waits.
    pub arena_bytes: u64,
    /// Bytes that buffers of tasks may use on their way; at zero they travel in frames.
    pub inbox_bytes: u64,
    /// What a worker may use before it is renewed.
    pub bounds: Bounds,
    /// What users call the number of workers.
    pub workers_name: &'static str,
    /// Which code is not the user's.
    pub folders: CodeFolders,
}

/// What the one who waits is told.
pub enum PoolEvent {
    /// The one result of a task.
    TaskResult(TaskResult),
    /// The one result of a task: one of its samples kills workers, or hangs.
    GaveUp(FailedTask),
    /// A worker has died.
    Died(DeathReport),
    /// A worker does not go on.
    Stalled(Stall),
    /// Workers of a zygote that is a fork hang: the next one is a fresh interpreter.
    RestartedFresh(Stall),
    /// The zygote does not answer.
    ZygoteLate(ZygoteLate),
    /// A worker that leaked has been replaced.
    Retired(Retired),
    /// A worker has something to say.
    Note {
        /// Its worker.
        worker_id: u32,
        /// What.
        text: Vec<u8>,
    },
    /// A zygote must be started, which only the trainer's own thread can do.
    StartZygote {
        /// As a fresh interpreter, although the last one was a fork.
        fresh: bool,
    },
    /// The run is over.
    Failed(PoolFailure),
    /// Something else has happened that the one who waits wanted to know.
    Woken,
    /// Nothing, in the time given.
    Nothing,
}

/// A task that is not retried.
#[derive(Clone, Debug)]
pub struct FailedTask {
    /// Which one.
    pub task: u64,
    /// The position of the sample whose fault that is, where it is known.
    pub at: Option<u64>,
    /// What it does.
    pub why: Reason,
    /// What the worker's journal said when the task began.
    pub journal: Option<Vec<u8>>,
}

/// Who died, of what, and what its box said.
#[derive(Clone, Debug)]
pub struct DeathReport {
    /// What the supervisor knows.
    pub death: Death,
    /// The process.
    pub pid: Option<u32>,
    /// What the worker was at.
    pub last: Option<Snapshot>,
    /// Why.
    pub certificate: Certificate,
    /// The most memory it ever held.
    pub peak_bytes: u64,
}

/// A worker that does not go on.
#[derive(Clone, Debug)]
pub struct Stall {
    /// Which one.
    pub incarnation: Incarnation,
    /// The process.
    pub pid: Option<u32>,
    /// What it is at.
    pub last: Option<Snapshot>,
    /// How the system says it stands.
    pub process_state: Option<ProcessState>,
    /// Where it is, innermost first.
    pub stack: Vec<String>,
}

/// A zygote that does not answer.
#[derive(Clone, Copy, Debug)]
pub struct ZygoteLate {
    /// The process.
    pub pid: Option<u32>,
    /// How the system says it stands.
    pub process_state: Option<ProcessState>,
    /// Whether it was killed: it did not use the processor either.
    pub is_killed: bool,
}

/// A worker that was replaced before it did harm.
#[derive(Clone, Debug)]
pub struct Retired {
    /// Which one.
    pub incarnation: Incarnation,
    /// The process.
    pub pid: Option<u32>,
    /// Why.
    pub leak: Option<Leak>,
    /// The first and the last task that it did.
    pub tasks: Option<(u64, u64)>,
}

/// Why a run is over.
pub struct PoolFailure {
    /// In the supervisor's words.
    pub failure: RunFailure,
    /// In the worker's or the zygote's words, where it had some.
    pub start_error: Option<StartError>,
    /// The number of the system's error, where it refused something.
    pub os_error: Option<i32>,
}

/// What somebody who could not start has to say.
pub enum StartError {
    /// A worker: an answer to be opened.
    Worker(TaskResult),
    /// The zygote: bytes of its own.
    Zygote(Vec<u8>),
}

/// How a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Its process, once it was forked.
    pub pid: Option<u32>,
    /// Whether it takes tasks.
    pub is_ready: bool,
}

/// Worker processes, supervised.
pub struct Processes {
    inner: Arc<PoolInner>,
    threads: Threads,
    home: OwnerProcess,
}

/// Ends a wait for workers, from any thread.
pub struct Waker(Weak<PoolInner>);

impl Waker {
    /// The wait that is, or the next one, ends with `PoolEvent::Woken`.
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
    /// What the watching thread waits for: the zygote, and workers that are not ready yet.
    watch: Poll,
    watch_event_fd: EventFd,
    is_over: AtomicBool,
    is_woken: AtomicBool,
    started: Instant,
    started_nanoseconds: u64,
}

impl Processes {
    /// Nobody yet: the first outcome asks for a zygote.
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

    /// True in a fork of the process that made it, where nothing of it may be touched.
    pub fn is_left(&self) -> bool {
        self.home.is_left()
    }

    /// The zygote that was asked for. It reports by itself when it is ready.
    pub fn zygote_started(&self, socket: Socket, pid: u32) -> io::Result<()> {
        let mut dispatcher = self.inner.dispatcher.lock();
        self.inner.poll.watch(&socket, ZYGOTE)?;
        self.inner.watch.watch(&socket, ZYGOTE)?;
        dispatcher.zygote = Some(ZygoteProcess::new(socket, pid));
        dispatcher.happen(&self.inner, WorkerEvent::ZygoteStarted);
        Ok(())
    }

    /// A zygote that is ready already, from an earlier set of workers.
    pub fn zygote_ready(&self, socket: Socket, pid: u32) -> io::Result<()> {
        self.zygote_started(socket, pid)?;
        let mut dispatcher = self.inner.dispatcher.lock();
        dispatcher.happen(&self.inner, WorkerEvent::ZygoteReady);
        Ok(())
    }

    /// The zygote could not be started.
    pub fn zygote_refused(&self) {
        let mut dispatcher = self.inner.dispatcher.lock();
        dispatcher.happen(&self.inner, WorkerEvent::ZygoteEnded);
    }

    /// Puts buffers where workers find them; they can go with several tasks, one after another. None
    /// where there is no inbox.
    pub fn load(&self, buffers: &[&[u8]]) -> Option<Arc<TaskBuffers>> {
        self.inner.inbox.as_ref().map(|inbox| Arc::new(inbox.load(buffers)))
    }

    /// Bytes of the inbox that are in use or warm, and the slots that somebody has.
    pub fn inbox_used(&self) -> (u64, usize) {
        self.inner.inbox.as_ref().map_or((0, 0), |inbox| inbox.used())
    }

    /// Hands a task in; pinned to a worker, or to any free worker.
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
        dispatcher.happen(&self.inner, WorkerEvent::Submitted { task, worker_id });
        if !dispatcher.out.is_empty() {
            self.inner.event_fd.ring();
        }
    }

    /// What ends a wait in `next` from outside.
    pub fn waker(&self) -> Waker {
        Waker(Arc::downgrade(&self.inner))
    }

    /// A worker is not needed any more.
    pub fn retire(&self, worker_id: u32) {
        let mut dispatcher = self.inner.dispatcher.lock();
        dispatcher.happen(&self.inner, WorkerEvent::Retire { worker_id });
    }

    /// Waits for something to tell. `oldest` is the task that the consumer waits for.
    pub fn next(&self, oldest: u64, at_most: Duration) -> PoolEvent {
        let until = clock::now() + at_most;
        let mut names = Vec::new();
        loop {
            let limit = {
                let mut dispatcher = self.inner.dispatcher.lock();
                dispatcher.set_oldest(oldest);
                dispatcher.pump(&self.inner, &names);
                if let Some(outcome) = dispatcher.out.pop_front() {
                    return outcome;
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
                // A signal, perhaps: the caller looks, and comes back.
                let mut dispatcher = self.inner.dispatcher.lock();
                dispatcher.pump(&self.inner, &[]);
                return dispatcher.out.pop_front().unwrap_or(PoolEvent::Nothing);
            }
        }
    }

    /// How the worker of a worker is, if there is one or one is to be forked.
    pub fn presence(&self, worker_id: u32) -> Option<WorkerStatus> {
        let dispatcher = self.inner.dispatcher.lock();
        let incarnation = dispatcher.supervisor.incarnation(worker_id)?;
        let running = dispatcher.running.get(&incarnation);
        let pid = running.and_then(|running| running.pid);
        Some(WorkerStatus { pid, is_ready: running.is_some_and(|running| running.is_ready) })
    }

    /// What the worker of a worker is at.
    pub fn last_of(&self, worker_id: u32) -> Option<Snapshot> {
        let dispatcher = self.inner.dispatcher.lock();
        dispatcher.snapshot(dispatcher.supervisor.incarnation(worker_id)?)
    }

    /// Ends all workers, within the supervisor's grace; then hands the zygote back, which may be used
    /// again or let go.
    pub fn close(&self) -> Option<Socket> {
        {
            let mut dispatcher = self.inner.dispatcher.lock();
            if !dispatcher.supervisor.is_closed() {
                dispatcher.happen(&self.inner, WorkerEvent::Close);
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
        dispatcher.out.clear();
        let zygote = dispatcher.zygote.take()?.socket;
        self.inner.poll.forget(&zygote);
        self.inner.watch.forget(&zygote);
        Some(zygote)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // In a fork the locks may be held by threads that are not here.
        if !self.home.is_left() && !self.inner.is_over.load(Ordering::Acquire) {
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
                    // The trainer's own thread finds it in `next`; there is nothing to wait for here.
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
