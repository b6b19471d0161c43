//! The types that every stage uses: ticket, location, value, field, sample, batch.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::budget::Permit;
use crate::bytes::Piece;
use crate::error::{Error, Kind, Result};
use crate::escape;
use crate::sys::slab::{Borrowed, Row};
use feedline_kernels::dtype::to_half;
pub use feedline_kernels::dtype::{Dtype, half};

/// The place of one sample in the order of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// Its position in the run, counted over all ranks and epochs. Randomness is keyed by it.
    pub position: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The index of the sample in the source.
    pub index: u64,
}

/// The stages of the path of a sample, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The source lists the samples.
    Source,
    /// The plan orders them.
    Plan,
    /// Fetch reads their bytes.
    Fetch,
    /// Workers turn bytes into values.
    Worker,
    /// Collate turns samples into a batch.
    Collate,
    /// Deliver hands batches to the consumer, in order.
    Deliver,
}

impl Stage {
    /// Its name in messages, metrics and folders.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Source => "source",
            Stage::Plan => "plan",
            Stage::Fetch => "fetch",
            Stage::Worker => "worker",
            Stage::Collate => "collate",
            Stage::Deliver => "deliver",
        }
    }
}

/// The location of the bytes of a sample, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file.
    pub path: PathBuf,
    /// The first byte, if the sample is a part of the file.
    pub offset: Option<u64>,
    /// The number of the record in the file, from 0.
    pub record: Option<u64>,
}

impl Location {
    /// A whole file.
    pub fn file(path: impl Into<PathBuf>) -> Location {
        Location { path: path.into(), offset: None, record: None }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", escape::path(&self.path))?;
        if let Some(record) = self.record {
            write!(formatter, ", record {record}")?;
        }
        match self.offset {
            Some(offset) => write!(formatter, ", byte {offset}"),
            None => Ok(()),
        }
    }
}

/// A named value of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The key in the batch.
    pub name: Arc<str>,
    /// How its values become a batch.
    pub kind: FieldKind,
}

/// How the values of a field become a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// An array of one shape, written straight into its row of the batch.
    Fixed {
        /// Type of its numbers.
        dtype: Dtype,
        /// Shape of one sample.
        shape: Vec<usize>,
    },
    /// An array whose shape is known once it is loaded.
    Ragged {
        /// Type of its numbers.
        dtype: Dtype,
    },
    /// Groups of numbers, a different count in each sample. In a batch they are concatenated, or padded to the longest,
    /// with the counts beside them.
    Variable {
        /// Type of its numbers.
        dtype: Dtype,
        /// Shape of one group.
        inner: Vec<usize>,
    },
    /// Bytes, as a list in the batch.
    Bytes,
    /// Text, as a list in the batch.
    Text,
    /// JSON, as a list of parsed values in the batch.
    Json,
    /// Any number of byte strings in each sample: one list for the batch, with the counts beside it.
    List,
    /// The same for text.
    Texts,
}

impl FieldKind {
    /// Whether a value has a length that differs from sample to sample.
    pub(crate) fn has_length(&self) -> bool {
        match self {
            FieldKind::Variable { .. }
            | FieldKind::Bytes
            | FieldKind::Text
            | FieldKind::List
            | FieldKind::Texts => true,
            FieldKind::Fixed { .. } | FieldKind::Ragged { .. } | FieldKind::Json => false,
        }
    }

    /// A description for people.
    pub fn describe(&self) -> String {
        match self {
            FieldKind::Fixed { dtype, shape } => format!("{}{shape:?}", dtype.name()),
            FieldKind::Ragged { dtype } => format!("{} of any shape", dtype.name()),
            FieldKind::Variable { dtype, inner } => format!("a list of {}{inner:?}", dtype.name()),
            FieldKind::Bytes => "bytes".to_owned(),
            FieldKind::Text => "text".to_owned(),
            FieldKind::Json => "JSON".to_owned(),
            FieldKind::List => "a list of bytes".to_owned(),
            FieldKind::Texts => "a list of text".to_owned(),
        }
    }
}

/// A number as the user wrote it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer.
    Whole(i128),
    /// A floating-point number.
    Real(f64),
}

impl Number {
    /// The bytes of the number as this type; None if the type cannot hold it. Fractions are rounded to the nearest
    /// value of the type.
    pub(crate) fn element(self, dtype: Dtype) -> Option<Vec<u8>> {
        macro_rules! whole {
            ($type:ty) => {
                <$type>::try_from(self.whole()?).ok()?.to_ne_bytes().to_vec()
            };
        }
        Some(match dtype {
            Dtype::Bool => vec![u8::try_from(self.whole()?).ok().filter(|bit| *bit < 2)?],
            Dtype::Uint8 => whole!(u8),
            Dtype::Uint16 => whole!(u16),
            Dtype::Uint32 => whole!(u32),
            Dtype::Uint64 => whole!(u64),
            Dtype::Int8 => whole!(i8),
            Dtype::Int16 => whole!(i16),
            Dtype::Int32 => whole!(i32),
            Dtype::Int64 => whole!(i64),
            Dtype::Float16 => {
                // Larger numbers would become infinite.
                (self.real().abs() <= 65504.0).then(|| to_half(self.real()))?.to_ne_bytes().to_vec()
            }
            Dtype::Float32 => {
                let near = self.real() as f32;
                (near.is_finite() || !self.real().is_finite())
                    .then_some(near)?
                    .to_ne_bytes()
                    .to_vec()
            }
            Dtype::Float64 => self.real().to_ne_bytes().to_vec(),
        })
    }

