//! The functions that fuzzers call for archives, arrays and text.

use std::sync::Arc;

use crate::error::{Kind, Result};
use crate::format::{
    Container, Packing, Parser, ReadAt, Scanned, Shape, Split, Type, Unpacker, Wanted, npy, tar,
    text,
};
use crate::sample::{Dtype, Value};
use crate::sys::slab::{Block, Row, carve};

/// The maximum number of bytes to unpack from one stream.
const MAX_UNPACKED: usize = 16 << 20;

/// Reads bytes as a tar. The first byte says whether to fix the checksums of headers first. Spans
/// are in order, and a sample becomes values or a fault.
///
/// # Panics
/// If that is not the case.
pub fn tar(input: &[u8]) {
    let Some((how, file)) = input.split_first() else { return };
    let mut file = file.to_vec();
    if how & 1 == 0 {
        file.chunks_exact_mut(512)
            .filter(|block| &block[257..262] == b"ustar")
            .for_each(fix_checksum);
    }
    let spans = spans(&Container::Tar, &file);
    let fields = [
        field("__key__", Type::Text, Shape::Fixed(vec![])),
        field("txt;cls;json", Type::Json, Shape::Fixed(vec![])),
        field("npy", Type::Npy(Dtype::Float32), Shape::Fixed(vec![2])),
        field("cls", Type::Int64, Shape::Variable(vec![])),
    ];
    for field in fields {
        read(&Container::Tar, &spans, vec![field]);
    }
    for span in &spans {
        if let Some(fields) = guessed(tar::guess(span)) {
            read(&Container::Tar, &[span], fields);
        }
    }
    stream(&Container::Tar, &file, &spans);
}

/// Writes the correct checksum into a header.
fn fix_checksum(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Reads bytes as a NumPy array: it has as many numbers as its header says, or it is a fault.
///
/// # Panics
/// If it is neither.
pub fn npy(input: &[u8]) {
    match npy::array(input) {
        Ok((header, numbers)) => {
            assert_eq!(header.bytes(), Some(numbers.len()));
            assert_eq!(header.data + numbers.len(), input.len());
            assert_eq!(npy::header(&input[..header.data]).ok(), Some(header));
        }
        Err(error) => {
            assert!([Kind::InvalidField, Kind::UnsafeFormat].contains(&error.kind()), "{error}");
        }
    }
}

/// Unpacks bytes as a compressed stream, of the kind that the first byte selects: this takes steps
/// of bounded size, or is a fault.
///
/// # Panics
/// If it is neither.
pub fn unpack(input: &[u8]) {
    let Some((kind, file)) = input.split_first() else { return };
    let packing = Packing::ALL[usize::from(*kind) % Packing::ALL.len()];
    let Ok(mut unpacker) = Unpacker::new(packing) else { return };
    let (mut used, mut unpacked) = (0, 0);
    while unpacked < MAX_UNPACKED {
        let mut bytes = Vec::new();
        match unpacker.unpack(&file[used..], &mut bytes) {
            Ok(0) if bytes.is_empty() => break,
            Ok(more) => used += more,
            Err(error) => {
                assert!(
                    [Kind::CorruptRecord, Kind::OutOfMemory].contains(&error.kind()),
                    "{error}"
                );
                return;
            }
        }
        assert!(used <= file.len() && bytes.len() <= file.len().max(1 << 20), "{}", bytes.len());
        unpacked += bytes.len();
    }
    let _ = unpacker.end();
    for container in [Container::Tar, Container::JsonLines, Container::Tfrecord { check: true }] {
        let first = &file[..file.len().min(Packing::FIRST)];
        if let Err(error) = Packing::of(first, &container) {
            assert_eq!(error.kind(), Kind::InvalidSource, "{error}");
        }
    }
}

/// Reads bytes as lines of JSON, each of which becomes values or a fault.
///
/// # Panics
/// If a line becomes neither.
pub fn jsonl(file: &[u8]) {
    let spans = spans(&Container::JsonLines, file);
    for of in [Type::Int64, Type::Float32, Type::Text, Type::Bytes, Type::Json] {
        let shapes = [Shape::Fixed(vec![]), Shape::Fixed(vec![2, 2]), Shape::Variable(vec![2])];
        for shape in shapes.into_iter().take(if of == Type::Json { 1 } else { 3 }) {
            read(&Container::JsonLines, &spans, vec![field("a", of, shape.clone())]);
            read(&Container::JsonLines, &spans, vec![field("a.b", of, shape)]);
        }
    }
    for span in &spans {
        if let Some(fields) = guessed(text::guess_json(span)) {
            read(&Container::JsonLines, &[span], fields);
        }
    }
    stream(&Container::JsonLines, file, &spans);
}

/// Reads bytes as CSV, whose rows become values or faults.
///
/// # Panics
/// If a row becomes neither.
pub fn csv(file: &[u8]) {
    let Ok(columns) = text::columns(file, b',', true) else { return };
    let columns: Arc<[String]> = columns.into();
    let container = Container::Csv { delimiter: b',', columns: Arc::clone(&columns) };
    let spans = spans(&container, file);
    let of = [Type::Int64, Type::Float32, Type::Text, Type::Bytes, Type::Json];
    for (name, of) in columns.iter().zip(of) {
        read(&container, &spans, vec![field(name, of, Shape::Fixed(vec![]))]);
    }
    if let Some(span) = spans.first()
        && let Some(fields) = guessed(text::guess_csv(span, &columns, b','))
    {
        read(&container, &spans, fields);
    }
    stream(&container, file, &spans);
}

fn field(key: &str, of: Type, shape: Shape) -> Wanted {
    Wanted { name: key.into(), key: key.into(), of, shape, is_sequence: false, default: None }
}

/// The spans that are not corrupt.
fn spans<'a>(container: &Container, file: &'a [u8]) -> Vec<&'a [u8]> {
    let read: &mut ReadAt<'_> = &mut |offset: u64, buffer: &mut [u8]| {
        let rest = &file[(offset as usize).min(file.len())..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    };
    let Scanned { spans, corrupt } =
        container.scan(file.len() as u64, read).expect("memory can be read");
    let mut end = 0;
    for span in &spans {
        assert!(span.start >= end, "{spans:?}");
        end = span.start + span.length;
    }
    assert!(end <= file.len() as u64, "{spans:?}");
    let is_good = |number: &usize| corrupt.iter().all(|corrupt| corrupt.span != *number as u64);
    let bytes = |number: usize| {
        let start = spans[number].start as usize;
        &file[start..start + spans[number].length as usize]
    };
    (0..spans.len()).filter(is_good).map(bytes).collect()
}

