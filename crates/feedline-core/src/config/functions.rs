//! The words for functions of the user's own language: which there are, and whether each stands where it can.

use super::arguments::Call;
use crate::error::{Error, Kind, Result};

/// Settings of `loader` that say how functions are run.
const OF_WORKERS: [&str; 5] =
    ["workers", "deadline", "max_deaths", "max_worker_memory", "mp_context"];

/// What a function is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// A sample, of which it makes another.
    Sample,
    /// A sample, of which it says whether it stays.
    Choice,
    /// A batch, of which it makes another.
    Batch,
}

/// A function, known by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// What it is given.
    pub takes: Takes,
    /// Its qualified name.
    pub name: String,
    /// Whether it runs in threads of this process.
    pub in_threads: bool,
}

/// The function of a call `map`, `filter` or `map_batch`, which follows others.
pub(super) fn parse(call: &Call<'_>, is_batched: bool, others: &[Function]) -> Result<Function> {
    let takes = match call.name() {
        "map" => Takes::Sample,
        "filter" => Takes::Choice,
        _ => Takes::Batch,
    };
    let refused = |message: String, hint: &'static str| {
        Err(Error::new(Kind::InvalidArgument, message).with_hint(hint))
    };
    match (takes, is_batched) {
        (Takes::Sample, true) => {
            let hint =
                "map(fn) is given one sample, before batch; for batches there is map_batch(fn)";
            return refused("map cannot follow batch".to_owned(), hint);
        }
        (Takes::Choice, true) => {
            let hint = "filter(fn) is given one sample, before batch";
            return refused("filter cannot follow batch".to_owned(), hint);
        }
        (Takes::Batch, false) => {
            let hint = "call batch(size) before map_batch(fn), or map(fn) for single samples";
            return refused("map_batch needs batches".to_owned(), hint);
        }
        (Takes::Sample | Takes::Choice, false) | (Takes::Batch, true) => {}
    }
    let name = call.get("function").ok_or_else(|| call.lacks("function"))?;
    let name = name.as_str().ok_or_else(|| call.bad("function", "a name", name))?.to_owned();
    let in_threads = call.truth("threads")?.unwrap_or(false);
    if let Some(other) = others.iter().find(|other| other.in_threads != in_threads) {
        let message = format!(
            "{}: threads={in_threads} for {name}, but threads={} for {}",
            call.name(),
            other.in_threads,
            other.name
        );
        return refused(message, "give threads=True to all functions of a pipeline, or to none");
    }
    Ok(Function { takes, name, in_threads })
}

/// What cannot follow functions.
pub(super) fn too_late(call: &Call<'_>) -> Error {
    let message = format!("{} cannot follow map or filter of a function", call.name());
    let hint = format!("native steps come first: call {} before map(fn)", call.name());
    Error::new(Kind::InvalidArgument, message).with_hint(hint)
}

/// Checks the words of `loader` that say how functions are run.
pub(super) fn check_loader(call: &Call<'_>, functions: &[Function]) -> Result<()> {
    let is_given = |name: &&'static str| call.get(name).is_some();
    let given: Vec<_> = OF_WORKERS.iter().copied().filter(is_given).collect();
    if let (Some(name), true) = (given.first(), functions.is_empty()) {
        let message = format!("loader: {name} is for functions of Python, and there are none");
        let hint = "call map(fn), filter(fn) or map_batch(fn) before loader()";
        return Err(Error::new(Kind::InvalidArgument, message).with_hint(hint));
    }
    let in_threads = functions.iter().any(|function| function.in_threads);
    if let (Some(name), true) = (given.iter().find(|name| **name != "workers"), in_threads) {
        let message = format!("loader: {name} is for worker processes, not for threads=True");
        let hint = "leave threads=True out, and functions run in processes that can be ended";
        return Err(Error::new(Kind::InvalidArgument, message).with_hint(hint));
    }
    call.count_or_auto("workers", 1, 4096)?;
    call.real("deadline", 0.001, 1e9)?;
    call.count_or_auto("max_deaths", 0, 1 << 20)?;
    call.bytes_or_auto("max_worker_memory", 1 << 20)?;
    let contexts = [("fork", ()), ("spawn", ()), ("forkserver", ())];
    call.choice("mp_context", &contexts)?;
    Ok(())
}
