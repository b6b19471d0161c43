//! Determines why a worker died, from facts alone. A likely cause is called likely, and a hint says
//! what to try. It must never inspect the machine itself.

use std::time::Duration;

use super::supervisor::{ExitKind, Shortage};
use crate::sample::in_bytes;

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGILL: i32 = 4;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGFPE: i32 = 8;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
const SIGTERM: i32 = 15;
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;
const SIGSYS: i32 = 31;
/// Shared memory with less free space than this counts as full.
const FULL_BELOW: u64 = 1 << 20;
/// The number of stack frames shown.
const FRAMES: usize = 12;

/// Why a worker was killed that took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Its sample took longer than this deadline.
    Deadline(Duration),
    /// It neither answered nor used the processor for a learned time.
    Hang,
}

/// The facts about a death.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DeathFacts {
    /// How it ended; `None` if it ended with its zygote.
    pub exit: Option<ExitKind>,
    /// Why we killed it, if we did.
    pub overdue: Option<Overdue>,
    /// The state of the process just before the kill.
    pub process_state: Option<ProcessState>,
    /// Whether it found that code in it had closed its connection to the trainer.
    pub is_disconnected: bool,
    /// The most memory it ever used, in bytes.
    pub peak_bytes: u64,
    /// Kills by the OOM killer in our memory cgroup since the last check; `None` if they are not
    /// counted.
    pub group_kills: Option<u64>,
    /// Kills by the OOM killer on the whole machine since the last check.
    pub machine_kills: Option<u64>,
    /// The limit of the memory cgroup, in bytes.
    pub memory_limit: Option<u64>,
    /// The bytes that all processes of the memory cgroup used at the last look.
    pub memory_used: Option<u64>,
    /// Seconds of processor time that a process may use.
    pub processor_limit: Option<u64>,
    /// Bytes of address space that a process may use.
    pub address_limit: Option<u64>,
    /// Bytes free in /dev/shm.
    pub shared_free: Option<u64>,
    /// What its signal handler wrote.
    pub crash_log: String,
    /// The user's name for the number of workers, and that number.
    pub workers: (&'static str, u32),
    /// The folders of code that is not the user's.
    pub folders: CodeFolders,
}

/// The folders of code that is not the user's, as absolute paths. Only the folder decides, not what
/// a path looks like: a user's program may be below a folder called `feedline` or `lib`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeFolders {
    /// Feedline's own package.
    pub package: String,
    /// Python's standard library and installed packages.
    pub libraries: Vec<String>,
}

impl CodeFolders {
    /// Whether a frame is in the Feedline code that calls the user's code.
    fn has_caller(&self, frame: &str) -> bool {
        ["_torch", "_workers"]
            .iter()
            .any(|part| is_below(frame, &format!("{}/{part}", self.package)))
    }

    /// Whether a frame is in Feedline, in Python, or in an installed package.
    fn has(&self, frame: &str) -> bool {
        file_of(frame).starts_with("<frozen")
            || is_below(frame, &self.package)
            || self.libraries.iter().any(|folder| is_below(frame, folder))
    }
}

/// The file of `function() at file:line`.
fn file_of(frame: &str) -> &str {
    frame.split_once("() at ").map_or("", |(_, place)| place)
}

fn is_below(frame: &str, folder: &str) -> bool {
    let rest = file_of(frame).strip_prefix(folder.trim_end_matches('/'));
    !folder.is_empty() && rest.is_some_and(|rest| rest.starts_with('/'))
}

/// What a process without progress is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It computes.
    Runs,
    /// It sleeps, waiting for a lock, and uses no processor.
    WaitsForLock,
    /// It sleeps, waiting for something else.
    Sleeps,
    /// A signal such as that of Ctrl-Z has stopped it.
    IsStopped,
    /// It waits in the kernel for a device or a network mount, and cannot be killed until that
    /// ends.
    WaitsForDevice,
}

