//! Files and folders. All descriptors of the core are opened here, by callers that hold a permit
//! for them.
#![expect(clippy::disallowed_methods, reason = "this is the one door to the file system")]

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::descriptor::{self, FileId};

/// A file opened for reading.
#[derive(Debug)]
pub struct Handle {
    file: ManuallyDrop<File>,
    file_id: FileId,
    /// Whether other code has closed the descriptor.
    is_lost: AtomicBool,
}

impl Handle {
    /// Opens `path` for reading.
    pub fn open(path: &Path) -> io::Result<Handle> {
        // Open without waiting: opening a pipe would block until another process writes to it.
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let file_id = descriptor::file_id(&file)?;
        Ok(Handle { file: ManuallyDrop::new(file), file_id, is_lost: AtomicBool::new(false) })
    }

    /// Checks whether the descriptor still refers to this file: other code in this process may have
    /// closed it. If so, the descriptor is neither used nor closed from then on.
    pub fn check_open(&self) -> bool {
        let is_ours = descriptor::file_id(&*self.file).is_ok_and(|now| now == self.file_id);
        if !is_ours {
            self.is_lost.store(true, Ordering::Release);
        }
        is_ours
    }

    /// The current size. Folders, pipes and devices are errors.
    pub fn size(&self) -> io::Result<u64> {
        let meta = self.file.metadata()?;
        if meta.is_file() {
            Ok(meta.len())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
        }
    }

    /// The size and the time of the last write, in nanoseconds since 1970.
    pub fn stamp(&self) -> io::Result<Stamp> {
        self.identity().map(|identity| identity.stamp)
    }

    /// Which file it is, and in which version.
    pub fn identity(&self) -> io::Result<Identity> {
        self.size()?;
        let meta = self.file.metadata()?;
        let changed = nanoseconds(meta.ctime(), meta.ctime_nsec());
        let inode = (meta.dev(), meta.ino());
        Ok(Identity { stamp: stamp_of(&meta), inode, changed })
    }

    /// Whether only this user, root, or the owner of `other` can have written to it.
    pub(crate) fn is_written_by_owner_of(&self, other: &Handle) -> io::Result<bool> {
        let (ours, others) = (self.file.metadata()?, other.file.metadata()?);
        let me = rustix::process::geteuid().as_raw();
        let owners = [me, 0, others.uid()];
        Ok(owners.contains(&ours.uid()) && ours.mode() & 0o022 == 0)
    }

    /// Fills `buffer` from `offset`, and continues after short reads and interruptions. Returns the
    /// number of bytes, which is smaller than asked for only at the end of the file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.is_lost.load(Ordering::Acquire) {
            // SAFETY: it is not used after the drop.
            unsafe { ManuallyDrop::drop(&mut self.file) }
        }
    }
}

/// Shows whether a file was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The size in bytes.
    pub size: u64,
    /// The time of the last write, in nanoseconds since 1970.
    pub written: i64,
}

fn stamp_of(meta: &fs::Metadata) -> Stamp {
    Stamp { size: meta.len(), written: nanoseconds(meta.mtime(), meta.mtime_nsec()) }
}

fn nanoseconds(seconds: i64, rest: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Shows whether a path still refers to the same file with the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The size and the time of the last write.
    pub stamp: Stamp,
    /// The device and the inode number.
    inode: (u64, u64),
    /// When its name, owner or content last changed.
    changed: i64,
}

impl Identity {
    /// Whether this is another file than before, or the same file was changed.
    pub fn differs(&self, before: &Identity) -> bool {
        // A replacement with the same size and time has another inode and a later change time. The
        // inode alone proves nothing: some network file systems assign new ones while mounted.
        let is_same_device = self.inode.0 == before.inode.0;
        let is_replaced = self.inode != before.inode && self.changed != before.changed;
        self.stamp != before.stamp || (is_same_device && is_replaced)
    }
}

/// The kind of a folder entry, after following links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file, or a link to one.
    File,
    /// A folder, or a link to one.
    Folder,
    /// A link whose target does not exist.
    BrokenLink,
    /// A pipe, socket or device.
    Other,
}

/// One entry of a folder.
#[derive(Debug)]
pub struct FolderEntry {
    /// The folder's path and the entry's name.
    pub path: PathBuf,
    /// What it is.
    pub kind: EntryKind,
}

/// The entries of a folder, in no order. Only links cost an extra system call, for their target.
pub fn list(folder: &Path) -> io::Result<Vec<FolderEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, found) = (entry.path(), entry.file_type()?);
        let kind = if found.is_file() {
            EntryKind::File
        } else if found.is_dir() {
            EntryKind::Folder
        } else if found.is_symlink() {
            match fs::metadata(&path) {
                Ok(target) if target.is_file() => EntryKind::File,
                Ok(target) if target.is_dir() => EntryKind::Folder,
                Ok(_) => EntryKind::Other,
                Err(_) => EntryKind::BrokenLink,
            }
        } else {
            EntryKind::Other
        };
        entries.push(FolderEntry { path, kind });
    }
    Ok(entries)
}

