//! Files from a list or a pattern, one sample each.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Source;
use crate::error::{Error, Kind, Result};
use crate::fingerprint::Fingerprint;
use crate::sample::{Extent, Location};

/// Many paths in one allocation: a million files take a few dozen megabytes.
#[derive(Debug, Default)]
pub(super) struct PathTable {
    bytes: Vec<u8>,
    ends: Vec<u64>,
}

impl PathTable {
    pub(super) fn push(&mut self, path: &Path) {
        self.bytes.extend_from_slice(path.as_os_str().as_bytes());
        self.ends.push(self.bytes.len() as u64);
    }

    pub(super) fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    pub(super) fn get(&self, index: u64) -> &Path {
        Path::new(OsStr::from_bytes(self.slice(index as usize)))
    }

    fn slice(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.bytes[start..self.ends[index] as usize]
    }

    pub(super) fn fingerprint(&self, labels: &[i64]) -> Fingerprint {
        let labels: Vec<u8> = labels.iter().flat_map(|label| label.to_le_bytes()).collect();
        let paths = (0..self.ends.len()).map(|index| self.slice(index));
        Fingerprint::of(paths.chain([labels.as_slice()]))
    }
}

/// Files in the given order, or sorted if they come from a pattern.
#[derive(Debug)]
pub struct Files {
    root: PathBuf,
    paths: PathTable,
    labels: Option<Vec<i64>>,
}

impl Files {
    /// These files, with a label each or without labels.
    pub fn list(paths: &[PathBuf], labels: Option<Vec<i64>>) -> Result<Files> {
        if paths.is_empty() {
            return Err(Error::new(Kind::InvalidSource, "the list of files is empty")
                .with_hint("give at least one path, or a pattern such as \"data/*.jpg\""));
        }
        if let Some(labels) = &labels
            && labels.len() != paths.len()
        {
            let message = format!("{} labels for {} files", labels.len(), paths.len());
            return Err(
                Error::new(Kind::InvalidSource, message).with_hint("give one label for each file")
            );
        }
        let mut table = PathTable::default();
        let mut root = paths[0].parent().unwrap_or(Path::new("")).to_owned();
        for path in paths {
            table.push(path);
            while !path.starts_with(&root) && root.pop() {}
        }
        Ok(Files { root, paths: table, labels })
    }

    /// The files that a pattern such as `data/**/*.jpg` matches, sorted.
    pub fn glob(pattern: &str, labels: Option<Vec<i64>>) -> Result<Files> {
        Files::list(&matching(pattern)?, labels)
    }
}

/// The files that a pattern matches, sorted; at least one.
pub(crate) fn matching(pattern: &str) -> Result<Vec<PathBuf>> {
    let bad = |message: String| {
        Error::new(Kind::InvalidSource, message)
            .with_hint("patterns support *, ?, [abc] and ** for any number of folders")
    };
    let found = glob::glob(pattern)
        .map_err(|error| bad(format!("{pattern:?} is not a pattern: {}", error.msg)))?;
    let mut paths = Vec::new();
    for entry in found {
        let path = entry.map_err(|error| {
            let path = error.path().to_owned();
            Error::io(Kind::InvalidSource, "searching for files", error.into())
                .at(Some(Location::file(path)))
        })?;
        // A broken link is included: it is reported as missing, not skipped.
        if !path.is_dir() {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(bad(format!("no file matches {pattern:?}")));
    }
    paths.sort_unstable();
    Ok(paths)
}

impl Source for Files {
    fn kind(&self) -> &'static str {
        "files"
    }

    fn len(&self) -> u64 {
        self.paths.len()
    }

    fn extent(&self, index: u64) -> Extent<'_> {
        Extent::File(self.paths.get(index).to_owned())
    }

    fn label(&self, index: u64) -> Option<i64> {
        self.labels.as_ref().map(|labels| labels[index as usize])
    }

    fn has_labels(&self) -> bool {
        self.labels.is_some()
    }

    fn root(&self) -> Option<PathBuf> {
        Some(self.root.clone())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.paths.fingerprint(self.labels.as_deref().unwrap_or_default())
    }
}
