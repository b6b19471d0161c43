//! What the doctor found, as values: findings, what is allowed and what Feedline chooses.

use serde_json::{Value, json};

/// How bad a finding is, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Loading will probably fail, or does already.
    Danger,
    /// Loading may fail, or is slower than it could be.
    Warning,
    /// Good to know.
    Note,
}

impl Severity {
    /// Its name in the output.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Severity::Danger => "danger",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// Something that the reader should know or do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// How bad it is.
    pub(crate) severity: Severity,
    /// A name for programs, which stays the same.
    pub(crate) name: &'static str,
    /// What is the case, with numbers, and what comes of it.
    pub(crate) text: String,
    /// A command or a setting that changes it.
    pub(crate) fix: Option<String>,
}

impl Finding {
    pub(crate) fn new(severity: Severity, name: &'static str, text: impl Into<String>) -> Finding {
        Finding { severity, name, text: text.into(), fix: None }
    }

    pub(crate) fn danger(name: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Severity::Danger, name, text)
    }

    pub(crate) fn warning(name: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, name, text)
    }

    pub(crate) fn note(name: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Severity::Note, name, text)
    }

    pub(crate) fn fix(self, fix: impl Into<String>) -> Finding {
        Finding { fix: Some(fix.into()), ..self }
    }
}

/// A number beside the findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    /// What it is about.
    pub(crate) name: String,
    /// What is allowed or used, and why.
    pub(crate) value: String,
    /// What Feedline chooses for it; empty if it chooses nothing.
    pub(crate) choice: String,
}

impl Fact {
    pub(crate) fn new(name: &str, value: impl Into<String>, choice: impl Into<String>) -> Fact {
        Fact { name: name.to_owned(), value: value.into(), choice: choice.into() }
    }
}

/// The result of an examination.
#[derive(Clone, Debug)]
pub(crate) struct Diagnosis {
    /// What was examined: "machine", "process", "data" or "message".
    pub(crate) subject: &'static str,
    /// What is said if nothing was found.
    pub(crate) good: String,
    /// The findings, worst first.
    pub(crate) findings: Vec<Finding>,
    /// The headings of the columns of `facts`.
    pub(crate) headings: [&'static str; 3],
    /// The numbers beside them.
    pub(crate) facts: Vec<Fact>,
    /// All that was read, for programs.
    pub(crate) details: Value,
}

impl Diagnosis {
    /// Whether something is dangerous.
    pub(crate) fn is_dangerous(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Danger)
    }

    /// The exit code of the command.
    pub(crate) fn exit_code(&self) -> i32 {
        i32::from(self.is_dangerous())
    }

    /// All of it for programs.
    pub(crate) fn to_json(&self) -> Value {
        let finding = |finding: &Finding| {
            json!({
                "severity": finding.severity.name(),
                "name": finding.name,
                "text": finding.text,
                "fix": finding.fix,
            })
        };
        let fact =
            |fact: &Fact| json!({"name": fact.name, "value": fact.value, "choice": fact.choice});
        json!({
            "subject": self.subject,
            "is_dangerous": self.is_dangerous(),
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
            "facts": self.facts.iter().map(fact).collect::<Vec<_>>(),
            "details": self.details,
        })
    }
}
