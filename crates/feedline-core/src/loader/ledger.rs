//! The account of a run, for every front: writes down faults that an engine has judged, counts all that happens,
//! and keeps events until the front takes them. At the end of an epoch the counts must add up.

use serde_json::Value;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::quarantine::{Added, Quarantine};
use crate::engine::{self, Limits};
use crate::error::{Error, Kind, Result};
use crate::escape;
use crate::event::{Event, Slow};
use crate::fault::{self, Causes, FaultCounts, FaultLine, FaultPolicy, Symptom};
use crate::metrics::{Report, SLOWEST};
use crate::source::index::UnsavedIndex;
use crate::sys::clock;
use crate::sys::lock::Mutex;
use crate::worker::processes::PoolPeaks;

/// Events that wait to be taken, at most; of more, the oldest are lost.
const WAITING: usize = 4096;

/// The account of a run.
pub struct Ledger {
    policy: FaultPolicy,
    quarantine: Option<Mutex<Quarantine>>,
    state: Mutex<LedgerState>,
    has_events: AtomicBool,
    /// The bits of the least seconds among the slowest samples.
    slow_from: AtomicU64,
}

struct LedgerState {
    causes: Causes,
    /// How the epoch stands at its end.
    standing: FaultCounts,
    report: Report,
    /// The peaks of the present worker pool.
    pool_peaks: Option<Arc<PoolPeaks>>,
    events: VecDeque<Event>,
    lost: u64,
    epoch: EpochSums,
}

/// The counts of one epoch.
#[derive(Clone, Debug, Default)]
struct EpochSums {
    is_open: bool,
    epoch: u64,
    expected: Option<u64>,
    delivered: u64,
    repeated: u64,
    skipped: u64,
    replaced: u64,
    retried: u64,
    deaths: u64,
    filtered: u64,
}

impl Ledger {
    /// Nothing has happened yet. A quarantine file that cannot be written is refused.
    pub fn new(policy: FaultPolicy) -> Result<Ledger> {
        Ledger::with(policy, Report::default())
    }

    /// The same for the calls of an executor.
    pub fn of_calls(policy: FaultPolicy) -> Result<Ledger> {
        Ledger::with(policy, Report { is_of_calls: true, ..Report::default() })
    }

    fn with(policy: FaultPolicy, report: Report) -> Result<Ledger> {
        let quarantine = policy.quarantine.as_deref().map(Quarantine::new).transpose()?;
        let state = LedgerState {
            causes: Causes::default(),
            standing: FaultCounts::default(),
            report,
            pool_peaks: None,
            events: VecDeque::new(),
            lost: 0,
            epoch: EpochSums::default(),
        };
        let (has_events, slow_from) = (AtomicBool::new(false), AtomicU64::new(0));
        let (quarantine, state) = (quarantine.map(Mutex::new), Mutex::new(state));
        Ok(Ledger { policy, quarantine, state, has_events, slow_from })
    }

    /// The policy that faults are judged by.
    pub fn policy(&self) -> &FaultPolicy {
        &self.policy
    }

    /// An epoch begins, or goes on, with this many samples due.
    pub fn epoch_started(&self, epoch: u64, expected: Option<u64>) {
        let mut state = self.state.lock();
        (state.causes, state.standing) = (Causes::default(), FaultCounts::default());
        state.epoch = EpochSums { is_open: true, epoch, expected, ..EpochSums::default() };
        self.issue(&mut state, Event::EpochStarted { epoch, expected });
    }

    /// More samples are due.
    pub fn expect(&self, samples: u64) {
        let mut state = self.state.lock();
        state.epoch.expected = Some(state.epoch.expected.unwrap_or(0) + samples);
        state.report.expected += samples;
    }

    /// The consumer took a batch.
    pub fn delivered(&self, samples: u64, waited: Duration) {
        let mut state = self.state.lock();
        state.epoch.delivered += samples;
        state.report.apply(&Event::BatchDelivered { samples, waited });
    }

    /// Of what was delivered, this many came a second time.
    pub fn repeated(&self, samples: u64) {
        if samples > 0 {
            let mut state = self.state.lock();
            state.epoch.repeated += samples;
            self.issue(&mut state, Event::SamplesRepeated { samples });
        }
    }

