use super::*;
use proptest::prelude::*;

/// A value, as a plain tree.
#[derive(Clone, Debug, PartialEq)]
enum PlainValue {
    None,
    Bool(bool),
    Int(i64),
    Wide(Vec<u8>),
    /// The bits, so that every value is equal to itself.
    Float(u64),
    Text(Vec<u8>),
    Bytes(Vec<u8>),
    Tuple(Vec<PlainValue>),
    List(Vec<PlainValue>),
    Dict(Vec<(PlainValue, PlainValue)>),
}

fn write(value: &PlainValue, values: &mut TaggedValues) {
    match value {
        PlainValue::None => values.none(),
        PlainValue::Bool(value) => values.bool(*value),
        PlainValue::Int(value) => values.int(*value),
        PlainValue::Wide(value) => values.wide(value),
        PlainValue::Float(bits) => values.float(f64::from_bits(*bits)),
        PlainValue::Text(value) => values.text(value),
        PlainValue::Bytes(value) => values.bytes(value),
        PlainValue::Tuple(parts) => {
            values.tuple(parts.len());
            parts.iter().for_each(|part| write(part, values));
        }
        PlainValue::List(parts) => {
            values.list(parts.len());
            parts.iter().for_each(|part| write(part, values));
        }
        PlainValue::Dict(pairs) => {
            values.dict(pairs.len());
            for (key, value) in pairs {
                write(key, values);
                write(value, values);
            }
        }
    }
}

struct Tree;

impl Build for Tree {
    type Value = PlainValue;
    type Error = Error;

    fn none(&mut self) -> Result<PlainValue> {
        Ok(PlainValue::None)
    }
    fn bool(&mut self, value: bool) -> Result<PlainValue> {
        Ok(PlainValue::Bool(value))
    }
    fn int(&mut self, value: i64) -> Result<PlainValue> {
        Ok(PlainValue::Int(value))
    }
    fn wide(&mut self, value: &[u8]) -> Result<PlainValue> {
        Ok(PlainValue::Wide(value.to_vec()))
    }
    fn float(&mut self, value: f64) -> Result<PlainValue> {
        Ok(PlainValue::Float(value.to_bits()))
    }
    fn text(&mut self, value: &[u8]) -> Result<PlainValue> {
        Ok(PlainValue::Text(value.to_vec()))
    }
    fn bytes(&mut self, value: &[u8]) -> Result<PlainValue> {
        Ok(PlainValue::Bytes(value.to_vec()))
    }
    fn tuple(&mut self, values: Vec<PlainValue>) -> Result<PlainValue> {
        Ok(PlainValue::Tuple(values))
    }
    fn list(&mut self, values: Vec<PlainValue>) -> Result<PlainValue> {
        Ok(PlainValue::List(values))
    }
    fn dict(&mut self, pairs: Vec<(PlainValue, PlainValue)>) -> Result<PlainValue> {
        Ok(PlainValue::Dict(pairs))
    }
    fn corrupt(&mut self, error: Error) -> Error {
        error
    }
}

fn writer(items: &[PlainValue]) -> ItemWriter {
    let mut writer = ItemWriter::default();
    for item in items {
        write(item, &mut writer.values);
        writer.end_item();
    }
    writer
}

fn packed(items: &[PlainValue]) -> Vec<u8> {
    writer(items).finish_list().unwrap()
}

fn unpacked(bytes: &[u8]) -> Result<Vec<PlainValue>> {
    let items = Items::open(bytes)?;
    (0..items.count()).map(|number| items.get(bytes, number, &mut Tree)).collect()
}

fn text(text: &str) -> PlainValue {
    PlainValue::Text(text.into())
}

/// Values of any type, nested.
fn any_value() -> impl Strategy<Value = PlainValue> {
    let leaf = prop_oneof![
        Just(PlainValue::None),
        any::<bool>().prop_map(PlainValue::Bool),
        any::<i64>().prop_map(PlainValue::Int),
        (-200i64..200).prop_map(PlainValue::Int),
        proptest::collection::vec(any::<u8>(), 9..12).prop_map(PlainValue::Wide),
        any::<u64>().prop_map(PlainValue::Float),
        "[a-z/]{0,12}".prop_map(|text| PlainValue::Text(text.into_bytes())),
        proptest::collection::vec(any::<u8>(), 0..9).prop_map(PlainValue::Bytes),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let many = proptest::collection::vec(inner.clone(), 0..4);
        let pairs = proptest::collection::vec((inner.clone(), inner), 0..3);
        prop_oneof![
            many.clone().prop_map(PlainValue::Tuple),
            many.prop_map(PlainValue::List),
            pairs.prop_map(PlainValue::Dict),
        ]
    })
}

/// Items that are mostly alike: a few templates, whose leaves differ.
fn alike() -> impl Strategy<Value = Vec<PlainValue>> {
    let row =
        ("[a-z/]{0,20}", any::<i32>(), any::<bool>(), proptest::collection::vec(0i64..300, 0..4));
    proptest::collection::vec(row, 0..40).prop_map(|rows| {
        let item = |(path, label, flag, boxes): (String, i32, bool, Vec<i64>)| {
            PlainValue::Dict(vec![
                (text("path"), text(&path)),
                (
                    text("pair"),
                    PlainValue::Tuple(vec![PlainValue::Int(label.into()), PlainValue::Bool(flag)]),
                ),
                (text("boxes"), PlainValue::List(boxes.into_iter().map(PlainValue::Int).collect())),
            ])
        };
        rows.into_iter().map(item).collect()
    })
}

