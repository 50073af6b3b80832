//! Words that do not belong in finished code.

use proc_macro2::{Delimiter, TokenTree};

use super::Finding;
use super::source::Source;
use super::tokens::{self, Attribute, MacroCall};

const ALLOW: &str =
    "`allow`: use `#[expect(lint, reason = \"…\")]`, which says when it is not needed any more";
const IGNORE: &str = "`#[ignore]`: a test that does not run is not a test";
const UNWRAP: &str = "`.unwrap()`: use `expect(\"why it cannot happen\")` or return the error";

const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];
const QUOTING: [&str; 3] = ["quote", "quote_spanned", "parse_quote"];

pub(super) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = allowed_lints(source);
    findings.extend(unfinished(source));
    findings
}

/// Finds `allow` attributes. Code that `crates/macros` quotes is exempt: it is compiled in the
/// user's crate, where an `expect` could be unfulfilled.
fn allowed_lints(source: &Source) -> Vec<Finding> {
    let writes_for_users = source.path.starts_with("crates/macros/");
    let mut findings = Vec::new();
    tokens::walk(source.tokens.clone(), &mut |trees| {
        if Attribute::at(trees).is_some_and(|attribute| is_allow(&attribute)) {
            findings.push(source.finding(tokens::line(&trees[0]), ALLOW));
        }
        let is_quoted = MacroCall::at(trees).is_some_and(|call| QUOTING.contains(&call.name.as_str()));
        if writes_for_users && is_quoted { MacroCall::LENGTH } else { 0 }
    });
    findings
}

fn unfinished(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    tokens::walk(source.tokens.clone(), &mut |trees| {
        let line = tokens::line(&trees[0]);
        if let Some(call) = MacroCall::at(trees).filter(|call| UNFINISHED.contains(&call.name.as_str())) {
            findings.push(source.finding(line, format!("`{}!` in finished code", call.name)));
        }
        if Attribute::at(trees).is_some_and(|attribute| attribute.name().as_deref() == Some("ignore")) {
            findings.push(source.finding(line, IGNORE));
        }
        if is_unwrap(trees) && !source.is_test(line) {
            findings.push(source.finding(line, UNWRAP));
        }
        0
    });
    findings
}

/// Whether this is `allow(…)`, possibly under a condition: `cfg_attr(…, allow(…))`.
fn is_allow(attribute: &Attribute) -> bool {
    match attribute.name().as_deref() {
        Some("allow") => true,
        Some("cfg_attr") => attribute.arguments().is_some_and(|arguments| {
            let trees: Vec<TokenTree> = arguments.into_iter().collect();
            trees
                .windows(2)
                .any(|pair| tokens::is_word(&pair[0], "allow") && matches!(pair[1], TokenTree::Group(_)))
        }),
        _ => false,
    }
}

fn is_unwrap(trees: &[TokenTree]) -> bool {
    match trees {
        [dot, name, TokenTree::Group(arguments), ..] => {
            tokens::is_punct(dot, '.')
                && tokens::is_word(name, "unwrap")
                && arguments.delimiter() == Delimiter::Parenthesis
                && arguments.stream().is_empty()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::testing::source;

    /// Checks for one finding per expected line, in order, each identified by the start of its
    /// message.
    fn check_text(path: &str, text: &str, expected: &[(usize, &str)]) {
        let found = check(&source(path, text));
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (finding, (line, start)) in found.iter().zip(expected) {
            assert_eq!(finding.line, *line, "{finding}");
            assert!(finding.message.starts_with(start), "{finding}");
        }
    }

    #[test]
    fn allow_is_refused_even_in_tests() {
        check_text(
            "a.rs",
            "#![allow(dead_code)]\n#[allow(unused)]\nfn a() {}",
            &[(1, "`allow`"), (2, "`allow`")],
        );
        check_text("a.rs", "#[cfg(test)]\nmod tests {\n#[allow(unused)]\nfn a() {}\n}", &[(3, "`allow`")]);
        check_text("a.rs", "#[cfg_attr(test, allow(unused))]\nfn a() {}", &[(1, "`allow`")]);
        check_text("a.rs", "#[expect(unused, reason = \"soon\")]\nfn allow() { allow() }", &[]);
    }

    #[test]
    fn only_the_macros_crate_may_allow_for_its_users() {
        let quoting = "fn a() -> TokenStream { quote! {\n#[allow(unused)]\nfn b() {}\n} }";
        check_text("crates/macros/src/lib.rs", quoting, &[]);
        check_text("crates/engine/src/lib.rs", quoting, &[(2, "`allow`")]);
        check_text("crates/macros/src/lib.rs", "#[allow(unused)]\nfn b() {}", &[(1, "`allow`")]);
    }

    #[test]
    fn unfinished_code_is_refused() {
        check_text(
            "a.rs",
            "fn a() { todo!() }\nfn b() { unimplemented!(\"b\") }\nfn c() { work(dbg!(1)) }",
            &[(1, "`todo!`"), (2, "`unimplemented!`"), (3, "`dbg!`")],
        );
        check_text("a.rs", "fn todo() { if todo != (1) {} }", &[]);
    }

    #[test]
    fn ignored_tests_are_refused() {
        check_text("a.rs", "#[test]\n#[ignore = \"slow\"]\nfn a() {}", &[(2, "`#[ignore]`")]);
    }

    #[test]
    fn unwrap_belongs_in_tests() {
        check_text(
            "a.rs",
            "/// Not `.unwrap()`.\nfn a() { assert!(b()\n.unwrap()); }",
            &[(3, "`.unwrap()`")],
        );
        check_text("a.rs", "fn a() { b().unwrap_or(1); }\n#[test]\nfn b() { c().unwrap(); }", &[]);
        check_text("tests/a.rs", "fn a() { b().unwrap(); }", &[]);
    }
}
