//! The call that keeps samples for later epochs.

use std::path::PathBuf;

use super::amount::ByteCount;
use super::arguments::{Arguments, Text};
use super::calls::CallArguments;
use super::{Given, Settings};
use crate::error::{Error, Kind, Result};
use crate::format::Container;

/// The smallest cache.
const SMALLEST: u64 = 1 << 20;

/// Samples are kept for later epochs: in memory, or in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheOptions {
    /// The most bytes in memory.
    pub memory: Option<u64>,
    /// The folder; several processes may use it at the same time.
    pub folder: Option<PathBuf>,
    /// The most bytes in the folder.
    pub size: Option<u64>,
}

impl CacheOptions {
    /// In memory, at most this many bytes.
    pub fn memory(bytes: u64) -> CacheOptions {
        CacheOptions { memory: Some(bytes), ..CacheOptions::default() }
    }

    /// In a folder, at most this many bytes.
    pub fn folder(path: impl Into<PathBuf>, bytes: u64) -> CacheOptions {
        CacheOptions { folder: Some(path.into()), size: Some(bytes), memory: None }
    }
}

/// Where samples are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheStore {
    /// In memory, at most this many bytes.
    Memory(u64),
    /// In files.
    Folder {
        /// The folder.
        path: PathBuf,
        /// At most this many bytes.
        size: u64,
    },
}

/// What is kept, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caching {
    /// Where.
    pub store: CacheStore,
    /// The steps after `decode` whose result is kept; None for the bytes before it.
    pub steps: Option<usize>,
}

impl CallArguments for CacheOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.take("memory", &mut self.memory, ByteCount(SMALLEST))?;
        from.take("size", &mut self.size, ByteCount(SMALLEST))?;
        if let Some(folder) = from.read("folder", Text("a path"))? {
            self.folder = Some(folder.into());
        }
        match (&self.memory, &self.folder, &self.size) {
            (Some(_), None, None) | (None, Some(_), Some(_)) => Ok(()),
            (None, Some(_), None) => Err(wrong("a folder needs the most bytes that it may have")),
            (None, None, Some(_)) => Err(wrong("size is for a folder, and there is none")),
            (None, None, None) => Err(wrong("there is neither memory nor a folder")),
            (Some(_), _, _) => Err(wrong("it is either in memory or in a folder")),
        }
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        match given {
            Given::Arrays(_) => {
                let message = "cache: the samples are in memory already";
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint("leave cache() out, or load them from files"));
            }
            Given::Records(contents) if matches!(contents.container, Container::Numbers { .. }) => {
                let message = "cache: tokens are read straight into the batch";
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint("leave cache() out: the system keeps files that fit into memory"));
            }
            Given::Records(_) | Given::Files => {}
        }
        let store = match (self.memory, &self.folder, self.size) {
            (Some(memory), _, _) => CacheStore::Memory(memory),
            (None, Some(path), Some(size)) => CacheStore::Folder { path: path.clone(), size },
            (None, _, _) => return Err(wrong("there is neither memory nor a folder")),
        };
        let steps = match &settings.decoding {
            None => None,
            Some(decoding) if decoding.scaled => {
                let message = "cache: decode(scaled=True) chooses its scale for all steps together";
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint("call cache() before decode(), or leave scaled=True out"));
            }
            Some(_) => Some(settings.steps.len()),
        };
        settings.cache = Some(Caching { store, steps });
        Ok(())
    }
}

fn wrong(what: &str) -> Error {
    Error::new(Kind::InvalidArgument, format!("cache: {what}"))
        .with_hint("write cache(memory=\"2GiB\"), or cache(\"folder\", size=\"200GiB\")")
}
