//! Sessions, and what ends with them.

pub(crate) const SESSION_INSERT: &str = "
INSERT INTO sessions (
    id, ns, name, ability, ttl_us, registered_at, expires_at, died, released, draining, beat_count, taken
)
VALUES (nextval('session_id'), $1, $2, $3, $4, $5, $6, FALSE, FALSE, FALSE, 0, 0)
RETURNING id";

pub(crate) const SESSION: &str = "
SELECT ability, retired IS NULL AND expires_at > $2
FROM sessions
WHERE id = $1";

/// The last request of a session of which this process knows nothing.
pub(crate) const LAST_REQUEST: &str = "
SELECT COALESCE(max(request), 0)
FROM executions
WHERE session = $1";

/// A clock that was set back does not shorten the promised life.
pub(crate) const SESSION_EXTEND: &str = "
UPDATE sessions
SET
    expires_at = GREATEST(expires_at, $2::BIGINT + ttl_us),
    draining = draining OR $3,
    beat_count = beat_count + $4::BIGINT
WHERE id = $1 AND retired IS NULL AND expires_at > $2
RETURNING expires_at, beat_count, taken";

/// All leases of a session, for a count of them that begins anew.
pub(crate) const LEASES_ALL: &str = "
SELECT key, epoch, given_beat
FROM executions
WHERE session = $1
ORDER BY session, key";

pub(crate) const SESSION_RETIRE: &str = "
UPDATE sessions
SET retired = $2, retired_at = $3
WHERE id = $1 AND retired IS NULL";

/// The newest version of the row decides: a heartbeat may have come first.
pub(crate) const SESSION_EXPIRE: &str = "
UPDATE sessions
SET retired = 'expired', retired_at = $2, died = TRUE
WHERE id = $1 AND retired IS NULL AND expires_at <= $2";

/// Sessions that are over and may still hold something.
pub(crate) const SESSIONS_OVER: &str = "
SELECT id, died, retired IS NOT NULL
FROM sessions
WHERE NOT released AND (retired IS NOT NULL OR expires_at <= $1)
ORDER BY id
LIMIT 1000";

/// Whether the leases of a session made its executions suspects.
pub(crate) const SESSION_DIED: &str = "
SELECT died
FROM sessions
WHERE id = $1 AND retired IS NOT NULL";

/// Forgets a session that ended a while ago and holds nothing. Not at once: a statement that began
/// before the end may still give it a newborn.
pub(crate) const SESSION_RELEASED: &str = "
UPDATE sessions
SET released = TRUE
WHERE id = $1 AND retired_at < $2
    AND (SELECT key FROM executions WHERE session = $1 LIMIT 1) IS NULL";

/// Locks some of the executions that a session holds, in the order of their keys. It waits for
/// commits that are under way: they come before the end of the session.
pub(crate) const HELD_LOCK: &str = "
SELECT key
FROM executions
WHERE session = $1
ORDER BY session, key
LIMIT 1000
FOR NO KEY UPDATE";

/// The facts about them, from a moment after they were locked.
pub(crate) const HELD: &str = "
SELECT
    e.key, e.route, e.rank, e.care_at,
    (SELECT min(c.at) FROM cares c WHERE c.execution = e.key AND c.while_held),
    (SELECT TRUE FROM inbox b WHERE b.execution = e.key AND b.body IS NOT NULL LIMIT 1) IS NOT NULL,
    ARRAY(SELECT c.message FROM cares c WHERE c.execution = e.key)
FROM executions e
WHERE e.key = ANY($1::BIGINT[])
ORDER BY e.key";

/// Releases locked executions. Each gets a wake of its own, so older wakes and the timer may go.
/// Reasons for care go by name: one that came after they were read stays. For `i.key + 0`, see
/// `APPLY`.
pub(crate) const RELEASE: &str = "
WITH i AS MATERIALIZED (
    SELECT *
    FROM unnest($1::BIGINT[], $2::BIGINT[], $3::INT[], $4::BIGINT[]) i (key, care_at, takeovers, wake_at)
),
u AS (
    UPDATE executions e
    SET
        session = NULL,
        care_at = i.care_at,
        takeovers = e.takeovers + i.takeovers,
        wake_at = i.wake_at
    FROM i
    WHERE e.key = i.key AND e.session IS NOT NULL AND i.key = i.key + 0
    RETURNING e.key, e.route, e.rank, i.wake_at IS NULL AS is_ready
),
d AS (
    DELETE FROM wakes
    WHERE execution = ANY(ARRAY(SELECT key FROM u))
),
w AS (
    INSERT INTO wakes (execution, route, rank, since, message, needs)
    SELECT key, route, rank, $5, '', 0
    FROM u
    WHERE is_ready
)
DELETE FROM cares
WHERE ctid = ANY(ARRAY(
    SELECT c.place_of
    FROM unnest($6::BIGINT[], $7::TEXT[]) x (execution, message),
    LATERAL (
        SELECT ctid AS place_of
        FROM cares
        WHERE execution = x.execution AND message = x.message
        OFFSET 0
    ) c
    WHERE (x.execution IN (SELECT key FROM u)) IS TRUE
))";

/// Locks an execution under a lease.
pub(crate) const LEASE_LOCK: &str = "
SELECT key
FROM executions
WHERE key = $1 AND epoch = $2 AND session = $3
FOR NO KEY UPDATE";

/// Sets a damaged execution aside. A wake that is appended meanwhile counts for nothing until a
/// caretaker has leased it.
pub(crate) const SET_ASIDE: &str = "
WITH u AS (
    UPDATE executions
    SET session = NULL, aside = TRUE
    WHERE key = $1 AND epoch = $2 AND session = $3
    RETURNING key
)
DELETE FROM wakes
WHERE execution = ANY(ARRAY(SELECT key FROM u))";

pub(crate) const WORKERS: &str = "
SELECT
    s.id, s.name, s.ability, s.ttl_us, s.registered_at, s.expires_at, s.retired, s.draining,
    (SELECT count(*) FROM executions e WHERE e.session = s.id)
FROM sessions s
WHERE s.ns = $1 AND s.id > $2
ORDER BY s.ns, s.id
LIMIT $3";

pub(crate) const LEASES: &str = "
SELECT key, epoch, given_beat
FROM executions
WHERE session = $1 AND key > $2
ORDER BY session, key
LIMIT $3";

/// The epoch under which a session holds an execution.
pub(crate) const LEASE_OF: &str = "
SELECT epoch
FROM executions
WHERE key = $1 AND session = $2";
