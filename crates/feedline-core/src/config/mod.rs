//! The user's words, and what they mean: a list of calls becomes checked settings for each stage.
//! Reads nothing but its arguments.
//!
//! The words are JSON, as the Python front writes them down: `[{"call": "shuffle", "seed": 7}, …]`.
//! Every mistake is refused here, with the value that was given.

mod chaos;
mod choose;
mod faults;
mod fields;
mod functions;
mod order;
mod records;
mod arguments;
mod workers;

use core::time::Duration;
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::collate::Cast;
use crate::decode::Options;
use crate::decode::resize::Filter;
use crate::decode::{MAX_PIXELS, Mode};
use crate::error::{Error, Kind, Result};
use crate::fault::FaultPolicy;
use crate::format::{Container, Wanted};
use crate::plan;
use crate::sample::{Dtype, Field, FieldKind, Number};
use crate::source::Contents;
use crate::transform::predicate::{Bucketing, Operand, Predicate};
use crate::transform::{Decoding, Layout, Output, Size, Step};
use arguments::Call;
pub use chaos::{Chaos, Strike};
pub use faults::fault_policy;
pub use functions::{Function, Takes};
pub use workers::Workers;

/// How long the consumer waits for a batch before it is told why, where the user says nothing.
const STALL: Duration = Duration::from_secs(30);

/// What the source gives, as far as the settings must know.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// Encoded files.
    Files,
    /// Arrays in memory.
    Arrays(Vec<Field>),
    /// Records.
    Records(Contents),
}

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
        match self {
            Choice::Auto => auto(),
            Choice::Exactly(number) => number,
        }
    }
}

/// What arrays of different shapes are made equal with; zeros by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Padding {
    /// In all fields.
    pub all: Option<Number>,
    /// In fields of that name.
    pub named: Vec<(String, Number)>,
}

/// What is asked of collate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Samples in a batch.
    pub size: usize,
    /// Whether a last short batch is left out.
    pub drop_last: bool,
    /// Whether arrays of different shapes are made equal, as `Settings::padding` says.
    pub pad: bool,
    /// Whether the batch says which samples it holds.
    pub index: bool,
}

/// Everything that was asked for, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Plan: what is asked of the order, step by step.
    pub order: Vec<plan::OrderStep>,
    /// Worker: which samples are kept.
    pub filter: Option<Predicate<Operand>>,
    /// Collate: what stands around arrays that are made equal.
    pub padding: Padding,
    /// Collate: which samples come together.
    pub bucketing: Option<Bucketing<Operand>>,
    /// Worker: the fields of a record, where the user named them.
    pub wanted: Option<Arc<[Wanted]>>,
    /// Worker: which of them is decoded; none if the whole record or file is.
    pub picture: Option<usize>,
    /// Worker: how files are decoded, if they are.
    pub decoding: Option<Decoding>,
    /// Worker: what follows.
    pub steps: Vec<Step>,
    /// Worker: what is written.
    pub output: Output,
    /// Collate: fields whose numbers become numbers of another type.
    pub casts: Vec<(Arc<str>, Cast)>,
    /// Worker: functions of Python, in order.
    pub functions: Vec<Function>,
    /// Worker: how many threads.
    pub threads: Choice,
    /// Worker: the seed of random steps.
    pub seed: Option<u64>,
    /// Fetch: how many threads.
    pub readers: Choice,
    /// Fetch: how many descriptors.
    pub files: Choice,
    /// Collate.
    pub batching: Option<Batching>,
    /// Deliver: bytes of batches that are made ahead of the consumer.
    pub prefetch: Choice,
    /// All bytes together.
    pub memory: Choice,
    /// What to do about faults.
    pub faults: FaultPolicy,
    /// Plan: the quarantine file, or folder of them, whose samples are left out.
    pub exclude: Option<PathBuf>,
    /// Deliver: how long the consumer waits before it is told why.
    pub stall: Option<Duration>,
    /// Trouble on purpose, for tests.
    pub chaos: Option<Chaos>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            order: Vec::new(),
            filter: None,
            padding: Padding::default(),
            bucketing: None,
            wanted: None,
            picture: None,
            decoding: None,
            steps: Vec::new(),
            output: Output::plain(Dtype::Uint8, Layout::Hwc),
            casts: Vec::new(),
            functions: Vec::new(),
            threads: Choice::Auto,
            seed: None,
            readers: Choice::Auto,
            files: Choice::Auto,
            batching: None,
            prefetch: Choice::Auto,
            memory: Choice::Auto,
            faults: FaultPolicy::default(),
            exclude: None,
            stall: Some(STALL),
            chaos: None,
        }
    }
}

