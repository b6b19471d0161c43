//! Executes the prepared steps for one image, with memory that is reused from sample to sample.

use super::Output;
use super::geometry::{PlacedStep, Prepared};
use super::steps::{Picture, Size, Transform};
use crate::decode::Decoder;
use crate::decode::canvas::{Canvas, Rect};
use crate::decode::resize::Resizer;
use crate::error::Result;

/// The decoders and canvases of one thread.
#[derive(Default)]
pub struct Native {
    decoder: Decoder,
    resizer: Resizer,
    picture: Canvas,
    other: Canvas,
}

impl Native {
    /// Computes one sample and writes it to `row`. `bytes` is the file, or the pixels if the steps start from an array
    /// or from an image that was decoded before.
    pub fn make(
        &mut self,
        transform: &Transform,
        prepared: &Prepared,
        bytes: &[u8],
        row: &mut [u8],
    ) -> Result<()> {
        self.make_as(&transform.output, transform, prepared, bytes, row)
    }

    /// Like `make`, with another output than the transform's: for an image that only some of its steps have made.
    pub(crate) fn make_as(
        &mut self,
        output: &Output,
        transform: &Transform,
        prepared: &Prepared,
        bytes: &[u8],
        row: &mut [u8],
    ) -> Result<()> {
        match (&transform.picture, &prepared.header) {
            (Picture::Encoded(decoding), Some(header)) => {
                // A crop entirely outside the image still needs a canvas.
                let wanted = match prepared.decoded {
                    Rect { width: 0, .. } | Rect { height: 0, .. } => Rect::whole(1, 1),
                    wanted => wanted,
                };
                let options = &decoding.options;
                let picture = &mut self.picture;
                self.decoder.decode(bytes, header, options, wanted, prepared.shrink, picture)?;
            }
            (Picture::Encoded(_) | Picture::Array { .. }, _) => {
                let (size, channels) = (prepared.start, transform.channels());
                self.picture.reshape(size.width, size.height, channels);
                self.picture.bytes_mut().copy_from_slice(bytes);
                self.picture.set_valid(Rect::whole(size.width, size.height));
            }
        }
        let mut frame = Rect::whole(self.picture.width(), self.picture.height());
        let mut mirrored = false;
        for (step, wanted) in &prepared.steps {
            match step {
                PlacedStep::Flip => mirrored = !mirrored,
                PlacedStep::Crop { left, top, size } => {
                    // In a mirrored frame, the left edge counts from the right.
                    let left = match mirrored {
                        false => *left,
                        true => frame.width as i64 - left - size.width as i64,
                    };
                    frame = self.crop(frame, left, *top, *size);
                }
                PlacedStep::Resize(scale) => {
                    if mirrored {
                        // Weights are not symmetric to the last bit: mirror first, in the requested order.
                        frame = self.mirror(frame);
                        mirrored = false;
                    }
                    self.resizer.resize(&self.picture, frame, scale, *wanted, &mut self.other);
                    std::mem::swap(&mut self.picture, &mut self.other);
                    frame = Rect::whole(scale.width.1, scale.height.1);
                }
            }
        }
        output.write(&self.picture, frame, mirrored, row);
        Ok(())
    }

    /// A part of the frame; pixels are copied only if it reaches beyond the image.
    fn crop(&mut self, frame: Rect, left: i64, top: i64, size: Size) -> Rect {
        let inside = left >= 0
            && top >= 0
            && left as usize + size.width <= frame.width
            && top as usize + size.height <= frame.height;
        if inside {
            return Rect {
                left: frame.left + left as usize,
                top: frame.top + top as usize,
                width: size.width,
                height: size.height,
            };
        }
        let channels = self.picture.channels();
        self.other.reshape(size.width, size.height, channels);
        self.other.bytes_mut().fill(0);
        let first = left.clamp(0, frame.width as i64);
        let last = (left + size.width as i64).clamp(0, frame.width as i64);
        let width = (last - first) as usize;
        for row in 0..size.height {
            let from = top + row as i64;
            if width == 0 || from < 0 || from >= frame.height as i64 {
                continue;
            }
            let pixels =
                self.picture.row(frame.top + from as usize, frame.left + first as usize, width);
            self.other.row_mut(row, (first - left) as usize, width).copy_from_slice(pixels);
        }
        let whole = Rect::whole(size.width, size.height);
        self.other.set_valid(whole);
        std::mem::swap(&mut self.picture, &mut self.other);
        whole
    }

    fn mirror(&mut self, frame: Rect) -> Rect {
        let channels = self.picture.channels();
        self.other.reshape(frame.width, frame.height, channels);
        for row in 0..frame.height {
            let from = self.picture.row(frame.top + row, frame.left, frame.width);
            let to = self.other.row_mut(row, 0, frame.width);
            for (to, from) in to.chunks_exact_mut(channels).zip(from.chunks_exact(channels).rev()) {
                to.copy_from_slice(from);
            }
        }
        let whole = Rect::whole(frame.width, frame.height);
        self.other.set_valid(whole);
        std::mem::swap(&mut self.picture, &mut self.other);
        whole
    }

    /// Frees memory beyond `keep` bytes.
    pub fn trim(&mut self, keep: usize) {
        if self.picture.capacity() + self.other.capacity() > keep / 2 {
            self.picture = Canvas::default();
            self.other = Canvas::default();
        }
        self.resizer.trim(keep / 4);
        self.decoder.trim(keep / 4);
    }
}
