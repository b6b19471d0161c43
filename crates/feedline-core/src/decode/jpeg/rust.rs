//! libjpeg-turbo in Rust.

use libjpeg_turbo_rs::{
    ColorSpace, DecodeLimits, DecodeWarning, Decoder, JpegError, PixelFormat, ScalingFactor,
    Subsampling,
};

use super::{Channels, DecodeRequest, Error, Kind, Result, StoredPixels};

/// Keeps no decoder: this library allocates for each image.
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
        let decoder = self.decoder(bytes)?;
        let header = decoder.header();
        let channels = match decoder.jpeg_color_space() {
            ColorSpace::Grayscale => Channels::Gray,
            ColorSpace::Cmyk | ColorSpace::Ycck => Channels::InvertedCmyk,
            ColorSpace::YCbCr | ColorSpace::Rgb | ColorSpace::Unknown => Channels::Rgb,
        };
        let step = match decoder.jpeg_subsampling() {
            Subsampling::S444 | Subsampling::S440 => Some(8),
            Subsampling::S422 | Subsampling::S420 => Some(16),
            Subsampling::S411
            | Subsampling::S441
            | Subsampling::S410
            | Subsampling::S24
            | Subsampling::Unknown => (channels == Channels::Gray).then_some(8),
        };
        Ok(StoredPixels {
            channels,
            precision: u32::from(header.precision),
            step: step.filter(|_| !header.is_lossless),
        })
    }

    pub(in crate::decode) fn decode(
        &mut self,
        bytes: &[u8],
        request: &DecodeRequest,
        target: &mut [u8],
        pitch: usize,
    ) -> Result<()> {
        let region = request.region;
        let mut decoder = self.decoder(bytes)?;
        decoder.set_output_format(match request.channels {
            Channels::Gray => PixelFormat::Grayscale,
            Channels::InvertedCmyk => PixelFormat::Cmyk,
            Channels::Rgb | Channels::Rgba | Channels::GrayAlpha => PixelFormat::Rgb,
        });
        let scale = ScalingFactor::try_new(1, request.shrink as u32).map_err(corrupt)?;
        decoder.set_scale(scale);
        if (decoder.output_width(), decoder.output_height()) != (request.width, request.height) {
            return Err(Error::new(Kind::CorruptImage, "the image has two headers that disagree"));
        }
        decoder.set_crop_region(region.left, region.top, region.width, region.height);
        // Lenient, to see the warnings: extraneous bytes are allowed, all other warnings are errors.
        decoder.set_lenient(true);
        let image = decoder.decode_image().map_err(corrupt)?;
        let refused = image
            .warnings
            .iter()
            .find(|warning| !matches!(warning, DecodeWarning::ExtraneousData { .. }));
        if let Some(warning) = refused {
            let message = format!("the JPEG cannot be decoded: {warning}");
            return Err(Error::new(Kind::CorruptImage, message));
        }
        let row_bytes = region.width * request.channels.count();
        if image.width != region.width || image.height != region.height {
            let message = format!(
                "the decoder returned {} x {} pixels instead of {} x {}",
                image.width, image.height, region.width, region.height
            );
            return Err(Error::new(Kind::Internal, message));
        }
        for (from, to) in image.data.chunks_exact(row_bytes).zip(target.chunks_mut(pitch)) {
            to[..row_bytes].copy_from_slice(from);
        }
        Ok(())
    }

    fn decoder<'a>(&self, bytes: &'a [u8]) -> Result<Decoder<'a>> {
        let limits = DecodeLimits {
            max_pixels: self.max_pixels as u64,
            max_scans: 500,
            ..DecodeLimits::default()
        };
        Decoder::new_with_limits(bytes, limits).map_err(corrupt)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of map_err")]
fn corrupt(error: JpegError) -> Error {
    Error::new(Kind::CorruptImage, format!("the JPEG cannot be decoded: {error}"))
}

/// Encodes RGB pixels as JPEG.
#[cfg(not(feature = "jpeg-c"))]
pub fn encode(pixels: &[u8], width: usize, height: usize, quality: u8) -> Result<Vec<u8>> {
    libjpeg_turbo_rs::compress(pixels, width, height, PixelFormat::Rgb, quality, Subsampling::S420)
        .map_err(|error| Error::new(Kind::Internal, format!("encoding a JPEG: {error}")))
}
