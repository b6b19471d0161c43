//! An epoch for a front that calls functions for the samples. The front receives samples, reports the results,
//! and learns which batches are complete. The engine decides, as in any other epoch.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::driver::DriverWork;
use super::run::Run;
use super::{Epoch, Ledger, Loader};
use crate::engine::Position;
use crate::error::{Error, Kind, Result};
use crate::fault::{FaultLine, Symptom};
use crate::sample::{Batch, FieldKind, Location};
use crate::sys::clock;
use crate::sys::lock::{Condition, Mutex};

/// An instruction to a front. Samples are named by keys that are unique in the epoch.
pub enum Instruction {
    /// Call functions for these samples.
    Part(Box<Part>),
    /// Call the batch functions for a batch of these samples, in this order.
    Finish {
        /// The argument for `Epoch::finished`.
        number: u64,
        /// The keys of its samples.
        keys: Vec<u64>,
    },
    /// Deliver the batch of these samples, in this order.
    Deliver {
        /// The keys of its samples.
        keys: Vec<u64>,
        /// The argument for `Epoch::took`, once the consumer has it.
        end: BatchEnd,
    },
    /// These samples are no longer needed.
    Forget(Vec<u64>),
    /// Raise an error after the batches so far; nothing follows.
    Stop {
        /// The number of the fault that is the cause, if the front reported it.
        cause: Option<u64>,
        /// The error; None if it is the cause itself.
        error: Option<Error>,
    },
    /// Nothing follows.
    End,
}

/// Samples for which functions are to be called.
pub struct Part {
    /// The samples.
    pub batch: Batch,
    /// The key of each sample.
    pub keys: Vec<u64>,
    /// Whether they are a batch if none is left out.
    pub may_be_batch: bool,
}

/// The progress of the run after a batch.
#[derive(Clone, Debug)]
pub struct BatchEnd(pub(super) Position);

/// Instructions that the front has not taken yet. Parts wait until it has room for more; all others are taken at
/// once.
#[derive(Default)]
pub(super) struct InstructionQueue {
    state: Mutex<QueueState>,
    changed: Condition,
    wake: Mutex<Option<Wake>>,
}

/// Callback for a change.
type Wake = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct QueueState {
    instructions: VecDeque<Instruction>,
    /// Parts by number, which is the order in which they are taken.
    parts: BTreeMap<u64, Part>,
    next_part: u64,
    is_closed: bool,
}

impl InstructionQueue {
    pub(super) fn put(&self, instruction: Instruction) {
        self.change(|state| state.instructions.push_back(instruction));
    }

    /// Adds a part of the planned samples.
    pub(super) fn put_part(&self, number: u64, part: Part) {
        self.change(|state| {
            state.parts.insert(number, part);
        });
    }

    pub(super) fn close(&self) {
        self.change(|state| {
            state.is_closed = true;
            state.instructions.clear();
            state.parts.clear();
        });
    }

    fn change(&self, change: impl FnOnce(&mut QueueState)) {
        {
            let mut state = self.state.lock();
            if state.is_closed {
                return;
            }
            change(&mut state);
        }
        self.changed.notify_all();
        if let Some(wake) = &*self.wake.lock() {
            wake();
        }
    }

    /// The instructions available until the deadline.
    fn take(&self, takes_parts: bool, deadline: Instant) -> Result<Option<Instruction>> {
        let mut state = self.state.lock();
        loop {
            if let Some(instruction) = state.instructions.pop_front() {
                return Ok(Some(instruction));
            }
            let next = state.next_part;
            if takes_parts && let Some(part) = state.parts.remove(&next) {
                state.next_part += 1;
                return Ok(Some(Instruction::Part(Box::new(part))));
            }
            if state.is_closed {
                let message =
                    "the epoch was abandoned: the loader was closed, or another epoch was started";
                return Err(Error::new(Kind::Closed, message));
            }
            let is_late;
            (state, is_late) = self.changed.wait_until(state, deadline);
            let has_part = takes_parts && state.parts.contains_key(&state.next_part);
            if is_late && state.instructions.is_empty() && !has_part && !state.is_closed {
                return Ok(None);
            }
        }
    }
}

