//! Feedline's core: the path of a sample, from where it lies to the training loop.
//!
//! ```text
//!  source ──► plan ──► fetch ──► worker ──► collate ──► deliver
//! ```
//!
//! A [`loader::Loader`] is made of a source and checked settings; its epochs are iterators of batches:
//!
//! ```
//! use feedline_core::config::{Given, Settings};
//! use feedline_core::loader::Loader;
//! use feedline_core::source::folder::Folder;
//! use std::sync::Arc;
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
//! let source = Arc::new(Folder::images(folder)?);
//! let words = r#"[{"call": "shuffle", "seed": 7}, {"call": "decode"}, {"call": "resize", "size": 40},
//!                 {"call": "center_crop", "size": 32}, {"call": "batch", "size": 8}]"#;
//! let loader = Loader::new(source, Settings::parse(words, &Given::Files)?)?;
//! let mut samples = 0;
//! for batch in loader.epoch()? {
//!     let batch = batch?;
//!     assert_eq!(batch.get("image").and_then(|column| column.shape()), Some(&[batch.len(), 32, 32, 3][..]));
//!     samples += batch.len();
//! }
//! assert_eq!(samples, 20);
//! println!("{}", loader.report());
//! # Ok(())
//! # }
//! ```

pub mod sys;

pub mod budget;
pub mod bytes;
pub mod checkpoint;
pub mod engine;
pub mod error;
pub mod escape;
pub mod event;
pub mod fault;
pub mod metrics;
pub use feedline_kernels::random;
pub mod sample;

pub mod decode;
pub mod format;

pub mod source;
pub mod plan;
pub mod fetch;
pub mod transform;
pub mod worker;
pub mod collate;
pub mod deliver;

pub mod config;
pub mod loader;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
