//! How many processes and threads a user, a control group and the machine may have. Linux counts both
//! as tasks.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::cgroup::{self, Controller};
use super::files::MachineFiles;
use super::text::{self, ProcessLimit};

/// Capabilities that lift the limit of a user, as bits of `CapEff`.
const SYS_ADMIN: u64 = 1 << 21;
const SYS_RESOURCE: u64 = 1 << 24;

/// Processes and threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tasks {
    /// The limit on all tasks of the user.
    pub limit: Option<ProcessLimit>,
    /// Whether that limit does not hold for the process, because it has the rights of root.
    pub is_exempt: bool,
    /// Tasks that the user has, as far as this process sees them.
    pub of_user: Option<u64>,
    /// The control group with the least room.
    pub group: Option<TaskGroup>,
    /// Tasks that the machine has.
    pub on_machine: Option<u64>,
    /// Tasks that the machine may have.
    pub machine_limit: Option<u64>,
}

/// A control group that limits tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskGroup {
    /// Its folder.
    pub folder: PathBuf,
    /// Tasks that it may have.
    pub limit: u64,
    /// Tasks that it has.
    pub used: u64,
}

/// Which limit on tasks is met first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRoom {
    /// Tasks that can still be started.
    pub left: u64,
    /// The limit.
    pub limit: u64,
    /// What has the limit: "the user", "the control group" or "the machine".
    pub holder: &'static str,
}

impl Tasks {
    /// Reads them for a process, from its folder in /proc.
    pub fn read(files: &dyn MachineFiles, process: &Path) -> Tasks {
        let limits = files.read(&process.join("limits"));
        let status = files.read(&process.join("status")).unwrap_or_default();
        let groups = cgroup::groups(files, process, Controller::Pids);
        let groups = groups.iter().filter_map(|group| {
            let limit = text::number(&group.read(files, "pids.max")?)?;
            let used = text::number(&group.read(files, "pids.current")?)?;
            Some(TaskGroup { folder: group.folder.clone(), limit, used })
        });
        let machine = |name: &str| text::number(&files.read(Path::new(name))?);
        let (threads, pids) =
            (machine("/proc/sys/kernel/threads-max"), machine("/proc/sys/kernel/pid_max"));
        let running = files.read(Path::new("/proc/loadavg")).unwrap_or_default();
        let running = running.split_whitespace().nth(3).and_then(|part| part.split_once('/'));
        Tasks {
            limit: limits.and_then(|text| text::process_limit(&text, "Max processes")),
            is_exempt: is_exempt(&status, files.read(&process.join("uid_map"))),
            of_user: tasks_of_user(files, &status),
            group: groups.min_by_key(|group| group.limit.saturating_sub(group.used)),
            on_machine: running.and_then(|(_, all)| all.parse().ok()),
            machine_limit: [threads, pids].into_iter().flatten().min(),
        }
    }

    /// The limit that is met first, if there is any.
    pub fn room(&self) -> Option<TaskRoom> {
        let room = |limit: u64, used: u64, holder| TaskRoom {
            left: limit.saturating_sub(used),
            limit,
            holder,
        };
        let of_user = self.limit.and_then(|limit| limit.soft).filter(|_| !self.is_exempt);
        let of_user = of_user.map(|limit| room(limit, self.of_user.unwrap_or(0), "the user"));
        let group = self.group.as_ref();
        let of_group = group.map(|group| room(group.limit, group.used, "the control group"));
        let of_machine = self.machine_limit;
        let of_machine =
            of_machine.map(|limit| room(limit, self.on_machine.unwrap_or(0), "the machine"));
        [of_user, of_group, of_machine].into_iter().flatten().min_by_key(|room| room.left)
    }
}

/// Whether the kernel lets the process exceed the limit of its user. Root of a user namespace looks like
/// root here, but is not.
fn is_exempt(status: &str, uid_map: Option<String>) -> bool {
    let is_in_namespace = uid_map
        .is_some_and(|map| map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]);
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|word| u64::from_str_radix(word.trim(), 16).ok());
    let has_rights = capabilities.is_some_and(|bits| bits & (SYS_ADMIN | SYS_RESOURCE) != 0)
        || text::named_number(status, "Uid:") == Some(0);
    has_rights && !is_in_namespace
}

fn tasks_of_user(files: &dyn MachineFiles, status: &str) -> Option<u64> {
    let user = text::named_number(status, "Uid:")?;
    let mut tasks = 0_u64;
    for name in files.names(Path::new("/proc"))? {
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // It may have ended in the meantime.
        let Some(status) = files.read(&Path::new("/proc").join(name).join("status")) else {
            continue;
        };
        if text::named_number(&status, "Uid:") == Some(user) {
            tasks = text::named_number(&status, "Threads:").unwrap_or(1).saturating_add(tasks);
        }
    }
    Some(tasks)
}

#[cfg(test)]
mod tests {
    use super::super::files::RecordedFiles;
    use super::*;

    fn read(recording: &str) -> Tasks {
        Tasks::read(&RecordedFiles::parse(recording), Path::new("/proc/self"))
    }

    const USER: &str = "== /proc/self/limits\nMax processes             12  12  processes\n\
                        == /proc/self/status\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n\
                        == names /proc\n1 7 self\n== /proc/1/status\nUid:\t0\t0\t0\t0\nThreads:\t40\n\
                        == /proc/7/status\nUid:\t1000\t1000\t1000\t1000\nThreads:\t5\n";

    #[test]
    fn the_limit_with_the_least_room_is_met_first() {
        let tasks = read(&format!(
            "{USER}== /proc/self/cgroup\n0::/a\n== /sys/fs/cgroup/a/pids.max\n100\n\
             == /sys/fs/cgroup/a/pids.current\n98\n== /proc/sys/kernel/threads-max\n1000\n\
             == /proc/sys/kernel/pid_max\n500\n== /proc/loadavg\n0.0 0.0 0.0 1/200 77\n"
        ));
        assert_eq!((tasks.of_user, tasks.machine_limit), (Some(5), Some(500)));
        let room = tasks.room().unwrap();
        assert_eq!((room.left, room.limit, room.holder), (2, 100, "the control group"));
        assert_eq!(read(USER).room().unwrap().left, 7);
        assert_eq!(read("").room(), None);
    }

    #[test]
    fn root_is_exempt_but_not_in_a_user_namespace() {
        let root = USER.replace(
            "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000",
            "Uid:\t0\t0\t0\t0\nCapEff:\t0000",
        );
        assert!(!read(USER).is_exempt);
        assert!(read(&root).is_exempt);
        assert_eq!(read(&root).room(), None);
        let nested = format!("{root}== /proc/self/uid_map\n         0     100000      65536\n");
        assert!(!read(&nested).is_exempt);
        let outside = format!("{root}== /proc/self/uid_map\n         0          0 4294967295\n");
        assert!(read(&outside).is_exempt);
        assert!(
            read(&USER.replace("CapEff:\t0000000000000000", "CapEff:\t0000000001000000")).is_exempt
        );
    }
}
