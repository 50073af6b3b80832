//! What `APPLY` does for the operations that come most often, in fewer words. Most of a statement
//! that changes one row is its setting up, and `APPLY` sets up twelve tables.
//!
//! Each operation is one row of arrays: what hangs on an execution comes out of the `RETURNING` of
//! its own update, and need not be looked for. `i.key = i.key + 0` is what it is in `APPLY`.

/// Commits that keep their leases and append to their journals.
///
/// The fence is that of `u` in `APPLY`, in the same update: it waits for the holder of the row's
/// lock, and then looks at the newest version. A commit that is fenced is not returned, and the
/// record that hangs on it is not written.
pub(crate) const APPENDS: &str = "
WITH u AS (
    UPDATE executions e
    SET
        version = e.version + 1,
        status = i.status,
        listens = i.listens,
        wake_at = i.wake_at,
        takeovers = CASE WHEN i.ends_suspicion THEN 0 ELSE e.takeovers END,
        summary = i.summary,
        state = i.state
    FROM unnest(
        $2::BIGINT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[], $6::SMALLINT[], $7::SMALLINT[],
        $8::BIGINT[], $9::BOOL[], $10::BYTEA[], $11::BYTEA[], $12::BIGINT[], $13::INT[], $14::BYTEA[]
    ) i (
        key, epoch, version, session, status, listens,
        wake_at, ends_suspicion, summary, state, seq, count, body
    )
    WHERE e.key = i.key AND e.epoch = i.epoch AND e.version = i.version AND (e.session = i.session) IS TRUE
        AND i.key = i.key + 0
        AND (SELECT s.retired IS NULL AND s.expires_at > $1 FROM sessions s WHERE s.id = i.session)
    RETURNING e.key, e.run, i.seq, i.count, i.body
),
j AS (
    INSERT INTO journal (execution, run, seq, count, body)
    SELECT key, run, seq, count, body
    FROM u
    WHERE seq IS NOT NULL
)
SELECT key
FROM u";

/// Commits that append to their journals, and keep their leases or leave them behind with nothing
/// that their holders have seen.
///
/// The fence is that of `APPENDS`. The visible wakes and reasons for care of an execution that has
/// ended are deleted as in `APPLY`. One that is committed after this statement began stays beside
/// the ended execution.
pub(crate) const ENDS: &str = "
WITH u AS (
    UPDATE executions e
    SET
        version = e.version + 1,
        status = i.status,
        listens = i.listens,
        wake_at = i.wake_at,
        care_at = CASE WHEN i.keeps_care THEN e.care_at ELSE i.care_at END,
        session = CASE WHEN i.keeps_lease THEN e.session END,
        takeovers = CASE WHEN i.ends_suspicion THEN 0 ELSE e.takeovers END,
        finished_at = i.finished_at,
        summary = i.summary,
        state = i.state
    FROM unnest(
        $2::BIGINT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[], $6::SMALLINT[], $7::SMALLINT[],
        $8::BIGINT[], $9::BOOL[], $10::BYTEA[], $11::BYTEA[], $12::BIGINT[], $13::INT[], $14::BYTEA[],
        $15::BIGINT[], $16::BOOL[], $17::BOOL[], $18::BIGINT[], $19::BOOL[], $20::BIGINT[],
        $21::SMALLINT[], $22::BOOL[]
    ) i (
        key, epoch, version, session, status, listens,
        wake_at, ends_suspicion, summary, state, seq, count, body,
        care_at, keeps_care, keeps_lease, finished_at, clears, at,
        happening, is_end
    )
    WHERE e.key = i.key AND e.epoch = i.epoch AND e.version = i.version AND (e.session = i.session) IS TRUE
        AND i.key = i.key + 0
        AND (SELECT s.retired IS NULL AND s.expires_at > $1 FROM sessions s WHERE s.id = i.session)
    RETURNING
        e.key, e.run, i.seq, i.count, i.body, i.clears, e.finished_at IS NOT NULL AS is_over,
        i.at, i.happening, i.is_end
),
j AS (
    INSERT INTO journal (execution, run, seq, count, body)
    SELECT key, run, seq, count, body
    FROM u
    WHERE seq IS NOT NULL
),
f AS (
    INSERT INTO feed (execution, run, at, happening, is_end)
    SELECT key, run, at, happening, is_end
    FROM u
    WHERE happening IS NOT NULL
),
wc AS (
    DELETE FROM wakes
    WHERE execution = ANY(ARRAY(SELECT key FROM u WHERE clears))
),
kc AS (
    DELETE FROM cares
    WHERE execution = ANY(ARRAY(SELECT key FROM u WHERE is_over))
)
SELECT key
FROM u";

