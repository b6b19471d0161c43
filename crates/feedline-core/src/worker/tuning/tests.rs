//! The tuner on models of work: how fast a number of processes is, and what a consumer makes of it.

use super::*;

const PROCESSORS: u32 = 4;
const MOST: u32 = 32;
const SECOND: Duration = Duration::from_secs(1);

/// What one result costs, in seconds.
#[derive(Clone, Copy, Debug)]
struct Work {
    computing: f64,
    waiting: f64,
    /// Results per second that the storage gives, whoever asks.
    limit: f64,
}

const IO_BOUND: Work = Work { computing: 0.001, waiting: 0.1, limit: f64::INFINITY };
const CPU_BOUND: Work = Work { computing: 0.05, waiting: 0.0, limit: f64::INFINITY };
const MIXED: Work = Work { computing: 0.02, waiting: 0.04, limit: f64::INFINITY };
const STORAGE_BOUND: Work = Work { computing: 0.001, waiting: 0.02, limit: 150.0 };
const ALL: [(&str, Work); 4] =
    [("I/O", IO_BOUND), ("CPU", CPU_BOUND), ("mixed", MIXED), ("storage", STORAGE_BOUND)];

impl Work {
    /// Results per second of this many processes. More than can run slow each other down a little.
    fn speed(self, processes: u32) -> f64 {
        let crowd = f64::from(processes.saturating_sub(PROCESSORS)) * self.busy();
        let limit = f64::from(PROCESSORS) / self.computing * (1.0 - 0.004 * crowd);
        (f64::from(processes) / (self.computing + self.waiting)).min(limit).min(self.limit)
    }

    /// The share of its time for which a process wants a processor.
    fn busy(self) -> f64 {
        self.computing / (self.computing + self.waiting)
    }
}

/// Small differences from second to second, from a seed.
struct Noise(u64);

impl Noise {
    fn around_one(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        0.97 + 0.06 * ((self.0 >> 33) as f64 / f64::from(1_u32 << 31))
    }
}

/// One second with this many processes: the results, and what the tuner is told.
fn second(work: Work, processes: u32, consumer: f64, noise: &mut Noise) -> (f64, Measurement) {
    let speed = work.speed(processes) * noise.around_one();
    let results = speed.min(consumer);
    let used = results * work.computing;
    let wanted = f64::from(processes) * work.busy() * results / speed;
    let measurement = Measurement {
        elapsed: SECOND,
        results: results.round() as u64,
        waited: SECOND.mul_f64((1.0 - results / consumer).max(0.0)),
        idle_processors: f64::from(PROCESSORS) - used,
        is_crowded: wanted > f64::from(PROCESSORS) * 1.5,
        is_memory_short: false,
    };
    (results, measurement)
}

/// The consumer's speed in each second: it is slow, then fast, then in between.
fn consumer(second: u32) -> f64 {
    [20.0, 2_000.0, 60.0][(second / 200 % 3) as usize]
}

const SECONDS: u32 = 1_800;

/// All results with one number of processes.
fn fixed(work: impl Fn(u32) -> Work, processes: u32) -> f64 {
    let mut noise = Noise(1);
    (0..SECONDS).map(|at| second(work(at), processes, consumer(at), &mut noise).0).sum()
}

/// All results with a tuner, and its changes.
fn tuned(work: impl Fn(u32) -> Work, seed: u64) -> (f64, Vec<(u32, TuningChange)>) {
    let (mut tuner, mut noise) = (Tuner::new(PROCESSORS, MOST, PROCESSORS), Noise(seed));
    let (mut sum, mut changes) = (0.0, Vec::new());
    // New processes work after a second.
    let mut ready = tuner.processes();
    for at in 0..SECONDS {
        let (results, measurement) = second(work(at), ready, consumer(at), &mut noise);
        sum += results;
        ready = tuner.processes();
        changes.extend(tuner.measure(measurement).map(|change| (at, change)));
    }
    (sum, changes)
}

