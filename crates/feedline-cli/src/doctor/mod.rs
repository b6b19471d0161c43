//! `feedline doctor`: what this machine allows, what is dangerous about it, and what an error message means.
//!
//! The findings are pure functions of values that were read before; `print` turns them into text.

mod data;
mod diagnosis;
mod machine;
mod messages;
mod print;
mod process;
mod surroundings;

use clap::Args;
use feedline_core::error::{Error, Kind, Result};
use feedline_core::sample::shown;
use feedline_core::source::paths;
use feedline_core::sys::file;
use feedline_core::sys::limits::{Machine, RecordedFiles, RecordingFiles, process_folder};
use serde_json::Value;
use std::path::{Path, PathBuf};

use crate::dataset::{Paths, Reading, missing_file};
use crate::report::print_result;
use diagnosis::Diagnosis;
use surroundings::Surroundings;

/// Says what this machine allows, what Feedline chooses on it, and what is dangerous.
///
/// Reads the limits of open files, processes, memory, processors and shared memory, in containers too, and names each
/// danger with the command that fixes it. With paths it examines a data set, with --pid a process that runs, and with an
/// error message it says what the message means and how to tell.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    feedline doctor                                  this machine\n  \
    feedline doctor data/train                       a data set: sizes, storage, speed, batch size\n  \
    feedline doctor --pid 4711                       a training process: what will fail first\n  \
    feedline doctor \"Too many open files\"            an error message\n  \
    feedline doctor --json                           for programs\n  \
    feedline doctor --record > machine.txt           what was read, to show to others\n  \
    feedline doctor --recorded machine.txt           the machine of somebody else\n\n\
    Exit codes: 0 good, 1 something is dangerous, 2 could not run.")]
pub(crate) struct Doctor {
    /// Files, folders or quoted patterns of a data set, or an error message
    #[arg(value_name = "PATH|MESSAGE")]
    subject: Vec<PathBuf>,

    /// Examine the process with this id, and those below it
    #[arg(long, value_name = "PID", conflicts_with = "subject")]
    pid: Option<u32>,

    /// Print everything as JSON
    #[arg(long)]
    json: bool,

    /// Print all that is read of this machine, in a form that --recorded takes
    #[arg(long, conflicts_with_all = ["subject", "pid", "json"])]
    record: bool,

    /// Examine the machine that was recorded in this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "record"])]
    recorded: Option<PathBuf>,

    #[command(flatten)]
    reading: Reading,
}

impl Doctor {
    pub(crate) fn run(&self) -> Result<i32> {
        if self.record {
            let recording = RecordingFiles::default();
            Machine::read(&recording, &process_folder(None));
            print_result(recording.text().trim_end())?;
            return Ok(0);
        }
        let subject = match self.subject.as_slice() {
            [] => self.pid.map_or(Subject::Machine, Subject::Process),
            paths => Subject::named(paths)?,
        };
        if let Subject::Message(message) = subject {
            match self.json {
                true => print_result(format_args!("{:#}", message.to_json()))?,
                false => print_result(message.text())?,
            }
            return Ok(0);
        }
        let machine = self.machine()?;
        let diagnosis = examine(subject, &self.reading, machine.as_ref(), &Surroundings::here())?;
        match self.json {
            true => print_result(format_args!("{:#}", diagnosis.to_json()))?,
            false => print_result(print::text(&diagnosis))?,
        }
        Ok(diagnosis.exit_code())
    }

    /// The recorded machine, if there is one.
    fn machine(&self) -> Result<Option<Machine>> {
        let Some(path) = &self.recorded else { return Ok(None) };
        let text = file::read_text(path).map_err(|error| {
            Error::io(Kind::InvalidArgument, format!("reading {}", shown(path)), error)
                .with_hint("make such a file with feedline doctor --record")
        })?;
        Ok(Some(Machine::read(&RecordedFiles::parse(&text), Path::new("/proc/self"))))
    }
}

/// What is examined.
enum Subject {
    Machine,
    Process(u32),
    Data(Vec<PathBuf>),
    Message(&'static messages::Message),
}

impl Subject {
    /// Paths that exist are a data set; anything else may be a message, with or without quotes.
    fn named(given: &[PathBuf]) -> Result<Subject> {
        let is_path = |path: &PathBuf| {
            path.exists()
                || paths::expand(std::slice::from_ref(path))
                    .is_ok_and(|found| found.iter().all(|path| path.exists()) && !found.is_empty())
        };
        let Some(missing) = given.iter().find(|path| !is_path(path)) else {
            return Ok(Subject::Data(given.to_vec()));
        };
        let words: Vec<_> = given.iter().map(|path| path.to_string_lossy()).collect();
        let text = words.join(" ");
        match messages::find(&text) {
            Some(message) => Ok(Subject::Message(message)),
            None if given.len() == 1 && !text.contains(' ') => Err(missing_file(missing)),
            None => Err(Error::new(
                Kind::InvalidArgument,
                format!("{text:?} is neither a path nor a message that the doctor knows"),
            )
            .with_hint("give the line of the error itself; errors of Feedline: feedline explain")),
        }
    }
}

fn examine(
    subject: Subject,
    reading: &Reading,
    recorded: Option<&Machine>,
    around: &Surroundings,
) -> Result<Diagnosis> {
    let machine = || recorded.cloned().unwrap_or_else(Machine::here);
    match subject {
        Subject::Machine | Subject::Message(_) => Ok(machine::diagnose(&machine(), around)),
        Subject::Process(pid) => process::Examined::read(pid).map(|seen| process::diagnose(&seen)),
        Subject::Data(paths) => {
            let data = data::DataSet::read(&Paths { paths, reading: reading.clone() })?;
            Ok(data::diagnose(&data, &machine(), around))
        }
    }
}

/// The result of an examination for a caller in the same process.
#[derive(Debug)]
pub struct Report {
    /// For people, at most one screen.
    pub text: String,
    /// For programs.
    pub json: Value,
}

/// Examines what the subject names: paths or a message, a process, or this machine. `around` is a JSON object with what
/// only the caller knows.
///
/// # Errors
/// If there is no such process, data set or message.
pub fn report(subject: &[PathBuf], pid: Option<u32>, around: &Value) -> Result<Report> {
    let subject = match (pid, subject) {
        (Some(pid), _) => Subject::Process(pid),
        (None, []) => Subject::Machine,
        (None, given) => Subject::named(given)?,
    };
    if let Subject::Message(message) = subject {
        return Ok(Report { text: message.text(), json: message.to_json() });
    }
    let around = Surroundings::here().with_json(around);
    let diagnosis = examine(subject, &Reading::default(), None, &around)?;
    Ok(Report { text: print::text(&diagnosis), json: diagnosis.to_json() })
}
