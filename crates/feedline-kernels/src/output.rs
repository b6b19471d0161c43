//! Converts pixels to the requested numbers, and writes them into the sample's row.

use crate::canvas::{Canvas, Rect};
use crate::dtype::Dtype;

/// The order of the axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Rows, columns, channels, as images are stored.
    #[default]
    Hwc,
    /// Channels, rows, columns, as torch's models expect them.
    Chw,
}

/// The format of the result.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Type of the numbers.
    pub dtype: Dtype,
    /// Order of the axes.
    pub layout: Layout,
    /// For float32: the number for each byte of each channel. Computed once in torch's order of operations, so that the
    /// results equal torch's to the last bit.
    floats: Vec<[f32; 256]>,
}

impl Output {
    /// Bytes unchanged, or converted to numbers of the same value.
    pub fn plain(dtype: Dtype, layout: Layout) -> Output {
        let mut table = [0.0; 256];
        for (byte, number) in table.iter_mut().enumerate() {
            *number = byte as f32;
        }
        Output { dtype, layout, floats: vec![table; 4] }
    }

    /// Scaled to 0..1, then normalized by the mean and the deviation of each channel.
    pub fn normalised(layout: Layout, mean: &[f32], deviation: &[f32]) -> Output {
        let table = |(mean, deviation): (&f32, &f32)| {
            let mut table = [0.0; 256];
            for (byte, number) in table.iter_mut().enumerate() {
                *number = (byte as f32 / 255.0 - mean) / deviation;
            }
            table
        };
        let floats = mean.iter().zip(deviation).map(table).collect();
        Output { dtype: Dtype::Float32, layout, floats }
    }

    /// Writes the pixels of `frame`, mirrored or not.
    ///
    /// # Panics
    /// If `row` does not have the size of the result.
    pub fn write(&self, canvas: &Canvas, frame: Rect, mirrored: bool, row: &mut [u8]) {
        let pixels = Pixels { canvas, frame, mirrored, layout: self.layout };
        match self.dtype {
            Dtype::Uint8 if self.layout == Layout::Hwc && !mirrored => pixels.copy(row),
            Dtype::Bool | Dtype::Uint8 | Dtype::Int8 => pixels.write(row, |_| |byte| [byte]),
            Dtype::Uint16 | Dtype::Int16 => {
                pixels.write(row, |_| |byte| u16::from(byte).to_ne_bytes());
            }
            Dtype::Uint32 | Dtype::Int32 => {
                pixels.write(row, |_| |byte| u32::from(byte).to_ne_bytes());
            }
            Dtype::Uint64 | Dtype::Int64 => {
                pixels.write(row, |_| |byte| u64::from(byte).to_ne_bytes());
            }
            // All numbers up to 255 are exact in 16 bits, which have eleven significant bits.
            Dtype::Float16 => pixels.write(row, |_| |byte| half(byte).to_ne_bytes()),
            Dtype::Float32 => pixels.write(row, |channel| {
                let table = &self.floats[channel];
                move |byte| table[usize::from(byte)].to_ne_bytes()
            }),
            Dtype::Float64 => pixels.write(row, |_| |byte| f64::from(byte).to_ne_bytes()),
        }
    }
}

/// The bits of an integer as a 16-bit float.
fn half(byte: u8) -> u16 {
    let Some(exponent) = byte.checked_ilog2() else { return 0 };
    let fraction = (u16::from(byte) << (10 - exponent)) & 0x3ff;
    (15 + exponent as u16) << 10 | fraction
}

struct Pixels<'a> {
    canvas: &'a Canvas,
    frame: Rect,
    mirrored: bool,
    layout: Layout,
}

