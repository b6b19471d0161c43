//! Converts the channels of a file to the requested ones, with Pillow's arithmetic.

/// The requested channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Red, green, blue.
    #[default]
    Rgb,
    /// One channel.
    Gray,
}

impl Mode {
    /// Bytes per pixel.
    pub fn channels(self) -> usize {
        match self {
            Mode::Rgb => 3,
            Mode::Gray => 1,
        }
    }
}

/// The channels of a decoder's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// One channel.
    Gray,
    /// One channel, and alpha, which is dropped.
    GrayAlpha,
    /// Three channels.
    Rgb,
    /// Three channels, and alpha, which is dropped: Pillow does not blend either.
    Rgba,
    /// Four channels, inverted as Adobe's programs write them and Pillow reads them.
    InvertedCmyk,
}

impl Channels {
    /// Bytes per pixel.
    pub fn count(self) -> usize {
        match self {
            Channels::Gray => 1,
            Channels::GrayAlpha => 2,
            Channels::Rgb => 3,
            Channels::Rgba | Channels::InvertedCmyk => 4,
        }
    }

    /// Whether these already are the requested channels.
    pub fn are(self, mode: Mode) -> bool {
        matches!((self, mode), (Channels::Rgb, Mode::Rgb) | (Channels::Gray, Mode::Gray))
    }
}

/// Converts pixel by pixel; both slices hold the same number of pixels.
pub fn convert(from: &[u8], channels: Channels, to: &mut [u8], mode: Mode) {
    match (channels, mode) {
        (Channels::Rgb, Mode::Rgb) | (Channels::Gray, Mode::Gray) => to.copy_from_slice(from),
        (Channels::Gray, Mode::Rgb) => each::<1, 3>(from, to, |[gray]| [gray, gray, gray]),
        (Channels::GrayAlpha, Mode::Rgb) => each::<2, 3>(from, to, |[gray, _]| [gray, gray, gray]),
        (Channels::GrayAlpha, Mode::Gray) => each::<2, 1>(from, to, |[gray, _]| [gray]),
        (Channels::Rgba, Mode::Rgb) => each::<4, 3>(from, to, |[r, g, b, _]| [r, g, b]),
        (Channels::Rgb, Mode::Gray) => each::<3, 1>(from, to, |rgb| [luma(rgb)]),
        (Channels::Rgba, Mode::Gray) => each::<4, 1>(from, to, |[r, g, b, _]| [luma([r, g, b])]),
        (Channels::InvertedCmyk, Mode::Rgb) => each::<4, 3>(from, to, cmyk_to_rgb),
        (Channels::InvertedCmyk, Mode::Gray) => {
            each::<4, 1>(from, to, |cmyk| [luma(cmyk_to_rgb(cmyk))]);
        }
    }
}

fn each<const FROM: usize, const TO: usize>(
    from: &[u8],
    to: &mut [u8],
    pixel: impl Fn([u8; FROM]) -> [u8; TO],
) {
    let (from, _) = from.as_chunks::<FROM>();
    let (to, _) = to.as_chunks_mut::<TO>();
    for (from, to) in from.iter().zip(to) {
        *to = pixel(*from);
    }
}

/// ITU-R 601-2 in 16 bits, rounded, like Pillow's convert("L").
fn luma([red, green, blue]: [u8; 3]) -> u8 {
    let sum = u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000;
    (sum >> 16) as u8
}

fn cmyk_to_rgb([cyan, magenta, yellow, black]: [u8; 4]) -> [u8; 3] {
    // Stored inverted: the black channel is the remaining light.
    let light = u32::from(black);
    [cyan, magenta, yellow].map(|ink| {
        let product = u32::from(255 - ink) * light + 128;
        let absorbed = (product + (product >> 8)) >> 8;
        light.saturating_sub(absorbed) as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_is_dropped_and_gray_is_repeated() {
        let mut rgb = [0; 6];
        convert(&[1, 2, 3, 255, 4, 5, 6, 0], Channels::Rgba, &mut rgb, Mode::Rgb);
        assert_eq!(rgb, [1, 2, 3, 4, 5, 6]);
        convert(&[9, 0, 8, 0], Channels::GrayAlpha, &mut rgb, Mode::Rgb);
        assert_eq!(rgb, [9, 9, 9, 8, 8, 8]);
    }

    #[test]
    fn gray_is_weighted_as_in_pillow() {
        let mut gray = [0; 2];
        convert(&[255, 255, 255, 200, 100, 50], Channels::Rgb, &mut gray, Mode::Gray);
        assert_eq!(gray, [255, 124]);
    }
}
