//! Does what the supervisor decides: turns its actions into messages and memory, and what sockets say
//! into happenings. Decides nothing itself.
//!
//! Whoever waits for an answer drives everything in its own thread, so that a batch costs no switch of
//! threads. While nobody waits, a thread of ours watches for deaths and for workers that become ready:
//! a replacement is at work before the trainer comes back.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::answer::Answer;
use super::arena::{self, Account};
use super::blackbox::{Boxes, Snapshot, Word};
use super::supervisor::{Action, Death, Ending, Failure, Happening, Life, Settings, Supervisor};
use super::wire::{Assembler, Frame, HEAD, Head, Said};
use super::zygote::{Report, Request};
use crate::sys::clock;
use crate::sys::lock::Mutex;
use crate::sys::memory::Shared;
use crate::sys::process::Home;
use crate::sys::socket::{Bell, Moved, Poll, Socket};
use crate::sys::thread::Crew;

const ZYGOTE: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
const CHUNK: usize = 64 << 10;
/// EAGAIN, ENOMEM, ENFILE, EMFILE: what a refusal that passes looks like.
const PASSING: [i32; 4] = [11, 12, 23, 24];

/// What is fixed for a set of workers.
#[derive(Clone, Debug)]
pub struct Options {
    /// For the supervisor.
    pub settings: Settings,
    /// Bytes that the arena of one worker may use before it waits.
    pub arena_bytes: u64,
}

/// What the one who waits is told.
pub enum Outcome {
    /// The one result of a task.
    Answer(Answer),
    /// The one result of a task: it kills workers.
    GaveUp(u64),
    /// A worker has died.
    Died(Obituary),
    /// A zygote must be born, which only the trainer's own thread can do.
    BearZygote,
    /// The run is over.
    Failed(Broken),
    /// Nothing, in the time given.
    Nothing,
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

struct Inner {
    engine: Mutex<Engine>,
    poll: Poll,
    bell: Bell,
    /// What the watching thread waits for: the zygote, and workers that are not ready yet.
    watch: Poll,
    watch_bell: Bell,
    is_over: AtomicBool,
    started: Instant,
}

struct Engine {
    supervisor: Supervisor,
    options: Options,
    boxes: Boxes,
    boxes_file: OwnedFd,
    zygote: Option<Socket>,
    running: HashMap<Life, Running>,
    /// Bodies of tasks that have no result yet: a task may have to be sent again.
    parcels: HashMap<u64, (Said, Vec<u8>)>,
    out: VecDeque<Outcome>,
    words: Option<Words>,
    os_error: Option<i32>,
    has_failed: bool,
}

struct Running {
    pid: Option<u32>,
    is_ready: bool,
    socket: Socket,
    incoming: Assembler,
    outgoing: VecDeque<u8>,
    /// There was no room for the rest of `outgoing`: both polls watch for some.
    is_blocked: bool,
    arena: Arc<Shared>,
    account: Arc<Account>,
}

fn name(life: Life) -> u64 {
    u64::from(life.post) << 32 | u64::from(life.generation)
}

fn life(name: u64) -> Life {
    Life { post: (name >> 32) as u32, generation: name as u32 }
}

impl Processes {
    /// Nobody yet: the first outcome asks for a zygote.
    pub fn new(options: Options) -> io::Result<Processes> {
        let (boxes_file, boxes) = Boxes::create(options.settings.posts)?;
        for post in 0..options.settings.posts {
            boxes.set(post, Word::ArenaLimit, options.arena_bytes);
        }
        let inner = Arc::new(Inner {
            engine: Mutex::new(Engine {
                supervisor: Supervisor::new(options.settings.clone()),
                options,
                boxes,
                boxes_file,
                zygote: None,
                running: HashMap::new(),
                parcels: HashMap::new(),
                out: VecDeque::new(),
                words: None,
                os_error: None,
                has_failed: false,
            }),
            poll: Poll::new()?,
            bell: Bell::new()?,
            watch: Poll::new()?,
            watch_bell: Bell::new()?,
            is_over: AtomicBool::new(false),
            started: clock::now(),
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
    pub fn zygote_born(&self, socket: Socket) -> io::Result<()> {
        let mut engine = self.inner.engine.lock();
        self.inner.poll.watch(&socket, ZYGOTE)?;
        self.inner.watch.watch(&socket, ZYGOTE)?;
        engine.zygote = Some(socket);
        Ok(())
    }

    /// A zygote that is ready already, from an earlier set of workers.
    pub fn zygote_ready(&self, socket: Socket) -> io::Result<()> {
        self.zygote_born(socket)?;
        let mut engine = self.inner.engine.lock();
        engine.happen(&self.inner, Happening::ZygoteReady);
        Ok(())
    }

    /// The zygote could not be born.
    pub fn zygote_refused(&self) {
        let mut engine = self.inner.engine.lock();
        engine.happen(&self.inner, Happening::ZygoteEnded);
    }

    /// Hands a task in; pinned to a post, or to whoever is free.
    pub fn submit(&self, task: u64, said: Said, post: Option<u32>, body: Vec<u8>) {
        let mut engine = self.inner.engine.lock();
        engine.parcels.insert(task, (said, body));
        engine.happen(&self.inner, Happening::Submitted { task, post });
        if !engine.out.is_empty() {
            self.inner.bell.ring();
        }
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
                let now = clock::now();
                if now >= until {
                    return Outcome::Nothing;
                }
                let deadline = engine.deadline(&self.inner).map_or(until, |then| then.min(until));
                deadline.saturating_duration_since(now)
            };
            names = self.inner.poll.wait(Some(limit));
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
        let life = engine
            .running
            .keys()
            .filter(|life| life.post == post)
            .max_by_key(|life| life.generation)?;
        engine.boxes.snapshot(post, life.generation)
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
            self.inner.engine.lock().pump(&self.inner, &names);
        }
        self.inner.is_over.store(true, Ordering::Release);
        self.inner.watch_bell.ring();
        self.crew.wait(Duration::from_secs(1));
        let mut engine = self.inner.engine.lock();
        engine.running.clear();
        engine.parcels.clear();
        engine.out.clear();
        let zygote = engine.zygote.take()?;
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
                let engine = self.engine.lock();
                engine.deadline(self).map(|then| then.saturating_duration_since(clock::now()))
            };
            let _ = self.watch.wait(limit);
            self.watch_bell.hush();
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            let mut engine = self.engine.lock();
            let names = self.poll.wait(Some(Duration::ZERO));
            engine.pump(self, &names);
            if !engine.out.is_empty() {
                self.bell.ring();
            }
        }
    }
}

