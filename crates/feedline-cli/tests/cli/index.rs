//! `feedline index` as a subprocess.

use super::data::{Sandbox, examples, packed, samples};
use feedline_core::format::Packing;

#[test]
fn shards_of_every_kind_are_indexed_once_and_listed() {
    let sandbox = Sandbox::new();
    sandbox.write("data/a.tfrecord", &examples(0..5));
    sandbox.write("data/deep/b.tfrecord.gz", &packed(Packing::Gzip, &examples(5..7)));
    sandbox.write("data/c.tar", &samples(0..4));
    sandbox.write("data/c.tar.zst", &packed(Packing::Zstd, &samples(0..4)));
    sandbox.write("data/notes.txt", b"nothing");
    let first = sandbox.run(&["index", "data"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    insta::assert_snapshot!(first.stdout);
    assert!(first.stderr.contains("4 built, 0 reused"), "{}", first.stderr);
    assert!(first.stderr.contains("indices are saved in PLACE/cache"), "{}", first.stderr);
    assert_eq!(sandbox.files("cache").len(), 4);
    let again = sandbox.run(&["index", "data"]);
    assert_eq!(again.stdout, first.stdout);
    assert!(again.stderr.contains("0 built, 4 reused"), "{}", again.stderr);
    let fresh = sandbox.run(&["index", "data", "--fresh", "--beside"]);
    assert!(fresh.stderr.contains("4 built, 0 reused"), "{}", fresh.stderr);
    assert!(sandbox.path("data/c.tar.flindex").exists());
    assert_eq!(sandbox.run(&["index", "data"]).stdout, first.stdout, "indices are not data");
}

#[test]
fn corrupt_records_are_listed_with_record_and_byte() {
    let sandbox = Sandbox::new();
    let mut bytes = examples(0..5);
    let third = examples(0..2).len();
    bytes[third + 1] ^= 0x10;
    sandbox.write("a.tfrecord", &bytes);
    sandbox.write("b.tfrecord", b"no record at all");
    let answer = sandbox.run(&["index", "a.tfrecord", "b.tfrecord", "--manifest", "m.json"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    insta::assert_snapshot!(answer.stdout);
    assert!(answer.stderr.contains("no manifest was written"), "{}", answer.stderr);
    assert!(!sandbox.path("m.json").exists());
}

#[test]
fn a_truncated_shard_is_noticed_by_its_index_and_by_the_manifest() {
    let sandbox = Sandbox::new();
    sandbox.write("a.tfrecord", &examples(0..5));
    assert_eq!(sandbox.run(&["index", "*.tfrecord", "--manifest", "m.json"]).code, Some(0));
    insta::assert_snapshot!(String::from_utf8(sandbox.read("m.json")).unwrap());
    sandbox.write("a.tfrecord", &examples(0..3));
    let answer = sandbox.run(&["index", "a.tfrecord"]);
    assert_eq!(answer.code, Some(1));
    let end = examples(0..3).len();
    let said =
        format!("a.tfrecord, record 3, byte {end}: the shard ends after 3 records, but had 5");
    assert!(answer.stdout.contains(&said), "{}", answer.stdout);
    let forgotten = sandbox.run(&["index", "a.tfrecord", "--fresh"]);
    assert_eq!(forgotten.code, Some(0), "{}", forgotten.stdout);
}

#[test]
fn bad_arguments_of_index_are_refused_with_a_hint() {
    let sandbox = Sandbox::new();
    sandbox.write("notes.txt", b"nothing");
    sandbox.write("empty/notes.txt", b"nothing");
    sandbox.write("one/a.tar", &samples(0..1));
    sandbox.write("two/a.tar", &samples(0..1));
    for (arguments, said) in [
        (vec!["index"], "PATH"),
        (vec!["index", "none.tar"], "error: \"none.tar\" does not exist\nhint: "),
        (vec!["index", "*.tar"], "no file matches \"*.tar\"\nhint: "),
        (
            vec!["index", "notes.txt"],
            "is not clear from its name\nhint: give the format: --as tfrecord",
        ),
        (vec!["index", "notes.txt", "--as", "zip"], "'zip'"),
        (vec!["index", "notes.txt", "--delimiter", "ab"], "'ab'"),
        (vec!["index", "empty"], "there are no shards at these paths\nhint: "),
        (
            vec!["index", "one", "two", "--manifest", "m"],
            "one/a.tar and two/a.tar have the same name",
        ),
    ] {
        let answer = sandbox.run(&arguments);
        assert_eq!(answer.code, Some(2), "{arguments:?}");
        assert!(answer.stderr.contains(said), "{arguments:?}: {}", answer.stderr);
        assert_eq!(answer.stdout, "", "{arguments:?}");
    }
}

#[test]
fn a_manifest_overwrites_only_a_manifest() {
    let sandbox = Sandbox::new();
    sandbox.write("a.tfrecord", &examples(0..5));
    sandbox.write("b.jsonl", b"{\"records\": 1, \"bytes\": 2}\n{\"records\": 1, \"bytes\": 2}\n");
    sandbox.write("settings.json", b"{\"a\": {\"records\": 1, \"bytes\": 2, \"more\": 3}}");
    sandbox.write("nothing.json", b"{}");
    sandbox.write("empty", b"");
    let no_manifest = "is not a manifest written by feedline\nhint: give another file";
    for name in ["a.tfrecord", "b.jsonl", "settings.json", "nothing.json", "empty"] {
        let before = sandbox.read(name);
        let answer = sandbox.run(&["index", "a.tfrecord", "--manifest", name]);
        assert_eq!(answer.code, Some(2), "{name}: {}", answer.stderr);
        let said = format!("error: {name:?} exists already, and {no_manifest}");
        assert!(answer.stderr.contains(&said), "{}", answer.stderr);
        assert_eq!(answer.stdout, "", "{name}");
        assert!(sandbox.read(name) == before, "{name}");
    }
    std::fs::create_dir(sandbox.path("folder")).unwrap();
    std::os::unix::fs::symlink("settings.json", sandbox.path("link")).unwrap();
    std::os::unix::fs::symlink("none.json", sandbox.path("broken")).unwrap();
    for name in ["folder", "link", "broken", "/dev/null"] {
        let answer = sandbox.run(&["index", "a.tfrecord", "--manifest", name]);
        assert_eq!(answer.code, Some(2), "{name}: {}", answer.stderr);
        let said = format!("error: {name:?} exists already, and is not a regular file\nhint: ");
        assert!(answer.stderr.contains(&said), "{}", answer.stderr);
    }
    let index = "a.tfrecord.flindex";
    let beside = sandbox.run(&["index", "a.tfrecord", "--beside", "--manifest", index]);
    assert_eq!(beside.code, Some(2), "{}", beside.stderr);
    assert!(beside.stderr.contains(no_manifest), "{}", beside.stderr);

    assert_eq!(sandbox.run(&["index", "a.tfrecord", "--manifest", "m.json"]).code, Some(0));
    sandbox.write("c.tfrecord", &examples(0..2));
    let again = sandbox.run(&["index", "*.tfrecord", "--manifest", "m.json"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert!(String::from_utf8(sandbox.read("m.json")).unwrap().contains("c.tfrecord"));
}

#[test]
fn an_index_that_cannot_be_saved_is_an_error() {
    let sandbox = Sandbox::new();
    sandbox.write("a.tar", &samples(0..1));
    sandbox.write("cache", b"a file where the folder should be");
    let answer = sandbox.run(&["index", "a.tar"]);
    assert_eq!(answer.code, Some(2), "{}", answer.stdout);
    assert!(
        answer.stderr.contains("hint: set FEEDLINE_CACHE to a writable folder"),
        "{}",
        answer.stderr
    );
}

#[test]
fn the_help_of_index_teaches_by_example() {
    insta::assert_snapshot!(Sandbox::new().run(&["index", "--help"]).stdout);
}
