//! What the user reads: lines to stdout, talk to stderr, a bar where there is a terminal.

use feedline_core::error::Error;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr, stdout};

/// A line of the result. Whoever closed the pipe does not want it.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(stdout(), "{line}");
}

/// A line of talk.
pub(crate) fn mention(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}

/// An error, with its hint.
pub(crate) fn complain(error: &Error) {
    mention(format_args!("error: {error}"));
}

/// Progress of `total` steps: a bar on a terminal, else a line at each quarter.
pub(crate) struct Progress {
    bar: ProgressBar,
    what: String,
    total: u64,
    done: u64,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new(what: &str, total: u64) -> Progress {
        let is_terminal = stderr().is_terminal();
        let target = match is_terminal {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what.to_owned());
        if let Ok(style) =
            ProgressStyle::with_template("{msg:<22} {bar:32} {pos}/{len} {per_sec} {eta} left")
        {
            bar.set_style(style);
        }
        Progress { bar, what: what.to_owned(), total, done: 0, is_terminal }
    }

    pub(crate) fn add(&mut self, steps: u64) {
        let quarter = |done: u64| done * 4 / self.total.max(1);
        let before = quarter(self.done);
        self.done += steps;
        self.bar.set_position(self.done);
        if !self.is_terminal && quarter(self.done) > before {
            mention(format_args!("{}: {} of {}", self.what, self.done, self.total));
        }
    }

    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}
