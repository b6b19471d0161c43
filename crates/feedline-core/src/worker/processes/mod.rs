//! Does what the supervisor decides: turns its actions into messages and memory, and what sockets say
//! into happenings. Decides nothing itself.
//!
//! The thread that waits for an answer drives everything, so that a batch costs no switch of
//! threads. While nobody waits, a thread of ours watches for deaths and for workers that become ready:
//! a replacement is at work before the trainer comes back.

mod engine;
mod evidence;
mod zygote_process;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use self::engine::{BELL, Engine, Parcel, ZYGOTE};
use self::zygote_process::ZygoteProcess;
use super::answer::Answer;
use super::blackbox::Snapshot;
use super::certificate::{Certificate, CodeFolders, Posture};
use super::inbox::{Freight, Inbox};
use super::leaks::{Bounds, Leak};
use super::supervisor::{Death, Failure, Happening, Life, Reason, Settings};
use super::wire::Said;
use crate::sys::clock;
use crate::sys::lock::Mutex;
use crate::sys::process::Home;
use crate::sys::socket::{Bell, Poll, Socket};
use crate::sys::thread::Crew;

/// What is fixed for a set of workers.
#[derive(Clone, Debug)]
pub struct Options {
    /// For the supervisor.
    pub settings: Settings,
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
pub enum Outcome {
    /// The one result of a task.
    Answer(Answer),
    /// The one result of a task: one of its samples kills workers, or hangs.
    GaveUp(GivenUp),
    /// A worker has died.
    Died(Obituary),
    /// A worker does not go on.
    Stalled(Standstill),
    /// Workers of a zygote that is a fork hang: the next one is a fresh interpreter.
    Reborn(Standstill),
    /// The zygote does not answer.
    ZygoteLate(ZygoteLate),
    /// A worker that leaked has been replaced.
    Retired(Retired),
    /// A worker has something to say.
    Note {
        /// Its post.
        post: u32,
        /// What.
        text: Vec<u8>,
    },
    /// A zygote must be born, which only the trainer's own thread can do.
    BearZygote {
        /// As a fresh interpreter, although the last one was a fork.
        fresh: bool,
    },
    /// The run is over.
    Failed(Broken),
    /// Something else has happened that the one who waits wanted to know.
    Woken,
    /// Nothing, in the time given.
    Nothing,
}

/// A task that is not retried.
#[derive(Clone, Debug)]
pub struct GivenUp {
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
pub struct Obituary {
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
pub struct Standstill {
    /// Which one.
    pub life: Life,
    /// The process.
    pub pid: Option<u32>,
    /// What it is at.
    pub last: Option<Snapshot>,
    /// How the system says it stands.
    pub posture: Option<Posture>,
    /// Where it is, innermost first.
    pub stack: Vec<String>,
}

/// A zygote that does not answer.
#[derive(Clone, Copy, Debug)]
pub struct ZygoteLate {
    /// The process.
    pub pid: Option<u32>,
    /// How the system says it stands.
    pub posture: Option<Posture>,
    /// Whether it was killed: it did not use the processor either.
    pub is_killed: bool,
}

/// A worker that was replaced before it did harm.
#[derive(Clone, Debug)]
pub struct Retired {
    /// Which one.
    pub life: Life,
    /// The process.
    pub pid: Option<u32>,
    /// Why.
    pub leak: Option<Leak>,
    /// The first and the last task that it did.
    pub tasks: Option<(u64, u64)>,
}

/// Why a run is over.
pub struct Broken {
    /// In the supervisor's words.
    pub failure: Failure,
    /// In the worker's or the zygote's words, where it had some.
    pub words: Option<Words>,
    /// The number of the system's error, where it refused something.
    pub os_error: Option<i32>,
}

/// What somebody who could not start has to say.
pub enum Words {
    /// A worker: an answer to be opened.
    Worker(Answer),
    /// The zygote: bytes of its own.
    Zygote(Vec<u8>),
}

/// How a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Its process, once it was forked.
    pub pid: Option<u32>,
    /// Whether it takes tasks.
    pub is_ready: bool,
}

/// Worker processes, supervised.
pub struct Processes {
    inner: Arc<Inner>,
    crew: Crew,
    home: Home,
}

/// Ends a wait for workers, from any thread.
pub struct Waker(Weak<Inner>);

impl Waker {
    /// The wait that is, or the next one, ends with `Outcome::Woken`.
    pub fn wake(&self) {
        let Some(inner) = self.0.upgrade() else { return };
        if !inner.is_woken.swap(true, Ordering::AcqRel) {
            inner.bell.ring();
        }
    }
}

struct Inner {
    engine: Mutex<Engine>,
    inbox: Option<Arc<Inbox>>,
    poll: Poll,
    bell: Bell,
    /// What the watching thread waits for: the zygote, and workers that are not ready yet.
    watch: Poll,
    watch_bell: Bell,
    is_over: AtomicBool,
    is_woken: AtomicBool,
    started: Instant,
    started_nanoseconds: u64,
}

impl Processes {
    /// Nobody yet: the first outcome asks for a zygote.
    pub fn new(options: Options) -> io::Result<Processes> {
        let inbox = match options.inbox_bytes {
            0 => None,
            bytes => Some(Arc::new(Inbox::create(bytes)?)),
        };
        let inner = Arc::new(Inner {
            engine: Mutex::new(Engine::new(options, inbox.clone())?),
            inbox,
            poll: Poll::new()?,
            bell: Bell::new()?,
            watch: Poll::new()?,
            watch_bell: Bell::new()?,
            is_over: AtomicBool::new(false),
            is_woken: AtomicBool::new(false),
            started: clock::now(),
            started_nanoseconds: clock::nanoseconds(),
        });
        inner.poll.watch(&inner.bell, BELL)?;
        inner.watch.watch(&inner.watch_bell, BELL)?;
        let crew = Crew::default();
        {
            let mut engine = inner.engine.lock();
            let actions = engine.supervisor.start(inner.now());
            engine.apply(&inner, actions);
        }
        let watcher = Arc::clone(&inner);
        crew.spawn("feedline-watch", move || watcher.watch())?;
        Ok(Processes { inner, crew, home: Home::here() })
    }

