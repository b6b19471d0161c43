//! `feedline show`: prints a record.

use clap::Args;
use feedline_core::decode::{self, ImageHeader, Options};
use feedline_core::error::{Error, Kind, Result};
use feedline_core::escape;
use feedline_core::format::example::{self, List};
use feedline_core::format::{Container, Packing, Type, npy, tar, text};
use feedline_core::sample::{Value, shown};
use feedline_core::source::index::Index;
use feedline_core::source::paths::check_local;
use feedline_core::source::walk::{WalkedRecord, walk_part};
use feedline_core::sys::file;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dataset::{FileFormat, Format, Reading, at, missing_file};
use crate::report::{bytes, counted, print_note, print_result};
use crate::shards::cache;
use crate::tokens;
use crate::verify::look::{Depth, Examiner};
use crate::verify::tally::Tally;

/// How many records, and how many bytes of them, are inspected to print the parse() call.
const LOOKED_AT: u64 = 100;
const MOST_BYTES: usize = 64 << 20;
/// How many values of a list are printed.
const VALUES: usize = 6;
/// How many characters of a text, and how many bytes of other data, are printed.
const CHARACTERS: usize = 60;
const BYTES: usize = 16;

/// Prints a record of a shard.
///
/// Prints the features of a TFRecord's Example, the members of a tar sample, a record of JSON lines or CSV, or the size
/// of an image. Without a number: the number of records and the first record; for a TFRecord also the parse() call that
/// reads all features.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    feedline show data/a.tfrecord            how many records, the first one, and how to parse it\n  \
    feedline show data/a.tfrecord:17         record 17, counted from 0 as in messages\n  \
    feedline show data/a.tar:0               the members of the first sample\n  \
    feedline show photos/cat/1.jpg           an image\n  \
    feedline show train.bin --dtype uint16   a file of tokens\n  \
    feedline show part-7 --as tfrecord       a file whose name does not show its format\n\n\
    Exit codes: 0 good, 1 the record is corrupt, 2 could not run.")]
pub(crate) struct Show {
    /// A file, optionally followed by a colon and the number of a record
    #[arg(value_name = "FILE[:N]")]
    record: OsString,

    #[command(flatten)]
    reading: Reading,
}

impl Show {
    pub(crate) fn run(&self) -> Result<i32> {
        let (path, number) = self.path_and_number()?;
        if file::is_folder(&path) {
            return Err(Error::new(Kind::InvalidSource, format!("{} is a folder", shown(&path)))
                .with_hint(format!(
                    "give a file, or verify the folder with feedline verify {}",
                    escape::path(&path)
                )));
        }
        let format = match self.reading.file_format(&path)? {
            FileFormat::Image => return picture_file(&path),
            FileFormat::Shard(Format::Tokens) => {
                return tokens::show(&path, number, self.reading.dtype);
            }
            FileFormat::Shard(format) => format,
        };
        let container = self.reading.container(format, std::slice::from_ref(&path))?;
        let index = Index::of(&path, &container, &cache())?;
        if let Some(number) = number
            && number >= index.len()
        {
            let has = counted(index.len(), "record", "records");
            let message = format!("there is no record {number}: {} has {has}", shown(&path));
            let hint = match index.len() {
                0 => "the shard is empty".into(),
                records => format!("give a number from 0 to {}", records - 1),
            };
            return Err(Error::new(Kind::InvalidSource, message).with_hint(hint));
        }
        let shard = OpenShard { path: &path, format, container, index };
        if number.is_none() {
            shard.about()?;
        }
        let code = shard.record(number.unwrap_or(0))?;
        if number.is_none() && format == Format::Tfrecord {
            shard.parse()?;
        }
        Ok(code)
    }

    /// An existing file whose name contains a colon takes precedence over a record number.
    fn path_and_number(&self) -> Result<(PathBuf, Option<u64>)> {
        let whole = PathBuf::from(&self.record);
        if whole.exists() {
            return Ok((whole, None));
        }
        match split(&self.record) {
            Some((path, number)) if path.exists() => match number.parse() {
                Ok(number) => Ok((path, Some(number))),
                Err(_) => {
                    let message = format!("{number:?} is not a record number");
                    Err(Error::new(Kind::InvalidArgument, message).with_hint(format!(
                        "feedline show {}:0 shows the first",
                        escape::path(&path)
                    )))
                }
            },
            Some(_) | None => {
                check_local(&self.record.to_string_lossy())?;
                Err(missing_file(&whole))
            }
        }
    }
}

