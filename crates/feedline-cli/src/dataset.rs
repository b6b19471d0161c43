//! What the paths on a command line mean: which files there are, and what each of them is.

use clap::{Args, ValueEnum};
use feedline_core::error::{Error, Kind, Result};
use feedline_core::format::{Container, tfrecord};
use feedline_core::sample::{Dtype, Location, shown};
use feedline_core::source::EXTENSIONS;
use feedline_core::source::paths;
use feedline_core::source::records::columns_of_first;
use feedline_core::sys::file::{self, EntryKind, Handle};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What records lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Format {
    Tfrecord,
    Tar,
    Jsonl,
    Csv,
    Tsv,
    Tokens,
}

impl Format {
    /// Its name before a noun.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Tfrecord => "TFRecord",
            Format::Tar => "tar",
            Format::Jsonl => "JSON lines",
            Format::Csv => "CSV",
            Format::Tsv => "TSV",
            Format::Tokens => "token",
        }
    }
}

/// Which data is meant, in the words of all commands that look at some.
#[derive(Debug, Args)]
pub(crate) struct Paths {
    /// Files, folders, or patterns in quotes such as "data/*.tfrecord"
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// How files are read.
#[derive(Clone, Debug, Args)]
pub(crate) struct Reading {
    /// What the files are, whatever their names say
    #[arg(long = "as", value_name = "KIND")]
    pub(crate) kind: Option<Format>,

    /// What stands between the values of a CSV file
    #[arg(long, value_name = "CHARACTER", default_value = ",", value_parser = delimiter)]
    pub(crate) delimiter: u8,

    /// The type of the numbers of a token file, such as uint16
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    pub(crate) dtype: Option<Dtype>,
}

fn dtype(typed: &str) -> std::result::Result<Dtype, String> {
    let known = Dtype::ALL.iter().copied().find(|dtype| dtype.name() == typed);
    known.ok_or_else(|| {
        let names: Vec<_> = Dtype::ALL.iter().map(|dtype| dtype.name()).collect();
        format!("give one of {}", names.join(", "))
    })
}

fn delimiter(typed: &str) -> std::result::Result<u8, String> {
    match typed.as_bytes() {
        [b'"' | b'\n' | b'\r'] => Err("a quote or the end of a line cannot be one".into()),
        [byte] if byte.is_ascii() => Ok(*byte),
        _ => Err("give one ASCII character".into()),
    }
}

impl Reading {
    /// What the records of such files lie in. The columns of a CSV are those of its first file that has any.
    pub(crate) fn container(&self, format: Format, paths: &[PathBuf]) -> Result<Container> {
        let rows = |delimiter| {
            let columns = columns_of_first(paths, delimiter)?;
            Ok(Container::Csv { delimiter, columns: columns.into() })
        };
        match format {
            Format::Tfrecord => Ok(Container::Tfrecord { check: true }),
            Format::Tar => Ok(Container::Tar),
            Format::Jsonl => Ok(Container::JsonLines),
            Format::Csv => rows(self.delimiter),
            Format::Tsv => rows(b'\t'),
            Format::Tokens => Err(Error::new(Kind::InvalidArgument, "token files have no records")
                .with_hint("look at them with feedline show or feedline verify")),
        }
    }

