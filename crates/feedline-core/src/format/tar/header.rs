//! One header block of 512 bytes: numbers, names, checksum. Nothing here follows what a header claims.

/// Everything in a tar is a multiple of this.
pub(super) const BLOCK: usize = 512;

/// What stands in a block where a header is expected.
pub(super) enum Block<'a> {
    /// Nothing but zeros: the end, or a part of it.
    Zeros,
    /// A header whose checksum holds.
    Header(Header<'a>),
    /// No header, and why.
    Bad(String),
}

/// A header whose checksum holds.
pub(super) struct Header<'a> {
    bytes: &'a [u8],
    /// How many bytes of data follow, by the header alone.
    pub size: u64,
}

impl<'a> Block<'a> {
    /// Looks at a whole block.
    pub(super) fn of(bytes: &'a [u8]) -> Block<'a> {
        debug_assert_eq!(bytes.len(), BLOCK);
        if bytes.iter().all(|byte| *byte == 0) {
            return Block::Zeros;
        }
        let Some(written) = number(&bytes[148..156]) else {
            return Block::Bad("its checksum is no number".into());
        };
        let (unsigned, signed) = sums(bytes);
        // Old archives were summed with signed bytes.
        if written != unsigned && i64::try_from(written) != Ok(signed) {
            return Block::Bad(format!(
                "its checksum is {unsigned}, but {written} is written in it"
            ));
        }
        match number(&bytes[124..136]) {
            Some(size) => Block::Header(Header { bytes, size }),
            None => Block::Bad("its size is no number".into()),
        }
    }
}

impl Header<'_> {
    /// What it is a header of.
    pub(super) fn kind(&self) -> u8 {
        self.bytes[156]
    }

    /// The name in the header itself.
    pub(super) fn name(&self) -> Vec<u8> {
        let name = until_zero(&self.bytes[..100]);
        let prefix = until_zero(&self.bytes[345..500]);
        // GNU's own magic is "ustar  ", and there these bytes are times.
        if prefix.is_empty() || &self.bytes[257..263] != b"ustar\0" || self.kind() == b'S' {
            return name.to_vec();
        }
        [prefix, b"/", name].concat()
    }

    /// Whether blocks with more of the map of a sparse file follow, in the format of GNU.
    pub(super) fn is_extended(&self) -> bool {
        self.bytes[482] != 0
    }

    /// Whether it looks like the work of a tar and not like data whose sum happens to fit.
    pub(super) fn is_plausible(&self) -> bool {
        if &self.bytes[257..262] == b"ustar" {
            return true;
        }
        let numbers = [&self.bytes[100..108], &self.bytes[108..116], &self.bytes[116..124]];
        self.bytes[0] != 0
            && matches!(self.kind(), 0 | b'0'..=b'7')
            && numbers.iter().all(|field| number(field).is_some())
            && number(&self.bytes[136..148]).is_some()
    }
}

/// What a corrupt header claims, for a guess where the next one is.
pub(super) struct Claim {
    /// How many bytes of data follow.
    pub size: Option<u64>,
    /// Whether it seems to describe the header that follows it.
    pub is_extension: bool,
}

impl Claim {
    pub(super) fn of(bytes: &[u8]) -> Claim {
        let name = until_zero(&bytes[..100]);
        let says = |word: &[u8]| name.windows(word.len()).any(|part| part == word);
        Claim {
            size: number(&bytes[124..136]),
            // By several marks, as one of them may be what was corrupt.
            is_extension: matches!(bytes[156], b'x' | b'X' | b'L' | b'K')
                || says(b"PaxHeader")
                || says(b"@LongLink"),
        }
    }
}

/// The bytes before the first zero.
pub(super) fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

/// The sum of a header with its checksum taken for spaces, of unsigned and of signed bytes.
fn sums(bytes: &[u8]) -> (u64, i64) {
    let counted = bytes[..148].iter().chain(&bytes[156..]);
    let unsigned = 8 * 32 + counted.clone().map(|byte| u64::from(*byte)).sum::<u64>();
    let high = counted.filter(|byte| **byte >= 128).count();
    (unsigned, unsigned as i64 - 256 * high as i64)
}

/// A number as tars write it: octal digits, or with the first bit set the bytes of the number itself.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] == 0x80 {
        return field[1..].iter().try_fold(0_u64, |sum, byte| {
            sum.checked_mul(256)?
                .checked_add(u64::from(*byte))
                .filter(|sum| *sum <= i64::MAX as u64)
        });
    }
    let text = until_zero(field).trim_ascii();
    text.iter().try_fold(0_u64, |sum, digit| match digit {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}
