//! Tar archives in the WebDataset convention: which members are one sample, and what is in them.
//!
//! The span of a sample goes from the first header of its first member, long names and extended headers
//! among them, to the end of its last member. It is read in one piece and walked again. Names are keys
//! and nothing else: nothing is ever written where they point.

mod entry;
mod header;
mod members;
mod parser;
mod sample;
mod scan;
mod split;
mod write;

#[cfg(test)]
mod parser_tests;
#[cfg(test)]
mod tests;

use header::{BLOCK, Block};

pub use members::{Member, Members, members};
pub use parser::Parser;
pub(crate) use parser::{guess, guess_from_damaged};
pub(crate) use scan::scan;
pub(crate) use split::Splitter;
pub use write::{write, write_end};

/// Whether these bytes begin with a header whose checksum holds.
pub fn is_header(bytes: &[u8]) -> bool {
    bytes.get(..BLOCK).is_some_and(|block| matches!(Block::of(block), Block::Header(_)))
}
