//! Refuses settings that do not fit a source, or one another, before a loader starts.

use super::fields::{casts, fields, given, padding, transform, wanted};
use crate::config::{Choice, Function, Padding, Settings};
use crate::error::{Error, Kind, Result};
use crate::plan::{self, Excluded, Plan};
use crate::sample::{Field, FieldKind};
use crate::source::Source;

/// Refuses settings that do not fit a source.
pub fn check(source: &dyn Source, settings: &Settings) -> Result<()> {
    plan(source, settings, Excluded::default())?;
    let pads = settings.padding != Padding::default() && settings.functions.is_empty();
    if settings.filter.is_none()
        && settings.bucketing.is_none()
        && settings.casts.is_empty()
        && settings.batching.is_none()
    {
        return Ok(());
    }
    let given = given(source);
    let transform = transform(settings, &given, 0);
    let wanted = wanted(settings, &given);
    let fields = fields(source, &given, transform.as_ref(), wanted.as_deref(), settings);
    if let Some(filter) = &settings.filter {
        filter.placed(&fields, false)?;
    }
    if let Some(bucketing) = &settings.bucketing {
        bucketing.placed(&fields, false)?;
    }
    let casts = casts(&fields, settings)?;
    if pads {
        padding(&fields, &casts, settings)?;
    }
    if let Some(batching) = settings.batching {
        check_names(&fields, batching.pad, &settings.functions)?;
    }
    Ok(())
}

/// The plan of the run. Refuses one that leaves no samples.
pub(super) fn plan(source: &dyn Source, settings: &Settings, excluded: Excluded) -> Result<Plan> {
    let plan = Plan::new(&source.shards(), &settings.order, excluded)?;
    if plan.is_empty() && !source.is_empty() {
        let steps: Vec<_> = settings.order.iter().map(plan::OrderStep::name).collect();
        let message = format!("{} leaves none of {} samples", steps.join(", "), source.len());
        return Err(Error::new(Kind::InvalidArgument, message).with_hint("skip fewer samples"));
    }
    Ok(plan)
}

/// Refuses a prefetch that leaves nothing of the memory that the user gave.
pub(super) fn check_prefetch(prefetch: u64, memory: u64, given: Choice) -> Result<()> {
    if prefetch < memory {
        return Ok(());
    }
    let percent = match given {
        Choice::Percent(_) => format!(" (memory=\"{given}\")"),
        Choice::Auto | Choice::Exactly(_) => String::new(),
    };
    let message = format!("loader: prefetch={prefetch} leaves nothing of memory={memory}{percent}");
    Err(Error::new(Kind::InvalidArgument, message)
        .with_hint("prefetch is a part of memory; the rest is for files and decoding"))
}

/// Refuses a cache that leaves nothing of the memory that the user gave.
pub(super) fn check_cache(cached: u64, memory: u64, prefetch: u64) -> Result<()> {
    if cached == 0 || cached.saturating_add(prefetch) < memory {
        return Ok(());
    }
    let message =
        format!("cache(memory={cached}) and prefetch={prefetch} leave nothing of memory={memory}");
    Err(Error::new(Kind::InvalidArgument, message)
        .with_hint("the cache is a part of loader(memory=...): raise that, or leave it out"))
}

/// Refuses two columns with the same name. Some fields have a second column: their lengths, or the shapes of images.
/// Functions receive samples, which have neither.
pub(super) fn check_names(fields: &[Field], is_padded: bool, functions: &[Function]) -> Result<()> {
    for (at, field) in fields.iter().enumerate() {
        if fields[..at].iter().any(|earlier| earlier.name == field.name) {
            let message = format!("a batch would have two fields named {:?}", field.name);
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("rename the array, or remove index=True"));
        }
    }
    if !functions.is_empty() {
        return Ok(());
    }
    for field in fields {
        let brought = match field.kind {
            FieldKind::Variable { .. } | FieldKind::List | FieldKind::Texts => "lengths",
            FieldKind::Ragged { .. } if is_padded => "shape",
            FieldKind::Ragged { .. }
            | FieldKind::Fixed { .. }
            | FieldKind::Bytes
            | FieldKind::Text
            | FieldKind::Json => continue,
        };
        let brought = format!("{}_{brought}", field.name);
        if fields.iter().any(|other| *other.name == *brought) {
            let message = format!(
                "a batch would have two fields named {brought:?}: one of the data, and one that \
                 has the lengths of the values of {:?}",
                field.name
            );
            return Err(Error::new(Kind::InvalidArgument, message).with_hint(format!(
                "rename one of them: parse({{\"other\": fl.int64(key={brought:?})}})"
            )));
        }
    }
    Ok(())
}
