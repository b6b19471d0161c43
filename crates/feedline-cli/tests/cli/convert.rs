//! `feedline convert` from outside.

use super::data::{Place, archive, examples, labelled, picture, sample, shard};
use feedline_core::format::example::{self, List};
use feedline_core::testing::photos::photo_jpeg;
use std::io::Read as _;

/// An image folder of two classes, with folders in folders and names that need care.
fn photos(place: &Place) {
    for (name, number) in [
        ("cat/1.jpg", 1),
        ("cat/1.png", 2),
        ("cat/deep/x.v2.png", 3),
        ("dog/2.PNG", 4),
        ("dog/ü.png", 5),
    ] {
        let bytes = match name.ends_with("jpg") {
            true => photo_jpeg(number, 40, 30, 90),
            false => picture(number as usize),
        };
        place.write(&format!("photos/{name}"), &bytes);
    }
}

/// Names and contents of all files below a folder.
fn contents(place: &Place, folder: &str) -> Vec<(String, Vec<u8>)> {
    let names = place.files(folder).into_iter();
    names.map(|name| (name.clone(), place.read(&format!("{folder}/{name}")))).collect()
}

#[test]
fn a_folder_comes_back_from_tfrecords_as_it_was() {
    let place = Place::new();
    photos(&place);
    let made = place.run(&["convert", "photos", "shards", "--to", "tfrecord", "--shards", "2"]);
    assert_eq!(made.code, Some(0), "{}", made.talk);
    insta::assert_snapshot!(made.result);
    insta::assert_snapshot!(made.talk);
    let names = ["classes.txt", "photos-00000-of-00002.tfrecord", "photos-00001-of-00002.tfrecord"];
    assert_eq!(place.files("shards"), names);
    assert_eq!(place.read("shards/classes.txt"), b"cat\ndog\n");
    assert_eq!(place.run(&["verify", "shards"]).code, Some(0));
    insta::assert_snapshot!(place.run(&["show", "shards/photos-00001-of-00002.tfrecord:1"]).result);
    let back = place.run(&["convert", "shards", "back", "--to", "folder"]);
    assert_eq!(back.code, Some(0), "{}", back.talk);
    assert_eq!(back.result, "5 images of 2 classes below back\n");
    assert!(contents(&place, "back") == contents(&place, "photos"));
}

#[test]
fn a_folder_comes_back_from_tars_in_every_compression() {
    let place = Place::new();
    photos(&place);
    for (target, compress, extension) in [
        ("plain", None, "tar"),
        ("gzip", Some("gzip"), "tar.gz"),
        ("zstd", Some("zstd"), "tar.zst"),
    ] {
        let mut command = vec!["convert", "photos", target, "--to", "tar", "--prefix", "p"];
        command.extend(compress.iter().flat_map(|how| ["--compress", how]));
        let made = place.run(&command);
        assert_eq!(made.code, Some(0), "{}", made.talk);
        assert!(
            made.talk
                .contains(".parse({\"image\": fl.bytes_(key=\"jpg;png\"), \"cls\": fl.int64()})")
        );
        let name = format!("p-00000-of-00001.{extension}");
        assert_eq!(place.files(target), ["classes.txt", &name]);
        let (pattern, back) = (format!("{target}/p-*.{extension}"), format!("{target}-back"));
        let answer = place.run(&["convert", &pattern, &back, "--to", "folder"]);
        assert_eq!(answer.code, Some(0), "{}", answer.talk);
        let names = ["cat/1-2.png", "cat/1.jpg", "cat/deep/x_v2.png", "dog/2.png", "dog/ü.png"];
        assert_eq!(place.files(&back), names);
        assert_eq!(place.read(&format!("{back}/cat/1-2.png")), place.read("photos/cat/1.png"));
        let verified = place.run(&["verify", target]);
        assert_eq!(verified.code, Some(0), "{}", verified.result);
    }
    let bytes = place.read("plain/p-00000-of-00001.tar");
    let mut archive = tar::Archive::new(&*bytes);
    let mut classes = String::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.path().unwrap().extension().unwrap() == "cls" {
            entry.read_to_string(&mut classes).unwrap();
        }
    }
    assert_eq!(classes, "00011", "another reader finds the labels in the order of the folder");
}

