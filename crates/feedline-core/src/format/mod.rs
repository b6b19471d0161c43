//! Records in bytes: where each begins and ends, and what it holds. Pure: no files, no threads, no clock.
//!
//! All containers have the same interface. `scan` reads a file and lists the *spans* of its records, including their
//! framing; a corrupt stretch is a span too, so that it is reported as a sample. `split` does the same for a stream of
//! bytes. A *parser* reads the fields of a record.

mod container;
mod convert;
pub mod example;
pub mod items;
pub mod npy;
pub mod pack;
mod parser;
pub mod stream;
pub mod tar;
pub mod text;
pub mod tfrecord;
mod unpack;
mod wanted;

pub use container::Container;
pub use parser::Parser;
pub use unpack::Packing;
pub(crate) use unpack::Unpacker;
pub use wanted::{Shape, Type, Wanted};

use crate::error::Result;

/// Reads bytes from an offset, up to the end of the buffer or of the file; returns how many.
pub(crate) type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> Result<usize> + 'a;

/// The bytes of a record, including its framing, or of a stretch that is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// The number of bytes.
    pub length: u64,
}

/// What is wrong with a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptSpan {
    /// The number of the span in the file.
    pub span: u64,
    /// What happened, as part of a sentence, with the bytes that were skipped.
    pub what: String,
}

/// The spans of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// All spans, in order.
    pub spans: Vec<Span>,
    /// The corrupt ones, in order; usually few.
    pub corrupt: Vec<CorruptSpan>,
}

impl Scanned {
    /// Adds a record.
    pub fn push(&mut self, start: u64, length: u64) {
        self.spans.push(Span { start, length });
    }

    /// Adds a stretch that is not a record.
    pub(crate) fn push_corrupt(&mut self, start: u64, length: u64, what: impl Into<String>) {
        let span = self.spans.len() as u64;
        self.corrupt.push(CorruptSpan { span, what: what.into() });
        self.spans.push(Span { start, length });
    }
}

/// What the bytes of a stream start with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// A record with a span of this length.
    Record(usize),
    /// This many bytes that belong to no sample, such as a folder in a tar.
    Ignored(usize),
    /// This many corrupt bytes, and what is wrong.
    Corrupt(usize, String),
    /// Unknown until there are this many bytes in total.
    More(usize),
    /// Nothing follows.
    End,
}
