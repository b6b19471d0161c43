//! Rows of CSV: where they begin and end, because quotes may contain newlines, and the values of their columns.

use std::fmt;
use std::sync::Arc;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use super::{BYTE_ORDER_MARK, WINDOW};
use crate::error::{Error, Kind, Result};
use crate::escape;
use crate::format::convert::{Fields, guessed, put_default, put_text, refuse_npy, wrong};
use crate::format::{ReadAt, Scanned, Shape, Split, Type, Wanted};
use crate::sample::{FieldKind, Value};
use crate::sys::lock::Mutex;
use crate::sys::slab::Row;

/// After this many quotes that are never closed, the rest of the file is skipped.
const MOST_OPEN_QUOTES: usize = 100;
/// The longest first row.
const MOST_HEADER: usize = 1 << 20;

fn reader(delimiter: u8) -> Reader {
    let mut reader = ReaderBuilder::new().delimiter(delimiter).build();
    restart(&mut reader);
    reader
}

/// Restarts at the beginning of a row. A fresh reader would drop a byte order mark, which is only valid at the
/// beginning of a file: so it reads an empty line first.
fn restart(reader: &mut Reader) {
    reader.reset();
    let _ = reader.read_record(b"\n", &mut [0], &mut [0]);
}

/// A pool of readers: building one takes longer than reading a row, and a clone of one does not work.
struct Readers {
    delimiter: u8,
    idle: Mutex<Vec<Reader>>,
}

impl Readers {
    fn new(delimiter: u8) -> Readers {
        Readers { delimiter, idle: Mutex::new(Vec::new()) }
    }

    /// The values of a row of at most this many columns.
    fn cells(&self, row: &[u8], most: usize) -> Option<Cells> {
        let idle = self.idle.lock().pop();
        let mut reader = idle.unwrap_or_else(|| reader(self.delimiter));
        restart(&mut reader);
        let cells = Cells::of(row, &mut reader, most);
        self.idle.lock().push(reader);
        cells
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Readers({:?})", char::from(self.delimiter))
    }
}

/// Finds the end of a row.
struct Walker {
    reader: Reader,
    values: Vec<u8>,
    ends: Vec<usize>,
}

impl Walker {
    fn new(delimiter: u8) -> Walker {
        Walker { reader: reader(delimiter), values: vec![0; 4096], ends: vec![0; 256] }
    }

    fn restart(&mut self) {
        restart(&mut self.reader);
    }

    /// The number of bytes to the end of the row, including its newline, if it ends here.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            let (result, used, _, _) =
                self.reader.read_record(&bytes[at..], &mut self.values, &mut self.ends);
            at += used;
            match result {
                ReadRecordResult::Record => return Some(at),
                ReadRecordResult::InputEmpty | ReadRecordResult::End => return None,
                // Only the end matters here.
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {}
            }
        }
        None
    }

    /// Whether the current row is inside a quote.
    fn is_quoted(&mut self) -> bool {
        self.end(b"\n").is_none()
    }
}

/// Lists the rows of a file of this size. Its first row must be `columns`, if there are any.
pub(crate) fn scan_csv(
    size: u64,
    delimiter: u8,
    columns: &[String],
    read: &mut ReadAt<'_>,
) -> Result<Scanned> {
    let mut scan = CsvScan { scanned: Scanned::default(), size, delimiter, open_quotes: 0, read };
    if size == 0 {
        return Ok(scan.scanned);
    }
    let mut head = vec![0; MOST_HEADER.min(usize::try_from(size).unwrap_or(MOST_HEADER))];
    let filled = (scan.read)(0, &mut head)?;
    let splitter = CsvSplitter::new(delimiter, columns);
    match splitter.header(&head[..filled], filled as u64 == size) {
        Ok(Some(start)) => scan.rows(start as u64)?,
        Ok(None) => scan.scanned.push_corrupt(0, size, "the first row does not end"),
        Err(what) => scan.scanned.push_corrupt(0, size, what),
    }
    Ok(scan.scanned)
}

struct CsvScan<'a, 'b> {
    scanned: Scanned,
    size: u64,
    delimiter: u8,
    open_quotes: usize,
    read: &'a mut ReadAt<'b>,
}