impl Engine {
    fn deadline(&self, inner: &Inner) -> Option<Instant> {
        self.supervisor.next_deadline().map(|then| inner.started + then)
    }

    fn set_oldest(&self, oldest: u64) {
        for post in 0..self.options.settings.posts {
            self.boxes.set(post, Word::Oldest, oldest);
        }
    }

    /// Handles what is there to be handled, without waiting.
    fn pump(&mut self, inner: &Inner, names: &[u64]) {
        for name in names {
            match *name {
                BELL => inner.bell.hush(),
                ZYGOTE => self.hear_zygote(inner),
                name => self.hear_worker(inner, life(name)),
            }
        }
        if self.deadline(inner).is_some_and(|then| then <= clock::now()) {
            self.happen(inner, Happening::TimePassed);
        }
    }

    fn happen(&mut self, inner: &Inner, happening: Happening) {
        let before = self.supervisor.next_deadline();
        let actions = self.supervisor.handle(happening, inner.now());
        self.apply(inner, actions);
        let after = self.supervisor.next_deadline();
        if after != before && after.is_some() {
            inner.watch_bell.ring();
        }
    }

    fn hear_zygote(&mut self, inner: &Inner) {
        let mut packet = vec![0; CHUNK];
        loop {
            let Some(zygote) = &self.zygote else { return };
            match zygote.try_receive(&mut packet) {
                Moved::Bytes(bytes) => self.zygote_said(inner, &packet[..bytes]),
                Moved::WouldWait => return,
                Moved::Ended => return self.zygote_ended(inner),
            }
        }
    }

