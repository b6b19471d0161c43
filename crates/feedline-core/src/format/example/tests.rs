//! Examples in every encoding, compared with prost.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use prost::Message;

use super::walk::{FieldValue, MessageFields};
use super::*;
use crate::error::{Error, Kind as ErrorKind};
use crate::format::{Shape, Type, Wanted};
use crate::sample::Value;
use crate::sys::slab::{Block, Row, carve};

#[derive(Clone, PartialEq, prost::Message)]
struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    value: Vec<Vec<u8>>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct FloatList {
    #[prost(float, repeated, tag = "1")]
    value: Vec<f32>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    value: Vec<i64>,
}
#[derive(Clone, PartialEq, prost::Oneof)]
enum ListKind {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Float(FloatList),
    #[prost(message, tag = "3")]
    Int64(Int64List),
}
#[derive(Clone, PartialEq, prost::Message)]
struct TestFeature {
    #[prost(oneof = "ListKind", tags = "1, 2, 3")]
    kind: Option<ListKind>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct Features {
    #[prost(btree_map = "string, message", tag = "1")]
    feature: BTreeMap<String, TestFeature>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct FeatureList {
    #[prost(message, repeated, tag = "1")]
    feature: Vec<TestFeature>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct FeatureLists {
    #[prost(btree_map = "string, message", tag = "1")]
    feature_list: BTreeMap<String, FeatureList>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct SequenceExample {
    #[prost(message, optional, tag = "1")]
    context: Option<Features>,
    #[prost(message, optional, tag = "2")]
    feature_lists: Option<FeatureLists>,
}

fn bytes(values: &[&[u8]]) -> TestFeature {
    let value = values.iter().map(|value| value.to_vec()).collect();
    TestFeature { kind: Some(ListKind::Bytes(BytesList { value })) }
}

fn ints(values: &[i64]) -> TestFeature {
    TestFeature { kind: Some(ListKind::Int64(Int64List { value: values.to_vec() })) }
}

fn floats(values: &[f32]) -> TestFeature {
    TestFeature { kind: Some(ListKind::Float(FloatList { value: values.to_vec() })) }
}

fn example(features: &[(&str, TestFeature)]) -> Vec<u8> {
    sequence_example(features, &[])
}

fn sequence_example(
    features: &[(&str, TestFeature)],
    lists: &[(&str, Vec<TestFeature>)],
) -> Vec<u8> {
    let feature = features.iter().map(|(key, feature)| (key.to_string(), feature.clone()));
    let list = |(key, list): &(&str, Vec<TestFeature>)| {
        (key.to_string(), FeatureList { feature: list.clone() })
    };
    let feature_list: BTreeMap<_, _> = lists.iter().map(list).collect();
    SequenceExample {
        context: Some(Features { feature: feature.collect() }),
        feature_lists: (!lists.is_empty()).then_some(FeatureLists { feature_list }),
    }
    .encode_to_vec()
}

fn want(key: &str, of: Type, shape: Shape) -> Wanted {
    let name = key.into();
    Wanted { name, key: key.into(), of, shape, is_sequence: false, default: None }
}

fn one(key: &str, of: Type) -> Wanted {
    want(key, of, Shape::Fixed(vec![]))
}

fn any_number(key: &str, of: Type) -> Wanted {
    want(key, of, Shape::Variable(vec![]))
}

fn steps(key: &str, of: Type, shape: &[usize]) -> Wanted {
    Wanted { is_sequence: true, ..want(key, of, Shape::Fixed(shape.to_vec())) }
}

fn or(wanted: Wanted, default: &[u8]) -> Wanted {
    Wanted { default: Some(default.to_vec()), ..wanted }
}

/// The values read, in a form that can be compared.
#[derive(Clone, Debug, PartialEq)]
enum Out {
    Row(Vec<u8>),
    Array(Vec<usize>, Vec<u8>),
    Bytes(Vec<u8>),
    Text(String),
    List(Vec<Vec<u8>>),
}

fn row(bytes: usize) -> Row {
    let mut rows = carve(Block::new(bytes).unwrap(), bytes, 1, Box::new(drop));
    let mut row = rows.pop().unwrap();
    row.fill(0xa5);
    row
}

/// The fields in order.
fn read(wanted: &[Wanted], record: &[u8]) -> Result<Vec<Out>, Error> {
    let parser = ExampleParser::new(wanted.into(), None)?;
    let rows = wanted.iter().filter_map(|field| field.field().row_bytes());
    let mut rows: Vec<Row> = rows.map(row).collect();
    let mut others = vec![Value::Bytes(b"before".to_vec().into())];
    let outcome = parser.read(record, &mut rows, &mut others);
    if let Err(error) = outcome {
        assert_eq!(others.len(), 1, "values read before the fault are kept");
        return Err(error);
    }
    let (mut rows, mut others) = (rows.into_iter(), others.into_iter().skip(1));
    let mut size = 0;
    let outs: Vec<_> = wanted
        .iter()
        .map(|field| {
            if field.field().row_bytes().is_some() {
                return Out::Row(rows.next().unwrap().to_vec());
            }
            match others.next().unwrap() {
                Value::Array(array) => {
                    size += array.bytes.len();
                    let numbers = array.shape.iter().product::<usize>();
                    assert_eq!(numbers * array.dtype.bytes(), array.bytes.len());
                    Out::Array(array.shape, array.bytes)
                }
                Value::Bytes(bytes) => {
                    size += bytes.len();
                    Out::Bytes(bytes.to_vec())
                }
                Value::Text(text) => {
                    size += text.len();
                    Out::Text(text.to_string())
                }
                Value::List(list) => {
                    size +=
                        list.iter().map(|value| value.len() + size_of::<Vec<u8>>()).sum::<usize>();
                    Out::List(list.iter().map(|value| value.to_vec()).collect())
                }
            }
        })
        .collect();
    assert!(others.next().is_none());
    let most = parser.most_bytes(record.len());
    assert!(size <= most, "{size} bytes of values, at most {most} expected");
    Ok(outs)
}

fn of_ints(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn of_floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

#[test]
fn every_kind_of_field_is_read() {
    let record = example(&[
        ("image", bytes(&[b"png"])),
        ("name", bytes(&["käse".as_bytes()])),
        ("label", ints(&[-3])),
        ("box", floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])),
        ("words", bytes(&[b"a", b"", b"ccc"])),
        ("pair", bytes(&[b"x", b"y"])),
        ("grid", ints(&[1, 2, 3, 4, i64::MIN, i64::MAX])),
        ("ids", ints(&[5, 6])),
    ]);
    let wanted = [
        one("image", Type::Bytes),
        one("name", Type::Text),
        one("label", Type::Int64),
        want("box", Type::Float32, Shape::Variable(vec![4])),
        any_number("words", Type::Text),
        want("pair", Type::Bytes, Shape::Fixed(vec![2])),
        want("grid", Type::Int64, Shape::Fixed(vec![2, 3])),
        any_number("ids", Type::Int64),
        or(one("weight", Type::Float32), &of_floats(&[0.5])),
        or(any_number("none", Type::Int64), &[]),
        or(one("what", Type::Text), b"?"),
        or(want("two", Type::Bytes, Shape::Fixed(vec![2])), b"-"),
    ];
    let expected = [
        Out::Bytes(b"png".to_vec()),
        Out::Text("käse".into()),
        Out::Row(of_ints(&[-3])),
        Out::Array(vec![2, 4], of_floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])),
        Out::List(vec![b"a".to_vec(), vec![], b"ccc".to_vec()]),
        Out::List(vec![b"x".to_vec(), b"y".to_vec()]),
        Out::Row(of_ints(&[1, 2, 3, 4, i64::MIN, i64::MAX])),
        Out::Array(vec![2], of_ints(&[5, 6])),
        Out::Row(of_floats(&[0.5])),
        Out::Array(vec![0], vec![]),
        Out::Text("?".into()),
        Out::List(vec![b"-".to_vec(); 2]),
    ];
    assert_eq!(read(&wanted, &record).unwrap(), expected);
}

#[test]
fn a_list_without_values_is_present_and_a_feature_without_a_list_is_missing() {
    let record = example(&[("empty", ints(&[])), ("nothing", TestFeature { kind: None })]);
    let present = read(&[or(any_number("empty", Type::Int64), &of_ints(&[9]))], &record);
    assert_eq!(present.unwrap(), [Out::Array(vec![0], vec![])]);
    let fixed = read(&[or(one("empty", Type::Int64), &of_ints(&[9]))], &record);
    assert_eq!(fixed.unwrap_err().kind(), ErrorKind::InvalidField);
    let missing = read(&[or(one("nothing", Type::Int64), &of_ints(&[9]))], &record);
    assert_eq!(missing.unwrap(), [Out::Row(of_ints(&[9]))]);
}

#[test]
fn lists_of_features_are_read_step_by_step() {
    let record = sequence_example(
        &[("length", ints(&[2]))],
        &[
            ("frames", vec![bytes(&[b"one"]), bytes(&[b"two"])]),
            ("boxes", vec![floats(&[1.0, 2.0]), floats(&[3.0, 4.0])]),
            ("length", vec![]),
        ],
    );
    let wanted = [
        steps("frames", Type::Bytes, &[]),
        one("length", Type::Int64),
        steps("boxes", Type::Float32, &[2]),
        or(steps("none", Type::Int64, &[]), &[]),
        Wanted { name: "other".into(), ..steps("length", Type::Int64, &[3]) },
    ];
    let expected = [
        Out::List(vec![b"one".to_vec(), b"two".to_vec()]),
        Out::Row(of_ints(&[2])),
        Out::Array(vec![2, 2], of_floats(&[1.0, 2.0, 3.0, 4.0])),
        Out::Array(vec![0], vec![]),
        Out::Array(vec![0, 3], vec![]),
    ];
    assert_eq!(read(&wanted, &record).unwrap(), expected);
}

#[test]
fn an_image_is_borrowed_and_not_among_the_other_values() {
    let record = example(&[("image", bytes(&[b"a png"])), ("label", ints(&[7]))]);
    let wanted = [one("image", Type::Bytes), one("label", Type::Int64)];
    let parser = ExampleParser::new(wanted.into(), Some(0)).unwrap();
    let picture = parser.picture(&record).unwrap();
    assert_eq!(picture, b"a png");
    assert!(record.as_ptr_range().contains(&picture.as_ptr()), "it was copied");
    let (mut rows, mut others) = (vec![row(8)], Vec::new());
    parser.read(&record, &mut rows, &mut others).unwrap();
    assert_eq!((&*rows[0], others.len()), (&of_ints(&[7])[..], 0));
    assert_eq!(parser.most_bytes(1000), 0);
}

#[test]
fn more_features_than_fit_on_the_stack_are_found() {
    let names: Vec<String> = (0..40).map(|number| format!("feature/{number}")).collect();
    let features: Vec<_> =
        names.iter().enumerate().map(|(number, name)| (&**name, ints(&[number as i64]))).collect();
    let wanted: Vec<_> = names.iter().rev().map(|name| one(name, Type::Int64)).collect();
    let expected: Vec<_> = (0..40).rev().map(|number| Out::Row(of_ints(&[number]))).collect();
    assert_eq!(read(&wanted, &example(&features)).unwrap(), expected);
}

#[test]
fn a_feature_may_be_read_under_several_names() {
    let record = example(&[("label", ints(&[7]))]);
    let twice = Wanted { name: "target".into(), ..any_number("label", Type::Int64) };
    let expected = [Out::Row(of_ints(&[7])), Out::Array(vec![1], of_ints(&[7]))];
    assert_eq!(read(&[one("label", Type::Int64), twice], &record).unwrap(), expected);
}

#[test]
fn faults_name_the_feature_the_expected_and_the_found_values() {
    let few = example(&[("image/encoded", bytes(&[b"\xff\xfe"])), ("label", ints(&[1, 2]))]);
    let names: Vec<String> = (0..11).map(|number| format!("f{number}")).collect();
    let many: Vec<_> = names.iter().map(|name| (&**name, ints(&[]))).collect();
    let many = example(&many);
    let nothing = example(&[("label", TestFeature { kind: None })]);
    let lists = sequence_example(&[], &[("frames", vec![ints(&[1]), ints(&[1, 2])])]);
    let mut broken = few.clone();
    broken[3] = 0x7f;
    let cases: Vec<(Wanted, &[u8])> = vec![
        (one("x", Type::Int64), &few),
        (one("x", Type::Int64), &many),
        (one("x", Type::Int64), &[]),
        (one("label", Type::Int64), &nothing),
        (one("label", Type::Int64), &few),
        (one("label", Type::Float32), &few),
        (want("label", Type::Int64, Shape::Fixed(vec![3])), &few),
        (want("label", Type::Int64, Shape::Variable(vec![4])), &few),
        (any_number("label", Type::Bytes), &few),
        (one("image/encoded", Type::Text), &few),
        (one("f3", Type::Int64), &many),
        (steps("frames", Type::Int64, &[]), &lists),
        (steps("frames", Type::Float32, &[2]), &lists),
        (steps("x", Type::Int64, &[]), &lists),
        (one("label", Type::Int64), &broken),
        (one("label", Type::Int64), b"no protobuf at all"),
        (one("label", Type::Int64), &[0x0a]),
        (one("label", Type::Int64), &[0x0b, 0x14]),
        (one("label", Type::Int64), &[0xff; 12]),
    ];
    let said: Vec<_> = cases
        .iter()
        .map(|(wanted, record)| {
            let error = read(std::slice::from_ref(wanted), record).unwrap_err();
            format!("{}: {}", error.kind().name(), error.message())
        })
        .collect();
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn fields_that_an_example_cannot_hold_are_refused_at_once() {
    let twice = [one("a", Type::Int64), one("a", Type::Bytes)];
    let cases: Vec<(&[Wanted], Option<usize>)> = vec![(&twice, None), (&twice[..1], Some(0))];
    let mut said: Vec<_> = cases
        .into_iter()
        .map(|(wanted, picture)| ExampleParser::new(wanted.into(), picture).unwrap_err())
        .collect();
    for wanted in [
        one("a", Type::Json),
        one("a", Type::Npy(crate::sample::Dtype::Int8)),
        Wanted { is_sequence: true, ..any_number("a", Type::Int64) },
        want("a", Type::Int64, Shape::Variable(vec![3, 0])),
        or(one("a", Type::Int64), &[1, 2, 3]),
        or(any_number("a", Type::Bytes), b"x"),
        or(one("a", Type::Text), &[0xff]),
    ] {
        said.push(ExampleParser::new([wanted].into(), None).unwrap_err());
    }
    let image = or(one("image", Type::Bytes), b"");
    said.push(ExampleParser::new([image].into(), Some(0)).unwrap_err());
    assert!(said.iter().all(|error| error.kind() == ErrorKind::InvalidArgument));
    let said: Vec<_> = said.iter().map(|error| error.message()).collect();
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn a_schema_prints_the_call_a_user_would_type() {
    let records = [
        example(&[
            ("image", bytes(&[b"png"])),
            ("label", ints(&[1])),
            ("box", floats(&[1.0; 8])),
            ("rgb", floats(&[1.0; 3])),
            ("odd \"name\"\n", ints(&[1])),
            ("mixed", ints(&[1])),
            ("empty", TestFeature { kind: None }),
        ]),
        b"this is none".to_vec(),
        sequence_example(
            &[
                ("image", bytes(&[b"other"])),
                ("rgb", floats(&[1.0; 3])),
                ("box", floats(&[1.0; 4])),
                ("label", ints(&[2])),
                ("maybe", bytes(&[b"", b""])),
                ("mixed", floats(&[1.0])),
            ],
            &[
                ("steps", vec![floats(&[1.0, 2.0]), floats(&[3.0, 4.0])]),
                ("label", vec![ints(&[1])]),
                ("uneven", vec![ints(&[1]), ints(&[1, 2])]),
            ],
        ),
    ];
    let schema = schema(records.iter().map(|record| &record[..]));
    assert_eq!((schema.records, schema.unreadable, schema.is_sequence), (3, 1, true));
    let parser = ExampleParser::new(schema.wanted().into(), None).unwrap();
    for record in [&records[0], &records[2]] {
        let rows = schema.wanted().into_iter().filter_map(|field| field.field().row_bytes());
        let mut rows: Vec<Row> = rows.map(row).collect();
        parser.read(record, &mut rows, &mut Vec::new()).unwrap();
    }
    insta::assert_snapshot!(schema.python());
}

/// A run of values of one list, in one of its encodings.
#[derive(Clone, Debug)]
enum ValueRun {
    Packed(Vec<i64>),
    Unpacked(Vec<i64>),
    Unknown,
}

/// Lists of a feature: which member, and its runs.
type Lists = Vec<(u8, Vec<ValueRun>)>;

/// An entry of the map: its key, its value in parts, whether the key comes last.
type TestEntry = (usize, Vec<Lists>, bool);

const KEYS: [&str; 3] = ["a", "key", "other key"];

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn delimited(number: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(number << 3 | 2);
    varint(bytes.len() as u64, out);
    out.extend(bytes);
}

/// Unknown fields: a number, four bytes, eight bytes, some bytes, a nested group.
fn unknown(out: &mut Vec<u8>) {
    out.extend([9 << 3, 0x96, 1, 10 << 3 | 5, 1, 2, 3, 4]);
    out.extend([11 << 3 | 1, 1, 2, 3, 4, 5, 6, 7, 8]);
    delimited(12, b"what", out);
    out.extend([13 << 3 | 3, 8, 1, 14 << 3 | 3, 14 << 3 | 4, 13 << 3 | 4]);
}

fn list(member: u8, runs: &[ValueRun]) -> Vec<u8> {
    let mut out = Vec::new();
    for run in runs {
        match (member, run) {
            (_, ValueRun::Unknown) => unknown(&mut out),
            (1, ValueRun::Packed(values) | ValueRun::Unpacked(values)) => {
                values
                    .iter()
                    .for_each(|value| delimited(1, value.to_string().as_bytes(), &mut out));
            }
            (2, ValueRun::Packed(values)) => {
                let packed = values.iter().flat_map(|value| (*value as f32).to_le_bytes());
                delimited(1, &packed.collect::<Vec<_>>(), &mut out);
            }
            (2, ValueRun::Unpacked(values)) => {
                for value in values {
                    out.push(1 << 3 | 5);
                    out.extend((*value as f32).to_le_bytes());
                }
            }
            (_, ValueRun::Packed(values)) => {
                let mut packed = Vec::new();
                values.iter().for_each(|value| varint(*value as u64, &mut packed));
                delimited(1, &packed, &mut out);
            }
            (_, ValueRun::Unpacked(values)) => {
                for value in values {
                    out.push(1 << 3);
                    varint(*value as u64, &mut out);
                }
            }
        }
    }
    out
}

fn encoded(maps: &[Vec<TestEntry>]) -> Vec<u8> {
    let mut record = Vec::new();
    for map in maps {
        let mut features = Vec::new();
        for (key, parts, key_is_last) in map {
            let mut entry = Vec::new();
            if !key_is_last {
                delimited(1, KEYS[*key].as_bytes(), &mut entry);
            }
            for lists in parts {
                let mut feature = Vec::new();
                lists.iter().for_each(|(member, runs)| {
                    delimited(*member, &list(*member, runs), &mut feature);
                    unknown(&mut feature);
                });
                delimited(2, &feature, &mut entry);
            }
            if *key_is_last {
                delimited(1, KEYS[*key].as_bytes(), &mut entry);
            }
            unknown(&mut entry);
            delimited(1, &entry, &mut features);
        }
        delimited(1, &features, &mut record);
        unknown(&mut record);
    }
    record
}

fn some_maps() -> impl Strategy<Value = Vec<Vec<TestEntry>>> {
    let number = prop_oneof![-3..200_i64, any::<i64>()];
    let values = prop::collection::vec(number, 0..5);
    let run = prop_oneof![
        3 => values.clone().prop_map(ValueRun::Packed),
        3 => values.prop_map(ValueRun::Unpacked),
        1 => Just(ValueRun::Unknown),
    ];
    let lists = prop::collection::vec((1..4_u8, prop::collection::vec(run, 0..4)), 0..4);
    let parts = prop::collection::vec(lists, 0..3);
    let entry = (0..KEYS.len(), parts, any::<bool>());
    prop::collection::vec(prop::collection::vec(entry, 0..5), 0..3)
}

/// Whether each entry of a map is encoded as bytes. If not, protobuf skips it as an unknown field, and prost, which
/// ignores the type there, reads a number as a length: then prost is no reference.
fn maps_are_written_as_bytes(record: &[u8]) -> bool {
    let mut fields = MessageFields(record);
    while let Ok(Some((number, part))) = fields.next() {
        let (1 | 2, FieldValue::Bytes(map)) = (number, part) else { continue };
        let mut entries = MessageFields(map);
        loop {
            match entries.next() {
                Ok(Some((1, FieldValue::Bytes(_)))) => {}
                // A group is no entry either.
                Ok(Some((1, _))) | Err(_) => return false,
                Ok(Some(_)) => {}
                Ok(None) => break,
            }
        }
    }
    true
}

/// Reads every key as every type, and compares with prost; returns whether it could compare.
fn agrees(record: &[u8]) -> bool {
    let prost = SequenceExample::decode(record).ok().filter(|_| maps_are_written_as_bytes(record));
    for key in KEYS {
        for of in [Type::Bytes, Type::Float32, Type::Int64] {
            let got = read(&[any_number(key, of)], record);
            let Some(example) = &prost else { continue };
            let feature = example.context.as_ref().and_then(|context| context.feature.get(key));
            let expected = match (of, feature.and_then(|feature| feature.kind.as_ref())) {
                (Type::Bytes, Some(ListKind::Bytes(list))) => Some(Out::List(list.value.clone())),
                (Type::Float32, Some(ListKind::Float(list))) => {
                    Some(Out::Array(vec![list.value.len()], of_floats(&list.value)))
                }
                (Type::Int64, Some(ListKind::Int64(list))) => {
                    Some(Out::Array(vec![list.value.len()], of_ints(&list.value)))
                }
                _ => None,
            };
            match (got, expected) {
                (Ok(got), Some(expected)) => assert_eq!(got, [expected]),
                (Err(error), None) => assert_eq!(error.kind(), ErrorKind::InvalidField, "{error}"),
                (got, expected) => panic!("{key}: read {got:?}, expected {expected:?}"),
            }
        }
    }
    let wanted: Arc<[Wanted]> = [one(KEYS[0], Type::Bytes)].into();
    let picture = ExampleParser::new(wanted, Some(0)).unwrap();
    let alone = read(&[one(KEYS[0], Type::Bytes)], record);
    match (picture.picture(record), alone) {
        (Ok(lent), Ok(copied)) => assert_eq!([Out::Bytes(lent.to_vec())], copied[..]),
        (Err(lent), Err(copied)) => assert_eq!(lent.message(), copied.message()),
        (lent, copied) => panic!("lent {lent:?}, copied {copied:?}"),
    }
    schema([record].into_iter()).python();
    prost.is_some()
}

proptest! {
    #[test]
    fn every_encoding_is_read_as_by_protobuf(maps in some_maps()) {
        prop_assert!(agrees(&encoded(&maps)));
    }

    #[test]
    fn flipped_bytes_are_read_as_by_protobuf_or_refused(
        maps in some_maps(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut record = encoded(&maps);
        if !record.is_empty() {
            for (place, value) in flips {
                let place = place.index(record.len());
                record[place] = value;
            }
            agrees(&record);
        }
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic(record in prop::collection::vec(any::<u8>(), 0..200)) {
        agrees(&record);
    }

    #[test]
    fn every_truncation_is_refused_or_read_without_a_panic(
        maps in some_maps(),
        end in any::<prop::sample::Index>(),
    ) {
        let record = encoded(&maps);
        agrees(&record[..end.index(record.len() + 1)]);
    }
}

#[test]
fn all_features_are_listed_in_order_with_their_values() {
    let record = sequence_example(
        &[
            ("label", ints(&[7, -1])),
            ("image", bytes(&[b"png"])),
            ("none", TestFeature { kind: None }),
        ],
        &[("words", vec![floats(&[0.5]), floats(&[])])],
    );
    let found = features(&record).unwrap();
    let seen: Vec<_> = found
        .iter()
        .map(|feature| (feature.key, feature.is_sequence, &feature.steps[..]))
        .collect();
    let expected: [(&[u8], bool, &[List<'_>]); 4] = [
        (b"image", false, &[List::Bytes(vec![b"png"])]),
        (b"label", false, &[List::Ints(vec![7, -1])]),
        (b"none", false, &[List::Nothing]),
        (b"words", true, &[List::Floats(vec![0.5]), List::Floats(vec![])]),
    ];
    assert_eq!(seen, expected);
    let error = features(b"no protobuf").unwrap_err();
    assert!(error.message().starts_with("the record is not a tf.train.Example: "), "{error}");
}

proptest! {
    #[test]
    fn protobuf_reads_what_was_written(
        ints_ in proptest::collection::vec(any::<i64>(), 0..9),
        floats_ in proptest::collection::vec(-1e30_f32..1e30, 0..9),
        texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..4),
    ) {
        let lent: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        let written = write(&[
            ("i", List::Ints(ints_.clone())),
            ("f", List::Floats(floats_.clone())),
            ("b", List::Bytes(lent.clone())),
            ("n", List::Nothing),
        ]);
        let read = SequenceExample::decode(&*written).unwrap().context.unwrap().feature;
        prop_assert_eq!(&read["i"], &ints(&ints_));
        prop_assert_eq!(&read["f"], &floats(&floats_));
        prop_assert_eq!(&read["b"], &bytes(&lent));
        prop_assert_eq!(&read["n"], &TestFeature { kind: None });
        prop_assert_eq!(read.len(), 4);
    }
}
