//! For tests, of Feedline and of those who extend it: contracts, data made from a seed, the entries
//! that fuzzers call.

pub mod contracts;
pub mod fuzz;
mod fuzz_files;
pub mod photos;
mod promises;
pub mod simulator;
mod tally;
mod failure_rates;
