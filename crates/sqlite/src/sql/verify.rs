//! The statements of `verify` and `repair`.

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
pub(crate) const NAME_PUT_BACK: &str = "
UPDATE abide_names
SET id = ?2, name = ?3, checksum = ?4
WHERE id = ?1";
pub(crate) const NAME_DELETE: &str = "
DELETE FROM abide_names
WHERE id = ?1";
pub(crate) const NAMES_USED: &str = "
SELECT namespace
FROM abide_executions
UNION
SELECT namespace
FROM abide_sessions";
pub(crate) const NAMES_OF_SESSIONS: &str = "
SELECT DISTINCT namespace, ability
FROM abide_sessions";
pub(crate) const NAMES_OF_ROUTES: &str = "
SELECT DISTINCT namespace, queue >> 16
FROM abide_executions";
pub(crate) const ROUTES_USED: &str = "
SELECT DISTINCT queue >> 16
FROM abide_executions
WHERE TYPEOF(queue) = 'integer'";
pub(crate) const ROUTE_USERS: &str = "
SELECT key, namespace, id, queue, parent, head, version, state
FROM abide_executions
WHERE queue >> 16 = ?1";
pub(crate) const ROUTE_DELETE: &str = "
DELETE FROM abide_routes
WHERE id = ?1";
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
pub(crate) const VERIFY_SESSIONS: &str = "
SELECT id, name, ability, ttl_us, registered_at, expires_at, retired, draining
FROM abide_sessions
ORDER BY id";
pub(crate) const SESSION_EXPIRY: &str = "
SELECT id, expires_at
FROM abide_sessions
WHERE id = ?1 AND retired IS NULL";
/// Fails where SQLite would not commit.
pub(crate) const WRITE_NOTHING: &str = "
DELETE FROM abide_tags
WHERE FALSE";
pub(crate) const DISCARD_PARENT: &str = "
SELECT parent.key, parent.id, child.parent_run, COALESCE(run.head, parent.head)
FROM abide_executions AS child
JOIN abide_executions AS parent ON parent.key = child.parent AND parent.namespace = child.namespace
LEFT JOIN abide_runs AS run ON run.execution = parent.key AND run.run = child.parent_run
WHERE child.key = ?1 AND child.parent_run IS NOT NULL";
/// By way of an index, and nothing is read but the index.
pub(crate) const COPIES_OF_IDS: &str = "
SELECT rowid, execution, id, NULL
FROM abide_inbox INDEXED BY abide_inbox_ids";
pub(crate) const COPIES_OF_PLACES: &str = "
SELECT rowid, execution, id, arrived
FROM abide_inbox INDEXED BY abide_inbox_unread
WHERE body IS NOT NULL";
pub(crate) const INBOX_ROW: &str = "
SELECT execution, id, arrived, body
FROM abide_inbox
WHERE rowid = ?1";
pub(crate) const INBOX_INDEXES: &str = "
SELECT name, sql
FROM sqlite_schema
WHERE type = 'index' AND tbl_name = 'abide_inbox'";
pub(crate) const INBOX_PUT_BACK: &str = "
UPDATE abide_inbox
SET execution = ?2, id = ?3, arrived = ?4
WHERE rowid = ?1";
pub(crate) const ORDER_INBOX_KEYS: &str = "
SELECT rowid
FROM abide_inbox NOT INDEXED";
pub(crate) const ORDER_INBOX: &str = "
SELECT execution, id, arrived, body
FROM abide_inbox NOT INDEXED";
pub(crate) const ORDER_INBOX_CLEAR: &str = "
DELETE FROM abide_inbox";
pub(crate) const ORDER_INBOX_INSERT: &str = "
INSERT INTO abide_inbox (execution, id, arrived, body)
VALUES (?1, ?2, ?3, ?4)";
pub(crate) const ORDER_RUNS_KEYS: &str = "
SELECT execution, run
FROM abide_runs";
pub(crate) const ORDER_RUNS: &str = "
SELECT execution, run, first, head, entry_count, row_count
FROM abide_runs";
pub(crate) const ORDER_RUNS_CLEAR: &str = "
DELETE FROM abide_runs";
pub(crate) const TAGS: &str = "
SELECT namespace, key, value, execution
FROM abide_tags";
pub(crate) const TAGS_CLEAR: &str = "
DELETE FROM abide_tags";
pub(crate) const REPAIR_RUNS: &str = "
SELECT run, first, head, entry_count, row_count
FROM abide_runs
WHERE execution = ?1
ORDER BY run";
pub(crate) const REPAIR: &str = "
UPDATE abide_executions
SET namespace = ?2, id = ?3, queue = ?4, parent = ?5, head = ?6, version = ?7, state = ?8, epoch = ?9, place = ?10,
    rank = ?11, place_at = ?12, status = ?13, care_at = ?14, parent_run = ?15, takeover_count = ?16
