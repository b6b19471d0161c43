//! What this machine allows: descriptors, processes, memory, processors, shared memory. A file for each
//! subject; each parses text and is tested on recordings of other machines. Nothing here decides a budget.

mod cgroup;
mod descriptors;
mod files;
mod kernel;
mod memory;
mod mounts;
mod processes;
mod processors;
mod text;

use std::path::Path;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

pub use descriptors::{DescriptorLimits, RaisedLimit, raise_open_files};
pub(crate) use descriptors::{most_open_files, open_files};
pub use files::{MachineFiles, RealFiles, RecordedFiles, RecordingFiles, Room, process_folder};
pub use kernel::KernelSettings;
pub use memory::{Memory, MemoryBound, MemoryGroup, Overcommit};
pub use mounts::{FileSystem, file_system};
pub use processes::{TaskGroup, TaskRoom, Tasks};
pub use processors::{Processors, Quota};
pub(crate) use text::named_number;
pub use text::{Pressure, ProcessLimit};

/// What is assumed to be free if the system does not say.
const UNKNOWN_MEMORY: u64 = 1 << 30;

/// What a machine allows a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Machine {
    /// Open files.
    pub open_files: DescriptorLimits,
    /// Processes and threads.
    pub tasks: Tasks,
    /// Memory.
    pub memory: Memory,
    /// Processors.
    pub processors: Processors,
    /// The file system at /dev/shm, if there is one.
    pub shared_memory: Option<Room>,
    /// What becomes of processes that are killed or crash.
    pub kernel: KernelSettings,
}

impl Machine {
    /// What this machine allows this process.
    pub fn here() -> Machine {
        Machine::read(&RealFiles, &process_folder(None))
    }

    /// Reads what a machine allows a process, from its folder in /proc.
    pub fn read(files: &dyn MachineFiles, process: &Path) -> Machine {
        Machine {
            open_files: DescriptorLimits::read(files, process),
            tasks: Tasks::read(files, process),
            memory: Memory::read(files, process),
            processors: Processors::read(files, process),
            shared_memory: files.room(Path::new("/dev/shm")),
            kernel: KernelSettings::read(files, process),
        }
    }
}

