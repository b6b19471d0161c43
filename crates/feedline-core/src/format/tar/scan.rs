//! Scans the headers of an archive and lists the spans of its samples. Nothing is dropped silently: what cannot be read
//! is a span with a reason.

use std::collections::HashSet;

use crate::error::Result;
use crate::format::{ReadAt, Scanned};

use super::entry::{ArchiveBytes, EntryStep, TarEntry, entry, padded, record, shown};
use super::header::{BLOCK, Claim, HeaderBlock};
use super::sample::{MemberUse, SampleInProgress};

/// Read sizes where headers are close together, and where they are not.
const NEAR: usize = 64 << 10;
const FAR: usize = 4 << 10;

/// Lists the samples of an archive of this size.
pub(crate) fn scan(size: u64, read: &mut ReadAt<'_>) -> Result<Scanned> {
    let bytes = Window { read, size, start: 0, held: Vec::new(), filled: 0 };
    let mut scan = TarScan { bytes, size, pieces: Vec::new(), open: None };
    scan.run()?;
    Ok(join_incomplete(scan.pieces))
}

/// A part of the file in memory.
struct Window<'a, 'b> {
    read: &'a mut ReadAt<'b>,
    size: u64,
    start: u64,
    held: Vec<u8>,
    filled: usize,
}

impl ArchiveBytes for Window<'_, '_> {
    fn at(&mut self, start: u64, length: usize) -> Result<&[u8]> {
        let length = self.size.saturating_sub(start).min(length as u64) as usize;
        let end = self.start + self.filled as u64;
        if length > 0 && (start < self.start || start + length as u64 > end) {
            let is_near = start.abs_diff(end) < NEAR as u64;
            let wanted = if is_near { NEAR } else { FAR }.max(length);
            self.held.resize(wanted.max(self.held.len()), 0);
            self.filled = (self.read)(start, &mut self.held[..wanted])?;
            self.start = start;
        }
        let skipped = (start - self.start.min(start)) as usize;
        let have = self.filled.saturating_sub(skipped).min(length);
        Ok(if have == 0 { &[] } else { &self.held[skipped..skipped + have] })
    }
}

/// Something in the archive that is not skipped.
struct ArchivePart {
    start: u64,
    end: u64,
    what: PartContent,
}

enum PartContent {
    /// A sample: hashes of its key and of its extensions.
    Sample { key: u64, shape: u64 },
    /// A sample that cannot be read; the samples beside it are unaffected.
    Refused(String),
    /// A stretch of unknown content, so that samples beside it may lack members.
    Lost(String),
}

impl ArchivePart {
    fn is_lost(&self) -> bool {
        matches!(self.what, PartContent::Lost(_))
    }
}

struct TarScan<'a, 'b> {
    bytes: Window<'a, 'b>,
    size: u64,
    pieces: Vec<ArchivePart>,
    open: Option<SampleInProgress>,
}

impl TarScan<'_, '_> {
    fn run(&mut self) -> Result<()> {
        if self.size == 0 {
            self.lose(0, 0, "the file is empty".into());
            return Ok(());
        }
        let (mut at, mut zeros, mut is_ended) = (0, 0, false);
        while at < self.size {
            match entry(&mut self.bytes, at)? {
                EntryStep::Zeros => {
                    zeros += 1;
                    is_ended = true;
                    at += BLOCK as u64;
                }
                EntryStep::Short { within, .. } => {
                    let rest = self.bytes.at(at, BLOCK)?;
                    if is_ended && rest.len() < BLOCK && rest.iter().all(|byte| *byte == 0) {
                        break;
                    }
                    let size = self.size;
                    self.lose(at, size, format!("the file ends at byte {size}, within {within}"));
                    return self.finish(true);
                }
                EntryStep::Bad { at: bad, why } => {
                    let next = resume(&mut self.bytes, bad, self.size)?.unwrap_or(self.size);
                    let place = if is_ended { "after the end marker, " } else { "" };
                    self.lose(at, next, format!("{place}there is no header at byte {bad}: {why}"));
                    is_ended |= next == self.size;
                    (at, zeros) = (next, 0);
                }
                EntryStep::Entry(entry) => {
                    if zeros == 1 {
                        let zero = at - BLOCK as u64;
                        let what = format!(
                            "a single block of zeros, at byte {zero}, is not an end marker"
                        );
                        self.lose(zero, at, what);
                    }
                    (zeros, is_ended) = (0, false);
                    at = self.add(at, entry);
                    if at > self.size {
                        return self.finish(true);
                    }
                }
            }
        }
        self.finish(is_ended)
    }

