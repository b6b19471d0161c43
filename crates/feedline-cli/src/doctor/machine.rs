//! What a machine allows, what Feedline would choose on it, and what is dangerous about it. Pure.

use feedline_core::loader::defaults;
use feedline_core::sys::limits::{Machine, Memory, MemoryBound, Overcommit, Pressure, TaskRoom};
use serde_json::json;

use super::diagnosis::{Diagnosis, Fact, Finding};
use super::surroundings::{BINDING_VARIABLES, Surroundings, THREAD_VARIABLES};
use crate::report::bytes;

/// Fewer open files than this are soon used up by torch's own loader.
pub(crate) const FEW_FILES: u64 = 4096;
/// Fewer processes and threads than this are soon used up by workers.
pub(crate) const FEW_TASKS: u64 = 128;
/// A worker that has imported torch needs about this much memory.
const WORKER_BYTES: u64 = 512 << 20;
/// A smaller /dev/shm is soon full of tensors.
const SMALL_SHARED_MEMORY: u64 = 512 << 20;
/// Less than this in percent is nearly nothing.
const NEARLY_FULL: u64 = 10;
/// From this share of the time in percent, waiting counts as pressure, and as dangerous.
const PRESSURE: f64 = 10.0;
const CPU_PRESSURE: f64 = 50.0;

/// Examines a machine.
pub(crate) fn diagnose(machine: &Machine, around: &Surroundings) -> Diagnosis {
    let mut findings = Vec::new();
    open_files(machine, around, &mut findings);
    shared_memory(machine, around, &mut findings);
    memory(machine, &mut findings);
    tasks(machine, around, &mut findings);
    processors(machine, around, &mut findings);
    kernel(machine, &mut findings);
    findings.sort_by_key(|finding| finding.severity);
    Diagnosis {
        subject: "machine",
        good: "nothing on this machine endangers a data loader".into(),
        findings,
        headings: ["", "this machine allows", "Feedline chooses"],
        facts: facts(machine),
        details: json!({"machine": machine, "choices": choices(machine)}),
    }
}

/// What Feedline would choose on a machine, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choices {
    pub(crate) threads: u64,
    pub(crate) readers: u64,
    pub(crate) memory: u64,
    pub(crate) prefetch: u64,
    pub(crate) worker_memory: u64,
    pub(crate) files: u64,
}

impl Choices {
    pub(crate) fn on(machine: &Machine) -> Choices {
        let threads = machine.processors.usable().unwrap_or(1);
        let available = machine.memory.usable().map_or(1 << 30, |(bytes, _)| bytes);
        let memory = defaults::memory(available);
        let limit = machine.open_files.limit.and_then(|limit| limit.hard).unwrap_or(u64::MAX);
        Choices {
            threads,
            readers: defaults::readers(threads),
            memory,
            prefetch: defaults::prefetch(memory),
            worker_memory: defaults::worker_memory(available),
            files: defaults::files(limit, machine.open_files.open.unwrap_or(0)),
        }
    }
}

fn choices(machine: &Machine) -> serde_json::Value {
    let choices = Choices::on(machine);
    json!({
        "threads": choices.threads,
        "workers": choices.threads,
        "readers": choices.readers,
        "memory": choices.memory,
        "prefetch": choices.prefetch,
        "worker_memory": choices.worker_memory,
        "files": choices.files,
    })
}

/// A number with separators, such as "1,048,576".
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn amount(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".into(), thousands)
}

fn facts(machine: &Machine) -> Vec<Fact> {
    let chosen = Choices::on(machine);
    let raised = match machine.open_files.limit {
        Some(limit) if limit.soft != limit.hard => ", soft limit raised",
        Some(_) | None => "",
    };
    let tasks = match machine.tasks.room() {
        Some(TaskRoom { left, limit, holder }) => {
            format!("{} more of {}: limit of {holder}", thousands(left), thousands(limit))
        }
        None => "no limit found".into(),
    };
    let shared = match machine.shared_memory {
        Some(room) => format!("{} free of {}", bytes(room.free_bytes), bytes(room.bytes)),
        None => "there is none".into(),
    };
    vec![
        Fact::new(
            "processors",
            processors_in_words(machine),
            format!("threads={0}, readers={1}, workers={0}", chosen.threads, chosen.readers),
        ),
        Fact::new(
            "memory",
            memory_in_words(&machine.memory),
            format!("memory={}, prefetch={}", bytes(chosen.memory), bytes(chosen.prefetch)),
        ),
        Fact::new("swap", swap_in_words(&machine.memory), ""),
        Fact::new("open files", files_in_words(machine), format!("files={}{raised}", chosen.files)),
        Fact::new("processes", tasks, ""),
        Fact::new("/dev/shm", shared, "not used"),
    ]
}

