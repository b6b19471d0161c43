//! Reads the bytes of samples, with few descriptors, and within the budget.

mod files;
mod reader;
mod streams;

pub(crate) use files::OpenFiles;
pub use reader::Reader;
pub(crate) use reader::{Fetched, Stretch};
pub use streams::Packed;
pub(crate) use streams::Streams;
