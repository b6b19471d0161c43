//! Feedline's core: the path of a sample, from its source to the training loop.
//!
//! ```text
//!  source ──► plan ──► fetch ──► worker ──► collate ──► deliver
//! ```
//!
//! This crate is internal: it is what the crate `feedline` (for Rust), the command line and the Python package are made
//! of, and its items may change in any version. Rust code uses `feedline`.

#![allow(
    rustdoc::private_intra_doc_links,
    reason = "internal: its pages are for those who work on it, who see private items"
)]

pub mod sys;

pub mod budget;
pub mod bytes;
pub mod fingerprint;
pub mod run_state;
pub mod engine;
pub mod error;
pub mod escape;
pub mod event;
pub mod fault;
pub mod metrics;
pub use feedline_kernels::random;
pub mod sample;

pub mod decode;
pub mod format;

pub mod source;
pub mod plan;
pub mod fetch;
pub mod transform;
pub mod worker;
pub mod collate;
pub mod deliver;

pub mod config;
pub mod loader;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
