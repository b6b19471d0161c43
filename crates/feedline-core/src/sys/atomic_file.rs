//! Writes files atomically: a file is complete or does not exist. A draft has no name until it is
//! finished, so a killed process leaves nothing behind if the file system supports unnamed files.
//! Where a draft needs a name, the name is unpredictable, and an existing link of that name is not
//! followed.
#![expect(clippy::disallowed_methods, reason = "drafts are a part of the door to the file system")]

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Writes a file so that a reader sees either the old or the new content. Only the owner may write
/// to it.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut atomic_file = AtomicFile::guarded(path)?;
    atomic_file.add(bytes)?;
    atomic_file.finish(Existing::Replaced)
}

/// The size of the write buffer in bytes.
const BUFFER: usize = 1 << 20;
/// The folder in which each descriptor has a name.
const DESCRIPTORS: &str = "/proc/self/fd";
/// The number of retries with another name.
const MAX_RETRIES: usize = 16;

/// What to do with an existing file of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Keep it; finishing is an error.
    Stays,
    /// Replace it.
    Replaced,
}

/// A file that is being written.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    path: PathBuf,
    /// Its temporary name, if it needs one.
    named: Option<PathBuf>,
    buffer: Vec<u8>,
}

impl AtomicFile {
    /// Begins to write a file; creates its folders.
    pub fn new(path: &Path) -> io::Result<AtomicFile> {
        fs::create_dir_all(folder_of(path))?;
        AtomicFile::with_mode(path, 0o666)
    }

    /// Like `new`, for a file that others may read but not write to.
    pub(crate) fn guarded(path: &Path) -> io::Result<AtomicFile> {
        fs::create_dir_all(folder_of(path))?;
        AtomicFile::with_mode(path, 0o644)
    }

