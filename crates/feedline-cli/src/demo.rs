//! `feedline demo`: generates photographs from a seed, some of them bad, and loads them for two epochs.

use clap::Args;
use feedline_core::config::{
    Call, DecodeOptions, FlipOptions, Given, LoaderOptions, Settings, fault_policy,
};
use feedline_core::decode::{Mode, png};
use feedline_core::error::{Error, Kind, Result};
use feedline_core::loader::Loader;
use feedline_core::sample::Location;
use feedline_core::source::Source;
use feedline_core::source::folder::Folder;
use feedline_core::sys::{clock, file};
use feedline_core::testing::photos::{photo, photo_jpeg};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::report::{Progress, print_note, print_result};

const CLASSES: [&str; 3] = ["coast", "forest", "meadow"];
const EPOCHS: u64 = 2;
const SIZE: (usize, usize) = (256, 192);

/// Generates a small data set with some bad files, loads it for two epochs, and reports.
///
/// The photographs are generated from a seed; one is truncated, one is empty, one is a text file with the name of an
/// image, and one has lost its middle. Feedline skips these, names them, and accounts for every sample.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Number of photographs to generate
    #[arg(long, default_value_t = 240, value_parser = clap::value_parser!(u64).range(12..=100_000))]
    samples: u64,

    /// Seed of the photographs and of their order
    #[arg(long, default_value_t = 7)]
    seed: u64,

    /// Keep the photographs in this folder, which must not exist yet
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,

    /// What to do about bad files, such as retry=2,action=replace,limit=10,quarantine=bad.jsonl
    #[arg(long, value_name = "POLICY", default_value = "action=skip,limit=0.2")]
    faults: String,
}

/// Content of a file in the data set.
#[derive(Clone, Copy)]
enum Photograph {
    Good,
    GoodPng,
    Truncated,
    Empty,
    Text,
    WithoutMiddle,
}

impl Photograph {
    fn is_bad(self) -> bool {
        !matches!(self, Photograph::Good | Photograph::GoodPng)
    }
}

impl Demo {
    pub(crate) fn run(&self) -> Result<i32> {
        let policy = fault_policy(&self.faults)?;
        let temporary = tempfile::tempdir().map_err(|error| {
            Error::io(Kind::InvalidSource, "creating a temporary folder", error)
        })?;
        let folder = match &self.keep {
            None => temporary.path().join("photographs"),
            Some(folder) if folder.exists() => {
                let message = format!("{:?} exists already", folder.display().to_string());
                return Err(Error::new(Kind::InvalidSource, message)
                    .with_hint("give a folder that does not exist, or remove --keep"));
            }
            Some(folder) => folder.clone(),
        };
        let bad = self.make(&folder)?;
        let source = Arc::new(Folder::images(&folder)?);
        print_note(format_args!(
            "{} photographs in {} classes, {} of them bad",
            source.len(),
            CLASSES.len(),
            bad
        ));
        let calls = [
            Call::Shuffle(self.seed.into()),
            Call::Decode(DecodeOptions::default()),
            Call::Resize(160.into()),
            Call::RandomResizedCrop(128.into()),
            Call::Flip(FlipOptions::default()),
            Call::Batch(16.into()),
            Call::Loader(Box::new(LoaderOptions { faults: policy, ..Default::default() })),
        ];
        let loader = Loader::new(source, Settings::new(&calls, &Given::Files)?)?;
        for epoch in 0..EPOCHS {
            let mut progress = Progress::new(&format!("epoch {}", epoch + 1), loader.len());
            let start = clock::now();
            let (mut samples, mut batches) = (0, 0_u64);
            for batch in loader.epoch()? {
                samples += batch?.len();
                batches += 1;
                progress.add(1);
            }
            progress.finish();
            let rate = samples as f64 / start.elapsed().as_secs_f64().max(1e-9);
            print_result(format_args!(
                "epoch {}: {batches} batches, {samples} samples, {rate:.0} samples/s",
                epoch + 1
            ))?;
        }
        let report = loader.report();
        print_result(format_args!("\n{report}"))?;
        let accounted = report.delivered + report.skipped == report.expected;
        let all_named = report.faults.len() as u64 == bad;
        if accounted && all_named {
            print_result(format_args!("\nall {} samples accounted for", report.expected))?;
            Ok(0)
        } else {
            print_result(format_args!(
                "\n{bad} bad files were written, {} were found",
                report.faults.len()
            ))?;
            Ok(1)
        }
    }

    /// Spreads one file of each bad content over the data set.
    fn kind(&self, number: u64) -> Photograph {
        let at = |share: u64| self.samples * share / 12;
        match number {
            number if number == at(2) => Photograph::GoodPng,
            number if number == at(3) => Photograph::Truncated,
            number if number == at(5) => Photograph::Empty,
            number if number == at(7) => Photograph::Text,
            number if number == at(9) => Photograph::WithoutMiddle,
            _ => Photograph::Good,
        }
    }

    /// Writes the data set and returns the number of bad files.
    fn make(&self, folder: &Path) -> Result<u64> {
        let (width, height) = SIZE;
        let mut progress = Progress::new("making photographs", self.samples);
        let mut bad = 0;
        for number in 0..self.samples {
            let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(number);
            let class = CLASSES[number as usize % CLASSES.len()];
            let mut bytes = photo_jpeg(seed, width, height, 90);
            let mut name = format!("{number:05}.jpg");
            match self.kind(number) {
                Photograph::Good => {}
                Photograph::GoodPng => {
                    name = format!("{number:05}.png");
                    bytes = png::encode(&photo(seed, width, height), width, height, Mode::Rgb)?;
                }
                Photograph::Truncated => bytes.truncate(bytes.len() / 2),
                Photograph::Empty => bytes.clear(),
                Photograph::Text => bytes = b"this is not a photograph\n".to_vec(),
                Photograph::WithoutMiddle => {
                    bytes.drain(bytes.len() / 3..bytes.len() * 2 / 3);
                }
            }
            bad += u64::from(self.kind(number).is_bad());
            let path = folder.join(class).join(name);
            file::write(&path, &bytes).map_err(|error| {
                Error::io(Kind::InvalidSource, "writing a photograph", error)
                    .at(Some(Location::file(&path)))
            })?;
            progress.add(1);
        }
        progress.finish();
        Ok(bad)
    }
}
