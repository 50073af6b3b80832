//! The rules for the look of the sources that neither rustfmt nor clippy can check.
//!
//! Each check is a pure function from the text of one file to its findings. Its tests are therefore
//! samples of bad and good text. Only [`run`] touches the disk.

mod arrows;
mod banned;
mod guards;
mod links;
mod prose;
mod required;
mod size;
mod source;
mod sql;
mod text;
mod tokens;

use std::fmt;

use crate::Result;
use crate::workspace::Workspace;
use source::Source;

/// The directories whose Rust sources are checked. `tests/` at the root holds users' crates.
const SOURCE_ROOTS: [&str; 4] = ["crates/", "xtask/", "examples/", "benches/"];

/// Checks every file of the project and prints the findings.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let files = workspace.files()?;
    let mut findings = required::check(&files);
    for file in &files {
        if let Some(text) = workspace.read(file)? {
            findings.extend(check_file(file, &text, &files));
            if guards::applies_to(file) {
                findings.extend(guards::check(file, &text, |other| workspace.read(other).ok().flatten()));
            }
        }
    }
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("{} files look as they should", files.len());
            Ok(())
        }
        count => Err(format!("{count} style findings").into()),
    }
}

/// A violation of a rule in one line of one file.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_string(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.message)
    }
}

fn check_file(path: &str, text: &str, files: &[String]) -> Vec<Finding> {
    let mut findings = text::check(path, text);
    if path.ends_with(".rs") && SOURCE_ROOTS.iter().any(|root| path.starts_with(root)) {
        findings.extend(check_source(path, text));
    }
    if arrows::applies_to(path) {
        findings.extend(arrows::check(path, text));
    }
    if links::applies_to(path) {
        findings.extend(links::check(path, text, files));
    }
    if prose::applies_to(path) {
        findings.extend(prose::check(path, text));
    }
    findings
}

fn check_source(path: &str, text: &str) -> Vec<Finding> {
    match Source::parse(path, text) {
        Ok(source) => {
            let mut findings = size::check(&source);
            findings.extend(sql::check(&source));
            findings.extend(banned::check(&source));
            findings
        }
        Err(finding) => vec![finding],
    }
}

/// Helpers that the tests of the checks share.
#[cfg(test)]
mod testing {
    use super::Finding;
    use super::source::Source;

    pub(super) fn source(path: &str, text: &str) -> Source {
        Source::parse(path, text).unwrap()
    }

    /// Asserts that the findings, as a person sees them, are exactly these.
    pub(super) fn assert_findings(findings: &[Finding], expected: &[&str]) {
        let shown: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(shown, expected);
    }
}
