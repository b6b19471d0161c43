//! Generated pictures that resemble photographs.

use crate::decode::jpeg;
pub use feedline_kernels::photo::photo;

/// Encodes such a picture as a JPEG.
///
/// # Panics
/// If the encoder fails, which it does for no size of at least one pixel.
pub fn photo_jpeg(seed: u64, width: usize, height: usize, quality: u8) -> Vec<u8> {
    jpeg::encode(&photo(seed, width, height), width, height, quality)
        .expect("any picture of at least one pixel can be encoded")
}
