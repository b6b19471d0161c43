//! `feedline verify` from outside.

use super::data::{Place, archive, examples, labelled, packed, picture, sample, samples, shard};
use feedline_core::config::{Given, Settings};
use feedline_core::format::example::{self, List};
use feedline_core::format::{Container, Packing};
use feedline_core::loader::Loader;
use feedline_core::source::Source;
use feedline_core::source::folder::Folder;
use feedline_core::source::index::Keep;
use feedline_core::source::records::Records;
use feedline_core::testing::photos::photo_jpeg;
use std::sync::Arc;

/// A picture of which the last bytes are missing.
pub(crate) fn cut(number: usize) -> Vec<u8> {
    let bytes = picture(number);
    bytes[..bytes.len() - 40].to_vec()
}

/// An image folder in which two files are bad.
fn photos(place: &Place) {
    for number in 0..4 {
        place.write(&format!("photos/cat/{number}.png"), &picture(number));
    }
    place.write("photos/cat/deep/4.jpg", &photo_jpeg(4, 40, 30, 90));
    place.write("photos/dog/a.png", &picture(7));
    place.write("photos/dog/b.png", &cut(8));
    place.write("photos/dog/c.jpeg", b"no picture");
    place.write("photos/dog/notes.txt", b"nothing");
}

/// Three shards of Examples: a flipped byte, a cut picture, no Example, and a cut file.
fn shards(place: &Place) {
    let mut flipped = examples(0..5);
    flipped[examples(0..2).len() + 30] ^= 4;
    place.write("data/a.tfrecord", &flipped);
    let bad_picture = example::write(&[
        ("image_raw", List::Bytes(vec![&cut(1)])),
        ("label", List::Ints(vec![2])),
    ]);
    let no_picture = example::write(&[("image_raw", List::Bytes(vec![b"GIF89a"]))]);
    let records = [labelled(5), bad_picture, no_picture, b"\xffno Example".to_vec(), labelled(6)];
    place.write("data/b.tfrecord", &shard(&records));
    let whole = examples(7..10);
    place.write("data/c.tfrecord", &whole[..whole.len() - 5]);
}

#[test]
fn a_good_data_set_has_a_summary_and_no_fault() {
    let place = Place::new();
    place.write("data/a.tfrecord", &examples(0..5));
    place.write("data/b.tfrecord", &examples(5..9));
    let answer = place.run(&["verify", "data"]);
    assert_eq!(answer.code, Some(0), "{}", answer.talk);
    insta::assert_snapshot!(answer.result);
}

#[test]
fn bad_files_of_an_image_folder_are_named_and_summed_up() {
    let place = Place::new();
    photos(&place);
    let answer = place.run(&["verify", "photos"]);
    assert_eq!(answer.code, Some(1), "{}", answer.talk);
    insta::assert_snapshot!(answer.result);
    assert!(answer.talk.contains("1 file was skipped"), "{}", answer.talk);
    let fast = place.run(&["verify", "photos", "--fast", "--threads", "1"]);
    assert_eq!(fast.code, Some(1));
    assert!(!fast.result.contains("photos/dog/b.png"), "its header is good: {}", fast.result);
    assert!(fast.result.contains("bad  photos/dog/c.jpeg: UnknownFormatError: not a JPEG"));
}

#[test]
fn bad_records_are_named_with_record_byte_and_cause() {
    let place = Place::new();
    shards(&place);
    let answer = place.run(&["verify", "data"]);
    assert_eq!(answer.code, Some(1), "{}", answer.talk);
    insta::assert_snapshot!(answer.result);
}

#[test]
fn samples_of_tars_must_be_like_the_first() {
    let place = Place::new();
    let mut members: Vec<_> = (0..5).flat_map(sample).collect();
    // 001 has no class, 002 one that is no number, 003 a cut picture, 004 a file that is no JSON.
    members.remove(3);
    members[4].1 = b"cat".to_vec();
    members[5].1 = cut(3);
    members.push(("004.json".into(), b"{\"a\": ".to_vec()));
    place.write("a.tar", &archive(&members));
    let mut flipped = samples(5..8);
    flipped[2048 + 3] ^= 1;
    place.write("b.tar", &flipped);
    let answer = place.run(&["verify", "a.tar", "b.tar"]);
    assert_eq!(answer.code, Some(1), "{}", answer.talk);
    insta::assert_snapshot!(answer.result);
}

