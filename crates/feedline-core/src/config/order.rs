//! The calls for the order of samples.

use serde_json::Value;

use super::amount::{Choice, CountOrAuto};
use super::arguments::{ArgumentRule, Arguments, OneOf, Real, WholeNumber};
use super::calls::{Call, CallArguments};
use super::follow::CallGroup;
use super::{Given, Settings};
use crate::error::{Error, Kind, Result};
use crate::plan::{self, By, Mixture, OrderStep, Remainder};

/// The most samples that can be asked for.
const MOST: u64 = 1 << 61;

/// All samples in another order in each epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShuffleOptions {
    /// Decides the order alone.
    pub seed: u64,
    /// Shuffles only within runs of this many samples; all of them by default.
    pub buffer: Option<u64>,
}

impl From<u64> for ShuffleOptions {
    fn from(seed: u64) -> ShuffleOptions {
        ShuffleOptions { seed, buffer: None }
    }
}

/// The part of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOptions {
    /// From 0.
    pub rank: u64,
    /// How many ranks there are.
    pub world: u64,
    /// What is done if the samples cannot be divided evenly.
    pub remainder: Remainder,
    /// By sample or by shard; by shard for compressed shards, else by sample, by default.
    pub by: Option<By>,
}

impl Default for ShardOptions {
    fn default() -> ShardOptions {
        ShardOptions { rank: 0, world: 1, remainder: Remainder::default(), by: None }
    }
}

impl ShardOptions {
    /// The part of a rank, sample by sample, with some samples twice if they cannot be divided evenly.
    pub fn new(rank: u64, world: u64) -> ShardOptions {
        ShardOptions { rank, world, ..ShardOptions::default() }
    }
}

/// Some shards at a time, a few records of each in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterleaveOptions {
    /// How many shards are open.
    pub cycle: Choice,
    /// Records of each visit.
    pub block: u64,
    /// Takes the shards in another order in each epoch.
    pub seed: Option<u64>,
}

impl Default for InterleaveOptions {
    fn default() -> InterleaveOptions {
        InterleaveOptions { cycle: Choice::Auto, block: 1, seed: None }
    }
}

/// The first samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakeOptions {
    /// How many.
    pub samples: u64,
}

/// All but the first samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkipOptions {
    /// How many are left out.
    pub samples: u64,
}

/// Several passes in one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepeatOptions {
    /// How many.
    pub times: u64,
}

/// Several orders one behind another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConcatOptions {
    /// One for each pipeline.
    pub parts: Vec<PartOptions>,
}

/// Several orders in proportions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MixOptions {
    /// One for each pipeline; each has a weight.
    pub parts: Vec<PartOptions>,
    /// Shuffles which part comes when; without, they are spread evenly.
    pub seed: Option<u64>,
    /// Samples of an epoch; as many as all parts have by default.
    pub samples: Option<u64>,
}

/// What is asked of some shards of the source: the next ones after those of the part before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartOptions {
    /// How many.
    pub shards: u64,
    /// Calls about the order.
    pub calls: Vec<Call>,
    /// For a mixture.
    pub weight: Option<f64>,
}

impl Settings {
    fn add_step(&mut self, step: OrderStep) -> Result<()> {
        step.may_follow(&self.order)?;
        self.order.push(step);
        Ok(())
    }
}

fn is_packed(given: &Given) -> bool {
    matches!(given, Given::Records(contents) if contents.is_packed)
}

impl CallArguments for ShuffleOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.take("seed", &mut self.seed, WholeNumber(0, u64::MAX))?;
        from.take("buffer", &mut self.buffer, WholeNumber(1, MOST))
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        let seed = self.seed;
        match self.buffer {
            Some(buffer) => settings.add_step(OrderStep::ShuffleRuns { seed, buffer }),
            None if is_packed(given) => {
                let message = "shuffle: compressed shards are read from front to back";
                Err(Error::new(Kind::InvalidArgument, message).with_hint(
                    "say shuffle(seed, buffer=10_000), and interleave(seed=...) for the shards",
                ))
            }
            None => settings.add_step(OrderStep::Shuffle { seed }),
        }
    }
}

impl CallArguments for ShardOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        let remainders =
            [("pad", Remainder::Pad), ("drop", Remainder::Drop), ("uneven", Remainder::Uneven)];
        from.take("remainder", &mut self.remainder, OneOf(&remainders))?;
        from.take("by", &mut self.by, OneOf(&[("record", By::Record), ("shard", By::Shard)]))?;
        from.take("rank", &mut self.rank, WholeNumber(0, u64::MAX))?;
        from.take("world", &mut self.world, WholeNumber(0, u64::MAX))
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        let is_packed = is_packed(given);
        let by = self.by.unwrap_or(if is_packed { By::Shard } else { By::Record });
        if is_packed && by == By::Record {
            let message = "shard: every rank would unpack every compressed shard";
            return Err(Error::new(Kind::InvalidArgument, message).with_hint("say by=\"shard\""));
        }
        let shard = plan::Shard::new(self.rank, self.world, self.remainder, by)?;
        settings.add_step(OrderStep::Shard(shard))
    }
}

