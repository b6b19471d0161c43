//! `feedline convert`: shards of an image folder, and an image folder of shards.

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
use feedline_core::sys::thread::processors;
use std::path::{Path, PathBuf};

use crate::dataset::{Format, Paths, Reading};
use to_folder::ToFolder;
use to_shards::{Holder, ToShards};

/// Makes TFRecord or tar shards of an image folder, or an image folder of such shards.
///
/// The files are copied as they are, nothing is decoded. A record of a TFRecord has the features image_raw
/// (the file), label (the number of its class) and name (its path in the folder). A sample of a tar has two
/// members: KEY.jpg, or whatever the file is, and KEY.cls; the key is the path without its extension, in which
/// dots of the name become underscores. The names of the classes are in classes.txt beside the shards, and
/// name the class folders on the way back; without it, they are named by numbers.
///
/// Records are in the order of the folder, so that a record has the number that its file has for fl.images;
/// --shuffle mixes them, for readers that cannot shuffle.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    feedline convert photos/ shards/ --to tfrecord\n  \
    feedline convert photos/ shards/ --to tar --shards 16      shards/photos-00000-of-00016.tar ...\n  \
    feedline convert photos/ shards/ --to tar --compress zstd  compressed: .tar.zst\n  \
    feedline convert \"shards/*.tar\" back/ --to folder         back/cat/1.jpg ...\n\n\
    Exit codes: 0 good, 2 could not run. Whatever ends it, only whole files are there.")]
pub(crate) struct Convert {
    /// An image folder, with a sub-folder for each class; or shards, by a file, a folder or a pattern
    #[arg(value_name = "SOURCE")]
    source: PathBuf,

    /// The folder to write to
    #[arg(value_name = "TARGET")]
    target: PathBuf,

    /// What to make
    #[arg(long, value_name = "KIND")]
    to: To,

    /// How many shards to make; one for every 5000 samples, if nothing is said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=99_999))]
    shards: Option<u64>,

    /// How shards are compressed; not at all, if nothing is said
    #[arg(long, value_name = "HOW")]
    compress: Option<Compress>,

    /// What the names of shards begin with; the name of the folder, if nothing is said
    #[arg(long, value_name = "NAME")]
    prefix: Option<String>,

    /// Mix the samples by this seed
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,

    /// Write over what is there
    #[arg(long)]
    force: bool,

    /// How many threads read and write; as many as there are processors, if nothing is said
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
                .with_hint("shards are made of a folder with a sub-folder for each class"));
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
                let message = format!("{option} is about shards, and --to folder writes none");
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint(format!("leave {option} out")));
            }
        }
        let paths = Paths { paths: vec![self.source.clone()], reading: self.reading.clone() };
        let mut found = paths.find()?.shards;
        let chosen = match (found.remove(&Format::Tfrecord), found.remove(&Format::Tar)) {
            (Some(paths), None) => Some((Format::Tfrecord, paths)),
            (None, Some(paths)) => Some((Format::Tar, paths)),
            (Some(_), Some(_)) => {
                let message = format!("{} has TFRecord and tar shards", shown(&self.source));
                return Err(Error::new(Kind::InvalidSource, message)
                    .with_hint("name one kind by a pattern in quotes, such as \"shards/*.tar\""));
            }
            (None, None) => None,
        };
        let Some((format, paths)) = chosen else {
            let message = format!("{} has no TFRecord or tar shards", shown(&self.source));
            return Err(Error::new(Kind::InvalidSource, message)
                .with_hint("a folder is made of shards as feedline convert makes them"));
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

/// Something is there already that would be written over.
fn exists(path: &Path) -> Error {
    Error::new(Kind::InvalidArgument, format!("{} exists already", shown(path)))
        .with_hint("name another target, or write over it with --force")
}

/// A file could not be written.
fn unwritten(path: &Path, error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::AlreadyExists {
        return exists(path);
    }
    Error::io(Kind::InvalidArgument, format!("writing {}", shown(path)), error)
        .with_hint("name a target that can be written and has room")
}
