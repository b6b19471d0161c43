//! From a record to the fields that were asked for, whatever the records lie in.

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
    Example(example::Parser),
    Tar(tar::Parser),
    Json(text::JsonParser),
    Csv(text::CsvParser),
}

impl Parser {
    /// Refuses fields that such records cannot have. The one numbered `picture` is not read, but its
    /// bytes can be asked for.
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
                AnyParser::Example(example::Parser::new(wanted, picture)?)
            }
            Container::Tar => AnyParser::Tar(tar::Parser::new(wanted, picture)?),
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

    /// How many of the fields have rows in the batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Writes the fields of one shape to their rows, and adds the others, both in order.
    pub fn read(&self, record: &[u8], rows: &mut [Row], others: &mut Vec<Value>) -> Result<()> {
        match &self.by {
            AnyParser::Example(parser) => parser.read(record, rows, others),
            AnyParser::Tar(parser) => parser.read(record, rows, others),
            AnyParser::Json(parser) => parser.read(record, rows, others),
            AnyParser::Csv(parser) => parser.read(record, rows, others),
        }
    }

    /// The bytes that are decoded as a picture.
    pub fn picture<'a>(&self, record: &'a [u8]) -> Result<&'a [u8]> {
        match &self.by {
            AnyParser::Example(parser) => parser.picture(record),
            AnyParser::Tar(parser) => parser.picture(record),
            AnyParser::Json(_) | AnyParser::Csv(_) => {
                Err(Error::new(Kind::InvalidArgument, "decode: text holds no pictures"))
            }
        }
    }

    /// Bytes of what has no row, at most, for a record of that size.
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
