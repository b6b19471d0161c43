//! The user's policy for faults, and the rule it gives for one of them.

use core::time::Duration;
use serde_json::{Map, Value, json};
use std::fmt;
use std::path::PathBuf;

use super::symptom::fits;
use super::{FaultLine, Symptom};
use crate::engine::{Limit, PolicyAction};
use crate::error::Kind;
use crate::random::Random;

/// What to do about a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// End the run with the fault as its error.
    #[default]
    Raise,
    /// Skip the sample.
    Skip,
    /// Replace the sample by another.
    Replace,
}

impl Action {
    /// All actions with their names.
    pub const ALL: [(&'static str, Action); 3] =
        [("raise", Action::Raise), ("skip", Action::Skip), ("replace", Action::Replace)];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Action::Raise => "raise",
            Action::Skip => "skip",
            Action::Replace => "replace",
        }
    }
}

impl From<Action> for PolicyAction {
    fn from(action: Action) -> PolicyAction {
        match action {
            Action::Raise => PolicyAction::Raise,
            Action::Skip => PolicyAction::Skip,
            Action::Replace => PolicyAction::Replace,
        }
    }
}

/// How long to wait before a retry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Before the first retry.
    pub first: Duration,
    /// Each wait is this many times the one before.
    pub factor: f64,
    /// But never longer than this.
    pub longest: Duration,
    /// The random share of a wait, so that ranks do not retry all at once.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(30));
        Backoff { first, factor: 2.0, longest, jitter: 0.5 }
    }
}

/// An exception from the policy for one class of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The number of retries.
    pub retry: Option<u32>,
    /// What to do after that.
    pub action: Option<Action>,
}

/// The rule for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedRule {
    /// The number of retries.
    pub retry: u32,
    /// What to do after that.
    pub action: Action,
    /// Whether the user named this class: then it is retried even if it looks permanent.
    pub is_retry_by_name: bool,
}

/// Classes so general that a rule for one of them does not cover a shortage of the machine.
const BROAD: &[&str] = &["OSError", "RuntimeError", "Exception", "BaseException"];

/// The user's policy for faults.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultPolicy {
    /// The number of retries for a transient fault.
    pub retry: u32,
    /// How long to wait before a retry.
    pub backoff: Backoff,
    /// What to do after that.
    pub action: Action,
    /// Whether another sample fills the slot of a skipped one; None if the user did not set it.
    pub fill: Option<bool>,
    /// How many faults are allowed; None for any number.
    pub limit: Option<Limit>,
    /// The number of samples over which a share is judged.
    pub window: u64,
    /// Rules for classes of faults, by name.
    pub by_type: Vec<(String, Rule)>,
    /// The file that bad samples are written to.
    pub quarantine: Option<PathBuf>,
    /// How long a source may be unavailable; zero to not wait at all.
    pub patience: Duration,
}

impl Default for FaultPolicy {
    fn default() -> FaultPolicy {
        FaultPolicy {
            retry: 0,
            backoff: Backoff::default(),
            action: Action::Raise,
            fill: None,
            limit: Some(Limit::DEFAULT),
            window: 1000,
            by_type: Vec::new(),
            quarantine: None,
            patience: Duration::from_secs(300),
        }
    }
}

impl FaultPolicy {
    /// Whether any fault may cause a sample to be skipped.
    pub fn may_skip(&self) -> bool {
        let mut by_type = self.by_type.iter().filter_map(|(_, rule)| rule.action);
        self.action == Action::Skip || by_type.any(|action| action == Action::Skip)
    }

    /// The rule for a fault: the first of its classes that the user named decides. A shortage of the machine is raised,
    /// unless the user named its class; a general class that also contains many other errors does not count.
    pub fn rule(&self, symptom: &Symptom) -> ResolvedRule {
        let rule = self.named(symptom, |_| true);
        let is_shortage = symptom.is_shortage();
        let action = if is_shortage {
            self.named(symptom, |name| !BROAD.contains(&name)).action
        } else {
            rule.action
        };
        ResolvedRule {
            retry: rule.retry.unwrap_or(self.retry),
            action: action.unwrap_or(if is_shortage { Action::Raise } else { self.action }),
            is_retry_by_name: rule.retry.is_some(),
        }
    }

    fn named(&self, symptom: &Symptom, counts: impl Fn(&str) -> bool) -> Rule {
        let rules = || self.by_type.iter().filter(|(name, _)| counts(name));
        let named = symptom.names.iter().find_map(|class| {
            let exact = rules().find(|(name, _)| name == class);
            exact.or_else(|| rules().find(|(name, _)| fits(class, name)))
        });
        named.map_or_else(Rule::default, |(_, rule)| *rule)
    }

