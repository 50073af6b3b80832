//! What an operation has to know before it is decided. These statements lock nothing: what they say
//! may change before the next statement, which finds that out.

/// New keys.
pub(crate) const KEYS: &str = "
SELECT nextval('execution_key')
FROM generate_series(1, $1::BIGINT)";

/// What messages find.
pub(crate) const TARGETS: &str = "
SELECT
    e.key, e.route, e.rank, e.status, e.listens, e.aside, e.run, e.session, e.epoch, e.version,
    CASE WHEN i.wants_count THEN (
        SELECT count(*)
        FROM inbox b
        WHERE b.execution = e.key AND b.body IS NOT NULL
    ) END,
    (
        SELECT b.id
        FROM inbox b
        WHERE b.execution = e.key AND b.body IS NOT NULL
        ORDER BY b.place DESC
        LIMIT 1
    ),
    (SELECT TRUE FROM inbox b WHERE b.execution = e.key AND b.id = i.message LIMIT 1) IS NOT NULL,
    CASE WHEN i.wants_state THEN e.state END,
    CASE WHEN i.wants_first OR i.wants_state THEN (
        SELECT j.body
        FROM journal j
        WHERE j.execution = e.key AND j.run = 1 AND j.seq = 1
    ) END,
    CASE WHEN i.wants_state THEN (
        SELECT j.body
        FROM journal j
        WHERE j.execution = e.key AND j.run = e.run AND j.seq = 1
    ) END,
    CASE WHEN i.wants_state THEN ARRAY(
        SELECT b.body
        FROM inbox b
        WHERE b.execution = e.key AND b.body IS NOT NULL AND b.sort = 1
        ORDER BY b.place
    ) END
FROM unnest($1::TEXT[], $2::TEXT[], $3::TEXT[], $4::BOOL[], $5::BOOL[], $6::BOOL[])
    WITH ORDINALITY i (ns, id, message, wants_count, wants_state, wants_first, n)
LEFT JOIN LATERAL (SELECT * FROM executions WHERE ns = i.ns AND id = i.id LIMIT 1) e ON TRUE
ORDER BY i.n";

/// Who commits. Of one that parks or yields, also everything that it may leave behind.
pub(crate) const COMMITTERS: &str = "
SELECT
    e.key, e.ns, e.id, e.route, e.rank, e.session, e.epoch, e.version,
    COALESCE(
        (SELECT s.retired IS NULL AND s.expires_at > $1 FROM sessions s WHERE s.id = i.session),
        FALSE
    ),
    CASE WHEN i.wants_all THEN ARRAY(
        SELECT b.id
        FROM inbox b
        WHERE b.execution = e.key AND b.body IS NOT NULL
        ORDER BY b.place
    ) END,
    CASE WHEN i.wants_all THEN ARRAY(
        SELECT b.sort
        FROM inbox b
        WHERE b.execution = e.key AND b.body IS NOT NULL
        ORDER BY b.place
    ) END,
    CASE WHEN i.wants_all THEN ARRAY(SELECT w.message FROM wakes w WHERE w.execution = e.key) END,
    CASE WHEN i.wants_all THEN ARRAY(SELECT c.message FROM cares c WHERE c.execution = e.key) END
FROM unnest($2::BIGINT[], $3::BIGINT[], $4::BOOL[]) i (key, session, wants_all)
JOIN LATERAL (SELECT * FROM executions WHERE key = i.key LIMIT 1) e ON TRUE";

/// Keeps a committer from others until the end of the transaction, for a commit of several
/// statements.
pub(crate) const COMMITTER_LOCK: &str = "
SELECT key
FROM executions
WHERE key = $1
FOR NO KEY UPDATE";

/// The last record of an execution, which its holder asks for again.
pub(crate) const LAST_RECORD: &str = "
SELECT j.seq, j.body
FROM executions e
JOIN LATERAL (
    SELECT seq, body
    FROM journal
    WHERE execution = e.key AND run = e.run
    ORDER BY seq DESC
    LIMIT 1
) j ON TRUE
WHERE e.key = $1";

/// The best rank among the ready executions of each route. A newborn that is overtaken by one that
/// becomes ready after this lines up before it; nobody can tell, because neither had its answer.
pub(crate) const HEADS: &str = "
SELECT r.route, w.rank
FROM unnest($1::INT[]) r (route)
JOIN LATERAL (
    SELECT w.rank
    FROM (
        SELECT execution, rank, needs
        FROM wakes
        WHERE route = r.route
        ORDER BY route, rank, since, execution
        OFFSET 0
    ) w,
    LATERAL (
        SELECT key
        FROM executions
        WHERE key = w.execution AND session IS NULL AND NOT aside AND listens >= w.needs
        LIMIT 1
    ) e
    LIMIT 1
) w ON TRUE";

pub(crate) const OFFERS: &str = "
SELECT id, ability, retired IS NULL AND expires_at > $1
FROM sessions
WHERE id = ANY($2::BIGINT[])";

/// Routes of a namespace that this process has not met. Numbers may be committed in any order, so
/// the known ones are named, and not only the highest.
pub(crate) const ROUTES_NEW: &str = "
SELECT id, body
FROM routes
WHERE ns = $1 AND id <> ALL($2::INT[])";
pub(crate) const ROUTE_INSERT: &str = "
INSERT INTO routes (ns, body)
VALUES ($1, $2)
ON CONFLICT (ns, body) DO NOTHING";
pub(crate) const ROUTE: &str = "
SELECT id
FROM routes
WHERE ns = $1 AND body = $2";
pub(crate) const ROUTES_BY_ID: &str = "
SELECT id, body
FROM routes
WHERE id = ANY($1::INT[])";
