//! The fields that the user requests of every record.

use std::sync::Arc;

use crate::sample::{Dtype, Field, FieldKind};

/// The type of a value in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Bytes, unchanged.
    Bytes,
    /// UTF-8.
    Text,
    /// A JSON value of any type.
    Json,
    /// Integers.
    Int64,
    /// Floating-point numbers.
    Float32,
    /// An array in NumPy's format, with numbers of this type.
    Npy(Dtype),
}

/// The shape of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Always the same shape; no axis for a single value.
    Fixed(Vec<usize>),
    /// Any number of groups of this shape: `[None, ...]` in Python.
    Variable(Vec<usize>),
}

/// One field of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its name in the batch.
    pub name: Arc<str>,
    /// Its name in the record: a feature, a column, or an extension in a tar.
    pub key: Arc<str>,
    /// Its type.
    pub of: Type,
    /// Its shape.
    pub shape: Shape,
    /// Whether it comes from the feature lists of a SequenceExample, in which each step must have `shape`.
    pub is_sequence: bool,
    /// The default if the record lacks it: as many values as the shape has, as bytes of the type.
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

    /// The field in a batch.
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
