//! Groups members to samples: names, keys, extensions, and the sample in progress.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::entry::{MemberRole, TarEntry, shown};

/// The role of a member in the samples.
pub(super) enum MemberUse {
    /// None: it is skipped.
    Skipped,
    /// It cannot be read, and its sample is unknown.
    Lost(String),
    /// A member of a sample; its key is the first `key` bytes of its name.
    Member { key: usize, problem: Option<String> },
}

impl MemberUse {
    pub(super) fn of(entry: &mut TarEntry) -> MemberUse {
        let problem = entry.problem.take();
        let key = match entry.role {
            MemberRole::File if !is_about_the_archive(&entry.name) => key_length(&entry.name),
            MemberRole::File | MemberRole::Other => None,
        };
        match (key, problem) {
            (Some(key), problem) => MemberUse::Member { key, problem },
            (None, Some(problem)) => MemberUse::Lost(problem),
            (None, None) => MemberUse::Skipped,
        }
    }
}

/// The length of the key in a name: up to the first dot of the file name. A file whose name begins with a dot belongs
/// to its folder, as in the `webdataset` package.
pub(super) fn key_length(name: &[u8]) -> Option<usize> {
    let last = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let dot = name[last..].iter().position(|byte| *byte == b'.')?;
    if dot > 0 {
        return Some(last + dot);
    }
    let folder = name.get(..last.checked_sub(1)?)?;
    let folder = folder.rsplit(|byte| *byte == b'/').next().unwrap_or(folder);
    (!folder.contains(&b'.')).then_some(last)
}

/// The extension of a member whose key has this length, in lowercase.
pub(super) fn extension(name: &[u8], key: usize) -> String {
    let extension = String::from_utf8_lossy(name.get(key + 1..).unwrap_or_default());
    match extension.is_ascii() {
        true => extension.to_ascii_lowercase(),
        false => extension.to_lowercase(),
    }
}

/// Whether a name is like `__meta__` or in such a folder, which is not a sample.
fn is_about_the_archive(name: &[u8]) -> bool {
    let first = name.split(|byte| *byte == b'/').next().unwrap_or_default();
    first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__")
}

/// A sample whose members are being read.
pub(super) struct SampleInProgress {
    pub key: Vec<u8>,
    pub start: u64,
    pub end: u64,
    pub problem: Option<String>,
    extensions: HashSet<String>,
}

impl SampleInProgress {
    pub(super) fn new(key: &[u8], start: u64) -> SampleInProgress {
        let extensions = HashSet::new();
        SampleInProgress { key: key.to_vec(), start, end: start, problem: None, extensions }
    }

    pub(super) fn add(&mut self, entry: &TarEntry, end: u64, problem: Option<String>) {
        self.end = end;
        let extension = extension(&entry.name, self.key.len());
        let is_second = self.extensions.contains(&extension);
        let problem = problem.or_else(|| {
            is_second
                .then(|| format!("member {} is the second with its extension", shown(&entry.name)))
        });
        self.extensions.insert(extension);
        if let Some(problem) = problem {
            let key = shown(&self.key);
            self.problem.get_or_insert_with(|| format!("sample {key} cannot be read: {problem}"));
        }
    }

    /// A hash of its key, and one of its extensions in any order.
    pub(super) fn traits(&self) -> (u64, u64) {
        let shape = self.extensions.iter().map(hash).fold(0, u64::wrapping_add);
        (hash(&self.key), shape)
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