/// How far the user's calls have come: each has its place in the path of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    Plan,
    Decoded,
    Written,
    Mapped,
    Batched,
    Finished,
}

impl Settings {
    /// From the words of a pipeline over what the source gives.
    pub fn parse(config: &str, given: &Given) -> Result<Settings> {
        let calls: Vec<Value> = serde_json::from_str(config).map_err(|error| {
            Error::new(
                Kind::InvalidArgument,
                format!("the settings are not a list of calls: {error}"),
            )
        })?;
        let mut settings = Settings::default();
        let mut progress = Progress::Plan;
        for call in &calls {
            let call = Call::new(call)?;
            progress = settings.apply(&call, given, progress)?;
            call.finish()?;
        }
        Ok(settings)
    }

    fn apply(&mut self, call: &Call<'_>, given: &Given, progress: Progress) -> Result<Progress> {
        let picture = match given {
            Given::Files | Given::Records(_) => progress >= Progress::Decoded,
            Given::Arrays(fields) => picture_of(fields).is_some(),
        };
        let late = |last: Progress| progress > last;
        match call.name() {
            "map" | "filter" | "map_batch"
                if call.get("function").is_some() && self.bucketing.is_some() =>
            {
                let message = format!("{} of a function cannot follow bucket", call.name());
                Err(Error::new(Kind::InvalidArgument, message).with_hint(
                    "buckets are for native pipelines; leave bucket or the function out",
                ))
            }
            "map" | "filter" | "map_batch" if call.get("function").is_some() => {
                let is_batched = progress >= Progress::Batched;
                self.functions.push(functions::parse(call, is_batched, &self.functions)?);
                Ok(progress.max(Progress::Mapped))
            }
            "parse"
            | "filter"
            | "bucket"
            | "decode"
            | "resize"
            | "center_crop"
            | "random_crop"
            | "random_resized_crop"
            | "flip"
            | "to_float"
            | "cast"
                if progress == Progress::Mapped =>
            {
                Err(functions::too_late(call))
            }
            name if order::is_step(name) && progress == Progress::Mapped => {
                Err(functions::too_late(call))
            }
            name if order::is_step(name) && late(Progress::Decoded) => Err(too_late(call, "batch")),
            name if order::is_step(name) && self.filter.is_some() => {
                let message = format!("{name} cannot follow filter");
                Err(Error::new(Kind::InvalidArgument, message).with_hint(format!(
                    "call {name} before filter: the order is decided before samples are read"
                )))
            }
            name if order::is_step(name) => {
                let step = order::step(call, given)?;
                step.may_follow(&self.order)?;
                self.order.push(step);
                Ok(progress)
            }
            "filter" | "bucket" if late(Progress::Written) => Err(too_late(call, "batch")),
            "filter" => {
                let more = choose::filter(call)?;
                self.filter = Some(match self.filter.take() {
                    None => more,
                    Some(Predicate::All(mut parts)) => {
                        parts.push(more);
                        Predicate::All(parts)
                    }
                    Some(first) => Predicate::All(vec![first, more]),
                });
                Ok(progress)
            }
            "bucket" if self.bucketing.is_some() => Err(too_late(call, "bucket")),
            "bucket" => {
                self.bucketing = Some(choose::bucket(call)?);
                Ok(progress)
            }
            "parse" if progress >= Progress::Decoded => Err(too_late(call, "decode")),
            "parse" => {
                self.wanted = Some(records::parse(call, given)?);
                Ok(progress)
            }
            "decode" => self.decode(call, given, progress),
            "resize"
            | "center_crop"
            | "random_crop"
            | "random_resized_crop"
            | "flip"
            | "to_float"
            | "cast"
                if progress > Progress::Written =>
            {
                Err(too_late(call, "batch"))
            }
            "resize" | "center_crop" | "random_crop" | "random_resized_crop" | "flip"
                if progress == Progress::Written =>
            {
                Err(too_late(call, "to_float or cast"))
            }
            "to_float" | "cast"
                if !picture && (matches!(given, Given::Files) && call.get("field").is_none()) =>
            {
                Err(no_picture(call, given))
            }
            "to_float" | "cast"
                if !picture
                    || call.get("field").is_some_and(|name| name.as_str() != Some("image")) =>
            {
                let known = numbers(given, self.wanted.as_deref());
                let cast = cast(call)?;
                for name in cast_fields(call, &known)? {
                    if self.casts.iter().any(|(other, _)| *other == name) {
                        let message = format!(
                            "{}: the numbers of {name:?} were decided already",
                            call.name()
                        );
                        return Err(Error::new(Kind::InvalidArgument, message)
                            .with_hint("call to_float or cast once for each field"));
                    }
                    self.casts.push((name, cast));
                }
                Ok(progress)
            }
            "resize"
            | "center_crop"
            | "random_crop"
            | "random_resized_crop"
            | "flip"
            | "to_float"
            | "cast"
                if !picture =>
            {
                Err(no_picture(call, given))
            }
            "resize" | "center_crop" | "random_crop" | "random_resized_crop" | "flip" => {
                let step = step(call)?;
                self.steps.push(step);
                Ok(progress.max(Progress::Decoded))
            }
            "to_float" | "cast" if progress == Progress::Written => {
                let message = format!("{}: the numbers were decided already", call.name());
                Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint("call to_float or cast once, as the last step before batch"))
            }
            "to_float" | "cast" => {
                let _ = call.get("field");
                self.output = output(call, self.channels(given))?;
                Ok(Progress::Written)
            }
            "batch" if progress >= Progress::Batched => Err(too_late(call, "batch")),
            "batch" => {
                let size = call.whole("size", 1, 1 << 24)?.ok_or_else(|| call.lacks("size"))?;
                let padding = choose::padding(call)?;
                self.batching = Some(Batching {
                    size: size as usize,
                    drop_last: call.truth("drop_last")?.unwrap_or(false),
                    pad: padding.is_some(),
                    index: call.truth("index")?.unwrap_or(false),
                });
                self.padding = padding.unwrap_or_default();
                Ok(Progress::Batched)
            }
            "loader" if progress < Progress::Batched => {
                Err(Error::new(Kind::InvalidArgument, "loader: there is no batch size")
                    .with_hint("call batch(size) before loader()"))
            }
            "loader" if progress == Progress::Finished => Err(too_late(call, "loader")),
            "loader" => self.loader(call),
            other => {
                let message = format!("there is no call {other:?}");
                Err(Error::new(Kind::InvalidArgument, message))
            }
        }
    }

    /// The first seed that the user gave for the order.
    pub fn order_seed(&self) -> Option<u64> {
        self.order.iter().find_map(plan::OrderStep::seed)
    }

    fn decode(&mut self, call: &Call<'_>, given: &Given, progress: Progress) -> Result<Progress> {
        if matches!(given, Given::Arrays(_)) {
            return Err(Error::new(
                Kind::InvalidArgument,
                "decode: arrays hold numbers, not image files",
            )
            .with_hint("leave decode() out: an array named \"image\" is a picture already"));
        }
        if progress >= Progress::Decoded {
            return Err(too_late(call, if self.decoding.is_some() { "decode" } else { "batch" }));
        }
        if let Given::Records(contents) = given {
            self.picture = records::picture(call, contents, self.wanted.as_deref())?;
        }
        let mode = call.choice("mode", &[("rgb", Mode::Rgb), ("gray", Mode::Gray)])?;
        let max_pixels = call.whole("max_pixels", 1, 1 << 30)?;
        self.decoding = Some(Decoding {
            options: Options {
                mode: mode.unwrap_or_default(),
                orient: call.truth("orient")?.unwrap_or(false),
                max_pixels: max_pixels.map_or(MAX_PIXELS, |limit| limit as usize),
            },
            scaled: call.truth("scaled")?.unwrap_or(false),
        });
        Ok(Progress::Decoded)
    }

    fn loader(&mut self, call: &Call<'_>) -> Result<Progress> {
        self.threads = call.count_or_auto("threads", 1, 1024)?;
        self.readers = call.count_or_auto("readers", 1, 256)?;
        self.files = call.count_or_auto("files", 1, 1 << 20)?;
        self.memory = call.bytes_or_auto("memory", 1 << 20)?;
        self.prefetch = call.bytes_or_auto("prefetch", 0)?;
        self.seed = call.whole("seed", 0, u64::MAX)?;
        if let (Choice::Exactly(prefetch), Choice::Exactly(memory)) = (self.prefetch, self.memory)
            && prefetch >= memory
        {
            let message = format!("loader: prefetch={prefetch} leaves nothing of memory={memory}");
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("prefetch is a part of memory; the rest is for files and decoding"));
        }
        if let Some(config) = call.get("faults") {
            self.faults = faults::from_json(config)?;
        }
        self.exclude = call.path("exclude")?;
        if let Some(seconds) = call.real("stall", 0.0, 1e9)? {
            self.stall = (seconds > 0.0).then(|| Duration::from_secs_f64(seconds));
        }
        self.chaos = Chaos::parse(call)?;
        functions::check_loader(call, &self.functions)?;
        Ok(Progress::Finished)
    }

    fn channels(&self, given: &Given) -> usize {
        match (given, self.decoding) {
            (Given::Arrays(fields), _) => picture_of(fields).map_or(3, |(_, channels)| channels),
            (Given::Files | Given::Records(_), Some(decoding)) => decoding.options.mode.channels(),
            (Given::Files | Given::Records(_), None) => 3,
        }
    }
}

