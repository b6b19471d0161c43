//! The fields of a record that `parse` names:
//! `[{"name": "box", "key": "bbox", "of": "float32", "shape": [null, 4], "default": 1.0}, …]`.

use serde_json::Value;

use super::arguments::{Arguments, OneOf, Text, Truth, number as any_number};
use crate::error::Result;
use crate::format::{Shape, Type, Wanted};
use crate::sample::Dtype;

/// The most values of one shape; beyond that it is a mistake.
const MOST: usize = 1 << 32;

const SHAPE: &str = "a list of whole numbers from 1, of which the first may be null (None)";

const TYPES: [(&str, Type); 6] = [
    ("bytes", Type::Bytes),
    ("text", Type::Text),
    ("json", Type::Json),
    ("int64", Type::Int64),
    ("float32", Type::Float32),
    // "dtype" says which numbers.
    ("npy", Type::Npy(Dtype::Uint8)),
];

/// The fields, as they are written.
pub(super) fn wanted(from: &Arguments<'_>) -> Result<Vec<Wanted>> {
    let value = from.get("fields").ok_or_else(|| from.lacks("fields"))?;
    let list = value.as_array().ok_or_else(|| from.bad("fields", "a field or more", value))?;
    let field = |value: &Value| {
        let json = value.as_object();
        let json = json.ok_or_else(|| from.bad("a field", "settings by name", value))?;
        let shown = json.get("name").unwrap_or(&Value::Null).to_string();
        let label = format!("{}: field {shown}", from.call());
        let config = Arguments::of_json(&label, json);
        let field = field(&config)?;
        config.finish()?;
        Ok(field)
    };
    list.iter().map(field).collect()
}

/// Refuses fields that cannot be, whatever holds them.
pub(super) fn check(fields: &[Wanted], from: &Arguments<'_>) -> Result<()> {
    if fields.is_empty() {
        return Err(from.bad("fields", "a field or more", "[]"));
    }
    for (at, field) in fields.iter().enumerate() {
        let label = format!("{}: field {:?}", from.call(), field.name);
        let label = Arguments::of_values(&label);
        let refused = |what: &str| Err(label.refused(format!("{}: {what}", label.call())));
        let (Shape::Fixed(axes) | Shape::Variable(axes)) = &field.shape;
        let values = axes.iter().try_fold(1_usize, |values, axis| values.checked_mul(*axis));
        if field.name.is_empty() {
            return Err(label.bad("name", "a name", "\"\""));
        }
        if !values.is_some_and(|values| (1..=MOST).contains(&values)) {
            return Err(label.bad("shape", SHAPE, format!("{axes:?}")));
        }
        if field.is_sequence && matches!(field.shape, Shape::Variable(_)) {
            return refused("each step of a sequence must have a shape without None");
        }
        if field.of == Type::Json && field.shape != Shape::Fixed(vec![]) {
            return refused("JSON has no shape");
        }
        if fields[..at].iter().any(|other| other.name == field.name) {
            return refused("it is there twice");
        }
        if let (Some(default), Some(dtype)) = (&field.default, field.dtype()) {
            let group = dtype.bytes() * axes.iter().product::<usize>();
            let is_fixed = matches!(field.shape, Shape::Fixed(_)) && !field.is_sequence;
            let fits =
                if is_fixed { default.len() == group } else { default.len().is_multiple_of(group) };
            if !fits {
                let wanted = format!("{group} bytes of {}", dtype.name());
                return Err(label.bad("default", &wanted, default.len()));
            }
        }
    }
    Ok(())
}

fn field(config: &Arguments<'_>) -> Result<Wanted> {
    let name = config.read("name", Text("a name"))?.ok_or_else(|| config.lacks("name"))?;
    let key = match config.get("key") {
        None => &name,
        // A file `a.` in a tar has an empty extension, and JSON may have an empty key.
        Some(Value::String(text)) => text,
        Some(other) => return Err(config.bad("key", "a name", other)),
    };
    let mut of = config.read("of", OneOf(&TYPES))?.ok_or_else(|| config.lacks("of"))?;
    if let Type::Npy(dtype) = &mut of {
        let names: Vec<_> = Dtype::ALL.iter().map(|dtype| (dtype.name(), *dtype)).collect();
        *dtype = config.read("dtype", OneOf(&names))?.ok_or_else(|| config.lacks("dtype"))?;
    }
    let is_sequence = config.read("sequence", Truth)?.unwrap_or(false);
    let shape = shape(config)?;
    let key = key.as_str().into();
    let mut wanted =
        Wanted { name: name.as_str().into(), key, of, shape, is_sequence, default: None };
    wanted.default = default(config, &wanted)?;
    Ok(wanted)
}

