//! `feedline show`: what is in a record.

use clap::Args;
use feedline_core::decode::{self, Header, Options};
use feedline_core::error::{Error, Kind, Result};
use feedline_core::format::example::{self, List};
use feedline_core::format::{Container, Packing, Type, tar, text};
use feedline_core::sample::{Value, shown};
use feedline_core::source::index::Index;
use feedline_core::source::walk::{Seen, walk_part};
use feedline_core::sys::file;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dataset::{Format, Reading, What, at};
use crate::report::{bytes, counted, mention, say};
use crate::shards::cache;

/// Records that are looked at to say how they are parsed, and bytes of them.
const LOOKED_AT: u64 = 100;
const MOST_BYTES: usize = 64 << 20;
/// Values of a list that are shown.
const VALUES: usize = 6;
/// Letters of a text, and bytes of anything else, that are shown.
const LETTERS: usize = 60;
const BYTES: usize = 16;

/// Prints what is in a record of a shard.
///
/// Of a TFRecord the features of its Example, of a tar the members of its sample, of JSON lines and CSV the
/// record itself, of a picture its size. Without a number: how many records there are, and the first one;
/// for a TFRecord also the call of parse() that asks for all of it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    feedline show data/a.tfrecord            how many records, the first one, and how to parse it\n  \
    feedline show data/a.tfrecord:17         record 17, counted from 0 as in messages\n  \
    feedline show data/a.tar:0               the members of the first sample\n  \
    feedline show photos/cat/1.jpg           a picture\n  \
    feedline show part-7 --as tfrecord       a file whose name does not say what it is\n\n\
    Exit codes: 0 good, 1 the record is damaged, 2 could not run.")]
pub(crate) struct Show {
    /// A file, with the number of a record behind a colon
    #[arg(value_name = "FILE[:N]")]
    record: String,

    #[command(flatten)]
    reading: Reading,
}

impl Show {
    pub(crate) fn run(&self) -> Result<i32> {
        let (path, number) = self.asked()?;
        if file::is_folder(&path) {
            return Err(Error::new(Kind::BadSource, format!("{} is a folder", shown(&path)))
                .with_hint(format!(
                    "give a file, or look through all of it with feedline verify {}",
                    path.display()
                )));
        }
        let format = match self.reading.what(&path)? {
            What::Image => return picture_file(&path),
            What::Shard(format) => format,
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
            return Err(Error::new(Kind::BadSource, message).with_hint(hint));
        }
        let shard = Shard { path: &path, format, container, index };
        if number.is_none() {
            shard.about()?;
        }
        let code = shard.record(number.unwrap_or(0))?;
        if number.is_none() && format == Format::Tfrecord {
            shard.parse()?;
        }
        Ok(code)
    }

    /// A file of exactly that name is meant before a record of another.
    fn asked(&self) -> Result<(PathBuf, Option<u64>)> {
        let whole = PathBuf::from(&self.record);
        if whole.exists() {
            return Ok((whole, None));
        }
        let parts = self.record.rsplit_once(':');
        match parts.map(|(path, number)| (PathBuf::from(path), number)) {
            Some((path, number)) if path.exists() => match number.parse() {
                Ok(number) => Ok((path, Some(number))),
                Err(_) => {
                    let message = format!("{number:?} is not the number of a record");
                    Err(Error::new(Kind::BadSetting, message)
                        .with_hint(format!("feedline show {}:0 shows the first", path.display())))
                }
            },
            Some(_) | None => {
                Err(Error::new(Kind::BadSource, format!("{} is not there", shown(&whole)))
                    .with_hint("check the path; relative ones begin at the working folder"))
            }
        }
    }
}

struct Shard<'a> {
    path: &'a Path,
    format: Format,
    container: Container,
    index: Index,
}

impl Shard<'_> {
    fn about(&self) -> Result<()> {
        let damaged = self.index.damages().len() as u64;
        let records = counted(self.index.len() - damaged, "record", "records");
        let packing = match self.index.packing {
            Packing::Plain => String::new(),
            packing @ (Packing::Gzip | Packing::Zlib | Packing::Zstd) => {
                format!(", {}", packing.name())
            }
        };
        say(format_args!(
            "{}: {}{packing}, {records}, {}",
            self.path.display(),
            self.format.name(),
            bytes(self.index.stamp.size)
        ))?;
        if damaged > 0 {
            let damages = counted(damaged, "damage", "damages");
            say(format_args!("{damages}: see feedline verify {}", self.path.display()))?;
        }
        Ok(())
    }

    /// Prints a record; returns the exit code.
    fn record(&self, number: u64) -> Result<i32> {
        let (mut code, mut told) = (0, Vec::new());
        walk_part(
            &self.index,
            self.path,
            &self.container,
            number..(number + 1).min(self.index.len()),
            &mut |seen| {
                told.push(format!(
                    "record {number}, byte {}, {}",
                    seen.span.start,
                    bytes(seen.span.length)
                ));
                code = match self.lines(&seen) {
                    Ok(lines) => {
                        told.extend(lines.iter().map(|line| format!("  {line}")));
                        0
                    }
                    Err(what) => {
                        told.push(format!("  {what}"));
                        1
                    }
                };
                false
            },
        )?;
        told.iter().try_for_each(say)?;
        Ok(code)
    }

    fn lines(&self, seen: &Seen<'_>) -> std::result::Result<Vec<String>, String> {
        let payload = seen.payload.as_ref().map_err(|error| error.message().to_owned())?;
        match &self.container {
            Container::Tfrecord { .. } => Ok(example_lines(payload)),
            Container::Tar => tar_lines(payload).map_err(|error| error.message().to_owned()),
            Container::JsonLines => Ok(json_lines(payload)),
            Container::Csv { delimiter, columns } => {
                csv_lines(payload, columns, *delimiter).map_err(|error| error.message().to_owned())
            }
            Container::Numbers { .. } => Ok(vec![summary(payload)]),
        }
    }

    /// The call that parses the first records.
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
        mention(format_args!("by the first {looked_at}:"));
        say(format_args!("fl.tfrecord({:?}){}", self.path.display().to_string(), schema.python()))
    }
}