#[test]
fn lines_and_rows_are_read_too() {
    let place = Place::new();
    place.write("a.jsonl", b"{\"label\": \"x\"}\n{\"label\": 3}\n\nno JSON\n[1, 2]\n");
    let lines = place.run(&["verify", "a.jsonl"]);
    assert_eq!(lines.code, Some(1), "{}", lines.talk);
    insta::assert_snapshot!(lines.result);
    place.write("a.csv", b"name,label\na,1\nb\nc,2\n");
    let rows = place.run(&["verify", "a.csv"]);
    assert_eq!(rows.code, Some(1), "{}", rows.talk);
    insta::assert_snapshot!(rows.result);
}

#[test]
fn records_that_are_no_examples_are_good_where_none_is() {
    let place = Place::new();
    place.write("a.tfrecord", &shard(&[b"\xffone".to_vec(), b"".to_vec(), b"\xfftwo".to_vec()]));
    let answer = place.run(&["verify", "a.tfrecord"]);
    assert_eq!(answer.code, Some(0), "{}", answer.result);
}

#[test]
fn compressed_shards_have_the_same_faults() {
    let place = Place::new();
    shards(&place);
    let plain = place.run(&["verify", "data/b.tfrecord"]);
    place.write("b.tfrecord", &packed(Packing::Gzip, &place.read("data/b.tfrecord")));
    let gzip = place.run(&["verify", "b.tfrecord"]);
    assert_eq!(gzip.code, Some(1));
    let bad = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("bad  "));
        lines.map(|line| line.replace("data/", "")).collect()
    };
    assert_eq!(bad(&gzip.result), bad(&plain.result));
    assert_eq!(bad(&gzip.result).len(), 3);
}

/// What a loader delivers and skips that leaves out what the quarantine file names.
fn load(source: Arc<dyn Source>, calls: &str, given: &Given, quarantine: &str) -> (u64, u64) {
    let words = format!(
        r#"[{calls} {{"call": "batch", "size": 1, "pad": true}},
            {{"call": "loader", "exclude": {quarantine:?}, "faults": {{"action": "skip"}}}}]"#
    );
    let loader = Loader::new(source, Settings::parse(&words, given).unwrap()).unwrap();
    loader.epoch().unwrap().for_each(|batch| drop(batch.unwrap()));
    let report = loader.report();
    (report.delivered, report.skipped)
}

#[test]
fn a_loader_that_leaves_out_the_quarantine_file_meets_no_fault() {
    let place = Place::new();
    photos(&place);
    let answer = place.run(&["verify", "photos", "--quarantine", "bad.jsonl"]);
    assert!(answer.talk.contains("2 samples in bad.jsonl: loader(exclude=\"bad.jsonl\")"));
    let quarantine = place.path("bad.jsonl");
    let quarantine = quarantine.to_str().unwrap();
    let folder = Arc::new(Folder::images(&place.path("photos")).unwrap());
    let decode = r#"{"call": "decode"}, {"call": "resize", "size": [8, 8]},"#;
    assert_eq!(load(folder, decode, &Given::Files, quarantine), (6, 0));
}

#[test]
fn numbers_in_the_quarantine_file_go_over_all_shards_as_loaders_count() {
    let place = Place::new();
    shards(&place);
    place.run(&["verify", "data", "--quarantine", "bad.jsonl"]);
    let lines = String::from_utf8(place.read("bad.jsonl")).unwrap();
    let numbers: Vec<_> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["index"].clone())
        .collect();
    assert_eq!(numbers, [2, 6, 7, 8, 12]);
    let paths = ["a", "b", "c"].map(|name| place.path(&format!("data/{name}.tfrecord"))).to_vec();
    let container = Container::Tfrecord { check: true };
    let records = Records::new(paths, container, &Keep::Nowhere, None, &mut |_| true).unwrap();
    assert_eq!(records.len(), 13);
    let quarantine = place.path("bad.jsonl");
    let given = Given::Records(records.contents().unwrap().clone());
    let calls = r#"{"call": "parse", "fields": [{"name": "image_raw", "of": "bytes"}]},
        {"call": "decode", "field": "image_raw"},"#;
    assert_eq!(load(Arc::new(records), calls, &given, quarantine.to_str().unwrap()), (8, 0));
}

#[test]
fn a_quarantine_file_of_good_data_is_empty_and_none_is_written_over() {
    let place = Place::new();
    place.write("a.tfrecord", &examples(0..3));
    let command = ["verify", "a.tfrecord", "--quarantine", "bad.jsonl"];
    assert_eq!(place.run(&command).code, Some(0));
    assert_eq!(place.read("bad.jsonl"), b"");
    let again = place.run(&command);
    assert_eq!(again.code, Some(2));
    assert!(again.talk.contains("\"bad.jsonl\" exists already\nhint: remove it"), "{}", again.talk);
}

