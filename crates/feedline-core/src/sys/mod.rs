//! The machine: the only unsafe code, clock, files and threads of the core.
//!
//! Nothing here decides anything: each function does one thing and returns its outcome.
#![allow(unsafe_code, reason = "this is the one home of unsafe code in the core")]

pub mod clock;
pub mod descriptor;
pub mod atomic_file;
pub mod file;
pub mod inspect;
pub mod limits;
pub mod lock;
pub mod memory;
pub mod process;
pub mod processor_use;
pub mod sealed;
pub mod slab;
pub mod socket;
pub mod thread;
#[cfg(feature = "jpeg-c")]
pub(crate) mod turbojpeg;
