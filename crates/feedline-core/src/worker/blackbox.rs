//! The black box: what a worker is doing, in memory that outlives it, so no message is needed to
//! know what a dead worker did. It also holds a journal, from which a replacement continues.
//!
//! Each worker has two boxes, used in turn by its processes, because a successor starts while its
//! predecessor still works. The journal of a worker is read from both.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};

use crate::sys::descriptor::Descriptor;
use crate::sys::memory::SharedMemory;

/// The size of a box in bytes.
const BOX: usize = 64 << 10;
/// Two journal records, so that one is complete while the other is written.
const RECORD: usize = 28 << 10;
const RECORDS: [usize; 2] = [4 << 10, (4 << 10) + RECORD];
/// The task plus one, then the length, then the bytes.
const RECORD_HEAD: usize = 16;

/// The offset of a worker that loads all samples of its batch at once.
pub const ALL: u64 = u64::MAX;

/// The fields of a box, at multiples of eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxField {
    /// The offset of the sample in the batch.
    Offset,
    /// When the activity began, in nanoseconds of the monotonic clock.
    Since,
    /// The [`Activity`].
    Activity,
    /// The task, plus one.
    Task,
    /// The generation of the process that writes here, plus one.
    Generation,
    /// Resident memory in bytes, after the last task.
    Resident,
    /// The bytes that the arenas of all workers may use together. The trainer writes this.
    ArenaLimit,
    /// The oldest task that the trainer waits for; it never waits for memory. The trainer writes
    /// this.
    Oldest,
    /// The number of open descriptors, after the last task.
    Descriptors,
    /// Whether code in the worker has closed the connection to the trainer.
    IsDisconnected,
    /// The bytes of the slots in its arena, including those that it is about to take.
    ArenaUsed,
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It is not ready yet.
    Starting,
    /// It waits for a task.
    Waiting,
    /// It runs the user's data set, to load a sample.
    Fetching,
    /// It runs the function that collates samples into a batch.
    Collating,
    /// It pickles the result.
    Answering,
    /// It waits for memory of its arena.
    OutOfArena,
    /// It waits for its data source to recover, or to retry a sample.
    Pausing,
    /// It sends the result, and waits for the trainer to receive it.
    Sending,
}

const ACTIVITIES: [Activity; 8] = [
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
    /// The value stored in the box.
    pub fn code(self) -> u64 {
        ACTIVITIES.iter().position(|activity| *activity == self).unwrap_or_default() as u64
    }

    /// The activity of a stored value; an unknown value becomes the first.
    fn from_code(code: u64) -> Activity {
        usize::try_from(code)
            .ok()
            .and_then(|code| ACTIVITIES.get(code))
            .copied()
            .unwrap_or(ACTIVITIES[0])
    }

    /// The name used in messages.
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

/// The content of a box at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What the worker was doing.
    pub activity: Activity,
    /// The task in progress.
    pub task: Option<u64>,
    /// The offset of the sample in progress; `None` for all samples at once.
    pub offset: Option<u64>,
    /// When the activity began, in nanoseconds of the monotonic clock.
    pub since: u64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// The number of open descriptors.
    pub descriptors: u64,
    /// Whether code in the worker has closed the connection to the trainer.
    pub is_disconnected: bool,
}

/// The worker process that a box belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The worker.
    pub worker_id: u32,
    /// The generation of its process.
    pub generation: u32,
}

impl Owner {
    fn start(self) -> usize {
        (self.worker_id as usize * 2 + self.generation as usize % 2) * BOX
    }
}

/// The boxes of all workers.
pub(crate) struct Boxes {
    shared: SharedMemory,
}

impl Boxes {
    /// Creates the boxes of this many workers, and the descriptor with which workers map them.
    pub(crate) fn create(worker_count: u32) -> io::Result<(Descriptor, Boxes)> {
        let (file, shared) =
            SharedMemory::create("feedline-boxes", worker_count as usize * 2 * BOX)?;
        Ok((file, Boxes { shared }))
    }

