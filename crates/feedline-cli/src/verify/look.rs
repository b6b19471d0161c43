//! Checks of one sample: images, keys, labels.

use feedline_core::decode::canvas::Canvas;
use feedline_core::decode::{self, Decoder, ImageHeader, Options};
use feedline_core::error::{Error, Kind, Result};
use feedline_core::format::example::{self, List};
use feedline_core::format::{Container, Shape, Type, Wanted, tar, text};
use feedline_core::sample::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::tally::Tally;
use crate::show::format_name;

/// Tar members with these extensions must be images.
const PICTURES: [&str; 4] = ["jpg", "jpeg", "png", "webp"];
/// Memory for pixels that is kept from image to image.
const KEPT_BYTES: usize = 64 << 20;

/// How much of an image is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Only the header.
    Header,
    /// Every pixel is decoded.
    #[default]
    Pixels,
}

/// Decoders and memory of one thread.
#[derive(Default)]
pub(crate) struct Examiner {
    decoder: Decoder,
    canvas: Canvas,
}

impl Examiner {
    /// Checks an image and counts it.
    pub(crate) fn picture(&mut self, bytes: &[u8], depth: Depth, tally: &mut Tally) -> Result<()> {
        let options = Options::default();
        let looked = catch_unwind(AssertUnwindSafe(|| {
            let header = ImageHeader::read(bytes, &options)?;
            if depth == Depth::Pixels {
                let whole = header.whole();
                self.decoder.decode(bytes, &header, &options, whole, 1, &mut self.canvas)?;
            }
            Ok(header)
        }));
        self.decoder.trim(KEPT_BYTES);
        if self.canvas.capacity() > KEPT_BYTES {
            self.canvas = Canvas::default();
        }
        let header = looked.unwrap_or_else(|_| {
            // Drops the state of a decoder that panicked.
            *self = Examiner::default();
            Err(Error::new(Kind::CodecPanic, "the decoder panicked"))
        })?;
        tally.picture(format_name(header.format), header.width, header.height);
        Ok(())
    }
}

/// What every record must contain, derived from the first good records.
#[derive(Debug)]
pub(crate) enum Rule {
    /// Anything.
    Bytes,
    /// Examples in which these features are images.
    Examples { pictures: Vec<Vec<u8>> },
    /// Members with these extensions; whether classes are numbers.
    Members { extensions: Vec<String>, has_numbers: bool },
    /// JSON.
    Json,
    /// Rows with the columns that the parser knows; it reads the label if there is one.
    Rows { parser: text::CsvParser, is_labelled: bool },
}

impl Rule {
    /// Derives the rule from the first good records of a data set.
    pub(crate) fn of(container: &Container, records: &[Vec<u8>]) -> Result<Rule> {
        match container {
            Container::Tfrecord { .. } => Ok(of_examples(records)),
            Container::Tar => match records.first() {
                Some(first) => of_members(first),
                None => Ok(Rule::Members { extensions: Vec::new(), has_numbers: false }),
            },
            Container::JsonLines => Ok(Rule::Json),
            Container::Csv { delimiter, columns } => of_rows(columns, *delimiter),
            Container::Numbers { .. } => Ok(Rule::Bytes),
        }
    }

    /// Checks a record whose framing is good. The message names the feature or the member.
    pub(crate) fn check(
        &self,
        record: &[u8],
        depth: Depth,
        examiner: &mut Examiner,
        tally: &mut Tally,
    ) -> Result<()> {
        match self {
            Rule::Bytes => Ok(()),
            Rule::Examples { pictures } => check_example(record, pictures, depth, examiner, tally),
            Rule::Members { extensions, has_numbers } => {
                check_members(record, extensions, *has_numbers, depth, examiner, tally)
            }
            Rule::Json => check_json(record, tally),
            Rule::Rows { parser, is_labelled } => {
                let mut values = Vec::new();
                parser.read(record, &mut [], &mut values)?;
                if let (true, Some(Value::Text(label))) = (*is_labelled, values.first()) {
                    tally.class(label);
                }
                Ok(())
            }
        }
    }
}

/// Records are Examples if one of the first is an Example with features.
fn of_examples(records: &[Vec<u8>]) -> Rule {
    let mut read = records.iter().filter_map(|record| example::features(record).ok());
    let Some(features) = read.find(|features| !features.is_empty()) else { return Rule::Bytes };
    let is_picture = |list: &List<'_>| match list {
        List::Bytes(values) => values.iter().any(|value| decode::sniff(value).is_ok()),
        List::Nothing | List::Floats(_) | List::Ints(_) => false,
    };
    let pictures = features.iter().filter(|feature| feature.steps.iter().any(is_picture));
    Rule::Examples { pictures: pictures.map(|feature| feature.key.to_vec()).collect() }
}

