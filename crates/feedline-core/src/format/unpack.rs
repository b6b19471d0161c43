//! Compressed bytes, unpacked one after another.

use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use super::{Container, tfrecord};
use crate::error::{Error, Kind, Result};

/// Unpacked bytes that are made at once, at the most.
const STEP: usize = 64 << 10;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Not at all.
    #[default]
    Plain,
    /// One or more members of gzip.
    Gzip,
    /// A stream of zlib.
    Zlib,
    /// One or more frames of zstd.
    Zstd,
}

impl Packing {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Packing::Plain => "plain",
            Packing::Gzip => "gzip",
            Packing::Zlib => "zlib",
            Packing::Zstd => "zstd",
        }
    }

    /// Told by the first bytes of a file. What could be the length of a record is one if its checksum
    /// says so.
    pub fn of(first: &[u8], container: &Container) -> Packing {
        let is_record =
            matches!(container, Container::Tfrecord { .. }) && tfrecord::is_header(first);
        match first {
            _ if is_record => Packing::Plain,
            [0x1f, 0x8b, 8, ..] => Packing::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Packing::Zstd,
            // A window of up to 32 KiB, deflate, and a sum that 31 divides.
            [head, flags, ..]
                if head & 0x0f == 8
                    && head >> 4 <= 7
                    && flags & 0x20 == 0
                    && (u16::from(*head) << 8 | u16::from(*flags)).is_multiple_of(31)
                    && matches!(container, Container::Tfrecord { .. }) =>
            {
                Packing::Zlib
            }
            _ => Packing::Plain,
        }
    }
}

/// Unpacks a stream.
pub struct Unpacker {
    by: By,
    packing: Packing,
    /// Between members or frames, where the file may end.
    is_between: bool,
    has_begun: bool,
}

enum By {
    Plain,
    Deflate(Box<Decompress>),
    Zstd(Box<Decoder<'static>>),
}

impl Unpacker {
    /// From its beginning.
    pub fn new(packing: Packing) -> Result<Unpacker> {
        let by = match packing {
            Packing::Plain => By::Plain,
            Packing::Gzip => By::Deflate(Box::new(Decompress::new_gzip(15))),
            Packing::Zlib => By::Deflate(Box::new(Decompress::new(true))),
            Packing::Zstd => By::Zstd(Box::new(Decoder::new().map_err(|error| {
                Error::io(Kind::OutOfMemory, "preparing to unpack zstd", error)
            })?)),
        };
        Ok(Unpacker { by, packing, is_between: true, has_begun: false })
    }

    /// Unpacks some of `packed` and adds it to `to`; returns how many bytes were used. None used and
    /// none made: more is needed.
    pub fn unpack(&mut self, packed: &[u8], to: &mut Vec<u8>) -> Result<usize> {
        if packed.is_empty() {
            return Ok(0);
        }
        let before = to.len();
        self.has_begun = true;
        match &mut self.by {
            By::Plain => {
                to.extend_from_slice(packed);
                Ok(packed.len())
            }
            By::Deflate(inflate) => {
                if self.is_between && self.packing == Packing::Gzip && packed[0] == 0 {
                    // Padding behind the last member, as tapes have it.
                    return Ok(packed.iter().take_while(|byte| **byte == 0).count());
                }
                if self.is_between && self.packing == Packing::Zlib && inflate.total_out() > 0 {
                    return Err(damaged(self.packing, "bytes follow behind its end"));
                }
                self.is_between = false;
                to.reserve(STEP);
                let used = inflate.total_in();
                let status = inflate
                    .decompress_vec(packed, to, FlushDecompress::None)
                    .map_err(|error| damaged(self.packing, &error.to_string()))?;
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
            By::Zstd(decoder) => {
                to.resize(before + STEP, 0);
                let mut input = InBuffer::around(packed);
                let mut output = OutBuffer::around(&mut to[before..]);
                let ran = decoder.run(&mut input, &mut output);
                let (used, made) = (input.pos(), output.pos());
                to.truncate(before + made);
                let left = ran.map_err(|error| damaged(self.packing, &error.to_string()))?;
                self.is_between = left == 0;
                if left == 0 {
                    decoder.reinit().map_err(|error| damaged(self.packing, &error.to_string()))?;
                }
                Ok(used)
            }
        }
    }

    /// Whether a file may end here; what is wrong, if not.
    pub fn end(&self) -> Result<()> {
        if self.is_between && (self.has_begun || self.packing == Packing::Plain) {
            return Ok(());
        }
        Err(damaged(self.packing, "it ends in the middle"))
    }
}

fn damaged(packing: Packing, why: &str) -> Error {
    Error::new(Kind::DamagedRecord, format!("the {} stream is damaged: {why}", packing.name()))
}
