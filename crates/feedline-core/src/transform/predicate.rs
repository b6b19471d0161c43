//! Decides whether a sample is kept, and which bucket it belongs to. Pure.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{BitAnd, BitOr, Deref, Not};
use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::sample::{Dtype, Field, FieldKind, Ticket, Value, half};

/// A number or a text that the user wrote.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// An exact integer.
    Whole(i128),
    /// Any other number.
    Real(f64),
    /// Text, compared byte by byte.
    Text(String),
}

impl fmt::Display for Constant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Constant::Whole(number) => write!(formatter, "{number}"),
            Constant::Real(number) => write!(formatter, "{number}"),
            Constant::Text(text) => write!(formatter, "{text:?}"),
        }
    }
}

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Comparison {
    Less,
    AtMost,
    Equal,
    NotEqual,
    AtLeast,
    More,
}

/// The left side of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The number or the text of a field.
    Value(String),
    /// The number of groups, bytes, characters or entries of a field.
    Length(String),
}

/// Whether a sample is kept, in terms of operands.
#[derive(Clone, Debug, PartialEq)]
pub enum Predicate<Of> {
    /// An operand compared with a constant.
    Compare(Of, Comparison, Constant),
    /// An operand that is one of these.
    Among(Of, ConstantSet),
    /// All predicates hold.
    All(Vec<Predicate<Of>>),
    /// At least one predicate holds.
    Any(Vec<Predicate<Of>>),
    /// The predicate does not hold.
    Not(Box<Predicate<Of>>),
}

/// The number or the text of a field, to compare with.
pub fn col(field: &str) -> Operand {
    Operand::Value(field.to_owned())
}

/// How many groups, bytes, letters or entries a field has, to compare with.
pub fn length(field: &str) -> Operand {
    Operand::Length(field.to_owned())
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident $how:ident;)*) => {
        impl Operand {
            $($(#[$doc])*
            pub fn $name(self, constant: impl Into<Constant>) -> Predicate<Operand> {
                Predicate::Compare(self, Comparison::$how, constant.into())
            })*

            /// One of these.
            pub fn is_in<C: Into<Constant>>(
                self,
                constants: impl IntoIterator<Item = C>,
            ) -> Predicate<Operand> {
                let constants: Vec<_> = constants.into_iter().map(Into::into).collect();
                Predicate::Among(self, constants.into())
            }
        }
    };
}
comparisons! {
    /// Less than.
    lt Less;
    /// Less than, or equal.
    lt_eq AtMost;
    /// Equal.
    eq Equal;
    /// Not equal.
    not_eq NotEqual;
    /// Greater than, or equal.
    gt_eq AtLeast;
    /// Greater than.
    gt More;
}

macro_rules! constants {
    ($($type:ty)*) => {
        $(impl From<$type> for Constant {
            fn from(number: $type) -> Constant {
                Constant::Whole(i128::from(number))
            }
        })*
    };
}
constants! { i32 i64 u32 u64 bool }

impl From<f64> for Constant {
    fn from(number: f64) -> Constant {
        Constant::Real(number)
    }
}

impl From<&str> for Constant {
    fn from(text: &str) -> Constant {
        Constant::Text(text.to_owned())
    }
}

impl<Of> BitAnd for Predicate<Of> {
    type Output = Predicate<Of>;

    fn bitand(self, other: Predicate<Of>) -> Predicate<Of> {
        Predicate::All(vec![self, other])
    }
}

impl<Of> BitOr for Predicate<Of> {
    type Output = Predicate<Of>;

    fn bitor(self, other: Predicate<Of>) -> Predicate<Of> {
        Predicate::Any(vec![self, other])
    }
}

impl<Of> Not for Predicate<Of> {
    type Output = Predicate<Of>;

    fn not(self) -> Predicate<Of> {
        Predicate::Not(Box::new(self))
    }
}

