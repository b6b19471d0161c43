//! `feedline verify` as a subprocess.

use super::data::{Sandbox, archive, examples, labelled, packed, picture, sample, samples, shard};
use feedline_core::config::{Given, Settings};
use feedline_core::format::example::{self, List};
use feedline_core::format::{Container, Packing};
use feedline_core::loader::Loader;
use feedline_core::source::Source;
use feedline_core::source::folder::Folder;
use feedline_core::source::index::IndexStorage;
use feedline_core::source::records::Records;
use feedline_core::testing::photos::photo_jpeg;
use std::sync::Arc;

/// An image whose last bytes are missing.
pub(crate) fn truncated(number: usize) -> Vec<u8> {
    let bytes = picture(number);
    bytes[..bytes.len() - 40].to_vec()
}

/// An image folder in which two files are bad.
fn photos(sandbox: &Sandbox) {
    for number in 0..4 {
        sandbox.write(&format!("photos/cat/{number}.png"), &picture(number));
    }
    sandbox.write("photos/cat/deep/4.jpg", &photo_jpeg(4, 40, 30, 90));
    sandbox.write("photos/dog/a.png", &picture(7));
    sandbox.write("photos/dog/b.png", &truncated(8));
    sandbox.write("photos/dog/c.jpeg", b"no picture");
    sandbox.write("photos/dog/notes.txt", b"nothing");
}

/// Three shards of Examples with a flipped byte, a truncated image, a record that is no Example, and a truncated file.
fn shards(sandbox: &Sandbox) {
    let mut flipped = examples(0..5);
    flipped[examples(0..2).len() + 30] ^= 4;
    sandbox.write("data/a.tfrecord", &flipped);
    let bad_picture = example::write(&[
        ("image_raw", List::Bytes(vec![&truncated(1)])),
        ("label", List::Ints(vec![2])),
    ]);
    let no_picture = example::write(&[("image_raw", List::Bytes(vec![b"GIF89a"]))]);
    let records = [labelled(5), bad_picture, no_picture, b"\xffno Example".to_vec(), labelled(6)];
    sandbox.write("data/b.tfrecord", &shard(&records));
    let whole = examples(7..10);
    sandbox.write("data/c.tfrecord", &whole[..whole.len() - 5]);
}

