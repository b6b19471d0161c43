//! The config of a fault policy: JSON from Python, or the short text of the command line:
//! `retry=2,action=skip,limit=0.01,by_type.OSError=retry:5`.
//!
//! The text becomes JSON first, so that both are checked by the same lines.

use serde_json::{Map, Value};
use std::str::FromStr;

use super::arguments::{Arguments, OneOf, Real, Seconds, Text, Truth, WholeNumber};
use crate::error::{Error, Kind, Result};
use crate::fault::{Action, Backoff, FaultPolicy, Limit, Rule};

/// The most tries that can be asked for.
const MAX_RETRY: u64 = 1000;
/// The longest time that can be asked for, in seconds.
const MAX_SECONDS: f64 = 1e9;

/// Parses a policy from JSON or text.
pub fn fault_policy(config: &str) -> Result<FaultPolicy> {
    if !config.trim_start().starts_with('{') {
        return from_json(&Value::from(config));
    }
    let value: Value = serde_json::from_str(config).map_err(|error| {
        refused(format!("FaultPolicy: this is neither JSON nor a list of settings: {error}"))
    })?;
    from_json(&value)
}

impl FromStr for FaultPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<FaultPolicy> {
        fault_policy(text)
    }
}

/// A policy from an object, or from text.
pub(super) fn from_json(value: &Value) -> Result<FaultPolicy> {
    let from_text = value.as_str().map(from_text).transpose()?;
    let Some(arguments) = value.as_object().or(from_text.as_ref()) else {
        let message = format!("FaultPolicy: give settings such as \"action=skip\", got {value}");
        return Err(refused(message));
    };
    let call = Arguments::of_json("FaultPolicy", arguments);
    let plain = FaultPolicy::default();
    let policy = FaultPolicy {
        retry: call
            .read("retry", WholeNumber(0, MAX_RETRY))?
            .map_or(plain.retry, |retry| retry as u32),
        backoff: backoff(&call)?,
        action: call.read("action", OneOf(&Action::ALL))?.unwrap_or_default(),
        fill: call.read("fill", Truth)?,
        limit: limit(&call)?,
        window: call.read("window", WholeNumber(1, 1 << 40))?.unwrap_or(plain.window),
        by_type: by_type(&call)?,
        quarantine: call.read("quarantine", Text("a path"))?.map(Into::into),
        patience: call.read("patience", Seconds(0.0, MAX_SECONDS))?.unwrap_or(plain.patience),
    };
    call.finish()?;
    Ok(policy)
}

/// Refuses a policy that was made by Rust code and is out of bounds: what it is as JSON says the same of it.
pub(super) fn check(policy: &FaultPolicy) -> Result<()> {
    match from_json(&policy.to_json())? == *policy {
        true => Ok(()),
        // JSON has no number for some of it, such as a limit that is no number.
        false => Err(refused(format!("FaultPolicy: this is not a policy: {policy}"))),
    }
}

/// A missing limit is the default; no limit is written "none".
fn limit(call: &Arguments<'_>) -> Result<Option<Limit>> {
    let value = match call.get("limit") {
        None => return Ok(FaultPolicy::default().limit),
        Some(Value::String(word)) if word == "none" => return Ok(None),
        Some(value) => value,
    };
    let limit = value
        .as_number()
        .and_then(|number| Limit::of(number.as_f64()?, number.is_u64() || number.is_i64()));
    limit.map(Some).ok_or_else(|| {
        let wanted = "a count (a whole number) or a share (from 0.0 to below 1.0)";
        call.bad("limit", wanted, value)
    })
}

fn backoff(call: &Arguments<'_>) -> Result<Backoff> {
    let plain = Backoff::default();
    let Some(Value::Object(parts)) = call.get("backoff") else {
        let first = call.read("backoff", Seconds(0.0, MAX_SECONDS))?.unwrap_or(plain.first);
        return Ok(Backoff { first, longest: plain.longest.max(first), ..plain });
    };
    let parts = Arguments::of_json("FaultPolicy: backoff", parts);
    let first = parts.read("first", Seconds(0.0, MAX_SECONDS))?.unwrap_or(plain.first);
    let backoff = Backoff {
        first,
        factor: parts.read("factor", Real(1.0, 1000.0))?.unwrap_or(plain.factor),
        longest: parts
            .read("longest", Seconds(0.0, MAX_SECONDS))?
            .unwrap_or(plain.longest.max(first)),
        jitter: parts.read("jitter", Real(0.0, 1.0))?.unwrap_or(plain.jitter),
    };
    parts.finish()?;
    Ok(backoff)
}

