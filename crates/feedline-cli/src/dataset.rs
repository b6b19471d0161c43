//! Resolves the paths on a command line: which files they match, and the format of each file.

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

/// File format of a shard.
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
    /// Its name, to be used before a noun.
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

/// The data set arguments that the commands share.
#[derive(Debug, Args)]
pub(crate) struct Paths {
    /// Files, folders, or quoted patterns such as "data/*.tfrecord"
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// How files are read.
#[derive(Clone, Debug, Args)]
pub(crate) struct Reading {
    /// Format of the files [default: determined by their names]
    #[arg(long = "as", value_name = "KIND")]
    pub(crate) kind: Option<Format>,

    /// Delimiter of a CSV file
    #[arg(long, value_name = "CHARACTER", default_value = ",", value_parser = delimiter)]
    pub(crate) delimiter: u8,

    /// Type of the numbers in a token file, such as uint16
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    pub(crate) dtype: Option<Dtype>,
}

impl Default for Reading {
    fn default() -> Reading {
        Reading { kind: None, delimiter: b',', dtype: None }
    }
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
        [b'"' | b'\n' | b'\r'] => Err("a quote or a line break cannot be a delimiter".into()),
        [byte] if byte.is_ascii() => Ok(*byte),
        _ => Err("give one ASCII character".into()),
    }
}

impl Reading {
    /// How records of such files are framed. The columns of a CSV are those of the first file that has any.
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
                .with_hint("use feedline show or feedline verify")),
        }
    }

    /// Determines the format of a file.
    pub(crate) fn file_format(&self, path: &Path) -> Result<FileFormat> {
        let format = match self.kind {
            Some(format) => Some(FileFormat::Shard(format)),
            None => by_name(path).or_else(|| by_first_bytes(path)).or_else(|| {
                // Only token files need a dtype.
                self.dtype.map(|_| FileFormat::Shard(Format::Tokens))
            }),
        };
        format.ok_or_else(|| {
            let message = format!("the format of {} is not clear from its name", shown(path));
            Error::new(Kind::InvalidSource, message)
                .with_hint("give the format: --as tfrecord, tar, jsonl, csv, tsv or tokens")
        })
    }
}

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Shard(Format),
    Image,
}

/// All files found, each once, in the order in which a loader reads them.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) shards: BTreeMap<Format, Vec<PathBuf>>,
    /// Folders given as arguments, with all images below them.
    pub(crate) folders: Vec<(PathBuf, Vec<PathBuf>)>,
    /// Images given as arguments.
    pub(crate) images: Vec<PathBuf>,
    /// Files in folders that are not data, judging by their names.
    pub(crate) skipped: u64,
}