    /// True in a fork of the process that made it, where nothing of it may be touched.
    pub fn is_left(&self) -> bool {
        self.home.is_left()
    }

    /// The zygote that was asked for. It reports by itself when it is ready.
    pub fn zygote_born(&self, socket: Socket, pid: u32) -> io::Result<()> {
        let mut engine = self.inner.engine.lock();
        self.inner.poll.watch(&socket, ZYGOTE)?;
        self.inner.watch.watch(&socket, ZYGOTE)?;
        engine.zygote = Some(ZygoteProcess::new(socket, pid));
        engine.happen(&self.inner, Happening::ZygoteStarted);
        Ok(())
    }

    /// A zygote that is ready already, from an earlier set of workers.
    pub fn zygote_ready(&self, socket: Socket, pid: u32) -> io::Result<()> {
        self.zygote_born(socket, pid)?;
        let mut engine = self.inner.engine.lock();
        engine.happen(&self.inner, Happening::ZygoteReady);
        Ok(())
    }

    /// The zygote could not be born.
    pub fn zygote_refused(&self) {
        let mut engine = self.inner.engine.lock();
        engine.happen(&self.inner, Happening::ZygoteEnded);
    }

    /// Puts buffers where workers find them; they can go with several tasks, one after another. None
    /// where there is no inbox.
    pub fn load(&self, buffers: &[&[u8]]) -> Option<Arc<Freight>> {
        self.inner.inbox.as_ref().map(|inbox| Arc::new(inbox.load(buffers)))
    }

    /// Bytes of the inbox that are in use or warm, and the slots that somebody has.
    pub fn inbox_used(&self) -> (u64, usize) {
        self.inner.inbox.as_ref().map_or((0, 0), |inbox| inbox.used())
    }

    /// Hands a task in; pinned to a post, or to any free worker.
    pub fn submit(
        &self,
        task: u64,
        said: Said,
        post: Option<u32>,
        body: Vec<u8>,
        freight: Option<Arc<Freight>>,
    ) {
        let mut engine = self.inner.engine.lock();
        let parcel = Parcel { said, body, freight, post: post.unwrap_or_default() };
        engine.parcels.insert(task, parcel);
        engine.happen(&self.inner, Happening::Submitted { task, post });
        if !engine.out.is_empty() {
            self.inner.bell.ring();
        }
    }

    /// What ends a wait in `next` from outside.
    pub fn waker(&self) -> Waker {
        Waker(Arc::downgrade(&self.inner))
    }

