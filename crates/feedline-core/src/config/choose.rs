//! The calls for which samples are kept, and which come together.

use serde_json::Value;

use super::arguments::{ArgumentRule, Arguments, Text};
use super::calls::CallArguments;
use super::{Given, Settings};
use crate::error::{Error, Kind, Result};
use crate::transform::predicate::{Bucketing, Comparison, Constant, Operand, Predicate};

/// Which samples are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct FilterOptions {
    /// What a sample must be to be kept.
    pub predicate: Predicate<Operand>,
}

impl Default for FilterOptions {
    /// Keeps all.
    fn default() -> FilterOptions {
        FilterOptions { predicate: Predicate::All(Vec::new()) }
    }
}

/// Samples of similar length or value come together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BucketOptions {
    /// The field that decides.
    pub by: String,
    /// The first value of each bucket but the first, ascending.
    pub boundaries: Vec<f64>,
    /// Samples in the batches of each bucket; as `batch` says by default.
    pub batch: Option<Vec<usize>>,
}

impl CallArguments for FilterOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        if from.is_json() {
            let value = from.get("predicate").ok_or_else(|| from.lacks("predicate"))?;
            self.predicate = predicate(value)?;
        }
        Ok(())
    }

    fn apply(&self, settings: &mut Settings, _given: &Given) -> Result<()> {
        let more = self.predicate.clone();
        settings.filter = Some(match settings.filter.take() {
            None => more,
            Some(Predicate::All(mut parts)) => {
                parts.push(more);
                Predicate::All(parts)
            }
            Some(first) => Predicate::All(vec![first, more]),
        });
        Ok(())
    }
}

impl CallArguments for BucketOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("by", &mut self.by, Text("the name of a field"))?;
        from.require("boundaries", &mut self.boundaries, Ascending)?;
        from.take("batch", &mut self.batch, Sizes(self.boundaries.len() + 1))
    }

    fn apply(&self, settings: &mut Settings, _given: &Given) -> Result<()> {
        settings.bucketing = Some(Bucketing {
            by: Operand::Value(self.by.clone()),
            boundaries: self.boundaries.clone().into(),
            sizes: self.batch.clone().map(Into::into),
        });
        Ok(())
    }
}

struct Ascending;

impl ArgumentRule for Ascending {
    type Of = Vec<f64>;

    fn wanted(&self) -> String {
        "up to 4096 numbers, ascending".to_owned()
    }

    fn read(&self, value: &Value) -> Option<Vec<f64>> {
        value.as_array()?.iter().map(Value::as_f64).collect()
    }

    fn allows(&self, list: &Vec<f64>) -> bool {
        (1..=4096).contains(&list.len()) && list.is_sorted_by(|one, other| one < other)
    }
}

/// This many sizes of batches.
struct Sizes(usize);

impl ArgumentRule for Sizes {
    type Of = Vec<usize>;

    fn wanted(&self) -> String {
        format!("{} sizes, one for each bucket", self.0)
    }

    fn read(&self, value: &Value) -> Option<Vec<usize>> {
        let size = |value: &Value| usize::try_from(value.as_u64()?).ok();
        value.as_array()?.iter().map(size).collect()
    }

    fn allows(&self, sizes: &Vec<usize>) -> bool {
        sizes.len() == self.0 && sizes.iter().all(|size| (1..=1 << 24).contains(size))
    }
}

/// `{"op": "<", "col": "label", "value": 5}`, `{"op": "in", "length": "tokens", "values": [1, 2]}`,
/// `{"op": "and", "of": [...]}`, and so on.
fn predicate(config: &Value) -> Result<Predicate<Operand>> {
    let arguments = config.as_object().ok_or_else(|| refused(config))?;
    let from = Arguments::of_json("filter", arguments);
    let operation = from.get("op").and_then(Value::as_str).ok_or_else(|| refused(config))?;
    let parts = || -> Result<Vec<Predicate<Operand>>> {
        let list = from.get("of").and_then(Value::as_array).ok_or_else(|| refused(config))?;
        list.iter().map(predicate).collect()
    };
    let made = match operation {
        "and" => Predicate::All(parts()?),
        "or" => Predicate::Any(parts()?),
        "not" => Predicate::Not(Box::new(Predicate::All(parts()?))),
        "in" => {
            let these =
                from.get("values").and_then(Value::as_array).ok_or_else(|| refused(config))?;
            Predicate::Among(
                operand(&from, config)?,
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
            let with = constant(from.get("value").ok_or_else(|| refused(config))?)?;
            Predicate::Compare(operand(&from, config)?, how.ok_or_else(|| refused(config))?, with)
        }
    };
    from.finish()?;
    Ok(made)
}

fn operand(from: &Arguments<'_>, config: &Value) -> Result<Operand> {
    let name = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    match (name(from.get("col")), name(from.get("length"))) {
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

fn refused(config: &Value) -> Error {
    let message = format!("filter: this is no predicate: {config}");
    Error::new(Kind::InvalidArgument, message)
        .with_hint("write it as (fl.col(\"label\") < 5) & (fl.length(\"tokens\") >= 16)")
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