fn processors_in_words(machine: &Machine) -> String {
    let processors = &machine.processors;
    let Some(usable) = processors.usable() else { return "unknown".into() };
    let visible = processors.visible().unwrap_or(usable);
    match (&processors.quota, processors.online) {
        (Some(quota), _) if usable < visible => {
            format!("{usable} of {visible}: a cgroup quota of {} cores", round(quota.cores))
        }
        (_, Some(online)) if visible < online => {
            format!("{usable} of {online}: affinity or cpuset")
        }
        (_, _) => usable.to_string(),
    }
}

/// A number of cores without useless digits.
fn round(cores: f64) -> String {
    format!("{cores:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn memory_in_words(memory: &Memory) -> String {
    let Some((left, bound)) = memory.usable() else { return "unknown".into() };
    let left = bytes(left);
    match bound {
        MemoryBound::Machine => match memory.total {
            Some(total) => format!("{left} available of {}", bytes(total)),
            None => format!("{left} available"),
        },
        MemoryBound::Group { limit, .. } => format!("{left} left of a cgroup's {}", bytes(limit)),
        MemoryBound::AddressSpace { limit } => {
            format!("{left} left of {} of address space", bytes(limit))
        }
        MemoryBound::Commit => format!("{left} that the kernel can still promise"),
    }
}

fn swap_in_words(memory: &Memory) -> String {
    match (memory.swap_total, memory.swap_free) {
        (Some(0) | None, _) => "none".into(),
        (Some(total), free) => {
            let used = total.saturating_sub(free.unwrap_or(total));
            format!("{} used of {}", bytes(used), bytes(total))
        }
    }
}

fn files_in_words(machine: &Machine) -> String {
    match machine.open_files.limit {
        Some(limit) if limit.soft == limit.hard => amount(limit.soft),
        Some(limit) => format!("{}, can be raised to {}", amount(limit.soft), amount(limit.hard)),
        None => "unknown".into(),
    }
}

fn open_files(machine: &Machine, around: &Surroundings, findings: &mut Vec<Finding>) {
    let files = &machine.open_files;
    if let Some(limit) = files.limit {
        let soft = limit.soft.unwrap_or(u64::MAX);
        let hard = limit.hard.unwrap_or(u64::MAX);
        if hard < FEW_FILES {
            let text = format!(
                "a process may have only {} open files, and cannot raise that",
                thousands(hard)
            );
            findings.push(Finding::danger("few_open_files", text).fix(
                "as root, write '* - nofile 1048576' to /etc/security/limits.d/nofile.conf; \
                 log in again",
            ));
        } else if soft < FEW_FILES && soft < hard {
            let strategy = around.sharing_strategy.as_deref().unwrap_or("file_descriptor");
            let text = match strategy {
                "file_descriptor" => format!(
                    "the soft limit of {} open files is too low for torch's own loader, which keeps a \
                     descriptor for each tensor; Feedline raises it",
                    thousands(soft)
                ),
                _ => format!(
                    "the soft limit of {} open files is low; Feedline raises it, torch's own loader does not",
                    thousands(soft)
                ),
            };
            findings.push(Finding::danger("soft_limit_of_open_files", text).fix(format!(
                "ulimit -n {}",
                limit.hard.map_or_else(|| "unlimited".into(), |hard| hard.to_string())
            )));
        }
    }
    if let (Some(open), Some(limit)) = (files.system_open, files.system_limit)
        && is_nearly(limit.saturating_sub(open), limit)
    {
        let text = format!(
            "all processes together have {} of {} files open: opening one more ends with ENFILE",
            thousands(open),
            thousands(limit)
        );
        findings.push(
            Finding::danger("system_open_files", text)
                .fix(format!("as root: sysctl -w fs.file-max={}", limit.saturating_mul(4))),
        );
    }
}

/// Whether what is left is nearly nothing.
fn is_nearly(left: u64, limit: u64) -> bool {
    left < limit / 100 * NEARLY_FULL
}

fn shared_memory(machine: &Machine, around: &Surroundings, findings: &mut Vec<Finding>) {
    let larger =
        "docker run --shm-size=8g, or in Kubernetes an emptyDir with medium: Memory at /dev/shm";
    let harmless = "fine for Feedline, which does not use it; torch's own loader";
    match machine.shared_memory {
        None => {
            let text = format!("there is no /dev/shm: {harmless} needs it");
            findings.push(Finding::danger("no_shared_memory", text).fix(larger));
        }
        Some(room) if room.bytes < SMALL_SHARED_MEMORY => {
            let text = format!(
                "/dev/shm has {}: {harmless} dies of SIGBUS when it is full",
                bytes(room.bytes)
            );
            findings.push(Finding::danger("small_shared_memory", text).fix(larger));
        }
        Some(room) if is_nearly(room.free_bytes, room.bytes) => {
            let text = format!(
                "/dev/shm is nearly full, {} free of {}: {harmless} dies of SIGBUS",
                bytes(room.free_bytes),
                bytes(room.bytes)
            );
            findings
                .push(Finding::danger("full_shared_memory", text).fix(
                    "ls -lS /dev/shm; remove torch_* files that killed processes left behind",
                ));
        }
        Some(_) => {}
    }
    if around.sharing_strategy.as_deref() == Some("file_system") {
        findings.push(
            Finding::warning(
                "sharing_strategy",
                "torch shares tensors by file_system: segments stay in /dev/shm if a process is killed",
            )
            .fix("torch.multiprocessing.set_sharing_strategy(\"file_descriptor\"), and ulimit -n 65536"),
        );
    }
}

fn memory(machine: &Machine, findings: &mut Vec<Finding>) {
    let memory = &machine.memory;
    if let Some((left, _)) = memory.usable() {
        let workers = Choices::on(machine).threads;
        let fitting = (left / WORKER_BYTES).max(1);
        if left / workers.max(1) < WORKER_BYTES {
            let text = format!(
                "{} of memory for {workers} workers is too little: with torch imported, each needs about {}",
                bytes(left),
                bytes(WORKER_BYTES)
            );
            findings.push(
                Finding::danger("little_memory_per_worker", text)
                    .fix(format!("num_workers={fitting}, or raise the limit of memory")),
            );
        }
    }
    for group in &memory.groups {
        if let (Some(high), limit) = (group.high, group.limit)
            && limit.is_none_or(|limit| high < limit)
        {
            let text = format!(
                "above {} (memory.high) the kernel slows this cgroup down without a message",
                bytes(high)
            );
            let folder = group.folder.display();
            findings.push(
                Finding::warning("memory_high", text)
                    .fix(format!("as root: echo max > {folder}/memory.high")),
            );
            break;
        }
    }
    memory_pressure(memory.pressure, findings);
    swap(memory, findings);
    if memory.overcommit == Some(Overcommit::Never) {
        findings.push(
            Finding::warning(
                "no_overcommit",
                "the kernel promises no more memory than there is: forking a large process fails with ENOMEM",
            )
            .fix("as root: sysctl -w vm.overcommit_memory=0"),
        );
    }
    if let Some(limit) = memory.address_limit {
        let text = format!(
            "address space is limited to {}: CUDA, threads and mappings reserve more than they use",
            bytes(limit)
        );
        findings.push(Finding::warning("address_space", text).fix("ulimit -v unlimited"));
    }
}

fn memory_pressure(pressure: Option<Pressure>, findings: &mut Vec<Finding>) {
    let Some(pressure) = pressure else { return };
    let fix = "use fewer workers, or a smaller batch";
    if pressure.full_10s >= PRESSURE {
        let text = format!(
            "all tasks wait for memory {:.0} % of the time: it is exhausted",
            pressure.full_10s
        );
        findings.push(Finding::danger("memory_pressure", text).fix(fix));
    } else if pressure.some_10s >= PRESSURE {
        let text = format!("tasks wait for memory {:.0} % of the time", pressure.some_10s);
        findings.push(Finding::warning("memory_pressure", text).fix(fix));
    }
}

fn swap(memory: &Memory, findings: &mut Vec<Finding>) {
    match (memory.swap_total, memory.swap_free) {
        (Some(0), _) => findings.push(
            Finding::note(
                "no_swap",
                "there is no swap: when memory runs out, the kernel kills at once",
            )
            .fix(
                "leave memory free, or as root: fallocate -l 8G /swap; mkswap /swap; swapon /swap",
            ),
        ),
        (Some(total), Some(free)) if total.saturating_sub(free) > total / 4 => {
            let used = total.saturating_sub(free);
            let text = format!(
                "{} of {} of swap are in use: workers that are swapped out look like hangs",
                bytes(used),
                bytes(total)
            );
            findings.push(
                Finding::warning("swap_in_use", text)
                    .fix("end what needs the memory, then as root: swapoff -a; swapon -a"),
            );
        }
        (Some(_) | None, _) => {}
    }
}

fn tasks(machine: &Machine, around: &Surroundings, findings: &mut Vec<Finding>) {
    if let Some(TaskRoom { left, limit, holder }) = machine.tasks.room()
        && left < FEW_TASKS
    {
        let text = format!(
            "{holder} can start {} more processes and threads (limit {}): then fork and \
             pthread_create fail with EAGAIN",
            thousands(left),
            thousands(limit)
        );
        let fix = match holder {
            "the user" => "ulimit -u 8192, or nproc in /etc/security/limits.conf".to_owned(),
            "the control group" => format!(
                "docker run --pids-limit {0}, or systemctl set-property UNIT TasksMax={0}",
                limit.saturating_mul(4).max(4096)
            ),
            _ => format!("as root: sysctl -w kernel.threads-max={}", limit.saturating_mul(4)),
        };
        findings.push(Finding::danger("few_processes", text).fix(fix));
    }
    let method = around.start_method.as_deref().unwrap_or("fork");
    if let Some(threads) = around.threads.filter(|threads| *threads > 1 && method == "fork") {
        let text = format!(
            "this process has {threads} threads and forks workers: a lock that a thread holds during the \
             fork stays locked in the worker"
        );
        findings.push(Finding::warning("fork_with_threads", text).fix(
            "create the loader before threads start, or use multiprocessing_context=\"forkserver\"",
        ));
    }
}

fn processors(machine: &Machine, around: &Surroundings, findings: &mut Vec<Finding>) {
    let processors = &machine.processors;
    let usable = processors.usable().unwrap_or(1);
    let visible = processors.visible().unwrap_or(usable);
    if let Some(quota) = processors.quota.as_ref().filter(|_| usable < visible) {
        let text = format!(
            "a quota allows {} of {visible} visible processors: code that counts processors starts too many \
             workers and is throttled; Feedline counts {usable}",
            round(quota.cores)
        );
        findings.push(
            Finding::warning("processor_quota", text)
                .fix(format!("num_workers={usable}, and export OMP_NUM_THREADS=1")),
        );
    }
    if let Some(pressure) = processors.pressure.filter(|pressure| pressure.some_60s >= CPU_PRESSURE)
    {
        let text = format!(
            "tasks wait for a processor {:.0} % of the time: it is shared with others, or there are too many \
             threads",
            pressure.some_60s
        );
        findings
            .push(Finding::warning("processor_pressure", text).fix("use fewer workers or threads"));
    }
    openmp(usable, around, findings);
}

fn openmp(usable: u64, around: &Surroundings, findings: &mut Vec<Finding>) {
    for name in BINDING_VARIABLES {
        let Some(value) = around.variable(name) else { continue };
        if value.eq_ignore_ascii_case("false") || value.eq_ignore_ascii_case("disabled") {
            continue;
        }
        let text =
            format!("{name}={value} binds threads: forked workers may all share one processor");
        findings.push(Finding::warning("bound_threads", text).fix(format!("unset {name}")));
    }
    for name in THREAD_VARIABLES {
        let number = around.variable(name).and_then(|value| value.trim().parse::<u64>().ok());
        if let Some(number) = number.filter(|number| *number > usable) {
            let text = format!(
                "{name}={number} is more than the {usable} processors that can be used, and each worker starts \
                 as many threads"
            );
            findings.push(Finding::warning("many_threads", text).fix(format!("export {name}=1")));
        }
    }
    if usable > 1 && around.variable("OMP_NUM_THREADS").is_none() {
        let text = format!(
            "OMP_NUM_THREADS is not set: libraries in each worker may start {usable} threads (torch's own do \
             not)"
        );
        findings.push(Finding::note("openmp_not_set", text).fix("export OMP_NUM_THREADS=1"));
    }
}

fn kernel(machine: &Machine, findings: &mut Vec<Finding>) {
    let kernel = &machine.kernel;
    if let Some(score) = kernel.oom_score_adj {
        if score > 500 {
            let text = format!(
                "the kernel kills this process before others when memory runs out (oom_score_adj {score})"
            );
            findings.push(
                Finding::warning("killed_first", text)
                    .fix("in Kubernetes, set requests equal to limits for memory and CPU"),
            );
        }
        if !kernel.may_change_oom_score {
            findings.push(Finding::warning(
                "fixed_oom_score",
                "oom_score_adj cannot be changed: when memory runs out, the kernel may kill the trainer \
                 instead of a worker",
            ));
        }
    }
    let is_file = kernel.core_pattern.as_deref().is_some_and(|pattern| !pattern.starts_with('|'));
    if is_file && kernel.core_limit != Some(0) {
        findings.push(
            Finding::note(
                "core_dumps",
                "a worker that crashes writes all of its memory to a core file in the working folder",
            )
            .fix("ulimit -c 0"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::print;
    use super::*;
    use feedline_core::sys::limits::RecordedFiles;
    use feedline_core::testing::machines::{MACHINES, recording};
    use std::collections::BTreeSet;
    use std::path::Path;

    fn machine(name: &str) -> Machine {
        let files = RecordedFiles::parse(recording(name).unwrap());
        Machine::read(&files, Path::new("/proc/self"))
    }

    fn around() -> Surroundings {
        Surroundings {
            variables: vec![("OMP_NUM_THREADS".into(), "1".into())],
            ..Surroundings::default()
        }
    }

    fn names(machine: &Machine, around: &Surroundings) -> Vec<&'static str> {
        diagnose(machine, around).findings.iter().map(|finding| finding.name).collect()
    }

    #[test]
    fn recorded_machines_are_diagnosed() {
        let mut texts = Vec::new();
        for (name, _) in MACHINES {
            let diagnosis = diagnose(&machine(name), &around());
            let text = print::text(&diagnosis);
            assert!(text.lines().count() <= print::LINES, "{name}");
            assert!(
                text.lines().all(|line| line.chars().count() <= print::COLUMNS),
                "{name}: {text}"
            );
            texts.push(format!("--- {name}, exit code {}\n{text}", diagnosis.exit_code()));
        }
        insta::assert_snapshot!(texts.join("\n\n"));
    }

    #[test]
    fn each_danger_of_a_machine_is_found_on_a_recorded_one() {
        let mut found = BTreeSet::new();
        for (name, _) in MACHINES {
            found.extend(names(&machine(name), &around()));
        }
        let around = Surroundings {
            variables: vec![
                ("OMP_PROC_BIND".into(), "close".into()),
                ("MKL_NUM_THREADS".into(), "64".into()),
            ],
            threads: Some(12),
            start_method: None,
            sharing_strategy: Some("file_system".into()),
        };
        found.extend(names(&machine("docker_v1"), &around));
        let mut without = machine("bare_metal");
        without.shared_memory = None;
        found.extend(names(&without, &around));
        let all: BTreeSet<_> = include_str!("machine.rs")
            .split("Finding::")
            .skip(1)
            .filter_map(|rest| {
                let rest = rest.split_once('(')?.1.trim_start();
                rest.strip_prefix('"')?.split_once('"').map(|(name, _)| name)
            })
            .collect();
        assert!(all.len() > 15, "{all:?}");
        assert_eq!(found, all);
    }

    #[test]
    fn a_setting_that_is_right_is_not_a_finding() {
        let around = Surroundings {
            variables: vec![
                ("OMP_NUM_THREADS".into(), "2".into()),
                ("OMP_PROC_BIND".into(), "false".into()),
            ],
            threads: Some(1),
            start_method: Some("spawn".into()),
            sharing_strategy: Some("file_descriptor".into()),
        };
        assert_eq!(names(&machine("kubernetes_guaranteed"), &around), ["no_swap"]);
        let spawning = Surroundings { threads: Some(9), ..around };
        assert_eq!(names(&machine("kubernetes_guaranteed"), &spawning), ["no_swap"]);
    }

    #[test]
    fn numbers_have_separators() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_048_576, "1,048,576")] {
            assert_eq!(thousands(number), text);
        }
    }
}
