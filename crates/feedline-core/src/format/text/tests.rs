//! Lines of JSON and rows of CSV: their values, their errors, every flipped byte.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::value::{JsonType, parts, under, unquoted};
use super::*;
use crate::error::{Kind, Result};
use crate::format::{Container, ReadAt, Scanned, Shape, Split, Type, Wanted};
use crate::sample::Value;
use crate::sys::slab::{Block, Row, carve};

fn scanned(
    bytes: &[u8],
    scan: impl FnOnce(u64, &mut ReadAt<'_>) -> Result<Scanned>,
) -> (Vec<Vec<u8>>, Vec<String>) {
    let made = scan(bytes.len() as u64, &mut |start, buffer: &mut [u8]| {
        let start = (start as usize).min(bytes.len());
        let count = buffer.len().min(bytes.len() - start);
        buffer[..count].copy_from_slice(&bytes[start..start + count]);
        Ok(count)
    })
    .unwrap();
    let mut end = 0;
    let mut records = Vec::new();
    for (number, span) in made.spans.iter().enumerate() {
        assert!(span.start >= end && span.start + span.length <= bytes.len() as u64);
        end = span.start + span.length;
        if made.corrupt.iter().all(|corrupt| corrupt.span != number as u64) {
            records.push(bytes[span.start as usize..end as usize].to_vec());
        }
    }
    (records, made.corrupt.into_iter().map(|corrupt| corrupt.what).collect())
}

fn streamed(
    bytes: &[u8],
    part: usize,
    mut split: impl FnMut(&[u8], bool) -> Split,
) -> (Vec<Vec<u8>>, Vec<String>) {
    let (mut records, mut corrupt) = (Vec::new(), Vec::new());
    let (mut start, mut end) = (0, 0);
    for _ in 0..bytes.len() * 4 + 100 {
        match split(&bytes[start..end], end == bytes.len()) {
            Split::Record(length) => {
                records.push(bytes[start..start + length].to_vec());
                start += length;
            }
            Split::Ignored(length) => start += length,
            Split::Corrupt(length, what) => {
                corrupt.push(what);
                start += length;
            }
            Split::More(length) => {
                assert!(length > end - start && end < bytes.len());
                end = (end + part).min(bytes.len());
            }
            Split::End => {
                assert_eq!(start, bytes.len());
                return (records, corrupt);
            }
        }
    }
    panic!("the stream does not end");
}

fn one(key: &str, of: Type, shape: Shape) -> Wanted {
    Wanted { name: key.into(), key: key.into(), of, shape, is_sequence: false, default: None }
}

fn fixed(key: &str, of: Type, shape: &[usize]) -> Wanted {
    one(key, of, Shape::Fixed(shape.to_vec()))
}

fn variable(key: &str, of: Type, inner: &[usize]) -> Wanted {
    one(key, of, Shape::Variable(inner.to_vec()))
}

/// All values as text, those with rows first.
fn values_as_text(
    wanted: &[Wanted],
    most: usize,
    read: impl FnOnce(&mut [Row], &mut Vec<Value>) -> Result<()>,
) -> Result<Vec<String>> {
    let rows = wanted.iter().filter_map(|one| Some((one.dtype()?, one.field().row_bytes()?)));
    let (types, mut rows): (Vec<_>, Vec<_>) = rows
        .map(|(dtype, size)| {
            (dtype, carve(Block::new(size).unwrap(), size, 1, Box::new(drop)).pop().unwrap())
        })
        .unzip();
    let mut others = Vec::new();
    read(&mut rows, &mut others)?;
    let numbers = |dtype: crate::sample::Dtype, bytes: &[u8]| match dtype.bytes() {
        8 => {
            let numbers = bytes.chunks(8).map(|one| i64::from_le_bytes(one.try_into().unwrap()));
            format!("{:?}", numbers.collect::<Vec<_>>())
        }
        _ => {
            let numbers = bytes.chunks(4).map(|one| f32::from_le_bytes(one.try_into().unwrap()));
            format!("{:?}", numbers.collect::<Vec<_>>())
        }
    };
    let mut held = 0;
    let mut values_as_text: Vec<_> =
        types.iter().zip(&rows).map(|(dtype, row)| numbers(*dtype, row)).collect();
    for value in &others {
        let (bytes, word) = match value {
            Value::Bytes(bytes) => (bytes.len(), format!("{:?}", &bytes[..])),
            Value::Text(text) => (text.len(), text.to_string()),
            Value::Array(array) => {
                let numbers = numbers(array.dtype, &array.bytes);
                (array.bytes.len(), format!("{:?} {numbers}", array.shape))
            }
            Value::List(list) => {
                let texts = list.iter().map(|one| String::from_utf8_lossy(one).into_owned());
                (list.iter().map(|one| one.len()).sum(), texts.collect::<Vec<_>>().join("|"))
            }
        };
        held += bytes;
        values_as_text.push(word);
    }
    assert!(held <= most, "{held} bytes are more than {most}");
    Ok(values_as_text)
}

fn json_as_text(line: &str, wanted: &[Wanted]) -> Result<Vec<String>> {
    let parser = JsonParser::new(wanted.into(), None)?;
    values_as_text(wanted, parser.most_bytes(line.len()), |rows, others| {
        parser.read(line.as_bytes(), rows, others)
    })
}

fn csv_as_text(row: &str, columns: &[&str], wanted: &[Wanted]) -> Result<Vec<String>> {
    let columns: Arc<[String]> = columns.iter().map(|&name| name.to_owned()).collect();
    let parser = CsvParser::new(wanted.into(), None, &columns, b',')?;
    values_as_text(wanted, parser.most_bytes(row.len()), |rows, others| {
        parser.read(row.as_bytes(), rows, others)
    })
}

#[test]
fn blank_lines_are_skipped_and_the_last_line_needs_no_newline() {
    let bytes = b"\xef\xbb\xbf{\"a\":1}\r\n\n  \r\n[2]\n3";
    let expected: Vec<Vec<u8>> = vec![b"{\"a\":1}\r\n".to_vec(), b"[2]\n".to_vec(), b"3".to_vec()];
    assert_eq!(scanned(bytes, scan_lines), (expected.clone(), vec![]));
    let mut splitter = Container::JsonLines.splitter();
    let found = streamed(bytes, 1, |bytes, is_end| splitter.split(bytes, is_end));
    assert_eq!(found, (expected, vec![]));
    assert!(scanned(b"", scan_lines).1.is_empty());
}

#[test]
fn lines_are_found_across_read_buffers() {
    let lines: Vec<Vec<u8>> = (0..200)
        .map(|number| vec![b'x'; number * 37 % 5000].into_iter().chain([b'\n']).collect())
        .collect();
    let bytes = lines.concat();
    assert!(bytes.len() > WINDOW);
    let expected: Vec<_> = lines.into_iter().filter(|line| line.len() > 1).collect();
    assert_eq!(scanned(&bytes, scan_lines), (expected.clone(), vec![]));
    let rows = [&b"x\n"[..], &bytes[..]].concat();
    let columns = ["x".to_owned()];
    let scan = |size, read: &mut ReadAt<'_>| scan_csv(size, b',', &columns, read);
    assert_eq!(scanned(&rows, scan), (expected, vec![]));
}

#[test]
fn every_type_is_read_from_json() {
    let line = r#" {"a": 1, "b": {"c": [1, 2.5e0, -3], "d.e": "x"}, "t": "gr\u00fcn\n", "n": null,
        "m": [[1, 2], [3, 4]], "w": ["a", "b\"c"], "y": true, "a": 7, "b.z": 5, "e": []} "#;
    let wanted = [
        fixed("a", Type::Int64, &[]),
        fixed("b.c", Type::Float32, &[3]),
        fixed("m", Type::Int64, &[2, 2]),
        fixed("y", Type::Int64, &[]),
        fixed("b.z", Type::Int64, &[]),
        fixed("t", Type::Text, &[]),
        fixed("t", Type::Bytes, &[]),
        fixed("b", Type::Json, &[]),
        fixed("n", Type::Json, &[]),
        variable("m", Type::Float32, &[2]),
        variable("e", Type::Int64, &[2]),
        variable("w", Type::Text, &[]),
        fixed("b.d.e", Type::Text, &[]),
    ];
    let expected = [
        "[7]",
        "[1.0, 2.5, -3.0]",
        "[1, 2, 3, 4]",
        "[1]",
        "[5]",
        "gr\u{fc}n\n",
        "[103, 114, 195, 188, 110, 10]",
        r#"{"c": [1, 2.5e0, -3], "d.e": "x"}"#,
        "null",
        "[2, 2] [1.0, 2.0, 3.0, 4.0]",
        "[0, 2] []",
        "a|b\"c",
        "x",
    ];
    assert_eq!(json_as_text(line, &wanted).unwrap(), expected);
}

