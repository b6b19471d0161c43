//! `feedline convert` as a subprocess.

use super::data::{Sandbox, archive, examples, labelled, picture, sample, shard};
use feedline_core::format::example::{self, List};
use feedline_core::testing::photos::photo_jpeg;
use std::io::Read as _;

/// An image folder of two classes, with nested folders and unusual names.
fn photos(sandbox: &Sandbox) {
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
        sandbox.write(&format!("photos/{name}"), &bytes);
    }
}

fn contents(sandbox: &Sandbox, folder: &str) -> Vec<(String, Vec<u8>)> {
    let names = sandbox.files(folder).into_iter();
    names.map(|name| (name.clone(), sandbox.read(&format!("{folder}/{name}")))).collect()
}

#[test]
fn a_folder_survives_a_round_trip_through_tfrecords() {
    let sandbox = Sandbox::new();
    photos(&sandbox);
    let made = sandbox.run(&["convert", "photos", "shards", "--to", "tfrecord", "--shards", "2"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    insta::assert_snapshot!(made.stdout);
    insta::assert_snapshot!(made.stderr);
    let names = ["classes.txt", "photos-00000-of-00002.tfrecord", "photos-00001-of-00002.tfrecord"];
    assert_eq!(sandbox.files("shards"), names);
    assert_eq!(sandbox.read("shards/classes.txt"), b"cat\ndog\n");
    assert_eq!(sandbox.run(&["verify", "shards"]).code, Some(0));
    insta::assert_snapshot!(
        sandbox.run(&["show", "shards/photos-00001-of-00002.tfrecord:1"]).stdout
    );
    let back = sandbox.run(&["convert", "shards", "back", "--to", "folder"]);
    assert_eq!(back.code, Some(0), "{}", back.stderr);
    assert_eq!(back.stdout, "5 images of 2 classes below back\n");
    assert!(contents(&sandbox, "back") == contents(&sandbox, "photos"));
}

#[test]
fn a_folder_survives_a_round_trip_through_tars_in_every_compression() {
    let sandbox = Sandbox::new();
    photos(&sandbox);
    for (target, compress, extension) in [
        ("plain", None, "tar"),
        ("gzip", Some("gzip"), "tar.gz"),
        ("zstd", Some("zstd"), "tar.zst"),
    ] {
        let mut command = vec!["convert", "photos", target, "--to", "tar", "--prefix", "p"];
        command.extend(compress.iter().flat_map(|how| ["--compress", how]));
        let made = sandbox.run(&command);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        assert!(
            made.stderr
                .contains(".parse({\"image\": fl.bytes_(key=\"jpg;png\"), \"cls\": fl.int64()})")
        );
        let name = format!("p-00000-of-00001.{extension}");
        assert_eq!(sandbox.files(target), ["classes.txt", &name]);
        let (pattern, back) = (format!("{target}/p-*.{extension}"), format!("{target}-back"));
        let answer = sandbox.run(&["convert", &pattern, &back, "--to", "folder"]);
        assert_eq!(answer.code, Some(0), "{}", answer.stderr);
        let names = ["cat/1-2.png", "cat/1.jpg", "cat/deep/x_v2.png", "dog/2.png", "dog/ü.png"];
        assert_eq!(sandbox.files(&back), names);
        assert_eq!(sandbox.read(&format!("{back}/cat/1-2.png")), sandbox.read("photos/cat/1.png"));
        let verified = sandbox.run(&["verify", target]);
        assert_eq!(verified.code, Some(0), "{}", verified.stdout);
    }
    let bytes = sandbox.read("plain/p-00000-of-00001.tar");
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
fn records_have_the_indices_of_their_files_unless_shuffled() {
    let sandbox = Sandbox::new();
    for number in 0..30 {
        sandbox.write(&format!("photos/c/{number:02}.png"), &picture(number));
    }
    let order = |target: &str, more: &[&str]| -> Vec<String> {
        let command = ["convert", "photos", target, "--to", "tfrecord", "--shards", "3"];
        assert_eq!(sandbox.run(&[&command[..], more].concat()).code, Some(0));
        let records = (0..30).map(|number| {
            let file =
                format!("{target}/photos-0000{}-of-00003.tfrecord:{}", number / 10, number % 10);
            let shown = sandbox.run(&["show", &file]).stdout;
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
fn classes_and_images_without_names_are_numbered() {
    let sandbox = Sandbox::new();
    sandbox.write("a.tfrecord", &examples(0..4));
    assert_eq!(sandbox.run(&["convert", "a.tfrecord", "records", "--to", "folder"]).code, Some(0));
    let names = ["0/00000000.png", "0/00000003.png", "1/00000001.png", "2/00000002.png"];
    assert_eq!(sandbox.files("records"), names);
    sandbox.write("a.tar", &archive(&(0..4).flat_map(sample).collect::<Vec<_>>()));
    assert_eq!(sandbox.run(&["convert", "a.tar", "samples", "--to", "folder"]).code, Some(0));
    assert_eq!(sandbox.files("samples"), ["0/000.png", "0/003.png", "1/001.png", "2/002.png"]);
}

#[test]
fn no_name_in_a_shard_escapes_the_target() {
    let sandbox = Sandbox::new();
    for (number, name) in
        ["../../out.png", "/out.png", "a/../../../out.png", "a//out.png", "a\\b.png", "a/.out.png"]
            .into_iter()
            .enumerate()
    {
        let members =
            [(name.to_owned(), picture(1)), (name.replace(".png", ".cls"), b"0".to_vec())];
        let source = format!("{number}.tar");
        sandbox.write(&source, &archive(&members));
        let answer = sandbox.run(&["convert", &source, "deep/target", "--to", "folder"]);
        assert_eq!(answer.code, Some(2), "{name}");
        assert!(answer.stderr.contains(&format!("error: the name {name:?}")), "{}", answer.stderr);
        assert!(
            answer.stderr.contains(&format!("in    {source}, record 0, byte 0\nhint: nothing is"))
        );
        let data = picture(1);
        let features = [
            ("image_raw", List::Bytes(vec![&*data])),
            ("name", List::Bytes(vec![name.as_bytes()])),
        ];
        sandbox.write("n.tfrecord", &shard(&[example::write(&features)]));
        let answer = sandbox.run(&["convert", "n.tfrecord", "deep/target", "--to", "folder"]);
        assert_eq!(answer.code, Some(2), "{name}");
    }
    let image = picture(1);
    let label = ("label", List::Bytes(vec![&b"../../out"[..]]));
    let record = example::write(&[("image_raw", List::Bytes(vec![&image])), label]);
    sandbox.write("l.tfrecord", &shard(&[record]));
    assert_eq!(
        sandbox.run(&["convert", "l.tfrecord", "deep/target", "--to", "folder"]).code,
        Some(2)
    );
    sandbox.write("c/a.tar", &archive(&sample(0)));
    sandbox.write("c/classes.txt", b"../../out\n");
    assert_eq!(sandbox.run(&["convert", "c/a.tar", "deep/target", "--to", "folder"]).code, Some(2));
    assert_eq!(sandbox.files("deep"), [] as [String; 0]);
    assert!(
        sandbox.files(".").iter().all(|name| !name.contains("out")),
        "{:?}",
        sandbox.files(".")
    );
}

#[test]
fn names_that_could_not_be_read_back_are_not_written() {
    let sandbox = Sandbox::new();
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
        sandbox.write(&format!("{source}/{name}"), &picture(1));
        let named = match what {
            "file" => name,
            _ => name.split('/').next().unwrap(),
        };
        for to in ["tfrecord", "tar"] {
            let answer = sandbox.run(&["convert", &source, "shards", "--to", to]);
            assert_eq!(answer.code, Some(2), "{name:?}: {}", answer.stdout);
            let said = format!(
                "error: the name of {what} {named:?} has a backslash or a control character\nhint: rename the"
            );
            assert!(answer.stderr.contains(&said), "{}", answer.stderr);
            assert!(!sandbox.path("shards").exists());
        }
    }
}

#[test]
fn a_key_too_long_for_a_file_name_is_refused_before_it_is_written() {
    let sandbox = Sandbox::new();
    let stem = "a".repeat(251);
    sandbox.write(&format!("photos/cat/{stem}.png"), &picture(1));
    assert_eq!(sandbox.run(&["convert", "photos", "one", "--to", "tar"]).code, Some(0));
    sandbox.write(&format!("photos/cat/{stem}.jpg"), &photo_jpeg(1, 40, 30, 90));
    let answer = sandbox.run(&["convert", "photos", "two", "--to", "tar"]);
    assert_eq!(answer.code, Some(2), "{}", answer.stdout);
    assert!(
        answer.stderr.contains("too long for a file\nhint: rename the file"),
        "{}",
        answer.stderr
    );
    assert!(!sandbox.path("two").exists());
}

#[test]
fn files_are_overwritten_only_with_force() {
    let sandbox = Sandbox::new();
    photos(&sandbox);
    let command = ["convert", "photos", "shards", "--to", "tar", "--shards", "2"];
    assert_eq!(sandbox.run(&command).code, Some(0));
    let before = contents(&sandbox, "shards");
    let again = sandbox.run(&command);
    assert_eq!(again.code, Some(2));
    assert!(
        again.stderr.contains("\"shards/classes.txt\" exists already\nhint: "),
        "{}",
        again.stderr
    );
    let forced = sandbox.run(&[&command[..], &["--force"]].concat());
    assert_eq!(forced.code, Some(0), "{}", forced.stderr);
    assert!(contents(&sandbox, "shards") == before);
    let others = sandbox.run(&["convert", "photos", "shards", "--to", "tar", "--force"]);
    assert_eq!(others.code, Some(2));
    let said = "\"shards/photos-00000-of-00002.tar\" is from another conversion";
    assert!(others.stderr.contains(said), "{}", others.stderr);
    let into = sandbox.run(&["convert", "shards", "photos", "--to", "folder"]);
    assert_eq!(into.code, Some(2));
    assert!(into.stderr.contains("\"photos\" exists already\nhint: "), "{}", into.stderr);
}

#[test]
fn two_records_never_become_one_file() {
    let sandbox = Sandbox::new();
    let twice = [sample(0), sample(1), sample(0)].concat();
    sandbox.write("a.tar", &archive(&twice));
    for more in [&[][..], &["--force"]] {
        let command = ["convert", "a.tar", "back", "--to", "folder", "--threads", "1"];
        let answer = sandbox.run(&[&command[..], more].concat());
        assert_eq!(answer.code, Some(2), "{}", answer.stdout);
        assert!(answer.stderr.contains("another record also has the name \"back/0/000.png\""));
    }
}

#[test]
fn bad_arguments_of_convert_are_refused_with_a_hint() {
    let sandbox = Sandbox::new();
    photos(&sandbox);
    sandbox.write("raw.tfrecord", &shard(&[example::write(&[("x", List::Ints(vec![1]))])]));
    let mut bytes = shard(&[labelled(0), labelled(1)]);
    let end = bytes.len() - 10;
    bytes[end] ^= 1;
    sandbox.write("bad.tfrecord", &bytes);
    sandbox.write("both/a.tar", &archive(&sample(0)));
    sandbox.write("both/a.tfrecord", &examples(0..1));
    sandbox.write("odd/__x__/1.png", &picture(1));
    for (arguments, said) in [
        ("photos", "TARGET"),
        ("photos t --to zip", "'zip'"),
        ("photos t --to tar --shards 0", "0 is not in 1..=99999"),
        (
            "photos t --to tar --shards 6",
            "--shards 6 is more than the 5 samples\nhint: give at most --shards 5",
        ),
        ("photos t --to tar --prefix a/b", "--prefix cannot be \"a/b\"\nhint: "),
        ("photos/cat/1.jpg t --to tar", "\"photos/cat/1.jpg\" is not an image folder\nhint: "),
        ("photos/cat/deep t --to tar", "has no class folders\nhint: "),
        ("photos t --to folder", "\"photos\" has no TFRecord or tar shards\nhint: "),
        (
            "both t --to folder",
            "\"both\" has both TFRecord and tar shards\nhint: select one format",
        ),
        ("raw.tfrecord t --to folder", "no feature \"image_raw\"; the record has x\n"),
        ("raw.tfrecord t --to folder --shards 2", "--shards applies to shards, and --to folder"),
        (
            "bad.tfrecord t --to folder",
            "hint: write shards without the corrupt records: feedline verify",
        ),
        ("odd t --to tar", "\"__x__\" is skipped by readers of tars\nhint: rename"),
    ] {
        let mut all = vec!["convert"];
        all.extend(arguments.split(' '));
        let answer = sandbox.run(&all);
        assert_eq!(answer.code, Some(2), "{arguments}");
        assert!(answer.stderr.contains(said), "{arguments}: {}", answer.stderr);
        assert_eq!(answer.stdout, "", "{arguments}");
    }
}

#[test]
fn a_killed_conversion_leaves_only_complete_files() {
    let sandbox = Sandbox::new();
    for number in 0..400 {
        sandbox.write(&format!("photos/c/{number:03}.png"), &picture(number));
    }
    let command =
        ["convert", "photos", "shards", "--to", "tar", "--shards", "400", "--threads", "1"];
    let mut child = sandbox.command(&command).stderr(std::process::Stdio::null()).spawn().unwrap();
    while sandbox.files("shards").is_empty() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success(), "the conversion was still running");
    let files = sandbox.files("shards");
    assert!((1..400).contains(&files.len()), "{}", files.len());
    assert!(files.iter().all(|name| !name.starts_with('.')), "{files:?}");
    assert_eq!(sandbox.run(&["verify", "shards"]).code, Some(0));
}

#[test]
fn the_help_of_convert_teaches_by_example() {
    insta::assert_snapshot!(Sandbox::new().run(&["convert", "--help"]).stdout);
}

#[test]
fn nothing_is_written_through_a_symbolic_link_in_the_target() {
    let sandbox = Sandbox::new();
    photos(&sandbox);
    sandbox.run(&["convert", "photos", "shards", "--to", "tfrecord"]);
    sandbox.write("elsewhere/precious", b"kept");
    sandbox.write("back/note", b"");
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), sandbox.path("back/dog")).unwrap();
    let back = sandbox.run(&["convert", "shards", "back", "--to", "folder", "--force"]);
    assert_eq!(back.code, Some(2), "{}", back.stderr);
    assert!(
        back.stderr.contains("is a symbolic link that leads out of the target"),
        "{}",
        back.stderr
    );
    assert_eq!(sandbox.files("elsewhere"), ["precious"]);
}