/// Where an operand is found when a sample is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldLocation {
    /// The index of the sample.
    Index,
    /// A number in a row of its slot.
    Row(usize, Dtype),
    /// Text or bytes among its other values.
    Text(usize),
    /// The length of one of them.
    Length(usize),
}

impl Operand {
    /// Where an operand is found among these fields. The image is decoded last, so if it is among the other values, the
    /// first of them is still missing.
    pub fn place(
        &self,
        call: &str,
        fields: &[Field],
        picture_is_other: bool,
    ) -> Result<FieldLocation> {
        let (Operand::Value(name) | Operand::Length(name)) = self;
        let refused = |message: String, hint: String| {
            Err(Error::new(Kind::InvalidArgument, format!("{call}: {message}")).with_hint(hint))
        };
        let Some(at) = fields.iter().position(|field| &*field.name == name.as_str()) else {
            if *self == Operand::Value("index".into()) {
                return Ok(FieldLocation::Index);
            }
            let names: Vec<_> = fields.iter().map(|field| &*field.name).collect();
            let hint = format!("there are {}", names.join(", "));
            return refused(format!("there is no field {name:?}"), hint);
        };
        let field = &fields[at];
        let row = fields[..at].iter().filter(|field| field.row_bytes().is_some()).count();
        let other = (at - row).checked_sub(usize::from(picture_is_other));
        match (self, &field.kind, other) {
            (Operand::Value(_), FieldKind::Fixed { dtype, shape }, _) if shape.is_empty() => {
                Ok(FieldLocation::Row(row, *dtype))
            }
            (Operand::Value(_), FieldKind::Text | FieldKind::Bytes, Some(other)) => {
                Ok(FieldLocation::Text(other))
            }
            (
                Operand::Length(_),
                FieldKind::Variable { .. }
                | FieldKind::Bytes
                | FieldKind::Text
                | FieldKind::List
                | FieldKind::Texts,
                Some(other),
            ) => Ok(FieldLocation::Length(other)),
            (
                Operand::Value(_) | Operand::Length(_),
                FieldKind::Fixed { .. }
                | FieldKind::Ragged { .. }
                | FieldKind::Variable { .. }
                | FieldKind::Bytes
                | FieldKind::Text
                | FieldKind::Json
                | FieldKind::List
                | FieldKind::Texts,
                _,
            ) => {
                let has_length = field.kind.has_length();
                let is_single =
                    matches!(&field.kind, FieldKind::Fixed { shape, .. } if shape.is_empty());
                let (has, hint) = match self {
                    Operand::Value(_) if has_length => {
                        ("no single value", format!("compare length({name:?})"))
                    }
                    Operand::Length(_) if is_single => {
                        ("no length of its own", format!("compare col({name:?})"))
                    }
                    Operand::Value(_) => {
                        ("no single value", "only single numbers and text can be compared".into())
                    }
                    Operand::Length(_) => (
                        "no length of its own",
                        "only fields whose length differs from sample to sample have one".into(),
                    ),
                };
                refused(format!("field {name:?} has {has}: it is {}", field.kind.describe()), hint)
            }
        }
    }
}

/// The value of an operand.
enum FoundValue<'a> {
    Whole(i128),
    Real(f64),
    Text(&'a [u8]),
}

/// A sample before its image is decoded: the rows of its slot, and its other values.
pub struct MadeSample<'a, Row> {
    /// The ticket of the sample.
    pub ticket: Ticket,
    /// One row for each field with a fixed shape, in order.
    pub rows: &'a [Row],
    /// One value for each other field except the image, in order.
    pub others: &'a [Value],
}