/// The size and channels of the array that is a picture: named "image", bytes, with 1 or 3 channels.
pub fn picture_of(fields: &[Field]) -> Option<(Size, usize)> {
    let field = fields.iter().find(|field| &*field.name == "image")?;
    match &field.kind {
        FieldKind::Fixed { dtype: Dtype::Uint8, shape } => match shape.as_slice() {
            [height, width, channels @ (1 | 3)] if *height > 0 && *width > 0 => {
                Some((Size { height: *height, width: *width }, *channels))
            }
            _ => None,
        },
        FieldKind::Fixed { .. }
        | FieldKind::Ragged { .. }
        | FieldKind::Variable { .. }
        | FieldKind::Bytes
        | FieldKind::Text
        | FieldKind::Json
        | FieldKind::List
        | FieldKind::Texts => None,
    }
}

fn step(call: &Call<'_>) -> Result<Step> {
    let filters = [("bilinear", Filter::Bilinear), ("bicubic", Filter::Bicubic)];
    let filter = |call: &Call<'_>| Ok(call.choice("filter", &filters)?.unwrap_or_default());
    Ok(match call.name() {
        "resize" => match call.size("size")? {
            arguments::Sides::One(shorter) => Step::ResizeShorter(shorter, filter(call)?),
            arguments::Sides::Two(size) => Step::ResizeTo(size, filter(call)?),
        },
        "center_crop" => Step::CenterCrop(call.size("size")?.square()),
        "random_crop" => Step::RandomCrop {
            size: call.size("size")?.square(),
            padding: call.whole("padding", 0, arguments::MAX_SIDE)?.unwrap_or(0) as usize,
        },
        "random_resized_crop" => Step::RandomResizedCrop {
            size: call.size("size")?.square(),
            scale: call.range("scale", (0.08, 1.0), (f64::MIN_POSITIVE, 1.0))?,
            ratio: call.range("ratio", (3.0 / 4.0, 4.0 / 3.0), (1e-3, 1e3))?,
            filter: filter(call)?,
        },
        "flip" => Step::Flip(call.real("p", 0.0, 1.0)?.unwrap_or(0.5)),
        other => return Err(Error::new(Kind::Internal, format!("{other} is no step"))),
    })
}

