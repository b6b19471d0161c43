//! The words for the order of samples.

use serde_json::Value;

use super::Choice;
use super::words::Call;
use crate::error::{Error, Kind, Result};
use crate::plan::{By, Mixture, Part, Remainder, Shard, Step};

/// Whether a call is about the order.
pub(super) fn is_step(name: &str) -> bool {
    matches!(
        name,
        "shuffle" | "shard" | "interleave" | "take" | "skip" | "repeat" | "concat" | "mix"
    )
}

/// What a call asks of the order.
pub(super) fn step(call: &Call<'_>) -> Result<Step> {
    let count = |name, low| call.whole(name, low, 1 << 61)?.ok_or_else(|| call.lacks(name));
    Ok(match call.name() {
        "shuffle" => {
            let seed = call.whole("seed", 0, u64::MAX)?.unwrap_or(0);
            match call.whole("buffer", 1, 1 << 61)? {
                None => Step::Shuffle { seed },
                Some(buffer) => Step::ShuffleRuns { seed, buffer },
            }
        }
        "shard" => Step::Shard(shard(call)?),
        "interleave" => {
            let cycle = match call.count_or_auto("cycle", 1, 1 << 24)? {
                Choice::Auto => None,
                Choice::Exactly(cycle) => Some(cycle),
            };
            let block = call.whole("block", 1, 1 << 32)?.unwrap_or(1);
            Step::Interleave { cycle, block, seed: call.whole("seed", 0, u64::MAX)? }
        }
        "take" => Step::Take(count("samples", 1)?),
        "skip" => Step::Skip(count("samples", 0)?),
        "repeat" => Step::Repeat(count("times", 1)?),
        "concat" => Step::Concat(parts(call)?.into_iter().map(|(part, _)| part).collect()),
        "mix" => {
            let (parts, weights): (_, Vec<_>) = parts(call)?.into_iter().unzip();
            let weights =
                weights.into_iter().map(|weight| weight.ok_or_else(|| call.lacks("weight")));
            let weights = weights.collect::<Result<_>>()?;
            let seed = call.whole("seed", 0, u64::MAX)?;
            Step::Mix(Mixture { parts, weights, seed, samples: call.whole("samples", 1, 1 << 61)? })
        }
        other => {
            return Err(Error::new(Kind::Internal, format!("{other} is no step of the order")));
        }
    })
}

fn shard(call: &Call<'_>) -> Result<Shard> {
    let remainders =
        [("pad", Remainder::Pad), ("drop", Remainder::Drop), ("uneven", Remainder::Uneven)];
    let remainder = call.choice("remainder", &remainders)?.unwrap_or_default();
    let by = call.choice("by", &[("record", By::Record), ("shard", By::Shard)])?;
    let rank = call.whole("rank", 0, u64::MAX)?.unwrap_or(0);
    let world = call.whole("world", 0, u64::MAX)?.unwrap_or(1);
    Shard::new(rank, world, remainder, by.unwrap_or_default())
}

/// `[{"shards": 2, "calls": [...], "weight": 0.5}, ...]`
fn parts(call: &Call<'_>) -> Result<Vec<(Part, Option<f64>)>> {
    let Some(value) = call.get("parts") else { return Err(call.lacks("parts")) };
    let wanted = "a list of parts, each with its shards and calls";
    let list = value.as_array().ok_or_else(|| call.bad("parts", wanted, value))?;
    list.iter()
        .map(|value| {
            let words = value.as_object().ok_or_else(|| call.bad("parts", wanted, value))?;
            let part = Call::of(call.name(), words);
            let shards = part.whole("shards", 0, 1 << 32)?.ok_or_else(|| part.lacks("shards"))?;
            let weight = part.real("weight", 0.0, f64::MAX)?;
            let mut steps: Vec<Step> = Vec::new();
            for value in part.get("calls").and_then(Value::as_array).into_iter().flatten() {
                let inner = Call::new(value)?;
                if !is_step(inner.name()) {
                    let message = format!("{} cannot follow {}", call.name(), inner.name());
                    return Err(Error::new(Kind::BadSetting, message).with_hint(format!(
                        "call {} first, and then {}()",
                        call.name(),
                        inner.name()
                    )));
                }
                let step = step(&inner)?;
                inner.finish()?;
                step.may_follow(&steps)?;
                steps.push(step);
            }
            part.finish()?;
            Ok((Part { shards: shards as usize, steps }, weight))
        })
        .collect()
}
