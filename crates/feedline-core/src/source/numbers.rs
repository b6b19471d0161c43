//! Files of plain numbers, such as the tokens of a text: each sample is a window of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Contents, Source};
use crate::error::{Error, Kind, Result};
use crate::fingerprint::Fingerprint;
use crate::format::Container;
use crate::sample::{Dtype, Extent, Location};
use crate::sys::file::{Handle, Identity};

/// A file of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The file.
    pub path: PathBuf,
    /// Offset of its first number.
    pub start: u64,
    /// How many numbers it has; by default all that follow.
    pub count: Option<u64>,
}

/// Windows of numbers. A window never spans two files.
#[derive(Debug)]
pub struct Numbers {
    files: Vec<(PathBuf, u64, u64)>,
    identities: Vec<Identity>,
    /// The end of each file: the index after its last window.
    ends: Vec<u64>,
    dtype: Dtype,
    length: u64,
    stride: u64,
    contents: Contents,
}

impl Numbers {
    /// Windows of `length` numbers, each `stride` after the one before.
    pub fn new(files: &[Numbered], dtype: Dtype, length: u64, stride: u64) -> Result<Numbers> {
        let each = dtype.bytes() as u64;
        let mut found = Vec::with_capacity(files.len());
        let mut identities = Vec::with_capacity(files.len());
        let mut ends = Vec::with_capacity(files.len());
        let mut windows = 0;
        for Numbered { path, start, count } in files {
            let bad = |message: String| {
                Error::new(Kind::InvalidSource, message).at(Some(Location::file(path)))
            };
            let identity = Handle::open(path)
                .and_then(|handle| handle.identity())
                .map_err(|error| Error::io(Kind::InvalidSource, "opening the file", error))
                .map_err(|error| error.at(Some(Location::file(path))))?;
            identities.push(identity);
            let bytes = identity.stamp.size.saturating_sub(*start);
            let there = bytes / each;
            if count.is_none() && !bytes.is_multiple_of(each) {
                let message =
                    format!("{bytes} bytes are not a whole number of {} values", dtype.name());
                return Err(bad(message).with_hint("set dtype= to the type that was written"));
            }
            if let Some(count) = count
                && *count > there
            {
                let message = format!(
                    "the file is truncated: its header declares {count} numbers, it has {there}"
                );
                return Err(bad(message).with_hint("write or copy the file again"));
            }
            let count = count.unwrap_or(there);
            if count >= length {
                windows += (count - length) / stride + 1;
            }
            found.push((path.clone(), *start, count));
            ends.push(windows);
        }
        if windows == 0 {
            let longest = found.iter().map(|(_, _, count)| *count).max().unwrap_or(0);
            let message = format!("no file has {length} numbers; the longest has {longest}");
            return Err(Error::new(Kind::InvalidSource, message).with_hint("lower length="));
        }
        let container = Container::Numbers { dtype, length: length as usize };
        let contents = Contents { container, guessed: Arc::new([]), is_packed: false };
        Ok(Numbers { files: found, identities, ends, dtype, length, stride, contents })
    }

    fn place(&self, index: u64) -> (&Path, u64, u64) {
        let file = self.ends.partition_point(|end| *end <= index);
        let before = file.checked_sub(1).map_or(0, |before| self.ends[before]);
        let (path, start, _) = &self.files[file];
        let number = index - before;
        (path, start + number * self.stride * self.dtype.bytes() as u64, number)
    }
}

impl Source for Numbers {
    fn kind(&self) -> &'static str {
        "numbers"
    }

    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn extent(&self, index: u64) -> Extent<'_> {
        let (path, offset, _) = self.place(index);
        Extent::Part { path, offset, length: self.length * self.dtype.bytes() as u64 }
    }

    fn known_files(&self) -> Vec<(PathBuf, Identity)> {
        let paths = self.files.iter().map(|(path, ..)| path.clone());
        paths.zip(self.identities.iter().copied()).collect()
    }

    fn shards(&self) -> Vec<u64> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        self.ends.iter().zip(starts).map(|(end, start)| end - start).collect()
    }

    fn contents(&self) -> Option<&Contents> {
        Some(&self.contents)
    }

    fn label(&self, _index: u64) -> Option<i64> {
        None
    }

    fn has_labels(&self) -> bool {
        false
    }

    fn root(&self) -> Option<PathBuf> {
        self.files.first().and_then(|(path, ..)| path.parent()).map(Path::to_owned)
    }

    fn location(&self, index: u64) -> Option<Location> {
        let (path, offset, number) = self.place(index);
        Some(Location { path: path.to_owned(), offset: Some(offset), record: Some(number) })
    }

    fn fingerprint(&self) -> Fingerprint {
        let files: Vec<_> = self
            .files
            .iter()
            .map(|(path, start, count)| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                format!("{name} {start} {count}")
            })
            .collect();
        let shape = format!("{:?} {} {}", self.dtype, self.length, self.stride);
        Fingerprint::of(files.iter().chain([&shape]).map(String::as_bytes))
    }

    fn mean_bytes(&self) -> u64 {
        self.length * self.dtype.bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;

    fn written(folder: &Path, name: &str, count: u16) -> Numbered {
        let path = folder.join(name);
        let bytes: Vec<u8> = (0..count).flat_map(u16::to_le_bytes).collect();
        file::write(&path, &bytes).unwrap();
        Numbered { path, start: 0, count: None }
    }

    #[test]
    fn windows_do_not_span_two_files() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            written(folder.path(), "a", 10),
            written(folder.path(), "b", 3),
            written(folder.path(), "c", 4),
        ];
        let numbers = Numbers::new(&files, Dtype::Uint16, 4, 3).unwrap();
        assert_eq!(numbers.len(), 4);
        let places: Vec<_> = (0..4).map(|index| numbers.place(index).1).collect();
        assert_eq!(places, [0, 6, 12, 0]);
        assert_eq!(numbers.location(3).unwrap().path, files[2].path);
    }

    #[test]
    fn a_file_that_does_not_match_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = written(folder.path(), "a", 5);
        let refused = |file: &Numbered, dtype, length| {
            Numbers::new(std::slice::from_ref(file), dtype, length, 1)
                .unwrap_err()
                .message()
                .to_owned()
        };
        assert_eq!(
            refused(&file, Dtype::Uint32, 1),
            "10 bytes are not a whole number of uint32 values"
        );
        assert_eq!(refused(&file, Dtype::Uint16, 6), "no file has 6 numbers; the longest has 5");
        let truncated = Numbered { count: Some(9), ..file };
        assert_eq!(
            refused(&truncated, Dtype::Uint16, 2),
            "the file is truncated: its header declares 9 numbers, it has 5"
        );
    }
}