#[test]
fn errors_in_json_name_what_was_found() {
    let line = r#"{"a": 1.5, "t": "x", "m": [[1], [2, 3]], "n": null, "l": [1, "2"], "big": 1e39}"#;
    let wrong = [
        fixed("x", Type::Int64, &[]),
        fixed("n", Type::Int64, &[]),
        fixed("a", Type::Int64, &[]),
        fixed("a", Type::Text, &[]),
        fixed("t", Type::Float32, &[]),
        fixed("m", Type::Int64, &[2, 2]),
        fixed("m", Type::Int64, &[2]),
        fixed("a", Type::Float32, &[1]),
        fixed("l", Type::Int64, &[2]),
        fixed("l", Type::Text, &[2]),
        fixed("big", Type::Float32, &[]),
        variable("t", Type::Text, &[]),
    ];
    let mut messages: Vec<_> = wrong
        .into_iter()
        .map(|wanted| {
            let error = json_as_text(line, &[wanted]).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidField);
            error.message().to_owned()
        })
        .collect();
    for line in ["{\"a\": 1,}", "{\"a\": tru}", "", "{\"a\": 1} 2", "\u{0}", "[1]"] {
        let error = json_as_text(line, &[fixed("a", Type::Int64, &[])]).unwrap_err();
        messages.push(format!("{}: {}", error.kind().name(), error.message()));
    }
    insta::assert_snapshot!(messages.join("\n"), @r#"
    no value for key "x", the line has a, t, m, n, l, big
    key "n" is null, expected a value
    key "a" holds 1.5, expected a number of int64
    key "a" holds a number, expected text
    key "t" holds "x", expected a number of float32
    key "m" holds lists of different lengths
    key "m" holds [1], expected a number of int64
    key "a" holds a number, expected a list
    key "l" holds "2", expected a number of int64
    key "l" holds a number, expected text
    key "big" holds 1e39, expected a number that float32 can hold
    key "t" holds text, expected a list of text
    CorruptRecordError: the line is not JSON: key must be a string at line 1 column 9
    CorruptRecordError: the line is not JSON: expected ident at line 1 column 10
    CorruptRecordError: the line is not JSON: EOF while parsing a value at line 1 column 0
    CorruptRecordError: the line is not JSON: trailing characters at line 1 column 10
    CorruptRecordError: the line is not JSON: expected value at line 1 column 1
    InvalidFieldError: no value for key "a", the line is a list, not an object
    "#);
}

