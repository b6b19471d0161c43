//! Checks of manifests, which list the contents of each shard: whether a file is one, and which shards it lists.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::sample::shown;
use feedline_core::sys::file::Handle;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::report::counted;

/// Refuses to overwrite anything but a manifest.
pub(crate) fn check_target(path: &Path) -> Result<()> {
    let refused = |why: &str| {
        let message = format!("{} exists already, and {why}", shown(path));
        Err(Error::new(Kind::InvalidArgument, message)
            .with_hint("give another file for --manifest, or remove this one"))
    };
    // Does not follow symbolic links: the new file would replace the link, not its target.
    let is_file = match path.symlink_metadata() {
        Ok(metadata) => metadata.is_file(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(Error::io(
                Kind::InvalidArgument,
                format!("reading the metadata of {}", shown(path)),
                error,
            )
            .with_hint("give a writable file for --manifest"));
        }
    };
    if !is_file {
        return refused("is not a regular file");
    }
    match read(path) {
        Ok(shards) if !shards.is_empty() && shards.values().all(is_shard) => Ok(()),
        Ok(_) | Err(_) => refused("is not a manifest written by feedline"),
    }
}

/// Refuses a manifest that lists shards other than those that could be read.
pub(crate) fn check_all_here(
    manifest: &Path,
    readable: &[PathBuf],
    unreadable: &[PathBuf],
) -> Result<()> {
    // A file that is not a manifest is refused with a reason where the shards are compared with it.
    let Ok(shards) = read(manifest) else { return Ok(()) };
    let names = |paths: &[PathBuf]| -> HashSet<String> {
        let name =
            |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        paths.iter().map(name).collect()
    };
    let (readable, unreadable) = (names(readable), names(unreadable));
    let mut missing = shards.keys().filter(|name| !readable.contains(*name));
    let Some(first) = missing.next() else { return Ok(()) };
    let what = match unreadable.contains(first) {
        true => "cannot be read",
        false => "is missing",
    };
    let others = match missing.count() as u64 {
        0 => String::new(),
        others => format!(", and {} missing too", counted(others, "other is", "others are")),
    };
    let message = format!("shard {first:?} of manifest {} {what}{others}", shown(manifest));
    Err(Error::new(Kind::InvalidSource, message).with_hint(
        "give all shards of the manifest, or write a new one with feedline index --manifest",
    ))
}

fn is_shard(said: &Value) -> bool {
    said.as_object().is_some_and(|said| {
        said.len() == 2
            && ["records", "bytes"].iter().all(|key| said.get(*key).is_some_and(Value::is_u64))
    })
}

/// The shards that a manifest lists. Parsing stops at the first invalid byte, because the file may be a shard of any
/// size.
fn read(path: &Path) -> io::Result<Map<String, Value>> {
    let bytes = Bytes { handle: Handle::open(path)?, offset: 0 };
    Ok(serde_json::from_reader(BufReader::new(bytes))?)
}

struct Bytes {
    handle: Handle,
    offset: u64,
}

impl Read for Bytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.handle.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}
