//! Behaviour of the whole core, from outside. One binary, one file for each subject.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests make and look at files of their own, and a panic is their answer"
)]

mod data;
mod epochs;
mod faults;
mod mutations;
mod sources;
