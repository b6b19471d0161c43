//! The bytes of a sample: read through few descriptors, counted before they are read.

mod files;
mod reader;
mod streams;

pub(crate) use files::OpenFiles;
pub use reader::Reader;
pub(crate) use reader::{Fetched, Stretch};
pub use streams::Packed;
pub(crate) use streams::Streams;
