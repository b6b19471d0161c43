//! What the kernel does with a process that it kills or that crashes.

use std::path::Path;

use serde::Serialize;

use super::files::MachineFiles;
use super::text;

/// The OOM killer and core dumps, for one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelSettings {
    /// How likely the OOM killer is to choose the process: -1000 never, 1000 first.
    pub oom_score_adj: Option<i64>,
    /// Whether the process may change that; without the rights of root it may only raise it.
    pub may_change_oom_score: bool,
    /// Where core dumps go.
    pub core_pattern: Option<String>,
    /// The largest core dump in bytes; `None` is unlimited, 0 is none at all.
    pub core_limit: Option<u64>,
    /// Memory mappings that a process may have.
    pub mapping_limit: Option<u64>,
    /// The release of the kernel.
    pub release: Option<String>,
}

impl KernelSettings {
    /// Reads them for a process, from its folder in /proc.
    pub fn read(files: &dyn MachineFiles, process: &Path) -> KernelSettings {
        let line = |name: &str| Some(files.read(Path::new(name))?.trim().to_owned());
        let score = process.join("oom_score_adj");
        let limits = files.read(&process.join("limits")).unwrap_or_default();
        KernelSettings {
            oom_score_adj: files.read(&score).and_then(|text| text.trim().parse().ok()),
            may_change_oom_score: files.is_writable(&score),
            core_pattern: line("/proc/sys/kernel/core_pattern"),
            core_limit: text::process_limit(&limits, "Max core file size")
                .map_or(Some(0), |limit| limit.soft),
            mapping_limit: line("/proc/sys/vm/max_map_count").and_then(|text| text.parse().ok()),
            release: line("/proc/sys/kernel/osrelease"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::RecordedFiles;
    use super::*;

    #[test]
    fn what_becomes_of_a_crash_is_read() {
        let files = RecordedFiles::parse(
            "== /proc/self/oom_score_adj\n-998\n== writable /proc/self/oom_score_adj\n\
             == /proc/sys/kernel/core_pattern\n|/usr/share/apport %p\n\
             == /proc/self/limits\nMax core file size        0  unlimited  bytes\n",
        );
        let settings = KernelSettings::read(&files, Path::new("/proc/self"));
        assert_eq!((settings.oom_score_adj, settings.may_change_oom_score), (Some(-998), true));
        assert_eq!(settings.core_pattern.as_deref(), Some("|/usr/share/apport %p"));
        assert_eq!(settings.core_limit, Some(0));
    }
}
