//! Arrays in NumPy's format: a header with type and shape, then the numbers, which are returned in C order and
//! little-endian whatever the file has. Arrays of objects are pickles and are refused.

use std::borrow::Cow;

use crate::error::{Error, Kind, Result};
use crate::sample::Dtype;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The header of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyHeader {
    /// Type of the numbers.
    pub dtype: Dtype,
    /// Shape of the array.
    pub shape: Vec<usize>,
    /// Offset of the numbers.
    pub data: usize,
    /// Whether the first axis changes fastest, rather than the last.
    pub is_fortran: bool,
    /// Whether the numbers are big-endian.
    pub is_big_endian: bool,
}

impl NpyHeader {
    /// Bytes of the numbers; None on overflow.
    pub fn bytes(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.dtype.bytes(), |product, size| product.checked_mul(*size))
    }
}

/// Reads the header; `bytes` may end anywhere after it.
pub fn header(bytes: &[u8]) -> Result<NpyHeader> {
    let truncated = || wrong("the array ends within its header");
    if !bytes.starts_with(&MAGIC[..MAGIC.len().min(bytes.len())]) || bytes.is_empty() {
        let found = &bytes[..bytes.len().min(6)];
        return Err(wrong(format!("not a NumPy array: the first bytes are {found:02x?}")));
    }
    let version = (*bytes.get(6).ok_or_else(truncated)?, *bytes.get(7).ok_or_else(truncated)?);
    let (text, length) = match version {
        (1, 0) => {
            (10, bytes.get(8..10).map(|field| u32::from(field[0]) | u32::from(field[1]) << 8))
        }
        (2 | 3, 0) => (12, bytes.get(8..12).map(little)),
        (major, minor) => {
            return Err(wrong(format!(
                "version {major}.{minor} of NumPy's format is not supported"
            )));
        }
    };
    let data = (length.ok_or_else(truncated)? as usize).checked_add(text).ok_or_else(truncated)?;
    let tokens = std::str::from_utf8(bytes.get(text..data).ok_or_else(truncated)?)
        .map_err(|_| wrong("the header of the array is not text"))?;
    let described = HeaderTokens { rest: tokens }.described().ok_or_else(|| {
        wrong(format!("the header of the array cannot be parsed: {:?}", short(tokens)))
    })?;
    let (dtype, is_big_endian) = dtype(&described.descr)?;
    // With at most one axis longer than 1, both orders are the same.
    let is_fortran =
        described.is_fortran && described.shape.iter().filter(|size| **size != 1).count() > 1;
    Ok(NpyHeader { dtype, shape: described.shape, data, is_fortran, is_big_endian })
}

/// Reads a whole array and returns the numbers in C order and little-endian. There must be as many as the header
/// declares.
pub fn array(bytes: &[u8]) -> Result<(NpyHeader, Cow<'_, [u8]>)> {
    let header = header(bytes)?;
    let numbers = &bytes[header.data..];
    if header.bytes() != Some(numbers.len()) {
        return Err(wrong(format!(
            "an array of shape {:?} of {} does not have {} bytes",
            header.shape,
            header.dtype.name(),
            numbers.len()
        )));
    }
    let mut numbers = Cow::Borrowed(numbers);
    if header.is_fortran {
        numbers = Cow::Owned(in_c_order(&numbers, &header.shape, header.dtype.bytes()));
    }
    if header.is_big_endian {
        numbers.to_mut().chunks_exact_mut(header.dtype.bytes()).for_each(<[u8]>::reverse);
    }
    Ok((header, numbers))
}

/// Converts numbers from Fortran order to C order.
fn in_c_order(numbers: &[u8], shape: &[usize], each: usize) -> Vec<u8> {
    // The distance of neighbours along each axis.
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = each;
    for size in shape {
        strides.push(stride);
        stride *= size;
    }
    let mut ordered = Vec::with_capacity(numbers.len());
    let (mut place, mut at) = (vec![0; shape.len()], 0);
    while ordered.len() < numbers.len() {
        ordered.extend_from_slice(&numbers[at..at + each]);
        for axis in (0..shape.len()).rev() {
            place[axis] += 1;
            at += strides[axis];
            if place[axis] < shape[axis] {
                break;
            }
            at -= strides[axis] * shape[axis];
            place[axis] = 0;
        }
    }
    ordered
}