    /// Maps the boxes that another process created.
    pub(crate) fn open(file: impl AsFd, worker_count: u32) -> io::Result<Boxes> {
        Ok(Boxes { shared: SharedMemory::open(file, worker_count as usize * 2 * BOX)? })
    }

    /// Writes a field.
    pub(crate) fn set(&self, owner: Owner, field: BoxField, value: u64) {
        self.shared.word(owner.start() + field as usize * 8).store(value, Ordering::Release);
    }

    /// Writes a field into both boxes of a worker.
    pub(crate) fn set_for_worker(&self, worker_id: u32, field: BoxField, value: u64) {
        for generation in 0..2 {
            self.set(Owner { worker_id, generation }, field, value);
        }
    }

    /// Reads a field.
    pub(crate) fn get(&self, owner: Owner, field: BoxField) -> u64 {
        self.shared.word(owner.start() + field as usize * 8).load(Ordering::Acquire)
    }

    /// The sum of a field over all processes but `owner`.
    pub(crate) fn sum_of_others(&self, owner: Owner, field: BoxField) -> u64 {
        // What this process wrote before must be visible to the others by now: of two that take
        // memory at the same time, at least one sees the other.
        fence(Ordering::SeqCst);
        self.sum_where(field, |start| start != owner.start())
    }

    /// The sum of a field over all processes.
    pub(crate) fn sum(&self, field: BoxField) -> u64 {
        self.sum_where(field, |_| true)
    }

    fn sum_where(&self, field: BoxField, counts: impl Fn(usize) -> bool) -> u64 {
        (0..self.shared.bytes() / BOX)
            .map(|number| number * BOX)
            .filter(|start| counts(*start))
            .map(|start| self.shared.word(start + field as usize * 8).load(Ordering::SeqCst))
            .fold(0, u64::saturating_add)
    }

    /// What a worker was doing; `None` if it never wrote its box.
    pub(crate) fn snapshot(&self, owner: Owner) -> Option<Snapshot> {
        if self.get(owner, BoxField::Generation) != u64::from(owner.generation) + 1 {
            return None;
        }
        Some(Snapshot {
            activity: Activity::from_code(self.get(owner, BoxField::Activity)),
            task: self.get(owner, BoxField::Task).checked_sub(1),
            offset: Some(self.get(owner, BoxField::Offset)).filter(|offset| *offset != ALL),
            since: self.get(owner, BoxField::Since),
            resident_bytes: self.get(owner, BoxField::Resident),
            descriptors: self.get(owner, BoxField::Descriptors),
            is_disconnected: self.get(owner, BoxField::IsDisconnected) != 0,
        })
    }

    /// Writes what a replacement needs to continue after `task`. Returns false if it is too long.
    pub(crate) fn write_journal(&self, owner: Owner, task: u64, bytes: &[u8]) -> bool {
        if bytes.len() > RECORD - RECORD_HEAD {
            return false;
        }
        // Overwrite the older record, so that a death in the middle leaves the newer one.
        let [first, second] = RECORDS.map(|record| owner.start() + record);
        let written_after = |offset: usize| self.shared.word(offset).load(Ordering::Acquire);
        let target = if written_after(first) <= written_after(second) { first } else { second };
        self.shared.word(target).store(0, Ordering::Release);
        self.shared.word(target + 8).store(bytes.len() as u64, Ordering::Release);
        self.shared.write((target + RECORD_HEAD) as u64, bytes);
        self.shared.word(target).store(task + 1, Ordering::Release);
        true
    }