/// The number of threads that can compute at once, given affinity, cpuset and CPU quota. Everything that
/// counts processors calls this.
pub fn processors() -> usize {
    let known = Processors::read(&RealFiles, &process_folder(None)).usable();
    let known = known.and_then(|count| usize::try_from(count).ok());
    known.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The bytes that this process can still use, whatever limits them.
pub fn available_memory() -> u64 {
    memory().usable().map_or(UNKNOWN_MEMORY, |(bytes, _)| bytes)
}

/// All bytes that this process may ever use: those of the machine, of its memory cgroups or of its address space.
pub fn allowed_memory() -> u64 {
    let memory = memory();
    memory.whole().into_iter().chain(memory.address_limit).min().unwrap_or(UNKNOWN_MEMORY)
}

/// The bytes that all processes together can still use before the machine, or a memory cgroup of this process, is
/// full. Limits of this process alone do not count.
pub(crate) fn memory_left() -> u64 {
    memory().left().unwrap_or(UNKNOWN_MEMORY)
}

/// What has the processes and threads, and which limit is the nearest, for people.
pub(crate) fn task_holders() -> String {
    let tasks = Tasks::read(&RealFiles, &process_folder(None));
    let own = super::process::thread_count();
    let plural = if own == 1 { "" } else { "s" };
    let mut text = format!("this process has {own} thread{plural}");
    if let Some(TaskRoom { left, limit, holder }) = tasks.room() {
        text.push_str(&format!(", {holder} has {} of {limit} tasks", limit.saturating_sub(left)));
    }
    text
}

/// How much of the time some task waited for memory in the last ten seconds, in percent, and the bytes that are left
/// for all processes; each if it is known.
pub fn memory_pressure() -> (Option<f64>, Option<u64>) {
    let memory = memory();
    (memory.pressure.map(|pressure| pressure.some_10s), memory.left())
}

/// How much of the time some task waited for a processor in the last ten seconds, in percent, if it is known.
pub fn processor_pressure() -> Option<f64> {
    let processors = Processors::read(&RealFiles, &process_folder(None));
    processors.pressure.map(|pressure| pressure.some_10s)
}

fn memory() -> Memory {
    Memory::read(&RealFiles, &process_folder(None))
}

/// The number of kills by the OOM killer: in the innermost memory cgroup of this process that
/// counts them, and on the whole machine. `None` if they are not counted.
pub(crate) fn memory_kills() -> (Option<u64>, Option<u64>) {
    memory::kills(&RealFiles, &process_folder(None))
}

/// The limit of the tightest memory cgroup of this process, and the bytes it uses.
pub(crate) fn memory_of_group() -> Option<(u64, u64)> {
    memory().tightest().map(|(limit, group)| (limit, group.used))
}

/// The total memory of the machine in bytes.
pub(crate) fn machine_memory() -> Option<u64> {
    memory().total
}

/// The limit on processor time of a process in seconds, if there is one.
pub(crate) fn processor_seconds() -> Option<u64> {
    getrlimit(Resource::Cpu).current
}

/// The limit on address space of a process in bytes, if there is one.
pub(crate) fn address_space() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Bytes free in /dev/shm, if there is one.
pub(crate) fn shared_memory_free() -> Option<u64> {
    RealFiles.room(Path::new("/dev/shm")).map(|room| room.free_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machines::MACHINES;
    use proptest::prelude::*;

    #[test]
    fn recorded_machines_allow_what_they_should() {
        let mut lines = Vec::new();
        for (name, recording) in MACHINES {
            let machine = Machine::read(&RecordedFiles::parse(recording), Path::new("/proc/self"));
            lines.push(format!("--- {name}"));
            let subjects = serde_json::to_value(&machine).unwrap();
            for (subject, read) in subjects.as_object().unwrap() {
                lines.push(format!("{subject}: {read}"));
            }
            let usable = machine.memory.usable();
            lines.push(format!(
                "can use {:?} processors, {usable:?} bytes, {:?}\n",
                machine.processors.usable(),
                machine.tasks.room()
            ));
        }
        insta::assert_snapshot!(lines.join("\n"));
    }

    /// Contents that are near to what the kernel writes, and some that are not.
    fn content() -> impl Strategy<Value = String> {
        const WORDS: [&str; 24] = [
            "max",
            "-1",
            "0",
            "1",
            "18446744073709551615",
            "0-3,7",
            "5-2",
            ":",
            "/a/../b",
            "kB",
            "MemTotal:",
            "VmSize:",
            "Uid:",
            "Max open files",
            "unlimited",
            "some avg10=",
            "0::/x",
            "1:memory:/",
            "- cgroup2 x",
            "oom_kill",
            "\n",
            "\t",
            " ",
            "\u{0}",
        ];
        prop::collection::vec(prop::sample::select(&WORDS[..]), 0..12)
            .prop_map(|words| words.join(" "))
    }

    proptest! {
        #[test]
        fn nothing_that_a_machine_says_ends_the_program(
            machine in 0..MACHINES.len(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), content()), 1..6),
        ) {
            let mut parts: Vec<String> =
                MACHINES[machine].1.split("== ").map(str::to_owned).collect();
            for (at, content) in changes {
                let part = at.get_mut(&mut parts);
                let name = part.lines().next().unwrap_or_default().to_owned();
                *part = format!("{name}\n{content}\n");
            }
            let files = RecordedFiles::parse(&parts.join("== "));
            let machine = Machine::read(&files, Path::new("/proc/self"));
            prop_assert!(machine.processors.usable().is_none_or(|count| count >= 1));
            machine.memory.usable();
            machine.memory.tightest();
            machine.tasks.room();
        }
    }

    #[test]
    fn this_machine_says_what_it_allows() {
        let machine = Machine::here();
        let open = getrlimit(Resource::Nofile);
        let limit = machine.open_files.limit.unwrap();
        assert_eq!((limit.soft, limit.hard), (open.current, open.maximum));
        assert!(machine.open_files.open.unwrap() >= 3);
        let cores = machine.processors.usable().unwrap();
        assert!(cores >= 1 && cores <= machine.processors.online.unwrap());
        assert_eq!(processors() as u64, cores);
        let (bytes, _) = machine.memory.usable().unwrap();
        assert!(bytes <= machine.memory.total.unwrap());
        assert!(machine.tasks.of_user.unwrap() >= 1);
        let text = serde_json::to_string(&machine).unwrap();
        assert!(text.contains("\"open_files\""));
    }

    #[test]
    fn the_same_machine_can_be_recorded_and_replayed() {
        let recording = RecordingFiles::default();
        let mut machine = Machine::read(&recording, &process_folder(None));
        let recorded = RecordedFiles::parse(&recording.text());
        // Other processes are not recorded.
        machine.tasks.of_user = None;
        assert_eq!(Machine::read(&recorded, &process_folder(None)), machine);
    }
}
