//! Judges faults one by one, in order, so that the verdict depends on the samples and not on timing; and
//! remembers them by cause, for the error that ends a run and for the summary of an epoch.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use super::{Action, FaultLine, FaultPolicy, Symptom};
use crate::engine::{Limit, Limits, Of, Standing, TooMany};
use crate::error::{Error, Kind};
use crate::sample::Location;

/// Faults that the last words of a run spell out.
const LAST: usize = 3;
/// Kinds of faults that a table has.
const KINDS: usize = 8;
/// Letters of a message that an example has.
const BRIEF: usize = 120;

/// What is done about a fault.
#[derive(Debug)]
pub enum Verdict {
    /// The sample is left out.
    Skip,
    /// Another sample takes its place.
    Replace,
    /// The run ends.
    Stop(Stop),
}

/// Why a run ends.
#[derive(Debug)]
pub enum Stop {
    /// The fault itself is to be raised.
    Raised,
    /// There were too many.
    TooMany(Error),
}

/// Knows the policy and counts.
#[derive(Clone, Debug)]
pub struct Judge {
    policy: FaultPolicy,
    limits: Limits,
    /// By kind: how many, and the first of them.
    kinds: BTreeMap<String, (u64, FaultLine)>,
    last: VecDeque<FaultLine>,
}

impl Judge {
    /// Nothing was judged yet.
    pub fn new(policy: FaultPolicy) -> Judge {
        let (kinds, last) = (BTreeMap::new(), VecDeque::new());
        let limits = Limits::new(policy.limit, policy.window);
        Judge { policy, limits, kinds, last }
    }

    /// The policy.
    pub fn policy(&self) -> &FaultPolicy {
        &self.policy
    }

    /// An epoch begins, or goes on where it stood.
    pub fn begin(&mut self, standing: Standing, expected: Option<u64>) {
        self.limits.begin(standing, expected);
        self.kinds.clear();
        self.last.clear();
    }

    /// More samples are due than was known. Where nothing was known, this is not yet all: a share is not
    /// of so few.
    pub fn expect(&mut self, samples: u64) {
        self.limits.expected = self.limits.expected.map(|expected| expected + samples);
    }

    /// How the epoch stands.
    pub fn standing(&self) -> &Standing {
        &self.limits.standing
    }

    /// How the epoch stands, as the engine says.
    pub fn set_standing(&mut self, standing: Standing) {
        self.limits.standing = standing;
    }

    /// This many samples were good.
    pub fn good(&mut self, samples: u64) {
        self.limits.add_good(samples);
    }

    /// A sample was bad.
    pub fn judge(&mut self, symptom: &Symptom, line: &FaultLine) -> Verdict {
        let action = wanted(&self.policy, symptom, line);
        self.remember(line);
        let too_many = self.limits.add_fault();
        if action == Action::Raise {
            return Verdict::Stop(Stop::Raised);
        }
        if let Some(too_many) = too_many {
            return Verdict::Stop(Stop::TooMany(self.too_many(too_many)));
        }
        match action {
            Action::Skip => Verdict::Skip,
            Action::Replace => Verdict::Replace,
            Action::Raise => unreachable!("returned above"),
        }
    }

    /// The epoch is over: whether too many of its samples were bad, which can be said only now where
    /// their number was not known before.
    pub fn end(&mut self) -> Option<Error> {
        self.limits.end().map(|too_many| self.too_many(too_many))
    }

    /// Remembers a fault by its cause.
    pub fn remember(&mut self, line: &FaultLine) {
        let entry = self.kinds.entry(line.kind.clone()).or_insert_with(|| (0, line.clone()));
        entry.0 += 1;
        self.last.push_back(line.clone());
        if self.last.len() > LAST {
            self.last.pop_front();
        }
    }

    /// The error of a run that ends because there were too many faults.
    pub fn too_many(&self, too_many: TooMany) -> Error {
        let TooMany { faults: count, allowed, share } = too_many;
        let is_default = self.policy.limit == Some(Limit::DEFAULT);
        let default = if is_default { ", the default" } else { "" };
        let limit = match share {
            None => allowed.to_string(),
            Some((share, Of::Epoch(samples))) => {
                format!("{allowed} ({share} of {samples} samples{default})")
            }
            Some((share, Of::Last(window))) => {
                format!("{allowed} ({share} of the last {window} samples{default})")
            }
        };
        let mut message = format!("{count} faults are more than the limit of {limit}");
        message += &self.causes();
        let _ = write!(message, "\nthe last of them:");
        for line in &self.last {
            let _ = write!(message, "\n  {line}");
        }
        self.at_last(Error::new(Kind::TooManyFaults, message))
    }

