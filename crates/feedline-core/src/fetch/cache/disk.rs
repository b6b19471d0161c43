//! A cache in a folder, which several processes may use at the same time, each writing files of its own.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::CachedSample;
use super::segment::{self, SegmentRow, SegmentWriter};
use crate::error::Kind;
use crate::fetch::{Reader, Stretch};
use crate::sys::clock;
use crate::sys::file::{self, EntryKind, Handle, Stamp};
use crate::sys::lock::Mutex;

/// What the files of the cache are called.
const EXTENSION: &str = "flcache";
/// The bytes that a file should have; less if the whole cache may have little.
const SEGMENT: u64 = 64 << 20;
/// A file of other data or settings makes room if it was not used for this long.
const UNUSED_SECONDS: f64 = 3600.0;

/// Samples in a folder. They are found from the next epoch on, also by other processes.
pub(crate) struct DiskCache {
    /// The folder of all data and settings, and the one below it for this data and these settings.
    root: PathBuf,
    folder: PathBuf,
    size: u64,
    segment: u64,
    /// Channels of images.
    channels: usize,
    found: Mutex<ReadableRows>,
    writing: Mutex<Writing>,
}

/// What can be read.
#[derive(Default)]
struct ReadableRows {
    rows: HashMap<u64, (Arc<Path>, SegmentRow)>,
    /// Files whose tables were read.
    known: HashMap<PathBuf, Arc<Path>>,
}

enum Writing {
    /// Nothing is being written.
    Idle,
    /// A file, and how many bytes it may have.
    Open { writer: Box<SegmentWriter>, most: u64 },
    /// No file can be written, for the reason that was reported.
    Stopped,
}

/// An entry is not what was written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CorruptEntry;

/// What has become of a sample that is to be kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// It is written, or cannot be, which was said before.
    Done,
    /// From now on nothing is written, and why.
    Stopped(String),
}

impl DiskCache {
    /// A cache of at most `size` bytes in a folder. `name` stands for the data and the settings.
    pub(crate) fn new(root: &Path, name: &str, size: u64, channels: usize) -> DiskCache {
        DiskCache {
            root: root.to_owned(),
            folder: root.join(name),
            size,
            segment: (size / 64).clamp(1 << 20, SEGMENT),
            channels,
            found: Mutex::default(),
            writing: Mutex::new(Writing::Idle),
        }
    }

    /// Looks for files that were completed since the last time, by this process or another. Returns how many of them
    /// are corrupt.
    pub(crate) fn find_new_files(&self) -> u64 {
        let Ok(entries) = file::list(&self.folder) else { return 0 };
        let mut found = self.found.lock();
        let mut corrupt = 0;
        for entry in entries.into_iter().filter(is_segment) {
            if found.known.contains_key(&entry.path) {
                continue;
            }
            // Not the modification of the content: so that another process sees that it is in use.
            let _ = file::touch(&entry.path);
            let rows = Handle::open(&entry.path).and_then(|handle| segment::table(&handle));
            match rows {
                Ok(Some(rows)) => found.add(entry.path.into(), rows),
                Ok(None) => {
                    corrupt += 1;
                    found.known.insert(entry.path.clone(), entry.path.into());
                }
                // It may be there, or readable, the next time.
                Err(_) => {}
            }
        }
        corrupt
    }

    /// Reads a sample, if it was loaded from this version of its file. The error is a corrupt entry, which is not looked
    /// for again.
    pub(crate) fn get(
        &self,
        index: u64,
        stamp: Option<Stamp>,
        reader: &Reader,
        slot: u64,
        before_wait: &mut dyn FnMut(),
    ) -> Result<Option<CachedSample>, CorruptEntry> {
        let found = self.found.lock().rows.get(&index).cloned();
        let Some((path, row)) = found.filter(|(_, row)| row.stamp == stamp) else {
            return Ok(None);
        };
        let stretch = Stretch { path: &path, offset: row.offset, length: row.length };
        let read = match reader.read_part(stretch, 0, slot, before_wait) {
            Ok(bytes) => segment::sample(&row, &bytes, self.channels).map(Some).ok_or(CorruptEntry),
            Err(error) if error.kind() == Kind::Closed => return Ok(None),
            Err(error) if error.kind() == Kind::CorruptRecord => Err(CorruptEntry),
            // The file was removed, say.
            Err(_) => Ok(None),
        };
        if !matches!(read, Ok(Some(_))) {
            // So that it is written again.
            self.found.lock().rows.remove(&index);
        }
        read
    }

