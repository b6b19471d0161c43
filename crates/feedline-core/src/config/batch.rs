//! The call that makes batches of samples.

use serde_json::Value;

use super::arguments::{Arguments, Count, Truth, number};
use super::calls::CallArguments;
use super::{Batching, Given, Settings};
use crate::error::{Error, Kind, Result};
use crate::sample::Number;

/// Samples become batches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchOptions {
    /// Samples in a batch.
    pub size: usize,
    /// Whether a last short batch is left out.
    pub drop_last: bool,
    /// Makes arrays of different shapes equal, with these numbers around them; by default they are faults.
    pub pad: Option<Padding>,
    /// Whether the batch says which samples it holds.
    pub index: bool,
}

impl From<usize> for BatchOptions {
    fn from(size: usize) -> BatchOptions {
        BatchOptions { size, ..BatchOptions::default() }
    }
}

/// What arrays of different shapes are made equal with; zeros by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Padding {
    /// In all fields.
    pub all: Option<Number>,
    /// In fields of that name.
    pub named: Vec<(String, Number)>,
}

impl CallArguments for BatchOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("size", &mut self.size, Count(1, 1 << 24))?;
        from.take("drop_last", &mut self.drop_last, Truth)?;
        from.take("index", &mut self.index, Truth)?;
        if let Some(value) = from.get("pad") {
            self.pad = padding(value)?;
        }
        Ok(())
    }

    fn apply(&self, settings: &mut Settings, _given: &Given) -> Result<()> {
        let BatchOptions { size, drop_last, index, .. } = *self;
        settings.batching = Some(Batching { size, drop_last, pad: self.pad.is_some(), index });
        settings.padding = self.pad.clone().unwrap_or_default();
        Ok(())
    }
}

/// `true` for zeros, a number, or numbers for some fields by their name and zeros for the others.
fn padding(value: &Value) -> Result<Option<Padding>> {
    let number = |value: &Value| {
        number(value).ok_or_else(|| {
            let message = format!(
                "batch: pad must be True, a number, or a dict of fields and their numbers, got {value}"
            );
            Error::new(Kind::InvalidArgument, message)
        })
    };
    Ok(match value {
        Value::Bool(is_padded) => is_padded.then(Padding::default),
        Value::Object(named) => {
            let named = named.iter().map(|(name, value)| Ok((name.clone(), number(value)?)));
            Some(Padding { all: None, named: named.collect::<Result<_>>()? })
        }
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Some(Padding { all: Some(number(value)?), named: Vec::new() })
        }
    })
}
