//! Resizing with antialias, bit for bit as torchvision does it for uint8.
//!
//! Two passes, first along the rows and then along the columns, each rounded to bytes: one combined
//! call of the library rounds elsewhere. The weights are those of the whole picture, also where only
//! a window of the result is computed: weights of a part alone are rounded to another precision.

use fast_image_resize::images::{CroppedImage, CroppedImageMut, Image, ImageRef};
use fast_image_resize::{FilterType, IntoImageView, PixelType, ResizeAlg, ResizeOptions, Resizer};

use super::canvas::{Canvas, Rect};
use crate::error::{Error, Kind, Result};

/// How neighbours are weighed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Filter {
    #[default]
    Bilinear,
    Bicubic,
}

impl Filter {
    fn radius(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
        }
    }

    fn options(self) -> ResizeOptions {
        let filter = match self {
            Filter::Bilinear => FilterType::Bilinear,
            Filter::Bicubic => FilterType::CatmullRom,
        };
        ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter)).use_alpha(false)
    }
}

/// A resize of a whole picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Columns before and after.
    pub width: (usize, usize),
    /// Rows before and after.
    pub height: (usize, usize),
    /// How neighbours are weighed.
    pub filter: Filter,
}

impl Scale {
    /// Which pixels must be known to compute a window of the result.
    pub fn source(&self, window: Rect) -> Rect {
        let (left, right) = self.reach(self.width, window.left, window.right());
        let (top, bottom) = self.reach(self.height, window.top, window.bottom());
        Rect { left, top, width: right - left, height: bottom - top }
    }

    fn reach(&self, (from, to): (usize, usize), start: usize, end: usize) -> (usize, usize) {
        if from == to {
            return (start, end);
        }
        let scale = from as f64 / to as f64;
        let support = self.filter.radius() * scale.max(1.0);
        // One pixel more on either side, where rounding might need it.
        let first = ((start as f64 + 0.5) * scale - support).floor() as i64 - 1;
        let last = ((end as f64 - 0.5) * scale + support).ceil() as i64 + 1;
        (first.max(0) as usize, (last.max(0) as usize).min(from))
    }
}

/// The library's state, and the picture between the passes.
#[derive(Default)]
pub struct Workshop {
    resizer: Resizer,
    between: Canvas,
}

impl Workshop {
    /// Computes the pixels of `window` of the resized picture. The picture that is resized is the
    /// part `frame` of `from`: nothing around it is looked at.
    pub fn resize(
        &mut self,
        from: &Canvas,
        frame: Rect,
        scale: &Scale,
        window: Rect,
        to: &mut Canvas,
    ) -> Result<()> {
        let source = scale.source(window);
        let options = scale.filter.options();
        let channels = from.channels();
        let pixel = match channels {
            1 => PixelType::U8,
            _ => PixelType::U8x3,
        };
        let (_, new_width) = scale.width;
        let (old_height, new_height) = scale.height;
        let picture = ImageRef::new(from.width() as u32, from.height() as u32, from.bytes(), pixel)
            .map_err(refused)?;
        let part = |left: usize, top: usize, width: usize, height: usize| {
            let (left, top) = (frame.left + left, frame.top + top);
            CroppedImage::new(&picture, left as u32, top as u32, width as u32, height as u32)
                .map_err(refused)
        };
        to.reshape(new_width, new_height, channels);

        if scale.width.0 == new_width {
            // Rows stay as they are: only the columns of the window are looked at.
            let input = part(window.left, 0, window.width, old_height)?;
            return self.columns(&input, window, old_height == new_height, options, to);
        }
        // Only the rows that the columns will need; each row is whole, for the sake of the weights.
        self.between.reshape(new_width, old_height, channels);
        let pitch = self.between.pitch();
        let input = part(0, source.top, frame.width, source.height)?;
        let mut output = Image::from_slice_u8(
            new_width as u32,
            source.height as u32,
            &mut self.between.bytes_mut()[source.top * pitch..source.bottom() * pitch],
            pixel,
        )
        .map_err(refused)?;
        self.resizer.resize(&input, &mut output, &options).map_err(refused)?;

        let between = std::mem::take(&mut self.between);
        let whole = ImageRef::new(new_width as u32, old_height as u32, between.bytes(), pixel)
            .map_err(refused)?;
        let (left, width) = (window.left as u32, window.width as u32);
        let input =
            CroppedImage::new(&whole, left, 0, width, old_height as u32).map_err(refused)?;
        let outcome = self.columns(&input, window, old_height == new_height, options, to);
        self.between = between;
        outcome
    }

