//! One Rust source file, read in all the ways that the checks need.

use std::ops::RangeInclusive;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Finding;
use super::tokens::{self, Attribute};

pub(super) struct Source {
    pub(super) path: String,
    pub(super) line_count: usize,
    pub(super) syntax: syn::File,
    pub(super) tokens: TokenStream,
    tests: Vec<RangeInclusive<usize>>,
}

impl Source {
    pub(super) fn parse(path: &str, text: &str) -> Result<Source, Finding> {
        let refuse = |line: usize, error: &dyn std::fmt::Display| {
            Finding::new(path, line, format!("does not parse: {error}"))
        };
        let syntax = syn::parse_file(text).map_err(|error| refuse(error.span().start().line, &error))?;
        let tokens: TokenStream = text.parse().map_err(|error| refuse(1, &error))?;
        let line_count = text.lines().count();
        let tests =
            if is_test_path(path) { vec![1..=line_count] } else { test_ranges(tokens.clone(), line_count) };
        Ok(Source { path: path.to_string(), line_count, syntax, tokens, tests })
    }

    /// Whether this line is compiled for tests only.
    pub(super) fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&line))
    }

    pub(super) fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding::new(&self.path, line, message)
    }

    /// Whether the file is in a directory of this name, at any depth.
    pub(super) fn is_in(&self, directory: &str) -> bool {
        self.path.split('/').rev().skip(1).any(|part| part == directory)
    }
}

/// Whether the whole file is test code: a file in `tests/`, or a test module in a file of its own.
fn is_test_path(path: &str) -> bool {
    let stem = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let is_test_module = stem == "tests" || stem.ends_with("_test") || stem.ends_with("_tests");
    is_test_module || path.split('/').any(|part| part == "tests")
}

fn test_ranges(tokens: TokenStream, line_count: usize) -> Vec<RangeInclusive<usize>> {
    let mut ranges = Vec::new();
    tokens::walk(tokens, &mut |trees| match Attribute::at(trees) {
        Some(attribute) if is_test_attribute(&attribute) => {
            let is_inner = tokens::is_punct(&trees[1], '!');
            let length = if is_inner { trees.len() } else { item_length(trees) };
            let last_line = if is_inner { line_count } else { trees[length - 1].span().end().line };
            ranges.push(tokens::line(&trees[0])..=last_line);
            length
        }
        _ => 0,
    });
    ranges
}

/// Whether this is `#[test]`, `#[tokio::test]`, `#[cfg(test)]` or `#[cfg(all(test, …))]`.
fn is_test_attribute(attribute: &Attribute) -> bool {
    match attribute.name().as_deref() {
        Some("test") => true,
        Some("cfg") => attribute.arguments().is_some_and(implies_test),
        _ => false,
    }
}

fn implies_test(condition: TokenStream) -> bool {
    let trees: Vec<TokenTree> = condition.into_iter().collect();
    match trees.as_slice() {
        [test] => tokens::is_word(test, "test"),
        [all, TokenTree::Group(parts)] if tokens::is_word(all, "all") => {
            let parts: Vec<TokenTree> = parts.stream().into_iter().collect();
            parts
                .split(|tree| tokens::is_punct(tree, ','))
                .any(|part| implies_test(part.iter().cloned().collect()))
        }
        _ => false,
    }
}

/// Returns the number of tokens of the item at the start of `trees`, which ends with its braces or
/// its semicolon.
fn item_length(trees: &[TokenTree]) -> usize {
    let is_end = |tree: &TokenTree| match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        tree => tokens::is_punct(tree, ';'),
    };
    trees.iter().position(is_end).map_or(trees.len(), |position| position + 1)
}

#[cfg(test)]
mod tests {
    use crate::style::testing::source;

    fn check(path: &str, text: &str, expected: &[usize]) {
        let source = source(path, text);
        let found: Vec<usize> = (1..=source.line_count).filter(|line| source.is_test(*line)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn test_items_are_found_with_their_attributes() {
        check("a.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}", &[2, 3, 4, 5]);
        check("a.rs", "fn a() {}\n#[tokio::test]\nasync fn b() {\n}\nfn c() {}", &[2, 3, 4]);
    }

    #[test]
    fn test_only_under_all_conditions_is_test_code() {
        check("a.rs", "#[cfg(all(unix, test))]\nconst A: [u8; 1] = [1];\nconst B: u8 = 2;", &[1, 2]);
        check("a.rs", "#[cfg(any(unix, test))]\nconst A: u8 = 1;", &[]);
        check("a.rs", "#[cfg(not(test))]\nconst A: u8 = 1;", &[]);
    }

    #[test]
    fn test_files_are_test_code_as_a_whole() {
        check("crates/core/tests/it.rs", "fn a() {}\nfn b() {}", &[1, 2]);
        check("crates/core/src/cron/tests.rs", "fn a() {}", &[1]);
        check("crates/core/src/cron_test.rs", "fn a() {}", &[1]);
        check("crates/core/src/cron.rs", "#![cfg(test)]\nfn a() {}", &[1, 2]);
        check("crates/abide/src/testing.rs", "fn a() {}", &[]);
    }

    #[test]
    fn a_file_that_does_not_parse_says_where() {
        let finding = super::Source::parse("a.rs", "fn a() {}\nfn {}").err().unwrap();
        assert!(finding.to_string().starts_with("a.rs:2: does not parse: "), "{finding}");
    }
}
