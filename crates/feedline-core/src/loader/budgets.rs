//! The budgets of a loader. They are parts of what all loaders of the process share, so that a loader for training and
//! one for validation together stay within what one alone may use by default.

use std::sync::Arc;

use super::Ledger;
use crate::budget::{Budget, Claim, PeakMeter, Permit, ProcessBudget, Share};
use crate::config::Choice;
use crate::event::Event;
use crate::metrics::Resource;
use crate::sys::process::PerProcess;

/// What the loaders of this process share. A forked process has its own.
static MEMORY: PerProcess<ProcessBudget> = PerProcess::new(|| ProcessBudget::new("memory"));
static FILES: PerProcess<ProcessBudget> = PerProcess::new(|| ProcessBudget::new("files"));

/// Gives back what the loaders of this process hold without need: descriptors, warm memory, cached samples.
pub fn give_back_idle() {
    MEMORY.get().give_back_idle();
    FILES.get().give_back_idle();
}

/// The budgets of a loader.
pub(super) struct Budgets {
    /// For files and the values derived from them.
    pub(super) work: Budget,
    /// For batches, until the consumer drops them.
    pub(super) batches: Budget,
    /// For the working memory that threads keep between samples, during an epoch.
    pub(super) decoders: Budget,
    /// For descriptors.
    pub(super) files: Budget,
    /// All bytes together.
    memory: PeakMeter,
    _claims: [Claim; 2],
}

/// How much of something a loader may use, and whether the user has said so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) amount: u64,
    pub(super) share: Share,
}

impl Limit {
    /// `amount` was decided from `choice`.
    pub(super) fn of(choice: Choice, amount: u64) -> Limit {
        let share = match choice {
            Choice::Auto => Share::Within,
            Choice::Exactly(_) | Choice::Percent(_) => Share::Own,
        };
        Limit { amount, share }
    }
}

impl Budgets {
    /// Divides `memory`: `batches` and `decoders` are parts of it, the rest is for work.
    pub(super) fn new(memory: Limit, batches: u64, decoders: u64, files: Limit) -> Budgets {
        let meter = PeakMeter::default();
        let bytes = |name, limit| Budget::part_of(MEMORY.get(), memory.share, name, limit, &meter);
        let none = PeakMeter::default();
        Budgets {
            work: bytes(
                "files and samples",
                memory.amount.saturating_sub(batches + decoders).max(1),
            ),
            batches: bytes("batches", batches),
            decoders: bytes("decoders", decoders),
            files: Budget::part_of(FILES.get(), files.share, "files", files.amount, &none),
            memory: meter.clone(),
            _claims: [MEMORY.get().claim(memory.amount), FILES.get().claim(files.amount)],
        }
    }

    /// The bytes that each of `threads` threads keeps between samples, and the permit for them: as much as planned, or
    /// less if other loaders leave less.
    pub(super) fn keep(&self, threads: usize) -> (usize, Option<Permit>) {
        let threads = threads.max(1) as u64;
        let mut each = self.decoders.limit() / threads;
        while each > 0 {
            if let Some(permit) = self.decoders.try_acquire_spare(each * threads, 0) {
                return (usize::try_from(each).unwrap_or(usize::MAX), Some(permit));
            }
            each /= 2;
        }
        (0, None)
    }

    /// The peaks of memory and descriptors, of this loader and of all loaders of the process.
    pub(super) fn resources(&self) -> [(&'static str, Resource); 2] {
        let decided = self.work.decided() + self.batches.decided() + self.decoders.decided();
        let of = |peak, budget, whole: &ProcessBudget| Resource {
            peak,
            budget,
            process: Some((whole.peak(), whole.limit())),
        };
        [
            ("memory", of(self.memory.peak(), decided, MEMORY.get())),
            ("files", of(self.files.peak(), self.files.decided(), FILES.get())),
        ]
    }

    /// From now on, an event says when the system refuses what one of them allows.
    pub(super) fn note_in(&self, ledger: &Arc<Ledger>) {
        for budget in self.all() {
            let ledger = Arc::clone(ledger);
            budget.notify_shrunk(Box::new(move |shrunk| ledger.event(Event::BudgetShrunk(shrunk))));
        }
    }

    pub(super) fn reopen(&self) {
        for budget in self.all() {
            budget.reopen();
        }
    }

    pub(super) fn close(&self) {
        for budget in self.all() {
            budget.close();
        }
    }

    fn all(&self) -> [&Budget; 4] {
        [&self.work, &self.batches, &self.decoders, &self.files]
    }
}
