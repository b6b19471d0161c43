//! What this machine allows: descriptors, memory. Read once when a loader is made.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::{Path, PathBuf};

use super::file;

/// Raises the soft limit of open files to the hard one and returns what holds now. A refusal leaves
/// it as it is: the budget is then smaller, and nothing else changes.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_ok() {
        return limit.maximum.unwrap_or(u64::MAX);
    }
    limit.current.unwrap_or(u64::MAX)
}

/// How many descriptors this process has open.
pub fn open_files() -> u64 {
    file::list(Path::new("/proc/self/fd")).map_or(0, |entries| entries.len() as u64)
}

/// Bytes that may still be used before the machine, or a memory cgroup around this process, is full.
pub fn available_memory() -> u64 {
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
    /// The limit less what is used; file cache that the kernel can drop does not count as used.
    fn headroom(&self, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
        let number = |name: &str| read(&self.folder.join(name))?.trim().parse::<u64>().ok();
        let (limit, used, cache) = match self.hierarchy {
            Hierarchy::One => (
                number("memory.limit_in_bytes")?,
                number("memory.usage_in_bytes")?,
                "total_inactive_file",
            ),
            Hierarchy::Two => (number("memory.max")?, number("memory.current")?, "inactive_file"),
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

/// The memory cgroups around this process, from /proc/self/cgroup, innermost first.
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
    fn the_groups_around_a_process_are_found_innermost_first() {
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
    fn a_group_without_a_limit_says_nothing() {
        let group = Group { hierarchy: Hierarchy::Two, folder: PathBuf::from("/g") };
        assert_eq!(group.headroom(|_| Some("max\n".to_owned())), None);
    }
}
