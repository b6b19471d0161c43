//! Where every pixel of a result comes from: the steps of a transform for one image, and the pixels that each step must
//! compute for the next. Pure.

use std::ops::Range;

use super::steps::{Decoding, Picture, Size, Step, Transform, shorter_to};
use crate::decode::canvas::Rect;
use crate::decode::resize::{Filter, Scale};
use crate::decode::{Format, ImageHeader};
use crate::error::{Error, Kind, Result};
use crate::random::Random;
use crate::sample::Ticket;

/// A step for one image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlacedStep {
    /// A part; it may reach beyond the image, where it is black.
    Crop {
        /// Columns from the left edge.
        left: i64,
        /// Rows from the top edge.
        top: i64,
        /// Size of the result.
        size: Size,
    },
    /// The whole image, resized.
    Resize(Scale),
    /// Mirrored left to right.
    Flip,
}

/// The prepared steps for one sample, known before its pixels are.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Header of the encoded image, if it is encoded.
    pub header: Option<ImageHeader>,
    /// The factor by which the decoder downscales the image.
    pub shrink: usize,
    /// Size of the image before the steps.
    pub start: Size,
    /// The pixels to decode.
    pub decoded: Rect,
    /// The steps, each with the part of its result that is needed.
    pub steps: Vec<(PlacedStep, Rect)>,
    /// Size of the result.
    pub size: Size,
    /// Working memory, not counting the file.
    pub working_bytes: usize,
}

impl Prepared {
    /// Prepares the steps of a transform for a sample.
    pub fn new(transform: &Transform, bytes: &[u8], ticket: Ticket) -> Result<Prepared> {
        Prepared::up_to(transform, transform.steps.len(), bytes, ticket)
    }

    /// Prepares the first `count` steps. What they make can be continued with `continued`; the pixels are then the same
    /// as those of all steps at once, unless the decoder may downscale.
    pub(crate) fn up_to(
        transform: &Transform,
        count: usize,
        bytes: &[u8],
        ticket: Ticket,
    ) -> Result<Prepared> {
        let (header, scaled, start) = match &transform.picture {
            Picture::Encoded(Decoding { options, scaled }) => {
                let header = ImageHeader::read(bytes, options)?;
                let size = Size { height: header.height, width: header.width };
                let scaled = *scaled && header.format == Format::Jpeg;
                (Some(header), scaled, size)
            }
            Picture::Array { size, .. } => (None, false, *size),
        };
        Prepared::of_steps(transform, 0..count, header, scaled, start, ticket)
    }

    /// Prepares the steps from `first` on, for an image that the steps before it have made.
    pub(crate) fn continued(
        transform: &Transform,
        first: usize,
        size: Size,
        ticket: Ticket,
    ) -> Result<Prepared> {
        Prepared::of_steps(transform, first..transform.steps.len(), None, false, size, ticket)
    }

    fn of_steps(
        transform: &Transform,
        numbers: Range<usize>,
        header: Option<ImageHeader>,
        scaled: bool,
        start: Size,
        ticket: Ticket,
    ) -> Result<Prepared> {
        let mut steps = Vec::with_capacity(transform.steps.len() + 1);
        let mut size = start;
        for number in numbers {
            let mut random = Random::keyed(&[transform.seed, ticket.position, number as u64]);
            size = place(transform.steps[number], size, &mut random, &mut steps)?;
        }
        let (shrink, start) = if scaled { shrink(&mut steps, start) } else { (1, start) };

        // Backwards: the last step must compute everything, and so on to the decoder.
        let mut wanted = Rect::whole(size.width, size.height);
        let mut after = size;
        let sizes = sizes(&steps, start);
        let mut needed = vec![Rect::default(); steps.len()];
        for (number, step) in steps.iter().enumerate().rev() {
            needed[number] = wanted;
            let before = sizes[number];
            wanted = match step {
                PlacedStep::Crop { left, top, .. } => moved(wanted, *left, *top, before),
                PlacedStep::Resize(scale) => scale.source(wanted),
                PlacedStep::Flip => Rect { left: after.width - wanted.right(), ..wanted },
            };
            after = before;
        }
        let channels = transform.channels();
        let canvases: usize = steps
            .iter()
            .zip(&sizes)
            .map(|(step, before)| match step {
                PlacedStep::Resize(scale) => {
                    scale.width.1 * (before.height + scale.height.1) * channels
                }
                PlacedStep::Crop { size, .. } => size.width * size.height * channels,
                PlacedStep::Flip => 0,
            })
            .sum();
        let working_bytes = header.map_or(0, |header| header.working_bytes())
            + start.width * start.height * channels
            + canvases;
        Ok(Prepared {
            header,
            shrink,
            start,
            decoded: wanted,
            steps: steps.into_iter().zip(needed).collect(),
            size,
            working_bytes,
        })
    }
}

