//! Worker processes: `supervisor` decides and `processes` does what it decides.
//!
//! `wire` is what trainer and worker say to each other, `arena` the shared memory in which batches travel, `inbox` the
//! shared memory in which tasks do, `connection` the worker's end, `blackbox` what remains of a dead worker and
//! `certificate` the cause of its death.

pub mod arena;
pub mod blackbox;
pub mod certificate;
pub mod connection;
pub(crate) mod crash_log;
pub mod inbox;
pub(crate) mod leaks;
pub mod processes;
pub mod result;
pub mod supervisor;
pub mod wire;
pub mod zygote;
