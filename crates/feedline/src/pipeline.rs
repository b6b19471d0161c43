//! The builder: what is loaded, and what is done to it.

use feedline_core::config::{
    BatchOptions, BucketOptions, CacheOptions, Call, CastOptions, CenterCropOptions, ConcatOptions,
    DecodeOptions, FilterOptions, FlipOptions, InterleaveOptions, LoaderOptions, MixOptions,
    ParseOptions, PartOptions, RandomCropOptions, RandomResizedCropOptions, RepeatOptions,
    ResizeOptions, Settings, ShardOptions, ShuffleOptions, Sides, SkipOptions, TakeOptions,
    ToFloatOptions,
};
use feedline_core::error::{Error, Kind, Result};
use feedline_core::format::{Container, Wanted};
use feedline_core::loader::{self, Loader};
use feedline_core::sample::{Array, Dtype};
use feedline_core::source::concat::Concat;
use feedline_core::source::files::Files;
use feedline_core::source::folder::Folder;
use feedline_core::source::index::IndexStorage;
use feedline_core::source::memory::Arrays;
use feedline_core::source::numbers::{Numbered, Numbers};
use feedline_core::source::records::Records;
use feedline_core::source::zip::Zip;
use feedline_core::source::{Source, paths};
use feedline_core::transform::predicate::{Operand, Predicate};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A source and what is done to its samples, call by call.
///
/// Calls are checked when the loader is built: their arguments, and whether each may follow those before it. The order
/// is: source, order of samples, `parse`, `decode`, resize and crops, `to_float` or `cast`, `batch`, `loader`.
#[derive(Clone)]
#[must_use = "a pipeline does nothing before its loader is used"]
pub struct Pipeline {
    source: Arc<dyn Source>,
    calls: Vec<Call>,
}

/// Files, in order: paths, patterns such as `data/**/*.jpg`, or braces such as `part-{000..009}.tar`. The files of a
/// pattern are sorted.
pub struct Paths(Vec<PathBuf>);

macro_rules! from_one_path {
    ($($type:ty)*) => {
        $(impl From<$type> for Paths {
            fn from(path: $type) -> Paths {
                Paths(vec![path.into()])
            }
        })*
    };
}
from_one_path! { &str &String String &Path &PathBuf PathBuf }

impl<P: Into<PathBuf>> From<Vec<P>> for Paths {
    fn from(paths: Vec<P>) -> Paths {
        Paths(paths.into_iter().map(Into::into).collect())
    }
}

impl<P: Into<PathBuf>, const COUNT: usize> From<[P; COUNT]> for Paths {
    fn from(paths: [P; COUNT]) -> Paths {
        Paths(paths.into_iter().map(Into::into).collect())
    }
}

impl Paths {
    fn expand(self) -> Result<Vec<PathBuf>> {
        paths::expand(&self.0)
    }
}

/// Sources.
impl Pipeline {
    /// A folder with a sub-folder for each class, in the order of torchvision's `ImageFolder`. Batches have "image" (or
    /// "bytes" without `decode`) and "label".
    pub fn images(folder: impl AsRef<Path>) -> Result<Pipeline> {
        Ok(Pipeline::new(Folder::images(folder.as_ref())?))
    }

    /// Files. Batches have "image" (or "bytes" without `decode`).
    pub fn files(paths: impl Into<Paths>) -> Result<Pipeline> {
        Ok(Pipeline::new(Files::list(&paths.into().expand()?, None)?))
    }

    /// Files with a label each, which is "label" in a batch.
    pub fn labelled_files(paths: impl Into<Paths>, labels: Vec<i64>) -> Result<Pipeline> {
        Ok(Pipeline::new(Files::list(&paths.into().expand()?, Some(labels))?))
    }

    /// Arrays in memory, by name. Each sample is a row of every array: the first axis counts the samples.
    pub fn arrays<N: AsRef<str>>(arrays: impl IntoIterator<Item = (N, Array)>) -> Result<Pipeline> {
        let mut first: Option<(String, u64)> = None;
        let mut loaned = Vec::new();
        for (name, array) in arrays {
            let name = name.as_ref();
            let (array, rows) = array.loaned(name)?;
            match &first {
                Some((other, expected)) if *expected != rows => {
                    let message =
                        format!("array {name:?} has {rows} rows, array {other:?} has {expected}");
                    let hint = "each sample is a row of every array: give as many rows to each";
                    return Err(Error::new(Kind::InvalidSource, message).with_hint(hint));
                }
                Some(_) => {}
                None => first = Some((name.to_owned(), rows)),
            }
            loaned.push(array);
        }
        Ok(Pipeline::new(Arrays::new(loaned, first.map_or(0, |(_, rows)| rows))?))
    }