/// The size before each step.
fn sizes(steps: &[PlacedStep], start: Size) -> Vec<Size> {
    let mut size = start;
    steps
        .iter()
        .map(|step| {
            let before = size;
            size = match step {
                PlacedStep::Crop { size, .. } => *size,
                PlacedStep::Resize(scale) => Size { height: scale.height.1, width: scale.width.1 },
                PlacedStep::Flip => size,
            };
            before
        })
        .collect()
}

/// A part of a crop's result, as a part of the image before the crop.
fn moved(part: Rect, left: i64, top: i64, within: Size) -> Rect {
    let clip = |start: usize, length: usize, offset: i64, bound: usize| {
        let first = (start as i64 + offset).clamp(0, bound as i64);
        let last = ((start + length) as i64 + offset).clamp(0, bound as i64);
        (first as usize, (last - first) as usize)
    };
    let (left, width) = clip(part.left, part.width, left, within.width);
    let (top, height) = clip(part.top, part.height, top, within.height);
    Rect { left, top, width, height }
}

fn place(step: Step, size: Size, random: &mut Random, steps: &mut Vec<PlacedStep>) -> Result<Size> {
    match step {
        Step::ResizeShorter(shorter, filter) => {
            resize(size, shorter_to(size, shorter), filter, steps)
        }
        Step::ResizeTo(target, filter) => resize(size, target, filter, steps),
        Step::CenterCrop(target) => {
            let left = centered(size.width, target.width);
            let top = centered(size.height, target.height);
            steps.push(PlacedStep::Crop { left, top, size: target });
            Ok(target)
        }
        Step::RandomCrop { size: target, padding } => {
            let room = |have: usize, want: usize| (have + 2 * padding).checked_sub(want);
            let (Some(down), Some(along)) =
                (room(size.height, target.height), room(size.width, target.width))
            else {
                let message = format!(
                    "a crop of {} x {} does not fit into an image of {} x {} with padding {padding}",
                    target.height, target.width, size.height, size.width
                );
                return Err(Error::new(Kind::TooSmall, message));
            };
            let top = random.below(down as u64 + 1) as i64 - padding as i64;
            let left = random.below(along as u64 + 1) as i64 - padding as i64;
            steps.push(PlacedStep::Crop { left, top, size: target });
            Ok(target)
        }
        Step::RandomResizedCrop { size: target, scale, ratio, filter } => {
            let part = random_part(size, scale, ratio, random);
            let crop = Size { height: part.height, width: part.width };
            steps.push(PlacedStep::Crop {
                left: part.left as i64,
                top: part.top as i64,
                size: crop,
            });
            resize(crop, target, filter, steps)
        }
        Step::Flip(probability) => {
            if random.unit() < probability {
                steps.push(PlacedStep::Flip);
            }
            Ok(size)
        }
    }
}

fn resize(from: Size, to: Size, filter: Filter, steps: &mut Vec<PlacedStep>) -> Result<Size> {
    const LIMIT: usize = 1 << 30;
    if to.width.checked_mul(to.height.max(from.height)).is_none_or(|pixels| pixels > LIMIT) {
        let message = format!("resizing to {} x {} needs too much memory", to.height, to.width);
        return Err(Error::new(Kind::TooLarge, message).with_hint("use resize((height, width))"));
    }
    if from != to {
        let (width, height) = ((from.width, to.width), (from.height, to.height));
        steps.push(PlacedStep::Resize(Scale { width, height, filter }));
    }
    Ok(to)
}

/// The first pixel of a centered crop, rounded as in torchvision: halves to even. A larger crop is padded, the odd
/// pixel on the far side.
fn centered(have: usize, want: usize) -> i64 {
    match have.checked_sub(want) {
        Some(room) => (room / 2 + (room % 2) * (room / 2 % 2)) as i64,
        None => -(((want - have) / 2) as i64),
    }
}

