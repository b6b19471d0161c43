//! What the sockets say and what is to be done about it, one at a time, under one lock.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::iter;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::evidence::{self, Evidence};
use super::zygote_process::ZygoteProcess;
use super::{
    Broken, GivenUp, Inner, Obituary, Options, Outcome, Retired, Standstill, Words, ZygoteLate,
};
use crate::sys::descriptor::Descriptor;
use crate::sys::memory::Shared;
use crate::sys::socket::{Moved, Socket};
use crate::sys::{clock, limits, process};
use crate::worker::answer::Answer;
use crate::worker::arena::{self, Account};
use crate::worker::blackbox::{Boxes, Doing, Owner, Snapshot, Word};
use crate::worker::certificate::{self, Posture};
use crate::worker::inbox::{self, Freight, Inbox};
use crate::worker::lastwords::LastWords;
use crate::worker::leaks::{self, Leak, Use};
use crate::worker::supervisor::{Action, Death, Ending, Happening, Life, Supervisor};
use crate::worker::wire::{Assembler, Frame, HEAD, Head, Said};
use crate::worker::zygote::{Report, Request};

pub(super) const ZYGOTE: u64 = u64::MAX;
pub(super) const BELL: u64 = u64::MAX - 1;
const CHUNK: usize = 64 << 10;
/// EAGAIN, ENOMEM, ENFILE, EMFILE: what a refusal that passes looks like.
const PASSING: [i32; 4] = [11, 12, 23, 24];
/// EBADF: somebody else has closed a descriptor.
const CLOSED: i32 = 9;
/// How often it is looked whether all workers together use too much memory.
const WEIGH_EVERY: Duration = Duration::from_millis(250);
/// How long a renewal to save memory is given to help before the next.
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// How long the workers of a zygote that is gone may take to end.
const WORKERS_END: Duration = Duration::from_secs(2);

pub(super) struct Engine {
    pub(super) supervisor: Supervisor,
    options: Options,
    boxes: Boxes,
    boxes_file: Descriptor,
    inbox: Option<Arc<Inbox>>,
    pub(super) zygote: Option<ZygoteProcess>,
    /// How the zygote stood at the last look.
    zygote_posture: Option<Posture>,
    pub(super) running: HashMap<Life, Running>,
    /// Bodies of tasks that have no result yet: a task may have to be sent again.
    pub(super) parcels: HashMap<u64, Parcel>,
    pub(super) out: VecDeque<Outcome>,
    words: Option<Words>,
    os_error: Option<i32>,
    evidence: Evidence,
    /// When all workers were weighed last, and when one was renewed to save memory.
    weighed: Duration,
    renewed: Option<Duration>,
    /// When the watching thread comes by itself.
    pub(super) watched_until: Option<Duration>,
}

/// A task as it was handed in.
pub(super) struct Parcel {
    pub(super) said: Said,
    pub(super) body: Vec<u8>,
    pub(super) freight: Option<Arc<Freight>>,
    /// Who had it last.
    pub(super) post: u32,
}

pub(super) struct Running {
    pub(super) pid: Option<u32>,
    pub(super) is_ready: bool,
    socket: Socket,
    incoming: Assembler,
    outgoing: VecDeque<u8>,
    /// There was no room for the rest of `outgoing`: both polls watch for some.
    is_blocked: bool,
    arena: Arc<Shared>,
    account: Arc<Account>,
    last_words: LastWords,
    /// How it stood at the last look, and the processor time it had used.
    posture: Option<Posture>,
    ticks: Option<u64>,
    /// Since that look it was asked for its stack.
    is_dumped: bool,
    /// How long its last words were when it was asked for its stack.
    words_before: Option<usize>,
    used: Use,
    /// The first and the last task it answered.
    tasks: Option<(u64, u64)>,
    leak: Option<Leak>,
    peak_bytes: u64,
    /// When that was asked for.
    forked: Duration,
}

fn name(life: Life) -> u64 {
    u64::from(life.post) << 32 | u64::from(life.generation)
}

fn life(name: u64) -> Life {
    Life { post: (name >> 32) as u32, generation: name as u32 }
}

fn owner(life: Life) -> Owner {
    Owner { post: life.post, generation: life.generation }
}

