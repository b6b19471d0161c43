//! From bytes to the values of a sample, on native threads.
//!
//! `steps` are the settings for an image, `geometry` computes where each of its pixels comes from, `native` computes
//! the pixels and writes them into the sample's row of the batch. `predicate` decides which samples are kept, and which
//! bucket they belong to.

mod geometry;
mod native;
pub mod predicate;
mod steps;

pub use feedline_kernels::output::{Layout, Output};
pub use geometry::Prepared;
pub use native::Native;
pub(crate) use steps::{Decoding, Step};
pub use steps::{Picture, Size, Transform};
