//! A fault as text: one line of the quarantine file, one entry of a report.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::escape;

/// The stage of the calls of an executor, which have no index.
pub const CALLING: &str = "calling";

/// How a text names a sample: by its index, or as a call.
pub fn named(index: &Value, stage: &str) -> String {
    match index.as_str() {
        Some(call) if stage == CALLING => format!("call {}", escape::one_line(call)),
        Some(_) | None if index.is_null() => "a sample".to_owned(),
        Some(_) | None => format!("sample {index}"),
    }
}

/// A fault as text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultLine {
    /// The index of the sample in the source, or any other key of a sampler.
    pub index: Value,
    /// The call, for an executor: its function, and its arguments if JSON can represent them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Value>,
    /// The name of the class that is, or would be, raised.
    pub kind: String,
    /// The epoch.
    #[serde(default)]
    pub epoch: u64,
    /// The seed of the epoch, if the sample has random numbers that depend on it and on its index alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The file that contains the sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The first byte of the sample, if it is a part of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The number of the record in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<u64>,
    /// The stage that failed.
    #[serde(default)]
    pub stage: String,
    /// The message.
    #[serde(default)]
    pub message: String,
    /// The traceback in the user's code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceback: Option<String>,
    /// The number of attempts.
    #[serde(default = "once")]
    pub attempts: u32,
    /// The worker that loaded the sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// The rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// A description of the data set, which changes when its samples change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// When the fault was judged, in seconds since 1970.
    #[serde(default)]
    pub time: f64,
}

fn once() -> u32 {
    1
}

impl FaultLine {
    /// A fault of a sample and a kind, with nothing else known.
    pub fn new(index: impl Into<Value>, kind: &str) -> FaultLine {
        let (index, kind) = (index.into(), kind.to_owned());
        FaultLine { index, kind, attempts: 1, ..FaultLine::default() }
    }

    /// The index, if it is a number.
    pub fn number(&self) -> Option<u64> {
        self.index.as_u64()
    }

    /// How a text names the sample.
    pub fn name(&self) -> String {
        named(&self.index, &self.stage)
    }

    /// The fault as one line, without a line break.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("text and numbers can always be written")
    }

    /// Parses one line.
    pub fn from_text(text: &str) -> serde_json::Result<FaultLine> {
        serde_json::from_str(text)
    }

    /// The path, or nothing.
    pub fn place(&self) -> String {
        let Some(path) = &self.path else { return String::new() };
        let record = self.record.map(|record| format!(", record {record}"));
        let offset = self.offset.map(|offset| format!(", byte {offset}"));
        let path = escape::one_line(path);
        format!("{path}{}{}", record.unwrap_or_default(), offset.unwrap_or_default())
    }
}

impl std::fmt::Display for FaultLine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.name())?;
        match self.stage.as_str() {
            "" => {}
            CALLING => write!(formatter, " failed")?,
            stage => write!(formatter, " failed in {stage}")?,
        }
        write!(formatter, ": {}", self.kind)?;
        if !self.message.is_empty() {
            let first = self.message.lines().next().unwrap_or_default();
            write!(formatter, ": {}", escape::one_line(first))?;
        }
        if self.path.is_some() {
            write!(formatter, " ({})", self.place())?;
        }
        match self.attempts {
            0 | 1 => Ok(()),
            attempts => write!(formatter, " after {attempts} tries"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_line_survives_a_round_trip_through_text(
            key in prop_oneof![any::<u64>().prop_map(Value::from), ".*".prop_map(Value::from)],
            message in "(.|\n)*", path: Option<String>, worker: Option<u32>, attempts in 1_u32..9,
        ) {
            let line = FaultLine {
                message, path, worker, attempts, time: 1.5, ..FaultLine::new(key, "CorruptImageError")
            };
            let text = line.to_text();
            prop_assert!(!text.contains('\n'));
            prop_assert_eq!(FaultLine::from_text(&text).unwrap(), line);
        }
    }

    #[test]
    fn only_index_and_kind_are_required() {
        let line = FaultLine::from_text(r#"{"index": 5, "kind": "CorruptImageError", "more": 1}"#)
            .unwrap();
        assert_eq!((line.number(), line.attempts), (Some(5), 1));
        assert!(FaultLine::from_text(r#"{"index": 5}"#).is_err());
    }

    #[test]
    fn a_line_reads_well() {
        let line = FaultLine {
            stage: "worker".into(),
            message: "the image is truncated\nand more".into(),
            path: Some("data/cat/7.jpg".into()),
            attempts: 3,
            ..FaultLine::new(7_u64, "CorruptImageError")
        };
        insta::assert_snapshot!(line, @"sample 7 failed in worker: CorruptImageError: the image is truncated (data/cat/7.jpg) after 3 tries");
        let line = FaultLine {
            stage: CALLING.into(),
            message: "no such page".into(),
            call: Some(serde_json::json!({"function": "crawl.load", "arguments": ["/a"]})),
            ..FaultLine::new("load('/a')", "HTTPError")
        };
        insta::assert_snapshot!(line, @"call load('/a') failed: HTTPError: no such page");
    }
}