    /// What a file is.
    pub(crate) fn what(&self, path: &Path) -> Result<What> {
        let told = match self.kind {
            Some(format) => Some(What::Shard(format)),
            None => by_name(path).or_else(|| by_first_bytes(path)).or_else(|| {
                // Nothing but token files has numbers whose type must be said.
                self.dtype.map(|_| What::Shard(Format::Tokens))
            }),
        };
        told.ok_or_else(|| {
            let message = format!("the name of {} does not say what it is", shown(path));
            Error::new(Kind::InvalidSource, message)
                .with_hint("say it: --as tfrecord, tar, jsonl, csv, tsv or tokens")
        })
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Shard(Format),
    Image,
}

/// All that was found, each file once, in the order in which a loader would have it.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) shards: BTreeMap<Format, Vec<PathBuf>>,
    /// Folders that were named, with the images somewhere below them.
    pub(crate) folders: Vec<(PathBuf, Vec<PathBuf>)>,
    /// Images that were named themselves.
    pub(crate) images: Vec<PathBuf>,
    /// Files in folders that are no data by their names.
    pub(crate) passed: u64,
}

impl Paths {
    /// Looks for all files that are meant.
    pub(crate) fn find(&self) -> Result<Found> {
        let mut found = Found::default();
        for path in &self.paths {
            if file::is_folder(path) {
                self.look_into(path, &mut found)?;
            } else if path.exists() {
                self.take(path.clone(), &mut found)?;
            } else {
                for path in meant(path)? {
                    self.take(path, &mut found)?;
                }
            }
        }
        for list in found.shards.values_mut().chain([&mut found.images]) {
            list.sort_unstable();
            list.dedup();
        }
        Ok(found)
    }

    fn take(&self, path: PathBuf, found: &mut Found) -> Result<()> {
        match self.reading.what(&path)? {
            What::Shard(format) => found.shards.entry(format).or_default().push(path),
            What::Image => found.images.push(path),
        }
        Ok(())
    }

    fn look_into(&self, root: &Path, found: &mut Found) -> Result<()> {
        let unreadable = |folder: &Path, error| {
            Error::io(Kind::InvalidSource, format!("reading folder {}", shown(folder)), error)
                .with_hint("make the folder readable with chmod u+rx")
        };
        let mut images = Vec::new();
        let mut open = vec![(root.to_owned(), Vec::new())];
        while let Some((folder, mut above)) = open.pop() {
            let identity = file::identity(&folder).map_err(|error| unreadable(&folder, error))?;
            if above.contains(&identity) {
                let message = format!("{} leads back to a folder above it", shown(&folder));
                return Err(Error::new(Kind::InvalidSource, message).with_hint("remove the link"));
            }
            above.push(identity);
            for entry in file::list(&folder).map_err(|error| unreadable(&folder, error))? {
                if is_hidden(&entry.path) {
                    continue;
                }
                match entry.kind {
                    EntryKind::Folder => open.push((entry.path, above.clone())),
                    EntryKind::Other => found.passed += 1,
                    // A link to nothing is named when it is read.
                    EntryKind::File | EntryKind::BrokenLink => match self.reading.what(&entry.path)
                    {
                        // Arrays beside other data are not meant unless they are asked for.
                        Ok(What::Shard(Format::Tokens))
                            if self.reading.kind.is_none() && self.reading.dtype.is_none() =>
                        {
                            found.passed += 1;
                        }
                        Ok(What::Shard(format)) => {
                            found.shards.entry(format).or_default().push(entry.path);
                        }
                        Ok(What::Image) => images.push(entry.path),
                        Err(_) if is_index(&entry.path) => {}
                        Err(_) => found.passed += 1,
                    },
                }
            }
        }
        if !images.is_empty() {
            images.sort_unstable();
            found.folders.push((root.to_owned(), images));
        }
        Ok(())
    }
}

/// The files that patterns and braces stand for; what is none of these is not there.
fn meant(path: &Path) -> Result<Vec<PathBuf>> {
    let found = paths::expand(&[path.to_owned()])?;
    match found.iter().find(|path| !path.exists()) {
        Some(missing) => Err(missing_file(missing)),
        None => Ok(found),
    }
}

/// What is said of a file that is not there.
pub(crate) fn missing_file(path: &Path) -> Error {
    Error::new(Kind::InvalidSource, format!("{} is not there", shown(path)))
        .with_hint("check the path; relative ones begin at the working folder")
}

/// Extensions of compressed files. What is not supported is known too, so that it is named.
const PACKED: [&str; 11] =
    [".gz", ".zst", ".zlib", ".xz", ".bz2", ".bz", ".lz4", ".lzma", ".lz", ".sz", ".z"];

/// Told by the last extension, behind which there may be that of a compression, or the number of a shard.
fn by_name(path: &Path) -> Option<What> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let name = without_number(&name);
    let unpacked = PACKED.iter().find_map(|packed| name.strip_suffix(packed));
    let name = unpacked.map_or(name, without_number);
    let (stem, extension) = name.rsplit_once('.')?;
    if stem.is_empty() {
        return None;
    }
    let format = match extension {
        "tfrecord" | "tfrecords" | "tfrec" => Format::Tfrecord,
        "tar" | "tgz" | "tzst" | "txz" | "tbz2" | "tbz" => Format::Tar,
        "jsonl" | "ndjson" => Format::Jsonl,
        "csv" => Format::Csv,
        "tsv" => Format::Tsv,
        "npy" => Format::Tokens,
        _ => return EXTENSIONS.contains(&extension).then_some(What::Image),
    };
    Some(What::Shard(format))
}

