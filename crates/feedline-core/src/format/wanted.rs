//! What the user asked to find in every record.

use std::sync::Arc;

use crate::sample::{Dtype, Field, FieldKind};

/// What stands under a key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Bytes as they are.
    Bytes,
    /// UTF-8.
    Text,
    /// A JSON value, whatever it is.
    Json,
    /// Whole numbers.
    Int64,
    /// Real numbers.
    Float32,
    /// An array in NumPy's own format, whose numbers must be of this type.
    Npy(Dtype),
}

/// How many values there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Always the same; no axis for one value.
    Fixed(Vec<usize>),
    /// Any number of groups of this shape: what the user writes as `[None, ...]`.
    Variable(Vec<usize>),
}

/// One field of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its name in the batch.
    pub name: Arc<str>,
    /// Its name in the record: of a feature, of a column, or an extension in a tar.
    pub key: Arc<str>,
    /// What it holds.
    pub of: Type,
    /// How much.
    pub shape: Shape,
    /// In a SequenceExample: from the lists of features, of which each step must have `shape`.
    pub is_sequence: bool,
    /// What stands in the batch where the record lacks it: as many values as the shape has, in the
    /// bytes of the type.
    pub default: Option<Vec<u8>>,
}

impl Wanted {
    /// One value under a key of its name.
    pub fn new(name: &str, of: Type) -> Wanted {
        let (name, shape) = (Arc::<str>::from(name), Shape::Fixed(vec![]));
        Wanted { key: Arc::clone(&name), name, of, shape, is_sequence: false, default: None }
    }

    /// The type of the numbers, where it is numbers.
    pub fn dtype(&self) -> Option<Dtype> {
        match self.of {
            Type::Int64 => Some(Dtype::Int64),
            Type::Float32 => Some(Dtype::Float32),
            Type::Npy(dtype) => Some(dtype),
            Type::Bytes | Type::Text | Type::Json => None,
        }
    }

    /// What it is in a batch.
    pub fn field(&self) -> Field {
        let kind = match (&self.shape, self.dtype(), self.of) {
            (Shape::Fixed(shape), Some(dtype), _) if !self.is_sequence => {
                FieldKind::Fixed { dtype, shape: shape.clone() }
            }
            (Shape::Fixed(shape), Some(dtype), _) => {
                FieldKind::Variable { dtype, inner: shape.clone() }
            }
            (Shape::Variable(inner), Some(dtype), _) => {
                FieldKind::Variable { dtype, inner: inner.clone() }
            }
            (Shape::Fixed(shape), None, of) if shape.is_empty() && !self.is_sequence => match of {
                Type::Text => FieldKind::Text,
                Type::Json => FieldKind::Json,
                Type::Bytes | Type::Int64 | Type::Float32 | Type::Npy(_) => FieldKind::Bytes,
            },
            (Shape::Fixed(_) | Shape::Variable(_), None, Type::Text) => FieldKind::Texts,
            (Shape::Fixed(_) | Shape::Variable(_), None, _) => FieldKind::List,
        };
        Field { name: Arc::clone(&self.name), kind }
    }
}