impl Paths {
    /// Finds all files that the paths match.
    pub(crate) fn find(&self) -> Result<Found> {
        let mut found = Found::default();
        for path in &self.paths {
            if file::is_folder(path) {
                self.look_into(path, &mut found)?;
            } else if path.exists() {
                self.take(path.clone(), &mut found)?;
            } else {
                for path in matching_files(path)? {
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
        match self.reading.file_format(&path)? {
            FileFormat::Shard(format) => found.shards.entry(format).or_default().push(path),
            FileFormat::Image => found.images.push(path),
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
                let message = format!(
                    "{} is reached through a link to one of its parent folders",
                    shown(&folder)
                );
                return Err(Error::new(Kind::InvalidSource, message).with_hint("remove the link"));
            }
            above.push(identity);
            for entry in file::list(&folder).map_err(|error| unreadable(&folder, error))? {
                if is_hidden(&entry.path) {
                    continue;
                }
                match entry.kind {
                    EntryKind::Folder => open.push((entry.path, above.clone())),
                    EntryKind::Other => found.skipped += 1,
                    // A broken link is reported when it is read.
                    EntryKind::File | EntryKind::BrokenLink => {
                        match self.reading.file_format(&entry.path) {
                            // Arrays beside other data count only if --dtype or --as asks for them.
                            Ok(FileFormat::Shard(Format::Tokens))
                                if self.reading.kind.is_none() && self.reading.dtype.is_none() =>
                            {
                                found.skipped += 1;
                            }
                            Ok(FileFormat::Shard(format)) => {
                                found.shards.entry(format).or_default().push(entry.path);
                            }
                            Ok(FileFormat::Image) => images.push(entry.path),
                            Err(_) if is_index(&entry.path) => {}
                            Err(_) => found.skipped += 1,
                        }
                    }
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

/// The files that a pattern or braces match.
fn matching_files(path: &Path) -> Result<Vec<PathBuf>> {
    let found = paths::expand(&[path.to_owned()])?;
    match found.iter().find(|path| !path.exists()) {
        Some(missing) => Err(missing_file(missing)),
        None => Ok(found),
    }
}

/// The error for a path that does not exist.
pub(crate) fn missing_file(path: &Path) -> Error {
    Error::new(Kind::InvalidSource, format!("{} does not exist", shown(path)))
        .with_hint("check the path; relative paths start at the working directory")
}

/// Extensions of compressed files. Unsupported ones are included, so that the error can name them.
const PACKED: [&str; 11] =
    [".gz", ".zst", ".zlib", ".xz", ".bz2", ".bz", ".lz4", ".lzma", ".lz", ".sz", ".z"];

/// Determines the format from the last extension, which a compression or a shard number may follow.
fn by_name(path: &Path) -> Option<FileFormat> {
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
        _ => return EXTENSIONS.contains(&extension).then_some(FileFormat::Image),
    };
    Some(FileFormat::Shard(format))
}

/// A name without a trailing `-00003-of-00016`.
fn without_number(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.rsplit_once("-of-").filter(|(_, of)| is_number(of));
    let parts = parts.and_then(|(rest, _)| rest.rsplit_once('-'));
    parts.filter(|(_, number)| is_number(number)).map_or(name, |(stem, _)| stem)
}

/// Determines the format of files without an extension, such as `train-00003-of-00016`.
fn by_first_bytes(path: &Path) -> Option<FileFormat> {
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
    format.map(FileFormat::Shard)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn is_index(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "flindex")
}

/// Location of a file, for an error.
pub(crate) fn at(path: &Path) -> Option<Location> {
    Some(Location::file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_found_by_name_compressed_numbered_or_not() {
        for (name, file_format) in [
            ("a.tfrecord", Some(FileFormat::Shard(Format::Tfrecord))),
            ("train.TFRecords.gz", Some(FileFormat::Shard(Format::Tfrecord))),
            ("train.tfrecord-00003-of-00016", Some(FileFormat::Shard(Format::Tfrecord))),
            ("train-00003-of-00016.tfrecord.zst", Some(FileFormat::Shard(Format::Tfrecord))),
            ("a.tar.gz", Some(FileFormat::Shard(Format::Tar))),
            ("a.tgz", Some(FileFormat::Shard(Format::Tar))),
            ("a.tar.xz", Some(FileFormat::Shard(Format::Tar))),
            ("a.tbz2", Some(FileFormat::Shard(Format::Tar))),
            ("a.tar.lz4", Some(FileFormat::Shard(Format::Tar))),
            ("a.jsonl.zst", Some(FileFormat::Shard(Format::Jsonl))),
            ("a.csv", Some(FileFormat::Shard(Format::Csv))),
            ("a.tsv", Some(FileFormat::Shard(Format::Tsv))),
            ("a.npy", Some(FileFormat::Shard(Format::Tokens))),
            ("a.JPEG", Some(FileFormat::Image)),
            ("a.jpg.gz.txt", None),
            (".tar", None),
            ("train-00003-of-00016", None),
            ("README", None),
        ] {
            assert_eq!(by_name(Path::new(name)), file_format, "{name}");
        }
    }

    #[test]
    fn a_shard_without_an_extension_is_known_by_its_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = Vec::new();
        tfrecord::write(b"record", &mut bytes);
        let path = folder.path().join("train-00003-of-00016");
        file::write(&path, &bytes).unwrap();
        assert_eq!(by_first_bytes(&path), Some(FileFormat::Shard(Format::Tfrecord)));
        file::write(&path, b"something else").unwrap();
        assert_eq!(by_first_bytes(&path), None);
    }
}