fn shape(config: &Arguments<'_>) -> Result<Shape> {
    let Some(value) = config.get("shape") else { return Ok(Shape::Fixed(vec![])) };
    let axis = |value: &Value| value.as_u64().filter(|axis| *axis > 0);
    let shape = value.as_array().and_then(|axes| {
        let is_variable = axes.first().is_some_and(Value::is_null);
        let axes: Option<Vec<u64>> = axes.iter().skip(usize::from(is_variable)).map(axis).collect();
        let axes = axes?;
        let values = axes.iter().try_fold(1_u64, |values, axis| values.checked_mul(*axis))?;
        let axes = axes.into_iter().map(|axis| axis as usize).collect();
        let shape = if is_variable { Shape::Variable(axes) } else { Shape::Fixed(axes) };
        (values <= MOST as u64).then_some(shape)
    });
    shape.ok_or_else(|| config.bad("shape", SHAPE, value))
}

/// What stands there where a record has nothing, in the bytes of the type.
fn default(config: &Arguments<'_>, wanted: &Wanted) -> Result<Option<Vec<u8>>> {
    let Some(value) = config.get("default") else { return Ok(None) };
    let (Shape::Fixed(axes) | Shape::Variable(axes)) = &wanted.shape;
    let values: usize = axes.iter().product();
    let is_fixed = matches!(wanted.shape, Shape::Fixed(_)) && !wanted.is_sequence;
    let made = match (wanted.of, wanted.dtype()) {
        (Type::Json, _) => Some(value.to_string().into_bytes()),
        (_, Some(dtype)) => numbers(dtype, value, values, is_fixed),
        // Bytes come as letters of which each stands for one.
        (Type::Bytes, None) if is_fixed => value.as_str().and_then(|text| {
            text.chars().map(|letter| u8::try_from(u32::from(letter)).ok()).collect()
        }),
        (_, None) if is_fixed => value.as_str().map(|text| text.as_bytes().to_vec()),
        (_, None) => value.as_array().filter(|list| list.is_empty()).map(|_| Vec::new()),
    };
    made.map(Some).ok_or_else(|| {
        let of = match (wanted.of, wanted.dtype()) {
            (_, Some(dtype)) => dtype.name(),
            (Type::Bytes, None) => "bytes",
            (_, None) => "text",
        };
        let text = match (wanted.dtype(), is_fixed, values) {
            (Some(_), true, 1) => format!("one of {of}"),
            (Some(_), true, values) => format!("one of {of}, or {values} of them"),
            (Some(_), false, 1) => format!("a list of {of}, such as []"),
            (Some(_), false, group) => format!("a list of {of} in groups of {group}, such as []"),
            (None, true, _) => of.to_owned(),
            (None, false, _) => "[]".to_owned(),
        };
        config.bad("default", &text, value)
    })
}

/// One number for all values, or a list of them.
fn numbers(dtype: Dtype, value: &Value, values: usize, is_fixed: bool) -> Option<Vec<u8>> {
    match value.as_array() {
        None if is_fixed => Some(number(dtype, value)?.repeat(values)),
        None => None,
        Some(list) => {
            let fits =
                if is_fixed { list.len() == values } else { list.len().is_multiple_of(values) };
            let bytes: Option<Vec<Vec<u8>>> =
                list.iter().map(|value| number(dtype, value)).collect();
            bytes.filter(|_| fits).map(|bytes| bytes.concat())
        }
    }
}

