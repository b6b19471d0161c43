//! Token files: plain arrays of numbers, such as the tokens of a text, and .npy files with one axis.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::escape;
use feedline_core::format::npy;
use feedline_core::sample::{Dtype, shown};
use feedline_core::sys::file::Handle;
use std::path::{Path, PathBuf};

use crate::dataset::at;
use crate::report::{bytes, counted, print_result};
use crate::verify::tally::{Fault, Tally};

/// Longest header of an .npy file, in bytes.
const HEADER: usize = 64 << 10;
/// Read buffer size in bytes.
const WINDOW: usize = 1 << 20;
/// How many numbers are printed.
const NUMBERS: u64 = 16;

/// The numbers in a file.
struct Numbers {
    handle: Handle,
    dtype: Dtype,
    /// Offset of the first number.
    start: u64,
    count: u64,
    size: u64,
}

impl Numbers {
    /// Reads the header and the size of a file. An .npy file declares its own type.
    fn open(path: &Path, dtype: Option<Dtype>) -> Result<Numbers> {
        let failed = |error| Error::io(Kind::Read, "opening the file", error).at(at(path));
        let handle = Handle::open(path).map_err(failed)?;
        let size = handle.size().map_err(failed)?;
        let mut first = vec![0; HEADER];
        let count = handle.read_at(&mut first, 0).map_err(failed)?;
        first.truncate(count);
        if first.starts_with(b"\x93NUMPY") {
            return Numbers::in_npy(handle, size, &first, dtype)
                .map_err(|error| error.at(at(path)));
        }
        let Some(dtype) = dtype else {
            let message = format!("the type of the numbers in {} is unknown", shown(path));
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("give it: --as tokens --dtype uint16"));
        };
        let each = dtype.bytes() as u64;
        if !size.is_multiple_of(each) {
            let message = format!("{size} bytes are not a whole number of {} values", dtype.name());
            return Err(Error::new(Kind::CorruptRecord, message)
                .at(at(path))
                .with_hint("the file is truncated, or its numbers are of another type: --dtype"));
        }
        Ok(Numbers { handle, dtype, start: 0, count: size / each, size })
    }

    fn in_npy(handle: Handle, size: u64, first: &[u8], dtype: Option<Dtype>) -> Result<Numbers> {
        let header = npy::header(first)?;
        if let Some(dtype) = dtype.filter(|dtype| *dtype != header.dtype) {
            let (found, wanted) = (header.dtype.name(), dtype.name());
            let message = format!("the file holds {found}, not {wanted}");
            return Err(Error::new(Kind::InvalidField, message).with_hint("leave --dtype out"));
        }
        let &[count] = header.shape.as_slice() else {
            let message = format!("the file holds an array of shape {:?}", header.shape);
            return Err(
                Error::new(Kind::InvalidField, message).with_hint("save an array of one axis")
            );
        };
        if header.is_big_endian {
            return Err(Error::new(
                Kind::InvalidField,
                "the numbers are big-endian, which is not supported",
            )
            .with_hint("save them with array.astype(array.dtype.newbyteorder(\"<\"))"));
        }
        let there = size.saturating_sub(header.data as u64);
        if header.bytes().map(|bytes| bytes as u64) != Some(there) {
            let has = there / header.dtype.bytes() as u64;
            let message = format!("the header declares {count} numbers, the file has {has}");
            return Err(
                Error::new(Kind::CorruptRecord, message).with_hint("write or copy the file again")
            );
        }
        let (start, count) = (header.data as u64, count as u64);
        Ok(Numbers { handle, dtype: header.dtype, start, count, size })
    }

    /// Reads every byte, because the disk may fail to read some.
    fn read(&self, path: &Path) -> Result<()> {
        let mut window = vec![0; WINDOW];
        let mut offset = 0;
        while offset < self.size {
            let count = self
                .handle
                .read_at(&mut window, offset)
                .map_err(|error| Error::io(Kind::Read, "reading the file", error).at(at(path)))?;
            if count == 0 {
                let message = format!("the file shrank to {offset} bytes while it was read");
                return Err(Error::new(Kind::CorruptRecord, message).at(at(path)));
            }
            offset += count as u64;
        }
        Ok(())
    }
}

/// Verifies every file; each counts as a sample.
pub(crate) fn verify(paths: &[PathBuf], dtype: Option<Dtype>) -> Result<Tally> {
    let mut tally = Tally { files: paths.len() as u64, ..Tally::default() };
    for path in paths {
        let looked = Numbers::open(path, dtype).and_then(|numbers| {
            tally.bytes += numbers.size;
            tally.sample(numbers.size);
            numbers.read(path)
        });
        match looked {
            // Not a fault of the file: an option is missing.
            Err(error) if error.kind() == Kind::InvalidArgument => return Err(error),
            Err(error) => tally.faults.push(Fault::of_file(path, &error)),
            Ok(()) => {}
        }
    }
    Ok(tally)
}

/// Prints the count of the numbers and some of them; returns the exit code.
pub(crate) fn show(path: &Path, number: Option<u64>, dtype: Option<Dtype>) -> Result<i32> {
    let numbers = match Numbers::open(path, dtype) {
        Ok(numbers) => numbers,
        Err(error) if matches!(error.kind(), Kind::InvalidArgument | Kind::Read) => {
            return Err(error);
        }
        Err(error) => {
            print_result(format_args!("{}: {}", escape::path(path), error.message()))?;
            return Ok(1);
        }
    };
    let from = number.unwrap_or(0);
    if number.is_some() && from >= numbers.count {
        let has = counted(numbers.count, "number", "numbers");
        let message = format!("there is no number {from}: {} has {has}", shown(path));
        return Err(Error::new(Kind::InvalidSource, message));
    }
    if number.is_none() {
        print_result(format_args!(
            "{}: {}, {}, {}",
            escape::path(path),
            numbers.dtype.name(),
            counted(numbers.count, "number", "numbers"),
            bytes(numbers.size)
        ))?;
    }
    let each = numbers.dtype.bytes();
    let count = NUMBERS.min(numbers.count - from);
    let mut window = vec![0; count as usize * each];
    let offset = numbers.start + from * each as u64;
    let filled = numbers
        .handle
        .read_at(&mut window, offset)
        .map_err(|error| Error::io(Kind::Read, "reading the file", error).at(at(path)))?;
    let mut shown: Vec<_> =
        window[..filled].chunks_exact(each).map(|one| text(numbers.dtype, one)).collect();
    if from + count < numbers.count {
        shown.push("...".to_owned());
    }
    if count > 0 {
        print_result(format_args!("from number {from}: {}", shown.join(", ")))?;
    }
    Ok(0)
}

/// A number in decimal, or the bits of a 16-bit float.
fn text(dtype: Dtype, one: &[u8]) -> String {
    macro_rules! of {
        ($type:ty) => {
            one.try_into()
                .map_or_else(|_| String::new(), |bytes| <$type>::from_le_bytes(bytes).to_string())
        };
    }
    match dtype {
        Dtype::Bool | Dtype::Uint8 => of!(u8),
        Dtype::Uint16 => of!(u16),
        Dtype::Uint32 => of!(u32),
        Dtype::Uint64 => of!(u64),
        Dtype::Int8 => of!(i8),
        Dtype::Int16 => of!(i16),
        Dtype::Int32 => of!(i32),
        Dtype::Int64 => of!(i64),
        Dtype::Float16 => format!("0x{:02x}{:02x}", one[1], one[0]),
        Dtype::Float32 => of!(f32),
        Dtype::Float64 => of!(f64),
    }
}
