//! SQL stands in the two stores and nowhere else, and is never assembled from pieces.

use proc_macro2::TokenTree;
use syn::Lit;

use super::Finding;
use super::source::Source;
use super::tokens::{self, MacroCall};

const HOMES: [&str; 2] = ["crates/sqlite/", "crates/postgres/"];
/// The table of the simulator's programs, which play the part of a user's.
const PROGRAMS: &str = "crates/sim/src/table.rs";
const STATEMENTS: [&str; 7] = ["SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "PRAGMA", "BEGIN"];
const FORMATTING: [&str; 4] = ["format", "format_args", "write", "writeln"];

pub(super) fn check(source: &Source) -> Vec<Finding> {
    let is_home = HOMES.iter().any(|home| source.path.starts_with(home));
    // Users write SQL of their own, for their own tables.
    let is_user_code = source.is_in("examples") || source.is_in("benches") || source.path == PROGRAMS;
    let mut findings = Vec::new();
    tokens::walk(source.tokens.clone(), &mut |trees| {
        let line = tokens::line(&trees[0]);
        if is_formatted_sql(trees) {
            findings
                .push(source.finding(line, "SQL is formatted: use a static string with bound parameters"));
            return MacroCall::LENGTH;
        }
        if is_sql(&trees[0]) && !is_home && !is_user_code && !source.is_test(line) {
            findings.push(source.finding(line, "SQL outside crates/sqlite and crates/postgres"));
        }
        0
    });
    findings
}

fn is_formatted_sql(trees: &[TokenTree]) -> bool {
    MacroCall::at(trees).is_some_and(|call| {
        FORMATTING.contains(&call.name.as_str()) && call.body.stream().into_iter().any(|tree| is_sql(&tree))
    })
}

/// Whether this is a string that starts with a statement.
fn is_sql(tree: &TokenTree) -> bool {
    let TokenTree::Literal(literal) = tree else { return false };
    let Lit::Str(string) = Lit::new(literal.clone()) else { return false };
    let value = string.value();
    value
        .trim_start()
        .split_once(char::is_whitespace)
        .is_some_and(|(first_word, _)| STATEMENTS.contains(&first_word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::testing::{assert_findings, source};

    const OUTSIDE: &str = "SQL outside crates/sqlite and crates/postgres";
    const FORMATTED: &str = "SQL is formatted: use a static string with bound parameters";

    fn check_text(path: &str, text: &str, expected: &[(usize, &str)]) {
        let expected: Vec<String> =
            expected.iter().map(|(line, message)| format!("{path}:{line}: {message}")).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        assert_findings(&check(&source(path, text)), &expected);
    }

    const STATEMENT: &str = "\nconst READ: &str = \"SELECT 1\";";
    const MULTILINE: &str = "const READ: &str = r#\"\n  DELETE\n  FROM a\n\"#;";
    const IN_MACRO: &str = "fn a() { run!(\n\"PRAGMA data_version\"); }";
    const FORMAT: &str = "fn a() { run(format!(\"UPDATE {table}\")); }";

    #[test]
    fn only_the_stores_contain_sql() {
        check_text("crates/engine/src/lib.rs", STATEMENT, &[(2, OUTSIDE)]);
        check_text("crates/engine/src/lib.rs", MULTILINE, &[(1, OUTSIDE)]);
        check_text("crates/engine/src/lib.rs", IN_MACRO, &[(2, OUTSIDE)]);
        check_text("crates/sqlite/src/lib.rs", STATEMENT, &[]);
        check_text("crates/postgres/src/lib.rs", MULTILINE, &[]);
    }

    #[test]
    fn tests_and_examples_may_use_their_own_tables() {
        check_text("crates/engine/src/lib.rs", &format!("#[test]\nfn a() {{ {STATEMENT} }}"), &[]);
        check_text("crates/engine/tests/it.rs", STATEMENT, &[]);
        check_text("examples/shop.rs", STATEMENT, &[]);
        check_text("crates/abide/benches/shop.rs", STATEMENT, &[]);
    }

    #[test]
    fn sql_is_formatted_nowhere() {
        check_text("crates/sqlite/src/lib.rs", FORMAT, &[(1, FORMATTED)]);
        check_text("crates/engine/src/lib.rs", FORMAT, &[(1, FORMATTED)]);
        check_text("crates/sqlite/tests/it.rs", FORMAT, &[(1, FORMATTED)]);
    }

    #[test]
    fn prose_is_not_sql() {
        check_text(
            "crates/engine/src/lib.rs",
            "//! SELECT one.\n///SELECT two.\nconst A: [&str; 3] = [\"Select one\", \"SELECTED 1\", \"SELECT\"];",
            &[],
        );
    }
}