    /// This many are left out from the start.
    pub fn excluded(&self, samples: u64) {
        if samples > 0 {
            let mut state = self.state.lock();
            self.issue(&mut state, Event::SamplesExcluded { samples });
        }
    }

    /// These shards have no samples.
    pub fn empty_shards(&self, paths: &[PathBuf]) {
        if let Some(first) = paths.first() {
            let mut state = self.state.lock();
            let (shards, path) = (paths.len() as u64, escape::path(first));
            self.issue(&mut state, Event::EmptyShardsFound { shards, path });
        }
    }

    /// These indices could not be saved.
    pub fn unsaved_indices(&self, unsaved: &[UnsavedIndex]) {
        if let Some(first) = unsaved.first() {
            let mut state = self.state.lock();
            let (shards, path) = (unsaved.len() as u64, escape::path(&first.path));
            let why = first.why.clone();
            self.issue(&mut state, Event::IndexNotSaved { shards, path, why });
        }
    }

    /// This many good samples were left out because a filter wants it.
    pub fn filtered(&self, samples: u64) {
        let mut state = self.state.lock();
        state.epoch.filtered += samples;
        state.report.filtered += samples;
        state.report.expected = state.report.expected.saturating_sub(samples);
    }

    /// Writes down a fault that the engine has judged, and what becomes of it. It is on the disk when this
    /// returns. Returns the error, if there were too many.
    pub fn record(
        &self,
        symptom: &Symptom,
        mut line: FaultLine,
        verdict: engine::Verdict,
    ) -> Option<Error> {
        line.time = clock::unix_seconds();
        let is_left_out = match verdict {
            engine::Verdict::Skip | engine::Verdict::Replace | engine::Verdict::Substitute => true,
            engine::Verdict::Fail | engine::Verdict::Raise | engine::Verdict::TooMany(_) => false,
        };
        if is_left_out || fault::is_of_sample(symptom, &line) {
            self.quarantine(&line);
        }
        let mut state = self.state.lock();
        if verdict != engine::Verdict::Fail {
            state.causes.add(&line);
        }
        let mut too_many = None;
        let event = match verdict {
            engine::Verdict::Skip => {
                state.epoch.skipped += 1;
                Event::SampleSkipped(line)
            }
            engine::Verdict::Substitute => {
                state.epoch.replaced += 1;
                Event::SampleReplaced { fault: line, by: Value::Null }
            }
            // Logged when the replacement is known.
            engine::Verdict::Replace => return None,
            engine::Verdict::Fail => Event::CallFailed(line),
            engine::Verdict::Raise => {
                Event::RunStopped { fault: line, why: "the fault is raised".to_owned() }
            }
            engine::Verdict::TooMany(found) => {
                let error = state.causes.too_many(found, self.policy.limit);
                let why = error.message().lines().next().unwrap_or_default().to_owned();
                too_many = Some(error);
                Event::RunStopped { fault: line, why }
            }
        };
        self.issue(&mut state, event);
        too_many
    }

    /// This many calls were not made, or nobody gets their result.
    pub fn cancelled(&self, calls: u64) {
        self.state.lock().report.cancelled += calls;
    }

    /// Writes a fault to the disk, which may take long: no other lock is held.
    fn quarantine(&self, line: &FaultLine) {
        let Some(quarantine) = &self.quarantine else { return };
        let written = quarantine.lock().add(line);
        let mut state = self.state.lock();
        match written {
            Added::Written(faults) => state.report.quarantined += faults,
            Added::StillFailed => {}
            Added::Failed(error) => {
                self.issue(&mut state, Event::QuarantineFailed { why: error.to_string() });
            }
        }
    }

    /// Writes the faults for which the disk had no room before.
    fn write_waiting_faults(&self) {
        if let Some(quarantine) = &self.quarantine {
            let written = quarantine.lock().write_pending().0;
            self.state.lock().report.quarantined += written;
        }
    }

    /// Another sample has taken the place of a bad one.
    pub fn replaced(&self, fault: FaultLine, by: Value) {
        let mut state = self.state.lock();
        state.epoch.replaced += 1;
        self.issue(&mut state, Event::SampleReplaced { fault, by });
    }

    /// A sample is retried.
    pub fn retried(&self, mut line: FaultLine) {
        line.time = clock::unix_seconds();
        let mut state = self.state.lock();
        state.epoch.retried += 1;
        self.issue(&mut state, Event::SampleRetried(line));
    }