impl CsvScan<'_, '_> {
    /// Continues at an offset where a row may begin.
    fn rows(&mut self, from: u64) -> Result<()> {
        let mut walker = Walker::new(self.delimiter);
        let mut window = vec![0; WINDOW.min(usize::try_from(self.size).unwrap_or(WINDOW))];
        let (mut at, mut start) = (from, None);
        loop {
            let wanted = self.size.saturating_sub(at).min(window.len() as u64) as usize;
            let filled = if wanted == 0 { 0 } else { (self.read)(at, &mut window[..wanted])? };
            let mut rest = &window[..filled];
            while !rest.is_empty() {
                if start.is_none() {
                    let blank =
                        rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                    rest = &rest[blank..];
                    at += blank as u64;
                    if rest.is_empty() {
                        break;
                    }
                }
                let begin = *start.get_or_insert(at);
                let end = walker.end(rest);
                let used = end.unwrap_or(rest.len());
                rest = &rest[used..];
                at += used as u64;
                if end.is_some() {
                    self.scanned.push(begin, at - begin);
                    start = None;
                }
            }
            if filled > 0 && filled == wanted {
                continue;
            }
            let Some(begin) = start else { break };
            if !walker.is_quoted() {
                self.scanned.push(begin, at - begin);
                break;
            }
            // What follows the line of the opening quote may be good.
            let line = if self.open_quotes < MOST_OPEN_QUOTES { self.line_end(begin)? } else { at };
            self.open_quotes += 1;
            let what = format!("a quote in the row at byte {begin} is never closed");
            self.scanned.push_corrupt(begin, line - begin, what);
            walker.restart();
            (at, start) = (line, None);
        }
        if at < self.size {
            let what =
                format!("the file shrank from {} to {at} bytes while it was read", self.size);
            self.scanned.push_corrupt(at, 0, what);
        }
        Ok(())
    }

    /// The end of the line that begins here.
    fn line_end(&mut self, mut at: u64) -> Result<u64> {
        let mut window = vec![0; 4096];
        while at < self.size {
            let filled = (self.read)(at, &mut window)?;
            match memchr::memchr(b'\n', &window[..filled]) {
                Some(newline) => return Ok((at + newline as u64 + 1).min(self.size)),
                None if filled == 0 => break,
                None => at += filled as u64,
            }
        }
        Ok(self.size)
    }
}

/// Finds the rows of a stream.
pub(crate) struct CsvSplitter {
    delimiter: u8,
    walker: Walker,
    columns: Vec<String>,
    is_past_header: bool,
    is_given_up: bool,
}

impl CsvSplitter {
    /// A splitter at the beginning of a stream; the first row must be these columns, if there are any.
    pub(crate) fn new(delimiter: u8, columns: &[String]) -> CsvSplitter {
        let (walker, columns) = (Walker::new(delimiter), columns.to_vec());
        CsvSplitter { delimiter, walker, columns, is_past_header: false, is_given_up: false }
    }

    /// The offset of the rows after the first one; None if it is not known yet.
    fn header(&self, bytes: &[u8], is_end: bool) -> std::result::Result<Option<usize>, String> {
        let Some((found, length)) = first_row(bytes, self.delimiter, is_end) else {
            return Ok(None);
        };
        if self.columns.is_empty() || found == self.columns {
            return Ok(Some(length));
        }
        let (found, wanted) = (found.join(", "), self.columns.join(", "));
        let short = |text: String| text.chars().take(300).collect::<String>();
        Err(format!("its columns are {}, those of the first file {}", short(found), short(wanted)))
    }

