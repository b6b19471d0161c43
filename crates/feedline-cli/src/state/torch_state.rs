//! The state of a `feedline.torch.DataLoader`, as far as people want to read it.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::run_state::Difference;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

use crate::report::{counted, print_result};

/// How a state says that it is one.
const FORMAT: &str = "feedline.torch.DataLoader";
/// Longer values are truncated.
const LONGEST: usize = 300;

/// What is shown of a state.
#[derive(Debug, Deserialize)]
pub(super) struct TorchState {
    version: u64,
    epoch: u64,
    batches: u64,
    is_begun: bool,
    #[serde(default)]
    not_elastic: String,
    settings: Map<String, Value>,
}

impl TorchState {
    /// None if the text is of another kind.
    pub(super) fn parse(text: &str) -> Result<Option<TorchState>> {
        let Ok(value) = serde_json::from_str::<Value>(text) else { return Ok(None) };
        if value.get("format").and_then(Value::as_str) != Some(FORMAT) {
            return Ok(None);
        }
        serde_json::from_value(value).map(Some).map_err(|error| {
            let message = format!("the state is corrupt: {error}");
            Error::new(Kind::StateMismatch, message).with_hint("load an earlier state")
        })
    }

    pub(super) fn print(&self) -> Result<()> {
        print_result(format_args!("state      of a torch loader, version {}", self.version))?;
        print_result(format_args!("epoch      {}, counted from 0", self.epoch))?;
        let batches = counted(self.batches, "batch", "batches");
        match self.is_begun {
            true => print_result(format_args!("delivered  {batches} of this epoch"))?,
            false => print_result("delivered  nothing of this epoch")?,
        }
        if let (Some(rank), Some(ranks)) =
            (self.settings.get("rank"), self.settings.get("num_replicas"))
        {
            print_result(format_args!("rank       {rank} of {ranks}"))?;
        }
        if !self.not_elastic.is_empty() {
            let why = &self.not_elastic;
            print_result(format_args!("resume     only with the same number of ranks: {why}"))?;
        }
        let width = self.settings.keys().map(String::len).max().unwrap_or(0);
        for (number, (name, value)) in self.settings.iter().enumerate() {
            let head = if number == 0 { "settings" } else { "" };
            print_result(format_args!("{head:<10} {name:<width$}  {}", plain(value)))?;
        }
        Ok(())
    }

    pub(super) fn as_json(&self, differences: Option<Value>) -> Value {
        let mut state = json!({
            "version": self.version, "epoch": self.epoch, "batches": self.batches,
            "is_begun": self.is_begun, "why": self.not_elastic, "settings": self.settings,
        });
        if let Some(differences) = differences {
            state["differences"] = differences;
        }
        json!({"states": [state]})
    }

    pub(super) fn differences(&self, other: &TorchState) -> Vec<Difference> {
        let names: BTreeSet<_> = self.settings.keys().chain(other.settings.keys()).collect();
        let text = |state: &TorchState, name: &str| {
            state.settings.get(name).map_or_else(|| "nothing".to_owned(), plain)
        };
        let differs = |name: &&String| self.settings.get(*name) != other.settings.get(*name);
        names
            .into_iter()
            .filter(differs)
            .map(|name| Difference {
                name: name.clone(),
                state: text(self, name),
                other: text(other, name),
            })
            .collect()
    }
}

/// A value of a setting, short.
fn plain(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
