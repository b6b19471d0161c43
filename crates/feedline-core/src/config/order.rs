//! The words for the order of samples.

use serde_json::Value;

use super::arguments::Call;
use super::{Choice, Given};
use crate::error::{Error, Kind, Result};
use crate::plan::{By, Mixture, OrderStep, Part, Remainder, Shard};

/// Whether a call is about the order.
pub(super) fn is_step(name: &str) -> bool {
    matches!(
        name,
        "shuffle" | "shard" | "interleave" | "take" | "skip" | "repeat" | "concat" | "mix"
    )
}

/// What a call asks of the order.
pub(super) fn step(call: &Call<'_>, given: &Given) -> Result<OrderStep> {
    let is_packed = matches!(given, Given::Records(contents) if contents.is_packed);
    let count = |name, low| call.whole(name, low, 1 << 61)?.ok_or_else(|| call.lacks(name));
    Ok(match call.name() {
        "shuffle" => {
            let seed = call.whole("seed", 0, u64::MAX)?.unwrap_or(0);
            match call.whole("buffer", 1, 1 << 61)? {
                None if is_packed => {
                    let message = "shuffle: compressed shards are read from front to back";
                    return Err(Error::new(Kind::InvalidArgument, message).with_hint(
                        "say shuffle(seed, buffer=10_000), and interleave(seed=...) for the shards",
                    ));
                }
                None => OrderStep::Shuffle { seed },
                Some(buffer) => OrderStep::ShuffleRuns { seed, buffer },
            }
        }
        "shard" => OrderStep::Shard(shard(call, is_packed)?),
        "interleave" => {
            let cycle = match call.count_or_auto("cycle", 1, 1 << 24)? {
                Choice::Auto => None,
                Choice::Exactly(cycle) => Some(cycle),
            };
            let block = call.whole("block", 1, 1 << 32)?.unwrap_or(1);
            OrderStep::Interleave { cycle, block, seed: call.whole("seed", 0, u64::MAX)? }
        }
        "take" => OrderStep::Take(count("samples", 1)?),
        "skip" => OrderStep::Skip(count("samples", 0)?),
        "repeat" => OrderStep::Repeat(count("times", 1)?),
        "concat" => OrderStep::Concat(parts(call)?.into_iter().map(|(part, _)| part).collect()),
        "mix" => {
            let (parts, weights): (_, Vec<_>) = parts(call)?.into_iter().unzip();
            let weights =
                weights.into_iter().map(|weight| weight.ok_or_else(|| call.lacks("weight")));
            let weights = weights.collect::<Result<_>>()?;
            let seed = call.whole("seed", 0, u64::MAX)?;
            OrderStep::Mix(Mixture {
                parts,
                weights,
                seed,
                samples: call.whole("samples", 1, 1 << 61)?,
            })
        }
        other => {
            return Err(Error::new(Kind::Internal, format!("{other} is no step of the order")));
        }
    })
}

fn shard(call: &Call<'_>, is_packed: bool) -> Result<Shard> {
    let remainders =
        [("pad", Remainder::Pad), ("drop", Remainder::Drop), ("uneven", Remainder::Uneven)];
    let remainder = call.choice("remainder", &remainders)?.unwrap_or_default();
    let by = call.choice("by", &[("record", By::Record), ("shard", By::Shard)])?;
    let by = by.unwrap_or(if is_packed { By::Shard } else { By::Record });
    if is_packed && by == By::Record {
        let message = "shard: every rank would unpack every compressed shard";
        return Err(Error::new(Kind::InvalidArgument, message).with_hint("say by=\"shard\""));
    }
    let rank = call.whole("rank", 0, u64::MAX)?.unwrap_or(0);
    let world = call.whole("world", 0, u64::MAX)?.unwrap_or(1);
    Shard::new(rank, world, remainder, by)
}