    /// How long to wait before the next attempt; None if there is none. `attempt` counts the failed attempts, from 1;
    /// `key` identifies the sample, so that the wait is the same in every run.
    pub fn retry_after(&self, symptom: &Symptom, attempt: u32, key: &[u64]) -> Option<Duration> {
        let ruling = self.rule(symptom);
        let is_worth_it = ruling.is_retry_by_name || symptom.is_transient();
        if attempt == 0 || attempt > ruling.retry || !is_worth_it || symptom.is_stop_request() {
            return None;
        }
        let Backoff { first, factor, longest, jitter } = self.backoff;
        let power = factor.powi(i32::try_from(attempt - 1).unwrap_or(i32::MAX));
        let whole = (first.as_secs_f64() * power).min(longest.as_secs_f64());
        let key: Vec<u64> = key.iter().copied().chain([u64::from(attempt)]).collect();
        let chance = Random::keyed(&key).unit();
        Some(Duration::from_secs_f64(whole * (1.0 - jitter * chance)))
    }
}

impl FaultPolicy {
    /// The settings that differ from the default, as JSON that can be parsed again.
    pub fn to_json(&self) -> Value {
        let plain = FaultPolicy::default();
        let mut settings = Map::new();
        let mut add = |name: &str, value: Value, differs: bool| {
            if differs {
                settings.insert(name.to_owned(), value);
            }
        };
        add("action", self.action.name().into(), true);
        add("retry", self.retry.into(), self.retry != plain.retry);
        let Backoff { first, factor, longest, jitter } = self.backoff;
        let backoff = json!({
            "first": first.as_secs_f64(), "factor": factor,
            "longest": longest.as_secs_f64(), "jitter": jitter,
        });
        add("backoff", backoff, self.backoff != plain.backoff);
        add("fill", self.fill.into(), self.fill.is_some());
        let limit = match self.limit {
            None => "none".into(),
            Some(Limit::Count(count)) => count.into(),
            Some(Limit::Share(share)) => share.into(),
        };
        add("limit", limit, self.limit != plain.limit);
        add("window", self.window.into(), self.window != plain.window);
        let rule = |rule: &Rule| {
            let retry = rule.retry.map(|retry| ("retry".to_owned(), Value::from(retry)));
            let action =
                rule.action.map(|action| ("action".to_owned(), Value::from(action.name())));
            Value::Object(retry.into_iter().chain(action).collect())
        };
        let by_type = self.by_type.iter().map(|(name, exception)| (name.clone(), rule(exception)));
        add("by_type", Value::Object(by_type.collect()), !self.by_type.is_empty());
        let path = self.quarantine.as_ref().map(|path| path.to_string_lossy().into_owned());
        add("quarantine", path.into(), self.quarantine.is_some());
        add("patience", self.patience.as_secs_f64().into(), self.patience != plain.patience);
        Value::Object(settings)
    }
}

/// The policy as the command line takes it, without defaults.
impl fmt::Display for FaultPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = FaultPolicy::default();
        let mut parts = vec![format!("action={}", self.action.name())];
        if self.retry != plain.retry {
            parts.push(format!("retry={}", self.retry));
        }
        if self.backoff != plain.backoff {
            let Backoff { first, factor, longest, jitter } = self.backoff;
            parts.push(format!(
                "backoff=first:{:?}+factor:{factor:?}+longest:{:?}+jitter:{jitter:?}",
                first.as_secs_f64(),
                longest.as_secs_f64()
            ));
        }
        if let Some(fill) = self.fill {
            parts.push(format!("fill={fill}"));
        }
        match self.limit {
            limit if limit == plain.limit => {}
            None => parts.push("limit=none".to_owned()),
            Some(Limit::Count(count)) => parts.push(format!("limit={count}")),
            Some(Limit::Share(share)) => parts.push(format!("limit={share:?}")),
        }
        if self.window != plain.window {
            parts.push(format!("window={}", self.window));
        }
        for (name, rule) in &self.by_type {
            let retry = rule.retry.map(|retry| format!("retry:{retry}"));
            let action = rule.action.map(|action| action.name().to_owned());
            let values: Vec<_> = retry.into_iter().chain(action).collect();
            parts.push(format!("by_type.{}={}", escaped(name), values.join("+")));
        }
        if let Some(path) = &self.quarantine {
            parts.push(format!("quarantine={}", escaped(&path.to_string_lossy())));
        }
        if self.patience != plain.patience {
            parts.push(format!("patience={:?}", self.patience.as_secs_f64()));
        }
        formatter.write_str(&parts.join(","))
    }
}

/// Escapes commas and equals signs in a name or a path.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, ',' | '=' | '\\') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// What a policy wants for a fault, however many there were: what the verdict is unless there are too many.
pub fn wanted(policy: &FaultPolicy, symptom: &Symptom, line: &FaultLine) -> Action {
    if may_be_skipped(symptom, line) { policy.rule(symptom).action } else { Action::Raise }
}

