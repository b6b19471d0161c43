//! How much memory a process may use: of the machine, of its control groups, of its address space.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::cgroup::{self, ControlGroup, Controller, Version};
use super::files::MachineFiles;
use super::text::{self, Pressure, named_number, number};

/// Memory of a machine, and what a process may use of it. All amounts are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// All memory of the machine.
    pub total: Option<u64>,
    /// What new work can use without swapping, on the whole machine.
    pub available: Option<u64>,
    /// All swap space, and what is free of it.
    pub swap_total: Option<u64>,
    /// Free swap space.
    pub swap_free: Option<u64>,
    /// The control groups that limit memory, innermost first.
    pub groups: Vec<MemoryGroup>,
    /// The limit on the address space of the process.
    pub address_limit: Option<u64>,
    /// The address space that it uses.
    pub address_used: Option<u64>,
    /// Whether the kernel promises more memory than there is.
    pub overcommit: Option<Overcommit>,
    /// What can still be promised, if the kernel promises no more than there is.
    pub commit_left: Option<u64>,
    /// How long tasks wait for memory; of the innermost group that says, or of the machine.
    pub pressure: Option<Pressure>,
}

/// Whether the kernel promises more memory than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Overcommit {
    /// Within reason; the default.
    Heuristic,
    /// Always.
    Always,
    /// Never: allocations fail early, and a fork of a large process is refused.
    Never,
}

/// A control group that limits memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryGroup {
    /// Its folder.
    pub folder: PathBuf,
    /// Above this, the kernel kills.
    pub limit: Option<u64>,
    /// Above this, the kernel slows down and reclaims.
    pub high: Option<u64>,
    /// What it uses, including file cache.
    pub used: u64,
    /// File cache in it that the kernel can drop.
    pub droppable: u64,
    /// How much swap space it may use, and uses.
    pub swap_limit: Option<u64>,
    /// Swap space that it uses.
    pub swap_used: Option<u64>,
}

impl MemoryGroup {
    /// What can still be used before the kernel slows down or kills. File cache that the kernel can drop
    /// does not count as used.
    pub fn left(&self) -> u64 {
        let limit = [self.limit, self.high].into_iter().flatten().min().unwrap_or(u64::MAX);
        limit.saturating_sub(self.used.saturating_sub(self.droppable))
    }
}

/// What bounds the memory that a process can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryBound {
    /// The free memory of the machine.
    Machine,
    /// A control group with this limit in bytes.
    Group {
        /// The limit.
        limit: u64,
        /// Its folder.
        folder: PathBuf,
    },
    /// The limit on address space, in bytes.
    AddressSpace {
        /// The limit.
        limit: u64,
    },
    /// What the kernel can promise.
    Commit,
}

impl Memory {
    /// Reads it for a process, from its folder in /proc.
    pub fn read(files: &dyn MachineFiles, process: &Path) -> Memory {
        let meminfo = files.read(Path::new("/proc/meminfo")).unwrap_or_default();
        let kilobytes =
            |name: &str| named_number(&meminfo, name).map(|number| number.saturating_mul(1024));
        let limits = files.read(&process.join("limits")).unwrap_or_default();
        let groups = cgroup::groups(files, process, Controller::Memory);
        let status = files.read(&process.join("status")).unwrap_or_default();
        let group_pressure = groups.iter().find_map(|group| group.read(files, "memory.pressure"));
        let pressure = group_pressure.or_else(|| files.read(Path::new("/proc/pressure/memory")));
        let overcommit = files.read(Path::new("/proc/sys/vm/overcommit_memory"));
        let overcommit = overcommit.and_then(|text| match text.trim() {
            "0" => Some(Overcommit::Heuristic),
            "1" => Some(Overcommit::Always),
            "2" => Some(Overcommit::Never),
            _ => None,
        });
        let commit = kilobytes("CommitLimit:").zip(kilobytes("Committed_AS:"));
        Memory {
            total: kilobytes("MemTotal:"),
            available: kilobytes("MemAvailable:").or_else(|| kilobytes("MemFree:")),
            swap_total: kilobytes("SwapTotal:"),
            swap_free: kilobytes("SwapFree:"),
            groups: groups.iter().filter_map(|group| memory_group(files, group)).collect(),
            address_limit: text::process_limit(&limits, "Max address space")
                .and_then(|limit| limit.soft),
            address_used: named_number(&status, "VmSize:")
                .map(|number| number.saturating_mul(1024)),
            overcommit,
            commit_left: commit
                .filter(|_| overcommit == Some(Overcommit::Never))
                .map(|(limit, committed)| limit.saturating_sub(committed)),
            pressure: pressure.as_deref().and_then(text::pressure),
        }
    }

