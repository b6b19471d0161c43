//! Which file system a path is on.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::super::file::unescape_octal;

/// Kinds of file systems whose files are on another machine, or behind another process.
const REMOTE: [&str; 19] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "davfs",
    "drvfs",
    "fuse",
    "fuseblk",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "prl_fs",
    "smb3",
    "smbfs",
    "vboxsf",
    "virtiofs",
];

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileSystem {
    /// Its kind, such as "ext4" or "nfs4".
    pub kind: String,
    /// Where it is mounted.
    pub point: PathBuf,
}

impl FileSystem {
    /// Whether its files are on another machine, or behind another process: opening one takes long.
    pub fn is_remote(&self) -> bool {
        REMOTE.contains(&self.kind.as_str()) || self.kind.starts_with("fuse.")
    }
}

/// The file system of an absolute path, from the text of /proc/self/mountinfo.
pub fn file_system(mountinfo: &str, path: &Path) -> Option<FileSystem> {
    let mut found: Option<FileSystem> = None;
    for line in mountinfo.lines() {
        let Some((place, kind)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (place.split(' ').nth(4), kind.split(' ').next()) else {
            continue;
        };
        let point = PathBuf::from(OsString::from_vec(unescape_octal(point.as_bytes())));
        // A later mount at the same place hides an earlier one.
        let depth = |path: &Path| path.components().count();
        if path.starts_with(&point)
            && found.as_ref().is_none_or(|found| depth(&point) >= depth(&found.point))
        {
            found = Some(FileSystem { kind: kind.to_owned(), point });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_and_latest_mount_of_a_path_counts() {
        let text = "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
                    28 27 0:40 / /data rw - ext4 /dev/vdb rw\n\
                    29 27 0:41 / /data rw,relatime shared:7 - nfs4 server:/x rw\n\
                    30 29 0:42 / /data/my\\040set ro - fuse.s3fs s3fs ro\n";
        let kind = |path: &str| file_system(text, Path::new(path)).map(|found| found.kind);
        assert_eq!(kind("/home/a").as_deref(), Some("ext4"));
        assert_eq!(kind("/data/a").as_deref(), Some("nfs4"));
        assert_eq!(kind("/data/my set/b").as_deref(), Some("fuse.s3fs"));
        assert_eq!(kind("/database").as_deref(), Some("ext4"));
        assert_eq!(file_system("", Path::new("/")), None);
        let is_remote = |path: &str| file_system(text, Path::new(path)).unwrap().is_remote();
        assert!(is_remote("/data/a") && is_remote("/data/my set/b") && !is_remote("/home"));
    }
}
