//! Amounts that the user may leave to Feedline: a count or a number of bytes, a share of the memory, or "auto".

use serde_json::Value;
use std::fmt;

use super::arguments::ArgumentRule;

/// A number that the user gave, or left to Feedline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Decided from the machine.
    #[default]
    Auto,
    /// As the user says.
    Exactly(u64),
    /// So many percent of the memory that the machine or the container allows; for memory only.
    Percent(u8),
}

impl Choice {
    /// The user's number, or what `auto` says.
    pub fn or(self, auto: impl FnOnce() -> u64) -> u64 {
        self.given().unwrap_or_else(auto)
    }

    /// The user's number.
    pub fn given(self) -> Option<u64> {
        match self {
            Choice::Auto | Choice::Percent(_) => None,
            Choice::Exactly(number) => Some(number),
        }
    }

    /// Bytes: the user's number, or the user's share of all memory, or what `auto` says.
    pub fn bytes(self, all: impl FnOnce() -> u64, auto: impl FnOnce() -> u64) -> u64 {
        match self {
            Choice::Auto => auto(),
            Choice::Exactly(bytes) => bytes,
            Choice::Percent(percent) => all() / 100 * u64::from(percent),
        }
    }

    fn is_percent(self) -> bool {
        match self {
            Choice::Percent(_) => true,
            Choice::Auto | Choice::Exactly(_) => false,
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
            Choice::Percent(percent) => write!(formatter, "{percent}%"),
        }
    }
}

/// "auto", or a whole number in bounds.
pub(super) struct CountOrAuto(pub(super) u64, pub(super) u64);

impl ArgumentRule for CountOrAuto {
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
        !choice.is_percent()
            && choice.given().is_none_or(|number| (self.0..=self.1).contains(&number))
    }

    fn shown(&self, choice: &Choice) -> String {
        choice.to_string()
    }
}

/// "auto", or bytes from a least number, as a number or as text: 4096, "512MiB", "2GB", "4G".
pub(super) struct BytesOrAuto(pub(super) u64);

impl ArgumentRule for BytesOrAuto {
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
        !choice.is_percent()
            && choice.given().is_none_or(|bytes| (self.0..=1 << 50).contains(&bytes))
    }

    fn shown(&self, choice: &Choice) -> String {
        choice.to_string()
    }
}

/// Like `BytesOrAuto`, or a share of the memory that the machine or the container allows: "50%".
pub(super) struct Memory(pub(super) u64);

impl ArgumentRule for Memory {
    type Of = Choice;

    fn wanted(&self) -> String {
        let low = self.0;
        format!(
            "\"auto\", a number of bytes from {low}, or text such as \"512MiB\", \"4G\" or \"50%\""
        )
    }

    fn read(&self, value: &Value) -> Option<Choice> {
        match value.as_str().and_then(|text| text.strip_suffix('%')) {
            Some(percent) => percent.trim_end().parse().ok().map(Choice::Percent),
            None => BytesOrAuto(self.0).read(value),
        }
    }

    fn allows(&self, choice: &Choice) -> bool {
        match choice {
            Choice::Percent(percent) => (1..=100).contains(percent),
            Choice::Auto | Choice::Exactly(_) => BytesOrAuto(self.0).allows(choice),
        }
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

impl ArgumentRule for SecondsOrAuto {
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
pub(super) struct ByteCount(pub(super) u64);

impl ArgumentRule for ByteCount {
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
    fn memory_may_be_a_share_of_what_the_machine_allows() {
        let read = |text: &str| Memory(1 << 20).read(&Value::from(text));
        assert_eq!(read("50%"), Some(Choice::Percent(50)));
        assert_eq!(read("50 %").map(|choice| choice.bytes(|| 4 << 30, || 0)), Some(2147483600));
        assert_eq!((read("auto"), read("4GiB")), (Some(Choice::Auto), Some((4 << 30).into())));
        assert_eq!(["half%", "-1%", "%", "12.5%", "300%"].map(read), [None; 5]);
        let allows = |percent| Memory(1).allows(&Choice::Percent(percent));
        assert_eq!([0, 1, 100, 101].map(allows), [false, true, true, false]);
        assert!(!BytesOrAuto(0).allows(&Choice::Percent(5)));
        assert!(!CountOrAuto(0, 9).allows(&Choice::Percent(5)));
    }

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
