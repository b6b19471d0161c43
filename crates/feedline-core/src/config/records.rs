//! The call for records: which fields, and which of them is a picture.

use super::arguments::Arguments;
use super::calls::CallArguments;
use super::{Given, Settings, fields};
use crate::error::{Error, Kind, Result};
use crate::format::{Container, Parser, Shape, Type, Wanted};
use crate::sample::FieldKind;
use crate::source::Contents;

/// Endings that name pictures in a tar.
const PICTURES: [&str; 4] = ["jpg", "jpeg", "png", "webp"];

/// Which fields of a record are wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParseOptions {
    /// One or more.
    pub fields: Vec<Wanted>,
}

impl CallArguments for ParseOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        if from.is_json() {
            self.fields = fields::wanted(from)?;
        }
        fields::check(&self.fields, from)
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        check_lengths(&self.fields)?;
        let Given::Records(contents) = given else {
            return Err(Error::new(Kind::InvalidArgument, "parse: this source has no records")
                .with_hint("parse() is for tfrecord, tar, jsonl and csv"));
        };
        let wanted = self.fields.as_slice().into();
        Parser::new(&contents.container, &wanted, None)?;
        settings.wanted = Some(wanted);
        Ok(())
    }
}

/// Refuses a field of the name under which the lengths of another come.
fn check_lengths(wanted: &[Wanted]) -> Result<()> {
    for one in wanted {
        let has_lengths = match one.field().kind {
            FieldKind::Variable { .. } | FieldKind::List | FieldKind::Texts => true,
            FieldKind::Fixed { .. }
            | FieldKind::Ragged { .. }
            | FieldKind::Bytes
            | FieldKind::Text
            | FieldKind::Json => false,
        };
        let lengths = format!("{}_lengths", one.name);
        if has_lengths && wanted.iter().any(|other| *other.name == *lengths) {
            let message = format!(
                "parse: {lengths:?} is the name under which the lengths of {:?} come",
                one.name
            );
            return Err(Error::new(Kind::InvalidArgument, message).with_hint(format!(
                "give the field another name: parse({{\"other\": fl.int64(key={lengths:?})}})"
            )));
        }
    }
    Ok(())
}

/// Which field is decoded: the one that is named, or the only one that can be meant. None if it is the
/// whole record.
pub(super) fn picture(
    named: Option<&str>,
    contents: &Contents,
    wanted: Option<&[Wanted]>,
) -> Result<Option<usize>> {
    if let Container::Numbers { .. } | Container::JsonLines | Container::Csv { .. } =
        contents.container
    {
        let message = format!("decode: {} holds no pictures", contents.container.name());
        return Err(Error::new(Kind::InvalidArgument, message).with_hint("leave decode() out"));
    }
    let fields = wanted.unwrap_or(&contents.guessed);
    if fields.is_empty() {
        return match named {
            None => Ok(None),
            Some(name) => {
                let message = format!("decode: there is no field {name:?} before parse()");
                Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint("call parse({...}) first, or leave field= out"))
            }
        };
    }
    let is_bytes = |field: &Wanted| {
        field.of == Type::Bytes && field.shape == Shape::Fixed(vec![]) && !field.is_sequence
    };
    let candidates: Vec<_> = (0..fields.len()).filter(|at| is_bytes(&fields[*at])).collect();
    let names = |list: &[usize]| -> String {
        let names: Vec<_> = list.iter().map(|at| format!("{:?}", fields[*at].name)).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    if let Some(name) = named {
        return match candidates.iter().find(|at| *fields[**at].name == *name) {
            Some(at) => Ok(Some(*at)),
            None => {
                let message = format!(
                    "decode: there is no field {name:?} of bytes; there are: {}",
                    names(&candidates)
                );
                Err(Error::new(Kind::InvalidArgument, message))
            }
        };
    }
    let by_name: Vec<_> =
        candidates.iter().copied().filter(|at| PICTURES.contains(&&*fields[*at].key)).collect();
    match (candidates.as_slice(), by_name.as_slice()) {
        ([only], _) | (_, [only]) => Ok(Some(*only)),
        _ => {
            let message =
                format!("decode: which field is the picture? of bytes are: {}", names(&candidates));
            Err(Error::new(Kind::InvalidArgument, message).with_hint("say decode(field=\"...\")"))
        }
    }
}
