//! A check that relative links in the documents point to files that exist.

use super::Finding;

const ROOT_DOCUMENTS: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
const FENCES: [&str; 2] = ["```", "~~~"];

pub(super) fn applies_to(path: &str) -> bool {
    ROOT_DOCUMENTS.contains(&path) || (path.starts_with("docs/") && path.ends_with(".md"))
}

pub(super) fn check(path: &str, text: &str, files: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_code = false;
    for (line, content) in (1..).zip(text.lines()) {
        let is_fence = FENCES.iter().any(|fence| content.trim_start().starts_with(fence));
        in_code ^= is_fence;
        if in_code || is_fence {
            continue;
        }
        let broken = targets(content).into_iter().filter(|target| !resolves(path, target, files));
        findings
            .extend(broken.map(|target| Finding::new(path, line, format!("the link to {target} is broken"))));
    }
    findings
}

/// Returns the link targets of one line, in the forms `[text](target)`, `[text](<target> "title")`
/// and `[name]: target`.
fn targets(content: &str) -> Vec<String> {
    let prose = without_code(content);
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let reference = prose
        .trim_start()
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
        .filter(|(name, _)| !name.contains(']'))
        .map(|(_, target)| target);
    inline
        .chain(reference)
        .filter_map(|target| target.split_whitespace().next())
        .map(|target| target.trim_matches(['<', '>']).to_string())
        .collect()
}

/// Returns the line without its `code`. An unclosed half at the end counts as prose.
fn without_code(content: &str) -> String {
    let parts: Vec<&str> = content.split('`').collect();
    let is_prose = |position: usize| position.is_multiple_of(2) || position + 1 == parts.len();
    parts.iter().enumerate().filter(|(position, _)| is_prose(*position)).map(|(_, part)| *part).collect()
}

fn resolves(document: &str, target: &str, files: &[String]) -> bool {
    let file = target.split('#').next().unwrap_or_default();
    let is_elsewhere = file.is_empty() || file.contains("://") || file.starts_with("mailto:");
    is_elsewhere || join(document, file).is_some_and(|path| exists(&path, files))
}

/// Returns the path that `target` leads to from `document`, unless it leaves the project.
fn join(document: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Whether this is a file of the project or a directory that contains one.
fn exists(path: &str, files: &[String]) -> bool {
    let is_below = |file: &str| file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    path.is_empty() || files.iter().any(|file| file == path || is_below(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::testing::assert_findings;

    fn check_text(path: &str, text: &str, expected: &[&str]) {
        let files = ["README.md", "docs/guarantees.md", "docs/adr/0001-a.md"].map(str::to_string);
        assert_findings(&check(path, text, &files), expected);
    }

    #[test]
    fn broken_links_are_found() {
        check_text("README.md", "a\n[a](docs/none.md)", &["README.md:2: the link to docs/none.md is broken"]);
        check_text("README.md", "[a]: none.md", &["README.md:1: the link to none.md is broken"]);
        check_text("README.md", "![a](a.png \"title\")", &["README.md:1: the link to a.png is broken"]);
        check_text(
            "docs/guarantees.md",
            "[a](../../a)",
            &["docs/guarantees.md:1: the link to ../../a is broken"],
        );
    }

    #[test]
    fn links_to_files_directories_and_elsewhere_hold() {
        check_text(
            "README.md",
            "[a](docs/guarantees.md#p1), [b](docs/adr/), [c](#words), [d](<docs/adr>)",
            &[],
        );
        check_text("docs/adr/0001-a.md", "[a](../guarantees.md) and [b](../../README.md)", &[]);
        check_text("README.md", "[a](https://example.org/a) [b](mailto:a@example.org)\n[c]: docs/adr", &[]);
    }

    #[test]
    fn code_is_not_a_link() {
        check_text("README.md", "`a[0](b)` is code\n```\n[a](b)\n```", &[]);
    }

    #[test]
    fn documents_are_those_of_the_root_and_of_docs() {
        assert!(applies_to("README.md") && applies_to("docs/guide/start.md"));
        assert!(!applies_to("crates/core/README.md") && !applies_to("docs/logo.svg"));
    }
}