impl CallArguments for InterleaveOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.take("cycle", &mut self.cycle, CountOrAuto(1, 1 << 24))?;
        from.take("block", &mut self.block, WholeNumber(1, 1 << 32))?;
        from.take("seed", &mut self.seed, WholeNumber(0, u64::MAX))
    }

    fn apply(&self, settings: &mut Settings, _given: &Given) -> Result<()> {
        let InterleaveOptions { cycle, block, seed } = *self;
        settings.add_step(OrderStep::Interleave { cycle: cycle.given(), block, seed })
    }
}

impl CallArguments for TakeOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("samples", &mut self.samples, WholeNumber(1, MOST))
    }

    fn apply(&self, settings: &mut Settings, _given: &Given) -> Result<()> {
        settings.add_step(OrderStep::Take(self.samples))
    }
}

impl CallArguments for SkipOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("samples", &mut self.samples, WholeNumber(0, MOST))
    }

    fn apply(&self, settings: &mut Settings, _given: &Given) -> Result<()> {
        settings.add_step(OrderStep::Skip(self.samples))
    }
}

impl CallArguments for RepeatOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("times", &mut self.times, WholeNumber(1, MOST))
    }

    fn apply(&self, settings: &mut Settings, _given: &Given) -> Result<()> {
        settings.add_step(OrderStep::Repeat(self.times))
    }
}

impl CallArguments for ConcatOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        take_parts(&mut self.parts, from)
    }

    fn apply(&self, settings: &mut Settings, _given: &Given) -> Result<()> {
        let parts = self.parts.iter().map(|part| part.plan("concat"));
        settings.add_step(OrderStep::Concat(parts.collect::<Result<_>>()?))
    }
}

impl CallArguments for MixOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        take_parts(&mut self.parts, from)?;
        if self.parts.iter().any(|part| part.weight.is_none()) {
            return Err(from.lacks("weight"));
        }
        from.take("seed", &mut self.seed, WholeNumber(0, u64::MAX))?;
        from.take("samples", &mut self.samples, WholeNumber(1, MOST))
    }

    fn apply(&self, settings: &mut Settings, _given: &Given) -> Result<()> {
        let parts = self.parts.iter().map(|part| part.plan("mix")).collect::<Result<_>>()?;
        let weights = self.parts.iter().filter_map(|part| part.weight).collect();
        let (seed, samples) = (self.seed, self.samples);
        settings.add_step(OrderStep::Mix(Mixture { parts, weights, seed, samples }))
    }
}

/// `[{"shards": 2, "calls": [...], "weight": 0.5}, ...]`
fn take_parts(parts: &mut Vec<PartOptions>, from: &Arguments<'_>) -> Result<()> {
    from.require("parts", parts, PartList)?;
    let Some(Value::Array(list)) = from.get("parts") else {
        return parts.iter_mut().try_for_each(|part| part.take(&Arguments::of_rust(from.call())));
    };
    for value in list {
        let json = value.as_object().ok_or_else(|| from.bad("parts", &PartList.wanted(), value))?;
        let (mut part, arguments) = (PartOptions::default(), Arguments::of_json(from.call(), json));
        part.take(&arguments)?;
        arguments.finish()?;
        parts.push(part);
    }
    Ok(())
}

/// The parts themselves are read one by one.
struct PartList;

impl ArgumentRule for PartList {
    type Of = Vec<PartOptions>;

    fn wanted(&self) -> String {
        "a list of parts, each with its shards and calls".to_owned()
    }

    fn read(&self, value: &Value) -> Option<Vec<PartOptions>> {
        value.is_array().then(Vec::new)
    }
}

impl PartOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("shards", &mut self.shards, WholeNumber(0, 1 << 32))?;
        from.take("weight", &mut self.weight, Real(0.0, 1e9))?;
        let calls = from.get("calls").and_then(Value::as_array).into_iter().flatten();
        self.calls.extend(calls.map(Call::parse).collect::<Result<Vec<_>>>()?);
        self.calls.iter().try_for_each(Call::check)
    }

    fn plan(&self, of: &str) -> Result<plan::PlanPart> {
        let mut settings = Settings::default();
        for call in &self.calls {
            if CallGroup::of(call.name()) != CallGroup::Order {
                let call = call.name().text();
                let message = format!("{of} cannot follow {call}");
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint(format!("call {of} first, and then {call}()")));
            }
            call.apply(&mut settings, &Given::Files)?;
        }
        Ok(plan::PlanPart { shards: self.shards as usize, steps: settings.order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Excluded, Plan, PlanPart, Shard};
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
        let parts =
            vec![PlanPart { shards: 2, steps: first }, PlanPart { shards: 1, steps: vec![] }];
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
