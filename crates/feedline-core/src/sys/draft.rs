//! Files that are whole or not there: a draft has no name until it is finished. Whoever is killed leaves
//! nothing behind, where the file system can have files without a name.
#![expect(clippy::disallowed_methods, reason = "drafts are a part of the door to the file system")]

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Bytes that are written at once.
const BUFFER: usize = 1 << 20;
/// Where a descriptor has a name.
const DESCRIPTORS: &str = "/proc/self/fd";

/// What becomes of a file that has the name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and finishing is an error.
    Stays,
    /// It is replaced.
    Replaced,
}

/// A file that is being written.
#[derive(Debug)]
pub struct Draft {
    file: File,
    path: PathBuf,
    /// Its own name, where it must have one.
    named: Option<PathBuf>,
    buffer: Vec<u8>,
}

impl Draft {
    /// Begins what will be a file of that name; makes the folders for it.
    pub fn new(path: &Path) -> io::Result<Draft> {
        let folder = folder_of(path);
        fs::create_dir_all(folder)?;
        let nameless = match Path::new(DESCRIPTORS).exists() {
            true => {
                let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666)).ok().map(File::from)
            }
            false => None,
        };
        let (file, named) = match nameless {
            Some(file) => (file, None),
            None => {
                let name = beside(path);
                let made =
                    OpenOptions::new().write(true).create(true).truncate(true).open(&name)?;
                (made, Some(name))
            }
        };
        Ok(Draft { file, path: path.to_owned(), named, buffer: Vec::new() })
    }

    /// Adds bytes.
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

    /// Waits until all of it is on the disk.
    pub fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        self.file.sync_data()
    }

    /// Gives it its name.
    pub fn finish(mut self, existing: Existing) -> io::Result<()> {
        self.flush()?;
        match (&self.named, existing) {
            (None, Existing::Stays) => self.link(&self.path),
            (None, Existing::Replaced) => {
                let name = beside(&self.path);
                let _ = fs::remove_file(&name);
                self.link(&name)?;
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

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(name) = &self.named {
            // It has another name by now if it was finished.
            let _ = fs::remove_file(name);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A hidden name in the same folder.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    folder_of(path).join(format!(".{name}.{}", std::process::id()))
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

    /// As it is where the file system knows no files without a name.
    fn named(path: &Path) -> Draft {
        let name = beside(path);
        let file = File::create(&name).unwrap();
        Draft { file, path: path.to_owned(), named: Some(name), buffer: Vec::new() }
    }

    #[test]
    fn a_draft_has_no_name_until_it_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/a.bin");
        let mut draft = Draft::new(&path).unwrap();
        let large = vec![7; BUFFER + 1];
        draft.add(b"one").unwrap();
        draft.add(&large).unwrap();
        draft.add(b"two").unwrap();
        draft.sync().unwrap();
        assert_eq!(names(path.parent().unwrap()), [] as [PathBuf; 0]);
        draft.finish(Existing::Stays).unwrap();
        assert_eq!(file::read_bytes(&path).unwrap(), [&b"one"[..], &large, b"two"].concat());
        assert_eq!(names(path.parent().unwrap()), std::slice::from_ref(&path));
    }

    #[test]
    fn what_exists_stays_unless_it_is_to_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        for (name, begin) in
            [("a", (|path| Draft::new(path).unwrap()) as fn(&Path) -> Draft), ("b", named)]
        {
            let path = folder.path().join(name);
            for (text, existing) in [
                ("first", Existing::Stays),
                ("second", Existing::Stays),
                ("third", Existing::Replaced),
            ] {
                let mut draft = begin(&path);
                draft.add(text.as_bytes()).unwrap();
                let finished = draft.finish(existing).map_err(|error| error.kind());
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
    fn a_draft_that_is_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for mut draft in [Draft::new(&path).unwrap(), named(&path)] {
            draft.add(b"half").unwrap();
            draft.sync().unwrap();
        }
        assert_eq!(names(folder.path()), [] as [PathBuf; 0]);
    }
}
