//! The calls for images: decode, resize, crop, flip.

use serde_json::Value;

use super::arguments::{ArgumentRule, Arguments, Count, OneOf, Real, Truth};
use super::calls::CallArguments;
use super::{Given, Settings, records};
use crate::decode::resize::Filter;
use crate::decode::{MAX_PIXELS, Mode, Options};
use crate::error::{Error, Kind, Result};
use crate::transform::{Decoding, Size, Step};

/// The longest side of an image that can be asked for.
const MAX_SIDE: usize = 1 << 16;

/// Bytes become an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Which channels the image has, whatever the file has.
    pub mode: Mode,
    /// Whether to turn the image as its EXIF data say.
    pub orient: bool,
    /// Files with more pixels are faults.
    pub max_pixels: usize,
    /// Whether a JPEG may be shrunk by its decoder: faster, but other pixels.
    pub scaled: bool,
    /// The field of a record that is the image; not needed if only one can be meant.
    pub field: Option<String>,
}

impl Default for DecodeOptions {
    fn default() -> DecodeOptions {
        let mode = Mode::default();
        DecodeOptions { mode, orient: false, max_pixels: MAX_PIXELS, scaled: false, field: None }
    }
}

/// A size: one number or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// The shorter side for `resize`, both sides for crops.
    One(usize),
    /// Height and width.
    Both(Size),
}

impl Default for Sides {
    /// No size, which is refused.
    fn default() -> Sides {
        Sides::One(0)
    }
}

impl From<usize> for Sides {
    fn from(side: usize) -> Sides {
        Sides::One(side)
    }
}

impl From<(usize, usize)> for Sides {
    fn from((height, width): (usize, usize)) -> Sides {
        Sides::Both(Size { height, width })
    }
}

impl Sides {
    fn size(self) -> Size {
        match self {
            Sides::One(side) => Size { height: side, width: side },
            Sides::Both(size) => size,
        }
    }
}

/// The image gets another size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResizeOptions {
    /// Of the result; of one number, the other side keeps the proportion.
    pub size: Sides,
    /// How neighbours are weighed.
    pub filter: Filter,
}

/// The middle of the image; what is missing is black.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CenterCropOptions {
    /// Of the result.
    pub size: Sides,
}

/// A random part of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomCropOptions {
    /// Of the result.
    pub size: Sides,
    /// Black pixels that are put around the image first, on each side.
    pub padding: usize,
}

/// A random part of random size and proportion, resized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomResizedCropOptions {
    /// Of the result.
    pub size: Sides,
    /// The smallest and the largest share of the area.
    pub scale: (f64, f64),
    /// The smallest and the largest width to height.
    pub ratio: (f64, f64),
    /// How neighbours are weighed.
    pub filter: Filter,
}

impl Default for RandomResizedCropOptions {
    fn default() -> RandomResizedCropOptions {
        RandomResizedCropOptions {
            size: Sides::default(),
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
            filter: Filter::default(),
        }
    }
}

macro_rules! from_size {
    ($($call:ident)*) => {
        $(impl<S: Into<Sides>> From<S> for $call {
            fn from(size: S) -> $call {
                $call { size: size.into(), ..$call::default() }
            }
        })*
    };
}
from_size! { ResizeOptions RandomCropOptions RandomResizedCropOptions }

/// Left becomes right at random.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlipOptions {
    /// The probability.
    pub p: f64,
}

impl Default for FlipOptions {
    fn default() -> FlipOptions {
        FlipOptions { p: 0.5 }
    }
}

/// One side or (height, width).
struct InPixels;

impl ArgumentRule for InPixels {
    type Of = Sides;

    fn wanted(&self) -> String {
        format!("a whole number from 1 to {MAX_SIDE}, or two of them: (height, width)")
    }

    fn read(&self, value: &Value) -> Option<Sides> {
        let side = |value: &Value| usize::try_from(value.as_u64()?).ok();
        match value.as_array().map(Vec::as_slice) {
            Some([height, width]) => Some((side(height)?, side(width)?).into()),
            Some(_) => None,
            None => side(value).map(Sides::One),
        }
    }

    fn allows(&self, sides: &Sides) -> bool {
        let Size { height, width } = sides.size();
        [height, width].iter().all(|side| (1..=MAX_SIDE).contains(side))
    }

    fn shown(&self, sides: &Sides) -> String {
        match sides {
            Sides::One(side) => side.to_string(),
            Sides::Both(Size { height, width }) => format!("({height}, {width})"),
        }
    }
}

