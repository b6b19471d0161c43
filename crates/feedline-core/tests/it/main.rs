//! Behaviour of the whole core, from outside. One binary, one file for each subject.
#![allow(clippy::disallowed_methods, reason = "tests make and look at files of their own")]

mod data;
mod epochs;
mod mutations;
mod sources;
