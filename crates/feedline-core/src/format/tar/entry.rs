//! One member with all its headers: long names, extended headers, the map of a sparse file.

use crate::error::Result;

use super::header::{BLOCK, HeaderBlock, until_zero};

/// The longest name or extended header that is read.
const MOST_EXTENSION: u64 = 1 << 20;

/// Random access to the bytes of an archive.
pub(super) trait ArchiveBytes {
    /// Up to `length` bytes from `start`, fewer at the end.
    fn at(&mut self, start: u64, length: usize) -> Result<&[u8]>;
}

impl ArchiveBytes for &[u8] {
    fn at(&mut self, start: u64, length: usize) -> Result<&[u8]> {
        let start = usize::try_from(start).map_or(self.len(), |start| start.min(self.len()));
        let end = start.saturating_add(length).min(self.len());
        Ok(&self[start..end])
    }
}

/// What is at an offset.
pub(super) enum EntryStep {
    /// A block of zeros.
    Zeros,
    /// A member, whether or not it belongs to a sample.
    Entry(TarEntry),
    /// A block that is not a header, its offset, and why.
    Bad { at: u64, why: String },
    /// The bytes end before this one, and within what.
    Short { needed: u64, within: String },
}

/// A member with its headers.
pub(super) struct TarEntry {
    /// Its name, as written.
    pub name: Vec<u8>,
    /// What it is.
    pub role: MemberRole,
    /// Offset of its data.
    pub data: u64,
    /// Size of its data.
    pub size: u64,
    /// The end of its data, rounded up to a block.
    pub end: u64,
    /// Why it cannot be read, if it cannot.
    pub problem: Option<String>,
}

/// What a member is to the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberRole {
    /// A file.
    File,
    /// A folder, a link, a device, a label: skipped.
    Other,
}

/// What the extended headers of a member say. Of two headers with the same key, the first counts, as in Python; within
/// one header the last does, as everywhere.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    long_name: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
    problem: Option<String>,
}

/// Reads the headers at `start`.
pub(super) fn entry(bytes: &mut impl ArchiveBytes, start: u64) -> Result<EntryStep> {
    let mut extension = Extension::default();
    let mut at = start;
    loop {
        let block = bytes.at(at, BLOCK)?;
        if block.len() < BLOCK {
            let within = format!("the header at byte {at}");
            return Ok(EntryStep::Short { needed: at.saturating_add(BLOCK as u64), within });
        }
        let header = match HeaderBlock::of(block) {
            HeaderBlock::Zeros if at == start => return Ok(EntryStep::Zeros),
            HeaderBlock::Zeros => {
                let why = "only zeros follow an extended header".into();
                return Ok(EntryStep::Bad { at, why });
            }
            HeaderBlock::Bad(why) => return Ok(EntryStep::Bad { at, why }),
            HeaderBlock::Header(header) => header,
        };
        let data = at.saturating_add(BLOCK as u64);
        let kind = header.kind();
        if !matches!(kind, b'L' | b'K' | b'x' | b'X' | b'g') {
            let name = header.name();
            // Old archives mark a folder only by a slash at the end of its name.
            let is_folder = kind == 0 && name.ends_with(b"/");
            let size = if is_folder || matches!(kind, b'1'..=b'6') {
                0
            } else {
                extension.size.unwrap_or(header.size)
            };
            let more = kind == b'S' && header.is_extended();
            let data = match more {
                true => match sparse_map(bytes, data)? {
                    Ok(data) => data,
                    Err(short) => return Ok(short),
                },
                false => data,
            };
            return Ok(EntryStep::Entry(extension.member(kind, is_folder, name, data, size)));
        }
        let size = header.size;
        let end = padded(data, size);
        if size > MOST_EXTENSION {
            extension.object(format!("the header at byte {at} claims {size} bytes for a name"));
        } else {
            let payload = bytes.at(data, size as usize)?;
            if (payload.len() as u64) < size {
                let within = format!("the name after the header at byte {at}");
                return Ok(EntryStep::Short { needed: end, within });
            }
            match kind {
                b'L' => {
                    let name = until_zero(payload).to_vec();
                    extension.long_name.get_or_insert(name);
                }
                b'K' => {}
                _ => extension.read(payload, at, kind == b'g'),
            }
        }
        if kind == b'g' && at == start {
            return Ok(EntryStep::Entry(extension.member(kind, false, Vec::new(), end, 0)));
        }
        at = end;
    }
}

