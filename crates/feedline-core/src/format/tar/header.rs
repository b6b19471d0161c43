//! One header block of 512 bytes: numbers, names, checksum. Nothing here trusts what a header declares.

/// Block size: everything in a tar is a multiple of it.
pub(super) const BLOCK: usize = 512;

/// A block where a header is expected.
pub(super) enum HeaderBlock<'a> {
    /// Only zeros: the end, or a part of it.
    Zeros,
    /// A header with a valid checksum.
    Header(TarHeader<'a>),
    /// Not a header, and why.
    Bad(String),
}

/// A header with a valid checksum.
pub(super) struct TarHeader<'a> {
    bytes: &'a [u8],
    /// Size of the data that follows, by the header alone.
    pub size: u64,
}

impl<'a> HeaderBlock<'a> {
    /// Parses a whole block.
    pub(super) fn of(bytes: &'a [u8]) -> HeaderBlock<'a> {
        debug_assert_eq!(bytes.len(), BLOCK);
        if bytes.iter().all(|byte| *byte == 0) {
            return HeaderBlock::Zeros;
        }
        let Some(written) = number(&bytes[148..156]) else {
            return HeaderBlock::Bad("its checksum is not a number".into());
        };
        let (unsigned, signed) = sums(bytes);
        // Old archives computed the sum of signed bytes.
        if written != unsigned && i64::try_from(written) != Ok(signed) {
            return HeaderBlock::Bad(format!(
                "checksum mismatch: {unsigned}, but the header has {written}"
            ));
        }
        match number(&bytes[124..136]) {
            Some(size) => HeaderBlock::Header(TarHeader { bytes, size }),
            None => HeaderBlock::Bad("its size is not a number".into()),
        }
    }
}

impl TarHeader<'_> {
    /// The type of the entry.
    pub(super) fn kind(&self) -> u8 {
        self.bytes[156]
    }

    /// The name in the header itself.
    pub(super) fn name(&self) -> Vec<u8> {
        let name = until_zero(&self.bytes[..100]);
        let prefix = until_zero(&self.bytes[345..500]);
        // GNU's magic is "ustar  ", and there these bytes are times.
        if prefix.is_empty() || &self.bytes[257..263] != b"ustar\0" || self.kind() == b'S' {
            return name.to_vec();
        }
        [prefix, b"/", name].concat()
    }

    /// Whether blocks with more of a sparse file's map follow, in GNU's format.
    pub(super) fn is_extended(&self) -> bool {
        self.bytes[482] != 0
    }

    /// Whether it looks like a real header, rather than data with a matching checksum.
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

/// What a corrupt header declares, to guess where the next one is.
pub(super) struct Claim {
    /// Size of the data that follows.
    pub size: Option<u64>,
    /// Whether it seems to describe the header that follows.
    pub is_extension: bool,
}

impl Claim {
    pub(super) fn of(bytes: &[u8]) -> Claim {
        let name = until_zero(&bytes[..100]);
        let says = |word: &[u8]| name.windows(word.len()).any(|part| part == word);
        Claim {
            size: number(&bytes[124..136]),
            // By several signs, because one of them may be corrupt.
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

/// The sums of a header's unsigned and signed bytes, with its checksum replaced by spaces.
fn sums(bytes: &[u8]) -> (u64, i64) {
    let counted = bytes[..148].iter().chain(&bytes[156..]);
    let unsigned = 8 * 32 + counted.clone().map(|byte| u64::from(*byte)).sum::<u64>();
    let high = counted.filter(|byte| **byte >= 128).count();
    (unsigned, unsigned as i64 - 256 * high as i64)
}

/// A number as in tars: octal digits, or if the first bit is set, a binary number.
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
