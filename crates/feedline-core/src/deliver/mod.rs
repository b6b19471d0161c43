//! Delivers results to the consumer: they arrive in any order and leave in the order of their tickets.

mod handoff;

pub(crate) use handoff::{Handoff, Taken};
