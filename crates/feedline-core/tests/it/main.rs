//! Behaviour of the whole core, from outside. One binary, one file for each subject.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests create and read files of their own, and fail by panicking"
)]

mod cache;
mod data;
mod epochs;
mod faults;
mod mutations;
mod sources;