#[test]
fn records_have_the_numbers_of_their_files_unless_they_are_shuffled() {
    let place = Place::new();
    for number in 0..30 {
        place.write(&format!("photos/c/{number:02}.png"), &picture(number));
    }
    let order = |target: &str, more: &[&str]| -> Vec<String> {
        let command = ["convert", "photos", target, "--to", "tfrecord", "--shards", "3"];
        assert_eq!(place.run(&[&command[..], more].concat()).code, Some(0));
        let records = (0..30).map(|number| {
            let file =
                format!("{target}/photos-0000{}-of-00003.tfrecord:{}", number / 10, number % 10);
            let shown = place.run(&["show", &file]).result;
            shown.split("c/").nth(1).unwrap()[..2].to_owned()
        });
        records.collect()
    };
    let sorted: Vec<_> = (0..30).map(|number| format!("{number:02}")).collect();
    assert_eq!(order("plain", &[]), sorted);
    let mut mixed = order("mixed", &["--shuffle", "7"]);
    assert_ne!(mixed, sorted);
    assert_eq!(mixed, order("again", &["--shuffle", "7"]));
    mixed.sort();
    assert_eq!(mixed, sorted);
}

#[test]
fn classes_are_named_by_numbers_and_images_too_where_nothing_names_them() {
    let place = Place::new();
    place.write("a.tfrecord", &examples(0..4));
    assert_eq!(place.run(&["convert", "a.tfrecord", "records", "--to", "folder"]).code, Some(0));
    let names = ["0/00000000.png", "0/00000003.png", "1/00000001.png", "2/00000002.png"];
    assert_eq!(place.files("records"), names);
    place.write("a.tar", &archive(&(0..4).flat_map(sample).collect::<Vec<_>>()));
    assert_eq!(place.run(&["convert", "a.tar", "samples", "--to", "folder"]).code, Some(0));
    assert_eq!(place.files("samples"), ["0/000.png", "0/003.png", "1/001.png", "2/002.png"]);
}

#[test]
fn no_name_in_a_shard_leads_out_of_the_target() {
    let place = Place::new();
    for (number, name) in
        ["../../out.png", "/out.png", "a/../../../out.png", "a//out.png", "a\\b.png", "a/.out.png"]
            .into_iter()
            .enumerate()
    {
        let members =
            [(name.to_owned(), picture(1)), (name.replace(".png", ".cls"), b"0".to_vec())];
        let source = format!("{number}.tar");
        place.write(&source, &archive(&members));
        let answer = place.run(&["convert", &source, "deep/target", "--to", "folder"]);
        assert_eq!(answer.code, Some(2), "{name}");
        assert!(answer.talk.contains(&format!("error: the name {name:?}")), "{}", answer.talk);
        assert!(
            answer.talk.contains(&format!("in    {source}, record 0, byte 0\nhint: nothing is"))
        );
        let data = picture(1);
        let features = [
            ("image_raw", List::Bytes(vec![&*data])),
            ("name", List::Bytes(vec![name.as_bytes()])),
        ];
        place.write("n.tfrecord", &shard(&[example::write(&features)]));
        let answer = place.run(&["convert", "n.tfrecord", "deep/target", "--to", "folder"]);
        assert_eq!(answer.code, Some(2), "{name}");
    }
    let image = picture(1);
    let label = ("label", List::Bytes(vec![&b"../../out"[..]]));
    let record = example::write(&[("image_raw", List::Bytes(vec![&image])), label]);
    place.write("l.tfrecord", &shard(&[record]));
    assert_eq!(
        place.run(&["convert", "l.tfrecord", "deep/target", "--to", "folder"]).code,
        Some(2)
    );
    place.write("c/a.tar", &archive(&sample(0)));
    place.write("c/classes.txt", b"../../out\n");
    assert_eq!(place.run(&["convert", "c/a.tar", "deep/target", "--to", "folder"]).code, Some(2));
    assert_eq!(place.files("deep"), [] as [String; 0]);
    assert!(place.files(".").iter().all(|name| !name.contains("out")), "{:?}", place.files("."));
}