/// Two numbers in bounds, the smaller first.
struct Range(f64, f64);

impl ArgumentRule for Range {
    type Of = (f64, f64);

    fn wanted(&self) -> String {
        format!("two numbers above 0 and up to {}, the smaller one first", self.1)
    }

    fn read(&self, value: &Value) -> Option<(f64, f64)> {
        match value.as_array().map(Vec::as_slice) {
            Some([low, high]) => low.as_f64().zip(high.as_f64()),
            Some(_) | None => None,
        }
    }

    fn allows(&self, (low, high): &(f64, f64)) -> bool {
        self.0 <= *low && low <= high && *high <= self.1
    }
}

const FILTERS: OneOf<'_, Filter> =
    OneOf(&[("bilinear", Filter::Bilinear), ("bicubic", Filter::Bicubic)]);

impl CallArguments for DecodeOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.take("mode", &mut self.mode, OneOf(&[("rgb", Mode::Rgb), ("gray", Mode::Gray)]))?;
        from.take("orient", &mut self.orient, Truth)?;
        from.take("max_pixels", &mut self.max_pixels, Count(1, 1 << 30))?;
        from.take("scaled", &mut self.scaled, Truth)?;
        from.take("field", &mut self.field, super::arguments::Text("text"))
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        match (given, &self.field) {
            (Given::Arrays(_), _) => {
                let message = "decode: arrays hold numbers, not image files";
                let hint = "leave decode() out: an array named \"image\" is a picture already";
                return Err(Error::new(Kind::InvalidArgument, message).with_hint(hint));
            }
            (Given::Files, Some(_)) => return Err(Arguments::of_values("decode").has_no("field")),
            (Given::Files, None) => {}
            (Given::Records(contents), field) => {
                let wanted = settings.wanted.as_deref();
                settings.picture = records::picture(field.as_deref(), contents, wanted)?;
            }
        }
        let DecodeOptions { mode, orient, max_pixels, scaled, .. } = *self;
        settings.decoding =
            Some(Decoding { options: Options { mode, orient, max_pixels }, scaled });
        Ok(())
    }
}

impl Settings {
    fn add_image_step(&mut self, name: &str, given: &Given, step: Step) -> Result<()> {
        if !self.has_picture(given) {
            return Err(no_picture(name, given));
        }
        self.steps.push(step);
        Ok(())
    }
}

pub(super) fn no_picture(name: &str, given: &Given) -> Error {
    let message = format!("{name} needs a picture");
    let hint = match given {
        Given::Files | Given::Records(_) => "call decode() first",
        Given::Arrays(_) => {
            "name an array \"image\", of uint8 with shape (samples, height, width, 1 or 3)"
        }
    };
    Error::new(Kind::InvalidArgument, message).with_hint(hint)
}

impl CallArguments for ResizeOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("size", &mut self.size, InPixels)?;
        from.take("filter", &mut self.filter, FILTERS)
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        let step = match self.size {
            Sides::One(shorter) => Step::ResizeShorter(shorter, self.filter),
            Sides::Both(size) => Step::ResizeTo(size, self.filter),
        };
        settings.add_image_step("resize", given, step)
    }
}

impl CallArguments for CenterCropOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("size", &mut self.size, InPixels)
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        settings.add_image_step("center_crop", given, Step::CenterCrop(self.size.size()))
    }
}

impl CallArguments for RandomCropOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("size", &mut self.size, InPixels)?;
        from.take("padding", &mut self.padding, Count(0, MAX_SIDE))
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        let step = Step::RandomCrop { size: self.size.size(), padding: self.padding };
        settings.add_image_step("random_crop", given, step)
    }
}

impl CallArguments for RandomResizedCropOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("size", &mut self.size, InPixels)?;
        from.take("scale", &mut self.scale, Range(f64::MIN_POSITIVE, 1.0))?;
        from.take("ratio", &mut self.ratio, Range(1e-3, 1e3))?;
        from.take("filter", &mut self.filter, FILTERS)
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        let RandomResizedCropOptions { size, scale, ratio, filter } = *self;
        let step = Step::RandomResizedCrop { size: size.size(), scale, ratio, filter };
        settings.add_image_step("random_resized_crop", given, step)
    }
}

impl CallArguments for FlipOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.take("p", &mut self.p, Real(0.0, 1.0))
    }

    fn apply(&self, settings: &mut Settings, given: &Given) -> Result<()> {
        settings.add_image_step("flip", given, Step::Flip(self.p))
    }
}
