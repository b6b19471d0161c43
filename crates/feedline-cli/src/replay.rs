//! `feedline replay`: looks at the samples of a quarantine file again, and says which are still bad.
//!
//! Files and records are read here. Samples that the user's code made are made again by that code, in Python.

use clap::Args;
use feedline_core::error::{Error, Kind, Result};
use feedline_core::fault::FaultLine;
use feedline_core::loader::quarantined;
use std::path::{Path, PathBuf};

use crate::dataset::Reading;
use crate::report::{counted, print_note, print_result};
use crate::show::examine;

/// Looks at the samples of a quarantine file again.
///
/// Reads and decodes the file or the record of each fault once more, and says whether it is still bad. Faults of your own
/// code need your code: with --loader, a function of yours makes the loader, and loader.replay makes each sample again,
/// with the random numbers of its epoch.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    feedline replay bad.jsonl                              which files and records are still bad\n  \
    feedline replay bad.jsonl --loader train:make_loader   with make_loader() of train.py\n  \
    feedline replay bad.jsonl --loader train:make_loader --index 48213 --pdb\n\n\
    Exit codes: 0 all samples are good now, 1 some are still bad, 2 could not run.")]
pub(crate) struct Replay {
    /// A quarantine file, as FaultPolicy(quarantine=...) writes it, or a folder of such files
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The function that makes the loader: module:function or file.py:function
    #[arg(long, value_name = "MODULE:FUNCTION")]
    loader: Option<String>,

    /// Only the sample with this index
    #[arg(long, value_name = "N")]
    index: Option<u64>,

    /// Start the debugger where a sample fails; needs --loader
    #[arg(long, requires = "loader")]
    pdb: bool,
}

/// What became of a fault.
enum Found {
    Good(String),
    Bad(String),
    /// The user's code is needed, or the sample is not in a file.
    NeedsLoader,
}

impl Replay {
    pub(crate) fn run(&self) -> Result<i32> {
        let mut lines = quarantined(&self.file)?;
        if let Some(index) = self.index {
            lines.retain(|line| line.number() == Some(index));
        }
        if lines.is_empty() {
            let which = self.index.map_or_else(String::new, |index| format!(" with index {index}"));
            let message = format!("{} names no sample{which}", self.file.display());
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("give the file that FaultPolicy(quarantine=...) wrote"));
        }
        if let Some(loader) = &self.loader {
            // The Python part goes on after this.
            if loader
                .split_once(':')
                .is_none_or(|(module, name)| module.is_empty() || name.is_empty())
            {
                let message = format!("--loader must be MODULE:FUNCTION, got {loader:?}");
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint("for example --loader train:make_loader"));
            }
            return Ok(0);
        }
        let (mut bad, mut unknown) = (0, 0);
        for line in &lines {
            let (name, epoch) = (line.name(), line.epoch);
            let place = line.place();
            let place = if place.is_empty() { place } else { format!(", {place}") };
            let what = match look_at(line) {
                Found::Good(what) => format!("good now: {what}"),
                Found::Bad(what) => {
                    bad += 1;
                    format!("still bad: {what}")
                }
                Found::NeedsLoader => {
                    unknown += 1;
                    format!("{} was raised by your code, which needs --loader", line.kind)
                }
            };
            print_result(format_args!("{name} of epoch {epoch}{place}: {what}"))?;
        }
        let total = counted(lines.len() as u64, "sample", "samples");
        print_result(format_args!("{bad} of {total} still bad"))?;
        if unknown > 0 {
            print_note(format_args!(
                "hint: feedline replay {} --loader train:make_loader makes the others with your code",
                self.file.display()
            ));
        }
        Ok(if bad > 0 {
            1
        } else if unknown == lines.len() {
            2
        } else {
            0
        })
    }
}

fn look_at(line: &FaultLine) -> Found {
    let is_ours = Kind::named(&line.kind).is_some() && line.traceback.is_none();
    let (Some(path), true) = (&line.path, is_ours) else { return Found::NeedsLoader };
    match examine(Path::new(path), line.record, &Reading::default()) {
        Ok(what) => Found::Good(what),
        Err(what) => Found::Bad(what),
    }
}
