//! PNG by the `png` crate, which has no unsafe code.

use png::{ColorType, Decoder, Limits, Transformations};
use std::io::Cursor;

use super::canvas::{Canvas, Rect};
use super::color::{self, Channels};
use super::{Mode, Options};
use crate::error::{Error, Kind, Result};

/// Width, height, and false, because the size is in the first chunk.
pub(super) fn size(bytes: &[u8]) -> Result<(usize, usize, bool)> {
    let chunk = bytes
        .get(12..24)
        .filter(|chunk| chunk.starts_with(b"IHDR"))
        .ok_or_else(|| Error::new(Kind::CorruptImage, "the PNG header is truncated"))?;
    let number = |at: usize| {
        chunk[at..at + 4].iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte))
    };
    Ok((number(4), number(8), false))
}

/// Decodes the whole image, because checksums can only be checked at the end. 16 bits are reduced to the upper 8.
pub(super) fn decode(
    bytes: &[u8],
    options: &Options,
    scratch: &mut Vec<u8>,
    canvas: &mut Canvas,
) -> Result<()> {
    let limits = Limits { bytes: 64 << 20 };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.ignore_checksums(false);
    let mut reader = decoder.read_info().map_err(corrupt)?;
    let (color, _) = reader.output_color_type();
    let channels = match color {
        ColorType::Grayscale => Channels::Gray,
        ColorType::GrayscaleAlpha => Channels::GrayAlpha,
        ColorType::Rgb => Channels::Rgb,
        ColorType::Rgba => Channels::Rgba,
        ColorType::Indexed => {
            return Err(Error::new(
                Kind::CorruptImage,
                "the PNG has a palette image without palette",
            ));
        }
    };
    let info = reader.info();
    let (width, height) = (info.width as usize, info.height as usize);
    canvas.reshape(width, height, options.mode.channels());
    if channels.are(options.mode) {
        reader.next_frame(canvas.bytes_mut()).map_err(corrupt)?;
    } else {
        let needed = width * height * channels.count();
        if scratch.len() < needed {
            *scratch = vec![0; needed];
        }
        reader.next_frame(&mut scratch[..needed]).map_err(corrupt)?;
        color::convert(&scratch[..needed], channels, canvas.bytes_mut(), options.mode);
    }
    // Also read what follows the pixels: a file truncated in its last chunks is corrupt.
    reader.finish().map_err(corrupt)?;
    canvas.set_valid(Rect::whole(width, height));
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of map_err")]
fn corrupt(error: png::DecodingError) -> Error {
    Error::new(Kind::CorruptImage, format!("the PNG cannot be decoded: {error}"))
}

/// Encodes 8-bit pixels as PNG, for demonstrations and tests.
pub fn encode(pixels: &[u8], width: usize, height: usize, mode: Mode) -> Result<Vec<u8>> {
    let failed =
        |error: png::EncodingError| Error::new(Kind::Internal, format!("encoding a PNG: {error}"));
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(match mode {
        Mode::Rgb => ColorType::Rgb,
        Mode::Gray => ColorType::Grayscale,
    });
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::ImageHeader;

    #[test]
    fn pixels_survive_a_round_trip_and_every_truncation_is_noticed() {
        let pixels: Vec<u8> = (0..5 * 4 * 3).collect();
        let bytes = encode(&pixels, 5, 4, Mode::Rgb).unwrap();
        let options = Options::default();
        let mut canvas = Canvas::default();
        decode(&bytes, &options, &mut Vec::new(), &mut canvas).unwrap();
        assert_eq!(canvas.bytes(), pixels);
        for length in 0..bytes.len() {
            let cut = &bytes[..length];
            let outcome = ImageHeader::read(cut, &options)
                .and_then(|_| decode(cut, &options, &mut Vec::new(), &mut canvas));
            assert!(outcome.is_err(), "cut at {length} of {}", bytes.len());
        }
    }
}