/// `[{"shards": 2, "calls": [...], "weight": 0.5}, ...]`
fn parts(call: &Call<'_>) -> Result<Vec<(Part, Option<f64>)>> {
    let Some(value) = call.get("parts") else { return Err(call.lacks("parts")) };
    let wanted = "a list of parts, each with its shards and calls";
    let list = value.as_array().ok_or_else(|| call.bad("parts", wanted, value))?;
    list.iter()
        .map(|value| {
            let config = value.as_object().ok_or_else(|| call.bad("parts", wanted, value))?;
            let part = Call::of(call.name(), config);
            let shards = part.whole("shards", 0, 1 << 32)?.ok_or_else(|| part.lacks("shards"))?;
            let weight = part.real("weight", 0.0, 1e9)?;
            let mut steps: Vec<OrderStep> = Vec::new();
            for value in part.get("calls").and_then(Value::as_array).into_iter().flatten() {
                let inner = Call::new(value)?;
                if !is_step(inner.name()) {
                    let message = format!("{} cannot follow {}", call.name(), inner.name());
                    return Err(Error::new(Kind::InvalidArgument, message).with_hint(format!(
                        "call {} first, and then {}()",
                        call.name(),
                        inner.name()
                    )));
                }
                let step = step(&inner, &Given::Files)?;
                inner.finish()?;
                step.may_follow(&steps)?;
                steps.push(step);
            }
            part.finish()?;
            Ok((Part { shards: shards as usize, steps }, weight))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use crate::plan::{Excluded, Plan};
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Golden {
        shards: Vec<u64>,
        calls: Vec<Value>,
        order: Vec<u64>,
    }

    #[test]
    fn orders_are_those_of_tensorflow_for_the_same_parameters() {
        let written = include_str!("../../../../tests/golden/order.json");
        let cases: Vec<Golden> = serde_json::from_str(written).unwrap();
        assert!(cases.len() >= 80, "{}", cases.len());
        for Golden { shards, calls, order } in cases {
            let config = Value::from(calls).to_string();
            let settings = Settings::parse(&config, &Given::Files).unwrap();
            let plan = Plan::new(&shards, &settings.order, Excluded::default()).unwrap();
            let epoch = plan.epoch(0);
            let found: Vec<_> =
                (0..plan.epoch_len()).map(|place| epoch.at(place).unwrap().index).collect();
            assert_eq!(found, order, "{config} over {shards:?}");
        }
    }

    #[test]
    fn words_become_steps() {
        let config = r#"[{"call": "mix", "seed": 3, "parts": [
            {"shards": 2, "weight": 0.5, "calls": [{"call": "shard", "rank": 1, "world": 2, "by": "shard"},
                {"call": "interleave"}, {"call": "shuffle", "seed": 1, "buffer": 100}]},
            {"shards": 1, "weight": 2, "calls": []}]}, {"call": "skip", "samples": 0}, {"call": "repeat", "times": 2}]"#;
        let steps = Settings::parse(config, &Given::Files).unwrap().order;
        let shard = Shard::new(1, 2, Remainder::Pad, By::Shard).unwrap();
        let first = vec![
            OrderStep::Shard(shard),
            OrderStep::Interleave { cycle: None, block: 1, seed: None },
            OrderStep::ShuffleRuns { seed: 1, buffer: 100 },
        ];
        let parts = vec![Part { shards: 2, steps: first }, Part { shards: 1, steps: vec![] }];
        let mixture = Mixture { parts, weights: vec![0.5, 2.0], seed: Some(3), samples: None };
        assert_eq!(steps, [OrderStep::Mix(mixture), OrderStep::Skip(0), OrderStep::Repeat(2)]);
    }

    #[test]
    fn every_mistake_is_refused_with_the_value_that_was_given() {
        let mistakes = [
            r#"[{"call": "shuffle", "buffer": 0}]"#,
            r#"[{"call": "interleave", "cycle": 0}]"#,
            r#"[{"call": "interleave", "cycle": "all"}]"#,
            r#"[{"call": "interleave", "block": -1}]"#,
            r#"[{"call": "take"}]"#,
            r#"[{"call": "take", "samples": 0}]"#,
            r#"[{"call": "skip", "samples": 1.5}]"#,
            r#"[{"call": "repeat", "times": 0}]"#,
            r#"[{"call": "shard", "rank": 0, "world": 2, "by": "file"}]"#,
            r#"[{"call": "shuffle"}, {"call": "shard", "rank": 0, "world": 2, "by": "shard"}]"#,
            r#"[{"call": "shard", "rank": 0, "world": 2}, {"call": "shard", "rank": 0, "world": 2}]"#,
            r#"[{"call": "take", "samples": 5}, {"call": "interleave"}]"#,
            r#"[{"call": "batch", "size": 2}, {"call": "take", "samples": 5}]"#,
            r#"[{"call": "mix"}]"#,
            r#"[{"call": "mix", "parts": 5}]"#,
            r#"[{"call": "mix", "parts": [{"shards": 1}]}]"#,
            r#"[{"call": "mix", "parts": [{"shards": 1, "weight": -1}]}]"#,
            r#"[{"call": "mix", "parts": [{"shards": 1, "weight": 1, "calls": [{"call": "decode"}]}]}]"#,
            r#"[{"call": "mix", "parts": [{"shards": 1, "weight": 1, "calls": [{"call": "take"}]}]}]"#,
        ];
        let refused = mistakes.map(|config| match Settings::parse(config, &Given::Files) {
            Ok(settings) => panic!("{config} became {settings:?}"),
            Err(error) => format!("{config}\n{error}\n"),
        });
        insta::assert_snapshot!(refused.join("\n"));
    }
}
