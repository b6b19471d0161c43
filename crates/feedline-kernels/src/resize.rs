//! Resizing with antialiasing, bit for bit as torchvision does it for uint8.
//!
//! Two passes, first along the rows and then along the columns, each rounded to bytes. The weights are those of the
//! whole image, even if only a window of the result is computed, which no library offers: weights of a part alone are
//! rounded to another precision.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::canvas::{Canvas, Rect};
use crate::simd::{self, Taps};

/// How many weight tables are cached: images of a data set often have the same sizes.
const KNOWN: usize = 8;

/// The resize filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Filter {
    #[default]
    Bilinear,
    Bicubic,
}

impl Filter {
    fn radius(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
        }
    }

    /// The weight of a neighbour at this distance.
    fn at(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            Filter::Bilinear if x < 1.0 => 1.0 - x,
            Filter::Bicubic if x < 1.0 => ((SHARPNESS + 2.0) * x - (SHARPNESS + 3.0)) * x * x + 1.0,
            Filter::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * SHARPNESS,
            Filter::Bilinear | Filter::Bicubic => 0.0,
        }
    }
}

/// Parameter of the bicubic filter, as in torch and Pillow.
const SHARPNESS: f64 = -0.5;

/// A resize of a whole image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Columns before and after.
    pub width: (usize, usize),
    /// Rows before and after.
    pub height: (usize, usize),
    /// The resize filter.
    pub filter: Filter,
}

impl Scale {
    /// The pixels that are needed to compute a window of the result.
    pub fn source(&self, window: Rect) -> Rect {
        let (left, right) = self.reach(self.width, window.left, window.right());
        let (top, bottom) = self.reach(self.height, window.top, window.bottom());
        Rect { left, top, width: right - left, height: bottom - top }
    }

    fn reach(&self, (from, to): (usize, usize), start: usize, end: usize) -> (usize, usize) {
        if from == to {
            return (start, end);
        }
        let scale = from as f64 / to as f64;
        let support = self.filter.radius() * scale.max(1.0);
        // One more pixel on either side, in case rounding needs it.
        let first = ((start as f64 + 0.5) * scale - support).floor() as i64 - 1;
        let last = ((end as f64 - 0.5) * scale + support).ceil() as i64 + 1;
        (first.max(0) as usize, (last.max(0) as usize).min(from))
    }
}

/// The weights of one axis as integers: equal to torch's, to the last bit.
#[derive(Debug)]
struct Weights {
    /// The first input of each output, and how many inputs have a weight.
    spans: Vec<(u32, u32)>,
    /// The same with a uniform number of inputs; the weights of the extra ones are zero.
    starts: Vec<u32>,
    count: usize,
    numbers: Vec<i16>,
    precision: u32,
}

impl Weights {
    fn new(from: usize, to: usize, filter: Filter) -> Weights {
        let scale = from as f64 / to as f64;
        let (support, inverse) = match scale >= 1.0 {
            true => (filter.radius() * scale, 1.0 / scale),
            false => (filter.radius(), 1.0),
        };
        let mut reals: Vec<Vec<f64>> = Vec::with_capacity(to);
        let mut spans = Vec::with_capacity(to);
        let mut largest = 0.0_f64;
        for output in 0..to {
            let center = scale * (output as f64 + 0.5);
            let first = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let mut weights: Vec<f64> = (first..end)
                .map(|input| filter.at((input as f64 - center + 0.5) * inverse))
                .collect();
            let total: f64 = weights.iter().sum();
            if total != 0.0 {
                weights.iter_mut().for_each(|weight| *weight /= total);
            }
            largest = weights.iter().copied().fold(largest, f64::max);
            spans.push((first as u32, (end - first) as u32));
            reals.push(weights);
        }
        // As many bits as fit into 16: the largest weight of the whole axis decides.
        let precision = (0..22_u32)
            .find(|bits| (0.5 + largest * f64::from(1 << (bits + 1))) as i32 >= 1 << 15)
            .unwrap_or(22);
        let most = reals.iter().map(Vec::len).max().unwrap_or(0);
        let count = match most.next_multiple_of(4) {
            padded if padded <= from => padded,
            _ => most,
        };
        let mut numbers = vec![0; to * count];
        let mut starts = Vec::with_capacity(to);
        for (output, weights) in reals.iter().enumerate() {
            let first = spans[output].0 as usize;
            // At the far edge a uniform number of inputs must begin earlier.
            let start = first.min(from - count);
            starts.push(start as u32);
            for (at, weight) in weights.iter().enumerate() {
                let scaled = weight * f64::from(1 << precision);
                let number = if scaled < 0.0 { scaled - 0.5 } else { scaled + 0.5 };
                numbers[output * count + first - start + at] = number as i16;
            }
        }
        Weights { spans, starts, count, numbers, precision }
    }

    /// The weights of one output, without the extra zeros.
    fn of(&self, output: usize) -> (usize, &[i16]) {
        let (first, length) = (self.spans[output].0 as usize, self.spans[output].1 as usize);
        let skipped = first - self.starts[output] as usize;
        let start = output * self.count + skipped;
        (first, &self.numbers[start..start + length])
    }
}

/// Cached weights, and the image between the passes.
#[derive(Default)]
pub struct Resizer {
    known: VecDeque<((usize, usize, Filter), Arc<Weights>)>,
    between: Canvas,
}

