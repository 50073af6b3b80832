//! The limit of a server, for benchmarks.

pub(crate) const RAW_CREATE: &str = "
CREATE TABLE raw (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payload BYTEA NOT NULL
)";
pub(crate) const RAW_INSERT: &str = "
INSERT INTO raw (payload)
VALUES ($1)";
pub(crate) const RAW_INSERT_MANY: &str = "
INSERT INTO raw (payload)
SELECT payload
FROM unnest($1::BYTEA[]) i (payload)";
pub(crate) const RAW_READ: &str = "
SELECT id, payload
FROM raw
WHERE id > $1
ORDER BY id
LIMIT 10000";

/// How far the log of the server has been written, in bytes.
pub(crate) const RAW_WAL: &str = "
SELECT (pg_current_wal_insert_lsn() - '0/0'::PG_LSN)::BIGINT";

/// Names a schema for the statements below, on this connection.
pub(crate) const SCHEMA_NAME_KEPT: &str = "
SELECT set_config('abide.schema', $1, FALSE)";

/// A name cannot be a parameter of DROP SCHEMA. The server puts it into quotes.
pub(crate) const SCHEMA_DROP: &str = "
DO $$ BEGIN
    EXECUTE pg_catalog.format('DROP SCHEMA IF EXISTS %I CASCADE', current_setting('abide.schema'));
END $$";