impl Pixels<'_> {
    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        let Rect { left, width, .. } = self.frame;
        (self.frame.top..self.frame.bottom()).map(move |row| self.canvas.row(row, left, width))
    }

    fn copy(&self, target: &mut [u8]) {
        let pitch = self.frame.width * self.canvas.channels();
        assert_eq!(target.len(), pitch * self.frame.height);
        for (line, to) in self.lines().zip(target.chunks_exact_mut(pitch.max(1))) {
            to.copy_from_slice(line);
        }
    }

    fn write<const N: usize, F: Fn(u8) -> [u8; N]>(
        &self,
        target: &mut [u8],
        number_of: impl Fn(usize) -> F,
    ) {
        match self.canvas.channels() {
            1 => self.write_channels::<1, N, F>(target, [number_of(0)]),
            _ => self.write_channels::<3, N, F>(target, [number_of(0), number_of(1), number_of(2)]),
        }
    }

    fn write_channels<const CHANNELS: usize, const N: usize, F: Fn(u8) -> [u8; N]>(
        &self,
        target: &mut [u8],
        numbers_of: [F; CHANNELS],
    ) {
        let Rect { width, height, .. } = self.frame;
        let (numbers, rest) = target.as_chunks_mut::<N>();
        assert!(rest.is_empty() && numbers.len() == width * height * CHANNELS);
        for (row, line) in self.lines().enumerate() {
            let (line, _) = line.as_chunks::<CHANNELS>();
            match self.layout {
                Layout::Hwc => {
                    let (pixels, _) = numbers[row * width * CHANNELS..].as_chunks_mut::<CHANNELS>();
                    self.each(line, &mut pixels[..width], |pixel| {
                        std::array::from_fn(|channel| numbers_of[channel](pixel[channel]))
                    });
                }
                Layout::Chw => {
                    for (channel, number) in numbers_of.iter().enumerate() {
                        let start = (channel * height + row) * width;
                        let to = &mut numbers[start..start + width];
                        self.each(line, to, |pixel| number(pixel[channel]));
                    }
                }
            }
        }
    }

    /// Writes a line, from its end if it is mirrored.
    fn each<P: Copy, T>(&self, line: &[P], to: &mut [T], number: impl Fn(P) -> T) {
        if self.mirrored {
            for (to, pixel) in to.iter_mut().rev().zip(line) {
                *to = number(*pixel);
            }
        } else {
            for (to, pixel) in to.iter_mut().zip(line) {
                *to = number(*pixel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canvas() -> Canvas {
        let mut canvas = Canvas::default();
        canvas.reshape(3, 2, 3);
        for (number, byte) in canvas.bytes_mut().iter_mut().enumerate() {
            *byte = number as u8;
        }
        canvas.set_valid(Rect::whole(3, 2));
        canvas
    }

    fn written(output: &Output, mirrored: bool) -> Vec<u8> {
        let frame = Rect { left: 1, top: 0, width: 2, height: 2 };
        let mut row = vec![0; 12 * output.dtype.bytes()];
        output.write(&canvas(), frame, mirrored, &mut row);
        row
    }

    #[test]
    fn layout_and_mirror_put_each_channel_in_its_place() {
        let hwc = Output::plain(Dtype::Uint8, Layout::Hwc);
        assert_eq!(written(&hwc, false), [3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 16, 17]);
        assert_eq!(written(&hwc, true), [6, 7, 8, 3, 4, 5, 15, 16, 17, 12, 13, 14]);
        let chw = Output::plain(Dtype::Uint8, Layout::Chw);
        assert_eq!(written(&chw, false), [3, 6, 12, 15, 4, 7, 13, 16, 5, 8, 14, 17]);
        assert_eq!(written(&chw, true), [6, 3, 15, 12, 7, 4, 16, 13, 8, 5, 17, 14]);
    }

    #[test]
    fn floats_are_computed_in_torchs_order() {
        let output =
            Output::normalised(Layout::Hwc, &[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225]);
        let first = f32::from_ne_bytes(written(&output, false)[..4].try_into().unwrap());
        assert_eq!(first, (3.0_f32 / 255.0 - 0.485) / 0.229);
    }

    #[test]
    fn every_byte_is_exact_as_a_small_float() {
        for byte in 0..=255_u8 {
            let bits = half(byte);
            let (exponent, fraction) = (i32::from(bits >> 10) - 15, f64::from(bits & 0x3ff));
            let value =
                if bits == 0 { 0.0 } else { (1.0 + fraction / 1024.0) * 2_f64.powi(exponent) };
            assert_eq!(value, f64::from(byte));
        }
    }
}
