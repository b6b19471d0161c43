//! Decides how many worker processes run at once while a run goes on. Pure: it gets measurements, and returns
//! changes.
//!
//! More are tried while the consumer waits and processors are idle, fewer while the processors are crowded. How many more
//! follows from how busy the processors are: work that only waits gets many at once. A change stays only if it helps; if
//! it does not, it is taken back, and the next one waits longer. So the number settles, also if the consumer's speed
//! varies.

use std::time::Duration;

/// A change is tried and judged by at least this much time and this many results, or by the longest time.
const SHORTEST_WINDOW: Duration = Duration::from_millis(500);
const LONGEST_WINDOW: Duration = Duration::from_secs(10);
const ENOUGH_TO_TRY: u64 = 8;
const ENOUGH_TO_JUDGE: u64 = 20;
/// More processes are at least and at most this many times as many.
const LEAST_FACTOR: u32 = 2;
const MOST_FACTOR: u32 = 8;
/// The share of the time for which the consumer must wait before more processes are tried.
const WAITS: f64 = 0.1;
/// The number of idle processors with which more processes are tried.
const IDLE: f64 = 0.25;
/// How much faster more processes must be to stay.
const GAIN: f64 = 1.1;
/// How much slower fewer processes may be to stay.
const LOSS: f64 = 0.97;
/// Another speed by this factor is another kind of work, for which everything may be tried again.
const OTHER_WORK: f64 = 1.5;
/// The pause after a change that did not help. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(15);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Tasks that wait for a processor for this much of the time are crowded, in percent.
const CROWDED: f64 = 50.0;
/// Memory is short if tasks wait for it for this much of the time, in percent, or if this little is left.
const MEMORY_WAITS: f64 = 10.0;
const LITTLE_MEMORY: u64 = 256 << 20;

/// Whether tasks wait for processors most of the time, by the pressure that the kernel reports.
pub fn is_crowded(pressure: Option<f64>) -> bool {
    pressure.is_some_and(|percent| percent >= CROWDED)
}

/// Whether memory is short, by the pressure that the kernel reports and the bytes that are left.
pub fn is_memory_short((pressure, left): (Option<f64>, Option<u64>)) -> bool {
    pressure.is_some_and(|percent| percent >= MEMORY_WAITS)
        || left.is_some_and(|left| left < LITTLE_MEMORY)
}

/// What was measured in a part of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// How long the part was.
    pub elapsed: Duration,
    /// The results in it.
    pub results: u64,
    /// How long the consumer waited for them.
    pub waited: Duration,
    /// How many processors were idle that this process may use.
    pub idle_processors: f64,
    /// Whether tasks wait for processors most of the time.
    pub is_crowded: bool,
    /// Whether memory is short.
    pub is_memory_short: bool,
}

/// Why another number of processes runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TuningReason {
    /// The consumer waits, and processors are idle.
    ConsumerWaits,
    /// The processors are crowded: fewer may be as fast.
    Crowded,
    /// The last change did not help.
    DidNotHelp,
    /// Memory is short.
    MemoryShort,
}

impl TuningReason {
    /// The words of an event.
    pub fn describe(self) -> &'static str {
        match self {
            TuningReason::ConsumerWaits => "the consumer waits, and processors are idle",
            TuningReason::Crowded => "the processors are crowded",
            TuningReason::DidNotHelp => "the last change did not help",
            TuningReason::MemoryShort => "memory is short",
        }
    }

    /// Whether processes that are not to run must end, even if they will be needed again.
    pub fn ends_processes(self) -> bool {
        match self {
            TuningReason::ConsumerWaits | TuningReason::Crowded | TuningReason::DidNotHelp => false,
            TuningReason::MemoryShort => true,
        }
    }
}

/// Another number of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuningChange {
    /// How many run from now on.
    pub processes: u32,
    /// Why.
    pub reason: TuningReason,
}

/// A change that is not judged yet.
#[derive(Clone, Copy, Debug)]
struct Trial {
    from: u32,
    /// Results per second before it.
    speed: f64,
}

/// Decides how many processes run at once.
#[derive(Debug)]
pub struct Tuner {
    processors: u32,
    most: u32,
    processes: u32,
    window: Option<Measurement>,
    trial: Option<Trial>,
    /// Whether the present window has the start of new processes in it.
    is_settling: bool,
    /// How many times as many processes are tried at most.
    factor: u32,
    /// How long no change is tried.
    wait: Duration,
    pause: Duration,
    /// The speed when the last change did not help.
    failed_speed: Option<f64>,
}

impl Tuner {
    /// Starts with `first` processes of at most `most`, on this many processors.
    pub fn new(first: u32, most: u32, processors: u32) -> Tuner {
        let most = most.max(1);
        Tuner {
            processors: processors.max(1),
            most,
            processes: first.clamp(1, most),
            window: None,
            trial: None,
            is_settling: false,
            factor: MOST_FACTOR,
            wait: Duration::ZERO,
            pause: FIRST_PAUSE,
            failed_speed: None,
        }
    }