    /// The bytes that the process can still use, and what bounds them; `None` if nothing is known.
    pub fn usable(&self) -> Option<(u64, MemoryBound)> {
        let machine = self.available.map(|bytes| (bytes, MemoryBound::Machine));
        let groups = self.groups.iter().map(|group| {
            let limit = [group.limit, group.high].into_iter().flatten().min().unwrap_or(u64::MAX);
            (group.left(), MemoryBound::Group { limit, folder: group.folder.clone() })
        });
        let address = self.address_limit.map(|limit| {
            let left = limit.saturating_sub(self.address_used.unwrap_or(0));
            (left, MemoryBound::AddressSpace { limit })
        });
        let commit = self.commit_left.map(|bytes| (bytes, MemoryBound::Commit));
        machine.into_iter().chain(groups).chain(address).chain(commit).min_by_key(|(left, _)| *left)
    }

    /// The bytes that all processes of the machine, or of the group, can still use together.
    pub fn left(&self) -> Option<u64> {
        self.groups.iter().map(MemoryGroup::left).chain(self.available).min()
    }

    /// The control group in which the kernel kills first, by the room that it has left.
    pub fn tightest(&self) -> Option<(u64, &MemoryGroup)> {
        let limited = self.groups.iter().filter_map(|group| Some((group.limit?, group)));
        limited.min_by_key(|(limit, group)| limit.saturating_sub(group.used))
    }

    /// All memory that the process and others in its group may ever use: that of the machine, or of the
    /// smallest group.
    pub fn whole(&self) -> Option<u64> {
        self.groups.iter().filter_map(|group| group.limit).chain(self.total).min()
    }
}

fn memory_group(files: &dyn MachineFiles, group: &ControlGroup) -> Option<MemoryGroup> {
    let amount = |name: &str| number(&group.read(files, name)?);
    let stat = group.read(files, "memory.stat").unwrap_or_default();
    let found = match group.version {
        Version::One => {
            let used = amount("memory.usage_in_bytes")?;
            let own = amount("memory.limit_in_bytes");
            // A limit of a group above, which a container may not see.
            let above = named_number(&stat, "hierarchical_memory_limit");
            let above = above.and_then(|bytes| number(&bytes.to_string()));
            let limit = [own, above].into_iter().flatten().min();
            let with_swap = amount("memory.memsw.limit_in_bytes");
            MemoryGroup {
                folder: group.folder.clone(),
                limit,
                high: None,
                used,
                droppable: named_number(&stat, "total_inactive_file").unwrap_or(0),
                swap_limit: with_swap.zip(limit).map(|(both, memory)| both.saturating_sub(memory)),
                swap_used: named_number(&stat, "total_swap"),
            }
        }
        Version::Two => MemoryGroup {
            folder: group.folder.clone(),
            limit: amount("memory.max"),
            high: amount("memory.high"),
            used: amount("memory.current")?,
            droppable: named_number(&stat, "inactive_file").unwrap_or(0),
            swap_limit: amount("memory.swap.max"),
            swap_used: amount("memory.swap.current"),
        },
    };
    (found.limit.is_some() || found.high.is_some()).then_some(found)
}

/// The number of kills by the OOM killer: in the innermost memory group of the process that counts them, and
/// on the whole machine. `None` if they are not counted.
pub(super) fn kills(files: &dyn MachineFiles, process: &Path) -> (Option<u64>, Option<u64>) {
    let in_group = |group: &ControlGroup| {
        let name = match group.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        named_number(&group.read(files, name)?, "oom_kill")
    };
    let groups = cgroup::groups(files, process, Controller::Memory);
    let machine = files.read(Path::new("/proc/vmstat"));
    let machine = machine.and_then(|text| named_number(&text, "oom_kill"));
    (groups.iter().find_map(in_group), machine)
}

#[cfg(test)]
mod tests {
    use super::super::files::RecordedFiles;
    use super::*;

