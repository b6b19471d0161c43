//! Pixels in reused memory: rows of interleaved bytes, of which only a part may be valid.

use crate::simd::SLACK;

/// A part of an image, in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rect {
    /// Columns from the left edge.
    pub left: usize,
    /// Rows from the top edge.
    pub top: usize,
    /// Number of columns.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

impl Rect {
    /// The whole of an image of this size.
    pub fn whole(width: usize, height: usize) -> Rect {
        Rect { left: 0, top: 0, width, height }
    }

    /// The first column to the right of it.
    pub fn right(&self) -> usize {
        self.left + self.width
    }

    /// The first row below it.
    pub fn bottom(&self) -> usize {
        self.top + self.height
    }

    /// Whether it contains `other`.
    pub fn contains(&self, other: &Rect) -> bool {
        self.left <= other.left
            && self.top <= other.top
            && other.right() <= self.right()
            && other.bottom() <= self.bottom()
    }
}

/// An image. Pixels outside `valid` are stale: a crop is computed alone, at its place in the whole image.
#[derive(Debug, Default)]
pub struct Canvas {
    width: usize,
    height: usize,
    channels: usize,
    valid: Rect,
    pixels: Vec<u8>,
}

impl Canvas {
    /// Resizes it; no pixel is valid afterwards.
    pub fn reshape(&mut self, width: usize, height: usize, channels: usize) {
        let bytes = width * height * channels;
        if self.pixels.len() < bytes + SLACK {
            // A fresh vector: growing the old one would copy stale pixels.
            self.pixels = vec![0; bytes + SLACK];
        }
        (self.width, self.height, self.channels) = (width, height, channels);
        self.valid = Rect::default();
    }

    /// Sets which pixels are valid.
    pub fn set_valid(&mut self, valid: Rect) {
        debug_assert!(Rect::whole(self.width, self.height).contains(&valid));
        self.valid = valid;
    }

    /// The valid pixels.
    pub fn valid(&self) -> Rect {
        self.valid
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Bytes per pixel.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Bytes per row.
    pub fn pitch(&self) -> usize {
        self.width * self.channels
    }

    /// All bytes, row by row.
    pub fn bytes(&self) -> &[u8] {
        &self.pixels[..self.pitch() * self.height]
    }

    /// All bytes, and some meaningless bytes after them that may be read.
    pub fn bytes_with_slack(&self) -> &[u8] {
        &self.pixels[..self.pitch() * self.height + SLACK]
    }

    /// All bytes, row by row.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.pitch() * self.height;
        &mut self.pixels[..bytes]
    }

    /// The bytes of one row: `width` columns from `left` on.
    pub fn row(&self, row: usize, left: usize, width: usize) -> &[u8] {
        let start = row * self.pitch() + left * self.channels;
        &self.pixels[start..start + width * self.channels]
    }

    /// Like `row`, mutable.
    pub fn row_mut(&mut self, row: usize, left: usize, width: usize) -> &mut [u8] {
        let start = row * self.pitch() + left * self.channels;
        &mut self.pixels[start..start + width * self.channels]
    }

    /// Bytes of memory it holds.
    pub fn capacity(&self) -> usize {
        self.pixels.capacity()
    }
}
