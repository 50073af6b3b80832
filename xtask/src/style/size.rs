//! The sizes of functions, argument lists and files. Tests may be of any size.

use syn::visit::{self, Visit};
use syn::{Block, FnArg, ImplItemFn, ItemFn, Signature, TraitItemFn};

use super::Finding;
use super::source::Source;

const FUNCTION_LINES_MAX: usize = 70;
const ARGUMENT_COUNT_MAX: usize = 5;
const FILE_LINES_MAX: usize = 600;

/// Files that may be longer because they are a table of uniform items.
const LONG_TABLES: [&str; 1] = ["crates/core/src/planted.rs"];

pub(super) fn check(source: &Source) -> Vec<Finding> {
    let mut functions = Functions { source, findings: check_file(source).into_iter().collect() };
    functions.visit_file(&source.syntax);
    functions.findings
}

fn check_file(source: &Source) -> Option<Finding> {
    let line_count = (1..=source.line_count).filter(|line| !source.is_test(*line)).count();
    let is_too_long = line_count > FILE_LINES_MAX && !LONG_TABLES.contains(&source.path.as_str());
    is_too_long.then(|| {
        let message = format!("{line_count} lines without tests, at most {FILE_LINES_MAX} are allowed");
        source.finding(1, message)
    })
}

struct Functions<'a> {
    source: &'a Source,
    findings: Vec<Finding>,
}

impl Functions<'_> {
    fn check(&mut self, signature: &Signature, body: Option<&Block>) {
        let line = signature.fn_token.span.start().line;
        if self.source.is_test(line) {
            return;
        }
        let name = &signature.ident;
        let line_count = body.map_or(1, |body| body.brace_token.span.close().end().line - line + 1);
        if line_count > FUNCTION_LINES_MAX {
            let message =
                format!("`{name}` has {line_count} lines, at most {FUNCTION_LINES_MAX} are allowed");
            self.findings.push(self.source.finding(line, message));
        }
        let argument_count = signature.inputs.iter().filter(|input| matches!(input, FnArg::Typed(_))).count();
        if argument_count > ARGUMENT_COUNT_MAX {
            let message =
                format!("`{name}` has {argument_count} arguments, at most {ARGUMENT_COUNT_MAX} are allowed");
            self.findings.push(self.source.finding(line, message));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.check(&function.sig, Some(&function.block));
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.check(&function.sig, Some(&function.block));
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        self.check(&function.sig, function.default.as_ref());
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::testing::{assert_findings, source};

    fn check_text(text: &str, expected: &[&str]) {
        assert_findings(&check(&source("a.rs", text)), expected);
    }

    /// Returns a function of this many lines.
    fn function(head: &str, line_count: usize) -> String {
        format!("{head} {{\n{}}}\n", "    work();\n".repeat(line_count - 2))
    }

    #[test]
    fn functions_end_at_70_lines() {
        check_text(&function("fn fits()", 70), &[]);
        check_text(&function("\nfn long()", 71), &["a.rs:2: `long` has 71 lines, at most 70 are allowed"]);
    }

    #[test]
    fn methods_and_nested_functions_count() {
        let method = function("impl A {\nfn long(&self)", 71) + "}";
        check_text(&method, &["a.rs:2: `long` has 71 lines, at most 70 are allowed"]);
        let default = function("trait A {\nfn long(&self)", 71) + "}";
        check_text(&default, &["a.rs:2: `long` has 71 lines, at most 70 are allowed"]);
        let nested = function("mod a {\nfn outer() {\nfn long()", 71) + "}}";
        check_text(
            &nested,
            &[
                "a.rs:2: `outer` has 73 lines, at most 70 are allowed",
                "a.rs:3: `long` has 71 lines, at most 70 are allowed",
            ],
        );
    }

    #[test]
    fn tests_may_be_long() {
        check_text(&function("#[test]\nfn long()", 80), &[]);
        check_text(&format!("#[cfg(test)]\nmod tests {{\n{}}}", function("fn long()", 700)), &[]);
    }

    #[test]
    fn five_arguments_and_self_are_enough() {
        check_text("trait A { fn f(&self, a: A, b: B, c: C, d: D, e: E); }", &[]);
        check_text(
            "fn f(a: A, b: B, c: C, d: D, e: E, f: F) {}",
            &["a.rs:1: `f` has 6 arguments, at most 5 are allowed"],
        );
    }

    #[test]
    fn files_end_at_600_lines_without_their_tests() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "const A: u8 = 1;\n".repeat(100));
        check_text(&("const A: u8 = 1;\n".repeat(600) + &tests), &[]);
        check_text(
            &("const A: u8 = 1;\n".repeat(601) + &tests),
            &["a.rs:1: 601 lines without tests, at most 600 are allowed"],
        );
    }
}
