//! The calls that change the type of numbers: of the image, or of other fields.

use serde_json::Value;
use std::fmt;
use std::sync::Arc;

use super::arguments::{ArgumentRule, Arguments, OneOf};
use super::calls::CallArguments;
use super::image::no_picture;
use super::{Given, Settings, picture_of};
use crate::collate;
use crate::error::{Error, Kind, Result};
use crate::format::{Container, Wanted};
use crate::sample::{Dtype, Field, FieldKind};
use crate::transform::{Layout, Output};

/// Numbers become float32: of the image, 0 to 255 becomes 0 to 1 first.
#[derive(Clone, Debug, PartialEq)]
pub struct ToFloatOptions {
    /// Is subtracted.
    pub mean: PerChannel,
    /// Then the numbers are divided by it.
    pub std: PerChannel,
    /// Of the image; channels first by default.
    pub layout: Option<Layout>,
    /// Which fields; none for the image, or for the only field of numbers.
    pub field: Vec<String>,
}

impl Default for ToFloatOptions {
    fn default() -> ToFloatOptions {
        let (mean, std) = (PerChannel::Same(0.0), PerChannel::Same(1.0));
        ToFloatOptions { mean, std, layout: None, field: Vec::new() }
    }
}

/// Numbers become another type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CastOptions {
    /// The type.
    pub dtype: Dtype,
    /// Of the image; channels last by default.
    pub layout: Option<Layout>,
    /// Which fields; none for the image, or for the only field of numbers.
    pub field: Vec<String>,
}

impl Default for CastOptions {
    fn default() -> CastOptions {
        CastOptions::from(Dtype::Uint8)
    }
}

impl From<Dtype> for CastOptions {
    fn from(dtype: Dtype) -> CastOptions {
        CastOptions { dtype, layout: None, field: Vec::new() }
    }
}

/// One number for all channels, or one for each.
#[derive(Clone, Debug, PartialEq)]
pub enum PerChannel {
    /// For all.
    Same(f64),
    /// In their order.
    Each(Vec<f64>),
}

impl From<f64> for PerChannel {
    fn from(number: f64) -> PerChannel {
        PerChannel::Same(number)
    }
}

impl<const CHANNELS: usize> From<[f64; CHANNELS]> for PerChannel {
    fn from(numbers: [f64; CHANNELS]) -> PerChannel {
        PerChannel::Each(numbers.to_vec())
    }
}

impl fmt::Display for PerChannel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PerChannel::Same(number) => write!(formatter, "{number}"),
            PerChannel::Each(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(f64::to_string).collect();
                write!(formatter, "[{}]", numbers.join(","))
            }
        }
    }
}

impl PerChannel {
    fn for_channels(&self, name: &'static str, channels: usize) -> Result<Vec<f32>> {
        let numbers: Vec<f32> = match self {
            PerChannel::Same(number) => vec![*number as f32; channels],
            PerChannel::Each(numbers) => numbers.iter().map(|number| *number as f32).collect(),
        };
        if numbers.len() != channels || numbers.iter().any(|number| !number.is_finite()) {
            let wanted = format!("a number, or {channels} of them, one for each channel");
            return Err(Arguments::of_values("to_float").bad(name, &wanted, self));
        }
        Ok(numbers)
    }
}

/// How many there must be is known when the call is applied.
struct NumberList;

impl ArgumentRule for NumberList {
    type Of = PerChannel;

    fn wanted(&self) -> String {
        "a number, or one for each channel".to_owned()
    }

    fn read(&self, value: &Value) -> Option<PerChannel> {
        match value.as_array() {
            None => value.as_f64().map(PerChannel::Same),
            Some(list) => {
                list.iter().map(Value::as_f64).collect::<Option<_>>().map(PerChannel::Each)
            }
        }
    }
}

/// A name or several.
struct Names;

impl ArgumentRule for Names {
    type Of = Vec<String>;

    fn wanted(&self) -> String {
        "a name, or a list of them".to_owned()
    }

    fn read(&self, value: &Value) -> Option<Vec<String>> {
        let one = value.as_str().map(|name| vec![name.to_owned()]);
        let several = || {
            let names = value.as_array()?.iter().map(|name| name.as_str().map(str::to_owned));
            names.collect::<Option<Vec<_>>>().filter(|names| !names.is_empty())
        };
        one.or_else(several)
    }
}

const LAYOUTS: OneOf<'_, Layout> = OneOf(&[("HWC", Layout::Hwc), ("CHW", Layout::Chw)]);

fn dtypes() -> Vec<(&'static str, Dtype)> {
    Dtype::ALL.iter().map(|dtype| (dtype.name(), *dtype)).collect()
}