#[test]
fn a_default_replaces_a_missing_or_null_value() {
    let with = |one: Wanted, default: &[u8]| Wanted { default: Some(default.to_vec()), ..one };
    let number = 9_i64.to_le_bytes();
    let wanted = [
        with(fixed("x", Type::Int64, &[]), &number),
        with(fixed("n", Type::Int64, &[]), &number),
        with(fixed("n", Type::Text, &[]), b"none"),
        with(variable("n", Type::Text, &[]), b""),
        with(fixed("n", Type::Text, &[2]), b"u"),
    ];
    let values_as_text = json_as_text(r#"{"n": null}"#, &wanted).unwrap();
    assert_eq!(values_as_text, ["[9]", "[9]", "none", "", "u|u"]);
    let columns = ["n", "t"];
    let wanted = [
        with(fixed("n", Type::Int64, &[]), &number),
        with(fixed("gone", Type::Text, &[]), b"none"),
        with(fixed("t", Type::Text, &[]), b"none"),
    ];
    assert_eq!(csv_as_text(" ,\n", &columns, &wanted).unwrap(), ["[9]", "none", ""]);
}

#[test]
fn text_cannot_hold_numpy_arrays_or_sequences() {
    let npy = fixed("a", Type::Npy(crate::sample::Dtype::Int8), &[1]);
    let sequence = Wanted { is_sequence: true, ..fixed("a", Type::Int64, &[]) };
    for wanted in [npy, sequence, variable("a", Type::Json, &[])] {
        let error = JsonParser::new([wanted.clone()].into(), None).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        let columns: Arc<[String]> = ["a".to_owned()].into();
        let error = CsvParser::new([wanted].into(), None, &columns, b',').unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
    }
}

#[test]
fn guesses_can_be_read() {
    let line = r#"{"i": 1, "f": 0.5, "t": "x", "l": [1, 2.5], "o": {"a": 1}, "b": true, "e": [], "n": null}"#;
    let wanted = guess_json(line.as_bytes()).unwrap();
    let found: Vec<_> = wanted.iter().map(|one| (&*one.key, one.of)).collect();
    let expected = [
        ("i", Type::Int64),
        ("f", Type::Float32),
        ("t", Type::Text),
        ("l", Type::Float32),
        ("o", Type::Json),
        ("b", Type::Json),
        ("e", Type::Json),
        ("n", Type::Json),
    ];
    assert_eq!(found, expected);
    assert_eq!(json_as_text(line, &wanted).unwrap().len(), 8);
    let list = guess_json(b"[1, 2]").unwrap();
    assert_eq!(json_as_text("[1, 2]", &list).unwrap(), ["[1, 2]"]);

    let columns = ["i", "f", "t", "e"].map(str::to_owned);
    let wanted = guess_csv(b"1,2.5,x,\n", &columns, b',').unwrap();
    let found: Vec<_> = wanted.iter().map(|one| one.of).collect();
    assert_eq!(found, [Type::Int64, Type::Float32, Type::Text, Type::Text]);
}

#[test]
fn csv_is_read_by_the_names_of_its_columns() {
    let columns = ["id", "text", "box", "json"];
    let wanted = [
        fixed("box", Type::Float32, &[2]),
        fixed("id", Type::Int64, &[]),
        fixed("text", Type::Text, &[]),
        fixed("json", Type::Json, &[]),
        variable("box", Type::Float32, &[]),
    ];
    let row = "7,\"a \"\"b\"\"\nc\",1.5 2,\"{\"\"k\"\": 1}\"\r\n";
    let values_as_text = csv_as_text(row, &columns, &wanted).unwrap();
    assert_eq!(values_as_text, ["[1.5, 2.0]", "[7]", "a \"b\"\nc", "{\"k\": 1}", "[2] [1.5, 2.0]"]);
    let messages = [
        ("7,x,1 2\n", Kind::CorruptRecord),
        ("7,x,1 2,3,\"4\n5\"\n", Kind::CorruptRecord),
        ("x,x,1 2,3\n", Kind::InvalidField),
        (",x,1 2,3\n", Kind::InvalidField),
        ("1,x,1 2 3,3\n", Kind::InvalidField),
        ("1,x,1 2,{\n", Kind::InvalidField),
    ]
    .map(|(row, kind)| {
        let error = csv_as_text(row, &columns, &wanted).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        error.message().to_owned()
    });
    insta::assert_snapshot!(messages.join("\n"), @r#"
    the row has 3 values, expected 4 columns
    the row has 5 values over 2 lines, expected 4 columns
    column "id" holds "x", expected a number of int64
    column "id" is empty, expected a value
    column "box" holds 3 numbers, expected shape [2]
    column "json" is not JSON: EOF while parsing an object at line 1 column 1
    "#);
    let gone = csv_as_text("", &columns, &[fixed("x", Type::Text, &[])]).unwrap_err();
    assert_eq!(gone.kind(), Kind::InvalidArgument);
    assert_eq!(gone.message(), "no column \"x\"; the columns are id, text, box, json");
    let forged = ["id", "a\nforged: all is well"];
    let gone = csv_as_text("", &forged, &[fixed("x", Type::Text, &[])]).unwrap_err();
    assert_eq!(gone.message(), "no column \"x\"; the columns are id, a\\nforged: all is well");
}

#[test]
fn the_first_row_names_the_columns_and_must_be_the_same_in_every_file() {
    assert_eq!(
        columns(b"\xef\xbb\xbfa, b ,\"c\n\"\r\n1,2,3", b',', false).unwrap(),
        ["a", "b", "c"]
    );
    assert_eq!(columns(b"a;b", b';', true).unwrap(), ["a", "b"]);
    for bytes in [&b"a,b"[..], b"", b"\"a\n", b"a,a\n"] {
        assert_eq!(columns(bytes, b',', false).unwrap_err().kind(), Kind::InvalidSource);
    }
    let columns = ["a".to_owned(), "b".to_owned()];
    let bytes = b"b,a\n1,2\n3,4\n";
    let (rows, corrupt) = scanned(bytes, |size, read| scan_csv(size, b',', &columns, read));
    assert!(rows.is_empty());
    assert_eq!(corrupt, ["its columns are b, a, those of the first file a, b"]);
    let mut splitter = CsvSplitter::new(b',', &columns);
    let from_stream = streamed(bytes, 1, |bytes, is_end| splitter.split(bytes, is_end));
    assert_eq!(from_stream, (rows, corrupt));
}

#[test]
fn an_unclosed_quote_costs_its_line_and_not_the_file() {
    let bytes = b"a,b\n1,2\n3,\"x\n5,6\n7,8\n";
    let columns = ["a".to_owned(), "b".to_owned()];
    let (rows, corrupt) = scanned(bytes, |size, read| scan_csv(size, b',', &columns, read));
    assert_eq!(rows, [b"1,2\n", b"5,6\n", b"7,8\n"]);
    assert_eq!(corrupt, ["a quote in the row at byte 8 is never closed"]);
    let mut splitter = CsvSplitter::new(b',', &columns);
    let (from_stream, corrupt) = streamed(bytes, 1, |bytes, is_end| splitter.split(bytes, is_end));
    assert_eq!((from_stream, corrupt.len()), (rows, 1));
}

#[test]
fn a_byte_order_mark_counts_only_at_the_beginning_of_a_file() {
    let bytes = "\u{feff}a,b\n\u{feff}1,2\n\u{feff}\n3,4\n".as_bytes();
    let columns = ["a".to_owned(), "b".to_owned()];
    let (rows, corrupt) = scanned(bytes, |size, read| scan_csv(size, b',', &columns, read));
    let expected = ["\u{feff}1,2\n", "\u{feff}\n", "3,4\n"].map(str::as_bytes);
    assert_eq!((&*rows, corrupt.len()), (&expected.map(<[u8]>::to_vec)[..], 0));
    for size in 1..bytes.len() {
        let mut splitter = CsvSplitter::new(b',', &columns);
        let from_stream = streamed(bytes, size, |bytes, is_end| splitter.split(bytes, is_end));
        assert_eq!(from_stream.0, rows);
    }
    let wanted = [fixed("a", Type::Text, &[])];
    let read = csv_as_text("\u{feff}1,2", &["a", "b"], &wanted).unwrap();
    assert!(read[0].contains("\u{feff}1") || read[0].contains("\\u{feff}1"), "{read:?}");
}

/// Quotes a cell if it needs quotes.
fn quoted(cell: &str) -> String {
    match cell.contains(['"', ',', '\n', '\r']) || cell.is_empty() {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|value| json!(value)),
        any::<i64>().prop_map(|value| json!(value)),
        any::<i32>().prop_map(|value| json!(f64::from(value) / 8.0)),
        "[a-c\\\\\"\n\u{fc}\\[\\]{},: ]{0,5}".prop_map(|value| json!(value)),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|values| json!(values)),
            prop::collection::btree_map("[a-c\\\\\" .]{0,2}", inner, 0..4)
                .prop_map(|values| json!(values)),
        ]
    })
}

