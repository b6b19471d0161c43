//! Compresses a stream of bytes, the counterpart of unpack.

use bzip2::{Action as BzAction, Compress as Bzip, Compression as BzLevel, Status as BzStatus};
use flate2::{Compress, Compression, FlushCompress, Status};
use liblzma::stream::{Action, Check, Status as XzStatus, Stream as Xz};
use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};

use super::Packing;
use crate::error::{Error, Kind, Result};

/// The most compressed bytes written at a time.
const STEP: usize = 64 << 10;
/// The compression level of zstd: its default.
const LEVEL: i32 = 3;
/// The compression level of xz: its default.
const XZ_LEVEL: u32 = 6;

/// Compresses a stream.
pub struct Packer {
    by: Codec,
}

enum Codec {
    Plain,
    Deflate(Box<Compress>),
    Zstd(Box<Encoder<'static>>),
    Xz(Box<Xz>),
    Bzip2(Box<Bzip>),
}

impl Packer {
    /// A packer at the beginning of a stream.
    pub fn new(packing: Packing) -> Result<Packer> {
        let level = Compression::default();
        let by = match packing {
            Packing::Plain => Codec::Plain,
            Packing::Gzip => Codec::Deflate(Box::new(Compress::new_gzip(level, 15))),
            Packing::Zlib => Codec::Deflate(Box::new(Compress::new(level, true))),
            Packing::Zstd => Codec::Zstd(Box::new(zstd_encoder()?)),
            Packing::Xz => {
                Codec::Xz(Box::new(Xz::new_easy_encoder(XZ_LEVEL, Check::Crc64).map_err(failed)?))
            }
            Packing::Bzip2 => Codec::Bzip2(Box::new(Bzip::new(BzLevel::best(), 0))),
        };
        Ok(Packer { by })
    }

    /// Compresses bytes, and appends to `to` what is ready.
    pub fn pack(&mut self, bytes: &[u8], to: &mut Vec<u8>) -> Result<()> {
        match &mut self.by {
            Codec::Plain => to.extend_from_slice(bytes),
            Codec::Deflate(deflate) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    to.reserve(STEP);
                    let before = deflate.total_in();
                    deflate.compress_vec(rest, to, FlushCompress::None).map_err(failed)?;
                    rest = &rest[(deflate.total_in() - before) as usize..];
                }
            }
            Codec::Zstd(encoder) => {
                let mut input = InBuffer::around(bytes);
                while input.pos() < bytes.len() {
                    let before = to.len();
                    to.resize(before + STEP, 0);
                    let mut output = OutBuffer::around(&mut to[before..]);
                    let ran = encoder.run(&mut input, &mut output);
                    let made = output.pos();
                    to.truncate(before + made);
                    ran.map_err(failed)?;
                }
            }
            Codec::Xz(xz) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    to.reserve(STEP);
                    let before = xz.total_in();
                    xz.process_vec(rest, to, Action::Run).map_err(failed)?;
                    rest = &rest[(xz.total_in() - before) as usize..];
                }
            }
            Codec::Bzip2(bzip) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    to.reserve(STEP);
                    let before = bzip.total_in();
                    bzip.compress_vec(rest, to, BzAction::Run).map_err(failed)?;
                    rest = &rest[(bzip.total_in() - before) as usize..];
                }
            }
        }
        Ok(())
    }

    /// Ends the stream.
    pub fn finish(mut self, to: &mut Vec<u8>) -> Result<()> {
        match &mut self.by {
            Codec::Plain => Ok(()),
            Codec::Deflate(deflate) => loop {
                to.reserve(STEP);
                match deflate.compress_vec(&[], to, FlushCompress::Finish).map_err(failed)? {
                    Status::StreamEnd => return Ok(()),
                    Status::Ok | Status::BufError => {}
                }
            },
            Codec::Zstd(encoder) => loop {
                let before = to.len();
                to.resize(before + STEP, 0);
                let mut output = OutBuffer::around(&mut to[before..]);
                let left = encoder.finish(&mut output, true);
                let made = output.pos();
                to.truncate(before + made);
                if left.map_err(failed)? == 0 {
                    return Ok(());
                }
            },
            Codec::Xz(xz) => loop {
                to.reserve(STEP);
                match xz.process_vec(&[], to, Action::Finish).map_err(failed)? {
                    XzStatus::StreamEnd => return Ok(()),
                    XzStatus::Ok | XzStatus::GetCheck | XzStatus::MemNeeded => {}
                }
            },
            Codec::Bzip2(bzip) => loop {
                to.reserve(STEP);
                match bzip.compress_vec(&[], to, BzAction::Finish).map_err(failed)? {
                    BzStatus::StreamEnd => return Ok(()),
                    BzStatus::Ok
                    | BzStatus::FlushOk
                    | BzStatus::RunOk
                    | BzStatus::FinishOk
                    | BzStatus::MemNeeded => {}
                }
            },
        }
    }
}

