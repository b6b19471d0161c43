//! A folder of images becomes batches.
//!
//! ```text
//! cargo run --release -p feedline --example batches [FOLDER]
//! ```
//! Without a folder, some photographs are made in a temporary one.
#![allow(clippy::print_stdout, reason = "a program that prints its result")]

use feedline::{
    Action, DecodeOptions, Error, FaultPolicy, Kind, LoaderOptions, Pipeline, Result,
    ToFloatOptions,
};
use feedline_core::sys::file;
use feedline_core::testing::photos::photo_jpeg;
use std::path::PathBuf;

fn main() -> Result<()> {
    let folder = match std::env::args_os().nth(1) {
        Some(folder) => PathBuf::from(folder),
        None => make_photographs()?,
    };
    let faults = FaultPolicy { action: Action::Skip, ..FaultPolicy::default() };
    let loader = Pipeline::images(folder)?
        .shuffle(7)
        .decode(DecodeOptions::default())
        .resize(256)
        .center_crop(224)
        .to_float(ToFloatOptions::default())
        .batch(8)
        .loader_with(LoaderOptions { faults, ..Default::default() })?;
    for batch in loader.epoch()? {
        let batch = batch?;
        let images = batch.get("image").and_then(|column| column.shape());
        let labels: Vec<i64> = batch.values("label").unwrap_or_default();
        println!("{images:?} labels {labels:?}");
    }
    println!("{}", loader.report());
    Ok(())
}

fn make_photographs() -> Result<PathBuf> {
    let folder = std::env::temp_dir().join("feedline-example");
    for number in 0..32 {
        let path =
            folder.join(["coast", "forest"][number as usize % 2]).join(format!("{number}.jpg"));
        file::write(&path, &photo_jpeg(number, 320, 240, 90))
            .map_err(|error| Error::io(Kind::InvalidSource, "writing a photograph", error))?;
    }
    Ok(folder)
}
