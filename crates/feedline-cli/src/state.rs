//! `feedline state`: shows what a saved state contains, and what differs from a data set or another state.

mod torch_state;

use clap::Args;
use feedline_core::error::{Error, Kind, Result};
use feedline_core::loader;
use feedline_core::run_state::{Data, Difference, Ranks, RunState};
use feedline_core::sample::shown;
use feedline_core::source::Source;
use feedline_core::source::files::Files;
use feedline_core::source::folder::Folder;
use feedline_core::source::records::Records;
use feedline_core::sys::file;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

use crate::dataset::{Paths, Reading};
use crate::report::{counted, print_result};
use crate::shards::cache;

/// Shows what the saved state of a loader contains.
///
/// A state is what loader.state_dict() returns, saved as JSON: one state, or a list of the states of all ranks. With
/// --against, the command says what differs from a data set or from another state.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    feedline state loader.json                       what it contains\n  \
    feedline state loader.json --against data/       whether it belongs to this data set\n  \
    feedline state loader.json --against other.json  what differs between two states\n  \
    feedline state loader.json --json                the same for programs\n\n\
    Exit codes: 0 good, 1 something differs, 2 could not run.")]
pub(crate) struct State {
    /// A state as JSON
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Compare it with a data set, or with another state in a JSON file
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    reading: Reading,
}

/// What a state is compared with.
enum Other {
    States(Vec<RunState>),
    Data(Data),
}

impl State {
    pub(crate) fn run(&self) -> Result<i32> {
        let text = read_text(&self.file)?;
        if let Some(state) = torch_state::TorchState::parse(&text)? {
            return self.show_torch(&state);
        }
        let states = parse(&self.file, &text)?;
        let other = match &self.against {
            Some(path) => Some(self.other(path, &states[0])?),
            None => None,
        };
        let found: Vec<Vec<Difference>> = states
            .iter()
            .map(|state| match &other {
                Some(Other::States(others)) => {
                    let same = others.iter().find(|other| other.rank == state.rank);
                    state.differences(same.unwrap_or(&others[0]))
                }
                Some(Other::Data(data)) => state.data_differences(data),
                None => Vec::new(),
            })
            .collect();
        if self.json {
            print_result(self.as_json(&states, &found))?;
        } else {
            for (number, (state, found)) in states.iter().zip(&found).enumerate() {
                if number > 0 {
                    print_result("")?;
                }
                print_state(state)?;
                self.print_differences(found)?;
            }
        }
        Ok(i32::from(found.iter().any(|found| !found.is_empty())))
    }

    /// The state of a torch loader, which another state of one can be compared with.
    fn show_torch(&self, state: &torch_state::TorchState) -> Result<i32> {
        let found = match &self.against {
            Some(path) => {
                let other =
                    torch_state::TorchState::parse(&read_text(path)?)?.ok_or_else(|| {
                        let message = format!("{} is not a state of a torch loader", shown(path));
                        Error::new(Kind::InvalidArgument, message)
                            .with_hint("compare it with another state, saved in a file NAME.json")
                    })?;
                state.differences(&other)
            }
            None => Vec::new(),
        };
        if self.json {
            let differences = self.against.as_ref().map(|_| differences_as_json(&found));
            print_result(state.as_json(differences))?;
        } else {
            state.print()?;
            self.print_differences(&found)?;
        }
        Ok(i32::from(!found.is_empty()))
    }

    /// What the state is compared with: a state if the file is one, or else data of the kind that the state is of.
    fn other(&self, path: &Path, state: &RunState) -> Result<Other> {
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        if is_json && !file::is_folder(path) {
            return Ok(Other::States(parse(path, &read_text(path)?)?));
        }
        let paths = Paths { paths: vec![path.to_owned()], reading: self.reading.clone() };
        let source: Box<dyn Source> = match state.data.kind.as_str() {
            "folder" => Box::new(Folder::images(path)?),
            "files" => Box::new(Files::list(&paths.find()?.images, None)?),
            "records" => {
                let mut shards = paths.find()?.shards.into_iter();
                let Some((format, shards)) = shards.next() else {
                    let message = format!("there are no shards at {}", shown(path));
                    return Err(Error::new(Kind::InvalidSource, message)
                        .with_hint("give the files that the loader read"));
                };
                let container = self.reading.container(format, &shards)?;
                Box::new(Records::new(shards, container, &cache(), None, &mut |_| true)?)
            }
            kind => {
                let message = format!("a state of {kind:?} cannot be compared with files");
                return Err(Error::new(Kind::InvalidArgument, message)
                    .with_hint("compare it with another state, saved in a file NAME.json"));
            }
        };
        Ok(Other::Data(loader::data(&*source)))
    }