impl Resizer {
    /// Computes the pixels of `window` of the resized image. The image to resize is the part `frame` of `from`: nothing
    /// around it is read.
    pub fn resize(
        &mut self,
        from: &Canvas,
        frame: Rect,
        scale: &Scale,
        window: Rect,
        to: &mut Canvas,
    ) {
        let channels = from.channels();
        let source = scale.source(window);
        to.reshape(scale.width.1, scale.height.1, channels);
        let mut between = std::mem::take(&mut self.between);
        // The part of the image that the columns are computed from, and its first row and column.
        let (columns, top, left) = if scale.width.0 == scale.width.1 {
            (from, frame.top, frame.left + window.left)
        } else {
            between.reshape(window.width, source.height, channels);
            let weights = self.weights(scale.width.0, scale.width.1, scale.filter);
            let part = Rect { left: frame.left, top: frame.top + source.top, ..source };
            rows(from, part, &weights, window, &mut between);
            (&between, 0, 0)
        };
        let skipped = if scale.width.0 == scale.width.1 { 0 } else { source.top };
        if scale.height.0 == scale.height.1 {
            for row in window.top..window.bottom() {
                let bytes = columns.row(top + row - skipped, left, window.width);
                to.row_mut(row, window.left, window.width).copy_from_slice(bytes);
            }
        } else {
            let weights = self.weights(scale.height.0, scale.height.1, scale.filter);
            for row in window.top..window.bottom() {
                let (first, numbers) = weights.of(row);
                let start = (top + first - skipped) * columns.pitch() + left * channels;
                simd::columns(
                    &columns.bytes()[start..],
                    columns.pitch(),
                    to.row_mut(row, window.left, window.width),
                    numbers,
                    weights.precision,
                );
            }
        }
        to.set_valid(window);
        self.between = between;
    }

    fn weights(&mut self, from: usize, to: usize, filter: Filter) -> Arc<Weights> {
        let key = (from, to, filter);
        if let Some((_, weights)) = self.known.iter().find(|(known, _)| *known == key) {
            return Arc::clone(weights);
        }
        let weights = Arc::new(Weights::new(from, to, filter));
        if self.known.len() == KNOWN {
            self.known.pop_front();
        }
        self.known.push_back((key, Arc::clone(&weights)));
        weights
    }

    /// Frees working memory beyond `keep` bytes.
    pub fn trim(&mut self, keep: usize) {
        if self.between.capacity() > keep {
            self.between = Canvas::default();
        }
    }
}

/// The first pass: the columns of the window, for all rows that the second pass needs.
fn rows(from: &Canvas, part: Rect, weights: &Weights, window: Rect, to: &mut Canvas) {
    let columns = window.left..window.right();
    let starts = &weights.starts[columns.clone()];
    let numbers = &weights.numbers[columns.start * weights.count..columns.end * weights.count];
    let (pitch, channels) = (to.pitch(), from.channels());
    if channels == 3 && weights.count.is_multiple_of(4) {
        let taps =
            Taps { starts, weights: numbers, count: weights.count, precision: weights.precision };
        let start = part.top * from.pitch() + part.left * 3;
        let bytes = &from.bytes_with_slack()[start..];
        if simd::rows_of_rgb(bytes, from.pitch(), to.bytes_mut(), pitch, part.height, taps) {
            return;
        }
    }
    for row in 0..part.height {
        let line = from.row(part.top + row, part.left, from.width() - part.left);
        let target = to.row_mut(row, 0, window.width);
        for (x, start) in starts.iter().enumerate() {
            let weights_of = &numbers[x * weights.count..(x + 1) * weights.count];
            for channel in 0..channels {
                let inputs = line[*start as usize * channels + channel..].iter().step_by(channels);
                let sum: i32 = inputs
                    .zip(weights_of)
                    .map(|(byte, weight)| i32::from(*byte) * i32::from(*weight))
                    .sum();
                target[x * channels + channel] = simd::rounded(sum, weights.precision);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::photo::photo;
    use proptest::prelude::*;

    fn canvas(seed: u64, width: usize, height: usize) -> Canvas {
        let mut canvas = Canvas::default();
        canvas.reshape(width, height, 3);
        canvas.bytes_mut().copy_from_slice(&photo(seed, width, height));
        canvas.set_valid(Rect::whole(width, height));
        canvas
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn a_window_has_the_pixels_of_the_whole(
            from in (1_usize..90, 1_usize..90), to in (1_usize..90, 1_usize..90),
            cubic: bool, place in (0.0..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0),
        ) {
            let filter = if cubic { Filter::Bicubic } else { Filter::Bilinear };
            let scale = Scale { width: (from.0, to.0), height: (from.1, to.1), filter };
            let left = (place.0 * to.0 as f64) as usize;
            let top = (place.1 * to.1 as f64) as usize;
            let window = Rect {
                left,
                top,
                width: 1 + (place.2 * (to.0 - left - 1) as f64) as usize,
                height: 1 + (place.3 * (to.1 - top - 1) as f64) as usize,
            };
            let mut resizer = Resizer::default();
            let (mut whole, mut part) = (Canvas::default(), Canvas::default());
            let picture = canvas(5, from.0, from.1);
            resizer.resize(&picture, picture.valid(), &scale, Rect::whole(to.0, to.1), &mut whole);
            // Everything that is not needed is overwritten: it must not matter.
            let mut spoilt = canvas(5, from.0, from.1);
            let needed = scale.source(window);
            for row in 0..from.1 {
                for column in 0..from.0 {
                    let here = Rect { left: column, top: row, width: 1, height: 1 };
                    if !needed.contains(&here) {
                        spoilt.row_mut(row, column, 1).fill(99);
                    }
                }
            }
            spoilt.set_valid(needed);
            resizer.resize(&spoilt, Rect::whole(from.0, from.1), &scale, window, &mut part);
            for row in window.top..window.bottom() {
                prop_assert_eq!(
                    part.row(row, window.left, window.width),
                    whole.row(row, window.left, window.width)
                );
            }
        }
    }
}
