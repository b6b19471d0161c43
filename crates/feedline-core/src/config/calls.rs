//! The calls of a pipeline as values: one variant for each, with its arguments. They are the same whether Python wrote
//! them as JSON, `[{"call": "shuffle", "seed": 7}, …]`, or Rust code made them.

use serde_json::Value;

use super::arguments::Arguments;
use super::batch::BatchOptions;
use super::cache::CacheOptions;
use super::choose::{BucketOptions, FilterOptions};
use super::functions::{Function, Takes};
use super::image::{
    CenterCropOptions, DecodeOptions, FlipOptions, RandomCropOptions, RandomResizedCropOptions,
    ResizeOptions,
};
use super::loader::LoaderOptions;
use super::numbers::{CastOptions, ToFloatOptions};
use super::order::{
    ConcatOptions, InterleaveOptions, MixOptions, RepeatOptions, ShardOptions, ShuffleOptions,
    SkipOptions, TakeOptions,
};
use super::records::ParseOptions;
use super::{Given, Settings};
use crate::error::{Error, Kind, Result};

/// The arguments of a call, and what they mean.
pub(super) trait CallArguments {
    /// Lists the arguments, which reads and checks them.
    fn take(&mut self, from: &Arguments<'_>) -> Result<()>;

    /// Writes down what the call asks for. It stands in a place where it may stand.
    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()>;
}

macro_rules! default_or {
    () => {
        Default::default()
    };
    ($default:expr) => {
        $default
    };
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:literal $variant:ident($arguments:ty) $(= $default:expr)?;)*) => {
        /// One call of a pipeline.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Call {
            $($(#[$doc])* $variant($arguments),)*
        }

        /// Which call it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Name {
            $($variant,)*
        }

        impl Name {
            pub(super) const ALL: &[Name] = &[$(Name::$variant,)*];

            /// As the user writes it.
            pub(super) fn text(self) -> &'static str {
                match self {
                    $(Name::$variant => $name,)*
                }
            }
        }

        impl Call {
            pub(super) fn name(&self) -> Name {
                match self {
                    $(Call::$variant(_) => Name::$variant,)*
                }
            }

            /// With the defaults of its arguments.
            fn new(name: Name) -> Call {
                match name {
                    $(Name::$variant => Call::$variant(default_or!($($default)?)),)*
                }
            }

            fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
                match self {
                    $(Call::$variant(arguments) => arguments.take(from),)*
                }
            }

            /// Writes down what the call asks for. It stands in a place where it may stand.
            pub(super) fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
                match self {
                    $(Call::$variant(arguments) => arguments.apply(settings, given),)*
                }
            }
        }
    };
}

calls! {
    /// All samples in another order in each epoch.
    "shuffle" Shuffle(ShuffleOptions);
    /// The part of one rank.
    "shard" Shard(ShardOptions);
    /// Some shards at a time.
    "interleave" Interleave(InterleaveOptions);
    /// The first samples.
    "take" Take(TakeOptions);
    /// All but the first samples.
    "skip" Skip(SkipOptions);
    /// Several passes in one epoch.
    "repeat" Repeat(RepeatOptions);
    /// Several orders one behind another.
    "concat" Concat(ConcatOptions);
    /// Several orders in proportions.
    "mix" Mix(MixOptions);
    /// Which fields of a record are wanted.
    "parse" Parse(ParseOptions);
    /// Which samples are kept.
    "filter" Filter(FilterOptions);
    /// Which samples come together.
    "bucket" Bucket(BucketOptions);
    /// Bytes become an image.
    "decode" Decode(DecodeOptions);
    /// The image gets another size.
    "resize" Resize(ResizeOptions);
    /// The middle of the image.
    "center_crop" CenterCrop(CenterCropOptions);
    /// A random part of the image.
    "random_crop" RandomCrop(RandomCropOptions);
    /// A random part of random size, resized.
    "random_resized_crop" RandomResizedCrop(RandomResizedCropOptions);
    /// The image is mirrored at random.
    "flip" Flip(FlipOptions);
    /// Numbers become float32.
    "to_float" ToFloat(ToFloatOptions);
    /// Numbers become another type.
    "cast" Cast(CastOptions);
    /// Samples are kept for later epochs.
    "cache" Cache(CacheOptions);
    /// A function of Python makes a sample of a sample.
    "map" Map(Function) = Function::new(Takes::Sample);
    /// A function of Python says which samples are kept.
    "filter" FilterFunction(Function) = Function::new(Takes::Choice);
    /// Samples become batches.
    "batch" Batch(BatchOptions);
    /// A function of Python makes a batch of a batch.
    "map_batch" MapBatch(Function) = Function::new(Takes::Batch);
    /// How the pipeline is run.
    "loader" Loader(Box<LoaderOptions>);
}

impl Call {
    /// The calls of a pipeline, from JSON.
    pub fn list(json: &str) -> Result<Vec<Call>> {
        let calls: Vec<Value> = serde_json::from_str(json).map_err(|error| {
            let message = format!("the settings are not a list of calls: {error}");
            Error::new(Kind::InvalidArgument, message)
        })?;
        calls.iter().map(Call::parse).collect()
    }

    pub(super) fn parse(value: &Value) -> Result<Call> {
        let arguments = Arguments::of_call(value)?;
        let named = Name::ALL.iter().find(|name| name.text() == arguments.call());
        let name = match named {
            // A predicate or a function.
            Some(Name::Filter) if !value["function"].is_null() => Name::FilterFunction,
            Some(name) => *name,
            None => {
                let message = format!("there is no call {:?}", arguments.call());
                return Err(Error::new(Kind::InvalidArgument, message));
            }
        };
        let mut call = Call::new(name);
        call.take(&arguments)?;
        arguments.finish()?;
        Ok(call)
    }

    /// Refuses arguments that are out of bounds.
    pub(super) fn check(&self) -> Result<()> {
        self.clone().take(&Arguments::of_rust(self.name().text()))
    }
}