/// A name without `-00003-of-00016` at its end.
fn without_number(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.rsplit_once("-of-").filter(|(_, of)| is_number(of));
    let parts = parts.and_then(|(rest, _)| rest.rsplit_once('-'));
    parts.filter(|(_, number)| is_number(number)).map_or(name, |(stem, _)| stem)
}

/// Of files whose name has no extension, as shards such as `train-00003-of-00016` have none.
fn by_first_bytes(path: &Path) -> Option<What> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    if without_number(&name).contains('.') {
        return None;
    }
    let mut first = [0; 512];
    let count = Handle::open(path).and_then(|handle| handle.read_at(&mut first, 0)).ok()?;
    let first = &first[..count];
    let is_tar = first.get(257..262) == Some(b"ustar");
    let format = match tfrecord::is_header(first) {
        true => Some(Format::Tfrecord),
        false => is_tar.then_some(Format::Tar),
    };
    format.map(What::Shard)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn is_index(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "flindex")
}

/// A place in an error.
pub(crate) fn at(path: &Path) -> Option<Location> {
    Some(Location::file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_names_compressed_numbered_or_not() {
        for (name, what) in [
            ("a.tfrecord", Some(What::Shard(Format::Tfrecord))),
            ("train.TFRecords.gz", Some(What::Shard(Format::Tfrecord))),
            ("train.tfrecord-00003-of-00016", Some(What::Shard(Format::Tfrecord))),
            ("train-00003-of-00016.tfrecord.zst", Some(What::Shard(Format::Tfrecord))),
            ("a.tar.gz", Some(What::Shard(Format::Tar))),
            ("a.tgz", Some(What::Shard(Format::Tar))),
            ("a.tar.xz", Some(What::Shard(Format::Tar))),
            ("a.tbz2", Some(What::Shard(Format::Tar))),
            ("a.tar.lz4", Some(What::Shard(Format::Tar))),
            ("a.jsonl.zst", Some(What::Shard(Format::Jsonl))),
            ("a.csv", Some(What::Shard(Format::Csv))),
            ("a.tsv", Some(What::Shard(Format::Tsv))),
            ("a.npy", Some(What::Shard(Format::Tokens))),
            ("a.JPEG", Some(What::Image)),
            ("a.jpg.gz.txt", None),
            (".tar", None),
            ("train-00003-of-00016", None),
            ("README", None),
        ] {
            assert_eq!(by_name(Path::new(name)), what, "{name}");
        }
    }

    #[test]
    fn a_shard_without_an_extension_is_told_by_its_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = Vec::new();
        tfrecord::write(b"record", &mut bytes);
        let path = folder.path().join("train-00003-of-00016");
        file::write(&path, &bytes).unwrap();
        assert_eq!(by_first_bytes(&path), Some(What::Shard(Format::Tfrecord)));
        file::write(&path, b"something else").unwrap();
        assert_eq!(by_first_bytes(&path), None);
    }
}
