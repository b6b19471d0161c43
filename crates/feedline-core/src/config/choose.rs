//! The words for which samples are wanted, and which come together.

use serde_json::Value;

use super::Padding;
use super::arguments::{self, Call};
use crate::error::{Error, Kind, Result};
use crate::transform::predicate::{Bucketing, Comparison, Constant, Operand, Predicate};

/// `{"op": "<", "col": "label", "value": 5}`, `{"op": "in", "length": "tokens", "values": [1, 2]}`,
/// `{"op": "and", "of": [...]}`, and so on.
pub(super) fn filter(call: &Call<'_>) -> Result<Predicate<Operand>> {
    predicate(call.get("predicate").ok_or_else(|| call.lacks("predicate"))?)
}

fn predicate(config: &Value) -> Result<Predicate<Operand>> {
    let arguments = config.as_object().ok_or_else(|| refused(config))?;
    let call = Call::of("filter", arguments);
    let operation = call.get("op").and_then(Value::as_str).ok_or_else(|| refused(config))?;
    let parts = || -> Result<Vec<Predicate<Operand>>> {
        let list = call.get("of").and_then(Value::as_array).ok_or_else(|| refused(config))?;
        list.iter().map(predicate).collect()
    };
    let made = match operation {
        "and" => Predicate::All(parts()?),
        "or" => Predicate::Any(parts()?),
        "not" => Predicate::Not(Box::new(Predicate::All(parts()?))),
        "in" => {
            let these =
                call.get("values").and_then(Value::as_array).ok_or_else(|| refused(config))?;
            Predicate::Among(
                operand(&call, config)?,
                these.iter().map(constant).collect::<Result<Vec<_>>>()?.into(),
            )
        }
        other => {
            let comparisons = [
                ("<", Comparison::Less),
                ("<=", Comparison::AtMost),
                ("==", Comparison::Equal),
                ("!=", Comparison::NotEqual),
                (">=", Comparison::AtLeast),
                (">", Comparison::More),
            ];
            let how = comparisons.iter().find(|(sign, _)| *sign == other).map(|(_, how)| *how);
            let with = constant(call.get("value").ok_or_else(|| refused(config))?)?;
            Predicate::Compare(operand(&call, config)?, how.ok_or_else(|| refused(config))?, with)
        }
    };
    call.finish()?;
    Ok(made)
}

fn operand(call: &Call<'_>, config: &Value) -> Result<Operand> {
    let name = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    match (name(call.get("col")), name(call.get("length"))) {
        (Some(field), None) => Ok(Operand::Value(field)),
        (None, Some(field)) => Ok(Operand::Length(field)),
        (Some(_), Some(_)) | (None, None) => Err(refused(config)),
    }
}

fn constant(value: &Value) -> Result<Constant> {
    let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    let whole = whole.or_else(|| value.as_bool().map(i128::from));
    let number = whole.map(Constant::Whole).or_else(|| value.as_f64().map(Constant::Real));
    let text = || value.as_str().map(|text| Constant::Text(text.to_owned()));
    number.or_else(text).ok_or_else(|| {
        let message = format!("filter: a field can be compared with a number or text, got {value}");
        Error::new(Kind::InvalidArgument, message)
    })
}

/// What arrays of different shapes are made equal with: `true` for zeros, a number, or numbers for some fields
/// by their name and zeros for the others.
pub(super) fn padding(call: &Call<'_>) -> Result<Option<Padding>> {
    let wrong = |value: &Value| {
        let message = format!(
            "batch: pad must be True, a number, or a dict of fields and their numbers, got {value}"
        );
        Error::new(Kind::InvalidArgument, message)
    };
    Ok(match call.get("pad") {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(Padding::default()),
        Some(Value::Object(named)) => {
            let named = named.iter().map(|(name, value)| {
                let number = arguments::number(value).ok_or_else(|| wrong(value))?;
                Ok((name.clone(), number))
            });
            Some(Padding { all: None, named: named.collect::<Result<_>>()? })
        }
        Some(value) => {
            let all = arguments::number(value).ok_or_else(|| wrong(value))?;
            Some(Padding { all: Some(all), named: Vec::new() })
        }
    })
}

fn refused(config: &Value) -> Error {
    let message = format!("filter: this is no predicate: {config}");
    Error::new(Kind::InvalidArgument, message)
        .with_hint("write it as (fl.col(\"label\") < 5) & (fl.length(\"tokens\") >= 16)")
}

