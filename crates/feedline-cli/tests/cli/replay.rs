//! `feedline replay` as a subprocess.

use super::data::{Sandbox, examples, picture};

/// A bad image, a good one, a good record, one that does not exist, and a fault of the user's code.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("good.jpg", &picture(1));
    let whole = picture(2);
    sandbox.write("bad.jpg", &whole[..whole.len() / 2]);
    sandbox.write("a.tfrecord", &examples(0..3));
    let lines = [
        r#"{"index": 3, "kind": "CorruptImageError", "epoch": 0, "path": "good.jpg", "stage": "worker"}"#,
        r#"{"index": 4, "kind": "CorruptImageError", "epoch": 1, "path": "bad.jpg", "stage": "worker"}"#,
        r#"{"index": 5, "kind": "CorruptRecordError", "path": "a.tfrecord", "record": 1, "stage": "fetch"}"#,
        r#"{"index": 6, "kind": "CorruptRecordError", "path": "a.tfrecord", "record": 7, "stage": "fetch"}"#,
        r#"{"index": 7, "kind": "KeyError", "path": "good.jpg", "stage": "worker", "traceback": "..."}"#,
        r#"{"index": 8, "kind": "ReadError", "path": "missing.jpg", "stage": "fetch"}"#,
    ];
    sandbox.write("bad.jsonl", format!("{}\n", lines.join("\n")).as_bytes());
    sandbox
}

#[test]
fn files_and_records_are_read_again() {
    let sandbox = sandbox();
    let answer = sandbox.run(&["replay", "bad.jsonl"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    insta::assert_snapshot!(format!("{}---\n{}", answer.stdout, answer.stderr));
    let good = sandbox.run(&["replay", "bad.jsonl", "--index", "3"]);
    assert_eq!(good.code, Some(0), "{}", good.stdout);
    let unknown = sandbox.run(&["replay", "bad.jsonl", "--index", "7"]);
    assert_eq!(unknown.code, Some(2), "{}", unknown.stdout);
}

#[test]
fn the_help_of_replay_teaches_by_example() {
    let answer = sandbox().run(&["replay", "--help"]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    insta::assert_snapshot!(answer.stdout);
}

#[test]
fn mistakes_are_refused_with_the_value_that_was_given() {
    let sandbox = sandbox();
    for (arguments, said) in [
        (vec!["replay", "none.jsonl"], "none.jsonl"),
        (vec!["replay", "bad.jsonl", "--index", "99"], "names no sample with index 99"),
        (vec!["replay", "bad.jsonl", "--loader", "train"], "MODULE:FUNCTION, got \"train\""),
        (vec!["replay", "bad.jsonl", "--pdb"], "--loader"),
        (vec!["replay", "good.jpg"], "good.jpg"),
    ] {
        let answer = sandbox.run(&arguments);
        assert_eq!(answer.code, Some(2), "{arguments:?}: {}", answer.stdout);
        assert!(answer.stderr.contains(said), "{arguments:?}: {}", answer.stderr);
    }
}
