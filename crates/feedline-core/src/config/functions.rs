//! The calls for functions of Python: which there are, and how they are run.

use core::time::Duration;

use super::amount::{BytesOrAuto, Choice, CountOrAuto};
use super::arguments::{Arguments, OneOf, Seconds, Text, Truth};
use super::calls::CallArguments;
use super::{Given, Settings};
use crate::error::{Error, Kind, Result};

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

impl Function {
    pub(super) fn new(takes: Takes) -> Function {
        Function { takes, name: String::new(), in_threads: false }
    }
}

impl CallArguments for Function {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.require("function", &mut self.name, Text("a name"))?;
        from.take("threads", &mut self.in_threads, Truth)
    }

    fn apply(&self, settings: &mut Settings, _given: &Given) -> Result<()> {
        let Function { takes, name, in_threads } = self;
        let call = match takes {
            Takes::Sample => "map",
            Takes::Choice => "filter",
            Takes::Batch => "map_batch",
        };
        let other = settings.functions.iter().find(|other| other.in_threads != *in_threads);
        if let Some(other) = other {
            let message = format!(
                "{call}: threads={in_threads} for {name}, but threads={} for {}",
                other.in_threads, other.name
            );
            let hint = "give threads=True to all functions of a pipeline, or to none";
            return Err(Error::new(Kind::InvalidArgument, message).with_hint(hint));
        }
        settings.functions.push(self.clone());
        Ok(())
    }
}

/// How a process for functions is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of Python's multiprocessing")]
pub enum StartMethod {
    Fork,
    Spawn,
    Forkserver,
}

/// How functions of Python are run: arguments of `loader`, each as far as it is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FunctionWorkers {
    /// How many processes or threads.
    pub workers: Option<Choice>,
    /// The time that one sample may take.
    pub deadline: Option<Duration>,
    /// Deaths that are allowed.
    pub max_deaths: Option<Choice>,
    /// Bytes of resident memory beyond which a worker is renewed.
    pub max_worker_memory: Option<Choice>,
    /// How processes are started.
    pub mp_context: Option<StartMethod>,
}

impl FunctionWorkers {
    pub(super) fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.take("workers", &mut self.workers, CountOrAuto(1, 4096))?;
        from.take("deadline", &mut self.deadline, Seconds(0.001, 1e9))?;
        from.take("max_deaths", &mut self.max_deaths, CountOrAuto(0, 1 << 20))?;
        from.take("max_worker_memory", &mut self.max_worker_memory, BytesOrAuto(1 << 20))?;
        let methods = [
            ("fork", StartMethod::Fork),
            ("spawn", StartMethod::Spawn),
            ("forkserver", StartMethod::Forkserver),
        ];
        from.take("mp_context", &mut self.mp_context, OneOf(&methods))
    }

    /// Refuses what these functions cannot use.
    pub(super) fn check(&self, functions: &[Function]) -> Result<()> {
        let of_processes = [
            ("deadline", self.deadline.is_some()),
            ("max_deaths", self.max_deaths.is_some()),
            ("max_worker_memory", self.max_worker_memory.is_some()),
            ("mp_context", self.mp_context.is_some()),
        ];
        let of_processes =
            of_processes.iter().find(|(_, is_given)| *is_given).map(|(name, _)| *name);
        let given = self.workers.map(|_| "workers").or(of_processes);
        if let (Some(name), []) = (given, functions) {
            let message = format!("loader: {name} is for functions of Python, and there are none");
            let hint = "call map(fn), filter(fn) or map_batch(fn) before loader()";
            return Err(Error::new(Kind::InvalidArgument, message).with_hint(hint));
        }
        let in_threads = functions.iter().any(|function| function.in_threads);
        if let (Some(name), true) = (of_processes, in_threads) {
            let message = format!("loader: {name} is for worker processes, not for threads=True");
            let hint = "leave threads=True out, and functions run in processes that can be ended";
            return Err(Error::new(Kind::InvalidArgument, message).with_hint(hint));
        }
        Ok(())
    }
}
