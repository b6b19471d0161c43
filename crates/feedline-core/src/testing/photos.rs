//! Pictures that are like photographs, made from a seed.

use crate::decode::jpeg;
pub use feedline_kernels::photo::photo;

/// Such a picture as a JPEG.
///
/// # Panics
/// If the encoder refuses, which it does for no size a demonstration uses.
pub fn photo_jpeg(seed: u64, width: usize, height: usize, quality: u8) -> Vec<u8> {
    jpeg::encode(&photo(seed, width, height), width, height, quality)
        .expect("any picture of at least one pixel can be encoded")
}
