//! Output for the user: results to stdout, diagnostics to stderr, a progress bar on a terminal.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::escape;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Display;
use std::io::{self, IsTerminal, Write, stderr, stdout};

/// Prints a line of the result to stdout.
pub(crate) fn print_result(line: impl Display) -> Result<()> {
    let mut out = stdout().lock();
    let line = line.to_string();
    ignore_broken_pipe(writeln!(out, "{}", escape::lines(&line)).and_then(|()| out.flush()))
}

/// Result of writing to stdout. A broken pipe is not an error: its reader needs no more.
pub(crate) fn ignore_broken_pipe(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io(Kind::InvalidArgument, "writing the result to stdout", error)
                .with_hint("redirect stdout to a writable file with enough free space"))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints a diagnostic line to stderr.
pub(crate) fn print_note(line: impl Display) {
    let _ = writeln!(stderr(), "{}", escape::lines(&line.to_string()));
}

/// Prints an error with its hint to stderr.
pub(crate) fn print_error(error: &Error) {
    print_note(format_args!("error: {error}"));
}

/// A number of bytes for people, such as "1.5 MiB".
pub(crate) fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let Some(power) = count.max(1).ilog2().checked_div(10).filter(|power| *power > 0) else {
        return format!("{count} B");
    };
    let power = (power as usize).min(units.len());
    let value = count as f64 / 1024_f64.powi(power as i32);
    format!("{value:.1} {}", units[power - 1])
}

/// A count with its noun.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

/// A table below its column names; the first column is left-aligned, the others are right-aligned.
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

/// Unit of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Steps,
    Bytes,
}

/// Progress towards a total: a bar on a terminal, otherwise a line at each quarter.
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
            print_note(format_args!("{}: {} of {}", self.what, shown(done), shown(self.total)));
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
    fn bytes_have_one_digit_after_the_decimal_point() {
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
    fn the_columns_of_a_table_are_aligned() {
        let rows = [["a".into(), "1".into()], ["long name".into(), "1000".into()]];
        assert_eq!(
            table(["shard", "n"], rows),
            "shard         n\na             1\nlong name  1000"
        );
    }
}
