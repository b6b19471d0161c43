//! The settings of an image transform.

use super::{Layout, Output};
use crate::decode::Options;
use crate::decode::resize::Filter;

/// A size in pixels, height first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// One step after decoding, with torchvision's meaning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The shorter side becomes this long; the other keeps the aspect ratio.
    ResizeShorter(usize, Filter),
    /// Exactly this size.
    ResizeTo(Size, Filter),
    /// The center, padded with black.
    CenterCrop(Size),
    /// A random part, after padding with black.
    RandomCrop {
        /// Size of the result.
        size: Size,
        /// Padding on each side.
        padding: usize,
    },
    /// A part of random size and aspect ratio, resized.
    RandomResizedCrop {
        /// Size of the result.
        size: Size,
        /// Smallest and largest share of the area.
        scale: (f64, f64),
        /// Smallest and largest ratio of width to height.
        ratio: (f64, f64),
        /// The resize filter.
        filter: Filter,
    },
    /// Mirrored left to right, with this probability.
    Flip(f64),
}

/// How bytes are decoded to an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoding {
    /// Channels, orientation, limit.
    pub options: Options,
    /// Whether the JPEG decoder may downscale: faster, but not identical.
    pub scaled: bool,
}

/// Where the image of a sample comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picture {
    /// An encoded file.
    Encoded(Decoding),
    /// An array of bytes with the axes rows, columns, channels.
    Array {
        /// Size of every sample.
        size: Size,
        /// 1 or 3.
        channels: usize,
    },
}

/// The transform of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Transform {
    /// Where the image comes from.
    pub picture: Picture,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// What is written into the batch.
    pub output: Output,
    /// Seed of the random steps.
    pub seed: u64,
}

impl Transform {
    /// Bytes per pixel.
    pub fn channels(&self) -> usize {
        match self.picture {
            Picture::Encoded(decoding) => decoding.options.mode.channels(),
            Picture::Array { channels, .. } => channels,
        }
    }

    /// The size of every result, if the steps alone decide it.
    pub fn size(&self) -> Option<Size> {
        let start = match self.picture {
            Picture::Encoded(_) => None,
            Picture::Array { size, .. } => Some(size),
        };
        self.steps.iter().fold(start, |size, step| match step {
            Step::ResizeShorter(shorter, _) => size.map(|size| shorter_to(size, *shorter)),
            Step::ResizeTo(size, _)
            | Step::CenterCrop(size)
            | Step::RandomCrop { size, .. }
            | Step::RandomResizedCrop { size, .. } => Some(*size),
            Step::Flip(_) => size,
        })
    }

    /// The shape of every result, if known.
    pub fn shape(&self) -> Option<Vec<usize>> {
        self.size().map(|size| self.shape_of(size))
    }

    /// The lengths of the axes of every result, as far as known.
    pub(crate) fn axes(&self) -> Vec<Option<usize>> {
        let (height, width) = self.size().map(|size| (size.height, size.width)).unzip();
        match self.output.layout {
            Layout::Hwc => vec![height, width, Some(self.channels())],
            Layout::Chw => vec![Some(self.channels()), height, width],
        }
    }

    /// The shape of a result of this size.
    pub(crate) fn shape_of(&self, size: Size) -> Vec<usize> {
        match self.output.layout {
            Layout::Hwc => vec![size.height, size.width, self.channels()],
            Layout::Chw => vec![self.channels(), size.height, size.width],
        }
    }
}

/// The size whose shorter side is this long.
pub(super) fn shorter_to(size: Size, shorter: usize) -> Size {
    let Size { height, width } = size;
    if width <= height {
        Size { width: shorter, height: (shorter * height / width.max(1)).max(1) }
    } else {
        Size { height: shorter, width: (shorter * width / height.max(1)).max(1) }
    }
}
