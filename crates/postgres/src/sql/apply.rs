//! The statement that writes.

/// Writes the decisions about any number of submits and commits.
///
/// - `u` are the commits. It checks each lease and writes in one update: it waits for the
///   holder of the row's lock, and then looks at the newest version. A commit whose epoch, version
///   or session is no longer right is not returned, and everything else of it hangs on its key,
///   so it writes nothing (P3, P6). A version is committed once: two copies of a commit meet at the
///   row, and the second finds another version. That the session lives is read from the snapshot:
///   if it is retired at this moment, the commit comes before that, because the release of the
///   lease waits for the same row.
/// - `r` are ended executions whose next run is opened. The run and the version that were read are
///   compared in the same way.
/// - `n` are new executions. Of two starts of one id, the second waits for the first and is not
///   returned, and nothing of it is written. A newborn that is leased is left out when the session
///   is no longer live; its start is then decided anew.
/// - `x` are messages. It waits for another submit of the same message, and for nobody else: the
///   row of the target is not touched. If the target ends meanwhile, the message stays unread with
///   it.
/// - `w` are wakes. Each is written beside its message, whatever its target listens to: the
///   facts about the target may be out of date, and a wake that is missing is never found again. A
///   claim compares it with the newest row (`needs`, `listens`).
/// - `wd` deletes wakes that a holder has seen, by name, and `wc` all wakes that are visible of an
///   execution that has ended, or that yields and so has a wake of its own in `w`. A wake that is
///   committed after this statement began is not visible, and stays.
/// - A row whose `gate` is set is written only if that key was written in `u`, `r` or `n`.
/// - A row that is `strict` belongs to an operation with several such rows. If it is missing, the
///   division by zero rolls the whole statement back, and each operation is tried again alone.
/// - `i.key = i.key + 0` is true. It makes the planner expect few rows, so that it looks each of
///   them up: a plan that was made while the table was almost empty would read all of it.
/// - Rows that are named by two columns are found by a loop over an index (`OFFSET 0` keeps it so),
///   and changed by their places. Otherwise a plan that was made on a small table reads all of it.
///   Nobody moves these rows in between: only the holder of the lease, who waits in `u`, could.
///
/// Rows are sorted by the caller, so that two such statements lock them in one order.
pub(crate) const APPLY: &str = "
WITH u AS (
    UPDATE executions e
    SET
        version = e.version + i.version_step,
        run = e.run + i.run_step,
        status = i.status,
        listens = i.listens,
        wake_at = i.wake_at,
        care_at = CASE WHEN i.keeps_care THEN e.care_at ELSE i.care_at END,
        session = CASE WHEN i.keeps_lease THEN e.session END,
        takeovers = CASE WHEN i.ends_suspicion THEN 0 ELSE e.takeovers END,
        finished_at = i.finished_at,
        summary = COALESCE(i.summary, e.summary),
        state = COALESCE(i.state, e.state)
    FROM unnest(
        $2::BIGINT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[], $6::INT[], $7::INT[], $8::SMALLINT[],
        $9::SMALLINT[], $10::BIGINT[], $11::BIGINT[], $12::BOOL[], $13::BOOL[], $14::BOOL[],
        $15::BIGINT[], $16::BOOL[], $17::BYTEA[], $18::BYTEA[]
    ) i (
        key, epoch, version, session, version_step, run_step, status,
        listens, wake_at, care_at, keeps_care, keeps_lease, ends_suspicion,
        finished_at, clears, summary, state
    )
    WHERE e.key = i.key AND e.epoch = i.epoch AND e.version = i.version AND (e.session = i.session) IS TRUE
        AND i.key = i.key + 0
        AND (SELECT s.retired IS NULL AND s.expires_at > $1 FROM sessions s WHERE s.id = i.session)
    RETURNING e.key, i.clears, e.finished_at IS NOT NULL AS is_over
),
r AS (
    UPDATE executions e
    SET
        run = e.run + 1,
        status = i.status,
        listens = i.listens,
        wake_at = i.wake_at,
        care_at = i.care_at,
        finished_at = NULL,
        summary = i.summary,
        state = i.state
    FROM unnest(
        $38::BIGINT[], $39::BIGINT[], $40::BIGINT[], $41::BIGINT[], $42::INT[], $43::SMALLINT[],
        $44::SMALLINT[], $45::BIGINT[], $46::BIGINT[], $47::BYTEA[], $48::BYTEA[]
    ) i (key, gate, epoch, version, run, status, listens, wake_at, care_at, summary, state)
    WHERE e.key = ANY($38::BIGINT[])
        AND e.key = i.key AND e.epoch = i.epoch AND e.version = i.version AND e.run = i.run
        AND e.session IS NULL AND e.finished_at IS NOT NULL
        AND (i.gate IS NULL OR (i.gate IN (SELECT key FROM u)) IS TRUE)
    RETURNING e.key
),
n AS (
    INSERT INTO executions (
        key, ns, id, route, rank, session, request, is_care, given_beat, epoch, version, run, status,
        listens, aside, wake_at, care_at, parent, parent_run, is_child, created_at, takeovers, tags,
        summary, state
    )
    SELECT
        i.key, i.ns, i.id, i.route, i.rank, i.session, 0, FALSE,
        COALESCE((SELECT s.beat_count FROM sessions s WHERE s.id = i.session), 0), i.epoch, 0, 1, i.status,
        i.listens, FALSE, i.wake_at, i.care_at, i.parent, i.parent_run, i.is_child, $1, 0, i.tags,
        i.summary, i.state
    FROM unnest(
        $19::BIGINT[], $20::BIGINT[], $21::BOOL[], $22::TEXT[], $23::TEXT[], $24::INT[], $25::INT[],
        $26::BIGINT[], $27::BIGINT[], $28::SMALLINT[], $29::SMALLINT[], $30::BIGINT[], $31::BIGINT[],
        $32::BIGINT[], $33::INT[], $34::BOOL[], $35::BYTEA[], $36::BYTEA[], $37::BYTEA[]
    ) i (
        key, gate, strict, ns, id, route, rank,
        session, epoch, status, listens, wake_at, care_at,
        parent, parent_run, is_child, tags, summary, state
    )
    WHERE (i.gate IS NULL OR (i.gate IN (SELECT key FROM u)) IS TRUE)
        AND (
            i.session IS NULL
            OR (SELECT s.retired IS NULL AND s.expires_at > $1 FROM sessions s WHERE s.id = i.session)
        )
    ON CONFLICT (ns, id) DO NOTHING
    RETURNING key
),
written AS MATERIALIZED (
    SELECT key FROM u
    UNION ALL
    SELECT key FROM r
    UNION ALL
    SELECT key FROM n
),
j AS (
    INSERT INTO journal (execution, run, seq, count, body)
    SELECT
        i.execution,
        COALESCE(i.run, (SELECT e.run FROM executions e WHERE e.key = i.execution) + i.run_step),
        i.seq, i.count, i.body
    FROM unnest(
        $49::BIGINT[], $50::BIGINT[], $51::INT[], $52::INT[], $53::BIGINT[], $54::INT[], $55::BYTEA[]
    ) i (execution, gate, run, run_step, seq, count, body)
    WHERE (i.gate IN (SELECT key FROM written)) IS TRUE
),
f AS (
    INSERT INTO feed (execution, run, at, happening, is_end)
    SELECT
        i.execution,
        COALESCE(i.run, (SELECT e.run FROM executions e WHERE e.key = i.execution) + i.run_step),
        i.at, i.happening, i.is_end
    FROM unnest(
        $56::BIGINT[], $57::BIGINT[], $58::INT[], $59::INT[], $60::BIGINT[], $61::SMALLINT[], $62::BOOL[]
    ) WITH ORDINALITY i (execution, gate, run, run_step, at, happening, is_end, n)
    WHERE (i.gate IN (SELECT key FROM written)) IS TRUE
    ORDER BY i.n
),
x AS (
    INSERT INTO inbox (execution, id, sort, body)
    SELECT i.execution, i.id, i.sort, i.body
    FROM unnest($63::BIGINT[], $64::BIGINT[], $65::BOOL[], $66::TEXT[], $67::SMALLINT[], $68::BYTEA[])
        WITH ORDINALITY i (execution, gate, strict, id, sort, body, n)
    WHERE i.gate IS NULL OR (i.gate IN (SELECT key FROM written)) IS TRUE
    ORDER BY i.n
    ON CONFLICT (execution, id) DO NOTHING
    RETURNING execution, id
),
c AS (
    UPDATE inbox
    SET body = NULL
    WHERE ctid = ANY(ARRAY(
            SELECT b.place_of
            FROM unnest($69::BIGINT[], $70::BOOL[], $71::TEXT[]) i (execution, strict, id),
            LATERAL (
                SELECT ctid AS place_of
                FROM inbox
                WHERE execution = i.execution AND id = i.id
                OFFSET 0
            ) b
            WHERE (i.execution IN (SELECT key FROM written)) IS TRUE
        ))
        AND body IS NOT NULL
    RETURNING execution, id
),
w AS (
    INSERT INTO wakes (execution, route, rank, since, message, needs)
    SELECT i.execution, i.route, i.rank, i.since, i.message, i.needs
    FROM unnest($72::BIGINT[], $73::BIGINT[], $74::INT[], $75::INT[], $76::BIGINT[], $77::TEXT[], $78::SMALLINT[])
        i (execution, gate, route, rank, since, message, needs)
    WHERE (i.gate IS NULL OR (i.gate IN (SELECT key FROM written)) IS TRUE)
        AND (i.message = '' OR ((i.execution, i.message) IN (SELECT execution, id FROM x)) IS TRUE)
),
wd AS (
    DELETE FROM wakes
    WHERE ctid = ANY(ARRAY(
        SELECT w.place_of
        FROM unnest($79::BIGINT[], $80::TEXT[]) i (execution, message),
        LATERAL (
            SELECT ctid AS place_of
            FROM wakes
            WHERE execution = i.execution AND message = i.message
            OFFSET 0
        ) w
        WHERE (i.execution IN (SELECT key FROM u)) IS TRUE
    ))
),
wc AS (
    DELETE FROM wakes
    WHERE execution = ANY(ARRAY(SELECT key FROM u WHERE clears))
),
k AS (
    INSERT INTO cares (execution, ns, at, message, while_held)
    SELECT i.execution, i.ns, i.at, i.message, i.while_held
    FROM unnest($81::BIGINT[], $82::BIGINT[], $83::TEXT[], $84::BIGINT[], $85::TEXT[], $86::BOOL[])
        i (execution, gate, ns, at, message, while_held)
    WHERE (i.gate IS NULL OR (i.gate IN (SELECT key FROM written)) IS TRUE)
        AND ((i.execution, i.message) IN (SELECT execution, id FROM x)) IS TRUE
),
kd AS (
    DELETE FROM cares
    WHERE ctid = ANY(ARRAY(
        SELECT c.place_of
        FROM unnest($87::BIGINT[], $88::TEXT[]) i (execution, message),
        LATERAL (
            SELECT ctid AS place_of
            FROM cares
            WHERE execution = i.execution AND message = i.message
            OFFSET 0
        ) c
        WHERE (i.execution IN (SELECT key FROM u)) IS TRUE
    ))
),
kc AS (
    DELETE FROM cares
    WHERE execution = ANY(ARRAY(SELECT key FROM u WHERE is_over))
),
t AS (
    INSERT INTO tags (execution, key, value)
    SELECT i.execution, i.key, i.value
    FROM unnest($89::BIGINT[], $90::TEXT[], $91::TEXT[]) i (execution, key, value)
    WHERE (i.execution IN (SELECT key FROM n)) IS TRUE
)
SELECT
    ARRAY(SELECT key FROM written),
    ARRAY(SELECT execution FROM x),
    ARRAY(SELECT id FROM x),
    1 / CASE
        WHEN EXISTS (
            SELECT 1
            FROM unnest($19::BIGINT[], $20::BIGINT[], $21::BOOL[]) i (key, gate, strict)
            WHERE i.strict AND (i.gate IS NULL OR (i.gate IN (SELECT key FROM u)) IS TRUE)
                AND (i.key IN (SELECT key FROM n)) IS NOT TRUE
        ) THEN 0
        WHEN EXISTS (
            SELECT 1
            FROM unnest($63::BIGINT[], $64::BIGINT[], $65::BOOL[], $66::TEXT[]) i (execution, gate, strict, id)
            WHERE i.strict AND (i.gate IS NULL OR (i.gate IN (SELECT key FROM written)) IS TRUE)
                AND ((i.execution, i.id) IN (SELECT execution, id FROM x)) IS NOT TRUE
        ) THEN 0
        WHEN EXISTS (
            SELECT 1
            FROM unnest($69::BIGINT[], $70::BOOL[], $71::TEXT[]) i (execution, strict, id)
            WHERE i.strict AND (i.execution IN (SELECT key FROM u)) IS TRUE
                AND ((i.execution, i.id) IN (SELECT execution, id FROM c)) IS NOT TRUE
        ) THEN 0
        WHEN EXISTS (
            SELECT 1
            FROM unnest($38::BIGINT[], $39::BIGINT[]) i (key, gate)
            WHERE i.gate IS NOT NULL AND (i.gate IN (SELECT key FROM u)) IS TRUE
                AND (i.key IN (SELECT key FROM r)) IS NOT TRUE
        ) THEN 0
        ELSE 1
    END";
