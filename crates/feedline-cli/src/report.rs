//! What the user reads: lines to stdout, talk to stderr, a bar where there is a terminal.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::escape;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Display;
use std::io::{self, IsTerminal, Write, stderr, stdout};

/// A line of the result.
pub(crate) fn say(line: impl Display) -> Result<()> {
    let mut out = stdout().lock();
    let line = line.to_string();
    told(writeln!(out, "{}", escape::lines(&line)).and_then(|()| out.flush()))
}

/// What became of a result that was written to stdout. The reader that closed the pipe does not want it.
pub(crate) fn told(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io(Kind::InvalidArgument, "writing the result to stdout", error)
                .with_hint("send stdout to a file or a pipe that can be written and has room"))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A line of talk.
pub(crate) fn mention(line: impl Display) {
    let _ = writeln!(stderr(), "{}", escape::lines(&line.to_string()));
}

/// An error, with its hint.
pub(crate) fn complain(error: &Error) {
    mention(format_args!("error: {error}"));
}

/// Bytes as people read them.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let Some(power) = count.max(1).ilog2().checked_div(10).filter(|power| *power > 0) else {
        return format!("{count} B");
    };
    let power = (power as usize).min(units.len());
    let value = count as f64 / 1024_f64.powi(power as i32);
    format!("{value:.1} {}", units[power - 1])
}

/// A count with the noun that it has.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

/// Rows of columns, the first aligned to the left and the others to the right, below their names.
pub(crate) fn table<const COLUMNS: usize>(
    names: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> String {
    let rows: Vec<_> = [names.map(str::to_owned)].into_iter().chain(rows).collect();
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    });
    let line = |row: &[String; COLUMNS]| {
        let cells =
            row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// What progress is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Steps,
    Bytes,
}

/// Progress up to a total: a bar on a terminal, else a line at each quarter.
pub(crate) struct Progress {
    bar: ProgressBar,
    what: String,
    unit: Unit,
    total: u64,
    done: u64,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new(what: &str, total: u64) -> Progress {
        Progress::counting(what, total, Unit::Steps)
    }

    pub(crate) fn counting(what: &str, total: u64, unit: Unit) -> Progress {
        let is_terminal = stderr().is_terminal();
        let target = match is_terminal {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what.to_owned());
        let template = match unit {
            Unit::Steps => "{msg:<22} {bar:32} {pos}/{len} {per_sec} {eta} left",
            Unit::Bytes => {
                "{msg:<22} {bar:32} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left"
            }
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress { bar, what: what.to_owned(), unit, total, done: 0, is_terminal }
    }

    pub(crate) fn add(&mut self, steps: u64) {
        self.set(self.done + steps);
    }

    pub(crate) fn set(&mut self, done: u64) {
        let quarter = |done: u64| done.saturating_mul(4) / self.total.max(1);
        let before = quarter(self.done);
        self.done = done;
        self.bar.set_position(self.done);
        if !self.is_terminal && quarter(self.done) > before {
            let shown = |count| match self.unit {
                Unit::Steps => format!("{count}"),
                Unit::Bytes => bytes(count),
            };
            mention(format_args!("{}: {} of {}", self.what, shown(done), shown(self.total)));
        }
    }

    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_said_with_one_digit_behind_the_point() {
        for (count, said) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (5 << 20, "5.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(count), said);
        }
    }

    #[test]
    fn a_table_has_its_columns_below_one_another() {
        let rows = [["a".into(), "1".into()], ["long name".into(), "1000".into()]];
        assert_eq!(
            table(["shard", "n"], rows),
            "shard         n\na             1\nlong name  1000"
        );
    }
}