    /// How many processes run at once.
    pub fn processes(&self) -> u32 {
        self.processes
    }

    /// Adds a measurement, and returns a change if it is time for one.
    pub fn measure(&mut self, part: Measurement) -> Option<TuningChange> {
        let window = join(self.window.take(), part);
        let judges = self.trial.is_some() && !self.is_settling;
        let enough = if judges { ENOUGH_TO_JUDGE } else { ENOUGH_TO_TRY };
        let is_enough = window.results >= enough || window.elapsed >= LONGEST_WINDOW;
        if window.elapsed < SHORTEST_WINDOW || !is_enough {
            self.window = Some(window);
            return None;
        }
        self.wait = self.wait.saturating_sub(window.elapsed);
        if window.is_memory_short {
            self.trial = None;
            self.hold_off();
            return self.change(self.processes / 2, TuningReason::MemoryShort);
        }
        if std::mem::take(&mut self.is_settling) {
            return None;
        }
        match self.trial.take() {
            Some(trial) => self.judge(trial, &window),
            None => self.consider(&window),
        }
    }

    /// Whether a change has helped, and if not, what comes instead.
    fn judge(&mut self, trial: Trial, window: &Measurement) -> Option<TuningChange> {
        let (speed, waits) = (speed(window), waits(window));
        let least = if self.processes > trial.from { GAIN } else { LOSS };
        if !waits || speed >= trial.speed * least {
            self.pause = FIRST_PAUSE;
            return self.consider(window);
        }
        let fewer = trial.from.saturating_mul(LEAST_FACTOR);
        if self.processes > fewer {
            // So many may be in each other's way; some more may still help.
            self.factor = LEAST_FACTOR;
            self.trial = Some(trial);
            return self.change(fewer, TuningReason::DidNotHelp);
        }
        self.failed_speed = Some(trial.speed);
        self.hold_off();
        self.change(trial.from, TuningReason::DidNotHelp)
    }

    /// How many could run if each keeps the processors as busy as those that run now.
    fn estimate(&self, window: &Measurement) -> u32 {
        let processors = f64::from(self.processors);
        let busy = (processors - window.idle_processors).max(f64::MIN_POSITIVE);
        let factor = (processors / busy).clamp(f64::from(LEAST_FACTOR), f64::from(self.factor));
        (f64::from(self.processes) * factor).round() as u32
    }

    /// Whether it is time to try another number.
    fn consider(&mut self, window: &Measurement) -> Option<TuningChange> {
        let speed = speed(window);
        let is_other = |failed: f64| speed > failed * OTHER_WORK || speed * OTHER_WORK < failed;
        // A speed that the consumer decides says nothing about the work.
        if waits(window) && self.failed_speed.is_some_and(is_other) {
            self.failed_speed = None;
            self.factor = MOST_FACTOR;
            self.pause = FIRST_PAUSE;
            self.wait = Duration::ZERO;
        }
        if !self.wait.is_zero() {
            return None;
        }
        let trial = Trial { from: self.processes, speed };
        let change =
            if waits(window) && window.idle_processors >= IDLE && self.processes < self.most {
                self.change(self.estimate(window), TuningReason::ConsumerWaits)
            } else if window.is_crowded && self.processes > self.processors {
                self.change((self.processes / 2).max(self.processors), TuningReason::Crowded)
            } else {
                None
            };
        if change.is_some() {
            self.trial = Some(trial);
        }
        change
    }

    fn hold_off(&mut self) {
        self.wait = self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Changes the number, if it is another one.
    fn change(&mut self, processes: u32, reason: TuningReason) -> Option<TuningChange> {
        let processes = processes.clamp(1, self.most);
        if processes == self.processes {
            return None;
        }
        self.processes = processes;
        self.is_settling = true;
        Some(TuningChange { processes, reason })
    }
}

fn join(before: Option<Measurement>, part: Measurement) -> Measurement {
    let Some(before) = before else { return part };
    let elapsed = before.elapsed + part.elapsed;
    let share = part.elapsed.as_secs_f64() / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    let idle = before.idle_processors * (1.0 - share) + part.idle_processors * share;
    Measurement {
        elapsed,
        results: before.results + part.results,
        waited: before.waited + part.waited,
        idle_processors: idle,
        is_crowded: part.is_crowded,
        is_memory_short: before.is_memory_short || part.is_memory_short,
    }
}

/// Results per second.
fn speed(window: &Measurement) -> f64 {
    window.results as f64 / window.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn waits(window: &Measurement) -> bool {
    window.waited.as_secs_f64() >= window.elapsed.as_secs_f64() * WAITS
}

#[cfg(test)]
mod tests;
