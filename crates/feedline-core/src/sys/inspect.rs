//! What a process holds: descriptors by kind, memory, threads, children. For people who look at a program
//! that runs; it reads /proc, and changes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::file;
use super::limits::named_number;

/// What a descriptor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DescriptorKind {
    /// A file or folder.
    File,
    /// A segment in /dev/shm, such as torch's tensors.
    SharedMemory,
    /// Anonymous memory, such as Feedline's arenas.
    Memfd,
    /// A socket.
    Socket,
    /// A pipe.
    Pipe,
    /// A counter to wait for.
    Eventfd,
    /// A set of descriptors to wait for.
    Epoll,
    /// A device, such as a GPU or a terminal.
    Device,
    /// Another kernel object: a timer, a process, a watcher.
    Other,
}

impl DescriptorKind {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            DescriptorKind::File => "files",
            DescriptorKind::SharedMemory => "shared memory",
            DescriptorKind::Memfd => "memfd",
            DescriptorKind::Socket => "sockets",
            DescriptorKind::Pipe => "pipes",
            DescriptorKind::Eventfd => "eventfd",
            DescriptorKind::Epoll => "epoll",
            DescriptorKind::Device => "devices",
            DescriptorKind::Other => "others",
        }
    }

    /// The kind of a link in /proc/PID/fd.
    pub fn of(target: &str) -> DescriptorKind {
        if target.starts_with("/dev/shm/") {
            DescriptorKind::SharedMemory
        } else if target.starts_with("/memfd:") {
            DescriptorKind::Memfd
        } else if target.starts_with("/dev/") {
            DescriptorKind::Device
        } else if target.starts_with('/') {
            DescriptorKind::File
        } else if target.starts_with("socket:") {
            DescriptorKind::Socket
        } else if target.starts_with("pipe:") {
            DescriptorKind::Pipe
        } else if target.contains("[eventfd]") {
            DescriptorKind::Eventfd
        } else if target.contains("[eventpoll]") {
            DescriptorKind::Epoll
        } else {
            DescriptorKind::Other
        }
    }
}

/// The open descriptors of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Descriptors {
    /// All of them.
    pub count: u64,
    /// How many of each kind, most first.
    pub by_kind: Vec<(DescriptorKind, u64)>,
    /// The files that are open most often, most first.
    pub paths: Vec<(String, u64)>,
}

/// How many paths are named.
const NAMED_PATHS: usize = 10;
/// Up to which number descriptors are looked at one by one.
const MOST_NUMBERS: u64 = 1 << 16;

impl Descriptors {
    /// Counts the targets of the links in /proc/PID/fd.
    pub fn of_targets(targets: &[String]) -> Descriptors {
        let (mut kinds, mut paths) = (BTreeMap::new(), BTreeMap::new());
        for target in targets {
            let kind = DescriptorKind::of(target);
            *kinds.entry(kind).or_insert(0) += 1;
            if matches!(kind, DescriptorKind::File | DescriptorKind::SharedMemory) {
                let path = target.strip_suffix(" (deleted)").unwrap_or(target);
                *paths.entry(path.to_owned()).or_insert(0) += 1;
            }
        }
        let mut by_kind: Vec<_> = kinds.into_iter().collect();
        by_kind.sort_by_key(|(kind, count)| (std::cmp::Reverse(*count), *kind));
        let mut paths: Vec<_> = paths.into_iter().collect();
        paths.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        paths.truncate(NAMED_PATHS);
        Descriptors { count: targets.len() as u64, by_kind, paths }
    }

    /// Those of this process, also if it has no descriptor left: to list a folder needs one.
    pub fn here() -> Descriptors {
        let most = super::limits::most_open_files().min(MOST_NUMBERS);
        let targets = (0..most).filter_map(|number| {
            let link = file::read_link(Path::new(&format!("/proc/self/fd/{number}"))).ok()?;
            Some(link.to_string_lossy().into_owned())
        });
        Descriptors::of_targets(&targets.collect::<Vec<_>>())
    }

    /// Those of a process; the system refuses for processes of other users.
    pub fn of_process(pid: u32) -> io::Result<Descriptors> {
        let folder = PathBuf::from(format!("/proc/{pid}/fd"));
        let names = file::names(&folder)?;
        // A descriptor may be closed in the meantime.
        let targets = names.iter().filter_map(|name| file::read_link(&folder.join(name)).ok());
        let targets: Vec<_> = targets.map(|path| path.to_string_lossy().into_owned()).collect();
        Ok(Descriptors::of_targets(&targets))
    }
}

