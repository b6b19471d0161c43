//! Compares the scan with the `tar` crate; tests every flipped byte and every truncation.

use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

use super::entry::{EntryStep, entry};
use super::sample::MemberUse;
use super::*;
use crate::error::Kind;
use crate::format::{Scanned, Split};

/// A sample as a test compares it: key, then extension and data of each member.
type Read = (String, Vec<(String, Vec<u8>)>);

pub(super) fn scan_bytes(bytes: &[u8]) -> Scanned {
    let mut reads = 0;
    let scanned = scan(bytes.len() as u64, &mut |start, buffer: &mut [u8]| {
        reads += 1;
        let start = (start as usize).min(bytes.len());
        let count = buffer.len().min(bytes.len() - start);
        buffer[..count].copy_from_slice(&bytes[start..start + count]);
        Ok(count)
    });
    assert!(reads <= bytes.len() / 512 + 20, "{reads} reads for {} bytes", bytes.len());
    scanned.unwrap()
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read_span(span: &[u8]) -> Read {
    let members: Vec<_> = members(span).collect::<crate::error::Result<_>>().unwrap();
    let key = text(members[0].key());
    assert!(members.iter().all(|member| member.key() == members[0].key()));
    (key, members.into_iter().map(|member| (member.extension, member.data.to_vec())).collect())
}

/// All samples that a scan finds, and the faults it reports.
fn read_all(bytes: &[u8]) -> (Vec<Read>, Vec<String>) {
    let scanned = scan_bytes(bytes);
    check_cover(bytes, &scanned);
    let is_corrupt =
        |number: usize| scanned.corrupt.iter().any(|corrupt| corrupt.span == number as u64);
    let samples = scanned.spans.iter().enumerate().filter(|(number, _)| !is_corrupt(*number));
    let samples = samples.map(|(_, span)| {
        read_span(&bytes[span.start as usize..(span.start + span.length) as usize])
    });
    (samples.collect(), scanned.corrupt.iter().map(|corrupt| corrupt.what.clone()).collect())
}

/// The same by a stream in parts of this many bytes.
fn read_stream(bytes: &[u8], part: usize) -> (Vec<Read>, Vec<String>) {
    let (mut samples, mut corrupt) = (Vec::new(), Vec::new());
    let (mut start, mut end) = (0, 0);
    let mut splitter = TarSplitter::new();
    for _ in 0..10 * bytes.len() + 100 {
        match splitter.split(&bytes[start..end], end == bytes.len()) {
            Split::Record(length) => {
                samples.push(read_span(&bytes[start..start + length]));
                start += length;
            }
            Split::Ignored(length) => start += length,
            Split::Corrupt(length, what) => {
                corrupt.push(what);
                start += length;
            }
            Split::More(length) => {
                assert!(length > end - start && end < bytes.len());
                end = (start + length).max(end + part).min(bytes.len());
            }
            Split::End => {
                assert_eq!(start, bytes.len());
                return (samples, corrupt);
            }
        }
    }
    panic!("the stream does not end");
}

/// Checks that spans are in order and do not overlap, and that there are only other members and zeros between them.
fn check_cover(bytes: &[u8], scanned: &Scanned) {
    let mut at = 0;
    let gap = |from: u64, to: u64| {
        let mut at = from;
        while at < to {
            match entry(&mut &*bytes, at).unwrap() {
                EntryStep::Zeros => at += 512,
                EntryStep::Entry(mut entry) => {
                    assert!(
                        matches!(MemberUse::of(&mut entry), MemberUse::Skipped),
                        "byte {at} is a member"
                    );
                    at = entry.end;
                }
                EntryStep::Short { .. } if bytes[at as usize..].iter().all(|byte| *byte == 0) => {
                    at = to
                }
                EntryStep::Short { .. } | EntryStep::Bad { .. } => {
                    panic!("byte {at} is in no span")
                }
            }
        }
        assert!(at == to || to == bytes.len() as u64);
    };
    for span in &scanned.spans {
        assert!(span.start >= at);
        gap(at, span.start);
        at = span.start + span.length;
    }
    assert!(at <= bytes.len() as u64);
    gap(at, bytes.len() as u64);
}

pub(super) enum Style {
    V7,
    Ustar,
    Gnu,
    Pax,
}

pub(super) struct Maker(Builder<Vec<u8>>);

impl Maker {
    pub(super) fn new() -> Maker {
        Maker(Builder::new(Vec::new()))
    }

    fn header(style: &Style, size: u64) -> Header {
        let mut header = match style {
            Style::V7 => Header::new_old(),
            Style::Ustar | Style::Pax => Header::new_ustar(),
            Style::Gnu => Header::new_gnu(),
        };
        header.set_size(size);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header
    }

    pub(super) fn file(&mut self, style: Style, name: &str, data: &[u8]) -> &mut Maker {
        let mut header = Maker::header(&style, data.len() as u64);
        match style {
            Style::Gnu => self.0.append_data(&mut header, name, data).unwrap(),
            Style::V7 | Style::Ustar => {
                header.set_path(name).unwrap();
                header.set_cksum();
                self.0.append(&header, data).unwrap();
            }
            Style::Pax => {
                let size = data.len().to_string();
                let pairs = [("path", name.as_bytes()), ("size", size.as_bytes())];
                self.0.append_pax_extensions(pairs).unwrap();
                header.set_path("short.name").unwrap();
                header.set_size(data.len() as u64);
                header.set_cksum();
                self.0.append(&header, data).unwrap();
            }
        }
        self
    }

    fn other(&mut self, kind: EntryType, name: &str) -> &mut Maker {
        let mut header = Maker::header(&Style::Ustar, 0);
        header.set_entry_type(kind);
        header.set_path(name).unwrap();
        header.set_cksum();
        self.0.append(&header, &[][..]).unwrap();
        self
    }

    /// A member with this header.
    fn raw(&mut self, header: &Header, data: &[u8]) -> &mut Maker {
        self.0.append(header, data).unwrap();
        self
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

fn small() -> Vec<u8> {
    let mut maker = Maker::new();
    maker.other(EntryType::Directory, "d/");
    maker.file(Style::Ustar, "d/a.txt", b"first").file(Style::Ustar, "d/a.cls", b"1");
    maker.file(Style::Ustar, "d/b.txt", b"second").file(Style::Ustar, "d/b.cls", b"2");
    maker.file(Style::Pax, "d/c.txt", b"third").file(Style::Pax, "d/c.cls", b"3");
    maker.file(Style::Gnu, &format!("{}/e.txt", "long".repeat(40)), &[b'4'; 600]);
    maker.file(Style::Gnu, &format!("{}/e.cls", "long".repeat(40)), b"4");
    maker.file(Style::Ustar, "f.txt", b"").file(Style::V7, "f.cls", b"5");
    maker.done()
}

fn sample(key: &str, members: &[(&str, &[u8])]) -> Read {
    let members = members.iter().map(|(name, data)| ((*name).to_owned(), data.to_vec()));
    (key.to_owned(), members.collect())
}

#[test]
fn every_kind_of_header_is_parsed() {
    let bytes = small();
    let long = format!("{}/e", "long".repeat(40));
    let wanted = [
        sample("d/a", &[("txt", b"first"), ("cls", b"1")]),
        sample("d/b", &[("txt", b"second"), ("cls", b"2")]),
        sample("d/c", &[("txt", b"third"), ("cls", b"3")]),
        sample(&long, &[("txt", &[b'4'; 600]), ("cls", b"4")]),
        sample("f", &[("txt", b""), ("cls", b"5")]),
    ];
    assert_eq!(read_all(&bytes), (wanted.to_vec(), vec![]));
    for part in [1, 511, 512, 4096] {
        assert_eq!(read_stream(&bytes, part), (wanted.to_vec(), vec![]));
    }
}

#[test]
fn equal_keys_apart_are_two_samples_and_extensions_are_lowercase() {
    let mut maker = Maker::new();
    maker.file(Style::Ustar, "a.Seg.PNG", b"1").file(Style::Ustar, "b.x", b"2");
    maker.file(Style::Ustar, "a.x", b"3");
    let wanted = [
        sample("a", &[("seg.png", b"1")]),
        sample("b", &[("x", b"2")]),
        sample("a", &[("x", b"3")]),
    ];
    assert_eq!(read_all(&maker.done()), (wanted.to_vec(), vec![]));
}

#[test]
fn other_members_are_skipped_even_within_a_sample() {
    let mut maker = Maker::new();
    maker.file(Style::Ustar, "__meta__/x.json", b"{}").file(Style::Ustar, "a.txt", b"1");
    maker.other(EntryType::Directory, "d/").other(EntryType::Symlink, "l.txt");
    maker.file(Style::Ustar, "README", b"2").file(Style::Ustar, "a.cls", b"3");
    maker.other(EntryType::Link, "m.txt").file(Style::Ustar, "__x__", b"4");
    let bytes = maker.done();
    let wanted = vec![sample("a", &[("txt", b"1"), ("cls", b"3")])];
    assert_eq!(read_all(&bytes), (wanted.clone(), vec![]));
    assert_eq!(read_stream(&bytes, 1), (wanted, vec![]));
}

#[test]
fn a_second_member_with_an_extension_is_a_fault_of_that_sample_alone() {
    let mut maker = Maker::new();
    maker.file(Style::Ustar, "a.txt", b"1").file(Style::Ustar, "a.TXT", b"2");
    maker.file(Style::Ustar, "b.txt", b"3");
    let bytes = maker.done();
    for (samples, corrupt) in [read_all(&bytes), read_stream(&bytes, 1)] {
        assert_eq!(samples, [sample("b", &[("txt", b"3")])]);
        assert!(
            corrupt.len() == 1 && corrupt[0].contains("\"a.TXT\" is the second"),
            "{corrupt:?}"
        );
    }
}

#[test]
fn a_sparse_file_is_named_and_its_sample_skipped() {
    let mut maker = Maker::new();
    maker.file(Style::Ustar, "a.txt", b"1");
    let mut header = Maker::header(&Style::Gnu, 700);
    header.set_path("a.bin").unwrap();
    header.set_entry_type(EntryType::GNUSparse);
    header.as_gnu_mut().unwrap().isextended[0] = 1;
    header.set_cksum();
    // The map continues in two blocks that the size does not include.
    let mut data = vec![0; 1024 + 700];
    data[504] = 1;
    maker.raw(&header, &data).file(Style::Ustar, "b.txt", b"2");
    maker.0.append_pax_extensions([("GNU.sparse.name", &b"c.bin"[..])]).unwrap();
    maker.file(Style::Ustar, "x/c.bin", b"3").file(Style::Ustar, "d.txt", b"4");
    let bytes = maker.done();
    for (samples, corrupt) in [read_all(&bytes), read_stream(&bytes, 1)] {
        assert_eq!(samples, [sample("b", &[("txt", b"2")]), sample("d", &[("txt", b"4")])]);
        assert!(
            corrupt.len() == 2 && corrupt[0].contains("\"a.bin\" is a sparse file"),
            "{corrupt:?}"
        );
        assert!(corrupt[1].contains("\"c.bin\" is a sparse file"), "{corrupt:?}");
    }
}

#[test]
fn sizes_in_base_256_are_parsed_and_never_allocate() {
    let mut maker = Maker::new();
    let mut header = Maker::header(&Style::Gnu, 0);
    header.set_path("a.txt").unwrap();
    header.as_old_mut().size = [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend([b'x'; 3]);
    bytes.resize(1024, 0);
    maker.file(Style::Ustar, "b.txt", b"2");
    bytes.extend(maker.done());
    let wanted = [sample("a", &[("txt", b"xxx")]), sample("b", &[("txt", b"2")])];
    assert_eq!(read_all(&bytes), (wanted.to_vec(), vec![]));

    header.as_old_mut().size = [0x80, 0, 0, 0, 0x7f, 255, 255, 255, 255, 255, 255, 255];
    header.set_cksum();
    bytes[..512].copy_from_slice(header.as_bytes());
    let (samples, corrupt) = read_all(&bytes);
    assert!(
        samples.is_empty() && corrupt[0].contains("needs 9223372036854775807 bytes"),
        "{corrupt:?}"
    );
}

#[test]
fn an_appended_archive_is_read_and_garbage_there_is_reported() {
    let mut maker = Maker::new();
    maker.file(Style::Ustar, "a.txt", b"1").file(Style::Ustar, "b.txt", b"2");
    let one = maker.done();
    let two = [&one[..], &one[..]].concat();
    let samples: Vec<_> = ["a", "b"]
        .iter()
        .zip([b"1", b"2"])
        .map(|(key, data)| sample(key, &[("txt", data)]))
        .collect();
    assert_eq!(read_all(&two), ([&samples[..], &samples[..]].concat(), vec![]));
    assert_eq!(read_stream(&two, 100), ([&samples[..], &samples[..]].concat(), vec![]));
    for garbage in [&b"garbage"[..], &[7; 512], &[7; 1700]] {
        let bytes = [&one[..], garbage].concat();
        for (found, corrupt) in [read_all(&bytes), read_stream(&bytes, 512)] {
            assert_eq!(found, samples);
            assert_eq!(corrupt.len(), 1, "{corrupt:?}");
        }
    }
}

#[test]
fn a_single_block_of_zeros_between_members_is_reported() {
    let mut maker = Maker::new();
    maker.file(Style::Ustar, "a.txt", b"").file(Style::Ustar, "b.txt", b"");
    maker.file(Style::Ustar, "c.txt", b"").file(Style::Ustar, "d.txt", b"");
    let mut bytes = maker.done();
    bytes[512..1024].fill(0);
    for (samples, corrupt) in [read_all(&bytes), read_stream(&bytes, 512)] {
        assert_eq!(samples.len(), 3);
        assert!(corrupt.len() == 1 && corrupt[0].contains("single block of zeros"), "{corrupt:?}");
    }
}

#[test]
fn a_nested_archive_stays_hidden_when_its_header_is_corrupt() {
    let inner = small();
    let mut maker = Maker::new();
    for key in ["a", "b", "c", "d", "e"] {
        maker.file(Style::Ustar, &format!("{key}.tar"), &inner);
    }
    let mut bytes = maker.done();
    let second = 512 + inner.len();
    bytes[second] ^= 1;
    let (samples, corrupt) = read_all(&bytes);
    let keys: Vec<_> = samples.iter().map(|(key, _)| &**key).collect();
    assert_eq!((keys, corrupt.len()), (vec!["a", "c", "d", "e"], 1));
}

#[test]
fn an_empty_file_and_a_missing_end_marker_are_reported() {
    assert_eq!(read_all(&[]).1, ["the file is empty"]);
    assert_eq!(read_stream(&[], 1).1, ["the archive is empty"]);
    let bytes = small();
    let end = bytes.len() - 1024;
    for (samples, corrupt) in [read_all(&bytes[..end]), read_stream(&bytes[..end], 512)] {
        assert_eq!(samples.len(), 5);
        assert!(corrupt.len() == 1 && corrupt[0].contains("without an end marker"), "{corrupt:?}");
    }
    assert_eq!(read_all(&bytes[..end + 512]).1, Vec::<String>::new());
}

#[test]
fn a_global_header_is_skipped_unless_it_changes_members() {
    let global = |text: &[u8]| {
        let mut header = Maker::header(&Style::Ustar, text.len() as u64);
        header.set_path("pax_global_header").unwrap();
        header.set_entry_type(EntryType::XGlobalHeader);
        header.set_cksum();
        let mut maker = Maker::new();
        maker.raw(&header, text).file(Style::Ustar, "a.txt", b"1").file(
            Style::Ustar,
            "b.txt",
            b"2",
        );
        maker.file(Style::Ustar, "c.txt", b"2");
        read_all(&maker.done())
    };
    let (samples, corrupt) = global(b"16 comment=abcd\n");
    assert_eq!((samples.len(), corrupt), (3, vec![]));
    let (samples, corrupt) = global(b"12 path=abc\n");
    assert_eq!(samples.len(), 3);
    assert!(corrupt[0].contains("sets the path of all members"), "{corrupt:?}");
}

/// Where each byte of an archive belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteRegion {
    /// A header block.
    Header,
    /// The text of a long name or an extended header.
    Name,
    /// The data of this sample's member.
    Data(usize),
    /// Padding to a full block.
    Filling,
    /// The blocks of zeros at the end.
    End,
}

fn places(bytes: &[u8]) -> Vec<ByteRegion> {
    let mut places = vec![ByteRegion::End; bytes.len()];
    let mut archive = tar::Archive::new(bytes);
    for (number, entry) in archive.entries().unwrap().raw(true).enumerate() {
        let entry = entry.unwrap();
        let header = entry.raw_header_position() as usize;
        let data = entry.raw_file_position() as usize;
        let size = entry.size() as usize;
        places[header..data].fill(ByteRegion::Header);
        let is_name = matches!(entry.header().entry_type().as_byte(), b'x' | b'L');
        places[data..data + size].fill(if is_name {
            ByteRegion::Name
        } else {
            ByteRegion::Data(number)
        });
        places[data + size..(data + size).next_multiple_of(512)].fill(ByteRegion::Filling);
    }
    places
}

/// The promises of "What a tar cannot tell" in docs/records.md, byte by byte.
#[test]
fn every_flipped_byte_is_noticed_or_harmless_but_in_data_and_in_long_names() {
    let bytes = small();
    let (whole, _) = read_all(&bytes);
    let mut unnoticed_names = 0;
    for (at, place) in places(&bytes).into_iter().enumerate() {
        for mask in [1, 0x80, bytes[at]] {
            let mut flipped = bytes.clone();
            flipped[at] ^= mask;
            if mask == 0 {
                continue;
            }
            let (samples, corrupt) = read_all(&flipped);
            let (streamed, stream_corrupt) = read_stream(&flipped, 4096);
            assert_eq!(corrupt.is_empty(), stream_corrupt.is_empty(), "byte {at}: {corrupt:?}");
            match place {
                ByteRegion::Header | ByteRegion::End if corrupt.is_empty() => {
                    assert_eq!(samples, whole, "byte {at}");
                    assert_eq!(streamed, whole, "byte {at}");
                }
                ByteRegion::Header | ByteRegion::End => {
                    assert!(
                        samples.iter().all(|sample| whole.contains(sample)),
                        "byte {at}: {samples:?}"
                    );
                    assert!(
                        streamed.iter().all(|sample| whole.contains(sample)),
                        "byte {at}: {streamed:?}"
                    );
                    // One sample, or two if it is unclear which one the member belonged to.
                    assert!(samples.len() + 2 >= whole.len(), "byte {at}: {corrupt:?}");
                }
                ByteRegion::Filling => {
                    assert_eq!((&samples, corrupt.len()), (&whole, 0), "byte {at}")
                }
                ByteRegion::Data(_) => {
                    assert_eq!(corrupt.len(), 0, "byte {at}");
                    let changed: usize =
                        samples.iter().zip(&whole).map(|(now, then)| differences(now, then)).sum();
                    assert_eq!((samples.len(), changed), (whole.len(), 1), "byte {at}");
                }
                ByteRegion::Name => {
                    // Such a text has no checksum: a member may get another name.
                    unnoticed_names += usize::from(corrupt.is_empty() && samples != whole);
                }
            }
        }
    }
    assert!(unnoticed_names > 0, "if all were noticed, the page could promise it");
}

/// How many members differ, among samples with the same key and the same extensions.
fn differences(one: &Read, other: &Read) -> usize {
    assert_eq!((&one.0, one.1.len()), (&other.0, other.1.len()));
    let pairs = one.1.iter().zip(&other.1);
    pairs
        .inspect(|(one, other)| assert_eq!(one.0, other.0))
        .filter(|(one, other)| one != other)
        .count()
}

#[test]
fn every_truncation_is_noticed_except_in_the_second_end_block() {
    let bytes = small();
    let (whole, _) = read_all(&bytes);
    for end in 0..bytes.len() {
        let (samples, corrupt) = read_all(&bytes[..end]);
        let (streamed, stream_corrupt) = read_stream(&bytes[..end], 4096);
        let is_marked = end >= bytes.len() - 512;
        assert_eq!(corrupt.is_empty(), is_marked, "truncated at {end}: {corrupt:?}");
        assert_eq!(stream_corrupt.is_empty(), is_marked, "truncated at {end}: {stream_corrupt:?}");
        if is_marked {
            assert_eq!((&samples, &streamed), (&whole, &whole));
        }
        assert!(
            samples.iter().all(|sample| whole.contains(sample)),
            "truncated at {end}: {samples:?}"
        );
        assert!(
            streamed.iter().all(|sample| whole.contains(sample)),
            "truncated at {end}: {streamed:?}"
        );
    }
}

/// A plain second implementation of the convention, on top of the `tar` crate.
fn oracle(bytes: &[u8]) -> Vec<Read> {
    let mut samples: Vec<Read> = Vec::new();
    let mut archive = tar::Archive::new(bytes);
    for member in archive.entries().unwrap() {
        use std::io::Read as _;
        let mut member = member.unwrap();
        let name = text(&member.path_bytes());
        let folder = name.rfind('/').map_or(0, |slash| slash + 1);
        let Some(dot) = name[folder..].find('.') else { continue };
        if !member.header().entry_type().is_file() || name.starts_with("__") {
            continue;
        }
        let (key, extension) = (&name[..folder + dot], name[folder + dot + 1..].to_lowercase());
        let mut data = Vec::new();
        member.read_to_end(&mut data).unwrap();
        match samples.last_mut() {
            Some(last) if last.0 == key => last.1.push((extension, data)),
            _ => samples.push((key.to_owned(), vec![(extension, data)])),
        }
    }
    samples
}

proptest! {
    #[test]
    fn the_tar_crate_reads_the_same_samples(
        files in prop::collection::vec(
            ("([a-c]/){0,2}[a-d]|__m__/[ab]", 0..6_usize, 0..4_usize, 0..1300_usize), 0..20),
        part in 1..3000_usize,
    ) {
        let mut maker = Maker::new();
        let mut last = (String::new(), Vec::new());
        for (number, (key, extension, style, size)) in files.into_iter().enumerate() {
            let extension = ["", ".txt", ".Cls", ".seg.png", ".x", "/"][extension];
            if !matches!(extension, "" | "/") && !key.starts_with("__") {
                if last.0 != key {
                    last = (key.clone(), Vec::new());
                }
                if last.1.contains(&extension) {
                    continue;
                }
                last.1.push(extension);
            }
            let name = format!("{key}{extension}");
            if extension == "/" {
                maker.other(EntryType::Directory, &name);
                continue;
            }
            let style = match style {
                0 => Style::V7,
                1 => Style::Ustar,
                2 => Style::Gnu,
                _ => Style::Pax,
            };
            maker.file(style, &name, &vec![number as u8; size]);
        }
        let bytes = maker.done();
        let wanted = oracle(&bytes);
        prop_assert_eq!(read_all(&bytes), (wanted.clone(), vec![]));
        prop_assert_eq!(read_stream(&bytes, part), (wanted, vec![]));
    }

    #[test]
    fn no_bytes_cause_a_panic_or_a_hang(
        mut bytes in prop::collection::vec(any::<u8>(), 0..3000),
        patches in prop::collection::vec((0..12000_usize, any::<u8>()), 0..4),
        is_small in any::<bool>(),
    ) {
        if is_small {
            bytes = small();
        }
        for (at, value) in patches {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        let scanned = scan_bytes(&bytes);
        check_cover(&bytes, &scanned);
        for span in &scanned.spans {
            let span = &bytes[span.start as usize..(span.start + span.length) as usize];
            let _ = members(span).count();
            let _ = guess(span);
        }
        let mut splitter = TarSplitter::new();
        let mut start = 0;
        for _ in 0..bytes.len() + 10 {
            match splitter.split(&bytes[start..], true) {
                Split::Record(length) | Split::Ignored(length) | Split::Corrupt(length, _) => start += length,
                Split::More(_) => panic!("there is no more"),
                Split::End => break,
            }
        }
        prop_assert_eq!(start, bytes.len());
    }
}

#[test]
fn a_span_that_changed_after_indexing_is_a_corrupt_record() {
    let bytes = small();
    let span = scan_bytes(&bytes).spans[0];
    let mut span = bytes[span.start as usize..(span.start + span.length) as usize].to_vec();
    span[3] ^= 1;
    let error = members(&span).collect::<crate::error::Result<Vec<_>>>().unwrap_err();
    assert_eq!(error.kind(), Kind::CorruptRecord);
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// The archives and the expected samples are written by tools/golden/tar.py.
#[test]
fn webdataset_reads_the_same_samples() {
    const EXPECTED: &str = include_str!("../../../../../tests/golden/tar/expected.json");
    macro_rules! golden {
        ($($name:literal),*) => {
            [$(($name, &include_bytes!(
                concat!("../../../../../tests/golden/tar/", $name, ".tar"))[..])),*]
        };
    }
    let archives = golden![
        "names-pax",
        "names-gnu",
        "names-ustar",
        "long-pax",
        "long-gnu",
        "long-ustar",
        "others",
        "global"
    ];
    let expected: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(EXPECTED).unwrap();
    assert_eq!(expected.len(), archives.len());
    for (name, bytes) in archives {
        let wanted: Vec<Read> = expected[name]
            .as_array()
            .unwrap()
            .iter()
            .map(|sample| {
                let sample = sample.as_object().unwrap();
                let members = sample.iter().filter(|(key, _)| *key != "__key__");
                let members =
                    members.map(|(key, data)| (key.clone(), unhex(data.as_str().unwrap())));
                (sample["__key__"].as_str().unwrap().to_owned(), members.collect())
            })
            .collect();
        for (mut samples, corrupt) in [read_all(bytes), read_stream(bytes, 700)] {
            samples.iter_mut().for_each(|(_, members)| members.sort());
            assert_eq!((&samples, corrupt.len()), (&wanted, 0), "{name}: {corrupt:?}");
        }
    }
}