/// New executions that nobody else's row is needed for.
///
/// - Of two starts of one id, the second waits for the first and is not returned, and nothing of it
///   is written: its start is then decided anew, by what it finds. So nobody has to look for the id
///   beforehand.
/// - A newborn that is leased is left out when the session is no longer live, as in `APPLY`.
/// - `$2` says that nobody has looked at the queue. Then a newborn is also left out when somebody
///   who is ready stands before it (see `HEADS`), as of the snapshot of this statement.
pub(crate) const STARTS: &str = "
WITH n AS (
    INSERT INTO executions (
        key, ns, id, route, rank, session, request, is_care, given_beat, epoch, version, run, status,
        listens, aside, wake_at, care_at, is_child, created_at, takeovers, summary, state
    )
    SELECT
        i.key, i.ns, i.id, i.route, i.rank, i.session, 0, FALSE,
        COALESCE((SELECT s.beat_count FROM sessions s WHERE s.id = i.session), 0), i.epoch, 0, 1, i.status,
        i.listens, FALSE, i.wake_at, i.care_at, FALSE, $1, 0, i.summary, i.state
    FROM unnest(
        $3::BIGINT[], $4::TEXT[], $5::TEXT[], $6::INT[], $7::INT[], $8::BIGINT[], $9::BIGINT[],
        $10::SMALLINT[], $11::SMALLINT[], $12::BIGINT[], $13::BIGINT[], $14::BYTEA[], $15::BYTEA[]
    ) i (
        key, ns, id, route, rank, session, epoch,
        status, listens, wake_at, care_at, summary, state
    )
    WHERE i.session IS NULL
        OR (
            (SELECT s.retired IS NULL AND s.expires_at > $1 FROM sessions s WHERE s.id = i.session)
            AND CASE WHEN $2 THEN ((
                SELECT w.rank
                FROM (
                    SELECT execution, rank, needs
                    FROM wakes
                    WHERE route = i.route
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
            ) <= i.rank) IS NOT TRUE ELSE TRUE END
        )
    ON CONFLICT (ns, id) DO NOTHING
    RETURNING key
),
j AS (
    INSERT INTO journal (execution, run, seq, count, body)
    SELECT i.key, 1, i.seq, i.count, i.body
    FROM unnest($3::BIGINT[], $16::BIGINT[], $17::INT[], $18::BYTEA[]) i (key, seq, count, body)
    WHERE i.seq IS NOT NULL AND (i.key IN (SELECT key FROM n)) IS TRUE
),
f AS (
    INSERT INTO feed (execution, run, at, happening, is_end)
    SELECT i.key, 1, i.at, i.happening, i.is_end
    FROM unnest($3::BIGINT[], $19::BIGINT[], $20::SMALLINT[], $21::BOOL[]) WITH ORDINALITY
        i (key, at, happening, is_end, n)
    WHERE i.happening IS NOT NULL AND (i.key IN (SELECT key FROM n)) IS TRUE
    ORDER BY i.n
),
w AS (
    INSERT INTO wakes (execution, route, rank, since, message, needs)
    SELECT i.key, i.route, i.rank, $1, '', 0
    FROM unnest($3::BIGINT[], $6::INT[], $7::INT[], $22::BOOL[]) i (key, route, rank, is_ready)
    WHERE i.is_ready AND (i.key IN (SELECT key FROM n)) IS TRUE
)
SELECT key
FROM n";