impl Engine {
    pub(super) fn new(options: Options, inbox: Option<Arc<Inbox>>) -> io::Result<Engine> {
        let (boxes_file, boxes) = Boxes::create(options.settings.posts)?;
        for post in 0..options.settings.posts {
            boxes.set_for_post(post, Word::ArenaLimit, options.arena_bytes);
        }
        Ok(Engine {
            supervisor: Supervisor::new(options.settings.clone()),
            options,
            boxes,
            boxes_file,
            inbox,
            zygote: None,
            zygote_posture: None,
            running: HashMap::new(),
            parcels: HashMap::new(),
            out: VecDeque::new(),
            words: None,
            os_error: None,
            evidence: Evidence::new(),
            weighed: Duration::ZERO,
            renewed: None,
            watched_until: None,
        })
    }

    /// What a worker is at.
    pub(super) fn snapshot(&self, life: Life) -> Option<Snapshot> {
        self.boxes.snapshot(owner(life))
    }

    pub(super) fn deadline(&self, inner: &Inner) -> Option<Instant> {
        self.supervisor.next_deadline().map(|then| inner.started + then)
    }

    pub(super) fn set_oldest(&self, oldest: u64) {
        for post in 0..self.options.settings.posts {
            self.boxes.set_for_post(post, Word::Oldest, oldest);
        }
    }

    /// Handles what is there to be handled, without waiting.
    pub(super) fn pump(&mut self, inner: &Inner, names: &[u64]) {
        for name in names {
            match *name {
                BELL => inner.bell.hush(),
                ZYGOTE => self.hear_zygote(inner),
                name => self.hear_worker(inner, life(name)),
            }
        }
        if self.deadline(inner).is_some_and(|then| then <= clock::now()) {
            self.look(inner);
            self.happen(inner, Happening::TimePassed);
        }
        self.wake_watcher(inner);
    }

    /// Has the watching thread come earlier, if there is something to be done before it would. Deadlines
    /// move with each batch, mostly to later: that is no reason to wake anybody.
    fn wake_watcher(&mut self, inner: &Inner) {
        if let Some(deadline) = self.supervisor.next_deadline()
            && self.watched_until.is_none_or(|until| deadline < until)
        {
            self.watched_until = Some(deadline);
            inner.watch_bell.ring();
        }
    }

    /// Tells the supervisor how the workers stand that may be late.
    fn look(&mut self, inner: &Inner) {
        if self.supervisor.must_look_at_zygote(inner.now())
            && let Some(zygote) = &mut self.zygote
        {
            let (posture, ran) = zygote.look();
            self.zygote_posture = posture;
            self.happen(inner, Happening::ZygoteSeen { ran });
        }
        for life in self.supervisor.to_look_at(inner.now()) {
            let snapshot = self.snapshot(life);
            let mut posture = None;
            if let Some(running) = self.running.get_mut(&life)
                && let Some(pid) = running.pid
            {
                // It is dead, and only the zygote has not said so yet: its sample is not to blame.
                let Some(stance) = process::stance(pid).filter(|stance| stance.letter != 'Z')
                else {
                    continue;
                };
                posture = Some(evidence::posture(stance, running.ticks));
                running.ticks = Some(stance.ticks);
                // Writing its stack, as it was asked to, is no progress.
                if !std::mem::take(&mut running.is_dumped) {
                    running.posture = posture;
                }
            }
            let running = self.running.get(&life);
            let forked = running.map_or(Duration::ZERO, |running| running.forked);
            let is_dumping = running.is_some_and(|running| {
                running.words_before.is_some_and(|before| running.last_words.text().len() == before)
            });
            let started = inner.started_nanoseconds;
            let seen = evidence::seen(snapshot, posture, started, forked, is_dumping);
            self.happen(inner, Happening::Seen { life, seen });
        }
    }

    pub(super) fn happen(&mut self, inner: &Inner, happening: Happening) {
        let actions = self.supervisor.handle(happening, inner.now());
        self.apply(inner, actions);
        self.wake_watcher(inner);
    }

    fn hear_zygote(&mut self, inner: &Inner) {
        let mut packet = vec![0; CHUNK];
        loop {
            let Some(zygote) = &self.zygote else { return };
            match zygote.socket.try_receive(&mut packet) {
                Moved::Bytes(bytes) => self.zygote_said(inner, &packet[..bytes]),
                Moved::WouldWait => return,
                Moved::Ended => return self.zygote_ended(inner),
                Moved::Closed => return self.descriptors_closed(inner),
            }
        }
    }

