//! Loads a data set as batches, and goes on when samples are bad.
//!
//! A [`Pipeline`] says what is loaded and what is done to it. Its [`Loader`] reads files, decodes and transforms in
//! threads of its own, within a budget of memory and open files. Each [`Epoch`] is an iterator of batches, in an order
//! that depends only on the settings: a run that was interrupted goes on from its [`RunState`].
//!
//! ```
//! use feedline::{FaultPolicy, Pipeline, DecodeOptions, LoaderOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let data = tempfile::tempdir()?;
//! # let folder = data.path();
//! # for number in 0..20 {
//! #     let class = folder.join(["cat", "dog"][number % 2]);
//! #     std::fs::create_dir_all(&class)?;
//! #     let photo = feedline_core::testing::photos::photo_jpeg(number as u64, 80, 60, 90);
//! #     std::fs::write(class.join(format!("{number}.jpg")), photo)?;
//! # }
//! let faults: FaultPolicy = "action=skip,limit=0.01".parse()?;
//! let loader = Pipeline::images(folder)?
//!     .shuffle(7)
//!     .decode(DecodeOptions::default())
//!     .resize(40)
//!     .center_crop(32)
//!     .batch(8)
//!     .loader_with(LoaderOptions { faults, ..Default::default() })?;
//! let mut samples = 0;
//! for batch in loader.epoch()? {
//!     let batch = batch?;
//!     let images = batch.get("image").and_then(|column| column.shape());
//!     assert_eq!(images, Some(&[batch.len(), 32, 32, 3][..]));
//!     let labels: Vec<i64> = batch.values("label").unwrap_or_default();
//!     samples += labels.len();
//! }
//! assert_eq!(samples, 20);
//! println!("{}", loader.report());
//! # Ok(())
//! # }
//! ```
//!
//! Wrong arguments are refused when the loader is built. An [`Error`] has a [`Kind`], the place of the sample if it has
//! one, and a hint. Faults of samples raise, or are skipped or replaced, as the [`FaultPolicy`] says; the [`Report`]
//! counts all of them.

mod pipeline;

pub use feedline_core::bytes::Piece;
pub use feedline_core::config::{Choice, Padding};
// The arguments of the calls of a `Pipeline`, where one is not enough. Each has defaults:
// `DecodeOptions { mode: Mode::Gray, ..Default::default() }`.
pub use feedline_core::config::{
    BatchOptions, BucketOptions, CacheOptions, CastOptions, DecodeOptions, InterleaveOptions,
    LoaderOptions, PerChannel, RandomCropOptions, RandomResizedCropOptions, ResizeOptions,
    ShardOptions, ShuffleOptions, Sides, ToFloatOptions,
};
pub use feedline_core::decode::Mode;
pub use feedline_core::decode::resize::Filter;
pub use feedline_core::error::{Error, Kind, Result};
pub use feedline_core::event::{Event, Level, Slow};
pub use feedline_core::fault::{Action, Backoff, FaultLine, FaultPolicy, Limit, Rule};
pub use feedline_core::format::{Container, Shape, Type, Wanted};
pub use feedline_core::loader::{Decided, Epoch, Fit, Loader, Waited};
pub use feedline_core::metrics::Report;
pub use feedline_core::plan::{By, Remainder};
pub use feedline_core::run_state::{Ranks, RunState};
pub use feedline_core::sample::{
    Array, Batch, Column, Dtype, Element, Location, Number, Stage, Ticket,
};
pub use feedline_core::source::index::IndexStorage;
pub use feedline_core::sys::slab::Row;
pub use feedline_core::transform::predicate::{Constant, Operand, Predicate, col, length};
pub use feedline_core::transform::{Layout, Size};
pub use pipeline::{Paths, Pipeline};

/// The examples of the page for Rust.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Page;
