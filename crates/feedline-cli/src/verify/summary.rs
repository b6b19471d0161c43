//! The summary that verify prints: as lines, or as JSON.

use feedline_core::escape;
use serde_json::{Map, Value, json};

use super::tally::{MOST_CLASSES, Tally};
use crate::report::{bytes, counted};

/// Lines of a list that are printed; the rest is counted.
const LISTED: usize = 10;
/// Length of the longest bar of the histogram.
const BAR: u64 = 32;

/// The summary as lines, without the faults themselves. `titles` name what was verified, `names` are the names of
/// classes that are numbers.
pub(crate) fn lines(tally: &Tally, titles: &[String], names: &[String]) -> Vec<String> {
    let mut lines = vec![
        entry("files", &format!("{}: {}", tally.files, titles.join(", "))),
        entry("samples", &tally.samples.to_string()),
        entry("bytes", &bytes(tally.bytes)),
    ];
    lines.push(entry("faults", &faults(tally)));
    let kinds = tally.kinds();
    let width = kinds.iter().map(|(kind, _)| kind.name().len()).max().unwrap_or_default();
    lines.extend(listed(kinds.iter().map(|(kind, count)| {
        (*count, format!("{:<width$}  see: feedline explain {}", kind.name(), kind.code()))
    })));
    let shapes = tally.frequent_shapes();
    if !shapes.is_empty() {
        let pictures: u64 = shapes.iter().map(|(_, count)| count).sum();
        let sizes = counted(shapes.len() as u64, "size", "sizes");
        lines.push(entry("pictures", &format!("{pictures} of {sizes}")));
        lines.extend(listed(shapes.iter().map(|((format, width, height), count)| {
            (*count, format!("{format} {width} x {height}"))
        })));
    }
    let classes = tally.frequent_classes();
    let called = |class: &str| match class.parse().ok().and_then(|number: usize| names.get(number))
    {
        Some(name) => format!("{class} {}", escape::one_line(name)),
        None => escape::one_line(class).into_owned(),
    };
    if let (Some((_, most)), Some((_, least))) = (classes.first(), classes.last()) {
        let count = match classes.len() {
            many if many > MOST_CLASSES => format!("more than {MOST_CLASSES}"),
            count => count.to_string(),
        };
        let each = match least == most {
            true => format!("{} each", counted(*most, "sample", "samples")),
            false => format!("from {least} to {most} samples each"),
        };
        lines.push(entry("classes", &format!("{count}, {each}")));
        lines.extend(listed(classes.iter().map(|(class, count)| (*count, called(class)))));
    }
    if tally.samples > 0 {
        let (least, most) = (bytes(tally.sizes.least), bytes(tally.sizes.most));
        lines.push(entry("sizes", &format!("from {least} to {most}")));
        lines.extend(histogram(tally));
    }
    lines
}

fn entry(name: &str, value: &str) -> String {
    format!("{name:<9} {value}")
}

fn faults(tally: &Tally) -> String {
    let count = tally.faults.len() as u64;
    match count {
        0 => "none".into(),
        count if tally.samples == 0 => count.to_string(),
        count => {
            let share = count as f64 * 100.0 / tally.samples as f64;
            format!("{count}, {share:.2} % of the samples")
        }
    }
}

/// Counts with their nouns, below an entry.
fn listed(rows: impl ExactSizeIterator<Item = (u64, String)>) -> Vec<String> {
    let left = rows.len().saturating_sub(LISTED);
    let rows: Vec<_> = rows.take(LISTED).collect();
    let width = rows.iter().map(|(count, _)| count.to_string().len()).max().unwrap_or_default();
    let mut lines: Vec<_> = rows
        .into_iter()
        .map(|(count, what)| format!("{:<9} {count:>width$}  {what}", ""))
        .collect();
    if left > 0 {
        lines.push(format!("{:<9} {:>width$}  and {left} more", "", "..."));
    }
    lines
}

fn histogram(tally: &Tally) -> Vec<String> {
    let steps: Vec<_> = tally.sizes.steps().collect();
    let tallest = steps.iter().map(|(_, _, count)| *count).max().unwrap_or_default().max(1);
    let name = |low: u64, high: u64| match low == high {
        true => bytes(low),
        false => format!("{} to {}", bytes(low), bytes(high)),
    };
    let width = steps.iter().map(|(low, high, _)| name(*low, *high).len()).max();
    let width = width.unwrap_or_default();
    let mut lines = Vec::new();
    let line = |(low, high, count): &(u64, u64, u64)| {
        let bar = "#".repeat((count * BAR).div_ceil(tallest) as usize);
        let count = if *count > 0 { format!(" {count}") } else { String::new() };
        format!("{:<9} {:<width$}  {bar}{count}", "", name(*low, *high)).trim_end().to_owned()
    };
    for run in steps.chunk_by(|one, other| (one.2 == 0) == (other.2 == 0)) {
        match run {
            [(_, _, 0), _, _, ..] => lines.push(format!("{:<9} ...", "")),
            some => lines.extend(some.iter().map(line)),
        }
    }
    lines
}

/// The summary as JSON, with the faults in the format of the quarantine file.
pub(crate) fn json(tally: &Tally, time: f64) -> Value {
    let map = |entries: Vec<(String, u64)>| -> Map<String, Value> {
        entries.into_iter().map(|(name, count)| (name, count.into())).collect()
    };
    let kinds = tally.kinds().into_iter().map(|(kind, count)| (kind.name().to_owned(), count));
    let classes = tally.classes.iter().map(|(class, count)| (class.clone(), *count));
    let shapes = tally.frequent_shapes();
    let shapes = shapes.iter().map(|((format, width, height), count)| {
        json!({"format": format, "width": width, "height": height, "count": count})
    });
    let sizes = tally
        .sizes
        .steps()
        .map(|(low, high, count)| json!({"from": low, "to": high, "count": count}));
    let faults = tally.faults.iter().map(|fault| {
        serde_json::to_value(fault.line(time)).expect("text and numbers can always be written")
    });
    json!({
        "files": tally.files,
        "samples": tally.samples,
        "bytes": tally.bytes,
        "bad": tally.faults.len(),
        "kinds": map(kinds.collect()),
        "pictures": shapes.collect::<Vec<_>>(),
        "classes": map(classes.collect()),
        "sizes": sizes.collect::<Vec<_>>(),
        "faults": faults.collect::<Vec<_>>(),
    })
}
