//! The features of tf.train.Example and tf.train.SequenceExample, read where they lie.
//!
//! What nobody asked for is skipped and not looked into: its bytes have a checksum of their own.

mod features;
mod read;
mod schema;
#[cfg(test)]
mod tests;
mod walk;

pub use features::{List, features, write};
pub use read::Parser;
pub use schema::{Seen, schema};
