//! This process and others: their identity, state, resources and end. Threads do not survive a
//! fork, so objects that own threads must detect one.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::clock;
use super::descriptor::Descriptor;

/// The process that created an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerProcess(u32);

impl OwnerProcess {
    /// This process.
    pub fn here() -> OwnerProcess {
        OwnerProcess(std::process::id())
    }

    /// Whether this process was forked from the creator after the object was created. Locks may
    /// then be held by threads that do not exist here, so the object must not be used.
    pub fn is_forked(self) -> bool {
        std::process::id() != self.0
    }

    /// The id of the process that created the object.
    pub fn pid(self) -> u32 {
        self.0
    }
}

/// A value of which each process has its own, made when it is first used. A forked child makes a new one: the locks of
/// its parent's may be held by threads that do not exist in the child.
pub struct PerProcess<T: 'static> {
    current: AtomicPtr<(OwnerProcess, T)>,
    make: fn() -> T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// A value that `make` makes.
    pub const fn new(make: fn() -> T) -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(std::ptr::null_mut()), make }
    }

    /// The value of this process.
    pub fn get(&self) -> &'static T {
        let found = self.current.load(Ordering::Acquire);
        // SAFETY: a pointer that is stored here is never freed.
        if let Some((home, value)) = unsafe { found.as_ref() }
            && !home.is_forked()
        {
            return value;
        }
        // Never freed: it lasts as long as the process, and what a parent made stays with the parent.
        let made = Box::into_raw(Box::new((OwnerProcess::here(), (self.make)())));
        let swapped =
            self.current.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire);
        match swapped {
            // SAFETY: as above.
            Ok(_) => unsafe { &(*made).1 },
            Err(other) => {
                // SAFETY: it was not stored, so nobody else has this pointer.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: as above; another thread of this process has stored it.
                unsafe { &(*other).1 }
            }
        }
    }
}

/// The resident memory of this process in bytes, including pages it shares with the process it was
/// forked from; zero if the system does not report it.
pub fn resident_bytes() -> u64 {
    let text = super::file::read_text(std::path::Path::new("/proc/self/statm")).unwrap_or_default();
    let pages: u64 =
        text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
    pages * rustix::param::page_size() as u64
}

/// The number of threads of this process.
pub(crate) fn thread_count() -> u64 {
    let text =
        super::file::read_text(std::path::Path::new("/proc/self/status")).unwrap_or_default();
    super::limits::named_number(&text, "Threads:").unwrap_or(1)
}

/// Makes the kernel kill this process when its parent ends. Returns whether the parent is still
/// `parent`: it may have ended before.
pub fn die_with_parent(parent: u32) -> bool {
    let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let present = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    set.is_ok() && u32::try_from(present) == Ok(parent)
}

/// The state of another process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcStat {
    /// The state letter of /proc: R runs, S sleeps, D waits for a device, T is stopped.
    pub letter: char,
    /// The processor time it has used, in clock ticks.
    pub ticks: u64,
    /// Whether it waits for a lock; false if the system does not report it.
    pub waits_for_lock: bool,
}

impl ProcStat {
    pub(crate) fn processor_time(self) -> Duration {
        ticks(self.ticks)
    }
}

/// The time of this many clock ticks.
pub(crate) fn ticks(count: u64) -> Duration {
    Duration::from_secs(count) / clock_ticks_per_second()
}

/// The number of clock ticks in a second; the kernel's interfaces have used 100 for decades.
fn clock_ticks_per_second() -> u32 {
    u32::try_from(rustix::param::clock_ticks_per_second()).ok().filter(|&it| it > 0).unwrap_or(100)
}

/// Reads the state of another process; returns `None` if it is gone.
pub(crate) fn proc_stat(pid: u32) -> Option<ProcStat> {
    let (letter, ticks) = letter_and_ticks(&read_proc(pid, "stat")?)?;
    let call = read_proc(pid, "syscall").unwrap_or_default();
    let waits_for_lock = call.split_whitespace().next() == Some(FUTEX);
    Some(ProcStat { letter, ticks, waits_for_lock })
}

/// A process and all processes below it, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessTree {
    /// The processor time that they have used, and that of processes below them that have ended.
    pub processor_time: Duration,
    /// Whether a thread of theirs runs, or waits for a processor or a device.
    pub waits: bool,
    /// Whether a debugger has stopped one of them.
    pub is_traced: bool,
}

/// The number of processes below a worker that are looked at: more are not the cause of a hang.
const MAX_PROCESSES: usize = 512;