WHERE key = ?1";
pub(crate) const REPAIR_TAGS: &str = "
SELECT e.key, e.namespace, e.id, e.queue, e.parent, e.head, e.version, e.state, t.namespace, t.key, t.value, t.execution
FROM abide_tags AS t
LEFT JOIN abide_executions AS e ON e.key = t.execution";
pub(crate) const MESSAGE_DROP: &str = "
DELETE FROM abide_inbox NOT INDEXED
WHERE rowid = (SELECT rowid FROM abide_inbox INDEXED BY abide_inbox_ids WHERE execution = ?1 AND id = ?2)
    AND execution = ?1 AND id = ?2 AND body IS NOT NULL";
pub(crate) const MESSAGE_MOVE: &str = "
UPDATE OR IGNORE abide_inbox NOT INDEXED
SET execution = ?3
WHERE rowid = (SELECT rowid FROM abide_inbox INDEXED BY abide_inbox_ids WHERE execution = ?1 AND id = ?2)
    AND execution = ?1 AND id = ?2";
pub(crate) const MESSAGE_FORGET: &str = "
DELETE FROM abide_inbox NOT INDEXED
WHERE rowid = (SELECT rowid FROM abide_inbox INDEXED BY abide_inbox_ids WHERE execution = ?1 AND id = ?2)
    AND execution = ?1 AND id = ?2 AND body IS NULL";
pub(crate) const REPAIR_CHILDREN: &str = "
SELECT 1
FROM abide_executions INDEXED BY abide_executions_parent
WHERE parent IS NOT NULL AND parent = ?1";
pub(crate) const DISCARD_CHILDREN: &str = "
SELECT namespace, id, parent_run
FROM abide_executions INDEXED BY abide_executions_parent
WHERE parent IS NOT NULL AND parent = ?1 AND place <> 4
ORDER BY key";
pub(crate) const DISCARD_INBOX_IDS: &str = "
SELECT id
FROM abide_inbox
WHERE execution = ?1";
pub(crate) const DISCARD_MESSAGE_BODY: &str = "
SELECT body
FROM abide_inbox
WHERE execution = ?1 AND id = ?2";
pub(crate) const DISCARD_MESSAGE: &str = "
DELETE FROM abide_inbox NOT INDEXED
WHERE rowid = (SELECT rowid FROM abide_inbox INDEXED BY abide_inbox_ids WHERE execution = ?1 AND id = ?2)
    AND execution = ?1 AND id = ?2";
pub(crate) const DISCARD_TAGS: &str = "
DELETE FROM abide_tags
WHERE execution = ?1";
pub(crate) const DISCARD: &str = "
UPDATE abide_executions
SET namespace = ?12, id = ?13, queue = ?2, parent = ?3, parent_run = ?4, epoch = ?14, version = ?5, status = ?6, head = ?7, state = ?8, place = ?9,
    rank = ?10, place_at = ?11, takeover_count = 0, care_at = NULL
WHERE key = ?1";