fn of_members(first: &[u8]) -> Result<Rule> {
    let members = tar::members(first).collect::<Result<Vec<_>>>()?;
    let classes = members.iter().find(|member| member.extension == "cls");
    let has_numbers = classes.is_some_and(|member| number(member.data).is_some());
    let extensions = members.into_iter().map(|member| member.extension).collect();
    Ok(Rule::Members { extensions, has_numbers })
}

fn of_rows(columns: &Arc<[String]>, delimiter: u8) -> Result<Rule> {
    let label = columns.iter().find(|column| *column == "label");
    let is_labelled = label.is_some();
    let wanted: Arc<[Wanted]> = label
        .map(|name| Wanted {
            name: name.as_str().into(),
            key: name.as_str().into(),
            of: Type::Text,
            shape: Shape::Fixed(Vec::new()),
            is_sequence: false,
            default: None,
        })
        .into_iter()
        .collect();
    Ok(Rule::Rows { parser: text::CsvParser::new(wanted, None, columns, delimiter)?, is_labelled })
}

fn check_example(
    record: &[u8],
    pictures: &[Vec<u8>],
    depth: Depth,
    examiner: &mut Examiner,
    tally: &mut Tally,
) -> Result<()> {
    let mut outcome = Ok(());
    for feature in example::features(record)? {
        let must_be = pictures.iter().any(|key| key == feature.key);
        let is_label = feature.key == b"label" || feature.key.ends_with(b"/label");
        for list in &feature.steps {
            match list {
                List::Bytes(values) => {
                    for value in values {
                        if !must_be && decode::sniff(value).is_err() {
                            continue;
                        }
                        let seen = examiner.picture(value, depth, tally);
                        let name = String::from_utf8_lossy(feature.key);
                        let seen =
                            seen.map_err(|error| named(&format!("feature {name:?}"), &error));
                        outcome = outcome.and(seen);
                    }
                    if let ([label], true) = (&values[..], is_label) {
                        tally.class(&String::from_utf8_lossy(label));
                    }
                }
                List::Ints(values) => {
                    if let ([label], true) = (&values[..], is_label) {
                        tally.class(&label.to_string());
                    }
                }
                List::Nothing | List::Floats(_) => {}
            }
        }
    }
    outcome
}

fn check_members(
    span: &[u8],
    extensions: &[String],
    has_numbers: bool,
    depth: Depth,
    examiner: &mut Examiner,
    tally: &mut Tally,
) -> Result<()> {
    let members = tar::members(span).collect::<Result<Vec<_>>>()?;
    let has = |wanted: &str| members.iter().any(|member| member.extension == wanted);
    let missing = extensions
        .iter()
        .find(|wanted| !has(wanted) && !other_extensions(wanted).any(|one| has(&one)));
    if let Some(missing) = missing {
        let found: Vec<_> = members.iter().take(20).map(|member| &*member.extension).collect();
        let message = format!(
            "no member {missing:?}, which the first sample has; the sample has {}",
            found.join(", ")
        );
        return Err(Error::new(Kind::InvalidField, message));
    }
    let mut outcome = Ok(());
    for member in &members {
        let last = member.extension.rsplit('.').next().unwrap_or_default();
        let seen = match last {
            _ if PICTURES.contains(&last) => examiner.picture(member.data, depth, tally),
            "json" => text::guess_json(member.data).map(drop),
            "cls" => check_class(member.data, has_numbers, tally),
            _ => Ok(()),
        };
        let seen = seen.map_err(|error| named(&format!("member {}", member.shown()), &error));
        outcome = outcome.and(seen);
    }
    outcome
}

/// Extensions of the other image formats, which an image may also have.
fn other_extensions(extension: &str) -> impl Iterator<Item = String> {
    let at = extension.rfind('.').map_or(0, |dot| dot + 1);
    let (front, last) = extension.split_at(at);
    let is_picture = PICTURES.contains(&last);
    PICTURES.iter().filter(move |_| is_picture).map(move |other| format!("{front}{other}"))
}

fn check_class(data: &[u8], has_numbers: bool, tally: &mut Tally) -> Result<()> {
    let class = String::from_utf8_lossy(data);
    if has_numbers && number(data).is_none() {
        let short: String = class.chars().take(40).collect();
        let message = format!("{short:?} is not a number, but the class of the first sample is");
        return Err(Error::new(Kind::InvalidField, message));
    }
    tally.class(class.trim());
    Ok(())
}

fn number(data: &[u8]) -> Option<i64> {
    std::str::from_utf8(data).ok()?.trim().parse().ok()
}

fn check_json(line: &[u8], tally: &mut Tally) -> Result<()> {
    text::guess_json(line)?;
    let value: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
    match value.get("label") {
        Some(serde_json::Value::String(label)) => tally.class(label),
        Some(label @ serde_json::Value::Number(_)) => tally.class(&label.to_string()),
        Some(_) | None => {}
    }
    Ok(())
}

fn named(what: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("{what}: {}", error.message()))
}
