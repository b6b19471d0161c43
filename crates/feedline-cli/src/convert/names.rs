//! Converts file names to names in shards, and names in shards to file paths. Pure.
//!
//! Names in a shard are untrusted: a path built from one never leaves the target folder.

use feedline_core::error::{Error, Kind, Result};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Longest part of a path, in bytes.
const LONGEST: usize = 255;

/// Splits a name into parts that are valid file names. A `.` is dropped.
pub(super) fn parts(name: &[u8]) -> Result<Vec<&[u8]>> {
    let mut parts = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        if part == b"." {
            continue;
        }
        if let Some(why) = why_invalid(part) {
            let shown = String::from_utf8_lossy(name);
            let shown: String = shown.chars().take(120).collect();
            return Err(Error::new(Kind::UnsafeFormat, format!("the name {shown:?} {why}"))
                .with_hint(
                    "nothing is written outside the target; write the shard with plain relative names",
                ));
        }
        parts.push(part);
    }
    match parts.is_empty() {
        true => Err(Error::new(Kind::UnsafeFormat, "the name is empty")),
        false => Ok(parts),
    }
}

/// Why a name that goes into a shard would be refused when the shard is converted back.
pub(super) fn refusal(name: &[u8]) -> Option<&'static str> {
    name.split(|byte| *byte == b'/').find_map(why_invalid)
}

/// Why this cannot be the name of a file.
fn why_invalid(part: &[u8]) -> Option<&'static str> {
    match part {
        b"" => Some("is absolute, or has a part that is empty"),
        b".." => Some("leads out of its folder by \"..\""),
        [b'.', ..] => Some("has a part that begins with a dot, which loaders skip"),
        _ if part.len() > LONGEST => Some("has a part that is too long for a file"),
        _ if part.iter().any(|byte| byte.is_ascii_control() || *byte == b'\\') => {
            Some("has a backslash or a control character")
        }
        _ => None,
    }
}

/// Path of a sample below the target.
pub(super) fn place(class: Option<&str>, name: &[u8]) -> Result<PathBuf> {
    let parts = parts(name)?;
    let class = match (class, parts.first()) {
        (Some(class), _) => {
            let one = self::parts(class.as_bytes())?;
            match one[..] {
                [one] => Some(one),
                _ => {
                    let message = format!("the class {class:?} is a path, not a name");
                    return Err(Error::new(Kind::UnsafeFormat, message));
                }
            }
        }
        (None, Some(_)) if parts.len() > 1 => None,
        (None, _) => {
            let message = "the record has no label, and its name has no folder to use as one";
            return Err(Error::new(Kind::InvalidField, message));
        }
    };
    // In shards that were converted from a folder, names begin with the class.
    let class = class.filter(|class| parts.len() < 2 || parts[0] != *class);
    Ok(class.into_iter().chain(parts).map(OsStr::from_bytes).collect())
}

/// Unique keys of tar samples: paths without extensions and without dots in the file name.
#[derive(Default)]
pub(super) struct Keys {
    folder: Vec<u8>,
    used: HashSet<Vec<u8>>,
}

impl Keys {
    /// Key and extension of a file. The files of one folder must be consecutive.
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
            // One extension per format, so that all samples have the same members.
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
    fn no_name_escapes_the_folder() {
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
    fn a_sample_is_put_once_into_the_folder_of_its_class() {
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
    fn keys_are_unique() {
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
