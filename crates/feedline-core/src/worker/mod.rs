//! Worker processes: `supervisor` decides, and `processes` carries out its decisions.
//!
//! `wire` defines the messages between trainer and worker. `arena` is the shared memory for batches
//! and `inbox` the one for tasks. `connection` is the worker's end. `blackbox` records what a
//! worker was doing, and `certificate` names the cause of its death.

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
pub mod tuning;
pub mod wire;
pub mod zygote;
