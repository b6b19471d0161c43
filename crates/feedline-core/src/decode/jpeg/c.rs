//! libjpeg-turbo in C.

use super::{Channels, DecodeRequest, Error, Kind, Rect, Result, StoredPixels};
use crate::sys::turbojpeg::{self, Decompressor, Failure, PixelFormat, Region};

/// Keeps no decoder between images: libjpeg reuses the tables of one file for files without tables, and keeps its state
/// after an error in a header, so that an image would depend on the one before.
#[derive(Default)]
pub(in crate::decode) struct Backend {
    max_pixels: usize,
}

impl Backend {
    pub(in crate::decode) fn open(
        &mut self,
        bytes: &[u8],
        max_pixels: usize,
    ) -> Result<StoredPixels> {
        self.max_pixels = max_pixels;
        let mut decompressor = decompressor()?;
        let opened = decompressor.open(bytes, max_pixels).map_err(corrupt)?;
        let header = opened.header();
        Ok(StoredPixels {
            channels: match header.stored {
                turbojpeg::StoredColor::Gray => Channels::Gray,
                turbojpeg::StoredColor::Color => Channels::Rgb,
                turbojpeg::StoredColor::Cmyk => Channels::InvertedCmyk,
            },
            precision: header.precision,
            step: header.block_width,
        })
    }

    pub(in crate::decode) fn decode(
        &mut self,
        bytes: &[u8],
        request: &DecodeRequest,
        target: &mut [u8],
        pitch: usize,
    ) -> Result<()> {
        let whole = Rect::whole(request.width, request.height);
        let region = (request.region != whole).then_some(Region {
            left: request.region.left,
            top: request.region.top,
            width: request.region.width,
            height: request.region.height,
        });
        let mut asked = turbojpeg::Request {
            wanted: match request.channels {
                Channels::Gray => PixelFormat::Gray,
                Channels::InvertedCmyk => PixelFormat::Cmyk,
                Channels::Rgb | Channels::Rgba | Channels::GrayAlpha => PixelFormat::Rgb,
            },
            shrink: request.shrink,
            region,
            strict: true,
        };
        let mut first = decompressor()?;
        let mut opened = first.open(bytes, self.max_pixels).map_err(corrupt)?;
        let sizes = (opened.header().width, opened.header().height);
        let expected = (request.width, request.height);
        if (sizes.0.div_ceil(request.shrink), sizes.1.div_ceil(request.shrink)) != expected {
            return Err(Error::new(Kind::CorruptImage, "the image has two headers that disagree"));
        }
        match opened.decode(&asked, target, pitch) {
            Err(failure) if failure.is_warning && is_harmless(&failure.message) => {
                asked.strict = false;
                let mut second = decompressor()?;
                let mut opened = second.open(bytes, self.max_pixels).map_err(corrupt)?;
                match opened.decode(&asked, target, pitch) {
                    Err(failure) if !failure.is_warning || !is_harmless(&failure.message) => {
                        Err(corrupt(failure))
                    }
                    Ok(()) | Err(_) => Ok(()),
                }
            }
            outcome => outcome.map_err(corrupt),
        }
    }
}

fn decompressor() -> Result<Decompressor> {
    Decompressor::new()
        .ok_or_else(|| Error::new(Kind::OutOfMemory, "out of memory for a JPEG decoder"))
}

/// Warnings of libjpeg that do not affect pixels.
fn is_harmless(message: &str) -> bool {
    ["extraneous bytes before marker", "Adobe color transform", "JFIF revision"]
        .iter()
        .any(|harmless| message.contains(harmless))
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of map_err")]
fn corrupt(failure: Failure) -> Error {
    Error::new(Kind::CorruptImage, format!("the JPEG cannot be decoded: {}", failure.message))
}

/// Encodes RGB pixels as JPEG.
pub fn encode(pixels: &[u8], width: usize, height: usize, quality: u8) -> Result<Vec<u8>> {
    turbojpeg::encode(pixels, width, height, quality).map_err(|failure| {
        Error::new(Kind::Internal, format!("encoding a JPEG: {}", failure.message))
    })
}
