//! Caches: they change neither samples nor values, whatever happens to them.

use feedline_core::loader::Loader;
use feedline_core::sample::Batch;
use feedline_core::testing::photos::photo_jpeg;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

use crate::data::{content, folder_loader, photographs};

/// Which samples are kept: their bytes, or their images after a resize.
#[derive(Clone, Copy, Debug)]
enum Place {
    Bytes,
    Image,
}

const PLACES: [Place; 2] = [Place::Bytes, Place::Image];

/// A pipeline with random steps, and a cache before them if there is one.
fn config(place: Place, cache: &str, loader: &str) -> String {
    let (before, after) = match place {
        Place::Bytes => (cache, ""),
        Place::Image => ("", cache),
    };
    format!(
        r#"[{{"call": "shuffle", "seed": 3}}, {before} {{"call": "decode"}}, {{"call": "resize", "size": 30}},
           {after} {{"call": "random_crop", "size": 24}}, {{"call": "flip"}}, {{"call": "to_float"}},
           {{"call": "batch", "size": 7, "index": true}}, {{"call": "loader", {loader}}}]"#
    )
}

fn memory(bytes: u64) -> String {
    format!(r#"{{"call": "cache", "memory": {bytes}}},"#)
}

fn folder(path: &Path) -> String {
    format!(r#"{{"call": "cache", "folder": {path:?}, "size": "64MiB"}},"#)
}

/// What is done to the bytes of a file.
type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);

type Content = Vec<Vec<(String, Vec<usize>, Vec<u8>)>>;

fn epoch(loader: &Loader) -> Content {
    let batches: Vec<Batch> = loader.epoch().unwrap().map(Result::unwrap).collect();
    batches.iter().map(content).collect()
}

/// Hits and misses of the epochs since `before`.
fn hits(loader: &Loader, before: &mut (u64, u64)) -> (u64, u64) {
    let report = loader.report();
    let since = (report.cache_hits - before.0, report.cache_misses - before.1);
    *before = (report.cache_hits, report.cache_misses);
    since
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let of = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = of(folder.to_owned()).flat_map(of).collect();
    found.sort();
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn batches_are_the_same_with_any_cache(
        place in prop::sample::select(&PLACES[..]), on_disk: bool, threads in 1..4,
        bytes in prop_oneof![Just(1_u64 << 20), Just(64 << 20)],
        bad in prop::collection::btree_set(0_usize..40, 0..3),
    ) {
        let bad: Vec<_> = bad.into_iter().collect();
        let (data, kept) = (photographs(40, &bad), tempfile::tempdir().unwrap());
        let plain = folder_loader(data.path(), &config(place, "", r#""threads": 1, "faults": "skip""#));
        let cache = if on_disk { folder(kept.path()) } else { memory(bytes) };
        let settings = format!(r#""threads": {threads}, "faults": "skip""#);
        let cached = folder_loader(data.path(), &config(place, &cache, &settings));
        let good = 40 - bad.len() as u64;
        let mut before = (0, 0);
        for number in 0..3 {
            prop_assert_eq!(epoch(&plain), epoch(&cached));
            let (found, missed) = hits(&cached, &mut before);
            // A bad sample is never kept. Where samples are skipped, others of the epoch may be made twice.
            prop_assert!(found + missed >= 40);
            prop_assert!(if number == 0 { found <= bad.len() as u64 } else { found >= good }, "{number}: {found}");
        }
        prop_assert_eq!(plain.state(), cached.state());
    }
}

#[test]
fn another_process_and_a_later_run_find_what_is_in_the_folder() {
    for place in PLACES {
        let (data, kept) = (photographs(20, &[]), tempfile::tempdir().unwrap());
        let config = config(place, &folder(kept.path()), r#""threads": 2"#);
        let (one, other) =
            (folder_loader(data.path(), &config), folder_loader(data.path(), &config));
        let expected = epoch(&one);
        assert_eq!(expected, epoch(&other));
        assert_eq!(hits(&other, &mut (0, 0)), (20, 0));
        drop((one, other));
        let later = folder_loader(data.path(), &config);
        assert_eq!(expected, epoch(&later));
        assert_eq!(hits(&later, &mut (0, 0)), (20, 0));
        // What is there is not written again.
        assert_eq!(segments(kept.path()).len(), 1);
    }
}

#[test]
fn an_epoch_that_is_abandoned_keeps_what_it_has_made() {
    let (data, kept) = (photographs(40, &[]), tempfile::tempdir().unwrap());
    let config = config(Place::Image, &folder(kept.path()), r#""threads": 1, "prefetch": 0"#);
    let loader = folder_loader(data.path(), &config);
    let first = content(&loader.epoch().unwrap().next().unwrap().unwrap());
    drop(loader);
    let later = folder_loader(data.path(), &config);
    assert_eq!(first, epoch(&later)[0]);
    assert!(later.report().cache_hits >= 7);
}

#[test]
fn a_changed_file_is_loaded_again() {
    for place in PLACES {
        for on_disk in [false, true] {
            let (data, kept) = (photographs(20, &[]), tempfile::tempdir().unwrap());
            let cache = if on_disk { folder(kept.path()) } else { memory(16 << 20) };
            let cached = folder_loader(data.path(), &config(place, &cache, r#""threads": 2"#));
            let plain = folder_loader(data.path(), &config(place, "", r#""threads": 2"#));
            assert_eq!(epoch(&plain), epoch(&cached));
            fs::write(data.path().join("cat/0003.jpg"), photo_jpeg(99, 50, 70, 85)).unwrap();
            let mut before = (0, 20);
            for expected in [(19, 1), (20, 0)] {
                assert_eq!(epoch(&plain), epoch(&cached));
                assert_eq!(hits(&cached, &mut before), expected, "{place:?} {on_disk}");
            }
        }
    }
}

#[test]
fn a_corrupt_cache_is_loaded_again_and_counted() {
    for place in PLACES {
        let (data, kept) = (photographs(20, &[]), tempfile::tempdir().unwrap());
        let config = config(place, &folder(kept.path()), r#""threads": 2"#);
        let loader = folder_loader(data.path(), &config);
        let expected = [epoch(&loader), epoch(&loader)];
        drop(loader);
        let [path] = &segments(kept.path())[..] else { panic!("there is one file") };
        let whole = fs::read(path).unwrap();
        let damages: [Damage<'_>; 6] = [
            // In the bytes of a sample, in the table, at the end; and truncated in each of them.
            &|bytes| bytes[40] ^= 1,
            &|bytes| bytes[whole.len() - 30] ^= 1,
            &|bytes| bytes[whole.len() - 20] ^= 0xff,
            &|bytes| bytes.truncate(40),
            &|bytes| bytes.truncate(whole.len() - 30),
            &|bytes| bytes.clear(),
        ];
        for (number, damage) in damages.iter().enumerate() {
            let mut bytes = whole.clone();
            damage(&mut bytes);
            fs::write(path, bytes).unwrap();
            let loader = folder_loader(data.path(), &config);
            assert_eq!(epoch(&loader), expected[0], "{place:?} {number}");
            assert_eq!(epoch(&loader), expected[1], "{place:?} {number}");
            let report = loader.report();
            assert_eq!(report.cache_corrupt, 1, "{place:?} {number}");
            drop(loader);
            for other in segments(kept.path()) {
                if other != *path {
                    fs::remove_file(other).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_removed_file_of_the_cache_is_no_error() {
    let (data, kept) = (photographs(20, &[]), tempfile::tempdir().unwrap());
    let config = config(Place::Image, &folder(kept.path()), r#""threads": 2"#);
    let loader = folder_loader(data.path(), &config);
    let plain = folder_loader(data.path(), &config.replace(&folder(kept.path()), ""));
    assert_eq!(epoch(&plain), epoch(&loader));
    for path in segments(kept.path()) {
        fs::remove_file(path).unwrap();
    }
    let mut before = (0, 20);
    for expected in [(0, 20), (20, 0)] {
        assert_eq!(epoch(&plain), epoch(&loader));
        assert_eq!(hits(&loader, &mut before), expected);
    }
    assert_eq!(loader.report().cache_corrupt, 0);
}

#[test]
fn a_folder_has_at_most_its_size() {
    let (data, kept) = (photographs(40, &[]), tempfile::tempdir().unwrap());
    // Images of at least 30 x 30 x 3 bytes do not all fit beside the file of other settings.
    let other = kept.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("x.flcache"), vec![0; (1 << 20) - 40_000]).unwrap();
    let cache = format!(r#"{{"call": "cache", "folder": {:?}, "size": "1MiB"}},"#, kept.path());
    let loader = folder_loader(data.path(), &config(Place::Image, &cache, r#""threads": 2"#));
    let plain = folder_loader(data.path(), &config(Place::Image, "", r#""threads": 2"#));
    for _ in 0..2 {
        assert_eq!(epoch(&plain), epoch(&loader));
    }
    let size: u64 =
        segments(kept.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(size <= 1 << 20, "{size}");
    let report = loader.report();
    assert!(report.cache_hits > 0 && report.cache_hits < 40, "{}", report.cache_hits);
    assert!(
        report.notes.iter().any(|note| note.contains("the cache is full")),
        "{:?}",
        report.notes
    );
}

#[test]
fn files_of_other_settings_that_nobody_uses_make_room() {
    let (data, kept) = (photographs(20, &[]), tempfile::tempdir().unwrap());
    let other = kept.path().join("other");
    fs::create_dir(&other).unwrap();
    let old = other.join("x.flcache");
    fs::write(&old, vec![0; 1 << 20]).unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    let cache = format!(r#"{{"call": "cache", "folder": {:?}, "size": "1MiB"}},"#, kept.path());
    let loader = folder_loader(data.path(), &config(Place::Image, &cache, r#""threads": 2"#));
    epoch(&loader);
    epoch(&loader);
    assert_eq!(loader.report().cache_hits, 20);
    assert!(!old.exists());
}

#[test]
fn a_folder_that_cannot_be_written_to_is_noted_once() {
    let (data, kept) = (photographs(20, &[]), tempfile::tempdir().unwrap());
    let file = kept.path().join("file");
    fs::write(&file, b"not a folder").unwrap();
    let loader =
        folder_loader(data.path(), &config(Place::Bytes, &folder(&file), r#""threads": 2"#));
    let plain = folder_loader(data.path(), &config(Place::Bytes, "", r#""threads": 2"#));
    for _ in 0..2 {
        assert_eq!(epoch(&plain), epoch(&loader));
    }
    let notes = loader.report().notes;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("nothing more is written to the cache"), "{notes:?}");
}

#[test]
fn a_cache_that_leaves_no_memory_is_refused() {
    let data = photographs(5, &[]);
    let source =
        std::sync::Arc::new(feedline_core::source::folder::Folder::images(data.path()).unwrap());
    let config = config(Place::Bytes, &memory(8 << 20), r#""memory": "8MiB""#);
    let settings =
        feedline_core::config::Settings::parse(&config, &feedline_core::config::Given::Files);
    let error = Loader::new(source, settings.unwrap()).err().unwrap();
    assert!(error.message().contains("leave nothing of memory=8388608"), "{error}");
}