#[test]
fn repaired_shards_have_the_good_records_as_they_were() {
    let place = Place::new();
    shards(&place);
    place.write("data/d.tfrecord.gz", &packed(Packing::Gzip, &place.read("data/b.tfrecord")));
    place.write("data/deep/e.tfrecord", &examples(20..22));
    place.write("data/f.tfrecord", b"no record at all");
    place.write("data/g.tfrecord", b"");
    let before: Vec<_> =
        place.files("data").iter().map(|name| place.read(&format!("data/{name}"))).collect();
    let answer = place.run(&["verify", "data", "--repair", "out/repaired"]);
    assert_eq!(answer.code, Some(1), "{}", answer.talk);
    let written = answer.result.split_once("repaired ").unwrap().1;
    insta::assert_snapshot!(written);
    assert_eq!(
        place.files("out/repaired"),
        [
            "a.tfrecord",
            "b.tfrecord",
            "c.tfrecord",
            "d.tfrecord.gz",
            "deep/e.tfrecord",
            "g.tfrecord"
        ]
    );
    assert!(answer.talk.contains("1 shard has no records: data/g.tfrecord"), "{}", answer.talk);
    let expected = shard(&[0, 1, 3, 4].map(labelled));
    assert_eq!(place.read("out/repaired/a.tfrecord"), expected);
    let good = shard(&[labelled(5), labelled(6)]);
    assert_eq!(place.read("out/repaired/b.tfrecord"), good);
    assert_eq!(place.read("out/repaired/d.tfrecord.gz"), packed(Packing::Gzip, &good));
    assert_eq!(place.read("out/repaired/deep/e.tfrecord"), examples(20..22));
    let repaired = place.run(&["verify", "out/repaired"]);
    assert_eq!(repaired.code, Some(0), "{}", repaired.result);
    let after: Vec<_> =
        place.files("data").iter().map(|name| place.read(&format!("data/{name}"))).collect();
    assert!(before == after, "the originals are as they were");
}

#[test]
fn repaired_tars_end_as_tars_do() {
    let place = Place::new();
    let members: Vec<_> = (0..3).flat_map(sample).collect();
    let mut bad = members.clone();
    bad[2].1 = cut(1);
    place.write("a.tar", &archive(&bad));
    place.write("b.tar.zst", &packed(Packing::Zstd, &archive(&bad)));
    place.write("classes.txt", b"cat\ndog\ncow\n");
    let answer = place.run(&["verify", "*.tar*", "--repair", "out"]);
    assert_eq!(answer.code, Some(1), "{}", answer.talk);
    assert!(answer.result.contains("\n          2  0 cat\n"), "{}", answer.result);
    assert_eq!(place.read("out/classes.txt"), place.read("classes.txt"));
    let good: Vec<_> = [&members[..2], &members[4..]].concat();
    assert_eq!(place.read("out/a.tar"), archive(&good));
    assert_eq!(place.read("out/b.tar.zst"), packed(Packing::Zstd, &archive(&good)));
    let mut read = tar::Archive::new(std::fs::File::open(place.path("out/a.tar")).unwrap());
    assert_eq!(read.entries().unwrap().count(), 4);
    assert_eq!(place.run(&["verify", "out"]).code, Some(0));
}

#[test]
fn a_shard_that_was_cut_is_noticed_by_its_index_and_by_a_manifest() {
    let place = Place::new();
    place.write("a.tfrecord", &examples(0..5));
    place.write("b.tfrecord", &examples(5..9));
    place.run(&["index", "a.tfrecord", "b.tfrecord", "--manifest", "m.json"]);
    place.write("a.tfrecord", &examples(0..3));
    let by_index = place.run(&["verify", "*.tfrecord", "--json"]);
    assert_eq!(by_index.code, Some(1));
    let summary: serde_json::Value = serde_json::from_str(&by_index.result).unwrap();
    assert_eq!((&summary["bad"], &summary["samples"]), (&1.into(), &8.into()));
    assert_eq!(summary["faults"][0]["index"], 3);
    place.run(&["index", "*.tfrecord", "--fresh"]);
    assert_eq!(place.run(&["verify", "*.tfrecord"]).code, Some(0), "nobody remembers");
    let by_manifest = place.run(&["verify", "*.tfrecord", "--manifest", "m.json"]);
    assert!(by_manifest.result.contains("the manifest says 5 records, the shard has 3"));
}

#[test]
fn the_summary_is_json_for_programs() {
    let place = Place::new();
    photos(&place);
    let answer = place.run(&["verify", "photos", "--json"]);
    let mut summary: serde_json::Value = serde_json::from_str(&answer.result).unwrap();
    for fault in summary["faults"].as_array_mut().unwrap() {
        assert!(fault["time"].as_f64().unwrap() > 1.7e9);
        fault["time"] = 0.into();
    }
    insta::assert_snapshot!(format!("{summary:#}"));
}

