//! How many files a process, and all processes together, may have open.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use super::files::{MachineFiles, RealFiles};
use super::text::{self, ProcessLimit};

/// Open files: descriptors of a process, and files of the whole system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DescriptorLimits {
    /// The limit of the process.
    pub limit: Option<ProcessLimit>,
    /// Descriptors that the process has open.
    pub open: Option<u64>,
    /// Files that all processes have open.
    pub system_open: Option<u64>,
    /// Files that all processes may have open.
    pub system_limit: Option<u64>,
}

impl DescriptorLimits {
    /// Reads them for a process, from its folder in /proc.
    pub fn read(files: &dyn MachineFiles, process: &Path) -> DescriptorLimits {
        let limits = files.read(&process.join("limits"));
        let system = files.read(Path::new("/proc/sys/fs/file-nr")).unwrap_or_default();
        let system: Vec<Option<u64>> = system.split_whitespace().map(text::number).collect();
        DescriptorLimits {
            limit: limits.and_then(|text| text::process_limit(&text, "Max open files")),
            open: files.names(&process.join("fd")).map(|names| names.len() as u64),
            system_open: system.first().copied().flatten(),
            system_limit: system.get(2).copied().flatten(),
        }
    }
}

/// The soft limit on open files before and after it was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaisedLimit {
    /// The limit before.
    pub from: u64,
    /// The limit now in effect.
    pub to: u64,
}

impl RaisedLimit {
    /// Whether it changed.
    pub fn is_raised(self) -> bool {
        self.from < self.to
    }
}

/// Raises the soft limit on open files to the hard limit. If the system refuses, the limit stays.
pub fn raise_open_files() -> RaisedLimit {
    let limit = getrlimit(Resource::Nofile);
    let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let from = number(limit.current);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let is_raised = limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_ok();
    RaisedLimit { from, to: if is_raised { number(limit.maximum) } else { from } }
}

/// The number of descriptors that this process has open.
pub(crate) fn open_files() -> u64 {
    // One of them is that of the listing itself.
    RealFiles.names(Path::new("/proc/self/fd")).map_or(0, |names| names.len() as u64)
}

/// The limit on open descriptors of a process.
pub(crate) fn most_open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::files::RecordedFiles;
    use super::*;

    #[test]
    fn limits_of_the_process_and_of_the_system_are_read() {
        let files = RecordedFiles::parse(
            "== /proc/7/limits\nMax open files            1024  4096  files\n\
             == names /proc/7/fd\n0 1 2 7\n== /proc/sys/fs/file-nr\n503\t0\t2465620\n",
        );
        assert_eq!(
            DescriptorLimits::read(&files, Path::new("/proc/7")),
            DescriptorLimits {
                limit: Some(ProcessLimit { soft: Some(1024), hard: Some(4096) }),
                open: Some(4),
                system_open: Some(503),
                system_limit: Some(2_465_620),
            }
        );
        assert_eq!(DescriptorLimits::read(&files, Path::new("/proc/8")).limit, None);
    }

    #[test]
    fn a_system_without_a_limit_has_none() {
        let files = RecordedFiles::parse("== /proc/sys/fs/file-nr\n503\t0\t9223372036854775807\n");
        assert_eq!(DescriptorLimits::read(&files, Path::new("/proc/self")).system_limit, None);
    }
}