    fn zygote_said(&mut self, inner: &Inner, packet: &[u8]) {
        match Report::from_bytes(packet) {
            Some(Report::Ready) => self.happen(inner, Happening::ZygoteReady),
            Some(Report::Forked { post, generation, pid }) => {
                if let Some(running) = self.running.get_mut(&Life { post, generation }) {
                    running.pid = Some(pid);
                }
            }
            Some(Report::Refused { post, generation, error }) => {
                let life = Life { post, generation };
                self.leave(inner, life);
                self.os_error = Some(error);
                let passing = PASSING.contains(&error);
                self.happen(inner, Happening::Refused { life, passing });
            }
            Some(Report::Ended { post, generation, status }) => {
                let life = Life { post, generation };
                // What it said before it died still counts.
                self.hear_worker(inner, life);
                let ending =
                    if status < 0 { Ending::Killed(-status) } else { Ending::Exited(status) };
                let happening = Happening::Ended { life, ending };
                let actions = self.supervisor.handle(happening, inner.now());
                self.apply(inner, actions);
                self.leave(inner, life);
            }
            Some(Report::Failed(text)) => self.words = Some(Words::Zygote(text)),
            None => self.zygote_ended(inner),
        }
    }

    fn zygote_ended(&mut self, inner: &Inner) {
        if let Some(zygote) = self.zygote.take() {
            inner.poll.forget(&zygote);
            inner.watch.forget(&zygote);
        }
        let lives: Vec<_> = self.running.keys().copied().collect();
        for life in &lives {
            self.hear_worker(inner, *life);
        }
        let actions = self.supervisor.handle(Happening::ZygoteEnded, inner.now());
        self.apply(inner, actions);
        for life in lives {
            self.leave(inner, life);
        }
    }

    fn leave(&mut self, inner: &Inner, life: Life) {
        if let Some(running) = self.running.remove(&life) {
            inner.poll.forget(&running.socket);
            inner.watch.forget(&running.socket);
        }
    }

    fn hear_worker(&mut self, inner: &Inner, life: Life) {
        let mut chunk = [0; CHUNK];
        let mut frames = Vec::new();
        loop {
            let Some(running) = self.running.get_mut(&life) else { return };
            let moved = running.socket.try_receive(&mut chunk);
            let Moved::Bytes(bytes) = moved else {
                if moved == Moved::Ended {
                    // The end of the stream says nothing about how it ended: the zygote will.
                    inner.poll.forget(&running.socket);
                    inner.watch.forget(&running.socket);
                }
                break;
            };
            if running.incoming.push(&chunk[..bytes], |frame| frames.push(frame)).is_err() {
                inner.poll.forget(&running.socket);
                self.send_to_zygote(Request::Kill { post: life.post, generation: life.generation });
                break;
            }
            if bytes < CHUNK {
                break;
            }
        }
        for frame in frames {
            self.worker_said(inner, life, frame);
        }
        self.flush(inner, life);
    }

    fn worker_said(&mut self, inner: &Inner, life: Life, frame: Frame) {
        let Some(running) = self.running.get_mut(&life) else { return };
        match frame.said {
            Said::Ready => {
                running.is_ready = true;
                inner.watch.forget(&running.socket);
                self.happen(inner, Happening::Ready { life });
            }
            Said::StartFailed => {
                let limit = self.options.arena_bytes / 2;
                let answer = Answer::new(frame, life.post, &running.arena, &running.account, limit);
                self.words = answer.map(Words::Worker);
                self.happen(inner, Happening::StartFailed { life });
            }
            Said::Result | Said::Raised | Said::Exhausted => {
                let task = frame.task;
                let limit = self.options.arena_bytes / 2;
                let answer = Answer::new(frame, life.post, &running.arena, &running.account, limit);
                let Some(answer) = answer else {
                    // A worker whose memory is in disorder writes nonsense: it counts as dead.
                    let Life { post, generation } = life;
                    return self.send_to_zygote(Request::Kill { post, generation });
                };
                let actions =
                    self.supervisor.handle(Happening::Answered { life, task }, inner.now());
                if actions.contains(&Action::Accept { task }) {
                    self.parcels.remove(&task);
                    self.out.push_back(Outcome::Answer(answer));
                }
                self.apply(inner, actions);
            }
            Said::Task | Said::Resume | Said::Stop => {}
        }
    }