#[test]
fn auto_is_within_ten_percent_of_the_best_fixed_number_for_every_kind_of_work() {
    for (name, work) in ALL {
        let best = [1, 2, 4, 8, 16, 32]
            .map(|count| fixed(|_| work, count))
            .into_iter()
            .fold(0.0, f64::max);
        for seed in 0..50 {
            let (results, changes) = tuned(|_| work, seed);
            assert!(results >= 0.9 * best, "{name}, seed {seed}: {results} of {best}, {changes:?}");
        }
    }
}

#[test]
fn auto_follows_work_that_changes() {
    let work = |at| if at / 600 % 2 == 0 { CPU_BOUND } else { IO_BOUND };
    let best = [1, 2, 4, 8, 16, 32].map(|count| fixed(work, count)).into_iter().fold(0.0, f64::max);
    for seed in 0..50 {
        let (results, changes) = tuned(work, seed);
        assert!(results >= 0.9 * best, "seed {seed}: {results} of {best}, {changes:?}");
    }
}

#[test]
fn the_number_settles_and_does_not_go_back_and_forth() {
    for (name, work) in ALL {
        for seed in 0..50 {
            let (_, changes) = tuned(|_| work, seed);
            assert!(changes.len() <= 20, "{name}, seed {seed}: {changes:?}");
            let late = changes.iter().filter(|(at, _)| *at >= SECONDS / 2).count();
            assert!(late <= 8, "{name}, seed {seed}: {changes:?}");
        }
    }
}

fn measured(results: u64, waited: f64) -> Measurement {
    Measurement {
        elapsed: SECOND,
        results,
        waited: SECOND.mul_f64(waited),
        idle_processors: 2.0,
        is_crowded: false,
        is_memory_short: false,
    }
}

fn starting_with(first: u32) -> Tuner {
    Tuner::new(first, MOST, PROCESSORS)
}

#[test]
fn more_are_tried_while_the_consumer_waits_and_are_taken_back_if_that_does_not_help() {
    let mut tuner = starting_with(4);
    let more = TuningChange { processes: 8, reason: TuningReason::ConsumerWaits };
    assert_eq!(tuner.measure(measured(100, 0.5)), Some(more));
    // In this second the new ones start.
    assert_eq!(tuner.measure(measured(100, 0.5)), None);
    let back = TuningChange { processes: 4, reason: TuningReason::DidNotHelp };
    assert_eq!(tuner.measure(measured(104, 0.5)), Some(back));
    // Nothing is tried for a while.
    for _ in 0..14 {
        assert_eq!(tuner.measure(measured(100, 0.5)), None);
    }
    assert_eq!(tuner.measure(measured(100, 0.5)), Some(more));
}

#[test]
fn more_stay_if_they_are_faster_or_the_consumer_no_longer_waits() {
    for after in [measured(150, 0.5), measured(101, 0.0)] {
        let mut tuner = starting_with(4);
        assert!(tuner.measure(measured(100, 0.5)).is_some());
        assert_eq!(tuner.measure(measured(100, 0.5)), None);
        let next = tuner.measure(after);
        assert!(next.is_none_or(|next| next.processes == 16), "{next:?}");
        assert!(tuner.processes() >= 8);
    }
}

#[test]
fn nothing_changes_while_the_consumer_does_not_wait_or_no_processor_is_idle() {
    let mut tuner = starting_with(4);
    let busy = Measurement { idle_processors: 0.1, ..measured(100, 0.9) };
    for _ in 0..1_000 {
        assert_eq!(tuner.measure(measured(100, 0.05)), None);
        assert_eq!(tuner.measure(busy), None);
    }
}

#[test]
fn fewer_run_if_memory_is_short_and_no_more_are_tried_at_once() {
    let mut tuner = starting_with(8);
    let short = Measurement { is_memory_short: true, ..measured(100, 0.5) };
    let fewer = TuningChange { processes: 4, reason: TuningReason::MemoryShort };
    assert_eq!(tuner.measure(short), Some(fewer));
    for _ in 0..10 {
        assert_eq!(tuner.measure(measured(50, 0.5)), None);
    }
    let mut alone = starting_with(1);
    assert_eq!(alone.measure(short), None);
}

