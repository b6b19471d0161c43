//! Epochs: the same batches with any number of threads, every sample accounted for, nothing left behind.

use feedline_core::error::Kind;
use feedline_core::sample::{Batch, BorrowedArray, Dtype, Field};
use feedline_core::source::memory::Arrays;
use feedline_core::sys::slab::Borrowed;
use feedline_core::testing::photos::photo_jpeg;
use proptest::prelude::*;
use std::fs;
use std::sync::Arc;

use crate::data::{content, folder_loader, indices, loader, photographs};

fn config(extra: &str) -> String {
    format!(
        r#"[{{"call": "shuffle", "seed": 3}}, {{"call": "decode"}}, {{"call": "random_resized_crop", "size": 24}},
           {{"call": "flip"}}, {{"call": "batch", "size": 7}}, {{"call": "loader", {extra}}}]"#
    )
}

fn batches(loader: &feedline_core::loader::Loader) -> Vec<Batch> {
    loader.epoch().unwrap().map(Result::unwrap).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn batches_are_the_same_for_any_threads_prefetch_and_files(
        threads in prop_oneof![Just(1), Just(2), Just(3), Just(8)], readers in 1..6,
        prefetch in prop_oneof![Just(0), 1..100_000_u32], files in 1..5,
        bad in prop::collection::btree_set(0_usize..40, 0..4), replace: bool,
    ) {
        let bad: Vec<_> = bad.into_iter().collect();
        let folder = photographs(40, &bad);
        let action = if replace { "replace" } else { "skip" };
        let plain = folder_loader(
            folder.path(), &config(&format!(r#""threads": 1, "readers": 1, "faults": "{action}""#)),
        );
        let other = folder_loader(folder.path(), &config(&format!(
            r#""threads": {threads}, "readers": {readers}, "prefetch": {prefetch}, "files": {files},
               "memory": "2MiB", "faults": "{action}""#
        )));
        for _ in 0..2 {
            let (expected, found) = (batches(&plain), batches(&other));
            prop_assert_eq!(indices(&expected), indices(&found));
            prop_assert!(expected.iter().map(content).eq(found.iter().map(content)));
            let samples: usize = found.iter().map(Batch::len).sum();
            prop_assert_eq!(samples, if replace { 40 } else { 40 - bad.len() });
            prop_assert!(found.iter().rev().skip(1).all(|batch| batch.len() == 7), "batches stay full");
        }
        let report = other.report();
        prop_assert_eq!(report.delivered + report.skipped, report.expected);
        prop_assert_eq!(report.faults.len(), bad.len());
    }
}

#[test]
fn a_run_can_be_resumed_after_every_batch() {
    let folder = photographs(30, &[4, 11, 29]);
    let config = config(r#""faults": "action=skip,limit=5""#);
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
        while found.len() < expected.len() - taken {
            let before = found.len();
            found.extend(batches(&resumed).iter().map(content));
            // After its last batch, an epoch may have only bad samples left.
            assert!(found.len() > before || taken > 0);
        }
        assert!(found == expected[taken..], "after batch {taken}");
    }
}

#[test]
fn a_state_of_other_settings_is_refused() {
    let folder = photographs(10, &[]);
    let one = folder_loader(folder.path(), &config(r#""threads": 1"#));
    let other = config(r#""threads": 1"#).replace("\"seed\": 3", "\"seed\": 4");
    let other = folder_loader(folder.path(), &other);
    assert_eq!(other.load_state(&one.state()).unwrap_err().kind(), Kind::StateMismatch);
}

#[test]
fn the_first_fault_is_raised_after_the_batches_before_it() {
    let folder = photographs(30, &[17]);
    let config =
        r#"[{"call": "decode"}, {"call": "center_crop", "size": 8}, {"call": "batch", "size": 5}]"#;
    let loader = folder_loader(folder.path(), config);
    let mut epoch = loader.epoch().unwrap();
    for _ in 0..3 {
        assert!(epoch.next().unwrap().is_ok());
    }
    let Some(Err(error)) = epoch.next() else { panic!("batch 3 holds the bad sample") };
    assert_eq!(
        (error.kind(), error.index(), error.stage()),
        (Kind::CorruptImage, Some(17), Some("worker"))
    );
    assert!(error.to_string().contains("dog/0017.jpg"), "{error}");
    assert!(epoch.next().is_none());
    let report = loader.report();
    assert_eq!((report.delivered, report.pending()), (15, 15));
}

#[test]
fn a_limit_ends_the_run_with_the_count() {
    let folder = photographs(30, &[1, 2, 3]);
    let loader = folder_loader(folder.path(), &config(r#""faults": "action=skip,limit=2""#));
    let error = loader.epoch().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), Kind::TooManyFaults);
    assert!(error.message().starts_with("3 faults are more than the limit of 2"), "{error}");
}

#[test]
fn if_all_samples_are_bad_there_is_no_replacement() {
    let all: Vec<_> = (0..12).collect();
    let folder = photographs(12, &all);
    let loader = folder_loader(folder.path(), &config(r#""faults": "action=replace,limit=none""#));
    let error = loader.epoch().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), Kind::NoReplacement);
}

#[test]
fn different_shapes_are_padded_on_request_and_a_fault_otherwise() {
    let folder = photographs(8, &[]);
    let stacked =
        folder_loader(folder.path(), r#"[{"call": "decode"}, {"call": "batch", "size": 8}]"#);
    let error = stacked.epoch().unwrap().find_map(Result::err).unwrap();
    assert_eq!((error.kind(), error.stage()), (Kind::ShapeMismatch, Some("collate")));
    let padded = folder_loader(
        folder.path(),
        r#"[{"call": "decode"}, {"call": "batch", "size": 8, "pad": true}]"#,
    );
    let batch = padded.epoch().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.get("image").unwrap().shape(), Some([8, 64, 94, 3].as_slice()));
    assert_eq!(batch.get("image_shape").unwrap().shape(), Some([8, 3].as_slice()));
}

#[test]
fn the_majority_of_a_batch_decides_its_shape() {
    let folder = tempfile::tempdir().unwrap();
    let odd = [0, 1, 8, 15, 16];
    for number in 0..24 {
        let width = if odd.contains(&number) { 30 + number } else { 40 };
        let bytes = photo_jpeg(number as u64, width, 20, 85);
        fs::create_dir_all(folder.path().join("x")).unwrap();
        fs::write(folder.path().join(format!("x/{number:02}.jpg")), bytes).unwrap();
    }
    for threads in [1, 3] {
        for faults in ["skip", "action=skip,fill=false"] {
            let config = format!(
                r#"[{{"call": "decode"}}, {{"call": "batch", "size": 8}},
                    {{"call": "loader", "threads": {threads}, "faults": "{faults}"}}]"#
            );
            let loader = folder_loader(folder.path(), &config);
            let batches: Vec<_> = loader.epoch().unwrap().map(Result::unwrap).collect();
            let delivered: Vec<u64> = indices(&batches).concat();
            // The last samples fill the slots of those that do not fit.
            let filled: Vec<u64> =
                [23, 22].into_iter().chain(2..8).chain([21]).chain(9..15).collect();
            let filled: Vec<u64> = filled.into_iter().chain([20, 19, 17, 18]).collect();
            let good: Vec<u64> = (0..24).filter(|at| !odd.contains(&(*at as usize))).collect();
            let expected = if faults == "skip" { filled } else { good };
            assert_eq!(delivered, expected, "{threads} threads, {faults}");
            assert_eq!(loader.report().skipped, odd.len() as u64);
        }
    }
}

fn numbers(rows: u64) -> Arc<Arrays> {
    let values: Vec<u8> = (0..rows as u32).flat_map(u32::to_ne_bytes).collect();
    let field = Field::fixed("x", Dtype::Uint32, &[]);
    let array =
        BorrowedArray { field, memory: Arc::new(Borrowed::of(values)), stride: 4, first: 0 };
    Arc::new(Arrays::new(vec![array], rows).unwrap())
}

#[test]
fn arrays_are_delivered_row_by_row_and_dropped_rows_are_reported() {
    let config = r#"[{"call": "batch", "size": 64, "drop_last": true}]"#;
    let loader = loader(numbers(1000), config);
    let rows: Vec<u8> =
        batches(&loader).iter().flat_map(|batch| batch.bytes("x").unwrap().to_vec()).collect();
    let expected: Vec<u8> = (0..960_u32).flat_map(u32::to_ne_bytes).collect();
    assert_eq!(rows, expected);
    let report = loader.report();
    assert_eq!((report.delivered, report.dropped, report.expected), (960, 40, 960));
}

#[test]
fn a_consumer_that_keeps_every_batch_still_gets_all_of_them() {
    let loader = loader(
        numbers(5000),
        r#"[{"call": "batch", "size": 10}, {"call": "loader", "prefetch": 100, "threads": 3}]"#,
    );
    let kept = batches(&loader);
    assert_eq!(kept.len(), 500);
    assert_eq!(kept[499].bytes("x").unwrap()[36..], 4999_u32.to_ne_bytes());
}
