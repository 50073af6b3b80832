//! Reads, pruning, importing.

/// An execution, without its journal.
macro_rules! snapshot {
    ($condition:literal) => {
        concat!(
            "
SELECT
    e.key, e.ns, e.id, e.session, e.epoch, e.version, e.run, e.aside, e.created_at, e.takeovers, e.tags,
    e.summary, e.state,
    CASE WHEN e.session IS NULL AND NOT e.aside THEN (
        SELECT min(w.since)
        FROM wakes w
        WHERE w.execution = e.key AND e.listens >= w.needs
    ) END,
    LEAST(e.care_at, (
        SELECT min(c.at)
        FROM cares c
        WHERE c.execution = e.key AND (c.while_held OR e.session IS NULL)
    ))
FROM executions e
WHERE ",
            $condition
        )
    };
}
pub(crate) const SNAPSHOT_BY_KEY: &str = snapshot!("e.key = $1");
pub(crate) const SNAPSHOT_BY_ID: &str = snapshot!("e.ns = $1 AND e.id = $2");

/// A part of a journal. It begins with the commit that has the first entry wanted.
pub(crate) const JOURNAL: &str = "
SELECT j.seq, j.body
FROM (
    SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
    FROM (
        SELECT seq, body
        FROM journal
        WHERE execution = $1 AND run = $2 AND seq >= COALESCE((
            SELECT seq
            FROM journal
            WHERE execution = $1 AND run = $2 AND seq <= $3
            ORDER BY execution DESC, run DESC, seq DESC
            LIMIT 1
        ), 0)
        ORDER BY execution, run, seq
        LIMIT $4
    ) j
) j
WHERE j.before < $5
ORDER BY j.seq";

/// A part of an inbox, and one message more than its bytes allow: it says that there is more.
pub(crate) const INBOX: &str = "
SELECT b.place, b.body
FROM (
    SELECT place, body, COALESCE(sum(octet_length(body)) OVER earlier, 0) AS before
    FROM (
        SELECT place, body
        FROM inbox
        WHERE execution = $1 AND body IS NOT NULL AND place > $2
        ORDER BY execution, place
        LIMIT $3
    ) b
    WINDOW earlier AS (ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING)
) b
WHERE b.before < $4
ORDER BY b.place";

/// A stretch of a list. Statuses depend on the time, and are compared by the caller. Children,
/// tagged executions and those that were set aside have indexes of their own. `OFFSET 0` keeps the
/// walk in the order of such an index: a plan that was made for a few executions would sort all.
macro_rules! list {
    ($walk:literal) => {
        concat!(
            "
SELECT
    e.key, e.ns, e.id, e.route, e.run, e.aside, e.created_at, e.tags, e.summary,
    LEAST(e.care_at, (
        SELECT min(c.at)
        FROM cares c
        WHERE c.execution = e.key AND (c.while_held OR e.session IS NULL)
    ))
FROM (",
            $walk,
            "
) e
WHERE e.ns = $1
    AND (NOT $3 OR NOT e.is_child)
    AND ($4::INT[] IS NULL OR e.route = ANY($4))
    AND NOT EXISTS (
        SELECT 1
        FROM unnest($5::TEXT[], $6::TEXT[]) i (key, value)
        WHERE (
            SELECT TRUE
            FROM tags t
            WHERE t.execution = e.key AND t.key = i.key AND t.value = i.value
            LIMIT 1
        ) IS NULL
    )
    AND ($7::BIGINT IS NULL OR (e.parent = $7 AND e.parent_run = $8))
    AND (NOT $9 OR e.aside)
LIMIT $10"
        )
    };
}
pub(crate) const LIST_OLDEST: &str = list!(
    "
    SELECT *
    FROM executions
    WHERE key > $2
    ORDER BY key
    OFFSET 0"
);
pub(crate) const LIST_NEWEST: &str = list!(
    "
    SELECT *
    FROM executions
    WHERE key < $2
    ORDER BY key DESC
    OFFSET 0"
);
pub(crate) const LIST_CHILDREN_OLDEST: &str = list!(
    "
    SELECT *
    FROM executions
    WHERE parent = $7 AND key > $2
    ORDER BY parent, key
    OFFSET 0"
);
pub(crate) const LIST_CHILDREN_NEWEST: &str = list!(
    "
    SELECT *
    FROM executions
    WHERE parent = $7 AND key < $2
    ORDER BY parent DESC, key DESC
    OFFSET 0"
);
pub(crate) const LIST_ASIDE_OLDEST: &str = list!(
    "
    SELECT *
    FROM executions
    WHERE aside AND key > $2
    ORDER BY key
    OFFSET 0"
);
pub(crate) const LIST_ASIDE_NEWEST: &str = list!(
    "
    SELECT *
    FROM executions
    WHERE aside AND key < $2
    ORDER BY key DESC
    OFFSET 0"
);
pub(crate) const LIST_TAGGED_OLDEST: &str = list!(
    "
    SELECT e.*
    FROM (
        SELECT execution
        FROM tags
        WHERE key = ($5::TEXT[])[1] AND value = ($6::TEXT[])[1] AND execution > $2
        ORDER BY key, value, execution
        OFFSET 0
    ) t,
    LATERAL (SELECT * FROM executions WHERE key = t.execution LIMIT 1) e
    OFFSET 0"
);
pub(crate) const LIST_TAGGED_NEWEST: &str = list!(
    "
    SELECT e.*
    FROM (
        SELECT execution
        FROM tags
        WHERE key = ($5::TEXT[])[1] AND value = ($6::TEXT[])[1] AND execution < $2
        ORDER BY key DESC, value DESC, execution DESC
        OFFSET 0
    ) t,
    LATERAL (SELECT * FROM executions WHERE key = t.execution LIMIT 1) e
    OFFSET 0"
);