    /// What `bytes` start with; `is_end` if nothing follows them.
    pub(crate) fn split(&mut self, bytes: &[u8], is_end: bool) -> Split {
        if bytes.is_empty() {
            return if is_end { Split::End } else { Split::More(1) };
        }
        let more = || Split::More(bytes.len().saturating_mul(2).max(4096));
        if self.is_given_up {
            return Split::Ignored(bytes.len());
        }
        if !self.is_past_header {
            return match self.header(bytes, is_end) {
                Ok(Some(length)) => {
                    self.is_past_header = true;
                    Split::Ignored(length)
                }
                Ok(None) if is_end => {
                    Split::Corrupt(bytes.len(), "the first row does not end".into())
                }
                Ok(None) => more(),
                Err(what) => {
                    self.is_given_up = true;
                    Split::Corrupt(bytes.len(), what)
                }
            };
        }
        let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        if blank > 0 {
            return Split::Ignored(blank);
        }
        let walker = &mut self.walker;
        walker.restart();
        match walker.end(bytes) {
            Some(length) => Split::Record(length),
            None if !is_end => more(),
            None if !walker.is_quoted() => Split::Record(bytes.len()),
            None => {
                let line = memchr::memchr(b'\n', bytes).map_or(bytes.len(), |newline| newline + 1);
                Split::Corrupt(line, "a quote in the row is never closed".into())
            }
        }
    }
}

/// The values of the first row, and the number of bytes up to its end; None if it does not end.
fn first_row(bytes: &[u8], delimiter: u8, is_end: bool) -> Option<(Vec<String>, usize)> {
    let mark = if bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    let rest = &bytes[mark..];
    let blank = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let rest = &rest[blank..];
    let mut walker = Walker::new(delimiter);
    let length = match walker.end(rest) {
        Some(length) => length,
        None if is_end && !rest.is_empty() && !walker.is_quoted() => rest.len(),
        None => return None,
    };
    let cells = Cells::of(&rest[..length], &mut reader(delimiter), usize::MAX)?;
    let names = cells.iter().map(|cell| String::from_utf8_lossy(cell).trim().to_owned());
    Some((names.collect(), mark + blank + length))
}

/// The names of the columns, from the first bytes of a file.
pub fn columns(bytes: &[u8], delimiter: u8, is_end: bool) -> Result<Vec<String>> {
    let bad = |what: String| {
        Error::new(Kind::InvalidSource, what)
            .with_hint("the first row of a CSV file names its columns")
    };
    let (names, _) = first_row(bytes, delimiter, is_end)
        .ok_or_else(|| bad(format!("the first row does not end within {} bytes", bytes.len())))?;
    for (number, name) in names.iter().enumerate() {
        if names[..number].contains(name) {
            return Err(bad(format!("column {name:?} occurs twice")));
        }
    }
    Ok(names)
}

/// The values of a row, without their quotes.
struct Cells {
    values: Vec<u8>,
    ends: Vec<usize>,
}

impl Cells {
    /// None if there are more than `most`, or more than one row.
    fn of(row: &[u8], reader: &mut Reader, most: usize) -> Option<Cells> {
        let most = most.min(row.len() + 1).saturating_add(1);
        let mut cells = Cells { values: vec![0; row.len() + 1], ends: vec![0; most] };
        let (mut at, mut written, mut count) = (0, 0, 0);
        loop {
            let (result, used, wrote, ended) = reader.read_record(
                &row[at..],
                &mut cells.values[written..],
                &mut cells.ends[count..],
            );
            at += used;
            written += wrote;
            count += ended;
            match result {
                // The end of the bytes is the end of the row.
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record => break,
                ReadRecordResult::OutputFull
                | ReadRecordResult::OutputEndsFull
                | ReadRecordResult::End => return None,
            }
        }
        let is_all = row[at..].iter().all(|byte| matches!(byte, b'\r' | b'\n'));
        cells.ends.truncate(count);
        (is_all && count < most).then_some(cells)
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, number: usize) -> Option<&[u8]> {
        let start = if number == 0 { 0 } else { *self.ends.get(number - 1)? };
        self.values.get(start..*self.ends.get(number)?)
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|number| self.get(number))
    }
}

/// Reads the fields of a row.
#[derive(Debug)]
pub struct CsvParser {
    fields: Fields,
    columns: Arc<[String]>,
    readers: Readers,
    /// The column of each field.
    places: Vec<Option<usize>>,
    growth: (usize, usize),
}

