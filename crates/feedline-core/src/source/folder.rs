//! A folder of images with a sub-folder for each class, in torchvision's order.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::PathTable;
use super::{EXTENSIONS, Source};
use crate::error::{Error, Kind, Result};
use crate::fingerprint::Fingerprint;
use crate::sample::{Extent, Location, shown};
use crate::sys::file::{self, EntryKind, FolderEntry};

/// Classes sorted by name; within a class, folders sorted by path and files by name.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    paths: PathTable,
    classes: Arc<[String]>,
    /// The end of each class: the index after its last sample.
    ends: Vec<u64>,
}

impl Folder {
    /// Lists the folder. Hidden files, and files that are not images by name, are skipped.
    pub fn images(root: &Path) -> Result<Folder> {
        let mut classes: Vec<PathBuf> = list(root)?
            .into_iter()
            .filter(|entry| entry.kind == EntryKind::Folder && !is_hidden(&entry.path))
            .map(|entry| entry.path)
            .collect();
        if classes.is_empty() {
            let message = format!("{} has no class folders", shown(root));
            return Err(Error::new(Kind::InvalidSource, message).with_hint(
                "each class is a sub-folder; for images without classes use feedline.files(\"folder/*.jpg\")",
            ));
        }
        classes.sort_unstable();
        let mut paths = PathTable::default();
        let mut ends = Vec::new();
        for class in &classes {
            let before = paths.len();
            for folder in folders_below(class)? {
                for image in images_in(&folder)? {
                    paths.push(&image);
                }
            }
            if paths.len() == before {
                let message = format!("class folder {} has no images", shown(class));
                return Err(Error::new(Kind::InvalidSource, message).with_hint(format!(
                    "remove the folder, or put images in it; image extensions are {}",
                    EXTENSIONS.join(", ")
                )));
            }
            ends.push(paths.len());
        }
        let classes = classes.iter().map(|class| name(class)).collect();
        Ok(Folder { root: root.to_owned(), paths, classes, ends })
    }
}

/// The folder and all folders below it, with links followed, sorted by path as in torchvision.
fn folders_below(class: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![(class.to_owned(), Vec::new())];
    while let Some((folder, mut above)) = open.pop() {
        let identity = file::identity(&folder).map_err(|error| unreadable(&folder, error))?;
        if above.contains(&identity) {
            let message = format!(
                "{} is reached through a link to one of its parent folders",
                shown(&folder)
            );
            return Err(Error::new(Kind::InvalidSource, message).with_hint("remove the link"));
        }
        above.push(identity);
        for entry in list(&folder)? {
            if entry.kind == EntryKind::Folder && !is_hidden(&entry.path) {
                open.push((entry.path, above.clone()));
            }
        }
        found.push(folder);
    }
    found.sort_unstable_by(|one, other| {
        one.as_os_str().as_encoded_bytes().cmp(other.as_os_str().as_encoded_bytes())
    });
    Ok(found)
}

fn images_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut images = Vec::new();
    for FolderEntry { path, kind } in list(folder)? {
        if is_hidden(&path) || !is_image(&path) {
            continue;
        }
        match kind {
            EntryKind::File => images.push(path),
            EntryKind::BrokenLink => {
                return Err(Error::new(Kind::InvalidSource, "a broken link to an image")
                    .at(Some(Location::file(path)))
                    .with_hint("fix or remove the link"));
            }
            EntryKind::Folder | EntryKind::Other => {}
        }
    }
    images.sort_unstable_by(|one, other| one.file_name().cmp(&other.file_name()));
    Ok(images)
}

fn list(folder: &Path) -> Result<Vec<FolderEntry>> {
    file::list(folder).map_err(|error| unreadable(folder, error))
}

fn unreadable(folder: &Path, error: std::io::Error) -> Error {
    let kind = error.kind();
    let hint = if kind == std::io::ErrorKind::NotFound {
        "check the path; relative paths start at the working directory"
    } else if kind == std::io::ErrorKind::PermissionDenied {
        "make the folder readable with chmod u+rx"
    } else {
        "check that this is a readable folder"
    };
    Error::io(Kind::InvalidSource, format!("reading folder {}", shown(folder)), error)
        .with_hint(hint)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()))
}

fn name(class: &Path) -> String {
    class.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

impl Source for Folder {
    fn kind(&self) -> &'static str {
        "folder"
    }

    fn len(&self) -> u64 {
        self.paths.len()
    }

    fn extent(&self, index: u64) -> Extent<'_> {
        Extent::File(self.paths.get(index).to_owned())
    }

    fn label(&self, index: u64) -> Option<i64> {
        Some(self.ends.partition_point(|end| *end <= index) as i64)
    }

    fn has_labels(&self) -> bool {
        true
    }

    fn classes(&self) -> Arc<[String]> {
        Arc::clone(&self.classes)
    }

    fn root(&self) -> Option<PathBuf> {
        Some(self.root.clone())
    }

    fn fingerprint(&self) -> Fingerprint {
        let ends: Vec<i64> = self.ends.iter().map(|end| *end as i64).collect();
        self.paths.fingerprint(&ends)
    }
}