    /// Adds a member; returns the offset of the next header, which is beyond the end of the file if the data is
    /// truncated.
    fn add(&mut self, start: u64, mut entry: TarEntry) -> u64 {
        let part = MemberUse::of(&mut entry);
        let data_end = entry.data.saturating_add(entry.size);
        let is_truncated = data_end > self.size;
        if let MemberUse::Member { key, .. } = &part
            && self.open.as_ref().is_some_and(|open| open.key != entry.name[..*key])
        {
            self.close();
        }
        if is_truncated {
            let start = match &part {
                MemberUse::Member { .. } => self.open.take().map_or(start, |open| open.start),
                MemberUse::Skipped | MemberUse::Lost(_) => start,
            };
            self.close();
            let what = format!(
                "the file ends at byte {}, but member {} needs {} bytes from byte {} on",
                self.size,
                shown(&entry.name),
                entry.size,
                entry.data
            );
            self.pieces.push(ArchivePart {
                start,
                end: self.size,
                what: PartContent::Refused(what),
            });
            return u64::MAX;
        }
        let end = entry.end.min(self.size);
        match part {
            MemberUse::Skipped => {}
            MemberUse::Lost(why) => self.lose(start, end, why),
            MemberUse::Member { key, problem } => {
                let key = &entry.name[..key];
                self.open
                    .get_or_insert_with(|| SampleInProgress::new(key, start))
                    .add(&entry, end, problem);
            }
        }
        end
    }

    fn lose(&mut self, start: u64, end: u64, what: String) {
        self.close();
        self.pieces.push(ArchivePart { start, end, what: PartContent::Lost(what) });
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let (key, shape) = open.traits();
            let what = match open.problem {
                Some(problem) => PartContent::Refused(problem),
                None => PartContent::Sample { key, shape },
            };
            self.pieces.push(ArchivePart { start: open.start, end: open.end, what });
        }
    }

    fn finish(&mut self, is_ended: bool) -> Result<()> {
        self.close();
        if !is_ended {
            let size = self.size;
            let what =
                format!("the file ends at byte {size} without an end marker: it may be truncated");
            self.lose(size, size, what);
        }
        Ok(())
    }
}

/// The offset of the next good header after a block that is not a header; None if there is none.
pub(super) fn resume(bytes: &mut impl ArchiveBytes, bad: u64, size: u64) -> Result<Option<u64>> {
    let block = bytes.at(bad, BLOCK)?;
    if block.len() < BLOCK {
        return Ok(None);
    }
    let claim = Claim::of(block);
    let after = bad.saturating_add(BLOCK as u64);
    let is_extension = claim.is_extension || record(bytes.at(after, BLOCK)?).is_some();
    let mut next = None;
    let mut at = after;
    while next.is_none() && at < size {
        next = is_good(bytes, at, false)?.then_some(at);
        at = at.saturating_add(BLOCK as u64);
    }
    let claimed = claim.size.map(|claimed| padded(after, claimed)).filter(|end| *end < size);
    if let Some(claimed) = claimed
        && is_good(bytes, claimed, true)?
        && is_inside(bytes, next.unwrap_or(size), claimed)?
    {
        next = Some(claimed);
    }
    // Without the name in its extended header, a member would belong to another sample.
    if let Some(from) = next
        && is_extension
        && let EntryStep::Entry(entry) = entry(bytes, from)?
    {
        next = Some(entry.end.min(size));
    }
    Ok(next)
}

