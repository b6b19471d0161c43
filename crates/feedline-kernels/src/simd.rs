//! The two inner loops of resizing, with the vector instructions of the machine if it has them. These are sums of
//! integers: the result is the same to the last bit with and without.

/// Weights of one pass: output `x` is the sum of `taps` inputs from `starts[x]` on.
#[derive(Clone, Copy)]
pub(crate) struct Taps<'a> {
    /// The first input of each output.
    pub(crate) starts: &'a [u32],
    /// `count` weights for each output, concatenated; those beyond an output's reach are zero.
    pub(crate) weights: &'a [i16],
    /// Number of inputs of each output, a multiple of four.
    pub(crate) count: usize,
    /// Number of fractional bits of the weights.
    pub(crate) precision: u32,
}

/// Bytes that must follow the last input: a vector is wider than four pixels.
pub(crate) const SLACK: usize = 4;

/// Sums along rows of three-channel pixels. Returns false and does nothing if the machine lacks the instructions.
///
/// # Panics
/// If the slices are too short for that.
pub(crate) fn rows_of_rgb(
    from: &[u8],
    from_pitch: usize,
    to: &mut [u8],
    to_pitch: usize,
    rows: usize,
    taps: Taps<'_>,
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        let outputs = taps.starts.len();
        let last = taps.starts.iter().max().map_or(0, |start| *start as usize) + taps.count;
        assert!(taps.count.is_multiple_of(4) && taps.weights.len() == outputs * taps.count);
        assert!(rows == 0 || (rows - 1) * from_pitch + last * 3 + SLACK <= from.len());
        assert!(rows == 0 || (rows - 1) * to_pitch + outputs * 3 <= to.len());
        assert!((1..=30).contains(&taps.precision));
        // SAFETY: the instructions are there, and all accesses are in bounds by the assertions.
        unsafe { x86::rows_of_rgb(from, from_pitch, to, to_pitch, rows, taps) };
        return true;
    }
    let _ = (from, from_pitch, to, to_pitch, rows, taps);
    false
}

/// Sums down columns of bytes: rows of `from`, `pitch` bytes apart, weighted by `weights` into `to`.
///
/// # Panics
/// If `from` is too short for that.
pub(crate) fn columns(from: &[u8], pitch: usize, to: &mut [u8], weights: &[i16], precision: u32) {
    assert!((1..=30).contains(&precision));
    assert!(weights.is_empty() || (weights.len() - 1) * pitch + to.len() <= from.len());
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the instructions are there, and all accesses are in bounds by the assertions.
        done = unsafe { x86::columns(from, pitch, to, weights, precision) };
    }
    for (at, byte) in to.iter_mut().enumerate().skip(done) {
        let sum: i32 = weights
            .iter()
            .enumerate()
            .map(|(row, weight)| i32::from(*weight) * i32::from(from[row * pitch + at]))
            .sum();
        *byte = rounded(sum, precision);
    }
}