    fn whole(self) -> Option<i128> {
        match self {
            Number::Whole(number) => Some(number),
            Number::Real(number) => (number.fract() == 0.0).then_some(number as i128),
        }
    }

    fn real(self) -> f64 {
        match self {
            Number::Whole(number) => number as f64,
            Number::Real(number) => number,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(number) => number.fmt(formatter),
            Number::Real(number) => number.fmt(formatter),
        }
    }
}

impl Field {
    /// An array of one shape.
    pub fn fixed(name: &str, dtype: Dtype, shape: &[usize]) -> Field {
        Field { name: name.into(), kind: FieldKind::Fixed { dtype, shape: shape.to_vec() } }
    }

    /// Bytes of one sample in its row; None if it has no row.
    pub fn row_bytes(&self) -> Option<usize> {
        match &self.kind {
            FieldKind::Fixed { dtype, shape } => {
                Some(dtype.bytes() * shape.iter().product::<usize>())
            }
            FieldKind::Ragged { .. }
            | FieldKind::Variable { .. }
            | FieldKind::Bytes
            | FieldKind::Text
            | FieldKind::Json
            | FieldKind::List
            | FieldKind::Texts => None,
        }
    }
}

/// An array with a shape of its own.
#[derive(Debug)]
pub struct Array {
    /// Type of its numbers.
    pub dtype: Dtype,
    /// Shape of the array.
    pub shape: Vec<usize>,
    /// The numbers in C order.
    pub bytes: Vec<u8>,
}

impl Array {
    /// Of numbers in C order.
    pub fn new<T: Element>(values: &[T], shape: &[usize]) -> Array {
        let bytes = values.iter().flat_map(|value| value.bytes()).collect();
        Array { dtype: T::DTYPE, shape: shape.to_vec(), bytes }
    }

    /// As an array of which each sample is a row, and how many there are. Refuses bytes that are not of this shape.
    pub fn loaned(self, name: &str) -> Result<(BorrowedArray, u64)> {
        let Array { dtype, shape, bytes } = self;
        let length = shape.iter().product::<usize>() * dtype.bytes();
        let Some((rows, row)) = shape.split_first().filter(|_| bytes.len() == length) else {
            let message = format!(
                "array {name:?} of shape {shape:?} has {} bytes, not {length}",
                bytes.len()
            );
            return Err(Error::new(Kind::InvalidSource, message)
                .with_hint("the first axis counts the samples"));
        };
        let field = Field::fixed(name, dtype, row);
        let stride = field.row_bytes().unwrap_or(0);
        Ok((
            BorrowedArray { field, memory: Arc::new(Borrowed::of(bytes)), stride, first: 0 },
            *rows as u64,
        ))
    }
}

/// A number that an array can hold.
pub trait Element: Sized {
    /// Its type in arrays.
    const DTYPE: Dtype;

    /// From as many bytes as it has, in the order of this machine.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;

    /// The bytes of it.
    fn bytes(&self) -> Vec<u8>;
}

macro_rules! elements {
    ($($type:ty: $dtype:ident)*) => {
        $(impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;

            fn from_bytes(bytes: &[u8]) -> Option<$type> {
                Some(<$type>::from_ne_bytes(bytes.try_into().ok()?))
            }

            fn bytes(&self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }
        })*
    };
}
elements! {
    u8: Uint8 u16: Uint16 u32: Uint32 u64: Uint64 i8: Int8 i16: Int16 i32: Int32 i64: Int64 f32: Float32 f64: Float64
}

/// What a sample has under a name, if it has no row of the batch.
pub enum Value {
    /// An array that is copied into the batch when its shape is known to fit.
    Array(Array),
    /// Bytes.
    Bytes(Piece),
    /// Text, or unparsed JSON.
    Text(Arc<str>),
    /// Any number of byte strings.
    List(Vec<Piece>),
}

/// A sample that is ready for its batch: a value for each field, and a permit for its bytes.
pub struct Sample {
    /// The ticket of the sample.
    pub ticket: Ticket,
    /// The rows of the batch, filled: one for each field that is fixed, in the order of the layout.
    pub rows: Vec<Row>,
    /// One for each other field, in that order.
    pub values: Vec<Value>,
    /// The permit for values that are not rows.
    pub permit: Option<Permit>,
}

