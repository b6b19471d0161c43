//! Names that go into shards, and names from shards that become paths. Pure.
//!
//! What stands in a shard was written by anybody: a path made of it never leaves the folder it is for.

use feedline_core::error::{Error, Kind, Result};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Bytes of one part of a path.
const LONGEST: usize = 255;

/// The parts of a name, each of which can be that of a file. A `.` is none.
pub(super) fn parts(name: &[u8]) -> Result<Vec<&[u8]>> {
    let mut parts = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        if part == b"." {
            continue;
        }
        if let Some(why) = objection(part) {
            let shown = String::from_utf8_lossy(name);
            let shown: String = shown.chars().take(120).collect();
            return Err(Error::new(Kind::UnsafeFormat, format!("the name {shown:?} {why}"))
                .with_hint(
                    "nothing is written outside of the target; write the shard with plain names",
                ));
        }
        parts.push(part);
    }
    match parts.is_empty() {
        true => Err(Error::new(Kind::UnsafeFormat, "the name is empty")),
        false => Ok(parts),
    }
}

/// Why a name that goes into a shard would be refused on the way back.
pub(super) fn refusal(name: &[u8]) -> Option<&'static str> {
    name.split(|byte| *byte == b'/').find_map(objection)
}

/// Why that cannot be the name of a file.
fn objection(part: &[u8]) -> Option<&'static str> {
    match part {
        b"" => Some("is absolute, or has a part that is empty"),
        b".." => Some("leads out of its folder by \"..\""),
        [b'.', ..] => Some("has a part that begins with a dot, which loaders pass over"),
        _ if part.len() > LONGEST => Some("has a part that is too long for a file"),
        _ if part.iter().any(|byte| byte.is_ascii_control() || *byte == b'\\') => {
            Some("has a backslash or a control character")
        }
        _ => None,
    }
}

/// Where a sample of a class is put, below the target.
pub(super) fn place(class: Option<&str>, name: &[u8]) -> Result<PathBuf> {
    let parts = parts(name)?;
    let class = match (class, parts.first()) {
        (Some(class), _) => {
            let one = self::parts(class.as_bytes())?;
            match one[..] {
                [one] => Some(one),
                _ => {
                    let message = format!("the class {class:?} is a path and no name");
                    return Err(Error::new(Kind::UnsafeFormat, message));
                }
            }
        }
        (None, Some(_)) if parts.len() > 1 => None,
        (None, _) => {
            let message = "the record has no label, and no folder in its name that could be one";
            return Err(Error::new(Kind::InvalidField, message));
        }
    };
    // In shards that were made of a folder, names begin with the class.
    let class = class.filter(|class| parts.len() < 2 || parts[0] != *class);
    Ok(class.into_iter().chain(parts).map(OsStr::from_bytes).collect())
}

/// Keys of samples in a tar: paths without extensions and without dots in the name, each once.
#[derive(Default)]
pub(super) struct Keys {
    folder: Vec<u8>,
    used: HashSet<Vec<u8>>,
}

impl Keys {
    /// The key of a file, and its extension. Files of one folder must come one after another.
    pub(super) fn next(&mut self, path: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let name = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (folder, name) = path.split_at(name);
        if folder != self.folder {
            self.folder = folder.to_vec();
            self.used.clear();
        }
        let dot = name.iter().rposition(|byte| *byte == b'.').unwrap_or(name.len());
        let (stem, extension) = name.split_at(dot);
        let stem: Vec<u8> =
            stem.iter().map(|byte| if *byte == b'.' { b'_' } else { *byte }).collect();
        let mut key = stem.clone();
        let mut number = 2;
        while !self.used.insert(key.clone()) {
            key = [&stem, format!("-{number}").as_bytes()].concat();
            number += 1;
        }
        let extension = match extension.get(1..).unwrap_or_default().to_ascii_lowercase() {
            // One name for one thing: the members of all samples are to be the same.
            long if long == b"jpeg" => b"jpg".to_vec(),
            extension => extension,
        };
        ([folder, &key].concat(), extension)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for name in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "../a",
            "a/../../b",
            "a/..",
            "a//b",
            "a/",
            ".hidden",
            "a/.b",
            "a\\b",
            "a\nb",
            "a\0b",
            "./..",
            ".",
        ] {
            let error = parts(name.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::UnsafeFormat, "{name:?}");
            assert!(place(Some("cat"), name.as_bytes()).is_err(), "{name:?}");
        }
        assert!(parts(&[b'a'; 256]).is_err());
        for class in ["", "..", "a/b", "/", "a\\b"] {
            assert!(place(Some(class), b"1.jpg").is_err(), "{class:?}");
        }
    }

    #[test]
    fn a_sample_is_put_into_the_folder_of_its_class_once() {
        for (class, name, path) in [
            (Some("cat"), "1.jpg", "cat/1.jpg"),
            (Some("cat"), "cat/1.jpg", "cat/1.jpg"),
            (Some("cat"), "./cat/deep/1.jpg", "cat/deep/1.jpg"),
            (Some("cat"), "cat", "cat/cat"),
            (Some("3"), "cat/1.jpg", "3/cat/1.jpg"),
            (None, "cat/1.jpg", "cat/1.jpg"),
        ] {
            assert_eq!(place(class, name.as_bytes()).unwrap(), PathBuf::from(path));
        }
        assert_eq!(place(None, b"1.jpg").unwrap_err().kind(), Kind::InvalidField);
    }

    #[test]
    fn every_key_is_there_once() {
        let mut keys = Keys::default();
        let made: Vec<_> =
            ["a/1-2.jpg", "a/1.JPG", "a/1.png", "a/1.x.png", "a/1_x.png", "b/1.jpeg"]
                .iter()
                .map(|path| keys.next(path.as_bytes()))
                .map(|(key, extension)| {
                    [key, extension].map(|part| String::from_utf8(part).unwrap())
                })
                .collect();
        let expected = [
            ["a/1-2", "jpg"],
            ["a/1", "jpg"],
            ["a/1-3", "png"],
            ["a/1_x", "png"],
            ["a/1_x-2", "png"],
            ["b/1", "jpg"],
        ];
        assert_eq!(made, expected);
    }
}
