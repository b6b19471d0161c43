//! Writes archives: POSIX headers, with an extended header for a name that is too long.
//!
//! Time and owner are constant, so that the same files give the same bytes.

use super::header::BLOCK;

/// Appends a member to `out`: its headers, its data, and padding.
pub fn write(name: &[u8], data: &[u8], out: &mut Vec<u8>) {
    out.reserve(data.len() + 2 * BLOCK);
    let (prefix, short) = match split(name) {
        Some(parts) => parts,
        None => {
            let record = extended(b"path", name);
            header(b"", b"PaxHeaders/path", record.len() as u64, b'x', out);
            body(&record, out);
            // For readers without support for extended headers.
            (&b""[..], &name[..100])
        }
    };
    header(prefix, short, data.len() as u64, b'0', out);
    body(data, out);
}

/// Appends the end marker.
pub fn write_end(out: &mut Vec<u8>) {
    out.resize(out.len() + 2 * BLOCK, 0);
}

/// Splits a name into prefix and rest, if it fits into a header.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if name.len() <= 100 {
        return Some((&[], name));
    }
    let slashes = name.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let mut places = slashes.map(|(place, _)| place);
    let fits =
        |place: &usize| (1..=155).contains(place) && (1..=100).contains(&(name.len() - place - 1));
    let place = places.find(fits)?;
    Some((&name[..place], &name[place + 1..]))
}

/// A record of an extended header, whose length includes its own digits.
fn extended(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest;
    while length != rest + digits(length) {
        length = rest + digits(length);
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

fn digits(number: usize) -> usize {
    number.to_string().len()
}

fn body(data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(data);
    out.resize(out.len() + data.len().next_multiple_of(BLOCK) - data.len(), 0);
}

fn header(prefix: &[u8], name: &[u8], size: u64, kind: u8, out: &mut Vec<u8>) {
    let mut block = [0; BLOCK];
    let mut put = |place: usize, bytes: &[u8]| {
        block[place..place + bytes.len()].copy_from_slice(bytes);
    };
    put(0, name);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    match size {
        ..=0o777_7777_7777 => put(124, format!("{size:011o}\0").as_bytes()),
        // Too large for octal digits: the binary number.
        _ => {
            put(124, &[0x80, 0, 0, 0]);
            put(128, &size.to_be_bytes());
        }
    }
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(345, prefix);
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(&block);
}

#[cfg(test)]
mod tests {
    use super::super::tests::scan_bytes;
    use super::*;
    use proptest::prelude::*;
    use std::io::Read as _;
    use std::os::unix::ffi::OsStrExt as _;

    fn archive(members: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, data) in members {
            write(name, data, &mut out);
        }
        write_end(&mut out);
        out
    }

    fn by_the_crate(bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut archive = tar::Archive::new(bytes);
        let members = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().as_os_str().as_bytes().to_vec();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            (name, data)
        });
        members.collect()
    }

    proptest! {
        #[test]
        fn names_of_every_length_are_read_by_the_tar_crate_and_by_this_one(
            parts in proptest::collection::vec("[a-zé]{1,120}", 1..4),
            data in proptest::collection::vec(any::<u8>(), 0..1200),
        ) {
            let name = format!("{}.jpg", parts.join("/")).into_bytes();
            let members = vec![(name.clone(), data), (b"z.cls".to_vec(), b"3".to_vec())];
            let bytes = archive(&members);
            prop_assert_eq!(by_the_crate(&bytes), members.clone());
            let scanned = scan_bytes(&bytes);
            prop_assert_eq!((scanned.spans.len(), scanned.corrupt), (2, vec![]));
            let span = scanned.spans[0];
            let span = &bytes[span.start as usize..(span.start + span.length) as usize];
            let first = super::super::members(span).next().unwrap().unwrap();
            prop_assert_eq!((first.name(), first.data), (&*members[0].0, &*members[0].1));
        }
    }

    #[test]
    fn names_at_the_edges_of_every_field_are_kept() {
        for length in [99, 100, 101, 155, 156, 157, 255, 256, 257, 300, 997, 998, 999, 1100] {
            for slash in [None, Some(50), Some(99), Some(100), Some(154), Some(155), Some(156)] {
                let mut name = vec![b'n'; length];
                if let Some(place) = slash.filter(|place| *place < length - 1) {
                    name[place] = b'/';
                }
                let members = [(name, b"data".to_vec())];
                assert_eq!(by_the_crate(&archive(&members)), members, "{length} {slash:?}");
            }
        }
    }

    #[test]
    fn a_size_beyond_the_octal_digits_is_written_in_binary() {
        for size in [0o777_7777_7777_u64, 0o1000_0000_0000, 1 << 40] {
            let mut out = Vec::new();
            header(b"", b"a", size, b'0', &mut out);
            let read = tar::Header::from_byte_slice(&out);
            assert_eq!(read.entry_size().unwrap(), size);
        }
    }
}