    /// Whether a sample that took so long would be among the slowest. Costs next to nothing.
    pub fn is_slow(&self, seconds: f64) -> bool {
        seconds > f64::from_bits(self.slow_from.load(Ordering::Relaxed))
    }

    /// A sample took so long; it is remembered if it is among the slowest.
    pub fn slow(&self, slow: Slow) {
        if !self.is_slow(slow.seconds) {
            return;
        }
        let mut state = self.state.lock();
        state.report.apply(&Event::SampleSlow(slow));
        if let Some(last) = state.report.slowest.get(SLOWEST - 1) {
            self.slow_from.store(last.seconds.to_bits(), Ordering::Relaxed);
        }
    }

    /// Something else has happened.
    pub fn event(&self, mut event: Event) {
        let mut state = self.state.lock();
        if let Event::SourceUnavailable { patience, .. } = &mut event {
            *patience = Some(self.policy.patience);
        }
        if matches!(event, Event::WorkerDied { .. }) {
            state.epoch.deaths += 1;
        }
        self.issue(&mut state, event);
    }

    /// The epoch is at its end: everything must add up, and too many faults of a short epoch are reported now.
    pub fn epoch_ended(&self, dropped: u64) -> Result<()> {
        self.write_waiting_faults();
        let mut state = self.state.lock();
        if !state.epoch.is_open {
            return Ok(());
        }
        state.epoch.is_open = false;
        let account = state.epoch.clone();
        let accounted = account.delivered + account.skipped + account.filtered + dropped;
        let due = match account.expected {
            Some(expected) => expected,
            None => {
                let due = accounted.saturating_sub(account.repeated);
                state.report.expected += due;
                due
            }
        };
        let summary = account.summary();
        let is_clean = account.is_clean();
        let (skipped, replaced) = (account.skipped, account.replaced);
        let head = format!("epoch {}: ", account.epoch);
        let warning = self.warning_of(&state, &head, (skipped, replaced), (due, "samples"));
        self.issue(&mut state, Event::EpochEnded { dropped, summary, is_clean, warning });
        if accounted != due + account.repeated {
            let message = format!(
                "{} samples were delivered ({} of them again), {} skipped, {} filtered and {dropped} dropped, but {due} were due",
                account.delivered, account.repeated, account.skipped, account.filtered
            );
            return Err(Error::new(Kind::Internal, message));
        }
        let mut limits = Limits::new(self.policy.limit, self.policy.window);
        limits.begin(std::mem::take(&mut state.standing), None);
        let has_given = account.delivered + account.filtered + dropped > 0;
        if !has_given && limits.has_only_faults() {
            return Err(state.causes.nothing_left(limits.standing.faults));
        }
        match limits.end() {
            Some(too_many) => Err(state.causes.too_many(too_many, self.policy.limit)),
            None => Ok(()),
        }
    }

    /// The run of a front without epochs is over: closes the quarantine file, and says what was left out or
    /// replaced, by cause, if anything was.
    pub fn close(&self) -> Option<String> {
        if let Some(quarantine) = &self.quarantine {
            let written = quarantine.lock().close();
            self.state.lock().report.quarantined += written;
        }
        let state = self.state.lock();
        let Report { skipped, replaced, expected, .. } = state.report;
        self.warning_of(&state, "", (skipped, replaced), (expected, "calls"))
    }

    /// The epoch was left before its end.
    pub fn epoch_abandoned(&self) {
        self.write_waiting_faults();
        let mut state = self.state.lock();
        if std::mem::take(&mut state.epoch.is_open) {
            let account = state.epoch.clone();
            if account.expected.is_none() {
                state.report.expected += (account.delivered + account.skipped + account.filtered)
                    .saturating_sub(account.repeated);
            }
            self.issue(&mut state, Event::EpochAbandoned);
        }
    }

    /// How the epoch stands at its end, as the engine says.
    pub fn set_fault_counts(&self, standing: FaultCounts) {
        self.state.lock().standing = standing;
    }

    /// What has happened so far.
    pub fn report(&self) -> Report {
        let state = self.state.lock();
        let mut report = state.report.clone();
        if let Some(peaks) = &state.pool_peaks {
            report.note_resources(peaks.resources());
        }
        report
    }

