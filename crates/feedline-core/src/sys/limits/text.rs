//! Parsers of the small formats that the kernel writes. Pure.

use serde::Serialize;

/// The number after a name at the start of a line.
pub(crate) fn named_number(text: &str, name: &str) -> Option<u64> {
    let has_name = |line: &&str| line.split_whitespace().next() == Some(name);
    text.lines().find(has_name)?.split_whitespace().nth(1)?.parse().ok()
}

/// The number of a file that has only one. The kernel writes "max", -1 or a huge number for no limit.
pub(super) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|number| *number < NO_LIMIT)
}

/// Kernels round the largest number to pages, so anything near it means that there is no limit.
const NO_LIMIT: u64 = 1 << 60;

/// A limit of a process. `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessLimit {
    /// What holds now.
    pub soft: Option<u64>,
    /// What the process may raise it to.
    pub hard: Option<u64>,
}

/// A line of /proc/PID/limits, such as "Max open files".
pub(super) fn process_limit(text: &str, name: &str) -> Option<ProcessLimit> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = rest.split_whitespace();
    let mut amount = || {
        let word = words.next()?;
        match word {
            "unlimited" => Some(None),
            number => number.parse().ok().map(Some),
        }
    };
    Some(ProcessLimit { soft: amount()?, hard: amount()? })
}

/// The number of processors in a list such as "0-3,8,10-11".
pub(super) fn list_length(text: &str) -> Option<u64> {
    let mut count = 0_u64;
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        count = count.saturating_add(last.checked_sub(first)?).saturating_add(1);
    }
    (count > 0).then_some(count)
}

/// How much of the time tasks wait for a resource, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pressure {
    /// At least one task waits, over the last 10 seconds.
    pub some_10s: f64,
    /// At least one task waits, over the last minute.
    pub some_60s: f64,
    /// All tasks wait at once, over the last 10 seconds.
    pub full_10s: f64,
    /// All tasks wait at once, over the last minute.
    pub full_60s: f64,
}

/// Pressure stall information. Older kernels have no line "full" for processors.
pub(super) fn pressure(text: &str) -> Option<Pressure> {
    let value = |kind: &str, key: &str| -> Option<f64> {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(kind))?;
        line.split_whitespace().find_map(|word| word.strip_prefix(key))?.parse().ok()
    };
    Some(Pressure {
        some_10s: value("some", "avg10=")?,
        some_60s: value("some", "avg60=")?,
        full_10s: value("full", "avg10=").unwrap_or(0.0),
        full_60s: value("full", "avg60=").unwrap_or(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_a_process_are_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max processes             96343                unlimited            processes \n\
                    Max open files            1024                 1048576              files     \n";
        let limit = |soft, hard| Some(ProcessLimit { soft, hard });
        assert_eq!(process_limit(text, "Max open files"), limit(Some(1024), Some(1_048_576)));
        assert_eq!(process_limit(text, "Max processes"), limit(Some(96343), None));
        assert_eq!(process_limit(text, "Max address space"), None);
        assert_eq!(process_limit("Max open files  many  more\n", "Max open files"), None);
    }

    #[test]
    fn lists_of_processors_are_counted() {
        for (text, count) in [
            ("0-3,8,10-11\n", Some(7)),
            ("5", Some(1)),
            ("0-127\n", Some(128)),
            ("", None),
            ("\n", None),
            ("3-1", None),
            ("a", None),
        ] {
            assert_eq!(list_length(text), count, "{text:?}");
        }
    }

    #[test]
    fn a_huge_number_and_a_word_are_no_limit() {
        for (text, limit) in [
            ("4294967296\n", Some(4 << 30)),
            ("max\n", None),
            ("-1\n", None),
            ("9223372036854771712\n", None),
        ] {
            assert_eq!(number(text), limit, "{text:?}");
        }
    }

    #[test]
    fn pressure_is_read_with_and_without_a_full_line() {
        let some = "some avg10=1.50 avg60=0.25 avg300=0.00 total=12\n";
        let full = "full avg10=0.50 avg60=0.10 avg300=0.00 total=3\n";
        let both = pressure(&format!("{some}{full}")).unwrap();
        assert_eq!((both.some_10s, both.full_60s), (1.5, 0.1));
        assert_eq!(pressure(some).unwrap().full_10s, 0.0);
        assert_eq!(pressure("nonsense"), None);
    }
}