/// Whether a fault is the sample's, so that a run without the sample does not have it.
pub fn is_of_sample(symptom: &Symptom, line: &FaultLine) -> bool {
    may_be_skipped(symptom, line) && !symptom.is_shortage()
}

fn may_be_skipped(symptom: &Symptom, line: &FaultLine) -> bool {
    Kind::named(&line.kind).is_none_or(Kind::is_of_sample) && !symptom.is_stop_request()
}

#[cfg(test)]
mod tests {
    use super::super::symptom::tests::{named, read_error};
    use super::*;
    use rustix::io::Errno;

    fn by_type(name: &str, retry: Option<u32>, action: Option<Action>) -> FaultPolicy {
        FaultPolicy {
            by_type: vec![(name.into(), Rule { retry, action })],
            ..FaultPolicy::default()
        }
    }

    #[test]
    fn the_most_specific_named_class_decides() {
        let mut policy = by_type("OSError", Some(5), None);
        policy
            .by_type
            .push(("FileNotFoundError".into(), Rule { retry: None, action: Some(Action::Skip) }));
        let gone = policy.rule(&read_error(Errno::NOENT));
        assert_eq!((gone.retry, gone.action), (0, Action::Skip));
        let broken = policy.rule(&read_error(Errno::IO));
        assert_eq!((broken.retry, broken.action), (5, Action::Raise));
    }

    #[test]
    fn a_shortage_is_raised_unless_a_rule_names_its_specific_class() {
        let action = |name: &str, symptom: &Symptom| {
            let policy = by_type(name, None, Some(Action::Skip));
            FaultPolicy { action: Action::Skip, ..policy }.rule(symptom).action
        };
        let memory = named(&["RuntimeError", "Exception", "OutOfMemoryError"]);
        for name in ["RuntimeError", "Exception", "ValueError"] {
            assert_eq!(action(name, &memory), Action::Raise, "{name}");
        }
        assert_eq!(action("OutOfMemoryError", &memory), Action::Skip);
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN] {
            assert_eq!(action("OSError", &read_error(errno)), Action::Raise, "{errno:?}");
        }
        assert_eq!(action("OSError", &read_error(Errno::IO)), Action::Skip);
    }

    #[test]
    fn only_transient_faults_are_retried_unless_named() {
        let policy = FaultPolicy { retry: 2, ..FaultPolicy::default() };
        assert!(policy.retry_after(&read_error(Errno::IO), 1, &[7]).is_some());
        assert!(policy.retry_after(&read_error(Errno::IO), 3, &[7]).is_none());
        assert!(policy.retry_after(&read_error(Errno::NOENT), 1, &[7]).is_none());
        assert!(policy.retry_after(&named(&["ValueError", "Exception"]), 1, &[7]).is_none());
        let policy = by_type("ValueError", Some(1), None);
        assert!(policy.retry_after(&named(&["ValueError", "Exception"]), 1, &[7]).is_some());
        let stop = named(&["KeyboardInterrupt", "BaseException"]);
        assert!(by_type("BaseException", Some(9), None).retry_after(&stop, 1, &[7]).is_none());
    }

    #[test]
    fn waits_grow_up_to_the_longest_and_are_deterministic() {
        let policy = FaultPolicy { retry: 50, ..FaultPolicy::default() };
        let wait =
            |attempt, key| policy.retry_after(&read_error(Errno::IO), attempt, &[key]).unwrap();
        for attempt in 1..=50 {
            let whole = (0.1 * 2_f64.powi(attempt as i32 - 1)).min(30.0);
            let seconds = wait(attempt, 3).as_secs_f64();
            assert!(seconds <= whole && seconds >= whole / 2.0, "{attempt}: {seconds}");
            assert_eq!(wait(attempt, 3), wait(attempt, 3));
        }
        assert_ne!(wait(1, 3), wait(1, 4));
    }

    #[test]
    fn want_of_descriptors_and_a_wish_to_stop_are_never_skipped_over() {
        let policy = FaultPolicy { action: Action::Skip, ..FaultPolicy::default() };
        let action =
            |symptom: &Symptom, kind: &str| wanted(&policy, symptom, &FaultLine::new(0, kind));
        let few = Symptom { os_error: Some(24), ..named(&["OSError", "Exception"]) };
        let short = |shortage| named(&["RuntimeError", "Exception", shortage]);
        for (symptom, kind) in [
            (named(&["TooManyOpenFilesError", "Exception"]), "TooManyOpenFilesError"),
            (few, "OSError"),
            (short("MemoryError"), "RuntimeError"),
            (short("OutOfMemoryError"), "RuntimeError"),
            (short("OutOfThreadsError"), "RuntimeError"),
            (named(&["KeyboardInterrupt", "BaseException"]), "KeyboardInterrupt"),
        ] {
            assert_eq!(action(&symptom, kind), Action::Raise, "{kind}");
        }
        assert_eq!(action(&named(&["WorkerDiedError"]), "WorkerDiedError"), Action::Skip);
    }
}
