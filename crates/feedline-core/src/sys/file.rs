//! Files and folders. Every descriptor of the core is opened here, by callers who hold a permit for it.
#![expect(clippy::disallowed_methods, reason = "this is the one door to the file system")]

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::descriptor::{self, Place};

/// A file opened for reading.
#[derive(Debug)]
pub struct Handle {
    file: ManuallyDrop<File>,
    place: Place,
    /// Somebody else has closed the descriptor.
    is_lost: AtomicBool,
}

impl Handle {
    /// Opens `path` for reading.
    pub fn open(path: &Path) -> io::Result<Handle> {
        // Without waiting: opening a pipe would last until somebody writes to it.
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let place = descriptor::place(&file)?;
        Ok(Handle { file: ManuallyDrop::new(file), place, is_lost: AtomicBool::new(false) })
    }

    /// Looks whether the descriptor is still that of this file: other code of this process may have
    /// closed it. If it has, the descriptor is left alone from then on.
    pub fn check_open(&self) -> bool {
        let is_ours = descriptor::place(&*self.file).is_ok_and(|place| place == self.place);
        if !is_ours {
            self.is_lost.store(true, Ordering::Release);
        }
        is_ours
    }

    /// Its size now; a folder, pipe or device is refused.
    pub fn size(&self) -> io::Result<u64> {
        let meta = self.file.metadata()?;
        if meta.is_file() {
            Ok(meta.len())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
        }
    }

    /// Its size and when it was last written, in nanoseconds since 1970.
    pub fn stamp(&self) -> io::Result<Stamp> {
        self.identity().map(|identity| identity.stamp)
    }

    /// Which file it is, and as of when.
    pub fn identity(&self) -> io::Result<Identity> {
        self.size()?;
        let meta = self.file.metadata()?;
        let changed = nanoseconds(meta.ctime(), meta.ctime_nsec());
        let place = (meta.dev(), meta.ino());
        Ok(Identity { stamp: stamp_of(&meta), place, changed })
    }

    /// Whether no other user can have written to it, but for the owner of `other`.
    pub(crate) fn is_written_by_owner_of(&self, other: &Handle) -> io::Result<bool> {
        let (ours, others) = (self.file.metadata()?, other.file.metadata()?);
        let me = rustix::process::geteuid().as_raw();
        let owners = [me, 0, others.uid()];
        Ok(owners.contains(&ours.uid()) && ours.mode() & 0o022 == 0)
    }

    /// Fills `buffer` from `offset`, going on after short reads and interruptions. Returns how many
    /// bytes there were: fewer than asked for only at the end of the file.
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
            // SAFETY: nobody uses it after the drop.
            unsafe { ManuallyDrop::drop(&mut self.file) }
        }
    }
}

/// What tells whether a file was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// In bytes.
    pub size: u64,
    /// When it was last written, in nanoseconds since 1970.
    pub written: i64,
}

fn stamp_of(meta: &fs::Metadata) -> Stamp {
    Stamp { size: meta.len(), written: nanoseconds(meta.mtime(), meta.mtime_nsec()) }
}

fn nanoseconds(seconds: i64, rest: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// What tells whether a name still means the same file, with the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its size and when it was written.
    pub stamp: Stamp,
    /// The device and the number of the file there.
    place: (u64, u64),
    /// When its name, owner or content was last changed.
    changed: i64,
}

impl Identity {
    /// Whether this is not the file that it was before, or not as it was.
    pub fn differs(&self, before: &Identity) -> bool {
        // A file of the same size and time in the place of another has another number, and was put there later.
        // The number alone says nothing: some network file systems give new ones while they run.
        let is_same_device = self.place.0 == before.place.0;
        let is_replaced = self.place != before.place && self.changed != before.changed;
        self.stamp != before.stamp || (is_same_device && is_replaced)
    }
}

/// What an entry of a folder is, links followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file, or a link to one.
    File,
    /// A folder, or a link to one.
    Folder,
    /// A link to nothing.
    BrokenLink,
    /// A pipe, socket or device.
    Other,
}

/// One entry of a folder.
#[derive(Debug)]
pub struct Entry {
    /// The folder's path and the entry's name.
    pub path: PathBuf,
    /// What it is.
    pub kind: EntryKind,
}

/// The entries of a folder, in no order. Only links cost a look at what they point to.
pub fn list(folder: &Path) -> io::Result<Vec<Entry>> {
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
        entries.push(Entry { path, kind });
    }
    Ok(entries)
}

/// How large a file is.
pub fn size(path: &Path) -> io::Result<u64> {
    fs::metadata(path).map(|meta| meta.len())
}

/// What identifies a folder, so that a cycle of links is noticed.
pub fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

/// A small text file, such as those under /proc.
pub fn read_text(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
}

/// Writes a small file, with its folders.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes)
}

/// A file that lines are added to, by as many processes as like: each line in one write, at the end of
/// the file, and on the disk when `add` returns.
#[derive(Debug)]
pub struct Lines {
    file: File,
    place: Place,
}

impl Lines {
    /// Opens it, or makes it, with its folders.
    pub fn open(path: &Path) -> io::Result<Lines> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
        let place = descriptor::place(&file)?;
        Ok(Lines { file, place })
    }

    /// None if other code of this process has closed the descriptor: what is behind it now is not ours
    /// to write to, nor to close.
    pub(crate) fn still_open(self) -> Option<Lines> {
        if descriptor::place(&self.file).is_ok_and(|place| place == self.place) {
            return Some(self);
        }
        std::mem::forget(self);
        None
    }

    /// Adds a line.
    pub fn add(&self, line: &str) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(line.len() + 2);
        // A writer that was killed may have left half a line: it must not become a part of this one.
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

/// All of a sample's file that the user named, whatever its size.
pub fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path)
}

/// All of a file that lies beside the data: no pipe and no device, which could go on for ever, and no more than `most`
/// bytes.
pub(crate) fn read_bounded(handle: &Handle, most: u64) -> io::Result<Vec<u8>> {
    let size = handle.size()?;
    if size > most {
        let message = format!("it has {size} bytes, and more than {most} are not read");
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

/// Whether there is a folder of that name.
pub fn is_folder(path: &Path) -> bool {
    path.is_dir()
}

/// Whether that name is a link, wherever it leads.
pub fn is_link(path: &Path) -> bool {
    path.is_symlink()
}

/// Makes a folder, with those it lies in.
pub fn make_folder(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// One entry of a folder, if it has any.
pub fn first_entry(folder: &Path) -> io::Result<Option<PathBuf>> {
    fs::read_dir(folder)?.next().transpose().map(|entry| entry.map(|entry| entry.path()))
}

/// Where file systems are mounted.
pub(crate) fn mounts() -> io::Result<Vec<PathBuf>> {
    let text = fs::read("/proc/self/mountinfo")?;
    let lines = text.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    Ok(points.map(|point| PathBuf::from(OsString::from_vec(without_octal(point)))).collect())
}

/// Spaces and the like are written as `\040` there.
fn without_octal(text: &[u8]) -> Vec<u8> {
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
    fn mounts_are_found_and_their_names_read() {
        assert!(mounts().unwrap().contains(&PathBuf::from("/proc")));
        assert_eq!(without_octal(br"/mnt/my\040data\134x"), b"/mnt/my data\\x");
        assert_eq!(without_octal(br"/a\9"), br"/a\9");
    }
}