#[test]
fn fewer_run_if_the_processors_are_crowded_and_fewer_are_as_fast() {
    let crowded = Measurement { is_crowded: true, idle_processors: 0.0, ..measured(100, 0.5) };
    let fewer = TuningChange { processes: 8, reason: TuningReason::Crowded };
    let mut tuner = starting_with(16);
    assert_eq!(tuner.measure(crowded), Some(fewer));
    assert_eq!(tuner.measure(crowded), None);
    assert_eq!(tuner.measure(crowded), Some(TuningChange { processes: 4, ..fewer }));
    let mut slower = starting_with(16);
    assert_eq!(slower.measure(crowded), Some(fewer));
    assert_eq!(slower.measure(crowded), None);
    let back = TuningChange { processes: 16, reason: TuningReason::DidNotHelp };
    assert_eq!(slower.measure(Measurement { results: 60, ..crowded }), Some(back));
}

#[test]
fn pressure_and_what_is_left_decide_what_is_short() {
    assert_eq!([None, Some(49.0), Some(50.0)].map(is_crowded), [false, false, true]);
    let plenty = Some(8 << 30);
    let short = [(None, None), (Some(9.0), plenty), (Some(10.0), plenty), (None, Some(1 << 20))];
    assert_eq!(short.map(is_memory_short), [false, false, true, true]);
}

#[test]
fn short_parts_are_joined_and_few_results_are_waited_for() {
    let mut tuner = starting_with(4);
    let part = Measurement { elapsed: SECOND / 10, ..measured(1, 0.05) };
    let changes: Vec<_> = (0..100)
        .filter_map(|part_number| tuner.measure(part).map(|change| (part_number, change)))
        .take(2)
        .collect();
    // A change after 8 results, then half a second for the start of the new ones, then 20 results to judge it.
    let more = TuningChange { processes: 8, reason: TuningReason::ConsumerWaits };
    let back = TuningChange { processes: 4, reason: TuningReason::DidNotHelp };
    assert_eq!(changes, [(7, more), (7 + 8 + 20, back)], "{changes:?}");
}

#[test]
fn work_that_only_waits_gets_as_many_as_would_keep_the_processors_busy() {
    let mut tuner = starting_with(4);
    let idle = |idle_processors| Measurement { idle_processors, ..measured(100, 0.9) };
    let more = |processes| TuningChange { processes, reason: TuningReason::ConsumerWaits };
    // A third of the processors is busy.
    assert_eq!(tuner.measure(idle(8.0 / 3.0)), Some(more(12)));
    let mut tuner = starting_with(2);
    assert_eq!(tuner.measure(idle(3.99)), Some(more(16)));
    // Never more than allowed.
    let mut tuner = starting_with(8);
    assert_eq!(tuner.measure(idle(4.0)), Some(more(MOST)));
}

#[test]
fn if_many_more_do_not_help_some_more_are_tried_before_it_is_given_up() {
    let mut tuner = starting_with(2);
    let idle = |results| Measurement { idle_processors: 3.9, ..measured(results, 0.9) };
    assert_eq!(tuner.measure(idle(100)).map(|change| change.processes), Some(16));
    assert_eq!(tuner.measure(idle(50)), None);
    let fewer = |processes| TuningChange { processes, reason: TuningReason::DidNotHelp };
    assert_eq!(tuner.measure(idle(50)), Some(fewer(4)));
    assert_eq!(tuner.measure(idle(100)), None);
    assert_eq!(tuner.measure(idle(101)), Some(fewer(2)));
    // The next time, only twice as many are tried.
    let later: Vec<_> = (0..16).filter_map(|_| tuner.measure(idle(100))).collect();
    let more = TuningChange { processes: 4, reason: TuningReason::ConsumerWaits };
    assert_eq!(later, [more]);
}

#[test]
fn only_a_lack_of_memory_ends_processes_that_will_be_needed_again() {
    use TuningReason::{ConsumerWaits, Crowded, DidNotHelp, MemoryShort};
    let ends = [ConsumerWaits, Crowded, DidNotHelp, MemoryShort].map(TuningReason::ends_processes);
    assert_eq!(ends, [false, false, false, true]);
}
