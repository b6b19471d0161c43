//! Applies the EXIF orientation of an image.

use crate::canvas::{Canvas, Rect};

/// The transformation that makes a stored image upright: EXIF's numbers 1 to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orientation(u8);

impl Default for Orientation {
    fn default() -> Orientation {
        Orientation(1)
    }
}

impl Orientation {
    /// From EXIF's number; any number outside 1 to 8 means upright.
    pub fn new(number: u32) -> Orientation {
        match u8::try_from(number) {
            Ok(number @ 1..=8) => Orientation(number),
            Ok(_) | Err(_) => Orientation(1),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_upright(self) -> bool {
        self.0 == 1
    }

    /// The size after the transformation, or before it: a quarter turn swaps the sides either way.
    pub fn turned(self, width: usize, height: usize) -> (usize, usize) {
        if self.0 >= 5 { (height, width) } else { (width, height) }
    }

    /// Where a pixel of the turned image is stored, in a stored image of this size.
    fn source(self, x: usize, y: usize, width: usize, height: usize) -> (usize, usize) {
        match self.0 {
            2 => (width - 1 - x, y),
            3 => (width - 1 - x, height - 1 - y),
            4 => (x, height - 1 - y),
            5 => (y, x),
            6 => (y, height - 1 - x),
            7 => (width - 1 - y, height - 1 - x),
            8 => (width - 1 - y, x),
            _ => (x, y),
        }
    }

    /// The part of the stored image (of this size) that a part of the turned one comes from.
    pub fn stored(self, part: Rect, width: usize, height: usize) -> Rect {
        if part.width == 0 || part.height == 0 {
            return Rect::default();
        }
        let (x1, y1) = self.source(part.left, part.top, width, height);
        let (x2, y2) = self.source(part.right() - 1, part.bottom() - 1, width, height);
        Rect {
            left: x1.min(x2),
            top: y1.min(y2),
            width: x1.abs_diff(x2) + 1,
            height: y1.abs_diff(y2) + 1,
        }
    }

    /// Writes a part of the turned image.
    pub fn turn(self, stored: &Canvas, part: Rect, turned: &mut Canvas) {
        let channels = stored.channels();
        let (width, height) = self.turned(stored.width(), stored.height());
        turned.reshape(width, height, channels);
        for y in part.top..part.bottom() {
            for x in part.left..part.right() {
                let (from_x, from_y) = self.source(x, y, stored.width(), stored.height());
                let pixel = stored.row(from_y, from_x, 1);
                turned.row_mut(y, x, 1).copy_from_slice(pixel);
            }
        }
        turned.set_valid(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_comes_from_where_its_pixels_are_stored() {
        let mut stored = Canvas::default();
        stored.reshape(4, 3, 1);
        for (number, byte) in stored.bytes_mut().iter_mut().enumerate() {
            *byte = number as u8;
        }
        for number in 1..=8 {
            let orientation = Orientation::new(number);
            let (width, height) = orientation.turned(4, 3);
            let mut whole = Canvas::default();
            orientation.turn(&stored, Rect::whole(width, height), &mut whole);
            let part = Rect { left: 1, top: 1, width: 2, height: 1 };
            let from = orientation.stored(part, 4, 3);
            for pixel in whole.row(1, 1, 2) {
                let (x, y) = (usize::from(*pixel % 4), usize::from(*pixel / 4));
                let inside = Rect { left: x, top: y, width: 1, height: 1 };
                assert!(from.contains(&inside), "{number}: {pixel} is not in {from:?}");
            }
            assert_eq!(from.width * from.height, 2);
        }
    }

    #[test]
    fn unknown_numbers_mean_upright() {
        assert!(Orientation::new(0).is_upright() && Orientation::new(9).is_upright());
    }
}