/// What an image, or a record of a shard, contains now, in one line; or what is wrong with it.
pub(crate) fn examine(
    path: &Path,
    record: Option<u64>,
    reading: &Reading,
) -> std::result::Result<String, String> {
    let what = |error: Error| error.message().to_owned();
    let Some(number) = record else {
        let data = file::read_bytes(path)
            .map_err(|error| what(Error::io(Kind::Read, "reading the file", error)))?;
        let decoded = Examiner::default().picture(&data, Depth::Pixels, &mut Tally::default());
        return decoded.and_then(|()| picture(&data)).map_err(what);
    };
    let format = match reading.file_format(path).map_err(what)? {
        FileFormat::Image => return examine(path, None, reading),
        FileFormat::Shard(format) => format,
    };
    let container = reading.container(format, &[path.to_owned()]).map_err(what)?;
    let index = Index::of(path, &container, &cache()).map_err(what)?;
    if number >= index.len() {
        return Err(format!("there is no record {number}, the file has {}", index.len()));
    }
    let shard = OpenShard { path, format, container, index };
    let mut found = Err("the record was not read".to_owned());
    let range = number..number + 1;
    walk_part(&shard.index, path, &shard.container, range, &mut |seen| {
        found = shard.lines(&seen).and_then(|ShownRecord { lines, is_corrupt }| {
            let shown = lines.join("; ");
            if is_corrupt { Err(shown) } else { Ok(shown) }
        });
        false
    })
    .map_err(what)?;
    found
}

/// Splits at the last colon.
fn split(record: &OsStr) -> Option<(PathBuf, String)> {
    let bytes = record.as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':')?;
    let number = String::from_utf8_lossy(&bytes[colon + 1..]).into_owned();
    Some((PathBuf::from(OsStr::from_bytes(&bytes[..colon])), number))
}

/// Printed form of a record.
struct ShownRecord {
    lines: Vec<String>,
    /// Whether part of it cannot be read.
    is_corrupt: bool,
}

impl ShownRecord {
    fn good(lines: Vec<String>) -> ShownRecord {
        ShownRecord { lines, is_corrupt: false }
    }
}

struct OpenShard<'a> {
    path: &'a Path,
    format: Format,
    container: Container,
    index: Index,
}

impl OpenShard<'_> {
    fn about(&self) -> Result<()> {
        let corrupt = self.index.corrupt_spans().len() as u64;
        let records = counted(self.index.len() - corrupt, "record", "records");
        let packing = match self.index.packing {
            Packing::Plain => String::new(),
            packing @ (Packing::Gzip
            | Packing::Zlib
            | Packing::Zstd
            | Packing::Xz
            | Packing::Bzip2) => {
                format!(", {}", packing.name())
            }
        };
        print_result(format_args!(
            "{}: {}{packing}, {records}, {}",
            escape::path(self.path),
            self.format.name(),
            bytes(self.index.stamp.size)
        ))?;
        if corrupt > 0 {
            let corrupt_records = counted(corrupt, "corrupt record", "corrupt records");
            print_result(format_args!(
                "{corrupt_records}: see feedline verify {}",
                escape::path(self.path)
            ))?;
        }
        Ok(())
    }

    /// Prints a record and returns the exit code.
    fn record(&self, number: u64) -> Result<i32> {
        let (mut code, mut shown) = (0, Vec::new());
        walk_part(
            &self.index,
            self.path,
            &self.container,
            number..(number + 1).min(self.index.len()),
            &mut |seen| {
                shown.push(format!(
                    "record {number}, byte {}, {}",
                    seen.span.start,
                    bytes(seen.span.length)
                ));
                code = match self.lines(&seen) {
                    Ok(ShownRecord { lines, is_corrupt }) => {
                        shown.extend(lines.iter().map(|line| format!("  {line}")));
                        i32::from(is_corrupt)
                    }
                    Err(what) => {
                        shown.push(format!("  {what}"));
                        1
                    }
                };
                false
            },
        )?;
        shown.iter().try_for_each(print_result)?;
        Ok(code)
    }

    fn lines(&self, seen: &WalkedRecord<'_>) -> std::result::Result<ShownRecord, String> {
        let payload = seen.payload.as_ref().map_err(|error| error.message().to_owned())?;
        match &self.container {
            Container::Tfrecord { .. } => Ok(example_lines(payload)),
            Container::Tar => tar_lines(payload).map_err(|error| error.message().to_owned()),
            Container::JsonLines => Ok(json_lines(payload)),
            Container::Csv { delimiter, columns } => {
                csv_lines(payload, columns, *delimiter).map_err(|error| error.message().to_owned())
            }
            Container::Numbers { .. } => Ok(ShownRecord::good(vec![summary(payload).0])),
        }
    }

    /// Prints the call that parses the first records.
    fn parse(&self) -> Result<()> {
        let mut records: Vec<Vec<u8>> = Vec::new();
        let mut size = 0;
        walk_part(
            &self.index,
            self.path,
            &self.container,
            0..self.index.len().min(LOOKED_AT),
            &mut |seen| {
                if let Ok(payload) = seen.payload {
                    size += payload.len();
                    records.push(payload.to_vec());
                }
                size < MOST_BYTES
            },
        )?;
        let schema = example::schema(records.iter().map(Vec::as_slice));
        if schema.features.is_empty() {
            return Ok(());
        }
        let looked_at = counted(schema.records, "record", "records");
        print_note(format_args!("from the first {looked_at}:"));
        print_result(format_args!(
            "fl.tfrecord({:?}){}",
            self.path.display().to_string(),
            schema.python()
        ))
    }
}

