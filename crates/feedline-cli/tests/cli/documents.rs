//! docs/commands.md shows what the commands print.

use super::data::Sandbox;
use feedline_core::testing::machines::recording;

/// Removes what depends on the decoder or on the compression: causes, numbers, sizes.
fn neutral(text: &str) -> Vec<String> {
    let is_size = |line: &str| line.contains(" B to ") || line.contains("iB to ");
    let is_kept = |line: &&str| !line.trim().is_empty() && !is_size(line) && !line.ends_with("...");
    let neutral = |line: &str| {
        let parts: Vec<_> = line.split(": ").collect();
        let has_cause = line.starts_with("bad ") || line.contains(": still bad: ");
        let line = if has_cause { parts[..2].join(": ") } else { line.to_owned() };
        let is_digit = |character: char| character.is_ascii_digit() || character == '.';
        let letters = line.split(is_digit).filter(|part| !part.is_empty()).collect::<Vec<_>>();
        let words = letters.join("0").replace(['K', 'M'], "").replace("iB", "B");
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    text.lines().filter(is_kept).map(neutral).collect()
}

#[test]
fn the_first_page_shows_what_the_doctor_says_of_a_container() {
    let page = include_str!("../../../../README.md");
    let sandbox = Sandbox::new();
    sandbox.write("machine.txt", recording("docker_v1").unwrap().as_bytes());
    let mut command = sandbox.command(&["doctor", "--recorded", "machine.txt"]);
    let output = command.env_clear().env("OMP_NUM_THREADS", "1").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains(&format!("$ feedline doctor\n{said}```")), "{said}");
}

#[test]
fn the_page_of_commands_shows_what_they_print() {
    let page = include_str!("../../../../docs/commands.md");
    let sandbox = Sandbox::new();
    sandbox.run(&["demo", "--samples", "60", "--keep", "photos"]);
    let recorded = include_str!("../../../../tests/golden/states/rank-6.json");
    let recorded: serde_json::Value = serde_json::from_str(recorded).unwrap();
    sandbox.write("state.json", recorded["state"].to_string().as_bytes());
    let mut shown = 0;
    for block in page.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        for command in block.split("$ feedline ").skip(1) {
            let (command, expected) = command.split_once('\n').unwrap();
            // Every other part is between quotes.
            let arguments: Vec<_> = command
                .split('"')
                .enumerate()
                .flat_map(|(at, part)| match at % 2 {
                    0 => part.split_whitespace().collect(),
                    _ => vec![part],
                })
                .collect();
            let answer = sandbox.run(&arguments);
            assert_ne!(answer.code, Some(2), "{command}: {}", answer.stderr);
            assert_eq!(neutral(expected), neutral(&answer.stdout), "{command}\n{}", answer.stdout);
            shown += 1;
        }
    }
    assert_eq!(shown, 9);
}
