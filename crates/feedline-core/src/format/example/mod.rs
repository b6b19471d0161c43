//! Reads the features of tf.train.Example and tf.train.SequenceExample in place.
//!
//! Features that were not requested are skipped without being parsed: the record's checksum covers them.

mod features;
mod read;
mod schema;
#[cfg(test)]
mod tests;
mod walk;

pub use features::{List, features, write};
pub use read::ExampleParser;
pub use schema::{FeatureSummary, schema};