    fn zygote_said(&mut self, inner: &Inner, packet: &[u8]) {
        let report = Report::from_bytes(packet);
        let ping = match report {
            Some(Report::Alive { number }) => Some(number),
            Some(_) | None => None,
        };
        match report {
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
            Some(Report::Ended { post, generation, status, peak_bytes }) => {
                let life = Life { post, generation };
                // What it said before it died still counts.
                self.hear_worker(inner, life);
                if let Some(running) = self.running.get_mut(&life) {
                    running.peak_bytes = peak_bytes;
                }
                let ending =
                    if status < 0 { Ending::Killed(-status) } else { Ending::Exited(status) };
                let happening = Happening::Ended { life, ending, at: self.at(life) };
                let actions = self.supervisor.handle(happening, inner.now());
                self.apply(inner, actions);
                self.leave(inner, life);
            }
            Some(Report::Failed(text)) => self.words = Some(Words::Zygote(text)),
            Some(Report::Alive { .. }) => {}
            None => return self.zygote_ended(inner),
        }
        self.happen(inner, Happening::ZygoteAnswered { ping });
    }

    /// The position of the sample that a worker was at when it died.
    fn at(&self, life: Life) -> Option<u64> {
        let last = self.snapshot(life)?;
        match last.doing {
            Doing::Fetching | Doing::Pausing => last.position,
            Doing::Starting
            | Doing::Waiting
            | Doing::Collating
            | Doing::Answering
            | Doing::OutOfArena
            | Doing::Sending => None,
        }
    }

    fn zygote_ended(&mut self, inner: &Inner) {
        if let Some(zygote) = self.zygote.take() {
            inner.poll.forget(&zygote.socket);
            inner.watch.forget(&zygote.socket);
        }
        // The kernel closes the files of a process before it kills its children: these may still be at work. What
        // they answer until they are dead counts, and what they write down must not be newer than that.
        let until = clock::now() + WORKERS_END;
        for pid in self.running.values().filter_map(|running| running.pid) {
            process::wait_for_end(pid, until.saturating_duration_since(clock::now()));
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
            if let Some(inbox) = &self.inbox {
                inbox.reclaim(inbox::holder(life.post, life.generation));
            }
        }
    }