#[test]
fn names_that_would_not_come_back_from_a_shard_do_not_go_into_one() {
    let place = Place::new();
    for (number, (name, what)) in [
        ("cat/a\\b.png", "file"),
        ("cat/a\nb.png", "file"),
        ("cat/a\u{1b}[31m.png", "file"),
        ("cat/deep\\er/1.png", "file"),
        ("c\\at/1.png", "class folder"),
        ("c\tat/1.png", "class folder"),
    ]
    .into_iter()
    .enumerate()
    {
        let source = format!("photos{number}");
        place.write(&format!("{source}/{name}"), &picture(1));
        let named = match what {
            "file" => name,
            _ => name.split('/').next().unwrap(),
        };
        for to in ["tfrecord", "tar"] {
            let answer = place.run(&["convert", &source, "shards", "--to", to]);
            assert_eq!(answer.code, Some(2), "{name:?}: {}", answer.result);
            let said = format!(
                "error: the name of {what} {named:?} has a backslash or a control character\nhint: rename the"
            );
            assert!(answer.talk.contains(&said), "{}", answer.talk);
            assert!(!place.path("shards").exists());
        }
    }
}

#[test]
fn a_key_that_became_too_long_for_a_file_is_refused_before_it_is_written() {
    let place = Place::new();
    let stem = "a".repeat(251);
    place.write(&format!("photos/cat/{stem}.png"), &picture(1));
    assert_eq!(place.run(&["convert", "photos", "one", "--to", "tar"]).code, Some(0));
    place.write(&format!("photos/cat/{stem}.jpg"), &photo_jpeg(1, 40, 30, 90));
    let answer = place.run(&["convert", "photos", "two", "--to", "tar"]);
    assert_eq!(answer.code, Some(2), "{}", answer.result);
    assert!(answer.talk.contains("too long for a file\nhint: rename the file"), "{}", answer.talk);
    assert!(!place.path("two").exists());
}

#[test]
fn nothing_is_written_over_unless_that_is_asked_for() {
    let place = Place::new();
    photos(&place);
    let command = ["convert", "photos", "shards", "--to", "tar", "--shards", "2"];
    assert_eq!(place.run(&command).code, Some(0));
    let before = contents(&place, "shards");
    let again = place.run(&command);
    assert_eq!(again.code, Some(2));
    assert!(again.talk.contains("\"shards/classes.txt\" exists already\nhint: "), "{}", again.talk);
    let forced = place.run(&[&command[..], &["--force"]].concat());
    assert_eq!(forced.code, Some(0), "{}", forced.talk);
    assert!(contents(&place, "shards") == before);
    let others = place.run(&["convert", "photos", "shards", "--to", "tar", "--force"]);
    assert_eq!(others.code, Some(2));
    let said = "\"shards/photos-00000-of-00002.tar\" is of another conversion";
    assert!(others.talk.contains(said), "{}", others.talk);
    let into = place.run(&["convert", "shards", "photos", "--to", "folder"]);
    assert_eq!(into.code, Some(2));
    assert!(into.talk.contains("\"photos\" exists already\nhint: "), "{}", into.talk);
}

#[test]
fn two_records_never_become_one_file() {
    let place = Place::new();
    let twice = [sample(0), sample(1), sample(0)].concat();
    place.write("a.tar", &archive(&twice));
    for more in [&[][..], &["--force"]] {
        let command = ["convert", "a.tar", "back", "--to", "folder", "--threads", "1"];
        let answer = place.run(&[&command[..], more].concat());
        assert_eq!(answer.code, Some(2), "{}", answer.result);
        assert!(answer.talk.contains("another record has the name \"back/0/000.png\" too"));
    }
}

