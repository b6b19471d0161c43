//! What a running process holds, how close it is to each limit, and what will fail first. Pure, except for
//! the reading.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::sys::inspect::{ProcessView, descendants};
use feedline_core::sys::limits::{Machine, RealFiles, process_folder};
use serde::Serialize;
use serde_json::json;

use super::diagnosis::{Diagnosis, Fact, Finding, Severity};
use super::machine::thousands;
use crate::report::{bytes, counted};

/// From this percentage of a limit, it is a warning, and a danger.
const WARNING_PERCENT: u64 = 70;
const DANGER_PERCENT: u64 = 90;
/// Children that are listed.
const LISTED: usize = 6;
/// Threads for each processor from which there are too many.
const THREADS_PER_PROCESSOR: u64 = 8;

/// A process, those below it, and what the machine allows it.
#[derive(Debug, Serialize)]
pub(crate) struct Examined {
    pub(crate) process: ProcessView,
    pub(crate) children: Vec<ProcessView>,
    pub(crate) machine: Machine,
}

impl Examined {
    /// Looks at a process.
    pub(crate) fn read(pid: u32) -> Result<Examined> {
        let process = ProcessView::of(pid).ok_or_else(|| {
            Error::new(Kind::InvalidArgument, format!("there is no process {pid}"))
                .with_hint("see the ids of processes with pgrep -fl python")
        })?;
        let children = descendants(pid).into_iter().filter_map(ProcessView::of).collect();
        let machine = Machine::read(&RealFiles, &process_folder(Some(pid)));
        Ok(Examined { process, children, machine })
    }
}

/// How much of a limit is used.
#[derive(Debug, Serialize)]
struct Use {
    /// What is used.
    name: &'static str,
    used: u64,
    limit: u64,
    /// Whether the numbers are bytes.
    is_bytes: bool,
    /// What happens at the limit.
    failure: &'static str,
    fix: &'static str,
}

impl Use {
    fn percent(&self) -> u64 {
        (self.used.min(self.limit).saturating_mul(100)).checked_div(self.limit).unwrap_or(100)
    }

    fn in_words(&self) -> String {
        let shown = |number| if self.is_bytes { bytes(number) } else { thousands(number) };
        format!("{} of {} ({} %)", shown(self.used), shown(self.limit), self.percent())
    }
}

/// Examines a process.
pub(crate) fn diagnose(examined: &Examined) -> Diagnosis {
    let uses = uses(examined);
    let mut findings = Vec::new();
    let mut first = true;
    for one in &uses {
        let percent = one.percent();
        let severity = match percent {
            DANGER_PERCENT.. => Severity::Danger,
            WARNING_PERCENT.. => Severity::Warning,
            _ => continue,
        };
        let order = if first { "fails first: " } else { "" };
        first = false;
        let text = format!("{order}{}, {}; then {}", one.name, one.in_words(), one.failure);
        findings.push(Finding::new(severity, "near_a_limit", text).fix(one.fix));
    }
    if let (true, Some(nearest)) = (first, uses.first()) {
        let text = format!(
            "nothing is near a limit; the nearest is {}, {}; at the limit, {}",
            nearest.name,
            nearest.in_words(),
            nearest.failure
        );
        findings.push(Finding::note("nearest_limit", text));
    }
    children(examined, &mut findings);
    findings.sort_by_key(|finding| finding.severity);
    Diagnosis {
        subject: "process",
        good: "the process is near no limit".into(),
        findings,
        headings: ["", "", ""],
        facts: facts(examined),
        details: json!({
            "process": examined.process,
            "children": examined.children,
            "machine": examined.machine,
            "uses": uses,
        }),
    }
}

