//! One call of the user's, whose arguments are taken out one by one, each checked and named.

use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

use super::Choice;
use crate::error::{Error, Kind, Result};
use crate::fault::Limit;
use crate::sample::Number;
use crate::transform::Size;

/// The longest side of a picture that can be asked for.
pub(super) const MAX_SIDE: u64 = 1 << 16;

/// A call and what was asked of its arguments so far.
pub(super) struct Call<'a> {
    name: &'a str,
    arguments: &'a Map<String, Value>,
    taken: RefCell<BTreeSet<&'a str>>,
}

/// A size: one number or two.
pub(super) enum Sides {
    One(usize),
    Two(Size),
}

impl Sides {
    pub(super) fn square(self) -> Size {
        match self {
            Sides::One(side) => Size { height: side, width: side },
            Sides::Two(size) => size,
        }
    }
}

/// A number; what JSON has no number for comes as a word.
pub(super) fn number(value: &Value) -> Option<Number> {
    let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    let real = || match value.as_str() {
        None => value.as_f64(),
        Some("nan") => Some(f64::NAN),
        Some("inf") => Some(f64::INFINITY),
        Some("-inf") => Some(f64::NEG_INFINITY),
        Some(_) => None,
    };
    whole.map(Number::Whole).or_else(|| real().map(Number::Real))
}

impl<'a> Call<'a> {
    pub(super) fn new(value: &'a Value) -> Result<Call<'a>> {
        let call = value.as_object().and_then(|arguments| {
            let name = arguments.get("call")?.as_str()?;
            Some(Call { name, arguments, taken: RefCell::new(BTreeSet::from(["call"])) })
        });
        call.ok_or_else(|| {
            Error::new(Kind::InvalidArgument, format!("a call must have a name, got {value}"))
        })
    }

    /// Arguments that were written down without the name of their call.
    pub(super) fn of(name: &'a str, arguments: &'a Map<String, Value>) -> Call<'a> {
        Call { name, arguments, taken: RefCell::new(BTreeSet::from(["call"])) }
    }

