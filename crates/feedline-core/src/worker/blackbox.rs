//! The flight recorder: what a worker is at, in memory that outlives it, so that no message is needed
//! to know what a dead one was doing. And its journal, from which a replacement goes on.
//!
//! Two boxes for each worker, used in turn by the workers it has one after the other: a successor starts
//! while the one before it is still at work. The journal of a worker is read from both.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use crate::sys::descriptor::Descriptor;
use crate::sys::memory::Shared;

/// Bytes of a box.
const BOX: usize = 64 << 10;
/// Two records, so that one is whole while the other is written.
const RECORD: usize = 28 << 10;
const RECORDS: [usize; 2] = [4 << 10, (4 << 10) + RECORD];
/// Task plus one, then the length, then the bytes.
const RECORD_HEAD: usize = 16;

/// The position of a worker that is at all samples of its batch at once.
pub const ALL: u64 = u64::MAX;

/// Where a worker's words stand in its box, in units of eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxField {
    /// Position of the sample in the batch.
    Position,
    /// When that began, in nanoseconds of the monotonic clock.
    Since,
    /// Which part of the work.
    Stage,
    /// The task, plus one.
    Task,
    /// The generation of the process that writes here.
    Generation,
    /// Its resident memory in bytes, after its last task.
    Resident,
    /// How many bytes of its arena it may use. Written by the trainer.
    ArenaLimit,
    /// The oldest task that the trainer waits for: never held up for memory. Written by the trainer.
    Oldest,
    /// How many descriptors it has open, after its last task.
    Descriptors,
    /// Whether code in it has closed its connection to the trainer.
    IsCutOff,
}

/// What a worker was at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Not yet ready.
    Starting,
    /// Waiting for a task.
    Waiting,
    /// In the user's data set, at a sample.
    Fetching,
    /// In the function that makes a batch of samples.
    Collating,
    /// Pickling the result.
    Answering,
    /// Waiting for memory of its arena.
    OutOfArena,
    /// Waiting for the source of its samples to come back, or to try a sample again.
    Pausing,
    /// Sending the result: waiting for the trainer to take it.
    Sending,
}

const STAGES: [Activity; 8] = [
    Activity::Starting,
    Activity::Waiting,
    Activity::Fetching,
    Activity::Collating,
    Activity::Answering,
    Activity::OutOfArena,
    Activity::Pausing,
    Activity::Sending,
];

impl Activity {
    /// As it stands in the box.
    pub fn code(self) -> u64 {
        STAGES.iter().position(|stage| *stage == self).unwrap_or_default() as u64
    }

    /// What a code means; a wild one is taken for the first.
    fn of(code: u64) -> Activity {
        usize::try_from(code).ok().and_then(|code| STAGES.get(code)).copied().unwrap_or(STAGES[0])
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Starting => "starting",
            Activity::Waiting => "waiting",
            Activity::Fetching => "fetching",
            Activity::Collating => "collating",
            Activity::Answering => "answering",
            Activity::OutOfArena => "waiting for memory",
            Activity::Pausing => "waiting for its source",
            Activity::Sending => "sending its result",
        }
    }
}

/// What a box said at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What the worker was at.
    pub activity: Activity,
    /// On which task.
    pub task: Option<u64>,
    /// At which sample of it; None: at all of them.
    pub position: Option<u64>,
    /// Since when, in nanoseconds of the monotonic clock.
    pub since: u64,
    /// Its resident memory in bytes.
    pub resident_bytes: u64,
    /// How many descriptors it has open.
    pub descriptors: u64,
    /// Whether code in it has closed its connection to the trainer.
    pub is_cut_off: bool,
}

/// Which box: that of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Its worker.
    pub worker_id: u32,
    /// The how-manyeth there.
    pub generation: u32,
}

impl Owner {
    fn start(self) -> usize {
        (self.worker_id as usize * 2 + self.generation as usize % 2) * BOX
    }
}

/// The boxes of all workers.
pub(crate) struct Boxes {
    shared: Shared,
}

impl Boxes {
    /// For this many workers, and the descriptor by which workers map them.
    pub(crate) fn create(worker_count: u32) -> io::Result<(Descriptor, Boxes)> {
        let (file, shared) = Shared::create("feedline-boxes", worker_count as usize * 2 * BOX)?;
        Ok((file, Boxes { shared }))
    }

    /// The boxes that another process made.
    pub(crate) fn open(file: impl AsFd, worker_count: u32) -> io::Result<Boxes> {
        Ok(Boxes { shared: Shared::open(file, worker_count as usize * 2 * BOX)? })
    }

    /// Writes a word.
    pub(crate) fn set(&self, owner: Owner, word: BoxField, value: u64) {
        self.shared.word(owner.start() + word as usize * 8).store(value, Ordering::Release);
    }

    /// Writes a word into both boxes of a worker: the worker there reads it.
    pub(crate) fn set_for_worker(&self, worker_id: u32, word: BoxField, value: u64) {
        for generation in 0..2 {
            self.set(Owner { worker_id, generation }, word, value);
        }
    }

    /// Reads a word.
    pub(crate) fn get(&self, owner: Owner, word: BoxField) -> u64 {
        self.shared.word(owner.start() + word as usize * 8).load(Ordering::Acquire)
    }