    fn read(recording: &str) -> Memory {
        Memory::read(&RecordedFiles::parse(recording), Path::new("/proc/self"))
    }

    const TWO: &str = "== /proc/self/cgroup\n0::/g\n== /proc/meminfo\nMemAvailable: 100 kB\n";

    #[test]
    fn droppable_file_cache_does_not_count_as_used() {
        let memory = read(&format!(
            "{TWO}== /sys/fs/cgroup/g/memory.max\n1000\n== /sys/fs/cgroup/g/memory.current\n900\n\
             == /sys/fs/cgroup/g/memory.stat\nanon 1\ninactive_file 300\n"
        ));
        let folder = PathBuf::from("/sys/fs/cgroup/g");
        assert_eq!(memory.usable(), Some((400, MemoryBound::Group { limit: 1000, folder })));
        assert_eq!(memory.tightest().unwrap().0, 1000);
        assert_eq!(memory.whole(), Some(1000));
    }

    #[test]
    fn a_group_without_a_limit_is_none() {
        let memory = read(&format!(
            "{TWO}== /sys/fs/cgroup/g/memory.max\nmax\n== /sys/fs/cgroup/g/memory.high\nmax\n\
             == /sys/fs/cgroup/g/memory.current\n900\n"
        ));
        assert_eq!(memory.groups, []);
        assert_eq!(memory.usable(), Some((100 * 1024, MemoryBound::Machine)));
    }

    #[test]
    fn a_high_limit_bounds_what_can_be_used_but_kills_nothing() {
        let memory = read(&format!(
            "{TWO}== /sys/fs/cgroup/g/memory.max\nmax\n== /sys/fs/cgroup/g/memory.high\n5000\n\
             == /sys/fs/cgroup/g/memory.current\n1000\n"
        ));
        assert_eq!(memory.usable().unwrap().0, 4000);
        assert_eq!(memory.tightest(), None);
    }

    #[test]
    fn version_one_knows_limits_above_its_namespace() {
        let memory = read(
            "== /proc/self/cgroup\n4:memory:/\n== /sys/fs/cgroup/memory/memory.limit_in_bytes\n9223372036854771712\n\
             == /sys/fs/cgroup/memory/memory.usage_in_bytes\n100\n\
             == /sys/fs/cgroup/memory/memory.memsw.limit_in_bytes\n5000\n\
             == /sys/fs/cgroup/memory/memory.stat\nhierarchical_memory_limit 4000\ntotal_inactive_file 60\n",
        );
        let (limit, group) = memory.tightest().unwrap();
        assert_eq!((limit, group.left(), group.swap_limit), (4000, 3960, Some(1000)));
    }

    #[test]
    fn address_space_and_promises_bound_what_can_be_used() {
        let limited = "== /proc/meminfo\nMemAvailable: 100 kB\nCommitLimit: 50 kB\nCommitted_AS: 20 kB\n\
             == /proc/self/limits\nMax address space         81920   unlimited  bytes\n\
             == /proc/self/status\nVmSize:\t      70 kB\n";
        let bound = MemoryBound::AddressSpace { limit: 81920 };
        assert_eq!(read(limited).usable(), Some((10 * 1024, bound)));
        assert_eq!(read(limited).left(), Some(100 * 1024));
        let strict = "== /proc/meminfo\nMemAvailable: 100 kB\nCommitLimit: 50 kB\nCommitted_AS: 20 kB\n\
             == /proc/sys/vm/overcommit_memory\n2\n";
        assert_eq!(read(strict).usable(), Some((30 * 1024, MemoryBound::Commit)));
    }

    #[test]
    fn oom_kills_are_read_in_both_versions() {
        let kills_of =
            |recording: &str| kills(&RecordedFiles::parse(recording), Path::new("/proc/self"));
        let one = "== /proc/self/cgroup\n4:memory:/\n== /sys/fs/cgroup/memory/memory.oom_control\n\
                   oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        let two = "== /proc/self/cgroup\n0::/\n== /sys/fs/cgroup/memory.events\nlow 0\noom 7\noom_kill 5\n\
                   == /proc/vmstat\noom_kill 9\n";
        assert_eq!(kills_of(one), (Some(3), None));
        assert_eq!(kills_of(two), (Some(5), Some(9)));
        assert_eq!(kills_of(""), (None, None));
    }
}
