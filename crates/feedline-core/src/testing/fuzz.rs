//! What fuzzers call, and what the tests call with the corpus. Each function accepts any bytes and
//! panics only if a promise is broken.

use crate::config::{Given, Settings, picture_of};
use crate::decode::{Mode, Options};
use crate::error::Kind;
use crate::sample::{Dtype, Field, Ticket};
use crate::worker::{Decoding, Native, Picture, Prepared, Recipe, Size, Step};
use crate::{decode::resize::Filter, worker::Output};

/// Larger pictures are refused, so that a run stays fast.
const MAX_PIXELS: usize = 1 << 20;

/// Decodes a file: the first byte chooses how, the others are the file. It becomes a picture or a
/// fault of the sample, never a bug of ours.
///
/// # Panics
/// If the outcome is neither.
pub fn decode(input: &[u8]) {
    let Some((how, file)) = input.split_first() else { return };
    let recipe = recipe(*how);
    let ticket = Ticket { position: u64::from(*how), epoch: 0, index: 0 };
    let outcome = Prepared::new(&recipe, file, ticket).and_then(|prepared| {
        assert!(prepared.working_bytes < MAX_PIXELS * 128, "{} bytes", prepared.working_bytes);
        let shape = recipe.shape_of(prepared.size);
        let mut row = vec![0; shape.iter().product::<usize>() * recipe.output.dtype.bytes()];
        Native::default().make(&recipe, &prepared, file, &mut row)
    });
    if let Err(error) = outcome {
        let expected = [Kind::Damaged, Kind::UnknownFormat, Kind::TooLarge, Kind::TooSmall];
        assert!(expected.contains(&error.kind()), "{:?}: {error}", error.kind());
    }
}

fn recipe(how: u8) -> Recipe {
    let mode = if how & 1 == 0 { Mode::Rgb } else { Mode::Gray };
    let options = Options { mode, orient: how & 2 != 0, max_pixels: MAX_PIXELS };
    let decoding = Decoding { options, scaled: how & 4 != 0 };
    let size = Size { height: 20, width: 30 };
    let steps = match how >> 3 & 3 {
        0 => vec![],
        1 => vec![
            Step::ResizeTo(size, Filter::Bicubic),
            Step::CenterCrop(Size { height: 16, width: 16 }),
        ],
        2 => vec![Step::RandomCrop { size, padding: 4 }, Step::Flip(0.5)],
        _ => vec![
            Step::RandomResizedCrop {
                size,
                scale: (0.08, 1.0),
                ratio: (0.75, 4.0 / 3.0),
                filter: Filter::Bilinear,
            },
            Step::Flip(1.0),
        ],
    };
    let output = Output::plain(Dtype::Uint8, crate::worker::Layout::Hwc);
    Recipe { picture: Picture::Encoded(decoding), steps, output, seed: 1 }
}

/// Parses settings: any text is refused with a message or becomes settings that keep their bounds.
///
/// # Panics
/// If neither is so.
pub fn settings(input: &[u8]) {
    let Ok(words) = std::str::from_utf8(input) else { return };
    let arrays = vec![
        Field::fixed("image", Dtype::Uint8, &[8, 9, 3]),
        Field::fixed("x", Dtype::Float32, &[4]),
    ];
    assert!(picture_of(&arrays).is_some());
    for given in [Given::Files, Given::Arrays(arrays)] {
        match Settings::parse(words, &given) {
            Ok(settings) => {
                assert!(settings.batching.is_none_or(|batching| batching.size > 0));
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::BadSetting, "{error}");
                assert!(!error.message().is_empty() && !error.hint().is_empty());
            }
        }
    }
}
