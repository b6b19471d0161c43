//! The members of a sample.

use crate::error::{Error, Kind, Result};

use super::entry::{EntryStep, entry, shown};
use super::sample::{MemberUse, extension};

/// A file in a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    name: Vec<u8>,
    key: usize,
    /// Everything after the first dot of the file name, in lowercase: `jpg`, `seg.png`.
    pub extension: String,
    /// Its content.
    pub data: &'a [u8],
}

impl Member<'_> {
    /// Its name in the archive.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The part of the name that all members of a sample share.
    pub fn key(&self) -> &[u8] {
        &self.name[..self.key]
    }

    /// Its name as messages show it.
    pub fn shown(&self) -> String {
        shown(&self.name)
    }
}

/// Iterates over the members of a sample.
pub struct Members<'a> {
    span: &'a [u8],
    at: u64,
}

/// The members in the span of a sample, in order, without folders and links.
pub fn members(span: &[u8]) -> Members<'_> {
    Members { span, at: 0 }
}

impl<'a> Members<'a> {
    fn member(&mut self) -> Result<Option<Member<'a>>> {
        while self.at < self.span.len() as u64 {
            let mut bytes = self.span;
            let mut entry = match entry(&mut bytes, self.at)? {
                EntryStep::Entry(entry) => entry,
                EntryStep::Zeros => {
                    return Err(changed(format!("only zeros at byte {} of it", self.at)));
                }
                EntryStep::Bad { at, why } => {
                    return Err(changed(format!("no header at byte {at} of it: {why}")));
                }
                EntryStep::Short { within, .. } => {
                    return Err(changed(format!("it ends within {within}")));
                }
            };
            self.at = entry.end;
            let end = usize::try_from(entry.data.saturating_add(entry.size)).unwrap_or(usize::MAX);
            let data = self.span.get(entry.data as usize..end).ok_or_else(|| {
                changed(format!("it ends within the data of member {}", shown(&entry.name)))
            })?;
            match MemberUse::of(&mut entry) {
                MemberUse::Skipped => {}
                MemberUse::Lost(problem) | MemberUse::Member { problem: Some(problem), .. } => {
                    return Err(Error::new(Kind::UnsafeFormat, problem));
                }
                MemberUse::Member { key, problem: None } => {
                    let extension = extension(&entry.name, key);
                    return Ok(Some(Member { name: entry.name, key, extension, data }));
                }
            }
        }
        Ok(None)
    }
}

fn changed(what: String) -> Error {
    Error::new(Kind::CorruptRecord, format!("the sample changed since it was indexed: {what}"))
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<Member<'a>>;

    fn next(&mut self) -> Option<Result<Member<'a>>> {
        let member = self.member();
        if member.is_err() {
            self.at = u64::MAX;
        }
        member.transpose()
    }
}
