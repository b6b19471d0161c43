//! What is done to the picture of a sample, as checked settings.

use super::{Layout, Output};
use crate::decode::Options;
use crate::decode::resize::Filter;

/// A size in pixels, rows first as everywhere in this field.
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
    /// The shorter side becomes that long; the other keeps the proportion.
    ResizeShorter(usize, Filter),
    /// Exactly that size.
    ResizeTo(Size, Filter),
    /// The middle; what is missing is black.
    CenterCrop(Size),
    /// Anywhere, after this many black pixels were put around.
    RandomCrop {
        /// Of the result.
        size: Size,
        /// On each side.
        padding: usize,
    },
    /// A part of random size and proportion, resized.
    RandomResizedCrop {
        /// Of the result.
        size: Size,
        /// Smallest and largest share of the area.
        scale: (f64, f64),
        /// Smallest and largest width to height.
        ratio: (f64, f64),
        /// How neighbours are weighed.
        filter: Filter,
    },
    /// Left becomes right, with that probability.
    Flip(f64),
}

/// How bytes become a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoding {
    /// Channels, orientation, limit.
    pub options: Options,
    /// Whether a JPEG may be shrunk by its decoder: faster, but not identical.
    pub scaled: bool,
}

/// Where the picture of a sample comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picture {
    /// From an encoded file.
    Encoded(Decoding),
    /// From an array of rows, columns, channels of bytes.
    Array {
        /// Of every sample.
        size: Size,
        /// 1 or 3.
        channels: usize,
    },
}

/// All that is done to a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Transform {
    /// Where it comes from.
    pub picture: Picture,
    /// In order.
    pub steps: Vec<Step>,
    /// What is written into the batch.
    pub output: Output,
    /// Of the random steps.
    pub seed: u64,
}

impl Transform {
    /// Bytes a pixel.
    pub fn channels(&self) -> usize {
        match self.picture {
            Picture::Encoded(decoding) => decoding.options.mode.channels(),
            Picture::Array { channels, .. } => channels,
        }
    }

    /// The size of every result, where the steps alone decide it.
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

    /// The shape of every result, where it is known.
    pub fn shape(&self) -> Option<Vec<usize>> {
        self.size().map(|size| self.shape_of(size))
    }

    /// The lengths of the axes of every result, where they are known.
    pub(crate) fn axes(&self) -> Vec<Option<usize>> {
        let (height, width) = self.size().map(|size| (size.height, size.width)).unzip();
        match self.output.layout {
            Layout::Hwc => vec![height, width, Some(self.channels())],
            Layout::Chw => vec![Some(self.channels()), height, width],
        }
    }

    /// The shape of a result of that size.
    pub(crate) fn shape_of(&self, size: Size) -> Vec<usize> {
        match self.output.layout {
            Layout::Hwc => vec![size.height, size.width, self.channels()],
            Layout::Chw => vec![self.channels(), size.height, size.width],
        }
    }
}

/// The size whose shorter side is that long.
pub(super) fn shorter_to(size: Size, shorter: usize) -> Size {
    let Size { height, width } = size;
    if width <= height {
        Size { width: shorter, height: (shorter * height / width.max(1)).max(1) }
    } else {
        Size { height: shorter, width: (shorter * width / height.max(1)).max(1) }
    }
}
