//! Faults in whole epochs: retried, skipped, filled, excluded, waited for; the same with any number of threads, and
//! resumed exactly.

use feedline_core::config::{Settings, fault_policy};
use feedline_core::error::Kind;
use feedline_core::fault::{Action, FaultPolicy};
use feedline_core::loader::{Loader, given};
use feedline_core::source::folder::Folder;
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::data::{content, folder_loader, indices, photographs};

/// Config of a loader of whole files, with injected faults.
fn config(rank: u64, world: u64, size: u64, drop_last: bool, rest: &str) -> String {
    format!(
        r#"[{{"call": "shuffle", "seed": 5}}, {{"call": "shard", "rank": {rank}, "world": {world}}},
            {{"call": "batch", "size": {size}, "drop_last": {drop_last}, "index": true}},
            {{"call": "loader", {rest}}}]"#
    )
}

fn epoch(loader: &Loader) -> Vec<Vec<u64>> {
    let batches: Vec<_> = loader.epoch().unwrap().map(Result::unwrap).collect();
    indices(&batches)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn ranks_stay_even_and_every_sample_is_accounted_for_with_faults(
        seed in 0_u64..1000, world in 1_u64..4, size in 1_u64..8, drop_last: bool, fill: Option<bool>,
        threads in 1_u64..5, retry in 0_u64..3, replace: bool, rate in prop::sample::select(vec![0.1, 0.6]),
    ) {
        // With this many bad samples there may be no replacements.
        let replace = replace && rate < 0.5;
        let folder = photographs(40, &[]);
        let action = if replace { "replace" } else { "skip" };
        let fill_word = fill.map_or(String::new(), |fill| format!(",fill={fill}"));
        let rest = |threads: u64| format!(
            r#""threads": {threads}, "readers": {threads}, "chaos": {{"seed": {seed}, "eio": 0.1, "raise": {rate}}},
               "faults": "{action},retry={retry},backoff=0,limit=none{fill_word}""#
        );
        let mut lengths = Vec::new();
        let mut seen = Vec::new();
        for rank in 0..world {
            let config = |threads| config(rank, world, size, drop_last, &rest(threads));
            let one = folder_loader(folder.path(), &config(1));
            let many = folder_loader(folder.path(), &config(threads));
            let (expected, found) = (epoch(&one), epoch(&many));
            prop_assert_eq!(&expected, &found, "for any threads");
            let report = many.report();
            prop_assert_eq!(report.delivered + report.skipped, report.expected + report.repeated);
            let samples: u64 = found.iter().map(|batch| batch.len() as u64).sum();
            prop_assert_eq!(samples, report.delivered);
            if fill == Some(false) {
                prop_assert_eq!(report.repeated, 0);
                prop_assert!(found.iter().all(|batch| !batch.is_empty()));
            } else if world > 1 {
                prop_assert!(found.iter().rev().skip(1).all(|batch| batch.len() as u64 == size));
                lengths.push(samples);
            }
            seen.extend(found.concat());
            let bad = report.faults.len();
            prop_assert_eq!(bad > 0, report.skipped + report.replaced > 0);
        }
        lengths.dedup();
        prop_assert!(lengths.len() <= 1, "{:?}", lengths);
        if let Some(length) = lengths.first() {
            let whole = 40_u64.div_ceil(world);
            prop_assert_eq!(*length, if drop_last { whole / size * size } else { whole });
        }
    }

    #[test]
    fn a_run_with_faults_can_be_resumed_after_every_batch(
        seed in 0_u64..1000, world in 1_u64..4, size in 1_u64..8, drop_last: bool, fill: Option<bool>,
    ) {
        let folder = photographs(24, &[]);
        let fill = fill.map_or(String::new(), |fill| format!(",fill={fill}"));
        let rest = format!(
            r#""threads": 2, "chaos": {{"seed": {seed}, "raise": 0.3}}, "faults": "skip,limit=0.95,window=24{fill}""#
        );
        let config = config(0, world, size, drop_last, &rest);
        let whole = folder_loader(folder.path(), &config);
        let mut expected = Vec::new();
        let mut states = vec![whole.state()];
        for _ in 0..2 {
            for batch in whole.epoch().unwrap() {
                expected.push(content(&batch.unwrap()));
                states.push(whole.state());
            }
        }
        for (taken, state) in states.iter().enumerate() {
            let resumed = folder_loader(folder.path(), &config);
            resumed.load_state(state).unwrap();
            let mut found = Vec::new();
            for _ in 0..3 {
                if found.len() < expected.len() - taken {
                    found.extend(resumed.epoch().unwrap().map(|batch| content(&batch.unwrap())));
                }
            }
            prop_assert!(found == expected[taken..], "after batch {}", taken);
        }
    }
}