    /// The newest record that any process of a worker wrote after a task before `task`: the state
    /// when `task` began.
    pub(crate) fn read_journal(&self, worker_id: u32, task: u64) -> Option<Vec<u8>> {
        let (offset, _) = [0, 1]
            .into_iter()
            .flat_map(|generation| {
                RECORDS.map(|record| Owner { worker_id, generation }.start() + record)
            })
            .map(|offset| (offset, self.shared.word(offset).load(Ordering::Acquire)))
            .filter(|(_, task_plus_one)| (1..=task).contains(task_plus_one))
            .max_by_key(|(_, task_plus_one)| *task_plus_one)?;
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
    fn a_snapshot_shows_only_its_own_generation() {
        let boxes = boxes();
        assert_eq!(boxes.snapshot(owner(1, 0)), None);
        boxes.set(owner(1, 0), BoxField::Generation, 1);
        boxes.set(owner(1, 0), BoxField::Task, 8);
        boxes.set(owner(1, 0), BoxField::Offset, 3);
        boxes.set(owner(1, 0), BoxField::Activity, Activity::Collating.code());
        let snapshot = boxes.snapshot(owner(1, 0)).unwrap();
        assert_eq!(
            (snapshot.activity, snapshot.task, snapshot.offset),
            (Activity::Collating, Some(7), Some(3))
        );
        assert_eq!(boxes.snapshot(owner(1, 1)), None);
        assert_eq!(boxes.snapshot(owner(1, 2)), None);
        assert_eq!(boxes.snapshot(owner(0, 0)), None);
    }

    #[test]
    fn a_successor_does_not_overwrite_the_box_of_its_predecessor() {
        let boxes = boxes();
        boxes.set(owner(0, 4), BoxField::Generation, 5);
        boxes.set(owner(0, 4), BoxField::Offset, 3);
        boxes.set(owner(0, 5), BoxField::Generation, 6);
        boxes.set(owner(0, 5), BoxField::Offset, 9);
        assert_eq!(boxes.snapshot(owner(0, 4)).unwrap().offset, Some(3));
        assert_eq!(boxes.snapshot(owner(0, 5)).unwrap().offset, Some(9));
    }

    #[test]
    fn a_sum_leaves_out_the_process_itself_and_counts_its_successor() {
        let boxes = boxes();
        boxes.set(owner(0, 0), BoxField::ArenaUsed, 1);
        boxes.set(owner(0, 1), BoxField::ArenaUsed, 10);
        boxes.set(owner(1, 4), BoxField::ArenaUsed, 100);
        assert_eq!(boxes.sum_of_others(owner(0, 0), BoxField::ArenaUsed), 110);
        assert_eq!(boxes.sum_of_others(owner(1, 4), BoxField::ArenaUsed), 11);
        boxes.set(owner(0, 0), BoxField::ArenaUsed, u64::MAX);
        assert_eq!(boxes.sum_of_others(owner(1, 4), BoxField::ArenaUsed), u64::MAX);
    }

    #[test]
    fn the_journal_returns_the_state_when_a_task_began() {
        let boxes = boxes();
        assert_eq!(boxes.read_journal(0, 5), None);
        assert!(boxes.write_journal(owner(0, 0), 0, b"after 0"));
        assert!(boxes.write_journal(owner(0, 0), 4, b"after 4"));
        // The result of 4 may never have arrived: then 4 is repeated from the state before it.
        assert_eq!(boxes.read_journal(0, 4).unwrap(), b"after 0");
        assert_eq!(boxes.read_journal(0, 8).unwrap(), b"after 4");
        assert!(boxes.write_journal(owner(0, 1), 8, b"after 8"));
        assert_eq!(boxes.read_journal(0, 8).unwrap(), b"after 4");
        assert_eq!(boxes.read_journal(0, 9).unwrap(), b"after 8");
        assert_eq!(boxes.read_journal(0, 0), None);
        assert_eq!(boxes.read_journal(1, 9), None);
    }

    #[test]
    fn a_record_that_does_not_fit_is_refused_and_the_last_one_stays() {
        let boxes = boxes();
        assert!(boxes.write_journal(owner(0, 0), 1, b"kept"));
        assert!(!boxes.write_journal(owner(0, 0), 2, &vec![0; RECORD]));
        assert_eq!(boxes.read_journal(0, 3).unwrap(), b"kept");
    }
}
