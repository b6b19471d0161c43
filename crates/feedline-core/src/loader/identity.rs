//! What the states of a loader say of its data and settings, so that a state can be compared with another loader.
//!
//! The text of a setting is compared with that of older states: a change of it makes them useless. The recorded states
//! in tests/golden/states would fail.

use std::collections::BTreeMap;

use super::Shared;
use crate::collate::{Cast, Columns};
use crate::config::{Batching, Function, Takes};
use crate::fingerprint::Fingerprint;
use crate::run_state::{Data, Identity, short};
use crate::sample::{Field, FieldKind};
use crate::source::Source;

/// Names, types and shapes.
fn described_columns(columns: &Columns) -> String {
    let column = |(field, cast): (&Field, &Option<Cast>)| {
        let kind = match &field.kind {
            FieldKind::Fixed { dtype, shape } => format!("{} {shape:?}", dtype.name()),
            FieldKind::Ragged { .. }
            | FieldKind::Variable { .. }
            | FieldKind::Bytes
            | FieldKind::Text
            | FieldKind::Json
            | FieldKind::List
            | FieldKind::Texts => format!("{:?}", field.kind),
        };
        let cast = cast.as_ref().map_or_else(String::new, |cast| format!(" as {cast:?}"));
        format!("{} {kind}{cast}", field.name)
    };
    columns.fields.iter().zip(&*columns.casts).map(column).collect::<Vec<_>>().join(", ")
}

/// What a state says of a data set.
pub fn data(source: &dyn Source) -> Data {
    Data {
        kind: source.kind().to_owned(),
        samples: source.len(),
        fingerprint: source.fingerprint().in_hex(),
    }
}

impl Shared {
    /// What states are compared by.
    pub(super) fn identity(&self) -> &Identity {
        self.identity.get_or_init(|| Identity {
            data: data(&*self.source),
            settings: self.described_settings(),
            version_5: self.settings_of_version_5(),
        })
    }

    /// All settings that decide order or values.
    fn described_settings(&self) -> BTreeMap<String, String> {
        let Batching { size, drop_last, pad, index } = self.batching;
        let columns = &self.columns;
        let mut settings = vec![
            ("remainder", self.plan.remainder().name().to_owned()),
            ("batch", format!("size={size}, drop_last={drop_last}, pad={pad}, index={index}")),
            ("columns", described_columns(columns)),
            ("seed", self.seed.to_string()),
        ];
        let order = self.plan.described();
        settings.extend((!order.is_empty()).then_some(("order", order)));
        settings.extend(columns.pad.as_ref().map(|pad| ("padding", format!("{pad:?}"))));
        settings.extend(self.plan.described_shards().map(|shards| ("shards", shards)));
        settings.extend(self.plan.described_excluded().map(|excluded| ("exclude", excluded)));
        if let Some(transform) = &self.transform {
            settings.push(("decode", format!("{:?}", transform.picture)));
            settings.push(("transforms", format!("{:?}", transform.steps)));
            settings.push(("output", format!("{:?}", transform.output)));
        }
        let given = &self.settings;
        settings.extend(given.wanted.as_ref().map(|wanted| ("parse", format!("{wanted:?}"))));
        settings.extend(given.filter.as_ref().map(|filter| ("filter", format!("{filter:?}"))));
        settings.extend(given.bucketing.as_ref().map(|it| ("bucket", format!("{it:?}"))));
        if !given.functions.is_empty() {
            settings.push(("functions", self.described_functions()));
        }
        settings.into_iter().map(|(name, text)| (name.to_owned(), short(text))).collect()
    }

    /// By name only: the code of a function is unknown. Where it runs makes no difference.
    fn described_functions(&self) -> String {
        let call = |takes: &Takes| match takes {
            Takes::Sample => "map",
            Takes::Choice => "filter",
            Takes::Batch => "map_batch",
        };
        let functions = self.settings.functions.iter();
        let functions =
            functions.map(|Function { takes, name, .. }| format!("{}({name})", call(takes)));
        functions.collect::<Vec<_>>().join(", ")
    }

    /// As states of version 5 have it; it must stay as it is.
    fn settings_of_version_5(&self) -> Fingerprint {
        let mut settings = format!(
            "{:?} {:?} {:?} {} {:?} {:?}",
            self.plan,
            self.transform,
            self.columns,
            self.batching.drop_last,
            self.settings.filter,
            self.settings.bucketing
        );
        for Function { takes, name, .. } in &self.settings.functions {
            settings.push_str(&format!(" {takes:?} {name}"));
        }
        Fingerprint::of([settings.as_bytes()])
    }
}
