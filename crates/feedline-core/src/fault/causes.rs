//! The faults of an epoch by cause: what the error that ends a run says, and the summary of an epoch.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use super::FaultLine;
use crate::engine::{Limit, ShareOf, TooMany};
use crate::error::{Error, Kind};
use crate::sample::Location;

/// Faults that the summary of a run names one by one.
const LAST: usize = 3;
/// Kinds of faults that a table has.
const KINDS: usize = 8;
/// Letters of a message that an example has.
const BRIEF: usize = 120;

/// The faults of an epoch by cause.
#[derive(Clone, Debug, Default)]
pub struct Causes {
    /// By kind: how many, and the first of them.
    kinds: BTreeMap<String, (u64, FaultLine)>,
    last: VecDeque<FaultLine>,
}

impl Causes {
    /// Adds a fault.
    pub fn add(&mut self, line: &FaultLine) {
        let entry = self.kinds.entry(line.kind.clone()).or_insert_with(|| (0, line.clone()));
        entry.0 += 1;
        self.last.push_back(line.clone());
        if self.last.len() > LAST {
            self.last.pop_front();
        }
    }

    /// The error of a run that ends because there were more faults than this limit allows.
    pub fn too_many(&self, too_many: TooMany, limit: Option<Limit>) -> Error {
        let TooMany { faults: count, allowed, share } = too_many;
        let is_default = limit == Some(Limit::DEFAULT);
        let default = if is_default { ", the default" } else { "" };
        let limit = match share {
            None => allowed.to_string(),
            Some((share, ShareOf::Epoch(samples))) => {
                format!("{allowed} ({share} of {samples} samples{default})")
            }
            Some((share, ShareOf::Last(window))) => {
                format!("{allowed} ({share} of the last {window} samples{default})")
            }
        };
        let mut message = format!("{count} faults are more than the limit of {limit}");
        message += &self.table();
        let _ = write!(message, "\nthe last of them:");
        for line in &self.last {
            let _ = write!(message, "\n  {line}");
        }
        self.at_last(Error::new(Kind::TooManyFaults, message))
    }

    /// The epoch is over, and all of its samples were bad: a run without samples is no success, whatever
    /// the limit.
    pub fn nothing_left(&self, faults: u64) -> Error {
        let message = format!("all {faults} samples were bad, nothing is left{}", self.table());
        let hint = "look at the causes above: one mistake is likelier than as many bad samples";
        self.at_last(Error::new(Kind::TooManyFaults, message).with_hint(hint))
    }

    /// The faults of the epoch by their kind, a line each, with an example.
    pub fn table(&self) -> String {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        let more = kinds.split_off(kinds.len().min(KINDS));
        let width = kinds.iter().map(|(kind, _)| kind.chars().count()).max().unwrap_or(0);
        let mut causes = String::new();
        for (kind, (count, example)) in kinds {
            let _ = write!(causes, "\n  {kind:<width$} {count:>6}  such as {}", brief(example));
        }
        if !more.is_empty() {
            let _ = write!(causes, "\n  and {} other kinds", more.len());
        }
        causes
    }

    /// An error that names the last fault.
    fn at_last(&self, mut error: Error) -> Error {
        if let Some(line) = self.last.back() {
            let location = line.path.as_ref().map(|path| Location {
                path: path.into(),
                offset: line.offset,
                record: line.record,
            });
            error = error.at(location);
            if let Some(index) = line.number() {
                error = error.of_sample(index, line.epoch, stage_name(&line.stage));
            }
        }
        error
    }
}

/// A short example.
fn brief(line: &FaultLine) -> String {
    let mut brief = line.name();
    if line.path.is_some() {
        let _ = write!(brief, ", {}", line.place());
    }
    let message = line.message.lines().next().unwrap_or_default();
    if !message.is_empty() {
        let end = message.char_indices().nth(BRIEF).map_or(message.len(), |(end, _)| end);
        let _ =
            write!(brief, ": {}{}", &message[..end], if end < message.len() { "..." } else { "" });
    }
    brief
}

/// The stage of that name, or what stands for the user's own code.
fn stage_name(name: &str) -> &'static str {
    use crate::sample::Stage;
    let stages =
        [Stage::Source, Stage::Plan, Stage::Fetch, Stage::Worker, Stage::Collate, Stage::Deliver];
    stages.iter().map(|stage| stage.name()).find(|stage| *stage == name).unwrap_or("worker")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(faults: &[(u64, &str)]) -> Causes {
        let mut causes = Causes::default();
        for (index, kind) in faults {
            causes.add(&FaultLine {
                path: Some(format!("data/{index}.jpg")),
                stage: "worker".into(),
                message: "truncated".into(),
                ..FaultLine::new(*index, kind)
            });
        }
        causes
    }

    #[test]
    fn too_many_faults_are_reported_by_cause() {
        let corrupt = [0, 1, 2].map(|index| (index, "CorruptImageError"));
        let others = [(7, "UnknownFormatError"), (12, "CorruptImageError")];
        let causes = causes(&[&corrupt[..], &others].concat());
        let too_many = TooMany { faults: 5, allowed: 4, share: None };
        insta::assert_snapshot!(causes.too_many(too_many, Some(Limit::Count(4))));
    }

    #[test]
    fn the_error_says_what_a_share_is_of_and_whether_it_is_the_default() {
        let causes = causes(&[(3, "CorruptImageError")]);
        for (limit, of, said) in [
            (Limit::DEFAULT, ShareOf::Epoch(40), "20 (0.5 of 40 samples, the default)"),
            (Limit::Share(0.02), ShareOf::Last(1000), "20 (0.02 of the last 1000 samples)"),
        ] {
            let Limit::Share(share) = limit else { continue };
            let too_many = TooMany { faults: 21, allowed: 20, share: Some((share, of)) };
            let error = causes.too_many(too_many, Some(limit));
            let said = format!("21 faults are more than the limit of {said}\n");
            assert!(error.message().starts_with(&said), "{error}");
            assert!(error.hint().contains("limit="), "{error}");
        }
    }

    #[test]
    fn an_epoch_without_a_good_sample_names_the_causes() {
        let error = causes(&[(3, "CorruptImageError")]).nothing_left(1);
        assert_eq!(error.kind(), Kind::TooManyFaults);
        assert!(error.message().contains("such as sample 3, data/3.jpg: truncated"), "{error}");
    }
}
