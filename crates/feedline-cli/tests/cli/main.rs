//! The program as a subprocess: what it prints, where, and its exit codes.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the test starts the program and fails by panicking"
)]

mod convert;
mod data;
mod doctor;
mod documents;
mod index;
mod replay;
mod show;
mod state;
mod verify;

use data::{Sandbox, examples, picture, text};
use feedline_core::testing::machines::recording;
use std::process::{Command, Output};

fn feedline(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_feedline"))
        .args(arguments)
        .env_remove("COLUMNS")
        .output()
        .unwrap()
}

#[test]
fn the_demo_accounts_for_every_sample_and_names_the_bad_ones() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let output = feedline(&["demo", "--samples", "36", "--keep", kept.to_str().unwrap()]);
    let (result, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{result}{stderr}");
    assert!(result.contains("epoch 2: 2 batches, 32 samples"), "{result}");
    assert!(result.contains("64 samples delivered + 8 skipped = 72 expected"), "{result}");
    assert!(result.ends_with("all 72 samples accounted for\n"), "{result}");
    for (number, reason) in [
        ("00009", "truncated"),
        ("00015", "empty"),
        ("00021", "not a JPEG"),
        ("00027", "cannot be decoded"),
    ] {
        let lines: Vec<_> = result.lines().collect();
        let at = lines.iter().position(|line| line.contains(number)).unwrap();
        assert!(lines[at - 1].contains(reason), "{}", lines[at - 1]);
    }
    assert!(
        stderr.contains("making photographs: 36 of 36"),
        "plain lines without a terminal: {stderr}"
    );
    assert_eq!(std::fs::read_dir(kept.join("coast")).unwrap().count(), 12);

    let again = feedline(&["demo", "--keep", kept.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("exists already\nhint:"), "{}", text(&again.stderr));
}

#[test]
fn a_bad_argument_is_refused_with_its_value() {
    for (arguments, said) in [
        (vec!["fly"], "'fly'"),
        (vec!["demo", "--samples", "3"], "3 is not in 12..=100000"),
        (vec!["demo", "--seed", "x"], "'x'"),
        (vec!["demo", "--faults", "action=ignore"], "got \"ignore\"\nhint:"),
        (vec!["explain", "FL999"], "'FL999'"),
        (vec![], "Usage"),
    ] {
        let output = feedline(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn the_demo_takes_a_policy_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.jsonl");
    let policy = format!("action=replace,retry=2,quarantine={}", bad.display());
    let output = feedline(&["demo", "--samples", "36", "--faults", &policy]);
    let result = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{result}{}", text(&output.stderr));
    assert!(result.contains("72 samples delivered + 0 skipped = 72 expected"), "{result}");
    assert!(result.contains("8 replaced by others"), "{result}");
    assert_eq!(std::fs::read_to_string(&bad).unwrap().lines().count(), 8);

    let output = feedline(&["demo", "--samples", "36", "--faults", "raise"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("see: feedline explain FL2"), "{}", text(&output.stderr));
}

/// Commands with a result, in a folder with the files that they need.
const WITH_A_RESULT: [&[&str]; 13] = [
    &["verify", "a.tfrecord"],
    &["verify", "a.tfrecord", "--json"],
    &["show", "a.tfrecord"],
    &["show", "a.tfrecord:1"],
    &["show", "photos/cat/1.png"],
    &["index", "a.tfrecord"],
    &["explain"],
    &["explain", "FL203"],
    &["doctor", "EMFILE"],
    &["doctor", "--recorded", "good.txt"],
    &["convert", "photos", "shards", "--to", "tar", "--force"],
    &["convert", "a.tfrecord", "back", "--to", "folder", "--force"],
    &["--help"],
];

fn with_data() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("a.tfrecord", &examples(0..3));
    sandbox.write("photos/cat/1.png", &picture(1));
    sandbox.write("good.txt", recording("kubernetes_guaranteed").unwrap().as_bytes());
    sandbox
}

#[test]
#[cfg(target_os = "linux")]
fn a_result_that_cannot_be_written_is_an_error() {
    let sandbox = with_data();
    for arguments in WITH_A_RESULT {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = sandbox.command(arguments).stdout(full).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        let said =
            "error: writing the result to stdout: no space left on device (os error 28)\nhint: ";
        assert_eq!(stderr.matches(said).count(), 1, "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let sandbox = with_data();
    for arguments in WITH_A_RESULT {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = sandbox.command(arguments).stdout(writer).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("error"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn help_teaches_by_example() {
    let output = feedline(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(text(&output.stdout));
    assert!(text(&feedline(&["--version"]).stdout).starts_with("feedline 0."));
}

#[test]
fn an_error_is_explained_by_its_code_and_by_its_name() {
    let by_code = feedline(&["explain", "FL204"]);
    assert_eq!(by_code.status.code(), Some(0));
    assert!(by_code.stderr.is_empty(), "{}", text(&by_code.stderr));
    assert_eq!(text(&by_code.stdout), include_str!("../../../../docs/errors/FL204.md"));
    for typed in ["fl204", "TooLargeError", "toolargeerror", "feedline.errors.TooLargeError"] {
        assert_eq!(feedline(&["explain", typed]).stdout, by_code.stdout, "{typed}");
    }
}

#[test]
fn all_errors_are_listed_one_per_line() {
    let output = feedline(&["explain"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(text(&output.stdout));
    assert!(text(&output.stderr).contains("feedline explain CODE"), "{}", text(&output.stderr));
}

#[test]
fn an_unknown_error_is_refused_with_the_most_similar_ones() {
    let output = feedline(&["explain", "FL219"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    insta::assert_snapshot!(text(&output.stderr));
}

#[test]
fn the_help_of_explain_teaches_by_example() {
    insta::assert_snapshot!(text(&feedline(&["explain", "--help"]).stdout));
}