/// With a checksum at the end of each frame, which zstd omits by default.
fn zstd_encoder() -> Result<Encoder<'static>> {
    let made = Encoder::new(LEVEL).and_then(|mut encoder| {
        encoder.set_parameter(zstd::stream::raw::CParameter::ChecksumFlag(true))?;
        Ok(encoder)
    });
    made.map_err(|error| Error::io(Kind::OutOfMemory, "starting zstd compression", error))
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(Kind::Internal, format!("the compressor failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::unpack::Unpacker;
    use super::*;
    use std::io::Read as _;

    fn unpacked(packing: Packing, packed: &[u8]) -> Vec<u8> {
        let mut unpacker = Unpacker::new(packing).unwrap();
        let (mut bytes, mut used) = (Vec::new(), 0);
        while used < packed.len() {
            used += unpacker.unpack(&packed[used..], &mut bytes).unwrap();
        }
        unpacker.end().unwrap();
        bytes
    }

    #[test]
    fn bytes_packed_in_any_parts_are_unpacked_here_and_by_other_tools() {
        let bytes: Vec<u8> =
            (0..300_000_u64).map(|place| (crate::random::mix(place / 3) >> 60) as u8).collect();
        for packing in Packing::ALL {
            for part in [1000, 70_000, bytes.len()] {
                let (mut packer, mut packed) = (Packer::new(packing).unwrap(), Vec::new());
                for some in bytes.chunks(part) {
                    packer.pack(some, &mut packed).unwrap();
                }
                packer.finish(&mut packed).unwrap();
                assert_eq!(packed.len() < bytes.len(), packing != Packing::Plain, "{packing:?}");
                assert!(unpacked(packing, &packed) == bytes, "{packing:?} by {part}");
                let mut read = Vec::new();
                let _ = match packing {
                    Packing::Plain => (&*packed).read_to_end(&mut read),
                    Packing::Gzip => flate2::read::GzDecoder::new(&*packed).read_to_end(&mut read),
                    Packing::Zlib => {
                        flate2::read::ZlibDecoder::new(&*packed).read_to_end(&mut read)
                    }
                    Packing::Zstd => zstd::Decoder::new(&*packed).unwrap().read_to_end(&mut read),
                    Packing::Xz => liblzma::read::XzDecoder::new(&*packed).read_to_end(&mut read),
                    Packing::Bzip2 => bzip2::read::BzDecoder::new(&*packed).read_to_end(&mut read),
                }
                .unwrap();
                assert!(read == bytes, "{packing:?} by {part}");
            }
        }
    }

    #[test]
    fn an_empty_stream_is_a_valid_stream() {
        for packing in &Packing::ALL[1..] {
            let (packing, mut packed) = (*packing, Vec::new());
            Packer::new(packing).unwrap().finish(&mut packed).unwrap();
            assert_eq!(unpacked(packing, &packed), b"");
        }
    }
}