impl CsvParser {
    /// A parser of these fields, by the names of the columns.
    pub fn new(
        wanted: Arc<[Wanted]>,
        picture: Option<usize>,
        columns: &Arc<[String]>,
        delimiter: u8,
    ) -> Result<CsvParser> {
        let fields = Fields::new(&wanted, picture);
        let (mut places, mut factors, mut added) = (Vec::new(), 0, 0);
        for (number, one) in wanted.iter().enumerate() {
            refuse_npy(one, "CSV")?;
            if matches!(one.field().kind, FieldKind::List | FieldKind::Texts) {
                let what =
                    format!("field {:?} is a list of texts, which CSV cannot hold", one.name);
                return Err(Error::new(Kind::InvalidArgument, what));
            }
            let place = columns.iter().position(|column| *column == *one.key);
            if place.is_none() && one.default.is_none() {
                let there: Vec<_> = columns.iter().map(|name| escape::one_line(name)).collect();
                let what = format!("no column {:?}; the columns are {}", one.key, there.join(", "));
                return Err(
                    Error::new(Kind::InvalidArgument, what).with_hint("use one of these columns")
                );
            }
            places.push(place);
            let (factor, constant) = fields.growth(number);
            factors += factor;
            added += constant;
        }
        let columns = Arc::clone(columns);
        Ok(CsvParser {
            fields,
            columns,
            readers: Readers::new(delimiter),
            places,
            growth: (factors, added),
        })
    }

    /// The most bytes of values without a row of the batch, for a record of this size.
    pub(crate) fn most_bytes(&self, record_bytes: usize) -> usize {
        let (factor, added) = self.growth;
        record_bytes.saturating_mul(factor).saturating_add(added)
    }

    /// Writes values with a row of the batch to it and appends the others, each in the order of the fields. An empty
    /// value is text but not a number.
    pub fn read(&self, record: &[u8], rows: &mut [Row], others: &mut Vec<Value>) -> Result<()> {
        let cells = cells(record, &self.columns, &self.readers)?;
        self.fields.each(rows, others, |number, one, place| {
            let cell = self.places[number].and_then(|column| cells.get(column));
            let is_text = matches!(one.of, Type::Text | Type::Bytes);
            let called = || format!("column {:?}", one.key);
            match cell.filter(|cell| is_text || !cell.trim_ascii().is_empty()) {
                Some(cell) => put_text(one, called, cell, place),
                None => put_default(one, place)
                    .unwrap_or_else(|| Err(wrong(called(), "is empty, expected a value"))),
            }
        })
    }
}

fn cells(record: &[u8], columns: &[String], readers: &Readers) -> Result<Cells> {
    let cells = readers.cells(record, columns.len());
    cells.filter(|cells| cells.len() == columns.len()).ok_or_else(|| {
        let found = readers.cells(record, usize::MAX).map_or(0, |cells| cells.len());
        let lines = record.trim_ascii_end().split(|byte| *byte == b'\n').count();
        let over = if lines > 1 { format!(" over {lines} lines") } else { String::new() };
        let what = format!("the row has {found} values{over}, expected {} columns", columns.len());
        Error::new(Kind::CorruptRecord, what)
    })
}

/// The fields that a row suggests if none were requested: its columns, as numbers if they are numeric.
pub fn guess_csv(record: &[u8], columns: &[String], delimiter: u8) -> Result<Vec<Wanted>> {
    let cells = cells(record, columns, &Readers::new(delimiter))?;
    let of = |cell: &[u8]| match std::str::from_utf8(cell).map(str::trim_ascii) {
        Ok(text) if text.parse::<i64>().is_ok() => Type::Int64,
        Ok(text) if text.parse::<f32>().is_ok() => Type::Float32,
        Ok(_) => Type::Text,
        Err(_) => Type::Bytes,
    };
    let fields = columns.iter().zip(cells.iter());
    Ok(fields.map(|(name, cell)| guessed(name, of(cell), Shape::Fixed(Vec::new()))).collect())
}

/// The fields if no row could be read.
pub(crate) fn any_csv(columns: &[String]) -> Vec<Wanted> {
    columns.iter().map(|name| guessed(name, Type::Text, Shape::Fixed(Vec::new()))).collect()
}
