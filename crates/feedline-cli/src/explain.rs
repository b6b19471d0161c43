//! `feedline explain`: what an error means and what to do, by the code that stands below its message.

use clap::Args;
use feedline_core::error::{Error, Kind, Result};

use crate::report::say;

/// Says what an error means and what to do.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The code, such as FL203, or the name, such as Damaged; all of them where none is given
    code: Option<String>,
}

impl Explain {
    pub(crate) fn run(&self) -> Result<i32> {
        let Some(code) = &self.code else {
            let mut kinds = Kind::ALL.to_vec();
            kinds.sort_unstable_by_key(|kind| kind.code());
            for kind in kinds {
                say(format_args!("{} {:<16} {}", kind.code(), kind.name(), first_line(kind)));
            }
            return Ok(0);
        };
        let is_meant = |kind: &&Kind| {
            kind.code().eq_ignore_ascii_case(code) || kind.name().eq_ignore_ascii_case(code)
        };
        let Some(kind) = Kind::ALL.iter().find(is_meant) else {
            let message = format!("there is no error {code:?}");
            return Err(Error::new(Kind::BadSetting, message)
                .with_hint("feedline explain, without a code, lists all of them"));
        };
        say(format_args!("{} {}: {}", kind.code(), kind.name(), group(*kind)));
        say(format_args!("\nfor example\n  {}", kind.example().replace('\n', "\n  ")));
        say(format_args!("\nwhat usually helps\n  {}", kind.hint()));
        if kind.is_of_sample() {
            say(
                "\nIt is a fault of one sample: faults=FaultPolicy(...) says what is done about it.",
            );
        }
        Ok(0)
    }
}

fn first_line(kind: Kind) -> &'static str {
    kind.example().lines().next().unwrap_or_default()
}

/// What the first digit says.
fn group(kind: Kind) -> &'static str {
    match kind.code().as_bytes().get(2) {
        Some(b'1') => "a setting or a source",
        Some(b'2') => "samples",
        Some(b'3') => "the machine has run out of something",
        Some(b'4') => "workers",
        _ => "wrong use, or a bug of Feedline",
    }
}