impl ProcessState {
    /// A clause for the log.
    pub fn describe(self) -> &'static str {
        match self {
            ProcessState::Runs => "it was computing",
            ProcessState::WaitsForLock => "it was asleep, waiting for a lock",
            ProcessState::Sleeps => "it was asleep, waiting for something",
            ProcessState::IsStopped => "it was stopped by a signal (SIGSTOP)",
            ProcessState::WaitsForDevice => "it was waiting for a device or a network mount",
        }
    }
}

/// The cause of a worker's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel's OOM killer killed it.
    OutOfMemory,
    /// The memory behind a mapping could not be read.
    BusError,
    /// A bug in native code.
    Crash,
    /// It exceeded a process limit of the system.
    Limit,
    /// It exceeded its deadline.
    Deadline,
    /// Code in it closed its descriptors.
    Disconnected,
    /// It exited by itself.
    Exit,
    /// A signal from outside killed it.
    Killed,
    /// It ended with its zygote.
    Lost,
}

impl Cause {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Cause::OutOfMemory => "out of memory",
            Cause::BusError => "bus error",
            Cause::Crash => "crash in native code",
            Cause::Limit => "limit of the system",
            Cause::Deadline => "deadline passed",
            Cause::Disconnected => "descriptors closed",
            Cause::Exit => "exited",
            Cause::Killed => "killed from outside",
            Cause::Lost => "lost with its zygote",
        }
    }
}

/// Why a worker died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The cause.
    pub cause: Cause,
    /// Whether the cause is certain, not only likely.
    pub is_certain: bool,
    /// The evidence.
    pub why: Vec<String>,
    /// The line of code it was running.
    pub code: Option<String>,
    /// Its stack, innermost frame first.
    pub stack: Vec<String>,
    /// What to do about it.
    pub hint: String,
}

/// Determines why a worker died.
pub(crate) fn certify(facts: &DeathFacts) -> Certificate {
    let stack = frames(&facts.crash_log, &facts.folders);
    let code = stack.iter().find(|frame| !facts.folders.has(frame)).or(stack.first()).cloned();
    let diagnosis = diagnose(facts);
    let hint = diagnosis.hint;
    let stack: Vec<_> = stack.into_iter().take(FRAMES).collect();
    Certificate {
        cause: diagnosis.cause,
        is_certain: diagnosis.is_certain,
        why: diagnosis.why,
        code,
        stack,
        hint,
    }
}

struct Diagnosis {
    cause: Cause,
    is_certain: bool,
    why: Vec<String>,
    hint: String,
}

fn too_late(facts: &DeathFacts, overdue: Overdue) -> Diagnosis {
    let (what, hint) = match overdue {
        Overdue::Deadline(deadline) => (
            format!("one sample took longer than deadline={}", deadline.as_secs_f64()),
            "raise deadline= if the sample is only slow, or skip it with \
             faults=FaultPolicy(action=\"skip\")",
        ),
        Overdue::Hang => (
            "it neither answered nor used the processor for much longer than the slowest sample so far \
             (deadline=\"auto\")"
                .to_owned(),
            "give deadline= seconds if the sample may wait that long, or None; or skip it with \
             faults=FaultPolicy(action=\"skip\")",
        ),
    };
    let mut why = vec![what];
    why.extend(facts.process_state.map(|process_state| process_state.describe().to_owned()));
    let hint = match facts.process_state {
        Some(ProcessState::WaitsForLock) => {
            "start workers from a fresh interpreter: multiprocessing_context=\"spawn\""
        }
        Some(
            ProcessState::Runs
            | ProcessState::Sleeps
            | ProcessState::IsStopped
            | ProcessState::WaitsForDevice,
        )
        | None => hint,
    };
    Diagnosis { cause: Cause::Deadline, is_certain: true, why, hint: hint.into() }
}