    /// The epoch is over, and all of its samples were bad: a run without samples is no success, whatever
    /// the limit.
    pub fn nothing_left(&self) -> Option<Error> {
        if !self.limits.has_only_faults() {
            return None;
        }
        let faults = self.limits.standing.faults;
        let message = format!("all {faults} samples were bad, nothing is left{}", self.causes());
        let hint = "look at the causes above: one mistake is likelier than as many bad samples";
        Some(self.at_last(Error::new(Kind::TooManyFaults, message).with_hint(hint)))
    }

    /// The faults of the epoch by their kind, a line each, with an example.
    pub fn causes(&self) -> String {
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
                error = error.of_sample(index, stage_name(&line.stage));
            }
        }
        error
    }
}

/// What a policy wants for a fault, however many there were: what the verdict is unless there are too many.
pub fn wanted(policy: &FaultPolicy, symptom: &Symptom, line: &FaultLine) -> Action {
    let is_of_sample =
        Kind::named(&line.kind).is_none_or(Kind::is_of_sample) && !symptom.is_a_wish_to_stop();
    if is_of_sample { policy.rule(symptom).action } else { Action::Raise }
}

/// Whether a fault is the sample's, so that a run without the sample does not have it.
pub fn is_of_sample(symptom: &Symptom, line: &FaultLine) -> bool {
    Kind::named(&line.kind).is_none_or(Kind::is_of_sample)
        && !symptom.is_a_wish_to_stop()
        && !symptom.is_shortage()
}