impl CallArguments for ToFloatOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.take("mean", &mut self.mean, NumberList)?;
        from.take("std", &mut self.std, NumberList)?;
        from.take("layout", &mut self.layout, LAYOUTS)?;
        from.take("field", &mut self.field, Names)
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        let is_image = settings.means_picture(&self.field, given);
        let channels = if is_image { settings.channels(given) } else { 1 };
        let mean = self.mean.for_channels("mean", channels)?;
        let deviation = self.std.for_channels("std", channels)?;
        if deviation.contains(&0.0) {
            let message = "to_float: std must not be zero, got 0";
            return Err(Error::new(Kind::InvalidArgument, message));
        }
        if is_image {
            let layout = self.layout.unwrap_or(Layout::Chw);
            settings.output = Output::normalised(layout, &mean, &deviation);
            return Ok(());
        }
        // Bytes of images are 0 to 255, and 0 to 1 is made of them; other numbers are what they are.
        let cast = collate::Cast { dtype: Dtype::Float32, scale: Some((mean[0], deviation[0])) };
        settings.add_casts("to_float", &self.field, self.layout, cast, given)
    }
}

impl CallArguments for CastOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("dtype", &mut self.dtype, OneOf(&dtypes()))?;
        from.take("layout", &mut self.layout, LAYOUTS)?;
        from.take("field", &mut self.field, Names)
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        let dtype = self.dtype;
        if !settings.means_picture(&self.field, given) {
            let cast = collate::Cast { dtype, scale: None };
            return settings.add_casts("cast", &self.field, self.layout, cast, given);
        }
        if let Dtype::Bool | Dtype::Int8 = dtype {
            // A byte does not fit into these.
            let mut dtypes = dtypes();
            dtypes.retain(|(_, dtype)| !matches!(dtype, Dtype::Bool | Dtype::Int8));
            let shown = format!("{:?}", dtype.name());
            return Err(Arguments::of_values("cast").bad("dtype", &OneOf(&dtypes).wanted(), shown));
        }
        settings.output = Output::plain(dtype, self.layout.unwrap_or(Layout::Hwc));
        Ok(())
    }
}

impl Settings {
    /// Whether `to_float` or `cast` of these fields is about the image.
    pub(super) fn means_picture(&self, fields: &[String], given: &Given) -> bool {
        self.has_picture(given) && fields.iter().all(|field| field == "image")
    }

    fn channels(&self, given: &Given) -> usize {
        match (given, self.decoding) {
            (Given::Arrays(fields), _) => picture_of(fields).map_or(3, |(_, channels)| channels),
            (Given::Files | Given::Records(_), Some(decoding)) => decoding.options.mode.channels(),
            (Given::Files | Given::Records(_), None) => 3,
        }
    }

    fn add_casts(
        &mut self,
        call: &str,
        fields: &[String],
        layout: Option<Layout>,
        cast: collate::Cast,
        given: &Given,
    ) -> Result<()> {
        if fields.is_empty() && matches!(given, Given::Files) {
            return Err(no_picture(call, given));
        }
        if layout.is_some() {
            let message = format!("{call}: layout is for pictures");
            return Err(Error::new(Kind::InvalidArgument, message).with_hint("leave layout out"));
        }
        let fields = match fields {
            [] => vec![only_field(call, &number_fields(given, self.wanted.as_deref()))?],
            named => named.iter().map(|name| Arc::from(name.as_str())).collect(),
        };
        for name in fields {
            if self.casts.iter().any(|(other, _)| *other == name) {
                let message = format!("{call}: the numbers of {name:?} were decided already");
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint("call to_float or cast once for each field"));
            }
            self.casts.push((name, cast));
        }
        Ok(())
    }
}

/// The fields of numbers that a source is known to have.
fn number_fields(given: &Given, wanted: Option<&[Wanted]>) -> Vec<Arc<str>> {
    let is_numbers =
        |field: &Field| matches!(field.kind, FieldKind::Fixed { .. } | FieldKind::Variable { .. });
    let fields: Vec<Field> = match given {
        Given::Files => Vec::new(),
        Given::Arrays(fields) => fields.clone(),
        Given::Records(contents) => match (&contents.container, wanted) {
            (Container::Numbers { .. }, _) => return vec!["tokens".into()],
            (_, Some(wanted)) => wanted.iter().map(Wanted::field).collect(),
            (_, None) => contents.guessed.iter().map(Wanted::field).collect(),
        },
    };
    fields.into_iter().filter(is_numbers).map(|field| field.name).collect()
}

/// The field that is meant if none is named.
fn only_field(call: &str, known: &[Arc<str>]) -> Result<Arc<str>> {
    match known {
        [only] => Ok(Arc::clone(only)),
        [] => {
            let message = format!("{call} needs a picture or a field of numbers");
            Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("call decode() first for pictures, or parse({...}) for numbers"))
        }
        several => {
            let names: Vec<_> = several.iter().map(|name| format!("{name:?}")).collect();
            let message = format!("{call}: which field? of numbers are: {}", names.join(", "));
            Err(Error::new(Kind::InvalidArgument, message)
                .with_hint(format!("say {call}(..., field={})", names[0])))
        }
    }
}
