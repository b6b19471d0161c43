//! Reads the bytes of samples, with few descriptors, and within the budget.

mod cache;
mod files;
mod reader;
mod streams;

pub(crate) use cache::{
    CacheMeters, CachedImage, CachedSample, CorruptEntry, DiskCache, MemoryCache, Stored,
};
pub(crate) use files::OpenFiles;
pub use reader::Reader;
pub(crate) use reader::{Fetched, Stretch};
pub use streams::Packed;
pub(crate) use streams::Streams;