/// Reads the same bytes as a stream, in two parts: it must reach the end.
fn stream(container: &Container, file: &[u8], spans: &[&[u8]]) {
    let mut splitter = container.splitter();
    let (mut start, mut end) = (0, file.len() / 2);
    let (mut records, mut is_corrupt) = (Vec::new(), false);
    for _ in 0..2 * file.len() + 10 {
        match splitter.split(&file[start..end], end == file.len()) {
            Split::Record(length) => {
                records.push(&file[start..start + length]);
                start += length;
            }
            Split::Ignored(length) => start += length,
            Split::Corrupt(length, _) => {
                is_corrupt = true;
                start += length;
            }
            Split::More(length) => {
                assert!(length > end - start && end < file.len());
                end = file.len();
            }
            Split::End => {
                assert_eq!(start, file.len());
                assert!(is_corrupt || records.len() == spans.len() || spans.is_empty());
                return;
            }
        }
    }
    panic!("the stream does not end");
}

fn guessed(fields: Result<Vec<Wanted>>) -> Option<Vec<Wanted>> {
    match fields {
        Ok(fields) => Some(fields).filter(|fields| !fields.is_empty()),
        Err(error) => {
            let expected = [Kind::CorruptRecord, Kind::InvalidField, Kind::UnsafeFormat];
            assert!(expected.contains(&error.kind()), "{error}");
            None
        }
    }
}

fn read(container: &Container, spans: &[&[u8]], fields: Vec<Wanted>) {
    // A file may claim an array of any shape, but then it has the bytes for it.
    let rows = fields.iter().filter_map(|field| field.field().row_bytes());
    let mut rows: Vec<Row> = rows.flat_map(row).collect();
    let parser = match Parser::new(container, &fields.into(), None) {
        Ok(parser) => parser,
        Err(error) => {
            assert_eq!(error.kind(), Kind::InvalidArgument, "{error}");
            return;
        }
    };
    for span in spans {
        let payload = container.payload(span).expect("text and files have no frame");
        let mut others = Vec::new();
        match parser.read(payload, &mut rows, &mut others) {
            Ok(()) => {
                let bytes: usize = others.iter().map(bytes_of).sum();
                assert!(bytes <= parser.most_bytes(span.len()), "{bytes} bytes of {}", span.len());
            }
            Err(error) => {
                let expected = [Kind::CorruptRecord, Kind::InvalidField, Kind::UnsafeFormat];
                assert!(expected.contains(&error.kind()), "{error}");
            }
        }
    }
}

pub(super) fn row(bytes: usize) -> Vec<Row> {
    Block::new(bytes).map_or(Vec::new(), |block| carve(block, bytes, 1, Box::new(drop)))
}

pub(super) fn bytes_of(value: &Value) -> usize {
    match value {
        Value::Array(array) => array.bytes.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::Text(text) => text.len(),
        Value::List(list) => list.iter().map(|value| value.len() + size_of::<Vec<u8>>()).sum(),
    }
}