/// Reads the state of a process and of all processes below it; returns `None` if it is gone.
pub(crate) fn process_tree(pid: u32) -> Option<ProcessTree> {
    let (mut tree, mut ticks) = (ProcessTree::default(), 0);
    let mut pids = vec![pid];
    let mut next = 0;
    while let Some(&pid) = pids.get(next) {
        next += 1;
        let Some(text) = read_proc(pid, "stat") else {
            // The process may have ended since its parent was read.
            if next == 1 {
                return None;
            }
            continue;
        };
        ticks += ticks_with_children(&text).unwrap_or(0);
        let folder = format!("/proc/{pid}/task");
        for thread in super::file::names(std::path::Path::new(&folder)).unwrap_or_default() {
            let text = read_proc(pid, &format!("task/{thread}/stat")).unwrap_or_default();
            let letter = letter_and_ticks(&text).map(|(letter, _)| letter);
            tree.waits |= matches!(letter, Some('R' | 'D'));
            tree.is_traced |= letter == Some('t');
            let children = read_proc(pid, &format!("task/{thread}/children")).unwrap_or_default();
            pids.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
        if next == 1 && read_proc(pid, &format!("task/{pid}/children")).is_none() {
            // A kernel without these lists: the whole table of processes is read.
            pids.extend(super::inspect::descendants(pid));
        }
        pids.truncate(MAX_PROCESSES);
    }
    tree.processor_time = self::ticks(ticks);
    Some(tree)
}

fn read_proc(pid: u32, name: &str) -> Option<String> {
    super::file::read_text(std::path::Path::new(&format!("/proc/{pid}/{name}"))).ok()
}

/// Waits until another process has ended, for at most that long. Returns at once if the system
/// cannot wait for processes that are not children.
pub(crate) fn wait_for_end(pid: u32, timeout: Duration) {
    let until = clock::now() + timeout;
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(Ok(process)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return };
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(clock::now())).ok();
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// A process that can be killed without the risk of killing another one with a reused id.
pub struct PidFd(Descriptor);

impl PidFd {
    /// Returns `None` if there is no such process, or the kernel does not support pidfds.
    pub fn open(pid: u32) -> Option<PidFd> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let opened = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Descriptor::new(opened).ok().map(PidFd)
    }

    /// Sends SIGKILL, if the process still exists.
    pub fn kill(&self) {
        if self.0.is_intact() {
            let _ = pidfd_send_signal(&self.0, Signal::KILL);
        }
    }
}

/// The number of the futex system call, as /proc shows it.
#[cfg(target_arch = "x86_64")]
const FUTEX: &str = "202";
#[cfg(not(target_arch = "x86_64"))]
const FUTEX: &str = "98";

/// Parses /proc/PID/stat. The process name in it may contain anything, including parentheses.
fn letter_and_ticks(text: &str) -> Option<(char, u64)> {
    let (_, rest) = text.rsplit_once(')')?;
    let words: Vec<_> = rest.split_whitespace().collect();
    let ticks = |at: usize| words.get(at)?.parse::<u64>().ok();
    Some((words.first()?.chars().next()?, ticks(11)? + ticks(12)?))
}

/// The processor time of a process and of its children that have ended, from /proc/PID/stat.
fn ticks_with_children(text: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(')')?;
    let words = rest.split_whitespace().skip(11).take(4);
    words.map(|word| word.parse::<u64>().ok()).sum()
}

/// Makes this process the first choice of the OOM killer.
pub fn go_first() {
    // If the system forbids it, the process keeps its usual score.
    let _ = super::file::write(std::path::Path::new("/proc/self/oom_score_adj"), b"1000");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_value_of_its_own() {
        static NUMBERS: PerProcess<Box<u32>> = PerProcess::new(|| Box::new(7));
        let addresses: Vec<usize> = std::thread::scope(|scope| {
            let address = || std::ptr::from_ref(NUMBERS.get()) as usize;
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(address)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(addresses.iter().all(|address| *address == addresses[0]));
        // As it is in a fork: it was made by another process.
        let elsewhere = (OwnerProcess(std::process::id() + 1), Box::new(8));
        NUMBERS.current.store(Box::into_raw(Box::new(elsewhere)), Ordering::Release);
        assert_eq!(**NUMBERS.get(), 7);
    }

    #[test]
    fn waiting_for_the_end_of_a_process_has_a_timeout() {
        wait_for_end(std::process::id(), Duration::from_millis(1));
        // No process has this id.
        wait_for_end(u32::MAX, Duration::from_secs(1000));
        wait_for_end(i32::MAX as u32, Duration::from_secs(1000));
    }

    #[test]
    fn the_state_of_a_process_is_parsed_whatever_its_name() {
        let text = "7 (a) b)) S 1 7 7 0 -1 4194560 1 2 3 4 20 5 6 7 20 0 1 0 9";
        assert_eq!(letter_and_ticks(text), Some(('S', 25)));
        assert_eq!(ticks_with_children(text), Some(38));
        assert_eq!(ticks_with_children("invalid"), None);
        assert_eq!(letter_and_ticks("invalid"), None);
        assert!(proc_stat(std::process::id()).is_some());
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "a child that computes is what this test looks at"
    )]
    fn the_tree_of_a_process_has_the_processor_time_of_its_children() {
        let child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        let mut child = child.expect("there is a shell");
        let before = process_tree(std::process::id()).expect("it runs").processor_time;
        let until = clock::now() + Duration::from_secs(60);
        let has_grown = || {
            let used = process_tree(std::process::id()).expect("it runs").processor_time;
            used.saturating_sub(before) >= Duration::from_millis(100)
        };
        while !has_grown() && clock::now() < until {
            wait_for_end(child.id(), Duration::from_millis(10));
        }
        let alone = process_tree(child.id()).expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it is a child");
        assert!(alone.waits && alone.processor_time >= Duration::from_millis(50), "{alone:?}");
        assert!(has_grown());
        assert_eq!(process_tree(u32::MAX), None);
    }
}