    /// The second pass: from the columns of the window, in all rows, to those of the result.
    fn columns(
        &mut self,
        input: &impl IntoImageView,
        window: Rect,
        unchanged: bool,
        options: ResizeOptions,
        to: &mut Canvas,
    ) -> Result<()> {
        let options = if unchanged { options.resize_alg(ResizeAlg::Nearest) } else { options };
        let pixel = input.pixel_type().ok_or_else(|| refused("no pixel type"))?;
        let (new_width, new_height) = (to.width() as u32, to.height() as u32);
        let mut output = Image::from_slice_u8(new_width, new_height, to.bytes_mut(), pixel)
            .map_err(refused)?;
        let (left, width) = (window.left as u32, window.width as u32);
        let mut output = CroppedImageMut::new(&mut output, left, 0, width, new_height)
            .map_err(refused)?;
        self.resizer.resize(input, &mut output, &options).map_err(refused)?;
        to.set_valid(window);
        Ok(())
    }

    /// Gives back working memory beyond `keep` bytes.
    pub fn trim(&mut self, keep: usize) {
        if self.between.capacity() > keep {
            self.between = Canvas::default();
        }
    }
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::new(Kind::Internal, format!("resizing: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::photos::photo;
    use proptest::prelude::*;

    fn canvas(seed: u64, width: usize, height: usize) -> Canvas {
        let mut canvas = Canvas::default();
        canvas.reshape(width, height, 3);
        canvas.bytes_mut().copy_from_slice(&photo(seed, width, height));
        canvas.set_valid(Rect::whole(width, height));
        canvas
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn a_window_has_the_pixels_of_the_whole(
            from in (1_usize..90, 1_usize..90), to in (1_usize..90, 1_usize..90),
            cubic: bool, place in (0.0..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0),
        ) {
            let filter = if cubic { Filter::Bicubic } else { Filter::Bilinear };
            let scale = Scale { width: (from.0, to.0), height: (from.1, to.1), filter };
            let left = (place.0 * to.0 as f64) as usize;
            let top = (place.1 * to.1 as f64) as usize;
            let window = Rect {
                left,
                top,
                width: 1 + (place.2 * (to.0 - left - 1) as f64) as usize,
                height: 1 + (place.3 * (to.1 - top - 1) as f64) as usize,
            };
            let mut workshop = Workshop::default();
            let (mut whole, mut part) = (Canvas::default(), Canvas::default());
            let picture = canvas(5, from.0, from.1);
            workshop.resize(&picture, picture.valid(), &scale, Rect::whole(to.0, to.1), &mut whole).unwrap();
            // Everything that is not needed is spoilt: it must not matter.
            let mut spoilt = canvas(5, from.0, from.1);
            let needed = scale.source(window);
            for row in 0..from.1 {
                for column in 0..from.0 {
                    let here = Rect { left: column, top: row, width: 1, height: 1 };
                    if !needed.contains(&here) {
                        spoilt.row_mut(row, column, 1).fill(99);
                    }
                }
            }
            spoilt.set_valid(needed);
            workshop.resize(&spoilt, Rect::whole(from.0, from.1), &scale, window, &mut part).unwrap();
            for row in window.top..window.bottom() {
                prop_assert_eq!(
                    part.row(row, window.left, window.width),
                    whole.row(row, window.left, window.width)
                );
            }
        }
    }
}
