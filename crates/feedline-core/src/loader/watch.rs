//! Checks whether a source is available at all: if a mount is gone, every file looks as if it had been deleted.

use std::path::{Path, PathBuf, absolute};

use crate::error::lowered;
use crate::sys::file;

/// The root and the mounts when the run began.
pub(super) struct Watch {
    /// The folder that contains all files, if it was not empty.
    root: Option<PathBuf>,
    /// The mount points.
    mounts: Vec<PathBuf>,
}

impl Watch {
    /// Records the current state. What is missing from the start cannot become unavailable later.
    pub(super) fn new(root: Option<PathBuf>) -> Watch {
        let root = root.and_then(|root| {
            absolute(if root.as_os_str().is_empty() { Path::new(".") } else { &root }).ok()
        });
        let root = root.filter(|root| answer_of(root).is_ok());
        Watch { root, mounts: file::mounts().unwrap_or_default() }
    }

    /// Checks whether the source of a file is still available; if not, what is unavailable, and why.
    pub(super) fn probe(&self, path: &Path) -> Result<(), (PathBuf, String)> {
        if let Some(mount) = self.mount_of(path)
            && file::mounts().is_ok_and(|mounts| !mounts.contains(mount))
        {
            return Err((mount.clone(), "nothing is mounted there anymore".to_owned()));
        }
        match &self.root {
            Some(root) => answer_of(root).map_err(|why| (root.clone(), why)),
            None => Ok(()),
        }
    }

    /// The name of the source of a file.
    pub(super) fn name(&self, path: &Path) -> PathBuf {
        let parent = || path.parent().unwrap_or(path).to_owned();
        self.root.clone().or_else(|| self.mount_of(path).cloned()).unwrap_or_else(parent)
    }

    /// The mount point of a file, except the root file system.
    fn mount_of(&self, path: &Path) -> Option<&PathBuf> {
        let path = absolute(path).ok()?;
        let above = self.mounts.iter().filter(|mount| path.starts_with(mount));
        above.max_by_key(|mount| mount.as_os_str().len()).filter(|mount| mount.parent().is_some())
    }
}

/// Whether a folder can be read and is not empty.
fn answer_of(folder: &Path) -> Result<(), String> {
    match file::first_entry(folder) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err("the folder is empty".to_owned()),
        Err(error) => Err(lowered(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_becomes_missing_or_empty_is_unavailable() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("data");
        let sample = root.join("cat/1.jpg");
        file::write(&sample, b"x").unwrap();
        let watch = Watch::new(Some(root.clone()));
        assert_eq!(watch.probe(&sample), Ok(()));
        std::fs::rename(&root, folder.path().join("away")).unwrap();
        let (what, why) = watch.probe(&sample).unwrap_err();
        assert_eq!(what, root);
        assert!(why.starts_with("no such file"), "{why}");
        file::make_folder(&root).unwrap();
        assert_eq!(watch.probe(&sample).unwrap_err().1, "the folder is empty");
    }

    #[test]
    fn a_folder_that_never_existed_is_not_unavailable() {
        let watch = Watch::new(Some("/no/such/folder".into()));
        assert_eq!(watch.probe(Path::new("/no/such/folder/1.jpg")), Ok(()));
    }

    #[test]
    fn a_mount_that_is_gone_is_unavailable() {
        let mounts = vec!["/".into(), "/no/such/mount".into()];
        let watch = Watch { root: None, mounts };
        let (what, _) = watch.probe(Path::new("/no/such/mount/a/1.jpg")).unwrap_err();
        assert_eq!(what, Path::new("/no/such/mount"));
        assert_eq!(watch.probe(Path::new("/no/such/other/1.jpg")), Ok(()));
    }
}
