//! The bytes of a sample: read through few descriptors, counted before they are read.

mod files;
mod reader;
mod streams;

pub use files::OpenFiles;
pub use reader::{Fetched, Reader, Stretch};
pub use streams::{Packed, Streams};
