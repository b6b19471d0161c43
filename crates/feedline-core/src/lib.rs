//! Feedline's core: the path of a sample, from where it lies to the training loop.
//!
//! ```text
//!  source ──► plan ──► fetch ──► worker ──► collate ──► deliver
//! ```
//!
//! A [`loader::Loader`] is made of a source and checked settings; its epochs are iterators of batches:
//!
//! ```no_run
//! use feedline_core::config::{Given, Settings};
//! use feedline_core::loader::Loader;
//! use feedline_core::source::folder::Folder;
//! use std::sync::Arc;
//!
//! # fn main() -> feedline_core::error::Result<()> {
//! let source = Arc::new(Folder::images("data/train".as_ref())?);
//! let words = r#"[{"call": "shuffle", "seed": 7}, {"call": "decode"}, {"call": "resize", "size": 256},
//!                 {"call": "center_crop", "size": 224}, {"call": "batch", "size": 64}]"#;
//! let loader = Loader::new(source, Settings::parse(words, &Given::Files)?)?;
//! for batch in loader.epoch()? {
//!     let batch = batch?;
//!     println!("{} samples, {:?}", batch.len(), batch.get("image").and_then(|c| c.shape()));
//! }
//! println!("{}", loader.report());
//! # Ok(())
//! # }
//! ```

pub mod sys;

pub mod budget;
pub mod checkpoint;
pub mod error;
pub mod event;
pub mod fault;
pub mod metrics;
pub mod random;
pub mod sample;

pub mod decode;

pub mod source;
pub mod plan;
pub mod fetch;
pub mod worker;
pub mod collate;
pub mod deliver;

pub mod config;
pub mod loader;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
