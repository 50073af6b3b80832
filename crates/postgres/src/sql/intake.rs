//! The intake table: what other programs put there, and how it is taken out.

/// Puts a row into the intake table, in the transaction of the caller. The schema is part of the
/// text, because a function is found before parameters are bound, and the caller's own search path
/// is not ours to change.
pub(crate) const ENQUEUE: [&str; 2] = ["SELECT \"", "\".enqueue($1, $2, $3, $4, $5, $6, $7, $8)"];

/// Rows that may be taken, as far as their sizes go. Nothing is locked: the routes of executions
/// that are started are numbered before the transaction that takes the rows.
pub(crate) const INTAKE_ROWS: &str = "
SELECT number, id, namespace, verb, execution, name, input, options, sender
FROM (
    SELECT *, sum(octet_length(input) + octet_length(options)) OVER (ORDER BY number)
        - octet_length(input) - octet_length(options) AS before
    FROM (
        SELECT *
        FROM intake
        ORDER BY number
        LIMIT $1
    ) i
) i
WHERE i.before < $2
ORDER BY i.number";

/// Locks those of the rows that nobody else is taking. An engine that stops for long in between is
/// thrown out by the server, and others take them.
pub(crate) const INTAKE_BEGIN: &str = "
BEGIN;
SET LOCAL idle_in_transaction_session_timeout = '10s'";
pub(crate) const INTAKE_LOCK: &str = "
SELECT number
FROM intake
WHERE number = ANY($1::BIGINT[])
ORDER BY number
FOR UPDATE SKIP LOCKED";

/// Of the rows that are locked: those before which nobody else has one of the same execution. A
/// signal behind its start must not be taken while somebody else takes the start, who has not
/// committed: it would be refused. This is a statement of its own because it has to see the commits
/// before the locks were had. An earlier row that somebody held then is either deleted by now, or
/// seen.
pub(crate) const INTAKE_FIRST: &str = "
SELECT i.number
FROM unnest($1::BIGINT[]) n (number),
LATERAL (SELECT * FROM intake WHERE number = n.number LIMIT 1) i
WHERE (
    SELECT TRUE
    FROM intake b
    WHERE b.namespace = i.namespace AND b.execution = i.execution AND b.number < i.number
        AND b.number <> ALL($1::BIGINT[])
    LIMIT 1
) IS NULL
ORDER BY i.number";

pub(crate) const INTAKE_TAKE: &str = "
DELETE FROM intake
WHERE number = ANY($1::BIGINT[])";

/// Adds refused rows to the feed.
pub(crate) const INTAKE_REFUSE: &str = "
INSERT INTO feed (execution, run, at, happening, is_end, refused)
SELECT 0, 0, $1, $2, FALSE, i.refused
FROM unnest($3::BYTEA[]) WITH ORDINALITY i (refused, n)
ORDER BY i.n";

pub(crate) const INTAKE_ANY: &str = "
SELECT (SELECT number FROM intake ORDER BY number LIMIT 1) IS NOT NULL";

pub(crate) const REFUSALS_NEWEST: &str = "
SELECT place, NULL::TEXT, NULL::TEXT, run, at, happening, refused
FROM feed
WHERE execution = 0
ORDER BY at DESC, place DESC
LIMIT $1";

pub(crate) const REFUSALS_PRUNE: &str = "
DELETE FROM feed
WHERE execution = 0 AND at < $1";

pub(crate) const VERIFY_REFUSALS: &str = "
SELECT at, place, refused
FROM feed
WHERE execution = 0 AND (at, place) > ($1, $2)
ORDER BY at, place
LIMIT 256";
