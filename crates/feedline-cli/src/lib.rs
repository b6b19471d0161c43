//! Feedline's command line: arguments, and the commands they select. Results go to stdout, diagnostics to stderr.
//!
//! Exit codes: 0 good, 1 found faults that were not expected, 2 could not run.

mod convert;
mod parallel;
mod dataset;
mod demo;
pub mod doctor;
mod explain;
mod index;
mod manifest;
mod replay;
mod report;
mod shards;
mod show;
mod state;
mod tokens;
mod verify;

use clap::{Parser, Subcommand};

/// The data loader that does not die.
///
/// Loads folders of images, shards of records and arrays for training, survives bad samples, and reports what happened.
#[derive(Debug, Parser)]
#[command(
    name = "feedline",
    version,
    arg_required_else_help = true,
    after_help = "Examples:\n  \
        feedline demo                      two epochs over generated photographs, some of them bad\n  \
        feedline demo --samples 2000       more of them\n  \
        feedline demo --keep photos/       keep the photographs to look at\n  \
        feedline demo --faults replace     replace the bad ones by others\n  \
        feedline doctor                    what this machine allows, and what is dangerous\n  \
        feedline explain FL203             what an error means, and what to do\n  \
        feedline verify data/              read a whole data set, and list bad samples\n  \
        feedline show a.tfrecord:17        print a record\n  \
        feedline index data/               index the records of shards beforehand\n  \
        feedline state loader.json         what the saved state of a loader contains\n  \
        feedline replay bad.jsonl          which samples of a quarantine file are still bad\n  \
        feedline convert photos/ shards/ --to tar\n\n\
        Exit codes: 0 good, 1 found faults that were not expected, 2 could not run."
)]
struct Typed {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Doctor(doctor::Doctor),
    Explain(explain::Explain),
    Index(index::IndexCommand),
    Replay(replay::Replay),
    Show(show::Show),
    State(state::State),
    Verify(verify::Verify),
    Convert(convert::Convert),
}

/// Runs the command given by the arguments, the program's name first, and returns the exit code.
pub fn run<I>(arguments: I) -> i32
where
    I: IntoIterator,
    I::Item: Into<std::ffi::OsString> + Clone,
{
    let typed = match Typed::try_parse_from(arguments) {
        Ok(typed) => typed,
        Err(error) => {
            // Help and version are results, not errors.
            let printed = error.print();
            return match report::ignore_broken_pipe(printed) {
                Err(unwritten) if !error.use_stderr() => {
                    report::print_error(&unwritten);
                    2
                }
                Ok(()) | Err(_) => error.exit_code(),
            };
        }
    };
    let outcome = match typed.command {
        Command::Demo(demo) => demo.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Explain(explain) => explain.run(),
        Command::Index(index) => index.run(),
        Command::Replay(replay) => replay.run(),
        Command::Show(show) => show.run(),
        Command::State(state) => state.run(),
        Command::Verify(verify) => verify.run(),
        Command::Convert(convert) => convert.run(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            report::print_error(&error);
            2
        }
    }
}
