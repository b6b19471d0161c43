//! From bytes to pixels. Pure: no threads, no files, no clock.
//!
//! The content decides the format, never the name. The size is checked before anything is allocated. Only the part of
//! an image that is needed is decoded.

pub mod jpeg;
pub mod png;
pub mod webp;

use crate::error::{Error, Kind, Result};
use canvas::{Canvas, Rect};
pub use feedline_kernels::color::Mode;
pub use feedline_kernels::{canvas, resize};
use feedline_kernels::{color, orientation};
use orientation::Orientation;

/// The default limit of pixels: that of Pillow's decompression bomb error, 512 MiB as RGB.
pub(crate) const MAX_PIXELS: usize = 178_956_970;

/// The EXIF orientation; upright if there is none that can be read.
pub(crate) fn orientation_of(bytes: &[u8]) -> Orientation {
    exif::Reader::new()
        .read_from_container(&mut std::io::Cursor::new(bytes))
        .ok()
        .and_then(|exif| {
            exif.get_field(exif::Tag::Orientation, exif::In::PRIMARY)?.value.get_uint(0)
        })
        .map_or_else(Orientation::default, Orientation::new)
}

/// A file format, detected by the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Format {
    Jpeg,
    Png,
    Webp,
}

/// How to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The channels of the result, whatever the file has.
    pub mode: Mode,
    /// Whether to apply the EXIF orientation.
    pub orient: bool,
    /// Larger images are refused.
    pub max_pixels: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { mode: Mode::Rgb, orient: false, max_pixels: MAX_PIXELS }
    }
}

/// What is known before anything is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// Format of the file.
    pub format: Format,
    /// Width in pixels, after orientation.
    pub width: usize,
    /// Height in pixels, after orientation.
    pub height: usize,
    /// The orientation to apply.
    pub orientation: Orientation,
    /// Whether decoding any part needs the whole image in memory.
    pub progressive: bool,
}

impl ImageHeader {
    /// Reads the header and checks the size.
    pub fn read(bytes: &[u8], options: &Options) -> Result<ImageHeader> {
        let format = sniff(bytes)?;
        let (width, height, progressive) = match format {
            Format::Jpeg => jpeg::size(bytes)?,
            Format::Png => png::size(bytes)?,
            Format::Webp => webp::size(bytes)?,
        };
        if width == 0 || height == 0 {
            let message = format!("the header declares {width} x {height} pixels");
            return Err(Error::new(Kind::CorruptImage, message));
        }
        if width.checked_mul(height).is_none_or(|pixels| pixels > options.max_pixels) {
            let message = format!(
                "{width} x {height} pixels are more than the limit of {}",
                options.max_pixels
            );
            return Err(Error::new(Kind::TooLarge, message));
        }
        let orientation =
            if options.orient { orientation_of(bytes) } else { Orientation::default() };
        let (width, height) = orientation.turned(width, height);
        Ok(ImageHeader { format, width, height, orientation, progressive })
    }

    /// The rectangle of the whole image.
    pub fn whole(&self) -> Rect {
        Rect { left: 0, top: 0, width: self.width, height: self.height }
    }

    /// The most memory that decoding takes, without the canvas.
    pub(crate) fn working_bytes(&self) -> usize {
        let pixels = self.width * self.height;
        let turning = if self.orientation.is_upright() { 0 } else { pixels * 3 };
        turning
            + match self.format {
                // Coefficients of all blocks: two bytes for each of up to four channels.
                Format::Jpeg if self.progressive => pixels * 8,
                Format::Jpeg => self.width * 512,
                Format::Png => pixels * 4 + self.width * 16,
                Format::Webp => pixels * 8,
            }
    }
}

/// Detects the format of these bytes.
pub fn sniff(bytes: &[u8]) -> Result<Format> {
    if bytes.is_empty() {
        return Err(Error::new(Kind::CorruptImage, "the file is empty"));
    }
    if bytes.starts_with(&[0xff, 0xd8, 0xff]) {
        Ok(Format::Jpeg)
    } else if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        Ok(Format::Png)
    } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        Ok(Format::Webp)
    } else {
        let first: Vec<_> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let message =
            format!("not a JPEG, PNG or WebP image: the first bytes are {}", first.join(" "));
        Err(Error::new(Kind::UnknownFormat, message))
    }
}

/// Decoders with their working memory, which one thread reuses from sample to sample.
#[derive(Default)]
pub struct Decoder {
    jpeg: jpeg::JpegDecoder,
    scratch: Vec<u8>,
    unturned: Canvas,
}

impl Decoder {
    /// Decodes at least the pixels of `wanted` into `canvas`, which is resized to the image. With `shrink` above 1 (2,
    /// 4 or 8, JPEG only) the image is downscaled by that factor while it is decoded, and `wanted` is in pixels of the
    /// downscaled image.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        header: &ImageHeader,
        options: &Options,
        wanted: Rect,
        shrink: usize,
        canvas: &mut Canvas,
    ) -> Result<()> {
        debug_assert!(shrink == 1 || header.format == Format::Jpeg);
        if header.orientation.is_upright() {
            return self.decode_stored(bytes, header, options, wanted, shrink, canvas);
        }
        let (width, height) = (header.width.div_ceil(shrink), header.height.div_ceil(shrink));
        let (stored_width, stored_height) = header.orientation.turned(width, height);
        let stored = header.orientation.stored(wanted, stored_width, stored_height);
        let mut unturned = std::mem::take(&mut self.unturned);
        let outcome = self.decode_stored(bytes, header, options, stored, shrink, &mut unturned);
        if outcome.is_ok() {
            header.orientation.turn(&unturned, wanted, canvas);
        }
        self.unturned = unturned;
        outcome
    }

    fn decode_stored(
        &mut self,
        bytes: &[u8],
        header: &ImageHeader,
        options: &Options,
        wanted: Rect,
        shrink: usize,
        canvas: &mut Canvas,
    ) -> Result<()> {
        match header.format {
            Format::Jpeg => {
                self.jpeg.decode(bytes, options, wanted, shrink, &mut self.scratch, canvas)
            }
            Format::Png => png::decode(bytes, options, &mut self.scratch, canvas),
            Format::Webp => webp::decode(bytes, options, &mut self.scratch, canvas),
        }
    }

    /// Frees working memory beyond `keep` bytes.
    pub fn trim(&mut self, keep: usize) {
        if self.scratch.capacity() + self.unturned.capacity() > keep {
            self.scratch = Vec::new();
            self.unturned = Canvas::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_exif_data_is_upright() {
        assert!(orientation_of(b"not an image").is_upright());
    }

    #[test]
    fn bytes_that_are_no_image_are_named_by_their_first_bytes() {
        let error = ImageHeader::read(b"GIF89a....", &Options::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::UnknownFormat);
        assert!(error.message().contains("47 49 46 38"), "{error}");
        assert_eq!(sniff(b"").unwrap_err().message(), "the file is empty");
    }
}
