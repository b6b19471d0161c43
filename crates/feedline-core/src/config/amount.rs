//! Amounts that the user may leave to Feedline: a count or a number of bytes, or "auto".

use serde_json::Value;
use std::fmt;

use super::arguments::Rule;

/// A number that the user gave, or left to Feedline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Decided from the machine.
    #[default]
    Auto,
    /// As the user says.
    Exactly(u64),
}

impl Choice {
    /// The user's number, or what `auto` says.
    pub fn or(self, auto: impl FnOnce() -> u64) -> u64 {
        self.given().unwrap_or_else(auto)
    }

    /// The user's number.
    pub fn given(self) -> Option<u64> {
        match self {
            Choice::Auto => None,
            Choice::Exactly(number) => Some(number),
        }
    }
}

impl From<u64> for Choice {
    fn from(number: u64) -> Choice {
        Choice::Exactly(number)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Auto => write!(formatter, "auto"),
            Choice::Exactly(number) => write!(formatter, "{number}"),
        }
    }
}

/// "auto", or a whole number in bounds.
pub(super) struct CountOrAuto(pub(super) u64, pub(super) u64);

impl Rule for CountOrAuto {
    type Of = Choice;

    fn wanted(&self) -> String {
        format!("\"auto\" or a whole number from {} to {}", self.0, self.1)
    }

    fn read(&self, value: &Value) -> Option<Choice> {
        match value.as_str() {
            Some("auto") => Some(Choice::Auto),
            Some(_) | None => value.as_u64().map(Choice::Exactly),
        }
    }

    fn allows(&self, choice: &Choice) -> bool {
        choice.given().is_none_or(|number| (self.0..=self.1).contains(&number))
    }

    fn shown(&self, choice: &Choice) -> String {
        choice.to_string()
    }
}

/// "auto", or bytes from a least number, as a number or as text: 4096, "512MiB", "2GB", "4G".
pub(super) struct BytesOrAuto(pub(super) u64);

impl Rule for BytesOrAuto {
    type Of = Choice;

    fn wanted(&self) -> String {
        let low = self.0;
        format!("\"auto\", a number of bytes from {low}, or text such as \"512MiB\" or \"4G\"")
    }

    fn read(&self, value: &Value) -> Option<Choice> {
        match value.as_str() {
            Some("auto") => Some(Choice::Auto),
            Some(text) => parse_bytes(text).map(Choice::Exactly),
            None => value.as_u64().map(Choice::Exactly),
        }
    }

    fn allows(&self, choice: &Choice) -> bool {
        choice.given().is_none_or(|bytes| (self.0..=1 << 50).contains(&bytes))
    }

    fn shown(&self, choice: &Choice) -> String {
        choice.to_string()
    }
}

/// A time limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TimeLimit {
    /// Learned while the run goes on.
    Auto,
    /// This many seconds.
    Seconds(f64),
}

/// "auto", or a number of seconds in bounds.
pub(super) struct SecondsOrAuto(pub(super) f64, pub(super) f64);

impl Rule for SecondsOrAuto {
    type Of = TimeLimit;

    fn wanted(&self) -> String {
        format!("\"auto\", None or a number from {} to {}", self.0, self.1)
    }

    fn read(&self, value: &Value) -> Option<TimeLimit> {
        match value.as_str() {
            Some("auto") => Some(TimeLimit::Auto),
            Some(_) => None,
            None => value.as_f64().map(TimeLimit::Seconds),
        }
    }

    fn allows(&self, limit: &TimeLimit) -> bool {
        match limit {
            TimeLimit::Auto => true,
            TimeLimit::Seconds(seconds) => (self.0..=self.1).contains(seconds),
        }
    }
}

/// Bytes from a least number, as a number or as text.
pub(super) struct Bytes(pub(super) u64);

impl Rule for Bytes {
    type Of = u64;

    fn wanted(&self) -> String {
        format!("a number of bytes from {}, or text such as \"512MiB\" or \"4G\"", self.0)
    }

    fn read(&self, value: &Value) -> Option<u64> {
        value.as_str().map_or_else(|| value.as_u64(), parse_bytes)
    }

    fn allows(&self, bytes: &u64) -> bool {
        (self.0..=1 << 50).contains(bytes)
    }
}

fn parse_bytes(text: &str) -> Option<u64> {
    let split = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.trim().parse().ok().filter(|number: &f64| *number >= 0.0)?;
    // A letter alone is a power of 1024, as for docker, systemd and Slurm; "GB" is one of 1000, as SI says.
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return None,
    };
    Some((number * unit as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_may_be_text() {
        let known = ["4096", "512MiB", "1.5 GiB", "2GB", "0B"].map(parse_bytes);
        assert_eq!(
            known,
            [Some(4096), Some(512 << 20), Some(3 << 29), Some(2_000_000_000), Some(0)]
        );
        assert_eq!(["", "MiB", "5 apples", "-1MiB", "1e"].map(parse_bytes), [None; 5]);
        for text in ["4G", "4 G", "4g", "4GiB", "4 GiB", "4096M", "0.00390625T"] {
            assert_eq!(parse_bytes(text), Some(4 << 30), "{text}");
        }
        for text in ["4GB", "4 GB", "4gb", "4000 MB", "0.004TB"] {
            assert_eq!(parse_bytes(text), Some(4_000_000_000), "{text}");
        }
    }
}
