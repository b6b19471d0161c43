//! From bytes to the values of a sample, on native threads.
//!
//! `recipe` says what is done, `geometry` where every pixel comes from, `native` does it, `output`
//! writes the numbers into the sample's row of the batch.

mod geometry;
mod native;
mod output;
mod recipe;

pub use geometry::{Prepared, Step as PlacedStep};
pub use native::Native;
pub use output::{Layout, Output};
pub use recipe::{Decoding, Picture, Recipe, Size, Step};