fn diagnose(facts: &DeathFacts) -> Diagnosis {
    if let Some(overdue) = facts.overdue {
        return too_late(facts, overdue);
    }
    match facts.exit {
        None | Some(ExitKind::Lost) => Diagnosis {
            cause: Cause::Lost,
            is_certain: true,
            why: vec!["the process that forks workers ended, and all workers with it".into()],
            hint: "check what killed it: a signal to the whole process group, or the OOM killer"
                .into(),
        },
        Some(ExitKind::Exited(code)) => exited(facts, code),
        Some(ExitKind::Killed(SIGKILL)) => killed(facts),
        Some(ExitKind::Killed(SIGBUS)) => bus_error(facts),
        Some(ExitKind::Killed(SIGXCPU)) => Diagnosis {
            cause: Cause::Limit,
            is_certain: facts.processor_limit.is_some(),
            why: vec![match facts.processor_limit {
                Some(seconds) => {
                    format!("a process may use {seconds} s of processor time here (ulimit -t)")
                }
                None => "this signal comes from a limit of processor time".into(),
            }],
            hint: "raise the limit with ulimit -t unlimited, or renew workers in time with \
                   max_samples_per_worker="
                .into(),
        },
        Some(ExitKind::Killed(SIGXFSZ)) => Diagnosis {
            cause: Cause::Limit,
            is_certain: true,
            why: vec!["it wrote a file that is larger than the limit (ulimit -f)".into()],
            hint: "raise the limit with ulimit -f unlimited".into(),
        },
        Some(ExitKind::Killed(SIGSEGV | SIGILL | SIGFPE | SIGABRT | SIGSYS)) => crashed(facts),
        Some(ExitKind::Killed(SIGTERM | SIGINT | SIGHUP)) => Diagnosis {
            cause: Cause::Killed,
            is_certain: false,
            why: vec!["this signal asks a process to end, and Feedline does not send it".into()],
            hint: "look for a job scheduler, a watchdog or a person that sends it".into(),
        },
        Some(ExitKind::Killed(_)) => Diagnosis {
            cause: Cause::Killed,
            is_certain: false,
            why: vec!["Feedline does not send this signal".into()],
            hint: "look for the process or person that sends it".into(),
        },
    }
}

/// The resource that a worker was short of when it ended by itself, from its crash log.
pub(crate) fn shortage_of(crash_log: &str) -> Option<Shortage> {
    match crash_log.lines().find_map(|line| line.strip_prefix("feedline: short of "))? {
        "descriptors" => Some(Shortage::Descriptors),
        "memory" => Some(Shortage::Memory),
        "processes" => Some(Shortage::Processes),
        "space" => Some(Shortage::Space),
        _ => None,
    }
}

/// A worker that ended by itself, so that a fresh one can do its task.
fn left(facts: &DeathFacts, shortage: Shortage) -> Diagnosis {
    let lines = facts.crash_log.lines();
    let lines = lines.skip_while(|line| !line.starts_with("feedline: short of ")).skip(1);
    let (name, count) = facts.workers;
    let (cause, hint) = match shortage {
        Shortage::Descriptors => (
            Cause::Limit,
            "close files in what loads the sample, open them with feedline.open_cached(), or raise the limit with \
             ulimit -n"
                .to_owned(),
        ),
        Shortage::Space => (
            Cause::Limit,
            "see df -h and df -i; free space where the code writes, often /tmp or /dev/shm, or set TMPDIR"
                .to_owned(),
        ),
        Shortage::Memory => {
            (Cause::OutOfMemory, format!("lower {name}={count}, or use smaller batches"))
        }
        Shortage::Processes => {
            (Cause::Limit, format!("lower {name}={count}, or raise the limit with ulimit -u"))
        }
    };
    Diagnosis { cause, is_certain: true, why: lines.map(str::to_owned).collect(), hint }
}

