//! A check that the tests named in the guarantees exist: nothing guards a promise whose test is
//! gone.

use super::Finding;

pub(super) fn applies_to(path: &str) -> bool {
    path == "docs/guarantees.md"
}

/// Checks the tests that `text` names. `read` returns the text of a file, if it exists.
pub(super) fn check(path: &str, text: &str, read: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        for (file, test) in named(content) {
            let is_there = read(file).is_some_and(|source| source.contains(&format!("fn {test}(")));
            if !is_there {
                findings.push(Finding::new(path, line, format!("there is no test {file}::{test}")));
            }
        }
        if is_promise(content) && named(content).is_empty() {
            findings.push(Finding::new(path, line, "no test guards this promise"));
        }
    }
    findings
}

/// Returns the tests that one line names, as `` `path/to/file.rs::name` ``.
fn named(content: &str) -> Vec<(&str, &str)> {
    let code = content.split('`').skip(1).step_by(2);
    let named = code.filter_map(|code| code.split_once(".rs::").map(|(file, _)| (file.len() + 3, code)));
    named.map(|(end, code)| (&code[..end], &code[end + 2..])).collect()
}

/// Whether the line is that of a promise in the table.
fn is_promise(content: &str) -> bool {
    content.strip_prefix("| P").is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_do_not_exist_are_found() {
        let read = |file: &str| {
            (file == "crates/a/tests/b.rs").then(|| "fn one() {}\nfn three_more() {}".to_owned())
        };
        let rows = [
            ("| P1 | `crates/a/tests/b.rs::one` | |", None),
            ("| P1 | `crates/a/tests/b.rs::three` | |", Some("there is no test crates/a/tests/b.rs::three")),
            ("| P1 | `crates/a/tests/c.rs::one` | |", Some("there is no test crates/a/tests/c.rs::one")),
            ("| P1 | by hand | |", Some("no test guards this promise")),
            ("| promise | tests |", None),
            ("Tests: `builds.rs`.", None),
        ];
        for (line, expected) in rows {
            let found = check("docs/guarantees.md", line, read);
            assert_eq!(found.first().map(|finding| finding.message.as_str()), expected, "{line}");
        }
    }
}