/// "60 descriptors: 55 files, 3 pipes, 2 sockets; most often open: a.tar (50), b.tar"
impl fmt::Display for Descriptors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.by_kind.is_empty() {
            // To list them takes a descriptor, too.
            return write!(formatter, "descriptors that cannot be listed");
        }
        let kinds: Vec<_> =
            self.by_kind.iter().map(|(kind, count)| format!("{count} {}", kind.name())).collect();
        write!(formatter, "{} descriptors: {}", self.count, kinds.join(", "))?;
        let paths: Vec<_> = self
            .paths
            .iter()
            .map(
                |(path, count)| {
                    if *count > 1 { format!("{path} ({count})") } else { path.clone() }
                },
            )
            .collect();
        if paths.is_empty() {
            return Ok(());
        }
        write!(formatter, "; most often open: {}", paths.join(", "))
    }
}

/// A process at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessView {
    /// Its id.
    pub pid: u32,
    /// The id of its parent.
    pub parent: u32,
    /// Its name, as the kernel knows it.
    pub name: String,
    /// The state letter of /proc: R runs, S sleeps, D waits for a device, T is stopped, Z has ended.
    pub state: char,
    /// Its threads.
    pub threads: u64,
    /// Its resident memory in bytes, shared pages included.
    pub resident_bytes: u64,
    /// Its share of memory in bytes: pages that several processes share are divided among them. `None` for
    /// processes of other users.
    pub share_bytes: Option<u64>,
    /// Its address space in bytes.
    pub address_bytes: u64,
    /// Its memory mappings.
    pub mappings: Option<u64>,
    /// Its descriptors; `None` for processes of other users.
    pub descriptors: Option<Descriptors>,
}

impl ProcessView {
    /// Looks at a process; `None` if there is none.
    pub fn of(pid: u32) -> Option<ProcessView> {
        let read = |name: &str| file::read_text(Path::new(&format!("/proc/{pid}/{name}"))).ok();
        let status = read("status")?;
        let word = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().to_owned())
        };
        let kilobytes = |text: &str, name: &str| {
            named_number(text, name).map(|number| number.saturating_mul(1024))
        };
        Some(ProcessView {
            pid,
            parent: named_number(&status, "PPid:").and_then(|id| id.try_into().ok()).unwrap_or(0),
            name: word("Name:").unwrap_or_default(),
            state: word("State:").and_then(|state| state.chars().next()).unwrap_or('?'),
            threads: named_number(&status, "Threads:").unwrap_or(1),
            resident_bytes: kilobytes(&status, "VmRSS:").unwrap_or(0),
            share_bytes: read("smaps_rollup").and_then(|text| kilobytes(&text, "Pss:")),
            address_bytes: kilobytes(&status, "VmSize:").unwrap_or(0),
            mappings: read("maps").map(|text| text.lines().count() as u64),
            descriptors: Descriptors::of_process(pid).ok(),
        })
    }
}

/// The ids of all processes below a process, parents before children.
pub fn descendants(pid: u32) -> Vec<u32> {
    let names = file::names(Path::new("/proc")).unwrap_or_default();
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for id in names.iter().filter_map(|name| name.parse::<u32>().ok()) {
        let Ok(stat) = file::read_text(Path::new(&format!("/proc/{id}/stat"))) else { continue };
        if let Some(parent) = parent(&stat) {
            children.entry(parent).or_default().push(id);
        }
    }
    let (mut found, mut next) = (Vec::new(), 0);
    found.extend(children.remove(&pid).unwrap_or_default());
    while let Some(child) = found.get(next).copied() {
        found.extend(children.remove(&child).unwrap_or_default());
        next += 1;
    }
    found
}

/// The parent in /proc/PID/stat. The process name in it may contain anything.
fn parent(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_counted_by_kind_and_path() {
        let targets = [
            "/data/a.tar",
            "/data/a.tar",
            "/data/b.tar (deleted)",
            "/dev/shm/torch_4411_7 (deleted)",
            "/memfd:feedline (deleted)",
            "/dev/nvidia0",
            "socket:[17]",
            "pipe:[3]",
            "anon_inode:[eventfd]",
            "anon_inode:[eventpoll]",
            "anon_inode:[pidfd]",
        ]
        .map(str::to_owned);
        let counted = Descriptors::of_targets(&targets);
        assert_eq!(counted.count, 11);
        assert_eq!(counted.by_kind[0], (DescriptorKind::File, 3));
        assert_eq!(counted.by_kind.len(), 9, "each kind once: {:?}", counted.by_kind);
        assert_eq!(counted.paths[0], ("/data/a.tar".to_owned(), 2));
        assert_eq!(counted.paths[1], ("/data/b.tar".to_owned(), 1));
    }

    #[test]
    fn this_process_is_seen_as_it_is() {
        let view = ProcessView::of(std::process::id()).unwrap();
        assert!(view.threads >= 1 && view.resident_bytes > 0 && view.mappings.unwrap() > 1);
        assert!(view.descriptors.unwrap().count >= 3);
        assert!(descendants(view.parent).contains(&view.pid));
        assert_eq!(ProcessView::of(u32::MAX), None);
    }

    #[test]
    fn a_parent_is_found_whatever_the_name_of_the_process() {
        assert_eq!(parent("7 (a) b)) S 41 7 7 0"), Some(41));
        assert_eq!(parent("nothing"), None);
    }
}