/// All limits that are known, the one that is nearest first.
fn uses(examined: &Examined) -> Vec<Use> {
    let Examined { process, children, machine } = examined;
    let mut uses = Vec::new();
    let mut add = |name, used: Option<u64>, limit: Option<u64>, is_bytes, failure, fix| {
        if let (Some(used), Some(limit)) = (used, limit) {
            uses.push(Use { name, used, limit, is_bytes, failure, fix });
        }
    };
    let files = machine.open_files.limit.and_then(|limit| limit.soft);
    let too_many = "open fails with \"Too many open files\" (EMFILE)";
    let close = "close what is open (see the paths below), or start it after ulimit -n 65536";
    let count = |view: &ProcessView| view.descriptors.as_ref().map(|open| open.count);
    add("open files", count(process), files, false, too_many, close);
    // A fork inherits the limit.
    let most = children.iter().filter_map(count).max();
    add("open files of a child", most, files, false, too_many, close);
    let open_files = &machine.open_files;
    add(
        "files of the whole system",
        open_files.system_open,
        open_files.system_limit,
        false,
        "open fails with \"Too many open files in system\" (ENFILE)",
        "as root: sysctl -w fs.file-max=2000000",
    );
    let tasks = &machine.tasks;
    let of_user = tasks.limit.and_then(|limit| limit.soft).filter(|_| !tasks.is_exempt);
    let refused = "fork and threads fail with \"Resource temporarily unavailable\" (EAGAIN)";
    add("processes of the user", tasks.of_user, of_user, false, refused, "ulimit -u 8192");
    let group = tasks.group.as_ref();
    add(
        "processes of the cgroup",
        group.map(|group| group.used),
        group.map(|group| group.limit),
        false,
        refused,
        "docker run --pids-limit 4096, or systemctl set-property UNIT TasksMax=4096",
    );
    let memory = &machine.memory;
    let tightest = memory.tightest();
    add(
        "memory of the cgroup",
        tightest.map(|(_, group)| group.used.saturating_sub(group.droppable)),
        tightest.map(|(limit, _)| limit),
        true,
        "the kernel kills a process (SIGKILL, exit code 137)",
        "use fewer workers or smaller batches",
    );
    let used = memory.total.zip(memory.available);
    add(
        "memory of the machine",
        used.map(|(total, available)| total.saturating_sub(available)),
        memory.total,
        true,
        "the kernel kills a process (SIGKILL, exit code 137)",
        "use fewer workers or smaller batches",
    );
    add(
        "address space",
        Some(process.address_bytes),
        memory.address_limit,
        true,
        "allocations fail with \"Cannot allocate memory\" (ENOMEM)",
        "ulimit -v unlimited",
    );
    let shared = machine.shared_memory;
    add(
        "/dev/shm",
        shared.map(|room| room.bytes.saturating_sub(room.free_bytes)),
        shared.map(|room| room.bytes),
        true,
        "torch's workers die of SIGBUS",
        "docker run --shm-size=8g; remove old segments: ls -lS /dev/shm",
    );
    add(
        "memory mappings",
        process.mappings,
        machine.kernel.mapping_limit,
        false,
        "mmap fails with \"Cannot allocate memory\" (ENOMEM)",
        "as root: sysctl -w vm.max_map_count=1048576",
    );
    uses.sort_by_key(|one| std::cmp::Reverse(one.percent()));
    uses
}

fn children(examined: &Examined, findings: &mut Vec<Finding>) {
    let in_state = |state: char| -> Vec<u32> {
        let children = examined.children.iter().filter(|child| child.state == state);
        children.map(|child| child.pid).collect()
    };
    let listed = |pids: &[u32]| {
        let first: Vec<_> = pids.iter().take(LISTED).map(u32::to_string).collect();
        let more = if pids.len() > LISTED { ", ..." } else { "" };
        format!("{} ({}{more})", counted(pids.len() as u64, "child", "children"), first.join(", "))
    };
    let stopped = in_state('T');
    if !stopped.is_empty() {
        let text = format!("loading waits for {}, stopped by a signal", listed(&stopped));
        let fix = format!("kill -CONT {}", stopped[0]);
        findings.push(Finding::danger("stopped_children", text).fix(fix));
    }
    let waiting = in_state('D');
    if !waiting.is_empty() {
        let text = format!("slow storage: a read cannot be interrupted in {}", listed(&waiting));
        findings.push(Finding::warning("waiting_children", text).fix("see feedline doctor PATH"));
    }
    let ended = in_state('Z');
    if !ended.is_empty() {
        let text = format!("the process has not noticed the end of {}", listed(&ended));
        findings.push(Finding::warning("ended_children", text));
    }
    if examined.process.threads > 1 && !examined.children.is_empty() {
        let text = format!(
            "the process has {} threads: a lock that one of them holds during a fork stays locked in the child",
            examined.process.threads
        );
        findings.push(Finding::note("fork_with_threads", text));
    }
    let threads: u64 = examined.children.iter().map(|child| child.threads).sum();
    let usable = examined.machine.processors.usable().unwrap_or(1);
    if threads > usable * THREADS_PER_PROCESSOR && threads > examined.children.len() as u64 {
        let text = format!("the children have {threads} threads on {usable} processors");
        findings.push(
            Finding::warning("many_threads", text).fix("export OMP_NUM_THREADS=1 before the start"),
        );
    }
}

