//! The pipeline from Rust: a folder of images becomes batches.
//!
//! ```text
//! cargo run --release -p feedline-core --features testing --example batches [FOLDER]
//! ```
//! Without a folder, some photographs are made in a temporary one.
#![allow(clippy::print_stdout, reason = "a program that prints its result")]

use feedline_core::config::{Given, Settings};
use feedline_core::error::{Error, Kind, Result};
use feedline_core::loader::Loader;
use feedline_core::source::folder::Folder;
use feedline_core::sys::file;
use feedline_core::testing::photos::photo_jpeg;
use std::path::PathBuf;
use std::sync::Arc;

fn main() -> Result<()> {
    let folder = match std::env::args_os().nth(1) {
        Some(folder) => PathBuf::from(folder),
        None => make_photographs()?,
    };
    let source = Arc::new(Folder::images(&folder)?);
    let config = r#"[{"call": "shuffle", "seed": 7}, {"call": "decode"}, {"call": "resize", "size": 256},
                    {"call": "center_crop", "size": 224}, {"call": "to_float", "layout": "CHW"},
                    {"call": "batch", "size": 8}, {"call": "loader", "faults": "skip"}]"#;
    let loader = Loader::new(source, Settings::parse(config, &Given::Files)?)?;
    for batch in loader.epoch()? {
        let batch = batch?;
        let images = batch.get("image").and_then(|column| column.shape());
        let labels: Vec<i64> = batch
            .bytes("label")
            .map(|bytes| {
                bytes.as_chunks().0.iter().map(|label| i64::from_ne_bytes(*label)).collect()
            })
            .unwrap_or_default();
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
