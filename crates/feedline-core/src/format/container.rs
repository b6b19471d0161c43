//! The formats of files with many records, and what they have in common.

use std::sync::Arc;

use super::{ReadAt, Scanned, Split, tar, text, tfrecord};
use crate::error::Result;
use crate::sample::Dtype;

/// The format of a file with records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Container {
    /// TFRecord.
    Tfrecord {
        /// Whether checksums of the data are checked; those of lengths always are.
        check: bool,
    },
    /// Tar in the WebDataset convention: a record is all members of one key.
    Tar,
    /// A JSON value in each line.
    JsonLines,
    /// CSV with these columns.
    Csv {
        /// The character between values.
        delimiter: u8,
        /// The column names, from the first line of the first file.
        columns: Arc<[String]>,
    },
    /// Plain numbers; a record is this many of them.
    Numbers {
        /// Type of the numbers.
        dtype: Dtype,
        /// Numbers per record.
        length: usize,
    },
}

impl Container {
    /// Its name in messages and in the names of indices.
    pub fn name(&self) -> &'static str {
        match self {
            Container::Tfrecord { .. } => "tfrecord",
            Container::Tar => "tar",
            Container::JsonLines => "jsonl",
            Container::Csv { .. } => "csv",
            Container::Numbers { .. } => "numbers",
        }
    }

    /// The spans of all records of a file.
    pub(crate) fn scan(&self, size: u64, read: &mut ReadAt<'_>) -> Result<Scanned> {
        match self {
            Container::Tfrecord { .. } => tfrecord::scan(size, read),
            Container::Tar => tar::scan(size, read),
            Container::JsonLines => text::scan_lines(size, read),
            Container::Csv { delimiter, columns } => {
                text::scan_csv(size, *delimiter, columns, read)
            }
            Container::Numbers { .. } => Ok(Scanned::default()),
        }
    }

    /// A splitter that finds records in a stream of bytes.
    pub(crate) fn splitter(&self) -> Splitter {
        Splitter(match self {
            Container::Tfrecord { .. } => AnySplitter::Tfrecord,
            Container::Tar => AnySplitter::Tar(tar::TarSplitter::new()),
            Container::JsonLines => AnySplitter::Lines { is_first: true },
            Container::Csv { delimiter, columns } => {
                AnySplitter::Csv(Box::new(text::CsvSplitter::new(*delimiter, columns)))
            }
            Container::Numbers { .. } => AnySplitter::Nothing,
        })
    }

    /// The content of a record without its framing, checked as far as the framing allows.
    pub fn payload<'a>(&self, span: &'a [u8]) -> Result<&'a [u8]> {
        match self {
            Container::Tfrecord { check } => tfrecord::payload(span, *check),
            Container::JsonLines => Ok(span.trim_ascii_end()),
            Container::Tar | Container::Csv { .. } | Container::Numbers { .. } => Ok(span),
        }
    }
}

/// Finds the records of a stream.
pub(crate) struct Splitter(AnySplitter);

enum AnySplitter {
    Tfrecord,
    Tar(tar::TarSplitter),
    Lines { is_first: bool },
    Csv(Box<text::CsvSplitter>),
    Nothing,
}

impl Splitter {
    /// What the bytes start with; more bytes may follow unless `is_end`.
    pub(crate) fn split(&mut self, bytes: &[u8], is_end: bool) -> Split {
        match &mut self.0 {
            AnySplitter::Tfrecord => tfrecord::split(bytes, is_end),
            AnySplitter::Tar(splitter) => splitter.split(bytes, is_end),
            AnySplitter::Lines { is_first } => {
                let split = text::split_lines(bytes, *is_first, is_end);
                *is_first &= matches!(split, Split::More(_));
                split
            }
            AnySplitter::Csv(splitter) => splitter.split(bytes, is_end),
            AnySplitter::Nothing => Split::End,
        }
    }
}