impl<Row: Deref<Target = [u8]>> MadeSample<'_, Row> {
    fn find(&self, place: FieldLocation) -> Result<FoundValue<'_>> {
        Ok(match place {
            FieldLocation::Index => FoundValue::Whole(self.ticket.index.into()),
            FieldLocation::Row(row, dtype) => number(dtype, &self.rows[row]),
            FieldLocation::Text(other) => match &self.others[other] {
                Value::Text(text) => FoundValue::Text(text.as_bytes()),
                Value::Bytes(bytes) => FoundValue::Text(bytes),
                Value::Array(_) | Value::List(_) => return Err(wrong()),
            },
            FieldLocation::Length(other) => FoundValue::Whole(match &self.others[other] {
                Value::Array(array) => array.shape.first().copied().unwrap_or(0) as i128,
                Value::Bytes(bytes) => bytes.len() as i128,
                Value::Text(text) => text.chars().count() as i128,
                Value::List(list) => list.len() as i128,
            }),
        })
    }
}

fn wrong() -> Error {
    Error::new(Kind::Internal, "a field has a value of another kind")
}

impl<Of> Predicate<Of> {
    /// The same predicate with other operands.
    pub(crate) fn try_map<To>(
        &self,
        to: &mut impl FnMut(&Of, &[Constant]) -> Result<To>,
    ) -> Result<Predicate<To>> {
        Ok(match self {
            Predicate::Compare(of, how, with) => {
                Predicate::Compare(to(of, std::slice::from_ref(with))?, *how, with.clone())
            }
            Predicate::Among(of, these) => {
                Predicate::Among(to(of, &these.one_of_each())?, these.clone())
            }
            Predicate::All(parts) => {
                Predicate::All(parts.iter().map(|part| part.try_map(to)).collect::<Result<_>>()?)
            }
            Predicate::Any(parts) => {
                Predicate::Any(parts.iter().map(|part| part.try_map(to)).collect::<Result<_>>()?)
            }
            Predicate::Not(part) => Predicate::Not(Box::new(part.try_map(to)?)),
        })
    }
}

impl Predicate<Operand> {
    /// The same with locations instead of names. Refuses unknown fields, and text compared with numbers.
    pub(crate) fn placed(
        &self,
        fields: &[Field],
        picture_is_other: bool,
    ) -> Result<Predicate<FieldLocation>> {
        self.try_map(&mut |operand, with| {
            let place = operand.place("filter", fields, picture_is_other)?;
            for constant in with {
                let is_text = matches!(constant, Constant::Text(_));
                if is_text != matches!(place, FieldLocation::Text(_)) {
                    let (Operand::Value(name) | Operand::Length(name)) = operand;
                    let message = format!(
                        "filter: {name:?} is {}, but is compared with {constant}",
                        if is_text { "a number" } else { "text" }
                    );
                    return Err(Error::new(Kind::InvalidArgument, message)
                        .with_hint("compare numbers with numbers, and text with text"));
                }
            }
            Ok(place)
        })
    }
}

impl Predicate<FieldLocation> {
    /// Whether a sample is kept.
    pub fn keeps<Row: Deref<Target = [u8]>>(&self, sample: &MadeSample<'_, Row>) -> Result<bool> {
        Ok(match self {
            Predicate::Compare(place, how, with) => how.holds(&sample.find(*place)?, with),
            Predicate::Among(place, these) => these.has(&sample.find(*place)?),
            Predicate::All(parts) => {
                for part in parts {
                    if !part.keeps(sample)? {
                        return Ok(false);
                    }
                }
                true
            }
            Predicate::Any(parts) => {
                for part in parts {
                    if part.keeps(sample)? {
                        return Ok(true);
                    }
                }
                false
            }
            Predicate::Not(part) => !part.keeps(sample)?,
        })
    }
}

/// A set of constants, which may be large.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConstantSet {
    /// Sorted, like the others.
    wholes: Vec<i128>,
    texts: Vec<String>,
    reals: Vec<f64>,
}

impl From<Vec<Constant>> for ConstantSet {
    fn from(constants: Vec<Constant>) -> ConstantSet {
        let mut members = ConstantSet::default();
        for constant in constants {
            match constant {
                Constant::Whole(number) => members.wholes.push(number),
                // Floats without a fraction are stored as integers.
                Constant::Real(number) => match whole_of(number) {
                    Some(whole) => members.wholes.push(whole),
                    None => members.reals.push(number),
                },
                Constant::Text(text) => members.texts.push(text),
            }
        }
        members.wholes.sort_unstable();
        members.texts.sort_unstable();
        members.reals.sort_unstable_by(f64::total_cmp);
        members
    }
}

