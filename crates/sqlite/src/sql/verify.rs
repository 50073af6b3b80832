//! The statements of `verify` and `repair`.

pub(crate) const VERIFY_EXECUTIONS: &str = "
SELECT key, namespace, id, queue, parent, head, version, state, epoch, place, rank, since, status, care_at
FROM abide_executions
WHERE key > ?1
ORDER BY key
LIMIT ?2";
pub(crate) const VERIFY_INBOX: &str = "
SELECT execution, id, arrived, body
FROM abide_inbox
WHERE execution = ?1";
pub(crate) const VERIFY_TAG_COUNT: &str = "
SELECT COUNT(*)
FROM abide_tags";
pub(crate) const VERIFY_SCHEMA: &str = "
SELECT name, sql
FROM sqlite_schema
WHERE name LIKE 'abide\\_%' ESCAPE '\\'
ORDER BY name";
pub(crate) const VERIFY_NAMES: &str = "
SELECT id, name, checksum
FROM abide_names";
pub(crate) const VERIFY_JOURNAL_COUNT: &str = "
SELECT COUNT(*)
FROM abide_journal";
pub(crate) const VERIFY_ORPHAN_JOURNAL: &str = "
SELECT row
FROM abide_journal
WHERE execution NOT IN (SELECT key FROM abide_executions)
LIMIT 10";
pub(crate) const VERIFY_ORPHAN_RUNS: &str = "
SELECT DISTINCT execution
FROM abide_runs
WHERE execution NOT IN (SELECT key FROM abide_executions)
LIMIT 10";
pub(crate) const VERIFY_RUN_COUNT: &str = "
SELECT COUNT(*)
FROM abide_runs
WHERE execution = ?1";
pub(crate) const VERIFY_ORPHAN_INBOX: &str = "
SELECT DISTINCT execution
FROM abide_inbox
WHERE execution NOT IN (SELECT key FROM abide_executions)
LIMIT 10";
pub(crate) const VERIFY_ORPHAN_TAGS: &str = "
SELECT DISTINCT execution
FROM abide_tags
WHERE execution NOT IN (SELECT key FROM abide_executions)
LIMIT 10";
pub(crate) const VERIFY_LEASES: &str = "
SELECT e.key, e.id, (e.place - 3) / 4
FROM abide_executions AS e
LEFT JOIN abide_sessions AS s ON s.id = (e.place - 3) / 4 AND s.retired IS NULL
WHERE e.place % 4 = 3 AND s.id IS NULL
LIMIT 10";
