//! The limits of this machine: descriptors and memory. Read once when a loader is created.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::{Path, PathBuf};

use super::file;

/// Raises the soft limit on open files to the hard limit, and returns the limit now in effect. If
/// the system refuses, the budget is only smaller.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_ok() {
        return limit.maximum.unwrap_or(u64::MAX);
    }
    limit.current.unwrap_or(u64::MAX)
}

/// The number of descriptors that this process has open.
pub(crate) fn open_files() -> u64 {
    file::list(Path::new("/proc/self/fd")).map_or(0, |entries| entries.len() as u64)
}

/// The bytes that can still be used before the machine, or a memory cgroup of this process, is
/// full.
pub(crate) fn available_memory() -> u64 {
    let machine = file::read_text(Path::new("/proc/meminfo"))
        .ok()
        .and_then(|text| meminfo_available(&text))
        .unwrap_or(1 << 30);
    let groups = file::read_text(Path::new("/proc/self/cgroup")).unwrap_or_default();
    cgroup_folders(&groups)
        .iter()
        .filter_map(|group| group.headroom(|path| file::read_text(path).ok()))
        .fold(machine, u64::min)
}

/// The number of kills by the OOM killer: in the innermost memory cgroup of this process that
/// counts them, and on the whole machine. `None` if they are not counted.
pub(crate) fn memory_kills() -> (Option<u64>, Option<u64>) {
    let groups = file::read_text(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let group = cgroup_folders(&groups)
        .iter()
        .find_map(|group| group.kills(|path| file::read_text(path).ok()));
    let machine = file::read_text(Path::new("/proc/vmstat"))
        .ok()
        .and_then(|text| named_number(&text, "oom_kill"));
    (group, machine)
}

/// The limit of the tightest memory cgroup of this process, and the bytes it uses.
pub(crate) fn memory_of_group() -> Option<(u64, u64)> {
    let groups = file::read_text(Path::new("/proc/self/cgroup")).unwrap_or_default();
    cgroup_folders(&groups)
        .iter()
        .filter_map(|group| group.limit_and_use(|path| file::read_text(path).ok()))
        .min_by_key(|(limit, used)| limit.saturating_sub(*used))
}

/// The total memory of the machine in bytes.
pub(crate) fn machine_memory() -> Option<u64> {
    let text = file::read_text(Path::new("/proc/meminfo")).ok()?;
    named_number(&text, "MemTotal:").map(|kilobytes| kilobytes * 1024)
}

/// The limit on processor time of a process in seconds, if there is one.
pub(crate) fn processor_seconds() -> Option<u64> {
    getrlimit(Resource::Cpu).current
}

/// The limit on address space of a process in bytes, if there is one.
pub(crate) fn address_space() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// The limit on open descriptors of a process.
pub(crate) fn most_open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Bytes free in /dev/shm, if there is one.
pub(crate) fn shared_memory_free() -> Option<u64> {
    let room = rustix::fs::statvfs("/dev/shm").ok()?;
    Some(room.f_bavail * room.f_frsize)
}

/// The number after a name at the start of a line.
fn named_number(text: &str, name: &str) -> Option<u64> {
    let has_name = |line: &&str| line.split_whitespace().next() == Some(name);
    text.lines().find(has_name)?.split_whitespace().nth(1)?.parse().ok()
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[derive(Debug, PartialEq, Eq)]
enum Hierarchy {
    One,
    Two,
}

#[derive(Debug, PartialEq, Eq)]
struct Group {
    hierarchy: Hierarchy,
    folder: PathBuf,
}

impl Group {
    /// The limit minus the used bytes. File cache that the kernel can drop does not count as used.
    fn headroom(&self, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
        let (limit, used) = self.limit_and_use(&read)?;
        let cache = match self.hierarchy {
            Hierarchy::One => "total_inactive_file",
            Hierarchy::Two => "inactive_file",
        };
        let droppable = read(&self.folder.join("memory.stat"))
            .and_then(|text| {
                let line = text.lines().find_map(|line| line.strip_prefix(cache))?;
                line.trim().parse::<u64>().ok()
            })
            .unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(droppable)))
    }
}

