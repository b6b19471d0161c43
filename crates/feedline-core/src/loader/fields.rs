//! The fields of a batch, and where each comes from.

use std::sync::Arc;

use crate::collate::Cast;
use crate::config::{Batching, Given, Padding, Settings, picture_of};
use crate::error::{Error, Kind, Result};
use crate::format::{Container, Wanted};
use crate::sample::{Dtype, Extent, Field, FieldKind, Number};
use crate::source::Source;
use crate::transform::{Picture, Transform};

/// The name of the field that is decoded and transformed.
pub(super) const PICTURE: &str = "image";

/// What is written to a row, besides images and parsed fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// The row of this array of the source.
    Array(usize),
    /// The row of this array beside the source.
    Beside(usize),
    /// The label of the sample.
    Label,
    /// The index of the sample.
    Index,
}

/// What a source provides, for the settings.
pub fn given(source: &dyn Source) -> Given {
    if let Some(contents) = source.contents() {
        return Given::Records(contents.clone());
    }
    if source.is_empty() {
        return Given::Files;
    }
    match source.extent(0) {
        Extent::File(_) | Extent::Part { .. } | Extent::Packed { .. } => Given::Files,
        Extent::Memory(arrays) => {
            Given::Arrays(arrays.iter().map(|array| array.field.clone()).collect())
        }
    }
}

/// The fields of records: those that the user requested, or guessed ones.
pub(super) fn wanted(settings: &Settings, given: &Given) -> Option<Arc<[Wanted]>> {
    let Given::Records(contents) = given else { return None };
    let guessed = (!contents.guessed.is_empty()).then(|| Arc::clone(&contents.guessed));
    settings.wanted.clone().or(guessed)
}

/// The transform of images, if there are any.
pub(super) fn transform(settings: &Settings, given: &Given, seed: u64) -> Option<Transform> {
    let picture = match given {
        Given::Files | Given::Records(_) => Picture::Encoded(settings.decoding?),
        Given::Arrays(fields) => {
            let (size, channels) = picture_of(fields)?;
            if settings.steps.is_empty() && settings.output == Settings::default().output {
                return None;
            }
            Picture::Array { size, channels }
        }
    };
    let (steps, output) = (settings.steps.clone(), settings.output.clone());
    Some(Transform { picture, steps, output, seed })
}

/// The fields of a batch: those of the source, the transformed image, and the index on request.
pub(super) fn fields(
    source: &dyn Source,
    given: &Given,
    transform: Option<&Transform>,
    wanted: Option<&[Wanted]>,
    settings: &Settings,
) -> Vec<Field> {
    let batching = settings.batching;
    let picture = transform.map(|transform| {
        let dtype = settings.output.dtype;
        // Padded images come with their shapes, even if these are equal.
        let padded = batching.is_some_and(|batching: Batching| batching.pad)
            && !matches!(given, Given::Arrays(_));
        let kind = match transform.shape() {
            Some(shape) if !padded => FieldKind::Fixed { dtype, shape },
            Some(_) | None => FieldKind::Ragged { dtype },
        };
        Field { name: PICTURE.into(), kind }
    });
    let bytes = || Field { name: "bytes".into(), kind: FieldKind::Bytes };
    let mut fields = match (given, picture) {
        (Given::Records(contents), picture) => match (&contents.container, wanted) {
            (Container::Numbers { dtype, length }, _) => {
                vec![Field::fixed("tokens", *dtype, &[*length])]
            }
            (_, None) => vec![picture.unwrap_or_else(bytes)],
            (_, Some(wanted)) => {
                let others = wanted
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| Some(*at) != settings.picture)
                    .map(|(_, wanted)| wanted.field());
                picture.into_iter().chain(others).collect()
            }
        },
        (Given::Files, picture) => vec![picture.unwrap_or_else(bytes)],
        (Given::Arrays(fields), None) => fields.clone(),
        (Given::Arrays(fields), Some(picture)) => fields
            .iter()
            .map(|field| if field.name == picture.name { picture.clone() } else { field.clone() })
            .collect(),
    };
    fields.extend(source.beside().iter().map(|array| array.field.clone()));
    if source.has_labels() {
        fields.push(Field::fixed("label", Dtype::Int64, &[]));
    }
    if batching.is_some_and(|batching| batching.index) {
        fields.push(Field::fixed("index", Dtype::Int64, &[]));
    }
    fields
}

