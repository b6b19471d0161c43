//! Whether a source is there at all: a mount that is gone makes every file look as if it had been deleted.

use std::path::{Path, PathBuf, absolute};

use crate::error::lowered;
use crate::sys::file;

/// What was there when the run began.
pub(super) struct Watch {
    /// The folder that all files lie below, if it had anything in it.
    root: Option<PathBuf>,
    /// Where file systems were mounted.
    mounts: Vec<PathBuf>,
}

impl Watch {
    /// Looks around. What is not there from the start cannot be unavailable later.
    pub(super) fn new(root: Option<PathBuf>) -> Watch {
        let root = root.and_then(|root| {
            absolute(if root.as_os_str().is_empty() { Path::new(".") } else { &root }).ok()
        });
        let root = root.filter(|root| answer_of(root).is_ok());
        Watch { root, mounts: file::mounts().unwrap_or_default() }
    }

    /// Looks whether the source of a file is still there; if not, what is unavailable, and what was seen of it.
    pub(super) fn look(&self, path: &Path) -> Result<(), (PathBuf, String)> {
        if let Some(mount) = self.mount_of(path)
            && file::mounts().is_ok_and(|mounts| !mounts.contains(mount))
        {
            return Err((mount.clone(), "nothing is mounted there any more".to_owned()));
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

    /// The mounted file system that a file lies on, but for that of the machine itself.
    fn mount_of(&self, path: &Path) -> Option<&PathBuf> {
        let path = absolute(path).ok()?;
        let above = self.mounts.iter().filter(|mount| path.starts_with(mount));
        above.max_by_key(|mount| mount.as_os_str().len()).filter(|mount| mount.parent().is_some())
    }
}

/// Whether a folder can be looked into and has anything in it.
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
    fn a_folder_that_was_there_and_is_gone_or_empty_is_away() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("data");
        let sample = root.join("cat/1.jpg");
        file::write(&sample, b"x").unwrap();
        let watch = Watch::new(Some(root.clone()));
        assert_eq!(watch.look(&sample), Ok(()));
        std::fs::rename(&root, folder.path().join("away")).unwrap();
        let (what, why) = watch.look(&sample).unwrap_err();
        assert_eq!(what, root);
        assert!(why.starts_with("no such file"), "{why}");
        file::make_folder(&root).unwrap();
        assert_eq!(watch.look(&sample).unwrap_err().1, "the folder is empty");
    }

    #[test]
    fn what_was_never_there_is_not_away() {
        let watch = Watch::new(Some("/no/such/folder".into()));
        assert_eq!(watch.look(Path::new("/no/such/folder/1.jpg")), Ok(()));
    }

    #[test]
    fn a_mount_that_is_gone_is_away() {
        let mounts = vec!["/".into(), "/no/such/mount".into()];
        let watch = Watch { root: None, mounts };
        let (what, _) = watch.look(Path::new("/no/such/mount/a/1.jpg")).unwrap_err();
        assert_eq!(what, Path::new("/no/such/mount"));
        assert_eq!(watch.look(Path::new("/no/such/other/1.jpg")), Ok(()));
    }
}
