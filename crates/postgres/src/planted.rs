//! Statements without one of their arguments, for `cargo xtask planted`.
//!
//! Each bug takes away what a comment in `sql` relies on. Without the feature, every statement is
//! what it is.

use abide_core::planted::{Bug, planted};

/// What a bug puts in the place of some words of the statements that have them.
const FORMS: [(Bug, &str, &str); 4] = [
    (Bug::ClaimWithoutLock, "FOR NO KEY UPDATE SKIP LOCKED", ""),
    (
        Bug::FenceBeforeStatement,
        "AND e.epoch = i.epoch AND e.version = i.version AND (e.session = i.session) IS TRUE",
        "",
    ),
    (Bug::UnseenWakesRemoved, "SELECT key FROM u WHERE clears", "SELECT key FROM u"),
    (Bug::FeedPassesOpenWriter, "AND pid <> pg_backend_pid()", "AND FALSE"),
];

/// Returns the form of a statement that is sent.
pub(crate) fn form_of(statement: &'static str) -> &'static str {
    let found = FORMS.iter().find(|(bug, words, _)| planted(*bug) && statement.contains(words));
    match found {
        None => statement,
        // It is prepared once in each connection of a test.
        Some((_, words, other)) => statement.replace(words, other).leak(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql;

    #[test]
    fn every_bug_has_a_statement() {
        let all = [sql::LEASE_FEW, sql::APPLY, sql::FEED_WRITERS].concat();
        for (bug, words, _) in FORMS {
            assert!(all.contains(words), "no statement has the words of {bug:?}");
        }
    }
}