    fn apply(&mut self, inner: &Inner, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::BearZygote => self.out.push_back(Outcome::BearZygote),
                Action::Fork { life } => self.fork(inner, life),
                Action::Send { life, task } => self.send(inner, life, task),
                Action::Stop { life } => {
                    let head = Head { said: Said::Stop, task: 0, length: 0 };
                    self.dispatch(inner, life, &head.to_bytes(), &[]);
                }
                Action::Kill { life: Life { post, generation } } => {
                    self.send_to_zygote(Request::Kill { post, generation });
                }
                // Accepted where it came in; what is discarded is dropped there.
                Action::Accept { .. } | Action::Discard { .. } => {}
                Action::GiveUp { task } => {
                    self.parcels.remove(&task);
                    self.out.push_back(Outcome::GaveUp(task));
                }
                Action::Died(death) => {
                    let life = death.life;
                    let pid = self.running.get(&life).and_then(|running| running.pid);
                    let last = self.boxes.snapshot(life.post, life.generation);
                    self.out.push_back(Outcome::Died(Obituary { death, pid, last }));
                }
                Action::Fail(failure) => {
                    self.has_failed = true;
                    let (words, os_error) = (self.words.take(), self.os_error);
                    self.out.push_back(Outcome::Failed(Broken { failure, words, os_error }));
                }
                Action::Closed => {}
            }
        }
    }

    fn fork(&mut self, inner: &Inner, life: Life) {
        if let Err(error) = self.try_fork(inner, life) {
            self.leave(inner, life);
            self.os_error = error.raw_os_error();
            let passing = error.raw_os_error().is_some_and(|code| PASSING.contains(&code));
            self.happen(inner, Happening::Refused { life, passing });
        }
    }

    fn try_fork(&mut self, inner: &Inner, life: Life) -> io::Result<()> {
        let Some(zygote) = &self.zygote else { return Ok(()) };
        let (ours, theirs) = Socket::pair()?;
        // Address space only: four times what it may use, so that one huge batch finds room too.
        let reserve = self.options.arena_bytes.saturating_mul(4).max(4 << 30);
        let (arena_file, arena) = arena::create(reserve)?;
        inner.poll.watch(&ours, name(life))?;
        inner.watch.watch(&ours, name(life))?;
        let Life { post, generation } = life;
        let request = Request::Fork { post, generation }.to_bytes();
        let descriptors = [theirs.as_fd(), arena_file.as_fd(), self.boxes_file.as_fd()];
        zygote.try_send_with(&request, &descriptors)?;
        let running = Running {
            pid: None,
            is_ready: false,
            socket: ours,
            incoming: Assembler::default(),
            outgoing: VecDeque::new(),
            is_blocked: false,
            arena,
            account: Arc::new(Account::default()),
        };
        self.running.insert(life, running);
        Ok(())
    }

    fn send_to_zygote(&mut self, request: Request) {
        if let Some(zygote) = &self.zygote {
            // A zygote that takes no message is dead or dying, and its workers with it.
            let _ = zygote.try_send_with(&request.to_bytes(), &[]);
        }
    }

    fn send(&mut self, inner: &Inner, life: Life, task: u64) {
        let Some((said, body)) = self.parcels.get(&task) else { return };
        let head = Head { said: *said, task, length: body.len() as u64 }.to_bytes();
        let body = body.clone();
        self.dispatch(inner, life, &head, &body);
    }

    fn dispatch(&mut self, inner: &Inner, life: Life, head: &[u8; HEAD], body: &[u8]) {
        let Some(running) = self.running.get_mut(&life) else { return };
        let was_empty = running.outgoing.is_empty();
        running.outgoing.extend(head);
        running.outgoing.extend(body);
        if was_empty {
            self.flush(inner, life);
        }
    }

    fn flush(&mut self, inner: &Inner, life: Life) {
        let Some(running) = self.running.get_mut(&life) else { return };
        while !running.outgoing.is_empty() {
            let (first, _) = running.outgoing.as_slices();
            match running.socket.try_send(first) {
                Moved::Bytes(bytes) => drop(running.outgoing.drain(..bytes)),
                Moved::WouldWait => {
                    // Somebody must come back when there is room, also while nobody waits.
                    if !running.is_blocked {
                        running.is_blocked = true;
                        for poll in [&inner.poll, &inner.watch] {
                            poll.forget(&running.socket);
                            let _ = poll.watch_both(&running.socket, name(life));
                        }
                    }
                    return;
                }
                // It is dying: the task will be sent again to the next.
                Moved::Ended => return running.outgoing.clear(),
            }
        }
        if running.is_blocked {
            running.is_blocked = false;
            inner.watch.forget(&running.socket);
            inner.poll.forget(&running.socket);
            let _ = inner.poll.watch(&running.socket, name(life));
        }
    }
}
