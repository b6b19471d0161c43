//! Expands what users write to files: paths, patterns such as `data/*.tar`, and braces such as `shard-{000..009}.tar`.

use std::path::{Path, PathBuf};

use super::files::matching;
use crate::error::{Error, Kind, Result};

/// The most paths that the braces of one path may expand to.
const MOST: usize = 1 << 20;
/// Prefixes of paths that are not on this machine.
const REMOTE: [&str; 9] =
    ["s3://", "gs://", "gcs://", "az://", "abfs://", "hdfs://", "hf://", "http://", "https://"];

/// The files in the order in which they are written; those of one pattern sorted.
pub fn expand(written: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::with_capacity(written.len());
    for path in written {
        match path.to_str() {
            // A name that is not UTF-8 is a path and never a pattern.
            None => found.push(path.clone()),
            Some(text) => expand_one(text, written.len() == 1, &mut found)?,
        }
    }
    Ok(found)
}

/// Refuses paths that are not on this machine.
pub fn check_local(text: &str) -> Result<()> {
    let remote = REMOTE.iter().find(|prefix| {
        text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    });
    if let Some(prefix) = remote {
        let scheme = prefix.trim_end_matches("://");
        let message = format!("{text:?}: reading from {scheme} is not supported yet");
        return Err(Error::new(Kind::InvalidSource, message)
            .with_hint("copy the files to this machine first, or mount the storage as a folder"));
    }
    if text.starts_with("pipe:") {
        let message = format!("{text:?}: reading from a command is not supported yet");
        return Err(Error::new(Kind::InvalidSource, message)
            .with_hint("write the output of the command to a file first"));
    }
    Ok(())
}

fn expand_one(text: &str, is_alone: bool, found: &mut Vec<PathBuf>) -> Result<()> {
    let is_special = |character| matches!(character, '*' | '?' | '[' | '{' | ':');
    if !text.contains(is_special) {
        found.push(text.into());
        return Ok(());
    }
    let exists = |text: &str| Path::new(text).symlink_metadata().is_ok();
    if exists(text) {
        found.push(text.into());
        return Ok(());
    }
    check_local(text)?;
    let mut paths = Vec::new();
    braces(text, &mut paths)?;
    for path in paths {
        let is_pattern = path.contains(['*', '?', '[']) && !exists(&path);
        if !is_pattern {
            found.push(path.into());
            continue;
        }
        match matching(&path) {
            Ok(matched) => found.extend(matched),
            // In a list, a missing file with a bracket in its name is a missing file like any other.
            Err(_) if !is_alone && !path.contains(['*', '?']) => found.push(path.into()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Expands the first braces and continues with the results, as shells do.
fn braces(text: &str, to: &mut Vec<String>) -> Result<()> {
    let mut from = 0;
    while let Some(open) = text[from..].find('{').map(|at| from + at) {
        let Some(close) = closing(text, open) else { break };
        let choices = choices(&text[open + 1..close]);
        if choices.is_empty() {
            // These braces have no meaning: they are part of the name.
            from = open + 1;
            continue;
        }
        for choice in choices {
            braces(&format!("{}{choice}{}", &text[..open], &text[close + 1..]), to)?;
        }
        return Ok(());
    }
    if to.len() == MOST {
        let message = format!("the braces expand to more than {MOST} paths");
        return Err(Error::new(Kind::InvalidSource, message).with_hint("use a pattern with *"));
    }
    to.push(text.to_owned());
    Ok(())
}

/// The brace that closes the one at `open`.
fn closing(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, character) in text[open..].char_indices() {
        match character {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(open + at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The choices between braces: `000..009`, or `a,b`; empty if it is neither.
fn choices(inside: &str) -> Vec<String> {
    if let Some((first, last)) = inside.split_once("..")
        && let Some(range) = range(first, last)
    {
        return range;
    }
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, character) in inside.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(inside[start..at].to_owned());
                start = at + 1;
            }
            _ => {}
        }
    }
    if parts.is_empty() {
        return parts;
    }
    parts.push(inside[start..].to_owned());
    parts
}

/// Numbers with the given width, ascending or descending.
fn range(first: &str, last: &str) -> Option<Vec<String>> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(first) || !is_number(last) {
        return None;
    }
    let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let is_padded = |text: &str| text.len() > 1 && text.starts_with('0');
    let width = match is_padded(first) || is_padded(last) {
        true => first.len().max(last.len()),
        false => 0,
    };
    if from.abs_diff(to) >= 2 * MOST as u64 {
        return Some(vec![String::new(); MOST + 1]);
    }
    let written = |number: u64| format!("{number:0width$}");
    Some(match from <= to {
        true => (from..=to).map(written).collect(),
        false => (to..=from).rev().map(written).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;

    fn written_out(text: &str) -> Vec<String> {
        let mut paths = Vec::new();
        braces(text, &mut paths).unwrap();
        paths
    }

    #[test]
    fn braces_expand_as_in_a_shell() {
        for (text, paths) in [
            ("a-{008..011}.tar", &["a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"][..]),
            ("{8..11}", &["8", "9", "10", "11"]),
            ("{2..0}", &["2", "1", "0"]),
            ("{a,b}/{0..1}.tar", &["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]),
            ("x{a,{b,c}d,}y", &["xay", "xbdy", "xcdy", "xy"]),
            ("{train,val}-*.tar", &["train-*.tar", "val-*.tar"]),
            ("{a}-{b..c}-{", &["{a}-{b..c}-{"]),
            ("{}{0..1}", &["{}0", "{}1"]),
        ] {
            assert_eq!(written_out(text), paths, "{text}");
        }
        assert!(braces("{0..9}{0000000..9999999}", &mut Vec::new()).is_err());
    }

    #[test]
    fn paths_patterns_and_braces_expand_to_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b-0.tar", "b-1.tar", "a-0.tar", "odd[1].tar", "{0..1}.tar"] {
            file::write(&folder.path().join(name), b"").unwrap();
        }
        let found = |names: &[&str]| -> Vec<String> {
            let written: Vec<_> = names.iter().map(|name| folder.path().join(name)).collect();
            let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
            expand(&written).unwrap().into_iter().map(name).collect()
        };
        assert_eq!(found(&["b-*.tar", "a-*.tar"]), ["b-0.tar", "b-1.tar", "a-0.tar"]);
        assert_eq!(found(&["b-{1..2}.tar", "a-0.tar"]), ["b-1.tar", "b-2.tar", "a-0.tar"]);
        assert_eq!(found(&["odd[1].tar"]), ["odd[1].tar"]);
        assert_eq!(found(&["{0..1}.tar"]), ["{0..1}.tar"], "an existing file takes precedence");
        assert_eq!(found(&["gone[1].tar", "a-0.tar"]), ["gone[1].tar", "a-0.tar"]);
        let pattern = [folder.path().join("none-*.tar")];
        assert!(expand(&pattern).unwrap_err().message().contains("no file matches"));
    }

    #[test]
    fn remote_paths_are_refused() {
        for (text, what) in [
            ("s3://bucket/a-{0..9}.tar", "reading from s3 is not supported yet"),
            ("GS://bucket/a.tar", "reading from gs is not supported yet"),
            ("hf://datasets/a", "reading from hf is not supported yet"),
            ("https://example.com/a.tar", "reading from https is not supported yet"),
            ("pipe:aws s3 cp s3://a -", "reading from a command is not supported yet"),
        ] {
            let error = expand(&[text.into()]).unwrap_err();
            assert_eq!(error.message(), format!("{text:?}: {what}"));
            assert!(!error.hint().is_empty());
        }
    }
}
