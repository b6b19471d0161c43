//! WebP by the `image-webp` crate, which has no unsafe code. Decodes the first frame of an animation.

use image_webp::WebPDecoder;
use std::io::Cursor;

use super::Options;
use super::canvas::{Canvas, Rect};
use super::color::{self, Channels};
use crate::error::{Error, Kind, Result};

/// Width, height and false.
pub(super) fn size(bytes: &[u8]) -> Result<(usize, usize, bool)> {
    let claimed = bytes.get(4..8).and_then(|size| size.try_into().ok()).map(u32::from_le_bytes);
    if claimed.is_none_or(|size| size as usize + 8 > bytes.len()) {
        let message = format!(
            "the image is truncated: {} bytes are fewer than its header declares",
            bytes.len()
        );
        return Err(Error::new(Kind::CorruptImage, message));
    }
    let decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(corrupt)?;
    let (width, height) = decoder.dimensions();
    Ok((width as usize, height as usize, false))
}

pub(super) fn decode(
    bytes: &[u8],
    options: &Options,
    scratch: &mut Vec<u8>,
    canvas: &mut Canvas,
) -> Result<()> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(corrupt)?;
    let channels = if decoder.has_alpha() { Channels::Rgba } else { Channels::Rgb };
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    decoder.set_memory_limit(width * height * 16 + (1 << 20));
    canvas.reshape(width, height, options.mode.channels());
    let needed = width * height * channels.count();
    let direct = channels.are(options.mode);
    if !direct && scratch.len() < needed {
        *scratch = vec![0; needed];
    }
    let target = if direct { canvas.bytes_mut() } else { &mut scratch[..needed] };
    if decoder.is_animated() {
        decoder.read_frame(target).map_err(corrupt)?;
    } else {
        decoder.read_image(target).map_err(corrupt)?;
    }
    if !direct {
        color::convert(&scratch[..needed], channels, canvas.bytes_mut(), options.mode);
    }
    canvas.set_valid(Rect::whole(width, height));
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of map_err")]
fn corrupt(error: image_webp::DecodingError) -> Error {
    Error::new(Kind::CorruptImage, format!("the WebP cannot be decoded: {error}"))
}