/// The names in a folder, in no order, without a look at what they are.
pub fn names(folder: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    fs::read_dir(folder)?.map(name).collect()
}

/// Where a link leads.
pub fn read_link(path: &Path) -> io::Result<PathBuf> {
    fs::read_link(path)
}

/// The size of a file.
pub fn size(path: &Path) -> io::Result<u64> {
    fs::metadata(path).map(|meta| meta.len())
}

/// The size of a file and the time of the last write to it. Folders, pipes and devices are errors.
pub(crate) fn stamp(path: &Path) -> io::Result<Stamp> {
    let meta = fs::metadata(path)?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(stamp_of(&meta))
}

/// Sets the time of the last write to a file to now.
pub(crate) fn touch(path: &Path) -> io::Result<()> {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    Ok(rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty())?)
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// A name that no other process on any machine uses.
pub(crate) fn unique_name() -> String {
    let random = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", random(), random())
}

/// Identifies a folder, to detect cycles of links.
pub fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

/// Reads a small text file, such as those under /proc.
pub fn read_text(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
}

/// Writes a small file; creates its folders.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes)
}

/// A file to which several processes can append lines. Each line is one write at the end of the
/// file, and is on disk when `add` returns.
#[derive(Debug)]
pub struct Lines {
    file: File,
    file_id: FileId,
}

impl Lines {
    /// Opens the file; creates it and its folders if they do not exist.
    pub fn open(path: &Path) -> io::Result<Lines> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
        let file_id = descriptor::file_id(&file)?;
        Ok(Lines { file, file_id })
    }

    /// Returns `None` if other code in this process has closed the descriptor: its number may refer
    /// to another file, which must be neither written to nor closed.
    pub(crate) fn still_open(self) -> Option<Lines> {
        if descriptor::file_id(&self.file).is_ok_and(|now| now == self.file_id) {
            return Some(self);
        }
        std::mem::forget(self);
        None
    }

    /// Appends a line.
    pub fn add(&self, line: &str) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(line.len() + 2);
        // A killed writer may have left half a line: it must not become a part of this one.
        let length = self.file.metadata()?.len();
        let mut last = [b'\n'];
        if length > 0 && self.file.read_at(&mut last, length - 1)? == 1 && last != *b"\n" {
            bytes.push(b'\n');
        }
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
        let written = loop {
            match (&self.file).write(&bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome?,
            }
        };
        if written < bytes.len() {
            let message = format!("only {written} of {} bytes were written", bytes.len());
            return Err(io::Error::new(io::ErrorKind::StorageFull, message));
        }
        self.file.sync_data()
    }
}

/// Reads a whole file of the user's data, whatever its size.
pub fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path)
}

/// Reads a whole file that lies next to the data. Pipes and devices, which may be endless, and
/// files of more than `max_bytes` are errors.
pub(crate) fn read_bounded(handle: &Handle, max_bytes: u64) -> io::Result<Vec<u8>> {
    let size = handle.size()?;
    if size > max_bytes {
        let message = format!("the file has {size} bytes, more than the {max_bytes} allowed");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    let mut bytes = Vec::new();
    let refused = |_| io::Error::from(io::ErrorKind::OutOfMemory);
    bytes.try_reserve_exact(size as usize).map_err(refused)?;
    bytes.resize(size as usize, 0);
    let count = handle.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Whether the path is a folder.
pub fn is_folder(path: &Path) -> bool {
    path.is_dir()
}

/// Whether the path is a link, wherever it leads.
pub fn is_link(path: &Path) -> bool {
    path.is_symlink()
}

/// Creates a folder and its parents.
pub fn make_folder(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// One entry of a folder, if there is any.
pub fn first_entry(folder: &Path) -> io::Result<Option<PathBuf>> {
    fs::read_dir(folder)?.next().transpose().map(|entry| entry.map(|entry| entry.path()))
}

/// The mount points of all file systems.
pub(crate) fn mounts() -> io::Result<Vec<PathBuf>> {
    let text = fs::read("/proc/self/mountinfo")?;
    let lines = text.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    Ok(points.map(|point| PathBuf::from(OsString::from_vec(unescape_octal(point)))).collect())
}

/// Replaces `\040` and other octal escapes.
pub(super) fn unescape_octal(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, code) {
            (b'\\', Some(code)) => {
                plain.push(code);
                rest = &more[3..];
            }
            _ => {
                plain.push(*first);
                rest = more;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found_and_unescaped() {
        assert!(mounts().unwrap().contains(&PathBuf::from("/proc")));
        assert_eq!(unescape_octal(br"/mnt/my\040data\134x"), b"/mnt/my data\\x");
        assert_eq!(unescape_octal(br"/a\9"), br"/a\9");
    }
}
