//! Goes through an archive by its headers alone and lists where its samples lie. Nothing is lost
//! without a word: what cannot be read is a span that says why.

use std::collections::HashSet;

use crate::error::Result;
use crate::format::{ReadAt, Scanned};

use super::entry::{Bytes, Entry, EntryStep, entry, padded, record, shown};
use super::header::{BLOCK, Block, Claim};
use super::sample::{Part, SampleInProgress};

/// How much is read at once where headers lie close together, and where they do not.
const NEAR: usize = 64 << 10;
const FAR: usize = 4 << 10;

/// Lists the samples of an archive of that size.
pub(crate) fn scan(size: u64, read: &mut ReadAt<'_>) -> Result<Scanned> {
    let bytes = Window { read, size, start: 0, held: Vec::new(), filled: 0 };
    let mut scan = Scan { bytes, size, pieces: Vec::new(), open: None };
    scan.run()?;
    Ok(settled(scan.pieces))
}

/// A part of the file in memory.
struct Window<'a, 'b> {
    read: &'a mut ReadAt<'b>,
    size: u64,
    start: u64,
    held: Vec<u8>,
    filled: usize,
}

impl Bytes for Window<'_, '_> {
    fn at(&mut self, start: u64, length: usize) -> Result<&[u8]> {
        let length = self.size.saturating_sub(start).min(length as u64) as usize;
        let end = self.start + self.filled as u64;
        if length > 0 && (start < self.start || start + length as u64 > end) {
            let is_near = start.abs_diff(end) < NEAR as u64;
            let wish = if is_near { NEAR } else { FAR }.max(length);
            self.held.resize(wish.max(self.held.len()), 0);
            self.filled = (self.read)(start, &mut self.held[..wish])?;
            self.start = start;
        }
        let skipped = (start - self.start.min(start)) as usize;
        let have = self.filled.saturating_sub(skipped).min(length);
        Ok(if have == 0 { &[] } else { &self.held[skipped..skipped + have] })
    }
}

/// Something in the archive that is not skipped.
struct Piece {
    start: u64,
    end: u64,
    what: What,
}

enum What {
    /// A sample: a number for its key, one for its extensions.
    Sample { key: u64, shape: u64 },
    /// A sample that cannot be read as a whole; those beside it are not touched by that.
    Refused(String),
    /// A stretch of which nobody knows what it was, so that samples beside it may lack members.
    Lost(String),
}

impl Piece {
    fn is_lost(&self) -> bool {
        matches!(self.what, What::Lost(_))
    }
}

struct Scan<'a, 'b> {
    bytes: Window<'a, 'b>,
    size: u64,
    pieces: Vec<Piece>,
    open: Option<SampleInProgress>,
}

impl Scan<'_, '_> {
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
                        let what = format!("a single block of zeros, at byte {zero}, ends nothing");
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

    /// Takes a member in; returns where the next header is, beyond the end of the file if the file
    /// ends before the data do.
    fn add(&mut self, start: u64, mut entry: Entry) -> u64 {
        let part = Part::of(&mut entry);
        let data_end = entry.data.saturating_add(entry.size);
        let is_cut = data_end > self.size;
        if let Part::Member { key, .. } = &part
            && self.open.as_ref().is_some_and(|open| open.key != entry.name[..*key])
        {
            self.close();
        }
        if is_cut {
            let start = match &part {
                Part::Member { .. } => self.open.take().map_or(start, |open| open.start),
                Part::Passed | Part::Lost(_) => start,
            };
            self.close();
            let what = format!(
                "the file ends at byte {}, but member {} needs {} bytes from byte {} on",
                self.size,
                shown(&entry.name),
                entry.size,
                entry.data
            );
            self.pieces.push(Piece { start, end: self.size, what: What::Refused(what) });
            return u64::MAX;
        }
        let end = entry.end.min(self.size);
        match part {
            Part::Passed => {}
            Part::Lost(why) => self.lose(start, end, why),
            Part::Member { key, problem } => {
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
        self.pieces.push(Piece { start, end, what: What::Lost(what) });
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let (key, shape) = open.traits();
            let what = match open.problem {
                Some(problem) => What::Refused(problem),
                None => What::Sample { key, shape },
            };
            self.pieces.push(Piece { start: open.start, end: open.end, what });
        }
    }

    fn finish(&mut self, is_ended: bool) -> Result<()> {
        self.close();
        if !is_ended {
            let size = self.size;
            let what = format!("the file ends at byte {size} without an end marker: it may be cut");
            self.lose(size, size, what);
        }
        Ok(())
    }
}

/// Where to go on after a block that is no header: at the next good one. None where there is none.
pub(super) fn resume(bytes: &mut impl Bytes, bad: u64, size: u64) -> Result<Option<u64>> {
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
    // Without the name in its extended header, a member would count to another sample.
    if let Some(from) = next
        && is_extension
        && let EntryStep::Entry(entry) = entry(bytes, from)?
    {
        next = Some(entry.end.min(size));
    }
    Ok(next)
}

/// Whether a good header is in the data of a member that ends at `end`: there is none before, or there
/// is a whole archive, which has an end of its own.
fn is_inside(bytes: &mut impl Bytes, mut at: u64, end: u64) -> Result<bool> {
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

fn is_good(bytes: &mut impl Bytes, at: u64, zeros_count: bool) -> Result<bool> {
    let block = bytes.at(at, BLOCK)?;
    Ok(block.len() == BLOCK
        && match Block::of(block) {
            Block::Zeros => zeros_count,
            Block::Header(header) => header.is_plausible(),
            Block::Bad(_) => false,
        })
}

/// Joins to a lost stretch the samples beside it that it may have cut: those of one key on both sides,
/// and those that have not all the extensions of some other sample.
fn settled(pieces: Vec<Piece>) -> Scanned {
    let is_lost = |number: usize| pieces.get(number).is_some_and(Piece::is_lost);
    let key = |number: usize| match pieces.get(number).map(|piece| &piece.what) {
        Some(What::Sample { key, .. }) => Some(*key),
        Some(What::Refused(_) | What::Lost(_)) | None => None,
    };
    let is_beside = |number: usize| (number > 0 && is_lost(number - 1), is_lost(number + 1));
    let mut whole = HashSet::new();
    for (number, piece) in pieces.iter().enumerate() {
        if let What::Sample { shape, .. } = piece.what
            && is_beside(number) == (false, false)
        {
            whole.insert(shape);
        }
    }
    let joins = |number: usize| match pieces[number].what {
        What::Sample { shape, key: own } => {
            let (after, before) = is_beside(number);
            let is_one = (after && number >= 2 && key(number - 2) == Some(own))
                || (before && key(number + 2) == Some(own));
            (after || before) && (is_one || !whole.contains(&shape))
        }
        What::Refused(_) | What::Lost(_) => false,
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
fn push(scanned: &mut Scanned, pieces: &[Piece]) {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return };
    let length = last.end - first.start;
    let mut words = Vec::new();
    let mut beside = 0;
    for piece in pieces {
        match &piece.what {
            What::Sample { .. } => beside += 1,
            What::Refused(what) | What::Lost(what) => words.push(what.clone()),
        }
    }
    if words.is_empty() {
        return scanned.push(first.start, length);
    }
    if beside > 0 {
        let samples = if beside == 1 { "a sample" } else { "samples" };
        words.push(format!("{samples} beside it may lack members"));
    }
    if length > 0 {
        words.push(format!("{length} bytes from byte {} on are skipped", first.start));
    }
    scanned.push_damage(first.start, length, words.join("; "));
}
