//! Connections, and the schema.

/// Prepares a connection for the store's own statements. Plans are made on small tables and kept,
/// so they must not depend on sizes: each statement walks indexes in loops. On 200,000 executions,
/// a claim that was planned on 40 rows runs for minutes without these settings.
pub(crate) const CONNECTION: &str = "
SELECT
    set_config('search_path', $1, FALSE),
    set_config('enable_seqscan', 'off', FALSE),
    set_config('enable_bitmapscan', 'off', FALSE),
    set_config('enable_hashjoin', 'off', FALSE),
    set_config('enable_mergejoin', 'off', FALSE),
    set_config('random_page_cost', '0', FALSE),
    set_config('seq_page_cost', '0', FALSE),
    set_config('jit', 'off', FALSE),
    set_config('plan_cache_mode', 'force_generic_plan', FALSE),
    set_config('synchronous_commit', 'on', FALSE),
    set_config('default_transaction_isolation', 'read committed', FALSE)";

/// The same for one transaction, through a pooler.
pub(crate) const POOLED_CONNECTION: &str = "
SELECT
    set_config('search_path', $1, TRUE),
    set_config('enable_seqscan', 'off', TRUE),
    set_config('enable_bitmapscan', 'off', TRUE),
    set_config('enable_hashjoin', 'off', TRUE),
    set_config('enable_mergejoin', 'off', TRUE),
    set_config('random_page_cost', '0', TRUE),
    set_config('seq_page_cost', '0', TRUE),
    set_config('jit', 'off', TRUE),
    set_config('plan_cache_mode', 'force_generic_plan', TRUE),
    set_config('synchronous_commit', 'on', TRUE),
    set_config('client_encoding', 'UTF8', TRUE)";

/// What stands before a user's statements, through a pooler. It takes back what the store has set.
/// A pooler sets some things for its client and remembers them, so nothing resets all.
pub(crate) const POOLED_STEP_BEGIN: &str = "
SAVEPOINT abide_step;
RESET search_path;
RESET enable_seqscan;
RESET enable_bitmapscan;
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET random_page_cost;
RESET seq_page_cost;
RESET jit;
RESET plan_cache_mode;
RESET synchronous_commit";

/// What stands behind them. A setting that the user has not made for the transaction alone stays in
/// the connection of the pooler, as it does for every client of one.
pub(crate) const POOLED_STEP_END: &str = "
SET CONSTRAINTS ALL IMMEDIATE;
CLOSE ALL;
UNLISTEN *;
DISCARD TEMP;
DISCARD SEQUENCES;
SELECT pg_advisory_unlock_all();
RESET SESSION AUTHORIZATION";

pub(crate) const SERVER: &str = "
SELECT
    current_setting('server_version_num')::INT,
    current_setting('server_encoding')";

pub(crate) const BEGIN: &str = "BEGIN";
/// Nobody has said before which isolation a transaction begins with.
pub(crate) const POOLED_BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
pub(crate) const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
pub(crate) const COMMIT: &str = "COMMIT";
pub(crate) const ROLLBACK: &str = "ROLLBACK";

/// What names the server and its past, and the version of an execution. These functions read a file
/// of the server, and anybody may call them.
pub(crate) const WITNESS: &str = "
SELECT
    (SELECT system_identifier::TEXT FROM pg_catalog.pg_control_system()),
    (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()),
    (SELECT version FROM executions WHERE key = $1)";

/// The clock of the server, by which every process sets its own. No statement decides by it: the
/// time that counts is a parameter, as everywhere.
pub(crate) const CLOCK: &str = "
SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT";

/// Two processes that open an empty database at the same time create one schema: the second waits
/// here until the first has committed, and then finds everything.
pub(crate) const MIGRATION_LOCK: &str = "
SELECT pg_advisory_xact_lock(hashtextextended('abide ' || $1, 0))";

pub(crate) const SCHEMA_EXISTS: &str = "
SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1),
    EXISTS (
        SELECT 1
        FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = 'migrations'
    ),
    NOT EXISTS (
        SELECT 1
        FROM pg_namespace
        WHERE nspname = $1 AND NOT has_schema_privilege(oid, 'USAGE')
    )";

/// A name cannot be a parameter of CREATE SCHEMA. The server puts it into quotes.
pub(crate) const SCHEMA_NAME: &str = "
SELECT set_config('abide.schema', $1, TRUE)";
pub(crate) const SCHEMA_CREATE: &str = "
DO $$ BEGIN
    EXECUTE pg_catalog.format('CREATE SCHEMA %I', current_setting('abide.schema'));
END $$";

pub(crate) const VERSION: &str = "
SELECT COALESCE(max(version), 0), COALESCE(max(COALESCE(compatible_from, version)), 0)
FROM migrations";
pub(crate) const VERSION_INSERT: &str = "
INSERT INTO migrations (version, compatible_from)
VALUES ($1, $2)";
pub(crate) const MIGRATIONS_CREATE: &str = "
CREATE TABLE migrations (version BIGINT PRIMARY KEY, compatible_from BIGINT)";

