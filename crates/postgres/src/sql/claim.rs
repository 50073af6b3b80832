//! Leases: who is ready, who is due, who needs care.

/// Leases executions that are ready or due.
///
/// - `seen` walks the queue of each line, which is one rank of a route, from its floor up to a few
///   that are free, and likewise the timers that are due. It locks nothing: a session with many
///   routes looks at many more executions than it takes.
/// - `chosen` locks the first of all these that it can have. `SKIP LOCKED` follows a row to its
///   newest version, so an execution that somebody leased, set aside or paused meanwhile is passed
///   over, and of two claims one gets it. The wakes that it was found by stay then.
/// - `q` locks the row of the session: one that is retired at this moment either is found retired
///   here, or its leases are released after this statement. It only shares the lock, and changes
///   nothing: a row that each claim changes is as long as an old snapshot is old.
/// - The wakes that are deleted are those of the snapshot. Their messages are in the inbox that the
///   next statement reads. A wake that is committed later stays.
/// - A timer stays in the row. It counts for nothing while somebody holds the execution, and each
///   commit of the holder writes it anew.
/// - The reasons for care become one time in the row, as `care::after_lease` says.
macro_rules! lease {
    ($seen:literal, $limit:literal) => {
        concat!(
            "
WITH seen AS MATERIALIZED (
    SELECT x.execution, x.rank, x.since, x.needs, NULL::BIGINT AS due_at
    FROM unnest($3::INT[], $7::INT[], $8::BIGINT[]) r (route, rank, floor), LATERAL (
        SELECT w.execution, w.rank, w.since, w.needs
        FROM (
            SELECT execution, rank, since, needs
            FROM wakes
            WHERE route = r.route AND rank = r.rank AND since >= r.floor
            ORDER BY route, rank, since, execution
            OFFSET 0
        ) w,
        LATERAL (
            SELECT e.key
            FROM executions e
            WHERE e.key = w.execution AND e.session IS NULL AND NOT e.aside AND e.listens >= w.needs
            LIMIT 1
        ) e
        LIMIT ",
            $seen,
            "
    ) x
    UNION ALL
    SELECT x.key, x.rank, x.wake_at, NULL::SMALLINT, $5
    FROM unnest($3::INT[], $7::INT[], $9::BIGINT[]) r (route, rank, floor), LATERAL (
        SELECT key, rank, wake_at
        FROM executions
        WHERE route = r.route AND rank = r.rank AND session IS NULL AND wake_at IS NOT NULL AND NOT aside
            AND wake_at >= r.floor AND wake_at <= $5
        ORDER BY route, rank, wake_at
        LIMIT ",
            $seen,
            "
    ) x
),
chosen AS MATERIALIZED (
    SELECT execution, rank, since
    FROM (
        SELECT s.execution, s.rank, s.since
        FROM (
            SELECT execution, min(rank) AS rank, min(since) AS since, min(needs) AS needs, min(due_at) AS due_at
            FROM seen
            GROUP BY execution
            ORDER BY 2, 3, 1
            OFFSET 0
        ) s,
        LATERAL (
            SELECT e.key
            FROM executions e
            WHERE e.key = s.execution AND e.session IS NULL AND NOT e.aside
                AND (e.listens >= s.needs OR e.wake_at <= s.due_at)
            LIMIT 1
            FOR NO KEY UPDATE SKIP LOCKED
        ) e
        LIMIT ",
            $limit,
            "
    ) c
    LIMIT $4
),
q AS MATERIALIZED (
    SELECT beat_count
    FROM sessions
    WHERE id = $1 AND retired IS NULL AND expires_at > $5 AND EXISTS (SELECT 1 FROM chosen)
    FOR SHARE
),
u AS (
    UPDATE executions e
    SET
        session = $1,
        request = $2,
        is_care = FALSE,
        given_beat = (SELECT beat_count FROM q),
        epoch = e.epoch + 1,
        care_at = CASE
            WHEN LEAST(e.care_at, (SELECT min(c.at) FROM cares c WHERE c.execution = e.key)) IS NULL THEN NULL
            ELSE GREATEST(LEAST(e.care_at, (SELECT min(c.at) FROM cares c WHERE c.execution = e.key)), $6)
        END
    WHERE e.key = ANY(ARRAY(SELECT execution FROM chosen)) AND EXISTS (SELECT 1 FROM q)
    RETURNING e.key
),
d AS (
    DELETE FROM wakes
    WHERE execution = ANY(ARRAY(SELECT key FROM u))
),
k AS (
    DELETE FROM cares
    WHERE execution = ANY(ARRAY(SELECT key FROM u))
)
SELECT execution
FROM chosen
WHERE (execution IN (SELECT key FROM u)) IS TRUE
ORDER BY rank, since, execution"
        )
    };
}

