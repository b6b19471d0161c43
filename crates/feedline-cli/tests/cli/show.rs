//! `feedline show` as a subprocess.

use super::data::{Sandbox, archive, examples, packed, picture, sample, samples, shard};
use super::verify::truncated;
use feedline_core::format::Packing;
use feedline_core::format::example::{self, List};

#[test]
fn a_tfrecord_is_shown_with_its_first_record_and_how_to_parse_it() {
    let sandbox = Sandbox::new();
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
    sandbox.write("a.tfrecord", &shard(&[first, second, b"no Example at all".to_vec()]));
    let answer = sandbox.run(&["show", "a.tfrecord"]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    insta::assert_snapshot!(answer.stdout);
    insta::assert_snapshot!(sandbox.run(&["show", "a.tfrecord:1"]).stdout);
    insta::assert_snapshot!(sandbox.run(&["show", "a.tfrecord:2"]).stdout);
}

#[test]
fn records_of_compressed_shards_are_found_too() {
    let sandbox = Sandbox::new();
    sandbox.write("a.tfrecord", &examples(0..9));
    sandbox.write("a.tfrecord.gz", &packed(Packing::Gzip, &examples(0..9)));
    let plain = sandbox.run(&["show", "a.tfrecord:7"]);
    assert!(plain.stdout.contains("image_raw  bytes  PNG 12 x 8, "), "{}", plain.stdout);
    assert_eq!(sandbox.run(&["show", "a.tfrecord.gz:7"]).stdout, plain.stdout);
}

#[test]
fn a_tar_is_shown_with_its_members() {
    let sandbox = Sandbox::new();
    let mut members = sample(0);
    members.push(("000.json".into(), br#"{"a": 1}"#.to_vec()));
    members.extend(sample(1));
    sandbox.write("a.tar", &archive(&members));
    insta::assert_snapshot!(sandbox.run(&["show", "a.tar"]).stdout);
    insta::assert_snapshot!(sandbox.run(&["show", "a.tar:1"]).stdout);
}

#[test]
fn an_image_is_shown_by_its_size() {
    let sandbox = Sandbox::new();
    sandbox.write("a.png", &picture(0));
    sandbox.write("b.png", b"no picture");
    let good = sandbox.run(&["show", "a.png"]);
    assert_eq!((good.code, &*good.stdout), (Some(0), "a.png: PNG 12 x 8, 364 B\n"));
    let bad = sandbox.run(&["show", "b.png"]);
    assert_eq!(bad.code, Some(1));
    assert!(bad.stdout.starts_with("b.png: not a JPEG, PNG or WebP image"), "{}", bad.stdout);
}

#[test]
fn a_corrupt_record_is_shown_as_corrupt() {
    let sandbox = Sandbox::new();
    let mut bytes = examples(0..3);
    let second = examples(0..1).len();
    bytes[second + 20] ^= 1;
    sandbox.write("a.tfrecord", &bytes);
    let answer = sandbox.run(&["show", "a.tfrecord:1"]);
    assert_eq!(answer.code, Some(1));
    assert!(answer.stdout.contains("  record 1 is corrupt: checksum mismatch"));
    assert_eq!(sandbox.run(&["show", "a.tfrecord:2"]).code, Some(0));
}

#[test]
fn a_name_with_a_colon_is_a_file_if_it_exists() {
    let sandbox = Sandbox::new();
    sandbox.write("a.tfrecord", &examples(0..3));
    sandbox.write("a.tfrecord:1", &examples(0..5));
    let answer = sandbox.run(&["show", "a.tfrecord:1", "--as", "tfrecord"]);
    assert!(answer.stdout.starts_with("a.tfrecord:1: TFRecord, 5 records"), "{}", answer.stdout);
}

#[test]
fn bad_arguments_of_show_are_refused_with_a_hint() {
    let sandbox = Sandbox::new();
    sandbox.write("a.tfrecord", &examples(0..3));
    sandbox.write("notes.txt", b"nothing");
    sandbox.write("photos/cat/1.png", &picture(1));
    for (asked, said) in [
        (
            "a.tfrecord:3",
            "there is no record 3: \"a.tfrecord\" has 3 records\nhint: give a number from 0 to 2",
        ),
        ("a.tfrecord:x", "\"x\" is not a record number\nhint: feedline show a.tfrecord:0"),
        ("b.tfrecord", "\"b.tfrecord\" does not exist\nhint: "),
        (
            "photos",
            "\"photos\" is a folder\nhint: give a file, or verify the folder with feedline verify photos",
        ),
        ("photos:0", "\"photos\" is a folder\nhint: "),
        ("notes.txt", "is not clear from its name\nhint: give the format: --as"),
    ] {
        let answer = sandbox.run(&["show", asked]);
        assert_eq!(answer.code, Some(2), "{asked}");
        assert!(answer.stderr.contains(said), "{asked}: {}", answer.stderr);
    }
}

#[test]
fn the_help_of_show_teaches_by_example() {
    insta::assert_snapshot!(Sandbox::new().run(&["show", "--help"]).stdout);
}

#[test]
fn a_partly_unreadable_record_ends_with_code_1() {
    let sandbox = Sandbox::new();
    let mut members = sample(0);
    members[0].1 = truncated(0);
    sandbox.write("picture.tar", &archive(&members));
    sandbox.write("json.tar", &archive(&[("a.json".into(), b"{".to_vec())]));
    sandbox.write("array.tar", &archive(&[("a.npy".into(), b"\x93NUMPY".to_vec())]));
    sandbox.write("a.jsonl", b"{\"a\": 1}\n{\"a\":\n{\"a\": NaN}\n");
    let image = truncated(0);
    let record = example::write(&[("image", List::Bytes(vec![&image]))]);
    sandbox.write("a.tfrecord", &shard(&[record]));
    sandbox.write("truncated.png", &truncated(0));
    for asked in
        ["picture.tar:0", "json.tar", "array.tar:0", "a.jsonl:1", "a.tfrecord", "truncated.png"]
    {
        let answer = sandbox.run(&["show", asked]);
        assert_eq!(answer.code, Some(1), "{asked}: {} {}", answer.stdout, answer.stderr);
    }
    for asked in ["a.jsonl:0", "a.jsonl:2"] {
        let answer = sandbox.run(&["show", asked]);
        assert_eq!(answer.code, Some(0), "{asked}: {} {}", answer.stdout, answer.stderr);
    }
}

#[test]
fn every_supported_compression_is_read_and_others_are_named() {
    let sandbox = Sandbox::new();
    for (name, packing) in [("a.tar.xz", Packing::Xz), ("a.tar.bz2", Packing::Bzip2)] {
        sandbox.write(name, &packed(packing, &samples(0..4)));
        let answer = sandbox.run(&["show", name]);
        let expected = format!("{name}: tar, {}, 4 records, ", packing.name());
        assert!(answer.stdout.starts_with(&expected), "{} {}", answer.stdout, answer.stderr);
        assert_eq!(sandbox.run(&["verify", name]).code, Some(0));
        assert_eq!(sandbox.run(&["index", name]).code, Some(0));
        let converted = sandbox.run(&["convert", name, &format!("{name}-out"), "--to", "folder"]);
        assert_eq!(converted.code, Some(0), "{}", converted.stderr);
    }
    sandbox.write("a.tar.lz4", b"\x04\x22\x4d\x18 and more");
    let answer = sandbox.run(&["show", "a.tar.lz4"]);
    assert_eq!(answer.code, Some(2));
    assert!(
        answer.stderr.contains("compressed with lz4, which is not supported"),
        "{}",
        answer.stderr
    );
    let answer = sandbox.run(&["verify", "s3://bucket/a.tar"]);
    assert_eq!(answer.code, Some(2));
    assert!(answer.stderr.contains("reading from s3 is not supported yet"), "{}", answer.stderr);
}

#[test]
fn token_files_are_shown_and_verified() {
    let sandbox = Sandbox::new();
    let tokens: Vec<u8> = (0_u16..40).flat_map(u16::to_le_bytes).collect();
    sandbox.write("train.bin", &tokens);
    let answer = sandbox.run(&["show", "train.bin", "--dtype", "uint16"]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    let expected = "train.bin: uint16, 40 numbers, 80 B\n\
                    from number 0: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ...\n";
    assert_eq!(answer.stdout, expected);
    let answer = sandbox.run(&["show", "train.bin:38", "--as", "tokens", "--dtype", "uint16"]);
    assert_eq!(answer.stdout, "from number 38: 38, 39\n");
    let good = sandbox.run(&["verify", "train.bin", "--dtype", "uint16"]);
    assert_eq!(good.code, Some(0), "{}", good.stderr);
    assert!(good.stdout.starts_with("files     1: 1 token file\n"), "{}", good.stdout);
    for command in ["show", "verify"] {
        let answer = sandbox.run(&[command, "train.bin", "--as", "tokens"]);
        assert_eq!(answer.code, Some(2), "{}", answer.stdout);
        assert!(answer.stderr.contains("--as tokens --dtype uint16"), "{}", answer.stderr);
    }
    sandbox.write("odd.bin", &tokens[1..]);
    let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (50,), }\n";
    let mut short = b"\x93NUMPY\x01\x00".to_vec();
    short.extend((header.len() as u16).to_le_bytes());
    short.extend(header.as_bytes());
    short.extend(&tokens);
    sandbox.write("short.npy", &short);
    for command in ["show", "verify"] {
        let odd = sandbox.run(&[command, "odd.bin", "--dtype", "uint16"]);
        assert_eq!(odd.code, Some(1));
        assert!(
            odd.stdout.contains("79 bytes are not a whole number of uint16 values"),
            "{}",
            odd.stdout
        );
        let short = sandbox.run(&[command, "short.npy"]);
        assert_eq!(short.code, Some(1), "{}", short.stderr);
        let what = "the header declares 50 numbers, the file has 40";
        assert!(short.stdout.contains(what), "{}", short.stdout);
    }
}
