//! Finds lines. A blank line is not a record; the last line needs no newline.

use memchr::memchr;

use super::{BYTE_ORDER_MARK, WINDOW};
use crate::error::Result;
use crate::format::{ReadAt, Scanned, Split};

/// Lists the lines of a file of this size, each with its newline.
pub(crate) fn scan_lines(size: u64, read: &mut ReadAt<'_>) -> Result<Scanned> {
    let mut scanned = Scanned::default();
    let mut window = vec![0; WINDOW.min(usize::try_from(size).unwrap_or(WINDOW))];
    let (mut at, mut start, mut is_blank) = (0, 0, true);
    while at < size {
        let wanted = (size - at).min(window.len() as u64) as usize;
        let filled = read(at, &mut window[..wanted])?;
        let mut rest = &window[..filled];
        if at == 0 && rest.starts_with(BYTE_ORDER_MARK) {
            rest = &rest[BYTE_ORDER_MARK.len()..];
            start = BYTE_ORDER_MARK.len() as u64;
        }
        while let Some(newline) = memchr(b'\n', rest) {
            let (line, after) = rest.split_at(newline + 1);
            let end = at + (filled - after.len()) as u64;
            if !is_blank || !line.trim_ascii().is_empty() {
                scanned.push(start, end - start);
            }
            (start, is_blank, rest) = (end, true, after);
        }
        is_blank &= rest.trim_ascii().is_empty();
        at += filled as u64;
        if filled < wanted {
            let what = format!("the file shrank from {size} to {at} bytes while it was read");
            scanned.push_corrupt(start, at - start, what);
            return Ok(scanned);
        }
    }
    if !is_blank {
        scanned.push(start, size - start);
    }
    Ok(scanned)
}

/// What the bytes of a stream of lines start with; `is_first` if nothing came before them.
pub(crate) fn split_lines(bytes: &[u8], is_first: bool, is_end: bool) -> Split {
    if bytes.is_empty() {
        return if is_end { Split::End } else { Split::More(1) };
    }
    if is_first && bytes.starts_with(BYTE_ORDER_MARK) {
        return Split::Ignored(BYTE_ORDER_MARK.len());
    }
    let length = match memchr(b'\n', bytes) {
        Some(newline) => newline + 1,
        None if is_end => bytes.len(),
        // Twice as many each time, because all of it is searched again.
        None => return Split::More(bytes.len().saturating_mul(2).max(4096)),
    };
    match bytes[..length].trim_ascii().is_empty() {
        true => Split::Ignored(length),
        false => Split::Record(length),
    }
}
