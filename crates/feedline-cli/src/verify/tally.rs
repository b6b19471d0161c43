//! Counts and faults of a data set, or of a part of it.

use feedline_core::error::{Error, Kind};
use feedline_core::escape;
use feedline_core::fault::FaultLine;
use feedline_core::sample::Location;
use std::collections::HashMap;
use std::path::Path;

/// More labels than this are not treated as classes.
pub(crate) const MOST_CLASSES: usize = 100_000;

/// A bad file, or a bad record of a file.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// Index that a loader has for the sample.
    pub(crate) index: Option<u64>,
    pub(crate) place: Location,
    pub(crate) kind: Kind,
    pub(crate) stage: &'static str,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(
        index: Option<u64>,
        place: Location,
        stage: &'static str,
        error: &Error,
    ) -> Fault {
        Fault { index, place, kind: error.kind(), stage, message: error.message().to_owned() }
    }

    /// A fault of a whole file, so that no sample has an index.
    pub(crate) fn of_file(path: &Path, error: &Error) -> Fault {
        Fault::new(None, Location::file(path), "source", error)
    }

    /// The fault in the format of the quarantine file.
    pub(crate) fn line(&self, time: f64) -> FaultLine {
        let kind = self.kind.name();
        let line = match self.index {
            Some(index) => FaultLine::new(index, kind),
            None => FaultLine::new(serde_json::Value::Null, kind),
        };
        FaultLine {
            path: Some(self.place.path.to_string_lossy().into_owned()),
            offset: self.place.offset,
            record: self.place.record,
            stage: self.stage.to_owned(),
            message: self.message.clone(),
            time,
            ..line
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The place already has the number.
        let number = self.place.record.map(|record| format!("record {record} is corrupt: "));
        let message = number.and_then(|number| self.message.strip_prefix(&number));
        let message = message.unwrap_or(&self.message);
        let message = escape::one_line(message);
        write!(formatter, "{}: {}: {message}", self.place, self.kind.name())
    }
}

/// A histogram of sample sizes by powers of two.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) counts: [u64; 65],
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { counts: [0; 65], least: u64::MAX, most: 0 }
    }
}

impl Sizes {
    fn add(&mut self, size: u64) {
        self.counts[(u64::BITS - size.leading_zeros()) as usize] += 1;
        self.least = self.least.min(size);
        self.most = self.most.max(size);
    }

    fn merge(&mut self, other: &Sizes) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
    }

    /// The bins from the first to the last that is not empty: the sizes, and the count.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let is_full = |count: &u64| *count > 0;
        let first = self.counts.iter().position(is_full).unwrap_or(0);
        let end = self.counts.iter().rposition(is_full).map_or(0, |last| last + 1);
        (first..end).map(|place| {
            let low = if place == 0 { 0 } else { 1 << (place - 1) };
            let high = if place == 0 { 0 } else { low + (low - 1) };
            (low, high, self.counts[place])
        })
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) files: u64,
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
    pub(crate) sizes: Sizes,
    /// How often each format, width and height of images occurs.
    pub(crate) shapes: HashMap<(&'static str, usize, usize), u64>,
    pub(crate) classes: HashMap<String, u64>,
    pub(crate) faults: Vec<Fault>,
}

impl Tally {
    /// Counts a sample of this size.
    pub(crate) fn sample(&mut self, size: u64) {
        self.samples += 1;
        self.sizes.add(size);
    }

    pub(crate) fn picture(&mut self, format: &'static str, width: usize, height: usize) {
        *self.shapes.entry((format, width, height)).or_default() += 1;
    }

    pub(crate) fn class(&mut self, name: &str) {
        let is_full = self.classes.len() > MOST_CLASSES;
        match self.classes.get_mut(name) {
            Some(count) => *count += 1,
            None if is_full => {}
            None => {
                self.classes.insert(name.to_owned(), 1);
            }
        }
    }

    /// Adds the counts of the part that follows.
    pub(crate) fn merge(&mut self, other: Tally) {
        self.files += other.files;
        self.samples += other.samples;
        self.bytes += other.bytes;
        self.sizes.merge(&other.sizes);
        for (shape, count) in other.shapes {
            *self.shapes.entry(shape).or_default() += count;
        }
        for (class, count) in other.classes {
            if self.classes.len() <= MOST_CLASSES || self.classes.contains_key(&class) {
                *self.classes.entry(class).or_default() += count;
            }
        }
        self.faults.extend(other.faults);
    }

    /// Number of faults of each kind, the most frequent first.
    pub(crate) fn kinds(&self) -> Vec<(Kind, u64)> {
        let mut kinds: Vec<(Kind, u64)> = Vec::new();
        for fault in &self.faults {
            match kinds.iter_mut().find(|(kind, _)| *kind == fault.kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((fault.kind, 1)),
            }
        }
        kinds.sort_by_key(|(kind, count)| (std::cmp::Reverse(*count), kind.code()));
        kinds
    }

    /// Sizes of images, the most frequent first.
    pub(crate) fn frequent_shapes(&self) -> Vec<((&'static str, usize, usize), u64)> {
        let mut shapes: Vec<_> =
            self.shapes.iter().map(|(shape, count)| (*shape, *count)).collect();
        shapes.sort_by_key(|(shape, count)| (std::cmp::Reverse(*count), *shape));
        shapes
    }

    /// The classes, the most frequent first, equal ones in natural order.
    pub(crate) fn frequent_classes(&self) -> Vec<(&str, u64)> {
        let mut classes: Vec<_> =
            self.classes.iter().map(|(class, count)| (class.as_str(), *count)).collect();
        classes.sort_by(|(one, fewer), (other, more)| {
            more.cmp(fewer).then(one.len().cmp(&other.len())).then(one.cmp(other))
        });
        classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_by_powers_of_two() {
        let mut sizes = Sizes::default();
        for size in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            sizes.add(size);
        }
        let steps: Vec<_> = sizes.steps().filter(|(_, _, count)| *count > 0).collect();
        assert_eq!(
            steps,
            [
                (0, 0, 1),
                (1, 1, 1),
                (2, 3, 2),
                (4, 7, 1),
                (512, 1023, 1),
                (1024, 2047, 1),
                (1 << 63, u64::MAX, 1)
            ]
        );
        assert_eq!(sizes.steps().map(|(_, _, count)| count).sum::<u64>(), 8);
        assert_eq!((sizes.least, sizes.most), (0, u64::MAX));
    }

    #[test]
    fn parts_add_up_however_the_data_is_divided() {
        let one = |number: u64| {
            let mut tally = Tally { bytes: number, ..Tally::default() };
            tally.sample(number);
            tally.picture("PNG", number as usize % 3, 1);
            tally.class(&(number % 2).to_string());
            tally
        };
        let mut whole = Tally::default();
        (0..10).for_each(|number| whole.merge(one(number)));
        let mut halves = [Tally::default(), Tally::default()];
        (0..10).for_each(|number| halves[usize::from(number > 3)].merge(one(number)));
        let [mut sum, second] = halves;
        sum.merge(second);
        assert_eq!(sum.frequent_shapes(), whole.frequent_shapes());
        assert_eq!(sum.frequent_classes(), [("0", 5), ("1", 5)]);
        assert_eq!((sum.samples, sum.bytes), (10, 45));
        assert_eq!(sum.sizes.counts, whole.sizes.counts);
    }
}