fn output(call: &Call<'_>, channels: usize) -> Result<Output> {
    let layouts = [("HWC", Layout::Hwc), ("CHW", Layout::Chw)];
    let layout = call.choice("layout", &layouts)?;
    if call.name() == "cast" {
        let dtypes: Vec<_> = Dtype::ALL
            .iter()
            // A byte does not fit into these.
            .filter(|dtype| !matches!(dtype, Dtype::Bool | Dtype::Int8))
            .map(|dtype| (dtype.name(), *dtype))
            .collect();
        let dtype = call.choice("dtype", &dtypes)?.ok_or_else(|| call.lacks("dtype"))?;
        return Ok(Output::plain(dtype, layout.unwrap_or(Layout::Hwc)));
    }
    let mean = call.numbers("mean", channels, 0.0)?;
    let deviation = call.numbers("std", channels, 1.0)?;
    if let Some(zero) = deviation.iter().find(|number| **number == 0.0) {
        let message = format!("to_float: std must not be zero, got {zero}");
        return Err(Error::new(Kind::InvalidArgument, message));
    }
    Ok(Output::normalised(layout.unwrap_or(Layout::Chw), &mean, &deviation))
}

/// What `cast` and `to_float` make of numbers that are no picture. Bytes of pictures are 0 to 255, and
/// to_float makes 0 to 1 of them; other numbers are what they are.
fn cast(call: &Call<'_>) -> Result<Cast> {
    if call.get("layout").is_some() {
        let message = format!("{}: layout is for pictures", call.name());
        return Err(Error::new(Kind::InvalidArgument, message).with_hint("leave layout out"));
    }
    if call.name() == "cast" {
        let dtypes: Vec<_> = Dtype::ALL.iter().map(|dtype| (dtype.name(), *dtype)).collect();
        let dtype = call.choice("dtype", &dtypes)?.ok_or_else(|| call.lacks("dtype"))?;
        return Ok(Cast { dtype, scale: None });
    }
    let (mean, deviation) = (call.numbers("mean", 1, 0.0)?, call.numbers("std", 1, 1.0)?);
    if deviation[0] == 0.0 {
        return Err(Error::new(Kind::InvalidArgument, "to_float: std must not be zero, got 0"));
    }
    Ok(Cast { dtype: Dtype::Float32, scale: Some((mean[0], deviation[0])) })
}