impl ConstantSet {
    fn has(&self, found: &FoundValue<'_>) -> bool {
        match found {
            FoundValue::Whole(number) => self.wholes.binary_search(number).is_ok(),
            FoundValue::Text(text) => {
                self.texts.binary_search_by(|one| one.as_bytes().cmp(text)).is_ok()
            }
            FoundValue::Real(number) => match whole_of(*number) {
                Some(whole) => self.wholes.binary_search(&whole).is_ok(),
                None => !number.is_nan() && self.reals.contains(number),
            },
        }
    }

    /// One constant of each type, for a type check.
    fn one_of_each(&self) -> Vec<Constant> {
        let whole = self.wholes.first().map(|number| Constant::Whole(*number));
        let real = self.reals.first().map(|number| Constant::Real(*number));
        let text = self.texts.first().map(|text| Constant::Text(text.clone()));
        whole.into_iter().chain(real).chain(text).collect()
    }
}

/// The integer value of a float without a fraction.
fn whole_of(number: f64) -> Option<i128> {
    (number.fract() == 0.0 && number.abs() < 1e30).then_some(number as i128)
}

impl Comparison {
    /// As in Python: only `!=` is true for NaN.
    fn holds(self, found: &FoundValue<'_>, with: &Constant) -> bool {
        let order = found.compare(with);
        match self {
            Comparison::Less => order == Some(Ordering::Less),
            Comparison::AtMost => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Comparison::Equal => order == Some(Ordering::Equal),
            Comparison::NotEqual => order != Some(Ordering::Equal),
            Comparison::AtLeast => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            Comparison::More => order == Some(Ordering::Greater),
        }
    }
}

impl FoundValue<'_> {
    fn compare(&self, with: &Constant) -> Option<Ordering> {
        match (self, with) {
            (FoundValue::Whole(one), Constant::Whole(other)) => Some(one.cmp(other)),
            (FoundValue::Real(one), Constant::Real(other)) => one.partial_cmp(other),
            (FoundValue::Whole(one), Constant::Real(other)) => (*one as f64).partial_cmp(other),
            (FoundValue::Real(one), Constant::Whole(other)) => one.partial_cmp(&(*other as f64)),
            (FoundValue::Text(one), Constant::Text(other)) => Some((*one).cmp(other.as_bytes())),
            (FoundValue::Text(_), Constant::Whole(_) | Constant::Real(_))
            | (FoundValue::Whole(_) | FoundValue::Real(_), Constant::Text(_)) => None,
        }
    }
}

/// The number in a row of one.
fn number(dtype: Dtype, row: &[u8]) -> FoundValue<'static> {
    macro_rules! whole {
        ($type:ty) => {
            FoundValue::Whole(<$type>::from_ne_bytes(bytes(row)).into())
        };
    }
    match dtype {
        Dtype::Bool | Dtype::Uint8 => whole!(u8),
        Dtype::Uint16 => whole!(u16),
        Dtype::Uint32 => whole!(u32),
        Dtype::Uint64 => whole!(u64),
        Dtype::Int8 => whole!(i8),
        Dtype::Int16 => whole!(i16),
        Dtype::Int32 => whole!(i32),
        Dtype::Int64 => whole!(i64),
        Dtype::Float16 => FoundValue::Real(half(u16::from_ne_bytes(bytes(row)))),
        Dtype::Float32 => FoundValue::Real(f32::from_ne_bytes(bytes(row)).into()),
        Dtype::Float64 => FoundValue::Real(f64::from_ne_bytes(bytes(row))),
    }
}

fn bytes<const N: usize>(row: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&row[..N]);
    bytes
}

