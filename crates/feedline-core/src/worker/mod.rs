//! From bytes to the values of a sample: on native threads, or in worker processes.
//!
//! `recipe` says what is done, `geometry` where every pixel comes from, `native` does it, `output`
//! writes the numbers into the sample's row of the batch.
//!
//! Processes: `supervisor` decides and `processes` does; `wire` is what trainer and worker say to each
//! other, `arena` the memory in which batches travel, `inbox` that in which tasks do, `blackbox` what
//! remains of a dead worker.

pub mod answer;
pub mod arena;
pub mod blackbox;
pub mod certificate;
mod geometry;
pub mod inbox;
pub mod lastwords;
pub mod leaks;
mod native;
pub mod predicate;
pub mod processes;
mod recipe;
pub mod station;
pub mod supervisor;
pub mod wire;
pub mod zygote;

pub use feedline_kernels::output::{Layout, Output};
pub use geometry::{Prepared, Step as PlacedStep};
pub use native::Native;
pub use recipe::{Decoding, Picture, Recipe, Size, Step};
