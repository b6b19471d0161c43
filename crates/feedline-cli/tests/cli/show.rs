//! `feedline show` from outside.

use super::data::{Place, archive, examples, packed, picture, sample, shard};
use feedline_core::format::Packing;
use feedline_core::format::example::{self, List};

#[test]
fn a_tfrecord_is_shown_with_its_first_record_and_how_to_parse_it() {
    let place = Place::new();
    let image = picture(1);
    let first = example::write(&[
        ("box", List::Floats(vec![0.5, 1.0, 0.25, -3.0, 8.0, 9.0, 10.0, 11.0])),
        ("image_raw", List::Bytes(vec![&image])),
        ("label", List::Ints(vec![7])),
        ("name", List::Bytes(vec![b"cat/1.jpg"])),
        ("none", List::Nothing),
        ("raw", List::Bytes(vec![&[0, 1, 2, 255], b"", b"x"])),
    ]);
    let second = example::write(&[("label", List::Ints(vec![1]))]);
    place.write("a.tfrecord", &shard(&[first, second, b"no Example at all".to_vec()]));
    let answer = place.run(&["show", "a.tfrecord"]);
    assert_eq!(answer.code, Some(0), "{}", answer.talk);
    insta::assert_snapshot!(answer.result);
    insta::assert_snapshot!(place.run(&["show", "a.tfrecord:1"]).result);
    insta::assert_snapshot!(place.run(&["show", "a.tfrecord:2"]).result);
}

#[test]
fn records_of_compressed_shards_are_found_too() {
    let place = Place::new();
    place.write("a.tfrecord", &examples(0..9));
    place.write("a.tfrecord.gz", &packed(Packing::Gzip, &examples(0..9)));
    let plain = place.run(&["show", "a.tfrecord:7"]);
    assert!(plain.result.contains("image_raw  bytes  PNG 12 x 8, "), "{}", plain.result);
    assert_eq!(place.run(&["show", "a.tfrecord.gz:7"]).result, plain.result);
}

#[test]
fn a_tar_is_shown_with_its_members() {
    let place = Place::new();
    let mut members = sample(0);
    members.push(("000.json".into(), br#"{"a": 1}"#.to_vec()));
    members.extend(sample(1));
    place.write("a.tar", &archive(&members));
    insta::assert_snapshot!(place.run(&["show", "a.tar"]).result);
    insta::assert_snapshot!(place.run(&["show", "a.tar:1"]).result);
}

#[test]
fn a_picture_is_shown_by_its_size() {
    let place = Place::new();
    place.write("a.png", &picture(0));
    place.write("b.png", b"no picture");
    let good = place.run(&["show", "a.png"]);
    assert_eq!((good.code, &*good.result), (Some(0), "a.png: PNG 12 x 8, 364 B\n"));
    let bad = place.run(&["show", "b.png"]);
    assert_eq!(bad.code, Some(1));
    assert!(bad.result.starts_with("b.png: not a JPEG, PNG or WebP image"), "{}", bad.result);
}

#[test]
fn a_damaged_record_is_shown_as_such() {
    let place = Place::new();
    let mut bytes = examples(0..3);
    let second = examples(0..1).len();
    bytes[second + 20] ^= 1;
    place.write("a.tfrecord", &bytes);
    let answer = place.run(&["show", "a.tfrecord:1"]);
    assert_eq!(answer.code, Some(1));
    assert!(answer.result.contains("  record 1 is damaged: its data do not have"));
    assert_eq!(place.run(&["show", "a.tfrecord:2"]).code, Some(0));
}

#[test]
fn a_name_with_a_colon_is_a_file_if_there_is_one() {
    let place = Place::new();
    place.write("a.tfrecord", &examples(0..3));
    place.write("a.tfrecord:1", &examples(0..5));
    let answer = place.run(&["show", "a.tfrecord:1", "--as", "tfrecord"]);
    assert!(answer.result.starts_with("a.tfrecord:1: TFRecord, 5 records"), "{}", answer.result);
}

#[test]
fn what_cannot_be_shown_is_refused_with_a_hint() {
    let place = Place::new();
    place.write("a.tfrecord", &examples(0..3));
    place.write("notes.txt", b"nothing");
    place.write("photos/cat/1.png", &picture(1));
    for (asked, said) in [
        (
            "a.tfrecord:3",
            "there is no record 3: \"a.tfrecord\" has 3 records\nhint: give a number from 0 to 2",
        ),
        ("a.tfrecord:x", "\"x\" is not the number of a record\nhint: feedline show a.tfrecord:0"),
        ("b.tfrecord", "\"b.tfrecord\" is not there\nhint: "),
        (
            "photos",
            "\"photos\" is a folder\nhint: give a file, or look through all of it with feedline verify photos",
        ),
        ("photos:0", "\"photos\" is a folder\nhint: "),
        ("notes.txt", "does not say what it is\nhint: say it: --as"),
    ] {
        let answer = place.run(&["show", asked]);
        assert_eq!(answer.code, Some(2), "{asked}");
        assert!(answer.talk.contains(said), "{asked}: {}", answer.talk);
    }
}

#[test]
fn the_help_of_show_teaches_by_example() {
    insta::assert_snapshot!(Place::new().run(&["show", "--help"]).result);
}
