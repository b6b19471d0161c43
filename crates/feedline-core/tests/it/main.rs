//! Behaviour of the whole core, from outside.
