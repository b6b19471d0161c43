//! Tar archives in the WebDataset convention: groups members to samples, and reads them.
//!
//! The span of a sample extends from the first header of its first member, including long names and extended headers,
//! to the end of its last member. It is read in one piece and parsed again. Names are only keys: no file is ever
//! written where they point.

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

use header::{BLOCK, HeaderBlock};

pub use members::{Member, Members, members};
pub use parser::TarParser;
pub(crate) use parser::{guess, guess_from_corrupt};
pub(crate) use scan::scan;
pub(crate) use split::TarSplitter;
pub use write::{write, write_end};

/// Whether these bytes begin with a header with a valid checksum.
pub fn is_header(bytes: &[u8]) -> bool {
    bytes.get(..BLOCK).is_some_and(|block| matches!(HeaderBlock::of(block), HeaderBlock::Header(_)))
}