/// Skips the blocks that continue the map of a sparse file.
fn sparse_map(
    bytes: &mut impl ArchiveBytes,
    mut at: u64,
) -> Result<std::result::Result<u64, EntryStep>> {
    loop {
        let block = bytes.at(at, BLOCK)?;
        let next = at.saturating_add(BLOCK as u64);
        if block.len() < BLOCK {
            let within = format!("the map of a sparse file at byte {at}");
            return Ok(Err(EntryStep::Short { needed: next, within }));
        }
        let more = block[504] != 0;
        at = next;
        if !more {
            return Ok(Ok(at));
        }
    }
}

/// The start of the block after some data.
pub(super) fn padded(start: u64, size: u64) -> u64 {
    let blocks = size.checked_next_multiple_of(BLOCK as u64).unwrap_or(u64::MAX);
    start.saturating_add(blocks)
}

impl Extension {
    fn object(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    /// Reads an extended header. A global header may hold anything except keys that samples would then lack in their
    /// own bytes.
    fn read(&mut self, mut payload: &[u8], at: u64, is_global: bool) {
        let (mut path, mut size) = (None, None);
        while !payload.is_empty() {
            let Some((key, value, rest)) = record(payload) else {
                return self.object(format!("the extended header at byte {at} cannot be parsed"));
            };
            payload = rest;
            let counts = matches!(key, b"path" | b"size") || key.starts_with(b"GNU.sparse.");
            if counts && is_global {
                let key = String::from_utf8_lossy(key);
                return self.object(format!(
                    "the header at byte {at} sets the {key} of all members that follow, which is not supported"
                ));
            }
            match key {
                b"path" => path = Some(value),
                b"size" => size = Some(decimal(value)),
                b"GNU.sparse.name" => {
                    self.is_sparse = true;
                    self.path = Some(value.to_vec());
                }
                _ if counts => self.is_sparse = true,
                _ => {}
            }
        }
        if let Some(path) = path {
            self.path.get_or_insert_with(|| path.to_vec());
        }
        match size {
            Some(Some(size)) => {
                self.size.get_or_insert(size);
            }
            Some(None) => {
                self.object(format!("the size in the header at byte {at} is not a number"))
            }
            None => {}
        }
    }

    fn member(self, kind: u8, is_folder: bool, name: Vec<u8>, data: u64, size: u64) -> TarEntry {
        let name = self.path.or(self.long_name).unwrap_or(name);
        let is_file = matches!(kind, 0 | b'0' | b'7' | b'S') && !is_folder;
        let problem = self.problem.or_else(|| match kind {
            b'S' => {
                Some(format!("member {} is a sparse file, which is not supported", shown(&name)))
            }
            _ if self.is_sparse => {
                Some(format!("member {} is a sparse file, which is not supported", shown(&name)))
            }
            b'M' => Some(format!("member {} continues from another volume", shown(&name))),
            _ => None,
        });
        let role = if is_file { MemberRole::File } else { MemberRole::Other };
        TarEntry { name, role, data, size, end: padded(data, size), problem }
    }
}

/// A record of an extended header, "length key=value\n", and the rest.
pub(super) fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&bytes[..space])?).ok()?;
    let text = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = text.iter().position(|byte| *byte == b'=')?;
    Some((&text[..equals], &text[equals + 1..], &bytes[length..]))
}

fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// A quoted name for messages, shortened if it is long.
pub(super) fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}
