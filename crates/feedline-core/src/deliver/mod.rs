//! To the consumer, in order: results come in any order and leave in that of their tickets.

mod handoff;
mod reorder;

pub use handoff::{Handoff, Taken};
pub use reorder::Reorder;