    fn hear_worker(&mut self, inner: &Inner, life: Life) {
        let mut chunk = [0; CHUNK];
        let mut frames = Vec::new();
        let mut has_hung_up = false;
        loop {
            let Some(running) = self.running.get_mut(&life) else { return };
            let moved = running.socket.try_receive(&mut chunk);
            let bytes = match moved {
                Moved::Bytes(bytes) => bytes,
                Moved::WouldWait => break,
                Moved::Ended => {
                    // The end of the stream says nothing about how it ended: the zygote will.
                    inner.poll.forget(&running.socket);
                    inner.watch.forget(&running.socket);
                    has_hung_up = true;
                    break;
                }
                Moved::Closed => return self.descriptors_closed(inner),
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
        if has_hung_up {
            self.happen(inner, Happening::HungUp { life });
        }
        self.flush(inner, life);
    }

    /// Other code of this process has closed descriptors of ours: nobody can be heard any more.
    pub(super) fn descriptors_closed(&mut self, inner: &Inner) {
        self.happen(inner, Happening::DescriptorsClosed);
    }

    /// Gives up what cannot be heard of any more, so that closing ends.
    pub(super) fn abandon(&mut self, inner: &Inner) {
        if let Some(zygote) = &self.zygote {
            zygote.kill();
        }
        self.zygote_ended(inner);
    }

    fn worker_said(&mut self, inner: &Inner, life: Life, frame: Frame) {
        let Some(running) = self.running.get_mut(&life) else { return };
        match frame.said {
            Said::Ready => {
                running.is_ready = true;
                let owner = owner(life);
                running.used.resident_at_first = self.boxes.get(owner, Word::Resident);
                running.used.descriptors_at_first = self.boxes.get(owner, Word::Descriptors);
                inner.watch.forget(&running.socket);
                self.happen(inner, Happening::Ready { life });
            }
            Said::Survived => self.happen(inner, Happening::Survived { life, task: frame.task }),
            Said::Note => self.out.push_back(Outcome::Note { post: life.post, text: frame.body }),
            Said::StartFailed => {
                let limit = self.options.arena_bytes / 2;
                let answer = Answer::new(frame, life.post, &running.arena, &running.account, limit);
                self.words = answer.map(Words::Worker);
                self.happen(inner, Happening::StartFailed { life });
            }
            Said::Result | Said::Faulty | Said::Raised | Said::Exhausted => {
                let (task, samples) = (frame.task, frame.tally.samples);
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
                self.weigh(inner, life, task, samples);
            }
            Said::Task | Said::Resume | Said::Stop | Said::Trial => {}
        }
    }

    /// Looks, after an answer, whether a worker leaks, or all of them together use too much.
    fn weigh(&mut self, inner: &Inner, life: Life, task: u64, samples: u32) {
        let (resident, descriptors) = (
            self.boxes.get(owner(life), Word::Resident),
            self.boxes.get(owner(life), Word::Descriptors),
        );
        let Some(running) = self.running.get_mut(&life) else { return };
        running.used.resident = resident;
        running.used.descriptors = descriptors;
        running.used.samples += u64::from(samples);
        running.tasks = Some((running.tasks.map_or(task, |(first, _)| first), task));
        if let Some(leak) = leaks::of_worker(running.used, self.options.bounds) {
            return self.renew(inner, life, leak);
        }
        let now = inner.now();
        if now.saturating_sub(self.weighed) < WEIGH_EVERY {
            return;
        }
        self.weighed = now;
        if self.renewed.is_some_and(|then| now.saturating_sub(then) < RENEW_EVERY) {
            return;
        }
        let all = limits::memory_of_group()
            .map(|(limit, _)| limit)
            .into_iter()
            .chain(limits::machine_memory())
            .min()
            .unwrap_or(u64::MAX);
        let workers: Vec<_> =
            self.running.iter().map(|(life, running)| (*life, running.used)).collect();
        if let Some((life, leak)) = leaks::fattest(&workers, limits::available_memory(), all) {
            self.renewed = Some(now);
            self.renew(inner, life, leak);
        }
    }

    fn renew(&mut self, inner: &Inner, life: Life, leak: Leak) {
        if let Some(running) = self.running.get_mut(&life) {
            running.leak.get_or_insert(leak);
        }
        self.happen(inner, Happening::Renew { life });
    }

    pub(super) fn apply(&mut self, inner: &Inner, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::BearZygote { fresh } => self.out.push_back(Outcome::BearZygote { fresh }),
                Action::EndZygote => self.abandon(inner),
                Action::PingZygote { number } => {
                    if let Some(zygote) = &mut self.zygote {
                        zygote.note_ticks();
                    }
                    self.send_to_zygote(Request::Ping { number });
                }
                Action::ZygoteSlow => self.tell_of_zygote(false),
                Action::ZygoteHung => self.tell_of_zygote(true),
                Action::Fork { life } => self.fork(inner, life),
                Action::Send { life, task, trial } => self.send(inner, life, task, trial),
                Action::Stop { life } => {
                    let head = Head::new(Said::Stop, 0, 0);
                    self.dispatch(inner, life, &head.to_bytes(), &[]);
                }
                Action::Dump { life } => {
                    let Life { post, generation } = life;
                    if let Some(running) = self.running.get_mut(&life) {
                        running.is_dumped = true;
                        running.words_before = Some(running.last_words.text().len());
                    }
                    self.send_to_zygote(Request::Dump { post, generation });
                }
                Action::Kill { life: Life { post, generation } } => {
                    self.send_to_zygote(Request::Kill { post, generation });
                }
                // Accepted where it came in; what is discarded is dropped there.
                Action::Accept { .. } | Action::Discard { .. } => {}
                Action::GiveUp { task, at, why } => {
                    let parcel = self.parcels.remove(&task);
                    let journal =
                        parcel.and_then(|parcel| self.boxes.read_journal(parcel.post, task));
                    self.out.push_back(Outcome::GaveUp(GivenUp { task, at, why, journal }));
                }
                Action::Died(death) => {
                    let obituary = self.obituary(death);
                    self.out.push_back(Outcome::Died(obituary));
                }
                Action::Stalled { life, .. } => {
                    let standstill = self.standstill(life);
                    self.out.push_back(Outcome::Stalled(standstill));
                }
                Action::Reborn { life, .. } => {
                    let standstill = self.standstill(life);
                    self.out.push_back(Outcome::Reborn(standstill));
                }
                Action::Retired { life } => {
                    let running = self.running.get(&life);
                    self.out.push_back(Outcome::Retired(Retired {
                        life,
                        pid: running.and_then(|running| running.pid),
                        leak: running.and_then(|running| running.leak.clone()),
                        tasks: running.and_then(|running| running.tasks),
                    }));
                }
                Action::Fail(failure) => {
                    let (words, os_error) = (self.words.take(), self.os_error);
                    self.out.push_back(Outcome::Failed(Broken { failure, words, os_error }));
                }
                Action::Closed => {}
            }
        }
    }

    fn tell_of_zygote(&mut self, is_killed: bool) {
        self.out.push_back(Outcome::ZygoteLate(ZygoteLate {
            pid: self.zygote.as_ref().map(|zygote| zygote.pid),
            posture: self.zygote_posture,
            is_killed,
        }));
    }

