//! The functions that fuzzers call, and tests call with the corpus. Each accepts any bytes and
//! panics only if a promise is broken.

use crate::config::{Given, Settings, picture_of};
use crate::decode::{Mode, Options};
use crate::error::Kind;
use crate::format::{Shape, Split, Type, Wanted, example, tfrecord as framing};
use crate::sample::{Dtype, Field, Ticket};
use crate::sys::slab::Row;
use crate::transform::{Decoding, Native, Picture, Prepared, Size, Step, Transform};
use crate::{decode::resize::Filter, transform::Output};

use super::fuzz_files::{bytes_of, row};
pub use super::fuzz_files::{csv, jsonl, npy, tar, unpack};

/// Larger pictures are refused, to keep fuzzing fast.
const MAX_PIXELS: usize = 1 << 20;

/// Decodes a file: the first byte chooses the options, the others are the file. The outcome is a
/// picture or a sample fault, never an internal error.
///
/// # Panics
/// If the outcome is neither.
pub fn decode(input: &[u8]) {
    let Some((how, file)) = input.split_first() else { return };
    let transform = transform(*how);
    let ticket = Ticket { position: u64::from(*how), epoch: 0, index: 0 };
    let outcome = Prepared::new(&transform, file, ticket).and_then(|prepared| {
        assert!(prepared.working_bytes < MAX_PIXELS * 128, "{} bytes", prepared.working_bytes);
        let shape = transform.shape_of(prepared.size);
        let mut row = vec![0; shape.iter().product::<usize>() * transform.output.dtype.bytes()];
        Native::default().make(&transform, &prepared, file, &mut row)
    });
    if let Err(error) = outcome {
        let expected = [Kind::CorruptImage, Kind::UnknownFormat, Kind::TooLarge, Kind::TooSmall];
        assert!(expected.contains(&error.kind()), "{:?}: {error}", error.kind());
    }
}

fn transform(how: u8) -> Transform {
    let mode = if how & 1 == 0 { Mode::Rgb } else { Mode::Gray };
    let options = Options { mode, orient: how & 2 != 0, max_pixels: MAX_PIXELS };
    let decoding = Decoding { options, scaled: how & 4 != 0 };
    let size = Size { height: 20, width: 30 };
    let steps = match how >> 3 & 3 {
        0 => vec![],
        1 => vec![
            Step::ResizeTo(size, Filter::Bicubic),
            Step::CenterCrop(Size { height: 16, width: 16 }),
        ],
        2 => vec![Step::RandomCrop { size, padding: 4 }, Step::Flip(0.5)],
        _ => vec![
            Step::RandomResizedCrop {
                size,
                scale: (0.08, 1.0),
                ratio: (0.75, 4.0 / 3.0),
                filter: Filter::Bilinear,
            },
            Step::Flip(1.0),
        ],
    };
    let output = Output::plain(Dtype::Uint8, crate::transform::Layout::Hwc);
    Transform { picture: Picture::Encoded(decoding), steps, output, seed: 1 }
}

/// Parses settings: any text is an error with a message, or becomes valid settings.
///
/// # Panics
/// If neither is the case.
pub fn settings(input: &[u8]) {
    let Ok(config) = std::str::from_utf8(input) else { return };
    let arrays = vec![
        Field::fixed("image", Dtype::Uint8, &[8, 9, 3]),
        Field::fixed("x", Dtype::Float32, &[4]),
    ];
    assert!(picture_of(&arrays).is_some());
    for given in [Given::Files, Given::Arrays(arrays)] {
        match Settings::parse(config, &given) {
            Ok(settings) => {
                assert!(settings.batching.is_none_or(|batching| batching.size > 0));
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::InvalidArgument, "{error}");
                assert!(!error.message().is_empty() && !error.hint().is_empty());
            }
        }
    }
}

/// Reads bytes as a TFRecord file: each byte belongs to a record or to a corrupt span, in order,
/// and writing a record that has valid checksums gives the same bytes.
///
/// # Panics
/// If that is not the case.
pub fn tfrecord(file: &[u8]) {
    let mut read = |offset: u64, buffer: &mut [u8]| {
        let rest = &file[(offset as usize).min(file.len())..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    };
    let scanned = framing::scan(file.len() as u64, &mut read).expect("memory can be read");
    let mut end = 0;
    for (number, span) in scanned.spans.iter().enumerate() {
        assert_eq!(span.start, end, "span {number} of {scanned:?}");
        end += span.length;
        let bytes = &file[span.start as usize..end as usize];
        match framing::payload(bytes, true) {
            Ok(data) => {
                let mut again = Vec::new();
                framing::write(data, &mut again);
                assert_eq!(again, bytes);
            }
            Err(error) => assert_eq!(error.kind(), Kind::CorruptRecord, "{error}"),
        }
        let unchecked = framing::payload(bytes, false);
        assert!(unchecked.is_ok() || framing::payload(bytes, true).is_err());
    }
    assert_eq!(end, file.len() as u64);
    let mut rest = file;
    loop {
        match framing::split(rest, true) {
            Split::Record(length) | Split::Corrupt(length, _) => {
                assert!(length > 0);
                rest = &rest[length..];
            }
            Split::End => break,
            other @ (Split::More(_) | Split::Ignored(_)) => panic!("{other:?} at the end"),
        }
    }
    assert!(!matches!(framing::split(file, false), Split::End));
}

/// Reads bytes as a tf.train.Example: the first byte chooses the fields, the others are the record.
/// The outcome is values within their bounds, or a sample fault.
///
/// # Panics
/// If the outcome is neither.
pub fn example(input: &[u8]) {
    let Some((how, record)) = input.split_first() else { return };
    let field = |key: &str, of: Type, shape: Shape, is_sequence: bool| Wanted {
        name: format!("{key} of {shape:?}").into(),
        key: key.into(),
        of,
        shape,
        is_sequence,
        default: None,
    };
    let of = [Type::Int64, Type::Float32, Type::Bytes, Type::Text][usize::from(*how & 3)];
    let shape = match how >> 2 & 3 {
        0 => Shape::Fixed(vec![]),
        1 => Shape::Fixed(vec![2, 2]),
        2 => Shape::Variable(vec![]),
        _ => Shape::Variable(vec![3]),
    };
    let is_sequence = how & 16 != 0 && matches!(shape, Shape::Fixed(_));
    let mut wanted = vec![field("a", of, shape, is_sequence)];
    if how & 32 != 0 {
        wanted.push(field("b", Type::Int64, Shape::Variable(vec![5]), false));
        wanted.push(field("a", Type::Bytes, Shape::Fixed(vec![1]), true));
    }
    let rows = wanted.iter().filter_map(|field| field.field().row_bytes());
    let mut rows: Vec<Row> = rows.flat_map(row).collect();
    let parser = example::ExampleParser::new(wanted.into(), None).expect("fields of an Example");
    let mut others = Vec::new();
    match parser.read(record, &mut rows, &mut others) {
        Ok(()) => {
            let bytes: usize = others.iter().map(bytes_of).sum();
            assert!(bytes <= parser.most_bytes(record.len()), "{bytes} bytes of {}", record.len());
        }
        Err(error) => {
            let expected = [Kind::CorruptRecord, Kind::InvalidField];
            assert!(expected.contains(&error.kind()), "{error}");
        }
    }
    assert!(example::schema(std::iter::once(record)).python().starts_with(".parse({"));
}