proptest! {
    #[test]
    fn every_value_survives_a_round_trip(items in proptest::collection::vec(any_value(), 0..12)) {
        prop_assert_eq!(unpacked(&packed(&items)).unwrap(), items);
    }

    #[test]
    fn items_that_are_alike_survive_a_round_trip(items in alike()) {
        prop_assert_eq!(unpacked(&packed(&items)).unwrap(), items);
    }

    #[test]
    fn every_key_of_a_mapping_is_found_and_no_other(
        keys in proptest::collection::hash_set(-500i64..500, 0..60), absent in -500i64..500,
    ) {
        // Keys of two types, so that they are tagged in some mappings and not in others.
        let key = |number: i64| if number % 7 == 0 { text(&number.to_string()) } else { PlainValue::Int(number) };
        let pair = |number: &i64| PlainValue::Tuple(vec![key(*number), PlainValue::Int(number * 3)]);
        let items: Vec<_> = keys.iter().map(pair).collect();
        let bytes = writer(&items).finish_mapping().unwrap();
        let opened = Items::open(&bytes).unwrap();
        let find = |number: i64| {
            let mut wanted = TaggedValues::default();
            write(&key(number), &mut wanted);
            opened.find(&bytes, &wanted).unwrap()
        };
        for (place, number) in keys.iter().enumerate() {
            prop_assert_eq!(find(*number), Some(place));
        }
        prop_assert_eq!(find(absent).is_some(), keys.contains(&absent));
    }

    #[test]
    fn any_value_can_be_a_key(keys in proptest::collection::vec(any_value(), 1..6)) {
        let pair = |key: &PlainValue| PlainValue::Tuple(vec![key.clone(), PlainValue::None]);
        let bytes = writer(&keys.iter().map(pair).collect::<Vec<_>>()).finish_mapping().unwrap();
        let opened = Items::open(&bytes).unwrap();
        for key in &keys {
            let mut wanted = TaggedValues::default();
            write(key, &mut wanted);
            let found = opened.find(&bytes, &wanted).unwrap();
            prop_assert_eq!(found.map(|number| &keys[number]), Some(key));
        }
    }

    #[test]
    fn corrupt_bytes_give_errors_or_values_and_no_panic(
        items in proptest::collection::vec(any_value(), 0..8),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<Option<proptest::sample::Index>>(),
        is_mapping in any::<bool>(),
    ) {
        let mut bytes = if is_mapping {
            let pair = |item: &PlainValue| PlainValue::Tuple(vec![item.clone(), PlainValue::None]);
            writer(&items.iter().map(pair).collect::<Vec<_>>()).finish_mapping().unwrap()
        } else {
            packed(&items)
        };
        for (place, byte) in &changes {
            let place = place.index(bytes.len());
            bytes[place] = *byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        drop(unpacked(&bytes));
        if let Ok(opened) = Items::open(&bytes) {
            let mut wanted = TaggedValues::default();
            wanted.int(1);
            drop(opened.find(&bytes, &wanted));
        }
    }

    #[test]
    fn arbitrary_bytes_after_the_magic_give_no_panic(
        fields in proptest::collection::vec(prop_oneof![0u64..40, any::<u64>()], 5),
        rest in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut bytes = MAGIC.to_vec();
        fields.iter().for_each(|field| bytes.extend_from_slice(&field.to_le_bytes()));
        bytes.extend(rest);
        drop(unpacked(&bytes));
    }
}

#[test]
fn common_types_are_written_once() {
    let each = |items: &[PlainValue]| (packed(items).len() as f64 / items.len() as f64).round();
    let numbers: Vec<_> = (0..10_000).map(|number| PlainValue::Int(number % 100)).collect();
    assert_eq!(each(&numbers), 1.0);
    let pairs: Vec<_> = (0..10_000)
        .map(|number| {
            PlainValue::Tuple(vec![
                text(&format!("train/{number:05}.jpg")),
                PlainValue::Int(number),
            ])
        })
        .collect();
    // The text, its length, the number and the end of the row.
    assert_eq!(each(&pairs), 15.0 + 1.0 + 2.0 + 4.0);
    let record = |number| {
        PlainValue::Dict(vec![
            (text("width"), PlainValue::Int(number)),
            (text("height"), PlainValue::Int(number)),
        ])
    };
    assert_eq!(each(&(0..10_000).map(record).collect::<Vec<_>>()), 4.0);
}

#[test]
fn the_empty_and_the_odd_survive_a_round_trip() {
    let long = |count| PlainValue::Tuple(vec![PlainValue::Int(7); count]);
    let mut deep = PlainValue::None;
    for _ in 0..MAX_DEPTH - 1 {
        deep = PlainValue::List(vec![deep]);
    }
    for items in [
        vec![],
        vec![PlainValue::None; 5],
        vec![PlainValue::Tuple(vec![]); 3],
        vec![PlainValue::List(vec![]); 3],
        vec![PlainValue::List(vec![PlainValue::None; 9]); 3],
        vec![PlainValue::List(vec![]), PlainValue::List(vec![PlainValue::Int(1)])],
        vec![long(64), long(64)],
        vec![long(65), long(65)],
        vec![long(2), long(3)],
        vec![deep.clone(), deep],
        vec![PlainValue::Int(i64::MIN), PlainValue::Int(i64::MAX), PlainValue::Int(-1)],
        vec![PlainValue::None, text("a"), PlainValue::None],
    ] {
        assert_eq!(unpacked(&packed(&items)).unwrap(), items);
    }
}

#[test]
fn an_item_that_is_too_deep_is_refused() {
    let mut deep = PlainValue::None;
    for _ in 0..MAX_DEPTH {
        deep = PlainValue::List(vec![deep]);
    }
    let error = writer(&[deep]).finish_list().unwrap_err();
    assert!(error.to_string().contains("nested too deeply"), "{error}");
}