fn exited(facts: &DeathFacts, code: i32) -> Diagnosis {
    if let Some(shortage) = shortage_of(&facts.crash_log) {
        return left(facts, shortage);
    }
    if facts.is_disconnected {
        return Diagnosis {
            cause: Cause::Disconnected,
            is_certain: true,
            why: vec![
                "code in the worker closed descriptors that it had not opened, and with them the worker's \
                 connection to the trainer"
                    .into(),
            ],
            hint: "look for os.closerange(), os.close(), or a library that closes a descriptor twice, in \
                   what loads the sample"
                .into(),
        };
    }
    let mut why = vec!["its own code, or a library in it, called exit".to_owned()];
    if let Some(limit) = facts.address_limit {
        let limit = in_bytes(limit);
        why.push(format!(
            "likely after memory was refused: the address space is limited to {limit}"
        ));
    }
    Diagnosis {
        cause: Cause::Exit,
        is_certain: true,
        why,
        hint: format!("look for os._exit({code}) or exit({code}) in what loads the sample"),
    }
}

fn killed(facts: &DeathFacts) -> Diagnosis {
    let (name, count) = facts.workers;
    let memory_used = memory_used(facts);
    let hint = format!("lower {name}={count}, or bound workers with max_worker_memory=");
    let by_kernel = [(facts.group_kills, "memory cgroup"), (facts.machine_kills, "machine")]
        .into_iter()
        .find_map(|(kills, of)| kills.filter(|kills| *kills > 0).map(|kills| (kills, of)));
    if let Some((kills, of)) = by_kernel {
        let plural = if kills == 1 { "process" } else { "processes" };
        let first = format!(
            "the OOM killer of the kernel killed {kills} {plural} of this {of} since the last check"
        );
        return Diagnosis {
            cause: Cause::OutOfMemory,
            is_certain: false,
            why: [Some(first), memory_used].into_iter().flatten().collect(),
            hint,
        };
    }
    let is_counted = facts.group_kills.is_some() || facts.machine_kills.is_some();
    let first = if is_counted {
        "the OOM killer of the kernel has killed no process since the last check, so likely a person, \
         a job scheduler or a watchdog did"
    } else {
        "kills by the OOM killer are not counted here, so the kernel or another process may have done it"
    };
    Diagnosis {
        cause: Cause::Killed,
        is_certain: false,
        why: [Some(first.to_owned()), memory_used].into_iter().flatten().collect(),
        hint:
            "look for the sender of SIGKILL: a job scheduler's memory limit, a watchdog, a person"
                .into(),
    }
}

fn memory_used(facts: &DeathFacts) -> Option<String> {
    // Resident memory includes pages that a worker shares with the trainer it was forked from.
    let peak = (facts.peak_bytes > 0)
        .then(|| format!("{}, shared memory included", in_bytes(facts.peak_bytes)))?;
    Some(match (facts.memory_limit, facts.memory_used) {
        (Some(limit), Some(used)) => format!(
            "the worker used up to {peak}; all processes of its memory cgroup used {} of the {} allowed",
            in_bytes(used),
            in_bytes(limit)
        ),
        (Some(limit), None) => {
            format!("the worker used up to {peak}; its memory cgroup allows {}", in_bytes(limit))
        }
        (None, _) => format!("the worker used up to {peak}"),
    })
}

fn bus_error(facts: &DeathFacts) -> Diagnosis {
    let full = facts.shared_free.filter(|free| *free < FULL_BELOW);
    let (why, hint) = match full {
        Some(free) => (
            format!("likely because /dev/shm is full: it has {} left", in_bytes(free)),
            "make /dev/shm larger: docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm",
        ),
        None => (
            "the memory behind a mapping could not be read: likely a mapped file was truncated while it was \
             read, or a disk or a network mount failed"
                .to_owned(),
            "check that the file of this sample is complete; skip the sample with \
             faults=FaultPolicy(action=\"skip\")",
        ),
    };
    Diagnosis { cause: Cause::BusError, is_certain: true, why: vec![why], hint: hint.into() }
}

fn crashed(facts: &DeathFacts) -> Diagnosis {
    let mut why = Vec::new();
    if let Some(line) =
        facts.crash_log.lines().find_map(|line| line.strip_prefix("Fatal Python error: "))
    {
        why.push(format!("the interpreter said: {line}"));
    }
    if let Some(limit) = facts.address_limit {
        let limit = in_bytes(limit);
        why.push(format!(
            "likely memory was refused: the address space is limited to {limit} (ulimit -v)"
        ));
    }
    Diagnosis {
        cause: Cause::Crash,
        is_certain: true,
        why,
        hint: "report the code named above to its library; skip the sample with \
               faults=FaultPolicy(action=\"skip\")"
            .into(),
    }
}

