//! `feedline state` as a subprocess.

use super::data::{Sandbox, examples, picture};
use feedline_core::config::Settings;
use feedline_core::format::Container;
use feedline_core::loader::{Loader, given};
use feedline_core::source::Source;
use feedline_core::source::folder::Folder;
use feedline_core::source::index::IndexStorage;
use feedline_core::source::records::Records;
use std::sync::Arc;

fn loader(source: Arc<dyn Source>, calls: &str) -> Loader {
    let settings = Settings::parse(calls, &given(&*source)).unwrap();
    Loader::new(source, settings).unwrap()
}

fn records(sandbox: &Sandbox) -> Arc<dyn Source> {
    let container = Container::Tfrecord { check: true };
    let paths = vec![sandbox.path("a.tfrecord")];
    let records = Records::new(paths, container, &IndexStorage::Nowhere, None, &mut |_| true);
    Arc::new(records.unwrap())
}

const CALLS: &str = r#"[{"call": "shuffle", "seed": 7}, {"call": "shard", "rank": 1, "world": 2},
    {"call": "batch", "size": 2}]"#;

/// The state of rank 1 of 2 after a batch of 10 records.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("a.tfrecord", &examples(0..10));
    let loader = loader(records(&sandbox), CALLS);
    loader.epoch().unwrap().next().unwrap().unwrap();
    sandbox.write("s.json", loader.state().to_json().as_bytes());
    sandbox
}

#[test]
fn a_state_is_shown_in_plain_english() {
    let answer = sandbox().run(&["state", "s.json"]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    insta::assert_snapshot!(answer.stdout);
}

#[test]
fn a_state_is_compared_with_its_data_set() {
    let sandbox = sandbox();
    let same = sandbox.run(&["state", "s.json", "--against", "a.tfrecord"]);
    assert_eq!(same.code, Some(0), "{}{}", same.stdout, same.stderr);
    assert!(same.stdout.ends_with("same       as \"a.tfrecord\"\n"), "{}", same.stdout);
    sandbox.write("b.tfrecord", &examples(0..9));
    let other = sandbox.run(&["state", "s.json", "--against", "b.tfrecord"]);
    assert_eq!(other.code, Some(1), "{}{}", other.stdout, other.stderr);
    let line = "differs    number of samples: 10 in the state, 9 in \"b.tfrecord\"\n";
    assert!(other.stdout.ends_with(line), "{}", other.stdout);
    sandbox.write("photos/cat/a.jpg", &picture(1));
    let folder = sandbox.run(&["state", "s.json", "--against", "photos"]);
    assert_eq!(folder.code, Some(2), "{}", folder.stdout);
    assert!(folder.stderr.contains("no shards at \"photos\""), "{}", folder.stderr);
}

#[test]
fn an_image_folder_is_compared_too() {
    let sandbox = Sandbox::new();
    sandbox.write("photos/cat/a.jpg", &picture(1));
    sandbox.write("photos/cat/b.jpg", &picture(2));
    let source = Arc::new(Folder::images(&sandbox.path("photos")).unwrap());
    let calls =
        r#"[{"call": "decode"}, {"call": "resize", "size": 8}, {"call": "batch", "size": 1}]"#;
    sandbox.write("s.json", loader(source, calls).state().to_json().as_bytes());
    let whole = sandbox.path("photos");
    let same = sandbox.run(&["state", "s.json", "--against", whole.to_str().unwrap()]);
    assert_eq!(same.code, Some(0), "{}{}", same.stdout, same.stderr);
    std::fs::rename(sandbox.path("photos/cat/a.jpg"), sandbox.path("photos/cat/c.jpg")).unwrap();
    let other = sandbox.run(&["state", "s.json", "--against", whole.to_str().unwrap()]);
    assert_eq!(other.code, Some(1), "{}{}", other.stdout, other.stderr);
    assert!(other.stdout.contains("differs    files or arrays (fingerprint):"), "{}", other.stdout);
}

#[test]
fn two_states_are_compared_setting_by_setting() {
    let sandbox = sandbox();
    let calls = CALLS.replace("\"seed\": 7", "\"seed\": 8").replace("\"size\": 2", "\"size\": 5");
    let state = loader(records(&sandbox), &calls).state();
    sandbox.write("other.json", format!("[{}]", state.to_json()).as_bytes());
    let answer = sandbox.run(&["state", "s.json", "--against", "other.json", "--json"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stderr);
    let shown: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap();
    let names: Vec<_> = shown["states"][0]["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|difference| difference["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["batch", "order", "seed"]);
    assert_eq!(shown["states"][0]["batches"], 1);
    let same = sandbox.run(&["state", "s.json", "--against", "s.json"]);
    assert_eq!(same.code, Some(0), "{}", same.stdout);
}

#[test]
fn what_is_no_state_is_refused() {
    let sandbox = sandbox();
    let good = String::from_utf8(sandbox.read("s.json")).unwrap();
    for (text, said) in [
        (String::new(), "not a state of a loader"),
        ("[]".to_owned(), "empty list of states"),
        (good[..good.len() / 2].to_owned(), "not a state of a loader"),
        (good.replace("\"epoch\":0", "\"epoch\":1"), "checksum mismatch"),
        (good.replace("\"version\":6", "\"version\":9"), "this Feedline reads versions 5 to 6"),
    ] {
        sandbox.write("bad.json", text.as_bytes());
        let answer = sandbox.run(&["state", "bad.json"]);
        assert_eq!(answer.code, Some(2), "{}", answer.stdout);
        assert!(answer.stderr.contains(said), "{}", answer.stderr);
        assert!(answer.stdout.is_empty(), "{}", answer.stdout);
    }
    let missing = sandbox.run(&["state", "none.json"]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("reading the state \"none.json\""), "{}", missing.stderr);
}

#[test]
fn the_help_of_state_teaches_by_example() {
    let answer = Sandbox::new().run(&["state", "--help"]);
    insta::assert_snapshot!(answer.stdout);
}

#[test]
fn the_state_of_a_torch_loader_is_shown_and_compared() {
    let sandbox = Sandbox::new();
    let state = r#"{"format": "feedline.torch.DataLoader", "version": 1, "epoch": 2, "batches": 7, "is_begun": true,
        "position": [0], "random": {}, "checksum": 5, "settings": {"batch_size": 4, "rank": 1, "num_replicas": 3}}"#;
    sandbox.write("t.json", state.as_bytes());
    let answer = sandbox.run(&["state", "t.json"]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    insta::assert_snapshot!(answer.stdout);
    sandbox.write("u.json", state.replace("\"batch_size\": 4", "\"batch_size\": 8").as_bytes());
    let other = sandbox.run(&["state", "t.json", "--against", "u.json"]);
    assert_eq!(other.code, Some(1), "{}", other.stderr);
    let line = "differs    batch_size: 4 in the state, 8 in \"u.json\"\n";
    assert!(other.stdout.ends_with(line), "{}", other.stdout);
    sandbox.write("n.json", b"{}");
    let none = sandbox.run(&["state", "t.json", "--against", "n.json"]);
    assert_eq!(none.code, Some(2), "{}", none.stdout);
}
