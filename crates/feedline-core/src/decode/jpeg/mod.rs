//! JPEG by libjpeg-turbo: in C, or its translation to Rust where no C compiler is available. One interface, the same
//! pixels.
//!
//! An image without its end marker is truncated, whichever part of it is needed. Corruption that changes pixels is a
//! fault; extraneous bytes between segments are not.

#[cfg(feature = "jpeg-c")]
pub(super) mod c;
#[cfg(all(feature = "jpeg-rust", any(test, not(feature = "jpeg-c"))))]
pub(super) mod rust;

#[cfg(feature = "jpeg-c")]
use c as backend;
#[cfg(all(feature = "jpeg-rust", not(feature = "jpeg-c")))]
use rust as backend;
#[cfg(not(any(feature = "jpeg-c", feature = "jpeg-rust")))]
compile_error!("one of the features jpeg-c and jpeg-rust is needed");

use super::canvas::{Canvas, Rect};
use super::color::{self, Channels};
use super::{Mode, Options};
use crate::error::{Error, Kind, Result};

pub use backend::encode;

/// Pixels around a region that are decoded along with it: chroma upsampling reads neighbours, and at an edge there are
/// none.
const MARGIN: usize = 16;

/// Parameters of one decode call of a backend.
pub(super) struct DecodeRequest {
    /// The channels of the result.
    pub(super) channels: Channels,
    /// 1, 2, 4 or 8.
    pub(super) shrink: usize,
    /// The part to decode, in pixels of the result; its left edge is aligned to the backend's blocks.
    pub(super) region: Rect,
    /// Width of the result.
    pub(super) width: usize,
    pub(super) height: usize,
}

/// How a file's pixels are stored.
pub(super) struct StoredPixels {
    pub(super) channels: Channels,
    pub(super) precision: u32,
    /// Alignment of a region's left edge; None if regions cannot be decoded.
    pub(super) step: Option<usize>,
}

/// A decoder with its working memory.
#[derive(Default)]
pub(super) struct JpegDecoder(backend::Backend);

impl JpegDecoder {
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        options: &Options,
        wanted: Rect,
        shrink: usize,
        scratch: &mut Vec<u8>,
        canvas: &mut Canvas,
    ) -> Result<()> {
        let structure = Structure::read(bytes)?;
        let (full_width, full_height) = (structure.width, structure.height);
        let (width, height) = (full_width.div_ceil(shrink), full_height.div_ceil(shrink));
        let stored = self.0.open(bytes, options.max_pixels)?;
        if stored.precision != 8 {
            let message = format!("a JPEG of {} bits a channel, not 8", stored.precision);
            return Err(Error::new(Kind::UnknownFormat, message));
        }
        let region = match stored.step {
            Some(step) => widen(wanted, step.div_ceil(shrink).max(1), width, height),
            None => Rect::whole(width, height),
        };
        // RGB is converted to gray as Pillow does, unless the image is gray already.
        let channels = match (stored.channels, options.mode) {
            (Channels::Gray, Mode::Rgb) => Channels::Rgb,
            (channels, _) => channels,
        };
        canvas.reshape(width, height, options.mode.channels());
        let request = DecodeRequest { channels, shrink, region, width, height };
        if channels.are(options.mode) {
            let pitch = canvas.pitch();
            let start = region.top * pitch + region.left * canvas.channels();
            self.0.decode(bytes, &request, &mut canvas.bytes_mut()[start..], pitch)?;
        } else {
            let pitch = region.width * channels.count();
            if scratch.len() < pitch * region.height {
                *scratch = vec![0; pitch * region.height];
            }
            self.0.decode(bytes, &request, scratch, pitch)?;
            for row in 0..region.height {
                let from = &scratch[row * pitch..(row + 1) * pitch];
                let to = canvas.row_mut(region.top + row, region.left, region.width);
                color::convert(from, channels, to, options.mode);
            }
        }
        canvas.set_valid(wanted);
        Ok(())
    }
}

/// The region with its margin, its left edge aligned to `step`.
fn widen(wanted: Rect, step: usize, width: usize, height: usize) -> Rect {
    let left = wanted.left.saturating_sub(MARGIN) / step * step;
    let top = wanted.top.saturating_sub(MARGIN);
    let right = (wanted.right() + MARGIN).min(width);
    let bottom = (wanted.bottom() + MARGIN).min(height);
    Rect { left, top, width: right - left, height: bottom - top }
}