/// An example in few words.
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
    use super::super::symptom::tests::named;
    use super::*;
    use proptest::prelude::*;

    fn bad(index: u64, kind: &str) -> FaultLine {
        FaultLine {
            path: Some(format!("data/{index}.jpg")),
            stage: "worker".into(),
            message: "truncated".into(),
            ..FaultLine::new(index, kind)
        }
    }

    fn judge(action: Action, limit: Option<Limit>, window: u64, expected: Option<u64>) -> Judge {
        let mut judge = Judge::new(FaultPolicy { action, limit, window, ..FaultPolicy::default() });
        judge.begin(Standing::default(), expected);
        judge
    }

    fn damaged() -> Symptom {
        named(&["CorruptImageError", "FeedlineError", "Exception"])
    }

    fn tried(judge: &mut Judge, index: u64) -> Option<Error> {
        match judge.judge(&damaged(), &bad(index, "CorruptImageError")) {
            Verdict::Stop(Stop::TooMany(error)) => Some(error),
            Verdict::Stop(Stop::Raised) => panic!("not to be raised"),
            Verdict::Skip | Verdict::Replace => None,
        }
    }

    #[test]
    fn the_default_raises_the_fault_itself() {
        let mut judge = judge(Action::Raise, None, 1000, Some(10));
        let verdict = judge.judge(&damaged(), &bad(3, "CorruptImageError"));
        assert!(matches!(verdict, Verdict::Stop(Stop::Raised)), "{verdict:?}");
    }

    #[test]
    fn a_limit_is_what_is_still_borne_and_the_error_says_what_failed() {
        let mut judge = judge(Action::Skip, Some(Limit::Count(4)), 1000, Some(100));
        for index in 0..3 {
            assert!(tried(&mut judge, index).is_none());
        }
        let unknown = named(&["UnknownFormatError", "FeedlineError", "Exception"]);
        assert!(matches!(judge.judge(&unknown, &bad(7, "UnknownFormatError")), Verdict::Skip));
        insta::assert_snapshot!(tried(&mut judge, 12).unwrap());
    }

    #[test]
    fn a_share_of_a_short_epoch_is_of_its_samples() {
        let mut judge = judge(Action::Skip, Some(Limit::Share(0.1)), 1000, Some(24));
        assert!(tried(&mut judge, 0).is_none() && tried(&mut judge, 1).is_none());
        let error = tried(&mut judge, 2).unwrap();
        assert!(error.message().starts_with("3 faults are more than the limit of 2 (0.1 of 24"));
    }

    #[test]
    fn one_early_fault_of_a_long_run_is_borne_and_half_a_data_set_is_not() {
        let share = Some(Limit::Share(0.01));
        let mut early = judge(Action::Skip, share, 1000, Some(1_000_000));
        assert!(tried(&mut early, 0).is_none());
        early.good(5_000);
        assert!(tried(&mut early, 1).is_none());
        let mut half = judge(Action::Skip, share, 1000, Some(1_000_000));
        let stopped = (0..).find(|index| {
            half.good(1);
            tried(&mut half, *index).is_some()
        });
        assert_eq!(stopped, Some(499), "after a thousand samples");
    }

    #[test]
    fn the_default_limit_is_half_and_the_error_says_that_it_is_the_default() {
        let mut judge = Judge::new(FaultPolicy { action: Action::Skip, ..FaultPolicy::default() });
        judge.begin(Standing::default(), Some(40));
        assert!((0..20).all(|index| tried(&mut judge, index).is_none()));
        let error = tried(&mut judge, 20).unwrap();
        let said = "21 faults are more than the limit of 20 (0.5 of 40 samples, the default)";
        assert!(error.message().starts_with(said), "{error}");
        assert!(error.hint().contains("limit="), "{error}");
    }

    #[test]
    fn an_epoch_without_a_good_sample_names_the_causes() {
        let mut judge = judge(Action::Skip, None, 1000, None);
        assert!(tried(&mut judge, 3).is_none());
        let error = judge.nothing_left().unwrap();
        assert_eq!(error.kind(), Kind::TooManyFaults);
        assert!(error.message().contains("such as sample 3, data/3.jpg: truncated"), "{error}");
        judge.good(1);
        assert!(judge.nothing_left().is_none());
    }

    #[test]
    fn an_epoch_of_unknown_length_is_judged_at_its_end() {
        let mut judge = judge(Action::Skip, Some(Limit::Share(0.1)), 1000, None);
        judge.expect(4);
        for index in 0..5 {
            assert!(tried(&mut judge, index).is_none());
        }
        judge.expect(16);
        judge.good(15);
        let error = judge.end().unwrap();
        assert!(error.message().starts_with("5 faults are more than the limit of 2"), "{error}");
    }

    #[test]
    fn want_of_descriptors_and_a_wish_to_stop_are_never_skipped_over() {
        let mut judge = judge(Action::Skip, None, 1000, Some(10));
        let verdict = judge.judge(
            &named(&["TooManyOpenFilesError", "Exception"]),
            &bad(0, "TooManyOpenFilesError"),
        );
        assert!(matches!(verdict, Verdict::Stop(Stop::Raised)));
        let few = Symptom { os_error: Some(24), ..named(&["OSError", "Exception"]) };
        assert!(matches!(judge.judge(&few, &bad(0, "OSError")), Verdict::Stop(Stop::Raised)));
        for shortage in ["MemoryError", "OutOfMemoryError", "OutOfThreadsError"] {
            let short = named(&["RuntimeError", "Exception", shortage]);
            let verdict = judge.judge(&short, &bad(0, "RuntimeError"));
            assert!(matches!(verdict, Verdict::Stop(Stop::Raised)), "{shortage}: {verdict:?}");
        }
        let stop = named(&["KeyboardInterrupt", "BaseException"]);
        assert!(matches!(judge.judge(&stop, &bad(0, "KeyboardInterrupt")), Verdict::Stop(_)));
        assert!(matches!(
            judge.judge(&named(&["WorkerDiedError"]), &bad(0, "WorkerDiedError")),
            Verdict::Skip
        ));
    }

    proptest! {
        /// The short memory of a judge says what a judge that remembers everything would say, also
        /// when it goes on from a standing that was written down.
        #[test]
        fn a_share_is_judged_as_by_a_perfect_memory(
            samples in prop::collection::vec(prop::bool::weighted(0.2), 1..400),
            window in 1_u64..60, share in 0.0_f64..0.5, resumed_at in 0_usize..400,
        ) {
            let limit = Some(Limit::Share(share));
            let mut short = judge(Action::Skip, limit, window, None);
            for (place, is_bad) in samples.iter().enumerate() {
                if place == resumed_at {
                    let text = serde_json::to_string(short.standing()).unwrap();
                    short = judge(Action::Skip, limit, window, None);
                    short.begin(serde_json::from_str(&text).unwrap(), None);
                }
                if !is_bad {
                    short.good(1);
                    continue;
                }
                let seen = place as u64 + 1;
                let start = seen.saturating_sub(window) as usize;
                let within = samples[start..=place].iter().filter(|bad| **bad).count() as u64;
                let expected = seen >= window && within > (share * window as f64).floor() as u64;
                let stopped = tried(&mut short, place as u64).is_some();
                prop_assert_eq!(stopped, expected, "at {}", place);
            }
        }
    }
}
