//! From bytes to the values of a sample, on native threads.
//!
//! `steps` says what is done to an image, `geometry` where each of its pixels comes from, `native` does it and writes
//! the numbers into the sample's row of the batch. `predicate` decides which samples are kept, and how long they are.

mod geometry;
mod native;
pub mod predicate;
mod steps;

pub use feedline_kernels::output::{Layout, Output};
pub use geometry::Prepared;
pub use native::Native;
pub(crate) use steps::{Decoding, Step};
pub use steps::{Picture, Size, Transform};
