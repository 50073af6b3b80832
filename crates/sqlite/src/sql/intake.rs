//! The intake table, and the rows of it that were refused.

/// Puts a row into the intake table. Any program may do the same with a statement of its own.
pub(crate) const INTAKE_PUT: &str = "
INSERT INTO abide_intake (id, namespace, verb, execution, name, input, options, sender)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
pub(crate) const INTAKE_ANY: &str = "
SELECT EXISTS (SELECT 1 FROM abide_intake)";
pub(crate) const INTAKE_ROWS: &str = "
SELECT number, id, namespace, verb, execution, name, input, options, sender
FROM abide_intake
WHERE number > ?1
ORDER BY number
LIMIT ?2";
pub(crate) const INTAKE_TAKE: &str = "
DELETE FROM abide_intake
WHERE number = ?1";

/// The greatest number that a refusal ever had.
pub(crate) const REFUSAL_ROW_MAX: &str = "
SELECT MAX(
    COALESCE((SELECT MAX(row) FROM abide_refusals), 0),
    COALESCE((SELECT value FROM abide_meta WHERE name = 'refusal_row_max'), 0)
)";
pub(crate) const REFUSAL_INSERT: &str = "
INSERT INTO abide_refusals (row, at, body)
VALUES (?1, ?2, ?3)";
pub(crate) const REFUSALS_AFTER: &str = "
SELECT row, at, body
FROM abide_refusals
WHERE row > ?1
ORDER BY row
LIMIT ?2";
pub(crate) const REFUSALS_NEWEST: &str = "
SELECT row, at, body
FROM abide_refusals
ORDER BY row DESC
LIMIT ?1";
pub(crate) const REFUSALS_OLD: &str = "
SELECT 1
FROM abide_refusals
WHERE at < ?1
LIMIT 1";
pub(crate) const REFUSALS_PRUNE: &str = "
DELETE FROM abide_refusals
WHERE at < ?1";