/// The limits are part of the text: for one in a parameter, the server plans to read a tenth of the
/// table.
pub(crate) const LEASE_FEW: &str = lease!("32", "16");
pub(crate) const LEASE_MANY: &str = lease!("384", "256");

/// Returns leases to the queue of which nobody has heard. Their epochs stay used.
pub(crate) const GIVE_BACK: &str = "
WITH u AS (
    UPDATE executions
    SET session = NULL
    WHERE key = ANY($2::BIGINT[]) AND session = $1
    RETURNING key, route, rank
)
INSERT INTO wakes (execution, route, rank, since, message, needs)
SELECT key, route, rank, $3, '', 0
FROM u
RETURNING route, rank";

/// The leases of a request that are still held.
pub(crate) const LEASES_OF_REQUEST: &str = "
SELECT key, is_care
FROM executions
WHERE session = $1 AND request = $2
ORDER BY key";

/// The front of each line, behind its floor: the first wake of an execution that is free, the first
/// timer that is due, and the first that is due later.
pub(crate) const FRONTS: &str = "
SELECT
    r.route, r.rank,
    (
        SELECT w.since
        FROM (
            SELECT execution, since, needs
            FROM wakes
            WHERE route = r.route AND rank = r.rank AND since >= r.wake
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
    ),
    (
        SELECT e.wake_at
        FROM executions e
        WHERE e.route = r.route AND e.rank = r.rank AND e.session IS NULL AND e.wake_at IS NOT NULL AND NOT e.aside
            AND e.wake_at >= r.timer AND e.wake_at <= $5
        ORDER BY e.route, e.rank, e.wake_at
        LIMIT 1
    ),
    (
        SELECT e.wake_at
        FROM executions e
        WHERE e.route = r.route AND e.rank = r.rank AND e.session IS NULL AND e.wake_at IS NOT NULL AND NOT e.aside
            AND e.wake_at >= r.timer AND e.wake_at > $5
        ORDER BY e.route, e.rank, e.wake_at
        LIMIT 1
    )
FROM unnest($1::INT[], $2::INT[], $3::BIGINT[], $4::BIGINT[]) r (route, rank, wake, timer)";

/// The fronts of all lines of some routes, without a floor: a loop over the ranks that there are.
macro_rules! survey {
    () => {
        "
SELECT r.route, f.rank, f.since, NULL::BIGINT AS wake_at
FROM unnest($1::INT[]) r (route), LATERAL (
    WITH RECURSIVE fronts (rank, since) AS (
        (
            SELECT w.rank, w.since
            FROM (
                SELECT execution, rank, since, needs
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
        )
        UNION ALL
        SELECT n.rank, n.since
        FROM fronts f, LATERAL (
            SELECT w.rank, w.since
            FROM (
                SELECT execution, rank, since, needs
                FROM wakes
                WHERE route = r.route AND rank > f.rank
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
        ) n
    )
    SELECT rank, since
    FROM fronts
) f
UNION ALL
SELECT r.route, f.rank, NULL, f.wake_at
FROM unnest($1::INT[]) r (route), LATERAL (
    WITH RECURSIVE fronts (rank, wake_at) AS (
        (
            SELECT rank, wake_at
            FROM executions
            WHERE route = r.route AND session IS NULL AND wake_at IS NOT NULL AND NOT aside
            ORDER BY route, rank, wake_at
            LIMIT 1
        )
        UNION ALL
        SELECT n.rank, n.wake_at
        FROM fronts f, LATERAL (
            SELECT rank, wake_at
            FROM executions
            WHERE route = r.route AND rank > f.rank AND session IS NULL AND wake_at IS NOT NULL AND NOT aside
            ORDER BY route, rank, wake_at
            LIMIT 1
        ) n
    )
    SELECT rank, wake_at
    FROM fronts
) f"
    };
}
pub(crate) const SURVEY: &str = survey!();

/// The survey, with numbers that change with whatever others do.
pub(crate) const LOOK: &str = concat!(
    "
SELECT
    (SELECT last_value FROM feed_place),
    (SELECT last_value FROM inbox_place),
    (SELECT last_value FROM wake_number),
    s.route, s.rank, s.since, s.wake_at,
    (SELECT number FROM intake ORDER BY number LIMIT 1) IS NOT NULL
FROM (SELECT 1) one
LEFT JOIN (",
    survey!(),
    ") s ON TRUE"
);

/// Everything that can keep a claim from being idle, at one moment, with the survey and the numbers
/// of a look. A claim that finds nothing here needs no other statement.
pub(crate) const GLANCE: &str = concat!(
    "
WITH survey AS MATERIALIZED (",
    survey!(),
    ")
SELECT
    (SELECT last_value FROM feed_place),
    (SELECT last_value FROM inbox_place),
    (SELECT last_value FROM wake_number),
    (SELECT count(*) FROM survey WHERE since IS NOT NULL),
    (SELECT min(wake_at) FROM survey),
    (SELECT retired IS NULL AND expires_at > $3 FROM sessions WHERE id = $2) IS TRUE
        AND (
            SELECT TRUE
            FROM sessions
            WHERE NOT released AND (retired IS NOT NULL OR expires_at <= $3)
            LIMIT 1
        ) IS NULL
        AND (SELECT TRUE FROM routes WHERE ns = $4 AND id <> ALL($5::INT[]) LIMIT 1) IS NULL
        AND (SELECT number FROM intake ORDER BY number LIMIT 1) IS NULL,
    LEAST(
        (
            SELECT e.care_at
            FROM executions e
            WHERE e.ns = $4 AND e.care_at IS NOT NULL
            ORDER BY e.ns, e.care_at, e.key
            LIMIT 1
        ),
        (
            SELECT c.at
            FROM (
                SELECT execution, at, while_held
                FROM cares
                WHERE ns = $4
                ORDER BY ns, at, execution
                OFFSET 0
            ) c,
            LATERAL (SELECT session FROM executions WHERE key = c.execution LIMIT 1) e
            WHERE c.while_held OR e.session IS NULL
            LIMIT 1
        )
    ),
    (SELECT key FROM executions WHERE session = $2 ORDER BY session, key LIMIT 1) IS NOT NULL"
);

/// The executions of a namespace that a caretaker is to look at first.
pub(crate) const CARE_NEXT: &str = "
SELECT x.key, min(x.at)
FROM (
    (
        SELECT e.key, e.care_at AS at
        FROM executions e
        WHERE e.ns = $1 AND e.care_at IS NOT NULL
        ORDER BY e.ns, e.care_at, e.key
        LIMIT 64
    )
    UNION ALL
    (
        SELECT c.execution, c.at
        FROM (
            SELECT execution, at, while_held
            FROM cares
            WHERE ns = $1
            ORDER BY ns, at, execution
            OFFSET 0
        ) c,
        LATERAL (SELECT session FROM executions WHERE key = c.execution LIMIT 1) e
        WHERE c.while_held OR e.session IS NULL
        LIMIT 64
    )
) x
GROUP BY x.key
ORDER BY 2, 1
LIMIT 64";

/// What a caretaker looks at.
pub(crate) const CARE_LOOK: &str = "
SELECT
    e.ns, e.id, e.session, e.epoch, e.version, e.summary, e.state,
    ARRAY(
        SELECT b.body
        FROM inbox b
        WHERE b.execution = e.key AND b.body IS NOT NULL AND b.sort = 1
        ORDER BY b.place
    ),
    ARRAY(SELECT c.message FROM cares c WHERE c.execution = e.key)
FROM executions e
WHERE e.key = $1";

/// Leases an execution for care, if it is still as it was looked at. A session that loses it hears
/// of that with its next heartbeat. See `lease!` for the rest.
pub(crate) const CARE_LEASE: &str = "
WITH q AS MATERIALIZED (
    SELECT beat_count
    FROM sessions
    WHERE id = $1 AND retired IS NULL AND expires_at > $5
    FOR SHARE
),
u AS (
    UPDATE executions e
    SET
        session = $1,
        request = $2,
        is_care = TRUE,
        given_beat = (SELECT beat_count FROM q),
        epoch = e.epoch + 1,
        aside = FALSE,
        care_at = CASE
            WHEN LEAST(e.care_at, (SELECT min(c.at) FROM cares c WHERE c.execution = e.key)) IS NULL THEN NULL
            ELSE GREATEST(LEAST(e.care_at, (SELECT min(c.at) FROM cares c WHERE c.execution = e.key)), $6)
        END
    WHERE e.key = $3 AND e.epoch = $4 AND e.version = $7 AND e.session IS NOT DISTINCT FROM $8
        AND EXISTS (SELECT 1 FROM q)
    RETURNING e.key
),
t AS (
    UPDATE sessions
    SET taken = taken + 1
    WHERE id = $8 AND id <> $1 AND EXISTS (SELECT 1 FROM u)
),
d AS (
    DELETE FROM wakes
    WHERE execution = ANY(ARRAY(SELECT key FROM u))
),
k AS (
    DELETE FROM cares
    WHERE execution = ANY(ARRAY(SELECT key FROM u))
)
SELECT key
FROM u";

/// Puts care off, if the execution is still as it was looked at. The reasons that were looked at
/// are deleted by name: one that came later stays.
pub(crate) const CARE_LATER: &str = "
WITH u AS (
    UPDATE executions
    SET care_at = $2
    WHERE key = $1 AND epoch = $3 AND version = $4 AND session IS NOT DISTINCT FROM $5
    RETURNING key
),
k AS (
    DELETE FROM cares
    WHERE execution = ANY(ARRAY(SELECT key FROM u)) AND message = ANY($6::TEXT[])
)
SELECT key
FROM u";

/// The newest unread message of each execution that a session holds.
pub(crate) const MAIL: &str = "
SELECT e.key, b.id
FROM executions e
JOIN LATERAL (
    SELECT id
    FROM inbox
    WHERE execution = e.key AND body IS NOT NULL
    ORDER BY place DESC
    LIMIT 1
) b ON TRUE
WHERE e.session = $1
ORDER BY e.key";

/// Everything that is needed to run these executions, at one moment. It comes after the statement
/// that leased them: one that locks rows sees the newest versions of those, and old versions of
/// everything else.
pub(crate) const LEASED: &str = "
SELECT
    e.key, e.ns, e.id, e.session, e.epoch, e.version, e.takeovers, e.summary, e.state,
    ARRAY(
        SELECT j.seq
        FROM (
            SELECT seq, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
            FROM (
                SELECT seq, body
                FROM journal
                WHERE execution = e.key AND run = e.run
                ORDER BY execution, run, seq
                LIMIT $2
            ) j
        ) j
        WHERE j.before < $3
        ORDER BY j.seq
    ),
    ARRAY(
        SELECT j.body
        FROM (
            SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
            FROM (
                SELECT seq, body
                FROM journal
                WHERE execution = e.key AND run = e.run
                ORDER BY execution, run, seq
                LIMIT $2
            ) j
        ) j
        WHERE j.before < $3
        ORDER BY j.seq
    ),
    ARRAY(
        SELECT b.place
        FROM (
            SELECT place, COALESCE(sum(octet_length(body)) OVER earlier, 0) AS before
            FROM (
                SELECT place, body
                FROM inbox
                WHERE execution = e.key AND body IS NOT NULL
                ORDER BY execution, place
                LIMIT $4
            ) b
            WINDOW earlier AS (ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING)
        ) b
        WHERE b.before < $5
        ORDER BY b.place
    ),
    ARRAY(
        SELECT b.body
        FROM (
            SELECT place, body, COALESCE(sum(octet_length(body)) OVER earlier, 0) AS before
            FROM (
                SELECT place, body
                FROM inbox
                WHERE execution = e.key AND body IS NOT NULL
                ORDER BY execution, place
                LIMIT $4
            ) b
            WINDOW earlier AS (ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING)
        ) b
        WHERE b.before < $5
        ORDER BY b.place
    )
FROM executions e
WHERE e.key = ANY($1::BIGINT[])
ORDER BY e.key";