    fn obituary(&mut self, death: Death) -> Obituary {
        let life = death.life;
        let last = self.snapshot(life);
        let running = self.running.get(&life);
        let pid = running.and_then(|running| running.pid);
        let peak_bytes = running.map_or(0, |running| running.peak_bytes);
        let posture = running.and_then(|running| running.posture);
        let words = running.map(|running| &running.last_words);
        let certificate = self.evidence.certify(
            &death,
            peak_bytes,
            posture,
            words,
            last.is_some_and(|last| last.is_cut_off),
            &self.options,
        );
        Obituary { death, pid, last, certificate, peak_bytes }
    }

    fn standstill(&self, life: Life) -> Standstill {
        let running = self.running.get(&life);
        let text = running.map(|running| running.last_words.text()).unwrap_or_default();
        Standstill {
            life,
            pid: running.and_then(|running| running.pid),
            last: self.snapshot(life),
            posture: running.and_then(|running| running.posture),
            stack: certificate::frames(&text, &self.options.folders),
        }
    }

    fn fork(&mut self, inner: &Inner, life: Life) {
        if let Err(error) = self.try_fork(inner, life) {
            self.leave(inner, life);
            if error.raw_os_error() == Some(CLOSED) {
                return self.descriptors_closed(inner);
            }
            self.os_error = error.raw_os_error();
            let passing = error.raw_os_error().is_some_and(|code| PASSING.contains(&code));
            self.happen(inner, Happening::Refused { life, passing });
        }
    }

    fn try_fork(&mut self, inner: &Inner, life: Life) -> io::Result<()> {
        let Some(zygote) = &self.zygote else { return Ok(()) };
        let inbox_file = self.inbox.as_ref().map(|inbox| inbox.file());
        // What is behind these numbers now would be mapped by the worker.
        if !iter::once(&self.boxes_file).chain(inbox_file).all(Descriptor::is_intact) {
            return Err(io::Error::from_raw_os_error(CLOSED));
        }
        let (ours, theirs) = Socket::pair()?;
        // Address space only: four times what it may use, so that one huge batch finds room too.
        let reserve = self.options.arena_bytes.saturating_mul(4).max(4 << 30);
        let (arena_file, arena) = arena::create(reserve)?;
        let (words_file, last_words) = LastWords::create()?;
        inner.poll.watch(&ours, name(life))?;
        inner.watch.watch(&ours, name(life))?;
        let Life { post, generation } = life;
        let request = Request::Fork { post, generation }.to_bytes();
        let mut descriptors =
            vec![theirs.as_fd(), arena_file.as_fd(), self.boxes_file.as_fd(), words_file.as_fd()];
        descriptors.extend(inbox_file.map(AsFd::as_fd));
        zygote.socket.try_send_with(&request, &descriptors)?;
        let running = Running {
            pid: None,
            is_ready: false,
            socket: ours,
            incoming: Assembler::default(),
            outgoing: VecDeque::new(),
            is_blocked: false,
            arena,
            account: Arc::new(Account::default()),
            last_words,
            posture: None,
            ticks: None,
            is_dumped: false,
            words_before: None,
            used: Use::default(),
            tasks: None,
            leak: None,
            peak_bytes: 0,
            forked: inner.now(),
        };
        self.running.insert(life, running);
        Ok(())
    }

    fn send_to_zygote(&mut self, request: Request) {
        if let Some(zygote) = &self.zygote {
            // A zygote that takes no message is dead or dying, and its workers with it.
            let _ = zygote.socket.try_send_with(&request.to_bytes(), &[]);
        }
    }

    fn send(&mut self, inner: &Inner, life: Life, task: u64, trial: Option<u64>) {
        let Some(parcel) = self.parcels.get_mut(&task) else { return };
        parcel.post = life.post;
        let freight = parcel.freight.as_deref();
        let body = match &self.inbox {
            Some(inbox) => {
                inbox.consign(&parcel.body, freight, inbox::holder(life.post, life.generation))
            }
            None => inbox::body(&parcel.body, freight),
        };
        let (said, body) = match trial {
            Some(position) => (Said::Trial, [position.to_le_bytes().as_slice(), &body].concat()),
            None => (parcel.said, body),
        };
        let head = Head::new(said, task, body.len() as u64).to_bytes();
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
                Moved::Closed => {
                    running.outgoing.clear();
                    return self.descriptors_closed(inner);
                }
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
