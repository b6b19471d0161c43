//! The inner loops over every pixel of an image and every number of an array.
//!
//! Pure arithmetic on memory that the caller owns. No errors, no files, no threads, no clock. It is a crate of its own
//! so that every build optimizes it, even those that compile everything else quickly.

pub mod canvas;
pub mod cast;
pub mod color;
pub mod dtype;
pub mod orientation;
pub mod output;
pub mod photo;
pub mod random;
pub mod resize;
#[allow(unsafe_code, reason = "vector instructions are unsafe")]
mod simd;
