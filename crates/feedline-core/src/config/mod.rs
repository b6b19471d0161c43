//! What the user asked for: a list of calls becomes checked settings for each stage. Reads nothing but its arguments.
//!
//! A call is a value ([`Call`]) that Python writes as JSON and Rust code makes with types. Each is in the file of its
//! subject, with its arguments, their bounds and what it means; `follow.rs` says which may follow which. Every mistake is
//! refused here, with the value that was given.

mod amount;
mod arguments;
mod batch;
mod cache;
mod calls;
mod chaos;
mod choose;
mod faults;
mod fields;
mod follow;
mod functions;
mod image;
mod loader;
mod numbers;
mod order;
mod records;
mod workers;

use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use crate::collate;
use crate::error::Result;
use crate::fault::FaultPolicy;
use crate::format::Wanted;
use crate::plan;
use crate::sample::{Dtype, Field, FieldKind};
use crate::source::Contents;
use crate::transform::predicate::{Bucketing, Operand, Predicate};
use crate::transform::{Decoding, Layout, Output, Size, Step};
pub use amount::{Choice, TimeLimit};
pub use batch::BatchOptions;
pub use batch::Padding;
pub use cache::{CacheOptions, CacheStore, Caching};
pub use calls::Call;
pub(crate) use chaos::{Chaos, InjectedFault};
pub use choose::{BucketOptions, FilterOptions};
pub use faults::fault_policy;
use follow::CallGroup;
pub(crate) use functions::Function;
pub use functions::{FunctionWorkers, StartMethod, Takes};
pub use image::{
    CenterCropOptions, DecodeOptions, FlipOptions, RandomCropOptions, RandomResizedCropOptions,
    ResizeOptions, Sides,
};
pub use loader::LoaderOptions;
pub use numbers::{CastOptions, PerChannel, ToFloatOptions};
pub use order::{
    ConcatOptions, InterleaveOptions, MixOptions, PartOptions, RepeatOptions, ShardOptions,
    ShuffleOptions, SkipOptions, TakeOptions,
};
pub use records::ParseOptions;
pub use workers::Workers;

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
    /// Fetch and worker: what is kept for later epochs.
    pub cache: Option<Caching>,
    /// Collate: fields whose numbers become numbers of another type.
    pub casts: Vec<(Arc<str>, collate::Cast)>,
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
    /// Deliver: how long the consumer waits before an event says why.
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
            cache: None,
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
            stall: Some(loader::STALL),
            chaos: None,
        }
    }
}

impl Settings {
    /// From the calls of a pipeline as JSON, over what the source gives.
    pub fn parse(json: &str, given: &Given) -> Result<Settings> {
        Settings::new(&Call::list(json)?, given)
    }

    /// From the calls of a pipeline over what the source gives.
    pub fn new(calls: &[Call], given: &Given) -> Result<Settings> {
        let mut settings = Settings::default();
        let mut earlier = Vec::with_capacity(calls.len());
        for call in calls {
            call.check()?;
            let (name, group) = (call.name(), settings.group(call, given));
            follow::check(name, group, &earlier)?;
            call.apply(&mut settings, given)?;
            earlier.push((name, group));
        }
        Ok(settings)
    }

    fn group(&self, call: &Call, given: &Given) -> CallGroup {
        if let Call::ToFloat(ToFloatOptions { field, .. }) | Call::Cast(CastOptions { field, .. }) =
            call
            && self.means_picture(field, given)
        {
            return CallGroup::Pixels;
        }
        CallGroup::of(call.name())
    }

    fn has_picture(&self, given: &Given) -> bool {
        match given {
            Given::Files | Given::Records(_) => self.decoding.is_some(),
            Given::Arrays(fields) => picture_of(fields).is_some(),
        }
    }

    /// The first seed that the user gave for the order.
    pub(crate) fn order_seed(&self) -> Option<u64> {
        self.order.iter().find_map(plan::OrderStep::seed)
    }
}

/// The size and channels of the array that is a picture: named "image", bytes, with 1 or 3 channels.
pub(crate) fn picture_of(fields: &[Field]) -> Option<(Size, usize)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::resize::Filter;
    use crate::format::Type;
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
            r#"[{"call": "cache"}]"#,
            r#"[{"call": "cache", "folder": "x"}]"#,
            r#"[{"call": "cache", "size": "1GiB"}]"#,
            r#"[{"call": "cache", "memory": "1GiB", "folder": "x", "size": "1GiB"}]"#,
            r#"[{"call": "cache", "memory": "lots"}]"#,
            r#"[{"call": "cache", "memory": "1KiB"}]"#,
            r#"[{"call": "cache", "memory": "1GiB"}, {"call": "cache", "memory": "1GiB"}]"#,
            r#"[{"call": "decode"}, {"call": "flip"}, {"call": "cache", "memory": "1GiB"}]"#,
            r#"[{"call": "decode", "scaled": true}, {"call": "cache", "memory": "1GiB"}]"#,
            r#"[{"call": "decode"}, {"call": "to_float"}, {"call": "cache", "memory": "1GiB"}]"#,
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

    #[test]
    fn values_of_rust_code_are_checked_as_json_is() {
        use crate::fault::Limit;
        let decode = || Call::Decode(DecodeOptions::default());
        let batch = || Call::Batch(1.into());
        let faults = FaultPolicy { retry: 5000, ..FaultPolicy::default() };
        let no_number =
            FaultPolicy { limit: Some(Limit::Share(f64::NAN)), ..FaultPolicy::default() };
        let loader = |loader| vec![batch(), Call::Loader(Box::new(loader))];
        let plain = LoaderOptions::default;
        let mistakes = [
            vec![decode(), Call::Resize(0.into())],
            vec![decode(), Call::Resize((224, 1 << 20).into())],
            vec![decode(), Call::Flip(FlipOptions { p: f64::NAN })],
            vec![
                decode(),
                Call::ToFloat(ToFloatOptions { mean: [0.5, 0.5].into(), ..Default::default() }),
            ],
            vec![Call::Take(TakeOptions { samples: 0 })],
            vec![Call::Shard(ShardOptions::new(4, 4))],
            vec![Call::Mix(MixOptions {
                parts: vec![PartOptions::default()],
                ..Default::default()
            })],
            vec![Call::Bucket(BucketOptions {
                by: "x".into(),
                boundaries: vec![5.0, 5.0],
                batch: None,
            })],
            vec![Call::Parse(ParseOptions { fields: vec![] })],
            vec![Call::Parse(ParseOptions {
                fields: vec![Wanted { default: Some(vec![1]), ..Wanted::new("x", Type::Int64) }],
            })],
            vec![Call::Batch(0.into())],
            loader(LoaderOptions { threads: 0.into(), ..plain() }),
            loader(LoaderOptions {
                memory: (1 << 20).into(),
                prefetch: (2 << 20).into(),
                ..plain()
            }),
            loader(LoaderOptions { faults, ..plain() }),
            loader(LoaderOptions { faults: no_number, ..plain() }),
        ];
        let refused = mistakes.map(|calls| match Settings::new(&calls, &Given::Files) {
            Ok(settings) => panic!("{calls:?} became {settings:?}"),
            Err(error) => error.message().to_owned(),
        });
        insta::assert_snapshot!(refused.join("\n"));
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
