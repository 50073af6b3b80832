//! The statements of damage on purpose: whose row, which, and its bytes.

pub(crate) const FLAW_OF_STATE: &str = "
SELECT key, key, state
FROM abide_executions
WHERE id = ?1
LIMIT 1 OFFSET ?2";
pub(crate) const FLAW_STATE: &str = "
UPDATE abide_executions
SET state = ?3
WHERE key = ?1 AND key = ?2";
pub(crate) const FLAW_KEY: &str = "
SELECT key
FROM abide_executions
WHERE id = ?1";
pub(crate) const FLAW_OF_JOURNAL: &str = "
SELECT row, execution, body, more
FROM abide_journal
ORDER BY row";
pub(crate) const FLAW_JOURNAL: &str = "
UPDATE abide_journal
SET body = ?2, more = ?3
WHERE row = ?1";
pub(crate) const FLAW_OF_MESSAGE: &str = "
SELECT execution, arrived, body
FROM abide_inbox
WHERE execution = (SELECT key FROM abide_executions WHERE id = ?1) AND body IS NOT NULL
ORDER BY arrived
LIMIT 1 OFFSET ?2";
pub(crate) const FLAW_MESSAGE: &str = "
UPDATE abide_inbox
SET body = ?3
WHERE execution = ?1 AND arrived = ?2";
