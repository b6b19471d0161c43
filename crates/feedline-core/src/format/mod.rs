//! Records in bytes: where each begins and ends, and what is in it. Pure: no files, no threads, no
//! clock.
//!
//! Every container speaks the same few words. `scan` goes through a file and lists the *spans* of its
//! records, framing and all; what is corrupt is a span too, so that it is somebody's turn to say so.
//! `split` does the same for bytes that come one after another. A *parser* makes the fields of a record.

mod container;
mod convert;
pub mod example;
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

/// Reads bytes from an offset, as many as there are up to the end of the buffer; returns how many.
pub(crate) type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> Result<usize> + 'a;

/// The bytes of a record, its framing among them, or of a stretch that is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first of them.
    pub start: u64,
    /// How many.
    pub length: u64,
}

/// What is wrong with a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Which one, counted from the first of the file.
    pub span: u64,
    /// What happened, as a part of a sentence, with the bytes that were skipped.
    pub what: String,
}

/// All that a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// In order.
    pub spans: Vec<Span>,
    /// In order; few.
    pub damages: Vec<Damage>,
}

impl Scanned {
    /// Adds a record.
    pub fn push(&mut self, start: u64, length: u64) {
        self.spans.push(Span { start, length });
    }

    /// Adds a stretch that is no record.
    pub(crate) fn push_damage(&mut self, start: u64, length: u64, what: impl Into<String>) {
        let span = self.spans.len() as u64;
        self.damages.push(Damage { span, what: what.into() });
        self.spans.push(Span { start, length });
    }
}

/// What stands at the beginning of some bytes of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// A record, whose span is that long.
    Record(usize),
    /// This many bytes that are no record of a sample, such as a folder in a tar.
    Passed(usize),
    /// This many bytes that are corrupt, and what is wrong.
    Damaged(usize, String),
    /// That cannot be said before there are this many bytes in all.
    More(usize),
    /// Nothing follows.
    End,
}