/// Rounds a sum of weighted bytes to a byte.
pub(crate) fn rounded(sum: i32, precision: u32) -> u8 {
    ((sum + (1 << (precision - 1))) >> precision).clamp(0, 255) as u8
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Taps;
    use std::arch::x86_64::*;

    /// Spreads two pixels of three bytes over pairs of 16 bits: r0 r1 g0 g1 b0 b1, for pixels 0 and 1 of a vector, or 2
    /// and 3.
    const FIRST: [i8; 16] = [0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1];
    const SECOND: [i8; 16] = [6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1];

    /// # Safety
    /// As checked by the caller in `super`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn rows_of_rgb(
        from: &[u8],
        from_pitch: usize,
        to: &mut [u8],
        to_pitch: usize,
        rows: usize,
        taps: Taps<'_>,
    ) {
        let mut row = 0;
        while row < rows {
            // Four rows share the weights; the last rows overlap the ones before instead of being handled separately.
            let first = if rows - row >= 4 { row } else { rows.saturating_sub(4) };
            // Fewer than four rows in total: the last one is used in place of the missing ones.
            let at = |number: usize| (first + number).min(rows - 1);
            // SAFETY: rows below `rows` are in bounds.
            unsafe {
                let inputs = [0, 1, 2, 3].map(|number| from.as_ptr().add(at(number) * from_pitch));
                let outputs = [0, 1, 2, 3].map(|number| to.as_mut_ptr().add(at(number) * to_pitch));
                four_rows(inputs, outputs, taps);
            }
            row = first + 4;
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn four_rows(inputs: [*const u8; 4], outputs: [*mut u8; 4], taps: Taps<'_>) {
        let shift = _mm_cvtsi32_si128(taps.precision as i32);
        let half = _mm256_set1_epi32(1 << (taps.precision - 1));
        // SAFETY: both arrays have sixteen bytes.
        let (first, second) = unsafe {
            (
                _mm256_broadcastsi128_si256(_mm_loadu_si128(FIRST.as_ptr().cast())),
                _mm256_broadcastsi128_si256(_mm_loadu_si128(SECOND.as_ptr().cast())),
            )
        };
        let count = taps.starts.len();
        for (x, (start, weights)) in
            taps.starts.iter().zip(taps.weights.chunks_exact(taps.count)).enumerate()
        {
            let (mut upper, mut lower) = (half, half);
            for (group, weights) in weights.chunks_exact(4).enumerate() {
                let offset = (*start as usize + group * 4) * 3;
                // SAFETY: four weights; sixteen bytes from `offset` on are in bounds of every row.
                unsafe {
                    let weights = _mm_loadl_epi64(weights.as_ptr().cast());
                    let pair = _mm256_broadcastd_epi32(weights);
                    let other = _mm256_broadcastd_epi32(_mm_srli_epi64(weights, 32));
                    let load = |row: usize| _mm_loadu_si128(inputs[row].add(offset).cast());
                    let two = _mm256_set_m128i(load(1), load(0));
                    let more = _mm256_set_m128i(load(3), load(2));
                    let sum = |sums, rows| {
                        let one = _mm256_madd_epi16(_mm256_shuffle_epi8(rows, first), pair);
                        let two = _mm256_madd_epi16(_mm256_shuffle_epi8(rows, second), other);
                        _mm256_add_epi32(sums, _mm256_add_epi32(one, two))
                    };
                    upper = sum(upper, two);
                    lower = sum(lower, more);
                }
            }
            let upper = _mm256_sra_epi32(upper, shift);
            let lower = _mm256_sra_epi32(lower, shift);
            // Per lane: r g b _ of rows 0 and 2 (lane 0), of rows 1 and 3 (lane 1).
            let words = _mm256_packs_epi32(upper, lower);
            let bytes = _mm256_packus_epi16(words, words);
            let (even, odd) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
            let pixels = [
                _mm_cvtsi128_si32(even),
                _mm_cvtsi128_si32(odd),
                _mm_extract_epi32::<1>(even),
                _mm_extract_epi32::<1>(odd),
            ];
            for (output, pixel) in outputs.iter().zip(pixels) {
                let bytes = pixel.to_le_bytes();
                // SAFETY: the fourth byte is that of the next pixel, which is written after; the
                // last pixel of a row has no next one.
                unsafe {
                    let target = output.add(x * 3);
                    if x + 1 < count {
                        target.cast::<[u8; 4]>().write_unaligned(bytes);
                    } else {
                        target.cast::<[u8; 3]>().write_unaligned([bytes[0], bytes[1], bytes[2]]);
                    }
                }
            }
        }
    }

    /// Returns how many bytes were processed: all but a rest of fewer than sixteen.
    ///
    /// # Safety
    /// As checked by the caller in `super`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn columns(
        from: &[u8],
        pitch: usize,
        to: &mut [u8],
        weights: &[i16],
        precision: u32,
    ) -> usize {
        let shift = _mm_cvtsi32_si128(precision as i32);
        let half = _mm256_set1_epi32(1 << (precision - 1));
        let whole = to.len() / 16 * 16;
        let mut at = 0;
        while at < whole {
            let (mut low, mut high) = (half, half);
            let mut row = 0;
            while row < weights.len() {
                // An odd last row is paired with itself at weight zero.
                let (next, other) = match weights.get(row + 1) {
                    Some(weight) => (row + 1, *weight),
                    None => (row, 0),
                };
                let pair = i32::from(weights[row]) & 0xffff | i32::from(other) << 16;
                let pair = _mm256_set1_epi32(pair);
                // SAFETY: sixteen bytes from `at` on are in bounds of every row.
                let (one, two) = unsafe {
                    (
                        _mm_loadu_si128(from.as_ptr().add(row * pitch + at).cast()),
                        _mm_loadu_si128(from.as_ptr().add(next * pitch + at).cast()),
                    )
                };
                let first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(one, two));
                let second = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(one, two));
                low = _mm256_add_epi32(low, _mm256_madd_epi16(first, pair));
                high = _mm256_add_epi32(high, _mm256_madd_epi16(second, pair));
                row += 2;
            }
            let words =
                _mm256_packs_epi32(_mm256_sra_epi32(low, shift), _mm256_sra_epi32(high, shift));
            // Packing works on halves of the vector: put the quarters in order first.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm256_packus_epi16(words, words);
            let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
            // SAFETY: sixteen bytes from `at` on are in bounds of `to`.
            unsafe {
                _mm_storeu_si128(to.as_mut_ptr().add(at).cast(), _mm256_castsi256_si128(bytes));
            }
            at += 16;
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn vector_code_sums_columns_like_scalar_code(
            bytes in prop::collection::vec(any::<u8>(), 400..500), weights in prop::collection::vec(-9000_i16..9000, 1..8),
            width in 1_usize..50, precision in 10_u32..16,
        ) {
            let mut found = vec![0; width];
            columns(&bytes, 50, &mut found, &weights, precision);
            for (at, byte) in found.iter().enumerate() {
                let sum: i32 = weights.iter().enumerate()
                    .map(|(row, weight)| i32::from(*weight) * i32::from(bytes[row * 50 + at])).sum();
                prop_assert_eq!(*byte, rounded(sum, precision));
            }
        }

        #[test]
        fn vector_code_sums_rows_like_scalar_code(
            bytes in prop::collection::vec(any::<u8>(), 1000..1001), rows in 1_usize..8, groups in 1_usize..3,
            starts in prop::collection::vec(0_u32..20, 1..9), seed: u64, precision in 10_u32..16,
        ) {
            let count = groups * 4;
            let weights: Vec<i16> = (0..starts.len() * count)
                .map(|at| (crate::random::mix(seed ^ at as u64) % 9000) as i16 - 2000).collect();
            let taps = Taps { starts: &starts, weights: &weights, count, precision };
            let pitch = starts.len() * 3;
            let mut found = vec![0; rows * pitch];
            if !rows_of_rgb(&bytes, 100, &mut found, pitch, rows, taps) {
                return Ok(());
            }
            for row in 0..rows {
                for (x, start) in starts.iter().enumerate() {
                    for channel in 0..3 {
                        let sum: i32 = (0..count).map(|tap| {
                            let byte = bytes[row * 100 + (*start as usize + tap) * 3 + channel];
                            i32::from(weights[x * count + tap]) * i32::from(byte)
                        }).sum();
                        prop_assert_eq!(found[row * pitch + x * 3 + channel], rounded(sum, precision));
                    }
                }
            }
        }
    }
}