/// The value that the walk over the text finds.
fn walked(text: &str) -> serde_json::Value {
    match JsonType::of(text) {
        JsonType::Null | JsonType::Bool(_) | JsonType::Number => {
            serde_json::from_str(text).unwrap()
        }
        JsonType::Text => json!(unquoted(text).unwrap()),
        JsonType::List => parts(text).map(|(_, value)| walked(value)).collect(),
        JsonType::Object => {
            let entries = parts(text).map(|(key, value)| (unquoted(key).unwrap(), walked(value)));
            json!(entries.collect::<std::collections::BTreeMap<_, _>>())
        }
    }
}

proptest! {
    #[test]
    fn the_walk_over_json_finds_what_serde_json_finds(value in any_json(), is_pretty: bool) {
        let text = match is_pretty {
            true => serde_json::to_string_pretty(&value).unwrap(),
            false => value.to_string(),
        };
        prop_assert_eq!(walked(&text), value.clone());
        for (key, inner) in value.as_object().into_iter().flatten() {
            prop_assert_eq!(under(&text, key).map(walked), Some(inner.clone()));
        }
    }

    #[test]
    fn rows_of_csv_survive_a_round_trip(
        rows in prop::collection::vec(prop::collection::vec("[ab \",\n\r;]{0,5}", 3), 0..8),
        newline in prop_oneof![Just("\n"), Just("\r\n")],
        has_last_newline: bool,
        part in 1..40_usize,
    ) {
        let lines: Vec<_> = rows
            .iter()
            .map(|row| row.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(","))
            .collect();
        let mut text = format!("x,y,z{newline}{}", lines.join(newline));
        if has_last_newline {
            text.push_str(newline);
        }
        let columns = ["x", "y", "z"].map(str::to_owned);
        let (records, corrupt) = scanned(text.as_bytes(), |size, read| scan_csv(size, b',', &columns, read));
        prop_assert_eq!(&corrupt, &Vec::<String>::new());
        let wanted = ["x", "y", "z"].map(|name| fixed(name, Type::Text, &[]));
        let cells: Vec<_> = records
            .iter()
            .map(|row| csv_as_text(std::str::from_utf8(row).unwrap(), &["x", "y", "z"], &wanted).unwrap())
            .collect();
        prop_assert_eq!(cells, rows);
        let mut splitter = CsvSplitter::new(b',', &columns);
        let trimmed = |records: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
            records.into_iter().map(|record| record.trim_ascii_end().to_vec()).collect()
        };
        let (from_stream, corrupt) =
            streamed(text.as_bytes(), part, |bytes, is_end| splitter.split(bytes, is_end));
        prop_assert_eq!((trimmed(from_stream), corrupt.len()), (trimmed(records), 0));
    }

    #[test]
    fn no_bytes_cause_a_panic_or_a_hang(bytes in "[ab1\",:{}\\[\\]\n\r\\\\ \u{fc}]{0,80}", part in 1..90_usize) {
        let bytes = bytes.as_bytes();
        let columns = ["a".to_owned()];
        let (lines, _) = scanned(bytes, scan_lines);
        let mut splitter = Container::JsonLines.splitter();
        let found = streamed(bytes, part, |bytes, is_end| splitter.split(bytes, is_end)).0;
        prop_assert_eq!(&found, &lines);
        for line in &lines {
            if let Ok(wanted) = guess_json(line) {
                let line = std::str::from_utf8(line).unwrap();
                prop_assert_eq!(json_as_text(line, &wanted).unwrap().len(), wanted.len());
            }
        }
        for columns in [&columns[..], &[]] {
            let (rows, _) = scanned(bytes, |size, read| scan_csv(size, b',', columns, read));
            for row in rows {
                let _ = guess_csv(&row, &["a".into(), "b".into()], b',');
            }
            let mut splitter = CsvSplitter::new(b',', columns);
            streamed(bytes, part, |bytes, is_end| splitter.split(bytes, is_end));
        }
    }
}

