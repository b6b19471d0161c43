//! To the consumer, in order: results come in any order and leave in that of their tickets.

mod handoff;

pub(crate) use handoff::{Handoff, Taken};