/// A part of random area and aspect ratio, as torchvision draws it: ten attempts, then the center.
fn random_part(
    Size { height, width }: Size,
    scale: (f64, f64),
    ratio: (f64, f64),
    random: &mut Random,
) -> Rect {
    let area = (height * width) as f64;
    let logs = (ratio.0.ln(), ratio.1.ln());
    for _ in 0..10 {
        let target = area * random.between(scale.0, scale.1);
        let aspect = random.between(logs.0, logs.1).exp();
        let wide = (target * aspect).sqrt().round_ties_even() as usize;
        let high = (target / aspect).sqrt().round_ties_even() as usize;
        if 0 < wide && wide <= width && 0 < high && high <= height {
            let top = random.below((height - high) as u64 + 1) as usize;
            let left = random.below((width - wide) as u64 + 1) as usize;
            return Rect { left, top, width: wide, height: high };
        }
    }
    let proportion = width as f64 / height as f64;
    let (wide, high) = if proportion < ratio.0 {
        (width, ((width as f64 / ratio.0).round_ties_even() as usize).clamp(1, height))
    } else if proportion > ratio.1 {
        (((height as f64 * ratio.1).round_ties_even() as usize).clamp(1, width), height)
    } else {
        (width, height)
    };
    Rect { left: (width - wide) / 2, top: (height - high) / 2, width: wide, height: high }
}

/// Lets the decoder do a part of the first resize, if it is the first step or follows a crop. Only halves, quarters and
/// eighths: other factors were measured to be slower than decoding in full.
fn shrink(steps: &mut [PlacedStep], start: Size) -> (usize, Size) {
    let (crop, scale) = match steps {
        [PlacedStep::Resize(scale), ..] => (None, scale),
        [PlacedStep::Crop { left, top, size }, PlacedStep::Resize(scale), ..]
            if *left >= 0
                && *top >= 0
                && *left as usize + size.width <= start.width
                && *top as usize + size.height <= start.height =>
        {
            (Some((left, top, size)), scale)
        }
        _ => return (1, start),
    };
    let room = (scale.width.0 / scale.width.1).min(scale.height.0 / scale.height.1);
    let Some(factor) = [8, 4, 2].into_iter().find(|factor| *factor <= room) else {
        return (1, start);
    };
    let smaller =
        Size { height: start.height.div_ceil(factor), width: start.width.div_ceil(factor) };
    match crop {
        None => {
            scale.width.0 = smaller.width;
            scale.height.0 = smaller.height;
        }
        Some((left, top, size)) => {
            *left /= factor as i64;
            *top /= factor as i64;
            size.width = (size.width / factor).clamp(1, smaller.width - *left as usize);
            size.height = (size.height / factor).clamp(1, smaller.height - *top as usize);
            scale.width.0 = size.width;
            scale.height.0 = size.height;
        }
    }
    (factor, smaller)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_center_is_rounded_as_in_torchvision() {
        let firsts: Vec<_> = (0..8).map(|room| centered(10 + room, 10)).collect();
        // Python's round(0.5), round(1.0), round(1.5) …
        assert_eq!(firsts, [0, 0, 1, 2, 2, 2, 3, 4]);
        assert_eq!((centered(3, 8), centered(4, 8)), (-2, -2));
    }

    #[test]
    fn the_shorter_side_is_exact_and_the_other_is_rounded_down() {
        let of = |height, width| shorter_to(Size { height, width }, 256);
        assert_eq!(of(375, 500), Size { height: 256, width: 341 });
        assert_eq!(of(500, 375), Size { height: 341, width: 256 });
        assert_eq!(of(1, 1000), Size { height: 256, width: 256_000 });
    }

    proptest! {
        #[test]
        fn a_random_part_is_inside_the_image(
            height in 1_usize..400, width in 1_usize..400, low in 0.01_f64..1.0, more in 0.0_f64..1.0,
            flat in 0.1_f64..2.0, steep in 0.0_f64..2.0, key: u64,
        ) {
            let size = Size { height, width };
            let mut random = Random::keyed(&[key]);
            let part = random_part(size, (low, low + more), (flat, flat + steep), &mut random);
            prop_assert!(part.width > 0 && part.height > 0);
            prop_assert!(Rect::whole(width, height).contains(&part), "{part:?}");
        }
    }
}