/// The stack of the thread that faulthandler calls the current one, or else of the first one, as
/// `function() at file:line`, innermost frame first. Of several dumps the last one counts.
pub(crate) fn frames(crash_log: &str, folders: &CodeFolders) -> Vec<String> {
    let blocks: Vec<&str> = crash_log.split("hread 0x").skip(1).collect();
    let is_current = |at: usize| {
        crash_log.split("hread 0x").nth(at).is_some_and(|text| text.ends_with("Current t"))
    };
    let last_current = (0..blocks.len()).rev().find(|at| is_current(*at));
    let Some(block) = blocks.get(last_current.unwrap_or(0)) else { return Vec::new() };
    block
        .lines()
        .skip(1)
        .map_while(|line| line.trim_start().strip_prefix("File \""))
        .filter_map(|line| {
            let (file, rest) = line.split_once("\", line ")?;
            let (number, function) = rest.split_once(" in ")?;
            Some(format!("{function}() at {file}:{number}"))
        })
        .enumerate()
        // Stop where Feedline calls the user's code: these frames are always the same.
        .take_while(|(number, frame)| *number == 0 || !folders.has_caller(frame))
        .map(|(_, frame)| frame)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRASH_LOG: &str = "Fatal Python error: Segmentation fault\n\n\
        Thread 0x00007f1 (most recent call first):\n\
        \x20 File \"/lib/python3.11/threading.py\", line 324 in wait\n\n\
        Current thread 0x00007f2 (most recent call first):\n\
        \x20 File \"/lib/python3.11/site-packages/PIL/Image.py\", line 12 in load\n\
        \x20 File \"/home/me/train.py\", line 41 in augment\n\
        \x20 File \"/home/me/train.py\", line 60 in __getitem__\n\n\
        Extension modules: numpy._core\n";

    fn folders() -> CodeFolders {
        CodeFolders {
            package: "/lib/python3.11/site-packages/feedline".into(),
            libraries: vec!["/lib/python3.11".into(), "/home/me/.venv/site-packages".into()],
        }
    }

    fn facts(exit: ExitKind) -> DeathFacts {
        let (exit, workers) = (Some(exit), ("num_workers", 8));
        DeathFacts { exit, workers, folders: folders(), ..DeathFacts::default() }
    }

    fn shown(facts: &DeathFacts) -> String {
        let certificate = certify(facts);
        let likely = if certificate.is_certain { "" } else { "likely " };
        let why: Vec<_> = certificate.why.iter().map(|line| format!("  why   {line}\n")).collect();
        let code = certificate.code.map(|code| format!("  code  {code}\n")).unwrap_or_default();
        format!(
            "{likely}{}\n{code}{}hint: {}",
            certificate.cause.name(),
            why.concat(),
            certificate.hint
        )
    }

    #[test]
    fn each_cause_has_evidence_and_a_hint() {
        let group = DeathFacts {
            group_kills: Some(1),
            machine_kills: Some(1),
            peak_bytes: 3 << 30,
            memory_limit: Some(4 << 30),
            memory_used: Some((4 << 30) - 4096),
            ..facts(ExitKind::Killed(SIGKILL))
        };
        let machine = DeathFacts { group_kills: Some(0), machine_kills: Some(2), ..group.clone() };
        let no_kills = DeathFacts { group_kills: Some(0), machine_kills: Some(0), ..group.clone() };
        let not_counted = DeathFacts { group_kills: None, machine_kills: None, ..group.clone() };
        let bus = facts(ExitKind::Killed(SIGBUS));
        let full = DeathFacts { shared_free: Some(4096), ..bus.clone() };
        let crash = DeathFacts { crash_log: CRASH_LOG.into(), ..facts(ExitKind::Killed(SIGSEGV)) };
        let refused =
            DeathFacts { address_limit: Some(1 << 30), ..facts(ExitKind::Killed(SIGABRT)) };
        let time = DeathFacts { processor_limit: Some(60), ..facts(ExitKind::Killed(SIGXCPU)) };
        let size = facts(ExitKind::Killed(SIGXFSZ));
        let asked = facts(ExitKind::Killed(SIGTERM));
        let other = facts(ExitKind::Killed(10));
        let exit = facts(ExitKind::Exited(3));
        let disconnected = DeathFacts { is_disconnected: true, ..facts(ExitKind::Exited(1)) };
        let overdue = DeathFacts {
            overdue: Some(Overdue::Deadline(Duration::from_secs(30))),
            process_state: Some(ProcessState::WaitsForLock),
            crash_log: CRASH_LOG.into(),
            ..facts(ExitKind::Killed(SIGKILL))
        };
        let stopped =
            DeathFacts { process_state: Some(ProcessState::IsStopped), ..overdue.clone() };
        let hung = DeathFacts {
            overdue: Some(Overdue::Hang),
            process_state: Some(ProcessState::Sleeps),
            ..overdue.clone()
        };
        let lost = facts(ExitKind::Lost);
        let all = [
            group,
            machine,
            no_kills,
            not_counted,
            bus,
            full,
            crash,
            refused,
            time,
            size,
            asked,
            other,
            exit,
            disconnected,
            overdue,
            stopped,
            hung,
            lost,
        ];
        let text: Vec<_> = all.iter().map(shown).collect();
        insta::assert_snapshot!(text.join("\n\n"));
    }

    #[test]
    fn the_stack_is_that_of_the_current_thread_and_the_code_is_the_users() {
        let certificate = certify(&DeathFacts {
            crash_log: CRASH_LOG.into(),
            ..facts(ExitKind::Killed(SIGSEGV))
        });
        assert_eq!(certificate.stack.len(), 3);
        assert_eq!(certificate.code.as_deref(), Some("augment() at /home/me/train.py:41"));
    }

    #[test]
    fn of_several_dumps_the_last_counts_and_invalid_text_has_no_stack() {
        let twice = format!(
            "{CRASH_LOG}Current thread 0x1 (most recent call first):\n  File \"a.py\", line 1 in f\n"
        );
        assert_eq!(frames(&twice, &folders()), ["f() at a.py:1"]);
        assert_eq!(frames("hread 0x", &folders()), Vec::<String>::new());
        assert_eq!(frames("Thread 0x1:\n File \"x\" line", &folders()), Vec::<String>::new());
    }

    #[test]
    fn code_is_the_users_by_its_folder_and_not_by_how_its_path_looks() {
        let users = [
            "/home/me/feedline/train.py",
            "/home/me/lib/python/train.py",
            "/home/site-packages/train.py",
            "/lib/python3.11-mine/train.py",
            "/home/me/feedline/_workers/train.py",
            "train.py",
        ];
        let others = [
            "/lib/python3.11/threading.py",
            "/lib/python3.11/site-packages/feedline/torch.py",
            "/home/me/.venv/site-packages/PIL/Image.py",
            "<frozen importlib._bootstrap>",
        ];
        for file in users {
            assert!(!folders().has(&format!("f() at {file}:1")), "{file}");
        }
        for file in others {
            assert!(folders().has(&format!("f() at {file}:1")), "{file}");
        }
    }

    #[test]
    fn a_stack_ends_where_feedline_calls_the_users_code() {
        let crash_log = "Current thread 0x1 (most recent call first):\n\
            \x20 File \"/home/feedline/_workers/load.py\", line 1 in load\n\
            \x20 File \"/lib/python3.11/site-packages/feedline/_workers/worker.py\", line 2 in run\n";
        assert_eq!(frames(crash_log, &folders()), ["load() at /home/feedline/_workers/load.py:1"]);
    }
}
