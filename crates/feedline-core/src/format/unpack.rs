//! Decompresses a stream of bytes.

use bzip2::{Decompress as Bunzip, Status as BzStatus};
use flate2::{Decompress, FlushDecompress, Status};
use liblzma::stream::{Action, Error as XzError, Status as XzStatus, Stream as Xz};
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use super::{Container, tar, tfrecord};
use crate::error::{Error, Kind, Result};

/// The most decompressed bytes written at a time.
const STEP: usize = 64 << 10;
/// The memory that an xz stream may use: a header can request a dictionary of 4 GiB. `xz -9` needs 65 MiB.
const XZ_MEMORY: u64 = 256 << 20;

/// The compression of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Uncompressed.
    #[default]
    Plain,
    /// One or more gzip members.
    Gzip,
    /// A zlib stream.
    Zlib,
    /// One or more zstd frames.
    Zstd,
    /// One or more xz streams.
    Xz,
    /// One or more bzip2 streams.
    Bzip2,
}

impl Packing {
    /// All compressions.
    pub const ALL: [Packing; 6] =
        [Packing::Plain, Packing::Gzip, Packing::Zlib, Packing::Zstd, Packing::Xz, Packing::Bzip2];
    /// How many bytes of a file its compression is detected from: a tar block, with its checksum.
    pub const FIRST: usize = 512;

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Packing::Plain => "plain",
            Packing::Gzip => "gzip",
            Packing::Zlib => "zlib",
            Packing::Zstd => "zstd",
            Packing::Xz => "xz",
            Packing::Bzip2 => "bzip2",
        }
    }

    /// Detects the compression from the first bytes of a file, `FIRST` of them if it has as many. A file that begins
    /// like a whole record of its container is uncompressed, whatever else its bytes look like.
    pub fn of(first: &[u8], container: &Container) -> Result<Packing> {
        let is_plain = match container {
            Container::Tfrecord { .. } => tfrecord::is_header(first),
            Container::Tar => tar::is_header(first),
            Container::JsonLines | Container::Csv { .. } => false,
            Container::Numbers { .. } => true,
        };
        if is_plain {
            return Ok(Packing::Plain);
        }
        match first {
            [0x1f, 0x8b, 8, ..] => Ok(Packing::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Ok(Packing::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Ok(Packing::Xz),
            // The first block, or the end of an empty stream.
            [b'B', b'Z', b'h', b'1'..=b'9', b'1', b'A', b'Y', b'&', b'S', b'Y', ..]
            | [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, 0x38, 0x50, 0x90, ..] => {
                Ok(Packing::Bzip2)
            }
            // A skippable frame; pzstd begins its files with one. lz4 has the same.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, size @ ..] => {
                let size = size.first_chunk().map_or(0, |size| u32::from_le_bytes(*size) as usize);
                let next = first.get(8..).and_then(|rest| rest.get(size..)).unwrap_or_default();
                unsupported(next).map_or(Ok(Packing::Zstd), |name| Err(refused(name)))
            }
            _ if is_zlib(first, container) => Ok(Packing::Zlib),
            _ => unsupported(first).map_or(Ok(Packing::Plain), |name| Err(refused(name))),
        }
    }
}

/// A window of up to 32 KiB, deflate, and a checksum divisible by 31. In containers other than TFRecord, text may begin
/// with such bytes by chance, but rarely continues as valid deflate.
fn is_zlib(first: &[u8], container: &Container) -> bool {
    let [head, flags, ..] = first else { return false };
    let is_header = head & 0x0f == 8
        && head >> 4 <= 7
        && flags & 0x20 == 0
        && (u16::from(*head) << 8 | u16::from(*flags)).is_multiple_of(31);
    let goes_on = || {
        let mut unpacked = Vec::with_capacity(4 * Packing::FIRST);
        Decompress::new(true).decompress_vec(first, &mut unpacked, FlushDecompress::None).is_ok()
    };
    is_header
        && match container {
            Container::Tfrecord { .. } => true,
            Container::Tar => goes_on(),
            Container::JsonLines | Container::Csv { .. } => {
                !matches!(flags, b' '..=b'~') && goes_on()
            }
            Container::Numbers { .. } => false,
        }
}

