//! The journal, and the runs whose chains lie in it.

/// Rows of the table are sheaves of journal rows: see [`crate::sheaf`].
pub(crate) const SHEAF_APPEND: &str = "
INSERT INTO abide_journal (row, execution, previous, seq, happened, skip, body, more)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
/// Like [`SHEAF_APPEND`], for a sheaf of one row without a list of predecessors: each parameter
/// costs as much as several columns, and a commit that is alone writes such a sheaf.
pub(crate) const SHEAF_APPEND_ONE: &str = "
INSERT INTO abide_journal (row, execution, previous, seq, happened, body)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
/// The first row of the sheaf that a row is in, or of one before it.
pub(crate) const SHEAF_BASE: &str = "
SELECT row
FROM abide_journal
WHERE row <= ?1
ORDER BY row DESC
LIMIT 1";
/// The first row of the first sheaf after a row.
pub(crate) const SHEAF_AFTER: &str = "
SELECT row
FROM abide_journal
WHERE row > ?1
ORDER BY row
LIMIT 1";
/// The sheaf that begins with row ?1, for row ?2. If that is not in it, the bytes of the sheaf may
/// lie on pages of their own that cannot be read. A sheaf of several rows fits on its page.
pub(crate) const SHEAF: &str = "
SELECT row, execution, previous, seq, happened, skip,
    CASE WHEN row = ?2 OR more IS NOT NULL THEN body END, more
FROM abide_journal
WHERE row = ?1";
/// The sheaves that begin between two rows.
pub(crate) const SHEAVES: &str = "
SELECT row, execution, previous, seq, happened, skip, body, more
FROM abide_journal
WHERE row >= ?1 AND row <= ?2
ORDER BY row";
/// The same without single rows of other executions: their bytes are not read.
pub(crate) const SHEAVES_WITH: &str = "
SELECT row, execution, previous, seq, happened, skip, body, more
FROM abide_journal
WHERE row >= ?1 AND row <= ?2
    AND (execution = ?3 OR more IS NOT NULL)
ORDER BY row";
/// The same without single rows that the feed does not report.
pub(crate) const SHEAVES_TOLD: &str = "
SELECT row, execution, previous, seq, happened, skip, body, more
FROM abide_journal
WHERE row >= ?1 AND row <= ?2
    AND (happened IS NOT NULL OR more IS NOT NULL)
ORDER BY row";
/// The same without the bytes of the first row of each.
pub(crate) const SHEAVES_LISTED: &str = "
SELECT row, execution, LENGTH(body), more
FROM abide_journal
WHERE row >= ?1 AND row <= ?2
ORDER BY row";
/// Likewise, of all sheaves.
pub(crate) const SHEAVES_AFTER: &str = "
SELECT row, execution, LENGTH(body), more
FROM abide_journal
WHERE row > ?1
ORDER BY row
LIMIT ?2";
pub(crate) const SHEAF_LAST: &str = "
SELECT row, more
FROM abide_journal
ORDER BY row DESC
LIMIT 1";
pub(crate) const SHEAF_CUT: &str = "
UPDATE abide_journal
SET more = ?2
WHERE row = ?1";
pub(crate) const SHEAF_DELETE: &str = "
DELETE FROM abide_journal
WHERE row = ?1";
/// The greatest number of a row that was pruned.
pub(crate) const JOURNAL_ROW_PRUNED: &str = "
SELECT COALESCE((SELECT value FROM abide_meta WHERE name = 'journal_row_max'), 0)";
pub(crate) const FEED_EXECUTION: &str = "
SELECT key, namespace, id, queue, parent, head, version, state
FROM abide_executions
WHERE key = ?1";
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