    /// Writes a sample, unless the cache has it or is full.
    pub(crate) fn put(&self, index: u64, stamp: Option<Stamp>, sample: &CachedSample) -> Stored {
        let is_known =
            self.found.lock().rows.get(&index).is_some_and(|(_, row)| row.stamp == stamp);
        if is_known {
            return Stored::Done;
        }
        let mut writing = self.writing.lock();
        match self.write(&mut writing, index, stamp, sample) {
            Ok(()) => Stored::Done,
            Err(error) => {
                *writing = Writing::Stopped;
                Stored::Stopped(error.to_string())
            }
        }
    }

    fn write(
        &self,
        writing: &mut Writing,
        index: u64,
        stamp: Option<Stamp>,
        sample: &CachedSample,
    ) -> io::Result<()> {
        let cost = SegmentWriter::cost(sample);
        if let Writing::Open { writer, most } = writing
            && writer.bytes() + cost > *most
        {
            self.finish(writing)?;
        }
        if let Writing::Idle = writing {
            let needed = SegmentWriter::EMPTY + cost;
            let most = self.make_room()?.min(self.segment.max(needed));
            if needed > most {
                let (folder, size) = (self.root.display(), self.size);
                let message = format!("the cache is full: {folder} may have {size} bytes");
                return Err(io::Error::other(message));
            }
            let writer = Box::new(SegmentWriter::new(self.new_path())?);
            *writing = Writing::Open { writer, most };
        }
        match writing {
            Writing::Open { writer, .. } => writer.add(index, stamp, sample),
            Writing::Idle | Writing::Stopped => Ok(()),
        }
    }

    /// Completes the file that is being written.
    pub(crate) fn flush(&self) -> Stored {
        let mut writing = self.writing.lock();
        match self.finish(&mut writing) {
            Ok(()) => Stored::Done,
            Err(error) => {
                *writing = Writing::Stopped;
                Stored::Stopped(error.to_string())
            }
        }
    }

    fn finish(&self, writing: &mut Writing) -> io::Result<()> {
        match std::mem::replace(writing, Writing::Idle) {
            Writing::Open { writer, .. } => {
                let (path, rows) = writer.finish()?;
                self.found.lock().add(path, rows);
            }
            Writing::Idle => {}
            Writing::Stopped => *writing = Writing::Stopped,
        }
        Ok(())
    }

    /// A name that no other process uses.
    fn new_path(&self) -> PathBuf {
        self.folder.join(format!("{}.{EXTENSION}", file::unique_name()))
    }

    /// The bytes that may still be written, after files of other data or settings that nobody uses are removed.
    fn make_room(&self) -> io::Result<u64> {
        let mut others = Vec::new();
        let mut used = 0;
        for folder in file::list(&self.root).unwrap_or_default() {
            if folder.kind != EntryKind::Folder {
                continue;
            }
            for entry in file::list(&folder.path).unwrap_or_default().into_iter().filter(is_segment)
            {
                let Ok(stamp) = file::stamp(&entry.path) else { continue };
                used += stamp.size;
                if folder.path != self.folder {
                    others.push((stamp.written, stamp.size, entry.path));
                }
            }
        }
        others.sort_unstable();
        let unused_before = ((clock::unix_seconds() - UNUSED_SECONDS) * 1e9) as i64;
        for (written, size, path) in others {
            if used + self.segment <= self.size || written > unused_before {
                break;
            }
            file::remove(&path)?;
            used -= size;
        }
        Ok(self.size.saturating_sub(used))
    }
}

impl ReadableRows {
    fn add(&mut self, path: Arc<Path>, rows: Vec<SegmentRow>) {
        self.known.insert(path.to_path_buf(), Arc::clone(&path));
        self.rows.extend(rows.into_iter().map(|row| (row.index, (Arc::clone(&path), row))));
    }
}

fn is_segment(entry: &file::FolderEntry) -> bool {
    entry.kind == EntryKind::File
        && entry.path.extension().is_some_and(|extension| extension == EXTENSION)
}
