//! The flight recorder: what a worker is at, in memory that outlives it, so that no message is needed
//! to know what a dead one was doing. And its journal, from which a replacement goes on.
//!
//! One box for each post; a replacement takes over the box of its post.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use crate::sys::memory::Shared;

/// Bytes of a box.
const BOX: usize = 64 << 10;
/// Two records, so that one is whole while the other is written.
const RECORD: usize = 28 << 10;
const RECORDS: [usize; 2] = [4 << 10, (4 << 10) + RECORD];
/// Task plus one, then the length, then the bytes.
const RECORD_HEAD: usize = 16;

/// Where a worker's words stand in its box, in units of eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
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
}

/// What a worker was at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Not yet ready.
    Starting,
    /// Waiting for a task.
    Waiting,
    /// In the user's data set, at a sample.
    Fetching,
    /// In the function that makes a batch of samples.
    Collating,
    /// Writing the answer.
    Answering,
    /// Waiting for memory of its arena.
    OutOfArena,
}

const STAGES: [Doing; 6] = [
    Doing::Starting,
    Doing::Waiting,
    Doing::Fetching,
    Doing::Collating,
    Doing::Answering,
    Doing::OutOfArena,
];

impl Doing {
    /// As it stands in the box.
    pub fn code(self) -> u64 {
        STAGES.iter().position(|stage| *stage == self).unwrap_or_default() as u64
    }

    /// What a code means; a wild one is taken for the first.
    fn of(code: u64) -> Doing {
        usize::try_from(code).ok().and_then(|code| STAGES.get(code)).copied().unwrap_or(STAGES[0])
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Doing::Starting => "starting",
            Doing::Waiting => "waiting",
            Doing::Fetching => "fetching",
            Doing::Collating => "collating",
            Doing::Answering => "answering",
            Doing::OutOfArena => "waiting for memory",
        }
    }
}

/// What a box said at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What the worker was at.
    pub doing: Doing,
    /// On which task.
    pub task: Option<u64>,
    /// At which sample of it.
    pub position: u64,
    /// Since when, in nanoseconds of the monotonic clock.
    pub since: u64,
    /// Its resident memory in bytes.
    pub resident_bytes: u64,
}

/// The boxes of all posts.
pub struct Boxes {
    shared: Shared,
}

impl Boxes {
    /// One for each post, and the descriptor by which workers map them.
    pub fn create(posts: u32) -> io::Result<(OwnedFd, Boxes)> {
        let (file, shared) = Shared::create("feedline-boxes", posts as usize * BOX)?;
        Ok((file, Boxes { shared }))
    }

    /// The boxes that another process made.
    pub fn open(file: impl AsFd, posts: u32) -> io::Result<Boxes> {
        Ok(Boxes { shared: Shared::open(file, posts as usize * BOX)? })
    }

    fn offset(post: u32, word: Word) -> usize {
        post as usize * BOX + word as usize * 8
    }

    /// Writes a word.
    pub fn set(&self, post: u32, word: Word, value: u64) {
        self.shared.word(Boxes::offset(post, word)).store(value, Ordering::Release);
    }

    /// Reads a word.
    pub fn get(&self, post: u32, word: Word) -> u64 {
        self.shared.word(Boxes::offset(post, word)).load(Ordering::Acquire)
    }

    /// What the worker of that generation was at; None if it never came to write.
    pub fn snapshot(&self, post: u32, generation: u32) -> Option<Snapshot> {
        if self.get(post, Word::Generation) != u64::from(generation) + 1 {
            return None;
        }
        Some(Snapshot {
            doing: Doing::of(self.get(post, Word::Stage)),
            task: self.get(post, Word::Task).checked_sub(1),
            position: self.get(post, Word::Position),
            since: self.get(post, Word::Since),
            resident_bytes: self.get(post, Word::Resident),
        })
    }

    /// Notes what a replacement needs to go on after `task`. False if it is too long to be kept.
    pub fn write_journal(&self, post: u32, task: u64, bytes: &[u8]) -> bool {
        if bytes.len() > RECORD - RECORD_HEAD {
            return false;
        }
        // The older of the two, so that a death in the middle leaves the newer.
        let [first, second] = RECORDS.map(|record| post as usize * BOX + record);
        let older = |offset: usize| self.shared.word(offset).load(Ordering::Acquire);
        let target = if older(first) <= older(second) { first } else { second };
        self.shared.word(target).store(0, Ordering::Release);
        self.shared.word(target + 8).store(bytes.len() as u64, Ordering::Release);
        self.shared.write((target + RECORD_HEAD) as u64, bytes);
        self.shared.word(target).store(task + 1, Ordering::Release);
        true
    }

    /// The newest note made after a task older than `task`: what held when `task` began.
    pub fn read_journal(&self, post: u32, task: u64) -> Option<Vec<u8>> {
        let records = RECORDS.map(|record| post as usize * BOX + record);
        let (offset, _) = records
            .map(|offset| (offset, self.shared.word(offset).load(Ordering::Acquire)))
            .into_iter()
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

    #[test]
    fn a_box_tells_what_its_own_generation_was_at() {
        let boxes = boxes();
        assert_eq!(boxes.snapshot(1, 0), None);
        boxes.set(1, Word::Generation, 1);
        boxes.set(1, Word::Task, 8);
        boxes.set(1, Word::Position, 3);
        boxes.set(1, Word::Stage, Doing::Collating.code());
        let snapshot = boxes.snapshot(1, 0).unwrap();
        assert_eq!(
            (snapshot.doing, snapshot.task, snapshot.position),
            (Doing::Collating, Some(7), 3)
        );
        assert_eq!(boxes.snapshot(1, 1), None);
        assert_eq!(boxes.snapshot(0, 0), None);
    }

    #[test]
    fn the_journal_gives_what_held_when_a_task_began() {
        let boxes = boxes();
        assert_eq!(boxes.read_journal(0, 5), None);
        assert!(boxes.write_journal(0, 0, b"after 0"));
        assert!(boxes.write_journal(0, 4, b"after 4"));
        // The answer to 4 may never have left: then 4 is done again, from what held before it.
        assert_eq!(boxes.read_journal(0, 4).unwrap(), b"after 0");
        assert_eq!(boxes.read_journal(0, 8).unwrap(), b"after 4");
        assert!(boxes.write_journal(0, 8, b"after 8"));
        assert_eq!(boxes.read_journal(0, 8).unwrap(), b"after 4");
        assert_eq!(boxes.read_journal(0, 0), None);
        assert_eq!(boxes.read_journal(1, 9), None);
    }

    #[test]
    fn what_does_not_fit_is_not_noted_and_harms_nothing() {
        let boxes = boxes();
        assert!(boxes.write_journal(0, 1, b"kept"));
        assert!(!boxes.write_journal(0, 2, &vec![0; RECORD]));
        assert_eq!(boxes.read_journal(0, 3).unwrap(), b"kept");
    }
}