/// What is written to which row, except decoded images, parsed fields and numbers that are read in place.
pub(super) fn writes(
    given: &Given,
    fields: &[Field],
    source: &dyn Source,
    has_index: bool,
) -> Vec<(usize, Write)> {
    let has_labels = source.has_labels();
    let of_all = fields.len() - usize::from(has_labels) - usize::from(has_index);
    let of_source = of_all - source.beside().len();
    let mut writes = Vec::new();
    let mut row = 0;
    for (at, field) in fields.iter().enumerate() {
        if field.row_bytes().is_none() {
            continue;
        }
        let write = match given {
            Given::Arrays(_) if at < of_source => Some(Write::Array(at)),
            Given::Files | Given::Records(_) if at < of_source => None,
            Given::Files | Given::Records(_) | Given::Arrays(_) if at < of_all => {
                Some(Write::Beside(at - of_source))
            }
            Given::Files | Given::Records(_) | Given::Arrays(_) if at == of_all && has_labels => {
                Some(Write::Label)
            }
            Given::Files | Given::Records(_) | Given::Arrays(_) => Some(Write::Index),
        };
        writes.extend(write.map(|write| (row, write)));
        row += 1;
    }
    writes
}

/// The conversion of each field's numbers. Refuses casts of other fields.
pub(super) fn casts(fields: &[Field], settings: &Settings) -> Result<Arc<[Option<Cast>]>> {
    let is_numbers =
        |field: &Field| matches!(field.kind, FieldKind::Fixed { .. } | FieldKind::Variable { .. });
    for (name, _) in &settings.casts {
        if !fields.iter().any(|field| field.name == *name && is_numbers(field)) {
            let there: Vec<_> = fields
                .iter()
                .filter(|field| is_numbers(field))
                .map(|field| format!("{:?}", field.name))
                .collect();
            let message = format!(
                "cast: there is no numeric field {name:?}; the numeric fields are: {}",
                if there.is_empty() { "none".to_owned() } else { there.join(", ") }
            );
            return Err(Error::new(Kind::InvalidArgument, message));
        }
    }
    let cast = |field: &Field| {
        settings.casts.iter().find(|(name, _)| field.name == *name).map(|(_, cast)| *cast)
    };
    Ok(fields.iter().map(cast).collect())
}

/// The padding element of each field, as bytes; empty for fields that are never padded.
pub(super) fn padding(
    fields: &[Field],
    casts: &[Option<Cast>],
    settings: &Settings,
) -> Result<Arc<[Vec<u8>]>> {
    let Padding { all, named } = &settings.padding;
    let padded = |field: &Field| match field.kind {
        FieldKind::Ragged { dtype } | FieldKind::Variable { dtype, .. } => Some(dtype),
        FieldKind::Fixed { .. }
        | FieldKind::Bytes
        | FieldKind::Text
        | FieldKind::Json
        | FieldKind::List
        | FieldKind::Texts => None,
    };
    for (name, _) in named {
        if !fields.iter().any(|field| *field.name == **name && padded(field).is_some()) {
            let there: Vec<&str> = fields
                .iter()
                .filter(|field| padded(field).is_some())
                .map(|field| &*field.name)
                .collect();
            let message = format!("batch: pad names {name:?}, but no field of that name is padded");
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint(format!("padded are: {}", there.join(", "))));
        }
    }
    let elements = fields.iter().zip(casts).map(|(field, cast)| {
        let Some(dtype) = padded(field) else { return Ok(Vec::new()) };
        let dtype = cast.map_or(dtype, |cast| cast.dtype);
        let own = named.iter().find(|(name, _)| *field.name == **name).map(|(_, number)| *number);
        let number = own.or(*all).unwrap_or(Number::Whole(0));
        number.element(dtype).ok_or_else(|| {
            let (name, dtype) = (&field.name, dtype.name());
            let message =
                format!("batch: pad={number} does not fit into {name:?}, which is {dtype}");
            Error::new(Kind::InvalidArgument, message)
                .with_hint("give each field its own number: pad={\"tokens\": -100}")
        })
    });
    elements.collect()
}
