//! Pixels in memory that is used again: rows of interleaved bytes, of which only a part may be valid.

use crate::simd::SLACK;

/// A part of a picture, in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rect {
    /// From the left edge.
    pub left: usize,
    /// From the top edge.
    pub top: usize,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

impl Rect {
    /// All of a picture of that size.
    pub fn whole(width: usize, height: usize) -> Rect {
        Rect { left: 0, top: 0, width, height }
    }

    /// The first column behind it.
    pub fn right(&self) -> usize {
        self.left + self.width
    }

    /// The first row below it.
    pub fn bottom(&self) -> usize {
        self.top + self.height
    }

    /// Whether `other` lies within.
    pub fn contains(&self, other: &Rect) -> bool {
        self.left <= other.left
            && self.top <= other.top
            && other.right() <= self.right()
            && other.bottom() <= self.bottom()
    }
}

/// A picture. Pixels outside `valid` are left over from earlier pictures and mean nothing: a crop is
/// computed alone, at the place where it stands in the whole.
#[derive(Debug, Default)]
pub struct Canvas {
    width: usize,
    height: usize,
    channels: usize,
    valid: Rect,
    pixels: Vec<u8>,
}

impl Canvas {
    /// Makes it that large; no pixel is valid then.
    pub fn reshape(&mut self, width: usize, height: usize, channels: usize) {
        let bytes = width * height * channels;
        if self.pixels.len() < bytes + SLACK {
            // A fresh vector: growing the old one would copy pixels that mean nothing.
            self.pixels = vec![0; bytes + SLACK];
        }
        (self.width, self.height, self.channels) = (width, height, channels);
        self.valid = Rect::default();
    }

    /// Says which pixels are computed.
    pub fn set_valid(&mut self, valid: Rect) {
        debug_assert!(Rect::whole(self.width, self.height).contains(&valid));
        self.valid = valid;
    }

    /// The pixels that are computed.
    pub fn valid(&self) -> Rect {
        self.valid
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Bytes a pixel.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Bytes a row.
    pub fn pitch(&self) -> usize {
        self.width * self.channels
    }

    /// All bytes, row by row.
    pub fn bytes(&self) -> &[u8] {
        &self.pixels[..self.pitch() * self.height]
    }

    /// All bytes, and some behind them that may be read and mean nothing.
    pub fn bytes_with_slack(&self) -> &[u8] {
        &self.pixels[..self.pitch() * self.height + SLACK]
    }

    /// All bytes, row by row.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.pitch() * self.height;
        &mut self.pixels[..bytes]
    }

    /// The bytes of one row from column `left` on, `width` columns.
    pub fn row(&self, row: usize, left: usize, width: usize) -> &[u8] {
        let start = row * self.pitch() + left * self.channels;
        &self.pixels[start..start + width * self.channels]
    }

    /// As `row`, to write to.
    pub fn row_mut(&mut self, row: usize, left: usize, width: usize) -> &mut [u8] {
        let start = row * self.pitch() + left * self.channels;
        &mut self.pixels[start..start + width * self.channels]
    }

    /// Bytes of memory it holds.
    pub fn capacity(&self) -> usize {
        self.pixels.capacity()
    }
}