#[test]
fn json_has_stdout_for_itself_when_shards_are_repaired() {
    let place = Place::new();
    shards(&place);
    let answer = place.run(&["verify", "data", "--json", "--repair", "out"]);
    assert_eq!(answer.code, Some(1), "{}", answer.talk);
    let summary: serde_json::Value = serde_json::from_str(&answer.result).unwrap();
    assert_eq!(summary["bad"], 5);
    assert!(answer.talk.contains("repaired data/a.tfrecord: 4 records kept"), "{}", answer.talk);
    assert!(answer.talk.contains("3 shards below out: 3 without 5 bad"), "{}", answer.talk);
}

#[test]
fn a_shard_of_the_manifest_that_is_missing_is_named() {
    let place = Place::new();
    for name in ["a", "b", "c"] {
        place.write(&format!("{name}.tfrecord"), &examples(0..2));
    }
    assert_eq!(place.run(&["index", "*.tfrecord", "--manifest", "m.json"]).code, Some(0));
    let command = ["verify", "*.tfrecord", "--manifest", "m.json"];
    assert_eq!(place.run(&command).code, Some(0));
    std::fs::remove_file(place.path("b.tfrecord")).unwrap();
    let one = place.run(&command);
    assert_eq!(one.code, Some(2), "{}", one.result);
    let said = "error: shard \"b.tfrecord\" of manifest \"m.json\" is not here\nhint: ";
    assert!(one.talk.contains(said), "{}", one.talk);
    std::fs::remove_file(place.path("c.tfrecord")).unwrap();
    let two = place.run(&command);
    assert!(two.talk.contains("is not here, and 1 other is missing too\nhint: "), "{}", two.talk);
}

#[test]
#[cfg(target_os = "linux")]
fn the_files_that_were_asked_for_are_written_though_stdout_is_full() {
    let place = Place::new();
    shards(&place);
    let command = ["verify", "data", "--quarantine", "bad.jsonl", "--repair", "out"];
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = place.command(&command).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(place.read("bad.jsonl").split(|byte| *byte == b'\n').count(), 6);
    assert_eq!(place.files("out").len(), 3);
}

#[test]
fn a_folder_that_no_loader_would_open_is_said_to_be_so() {
    let place = Place::new();
    place.write("photos/cat/1.png", &picture(1));
    std::fs::create_dir(place.path("photos/empty")).unwrap();
    std::os::unix::fs::symlink("nothing.png", place.path("photos/cat/link.png")).unwrap();
    let answer = place.run(&["verify", "photos", "--quarantine", "bad.jsonl"]);
    assert_eq!(answer.code, Some(1), "{}", answer.talk);
    insta::assert_snapshot!(answer.result);
    assert!(answer.talk.contains("2 faults are of no sample"), "{}", answer.talk);
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_read() {
    let place = Place::new();
    photos(&place);
    place.write("a.tfrecord", &examples(0..1));
    place.write("a.csv", b"a,b\n1,2\n");
    place.write("out/a.tfrecord", b"mine");
    place.write("empty/notes.txt", b"");
    for (arguments, said) in [
        (vec!["verify"], "PATH"),
        (vec!["verify", "none"], "\"none\" is not there\nhint: "),
        (vec!["verify", "empty"], "there is no data at these paths\nhint: "),
        (vec!["verify", "photos", "--threads", "0"], "0 is not in 1..=1024"),
        (
            vec!["verify", "photos", "a.tfrecord", "--quarantine", "q"],
            "--quarantine is for one data set, and here are image folder of 8 images, 1 TFRecord shard\nhint: ",
        ),
        (vec!["verify", "photos", "a.tfrecord", "--repair", "r"], "--repair is for one data set"),
        (
            vec!["verify", "photos", "--repair", "r"],
            "these are images\nhint: leave bad ones out with --quarantine",
        ),
        (vec!["verify", "a.csv", "--repair", "r"], "CSV files are not repaired\nhint: "),
        (
            vec!["verify", "a.tfrecord", "--repair", "out"],
            "\"out/a.tfrecord\" exists already\nhint: ",
        ),
        (vec!["verify", "a.tfrecord", "--repair", "."], "\"./a.tfrecord\" exists already\nhint: "),
    ] {
        let answer = place.run(&arguments);
        assert_eq!(answer.code, Some(2), "{arguments:?}");
        assert!(answer.talk.contains(said), "{arguments:?}: {}", answer.talk);
        assert_eq!(answer.result, "", "{arguments:?}");
    }
    assert_eq!(place.read("out/a.tfrecord"), b"mine");
}

#[test]
fn the_help_of_verify_teaches_by_example() {
    insta::assert_snapshot!(Place::new().run(&["verify", "--help"]).result);
}