#[test]
fn a_flipped_byte_affects_only_adjacent_lines() {
    let lines: Vec<_> = (0..6).map(|number| format!("{{\"a\": [{number}, \"x\\n\"]}}\n")).collect();
    let bytes = lines.concat().into_bytes();
    let wanted = [fixed("a", Type::Json, &[])];
    let length = lines[0].len();
    for at in 0..bytes.len() {
        for mask in 1..=255 {
            let mut flipped = bytes.clone();
            flipped[at] ^= mask;
            let (found, corrupt) = scanned(&flipped, scan_lines);
            assert!(corrupt.is_empty());
            let hit = at / length;
            let untouched = lines.iter().enumerate().filter(|(number, _)| {
                *number != hit && !(at % length == length - 1 && *number == hit + 1)
            });
            for (_, line) in untouched {
                assert!(found.iter().any(|found| found == line.as_bytes()), "byte {at}");
            }
            for line in found {
                let _ = JsonParser::new(wanted.clone().into(), None).unwrap().read(
                    &line,
                    &mut [],
                    &mut Vec::new(),
                );
            }
        }
    }
}

#[test]
fn a_flipped_byte_of_csv_never_panics_and_every_byte_is_in_a_span() {
    let bytes = b"a,b\n1,x\n2,\"y, \"\"z\"\"\"\n3,\"u\nv\"\r\n4,w\n".to_vec();
    let columns = ["a".to_owned(), "b".to_owned()];
    for at in 0..bytes.len() {
        for mask in 1..=255 {
            let mut flipped = bytes.clone();
            flipped[at] ^= mask;
            let (rows, corrupt) =
                scanned(&flipped, |size, read| scan_csv(size, b',', &columns, read));
            assert!(!rows.is_empty() || !corrupt.is_empty(), "byte {at}");
            if at < 4 {
                // Other kinds of newlines, and quotes or spaces around a name, do not change the columns.
                let is_same = !rows.is_empty();
                assert!(!is_same || corrupt.is_empty(), "byte {at}");
            }
            let mut splitter = CsvSplitter::new(b',', &columns);
            let (from_stream, stream_corrupt) =
                streamed(&flipped, 7, |bytes, is_end| splitter.split(bytes, is_end));
            assert_eq!(
                (from_stream.len(), stream_corrupt.len()),
                (rows.len(), corrupt.len()),
                "byte {at}"
            );
        }
    }
}
