//! Splits a stream of tar bytes into samples.

use std::collections::HashSet;

use crate::format::Split;

use super::entry::{EntryStep, entry, shown};
use super::header::BLOCK;
use super::sample::{MemberUse, SampleInProgress};
use super::scan::resume;

/// A longer stretch without a header is reported in parts.
const MOST_LOST: usize = 1 << 20;

/// Splits the bytes of a stream; the caller drops the bytes that were reported.
#[derive(Default)]
pub(crate) struct TarSplitter {
    has_begun: bool,
    is_ended: bool,
    zeros: u64,
    /// What was lost just before: None, or a part of a sample with this key, or of any sample if empty.
    lost: Option<Vec<u8>>,
    /// Hashes of the extensions of complete samples.
    whole: HashSet<u64>,
}

impl TarSplitter {
    /// A splitter at the beginning of a stream.
    pub(crate) fn new() -> TarSplitter {
        TarSplitter::default()
    }

    /// What `bytes` start with; `is_end` if nothing follows them. A sample is complete when the next one begins.
    pub(crate) fn split(&mut self, bytes: &[u8], is_end: bool) -> Split {
        if bytes.is_empty() {
            return self.end(is_end);
        }
        self.has_begun = true;
        let mut open: Option<SampleInProgress> = None;
        let mut at = 0;
        loop {
            let have = bytes.len();
            if at as usize >= have {
                return match open {
                    Some(open) if is_end => {
                        // Without an end marker, the sample may be incomplete.
                        self.lost.get_or_insert_default();
                        self.finished(open)
                    }
                    Some(_) | None => more(have, have + BLOCK),
                };
            }
            let Ok(step) = entry(&mut &*bytes, at) else { return more(have, have + BLOCK) };
            match step {
                EntryStep::Short { needed, .. } if !is_end => {
                    return more(have, usize::try_from(needed).unwrap_or(usize::MAX));
                }
                EntryStep::Short { within, .. } => {
                    let rest = &bytes[at as usize..];
                    if self.is_ended && open.is_none() && rest.iter().all(|byte| *byte == 0) {
                        return Split::Ignored(have);
                    }
                    self.is_ended = true;
                    return Split::Corrupt(have, format!("the archive ends within {within}"));
                }
                EntryStep::Zeros => {
                    if let Some(open) = open {
                        return self.finished(open);
                    }
                    self.zeros += 1;
                    self.is_ended = true;
                    return Split::Ignored(BLOCK);
                }
                EntryStep::Bad { at: bad, why } => {
                    let next = resume(&mut &*bytes, bad, have as u64).ok().flatten();
                    if next.is_none() && !is_end && have < MOST_LOST {
                        return more(have, have + NEXT);
                    }
                    let whole = if is_end { have } else { have / BLOCK * BLOCK };
                    let next = next.map_or(whole, |next| next as usize);
                    self.lost = Some(open.map_or_else(Vec::new, |open| open.key));
                    self.zeros = 0;
                    self.is_ended |= is_end && next == have;
                    let what = format!("there is no header: {why}; {next} bytes are skipped");
                    return Split::Corrupt(next, what);
                }
                EntryStep::Entry(mut entry) => {
                    if self.zeros == 1 {
                        self.zeros = 0;
                        self.lost = Some(Vec::new());
                        let what =
                            "the single block of zeros before this is not an end marker".into();
                        return Split::Corrupt(0, what);
                    }
                    let part = MemberUse::of(&mut entry);
                    let is_other = match (&part, &open) {
                        (MemberUse::Member { key, .. }, Some(open)) => {
                            open.key != entry.name[..*key]
                        }
                        (MemberUse::Lost(_), Some(_)) => true,
                        _ => false,
                    };
                    if let (true, Some(open)) = (is_other, open.take_if(|_| is_other)) {
                        return self.finished(open);
                    }
                    if entry.end > have as u64 && !is_end {
                        return more(have, usize::try_from(entry.end).unwrap_or(usize::MAX));
                    }
                    (self.zeros, self.is_ended) = (0, false);
                    if entry.data.saturating_add(entry.size) > have as u64 {
                        self.is_ended = true;
                        let name = shown(&entry.name);
                        let what = format!("the archive ends within the data of member {name}");
                        return Split::Corrupt(have, what);
                    }
                    let end = entry.end.min(have as u64);
                    match part {
                        MemberUse::Skipped if open.is_none() => {
                            return Split::Ignored(end as usize);
                        }
                        MemberUse::Skipped => {}
                        MemberUse::Lost(why) => {
                            self.lost = Some(Vec::new());
                            return Split::Corrupt(end as usize, why);
                        }
                        MemberUse::Member { key, problem } => {
                            let key = &entry.name[..key];
                            let open = open.get_or_insert_with(|| SampleInProgress::new(key, 0));
                            open.add(&entry, end, problem);
                        }
                    }
                    at = end;
                }
            }
        }
    }

    fn finished(&mut self, open: SampleInProgress) -> Split {
        let length = open.end as usize;
        let (_, shape) = open.traits();
        let lost = self.lost.take();
        let is_rest = lost.as_ref() == Some(&open.key);
        match open.problem {
            Some(problem) => Split::Corrupt(length, problem),
            None if is_rest || (lost.is_some() && !self.whole.contains(&shape)) => {
                let key = shown(&open.key);
                let what = format!("sample {key} may lack members that were lost beside it");
                Split::Corrupt(length, what)
            }
            None => {
                self.whole.insert(shape);
                Split::Record(length)
            }
        }
    }

    fn end(&mut self, is_end: bool) -> Split {
        if !is_end {
            return Split::More(BLOCK);
        }
        if self.is_ended {
            return Split::End;
        }
        self.is_ended = true;
        let what = match self.has_begun {
            true => "the archive ends without an end marker: it may be truncated",
            false => "the archive is empty",
        };
        Split::Corrupt(0, what.into())
    }
}

const NEXT: usize = 64 << 10;

/// Requests more bytes; for a long sample many more, because all of it is parsed again.
fn more(have: usize, needed: usize) -> Split {
    Split::More(if have < MOST_LOST { needed } else { needed.max(have + have / 2) })
}
