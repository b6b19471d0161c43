//! `feedline show` from outside.

use super::data::{Place, archive, examples, packed, picture, sample, samples, shard};
use super::verify::cut;
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
    assert!(answer.result.contains("  record 1 is corrupt: checksum mismatch"));
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

#[test]
fn a_record_of_which_a_part_cannot_be_read_ends_with_code_1() {
    let place = Place::new();
    let mut members = sample(0);
    members[0].1 = cut(0);
    place.write("picture.tar", &archive(&members));
    place.write("json.tar", &archive(&[("a.json".into(), b"{".to_vec())]));
    place.write("array.tar", &archive(&[("a.npy".into(), b"\x93NUMPY".to_vec())]));
    place.write("a.jsonl", b"{\"a\": 1}\n{\"a\":\n{\"a\": NaN}\n");
    let image = cut(0);
    let record = example::write(&[("image", List::Bytes(vec![&image]))]);
    place.write("a.tfrecord", &shard(&[record]));
    place.write("cut.png", &cut(0));
    for asked in ["picture.tar:0", "json.tar", "array.tar:0", "a.jsonl:1", "a.tfrecord", "cut.png"]
    {
        let answer = place.run(&["show", asked]);
        assert_eq!(answer.code, Some(1), "{asked}: {} {}", answer.result, answer.talk);
    }
    for asked in ["a.jsonl:0", "a.jsonl:2"] {
        let answer = place.run(&["show", asked]);
        assert_eq!(answer.code, Some(0), "{asked}: {} {}", answer.result, answer.talk);
    }
}

#[test]
fn every_compression_is_shown_and_others_are_named() {
    let place = Place::new();
    for (name, packing) in [("a.tar.xz", Packing::Xz), ("a.tar.bz2", Packing::Bzip2)] {
        place.write(name, &packed(packing, &samples(0..4)));
        let answer = place.run(&["show", name]);
        let expected = format!("{name}: tar, {}, 4 records, ", packing.name());
        assert!(answer.result.starts_with(&expected), "{} {}", answer.result, answer.talk);
        assert_eq!(place.run(&["verify", name]).code, Some(0));
        assert_eq!(place.run(&["index", name]).code, Some(0));
        let converted = place.run(&["convert", name, &format!("{name}-out"), "--to", "folder"]);
        assert_eq!(converted.code, Some(0), "{}", converted.talk);
    }
    place.write("a.tar.lz4", b"\x04\x22\x4d\x18 and more");
    let answer = place.run(&["show", "a.tar.lz4"]);
    assert_eq!(answer.code, Some(2));
    assert!(answer.talk.contains("compressed with lz4, which is not supported"), "{}", answer.talk);
    let answer = place.run(&["verify", "s3://bucket/a.tar"]);
    assert_eq!(answer.code, Some(2));
    assert!(answer.talk.contains("reading from s3 is not supported yet"), "{}", answer.talk);
}

#[test]
fn token_files_are_shown_and_verified() {
    let place = Place::new();
    let tokens: Vec<u8> = (0_u16..40).flat_map(u16::to_le_bytes).collect();
    place.write("train.bin", &tokens);
    let answer = place.run(&["show", "train.bin", "--dtype", "uint16"]);
    assert_eq!(answer.code, Some(0), "{}", answer.talk);
    let expected = "train.bin: uint16, 40 numbers, 80 B\n\
                    from number 0: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ...\n";
    assert_eq!(answer.result, expected);
    let answer = place.run(&["show", "train.bin:38", "--as", "tokens", "--dtype", "uint16"]);
    assert_eq!(answer.result, "from number 38: 38, 39\n");
    let good = place.run(&["verify", "train.bin", "--dtype", "uint16"]);
    assert_eq!(good.code, Some(0), "{}", good.talk);
    assert!(good.result.starts_with("files     1: 1 token file\n"), "{}", good.result);
    for command in ["show", "verify"] {
        let answer = place.run(&[command, "train.bin", "--as", "tokens"]);
        assert_eq!(answer.code, Some(2), "{}", answer.result);
        assert!(answer.talk.contains("--as tokens --dtype uint16"), "{}", answer.talk);
    }
    place.write("odd.bin", &tokens[1..]);
    let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (50,), }\n";
    let mut short = b"\x93NUMPY\x01\x00".to_vec();
    short.extend((header.len() as u16).to_le_bytes());
    short.extend(header.as_bytes());
    short.extend(&tokens);
    place.write("short.npy", &short);
    for command in ["show", "verify"] {
        let odd = place.run(&[command, "odd.bin", "--dtype", "uint16"]);
        assert_eq!(odd.code, Some(1));
        assert!(odd.result.contains("79 bytes are no whole number of uint16"), "{}", odd.result);
        let short = place.run(&[command, "short.npy"]);
        assert_eq!(short.code, Some(1), "{}", short.talk);
        let what = "the header says 50 numbers, and the file has 40";
        assert!(short.result.contains(what), "{}", short.result);
    }
}