    /// Records of TFRecord files. Batches have "bytes" without `parse`.
    pub fn tfrecord(paths: impl Into<Paths>) -> Result<Pipeline> {
        Pipeline::records(paths, Container::Tfrecord { check: true }, &IndexStorage::Nowhere, None)
    }

    /// Samples of tar files in the WebDataset convention. Without `parse`, all have the fields of the first.
    pub fn tar(paths: impl Into<Paths>) -> Result<Pipeline> {
        Pipeline::records(paths, Container::Tar, &IndexStorage::Nowhere, None)
    }

    /// Lines of JSON. Without `parse`, all have the fields of the first.
    pub fn jsonl(paths: impl Into<Paths>) -> Result<Pipeline> {
        Pipeline::records(paths, Container::JsonLines, &IndexStorage::Nowhere, None)
    }

    /// Rows of CSV files, whose first line names the columns. Without `parse`, every column is text.
    pub fn csv(paths: impl Into<Paths>) -> Result<Pipeline> {
        let container = Container::Csv { delimiter: b',', columns: [].into() };
        Pipeline::records(paths, container, &IndexStorage::Nowhere, None)
    }

    /// Records of any kind. `keep` says where it is kept which record begins where; without, all shards are looked
    /// through each time. A manifest, as `feedline index --manifest` writes it, says what each shard must have.
    pub fn records(
        paths: impl Into<Paths>,
        container: Container,
        keep: &IndexStorage,
        manifest: Option<&Path>,
    ) -> Result<Pipeline> {
        let paths = paths.into().expand()?;
        Ok(Pipeline::new(Records::new(paths, container, keep, manifest, &mut |_| true)?))
    }

    /// Windows of `length` numbers, of which each begins `stride` behind the one before, in files that hold nothing
    /// else. Batches have "tokens".
    pub fn tokens(
        paths: impl Into<Paths>,
        dtype: Dtype,
        length: u64,
        stride: u64,
    ) -> Result<Pipeline> {
        let files = paths.into().expand()?.into_iter();
        let files: Vec<_> = files.map(|path| Numbered { path, start: 0, count: None }).collect();
        Ok(Pipeline::new(Numbers::new(&files, dtype, length, stride)?))
    }

    /// The samples of several pipelines in proportions, spread evenly. Only calls about the order may come before.
    pub fn mix(parts: impl IntoIterator<Item = (Pipeline, f64)>) -> Result<Pipeline> {
        let (pipelines, weights): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let parts = pipelines.iter().zip(weights);
        let parts = parts.map(|(pipeline, weight)| pipeline.part(Some(weight))).collect();
        let mixed = Pipeline::joined(&pipelines)?;
        Ok(mixed.with(Call::Mix(MixOptions { parts, seed: None, samples: None })))
    }

    /// The samples of this pipeline and then those of another one. Only calls about the order may come before.
    pub fn concat(self, other: Pipeline) -> Result<Pipeline> {
        let pipelines = [self, other];
        let parts = pipelines.iter().map(|pipeline| pipeline.part(None)).collect();
        Ok(Pipeline::joined(&pipelines)?.with(Call::Concat(ConcatOptions { parts })))
    }

    /// The same samples, with a row of arrays beside each. Call it before any other call.
    pub fn zip(self, arrays: &Pipeline) -> Result<Pipeline> {
        if !self.calls.is_empty() || !arrays.calls.is_empty() {
            let message = "zip: give sources without further calls";
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("call zip before all other calls"));
        }
        Ok(Pipeline::new(Zip::new(self.source, &*arrays.source)?))
    }

    fn new(source: impl Source + 'static) -> Pipeline {
        Pipeline { source: Arc::new(source), calls: Vec::new() }
    }

    fn joined(pipelines: &[Pipeline]) -> Result<Pipeline> {
        let sources = pipelines.iter().map(|pipeline| Arc::clone(&pipeline.source)).collect();
        Ok(Pipeline::new(Concat::new(sources)?))
    }

    fn part(&self, weight: Option<f64>) -> PartOptions {
        let shards = self.source.shards().len() as u64;
        PartOptions { shards, calls: self.calls.clone(), weight }
    }

    fn with(mut self, call: Call) -> Pipeline {
        self.calls.push(call);
        self
    }
}

/// The order of samples.
impl Pipeline {
    /// All samples in another order in each epoch, by a seed; or only within a buffer.
    pub fn shuffle(self, shuffle: impl Into<ShuffleOptions>) -> Pipeline {
        self.with(Call::Shuffle(shuffle.into()))
    }

