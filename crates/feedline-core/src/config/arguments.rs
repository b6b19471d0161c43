//! The arguments of a call. Python writes them as JSON, which is read here; Rust code gives them as values.
//!
//! A call lists its arguments once, for both: [`Arguments::take`] reads an argument from JSON if there is JSON, and
//! checks the value if there is none. Both refuse with the same message, which shows the value.

use core::time::Duration;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use crate::error::{Error, Kind, Result};
use crate::sample::Number;

/// Whose documentation a hint names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerLanguage {
    Python,
    Rust,
}

/// The arguments of one call.
pub(super) struct Arguments<'a> {
    call: &'a str,
    language: CallerLanguage,
    json: Option<&'a Map<String, Value>>,
    taken: RefCell<BTreeSet<&'a str>>,
}

/// What an argument may be.
pub(super) trait ArgumentRule {
    type Of: fmt::Debug;

    /// The end of the sentence "size must be …".
    fn wanted(&self) -> String;

    /// None if it is of another type.
    fn read(&self, value: &Value) -> Option<Self::Of>;

    fn allows(&self, _value: &Self::Of) -> bool {
        true
    }

    /// As messages show it.
    fn shown(&self, value: &Self::Of) -> String {
        format!("{value:?}")
    }
}

/// Where an argument is written to: a value with a default, or an `Option`.
pub(super) trait Target<T> {
    fn set(&mut self, value: T);
    fn given(&self) -> Option<&T>;
}

impl<T> Target<T> for T {
    fn set(&mut self, value: T) {
        *self = value;
    }

    fn given(&self) -> Option<&T> {
        Some(self)
    }
}

impl<T> Target<T> for Option<T> {
    fn set(&mut self, value: T) {
        *self = Some(value);
    }

    fn given(&self) -> Option<&T> {
        self.as_ref()
    }
}