/// Groups samples of similar length: the operand, and the boundaries of the buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucketing<Of> {
    /// The length or the number.
    pub by: Of,
    /// The first value of each bucket except the first, ascending.
    pub boundaries: Arc<[f64]>,
    /// Batch size of each bucket, if they differ.
    pub sizes: Option<Arc<[usize]>>,
}

impl<Of> Bucketing<Of> {
    /// Number of buckets.
    pub(crate) fn buckets(&self) -> usize {
        self.boundaries.len() + 1
    }
}

impl Bucketing<Operand> {
    /// The same with a location instead of a name: the length of a field that has one, otherwise its number.
    pub(crate) fn placed(
        &self,
        fields: &[Field],
        picture_is_other: bool,
    ) -> Result<Bucketing<FieldLocation>> {
        let (Operand::Value(name) | Operand::Length(name)) = &self.by;
        let place = |operand: Operand| operand.place("bucket", fields, picture_is_other);
        let by =
            place(Operand::Length(name.clone())).or_else(|error| match place(self.by.clone()) {
                Ok(FieldLocation::Text(_)) | Err(_) => Err(error),
                Ok(
                    place @ (FieldLocation::Row(..)
                    | FieldLocation::Index
                    | FieldLocation::Length(_)),
                ) => Ok(place),
            })?;
        Ok(Bucketing { by, boundaries: Arc::clone(&self.boundaries), sizes: self.sizes.clone() })
    }
}