fn picture_file(path: &Path) -> Result<i32> {
    let data = file::read_bytes(path)
        .map_err(|error| Error::io(Kind::ReadFailed, "reading the file", error).at(at(path)))?;
    match picture(&data) {
        Ok(picture) => {
            say(format_args!("{}: {picture}, {}", path.display(), bytes(data.len() as u64)))?;
            Ok(0)
        }
        Err(error) => {
            say(format_args!("{}: {}", path.display(), error.message()))?;
            Ok(1)
        }
    }
}

/// A picture in words: "PNG 32 x 32".
fn picture(data: &[u8]) -> Result<String> {
    let header = Header::read(data, &Options { max_pixels: usize::MAX, ..Options::default() })?;
    Ok(format!("{} {} x {}", format_name(header.format), header.width, header.height))
}

/// The name of a format of pictures.
pub(crate) fn format_name(format: decode::Format) -> &'static str {
    match format {
        decode::Format::Jpeg => "JPEG",
        decode::Format::Png => "PNG",
        decode::Format::Webp => "WebP",
    }
}

/// Bytes in words: a picture, a text, or the first of them.
fn summary(data: &[u8]) -> String {
    if data.is_empty() {
        return "empty".into();
    }
    if decode::sniff(data).is_ok() {
        let size = bytes(data.len() as u64);
        return match picture(data) {
            Ok(picture) => format!("{picture}, {size}"),
            Err(error) => format!("a picture that cannot be read: {}, {size}", error.message()),
        };
    }
    let is_printed = |letter: char| !letter.is_control() || letter.is_whitespace();
    match std::str::from_utf8(data) {
        Ok(text) if text.chars().all(is_printed) => match text.char_indices().nth(LETTERS) {
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

fn example_lines(record: &[u8]) -> Vec<String> {
    let features = match example::features(record) {
        Ok(features) if !features.is_empty() || record.is_empty() => features,
        Ok(_) => return vec![summary(record)],
        Err(error) => return vec![summary(record), error.message().to_owned()],
    };
    let name = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    let width = features.iter().map(|feature| name(feature.key).chars().count()).max();
    let width = width.unwrap_or_default();
    let mut lines = Vec::new();
    for feature in &features {
        let key = name(feature.key);
        if !feature.is_sequence {
            lines.extend(feature.steps.iter().map(|list| format!("{key:<width$}  {}", line(list))));
            continue;
        }
        let steps = counted(feature.steps.len() as u64, "step", "steps");
        lines.push(format!("{key:<width$}  {steps}"));
        for (number, list) in feature.steps.iter().take(VALUES).enumerate() {
            lines.push(format!("{:<width$}  {number}: {}", "", line(list)));
        }
    }
    lines
}

/// The values of a feature in a line: type, count, the first of them.
fn line(list: &List<'_>) -> String {
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
            let shown = values.iter().take(VALUES).map(|value| summary(value)).collect();
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

fn tar_lines(span: &[u8]) -> Result<Vec<String>> {
    let mut rows = Vec::new();
    for member in tar::members(span) {
        let member = member?;
        rows.push((String::from_utf8_lossy(member.name()).into_owned(), member.data));
    }
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    let line = |(name, data): &(String, &[u8])| {
        let size = bytes(data.len() as u64);
        match decode::sniff(data).is_ok() {
            true => format!("{name:<width$}  {}", summary(data)),
            false => format!("{name:<width$}  {size}  {}", summary(data)),
        }
    };
    Ok(rows.iter().map(line).collect())
}

fn csv_lines(row: &[u8], columns: &Arc<[String]>, delimiter: u8) -> Result<Vec<String>> {
    let mut wanted = text::guess_csv(row, columns, delimiter)?;
    wanted.iter_mut().for_each(|field| field.of = Type::Bytes);
    let parser = text::CsvParser::new(wanted.into(), None, columns, delimiter)?;
    let mut values = Vec::new();
    parser.read(row, &mut [], &mut values)?;
    let width = columns.iter().map(|column| column.chars().count()).max().unwrap_or_default();
    let cells = columns.iter().zip(&values).filter_map(|(column, value)| match value {
        Value::Bytes(cell) => Some(format!("{column:<width$}  {}", summary(cell))),
        Value::Row(_) | Value::Array(_) | Value::Text(_) | Value::List(_) => None,
    });
    Ok(cells.collect())
}

fn json_lines(line: &[u8]) -> Vec<String> {
    match serde_json::from_slice::<serde_json::Value>(line) {
        Ok(value) => format!("{value:#}").lines().map(str::to_owned).collect(),
        Err(error) => vec![summary(line), format!("this is no JSON: {error}")],
    }
}
