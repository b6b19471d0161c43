//! `feedline explain`: what a kind of error means, how to see it, and what to do.
//!
//! The pages are those of docs/errors. They are compiled into the program, because users who installed a package have
//! no other copy, and may have no network.

use clap::Args;
use feedline_core::error::{self, Kind};

use crate::report::{print_note, print_result};

/// Warnings that users see in a terminal, and the kinds that explain them.
const WARNINGS: [(&str, Kind); 5] = [
    ("WorkerDiedWarning", Kind::WorkerDied),
    ("WorkerStalledWarning", Kind::DeadlineExceeded),
    ("ResourceShortageWarning", Kind::WorkerNotStarted),
    ("SampleSkippedWarning", Kind::TooManyFaults),
    ("SourceUnavailableWarning", Kind::SourceUnavailable),
];
/// How many similar kinds are suggested for an unknown one.
const NEAREST: usize = 3;

/// Explains an error: what it means, how to see it, what to do.
///
/// Messages name the page: "see: feedline explain FL203". Without a code, all errors are listed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    feedline explain                    lists all errors\n  \
    feedline explain FL203              by its code\n  \
    feedline explain CorruptImageError  by its name, in any case")]
pub(crate) struct Explain {
    /// The code or the name of an error, such as FL203 or CorruptImageError
    #[arg(value_name = "CODE|NAME", value_parser = parse_kind)]
    kind: Option<Kind>,
}

impl Explain {
    pub(crate) fn run(&self) -> error::Result<i32> {
        match self.kind {
            Some(kind) => print_result(page(kind).trim_end())?,
            None => {
                print_result(list(by_code()))?;
                print_note("\nfeedline explain CODE shows a page");
            }
        }
        Ok(0)
    }
}

macro_rules! pages {
    ($($kind:ident: $code:literal,)*) => {
        /// The page of a kind. A kind without a page does not compile.
        fn page(kind: Kind) -> &'static str {
            match kind {
                $(Kind::$kind => {
                    include_str!(concat!("../../../docs/errors/", $code, ".md"))
                })*
            }
        }
    };
}

pages! {
    InvalidArgument: "FL101",
    InvalidSource: "FL102",
    StateMismatch: "FL103",
    NotPicklable: "FL104",
    SourceUnavailable: "FL105",
    Read: "FL201",
    UnknownFormat: "FL202",
    CorruptImage: "FL203",
    TooLarge: "FL204",
    TooSmall: "FL205",
    ShapeMismatch: "FL206",
    CodecPanic: "FL207",
    DeadlineExceeded: "FL208",
    TooManyFaults: "FL209",
    NoReplacement: "FL210",
    CorruptRecord: "FL211",
    InvalidField: "FL212",
    UnsafeFormat: "FL213",
    TooManyOpenFiles: "FL301",
    OutOfMemory: "FL302",
    OutOfThreads: "FL303",
    DescriptorsClosed: "FL304",
    WorkerDied: "FL401",
    TooManyDeaths: "FL402",
    WorkerNotStarted: "FL403",
    UsedAfterFork: "FL501",
    Closed: "FL502",
    Internal: "FL503",
}

/// The line below the title of a page.
fn summary(kind: Kind) -> &'static str {
    page(kind).lines().nth(2).unwrap_or_default()
}

fn by_code() -> Vec<Kind> {
    let mut kinds = Kind::ALL.to_vec();
    kinds.sort_unstable_by_key(|kind| kind.code());
    kinds
}