    /// Like `new`, for a file and folders that only the owner can access.
    pub(crate) fn private(path: &Path) -> io::Result<AtomicFile> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder_of(path))?;
        AtomicFile::with_mode(path, 0o600)
    }

    fn with_mode(path: &Path, mode: u32) -> io::Result<AtomicFile> {
        let unnamed = match Path::new(DESCRIPTORS).exists() {
            true => {
                let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
                let opened = rustix::fs::open(folder_of(path), flags, Mode::from_raw_mode(mode));
                opened.ok().map(File::from)
            }
            false => None,
        };
        let (file, named) = match unnamed {
            Some(file) => (file, None),
            None => {
                let (name, opened) = AtomicFile::named(path, mode)?;
                (opened, Some(name))
            }
        };
        Ok(AtomicFile { file, path: path.to_owned(), named, buffer: Vec::new() })
    }

    /// Creates a file under a hidden name. An existing file or link is not touched.
    fn named(path: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
        let mut tries = 0;
        loop {
            let name = temporary_name(path);
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&name) {
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && tries < MAX_RETRIES =>
                {
                    tries += 1;
                }
                created => return created.map(|file| (name, file)),
            }
        }
    }

    /// Appends bytes.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER {
            self.flush()?;
        }
        if bytes.len() >= BUFFER {
            return self.file.write_all(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Waits until all bytes are on disk.
    pub fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        self.file.sync_data()
    }

    /// Gives the file its name.
    pub fn finish(mut self, existing: Existing) -> io::Result<()> {
        self.flush()?;
        match (&self.named, existing) {
            (None, Existing::Stays) => self.link(&self.path),
            (None, Existing::Replaced) => {
                let name = self.link_temporary()?;
                let renamed = fs::rename(&name, &self.path);
                if renamed.is_err() {
                    let _ = fs::remove_file(&name);
                }
                renamed
            }
            (Some(name), Existing::Stays) => {
                match rustix::fs::renameat_with(CWD, name, CWD, &self.path, RenameFlags::NOREPLACE)
                {
                    Err(rustix::io::Errno::INVAL) if !self.path.exists() => {
                        fs::rename(name, &self.path)
                    }
                    Err(rustix::io::Errno::INVAL) => Err(rustix::io::Errno::EXIST.into()),
                    renamed => Ok(renamed?),
                }
            }
            (Some(name), Existing::Replaced) => fs::rename(name, &self.path),
        }
    }

    /// Gives the file a hidden temporary name.
    fn link_temporary(&self) -> io::Result<PathBuf> {
        let mut tries = 0;
        loop {
            let name = temporary_name(&self.path);
            match self.link(&name) {
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && tries < MAX_RETRIES =>
                {
                    tries += 1;
                }
                linked => return linked.map(|()| name),
            }
        }
    }

    fn link(&self, name: &Path) -> io::Result<()> {
        let file = format!("{DESCRIPTORS}/{}", self.file.as_raw_fd());
        Ok(rustix::fs::linkat(CWD, file, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(name) = &self.named {
            // If it was finished, this name no longer exists.
            let _ = fs::remove_file(name);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A hidden, unpredictable name in the same folder.
fn temporary_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A name close to the maximum length leaves no room for a suffix.
    let name: String = name.chars().take(100).collect();
    let random = RandomState::new().hash_one(std::process::id());
    folder_of(path).join(format!(".{name}.{random:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;

    fn names(folder: &Path) -> Vec<PathBuf> {
        let mut names: Vec<_> =
            file::list(folder).unwrap().into_iter().map(|entry| entry.path).collect();
        names.sort();
        names
    }

    /// As on a file system without unnamed files.
    fn named(path: &Path) -> AtomicFile {
        let (name, file) = AtomicFile::named(path, 0o666).unwrap();
        AtomicFile { file, path: path.to_owned(), named: Some(name), buffer: Vec::new() }
    }

    #[test]
    fn a_draft_has_no_name_until_it_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/a.bin");
        let mut atomic_file = AtomicFile::new(&path).unwrap();
        let large = vec![7; BUFFER + 1];
        atomic_file.add(b"one").unwrap();
        atomic_file.add(&large).unwrap();
        atomic_file.add(b"two").unwrap();
        atomic_file.sync().unwrap();
        assert_eq!(names(path.parent().unwrap()), [] as [PathBuf; 0]);
        atomic_file.finish(Existing::Stays).unwrap();
        assert_eq!(file::read_bytes(&path).unwrap(), [&b"one"[..], &large, b"two"].concat());
        assert_eq!(names(path.parent().unwrap()), std::slice::from_ref(&path));
    }

    #[test]
    fn an_existing_file_stays_unless_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        for (name, begin) in [
            ("a", (|path| AtomicFile::new(path).unwrap()) as fn(&Path) -> AtomicFile),
            ("b", named),
        ] {
            let path = folder.path().join(name);
            for (text, existing) in [
                ("first", Existing::Stays),
                ("second", Existing::Stays),
                ("third", Existing::Replaced),
            ] {
                let mut atomic_file = begin(&path);
                atomic_file.add(text.as_bytes()).unwrap();
                let finished = atomic_file.finish(existing).map_err(|error| error.kind());
                let (outcome, there) = match text {
                    "second" => (Err(io::ErrorKind::AlreadyExists), "first"),
                    _ => (Ok(()), text),
                };
                assert_eq!(finished, outcome, "{name} {text}");
                assert_eq!(file::read_text(&path).unwrap(), there, "{name}");
            }
        }
        assert_eq!(names(folder.path()).len(), 2);
    }

    #[test]
    fn no_link_to_another_file_is_followed() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (victim, path) = (folder.path().join("victim"), folder.path().join("a.index"));
        file::write(&victim, b"precious").unwrap();
        // The name that an earlier version gave to drafts, and the name of the file itself.
        let known = folder.path().join(format!(".a.index.{}", std::process::id()));
        for name in [&known, &path] {
            std::os::unix::fs::symlink(&victim, name).unwrap();
        }
        replace(&path, b"index").unwrap();
        assert_eq!(file::read_text(&victim).unwrap(), "precious");
        assert_eq!(file::read_text(&path).unwrap(), "index");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        let private = folder.path().join("cache/b.index");
        AtomicFile::private(&private).unwrap().finish(Existing::Replaced).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&private), mode(private.parent().unwrap())), (0o600, 0o700));
        assert_eq!(mode(&path) & 0o022, 0);
    }

    #[test]
    fn an_unfinished_draft_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for mut atomic_file in [AtomicFile::new(&path).unwrap(), named(&path)] {
            atomic_file.add(b"half").unwrap();
            atomic_file.sync().unwrap();
        }
        assert_eq!(names(folder.path()), [] as [PathBuf; 0]);
    }
}