impl Group {
    /// The limit, and the bytes used. The kernel writes a huge number for no limit.
    fn limit_and_use(&self, read: impl Fn(&Path) -> Option<String>) -> Option<(u64, u64)> {
        let number = |name: &str| read(&self.folder.join(name))?.trim().parse::<u64>().ok();
        let (limit, used) = match self.hierarchy {
            Hierarchy::One => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?),
            Hierarchy::Two => (number("memory.max")?, number("memory.current")?),
        };
        (limit < 1 << 60).then_some((limit, used))
    }

    /// The number of kills by the OOM killer in it.
    fn kills(&self, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
        let name = match self.hierarchy {
            Hierarchy::One => "memory.oom_control",
            Hierarchy::Two => "memory.events",
        };
        named_number(&read(&self.folder.join(name))?, "oom_kill")
    }
}

/// The memory cgroups of this process, from /proc/self/cgroup, innermost first.
fn cgroup_folders(text: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (hierarchy, roots): (fn() -> Hierarchy, &[&str]) = if controllers.is_empty() {
            (|| Hierarchy::Two, &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"])
        } else if controllers.split(',').any(|name| name == "memory") {
            (|| Hierarchy::One, &["/sys/fs/cgroup/memory"])
        } else {
            continue;
        };
        for root in roots {
            let mut inside = Path::new(path.trim_start_matches('/'));
            loop {
                groups.push(Group { hierarchy: hierarchy(), folder: Path::new(root).join(inside) });
                match inside.parent() {
                    Some(parent) if !inside.as_os_str().is_empty() => inside = parent,
                    Some(_) | None => break,
                }
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroups_of_a_process_are_found_innermost_first() {
        let groups = cgroup_folders("4:memory:/a/b\n1:cpu:/x\n0::/job\n");
        let folders: Vec<_> = groups.iter().map(|group| group.folder.to_str().unwrap()).collect();
        assert_eq!(
            folders,
            [
                "/sys/fs/cgroup/memory/a/b",
                "/sys/fs/cgroup/memory/a",
                "/sys/fs/cgroup/memory/",
                "/sys/fs/cgroup/job",
                "/sys/fs/cgroup/",
                "/sys/fs/cgroup/unified/job",
                "/sys/fs/cgroup/unified/",
            ]
        );
    }

    #[test]
    fn droppable_file_cache_does_not_count_as_used() {
        let group = Group { hierarchy: Hierarchy::Two, folder: PathBuf::from("/g") };
        let headroom = group.headroom(|path| {
            Some(match path.to_str()? {
                "/g/memory.max" => "1000\n".to_owned(),
                "/g/memory.current" => "900\n".to_owned(),
                "/g/memory.stat" => "anon 1\ninactive_file 300\n".to_owned(),
                _ => return None,
            })
        });
        assert_eq!(headroom, Some(400));
    }

    #[test]
    fn oom_kills_are_read_in_both_hierarchies() {
        let read = |path: &Path| {
            Some(match path.to_str()? {
                "/one/memory.oom_control" => "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n".into(),
                "/two/memory.events" => "low 0\noom 7\noom_kill 5\n".into(),
                _ => return None,
            })
        };
        let kills =
            |hierarchy, folder: &str| Group { hierarchy, folder: folder.into() }.kills(read);
        assert_eq!(kills(Hierarchy::One, "/one"), Some(3));
        assert_eq!(kills(Hierarchy::Two, "/two"), Some(5));
        assert_eq!(kills(Hierarchy::Two, "/none"), None);
    }

    #[test]
    fn a_cgroup_without_a_limit_has_no_headroom() {
        let group = Group { hierarchy: Hierarchy::Two, folder: PathBuf::from("/g") };
        assert_eq!(group.headroom(|_| Some("max\n".to_owned())), None);
    }
}