#[test]
fn a_good_data_set_has_a_summary_and_no_fault() {
    let sandbox = Sandbox::new();
    sandbox.write("data/a.tfrecord", &examples(0..5));
    sandbox.write("data/b.tfrecord", &examples(5..9));
    let answer = sandbox.run(&["verify", "data"]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    insta::assert_snapshot!(answer.stdout);
}

#[test]
fn bad_files_of_an_image_folder_are_listed_and_summarized() {
    let sandbox = Sandbox::new();
    photos(&sandbox);
    let answer = sandbox.run(&["verify", "photos"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    insta::assert_snapshot!(answer.stdout);
    assert!(answer.stderr.contains("1 file was skipped"), "{}", answer.stderr);
    let fast = sandbox.run(&["verify", "photos", "--fast", "--threads", "1"]);
    assert_eq!(fast.code, Some(1));
    assert!(!fast.stdout.contains("photos/dog/b.png"), "its header is good: {}", fast.stdout);
    assert!(fast.stdout.contains("bad  photos/dog/c.jpeg: UnknownFormatError: not a JPEG"));
}

#[test]
fn bad_records_are_named_with_record_byte_and_cause() {
    let sandbox = Sandbox::new();
    shards(&sandbox);
    let answer = sandbox.run(&["verify", "data"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    insta::assert_snapshot!(answer.stdout);
}

#[test]
fn tar_samples_must_have_the_members_of_the_first() {
    let sandbox = Sandbox::new();
    let mut members: Vec<_> = (0..5).flat_map(sample).collect();
    // 001 has no class, 002 one that is no number, 003 a truncated image, 004 a file that is no JSON.
    members.remove(3);
    members[4].1 = b"cat".to_vec();
    members[5].1 = truncated(3);
    members.push(("004.json".into(), b"{\"a\": ".to_vec()));
    sandbox.write("a.tar", &archive(&members));
    let mut flipped = samples(5..8);
    flipped[2048 + 3] ^= 1;
    sandbox.write("b.tar", &flipped);
    let answer = sandbox.run(&["verify", "a.tar", "b.tar"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    insta::assert_snapshot!(answer.stdout);
}

#[test]
fn lines_and_rows_are_read_too() {
    let sandbox = Sandbox::new();
    sandbox.write("a.jsonl", b"{\"label\": \"x\"}\n{\"label\": 3}\n\nno JSON\n[1, 2]\n");
    let lines = sandbox.run(&["verify", "a.jsonl"]);
    assert_eq!(lines.code, Some(1), "{}", lines.stderr);
    insta::assert_snapshot!(lines.stdout);
    sandbox.write("a.csv", b"name,label\na,1\nb\nc,2\n");
    let rows = sandbox.run(&["verify", "a.csv"]);
    assert_eq!(rows.code, Some(1), "{}", rows.stderr);
    insta::assert_snapshot!(rows.stdout);
}

#[test]
fn records_without_any_example_are_good() {
    let sandbox = Sandbox::new();
    sandbox.write("a.tfrecord", &shard(&[b"\xffone".to_vec(), b"".to_vec(), b"\xfftwo".to_vec()]));
    let answer = sandbox.run(&["verify", "a.tfrecord"]);
    assert_eq!(answer.code, Some(0), "{}", answer.stdout);
}

#[test]
fn compressed_shards_have_the_same_faults() {
    let sandbox = Sandbox::new();
    shards(&sandbox);
    let plain = sandbox.run(&["verify", "data/b.tfrecord"]);
    sandbox.write("b.tfrecord", &packed(Packing::Gzip, &sandbox.read("data/b.tfrecord")));
    let gzip = sandbox.run(&["verify", "b.tfrecord"]);
    assert_eq!(gzip.code, Some(1));
    let bad = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("bad  "));
        lines.map(|line| line.replace("data/", "")).collect()
    };
    assert_eq!(bad(&gzip.stdout), bad(&plain.stdout));
    assert_eq!(bad(&gzip.stdout).len(), 3);
}

/// What a loader delivers and skips if it excludes the samples of the quarantine file.
fn load(source: Arc<dyn Source>, calls: &str, given: &Given, quarantine: &str) -> (u64, u64) {
    let calls = format!(
        r#"[{calls} {{"call": "batch", "size": 1, "pad": true}},
            {{"call": "loader", "exclude": {quarantine:?}, "faults": {{"action": "skip"}}}}]"#
    );
    let loader = Loader::new(source, Settings::parse(&calls, given).unwrap()).unwrap();
    loader.epoch().unwrap().for_each(|batch| drop(batch.unwrap()));
    let report = loader.report();
    (report.delivered, report.skipped)
}

#[test]
fn a_loader_that_excludes_the_quarantine_file_meets_no_fault() {
    let sandbox = Sandbox::new();
    photos(&sandbox);
    let answer = sandbox.run(&["verify", "photos", "--quarantine", "bad.jsonl"]);
    assert!(answer.stderr.contains("2 samples in bad.jsonl: loader(exclude=\"bad.jsonl\")"));
    let quarantine = sandbox.path("bad.jsonl");
    let quarantine = quarantine.to_str().unwrap();
    let folder = Arc::new(Folder::images(&sandbox.path("photos")).unwrap());
    let decode = r#"{"call": "decode"}, {"call": "resize", "size": [8, 8]},"#;
    assert_eq!(load(folder, decode, &Given::Files, quarantine), (6, 0));
}

#[test]
fn indices_in_the_quarantine_file_count_over_all_shards() {
    let sandbox = Sandbox::new();
    shards(&sandbox);
    sandbox.run(&["verify", "data", "--quarantine", "bad.jsonl"]);
    let lines = String::from_utf8(sandbox.read("bad.jsonl")).unwrap();
    let numbers: Vec<_> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["index"].clone())
        .collect();
    assert_eq!(numbers, [2, 6, 7, 8, 12]);
    let paths = ["a", "b", "c"].map(|name| sandbox.path(&format!("data/{name}.tfrecord"))).to_vec();
    let container = Container::Tfrecord { check: true };
    let records =
        Records::new(paths, container, &IndexStorage::Nowhere, None, &mut |_| true).unwrap();
    assert_eq!(records.len(), 13);
    let quarantine = sandbox.path("bad.jsonl");
    let given = Given::Records(records.contents().unwrap().clone());
    let calls = r#"{"call": "parse", "fields": [{"name": "image_raw", "of": "bytes"}]},
        {"call": "decode", "field": "image_raw"},"#;
    assert_eq!(load(Arc::new(records), calls, &given, quarantine.to_str().unwrap()), (8, 0));
}

#[test]
fn the_quarantine_file_of_good_data_is_empty_and_is_not_overwritten() {
    let sandbox = Sandbox::new();
    sandbox.write("a.tfrecord", &examples(0..3));
    let command = ["verify", "a.tfrecord", "--quarantine", "bad.jsonl"];
    assert_eq!(sandbox.run(&command).code, Some(0));
    assert_eq!(sandbox.read("bad.jsonl"), b"");
    let again = sandbox.run(&command);
    assert_eq!(again.code, Some(2));
    assert!(
        again.stderr.contains("\"bad.jsonl\" exists already\nhint: remove it"),
        "{}",
        again.stderr
    );
}

#[test]
fn repaired_shards_have_the_good_records_unchanged() {
    let sandbox = Sandbox::new();
    shards(&sandbox);
    sandbox.write("data/d.tfrecord.gz", &packed(Packing::Gzip, &sandbox.read("data/b.tfrecord")));
    sandbox.write("data/deep/e.tfrecord", &examples(20..22));
    sandbox.write("data/f.tfrecord", b"no record at all");
    sandbox.write("data/g.tfrecord", b"");
    let before: Vec<_> =
        sandbox.files("data").iter().map(|name| sandbox.read(&format!("data/{name}"))).collect();
    let answer = sandbox.run(&["verify", "data", "--repair", "out/repaired"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    let written = answer.stdout.split_once("repaired ").unwrap().1;
    insta::assert_snapshot!(written);
    assert_eq!(
        sandbox.files("out/repaired"),
        [
            "a.tfrecord",
            "b.tfrecord",
            "c.tfrecord",
            "d.tfrecord.gz",
            "deep/e.tfrecord",
            "g.tfrecord"
        ]
    );
    assert!(answer.stderr.contains("1 shard has no records: data/g.tfrecord"), "{}", answer.stderr);
    let expected = shard(&[0, 1, 3, 4].map(labelled));
    assert_eq!(sandbox.read("out/repaired/a.tfrecord"), expected);
    let good = shard(&[labelled(5), labelled(6)]);
    assert_eq!(sandbox.read("out/repaired/b.tfrecord"), good);
    assert_eq!(sandbox.read("out/repaired/d.tfrecord.gz"), packed(Packing::Gzip, &good));
    assert_eq!(sandbox.read("out/repaired/deep/e.tfrecord"), examples(20..22));
    let repaired = sandbox.run(&["verify", "out/repaired"]);
    assert_eq!(repaired.code, Some(0), "{}", repaired.stdout);
    let after: Vec<_> =
        sandbox.files("data").iter().map(|name| sandbox.read(&format!("data/{name}"))).collect();
    assert!(before == after, "the originals are unchanged");
}

#[test]
fn repaired_tars_have_an_end_marker() {
    let sandbox = Sandbox::new();
    let members: Vec<_> = (0..3).flat_map(sample).collect();
    let mut bad = members.clone();
    bad[2].1 = truncated(1);
    sandbox.write("a.tar", &archive(&bad));
    sandbox.write("b.tar.zst", &packed(Packing::Zstd, &archive(&bad)));
    sandbox.write("classes.txt", b"cat\ndog\ncow\n");
    let answer = sandbox.run(&["verify", "*.tar*", "--repair", "out"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    assert!(answer.stdout.contains("\n          2  0 cat\n"), "{}", answer.stdout);
    assert_eq!(sandbox.read("out/classes.txt"), sandbox.read("classes.txt"));
    let good: Vec<_> = [&members[..2], &members[4..]].concat();
    assert_eq!(sandbox.read("out/a.tar"), archive(&good));
    assert_eq!(sandbox.read("out/b.tar.zst"), packed(Packing::Zstd, &archive(&good)));
    let mut read = tar::Archive::new(std::fs::File::open(sandbox.path("out/a.tar")).unwrap());
    assert_eq!(read.entries().unwrap().count(), 4);
    assert_eq!(sandbox.run(&["verify", "out"]).code, Some(0));
}

#[test]
fn a_truncated_shard_is_noticed_by_its_index_and_by_a_manifest() {
    let sandbox = Sandbox::new();
    sandbox.write("a.tfrecord", &examples(0..5));
    sandbox.write("b.tfrecord", &examples(5..9));
    sandbox.run(&["index", "a.tfrecord", "b.tfrecord", "--manifest", "m.json"]);
    sandbox.write("a.tfrecord", &examples(0..3));
    let by_index = sandbox.run(&["verify", "*.tfrecord", "--json"]);
    assert_eq!(by_index.code, Some(1));
    let summary: serde_json::Value = serde_json::from_str(&by_index.stdout).unwrap();
    assert_eq!((&summary["bad"], &summary["samples"]), (&1.into(), &8.into()));
    assert_eq!(summary["faults"][0]["index"], 3);
    sandbox.run(&["index", "*.tfrecord", "--fresh"]);
    assert_eq!(sandbox.run(&["verify", "*.tfrecord"]).code, Some(0), "nobody remembers");
    let by_manifest = sandbox.run(&["verify", "*.tfrecord", "--manifest", "m.json"]);
    assert!(by_manifest.stdout.contains("the manifest says 5 records, the shard has 3"));
}

#[test]
fn the_summary_is_json_for_programs() {
    let sandbox = Sandbox::new();
    photos(&sandbox);
    let answer = sandbox.run(&["verify", "photos", "--json"]);
    let mut summary: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap();
    for fault in summary["faults"].as_array_mut().unwrap() {
        assert!(fault["time"].as_f64().unwrap() > 1.7e9);
        fault["time"] = 0.into();
    }
    insta::assert_snapshot!(format!("{summary:#}"));
}

#[test]
fn repairing_with_json_prints_only_json_to_stdout() {
    let sandbox = Sandbox::new();
    shards(&sandbox);
    let answer = sandbox.run(&["verify", "data", "--json", "--repair", "out"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    let summary: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(summary["bad"], 5);
    assert!(
        answer.stderr.contains("repaired data/a.tfrecord: 4 records kept"),
        "{}",
        answer.stderr
    );
    assert!(answer.stderr.contains("3 shards below out: 3 without 5 bad"), "{}", answer.stderr);
}

#[test]
fn a_missing_shard_of_the_manifest_is_named() {
    let sandbox = Sandbox::new();
    for name in ["a", "b", "c"] {
        sandbox.write(&format!("{name}.tfrecord"), &examples(0..2));
    }
    assert_eq!(sandbox.run(&["index", "*.tfrecord", "--manifest", "m.json"]).code, Some(0));
    let command = ["verify", "*.tfrecord", "--manifest", "m.json"];
    assert_eq!(sandbox.run(&command).code, Some(0));
    std::fs::remove_file(sandbox.path("b.tfrecord")).unwrap();
    let one = sandbox.run(&command);
    assert_eq!(one.code, Some(2), "{}", one.stdout);
    let said = "error: shard \"b.tfrecord\" of manifest \"m.json\" is missing\nhint: ";
    assert!(one.stderr.contains(said), "{}", one.stderr);
    std::fs::remove_file(sandbox.path("c.tfrecord")).unwrap();
    let two = sandbox.run(&command);
    assert!(
        two.stderr.contains("is missing, and 1 other is missing too\nhint: "),
        "{}",
        two.stderr
    );
}

#[test]
#[cfg(target_os = "linux")]
fn the_requested_files_are_written_though_stdout_is_full() {
    let sandbox = Sandbox::new();
    shards(&sandbox);
    let command = ["verify", "data", "--quarantine", "bad.jsonl", "--repair", "out"];
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = sandbox.command(&command).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(sandbox.read("bad.jsonl").split(|byte| *byte == b'\n').count(), 6);
    assert_eq!(sandbox.files("out").len(), 3);
}

#[test]
fn a_folder_that_no_loader_would_open_is_reported() {
    let sandbox = Sandbox::new();
    sandbox.write("photos/cat/1.png", &picture(1));
    std::fs::create_dir(sandbox.path("photos/empty")).unwrap();
    std::os::unix::fs::symlink("nothing.png", sandbox.path("photos/cat/link.png")).unwrap();
    let answer = sandbox.run(&["verify", "photos", "--quarantine", "bad.jsonl"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    insta::assert_snapshot!(answer.stdout);
    assert!(answer.stderr.contains("2 faults are of no sample"), "{}", answer.stderr);
}

#[test]
fn bad_arguments_of_verify_are_refused_before_anything_is_read() {
    let sandbox = Sandbox::new();
    photos(&sandbox);
    sandbox.write("a.tfrecord", &examples(0..1));
    sandbox.write("a.csv", b"a,b\n1,2\n");
    sandbox.write("out/a.tfrecord", b"mine");
    sandbox.write("empty/notes.txt", b"");
    for (arguments, said) in [
        (vec!["verify"], "PATH"),
        (vec!["verify", "none"], "\"none\" does not exist\nhint: "),
        (vec!["verify", "empty"], "there is no data at these paths\nhint: "),
        (vec!["verify", "photos", "--threads", "0"], "0 is not in 1..=1024"),
        (
            vec!["verify", "photos", "a.tfrecord", "--quarantine", "q"],
            "--quarantine needs exactly one data set, got image folder of 8 images, 1 TFRecord shard\nhint: ",
        ),
        (
            vec!["verify", "photos", "a.tfrecord", "--repair", "r"],
            "--repair needs exactly one data set",
        ),
        (
            vec!["verify", "photos", "--repair", "r"],
            "these are images\nhint: exclude bad ones with --quarantine",
        ),
        (vec!["verify", "a.csv", "--repair", "r"], "CSV files are not repaired\nhint: "),
        (
            vec!["verify", "a.tfrecord", "--repair", "out"],
            "\"out/a.tfrecord\" exists already\nhint: ",
        ),
        (vec!["verify", "a.tfrecord", "--repair", "."], "\"./a.tfrecord\" exists already\nhint: "),
    ] {
        let answer = sandbox.run(&arguments);
        assert_eq!(answer.code, Some(2), "{arguments:?}");
        assert!(answer.stderr.contains(said), "{arguments:?}: {}", answer.stderr);
        assert_eq!(answer.stdout, "", "{arguments:?}");
    }
    assert_eq!(sandbox.read("out/a.tfrecord"), b"mine");
}

#[test]
fn the_help_of_verify_teaches_by_example() {
    insta::assert_snapshot!(Sandbox::new().run(&["verify", "--help"]).stdout);
}
