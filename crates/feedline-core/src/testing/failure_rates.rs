//! The failure rates of a simulated world, and the random numbers that decide.

use std::time::Duration;

/// SplitMix64, which is small and good enough for a simulation.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A number from `first` to `last`.
    pub(super) fn from(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True with this probability in per mille.
    pub(super) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub(super) fn one_of<Choice: Copy, const COUNT: usize>(
        &mut self,
        choices: [Choice; COUNT],
    ) -> Choice {
        choices[self.below(COUNT as u64) as usize]
    }

    pub(super) fn micros(&mut self, first: u64, last: u64) -> Duration {
        Duration::from_micros(self.from(first, last))
    }
}

/// How often failures occur, per mille; all zero in a run without failures.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct FailureRates {
    pub(super) boot_death: u64,
    pub(super) start_failure: u64,
    pub(super) boot_hang: u64,
    pub(super) slow_start: u64,
    pub(super) refusal: u64,
    pub(super) permanent_refusal: u64,
    /// All forks are refused in this time.
    pub(super) no_forks: Option<(Duration, Duration)>,
    pub(super) work_death: u64,
    pub(super) work_hang: u64,
    pub(super) death_after_answer: u64,
    /// A worker ended because something was short.
    pub(super) shortage: u64,
    /// A ready worker dies at any time, even with results on their way.
    pub(super) death_anytime: u64,
    pub(super) stop_hang: u64,
    pub(super) stop_death: u64,
    pub(super) death_while_killed: u64,
    pub(super) slow_kill: u64,
    pub(super) zygote_failure: u64,
    pub(super) zygote_death: u64,
    pub(super) zygote_hang: u64,
    /// A ready zygote stops answering: asleep, or in an endless loop. Some continue later.
    pub(super) zygote_stuck: u64,
    /// Other code closes the trainer's descriptors.
    pub(super) closed_descriptors: u64,
    pub(super) stray: u64,
    /// A worker's message is delayed, maybe until after the end of its zygote is reported.
    pub(super) slow_message: u64,
    /// A result arrives before an older one.
    pub(super) disorder: u64,
    /// A task that kills the worker that works on one of its samples.
    pub(super) poison: u64,
    /// A sample that kills once or twice.
    pub(super) flaky_killer: u64,
    /// A sample that kills only workers that have worked before.
    pub(super) tired_killer: u64,
    /// A sample that always hangs.
    pub(super) hanging: u64,
    /// A sample that hangs once.
    pub(super) hangs_once: u64,
    /// A sample that takes long.
    pub(super) slow_sample: u64,
    /// A worker waits for memory in the middle of a sample, maybe forever.
    pub(super) blocked: u64,
    /// A worker sleeps on a lock that its fork copied, at its first sample or while it starts.
    pub(super) asleep: u64,
    /// A worker leaks and must be renewed after a result.
    pub(super) leak: u64,
    /// The dispatcher misses a look.
    pub(super) missed_look: u64,
}

impl FailureRates {
    pub(super) fn new(random: &mut Random) -> FailureRates {
        if random.chance(100) {
            return FailureRates::default();
        }
        // Many failures at once end a run before it is interesting, so most rates are zero in most
        // runs.
        let forks_badly = random.chance(300);
        let mut rate = |max: u64| if random.chance(700) { 0 } else { random.from(1, max) };
        let mut rates = FailureRates {
            boot_death: rate(400),
            start_failure: rate(40),
            boot_hang: rate(40),
            slow_start: rate(200),
            refusal: rate(600),
            permanent_refusal: rate(60),
            no_forks: None,
            work_death: rate(150),
            work_hang: rate(30),
            death_after_answer: rate(150),
            shortage: rate(1_000),
            death_anytime: rate(400),
            stop_hang: rate(300),
            stop_death: rate(300),
            death_while_killed: rate(500),
            slow_kill: rate(200),
            zygote_failure: rate(400),
            zygote_death: rate(500),
            zygote_hang: rate(150),
            zygote_stuck: rate(1_000),
            closed_descriptors: rate(20),
            stray: rate(50),
            slow_message: rate(200),
            disorder: rate(300),
            poison: rate(150),
            flaky_killer: rate(150),
            tired_killer: rate(100),
            hanging: rate(80),
            hangs_once: rate(100),
            slow_sample: rate(100),
            blocked: rate(60),
            asleep: if forks_badly { rate(1_000) } else { 0 },
            leak: rate(300),
            missed_look: rate(100),
        };
        if random.chance(100) {
            let from = random.micros(0, 300_000);
            rates.no_forks = Some((from, from + random.micros(1_000, 20_000_000)));
        }
        rates
    }
}