fn facts(examined: &Examined) -> Vec<Fact> {
    let Examined { process, children, .. } = examined;
    let memory = |view: &ProcessView| match view.share_bytes {
        Some(share) => format!("{} PSS", bytes(share)),
        None => format!("{} resident", bytes(view.resident_bytes)),
    };
    let about = |view: &ProcessView| {
        let open = view.descriptors.as_ref().map_or_else(
            || "descriptors not readable".to_owned(),
            |open| counted(open.count, "descriptor", "descriptors"),
        );
        let threads = counted(view.threads, "thread", "threads");
        format!("{}, {}, {threads}, {open}", in_state(view.state), memory(view))
    };
    let mut facts =
        vec![Fact::new(&format!("{} {}", process.pid, process.name), about(process), "")];
    for child in children.iter().take(LISTED) {
        facts.push(Fact::new(&format!("  {} {}", child.pid, child.name), about(child), ""));
    }
    if children.len() > LISTED {
        let rest = &children[LISTED..];
        let share: u64 =
            rest.iter().map(|child| child.share_bytes.unwrap_or(child.resident_bytes)).sum();
        let value = format!("{} more children, {} together", rest.len(), bytes(share));
        facts.push(Fact::new("  ...", value, ""));
    }
    if let Some(open) = process.descriptors.as_ref().filter(|open| open.count > 0) {
        let kinds: Vec<_> =
            open.by_kind.iter().map(|(kind, count)| format!("{count} {}", kind.name())).collect();
        facts.push(Fact::new("descriptors", kinds.join(", "), ""));
        for (path, count) in open.paths.iter().filter(|(_, count)| *count > 1).take(3) {
            facts.push(Fact::new("", format!("{count} x {path}"), ""));
        }
    }
    facts
}

fn in_state(letter: char) -> &'static str {
    match letter {
        'R' => "runs",
        'S' | 'I' => "sleeps",
        'D' => "waits for a device",
        'T' | 't' => "is stopped",
        'Z' | 'X' => "has ended",
        _ => "unknown state",
    }
}

#[cfg(test)]
mod tests {
    use super::super::print;
    use super::*;
    use feedline_core::sys::inspect::Descriptors;
    use feedline_core::sys::limits::RecordedFiles;
    use feedline_core::testing::machines::recording;
    use std::path::Path;

    fn view(pid: u32, state: char, descriptors: &[(&str, usize)]) -> ProcessView {
        let targets: Vec<String> = descriptors
            .iter()
            .flat_map(|(path, count)| std::iter::repeat_n((*path).to_owned(), *count))
            .collect();
        ProcessView {
            pid,
            parent: 1,
            name: "python".into(),
            state,
            threads: 4,
            resident_bytes: 800 << 20,
            share_bytes: Some(500 << 20),
            address_bytes: 9 << 30,
            mappings: Some(2000),
            descriptors: Some(Descriptors::of_targets(&targets)),
        }
    }

    fn examined(machine: &str, process: ProcessView, children: Vec<ProcessView>) -> Examined {
        let files = RecordedFiles::parse(recording(machine).unwrap());
        Examined { process, children, machine: Machine::read(&files, Path::new("/proc/self")) }
    }

    #[test]
    fn a_trainer_that_keeps_tensors_fails_of_descriptors_first() {
        let trainer = view(
            100,
            'S',
            &[("/dev/shm/torch_4411_7 (deleted)", 900), ("/data/a.h5", 40), ("socket:[1]", 12)],
        );
        let children = (0..8).map(|at| view(101 + at, 'S', &[("pipe:[1]", 9)])).collect();
        let diagnosis = diagnose(&examined("bare_metal", trainer, children));
        assert!(diagnosis.is_dangerous());
        let text = print::text(&diagnosis);
        assert!(
            text.starts_with("danger   fails first: open files, 952 of 1,024 (92 %)"),
            "{text}"
        );
        insta::assert_snapshot!(text);
    }

    #[test]
    fn children_that_cannot_work_are_named() {
        let children =
            vec![view(5, 'T', &[]), view(6, 'D', &[]), view(7, 'Z', &[]), view(8, 'R', &[])];
        let diagnosis = diagnose(&examined("small_vm", view(4, 'R', &[]), children));
        let text = print::text(&diagnosis);
        for part in
            ["waits for 1 child (5)", "kill -CONT 5", "in 1 child (6)", "the end of 1 child (7)"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn every_machine_gives_one_screen() {
        for (name, _) in feedline_core::testing::machines::MACHINES {
            let children = (0..40).map(|at| view(101 + at, 'D', &[("pipe:[1]", 9)])).collect();
            let trainer =
                view(100, 'S', &[("/data/a", 9), ("/data/b", 8), ("/data/c", 7), ("/d", 6)]);
            let text = print::text(&diagnose(&examined(name, trainer, children)));
            assert!(text.lines().count() <= print::LINES, "{name}: {text}");
            assert!(
                text.lines().all(|line| line.chars().count() <= print::COLUMNS),
                "{name}: {text}"
            );
        }
    }
}