    /// A post is not needed any more.
    pub fn retire(&self, post: u32) {
        let mut engine = self.inner.engine.lock();
        engine.happen(&self.inner, Happening::Retire { post });
    }

    /// Waits for something to tell. `oldest` is the task that the consumer waits for.
    pub fn next(&self, oldest: u64, at_most: Duration) -> Outcome {
        let until = clock::now() + at_most;
        let mut names = Vec::new();
        loop {
            let limit = {
                let mut engine = self.inner.engine.lock();
                engine.set_oldest(oldest);
                engine.pump(&self.inner, &names);
                if let Some(outcome) = engine.out.pop_front() {
                    return outcome;
                }
                if self.inner.is_woken.swap(false, Ordering::AcqRel) {
                    return Outcome::Woken;
                }
                let now = clock::now();
                if now >= until {
                    return Outcome::Nothing;
                }
                let deadline = engine.deadline(&self.inner).map_or(until, |then| then.min(until));
                deadline.saturating_duration_since(now)
            };
            names = match self.inner.poll.wait(Some(limit)) {
                Ok(names) => names,
                Err(_) => {
                    self.inner.engine.lock().descriptors_closed(&self.inner);
                    continue;
                }
            };
            if names.is_empty() && clock::now() < until {
                // A signal, perhaps: the caller looks, and comes back.
                let mut engine = self.inner.engine.lock();
                engine.pump(&self.inner, &[]);
                return engine.out.pop_front().unwrap_or(Outcome::Nothing);
            }
        }
    }

    /// How the worker of a post is, if there is one or one is to be forked.
    pub fn presence(&self, post: u32) -> Option<Presence> {
        let engine = self.inner.engine.lock();
        let life = engine.supervisor.life(post)?;
        let running = engine.running.get(&life);
        let pid = running.and_then(|running| running.pid);
        Some(Presence { pid, is_ready: running.is_some_and(|running| running.is_ready) })
    }

    /// What the worker of a post is at.
    pub fn last_of(&self, post: u32) -> Option<Snapshot> {
        let engine = self.inner.engine.lock();
        engine.snapshot(engine.supervisor.life(post)?)
    }

    /// Ends all workers, within the supervisor's grace; then hands the zygote back, which may be used
    /// again or let go.
    pub fn close(&self) -> Option<Socket> {
        {
            let mut engine = self.inner.engine.lock();
            if !engine.supervisor.is_closed() {
                engine.happen(&self.inner, Happening::Close);
            }
        }
        loop {
            let limit = {
                let engine = self.inner.engine.lock();
                if engine.supervisor.is_closed() {
                    break;
                }
                let until =
                    engine.deadline(&self.inner).map_or(Duration::from_millis(50), |then| {
                        then.saturating_duration_since(clock::now())
                    });
                until.min(Duration::from_millis(50))
            };
            let names = self.inner.poll.wait(Some(limit));
            let mut engine = self.inner.engine.lock();
            match names {
                Ok(names) => engine.pump(&self.inner, &names),
                Err(_) => engine.abandon(&self.inner),
            }
        }
        self.inner.is_over.store(true, Ordering::Release);
        self.inner.watch_bell.ring();
        self.crew.wait(Duration::from_secs(1));
        let mut engine = self.inner.engine.lock();
        engine.running.clear();
        engine.parcels.clear();
        engine.out.clear();
        let zygote = engine.zygote.take()?.socket;
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

impl Inner {
    fn now(&self) -> Duration {
        clock::now().saturating_duration_since(self.started)
    }

    fn watch(&self) {
        loop {
            let limit = {
                let mut engine = self.engine.lock();
                engine.watched_until = engine.supervisor.next_deadline();
                engine.deadline(self).map(|then| then.saturating_duration_since(clock::now()))
            };
            let is_broken = self.watch.wait(limit).is_err();
            self.watch_bell.hush();
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            let mut engine = self.engine.lock();
            match self.poll.wait(Some(Duration::ZERO)) {
                Ok(names) if !is_broken => engine.pump(self, &names),
                Ok(_) | Err(_) => {
                    // The trainer's own thread finds it in `next`; there is nothing to wait for here.
                    engine.descriptors_closed(self);
                    return;
                }
            }
            if !engine.out.is_empty() {
                self.bell.ring();
            }
        }
    }
}
