//! `feedline convert`: converts an image folder to shards, and shards to an image folder.

mod names;
mod to_folder;
mod to_shards;

use clap::{Args, ValueEnum};
use feedline_core::error::{Error, Kind, Result};
use feedline_core::format::Packing;
use feedline_core::sample::shown;
use feedline_core::source::folder::Folder;
use feedline_core::sys::atomic_file::Existing;
use feedline_core::sys::file;
use feedline_core::sys::limits::processors;
use std::path::{Path, PathBuf};

use crate::dataset::{Format, Paths, Reading};
use to_folder::ToFolder;
use to_shards::{Holder, ToShards};

/// Converts an image folder to TFRecord or tar shards, or such shards to an image folder.
///
/// Files are copied unchanged; nothing is decoded. A TFRecord record has the features image_raw (the file), label (the
/// number of its class) and name (its path in the folder). A tar sample has two members: KEY.jpg, or another image
/// extension, and KEY.cls; the key is the path without its extension, with the dots of the name replaced by
/// underscores. The class names are in classes.txt beside the shards and name the class folders on the way back;
/// without that file, the class folders are numbered.
///
/// Records are in the order of the folder, so a record has the index that its file has in fl.images; --shuffle shuffles
/// them, for readers that cannot shuffle.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    feedline convert photos/ shards/ --to tfrecord\n  \
    feedline convert photos/ shards/ --to tar --shards 16      shards/photos-00000-of-00016.tar ...\n  \
    feedline convert photos/ shards/ --to tar --compress zstd  compressed: .tar.zst\n  \
    feedline convert \"shards/*.tar\" back/ --to folder         back/cat/1.jpg ...\n\n\
    Exit codes: 0 good, 2 could not run. Files are complete or absent, even if the command is killed.")]
pub(crate) struct Convert {
    /// An image folder, with a sub-folder for each class; or shards: a file, a folder or a pattern
    #[arg(value_name = "SOURCE")]
    source: PathBuf,

    /// The folder to write to
    #[arg(value_name = "TARGET")]
    target: PathBuf,

    /// The format to convert to
    #[arg(long, value_name = "KIND")]
    to: To,

    /// Number of shards [default: one for every 5000 samples]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=99_999))]
    shards: Option<u64>,

    /// Compression of the shards [default: none]
    #[arg(long, value_name = "HOW")]
    compress: Option<Compress>,

    /// Prefix of the shard names [default: the name of the folder]
    #[arg(long, value_name = "NAME")]
    prefix: Option<String>,

    /// Shuffle the samples with this seed
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,

    /// Overwrite existing files
    #[arg(long)]
    force: bool,

    /// Number of threads that read and write [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    #[command(flatten)]
    reading: Reading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum To {
    Tfrecord,
    Tar,
    Folder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compress {
    Gzip,
    Zstd,
}

impl Convert {
    pub(crate) fn run(&self) -> Result<i32> {
        match self.to {
            To::Tfrecord => self.make_shards(Holder::Tfrecord),
            To::Tar => self.make_shards(Holder::Tar),
            To::Folder => self.make_folder(),
        }
    }

    fn make_shards(&self, holder: Holder) -> Result<i32> {
        if !file::is_folder(&self.source) {
            let message = format!("{} is not an image folder", shown(&self.source));
            return Err(Error::new(Kind::InvalidSource, message)
                .with_hint("give a folder with a sub-folder for each class"));
        }
        let packing = match self.compress {
            None => Packing::Plain,
            Some(Compress::Gzip) => Packing::Gzip,
            Some(Compress::Zstd) => Packing::Zstd,
        };
        let converted = ToShards {
            folder: Folder::images(&self.source)?,
            root: self.source.clone(),
            target: self.target.clone(),
            prefix: self.prefix()?,
            holder,
            packing,
            shards: self.shards,
            shuffle: self.shuffle,
            existing: self.existing(),
        };
        converted.run(self.threads())?;
        Ok(0)
    }

    fn make_folder(&self) -> Result<i32> {
        for (option, is_given) in [
            ("--shards", self.shards.is_some()),
            ("--compress", self.compress.is_some()),
            ("--prefix", self.prefix.is_some()),
            ("--shuffle", self.shuffle.is_some()),
        ] {
            if is_given {
                let message = format!("{option} applies to shards, and --to folder writes none");
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint(format!("remove {option}")));
            }
        }
        let paths = Paths { paths: vec![self.source.clone()], reading: self.reading.clone() };
        let mut found = paths.find()?.shards;
        let chosen = match (found.remove(&Format::Tfrecord), found.remove(&Format::Tar)) {
            (Some(paths), None) => Some((Format::Tfrecord, paths)),
            (None, Some(paths)) => Some((Format::Tar, paths)),
            (Some(_), Some(_)) => {
                let message = format!("{} has both TFRecord and tar shards", shown(&self.source));
                return Err(Error::new(Kind::InvalidSource, message).with_hint(
                    "select one format with a quoted pattern, such as \"shards/*.tar\"",
                ));
            }
            (None, None) => None,
        };
        let Some((format, paths)) = chosen else {
            let message = format!("{} has no TFRecord or tar shards", shown(&self.source));
            return Err(Error::new(Kind::InvalidSource, message)
                .with_hint("give shards that feedline convert has written"));
        };
        let container = self.reading.container(format, &paths)?;
        let converted =
            ToFolder { paths, container, target: self.target.clone(), existing: self.existing() };
        converted.run(self.threads())?;
        Ok(0)
    }

    fn prefix(&self) -> Result<String> {
        let prefix = match &self.prefix {
            Some(prefix) => prefix.clone(),
            None => {
                let whole = std::path::absolute(&self.source).unwrap_or(self.source.clone());
                whole.file_name().map_or("shard".into(), |name| name.to_string_lossy().into_owned())
            }
        };
        if prefix.is_empty() || prefix.starts_with('.') || prefix.contains(['/', '\\', '\0']) {
            return Err(Error::new(
                Kind::InvalidArgument,
                format!("--prefix cannot be {prefix:?}"),
            )
            .with_hint("give a part of a file name, such as --prefix train"));
        }
        Ok(prefix)
    }

    fn existing(&self) -> Existing {
        if self.force { Existing::Replaced } else { Existing::Stays }
    }

    fn threads(&self) -> usize {
        self.threads.map_or_else(processors, usize::from)
    }
}

/// The target exists, and --force is not set.
fn exists(path: &Path) -> Error {
    Error::new(Kind::InvalidArgument, format!("{} exists already", shown(path)))
        .with_hint("name another target, or write over it with --force")
}

/// A file could not be written.
fn write_error(path: &Path, error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::AlreadyExists {
        return exists(path);
    }
    Error::io(Kind::InvalidArgument, format!("writing {}", shown(path)), error)
        .with_hint("give a writable target with enough free space")
}