fn by_type(call: &Arguments<'_>) -> Result<Vec<(String, Rule)>> {
    let rules = match call.get("by_type") {
        None => return Ok(Vec::new()),
        Some(Value::Object(rules)) => rules,
        Some(other) => return Err(call.bad("by_type", "rules by the name of a class", other)),
    };
    rules
        .iter()
        .map(|(name, config)| {
            let wanted = "a number of retries, \"raise\", \"skip\" or \"replace\", or both as retry and action";
            let bad = || call.bad(&format!("by_type {name:?}"), wanted, config);
            let retries = |value: &Value| {
                value.as_u64().filter(|retry| *retry <= MAX_RETRY).map(|retry| retry as u32)
            };
            let deed = |value: &Value| {
                Action::ALL.iter().find(|(word, _)| value.as_str() == Some(word)).map(|(_, action)| *action)
            };
            let rule = match config.as_object() {
                Some(parts) => {
                    let known = |key: &String| key == "retry" || key == "action";
                    let given = |key: &str| parts.get(key).filter(|value| !value.is_null());
                    let (retry, action) = (given("retry"), given("action"));
                    let rule = Rule { retry: retry.and_then(retries), action: action.and_then(deed) };
                    let all_read = retry.is_some() == rule.retry.is_some()
                        && action.is_some() == rule.action.is_some()
                        && parts.keys().all(known);
                    if all_read { rule } else { Rule::default() }
                }
                None => Rule { retry: retries(config), action: deed(config) },
            };
            if name.is_empty() || rule == Rule::default() {
                return Err(bad());
            }
            Ok((name.clone(), rule))
        })
        .collect()
}

// ---- text ----

/// The arguments that a text stands for.
fn from_text(text: &str) -> Result<Map<String, Value>> {
    let mut arguments = Map::new();
    for part in split(text, ',') {
        if part.trim().is_empty() {
            continue;
        }
        let (key, value) = match split(&part, '=').as_slice() {
            [word] if Action::ALL.iter().any(|(name, _)| *name == word.trim()) => {
                ("action".to_owned(), word.trim().to_owned())
            }
            [_] => return Err(refused(format!("FaultPolicy: {part:?} has no value"))),
            [key, value @ ..] => (plain(key.trim()), plain(&value.join("="))),
            [] => continue,
        };
        if let Some(class) = key.strip_prefix("by_type.") {
            let rules = arguments.entry("by_type").or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(rules) = rules {
                let before = rules.insert(class.to_owned(), rule(&value));
                said_once(before.as_ref(), &key)?;
            }
            continue;
        }
        let value = match key.as_str() {
            "quarantine" => Value::from(value),
            "backoff" if value.contains(':') => parts(&value),
            _ => number(&value),
        };
        let before = arguments.insert(key.clone(), value);
        said_once(before.as_ref(), &key)?;
    }
    Ok(arguments)
}

fn said_once(before: Option<&Value>, key: &str) -> Result<()> {
    match before {
        None => Ok(()),
        Some(_) => Err(refused(format!("FaultPolicy: {key} is said twice"))),
    }
}

/// `retry:5+skip`
fn rule(text: &str) -> Value {
    let config = text.split('+').map(|word| match word.split_once(':') {
        Some((key, value)) => (key.trim().to_owned(), number(value)),
        None => ("action".to_owned(), Value::from(word.trim())),
    });
    Value::Object(config.collect())
}

/// `first:0.1+factor:2`
fn parts(text: &str) -> Value {
    let config = text.split('+').map(|word| {
        let (key, value) = word.split_once(':').unwrap_or((word, ""));
        (key.trim().to_owned(), number(value))
    });
    Value::Object(config.collect())
}

/// A number or a truth where it is one; else the word, which is refused later with its name.
fn number(text: &str) -> Value {
    let text = text.trim();
    let whole = text.parse::<u64>().ok().map(Value::from);
    let below = || text.parse::<i64>().ok().map(Value::from);
    let real = || text.parse::<f64>().ok().filter(|real| real.is_finite()).map(Value::from);
    let truth = || text.parse::<bool>().ok().map(Value::from);
    whole.or_else(below).or_else(real).or_else(truth).unwrap_or_else(|| Value::from(text))
}

/// The parts between separators that have no backslash before them; the backslashes stay.
fn split(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut is_escaped = false;
    for letter in text.chars() {
        if letter == separator && !is_escaped {
            parts.push(String::new());
            continue;
        }
        is_escaped = letter == '\\' && !is_escaped;
        if let Some(last) = parts.last_mut() {
            last.push(letter);
        }
    }
    parts
}

/// Without the backslashes.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => plain.extend(letters.next()),
            letter => plain.push(letter),
        }
    }
    plain
}

