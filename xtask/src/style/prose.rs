//! A check of the language of comments and documents: lines that fit a screen, and no turns of
//! phrase that make a native reader stop.

use super::Finding;

/// The longest line of a comment, in characters, including its indentation.
const COMMENT_LINE_MAX: usize = 100;

/// The refused phrases, each with the reason that a finding shows. They match as whole words, in
/// any case.
const PHRASES: [(&str, &str); 9] = [
    ("what is", NAME_THE_SUBJECT),
    ("what was", NAME_THE_SUBJECT),
    ("what has", NAME_THE_SUBJECT),
    ("whoever", NAME_THE_SUBJECT),
    ("whomever", NAME_THE_SUBJECT),
    ("so-and-so", NAME_THE_SUBJECT),
    ("how-many", "ask for the number instead: \"its position\", \"the third\""),
    ("gives", RETURNS),
    ("tells", RETURNS),
];

const NAME_THE_SUBJECT: &str = "name the subject: \"a blocked execution\", \"the holder\"";
const RETURNS: &str = "a function returns, a message says, a command prints";

/// Whether the file is checked. The changelog is not: it is a record of the past.
pub(super) fn applies_to(path: &str) -> bool {
    path.ends_with(".rs") || (path.ends_with(".md") && !path.ends_with("CHANGELOG.md"))
}

pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let is_document = path.ends_with(".md");
    let mut findings = Vec::new();
    // A phrase may be broken over two lines of one comment.
    let mut before = String::new();
    for (line, content) in (1..).zip(text.lines()) {
        let comment = comment(content).filter(|_| !is_document);
        let prose = if is_document { Some(content) } else { comment.or_else(|| reason(content)) };
        let Some(prose) = prose.map(str::to_lowercase) else {
            before.clear();
            continue;
        };
        if comment.is_some() && content.chars().count() > COMMENT_LINE_MAX {
            let message = format!("a comment line of more than {COMMENT_LINE_MAX} characters");
            findings.push(Finding::new(path, line, message));
        }
        let joined = format!("{before} {}", prose.trim());
        for (phrase, reason) in PHRASES {
            if count(&joined, phrase) > count(&before, phrase) {
                findings.push(Finding::new(path, line, format!("\"{phrase}\": {reason}")));
            }
        }
        before = prose.trim().to_owned();
    }
    findings
}

/// Returns the text of a line that is a comment and nothing else.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']))
}

/// Returns the text of a `reason = "…"`, as an attribute has it.
fn reason(line: &str) -> Option<&str> {
    let (_, text) = line.split_once("reason = \"")?;
    text.split('"').next()
}

/// Counts how often `phrase` occurs in `text` as whole words.
fn count(text: &str, phrase: &str) -> usize {
    let is_part = |character: Option<char>| {
        character.is_some_and(|character| character.is_alphanumeric() || "_`".contains(character))
    };
    text.match_indices(phrase)
        .filter(|(start, _)| {
            let end = start + phrase.len();
            !is_part(text[..*start].chars().next_back()) && !is_part(text[end..].chars().next())
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(path: &str, text: &str, expected: &[(usize, &str)]) {
        let found = check(path, text);
        let found: Vec<(usize, &str)> =
            found.iter().map(|finding| (finding.line, finding.message.as_str())).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((line, message), (expected_line, start)) in found.iter().zip(expected) {
            assert_eq!(line, expected_line, "{message}");
            assert!(message.starts_with(start), "{message}");
        }
    }

    #[test]
    fn phrases_that_name_no_subject_are_refused() {
        check_text("a.rs", "/// What is paused waits.", &[(1, "\"what is\"")]);
        check_text("a.rs", "fn a() {}\n// Ask whoever holds it.", &[(2, "\"whoever\"")]);
        check_text("a.rs", "#[expect(dead_code, reason = \"whoever waits\")]", &[(1, "\"whoever\"")]);
        check_text("docs/a.md", "It gives what\nis there.", &[(1, "\"gives\""), (2, "\"what is\"")]);
        check_text(
            "a.rs",
            "//! A how-many-th try,\n//! by so-and-so",
            &[(1, "\"how-many\""), (2, "\"so-and-so\"")],
        );
    }

    #[test]
    fn code_and_other_words_are_fine() {
        check_text("a.rs", "let told = \"whoever\"; // whoever", &[]);
        check_text("a.rs", "/// Somewhat isolated; `gives` and what_is.", &[]);
        check_text("a.rs", "// what\nfn a() {}\n// is", &[]);
    }

    #[test]
    fn a_phrase_is_found_once() {
        check_text("a.rs", "// what\n// is this\n// and that", &[(2, "\"what is\"")]);
        check_text("a.rs", "// what is this,\n// and this", &[(1, "\"what is\"")]);
    }

    #[test]
    fn comment_lines_fit_a_screen() {
        let long = "x".repeat(COMMENT_LINE_MAX - 2);
        check_text("a.rs", &format!("//{long}\n//{long}x"), &[(2, "a comment line")]);
        check_text("a.md", &format!("{long}{long}"), &[]);
        check_text("a.rs", &format!("let a = \"{long}\";"), &[]);
    }

    #[test]
    fn the_changelog_is_left_alone() {
        assert!(applies_to("docs/guarantees.md") && applies_to("crates/core/src/lib.rs"));
        assert!(!applies_to("CHANGELOG.md") && !applies_to("Cargo.toml"));
    }
}