/// `{"by": "tokens", "boundaries": [32, 64], "batch": [64, 32, 16]}`
pub(super) fn bucket(call: &Call<'_>) -> Result<Bucketing<Operand>> {
    let by = match call.get("by") {
        None => return Err(call.lacks("by")),
        Some(Value::String(field)) => Operand::Value(field.clone()),
        Some(other) => return Err(call.bad("by", "the name of a field", other)),
    };
    let config = call.get("boundaries").ok_or_else(|| call.lacks("boundaries"))?;
    let boundaries: Option<Vec<f64>> =
        config.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
    let boundaries = boundaries
        .filter(|list| {
            (1..=4096).contains(&list.len()) && list.is_sorted_by(|one, other| one < other)
        })
        .ok_or_else(|| call.bad("boundaries", "up to 4096 numbers, ascending", config))?;
    let sizes = call.get("batch").map(|config| {
        let size = |value: &Value| value.as_u64().filter(|size| (1..=1 << 24).contains(size));
        let sizes: Option<Vec<u64>> =
            config.as_array().and_then(|list| list.iter().map(size).collect());
        let wanted = format!("{} sizes, one for each bucket", boundaries.len() + 1);
        let sizes = sizes.filter(|sizes| sizes.len() == boundaries.len() + 1);
        sizes
            .map(|sizes| sizes.into_iter().map(|size| size as usize).collect())
            .ok_or_else(|| call.bad("batch", &wanted, config))
    });
    Ok(Bucketing { by, boundaries: boundaries.into(), sizes: sizes.transpose()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Given, Settings};

    #[test]
    fn words_become_predicates_and_calls_add_up() {
        let config = r#"[{"call": "filter", "predicate": {"op": "or", "of": [
                {"op": "<", "col": "label", "value": 5},
                {"op": "not", "of": [{"op": "in", "length": "bytes", "values": [1, 2.5, "a"]}]}]}},
            {"call": "filter", "predicate": {"op": "==", "col": "label", "value": true}}]"#;
        let made = Settings::parse(config, &Given::Files).unwrap().filter.unwrap();
        let label = || Operand::Value("label".into());
        let among = Predicate::Among(
            Operand::Length("bytes".into()),
            vec![Constant::Whole(1), Constant::Real(2.5), Constant::Text("a".into())].into(),
        );
        let first = Predicate::Any(vec![
            Predicate::Compare(label(), Comparison::Less, Constant::Whole(5)),
            Predicate::Not(Box::new(Predicate::All(vec![among]))),
        ]);
        let second = Predicate::Compare(label(), Comparison::Equal, Constant::Whole(1));
        assert_eq!(made, Predicate::All(vec![first, second]));
    }

    #[test]
    fn every_mistake_is_refused_with_the_value_that_was_given() {
        let mistakes = [
            r#"[{"call": "filter"}]"#,
            r#"[{"call": "filter", "predicate": 5}]"#,
            r#"[{"call": "filter", "predicate": {"op": "<", "value": 5}}]"#,
            r#"[{"call": "filter", "predicate": {"op": "~", "col": "a", "value": 5}}]"#,
            r#"[{"call": "filter", "predicate": {"op": "<", "col": "a", "value": [5]}}]"#,
            r#"[{"call": "filter", "predicate": {"op": "and", "of": 5}}]"#,
            r#"[{"call": "filter", "predicate": {"op": "<", "col": "a", "value": 5, "than": 1}}]"#,
            r#"[{"call": "filter", "predicate": {"op": "<", "col": "a", "value": 5}}, {"call": "take", "samples": 5}]"#,
            r#"[{"call": "batch", "size": 5}, {"call": "filter", "predicate": {"op": "<", "col": "a", "value": 5}}]"#,
            r#"[{"call": "bucket", "boundaries": [5]}]"#,
            r#"[{"call": "bucket", "by": "a"}]"#,
            r#"[{"call": "bucket", "by": "a", "boundaries": []}]"#,
            r#"[{"call": "bucket", "by": "a", "boundaries": [5, 5]}]"#,
            r#"[{"call": "bucket", "by": "a", "boundaries": [5, 9], "batch": [1, 2]}]"#,
            r#"[{"call": "bucket", "by": "a", "boundaries": [5], "batch": [1, 0]}]"#,
            r#"[{"call": "bucket", "by": "a", "boundaries": [5]}, {"call": "bucket", "by": "a", "boundaries": [5]}]"#,
        ];
        let refused = mistakes.map(|config| match Settings::parse(config, &Given::Files) {
            Ok(settings) => panic!("{config} became {settings:?}"),
            Err(error) => format!("{config}\n{error}\n"),
        });
        insta::assert_snapshot!(refused.join("\n"));
    }
}
