//! The framing of TFRecord files: a length, its checksum, the data, its checksum.
//!
//! Nothing here allocates by a length from a file: it is only compared with the available bytes.

use crate::error::{Error, Kind, Result};

use super::{ReadAt, Scanned, Split};

/// Size of the header before the data: the length and its checksum.
pub const HEADER: usize = 12;
/// Size of the framing around the data: the header and the checksum of the data.
pub(crate) const FRAME: usize = 16;

/// Read size where records are small, and in a search.
const WINDOW: usize = 256 << 10;
/// Read size where records are so large that most of the bytes read would be skipped.
const PEEK: usize = 512;
/// Larger records are skipped rather than read.
const LARGE: u64 = 16 << 10;
/// How many bytes of a stream are kept in the search for the next good record.
const PATIENCE: usize = 16 << 20;

const LENGTH_IS_WRONG: &str = "checksum mismatch in its length";

/// The masked CRC32C of these bytes: it is rotated, so that bytes that contain their own checksum have a different one.
#[inline]
fn checksum(bytes: &[u8]) -> u32 {
    masked(crc32c::crc32c(bytes))
}

#[inline]
fn masked(sum: u32) -> u32 {
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The length in a header, valid or not.
#[inline]
fn number(header: &[u8]) -> u64 {
    u64::from_le_bytes(*header.first_chunk().expect("a header has a length"))
}

/// The length in a header, if its checksum matches.
#[inline]
fn length_of(header: &[u8]) -> Option<u64> {
    let (length, written) = header[..HEADER].split_at(8);
    (checksum(length).to_le_bytes() == written).then(|| number(length))
}

/// Whether these bytes begin with the header of a record.
pub fn is_header(bytes: &[u8]) -> bool {
    bytes.len() >= HEADER && length_of(bytes).is_some()
}

/// The data of a record whose whole span is given. The error message continues a sentence, such as "checksum mismatch
/// in its length". Without `check`, only the length is compared with the span.
#[inline]
pub fn payload(span: &[u8], check: bool) -> Result<&[u8]> {
    if span.len() < FRAME {
        return Err(truncated(span.len() as u64, FRAME as u64));
    }
    let (data, written) = span[HEADER..].split_at(span.len() - FRAME);
    if check && length_of(span).is_none() {
        return Err(Error::new(Kind::CorruptRecord, LENGTH_IS_WRONG));
    }
    let length = number(span);
    if length != data.len() as u64 {
        return Err(not_the_length(length, span.len() as u64));
    }
    if check && checksum(data).to_le_bytes() != written {
        let what = "checksum mismatch";
        return Err(Error::new(Kind::CorruptRecord, what));
    }
    Ok(data)
}

#[cold]
fn truncated(has: u64, of: u64) -> Error {
    Error::new(Kind::CorruptRecord, format!("it is truncated: it has {has} of {of} bytes"))
}

#[cold]
fn not_the_length(length: u64, span: u64) -> Error {
    let needed = length.saturating_add(FRAME as u64);
    if span < needed {
        return truncated(span, needed);
    }
    let what = format!("its length is now {needed} bytes, but was {span} when it was indexed");
    Error::new(Kind::CorruptRecord, what).with_hint("the file changed; build its index again")
}

/// Appends a record to `out`.
pub fn write(data: &[u8], out: &mut Vec<u8>) {
    let length = (data.len() as u64).to_le_bytes();
    out.reserve(data.len() + FRAME);
    out.extend_from_slice(&length);
    out.extend_from_slice(&checksum(&length).to_le_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(&checksum(data).to_le_bytes());
}

/// Scans the headers of a file of `size` bytes. Records and corrupt spans together cover the file, in order.
/// [`payload`] checks the data when the record is read.
pub(crate) fn scan(size: u64, read: &mut ReadAt<'_>) -> Result<Scanned> {
    let mut scanned = Scanned::default();
    let mut walk = TfrecordWalk::new(size, false, read);
    let mut at = 0;
    let mut step = 0;
    while at < size {
        let left = size - at;
        if left < HEADER as u64 {
            let what = format!("its header is truncated: the file has {left} of {HEADER} bytes");
            scanned.push_corrupt(at, left, what);
            break;
        }
        let window = if step > LARGE { PEEK } else { WINDOW };
        let header = walk.bytes(at, window)?;
        if header.len() < HEADER {
            let end = at + header.len() as u64;
            let what = format!("the file shrank from {size} to {end} bytes while it was read");
            scanned.push_corrupt(at, left, what);
            break;
        }
        let problem = match length_of(header) {
            Some(length) => {
                step = length.saturating_add(FRAME as u64);
                if step <= left {
                    scanned.push(at, step);
                    at += step;
                    continue;
                }
                format!("it is truncated: the file has {left} of its {step} bytes")
            }
            None => LENGTH_IS_WRONG.into(),
        };
        if let Some(next) = walk.swallowed(&scanned, at)? {
            let swallower = scanned.spans.pop().expect("a record has swallowed others");
            let skipped = next - swallower.start;
            let how = describe_resume(skipped, false);
            let what = format!("some of its data is missing, or does not belong to it; {how}");
            scanned.push_corrupt(swallower.start, skipped, what);
            (at, step) = (next, 0);
            continue;
        }
        let skipped = walk.next_record(at + 1)?.map_or(left, |next| next - at);
        let how = describe_resume(skipped, skipped == left);
        scanned.push_corrupt(at, skipped, format!("{problem}; {how}"));
        at += skipped;
        step = 0;
    }
    Ok(scanned)
}

/// What the bytes of a stream start with; more may follow unless `is_end`. For a record larger than memory,
/// [`Split::More`] may request more than can ever follow: do not reserve it.
pub fn split(bytes: &[u8], is_end: bool) -> Split {
    if bytes.is_empty() && is_end {
        return Split::End;
    }
    if bytes.len() < HEADER {
        if !is_end {
            return Split::More(HEADER);
        }
        let what =
            format!("its header is truncated: the file has {} of {HEADER} bytes", bytes.len());
        return Split::Corrupt(bytes.len(), what);
    }
    let problem = match length_of(bytes) {
        Some(length) => {
            let needed = length.saturating_add(FRAME as u64);
            match usize::try_from(needed) {
                Ok(needed) if needed <= bytes.len() => return Split::Record(needed),
                Ok(needed) if !is_end => return Split::More(needed),
                Ok(_) | Err(_) => {
                    format!("it is truncated: the file has {} of its {needed} bytes", bytes.len())
                }
            }
        }
        None => LENGTH_IS_WRONG.into(),
    };
    let mut read = |offset: u64, buffer: &mut [u8]| {
        let rest = &bytes[(offset as usize).min(bytes.len())..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    };
    let mut walk = TfrecordWalk::new(bytes.len() as u64, !is_end, &mut read);
    let next = walk.next_record(1).expect("memory can always be read");
    match next {
        Some(next) => {
            Split::Corrupt(next as usize, format!("{problem}; {}", describe_resume(next, false)))
        }
        None if is_end => {
            let skipped = bytes.len();
            Split::Corrupt(skipped, format!("{problem}; {}", describe_resume(skipped as u64, true)))
        }
        // Twice as much each time, so that the search remains linear.
        None if bytes.len() < PATIENCE => Split::More((bytes.len() * 2).max(WINDOW)),
        None => {
            // The last bytes may be the beginning of a header.
            let skipped = bytes.len() - (HEADER - 1);
            Split::Corrupt(skipped, format!("{problem}; {skipped} bytes hold no other record"))
        }
    }
}

fn describe_resume(skipped: u64, to_the_end: bool) -> String {
    if to_the_end {
        format!("no other record was found in the {skipped} bytes up to the end of the file")
    } else {
        format!("{skipped} bytes were skipped up to the next record")
    }
}

/// Reads a file through a window.
struct TfrecordWalk<'a, 'r> {
    size: u64,
    /// Whether more may follow after `size`.
    is_open: bool,
    read: &'a mut ReadAt<'r>,
    window: Vec<u8>,
    start: u64,
    /// How many bytes of data may still be read to check whether they are a record's. This bounds the cost of a file
    /// full of headers.
    checks: u64,
}

impl<'a, 'r> TfrecordWalk<'a, 'r> {
    fn new(size: u64, is_open: bool, read: &'a mut ReadAt<'r>) -> TfrecordWalk<'a, 'r> {
        TfrecordWalk { size, is_open, read, window: Vec::new(), start: 0, checks: size }
    }

    /// At least a header's bytes from `at` on, fewer only at the end of the file.
    fn bytes(&mut self, at: u64, window: usize) -> Result<&[u8]> {
        let end = self.start + self.window.len() as u64;
        if at < self.start || at + HEADER as u64 > end {
            let wanted = (self.size - at).min(window as u64) as usize;
            self.window.resize(wanted, 0);
            self.start = at;
            let count = (self.read)(at, &mut self.window)?;
            self.window.truncate(count);
        }
        Ok(&self.window[(at - self.start) as usize..])
    }

    /// The offset of the next plausible record.
    fn next_record(&mut self, from: u64) -> Result<Option<u64>> {
        let mut at = from;
        while at + HEADER as u64 <= self.size {
            let most = if self.is_open { u64::MAX } else { self.size - at };
            let bytes = self.bytes(at, WINDOW)?;
            if bytes.len() < HEADER {
                return Ok(None);
            }
            let found = bytes.windows(HEADER).position(|header| {
                // Most bytes are no valid length, which is checked without a checksum.
                number(header) <= most && length_of(header).is_some()
            });
            match found {
                Some(skipped) => {
                    let length = number(&bytes[skipped..]);
                    at += skipped as u64;
                    if self.is_record(at, length)? {
                        return Ok(Some(at));
                    }
                    at += 1;
                }
                None => at += (bytes.len() - (HEADER - 1)) as u64,
            }
        }
        Ok(None)
    }

    /// Whether another record or the end of the file follows, or the checksum of the data matches: bytes that only look
    /// like a header have neither.
    fn is_record(&mut self, at: u64, length: u64) -> Result<bool> {
        let end = at.saturating_add(length).saturating_add(FRAME as u64);
        if end > self.size {
            return Ok(self.is_open);
        }
        let mut header = [0; HEADER];
        let count = (self.read)(end, &mut header[..])?;
        if end == self.size || (count == HEADER && length_of(&header).is_some()) {
            return Ok(true);
        }
        Ok(self.has_checksum(at, end)? == Some(true))
    }

    /// The offset of a record inside the last one before `at`, where there is no header. This happens where bytes were
    /// lost: the next records then look like its data.
    fn swallowed(&mut self, scanned: &Scanned, at: u64) -> Result<Option<u64>> {
        let number = scanned.spans.len() as u64;
        let is_corrupt = scanned.corrupt.last().is_some_and(|corrupt| corrupt.span + 1 == number);
        let Some(last) = scanned.spans.last().filter(|_| !is_corrupt) else { return Ok(None) };
        if self.has_checksum(last.start, at)? != Some(false) {
            return Ok(None);
        }
        Ok(self.next_record(last.start + 1)?.filter(|next| *next < at))
    }

    /// Whether the checksum of the record from `at` to `end` matches; None if the budget for such checks is used up.
    fn has_checksum(&mut self, at: u64, end: u64) -> Result<Option<bool>> {
        let length = end - at - FRAME as u64;
        let Some(checks) = self.checks.checked_sub(length) else { return Ok(None) };
        self.checks = checks;
        let mut sum = 0;
        let mut chunk = vec![0; WINDOW.min(length as usize)];
        let mut place = at + HEADER as u64;
        let data_end = end - (FRAME - HEADER) as u64;
        while place < data_end {
            let wanted = (data_end - place).min(chunk.len() as u64) as usize;
            let count = (self.read)(place, &mut chunk[..wanted])?;
            if count == 0 {
                return Ok(Some(false));
            }
            sum = crc32c::crc32c_append(sum, &chunk[..count]);
            place += count as u64;
        }
        let mut written = [0; FRAME - HEADER];
        let count = (self.read)(data_end, &mut written)?;
        Ok(Some(count == written.len() && masked(sum).to_le_bytes() == written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| write(record, &mut bytes));
        bytes
    }

    fn some_records() -> Vec<Vec<u8>> {
        [0_usize, 1, 7, 200, 0, 33]
            .iter()
            .map(|length| (0..*length).map(|place| (place * 31 + length) as u8).collect())
            .collect()
    }

    fn scanned(bytes: &[u8]) -> Scanned {
        let mut read = |offset: u64, buffer: &mut [u8]| {
            let rest = &bytes[(offset as usize).min(bytes.len())..];
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        };
        scan(bytes.len() as u64, &mut read).unwrap()
    }

    /// The records that can be read with valid checksums, and their offsets.
    fn intact(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let scanned = scanned(bytes);
        let mut end = 0;
        for span in &scanned.spans {
            assert_eq!(span.start, end, "a gap or an overlap: {scanned:?}");
            end += span.length;
        }
        assert_eq!(end, bytes.len() as u64, "bytes in no span: {scanned:?}");
        assert!(scanned.corrupt.is_sorted_by_key(|corrupt| corrupt.span));
        let corrupt: Vec<_> = scanned.corrupt.iter().map(|corrupt| corrupt.span).collect();
        let mut found = Vec::new();
        for (number, span) in scanned.spans.iter().enumerate() {
            let bytes = &bytes[span.start as usize..(span.start + span.length) as usize];
            match payload(bytes, true) {
                Ok(data) if !corrupt.contains(&(number as u64)) => {
                    found.push((span.start, data.to_vec()));
                }
                Ok(_) => panic!("a good record was called corrupt: {scanned:?}"),
                Err(error) => assert_eq!(error.kind(), Kind::CorruptRecord),
            }
        }
        found
    }

    /// The same by `split`, with as few bytes as it requests.
    fn split_in_pieces(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let (mut start, mut known) = (0, 0);
        let mut found = Vec::new();
        loop {
            let end = (start + known).min(bytes.len());
            match split(&bytes[start..end], end == bytes.len()) {
                Split::Record(length) => {
                    if let Ok(data) = payload(&bytes[start..start + length], true) {
                        found.push((start as u64, data.to_vec()));
                    }
                    start += length;
                    known -= length;
                }
                Split::Corrupt(length, _) => {
                    assert!(length > 0 && length <= end - start);
                    start += length;
                    known -= length.min(known);
                }
                Split::More(needed) => {
                    assert!(needed > end - start, "no progress");
                    known = needed.min(bytes.len());
                }
                Split::End => return found,
                Split::Ignored(_) => panic!("a TFRecord has nothing to skip"),
            }
        }
    }

    fn placed(records: &[Vec<u8>]) -> Vec<(u64, Vec<u8>)> {
        let mut start = 0;
        let place = |record: &Vec<u8>| {
            let placed = (start, record.clone());
            start += (record.len() + FRAME) as u64;
            placed
        };
        records.iter().map(place).collect()
    }

    #[test]
    fn the_bytes_are_the_same_as_tensorflow_writes() {
        let mut bytes = Vec::new();
        write(b"hello", &mut bytes);
        let header = [5, 0, 0, 0, 0, 0, 0, 0, 0xea, 0xb2, 0x04, 0x3e];
        let footer = [0xbb, 0x1f, 0x1c, 0x19];
        assert_eq!(bytes, [&header[..], b"hello", &footer].concat());
        assert_eq!(payload(&bytes, true).unwrap(), b"hello");
    }

    #[test]
    fn a_good_file_has_all_its_records() {
        let records = some_records();
        let bytes = file(&records);
        assert_eq!(intact(&bytes), placed(&records));
        assert_eq!(scanned(&bytes).corrupt, []);
    }

    #[test]
    fn every_flipped_bit_costs_one_record_and_no_other() {
        let records = some_records();
        let good = file(&records);
        let whole = placed(&records);
        for place in 0..good.len() {
            for bit in [0x01, 0x10, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[place] ^= bit;
                let hit = whole.iter().rposition(|(start, _)| *start <= place as u64).unwrap();
                let mut expected = whole.clone();
                expected.remove(hit);
                assert_eq!(intact(&bytes), expected, "byte {place}");
                assert_eq!(split_in_pieces(&bytes), expected, "byte {place}");
            }
        }
    }

    #[test]
    fn every_truncation_is_reported_and_keeps_the_records_before_it() {
        let records = some_records();
        let good = file(&records);
        let whole = placed(&records);
        for end in 0..good.len() {
            let before: Vec<_> = whole
                .iter()
                .filter(|(start, data)| start + (data.len() + FRAME) as u64 <= end as u64)
                .cloned()
                .collect();
            assert_eq!(intact(&good[..end]), before, "truncated at {end}");
            assert_eq!(split_in_pieces(&good[..end]), before, "truncated at {end}");
            let is_boundary = whole.iter().any(|(start, _)| *start == end as u64);
            let expected = usize::from(!is_boundary);
            assert_eq!(scanned(&good[..end]).corrupt.len(), expected, "truncated at {end}");
        }
    }

    #[test]
    fn lost_or_added_bytes_cost_only_the_records_they_touch() {
        let records = some_records();
        let good = file(&records);
        let last = records.last().unwrap();
        for place in 0..good.len() - last.len() - FRAME {
            for count in [1, 5, 40] {
                let mut lost = good.clone();
                lost.drain(place..(place + count).min(good.len() - last.len() - FRAME));
                let mut added = good.clone();
                added.splice(place..place, vec![0xa5; count]);
                for bytes in [lost, added] {
                    assert_eq!(&intact(&bytes).last().unwrap().1, last, "{count} at {place}");
                }
            }
        }
    }

    #[test]
    fn corrupt_spans_say_what_is_wrong_and_how_the_scan_continues() {
        let good = file(&some_records());
        let messages = |bytes: &[u8]| {
            let scanned = scanned(bytes);
            let said: Vec<_> = scanned
                .corrupt
                .iter()
                .map(|corrupt| format!("{}: {}", corrupt.span, corrupt.what))
                .collect();
            said.join("\n")
        };
        let mut length = good.clone();
        length[34] ^= 1;
        let mut last = good.clone();
        let start = good.len() - 33 - FRAME;
        last[start] ^= 1;
        let said = [
            messages(&[]),
            messages(&good[..5]),
            messages(&good[..good.len() - 1]),
            messages(&length),
            messages(&last),
            payload(&good[16..25], true).unwrap_err().message().into(),
            payload(&good[33..45], true).unwrap_err().message().into(),
            payload(&good[33..50], true).unwrap_err().message().into(),
            payload(&good[33..60], true).unwrap_err().message().into(),
            payload(&length[33..56], true).unwrap_err().message().into(),
            payload(&[&good[33..55], &[1]].concat(), true).unwrap_err().message().into(),
        ];
        insta::assert_snapshot!(said.join("\n"));
    }

    #[test]
    fn without_checks_only_the_length_must_match() {
        let mut bytes = file(&[b"some data".to_vec()]);
        bytes[14] ^= 1;
        bytes[9] ^= 1;
        assert_eq!(payload(&bytes, false).unwrap(), b"sole data");
        assert!(payload(&bytes[..20], false).is_err());
        assert!(payload(&bytes, true).is_err());
    }

    #[test]
    fn a_record_inside_the_data_of_another_is_not_listed() {
        let inner = file(&[b"inner".to_vec()]);
        let outer = [vec![7; 100], inner, vec![9; 100]].concat();
        let mut bytes = file(&[outer, b"next".to_vec(), b"last".to_vec()]);
        assert_eq!(scanned(&bytes).spans.len(), 3);
        // Its checksum matches, so if the outer length is lost, it is a valid record.
        bytes[3] ^= 1;
        assert_eq!(intact(&bytes).last().unwrap().1, b"last");
    }

    #[test]
    fn headers_of_large_records_are_found_without_reading_the_data() {
        let records: Vec<Vec<u8>> = (0..20).map(|number| vec![number; 100_000]).collect();
        let bytes = file(&records);
        let mut total = 0;
        let mut read = |offset: u64, buffer: &mut [u8]| {
            let rest = &bytes[offset as usize..];
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            total += count;
            Ok(count)
        };
        let scanned = scan(bytes.len() as u64, &mut read).unwrap();
        assert_eq!(scanned.spans.len(), 20);
        assert!(total < WINDOW + 20 * PEEK, "{total} bytes were read");
    }

    #[test]
    fn a_file_that_is_full_of_headers_costs_little() {
        let mut bytes = Vec::new();
        let header = |length: u64| {
            let length = length.to_le_bytes();
            [&length[..], &checksum(&length).to_le_bytes()].concat()
        };
        bytes.extend([0xff; HEADER]);
        for number in 0..20_000_u64 {
            bytes.extend(header(100_001 + number % 7));
            bytes.push(3);
        }
        let (mut total, mut calls) = (0, 0);
        let mut read = |offset: u64, buffer: &mut [u8]| {
            let rest = &bytes[(offset as usize).min(bytes.len())..];
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            total += count;
            calls += 1;
            Ok(count)
        };
        scan(bytes.len() as u64, &mut read).unwrap();
        assert!(total < 4 * bytes.len() && calls < 50_000, "{total} bytes in {calls} calls");
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_corrupt_from_there() {
        let bytes = file(&some_records());
        let mut read = |offset: u64, buffer: &mut [u8]| {
            let rest = &bytes[(offset as usize).min(60)..60];
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        };
        let scanned = scan(bytes.len() as u64, &mut read).unwrap();
        let last = scanned.spans.last().unwrap();
        assert_eq!(last.start + last.length, bytes.len() as u64);
        assert!(scanned.corrupt[0].what.contains("to 60 bytes"), "{:?}", scanned.corrupt);
    }

    proptest! {
        #[test]
        fn any_bytes_are_accounted_for(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(intact(&bytes), split_in_pieces(&bytes));
        }

        #[test]
        fn records_survive_any_bytes_between_them(
            records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8),
            garbage in prop::collection::vec(1..255_u8, 1..80),
            place in any::<prop::sample::Index>(),
        ) {
            let place = place.index(records.len());
            let mut bytes = file(&records[..place]);
            bytes.extend(&garbage);
            bytes.extend(file(&records[place..]));
            let found: Vec<_> = intact(&bytes).into_iter().map(|(_, data)| data).collect();
            prop_assert_eq!(found, records);
        }
    }
}
