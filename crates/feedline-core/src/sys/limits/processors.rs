//! How many processors a process can use at once: affinity, cpuset and quota.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::cgroup::{self, ControlGroup, Controller, Version};
use super::files::MachineFiles;
use super::text::{self, Pressure};

/// The processors of a machine, and what a process may use of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Processors {
    /// Processors that the machine has switched on.
    pub online: Option<u64>,
    /// Processors that the process is bound to.
    pub affinity: Option<u64>,
    /// Processors of the tightest cpuset.
    pub cpuset: Option<u64>,
    /// The tightest quota.
    pub quota: Option<Quota>,
    /// How long tasks wait for a processor; of the innermost group that says, or of the machine.
    pub pressure: Option<Pressure>,
}

/// Processor time that a control group may use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quota {
    /// Processors' worth of time.
    pub cores: f64,
    /// The group that has it.
    pub folder: PathBuf,
}

impl Processors {
    /// Reads them for a process, from its folder in /proc.
    pub fn read(files: &dyn MachineFiles, process: &Path) -> Processors {
        let groups = cgroup::groups(files, process, Controller::Cpu);
        let quotas = groups.iter().filter_map(|group| quota(files, group));
        let cpusets = cgroup::groups(files, process, Controller::Cpuset);
        let cpusets = cpusets.iter().filter_map(|group| cpuset(files, group));
        let group_pressure = groups.iter().find_map(|group| group.read(files, "cpu.pressure"));
        let pressure = group_pressure.or_else(|| files.read(Path::new("/proc/pressure/cpu")));
        Processors {
            online: online(files),
            affinity: affinity(files, process),
            cpuset: cpusets.min(),
            quota: quotas.min_by(|one, other| one.cores.total_cmp(&other.cores)),
            pressure: pressure.as_deref().and_then(text::pressure),
        }
    }

    /// Processors that can be seen and scheduled on, whatever the quota; `None` if nothing says.
    pub fn visible(&self) -> Option<u64> {
        [self.affinity, self.cpuset].into_iter().flatten().min().or(self.online)
    }

    /// The number of threads that can compute at once, at least 1. A part of a processor counts as a whole one.
    pub fn usable(&self) -> Option<u64> {
        let quota = self.quota.as_ref().map(|quota| (quota.cores.ceil() as u64).max(1));
        [self.visible(), quota].into_iter().flatten().min()
    }
}

fn online(files: &dyn MachineFiles) -> Option<u64> {
    let listed = files.read(Path::new("/sys/devices/system/cpu/online"));
    listed.and_then(|list| text::list_length(&list)).or_else(|| {
        let text = files.read(Path::new("/proc/stat"))?;
        let is_one = |line: &&str| {
            line.strip_prefix("cpu")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        Some(text.lines().filter(is_one).count() as u64).filter(|count| *count > 0)
    })
}

fn affinity(files: &dyn MachineFiles, process: &Path) -> Option<u64> {
    // Threads may be bound separately: the one that asks is the one that counts.
    let own = (process == Path::new("/proc/self"))
        .then(|| files.read(Path::new("/proc/thread-self/status")))
        .flatten();
    let status = own.or_else(|| files.read(&process.join("status")))?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    text::list_length(list)
}

fn cpuset(files: &dyn MachineFiles, group: &ControlGroup) -> Option<u64> {
    let names: &[&str] = match group.version {
        Version::One => &["cpuset.effective_cpus", "cpuset.cpus"],
        Version::Two => &["cpuset.cpus.effective"],
    };
    names.iter().find_map(|name| text::list_length(&group.read(files, name)?))
}

fn quota(files: &dyn MachineFiles, group: &ControlGroup) -> Option<Quota> {
    let (quota, period) = match group.version {
        Version::One => {
            (group.read(files, "cpu.cfs_quota_us")?, group.read(files, "cpu.cfs_period_us")?)
        }
        Version::Two => {
            let text = group.read(files, "cpu.max")?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.to_owned(), period.to_owned())
        }
    };
    // No quota is "max" or -1.
    let (quota, period): (u64, u64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    let cores = quota as f64 / period as f64;
    (quota > 0 && period > 0).then(|| Quota { cores, folder: group.folder.clone() })
}

#[cfg(test)]
mod tests {
    use super::super::files::RecordedFiles;
    use super::*;

    fn read(recording: &str) -> Processors {
        Processors::read(&RecordedFiles::parse(recording), Path::new("/proc/self"))
    }

    #[test]
    fn a_part_of_a_processor_counts_as_a_whole_one() {
        for (quota, usable) in [
            ("50000", 1),
            ("100000", 1),
            ("100001", 2),
            ("250000", 3),
            ("6400000", 64),
            ("max", 64),
        ] {
            let processors = read(&format!(
                "== /proc/self/status\nCpus_allowed_list:\t0-63\n== /proc/self/cgroup\n0::/\n\
                 == /sys/fs/cgroup/cpu.max\n{quota} 100000\n"
            ));
            assert_eq!(processors.usable(), Some(usable), "{quota}");
        }
    }

    #[test]
    fn the_tightest_quota_up_the_tree_counts() {
        let processors = read(
            "== /proc/self/cgroup\n0::/a/b\n== /sys/fs/cgroup/a/b/cpu.max\n800000 100000\n\
             == /sys/fs/cgroup/a/cpu.max\n150000 100000\n== /sys/fs/cgroup/cpu.max\nmax 100000\n\
             == /sys/devices/system/cpu/online\n0-15\n",
        );
        assert_eq!(processors.usable(), Some(2));
        assert_eq!(processors.quota.unwrap().folder, Path::new("/sys/fs/cgroup/a"));
    }

    #[test]
    fn the_affinity_of_the_thread_that_asks_counts() {
        let recording = "== /proc/self/status\nCpus_allowed_list:\t0-7\n\
                         == /proc/thread-self/status\nCpus_allowed_list:\t0-1\n\
                         == /proc/7/status\nCpus_allowed_list:\t0-3\n";
        assert_eq!(read(recording).usable(), Some(2));
        let files = RecordedFiles::parse(recording);
        assert_eq!(Processors::read(&files, Path::new("/proc/7")).usable(), Some(4));
    }

    #[test]
    fn without_any_file_nothing_is_known() {
        assert_eq!(read(""), Processors::default());
        assert_eq!(read("").usable(), None);
        assert_eq!(read("== /proc/stat\ncpu  1 2\ncpu0 1 2\ncpu1 1 2\n").usable(), Some(2));
    }
}
