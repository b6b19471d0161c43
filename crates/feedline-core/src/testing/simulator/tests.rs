//! The supervisor in many worlds.

use super::*;

/// Names the seed, also when the supervisor panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let again = "cargo test simulator -- --nocapture";
            println!("run it alone, with all it did: FEEDLINE_SEED={} {again}", self.0);
        }
    }
}

fn play(seeds: std::ops::Range<u64>) -> Report {
    let mut sum = Report::default();
    for seed in seeds {
        let _named = Named(seed);
        match run(seed) {
            Ok(report) => sum.add(&report),
            Err(why) => panic!("{why}"),
        }
    }
    sum
}

#[test]
fn the_supervisor_keeps_its_promises_in_every_world() {
    let Ok(seed) = std::env::var("FEEDLINE_SEED") else {
        play(0..100_000);
        return;
    };
    let (outcome, story) = trace(seed.parse().expect("FEEDLINE_SEED is a number"));
    println!("{}", story.join("\n"));
    outcome.unwrap();
}

#[test]
fn every_kind_of_bad_luck_happens_often() {
    let seeds = 100_000..120_000;
    let sum = play(seeds.clone());
    for (name, count) in sum.counts() {
        println!("{count:>9} {name}");
        // Impatience is what is left when nothing else ends a run, so it is rare.
        let least = if name == "closed_impatient" { 1 } else { 25 };
        assert!(count >= least, "{name} happened {count} times in {seeds:?}: too seldom");
    }
}

#[test]
fn a_seed_tells_the_same_story_each_time() {
    assert_eq!(trace(7), trace(7));
}