/// The fields of numbers that a source is known to have.
fn numbers(given: &Given, wanted: Option<&[Wanted]>) -> Vec<Arc<str>> {
    let is_numbers =
        |field: &Field| matches!(field.kind, FieldKind::Fixed { .. } | FieldKind::Variable { .. });
    let fields: Vec<Field> = match given {
        Given::Files => Vec::new(),
        Given::Arrays(fields) => fields.clone(),
        Given::Records(contents) => match (&contents.container, wanted) {
            (Container::Numbers { .. }, _) => return vec!["tokens".into()],
            (_, Some(wanted)) => wanted.iter().map(Wanted::field).collect(),
            (_, None) => contents.guessed.iter().map(Wanted::field).collect(),
        },
    };
    fields.into_iter().filter(is_numbers).map(|field| field.name).collect()
}

/// Which fields are meant: those that are named, or the only one of numbers.
fn cast_fields(call: &Call<'_>, known: &[Arc<str>]) -> Result<Vec<Arc<str>>> {
    let named = match call.get("field") {
        None => None,
        Some(Value::String(name)) => Some(vec![Arc::from(name.as_str())]),
        Some(value @ Value::Array(names)) => {
            let texts: Option<Vec<Arc<str>>> =
                names.iter().map(|name| name.as_str().map(Arc::from)).collect();
            let texts = texts.filter(|names| !names.is_empty());
            Some(texts.ok_or_else(|| call.bad("field", "a name, or a list of them", value))?)
        }
        Some(other) => return Err(call.bad("field", "a name, or a list of them", other)),
    };
    match (named, known) {
        (Some(named), _) => Ok(named),
        (None, [only]) => Ok(vec![Arc::clone(only)]),
        (None, []) => {
            let message = format!("{} needs a picture or a field of numbers", call.name());
            Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("call decode() first for pictures, or parse({...}) for numbers"))
        }
        (None, several) => {
            let names: Vec<_> = several.iter().map(|name| format!("{name:?}")).collect();
            let message =
                format!("{}: which field? of numbers are: {}", call.name(), names.join(", "));
            Err(Error::new(Kind::InvalidArgument, message).with_hint(format!(
                "say {}(..., field={})",
                call.name(),
                names[0]
            )))
        }
    }
}

fn too_late(call: &Call<'_>, after: &str) -> Error {
    let message = format!("{} cannot follow {after}", call.name());
    Error::new(Kind::InvalidArgument, message).with_hint(
        "the order is: source, shuffle, shard, parse, decode, resize and crops, to_float or cast, batch, loader",
    )
}

fn no_picture(call: &Call<'_>, given: &Given) -> Error {
    let message = format!("{} needs a picture", call.name());
    let hint = match given {
        Given::Files | Given::Records(_) => "call decode() first",
        Given::Arrays(_) => {
            "name an array \"image\", of uint8 with shape (samples, height, width, 1 or 3)"
        }
    };
    Error::new(Kind::InvalidArgument, message).with_hint(hint)
}

