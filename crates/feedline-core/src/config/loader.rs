//! The call that says how a pipeline is run: budgets, threads, what to do about faults.

use core::time::Duration;
use std::path::PathBuf;

use super::amount::{BytesOrAuto, Choice, CountOrAuto, Memory};
use super::arguments::{Arguments, Seconds, Text, WholeNumber};
use super::calls::CallArguments;
use super::functions::FunctionWorkers;
use super::{Chaos, Given, Settings, faults};
use crate::error::{Error, Kind, Result};
use crate::fault::FaultPolicy;

/// How long the consumer waits for a batch before an event says why, by default.
pub(super) const STALL: Duration = Duration::from_secs(30);

/// How a pipeline is run.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderOptions {
    /// Threads that decode and transform.
    pub threads: Choice,
    /// Threads that read files.
    pub readers: Choice,
    /// Files that are open at a time.
    pub files: Choice,
    /// Bytes of all that is loaded.
    pub memory: Choice,
    /// The part of `memory` for batches that are made ahead of the consumer.
    pub prefetch: Choice,
    /// Of random transforms; the seed of `shuffle` by default.
    pub seed: Option<u64>,
    /// What to do about faults.
    pub faults: FaultPolicy,
    /// A quarantine file, or a folder of them, whose samples are left out.
    pub exclude: Option<PathBuf>,
    /// How long the consumer waits for a batch before an event says why; zero for no event.
    pub stall: Duration,
    /// Faults on purpose, for tests.
    #[doc(hidden)]
    pub chaos: Option<Chaos>,
    /// How functions of Python are run.
    #[doc(hidden)]
    pub workers: FunctionWorkers,
}

impl Default for LoaderOptions {
    fn default() -> LoaderOptions {
        LoaderOptions {
            threads: Choice::Auto,
            readers: Choice::Auto,
            files: Choice::Auto,
            memory: Choice::Auto,
            prefetch: Choice::Auto,
            seed: None,
            faults: FaultPolicy::default(),
            exclude: None,
            stall: STALL,
            chaos: None,
            workers: FunctionWorkers::default(),
        }
    }
}

impl CallArguments for LoaderOptions {
    fn take(&mut self, from: &Arguments<'_>) -> Result<()> {
        from.take("threads", &mut self.threads, CountOrAuto(1, 1024))?;
        from.take("readers", &mut self.readers, CountOrAuto(1, 256))?;
        from.take("files", &mut self.files, CountOrAuto(1, 1 << 20))?;
        from.take("memory", &mut self.memory, Memory(1 << 20))?;
        from.take("prefetch", &mut self.prefetch, BytesOrAuto(0))?;
        from.take("seed", &mut self.seed, WholeNumber(0, u64::MAX))?;
        match from.get("faults") {
            Some(value) => self.faults = faults::from_json(value)?,
            None => faults::check(&self.faults)?,
        }
        if let Some(path) = from.read("exclude", Text("a path"))? {
            self.exclude = Some(path.into());
        }
        from.take("stall", &mut self.stall, Seconds(0.0, 1e9))?;
        if let Some(chaos) = Chaos::parse(from)? {
            self.chaos = Some(chaos);
        }
        self.workers.take(from)
    }

    fn apply(&self, settings: &mut Settings, _given: &Given) -> Result<()> {
        if let (Choice::Exactly(prefetch), Choice::Exactly(memory)) = (self.prefetch, self.memory)
            && prefetch >= memory
        {
            let message = format!("loader: prefetch={prefetch} leaves nothing of memory={memory}");
            return Err(Error::new(Kind::InvalidArgument, message)
                .with_hint("prefetch is a part of memory; the rest is for files and decoding"));
        }
        self.workers.check(&settings.functions)?;
        settings.threads = self.threads;
        settings.readers = self.readers;
        settings.files = self.files;
        settings.memory = self.memory;
        settings.prefetch = self.prefetch;
        settings.seed = self.seed;
        settings.faults = self.faults.clone();
        settings.exclude = self.exclude.clone();
        settings.stall = (!self.stall.is_zero()).then_some(self.stall);
        settings.chaos = self.chaos;
        Ok(())
    }
}