fn picture_file(path: &Path) -> Result<i32> {
    let data = file::read_bytes(path)
        .map_err(|error| Error::io(Kind::Read, "reading the file", error).at(at(path)))?;
    let decoded = Examiner::default().picture(&data, Depth::Pixels, &mut Tally::default());
    match picture(&data) {
        Ok(picture) => {
            let size = bytes(data.len() as u64);
            let what = decoded.err().map(|error| format!(": {}", error.message()));
            let code = i32::from(what.is_some());
            print_result(format_args!(
                "{}: {picture}, {size}{}",
                escape::path(path),
                what.unwrap_or_default()
            ))?;
            Ok(code)
        }
        Err(error) => {
            print_result(format_args!("{}: {}", escape::path(path), error.message()))?;
            Ok(1)
        }
    }
}

/// Format and size of an image: "PNG 32 x 32".
fn picture(data: &[u8]) -> Result<String> {
    let header =
        ImageHeader::read(data, &Options { max_pixels: usize::MAX, ..Options::default() })?;
    Ok(format!("{} {} x {}", format_name(header.format), header.width, header.height))
}

/// Name of an image format.
pub(crate) fn format_name(format: decode::Format) -> &'static str {
    match format {
        decode::Format::Jpeg => "JPEG",
        decode::Format::Png => "PNG",
        decode::Format::Webp => "WebP",
    }
}

/// Describes bytes: an image, a text, or the first of the bytes; and whether it is an image that cannot be decoded.
fn summary(data: &[u8]) -> (String, bool) {
    if decode::sniff(data).is_ok() {
        let size = bytes(data.len() as u64);
        let decoded = Examiner::default().picture(data, Depth::Pixels, &mut Tally::default());
        return match (picture(data), decoded) {
            (Ok(picture), Ok(())) => (format!("{picture}, {size}"), false),
            (Ok(picture), Err(error)) => (format!("{picture}, {size}: {}", error.message()), true),
            (Err(error), _) => {
                (format!("an image that cannot be decoded: {}, {size}", error.message()), true)
            }
        };
    }
    (as_text(data), false)
}

/// Describes bytes that are not an image.
fn as_text(data: &[u8]) -> String {
    if data.is_empty() {
        return "empty".into();
    }
    let is_printed = |character: char| !character.is_control() || character.is_whitespace();
    match std::str::from_utf8(data) {
        Ok(text) if text.chars().all(is_printed) => match text.char_indices().nth(CHARACTERS) {
            Some((end, _)) => format!("{:?}... of {}", &text[..end], bytes(data.len() as u64)),
            None => format!("{text:?}"),
        },
        Ok(_) | Err(_) => {
            let first: Vec<_> = data.iter().take(BYTES).map(|byte| format!("{byte:02x}")).collect();
            let more = if data.len() > BYTES { " ..." } else { "" };
            format!("{}{more}, {}", first.join(" "), bytes(data.len() as u64))
        }
    }
}

fn example_lines(record: &[u8]) -> ShownRecord {
    let features = match example::features(record) {
        Ok(features) if !features.is_empty() || record.is_empty() => features,
        Ok(_) => {
            let (line, is_corrupt) = summary(record);
            return ShownRecord { lines: vec![line], is_corrupt };
        }
        Err(error) => {
            let (line, is_corrupt) = summary(record);
            return ShownRecord { lines: vec![line, error.message().to_owned()], is_corrupt };
        }
    };
    let name = |key: &[u8]| escape::one_line(&String::from_utf8_lossy(key)).into_owned();
    let width = features.iter().map(|feature| name(feature.key).chars().count()).max();
    let width = width.unwrap_or_default();
    let (mut lines, mut is_corrupt) = (Vec::new(), false);
    for feature in &features {
        let key = name(feature.key);
        if !feature.is_sequence {
            for list in &feature.steps {
                lines.push(format!("{key:<width$}  {}", line(list, &mut is_corrupt)));
            }
            continue;
        }
        let steps = counted(feature.steps.len() as u64, "step", "steps");
        lines.push(format!("{key:<width$}  {steps}"));
        for (number, list) in feature.steps.iter().take(VALUES).enumerate() {
            let values = line(list, &mut is_corrupt);
            lines.push(format!("{:<width$}  {number}: {values}", ""));
        }
    }
    ShownRecord { lines, is_corrupt }
}