fn little(field: &[u8]) -> u32 {
    field.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// The type of the numbers, and whether they are big-endian.
fn dtype(descr: &str) -> Result<(Dtype, bool)> {
    let (order, kind) = match descr.split_at_checked(1) {
        Some((order @ ("<" | ">" | "|" | "="), kind)) => (order, kind),
        _ => ("=", descr),
    };
    if kind.starts_with('O') {
        return Err(Error::new(
            Kind::UnsafeFormat,
            "an array of objects is a pickle, which runs code when it is read",
        ));
    }
    let found = match kind {
        "b1" | "?" => Some(Dtype::Bool),
        "u1" => Some(Dtype::Uint8),
        "u2" => Some(Dtype::Uint16),
        "u4" => Some(Dtype::Uint32),
        "u8" => Some(Dtype::Uint64),
        "i1" => Some(Dtype::Int8),
        "i2" => Some(Dtype::Int16),
        "i4" => Some(Dtype::Int32),
        "i8" => Some(Dtype::Int64),
        "f2" => Some(Dtype::Float16),
        "f4" => Some(Dtype::Float32),
        "f8" => Some(Dtype::Float64),
        _ => None,
    };
    match found {
        Some(dtype) => Ok((dtype, order == ">" && dtype.bytes() > 1)),
        None => Err(wrong(format!("numbers of type {:?} are not supported", short(descr)))
            .with_hint("write them as plain numbers: array.astype(\"float32\")")),
    }
}

fn wrong(what: impl Into<String>) -> Error {
    Error::new(Kind::InvalidField, what)
}

fn short(text: &str) -> String {
    text.chars().take(120).collect()
}

/// The entries of the header's dictionary.
struct HeaderEntries {
    descr: String,
    is_fortran: bool,
    shape: Vec<usize>,
}

/// The dictionary as text, a Python literal.
struct HeaderTokens<'a> {
    rest: &'a str,
}

impl<'a> HeaderTokens<'a> {
    fn described(mut self) -> Option<HeaderEntries> {
        let (mut descr, mut is_fortran, mut shape) = (None, None, None);
        self.mark('{')?;
        while self.mark('}').is_none() {
            let key = self.text()?;
            self.mark(':')?;
            match key {
                "descr" => descr = Some(self.type_name()?),
                "fortran_order" => is_fortran = Some(self.boolean()?),
                "shape" => shape = Some(self.sizes()?),
                _ => return None,
            }
            if self.mark(',').is_none() {
                self.mark('}')?;
                break;
            }
        }
        self.rest.trim().is_empty().then_some(())?;
        Some(HeaderEntries { descr: descr?, is_fortran: is_fortran?, shape: shape? })
    }