#[test]
fn what_cannot_be_converted_is_refused_with_a_hint() {
    let place = Place::new();
    photos(&place);
    place.write("raw.tfrecord", &shard(&[example::write(&[("x", List::Ints(vec![1]))])]));
    let mut bytes = shard(&[labelled(0), labelled(1)]);
    let end = bytes.len() - 10;
    bytes[end] ^= 1;
    place.write("bad.tfrecord", &bytes);
    place.write("both/a.tar", &archive(&sample(0)));
    place.write("both/a.tfrecord", &examples(0..1));
    place.write("odd/__x__/1.png", &picture(1));
    for (arguments, said) in [
        ("photos", "TARGET"),
        ("photos t --to zip", "'zip'"),
        ("photos t --to tar --shards 0", "0 is not in 1..=99999"),
        ("photos t --to tar --shards 6", "--shards 6 for 5 samples\nhint: give a number up to 5"),
        ("photos t --to tar --prefix a/b", "--prefix cannot be \"a/b\"\nhint: "),
        ("photos/cat/1.jpg t --to tar", "\"photos/cat/1.jpg\" is not an image folder\nhint: "),
        ("photos/cat/deep t --to tar", "has no class folders\nhint: "),
        ("photos t --to folder", "\"photos\" has no TFRecord or tar shards\nhint: "),
        ("both t --to folder", "\"both\" has TFRecord and tar shards\nhint: name one kind"),
        ("raw.tfrecord t --to folder", "no feature \"image_raw\", the record has x\n"),
        ("raw.tfrecord t --to folder --shards 2", "--shards is about shards, and --to folder"),
        (
            "bad.tfrecord t --to folder",
            "hint: write shards without what is corrupt: feedline verify",
        ),
        ("odd t --to tar", "\"__x__\" is skipped by readers of tars\nhint: rename"),
    ] {
        let mut all = vec!["convert"];
        all.extend(arguments.split(' '));
        let answer = place.run(&all);
        assert_eq!(answer.code, Some(2), "{arguments}");
        assert!(answer.talk.contains(said), "{arguments}: {}", answer.talk);
        assert_eq!(answer.result, "", "{arguments}");
    }
}

#[test]
fn whoever_kills_it_finds_whole_files_only() {
    let place = Place::new();
    for number in 0..400 {
        place.write(&format!("photos/c/{number:03}.png"), &picture(number));
    }
    let command =
        ["convert", "photos", "shards", "--to", "tar", "--shards", "400", "--threads", "1"];
    let mut child = place.command(&command).stderr(std::process::Stdio::null()).spawn().unwrap();
    while place.files("shards").is_empty() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success(), "it was still at work");
    let files = place.files("shards");
    assert!((1..400).contains(&files.len()), "{}", files.len());
    assert!(files.iter().all(|name| !name.starts_with('.')), "{files:?}");
    assert_eq!(place.run(&["verify", "shards"]).code, Some(0));
}

#[test]
fn the_help_of_convert_teaches_by_example() {
    insta::assert_snapshot!(Place::new().run(&["convert", "--help"]).result);
}

#[test]
fn nothing_is_written_through_a_link_in_the_target() {
    let place = Place::new();
    photos(&place);
    place.run(&["convert", "photos", "shards", "--to", "tfrecord"]);
    place.write("elsewhere/precious", b"kept");
    place.write("back/note", b"");
    std::os::unix::fs::symlink(place.path("elsewhere"), place.path("back/dog")).unwrap();
    let back = place.run(&["convert", "shards", "back", "--to", "folder", "--force"]);
    assert_eq!(back.code, Some(2), "{}", back.talk);
    assert!(back.talk.contains("is a link, and leads out of the target"), "{}", back.talk);
    assert_eq!(place.files("elsewhere"), ["precious"]);
}