    /// The part of one rank.
    pub fn shard(self, shard: ShardOptions) -> Pipeline {
        self.with(Call::Shard(shard))
    }

    /// Some shards at a time, a few records of each in turn.
    pub fn interleave(self, interleave: InterleaveOptions) -> Pipeline {
        self.with(Call::Interleave(interleave))
    }

    /// The first samples.
    pub fn take(self, samples: u64) -> Pipeline {
        self.with(Call::Take(TakeOptions { samples }))
    }

    /// All but the first samples.
    pub fn skip(self, samples: u64) -> Pipeline {
        self.with(Call::Skip(SkipOptions { samples }))
    }

    /// Several passes in one epoch.
    pub fn repeat(self, times: u64) -> Pipeline {
        self.with(Call::Repeat(RepeatOptions { times }))
    }
}

/// What is done to a sample.
impl Pipeline {
    /// The fields of a record that are wanted.
    pub fn parse(self, fields: impl Into<Vec<Wanted>>) -> Pipeline {
        self.with(Call::Parse(ParseOptions { fields: fields.into() }))
    }

    /// Keeps the samples that fit: `col("label").lt(5) & length("tokens").gt_eq(16)`.
    pub fn filter(self, predicate: Predicate<Operand>) -> Pipeline {
        self.with(Call::Filter(FilterOptions { predicate }))
    }

    /// Samples of similar length or value come together.
    pub fn bucket(self, bucket: BucketOptions) -> Pipeline {
        self.with(Call::Bucket(bucket))
    }

    /// Bytes become an image, of rows, columns and channels.
    pub fn decode(self, decode: DecodeOptions) -> Pipeline {
        self.with(Call::Decode(decode))
    }

    /// Gives the image another size: of the shorter side (`256`), or of both (`(224, 320)`, height first).
    pub fn resize(self, resize: impl Into<ResizeOptions>) -> Pipeline {
        self.with(Call::Resize(resize.into()))
    }

    /// Cuts out the middle.
    pub fn center_crop(self, size: impl Into<Sides>) -> Pipeline {
        self.with(Call::CenterCrop(CenterCropOptions { size: size.into() }))
    }

    /// Cuts out a random part.
    pub fn random_crop(self, crop: impl Into<RandomCropOptions>) -> Pipeline {
        self.with(Call::RandomCrop(crop.into()))
    }

    /// Cuts out a random part of random size and proportion, and resizes it.
    pub fn random_resized_crop(self, crop: impl Into<RandomResizedCropOptions>) -> Pipeline {
        self.with(Call::RandomResizedCrop(crop.into()))
    }

    /// Mirrors the image with this probability.
    pub fn flip(self, probability: f64) -> Pipeline {
        self.with(Call::Flip(FlipOptions { p: probability }))
    }

    /// Keeps samples for later epochs: their bytes, or the image if it comes after `decode`. It changes no value.
    pub fn cache(self, cache: CacheOptions) -> Pipeline {
        self.with(Call::Cache(cache))
    }

    /// Numbers become float32; those of the image from 0 to 1, minus `mean`, divided by `std`.
    pub fn to_float(self, to_float: ToFloatOptions) -> Pipeline {
        self.with(Call::ToFloat(to_float))
    }

    /// Numbers become another type.
    pub fn cast(self, cast: impl Into<CastOptions>) -> Pipeline {
        self.with(Call::Cast(cast.into()))
    }
}

/// The end.
impl Pipeline {
    /// Makes batches of this many samples.
    pub fn batch(self, batch: impl Into<BatchOptions>) -> Pipeline {
        self.with(Call::Batch(batch.into()))
    }

    /// The loader, with budgets that suit the machine. A bad sample ends the epoch with its error.
    ///
    /// # Errors
    /// Refuses wrong arguments of any call, and calls that cannot follow each other.
    pub fn loader(self) -> Result<Loader> {
        self.loader_with(LoaderOptions::default())
    }

    /// The loader, with these budgets and what to do about faults.
    ///
    /// # Errors
    /// As `loader`.
    pub fn loader_with(self, options: LoaderOptions) -> Result<Loader> {
        let Pipeline { source, calls } = self.with(Call::Loader(Box::new(options)));
        let settings = Settings::new(&calls, &loader::given(&*source)).map_err(with_rust_hint)?;
        Loader::new(source, settings).map_err(with_rust_hint)
    }
}

/// The general hint for a wrong argument is for Python.
fn with_rust_hint(error: Error) -> Error {
    let is_general = error.hint() == Kind::InvalidArgument.hint();
    if is_general { error.with_hint("see the documentation of feedline::Pipeline") } else { error }
}
