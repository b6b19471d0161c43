//! Runs the supervisor in many simulated worlds.

use super::*;

/// Prints the seed if the supervisor panics.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let command = "cargo test simulator -- --nocapture";
            println!("to trace this run: FEEDLINE_SEED={} {command}", self.0);
        }
    }
}

fn run_all(seeds: std::ops::Range<u64>) -> SimulationReport {
    let mut sum = SimulationReport::default();
    for seed in seeds {
        let _seed_on_panic = SeedOnPanic(seed);
        match run(seed) {
            Ok(report) => sum.add(&report),
            Err(why) => panic!("{why}"),
        }
    }
    sum
}

#[test]
fn the_supervisor_keeps_its_promises_with_every_seed() {
    let Ok(seed) = std::env::var("FEEDLINE_SEED") else {
        run_all(0..100_000);
        return;
    };
    let (outcome, log) = trace(seed.parse().expect("FEEDLINE_SEED is a number"));
    println!("{}", log.join("\n"));
    outcome.unwrap();
}

#[test]
fn every_kind_of_failure_happens_often() {
    let seeds = 100_000..120_000;
    let sum = run_all(seeds.clone());
    for (name, count) in sum.counts() {
        println!("{count:>9} {name}");
        // Only a run that nothing else ends is closed for its length, so this is rare.
        let minimum = if name == "closed_impatient" { 1 } else { 25 };
        assert!(count >= minimum, "{name} happened {count} times in {seeds:?}, too few");
    }
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    assert_eq!(trace(7), trace(7));
}