/// One line per kind.
fn list(kinds: Vec<Kind>) -> String {
    let width = kinds.iter().map(|kind| kind.name().len()).max().unwrap_or_default();
    let line = |kind: Kind| format!("{}  {:<width$}  {}", kind.code(), kind.name(), summary(kind));
    kinds.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Finds a kind by code or name. The name may come from a traceback, with its module.
fn parse_kind(typed: &str) -> Result<Kind, String> {
    let name = typed.rsplit('.').next().unwrap_or(typed);
    let is_asked = |other: &str| other.eq_ignore_ascii_case(name);
    let kind =
        Kind::ALL.iter().copied().find(|kind| is_asked(kind.code()) || is_asked(kind.name()));
    let warning = || WARNINGS.iter().find(|(warning, _)| is_asked(warning)).map(|(_, kind)| *kind);
    kind.or_else(warning).ok_or_else(|| {
        let nearest = list(nearest(name));
        format!("no error has this code or name; the nearest are\n{nearest}\nhint: see all with feedline explain")
    })
}

/// The kinds whose code or name is most similar.
fn nearest(name: &str) -> Vec<Kind> {
    let far = |other: &str| distance(&name.to_lowercase(), &other.to_lowercase());
    // Drop the common suffix: a user who types part of a name does not type it.
    let short = |kind: Kind| kind.name().trim_end_matches("Error");
    let mut kinds = by_code();
    kinds.sort_by_cached_key(|kind| far(kind.code()).min(far(kind.name())).min(far(short(*kind))));
    kinds.truncate(NEAREST);
    kinds
}

/// Levenshtein distance: how many letters must be inserted, deleted or changed.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    // Distances between the letters of `one` so far and each prefix of `other`.
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (before, character) in one.chars().enumerate() {
        let mut diagonal = before;
        row[0] = before + 1;
        for (at, wanted) in other.iter().enumerate() {
            let changed = diagonal + usize::from(character != *wanted);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedline_core::sys::file;
    use std::path::{Path, PathBuf};

    const HEADINGS: [&str; 3] = ["## What it means", "## How to see it", "## What to do"];

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors")
    }

    #[test]
    fn every_page_has_the_title_of_its_kind_and_the_three_headings() {
        for kind in Kind::ALL {
            let lines: Vec<_> = page(*kind).lines().collect();
            let title = format!("# {} {}", kind.code(), kind.name());
            assert_eq!(lines[..2], [title.as_str(), ""]);
            assert!(lines[2].ends_with('.') && lines[3].is_empty(), "{title}: {:?}", lines[2]);
            let headings: Vec<_> = lines.iter().filter(|line| line.starts_with("## ")).collect();
            assert!(headings.iter().copied().eq(&HEADINGS), "{title}: {headings:?}");
            assert!((15..=35).contains(&lines.len()), "{title} has {} lines", lines.len());
        }
    }

    #[test]
    fn every_page_shows_the_message_that_refers_to_it() {
        for kind in Kind::ALL {
            let shown = format!("\n```text\nfeedline.errors.{}: ", kind.name());
            assert!(page(*kind).contains(&shown), "{kind:?}");
            let leads = format!("\nsee: feedline explain {}\n```\n", kind.code());
            assert!(page(*kind).contains(&leads), "{kind:?}");
        }
    }

    #[test]
    fn every_file_in_the_folder_is_the_page_of_a_kind_or_the_index() {
        let names = file::list(&folder()).unwrap().into_iter().map(|entry| entry.path);
        let mut names: Vec<_> =
            names.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        names.sort();
        let pages = Kind::ALL.iter().map(|kind| format!("{}.md", kind.code()));
        let mut expected: Vec<_> = pages.chain(["README.md".to_owned()]).collect();
        expected.sort();
        assert_eq!(names, expected);
    }

    #[test]
    fn the_index_agrees_with_the_pages() {
        let table = file::read_text(&folder().join("README.md")).unwrap();
        let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| [FL")).collect();
        let row = |kind: Kind| {
            let (code, name) = (kind.code(), kind.name());
            format!("| [{code}]({code}.md) | `{name}` | {} |", summary(kind))
        };
        assert_eq!(rows, by_code().into_iter().map(row).collect::<Vec<_>>());
    }

    #[test]
    fn a_kind_is_found_by_code_by_name_and_by_its_name_in_a_traceback() {
        for kind in Kind::ALL {
            for typed in [kind.code(), kind.name(), &kind.name().to_uppercase()] {
                assert_eq!(parse_kind(typed), Ok(*kind), "{typed}");
            }
        }
        assert_eq!(parse_kind("fl203"), Ok(Kind::CorruptImage));
        assert_eq!(parse_kind("feedline.errors.CorruptImageError"), Ok(Kind::CorruptImage));
        for (warning, kind) in WARNINGS {
            assert_eq!(parse_kind(warning), Ok(kind));
            assert!(page(kind).contains(warning), "{warning}");
        }
    }

    #[test]
    fn the_most_similar_kind_comes_first() {
        assert_eq!(nearest("corruptimage")[0], Kind::CorruptImage);
        assert_eq!(nearest("OutOfMem")[0], Kind::OutOfMemory);
        assert_eq!(
            nearest("FL219"),
            [Kind::TooManyFaults, Kind::NoReplacement, Kind::CorruptRecord]
        );
        assert_eq!(nearest("").len(), NEAREST);
    }

    #[test]
    fn the_distance_counts_letters() {
        for (one, other, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("abc", "axc", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), expected, "{one:?} {other:?}");
        }
    }
}