    fn print_differences(&self, found: &[Difference]) -> Result<()> {
        let Some(against) = &self.against else { return Ok(()) };
        if found.is_empty() {
            return print_result(format_args!("same       as {}", shown(against)));
        }
        for Difference { name, state, other } in found {
            let against = shown(against);
            print_result(format_args!(
                "differs    {name}: {state} in the state, {other} in {against}"
            ))?;
        }
        Ok(())
    }

    fn as_json(&self, states: &[RunState], found: &[Vec<Difference>]) -> Value {
        let state = |(state, found): (&RunState, &Vec<Difference>)| {
            let mut shown = json!({
                "version": state.version(), "feedline": state.feedline, "epoch": state.epoch,
                "batches": state.batches, "samples": state.samples, "rank": state.rank,
                "world": state.world, "ranks": state.ranks, "why": state.why,
                "faults": state.position.faults, "data": state.data, "settings": state.settings,
            });
            if self.against.is_some() {
                shown["differences"] = differences_as_json(found);
            }
            shown
        };
        json!({"states": states.iter().zip(found).map(state).collect::<Vec<_>>()})
    }
}

fn differences_as_json(found: &[Difference]) -> Value {
    let one = |Difference { name, state, other }: &Difference| json!({"name": name, "state": state, "other": other});
    Value::Array(found.iter().map(one).collect())
}

fn read_text(path: &Path) -> Result<String> {
    file::read_text(path).map_err(|error| {
        Error::io(Kind::InvalidArgument, format!("reading the state {}", shown(path)), error)
            .with_hint("give a file with the JSON of loader.state_dict()")
    })
}

fn parse(path: &Path, text: &str) -> Result<Vec<RunState>> {
    let states = RunState::list_from_json(text)?;
    if states.is_empty() {
        let message = format!("{} has an empty list of states", shown(path));
        return Err(Error::new(Kind::StateMismatch, message));
    }
    Ok(states)
}

fn print_state(state: &RunState) -> Result<()> {
    let RunState { epoch, batches, samples, rank, world, position, data, .. } = state;
    let (version, feedline) = (state.version(), &state.feedline);
    print_result(format_args!("state      version {version}, written by Feedline {feedline}"))?;
    print_result(format_args!("epoch      {epoch}, counted from 0"))?;
    let batches = counted(*batches, "batch", "batches");
    let samples = counted(*samples, "sample", "samples");
    print_result(format_args!("delivered  {batches} with {samples} of this epoch to this rank"))?;
    if *world > 0 {
        print_result(format_args!("rank       {rank} of {world}"))?;
    }
    let faults = counted(position.faults, "fault", "faults");
    let seen = counted(position.seen, "sample", "samples");
    print_result(format_args!("faults     {faults} among {seen} of this epoch"))?;
    let resume = match state.ranks {
        Ranks::Any => "with any number of ranks, from the state of any rank".to_owned(),
        Ranks::All => {
            format!(
                "with another number of ranks only from the states of all, because {}",
                state.why
            )
        }
        Ranks::Same => format!("only with the same number of ranks, because {}", state.why),
    };
    print_result(format_args!("resume     {resume}"))?;
    let count = counted(data.samples, "sample", "samples");
    let kind = if data.kind.is_empty() { "unknown kind" } else { &data.kind };
    print_result(format_args!("data       {kind}, {count}, fingerprint {}", data.fingerprint))?;
    let width = state.settings.keys().map(String::len).max().unwrap_or(0);
    for (number, (name, text)) in state.settings.iter().enumerate() {
        let head = if number == 0 { "settings" } else { "" };
        print_result(format_args!("{}", format!("{head:<10} {name:<width$}  {text}").trim_end()))?;
    }
    Ok(())
}