    pub(super) fn name(&self) -> &'a str {
        self.name
    }

    /// An argument that nobody asked for is a mistake, not a wish to ignore.
    pub(super) fn finish(&self) -> Result<()> {
        let taken = self.taken.borrow();
        match self.arguments.keys().find(|name| !taken.contains(name.as_str())) {
            None => Ok(()),
            Some(name) => Err(self.refused(format!("{} has no argument {name:?}", self.name))),
        }
    }

    pub(super) fn get(&self, name: &'static str) -> Option<&'a Value> {
        self.taken.borrow_mut().insert(name);
        self.arguments.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn bad(&self, name: &str, wanted: &str, value: &Value) -> Error {
        let message = format!("{}: {name} must be {wanted}, got {value}", self.name);
        self.refused(message)
    }

    pub(super) fn refused(&self, message: String) -> Error {
        let hint = match self.name {
            "DataLoader" => "see help(feedline.torch.DataLoader)".to_owned(),
            "Executor" => "see help(feedline.Executor)".to_owned(),
            "FaultPolicy" | "FaultPolicy: backoff" => "see help(feedline.FaultPolicy)".to_owned(),
            "mix" => "see help(feedline.mix)".to_owned(),
            method => {
                let method = method.split(':').next().unwrap_or(method);
                format!("see help(feedline.Pipeline.{method})")
            }
        };
        Error::new(Kind::InvalidArgument, message).with_hint(hint)
    }

    pub(super) fn lacks(&self, name: &str) -> Error {
        self.refused(format!("{}: {name} is missing", self.name))
    }

    /// A whole number in bounds.
    pub(super) fn whole(&self, name: &'static str, low: u64, high: u64) -> Result<Option<u64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_u64() {
            Some(number) if (low..=high).contains(&number) => Ok(Some(number)),
            Some(_) | None => {
                let wanted = match high {
                    u64::MAX => format!("a whole number from {low}"),
                    high => format!("a whole number from {low} to {high}"),
                };
                Err(self.bad(name, &wanted, value))
            }
        }
    }

    pub(super) fn real(&self, name: &'static str, low: f64, high: f64) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if (low..=high).contains(&number) => Ok(Some(number)),
            Some(_) | None => Err(self.bad(name, &format!("a number from {low} to {high}"), value)),
        }
    }

    pub(super) fn truth(&self, name: &'static str) -> Result<Option<bool>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.bad(name, "true or false", value))
    }

    pub(super) fn choice<T: Copy>(
        &self,
        name: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let found = choices.iter().find(|(word, _)| value.as_str() == Some(word));
        found.map(|(_, choice)| Some(*choice)).ok_or_else(|| {
            let text: Vec<_> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
            self.bad(name, &format!("one of {}", text.join(", ")), value)
        })
    }

    /// One side or (height, width).
    pub(super) fn size(&self, name: &'static str) -> Result<Sides> {
        let value = self.get(name).ok_or_else(|| self.lacks(name))?;
        let side = |value: &Value| {
            value.as_u64().filter(|side| (1..=MAX_SIDE).contains(side)).map(|side| side as usize)
        };
        let sides = match value.as_array().map(Vec::as_slice) {
            Some([height, width]) => side(height)
                .zip(side(width))
                .map(|(height, width)| Sides::Two(Size { height, width })),
            Some(_) => None,
            None => side(value).map(Sides::One),
        };
        let wanted =
            format!("a whole number from 1 to {MAX_SIDE}, or two of them: (height, width)");
        sides.ok_or_else(|| self.bad(name, &wanted, value))
    }

    /// Two numbers, the smaller first.
    pub(super) fn range(
        &self,
        name: &'static str,
        default: (f64, f64),
        bounds: (f64, f64),
    ) -> Result<(f64, f64)> {
        let Some(value) = self.get(name) else { return Ok(default) };
        let range = match value.as_array().map(Vec::as_slice) {
            Some([low, high]) => low.as_f64().zip(high.as_f64()),
            Some(_) | None => None,
        };
        range.filter(|(low, high)| bounds.0 <= *low && low <= high && *high <= bounds.1).ok_or_else(
            || {
                let wanted =
                    format!("two numbers above 0 and up to {}, the smaller one first", bounds.1);
                self.bad(name, &wanted, value)
            },
        )
    }

    /// One number for all channels, or one for each.
    pub(super) fn numbers(
        &self,
        name: &'static str,
        channels: usize,
        default: f32,
    ) -> Result<Vec<f32>> {
        let Some(value) = self.get(name) else { return Ok(vec![default; channels]) };
        let numbers: Option<Vec<f32>> = match value.as_array() {
            None => value.as_f64().map(|number| vec![number as f32; channels]),
            Some(values) => values.iter().map(|value| Some(value.as_f64()? as f32)).collect(),
        };
        numbers
            .filter(|numbers| numbers.len() == channels && numbers.iter().all(|n| n.is_finite()))
            .ok_or_else(|| {
                let wanted = format!("a number, or {channels} of them, one for each channel");
                self.bad(name, &wanted, value)
            })
    }

    pub(super) fn count_or_auto(&self, name: &'static str, low: u64, high: u64) -> Result<Choice> {
        match self.get(name) {
            None => Ok(Choice::Auto),
            Some(Value::String(word)) if word == "auto" => Ok(Choice::Auto),
            Some(value) => match value.as_u64() {
                Some(number) if (low..=high).contains(&number) => Ok(Choice::Exactly(number)),
                Some(_) | None => {
                    let wanted = format!("\"auto\" or a whole number from {low} to {high}");
                    Err(self.bad(name, &wanted, value))
                }
            },
        }
    }

    /// Bytes as a number or as words: 4096, "512MiB", "2GB", "4G", "auto".
    pub(super) fn bytes_or_auto(&self, name: &'static str, low: u64) -> Result<Choice> {
        let Some(value) = self.get(name) else { return Ok(Choice::Auto) };
        let bytes = match value.as_str() {
            Some("auto") => return Ok(Choice::Auto),
            Some(text) => parse_bytes(text),
            None => value.as_u64(),
        };
        match bytes {
            Some(bytes) if bytes >= low && bytes <= 1 << 50 => Ok(Choice::Exactly(bytes)),
            Some(_) | None => {
                let wanted = format!(
                    "\"auto\", a number of bytes from {low}, or words such as \"512MiB\" or \"4G\""
                );
                Err(self.bad(name, &wanted, value))
            }
        }
    }

    pub(super) fn path(&self, name: &'static str) -> Result<Option<PathBuf>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(path)) if !path.is_empty() => Ok(Some(path.into())),
            Some(other) => Err(self.bad(name, "a path", other)),
        }
    }

    pub(super) fn text(&self, name: &'static str) -> Result<Option<&str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.bad(name, "text", other)),
        }
    }

    pub(super) fn limit(&self, name: &'static str) -> Result<Option<Limit>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let limit = value
            .as_number()
            .and_then(|number| Limit::of(number.as_f64()?, number.is_u64() || number.is_i64()));
        limit.map(Some).ok_or_else(|| {
            let wanted = "a count (a whole number) or a share (from 0.0 to below 1.0)";
            self.bad(name, wanted, value)
        })
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
    fn bytes_may_be_words() {
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
