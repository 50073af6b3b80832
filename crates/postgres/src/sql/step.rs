//! What stands around a user's own statements.

pub(crate) const SAVEPOINT: &str = "SAVEPOINT abide_step";
pub(crate) const SAVEPOINT_RELEASE: &str = "RELEASE SAVEPOINT abide_step";
pub(crate) const SAVEPOINT_ROLLBACK: &str = "ROLLBACK TO SAVEPOINT abide_step";

/// A user's tables are found as the server says, and its statements are planned as it does.
/// Everything that is set behind the savepoint is undone with it.
pub(crate) const STEP_BEGIN: &str = "
SAVEPOINT abide_step;
RESET ALL";

/// A deferred constraint that is broken fails here, where its step is known. Then whatever the user
/// has left in the connection goes: it would outlive the transaction, and the next step would meet
/// it. A role goes too: abide's own statements follow.
pub(crate) const STEP_END: &str = "
SET CONSTRAINTS ALL IMMEDIATE;
CLOSE ALL;
UNLISTEN *;
DISCARD TEMP;
DISCARD SEQUENCES;
SELECT pg_advisory_unlock_all();
RESET SESSION AUTHORIZATION;
RESET ALL";

/// Undoes a step. What no transaction undoes goes too.
pub(crate) const STEP_UNDO: &str = "
ROLLBACK TO SAVEPOINT abide_step;
SELECT pg_advisory_unlock_all()";

/// The transaction, and what it has touched of abide's own so far: the scans and changes of tables
/// that the server counts, the locks of this backend, and how many tables there are. The
/// counters also see what happened under a lock that the transaction had before. The locks also see
/// TRUNCATE, LOCK and everything that changes a table itself. A table that is gone has no name, so
/// the tables are counted.
///
/// Nothing else runs in this backend meanwhile, so two equal answers mean that nothing was touched.
pub(crate) const STEP_MARKS: &str = "
WITH own AS MATERIALIZED (
    SELECT c.oid AS id, c.relname::TEXT AS name
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1
        AND c.relname::TEXT NOT LIKE ALL ($2::TEXT[])
)
SELECT
    pg_catalog.pg_current_xact_id()::TEXT,
    (SELECT count(*) FROM own),
    (
        SELECT COALESCE(sum(
            pg_catalog.pg_stat_get_xact_numscans(id)
            + pg_catalog.pg_stat_get_xact_tuples_inserted(id)
            + pg_catalog.pg_stat_get_xact_tuples_updated(id)
            + pg_catalog.pg_stat_get_xact_tuples_deleted(id)
        ), 0)::BIGINT
        FROM own
    ),
    ARRAY(
        SELECT own.name || ' ' || l.mode
        FROM pg_catalog.pg_locks l
        JOIN own ON own.id = l.relation
        WHERE l.pid = pg_catalog.pg_backend_pid()
            AND l.locktype = 'relation'
            AND l.database = (
                SELECT oid
                FROM pg_catalog.pg_database
                WHERE datname = pg_catalog.current_database()
            )
        ORDER BY 1
    )";