#[doc(hidden)]
impl Epoch {
    /// The next instruction, if there is one within this time.
    pub fn next_instruction(
        &mut self,
        takes_parts: bool,
        time: Duration,
    ) -> Result<Option<Instruction>> {
        self.check_home()?;
        let run = &self.running.run;
        let before = clock::now();
        let instruction = run.instructions.take(takes_parts, before + time)?;
        if instruction.is_none() && takes_parts {
            run.add_waiting(before.elapsed());
        }
        Ok(instruction)
    }

    /// Reports samples that succeeded; all have the same shape.
    pub fn good(&self, keys: &[u64], shape: u32) {
        self.running.run.driver.lock().mapped_good(keys, shape);
    }

    /// The number of a shape, given as JSON.
    pub fn shape(&self, described: &str) -> u32 {
        self.running.run.driver.lock().mapped_shape(described)
    }

    /// Reports samples that the user's filter drops.
    pub fn filtered(&self, keys: &[u64]) {
        self.running.run.driver.lock().mapped_filtered(keys);
    }

    /// Reports that a function failed for a sample. Returns the number of the fault.
    pub fn bad(&self, key: u64, symptom: Symptom, line: FaultLine) -> u64 {
        let run = &self.running.run;
        run.driver.lock().mapped_bad(run, key, symptom, line)
    }

    /// Reports the samples of a batch that are bad after all. Returns the numbers of the faults.
    pub fn finished(&self, number: u64, bad: Vec<(u64, Symptom, FaultLine)>) -> Vec<u64> {
        let run = &self.running.run;
        run.driver.lock().mapped_finished(run, number, bad)
    }

    /// Makes the decisions that the reported results allow.
    pub fn advance(&self) {
        let run = &self.running.run;
        let extras = run.process_results_once([]);
        if !extras.is_empty() {
            run.extras.put(extras);
        }
    }

    /// Whether each batch has the samples that it would have without faults, except bad ones.
    pub fn has_fixed_batches(&self) -> bool {
        let run = &self.running.run;
        run.driver.lock().engine.has_fixed_batches()
    }

    /// Reports that the consumer has a batch of this many samples, and how long it waited.
    pub fn took(&self, samples: u64, waited: Duration, end: BatchEnd) {
        let run = &self.running.run;
        {
            let mut driver = run.driver.lock();
            driver.engine.taken();
            run.update_urgent(&driver);
        }
        run.delivered(samples, waited, end.0);
    }

    /// Reports that the consumer has seen the end.
    pub fn finish(&mut self) -> Result<()> {
        self.is_finished = true;
        self.end()
    }

    /// Sets a callback, called from any thread, for when an instruction is available.
    pub fn on_ready(&self, wake: impl Fn() + Send + Sync + 'static) {
        *self.running.run.instructions.wake.lock() = Some(Box::new(wake));
    }
}

impl Run {
    /// Hands over what the engine decides before the first result.
    pub(super) fn begin(&self) {
        let (queued, extras) = {
            let mut driver = self.driver.lock();
            let DriverWork { steps, extras } = driver.begin(self);
            self.update_urgent(&driver);
            (self.queue(steps), extras)
        };
        self.perform(queued);
        self.make_extras(extras, None);
    }
}

#[doc(hidden)]
impl Loader {
    /// The ledger of all epochs.
    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.shared.ledger)
    }

    /// The location of a sample.
    pub fn location(&self, index: u64) -> Option<Location> {
        self.shared.source.location(index)
    }

    /// The names of the fields, and how each becomes a column.
    pub fn fields(&self) -> Vec<(String, &'static str)> {
        let kind = |kind: &FieldKind| match kind {
            FieldKind::Fixed { .. } => "fixed",
            FieldKind::Ragged { .. } => "ragged",
            FieldKind::Variable { .. } => "variable",
            FieldKind::Bytes | FieldKind::Text | FieldKind::Json => "listed",
            FieldKind::List | FieldKind::Texts => "lists",
        };
        let fields = self.shared.columns.fields.iter();
        fields.map(|field| (field.name.to_string(), kind(&field.kind))).collect()
    }

    /// The seed of everything random, and the rank if there are several.
    pub fn seed_and_rank(&self) -> (u64, Option<u64>) {
        let plan = &self.shared.plan;
        (self.shared.seed, (plan.world() > 1).then(|| plan.rank()))
    }

    /// Refuses a loader that was closed, or that belongs to another process.
    pub fn check_open(&self) -> Result<()> {
        self.check()
    }
}