    /// The report has the peaks of this worker pool too, and of those before it.
    pub fn watch_pool(&self, peaks: Arc<PoolPeaks>) {
        let mut state = self.state.lock();
        if let Some(before) = state.pool_peaks.replace(peaks) {
            state.report.note_resources(before.resources());
        }
    }

    /// Changes what only the caller can measure.
    pub fn measure(&self, measure: impl FnOnce(&mut Report)) {
        measure(&mut self.state.lock().report);
    }

    /// Whether there is anything to take. Costs next to nothing.
    pub fn has_events(&self) -> bool {
        self.has_events.load(Ordering::Relaxed)
    }

    /// Events that were not read yet, in order.
    pub fn take_events(&self) -> Vec<Event> {
        let mut state = self.state.lock();
        self.has_events.store(false, Ordering::Relaxed);
        let lost = std::mem::take(&mut state.lost);
        let mut events: Vec<_> = state.events.drain(..).collect();
        if lost > 0 {
            events.insert(0, Event::EventsDropped { count: lost });
        }
        events
    }

    fn issue(&self, state: &mut LedgerState, event: Event) {
        state.report.apply(&event);
        if state.events.len() == WAITING {
            state.events.pop_front();
            state.lost += 1;
        }
        state.events.push_back(event);
        self.has_events.store(true, Ordering::Relaxed);
    }

    /// What was left out or replaced, by cause, and where all of it can be seen.
    fn warning_of(
        &self,
        state: &LedgerState,
        head: &str,
        (skipped, replaced): (u64, u64),
        (of, what): (u64, &str),
    ) -> Option<String> {
        let counts = [(skipped, "skipped"), (replaced, "replaced")];
        let counts: Vec<_> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, fate)| format!("{count} of {of} {what} were {fate}"))
            .collect();
        if counts.is_empty() {
            return None;
        }
        let causes = state.causes.table();
        let place = match &self.policy.quarantine {
            Some(path) => format!("all of them are in {}", escape::path(path)),
            None => "report() lists them; faults=FaultPolicy(quarantine=\"bad.jsonl\") keeps them"
                .to_owned(),
        };
        Some(format!("{head}{}{causes}\n{place}", counts.join(", ")))
    }
}

impl EpochSums {
    fn is_clean(&self) -> bool {
        self.skipped + self.replaced + self.retried + self.deaths == 0
    }

