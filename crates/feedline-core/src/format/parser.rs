//! Reads the requested fields of a record, whatever its container.

use std::sync::Arc;

use super::{Container, Wanted, example, tar, text};
use crate::error::{Error, Kind, Result};
use crate::sample::{FieldKind, Value};
use crate::sys::slab::Row;

/// Reads the fields of records.
#[derive(Debug)]
pub struct Parser {
    by: AnyParser,
    rows: usize,
    has_others: bool,
}

#[derive(Debug)]
enum AnyParser {
    Example(example::ExampleParser),
    Tar(tar::TarParser),
    Json(text::JsonParser),
    Csv(text::CsvParser),
}

impl Parser {
    /// Refuses fields that such records cannot have. The one numbered `picture` is not read, but its bytes are
    /// available.
    pub fn new(
        container: &Container,
        wanted: &Arc<[Wanted]>,
        picture: Option<usize>,
    ) -> Result<Parser> {
        let fields = wanted.iter().enumerate().filter(|(at, _)| Some(*at) != picture);
        let (mut rows, mut has_others) = (0, false);
        for (_, wanted) in fields {
            match wanted.field().kind {
                FieldKind::Fixed { .. } => rows += 1,
                FieldKind::Ragged { .. }
                | FieldKind::Variable { .. }
                | FieldKind::Bytes
                | FieldKind::Text
                | FieldKind::Json
                | FieldKind::List
                | FieldKind::Texts => has_others = true,
            }
        }
        let wanted = Arc::clone(wanted);
        let by = match container {
            Container::Tfrecord { .. } => {
                AnyParser::Example(example::ExampleParser::new(wanted, picture)?)
            }
            Container::Tar => AnyParser::Tar(tar::TarParser::new(wanted, picture)?),
            Container::JsonLines => AnyParser::Json(text::JsonParser::new(wanted, picture)?),
            Container::Csv { delimiter, columns } => {
                AnyParser::Csv(text::CsvParser::new(wanted, picture, columns, *delimiter)?)
            }
            Container::Numbers { .. } => {
                return Err(Error::new(Kind::InvalidArgument, "parse: numbers have no fields")
                    .with_hint("leave parse() out"));
            }
        };
        Ok(Parser { by, rows, has_others })
    }

    /// The number of fields with rows in the batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Writes fields with a fixed shape to their rows, and appends the others, both in order.
    pub fn read(&self, record: &[u8], rows: &mut [Row], others: &mut Vec<Value>) -> Result<()> {
        match &self.by {
            AnyParser::Example(parser) => parser.read(record, rows, others),
            AnyParser::Tar(parser) => parser.read(record, rows, others),
            AnyParser::Json(parser) => parser.read(record, rows, others),
            AnyParser::Csv(parser) => parser.read(record, rows, others),
        }
    }

    /// The bytes that are decoded as an image.
    pub fn picture<'a>(&self, record: &'a [u8]) -> Result<&'a [u8]> {
        match &self.by {
            AnyParser::Example(parser) => parser.picture(record),
            AnyParser::Tar(parser) => parser.picture(record),
            AnyParser::Json(_) | AnyParser::Csv(_) => {
                Err(Error::new(Kind::InvalidArgument, "decode: text has no images"))
            }
        }
    }

    /// The most bytes of values without a row, for a record of this size.
    pub(crate) fn most_bytes(&self, record: usize) -> usize {
        if !self.has_others {
            return 0;
        }
        match &self.by {
            AnyParser::Example(parser) => parser.most_bytes(record),
            AnyParser::Tar(parser) => parser.most_bytes(record),
            AnyParser::Json(parser) => parser.most_bytes(record),
            AnyParser::Csv(parser) => parser.most_bytes(record),
        }
    }
}