impl fmt::Display for Choice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Auto => write!(formatter, "auto"),
            Choice::Exactly(number) => write!(formatter, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(config: &str) -> String {
        match Settings::parse(config, &Given::Files) {
            Ok(settings) => panic!("{config} became {settings:?}"),
            Err(error) => format!("{config}\n{error}\n"),
        }
    }

    #[test]
    fn words_become_settings_of_their_stage() {
        let settings = Settings::parse(
            r#"[{"call": "shuffle", "seed": 7}, {"call": "decode"}, {"call": "resize", "size": 256},
                {"call": "center_crop", "size": [224, 200]}, {"call": "batch", "size": 64},
                {"call": "loader", "memory": "1.5GiB", "threads": 3, "faults": "action=skip,limit=0.01"}]"#,
            &Given::Files,
        )
        .unwrap();
        assert_eq!(settings.order, [plan::OrderStep::Shuffle { seed: 7 }]);
        assert_eq!(settings.memory, Choice::Exactly(3 << 29));
        assert_eq!(settings.threads, Choice::Exactly(3));
        assert_eq!(
            settings.steps,
            [
                Step::ResizeShorter(256, Filter::Bilinear),
                Step::CenterCrop(Size { height: 224, width: 200 })
            ]
        );
        assert_eq!(settings.faults.to_string(), "action=skip,limit=0.01");
    }

    #[test]
    fn every_mistake_is_refused_with_the_value_that_was_given() {
        let mistakes = [
            "{}",
            "[5]",
            r#"[{"call": "fly"}]"#,
            r#"[{"call": "shuffle", "seed": -1}]"#,
            r#"[{"call": "shuffle", "sed": 1}]"#,
            r#"[{"call": "shard", "rank": 4, "world": 4}]"#,
            r#"[{"call": "shard", "rank": 0, "world": 2, "remainder": "keep"}]"#,
            r#"[{"call": "resize", "size": 5}]"#,
            r#"[{"call": "decode", "mode": "cmyk"}]"#,
            r#"[{"call": "decode"}, {"call": "decode"}]"#,
            r#"[{"call": "decode"}, {"call": "resize", "size": "big"}]"#,
            r#"[{"call": "decode"}, {"call": "resize", "size": [1, 2, 3]}]"#,
            r#"[{"call": "decode"}, {"call": "resize", "size": 0}]"#,
            r#"[{"call": "decode"}, {"call": "flip", "p": 1.5}]"#,
            r#"[{"call": "decode"}, {"call": "random_resized_crop", "size": 9, "scale": [0.5, 0.2]}]"#,
            r#"[{"call": "decode"}, {"call": "to_float", "mean": [0.5, 0.5]}]"#,
            r#"[{"call": "decode"}, {"call": "to_float", "std": [1, 0, 1]}]"#,
            r#"[{"call": "decode"}, {"call": "cast", "dtype": "int8"}]"#,
            r#"[{"call": "decode"}, {"call": "to_float"}, {"call": "resize", "size": 5}]"#,
            r#"[{"call": "batch", "size": 0}]"#,
            r#"[{"call": "batch", "size": 1, "drop_last": "yes"}]"#,
            r#"[{"call": "batch", "size": 1}, {"call": "shuffle"}]"#,
            r#"[{"call": "loader"}]"#,
            r#"[{"call": "batch", "size": 1}, {"call": "loader", "memory": "lots"}]"#,
            r#"[{"call": "batch", "size": 1}, {"call": "loader", "memory": "1MiB", "prefetch": "2MiB"}]"#,
            r#"[{"call": "batch", "size": 1}, {"call": "loader", "faults": "action=ignore"}]"#,
            r#"[{"call": "batch", "size": 1}, {"call": "loader", "faults": {"limit": 1.5}}]"#,
            r#"[{"call": "batch", "size": 1}, {"call": "loader", "exclude": 5}]"#,
            r#"[{"call": "batch", "size": 1}, {"call": "loader", "stall": -1}]"#,
            r#"[{"call": "batch", "size": 1}, {"call": "loader", "chaos": {"eio": 2}}]"#,
        ];
        let messages: Vec<_> = mistakes.iter().map(|config| refused(config)).collect();
        insta::assert_snapshot!(messages.join("\n"));
    }

    proptest! {
        #[test]
        fn no_words_make_it_panic(config in r#"\[(\{"call": ?"(decode|resize|batch|loader|flip)"(, "(size|p|memory|faults)": ?-?[0-9."eGiB\[\],]{0,6}){0,2}\},?){0,4}\]?"#) {
            let _ = Settings::parse(&config, &Given::Files);
            let image = Field::fixed("image", Dtype::Uint8, &[8, 8, 3]);
            let _ = Settings::parse(&config, &Given::Arrays(vec![image]));
        }
    }
}