/// Whether a good header is inside the data of a member that ends at `end`: no header precedes it, or it starts a whole
/// archive with an end of its own.
fn is_inside(bytes: &mut impl ArchiveBytes, mut at: u64, end: u64) -> Result<bool> {
    if at >= end {
        return Ok(true);
    }
    while at < end {
        match entry(bytes, at)? {
            EntryStep::Zeros => return Ok(true),
            EntryStep::Entry(entry) => at = entry.end,
            EntryStep::Bad { .. } | EntryStep::Short { .. } => return Ok(false),
        }
    }
    Ok(false)
}

fn is_good(bytes: &mut impl ArchiveBytes, at: u64, zeros_count: bool) -> Result<bool> {
    let block = bytes.at(at, BLOCK)?;
    Ok(block.len() == BLOCK
        && match HeaderBlock::of(block) {
            HeaderBlock::Zeros => zeros_count,
            HeaderBlock::Header(header) => header.is_plausible(),
            HeaderBlock::Bad(_) => false,
        })
}

/// Joins a lost stretch with the samples beside it that may be incomplete: those with the same key on both sides, and
/// those without all the extensions of some other sample.
fn join_incomplete(pieces: Vec<ArchivePart>) -> Scanned {
    let is_lost = |number: usize| pieces.get(number).is_some_and(ArchivePart::is_lost);
    let key = |number: usize| match pieces.get(number).map(|piece| &piece.what) {
        Some(PartContent::Sample { key, .. }) => Some(*key),
        Some(PartContent::Refused(_) | PartContent::Lost(_)) | None => None,
    };
    let is_beside = |number: usize| (number > 0 && is_lost(number - 1), is_lost(number + 1));
    let mut whole = HashSet::new();
    for (number, piece) in pieces.iter().enumerate() {
        if let PartContent::Sample { shape, .. } = piece.what
            && is_beside(number) == (false, false)
        {
            whole.insert(shape);
        }
    }
    let joins = |number: usize| match pieces[number].what {
        PartContent::Sample { shape, key: own } => {
            let (after, before) = is_beside(number);
            let is_one = (after && number >= 2 && key(number - 2) == Some(own))
                || (before && key(number + 2) == Some(own));
            (after || before) && (is_one || !whole.contains(&shape))
        }
        PartContent::Refused(_) | PartContent::Lost(_) => false,
    };
    let mut scanned = Scanned::default();
    let mut number = 0;
    while number < pieces.len() {
        let mut last = number;
        while last + 1 < pieces.len()
            && ((joins(last) && is_lost(last + 1)) || (is_lost(last) && joins(last + 1)))
        {
            last += 1;
        }
        push(&mut scanned, &pieces[number..=last]);
        number = last + 1;
    }
    scanned
}

/// Adds pieces as one span.
fn push(scanned: &mut Scanned, pieces: &[ArchivePart]) {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return };
    let length = last.end - first.start;
    let mut reasons = Vec::new();
    let mut beside = 0;
    for piece in pieces {
        match &piece.what {
            PartContent::Sample { .. } => beside += 1,
            PartContent::Refused(what) | PartContent::Lost(what) => reasons.push(what.clone()),
        }
    }
    if reasons.is_empty() {
        return scanned.push(first.start, length);
    }
    if beside > 0 {
        let samples = if beside == 1 { "a sample" } else { "samples" };
        reasons.push(format!("{samples} beside it may lack members"));
    }
    if length > 0 {
        reasons.push(format!("{length} bytes from byte {} on are skipped", first.start));
    }
    scanned.push_corrupt(first.start, length, reasons.join("; "));
}
