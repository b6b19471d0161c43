//! The direction of dependencies, as a test: a module uses only layers below it, stages never name one another, and
//! pure code touches neither files nor threads nor the clock.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the test reads the sources and fails by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// Modules from the bottom up. Modules of a layer may use each other, except stages.
const LAYERS: [&[&str]; 5] = [
    &["sys"],
    &[
        "sample",
        "budget",
        "bytes",
        "fault",
        "event",
        "metrics",
        "fingerprint",
        "run_state",
        "engine",
        "error",
        "escape",
        "random",
    ],
    &["decode", "format"],
    &["source", "plan", "fetch", "transform", "worker", "collate", "deliver"],
    &["config", "loader", "testing"],
];
const STAGES: usize = 3;

/// What pure code must not name, and which code must be pure.
const IMPURE: [&str; 6] =
    ["std::fs", "std::thread", "std::time", "sys::file", "sys::thread", "sys::clock"];
const PURE: [&str; 6] = ["decode", "format", "plan", "fault", "engine", "config"];

fn layer(module: &str) -> usize {
    LAYERS
        .iter()
        .position(|layer| layer.contains(&module))
        .unwrap_or_else(|| panic!("module {module} has no layer: add it to tests/layers.rs"))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a file without comments and tests, which may use anything.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules of this crate that some code names.
fn named(code: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.chars()
            .take_while(|character| character.is_alphanumeric() || *character == '_')
            .collect()
    };
    code.match_indices("crate::")
        .map(|(at, found)| &code[at + found.len()..])
        .flat_map(|rest| match rest.strip_prefix('{') {
            None => vec![word(rest)],
            Some(list) => {
                let list = list.split('}').next().unwrap_or_default();
                list.split(',').map(|part| word(part.trim())).collect()
            }
        })
        .filter(|module| !module.is_empty())
        .collect()
}

/// The violations in the code of a module.
fn violations(module: &str, code: &str) -> Vec<String> {
    let own = layer(module);
    let mut violations = Vec::new();
    for other in named(code) {
        let theirs = layer(&other);
        if theirs > own || (own == STAGES && theirs == STAGES && other != module) {
            violations.push(format!("{module} uses {other}"));
        }
    }
    if PURE.contains(&module) {
        violations
            .extend(impurities(code).map(|word| format!("{module} is pure, but names {word}")));
    }
    violations
}

fn impurities(code: &str) -> impl Iterator<Item = &'static str> {
    IMPURE.into_iter().filter(move |word| code.contains(word))
}

#[test]
fn every_module_uses_only_what_is_below_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for path in files(&source) {
        let inside = path.strip_prefix(&source).unwrap();
        let first = inside.iter().next().unwrap().to_string_lossy();
        let module = first.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        seen += 1;
        for violation in violations(module, &code(&fs::read_to_string(&path).unwrap())) {
            wrong.push(format!("{}: {violation}", inside.display()));
        }
    }
    assert!(seen > 30, "the sources were not found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_kernels_are_pure() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../feedline-kernels/src");
    let files = files(&source);
    assert!(files.len() > 5, "the sources were not found");
    for path in files {
        let code = code(&fs::read_to_string(&path).unwrap());
        assert_eq!(impurities(&code).collect::<Vec<_>>(), [""; 0], "{}", path.display());
    }
}

#[test]
fn the_check_itself_finds_violations() {
    let violates = |module, code: &str| !violations(module, code).is_empty();
    assert!(violates("plan", "use crate::source::Source;"));
    assert!(violates("decode", "use crate::fetch::Reader;"));
    assert!(violates("sys", "let x = crate::{error::Error, sample};"));
    assert!(violates("plan", "use std::time::Instant;"));
    assert!(!violates("loader", "use crate::{source, plan, sys};"));
    assert!(!violates("plan", "use crate::plan::Shard; use crate::error::Kind;"));
}
