//! Writes bad samples to the quarantine file, and reads them again to exclude them.
//!
//! Each fault is one line, in one write, on the disk before its verdict is visible: a process that is killed after a
//! verdict has lost nothing. Several processes may share a file, or have one each in a folder.

use serde_json::Value;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::fault::FaultLine;
use crate::plan::Excluded;
use crate::sample::{Location, shown};
use crate::source::Source;
use crate::sys::file::{self, EntryKind, Handle, Lines};

/// The largest file that is read, in bytes: millions of faults.
const LARGEST: u64 = 1 << 30;

/// The file of this process.
pub(super) struct Quarantine {
    path: PathBuf,
    /// In a folder, it is opened at the first fault, so that good runs leave no empty files.
    lines: Option<Lines>,
    /// Faults that could not be written yet, such as because the disk is full. The oldest are lost if there are too
    /// many.
    pending: VecDeque<String>,
}

/// How many faults wait for room on the disk.
const MOST_PENDING: usize = 10_000;

/// What became of a fault.
#[derive(Debug)]
pub(super) enum Added {
    /// This many faults are on the disk now that were not there before.
    Written(u64),
    /// It could not be written, and waits for the next one.
    Failed(std::io::Error),
    /// The same, as with the fault before it.
    StillFailed,
}

impl Quarantine {
    /// Refuses a path that could not be written later.
    pub(super) fn new(path: &Path) -> Result<Quarantine> {
        let refused = |error| {
            let doing = format!("the quarantine file {} cannot be written", shown(path));
            Error::io(Kind::InvalidArgument, doing, error)
                .with_hint("give a writable file, or a writable folder with a slash at its end")
        };
        if file::is_folder(path) || path.to_string_lossy().ends_with('/') {
            file::make_folder(path).map_err(refused)?;
            let name = format!("faults-{}-{}.jsonl", host(), std::process::id());
            return Ok(Quarantine { path: path.join(name), lines: None, pending: VecDeque::new() });
        }
        let lines = Lines::open(path).map_err(refused)?;
        Ok(Quarantine { path: path.to_owned(), lines: Some(lines), pending: VecDeque::new() })
    }

    /// Closes the file; the next fault opens it again. Returns how many faults that had to wait were written.
    pub(super) fn close(&mut self) -> u64 {
        let written = self.write_pending().0;
        self.lines = None;
        written
    }

    /// Writes a fault down. It is on the disk when this returns, unless it has to wait.
    pub(super) fn add(&mut self, line: &FaultLine) -> Added {
        let has_failed = !self.pending.is_empty();
        self.pending.push_back(line.to_text());
        while self.pending.len() > MOST_PENDING {
            self.pending.pop_front();
        }
        match self.write_pending() {
            (written, None) => Added::Written(written),
            // Some were written: what happens now is another failure.
            (0, Some(_)) if has_failed => Added::StillFailed,
            (_, Some(error)) => Added::Failed(error),
        }
    }

    /// Writes what waits, the oldest first, until the system refuses.
    pub(super) fn write_pending(&mut self) -> (u64, Option<std::io::Error>) {
        let mut written = 0;
        while let Some(line) = self.pending.pop_front() {
            if let Err(error) = self.write(&line) {
                self.pending.push_front(line);
                return (written, Some(error));
            }
            written += 1;
        }
        (written, None)
    }

    fn write(&mut self, line: &str) -> std::io::Result<()> {
        let lines = match self.lines.take().and_then(Lines::still_open) {
            Some(lines) => lines,
            None => Lines::open(&self.path)?,
        };
        self.lines.insert(lines).add(line)
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        self.close();
    }
}

/// The name of this machine, as a part of a file name.
fn host() -> String {
    let name = file::read_text(Path::new("/proc/sys/kernel/hostname")).unwrap_or_default();
    let name: String = name
        .trim()
        .chars()
        .filter(|character| character.is_alphanumeric() || *character == '-')
        .collect();
    if name.is_empty() { "host".to_owned() } else { name }
}

/// The samples in a quarantine file, or in all files of a folder: each once, in order of appearance. A line that a
/// killed writer left incomplete is skipped.
pub fn excluded(path: &Path) -> Result<Vec<Value>> {
    Ok(written(path)?.into_iter().map(|line| line.index).collect())
}

/// The calls of an executor in it: function and arguments; null if the arguments could not be written.
pub fn excluded_calls(path: &Path) -> Result<Vec<Value>> {
    Ok(written(path)?.into_iter().map(|line| line.call.unwrap_or_default()).collect())
}

/// The lines: the first one of each sample.
pub fn quarantined(path: &Path) -> Result<Vec<FaultLine>> {
    written(path)
}

/// The excluded samples of a numbered source. Refuses a file that was written for another source.
pub(super) fn left_out(source: &dyn Source, path: &Path) -> Result<Excluded> {
    let indices = written(path)?.into_iter().map(|line| {
        let refused = |message: String| {
            Error::new(Kind::InvalidArgument, format!("exclude: {message}"))
                .at(Some(Location::file(path)))
                .with_hint("give exclude= a file written by a run over the same data")
        };
        let index = line.number().filter(|index| *index < source.len()).ok_or_else(|| {
            let (index, samples) = (&line.index, source.len());
            refused(format!("there is no sample {index}: the source has {samples}"))
        })?;
        let ours = source.location(index).map(|location| location.path);
        if let (Some(ours), Some(theirs)) = (ours, &line.path)
            && ours.file_name() != Path::new(theirs).file_name()
        {
            let ours = shown(&ours);
            return Err(refused(format!("sample {index} was {theirs:?}, but is {ours} here")));
        }
        Ok(index)
    });
    indices.collect()
}