    fn mark(&mut self, mark: char) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(mark)?;
        Some(())
    }

    fn text(&mut self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let quote = rest.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
        let (text, rest) = rest[1..].split_once(quote)?;
        self.rest = rest;
        Some(text)
    }

    /// The name of a type; for a structured type, the text of the list.
    fn type_name(&mut self) -> Option<String> {
        if let Some(text) = self.text() {
            return Some(text.to_owned());
        }
        // A list of named types ends at its brackets.
        let rest = self.rest.trim_start();
        let mut depth = 0_usize;
        for (at, character) in rest.char_indices() {
            match character {
                '[' => depth += 1,
                ']' => depth = depth.checked_sub(1)?,
                _ => {}
            }
            if depth == 0 {
                let (list, rest) = rest.split_at(at + character.len_utf8());
                self.rest = rest;
                return list.starts_with('[').then(|| list.to_owned());
            }
        }
        None
    }

    fn boolean(&mut self) -> Option<bool> {
        let rest = self.rest.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = rest.strip_prefix(word) {
                self.rest = rest;
                return Some(value);
            }
        }
        None
    }

    fn sizes(&mut self) -> Option<Vec<usize>> {
        self.mark('(')?;
        let (inside, rest) = self.rest.split_once(')')?;
        self.rest = rest;
        let inside = inside.trim();
        if inside.is_empty() {
            return Some(Vec::new());
        }
        let inside = inside.strip_suffix(',').unwrap_or(inside);
        // Python 2 wrote an L after long numbers.
        inside.split(',').map(|size| size.trim().trim_end_matches('L').parse().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    /// Written by tools/golden/npy.py.
    const GOLDEN: &str = include_str!("../../../../tests/golden/npy.json");

    fn unhex(text: &Value) -> Vec<u8> {
        let text = text.as_str().unwrap();
        let pairs = (0..text.len()).step_by(2).map(|at| &text[at..at + 2]);
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    #[test]
    fn arrays_written_by_numpy_are_read_in_every_type_and_version() {
        let golden: Value = serde_json::from_str(GOLDEN).unwrap();
        let good = golden["good"].as_array().unwrap();
        assert!(good.len() > 70);
        for case in good {
            let file = unhex(&case["file"]);
            let (header, numbers) = array(&file).unwrap();
            assert_eq!(header.dtype.name(), case["dtype"]);
            assert_eq!(serde_json::json!(header.shape), case["shape"]);
            assert_eq!(*numbers, unhex(&case["data"]));
            for end in 0..file.len() {
                array(&file[..end]).unwrap_err();
            }
            array(&[&file[..], b"x"].concat()).unwrap_err();
        }
    }

    #[test]
    fn objects_are_refused_and_other_types_are_named() {
        let golden: Value = serde_json::from_str(GOLDEN).unwrap();
        let bad = golden["bad"].as_object().unwrap();
        let messages = bad.iter().map(|(name, file)| {
            let error = array(&unhex(file)).unwrap_err();
            format!("{name}: {}: {}", error.kind().name(), error.message())
        });
        insta::assert_snapshot!(messages.collect::<Vec<_>>().join("\n"), @r#"
        complex: InvalidFieldError: numbers of type "<c8" are not supported
        complex, big-endian: InvalidFieldError: numbers of type ">c16" are not supported
        named: InvalidFieldError: numbers of type "[('a', '<f4'), ('b', '<i4')]" are not supported
        objects: UnsafeFormatError: an array of objects is a pickle, which runs code when it is read
        text: InvalidFieldError: numbers of type "<U3" are not supported
        times: InvalidFieldError: numbers of type "<M8[s]" are not supported
        "#);
    }

    #[test]
    fn a_shape_that_overflows_is_refused() {
        let text = "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }";
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        assert_eq!(header(&bytes).unwrap().bytes(), None);
        assert!(array(&bytes).unwrap_err().message().contains("4294967296"));
    }

    proptest! {
        #[test]
        fn no_header_causes_a_panic(
            version in 0..5_u8, text in "[{}'\\[\\](),: a-z0-9<|]{0,60}", length in 0..80_u16,
        ) {
            let mut bytes = b"\x93NUMPY".to_vec();
            bytes.extend([version, 0]);
            bytes.extend(length.to_le_bytes());
            bytes.extend(text.as_bytes());
            let _ = array(&bytes);
        }

        #[test]
        fn a_changed_byte_is_an_error_or_another_array(at in 0..200_usize, value: u8) {
            let golden: Value = serde_json::from_str(GOLDEN).unwrap();
            let mut file = unhex(&golden["good"][3]["file"]);
            if let Some(byte) = file.get_mut(at) {
                *byte = value;
            }
            if let Ok((header, numbers)) = array(&file) {
                prop_assert_eq!(header.bytes(), Some(numbers.len()));
            }
        }
    }
}
