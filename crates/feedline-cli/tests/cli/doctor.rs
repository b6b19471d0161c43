//! `feedline doctor` as a subprocess.

use super::data::{Sandbox, examples, picture, samples, text};
use feedline_core::testing::machines::recording;
use std::process::{Command, Stdio};

/// Without variables of the environment in which the tests run.
fn doctor(sandbox: &Sandbox, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = sandbox.command(&[&["doctor"], arguments].concat());
    let output = command.env_clear().env("OMP_NUM_THREADS", "1").output().unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn json(said: &str) -> serde_json::Value {
    serde_json::from_str(said).unwrap()
}

fn names(said: &str) -> Vec<String> {
    let findings = json(said)["findings"].as_array().unwrap().clone();
    findings.iter().map(|finding| finding["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_help_of_doctor_teaches_by_example() {
    insta::assert_snapshot!(Sandbox::new().run(&["doctor", "--help"]).stdout);
}

#[test]
fn the_exit_code_says_whether_something_is_dangerous() {
    let sandbox = Sandbox::new();
    for (name, code) in [("kubernetes_guaranteed", 0), ("docker_v1", 1)] {
        sandbox.write("machine.txt", recording(name).unwrap().as_bytes());
        let (exit, said, _) = doctor(&sandbox, &["--recorded", "machine.txt"]);
        assert_eq!(exit, Some(code), "{said}");
        let (exit, said, _) = doctor(&sandbox, &["--recorded", "machine.txt", "--json"]);
        assert_eq!((exit, json(&said)["is_dangerous"].as_bool()), (Some(code), Some(code == 1)));
    }
}

#[test]
fn this_machine_can_be_recorded_and_examined_elsewhere() {
    let sandbox = Sandbox::new();
    let (code, recorded, _) = doctor(&sandbox, &["--record"]);
    assert_eq!(code, Some(0));
    assert!(recorded.contains("== /proc/self/limits\n"), "{recorded}");
    assert!(!recorded.contains("== /proc/1/"), "other processes are private");
    sandbox.write("machine.txt", recorded.as_bytes());
    let (_, here, _) = doctor(&sandbox, &["--json"]);
    let (_, there, _) = doctor(&sandbox, &["--json", "--recorded", "machine.txt"]);
    let limit = |said: &str| json(said)["details"]["machine"]["open_files"]["limit"].clone();
    assert_eq!(limit(&here), limit(&there));
    assert!(limit(&here)["soft"].is_number());
}

#[test]
fn limits_of_a_shell_are_found() {
    let program = env!("CARGO_BIN_EXE_feedline");
    let script = format!("ulimit -S -n 300; ulimit -c 0; exec {program} doctor --json");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(json(&said)["details"]["machine"]["open_files"]["limit"]["soft"], 300);
    let low = ["soft_limit_of_open_files", "few_open_files"];
    assert!(names(&said).iter().any(|name| low.contains(&name.as_str())), "{said}");
}

#[test]
fn a_message_is_explained_with_and_without_quotes() {
    let sandbox = Sandbox::new();
    let (code, quoted, _) = doctor(&sandbox, &["OSError: [Errno 24] Too many open files: 'a'"]);
    assert_eq!(code, Some(0));
    assert!(quoted.starts_with("EMFILE (24): Too many open files\nmeans "), "{quoted}");
    let (_, plain, _) = doctor(&sandbox, &["Too", "many", "open", "files"]);
    assert_eq!(plain, quoted);
    let (code, said, _) = doctor(&sandbox, &["--json", "EAGAIN"]);
    assert_eq!((code, json(&said)["subject"].as_str()), (Some(0), Some("message")));
}

#[test]
fn what_cannot_be_examined_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("notes/a.txt", b"nothing");
    for (asked, said) in [
        (vec!["some words of no meaning"], "is neither a path nor a message"),
        (vec!["nowhere"], "\"nowhere\" does not exist\nhint: "),
        (vec!["notes"], "there is no data at these paths\nhint: "),
        (vec!["--pid", "4194999"], "there is no process 4194999\nhint: "),
        (vec!["--recorded", "nowhere.txt"], "hint: make such a file with feedline doctor --record"),
        (vec!["--pid", "1", "EMFILE"], "cannot be used with"),
    ] {
        let (code, stdout, stderr) = doctor(&sandbox, &asked);
        assert_eq!(code, Some(2), "{asked:?}: {stderr}");
        assert!(stderr.contains(said), "{asked:?}: {stderr}");
        assert_eq!(stdout, "");
    }
}

#[test]
fn a_data_set_of_any_kind_is_examined() {
    let sandbox = Sandbox::new();
    for number in 0..3 {
        sandbox.write(&format!("photos/cat/{number}.png"), &picture(number));
    }
    sandbox.write("photos/cat/bad.png", b"no picture");
    sandbox.write("records/a.tfrecord", &examples(0..5));
    sandbox.write("records/b.tar", &samples(0..5));
    sandbox.write("lines/a.jsonl", b"{\"a\": 1}\n{\"a\": 2}\n");
    for (paths, parts, measured, bad) in [
        (vec!["photos"], "4 images", 3, 1),
        (vec!["records"], "1 TFRecord shard", 10, 0),
        (vec!["records/a.tfrecord", "lines"], "1 JSON lines shard", 7, 0),
        (vec!["records/*.tar"], "1 tar shard", 5, 0),
    ] {
        let arguments: Vec<_> = paths.iter().copied().chain(["--json"]).collect();
        let (code, said, stderr) = doctor(&sandbox, &arguments);
        assert_ne!(code, Some(2), "{paths:?}: {stderr}");
        let data = &json(&said)["details"]["data"];
        assert!(data["parts"].to_string().contains(parts), "{paths:?}: {data}");
        assert_eq!(data["measured"].as_array().unwrap().len(), measured, "{paths:?}: {data}");
        assert_eq!(data["bad"], bad, "{paths:?}: {data}");
        assert_eq!(names(&said).contains(&"bad_samples".to_owned()), bad > 0);
    }
    let (_, said, _) = doctor(&sandbox, &["photos"]);
    assert!(said.contains("recommended") && said.contains("12 x 8 pixels"), "{said}");
    assert!(said.lines().count() <= 24, "{said}");
}

#[test]
fn a_process_and_its_children_are_examined() {
    let sandbox = Sandbox::new();
    // A shell with a child that waits until its input ends.
    let mut shell = Command::new("sh")
        .args(["-c", "exec 3<&0; cat <&3 & echo ready; wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 6];
    std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut first).unwrap();
    let pid = shell.id().to_string();
    let (code, said, stderr) = doctor(&sandbox, &["--pid", &pid, "--json"]);
    assert_ne!(code, Some(2), "{stderr}");
    let details = &json(&said)["details"];
    assert_eq!(details["process"]["name"], "sh");
    assert_eq!(details["children"].as_array().unwrap().len(), 1, "{details}");
    assert!(details["uses"].as_array().unwrap().iter().any(|one| one["name"] == "open files"));
    let (_, said, _) = doctor(&sandbox, &["--pid", &pid]);
    assert!(said.contains(&format!("{pid} sh")), "{said}");
    drop(shell.stdin.take());
    shell.wait().unwrap();
}
