//! Sessions and their leases.

pub(crate) const SESSION_INSERT: &str = "
INSERT INTO abide_sessions (
    id, namespace, name, ability, ttl_us, registered_at, expires_at, newborn_from, retired
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, NULL)";
pub(crate) const SESSION: &str = "
SELECT ability, ttl_us, expires_at, retired IS NOT NULL, taken
FROM abide_sessions
WHERE id = ?1";
pub(crate) const SESSION_IS_LIVE: &str = "
SELECT 1
FROM abide_sessions
WHERE id = ?1 AND retired IS NULL";
pub(crate) const SESSION_EXTEND: &str = "
UPDATE abide_sessions
SET expires_at = ?2, draining = draining OR ?3
WHERE id = ?1
RETURNING taken";
pub(crate) const SESSION_TAKEN: &str = "
SELECT taken
FROM abide_sessions
WHERE id = ?1";
pub(crate) const SESSION_TAKE: &str = "
UPDATE abide_sessions
SET taken = ?2
WHERE id = ?1";
pub(crate) const SESSION_RETIRE: &str = "
UPDATE abide_sessions
SET retired = ?2
WHERE id = ?1 AND retired IS NULL";
/// The change of an execution whose session has ended: it is ready for others. An execution without
/// a queue is damaged, and goes where no claim looks (8).
macro_rules! release {
    () => {
        "
SET place = COALESCE((queue >> 16) * 4 + 1, 8), rank = COALESCE(32768 - (queue & 65535), 0), place_at = ?2,
    takeover_count = COALESCE(takeover_count + ?3, ?3),
    care_at = CASE
        WHEN EXISTS (
            SELECT 1 FROM abide_inbox INDEXED BY abide_inbox_unread WHERE execution = key AND body IS NOT NULL
        )
        THEN MIN(COALESCE(care_at, ?4), ?4)
        ELSE care_at
    END"
    };
}
pub(crate) const SESSION_RELEASE: &str = concat!(
    "
UPDATE abide_executions INDEXED BY abide_executions_place",
    release!(),
    "
WHERE place > 4 AND place = ?1"
);
pub(crate) const SESSION_RELEASE_NEWBORNS: &str = concat!(
    "
UPDATE abide_executions",
    release!(),
    "
WHERE key >= ?5 AND place = ?1"
);
/// The executions of a session that have children. Those in no index have none.
pub(crate) const SESSION_PARENTS: &str = "
SELECT key
FROM abide_executions AS held INDEXED BY abide_executions_place
WHERE place > 4 AND place = ?1 AND EXISTS (
    SELECT 1
    FROM abide_executions AS child INDEXED BY abide_executions_parent
    WHERE child.parent IS NOT NULL AND child.parent = held.key
)";
/// The same of all sessions.
pub(crate) const PARENTS_HELD: &str = "
SELECT key
FROM abide_executions AS held
WHERE place % 4 = 3 AND key > ?1 AND EXISTS (
    SELECT 1
    FROM abide_executions AS child INDEXED BY abide_executions_parent
    WHERE child.parent IS NOT NULL AND child.parent = held.key
)";
pub(crate) const SESSION_NEWBORN_FROM: &str = "
SELECT newborn_from
FROM abide_sessions
WHERE id = ?1";
pub(crate) const SESSION_RAISE: &str = "
UPDATE abide_sessions
SET newborn_from = ?2
WHERE id = ?1 AND newborn_from <> ?2";
pub(crate) const NEWBORN_SETTLE: &str = "
UPDATE abide_executions
SET place = -place
WHERE key = ?1 AND place = ?2";
pub(crate) const NEWBORNS_AFTER: &str = "
SELECT key, epoch, place, rank, place_at
FROM abide_executions
WHERE key >= ?2 AND key > ?3 AND place = ?1
ORDER BY key
LIMIT ?4";
pub(crate) const NEWBORN_COUNT: &str = "
SELECT COUNT(*)
FROM abide_executions
WHERE key >= ?2 AND place = ?1";
pub(crate) const SESSION_LEASES_BESIDE: &str = "
SELECT key, epoch, place, rank, place_at
FROM abide_executions INDEXED BY abide_executions_place
WHERE place > 4 AND place = ?1 AND rank = ?2 AND place_at = ?3 AND key > ?4
ORDER BY key
LIMIT ?5";
pub(crate) const SESSION_LEASES_AFTER: &str = "
SELECT key, epoch, place, rank, place_at
FROM abide_executions INDEXED BY abide_executions_place
WHERE place > 4 AND place = ?1 AND (rank, place_at) > (?2, ?3)
ORDER BY rank, place_at, key
LIMIT ?4";
pub(crate) const SESSION_LEASE_COUNT: &str = "
SELECT COUNT(*)
FROM abide_executions INDEXED BY abide_executions_place
WHERE place > 4 AND place = ?1";
pub(crate) const SESSIONS_LIVE: &str = "
SELECT id, expires_at
FROM abide_sessions INDEXED BY abide_sessions_live
WHERE retired IS NULL
ORDER BY id";
pub(crate) const SESSIONS: &str = "
SELECT id, name, ability, ttl_us, registered_at, expires_at, retired, draining
FROM abide_sessions
WHERE namespace = ?1 AND id > ?2
ORDER BY id
LIMIT ?3";
pub(crate) const SESSIONS_OLD: &str = "
SELECT 1
FROM abide_sessions
WHERE retired IS NOT NULL AND expires_at < ?1";
pub(crate) const SESSIONS_PRUNE: &str = "
DELETE FROM abide_sessions
WHERE retired IS NOT NULL AND expires_at < ?1";
pub(crate) const SESSIONS_EXPIRE_ALL: &str = "
UPDATE abide_sessions
SET retired = ?1
WHERE retired IS NULL";