/// The first line of each sample.
fn written(path: &Path) -> Result<Vec<FaultLine>> {
    let refused = |path: &Path, error| {
        Error::io(Kind::InvalidArgument, format!("reading {}", shown(path)), error)
            .with_hint("give a quarantine file, or a folder of such files")
    };
    let mut files = vec![path.to_owned()];
    if file::is_folder(path) {
        let entries = file::list(path).map_err(|error| refused(path, error))?;
        let is_list = |path: &Path| path.extension().is_some_and(|extension| extension == "jsonl");
        files = entries
            .into_iter()
            .filter(|entry| entry.kind == EntryKind::File && is_list(&entry.path))
            .map(|entry| entry.path)
            .collect();
        files.sort_unstable();
    }
    let mut found = Vec::new();
    let mut known = std::collections::HashSet::new();
    for path in files {
        let bytes = Handle::open(&path)
            .and_then(|handle| file::read_bounded(&handle, LARGEST))
            .map_err(|error| refused(&path, error))?;
        for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice::<FaultLine>(line) {
                Ok(line) => {
                    // The text of a long call is shortened, so that several calls may have the same.
                    let call = line.call.as_ref().map(ToString::to_string);
                    if known.insert((line.index.to_string(), call)) {
                        found.push(line);
                    }
                }
                Err(error) if error.is_eof() && line.starts_with(b"{") => {}
                Err(error) => {
                    let message = format!("line {} is not a fault: {error}", at + 1);
                    return Err(Error::new(Kind::InvalidArgument, message)
                        .at(Some(Location::file(&path)))
                        .with_hint("each line is JSON with \"index\" and \"kind\""));
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bad(index: u64) -> FaultLine {
        FaultLine { message: "x".repeat(300), ..FaultLine::new(index, "CorruptImageError") }
    }

    fn written(added: Added) {
        assert!(matches!(added, Added::Written(1)), "{added:?}");
    }

    #[test]
    fn faults_that_cannot_be_written_wait_and_come_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad/bad.jsonl");
        let mut quarantine = Quarantine::new(&path).unwrap();
        quarantine.close();
        let (inside, away) = (folder.path().join("bad"), folder.path().join("away"));
        std::fs::rename(&inside, &away).unwrap();
        // A file in the place of its folder: it cannot be made again.
        file::write(&inside, b"").unwrap();
        assert!(matches!(quarantine.add(&bad(1)), Added::Failed(_)));
        assert!(matches!(quarantine.add(&bad(2)), Added::StillFailed));
        std::fs::remove_file(&inside).unwrap();
        std::fs::rename(&away, &inside).unwrap();
        assert!(matches!(quarantine.add(&bad(3)), Added::Written(3)));
        assert_eq!(excluded(&path).unwrap(), [json!(1), json!(2), json!(3)]);
        assert_eq!(quarantine.close(), 0);
    }

    #[test]
    fn written_faults_are_read_again_even_after_an_incomplete_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/bad.jsonl");
        let mut quarantine = Quarantine::new(&path).unwrap();
        written(quarantine.add(&bad(3)));
        written(quarantine.add(&FaultLine::new("key", "ValueError")));
        let mut bytes = file::read_bytes(&path).unwrap();
        bytes.extend_from_slice(b"{\"index\": 9, \"ki");
        file::write(&path, &bytes).unwrap();
        assert_eq!(excluded(&path).unwrap(), [json!(3), json!("key")]);
        // The next line does not become a part of the incomplete one.
        let mut quarantine = Quarantine::new(&path).unwrap();
        written(quarantine.add(&bad(5)));
        written(quarantine.add(&bad(3)));
        assert_eq!(excluded(&path).unwrap(), [json!(3), json!("key"), json!(5)]);
    }

    #[test]
    fn a_folder_has_a_file_for_each_process_and_none_for_a_good_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad/");
        let mut quarantine = Quarantine::new(&path).unwrap();
        assert_eq!(excluded(&path).unwrap(), [] as [Value; 0]);
        written(quarantine.add(&bad(7)));
        let names: Vec<_> =
            file::list(&path).unwrap().into_iter().map(|entry| entry.path).collect();
        assert_eq!(names.len(), 1);
        let name = names[0].file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.ends_with(&format!("-{}.jsonl", std::process::id())), "{name}");
        assert_eq!(excluded(&path).unwrap(), [json!(7)]);
    }

    #[test]
    fn a_file_without_faults_is_refused_with_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        file::write(&path, b"{\"index\": 1, \"kind\": \"A\"}\nhello\n").unwrap();
        let error = excluded(&path).unwrap_err();
        assert!(error.message().starts_with("line 2 is not a fault"), "{error}");
        assert!(excluded(&folder.path().join("none")).is_err());
        assert_eq!(
            Quarantine::new(Path::new("/proc/none/bad.jsonl")).err().unwrap().kind(),
            Kind::InvalidArgument
        );
    }

    #[test]
    fn a_list_that_is_endless_or_a_pipe_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (endless, pipe) = (folder.path().join("a.jsonl"), folder.path().join("b.jsonl"));
        std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        for path in [&endless, &pipe] {
            let error = excluded(path).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{error}");
        }
    }

    #[test]
    fn lines_of_many_writers_stay_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        std::thread::scope(|scope| {
            for writer in 0..4_u64 {
                let mut quarantine = Quarantine::new(&path).unwrap();
                scope.spawn(move || {
                    for number in 0..25 {
                        written(quarantine.add(&bad(writer * 1000 + number)));
                    }
                });
            }
        });
        assert_eq!(excluded(&path).unwrap().len(), 100);
    }
}