/// One line for a feature: type, count, first values.
fn line(list: &List<'_>, is_corrupt: &mut bool) -> String {
    let joined = |name: &str, count: usize, values: Vec<String>| {
        let more = if count > values.len() { ", ..." } else { "" };
        match count {
            0 => format!("{name}  no values"),
            1 => format!("{name}  {}", values.join(", ")),
            count => format!("{name} x {count}  {}{more}", values.join(", ")),
        }
    };
    match list {
        List::Nothing => "no list of any type".into(),
        List::Bytes(values) => {
            let mut shown = Vec::new();
            for value in values.iter().take(VALUES) {
                let (text, is_bad) = summary(value);
                *is_corrupt |= is_bad;
                shown.push(text);
            }
            joined("bytes", values.len(), shown)
        }
        List::Floats(values) => {
            let shown = values.iter().take(VALUES).map(f32::to_string).collect();
            joined("float32", values.len(), shown)
        }
        List::Ints(values) => {
            let shown = values.iter().take(VALUES).map(i64::to_string).collect();
            joined("int64", values.len(), shown)
        }
    }
}

fn tar_lines(span: &[u8]) -> Result<ShownRecord> {
    let mut rows = Vec::new();
    for member in tar::members(span) {
        let member = member?;
        let name = escape::one_line(&String::from_utf8_lossy(member.name())).into_owned();
        rows.push((name, member));
    }
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    let (mut lines, mut is_corrupt) = (Vec::new(), false);
    for (name, member) in &rows {
        let (text, _) = summary(member.data);
        let size = match decode::sniff(member.data).is_ok() {
            true => String::new(),
            false => format!("{}  ", bytes(member.data.len() as u64)),
        };
        lines.push(format!("{name:<width$}  {size}{text}"));
        if let Err(error) = look_at(member) {
            is_corrupt = true;
            lines.push(format!("{:<width$}  {}", "", error.message()));
        }
    }
    Ok(ShownRecord { lines, is_corrupt })
}

/// Checks that the content of a member matches its extension.
fn look_at(member: &tar::Member<'_>) -> Result<()> {
    match member.extension.rsplit('.').next().unwrap_or_default() {
        "jpg" | "jpeg" | "png" | "webp" => {
            Examiner::default().picture(member.data, Depth::Pixels, &mut Tally::default())
        }
        "json" => text::guess_json(member.data).map(drop),
        "npy" => npy::array(member.data).map(drop),
        _ => Ok(()),
    }
}

fn csv_lines(row: &[u8], columns: &Arc<[String]>, delimiter: u8) -> Result<ShownRecord> {
    let mut wanted = text::guess_csv(row, columns, delimiter)?;
    wanted.iter_mut().for_each(|field| field.of = Type::Bytes);
    let parser = text::CsvParser::new(wanted.into(), None, columns, delimiter)?;
    let mut values = Vec::new();
    parser.read(row, &mut [], &mut values)?;
    let names: Vec<_> = columns.iter().map(|column| escape::one_line(column)).collect();
    let width = names.iter().map(|column| column.chars().count()).max().unwrap_or_default();
    let cells = names.iter().zip(&values).filter_map(|(column, value)| match value {
        Value::Bytes(cell) => Some(format!("{column:<width$}  {}", as_text(cell))),
        Value::Array(_) | Value::Text(_) | Value::List(_) => None,
    });
    Ok(ShownRecord::good(cells.collect()))
}

fn json_lines(line: &[u8]) -> ShownRecord {
    match (serde_json::from_slice::<serde_json::Value>(line), text::guess_json(line)) {
        (Ok(value), _) => {
            ShownRecord::good(format!("{value:#}").lines().map(str::to_owned).collect())
        }
        // Python's NaN and Infinity, which other JSON readers refuse.
        (Err(_), Ok(_)) => ShownRecord::good(vec![String::from_utf8_lossy(line).into_owned()]),
        (Err(error), Err(_)) => ShownRecord {
            lines: vec![as_text(line), format!("this is not JSON: {error}")],
            is_corrupt: true,
        },
    }
}