impl Bucketing<FieldLocation> {
    /// The bucket of a sample.
    pub fn bucket<Row: Deref<Target = [u8]>>(&self, sample: &MadeSample<'_, Row>) -> Result<usize> {
        let found = match sample.find(self.by)? {
            FoundValue::Whole(number) => number as f64,
            FoundValue::Real(number) => number,
            FoundValue::Text(_) => return Err(wrong()),
        };
        Ok(self.boundaries.partition_point(|boundary| *boundary <= found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Array;

    const TICKET: Ticket = Ticket { position: 0, epoch: 0, index: 7 };

    fn field(name: &str, kind: FieldKind) -> Field {
        Field { name: name.into(), kind }
    }

    fn fields() -> Vec<Field> {
        vec![
            Field::fixed("label", Dtype::Int64, &[]),
            field("tokens", FieldKind::Variable { dtype: Dtype::Int64, inner: vec![] }),
            Field::fixed("box", Dtype::Float32, &[4]),
            field("split", FieldKind::Text),
            Field::fixed("weight", Dtype::Float32, &[]),
        ]
    }

    fn keeps(predicate: Predicate<Operand>) -> bool {
        let rows = [3_i64.to_ne_bytes().to_vec(), vec![0; 16], 0.5_f32.to_ne_bytes().to_vec()];
        let tokens = Array { dtype: Dtype::Int64, shape: vec![5], bytes: vec![0; 40] };
        let others = [Value::Array(tokens), Value::Text("train".into())];
        let sample = MadeSample { ticket: TICKET, rows: &rows, others: &others };
        predicate.placed(&fields(), false).unwrap().keeps(&sample).unwrap()
    }

    fn compare(of: Operand, how: Comparison, with: Constant) -> Predicate<Operand> {
        Predicate::Compare(of, how, with)
    }

    fn value(name: &str) -> Operand {
        Operand::Value(name.into())
    }

    fn length(name: &str) -> Operand {
        Operand::Length(name.into())
    }

    #[test]
    fn samples_are_kept_as_the_predicate_says() {
        use Comparison::{AtLeast, AtMost, Equal, Less, More, NotEqual};
        let whole = Constant::Whole;
        for (how, with, expected) in [
            (Less, 4, true),
            (Less, 3, false),
            (AtMost, 3, true),
            (Equal, 3, true),
            (NotEqual, 3, false),
            (AtLeast, 4, false),
            (More, 2, true),
        ] {
            assert_eq!(
                keeps(compare(value("label"), how, whole(with))),
                expected,
                "{how:?} {with}"
            );
        }
        assert!(keeps(compare(value("weight"), Equal, Constant::Real(0.5))));
        assert!(keeps(compare(length("tokens"), Equal, whole(5))));
        assert!(keeps(compare(length("split"), Equal, whole(5))));
        assert!(keeps(compare(value("index"), Equal, whole(7))));
        assert!(keeps(compare(value("split"), Equal, Constant::Text("train".into()))));
        assert!(keeps(Predicate::Among(
            value("label"),
            vec![whole(1), Constant::Real(3.0)].into()
        )));
        let (yes, no) =
            (|| Predicate::All(vec![]), || Predicate::Not(Box::new(Predicate::All(vec![]))));
        assert!(keeps(Predicate::Any(vec![no(), yes()])) && !keeps(Predicate::Any(vec![])));
        assert!(!keeps(Predicate::All(vec![yes(), no()])) && keeps(yes()));
    }

    #[test]
    fn nan_is_only_unequal() {
        let nan = Constant::Real(f64::NAN);
        assert!(keeps(compare(value("label"), Comparison::NotEqual, nan.clone())));
        assert!(!keeps(compare(value("label"), Comparison::AtMost, nan)));
    }

    #[test]
    fn every_type_of_number_is_read() {
        let is = |dtype, bytes: &[u8], expected: Constant| {
            let found = number(dtype, bytes);
            assert!(Comparison::Equal.holds(&found, &expected), "{dtype:?} {expected:?}");
        };
        is(Dtype::Uint64, &u64::MAX.to_ne_bytes(), Constant::Whole(u64::MAX.into()));
        is(Dtype::Int8, &[255], Constant::Whole(-1));
        is(Dtype::Float64, &0.1_f64.to_ne_bytes(), Constant::Real(0.1));
        for (bits, expected) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x0001, 2_f64.powi(-24)),
            (0x7bff, 65504.0),
            (0xfc00, f64::NEG_INFINITY),
        ] {
            is(Dtype::Float16, &u16::to_ne_bytes(bits), Constant::Real(expected));
        }
        assert!(half(0x7e00).is_nan());
    }

    #[test]
    fn buckets_end_before_their_boundary() {
        let by = value("tokens");
        let bucketing = Bucketing { by, boundaries: [4.0, 8.0].into(), sizes: None };
        let bucketing = bucketing.placed(&fields(), false).unwrap();
        let bucket = |count: usize| {
            let tokens = Array { dtype: Dtype::Int64, shape: vec![count], bytes: vec![] };
            let others = [Value::Array(tokens)];
            let rows: [Vec<u8>; 0] = [];
            bucketing.bucket(&MadeSample { ticket: TICKET, rows: &rows, others: &others }).unwrap()
        };
        assert_eq!([0, 3, 4, 7, 8, 100].map(bucket), [0, 0, 1, 1, 2, 2]);
        let weight = Bucketing { by: value("weight"), boundaries: [1.0].into(), sizes: None };
        let weight = weight.placed(&fields(), false).unwrap();
        assert_eq!((weight.by, weight.buckets()), (FieldLocation::Row(2, Dtype::Float32), 2));
        let wrong = Bucketing { by: value("box"), boundaries: [1.0].into(), sizes: None };
        assert!(wrong.placed(&fields(), false).is_err());
    }

    #[test]
    fn fields_that_cannot_be_compared_are_refused_by_name() {
        let refused = |predicate: Predicate<Operand>| {
            predicate.placed(&fields(), false).unwrap_err().to_string()
        };
        let one = || Constant::Whole(1);
        let messages = [
            refused(compare(value("labl"), Comparison::Less, one())),
            refused(compare(value("box"), Comparison::Less, one())),
            refused(compare(length("box"), Comparison::Less, one())),
            refused(compare(value("tokens"), Comparison::Less, one())),
            refused(compare(value("label"), Comparison::Equal, Constant::Text("a".into()))),
            refused(Predicate::Not(Box::new(Predicate::Among(value("split"), vec![one()].into())))),
        ];
        insta::assert_snapshot!(messages.join("\n\n"));
    }
}
