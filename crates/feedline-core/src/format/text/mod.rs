//! Records that are text: a JSON value in each line, or rows of CSV.

mod csv;
mod json;
mod lines;
mod value;

#[cfg(test)]
mod tests;

pub use csv::{CsvParser, columns, guess_csv};
pub(crate) use csv::{CsvSplitter, any_csv, scan_csv};
pub use json::guess_json;
pub(crate) use json::{JsonParser, any_json};
pub(crate) use lines::{scan_lines, split_lines};

/// Read buffer size in bytes.
const WINDOW: usize = 256 << 10;
/// The UTF-8 byte order mark, which some programs write first.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