/// The first version of the schema.
///
/// `executions` leaves room in its pages, so that a commit that keeps its lease changes its row in
/// place. The sequences have no cache: a number that was drawn later is larger, also when another
/// connection draws it. A refused row of the intake table is in the feed under execution 0, which
/// never exists.
pub(crate) const MIGRATION_1: &str = concat!(
    "
CREATE SEQUENCE execution_key;
CREATE SEQUENCE session_id;
CREATE SEQUENCE inbox_place CACHE 1;
CREATE SEQUENCE feed_place CACHE 1;
CREATE SEQUENCE wake_number;
CREATE TABLE routes (
    id INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ns TEXT COLLATE \"C\" NOT NULL,
    body BYTEA NOT NULL,
    UNIQUE (ns, body)
);
CREATE TABLE executions (
    key BIGINT PRIMARY KEY,
    ns TEXT COLLATE \"C\" NOT NULL,
    id TEXT COLLATE \"C\" NOT NULL,
    route INT NOT NULL,
    rank INT NOT NULL,
    session BIGINT,
    request BIGINT NOT NULL,
    is_care BOOL NOT NULL,
    given_beat BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    version BIGINT NOT NULL,
    run INT NOT NULL,
    status SMALLINT NOT NULL,
    listens SMALLINT NOT NULL,
    aside BOOL NOT NULL,
    wake_at BIGINT,
    care_at BIGINT,
    parent BIGINT,
    parent_run INT,
    is_child BOOL NOT NULL,
    created_at BIGINT NOT NULL,
    finished_at BIGINT,
    takeovers INT NOT NULL,
    tags BYTEA,
    summary BYTEA NOT NULL,
    state BYTEA NOT NULL,
    UNIQUE (ns, id)
) WITH (fillfactor = 60);
CREATE INDEX executions_timer ON executions (route, rank, wake_at)
    WHERE session IS NULL AND wake_at IS NOT NULL AND NOT aside;
CREATE INDEX executions_session ON executions (session, key) WHERE session IS NOT NULL;
CREATE INDEX executions_parent ON executions (parent, key) WHERE parent IS NOT NULL;
CREATE INDEX executions_care ON executions (ns, care_at, key) WHERE care_at IS NOT NULL;
CREATE INDEX executions_aside ON executions (key) WHERE aside;
CREATE TABLE journal (
    execution BIGINT NOT NULL,
    run INT NOT NULL,
    seq BIGINT NOT NULL,
    count INT NOT NULL,
    body BYTEA NOT NULL,
    UNIQUE (execution, run, seq)
);
CREATE TABLE inbox (
    execution BIGINT NOT NULL,
    id TEXT COLLATE \"C\" NOT NULL,
    place BIGINT NOT NULL DEFAULT nextval('inbox_place'),
    sort SMALLINT NOT NULL,
    body BYTEA,
    UNIQUE (execution, id)
);
CREATE INDEX inbox_unread ON inbox (execution, place) WHERE body IS NOT NULL;
CREATE TABLE wakes (
    execution BIGINT NOT NULL,
    route INT NOT NULL,
    rank INT NOT NULL,
    since BIGINT NOT NULL,
    message TEXT COLLATE \"C\" NOT NULL,
    needs SMALLINT NOT NULL,
    number BIGINT NOT NULL DEFAULT nextval('wake_number')
);
CREATE INDEX wakes_queue ON wakes (route, rank, since, execution);
CREATE INDEX wakes_message ON wakes (execution, message);
CREATE TABLE cares (
    execution BIGINT NOT NULL,
    ns TEXT COLLATE \"C\" NOT NULL,
    at BIGINT NOT NULL,
    message TEXT COLLATE \"C\" NOT NULL,
    while_held BOOL NOT NULL
);
CREATE INDEX cares_queue ON cares (ns, at, execution);
CREATE INDEX cares_message ON cares (execution, message);
CREATE TABLE tags (
    execution BIGINT NOT NULL,
    key TEXT COLLATE \"C\" NOT NULL,
    value TEXT COLLATE \"C\" NOT NULL
);
CREATE INDEX tags_value ON tags (key, value, execution);
CREATE INDEX tags_execution ON tags (execution);
CREATE TABLE sessions (
    id BIGINT PRIMARY KEY,
    ns TEXT COLLATE \"C\" NOT NULL,
    name TEXT COLLATE \"C\" NOT NULL,
    ability BYTEA NOT NULL,
    ttl_us BIGINT NOT NULL,
    registered_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    retired TEXT,
    retired_at BIGINT,
    died BOOL NOT NULL,
    released BOOL NOT NULL,
    draining BOOL NOT NULL,
    beat_count BIGINT NOT NULL,
    taken BIGINT NOT NULL
);
CREATE INDEX sessions_ns ON sessions (ns, id);
CREATE INDEX sessions_open ON sessions (id) WHERE NOT released;
CREATE TABLE feed (
    place BIGINT PRIMARY KEY DEFAULT nextval('feed_place'),
    execution BIGINT NOT NULL,
    run INT NOT NULL,
    at BIGINT NOT NULL,
    happening SMALLINT NOT NULL,
    is_end BOOL NOT NULL,
    refused BYTEA
);
CREATE INDEX feed_execution ON feed (execution);
CREATE INDEX feed_end ON feed (place) WHERE is_end;
CREATE INDEX feed_refused ON feed (at, place) WHERE execution = 0;",
    intake_create!()
);
