//! `feedline index` from outside.

use super::data::{Place, examples, packed, samples};
use feedline_core::format::Packing;

#[test]
fn shards_of_every_kind_are_indexed_once_and_listed() {
    let place = Place::new();
    place.write("data/a.tfrecord", &examples(0..5));
    place.write("data/deep/b.tfrecord.gz", &packed(Packing::Gzip, &examples(5..7)));
    place.write("data/c.tar", &samples(0..4));
    place.write("data/c.tar.zst", &packed(Packing::Zstd, &samples(0..4)));
    place.write("data/notes.txt", b"nothing");
    let first = place.run(&["index", "data"]);
    assert_eq!(first.code, Some(0), "{}", first.talk);
    insta::assert_snapshot!(first.result);
    assert!(first.talk.contains("4 made, 0 kept from before"), "{}", first.talk);
    assert!(first.talk.contains("indices are kept in PLACE/cache"), "{}", first.talk);
    assert_eq!(place.files("cache").len(), 4);
    let again = place.run(&["index", "data"]);
    assert_eq!(again.result, first.result);
    assert!(again.talk.contains("0 made, 4 kept from before"), "{}", again.talk);
    let fresh = place.run(&["index", "data", "--fresh", "--beside"]);
    assert!(fresh.talk.contains("4 made, 0 kept from before"), "{}", fresh.talk);
    assert!(place.path("data/c.tar.flindex").exists());
    assert_eq!(place.run(&["index", "data"]).result, first.result, "indices are no data");
}

#[test]
fn what_is_damaged_is_named_with_record_and_byte() {
    let place = Place::new();
    let mut bytes = examples(0..5);
    let third = examples(0..2).len();
    bytes[third + 1] ^= 0x10;
    place.write("a.tfrecord", &bytes);
    place.write("b.tfrecord", b"no record at all");
    let answer = place.run(&["index", "a.tfrecord", "b.tfrecord", "--manifest", "m.json"]);
    assert_eq!(answer.code, Some(1), "{}", answer.talk);
    insta::assert_snapshot!(answer.result);
    assert!(answer.talk.contains("no manifest was written"), "{}", answer.talk);
    assert!(!place.path("m.json").exists());
}

#[test]
fn a_shard_that_was_cut_is_noticed_by_its_index_and_by_the_manifest() {
    let place = Place::new();
    place.write("a.tfrecord", &examples(0..5));
    assert_eq!(place.run(&["index", "*.tfrecord", "--manifest", "m.json"]).code, Some(0));
    insta::assert_snapshot!(String::from_utf8(place.read("m.json")).unwrap());
    place.write("a.tfrecord", &examples(0..3));
    let answer = place.run(&["index", "a.tfrecord"]);
    assert_eq!(answer.code, Some(1));
    let end = examples(0..3).len();
    let said =
        format!("a.tfrecord, record 3, byte {end}: the shard ends after 3 records, and had 5");
    assert!(answer.result.contains(&said), "{}", answer.result);
    let forgotten = place.run(&["index", "a.tfrecord", "--fresh"]);
    assert_eq!(forgotten.code, Some(0), "{}", forgotten.result);
}

#[test]
fn what_cannot_be_indexed_is_refused_with_a_hint() {
    let place = Place::new();
    place.write("notes.txt", b"nothing");
    place.write("empty/notes.txt", b"nothing");
    place.write("one/a.tar", &samples(0..1));
    place.write("two/a.tar", &samples(0..1));
    for (arguments, said) in [
        (vec!["index"], "PATH"),
        (vec!["index", "none.tar"], "error: \"none.tar\" is not there\nhint: "),
        (vec!["index", "*.tar"], "no file matches \"*.tar\"\nhint: "),
        (vec!["index", "notes.txt"], "does not say what it is\nhint: say it: --as tfrecord"),
        (vec!["index", "notes.txt", "--as", "zip"], "'zip'"),
        (vec!["index", "notes.txt", "--delimiter", "ab"], "'ab'"),
        (vec!["index", "empty"], "there are no shards at these paths\nhint: "),
        (vec!["index", "one", "two", "--manifest", "m"], "one/a.tar and two/a.tar have one name"),
    ] {
        let answer = place.run(&arguments);
        assert_eq!(answer.code, Some(2), "{arguments:?}");
        assert!(answer.talk.contains(said), "{arguments:?}: {}", answer.talk);
        assert_eq!(answer.result, "", "{arguments:?}");
    }
}

#[test]
fn a_manifest_is_written_over_a_manifest_and_over_nothing_else() {
    let place = Place::new();
    place.write("a.tfrecord", &examples(0..5));
    place.write("b.jsonl", b"{\"records\": 1, \"bytes\": 2}\n{\"records\": 1, \"bytes\": 2}\n");
    place.write("settings.json", b"{\"a\": {\"records\": 1, \"bytes\": 2, \"more\": 3}}");
    place.write("nothing.json", b"{}");
    place.write("empty", b"");
    let no_manifest = "is not a manifest that feedline has written\nhint: name another file";
    for name in ["a.tfrecord", "b.jsonl", "settings.json", "nothing.json", "empty"] {
        let before = place.read(name);
        let answer = place.run(&["index", "a.tfrecord", "--manifest", name]);
        assert_eq!(answer.code, Some(2), "{name}: {}", answer.talk);
        let said = format!("error: {name:?} exists already, and {no_manifest}");
        assert!(answer.talk.contains(&said), "{}", answer.talk);
        assert_eq!(answer.result, "", "{name}");
        assert!(place.read(name) == before, "{name}");
    }
    std::fs::create_dir(place.path("folder")).unwrap();
    std::os::unix::fs::symlink("settings.json", place.path("link")).unwrap();
    std::os::unix::fs::symlink("none.json", place.path("broken")).unwrap();
    for name in ["folder", "link", "broken", "/dev/null"] {
        let answer = place.run(&["index", "a.tfrecord", "--manifest", name]);
        assert_eq!(answer.code, Some(2), "{name}: {}", answer.talk);
        let said = format!("error: {name:?} exists already, and is not a regular file\nhint: ");
        assert!(answer.talk.contains(&said), "{}", answer.talk);
    }
    let index = "a.tfrecord.flindex";
    let beside = place.run(&["index", "a.tfrecord", "--beside", "--manifest", index]);
    assert_eq!(beside.code, Some(2), "{}", beside.talk);
    assert!(beside.talk.contains(no_manifest), "{}", beside.talk);

    assert_eq!(place.run(&["index", "a.tfrecord", "--manifest", "m.json"]).code, Some(0));
    place.write("c.tfrecord", &examples(0..2));
    let again = place.run(&["index", "*.tfrecord", "--manifest", "m.json"]);
    assert_eq!(again.code, Some(0), "{}", again.talk);
    assert!(String::from_utf8(place.read("m.json")).unwrap().contains("c.tfrecord"));
}

#[test]
fn an_index_that_cannot_be_kept_is_an_error() {
    let place = Place::new();
    place.write("a.tar", &samples(0..1));
    place.write("cache", b"a file where the folder should be");
    let answer = place.run(&["index", "a.tar"]);
    assert_eq!(answer.code, Some(2), "{}", answer.result);
    assert!(answer.talk.contains("hint: set FEEDLINE_CACHE to a folder"), "{}", answer.talk);
}

#[test]
fn the_help_of_index_teaches_by_example() {
    insta::assert_snapshot!(Place::new().run(&["index", "--help"]).result);
}
