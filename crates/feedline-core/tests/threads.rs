//! Checks that an epoch leaves no thread behind. In a program of its own, because other tests have threads too.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests create and read files of their own, and fail by panicking"
)]

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "it/data.rs"]
mod data;

use data::{folder_loader, photographs};
use feedline_core::error::Kind;
use feedline_core::sample::Batch;
use std::fs;

const CALLS: &str = r#"[{"call": "decode"}, {"call": "random_resized_crop", "size": 24},
    {"call": "batch", "size": 7}, {"call": "loader", "threads": 3}]"#;

#[test]
fn abandoning_an_epoch_starts_the_next_one_and_leaves_no_thread() {
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let folder = photographs(20, &[]);
    let loader = folder_loader(folder.path(), CALLS);
    let epoch_of = |batch: Batch| batch.tickets[0].epoch;
    assert_eq!(epoch_of(loader.epoch().unwrap().next().unwrap().unwrap()), 0);
    assert_eq!(epoch_of(loader.epoch().unwrap().next().unwrap().unwrap()), 1);
    let mut old = loader.epoch().unwrap();
    let _new = loader.epoch().unwrap();
    assert!(old.next().is_none(), "an abandoned epoch has no more batches");
    loader.close();
    assert_eq!(threads(), before);
    assert_eq!(loader.epoch().map(drop).unwrap_err().kind(), Kind::Closed);
}
