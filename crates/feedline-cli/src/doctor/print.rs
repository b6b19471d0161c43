//! A diagnosis as text that fits on a screen: findings first, numbers below.

use feedline_core::escape;

use super::diagnosis::{Diagnosis, Finding};

/// The screen.
pub(crate) const LINES: usize = 24;
pub(crate) const COLUMNS: usize = 100;
/// Where the text of a finding begins.
const INDENT: usize = 9;

/// The text, at most one screen of it.
pub(crate) fn text(diagnosis: &Diagnosis) -> String {
    let facts = facts(diagnosis);
    // An empty line, and the line that counts what is left out.
    let room = LINES.saturating_sub(facts.len() + 2);
    let mut lines = Vec::new();
    let mut shown = 0;
    for finding in &diagnosis.findings {
        let finding = finding_lines(finding);
        if lines.len() + finding.len() > room {
            break;
        }
        lines.extend(finding);
        shown += 1;
    }
    match diagnosis.findings.len() - shown {
        0 if shown == 0 => lines.push(format!("{:<INDENT$}{}", "good", diagnosis.good)),
        0 => {}
        1 => lines.push(format!("{:<INDENT$}1 more finding: see --json", "")),
        more => lines.push(format!("{:<INDENT$}{more} more findings: see --json", "")),
    }
    if !facts.is_empty() {
        lines.push(String::new());
        lines.extend(facts);
    }
    lines.join("\n")
}

fn finding_lines(finding: &Finding) -> Vec<String> {
    let text = escape::one_line(&finding.text);
    let mut lines = wrapped(&text, finding.severity.name(), INDENT);
    if let Some(fix) = &finding.fix {
        let fix = format!("fix: {}", escape::one_line(fix));
        lines.extend(wrapped(&fix, "", INDENT));
    }
    lines
}

/// Breaks a text into lines of at most one screen's width, with a word before the first of them.
pub(crate) fn wrapped(text: &str, first: &str, indent: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = format!("{first:<indent$}");
    let mut is_begun = false;
    for word in text.split(' ') {
        let length = line.chars().count() + word.chars().count() + usize::from(is_begun);
        if is_begun && length > COLUMNS {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            is_begun = false;
        }
        if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    lines.push(line);
    lines
}

fn facts(diagnosis: &Diagnosis) -> Vec<String> {
    if diagnosis.facts.is_empty() {
        return Vec::new();
    }
    let heading = diagnosis.headings.map(str::to_owned);
    let rows = diagnosis.facts.iter().map(|fact| {
        [&fact.name, &fact.value, &fact.choice].map(|text| escape::one_line(text).into_owned())
    });
    let heading = Some(heading).filter(|heading| heading.iter().any(|word| !word.is_empty()));
    let rows: Vec<[String; 3]> = heading.into_iter().chain(rows).collect();
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let (names, choices) = (width(0).max(INDENT - 2), width(2));
    let values = width(1).min(COLUMNS.saturating_sub(names + choices + 4));
    let line = |row: &[String; 3]| {
        let value = shortened(&row[1], values);
        let line = format!("{:<names$}  {value:<values$}  {}", row[0], row[2]);
        shortened(line.trim_end(), COLUMNS)
    };
    rows.iter().map(line).collect()
}

fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(3)).collect();
    format!("{kept}...")
}

#[cfg(test)]
mod tests {
    use super::super::diagnosis::{Fact, Finding, Severity};
    use super::*;

    fn diagnosis(findings: usize, facts: usize) -> Diagnosis {
        let words = "a word ".repeat(30);
        Diagnosis {
            subject: "machine",
            good: "nothing was found".into(),
            findings: (0..findings)
                .map(|_| Finding::danger("one", words.clone()).fix("x".repeat(300)))
                .collect(),
            headings: ["", "allows", "chooses"],
            facts: (0..facts).map(|_| Fact::new("name", "v".repeat(200), "c")).collect(),
            details: serde_json::Value::Null,
        }
    }

    #[test]
    fn any_diagnosis_fits_on_one_screen() {
        for (findings, facts) in [(0, 0), (0, 6), (1, 0), (3, 6), (40, 6), (40, 12)] {
            let text = text(&diagnosis(findings, facts));
            assert!(text.lines().count() <= LINES, "{text}");
            // A single word that is too long is not broken: it is a command to copy.
            let is_command = |line: &&str| line.contains("xxxxx");
            let widest =
                text.lines().filter(|line| !is_command(line)).map(|line| line.chars().count());
            assert!(widest.max().unwrap_or_default() <= COLUMNS, "{text}");
        }
    }

    #[test]
    fn findings_that_are_left_out_are_counted() {
        assert!(text(&diagnosis(40, 6)).contains("more findings: see --json"));
        assert!(text(&diagnosis(0, 0)).starts_with("good     nothing was found"));
        assert_eq!(Severity::Danger.name(), "danger");
    }
}
