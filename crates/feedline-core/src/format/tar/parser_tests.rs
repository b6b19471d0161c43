//! Tests of the tar parser.

use std::sync::Arc;

use super::tests::{Maker, Style, scan_bytes};
use super::*;
use crate::error::{Error, Kind, Result};
use crate::format::{Shape, Type, Wanted};
use crate::sample::{Dtype, Value};
use crate::sys::slab::{Block, carve};

fn span(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut maker = Maker::new();
    for (name, data) in members {
        maker.file(Style::Ustar, name, data);
    }
    let bytes = maker.done();
    let scanned = scan_bytes(&bytes);
    assert_eq!((scanned.spans.len(), &scanned.corrupt[..]), (1, &[][..]));
    bytes[..scanned.spans[0].length as usize].to_vec()
}

fn one(key: &str, of: Type, shape: Shape) -> Wanted {
    Wanted { name: key.into(), key: key.into(), of, shape, is_sequence: false, default: None }
}

fn fixed(key: &str, of: Type, shape: &[usize]) -> Wanted {
    one(key, of, Shape::Fixed(shape.to_vec()))
}

/// The values read: rows, then the other values as text.
fn read(span: &[u8], wanted: &[Wanted]) -> Result<(Vec<Vec<u8>>, Vec<String>)> {
    let parser = TarParser::new(wanted.into(), None)?;
    let sizes = wanted.iter().filter_map(|one| one.field().row_bytes());
    let mut rows: Vec<_> = sizes
        .map(|size| carve(Block::new(size).unwrap(), size, 1, Box::new(drop)).pop().unwrap())
        .collect();
    let mut others = Vec::new();
    parser.read(span, &mut rows, &mut others)?;
    let mut held = 0;
    let texts = others.iter().map(|value| match value {
        Value::Bytes(bytes) => {
            held += bytes.len();
            format!("bytes {bytes:?}", bytes = &bytes[..])
        }
        Value::Text(text) => {
            held += text.len();
            format!("text {text}")
        }
        Value::Array(array) => {
            held += array.bytes.len();
            format!("{:?} {:?} {:?}", array.dtype, array.shape, array.bytes)
        }
        Value::List(_) => unreachable!(),
    });
    let texts = texts.collect();
    assert!(held <= parser.most_bytes(span.len()), "{held}");
    Ok((rows.iter().map(|row| row.to_vec()).collect(), texts))
}

fn error(span: &[u8], wanted: &[Wanted]) -> Error {
    read(span, wanted).unwrap_err()
}

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn every_type_is_read_from_its_member() {
    let span = span(&[
        ("d/a.cls", b" 7\n"),
        ("d/a.xyz", b"1.5 2,-3"),
        ("d/a.txt", "gr\u{fc}n".as_bytes()),
        ("d/a.json", b"{\"b\": [1, 2.50]}"),
        ("d/a.raw", b"\x00\xff"),
        ("d/a.npy", &npy("<u2", "(2, 1)", &[1, 0, 2, 0])),
    ]);
    let wanted = [
        fixed("cls", Type::Int64, &[]),
        fixed("xyz", Type::Float32, &[3]),
        fixed("npy", Type::Npy(Dtype::Uint16), &[2, 1]),
        fixed("txt", Type::Text, &[]),
        fixed("json", Type::Json, &[]),
        fixed("raw", Type::Bytes, &[]),
        fixed("__key__", Type::Text, &[]),
        one("npy", Type::Npy(Dtype::Uint16), Shape::Variable(vec![1])),
        one("cls", Type::Int64, Shape::Variable(vec![])),
    ];
    let (rows, others) = read(&span, &wanted).unwrap();
    let xyz: Vec<u8> = [1.5_f32, 2.0, -3.0].iter().flat_map(|one| one.to_le_bytes()).collect();
    assert_eq!(rows, [7_i64.to_le_bytes().to_vec(), xyz, vec![1, 0, 2, 0]]);
    let expected = [
        "text gr\u{fc}n",
        "text {\"b\": [1, 2.50]}",
        "bytes [0, 255]",
        "text d/a",
        "Uint16 [2, 1] [1, 0, 2, 0]",
        "Int64 [1] [7, 0, 0, 0, 0, 0, 0, 0]",
    ];
    assert_eq!(others, expected);
}

#[test]
fn the_image_is_passed_as_bytes_and_is_no_other_field() {
    let span = span(&[("a.jpg", b"JPEG"), ("a.cls", b"1")]);
    let wanted: Arc<[Wanted]> =
        [fixed("png;jpg", Type::Bytes, &[]), fixed("cls", Type::Int64, &[])].into();
    let parser = TarParser::new(wanted, Some(0)).unwrap();
    assert_eq!(parser.picture(&span).unwrap(), b"JPEG");
    assert_eq!(parser.most_bytes(1000), 0);
    let mut others = Vec::new();
    let mut rows = carve(Block::new(8).unwrap(), 8, 1, Box::new(drop));
    parser.read(&span, &mut rows, &mut others).unwrap();
    assert!(others.is_empty());
    assert_eq!(rows[0][..], 1_i64.to_le_bytes());
}

