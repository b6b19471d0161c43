//! For tests, of Feedline and of those who extend it: contracts, and data made from a seed.

pub mod contracts;
pub mod photos;
