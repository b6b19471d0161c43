//! Where facts about a machine come from: its own files, or a recording of those of another machine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::file;
use serde::Serialize;

/// The size of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Room {
    /// All of it, in bytes.
    pub bytes: u64,
    /// What this user can still write, in bytes.
    pub free_bytes: u64,
}

/// Files and other facts of a machine.
pub trait MachineFiles {
    /// The text of a small file, such as those under /proc and /sys; `None` if it cannot be read.
    fn read(&self, path: &Path) -> Option<String>;
    /// The names in a folder; `None` if it cannot be listed.
    fn names(&self, folder: &Path) -> Option<Vec<String>>;
    /// The size of the file system at a path.
    fn room(&self, path: &Path) -> Option<Room>;
    /// Whether this process may write to a file.
    fn is_writable(&self, path: &Path) -> bool;
}

/// The files of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFiles;

impl MachineFiles for RealFiles {
    fn read(&self, path: &Path) -> Option<String> {
        file::read_text(path).ok()
    }

    fn names(&self, folder: &Path) -> Option<Vec<String>> {
        file::names(folder).ok()
    }

    fn room(&self, path: &Path) -> Option<Room> {
        let room = rustix::fs::statvfs(path).ok()?;
        Some(Room {
            bytes: room.f_blocks * room.f_frsize,
            free_bytes: room.f_bavail * room.f_frsize,
        })
    }

    fn is_writable(&self, path: &Path) -> bool {
        rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
    }
}

const HEADING: &str = "== ";
const NAMES: &str = "names ";
const ROOM: &str = "room ";
const WRITABLE: &str = "writable ";

/// The files of another machine, as text: a line `== PATH` before the content of each file. What is no
/// file has a word before the path: `names` of a folder, `room` of a file system (all and free bytes),
/// and `writable` files, which have no content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedFiles(BTreeMap<String, String>);

impl RecordedFiles {
    /// Parses a recording. Lines before the first heading are a comment.
    pub fn parse(text: &str) -> RecordedFiles {
        let mut entries = BTreeMap::new();
        let mut current: Option<&mut String> = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix(HEADING) {
                current = Some(entries.entry(name.trim().to_owned()).or_default());
            } else if let Some(content) = &mut current {
                content.push_str(line);
                content.push('\n');
            }
        }
        RecordedFiles(entries)
    }

    fn entry(&self, kind: &str, path: &Path) -> Option<&String> {
        self.0.get(&format!("{kind}{}", path.display()))
    }
}

impl MachineFiles for RecordedFiles {
    fn read(&self, path: &Path) -> Option<String> {
        self.entry("", path).cloned()
    }

    fn names(&self, folder: &Path) -> Option<Vec<String>> {
        Some(self.entry(NAMES, folder)?.split_whitespace().map(str::to_owned).collect())
    }

    fn room(&self, path: &Path) -> Option<Room> {
        let mut numbers = self.entry(ROOM, path)?.split_whitespace().map(str::parse);
        let (bytes, free_bytes) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Room { bytes, free_bytes })
    }

    fn is_writable(&self, path: &Path) -> bool {
        self.entry(WRITABLE, path).is_some()
    }
}

/// Records all that is read of this machine, except about other processes: they are private, and many.
#[derive(Debug, Default)]
pub struct RecordingFiles(RefCell<BTreeMap<String, String>>);

impl RecordingFiles {
    /// The recording so far, in the form that `RecordedFiles` parses.
    pub fn text(&self) -> String {
        let entries = self.0.borrow();
        let entry = |(name, content): (&String, &String)| {
            let end = if content.is_empty() || content.ends_with('\n') { "" } else { "\n" };
            format!("{HEADING}{name}\n{content}{end}")
        };
        entries.iter().map(entry).collect()
    }

    fn keep(&self, kind: &str, path: &Path, content: String) {
        self.0.borrow_mut().insert(format!("{kind}{}", path.display()), content);
    }
}

fn is_of_others(path: &Path) -> bool {
    let name = path.strip_prefix("/proc").ok().and_then(|inside| inside.iter().next());
    name.is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
}

impl MachineFiles for RecordingFiles {
    fn read(&self, path: &Path) -> Option<String> {
        let content = RealFiles.read(path)?;
        if !is_of_others(path) {
            self.keep("", path, content.clone());
        }
        Some(content)
    }

    fn names(&self, folder: &Path) -> Option<Vec<String>> {
        let names = RealFiles.names(folder)?;
        if folder != Path::new("/proc") {
            self.keep(NAMES, folder, names.join(" "));
        }
        Some(names)
    }

    fn room(&self, path: &Path) -> Option<Room> {
        let room = RealFiles.room(path)?;
        self.keep(ROOM, path, format!("{} {}", room.bytes, room.free_bytes));
        Some(room)
    }

    fn is_writable(&self, path: &Path) -> bool {
        let is_writable = RealFiles.is_writable(path);
        if is_writable {
            self.keep(WRITABLE, path, String::new());
        }
        is_writable
    }
}

/// The folder of a process in /proc.
pub fn process_folder(pid: Option<u32>) -> PathBuf {
    pid.map_or_else(|| PathBuf::from("/proc/self"), |pid| PathBuf::from(format!("/proc/{pid}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_gives_back_what_was_recorded() {
        let recording = RecordingFiles::default();
        let (limits, absent) = (Path::new("/proc/self/limits"), Path::new("/proc/absent"));
        let read = recording.read(limits);
        let names = recording.names(Path::new("/proc/self/task"));
        let room = recording.room(Path::new("/"));
        assert!(recording.is_writable(Path::new("/dev/null")));
        assert_eq!(recording.read(absent), None);
        assert!(recording.read(Path::new("/proc/1/status")).is_some());
        assert!(recording.names(Path::new("/proc")).is_some());

        let recorded = RecordedFiles::parse(&format!("a comment\n{}", recording.text()));
        assert!(read.is_some() && recorded.read(limits) == read);
        assert!(names.is_some() && recorded.names(Path::new("/proc/self/task")) == names);
        assert!(room.is_some() && recorded.room(Path::new("/")) == room);
        assert!(recorded.is_writable(Path::new("/dev/null")));
        assert!(!recorded.is_writable(limits));
        assert_eq!(recorded.read(absent), None);
        assert_eq!(recorded.read(Path::new("/proc/1/status")), None);
        assert_eq!(recorded.names(Path::new("/proc")), None);
    }
}
