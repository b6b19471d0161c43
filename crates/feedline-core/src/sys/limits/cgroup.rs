//! The control groups of a process, in both versions of the interface, from the innermost to the
//! outermost one that is visible here. A limit of any of them holds.

use std::path::{Component, Path, PathBuf};

use super::files::MachineFiles;

/// What a group limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Memory,
    Cpu,
    Cpuset,
    Pids,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Cpu => "cpu",
            Controller::Cpuset => "cpuset",
            Controller::Pids => "pids",
        }
    }
}

/// The version of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// A control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ControlGroup {
    pub(super) version: Version,
    pub(super) folder: PathBuf,
}

impl ControlGroup {
    /// The text of a file of the group.
    pub(super) fn read(&self, files: &dyn MachineFiles, name: &str) -> Option<String> {
        files.read(&self.folder.join(name))
    }
}

/// A mounted hierarchy of groups.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The controllers of version 1.
    controllers: Vec<String>,
    /// The group that the mount point shows: containers see only their own.
    root: String,
    point: PathBuf,
}

/// The groups of a process for a controller, innermost first.
pub(super) fn groups(
    files: &dyn MachineFiles,
    process: &Path,
    controller: Controller,
) -> Vec<ControlGroup> {
    let text = files.read(&process.join("cgroup")).unwrap_or_default();
    // The groups are read from this process, so its mounts count.
    let mounts = files.read(Path::new("/proc/self/mountinfo")).map(|text| mounts(&text));
    let mounts = mounts.filter(|mounts| !mounts.is_empty()).unwrap_or_else(|| usual(controller));
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let version = if controllers.is_empty() { Version::Two } else { Version::One };
        if version == Version::One && !controllers.split(',').any(|one| one == controller.name()) {
            continue;
        }
        let holds = |mount: &&Mount| {
            mount.version == version
                && (version == Version::Two
                    || mount.controllers.iter().any(|name| name == controller.name()))
        };
        for mount in mounts.iter().filter(holds) {
            let inside = inside(path, &mount.root);
            groups.extend(
                inside
                    .ancestors()
                    .map(|part| ControlGroup { version, folder: mount.point.join(part) }),
            );
        }
    }
    groups
}

/// Where groups are mounted on most machines, if the mounts are not known.
fn usual(controller: Controller) -> Vec<Mount> {
    let mount = |version, point: String| Mount {
        version,
        controllers: vec![controller.name().to_owned()],
        root: "/".to_owned(),
        point: PathBuf::from(point),
    };
    vec![
        mount(Version::One, format!("/sys/fs/cgroup/{}", controller.name())),
        mount(Version::Two, "/sys/fs/cgroup".to_owned()),
        mount(Version::Two, "/sys/fs/cgroup/unified".to_owned()),
    ]
}

/// The path of a group below a mount point that shows the group `root`. A group outside of it is not
/// visible: then the mount point itself is the nearest one.
fn inside(path: &str, root: &str) -> PathBuf {
    let is_outside = Path::new(path).components().any(|part| part == Component::ParentDir);
    let inside = Path::new(path).strip_prefix(root).or_else(|_| Path::new(path).strip_prefix("/"));
    let is_below = root == "/" || Path::new(path).starts_with(root);
    match inside {
        Ok(inside) if is_below && !is_outside => inside.to_owned(),
        Ok(_) | Err(_) => PathBuf::new(),
    }
}

/// The hierarchies in /proc/self/mountinfo.
fn mounts(text: &str) -> Vec<Mount> {
    let mut mounts = Vec::new();
    for line in text.lines() {
        let Some((place, kind)) = line.split_once(" - ") else { continue };
        let mut place = place.split(' ').skip(3);
        let mut kind = kind.split(' ');
        let (Some(root), Some(point), Some(name)) = (place.next(), place.next(), kind.next())
        else {
            continue;
        };
        let version = match name {
            "cgroup" => Version::One,
            "cgroup2" => Version::Two,
            _ => continue,
        };
        let options = kind.nth(1).unwrap_or_default();
        mounts.push(Mount {
            version,
            controllers: options.split(',').map(str::to_owned).collect(),
            root: root.to_owned(),
            point: PathBuf::from(point),
        });
    }
    mounts
}

#[cfg(test)]
mod tests {
    use super::super::files::RecordedFiles;
    use super::*;

    fn found(recording: &str, controller: Controller) -> Vec<String> {
        let files = RecordedFiles::parse(recording);
        let groups = groups(&files, Path::new("/proc/self"), controller);
        groups.iter().map(|group| group.folder.display().to_string()).collect()
    }

    #[test]
    fn the_cgroups_of_a_process_are_found_innermost_first() {
        let recording = "== /proc/self/cgroup\n4:memory:/a/b\n1:cpu,cpuacct:/x\n0::/job\n";
        assert_eq!(
            found(recording, Controller::Memory),
            [
                "/sys/fs/cgroup/memory/a/b",
                "/sys/fs/cgroup/memory/a",
                "/sys/fs/cgroup/memory/",
                "/sys/fs/cgroup/job",
                "/sys/fs/cgroup/",
                "/sys/fs/cgroup/unified/job",
                "/sys/fs/cgroup/unified/",
            ]
        );
        assert_eq!(found(recording, Controller::Cpu)[0], "/sys/fs/cgroup/cpu/x");
    }

    #[test]
    fn a_container_finds_its_own_group_at_the_mount_point() {
        let recording = "== /proc/self/cgroup\n4:memory:/docker/1a/job\n0::/../other\n\
            == /proc/self/mountinfo\n\
            35 31 0:32 /docker/1a /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
            36 31 0:33 /docker/1a /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
            37 31 0:34 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n";
        assert_eq!(
            found(recording, Controller::Memory),
            ["/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/memory/", "/sys/fs/cgroup/unified/"]
        );
    }

    #[test]
    fn a_group_that_is_not_visible_is_the_mount_point() {
        assert_eq!(inside("/docker/1a", "/docker/1a"), Path::new(""));
        assert_eq!(inside("/docker/1a/b", "/docker/1a"), Path::new("b"));
        assert_eq!(inside("/docker/1ab", "/docker/1a"), Path::new(""));
        assert_eq!(inside("/a", "/"), Path::new("a"));
        assert_eq!(inside("/../a", "/"), Path::new(""));
    }
}