/// The name of an unsupported compression, by its first bytes.
fn unsupported(first: &[u8]) -> Option<&'static str> {
    match first {
        [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => Some("lz4"),
        [0xff, 0x06, 0, 0, b's', b'N', b'a', b'P', b'p', b'Y', ..] => Some("snappy"),
        [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => Some("7z"),
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some("zip"),
        [b'R', b'a', b'r', b'!', 0x1a, 7, ..] => Some("rar"),
        [0x1f, 0x9d, ..] => Some("compress (.Z)"),
        [b'L', b'Z', b'I', b'P', 0 | 1, ..] => Some("lzip"),
        [0x89, b'L', b'Z', b'O', 0, 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("lzop"),
        // The format before xz: properties, the size of a dictionary, and usually an unknown length.
        [0x5d, 0, 0, _, _, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => Some("lzma"),
        _ => None,
    }
}

fn refused(name: &str) -> Error {
    Error::new(
        Kind::InvalidSource,
        format!("the file is compressed with {name}, which is not supported"),
    )
    .with_hint("compress the file with gzip, zstd, xz or bzip2 instead, or not at all")
}

/// Decompresses a stream.
pub(crate) struct Unpacker {
    by: AnyDecompressor,
    packing: Packing,
    /// Whether it is between members or frames, where the file may end.
    is_between: bool,
    has_begun: bool,
}

enum AnyDecompressor {
    Plain,
    Deflate(Box<Decompress>),
    Zstd(Box<Decoder<'static>>),
    Xz(Box<Xz>),
    Bzip2(Box<Bunzip>),
}

impl Unpacker {
    /// An unpacker at the beginning of a stream.
    pub(crate) fn new(packing: Packing) -> Result<Unpacker> {
        let by = match packing {
            Packing::Plain => AnyDecompressor::Plain,
            Packing::Gzip => AnyDecompressor::Deflate(Box::new(Decompress::new_gzip(15))),
            Packing::Zlib => AnyDecompressor::Deflate(Box::new(Decompress::new(true))),
            Packing::Zstd => AnyDecompressor::Zstd(Box::new(Decoder::new().map_err(|error| {
                Error::io(Kind::OutOfMemory, "starting zstd decompression", error)
            })?)),
            Packing::Xz => AnyDecompressor::Xz(Box::new(xz_decoder()?)),
            Packing::Bzip2 => AnyDecompressor::Bzip2(Box::new(Bunzip::new(false))),
        };
        Ok(Unpacker { by, packing, is_between: true, has_begun: false })
    }

    /// Decompresses some of `packed` and appends it to `to`; returns how many bytes were used. If none were used and
    /// none appended, more input is needed.
    pub(crate) fn unpack(&mut self, packed: &[u8], to: &mut Vec<u8>) -> Result<usize> {
        if packed.is_empty() {
            return Ok(0);
        }
        let before = to.len();
        self.has_begun = true;
        match &mut self.by {
            AnyDecompressor::Plain => {
                to.extend_from_slice(packed);
                Ok(packed.len())
            }
            AnyDecompressor::Deflate(inflate) => {
                if self.is_between && self.packing == Packing::Gzip && packed[0] == 0 {
                    return Ok(padding(packed));
                }
                if self.is_between && self.packing == Packing::Zlib && inflate.total_in() > 0 {
                    return Err(corrupt(self.packing, "extra bytes follow its end"));
                }
                self.is_between = false;
                to.reserve(STEP);
                let used = inflate.total_in();
                let status = inflate
                    .decompress_vec(packed, to, FlushDecompress::None)
                    .map_err(|error| corrupt(self.packing, &error.to_string()))?;
                let used = (inflate.total_in() - used) as usize;
                match status {
                    Status::StreamEnd => {
                        self.is_between = true;
                        if self.packing == Packing::Gzip {
                            **inflate = Decompress::new_gzip(15);
                        }
                    }
                    Status::Ok | Status::BufError => {}
                }
                Ok(used)
            }
            AnyDecompressor::Zstd(decoder) => {
                to.resize(before + STEP, 0);
                let mut input = InBuffer::around(packed);
                let mut output = OutBuffer::around(&mut to[before..]);
                let ran = decoder.run(&mut input, &mut output);
                let (used, made) = (input.pos(), output.pos());
                to.truncate(before + made);
                let left = ran.map_err(|error| corrupt(self.packing, &error.to_string()))?;
                self.is_between = left == 0;
                if left == 0 {
                    decoder.reinit().map_err(|error| corrupt(self.packing, &error.to_string()))?;
                }
                Ok(used)
            }
            AnyDecompressor::Xz(xz) => {
                if self.is_between && packed[0] == 0 {
                    return Ok(padding(packed));
                }
                self.is_between = false;
                to.reserve(STEP);
                let used = xz.total_in();
                let status = xz.process_vec(packed, to, Action::Run).map_err(xz_refused)?;
                let used = (xz.total_in() - used) as usize;
                match status {
                    XzStatus::StreamEnd => {
                        self.is_between = true;
                        **xz = xz_decoder()?;
                    }
                    XzStatus::Ok | XzStatus::GetCheck | XzStatus::MemNeeded => {}
                }
                Ok(used)
            }
            AnyDecompressor::Bzip2(bunzip) => {
                if self.is_between && packed[0] == 0 {
                    return Ok(padding(packed));
                }
                self.is_between = false;
                to.reserve(STEP);
                let used = bunzip.total_in();
                let status = bunzip
                    .decompress_vec(packed, to)
                    .map_err(|error| corrupt(self.packing, &error.to_string()))?;
                let used = (bunzip.total_in() - used) as usize;
                match status {
                    BzStatus::StreamEnd => {
                        self.is_between = true;
                        **bunzip = Bunzip::new(false);
                    }
                    BzStatus::MemNeeded => {
                        return Err(Error::new(Kind::OutOfMemory, "unpacking bzip2"));
                    }
                    BzStatus::Ok | BzStatus::FlushOk | BzStatus::RunOk | BzStatus::FinishOk => {}
                }
                Ok(used)
            }
        }
    }

    /// Checks that a file may end here.
    pub(crate) fn end(&self) -> Result<()> {
        if self.is_between && (self.has_begun || self.packing == Packing::Plain) {
            return Ok(());
        }
        Err(corrupt(self.packing, "it is truncated"))
    }
}

/// The number of zeros that follow: padding after a member or a stream, as on tapes and in xz.
fn padding(packed: &[u8]) -> usize {
    packed.iter().take_while(|byte| **byte == 0).count()
}

fn xz_decoder() -> Result<Xz> {
    Xz::new_stream_decoder(XZ_MEMORY, 0).map_err(|error| {
        Error::new(Kind::OutOfMemory, format!("starting xz decompression: {error}"))
    })
}

fn xz_refused(error: XzError) -> Error {
    match error {
        XzError::MemLimit => Error::new(
            Kind::CorruptRecord,
            format!(
                "the xz stream needs more than {} MiB to decompress, which is not supported",
                XZ_MEMORY >> 20
            ),
        ),
        XzError::Mem => Error::new(Kind::OutOfMemory, "unpacking xz"),
        XzError::Data
        | XzError::Options
        | XzError::Format
        | XzError::Program
        | XzError::NoCheck
        | XzError::UnsupportedCheck => corrupt(Packing::Xz, &error.to_string()),
    }
}

fn corrupt(packing: Packing, why: &str) -> Error {
    Error::new(Kind::CorruptRecord, format!("the {} stream is corrupt: {why}", packing.name()))
}

#[cfg(test)]
mod tests {
    use super::super::pack::Packer;
    use super::*;

    fn packed(packing: Packing, bytes: &[u8]) -> Vec<u8> {
        let (mut packer, mut packed) = (Packer::new(packing).unwrap(), Vec::new());
        packer.pack(bytes, &mut packed).unwrap();
        packer.finish(&mut packed).unwrap();
        packed
    }

    fn containers() -> [Container; 4] {
        let columns = ["a".to_owned()];
        [
            Container::Tfrecord { check: true },
            Container::Tar,
            Container::JsonLines,
            Container::Csv { delimiter: b',', columns: columns.into() },
        ]
    }

    #[test]
    fn every_compression_is_recognised_in_every_container() {
        for container in containers() {
            for packing in Packing::ALL {
                for bytes in [&b""[..], b"{\"a\": 1}\n", &[7; 5000]] {
                    let file = packed(packing, bytes);
                    let first = &file[..file.len().min(Packing::FIRST)];
                    let found = Packing::of(first, &container).unwrap();
                    assert_eq!(found, packing, "{container:?}, {} bytes", bytes.len());
                }
            }
        }
    }

    #[test]
    fn a_file_that_begins_like_a_record_is_not_compressed() {
        let mut archive = Vec::new();
        tar::write(b"x^/a.txt", b"text", &mut archive);
        assert_eq!(Packing::of(&archive[..512], &Container::Tar).unwrap(), Packing::Plain);
        let (lines, rows) = (Container::JsonLines, &containers()[3]);
        for text in ["hC,x\n1,2\n", "x^2,y\n", "8O\n", "BZh9 ate it\n", "PK\n"] {
            assert_eq!(Packing::of(text.as_bytes(), rows).unwrap(), Packing::Plain, "{text}");
            assert_eq!(Packing::of(text.as_bytes(), &lines).unwrap(), Packing::Plain, "{text}");
        }
    }

    #[test]
    fn zstd_after_a_skippable_frame_is_zstd() {
        let frame = [&[0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0][..], b"pzst"].concat();
        let bytes = vec![5; 200_000];
        let file = [&frame, &packed(Packing::Zstd, &bytes)[..], &frame].concat();
        assert_eq!(Packing::of(&file[..40], &Container::Tar).unwrap(), Packing::Zstd);
        let mut unpacker = Unpacker::new(Packing::Zstd).unwrap();
        let (mut found, mut used) = (Vec::new(), 0);
        while used < file.len() {
            used += unpacker.unpack(&file[used..], &mut found).unwrap();
        }
        unpacker.end().unwrap();
        assert!(found == bytes);
    }

    #[test]
    fn unsupported_compressions_are_named() {
        let skipped = b"\x50\x2a\x4d\x18\x01\x00\x00\x00_";
        let files: [(&[u8], &str); 9] = [
            (b"\x04\x22\x4d\x18rest", "lz4"),
            (&[&skipped[..], b"\x04\x22\x4d\x18rest"].concat(), "lz4"),
            (b"\xff\x06\x00\x00sNaPpYrest", "snappy"),
            (b"7z\xbc\xaf\x27\x1crest", "7z"),
            (b"PK\x03\x04rest", "zip"),
            (b"Rar!\x1a\x07\x00", "rar"),
            (b"\x1f\x9d\x90rest", "compress (.Z)"),
            (b"LZIP\x01rest", "lzip"),
            (b"\x5d\x00\x00\x80\x00\xff\xff\xff\xff\xff\xff\xff\xff\x00", "lzma"),
        ];
        for (file, name) in files {
            for container in containers() {
                let error = Packing::of(file, &container).unwrap_err();
                let expected =
                    format!("the file is compressed with {name}, which is not supported");
                assert_eq!((error.kind(), error.message()), (Kind::InvalidSource, &*expected));
            }
        }
    }

    #[test]
    fn xz_that_needs_too_much_memory_is_refused_and_not_called_corrupt() {
        let mut file = packed(Packing::Xz, b"some text");
        // The header of the first block, whose only filter has the size of its dictionary in one byte.
        assert_eq!(file[14..16], [0x21, 1]);
        file[16] = 40;
        let end = 12 + (usize::from(file[12]) + 1) * 4;
        let mut sum = flate2::Crc::new();
        sum.update(&file[12..end - 4]);
        file[end - 4..end].copy_from_slice(&sum.sum().to_le_bytes());
        let mut unpacker = Unpacker::new(Packing::Xz).unwrap();
        let (mut to, mut used) = (Vec::new(), 0);
        let error = loop {
            match unpacker.unpack(&file[used..], &mut to) {
                Ok(more) => used += more,
                Err(error) => break error,
            }
        };
        let expected =
            "the xz stream needs more than 256 MiB to decompress, which is not supported";
        assert_eq!(error.message(), expected);
    }
}