    fn summary(&self) -> String {
        let mut summary = format!("epoch {}: {} samples delivered", self.epoch, self.delivered);
        for (count, what) in [
            (self.skipped, "skipped"),
            (self.replaced, "replaced"),
            (self.retried, "retried"),
            (self.repeated, "repeated"),
            (self.filtered, "filtered out"),
            (self.deaths, "workers lost"),
        ] {
            if count > 0 {
                summary.push_str(&format!(", {count} {what}"));
            }
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::fault_policy;
    use crate::engine::{TooMany, Verdict};
    use serde_json::json;

    fn ledger(config: &str) -> Ledger {
        Ledger::new(fault_policy(config).unwrap()).unwrap()
    }

    fn begin(ledger: &Ledger, expected: Option<u64>) {
        ledger.epoch_started(0, expected);
    }

    fn bad(ledger: &Ledger, index: u64) {
        assert!(record(ledger, index, Verdict::Skip).is_none());
    }

    fn record(ledger: &Ledger, index: u64, verdict: Verdict) -> Option<Error> {
        let error = Error::new(Kind::CorruptImage, "truncated");
        let line =
            FaultLine { message: "truncated".into(), ..FaultLine::new(index, "CorruptImageError") };
        ledger.record(&Symptom::of(&error), line, verdict)
    }

    #[test]
    fn an_epoch_that_adds_up_is_summed_up_and_one_that_does_not_is_a_bug() {
        let ledger = ledger("skip");
        begin(&ledger, Some(10));
        bad(&ledger, 4);
        ledger.delivered(9, Duration::from_millis(5));
        ledger.epoch_ended(0).unwrap();
        let reported: Vec<_> =
            ledger.take_events().iter().map(|event| event.name().to_owned()).collect();
        assert_eq!(reported, ["epoch_started", "sample_skipped", "epoch_ended"]);
        assert!(!ledger.has_events());
        begin(&ledger, Some(10));
        ledger.delivered(9, Duration::ZERO);
        assert_eq!(ledger.epoch_ended(0).unwrap_err().kind(), Kind::Internal);
    }

    #[test]
    fn what_was_skipped_is_summed_up_by_cause() {
        let ledger = ledger("skip,quarantine=/dev/null");
        begin(&ledger, Some(10));
        bad(&ledger, 4);
        bad(&ledger, 6);
        ledger.delivered(8, Duration::ZERO);
        ledger.epoch_ended(0).unwrap();
        let events = ledger.take_events();
        let Some(Event::EpochEnded { warning: Some(warning), .. }) = events.last() else {
            panic!("{events:?}");
        };
        let said = "epoch 0: 2 of 10 samples were skipped\n  CorruptImageError      2  such as sample 4: truncated\n\
                    all of them are in /dev/null";
        assert_eq!(warning, said);
        begin(&ledger, Some(1));
        ledger.delivered(1, Duration::ZERO);
        ledger.epoch_ended(0).unwrap();
        assert!(matches!(
            ledger.take_events().last(),
            Some(Event::EpochEnded { warning: None, .. })
        ));
    }

    #[test]
    fn an_epoch_that_gives_nothing_is_an_error_unless_a_filter_wants_it() {
        let ledger = ledger("skip,limit=none");
        begin(&ledger, Some(2));
        bad(&ledger, 0);
        bad(&ledger, 1);
        ledger.set_fault_counts(FaultCounts { seen: 2, faults: 2, ..FaultCounts::default() });
        assert_eq!(ledger.epoch_ended(0).unwrap_err().kind(), Kind::TooManyFaults);
        begin(&ledger, Some(2));
        bad(&ledger, 0);
        ledger.filtered(1);
        ledger.set_fault_counts(FaultCounts { seen: 2, faults: 1, ..FaultCounts::default() });
        ledger.epoch_ended(0).unwrap();
    }

    #[test]
    fn what_is_learnt_on_the_way_is_expected_and_what_comes_again_is_not() {
        let ledger = ledger("skip");
        begin(&ledger, None);
        ledger.expect(6);
        ledger.expect(6);
        bad(&ledger, 1);
        bad(&ledger, 2);
        ledger.delivered(12, Duration::ZERO);
        ledger.repeated(2);
        ledger.epoch_ended(0).unwrap();
        let report = ledger.report();
        assert_eq!((report.expected, report.repeated, report.pending()), (12, 2, 0));
    }

    #[test]
    fn an_epoch_of_unknown_length_is_as_long_as_it_was() {
        let ledger = ledger("skip");
        begin(&ledger, None);
        bad(&ledger, 1);
        ledger.delivered(5, Duration::ZERO);
        ledger.epoch_ended(0).unwrap();
        assert_eq!(ledger.report().expected, 6);
    }

    #[test]
    fn the_slowest_are_kept_and_the_others_cost_nothing() {
        let ledger = ledger("");
        for number in 0..1000_u32 {
            let seconds = f64::from(number * 7919 % 1000);
            let (index, stage) = (json!(number), "worker".to_owned());
            ledger.slow(Slow { index, seconds, worker: None, stage });
        }
        let slowest: Vec<_> = ledger.report().slowest.iter().map(|slow| slow.seconds).collect();
        let expected: Vec<_> = (0..10).map(|below| 999.0 - f64::from(below)).collect();
        assert_eq!(slowest, expected);
        assert!(!ledger.is_slow(990.0) && ledger.is_slow(990.5));
    }

    #[test]
    fn events_that_nobody_takes_are_bounded() {
        let ledger = ledger("skip");
        for index in 0..WAITING as u64 + 5 {
            bad(&ledger, index);
        }
        let events = ledger.take_events();
        assert_eq!(events[0], Event::EventsDropped { count: 5 });
        assert_eq!(events.len(), WAITING + 1);
    }

    #[test]
    fn a_fault_is_on_the_disk_before_its_verdict_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        let ledger = ledger(&format!("skip,limit=1,quarantine={}", path.display()));
        begin(&ledger, Some(10));
        bad(&ledger, 3);
        let too_many = TooMany { faults: 2, allowed: 1, share: None };
        let error = record(&ledger, 5, Verdict::TooMany(too_many)).unwrap();
        assert_eq!(error.kind(), Kind::TooManyFaults);
        assert_eq!(super::super::excluded(&path).unwrap(), [json!(3), json!(5)]);
        assert_eq!(ledger.report().quarantined, 2);
    }
}