#[test]
fn a_missing_or_wrong_member_is_named_with_what_was_found() {
    let span = span(&[
        ("a.cls", b"cat"),
        ("a.txt", b"\xff"),
        ("a.json", b"{"),
        ("a.npy", &npy("<f4", "(2,)", &[0; 8])),
    ]);
    let npy_of = |dtype, shape| fixed("npy", Type::Npy(dtype), shape);
    let errors = [
        fixed("jpg", Type::Bytes, &[]),
        fixed("cls", Type::Int64, &[]),
        fixed("txt", Type::Text, &[]),
        fixed("json", Type::Json, &[]),
        npy_of(Dtype::Int64, &[2]),
        npy_of(Dtype::Float32, &[3]),
        fixed("cls", Type::Npy(Dtype::Int64), &[]),
        one("npy", Type::Npy(Dtype::Float32), Shape::Variable(vec![2])),
    ]
    .map(|wanted| {
        let error = error(&span, &[wanted]);
        assert_eq!(error.kind(), Kind::InvalidField);
        error.message().to_owned()
    });
    insta::assert_snapshot!(errors.join("\n"), @r#"
    no member "jpg"; the sample has cls, txt, json, npy
    member "a.cls" holds "cat", expected a number of int64
    member "a.txt" is not UTF-8 from byte 0 on
    member "a.json" is not JSON: EOF while parsing an object at line 1 column 1
    member "a.npy" holds float32, expected int64
    member "a.npy" has shape [2], expected shape [3]
    member "a.cls": not a NumPy array: the first bytes are [63, 61, 74]
    member "a.npy" has shape [2], expected shape [None, 2]
    "#);
}

#[test]
fn a_default_replaces_only_a_missing_member() {
    let span = span(&[("a.cls", b"cat")]);
    let with = |key: &str, of, shape, default: &[u8]| Wanted {
        default: Some(default.to_vec()),
        ..one(key, of, shape)
    };
    let number = 9_i64.to_le_bytes();
    let wanted = [
        with("x", Type::Int64, Shape::Fixed(vec![]), &number),
        with("x", Type::Text, Shape::Fixed(vec![]), b"none"),
        with("x", Type::Bytes, Shape::Fixed(vec![]), b"b"),
        with("x", Type::Int64, Shape::Variable(vec![]), &number),
        with("x", Type::Int64, Shape::Variable(vec![2]), &[]),
    ];
    let (rows, others) = read(&span, &wanted).unwrap();
    assert_eq!(rows, [number]);
    let array = "Int64 [1] [9, 0, 0, 0, 0, 0, 0, 0]";
    assert_eq!(others, ["text none", "bytes [98]", array, "Int64 [0, 2] []"]);
    let wrong = with("cls", Type::Int64, Shape::Fixed(vec![]), &number);
    assert_eq!(error(&span, &[wrong]).kind(), Kind::InvalidField);
}

#[test]
fn a_pickle_is_read_as_bytes_or_not_at_all() {
    let objects = npy("|O", "(1,)", b"\x80\x04.");
    let span = span(&[("a.pkl", b"\x80\x04."), ("a.npy", &objects)]);
    let text = error(&span, &[fixed("pkl", Type::Text, &[])]);
    assert_eq!(text.kind(), Kind::UnsafeFormat);
    assert!(text.message().contains(".pkl"), "{text}");
    let array = error(&span, &[fixed("npy", Type::Npy(Dtype::Int8), &[1])]);
    assert_eq!(array.kind(), Kind::UnsafeFormat);
    assert!(array.message().contains("\"a.npy\""), "{array}");
    let bytes = read(&span, &[fixed("pkl", Type::Bytes, &[])]).unwrap();
    assert_eq!(bytes.1, ["bytes [128, 4, 46]"]);
}

#[test]
fn fields_that_a_tar_cannot_hold_are_refused() {
    let sequence = Wanted { is_sequence: true, ..fixed("cls", Type::Int64, &[]) };
    let wrong = [
        sequence,
        fixed("txt", Type::Text, &[2]),
        fixed("__url__", Type::Text, &[]),
        fixed("__key__", Type::Bytes, &[]),
    ];
    for wanted in wrong {
        let error = TarParser::new([wanted].into(), None).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument, "{error}");
    }
}

#[test]
fn a_guess_reads_every_member_but_pickles() {
    let span = span(&[
        ("a.JPG", b"JPEG"),
        ("a.cls", b"3"),
        ("a.id", b"n01"),
        ("a.meta.json", b"{}"),
        ("a.txt", b"hello"),
        ("a.pkl", b"\x80"),
        ("a.npy", &npy("<i4", "(1,)", &[1, 0, 0, 0])),
        ("a.object.npy", &npy("|O", "(1,)", b"")),
        ("a.seg.png", b"PNG"),
    ]);
    let wanted = guess(&span).unwrap();
    let found: Vec<_> = wanted.iter().map(|one| (&*one.key, one.of, one.shape.clone())).collect();
    let single = Shape::Fixed(vec![]);
    let expected = [
        ("__key__", Type::Text, single.clone()),
        ("jpg", Type::Bytes, single.clone()),
        ("cls", Type::Int64, single.clone()),
        ("id", Type::Text, single.clone()),
        ("meta.json", Type::Json, single.clone()),
        ("txt", Type::Text, single.clone()),
        ("npy", Type::Npy(Dtype::Int32), Shape::Fixed(vec![1])),
        ("seg.png", Type::Bytes, single),
    ];
    assert_eq!(found, expected);
    assert_eq!(read(&span, &wanted).unwrap().0.len(), 2);
}