    /// What a worker was at; None if it never came to write.
    pub(crate) fn snapshot(&self, owner: Owner) -> Option<Snapshot> {
        if self.get(owner, BoxField::Generation) != u64::from(owner.generation) + 1 {
            return None;
        }
        Some(Snapshot {
            activity: Activity::of(self.get(owner, BoxField::Stage)),
            task: self.get(owner, BoxField::Task).checked_sub(1),
            position: Some(self.get(owner, BoxField::Position)).filter(|position| *position != ALL),
            since: self.get(owner, BoxField::Since),
            resident_bytes: self.get(owner, BoxField::Resident),
            descriptors: self.get(owner, BoxField::Descriptors),
            is_cut_off: self.get(owner, BoxField::IsCutOff) != 0,
        })
    }

    /// Notes what a replacement needs to go on after `task`. False if it is too long to be kept.
    pub(crate) fn write_journal(&self, owner: Owner, task: u64, bytes: &[u8]) -> bool {
        if bytes.len() > RECORD - RECORD_HEAD {
            return false;
        }
        // The older of the two, so that a death in the middle leaves the newer.
        let [first, second] = RECORDS.map(|record| owner.start() + record);
        let older = |offset: usize| self.shared.word(offset).load(Ordering::Acquire);
        let target = if older(first) <= older(second) { first } else { second };
        self.shared.word(target).store(0, Ordering::Release);
        self.shared.word(target + 8).store(bytes.len() as u64, Ordering::Release);
        self.shared.write((target + RECORD_HEAD) as u64, bytes);
        self.shared.word(target).store(task + 1, Ordering::Release);
        true
    }

    /// The newest note that anybody at a worker made after a task older than `task`: what held when
    /// `task` began.
    pub(crate) fn read_journal(&self, worker_id: u32, task: u64) -> Option<Vec<u8>> {
        let (offset, _) = [0, 1]
            .into_iter()
            .flat_map(|generation| {
                RECORDS.map(|record| Owner { worker_id, generation }.start() + record)
            })
            .map(|offset| (offset, self.shared.word(offset).load(Ordering::Acquire)))
            .filter(|(_, noted)| (1..=task).contains(noted))
            .max_by_key(|(_, noted)| *noted)?;
        let length = usize::try_from(self.shared.word(offset + 8).load(Ordering::Acquire)).ok()?;
        if length > RECORD - RECORD_HEAD {
            return None;
        }
        let mut bytes = vec![0; length];
        self.shared.read((offset + RECORD_HEAD) as u64, &mut bytes).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxes() -> Boxes {
        Boxes::create(2).unwrap().1
    }

    fn owner(worker_id: u32, generation: u32) -> Owner {
        Owner { worker_id, generation }
    }

    #[test]
    fn a_box_tells_what_its_own_generation_was_at() {
        let boxes = boxes();
        assert_eq!(boxes.snapshot(owner(1, 0)), None);
        boxes.set(owner(1, 0), BoxField::Generation, 1);
        boxes.set(owner(1, 0), BoxField::Task, 8);
        boxes.set(owner(1, 0), BoxField::Position, 3);
        boxes.set(owner(1, 0), BoxField::Stage, Activity::Collating.code());
        let snapshot = boxes.snapshot(owner(1, 0)).unwrap();
        assert_eq!(
            (snapshot.activity, snapshot.task, snapshot.position),
            (Activity::Collating, Some(7), Some(3))
        );
        assert_eq!(boxes.snapshot(owner(1, 1)), None);
        assert_eq!(boxes.snapshot(owner(1, 2)), None);
        assert_eq!(boxes.snapshot(owner(0, 0)), None);
    }

    #[test]
    fn a_successor_that_starts_leaves_the_box_of_the_one_before_alone() {
        let boxes = boxes();
        boxes.set(owner(0, 4), BoxField::Generation, 5);
        boxes.set(owner(0, 4), BoxField::Position, 3);
        boxes.set(owner(0, 5), BoxField::Generation, 6);
        boxes.set(owner(0, 5), BoxField::Position, 9);
        assert_eq!(boxes.snapshot(owner(0, 4)).unwrap().position, Some(3));
        assert_eq!(boxes.snapshot(owner(0, 5)).unwrap().position, Some(9));
    }

    #[test]
    fn the_journal_gives_what_held_when_a_task_began() {
        let boxes = boxes();
        assert_eq!(boxes.read_journal(0, 5), None);
        assert!(boxes.write_journal(owner(0, 0), 0, b"after 0"));
        assert!(boxes.write_journal(owner(0, 0), 4, b"after 4"));
        // The answer to 4 may never have left: then 4 is done again, from what held before it.
        assert_eq!(boxes.read_journal(0, 4).unwrap(), b"after 0");
        assert_eq!(boxes.read_journal(0, 8).unwrap(), b"after 4");
        assert!(boxes.write_journal(owner(0, 1), 8, b"after 8"));
        assert_eq!(boxes.read_journal(0, 8).unwrap(), b"after 4");
        assert_eq!(boxes.read_journal(0, 9).unwrap(), b"after 8");
        assert_eq!(boxes.read_journal(0, 0), None);
        assert_eq!(boxes.read_journal(1, 9), None);
    }

    #[test]
    fn what_does_not_fit_is_not_noted_and_harms_nothing() {
        let boxes = boxes();
        assert!(boxes.write_journal(owner(0, 0), 1, b"kept"));
        assert!(!boxes.write_journal(owner(0, 0), 2, &vec![0; RECORD]));
        assert_eq!(boxes.read_journal(0, 3).unwrap(), b"kept");
    }
}