pub(crate) const KEY_BY_ID: &str = "
SELECT key
FROM executions
WHERE ns = $1 AND id = $2";

/// The last place that was drawn.
pub(crate) const FEED_END: &str = "
SELECT CASE WHEN is_called THEN last_value ELSE 0 END
FROM feed_place";

/// Transactions that write the feed, or may.
pub(crate) const FEED_WRITERS: &str = "
SELECT virtualtransaction
FROM pg_locks
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation = 'feed'::REGCLASS
    AND pid <> pg_backend_pid()";

pub(crate) const FEED: &str = "
SELECT f.place, e.ns, e.id, f.run, f.at, f.happening, f.refused
FROM (
    SELECT *
    FROM feed
    WHERE place > $1 AND place <= $2
    ORDER BY place
    OFFSET 0
) f
LEFT JOIN LATERAL (SELECT ns, id FROM executions WHERE key = f.execution LIMIT 1) e ON TRUE
WHERE e.id IS NOT NULL OR f.refused IS NOT NULL
LIMIT $3";

pub(crate) const LISTEN: &str = "LISTEN abide";
pub(crate) const NOTIFY: &str = "
SELECT pg_notify('abide', $1)";

/// Executions that ended long ago, in the order of their ends. A run that ended before a retry is
/// not the end.
pub(crate) const PRUNE_OLD: &str = "
SELECT e.key
FROM (
    SELECT execution, run
    FROM feed
    WHERE is_end
    ORDER BY place
    OFFSET 0
) f,
LATERAL (
    SELECT key
    FROM executions
    WHERE key = f.execution AND run = f.run AND finished_at < $1
    LIMIT 1
) e
LIMIT $2";

/// Locks executions that are to be deleted, in the order of their keys, if nobody has opened
/// another run.
pub(crate) const PRUNE_LOCK: &str = "
SELECT key
FROM executions
WHERE key = ANY($1::BIGINT[]) AND finished_at < $2 AND session IS NULL
ORDER BY key
FOR UPDATE";

pub(crate) const PRUNE: &str = "
WITH j AS (DELETE FROM journal WHERE execution = ANY($1::BIGINT[])),
i AS (DELETE FROM inbox WHERE execution = ANY($1::BIGINT[])),
w AS (DELETE FROM wakes WHERE execution = ANY($1::BIGINT[])),
c AS (DELETE FROM cares WHERE execution = ANY($1::BIGINT[])),
t AS (DELETE FROM tags WHERE execution = ANY($1::BIGINT[])),
f AS (DELETE FROM feed WHERE execution = ANY($1::BIGINT[]))
DELETE FROM executions
WHERE key = ANY($1::BIGINT[])";

pub(crate) const PRUNE_SESSIONS: &str = "
DELETE FROM sessions s
WHERE s.retired IS NOT NULL AND s.expires_at < $1
    AND (SELECT e.key FROM executions e WHERE e.session = s.id LIMIT 1) IS NULL";

/// Of an execution whose next run opens: what the last run has left, and nobody reads.
pub(crate) const RETRY_CLEAR: &str = "
WITH b AS (
    UPDATE inbox
    SET body = NULL
    WHERE execution = $1 AND body IS NOT NULL AND sort = ANY($2::SMALLINT[])
),
w AS (DELETE FROM wakes WHERE execution = $1 AND message <> '')
DELETE FROM cares
WHERE execution = $1";

pub(crate) const KNOWN_MESSAGE: &str = "
SELECT 1
FROM inbox
WHERE execution = $1 AND id = $2";

/// Completes the row of an imported execution.
pub(crate) const IMPORT_ROW: &str = "
UPDATE executions
SET run = $2, epoch = $3, version = $4, takeovers = $5, created_at = $6, finished_at = $7
WHERE key = $1";

/// The number of this connection's process on the server.
pub(crate) const BACKEND: &str = "
SELECT pg_backend_pid()";
