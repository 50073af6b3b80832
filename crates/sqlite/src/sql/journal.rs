//! The journal, and the runs whose chains lie in it.

pub(crate) const JOURNAL_APPEND: &str = "
INSERT INTO abide_journal (execution, previous, seq, happened, skip, body)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
/// Like [`JOURNAL_APPEND`], for the first row of an execution: it has no predecessor, and its last
/// entry, the first, says that a run began (1).
pub(crate) const JOURNAL_BEGIN: &str = "
INSERT INTO abide_journal (execution, seq, happened, skip, body)
VALUES (?1, 1, 1, ?2, ?3)";
/// Like [`JOURNAL_APPEND`], for a row without a list of predecessors: most have none.
pub(crate) const JOURNAL_APPEND_TOLD: &str = "
INSERT INTO abide_journal (execution, previous, seq, happened, body)
VALUES (?1, ?2, ?3, ?4, ?5)";
/// Like [`JOURNAL_APPEND_TOLD`], for a row that the feed does not report.
pub(crate) const JOURNAL_APPEND_PLAIN: &str = "
INSERT INTO abide_journal (execution, previous, seq, body)
VALUES (?1, ?2, ?3, ?4)";
pub(crate) const JOURNAL_RENUMBER: &str = "
UPDATE abide_journal
SET row = ?2
WHERE row = ?1";
pub(crate) const JOURNAL_LINK: &str = "
SELECT previous, seq, execution
FROM abide_journal
WHERE row = ?1";
pub(crate) const JOURNAL_SKIP: &str = "
SELECT skip, execution
FROM abide_journal
WHERE row = ?1";
pub(crate) const JOURNAL_BODY: &str = "
SELECT row, execution, previous, seq, happened, skip, body
FROM abide_journal
WHERE row = ?1 AND execution = ?2";
pub(crate) const JOURNAL_TAIL: &str = "
SELECT row, execution, previous, seq, happened, skip, body
FROM abide_journal
WHERE row > ?1 AND row <= ?2
ORDER BY row";
pub(crate) const JOURNAL_RANGE: &str = "
SELECT row, execution, previous, seq, happened, skip, body
FROM abide_journal
WHERE row BETWEEN ?1 AND ?2 AND execution = ?3
ORDER BY row";
pub(crate) const FEED: &str = "
SELECT j.row, j.execution, j.previous, j.seq, j.happened, j.skip, j.body,
    e.key, e.namespace, e.id, e.queue, e.parent, e.head, e.version, e.state
FROM abide_journal AS j
JOIN abide_executions AS e ON e.key = j.execution
WHERE j.row > ?1 AND j.row <= ?2 AND j.happened IS NOT NULL
ORDER BY j.row
LIMIT ?3";
pub(crate) const RUN_AT: &str = "
SELECT run
FROM abide_runs
WHERE execution = ?1 AND first <= ?2
ORDER BY run DESC
LIMIT 1";
pub(crate) const RUN_CHAIN: &str = "
SELECT first, head, entry_count, row_count
FROM abide_runs
WHERE execution = ?1 AND run = ?2";