/// One field of a batch.
pub enum Column {
    /// An array whose first axis counts the samples.
    Array {
        /// Type of its numbers.
        dtype: Dtype,
        /// Shape of the column.
        shape: Vec<usize>,
        /// The memory.
        memory: Row,
    },
    /// A byte string for each sample.
    Bytes(Vec<Piece>),
    /// A text for each sample.
    Text(Vec<Arc<str>>),
    /// A JSON text for each sample.
    Json(Vec<Arc<str>>),
}

impl Column {
    /// The shape of an array, None for a list.
    pub fn shape(&self) -> Option<&[usize]> {
        match self {
            Column::Array { shape, .. } => Some(shape),
            Column::Bytes(_) | Column::Text(_) | Column::Json(_) => None,
        }
    }
}

/// Some samples, field by field.
pub struct Batch {
    /// Names and columns, in the order of the layout.
    pub columns: Vec<(Arc<str>, Column)>,
    /// The tickets of the samples, in order.
    pub tickets: Vec<Ticket>,
    /// The permit for bytes of lists; arrays have their own.
    pub permit: Option<Permit>,
}

impl Batch {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.tickets.len()
    }

    /// Never true for a delivered batch.
    pub fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// The column with this name.
    pub fn get(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|(key, _)| &**key == name).map(|(_, column)| column)
    }

    /// The bytes of the array with this name.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        match self.get(name)? {
            Column::Array { memory, .. } => Some(memory),
            Column::Bytes(_) | Column::Text(_) | Column::Json(_) => None,
        }
    }

    /// The numbers of an array of that name, in C order; none if it has another type.
    pub fn values<T: Element>(&self, name: &str) -> Option<Vec<T>> {
        match self.get(name)? {
            Column::Array { dtype, memory, .. } if *dtype == T::DTYPE => {
                memory.chunks_exact(dtype.bytes()).map(T::from_bytes).collect()
            }
            Column::Array { .. } | Column::Bytes(_) | Column::Text(_) | Column::Json(_) => None,
        }
    }
}

/// Where the bytes of a sample are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent<'a> {
    /// A whole file.
    File(PathBuf),
    /// A part of a file.
    Part {
        /// The file.
        path: &'a Path,
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// A record of a compressed file.
    Packed {
        /// The file.
        path: &'a Path,
        /// The number of the record, from 0.
        record: u64,
    },
    /// Nothing to fetch: the values are in memory.
    Memory(&'a [BorrowedArray]),
}

/// An array in memory; each sample is a row of it.
#[derive(Clone)]
pub struct BorrowedArray {
    /// Name, type and shape of a row.
    pub field: Field,
    /// The memory.
    pub memory: Arc<Borrowed>,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// The index of the sample in the first row.
    pub first: u64,
}

impl BorrowedArray {
    /// The bytes of the row of a sample.
    pub fn range(&self, index: u64) -> Range<usize> {
        let start = (index - self.first) as usize * self.stride;
        start..start + self.field.row_bytes().unwrap_or(0)
    }
}

impl fmt::Debug for BorrowedArray {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Loaned({:?})", self.field)
    }
}

impl PartialEq for BorrowedArray {
    fn eq(&self, other: &BorrowedArray) -> bool {
        self.field == other.field && Arc::ptr_eq(&self.memory, &other.memory)
    }
}
impl Eq for BorrowedArray {}

/// A path for messages, which may not be UTF-8.
pub fn shown(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

/// A number of bytes for people.
pub(crate) fn in_bytes(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_fits_only_the_types_that_can_hold_it() {
        use Number::{Real, Whole};
        for (dtype, number, expected) in [
            (Dtype::Uint8, Whole(255), Some(vec![255])),
            (Dtype::Uint8, Whole(256), None),
            (Dtype::Uint8, Real(7.0), Some(vec![7])),
            (Dtype::Uint8, Real(7.5), None),
            (Dtype::Bool, Whole(1), Some(vec![1])),
            (Dtype::Bool, Whole(2), None),
            (Dtype::Int64, Whole(-100), Some((-100_i64).to_ne_bytes().to_vec())),
            (Dtype::Uint64, Whole(u64::MAX.into()), Some(vec![255; 8])),
            (Dtype::Int64, Whole(u64::MAX.into()), None),
            (Dtype::Float32, Real(0.1), Some(0.1_f32.to_ne_bytes().to_vec())),
            (Dtype::Float32, Real(1e300), None),
            (Dtype::Float64, Whole(3), Some(3_f64.to_ne_bytes().to_vec())),
            (Dtype::Float16, Real(-2.0), Some(0xc000_u16.to_ne_bytes().to_vec())),
            (Dtype::Float16, Real(0.1), Some(0x2e66_u16.to_ne_bytes().to_vec())),
            (Dtype::Float16, Real(65504.0), Some(0x7bff_u16.to_ne_bytes().to_vec())),
            (Dtype::Float16, Real(70000.0), None),
        ] {
            assert_eq!(number.element(dtype), expected, "{} {number}", dtype.name());
        }
    }
}