fn number(dtype: Dtype, value: &Value) -> Option<Vec<u8>> {
    match dtype {
        Dtype::Bool => value.as_bool().map(|truth| vec![u8::from(truth)]),
        Dtype::Uint8
        | Dtype::Uint16
        | Dtype::Uint32
        | Dtype::Uint64
        | Dtype::Int8
        | Dtype::Int16
        | Dtype::Int32
        | Dtype::Int64
        | Dtype::Float16
        | Dtype::Float32
        | Dtype::Float64 => any_number(value)?.element(dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Call;
    use crate::error::Kind;
    use serde_json::json;

    fn parsed(fields: Value) -> Result<Vec<Wanted>> {
        let call = Call::parse(&json!({"call": "parse", "fields": fields}))?;
        let Call::Parse(parse) = call else { panic!("{call:?}") };
        Ok(parse.fields)
    }

    #[test]
    fn words_become_fields() {
        let fields = parsed(json!([
            {"name": "image", "key": "image/encoded", "of": "bytes"},
            {"name": "label", "of": "int64", "default": -1},
            {"name": "box", "of": "float32", "shape": [null, 4], "default": [0, 0, 1, 1.5]},
            {"name": "mean", "of": "float32", "shape": [3], "default": 0.5},
            {"name": "any", "of": "float32", "default": "nan"},
            {"name": "raw", "of": "bytes", "default": "a\u{ff}"},
            {"name": "what", "of": "text", "default": "ä"},
            {"name": "meta", "of": "json", "default": {"a": [1]}},
            {"name": "words", "of": "text", "shape": [null], "default": []},
            {"name": "array", "of": "npy", "dtype": "uint16", "shape": [2, 2], "default": 7},
            {"name": "frames", "of": "bytes", "sequence": true, "default": []},
        ]))
        .unwrap();
        let text = |number: usize| {
            let field = &fields[number];
            format!("{} {:?} {:?} {:?}", field.key, field.of, field.shape, field.default)
        };
        let floats = |values: &[f32]| {
            Some(values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>())
        };
        assert_eq!(text(0), "image/encoded Bytes Fixed([]) None");
        assert_eq!(fields[1].default, Some((-1_i64).to_ne_bytes().to_vec()));
        assert_eq!(fields[2].shape, Shape::Variable(vec![4]));
        assert_eq!(fields[2].default, floats(&[0.0, 0.0, 1.0, 1.5]));
        assert_eq!(fields[3].default, floats(&[0.5; 3]));
        assert_eq!(fields[4].default, floats(&[f32::NAN]));
        assert_eq!(fields[5].default, Some(vec![b'a', 0xff]));
        assert_eq!(fields[6].default, Some("ä".as_bytes().to_vec()));
        assert_eq!(fields[7].default, Some(br#"{"a":[1]}"#.to_vec()));
        assert_eq!(fields[8].default, Some(vec![]));
        assert_eq!(fields[9].of, Type::Npy(Dtype::Uint16));
        assert_eq!(fields[9].default, Some(7_u16.to_ne_bytes().repeat(4)));
        assert!(fields[10].is_sequence && !fields[0].is_sequence);
    }

    #[test]
    fn every_mistake_is_named_with_its_value() {
        let field = |more: Value| {
            let mut field = json!({"name": "a", "of": "int64"});
            let config = field.as_object_mut().unwrap();
            config.extend(more.as_object().unwrap().clone());
            json!([field])
        };
        let cases = [
            json!(null),
            json!([]),
            json!({"a": 1}),
            json!([3]),
            json!([{}]),
            json!([{"name": ""}]),
            json!([{"name": "a"}]),
            json!([{"name": "a", "of": "int32"}]),
            json!([{"name": "a", "of": "npy"}]),
            json!([{"name": "a", "of": "npy", "dtype": "complex64"}]),
            json!([{"name": "a", "of": "text"}, {"name": "a", "of": "text"}]),
            field(json!({"key": 7})),
            field(json!({"shape": 4})),
            field(json!({"shape": [4, null]})),
            field(json!({"shape": [0]})),
            field(json!({"shape": [1u64 << 40, 1u64 << 40]})),
            field(json!({"shape": [null], "sequence": true})),
            field(json!({"sequence": 1})),
            field(json!({"of": "json", "shape": [2]})),
            field(json!({"default": 1.5})),
            field(json!({"default": 1u64 << 63})),
            field(json!({"default": [1, 2]})),
            field(json!({"shape": [2, 2], "default": [1, 2, 3]})),
            field(json!({"shape": [null], "default": 1})),
            field(json!({"shape": [null, 2], "default": [1]})),
            field(json!({"of": "float32", "default": 1e300})),
            field(json!({"of": "float32", "default": "lots"})),
            field(json!({"of": "bytes", "default": "€"})),
            field(json!({"of": "text", "default": 1})),
            field(json!({"of": "text", "shape": [null], "default": ["a"]})),
            field(json!({"dtype": "int8"})),
        ];
        let said: Vec<_> = cases
            .into_iter()
            .map(|fields| {
                let error = parsed(fields).unwrap_err();
                assert_eq!(error.kind(), Kind::InvalidArgument);
                error.message().to_owned()
            })
            .collect();
        insta::assert_snapshot!(said.join("\n"));
    }
}