/// Width, height, and whether the file is progressive.
pub(super) fn size(bytes: &[u8]) -> Result<(usize, usize, bool)> {
    let structure = Structure::read(bytes)?;
    Ok((structure.width, structure.height, structure.progressive))
}

/// What the markers say, without a decoder.
#[derive(Debug, PartialEq, Eq)]
struct Structure {
    width: usize,
    height: usize,
    progressive: bool,
}

impl Structure {
    fn read(bytes: &[u8]) -> Result<Structure> {
        let truncated = || Error::new(Kind::CorruptImage, "the image is truncated in its header");
        let mut frame = None;
        let mut at = 2;
        loop {
            // Extraneous bytes before a marker are skipped, as every decoder does.
            while *bytes.get(at).ok_or_else(truncated)? != 0xff {
                at += 1;
            }
            while *bytes.get(at).ok_or_else(truncated)? == 0xff {
                at += 1;
            }
            let marker = bytes[at];
            at += 1;
            match marker {
                0x00 | 0x01 | 0xd0..=0xd8 => continue,
                0xd9 => {
                    return Err(Error::new(Kind::CorruptImage, "the image ends before its pixels"));
                }
                _ => {}
            }
            let length = match bytes.get(at..at + 2) {
                Some(&[high, low]) => usize::from(high) << 8 | usize::from(low),
                Some(_) | None => return Err(truncated()),
            };
            let segment = bytes.get(at + 2..at + length.max(2)).ok_or_else(truncated)?;
            match marker {
                // All start-of-frame markers; c4, c8 and cc are other things.
                0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                    let size = segment.get(1..5).ok_or_else(truncated)?;
                    frame = Some(Structure {
                        height: usize::from(size[0]) << 8 | usize::from(size[1]),
                        width: usize::from(size[2]) << 8 | usize::from(size[3]),
                        progressive: matches!(marker, 0xc2 | 0xc6 | 0xca | 0xce),
                    });
                }
                0xda => break,
                _ => {}
            }
            at += length.max(2);
        }
        let frame =
            frame.ok_or_else(|| Error::new(Kind::CorruptImage, "the image has no frame header"))?;
        match memchr::memmem::rfind(&bytes[at..], &[0xff, 0xd9]) {
            Some(_) => Ok(frame),
            None => Err(Error::new(
                Kind::CorruptImage,
                "the image is truncated: it has no end marker after its pixels",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::photos::{photo, photo_jpeg};
    use proptest::prelude::*;

    fn decoded(bytes: &[u8], wanted: Rect) -> Result<Canvas> {
        let mut canvas = Canvas::default();
        let options = Options::default();
        JpegDecoder::default().decode(bytes, &options, wanted, 1, &mut Vec::new(), &mut canvas)?;
        Ok(canvas)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_region_has_the_pixels_of_the_whole(
            seed in 0_u64..4, left in 0_usize..150, top in 0_usize..110,
            width in 1_usize..150, height in 1_usize..110,
        ) {
            let bytes = photo_jpeg(seed, 150, 110, 90);
            let whole = decoded(&bytes, Rect::whole(150, 110)).unwrap();
            let wanted =
                Rect { left, top, width: width.min(150 - left), height: height.min(110 - top) };
            let part = decoded(&bytes, wanted).unwrap();
            for row in wanted.top..wanted.bottom() {
                prop_assert_eq!(
                    part.row(row, wanted.left, wanted.width),
                    whole.row(row, wanted.left, wanted.width)
                );
            }
        }
    }

    #[test]
    fn every_truncation_is_noticed_even_if_only_the_top_is_needed() {
        let bytes = photo_jpeg(1, 64, 48, 85);
        let top = Rect { left: 0, top: 0, width: 8, height: 1 };
        for length in 3..bytes.len() {
            let error = decoded(&bytes[..length], top).map(drop).unwrap_err();
            assert_eq!(error.kind(), Kind::CorruptImage, "truncated at {length}: {error}");
        }
    }

    #[test]
    fn pixels_lost_in_the_middle_are_never_silently_gray() {
        let bytes = photo_jpeg(1, 64, 48, 85);
        let mut truncated = bytes[..bytes.len() * 2 / 3].to_vec();
        truncated.extend([0xff, 0xd9]);
        let error = decoded(&truncated, Rect::whole(64, 48)).map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::CorruptImage, "{error}");
    }

    #[test]
    fn extraneous_bytes_between_segments_are_not_a_fault() {
        let bytes = photo_jpeg(1, 64, 48, 85);
        let mut stray = bytes[..2].to_vec();
        stray.extend([0x00, 0x17]);
        stray.extend(&bytes[2..]);
        let whole = Rect::whole(64, 48);
        let expected = decoded(&bytes, whole).unwrap();
        assert_eq!(decoded(&stray, whole).unwrap().bytes(), expected.bytes());
    }

    /// The bytes without the segments of this marker.
    fn without(bytes: &[u8], marker: u8) -> Vec<u8> {
        let mut left = bytes[..2].to_vec();
        let mut at = 2;
        while bytes[at + 1] != 0xda {
            let length = usize::from(bytes[at + 2]) << 8 | usize::from(bytes[at + 3]);
            if bytes[at + 1] != marker {
                left.extend(&bytes[at..at + 2 + length]);
            }
            at += 2 + length;
        }
        left.extend(&bytes[at..]);
        left
    }

    #[test]
    fn an_image_does_not_depend_on_the_one_decoded_before() {
        let good = photo_jpeg(1, 64, 48, 85);
        let tables = good.windows(2).position(|two| two == [0xff, 0xc4]).unwrap();
        let mut corrupt = good.clone();
        corrupt[tables + 5..tables + 21].fill(0xff);
        let others =
            [corrupt, without(&good, 0xc4), without(&good, 0xdb), photo_jpeg(2, 64, 48, 20)];
        let whole = Rect::whole(64, 48);
        let options = Options::default();
        let mut decoder = JpegDecoder::default();
        let mut decode = |bytes: &[u8]| {
            let mut canvas = Canvas::default();
            let outcome = decoder.decode(bytes, &options, whole, 1, &mut Vec::new(), &mut canvas);
            outcome.map(|()| canvas.bytes().to_vec()).map_err(|error| error.to_string())
        };
        for before in [&good].into_iter().chain(&others) {
            for bytes in [&good].into_iter().chain(&others) {
                let alone = decoded(bytes, whole);
                let alone =
                    alone.map(|canvas| canvas.bytes().to_vec()).map_err(|error| error.to_string());
                let _ = decode(before);
                assert_eq!(decode(bytes), alone);
            }
        }
    }

    #[test]
    fn an_encoded_photo_looks_like_the_original() {
        let pixels = photo(3, 96, 64);
        let bytes = encode(&pixels, 96, 64, 95).unwrap();
        let canvas = decoded(&bytes, Rect::whole(96, 64)).unwrap();
        let error: u64 =
            canvas.bytes().iter().zip(&pixels).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
        assert!(error / (pixels.len() as u64) < 12, "mean error {error}");
    }

    #[cfg(all(feature = "jpeg-c", feature = "jpeg-rust"))]
    mod both {
        use super::*;

        fn with_rust(bytes: &[u8], region: Rect, width: usize, height: usize) -> Vec<u8> {
            let mut backend = rust::Backend::default();
            let stored = backend.open(bytes, 1 << 24).unwrap();
            let request =
                DecodeRequest { channels: stored.channels, shrink: 1, region, width, height };
            let pitch = region.width * stored.channels.count();
            let mut pixels = vec![0; pitch * region.height];
            backend.decode(bytes, &request, &mut pixels, pitch).unwrap();
            pixels
        }

        #[test]
        fn c_and_rust_give_the_same_pixels() {
            for (seed, width, height, quality) in
                [(1, 100, 75, 90), (2, 64, 64, 50), (3, 33, 47, 97), (4, 500, 375, 90)]
            {
                let bytes = photo_jpeg(seed, width, height, quality);
                let whole = Rect::whole(width, height);
                let canvas = decoded(&bytes, whole).unwrap();
                assert_eq!(with_rust(&bytes, whole, width, height), canvas.bytes());
                let part = Rect { left: 16, top: 3, width: 9, height: 30 };
                let pixels = with_rust(&bytes, part, width, height);
                for row in 8..part.height - 8 {
                    // Columns at the edge of a region are not exact in either backend.
                    let inner = canvas.row(part.top + row, part.left + 2, 4);
                    let start = (row * part.width + 2) * 3;
                    assert_eq!(&pixels[start..start + 12], inner, "row {row}");
                }
            }
        }
    }
}