fn refused(message: String) -> Error {
    Error::new(Kind::InvalidArgument, message)
        .with_hint("write it as in \"retry=2,action=skip,limit=0.01,by_type.OSError=retry:5\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Limit;
    use core::time::Duration;
    use proptest::prelude::*;
    use std::path::PathBuf;

    #[test]
    fn a_text_is_what_it_says() {
        let text = "retry=2,action=skip,limit=0.01,by_type.OSError=retry:5,by_type.CorruptImageError=skip,\
                    by_type.PIL.UnidentifiedImageError=retry:1+replace,quarantine=bad.jsonl,\
                    backoff=0.5,fill=false,window=50,patience=7.5";
        let policy = fault_policy(text).unwrap();
        let rule = |retry, action| Rule { retry, action };
        assert_eq!(
            policy,
            FaultPolicy {
                retry: 2,
                backoff: Backoff { first: Duration::from_millis(500), ..Backoff::default() },
                action: Action::Skip,
                fill: Some(false),
                limit: Some(Limit::Share(0.01)),
                window: 50,
                by_type: vec![
                    ("CorruptImageError".into(), rule(None, Some(Action::Skip))),
                    ("OSError".into(), rule(Some(5), None)),
                    ("PIL.UnidentifiedImageError".into(), rule(Some(1), Some(Action::Replace))),
                ],
                quarantine: Some("bad.jsonl".into()),
                patience: Duration::from_millis(7500),
            }
        );
        assert_eq!(fault_policy("").unwrap(), FaultPolicy::default());
        assert_eq!(fault_policy("skip").unwrap().action, Action::Skip);
        let json = r#"{"call": "FaultPolicy", "retry": 2, "by_type": {"A": 3, "B": "skip", "C": {"action": "raise"}}}"#;
        let by_type = fault_policy(json).unwrap().by_type;
        assert_eq!(by_type[0], ("A".into(), rule(Some(3), None)));
        assert_eq!(by_type[1], ("B".into(), rule(None, Some(Action::Skip))));
        assert_eq!(by_type[2], ("C".into(), rule(None, Some(Action::Raise))));
    }

    #[test]
    fn every_mistake_is_refused_with_the_value_that_was_given() {
        let mistakes = [
            "action=ignore",
            "retry=-1",
            "retry=many",
            "retry",
            "retries=2",
            "action=skip,action=raise",
            "limit=1.5",
            "limit=-3",
            "window=0",
            "fill=maybe",
            "patience=-1",
            "backoff=-1",
            "backoff=first:1+factor:0.5",
            "backoff=first:1+speed:2",
            "by_type.OSError=ignore",
            "by_type.OSError=retry:x",
            "by_type.OSError=",
            "by_type.OSError=skip+retry:1+twice:2",
            "quarantine=",
            r#"{"retry": true}"#,
            r#"{"by_type": 5}"#,
            r#"{"by_type": {"A": {"retry": 1, "else": 2}}}"#,
            r#"{"quarantine": 5}"#,
            "{",
        ];
        let messages: Vec<_> = mistakes
            .iter()
            .map(|config| match fault_policy(config) {
                Ok(policy) => panic!("{config} became {policy:?}"),
                Err(error) => format!("{config}\n{error}\n"),
            })
            .collect();
        insta::assert_snapshot!(messages.join("\n"));
    }

    fn policies() -> impl Strategy<Value = FaultPolicy> {
        let actions = || prop::sample::select(vec![Action::Raise, Action::Skip, Action::Replace]);
        let limits = prop_oneof![
            any::<u32>().prop_map(|count| Limit::Count(u64::from(count))),
            (0.0_f64..1.0).prop_map(Limit::Share),
        ];
        let rules = (prop::option::of(0_u32..1000), prop::option::of(actions()))
            .prop_filter("a rule says something", |rule| rule.0.is_some() || rule.1.is_some())
            .prop_map(|(retry, action)| Rule { retry, action });
        let by_type = prop::collection::btree_map("[A-Za-z_.,=\\\\<>é]{1,12}", rules, 0..4);
        let time = || (0_u64..100_000_000).prop_map(Duration::from_millis);
        let backoffs = (time(), 1.0_f64..10.0, time(), 0.0_f64..=1.0).prop_map(
            |(first, factor, longest, jitter)| Backoff { first, factor, longest, jitter },
        );
        (
            (0_u32..1000, backoffs, actions(), any::<Option<bool>>(), prop::option::of(limits)),
            (1_u64..1 << 40, by_type, prop::option::of("[a-zé/.,=\\\\+:]{1,20}"), time()),
        )
            .prop_map(
                |((retry, backoff, action, fill, limit), (window, by_type, path, patience))| {
                    let by_type = by_type.into_iter().collect();
                    let quarantine = path.map(PathBuf::from);
                    FaultPolicy {
                        retry,
                        backoff,
                        action,
                        fill,
                        limit,
                        window,
                        by_type,
                        quarantine,
                        patience,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn a_policy_survives_being_text(policy in policies()) {
            let text = policy.to_string();
            prop_assert_eq!(&fault_policy(&text).unwrap(), &policy, "{}", text);
            prop_assert_eq!(from_json(&policy.to_json()).unwrap(), policy, "{}", text);
        }

        #[test]
        fn no_words_make_it_panic(config in r#"\{?((retry|action|limit|by_type\.A|backoff|fill)=?[a-z0-9.:+\\=-]{0,8},?){0,4}\}?"#) {
            let _ = fault_policy(&config);
        }
    }
}