#[test]
fn a_window_of_faults_is_judged_the_same_after_a_resume() {
    let folder = photographs(40, &[]);
    let outcome = |loader: &Loader| -> (Vec<Vec<u64>>, Option<String>) {
        let mut found = Vec::new();
        for batch in loader.epoch().unwrap() {
            match batch {
                Ok(batch) => found.extend(indices(&[batch])),
                Err(error) => return (found, Some(error.message().to_owned())),
            }
        }
        (found, None)
    };
    let made = |seed: u64| {
        let chaos = format!(r#""chaos": {{"seed": {seed}, "raise": 0.3}}"#);
        let rest = format!(r#"{chaos}, "faults": "skip,limit=0.4,window=10""#);
        config(0, 1, 4, false, &rest)
    };
    let run = |seed: u64| outcome(&folder_loader(folder.path(), &made(seed)));
    // A run that ends some batches after the first, because of faults before and after it.
    let seed = (0..100).find(|seed| run(*seed).1.is_some() && run(*seed).0.len() == 2).unwrap();
    let (expected, stopped) = run(seed);
    assert!(stopped.as_deref().is_some_and(|text| text.contains("of the last 10 samples")));
    let config = made(seed);
    let again = folder_loader(folder.path(), &config);
    let mut running = again.epoch().unwrap();
    running.next().unwrap().unwrap();
    let resumed = folder_loader(folder.path(), &config);
    resumed.load_state(&again.state()).unwrap();
    let (rest, stopped_again) = outcome(&resumed);
    assert_eq!(rest, expected[1..]);
    let first = |text: Option<String>| text.unwrap().lines().next().unwrap().to_owned();
    assert_eq!(first(stopped_again), first(stopped));
}

#[test]
fn transient_faults_are_retried_and_counted() {
    let folder = photographs(40, &[]);
    let rest = r#""chaos": {"seed": 1, "eio": 0.3}, "faults": "retry=20,backoff=0.001""#;
    let loader = folder_loader(folder.path(), &config(0, 1, 8, false, rest));
    let samples: usize = epoch(&loader).iter().map(Vec::len).sum();
    let report = loader.report();
    assert_eq!((samples, report.skipped), (40, 0));
    assert!(report.retried > 5, "{report}");
    let events = loader.take_events();
    let retried = events.iter().filter(|event| event.name() == "sample_retried").count() as u64;
    assert_eq!(retried, report.retried);
}

#[test]
fn permanent_faults_are_retried_only_if_named() {
    let folder = photographs(12, &[3, 7]);
    let config = |faults: &str| {
        format!(
            r#"[{{"call": "decode"}}, {{"call": "center_crop", "size": 8}}, {{"call": "batch", "size": 4}},
                {{"call": "loader", "faults": "{faults}"}}]"#
        )
    };
    let plain = folder_loader(folder.path(), &config("skip,retry=3,backoff=0"));
    epoch(&plain);
    assert_eq!((plain.report().retried, plain.report().skipped), (0, 2));
    let named =
        folder_loader(folder.path(), &config("skip,by_type.CorruptImageError=retry:2,backoff=0"));
    epoch(&named);
    let report = named.report();
    assert_eq!((report.retried, report.skipped), (4, 2));
    assert!(report.faults.values().all(|(line, _)| line.attempts == 3), "{report}");
}

#[test]
fn closing_ends_the_wait_for_a_retry() {
    let folder = photographs(12, &[]);
    let rest = r#""chaos": {"eio": 1.0}, "faults": "retry=100,backoff=60,patience=0""#;
    let loader = folder_loader(folder.path(), &config(0, 1, 4, false, rest));
    let mut running = loader.epoch().unwrap();
    while loader.report().retried == 0 {
        assert!(running.next_within(Duration::from_millis(20)).is_ok());
    }
    let start = std::time::Instant::now();
    loader.close();
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
}

#[test]
fn excluded_samples_are_as_if_they_did_not_exist() {
    let folder = photographs(20, &[2, 9]);
    let bad = folder.path().join("bad.jsonl");
    let config = |faults: &str, exclude: &str| {
        format!(
            r#"[{{"call": "shuffle", "seed": 1}}, {{"call": "decode"}}, {{"call": "center_crop", "size": 8}},
                {{"call": "batch", "size": 3}}, {{"call": "loader", "faults": "{faults}"{exclude}}}]"#
        )
    };
    let first =
        folder_loader(folder.path(), &config(&format!("skip,quarantine={}", bad.display()), ""));
    let mut skipped = epoch(&first).concat();
    let exclude = format!(r#", "exclude": "{}""#, bad.display());
    let second = folder_loader(folder.path(), &config("raise", &exclude));
    let found = epoch(&second).concat();
    assert_eq!((found.len(), second.report().expected, second.report().excluded), (18, 18, 2));
    let mut sorted = found.clone();
    sorted.sort_unstable();
    skipped.sort_unstable();
    assert_eq!(sorted, skipped);
    let error = second.load_state(&first.state()).unwrap_err();
    assert_eq!(error.kind(), Kind::StateMismatch);
}

#[test]
fn a_quarantine_file_of_another_data_set_is_refused() {
    let folder = photographs(4, &[]);
    let list = folder.path().join("bad.jsonl");
    let refused = |text: &str| {
        fs::write(&list, text).unwrap();
        let rest = format!(r#""exclude": "{}""#, list.display());
        let source = Arc::new(Folder::images(folder.path()).unwrap());
        let settings = Settings::parse(&config(0, 1, 2, false, &rest), &given(&*source)).unwrap();
        Loader::new(source, settings).err().map(|error| error.message().to_owned())
    };
    let said = refused(r#"{"index": 7, "kind": "CorruptImageError"}"#).unwrap();
    assert_eq!(said, "exclude: there is no sample 7: the source has 4");
    let said =
        refused(r#"{"index": 1, "kind": "CorruptImageError", "path": "other/x.jpg"}"#).unwrap();
    assert!(said.starts_with("exclude: sample 1 was \"other/x.jpg\", but is "), "{said}");
    assert_eq!(
        refused(r#"{"index": 1, "kind": "CorruptImageError", "path": "moved/0001.jpg"}"#),
        None
    );
    let all: Vec<_> = (0..4).map(|index| format!(r#"{{"index": {index}, "kind": "A"}}"#)).collect();
    assert_eq!(refused(&all.join("\n")).unwrap(), "all samples of the source are excluded");
}

/// Moves the folder away while an epoch runs, and back after a while.
fn outage(folder: &Path, faults: &str, back: bool) -> (Vec<u64>, Option<Kind>, Loader) {
    let away = folder.with_extension("away");
    let rest =
        format!(r#""threads": 2, "readers": 3, "prefetch": 0, "files": 1, "faults": "{faults}""#);
    let loader = folder_loader(folder, &config(0, 1, 4, false, &rest));
    let mut running = loader.epoch().unwrap();
    let mut found = indices(&[running.next().unwrap().unwrap()]).concat();
    fs::rename(folder, &away).unwrap();
    let mut error = None;
    let mut events = Vec::new();
    let mut is_back = false;
    loop {
        use feedline_core::loader::Waited;
        match running.next_within(Duration::from_millis(20)) {
            Ok(Waited::Batch(batch)) => found.extend(indices(&[*batch]).concat()),
            Ok(Waited::End) => break,
            Ok(Waited::NotYet) => {}
            Err(failed) => {
                error = Some(failed.kind());
                break;
            }
        }
        events.extend(loader.take_events().into_iter().map(|event| event.name().to_owned()));
        if back && !is_back && events.iter().any(|name| name == "source_probed") {
            fs::rename(&away, folder).unwrap();
            is_back = true;
        }
    }
    events.extend(loader.take_events().into_iter().map(|event| event.name().to_owned()));
    assert!(events.iter().any(|name| name == "source_unavailable"), "{events:?}");
    assert_eq!(events.iter().any(|name| name == "source_recovered"), back, "{events:?}");
    drop(running);
    if !is_back {
        fs::rename(&away, folder).unwrap();
    }
    (found, error, loader)
}

#[test]
fn nothing_is_skipped_because_a_source_was_unavailable() {
    let data = photographs(60, &[]);
    let folder = data.path().join("set");
    fs::create_dir(&folder).unwrap();
    for class in ["cat", "dog"] {
        fs::rename(data.path().join(class), folder.join(class)).unwrap();
    }
    let (mut found, error, loader) = outage(&folder, "skip,patience=60", true);
    found.sort_unstable();
    assert_eq!(found, (0..60).collect::<Vec<_>>());
    assert_eq!((error, loader.report().skipped), (None, 0));
    assert!(loader.report().notes.iter().any(|note| note.contains("is back after")));
    let (_, error, loader) = outage(&folder, "skip,patience=0.4", false);
    assert_eq!((error, loader.report().skipped), (Some(Kind::SourceUnavailable), 0));
}

#[test]
fn a_missing_file_in_an_available_source_is_a_fault_at_once() {
    let data = photographs(12, &[]);
    let rest = r#""faults": "skip,retry=5,patience=600""#;
    let loader = folder_loader(data.path(), &config(0, 1, 4, false, rest));
    fs::remove_file(data.path().join("cat/0002.jpg")).unwrap();
    let found = epoch(&loader).concat();
    assert_eq!((found.len(), loader.report().skipped, loader.report().retried), (11, 1, 0));
}

#[test]
fn a_consumer_that_waits_long_learns_why_once() {
    let data = photographs(4, &[]);
    let rest = r#""stall": 0.2, "readers": 1, "chaos": {"slow": 1.0, "seconds": 0.9}"#;
    let loader = folder_loader(data.path(), &config(0, 1, 1, false, rest));
    let mut running = loader.epoch().unwrap();
    let mut stalls = Vec::new();
    while stalls.is_empty() {
        assert!(running.next_within(Duration::from_millis(50)).is_ok());
        stalls = loader.take_events().into_iter().filter(|e| e.name() == "batch_stalled").collect();
    }
    let text = stalls[0].to_string();
    assert!(text.contains("reading sample ") && text.contains(".jpg) for 0."), "{text}");
    assert_eq!(stalls.len(), 1);
}

#[test]
fn the_slowest_samples_are_in_the_report() {
    let data = photographs(20, &[]);
    let config = r#"[{"call": "decode"}, {"call": "resize", "size": 16}, {"call": "center_crop", "size": 16}, {"call": "batch", "size": 5}]"#;
    let loader = folder_loader(data.path(), config);
    epoch(&loader);
    let slowest = loader.report().slowest;
    assert_eq!(slowest.len(), 10);
    assert!(slowest.windows(2).all(|pair| pair[0].seconds >= pair[1].seconds));
}

#[test]
fn an_empty_policy_is_the_default() {
    assert_eq!(
        fault_policy("").unwrap(),
        FaultPolicy { action: Action::Raise, ..FaultPolicy::default() }
    );
}
