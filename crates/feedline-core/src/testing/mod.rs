//! Tools for tests of Feedline and of its extensions: contracts, generated data, and fuzzing entry
//! points.

pub mod contracts;
pub mod fuzz;
mod fuzz_files;
pub mod machines;
pub mod photos;
mod promises;
pub mod simulator;
mod tally;
mod failure_rates;