impl<'a> Arguments<'a> {
    pub(super) fn of_json(call: &'a str, json: &'a Map<String, Value>) -> Arguments<'a> {
        let (language, taken) = (CallerLanguage::Python, RefCell::new(BTreeSet::from(["call"])));
        Arguments { call, language, json: Some(json), taken }
    }

    /// Of a call whose arguments are values already.
    pub(super) fn of_values(call: &'a str) -> Arguments<'a> {
        let (language, taken) = (CallerLanguage::Python, RefCell::default());
        Arguments { call, language, json: None, taken }
    }

    /// Of a call that Rust code makes; what Python gives was checked when its JSON was read.
    pub(super) fn of_rust(call: &'a str) -> Arguments<'a> {
        Arguments { language: CallerLanguage::Rust, ..Arguments::of_values(call) }
    }

    /// Of an object that names its call.
    pub(super) fn of_call(value: &'a Value) -> Result<Arguments<'a>> {
        let named = value.as_object().and_then(|json| Some((json.get("call")?.as_str()?, json)));
        let (call, json) = named.ok_or_else(|| {
            Error::new(Kind::InvalidArgument, format!("a call must have a name, got {value}"))
        })?;
        Ok(Arguments::of_json(call, json))
    }

    pub(super) fn call(&self) -> &'a str {
        self.call
    }

    pub(super) fn is_json(&self) -> bool {
        self.json.is_some()
    }

    /// An argument in JSON; one that is null is not given.
    pub(super) fn get(&self, name: &'static str) -> Option<&'a Value> {
        self.taken.borrow_mut().insert(name);
        self.json?.get(name).filter(|value| !value.is_null())
    }

    /// An argument in JSON, checked.
    pub(super) fn read<R: ArgumentRule>(
        &self,
        name: &'static str,
        rule: R,
    ) -> Result<Option<R::Of>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let read = rule.read(value).filter(|read| rule.allows(read));
        read.map(Some).ok_or_else(|| self.bad(name, &rule.wanted(), value))
    }

    /// Writes an argument in JSON to its target, or checks the value that is there.
    pub(super) fn take<R: ArgumentRule>(
        &self,
        name: &'static str,
        target: &mut impl Target<R::Of>,
        rule: R,
    ) -> Result<()> {
        if self.is_json() {
            if let Some(value) = self.read(name, rule)? {
                Target::<R::Of>::set(&mut *target, value);
            }
            return Ok(());
        }
        match Target::<R::Of>::given(&*target) {
            Some(value) if !rule.allows(value) => {
                Err(self.bad(name, &rule.wanted(), rule.shown(value)))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// As `take`, of an argument without a default.
    pub(super) fn require<R: ArgumentRule>(
        &self,
        name: &'static str,
        target: &mut impl Target<R::Of>,
        rule: R,
    ) -> Result<()> {
        if self.is_json() && self.get(name).is_none() {
            return Err(self.lacks(name));
        }
        self.take(name, target, rule)
    }

    /// Refuses an argument in JSON that the call does not have.
    pub(super) fn finish(&self) -> Result<()> {
        let taken = self.taken.borrow();
        let mut names = self.json.into_iter().flat_map(Map::keys);
        match names.find(|name| !taken.contains(name.as_str())) {
            None => Ok(()),
            Some(name) => Err(self.has_no(name)),
        }
    }

    pub(super) fn has_no(&self, name: &str) -> Error {
        self.refused(format!("{} has no argument {name:?}", self.call))
    }

    pub(super) fn bad(&self, name: &str, wanted: &str, value: impl fmt::Display) -> Error {
        self.refused(format!("{}: {name} must be {wanted}, got {value}", self.call))
    }

    pub(super) fn lacks(&self, name: &str) -> Error {
        self.refused(format!("{}: {name} is missing", self.call))
    }

    pub(super) fn refused(&self, message: String) -> Error {
        let method = self.call.split(':').next().unwrap_or(self.call);
        let hint = match self.call {
            "FaultPolicy" | "FaultPolicy: backoff" if self.language == CallerLanguage::Rust => {
                "see the documentation of feedline::FaultPolicy".to_owned()
            }
            _ if self.language == CallerLanguage::Rust => {
                format!("see the documentation of feedline::Pipeline::{method}")
            }
            "DataLoader" => "see help(feedline.torch.DataLoader)".to_owned(),
            "Executor" => "see help(feedline.Executor)".to_owned(),
            "FaultPolicy" | "FaultPolicy: backoff" => "see help(feedline.FaultPolicy)".to_owned(),
            "mix" => "see help(feedline.mix)".to_owned(),
            _ => format!("see help(feedline.Pipeline.{method})"),
        };
        Error::new(Kind::InvalidArgument, message).with_hint(hint)
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

/// A whole number in bounds.
pub(super) struct WholeNumber(pub(super) u64, pub(super) u64);

impl ArgumentRule for WholeNumber {
    type Of = u64;

    fn wanted(&self) -> String {
        match self.1 {
            u64::MAX => format!("a whole number from {}", self.0),
            high => format!("a whole number from {} to {high}", self.0),
        }
    }

    fn read(&self, value: &Value) -> Option<u64> {
        value.as_u64()
    }

    fn allows(&self, number: &u64) -> bool {
        (self.0..=self.1).contains(number)
    }
}

/// A whole number that counts what is in memory.
pub(super) struct Count(pub(super) usize, pub(super) usize);

impl ArgumentRule for Count {
    type Of = usize;

    fn wanted(&self) -> String {
        WholeNumber(self.0 as u64, self.1 as u64).wanted()
    }

    fn read(&self, value: &Value) -> Option<usize> {
        usize::try_from(value.as_u64()?).ok()
    }

    fn allows(&self, number: &usize) -> bool {
        (self.0..=self.1).contains(number)
    }
}

/// A number in bounds.
pub(super) struct Real(pub(super) f64, pub(super) f64);

impl ArgumentRule for Real {
    type Of = f64;

    fn wanted(&self) -> String {
        format!("a number from {} to {}", self.0, self.1)
    }

    fn read(&self, value: &Value) -> Option<f64> {
        value.as_f64()
    }

    fn allows(&self, number: &f64) -> bool {
        (self.0..=self.1).contains(number)
    }
}

/// A time in seconds, in bounds.
pub(super) struct Seconds(pub(super) f64, pub(super) f64);

impl ArgumentRule for Seconds {
    type Of = Duration;

    fn wanted(&self) -> String {
        Real(self.0, self.1).wanted()
    }

    fn read(&self, value: &Value) -> Option<Duration> {
        let seconds = value.as_f64().filter(|seconds| Real(self.0, self.1).allows(seconds))?;
        Some(Duration::from_secs_f64(seconds))
    }

    fn allows(&self, time: &Duration) -> bool {
        (Duration::from_secs_f64(self.0)..=Duration::from_secs_f64(self.1)).contains(time)
    }
}

/// Yes or no.
pub(super) struct Truth;

impl ArgumentRule for Truth {
    type Of = bool;

    fn wanted(&self) -> String {
        "true or false".to_owned()
    }

    fn read(&self, value: &Value) -> Option<bool> {
        value.as_bool()
    }
}

/// One of these, by its name.
pub(super) struct OneOf<'a, T>(pub(super) &'a [(&'static str, T)]);

impl<T: Copy + fmt::Debug> ArgumentRule for OneOf<'_, T> {
    type Of = T;

    fn wanted(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|(name, _)| format!("{name:?}")).collect();
        format!("one of {}", names.join(", "))
    }

    fn read(&self, value: &Value) -> Option<T> {
        self.0.iter().find(|(name, _)| value.as_str() == Some(name)).map(|(_, choice)| *choice)
    }
}

/// Text that is not empty.
pub(super) struct Text(pub(super) &'static str);

impl ArgumentRule for Text {
    type Of = String;

    fn wanted(&self) -> String {
        self.0.to_owned()
    }

    fn read(&self, value: &Value) -> Option<String> {
        value.as_str().map(str::to_owned)
    }

    fn allows(&self, text: &String) -> bool {
        !text.is_empty()
    }
}
