//! The tables.

/// The expression of `seal`: a sum, which changes when one of its columns does. SQLite computes it
/// with each write of a row, and nobody writes it; `verify` computes it anew from the columns
/// beside it. The modulus keeps distant times from overflowing, and is a prime, so no single
/// changed byte is lost in it. [`crate::room`] knows how many bytes it takes.
macro_rules! seal {
    () => {
        "(COALESCE(care_at, -1) - place_at) % 1000000007 + epoch + takeover_count + rank + place"
    };
}

/// The numbered steps from an empty database to the current schema. A released step is never
/// changed.
pub(crate) const MIGRATIONS: [&str; 1] = [MIGRATION_1];

/// A route may stand in two rows: while one is damaged, another is made for new executions, and
/// then the first is put back.
///
/// The partial indexes find a few rows among millions: blocked (5), failed (7) or cancelled (8)
/// executions, the children of an execution, executions due for care, unread orders among other
/// mail. The status of all other executions is only in their sheets.
///
/// The columns of executions and of the journal have neither types nor NOT NULL: SQLite would go
/// through all of them with each write, for a twentieth of its work. Statements bind the right
/// types, and readers check what they read.
///
/// The id comes first in its index: SQLite compares a text that comes first faster.
///
/// The body of a message may be large. It stands in the rows of the inbox alone, which are found by
/// number: in a table that is ordered by a key of its own SQLite reads a row whole to compare its
/// key with another. `arrived` also encodes the sort of a message, see [`crate::mail`].
///
/// Anybody may put rows into the intake table, in any language. Its constraints have names that
/// describe the fault, because SQLite's complaint consists of them.
const MIGRATION_1: &str = concat!(
    "
CREATE TABLE abide_names (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    checksum INTEGER NOT NULL
);
CREATE TABLE abide_routes (
    id INTEGER PRIMARY KEY,
    route BLOB NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE abide_executions (
    key INTEGER PRIMARY KEY,
    namespace,
    id,
    queue,
    parent,
    parent_run,
    place,
    rank,
    place_at,
    epoch,
    version,
    takeover_count DEFAULT 0,
    status,
    care_at,
    head,
    seal GENERATED ALWAYS AS (",
    seal!(),
    ") STORED,
    state,
    UNIQUE (id, namespace)
);
CREATE INDEX abide_executions_place ON abide_executions (place, rank, place_at)
    WHERE place > 4;
CREATE INDEX abide_executions_trouble ON abide_executions (status)
    WHERE status IS NOT NULL;
CREATE INDEX abide_executions_parent ON abide_executions (parent, parent_run)
    WHERE parent IS NOT NULL;
CREATE INDEX abide_executions_care ON abide_executions (namespace, care_at)
    WHERE care_at IS NOT NULL;
CREATE TABLE abide_journal (
    row INTEGER PRIMARY KEY,
    execution,
    previous,
    seq,
    happened,
    skip,
    body,
    more
);
CREATE TABLE abide_runs (
    execution INTEGER NOT NULL,
    run INTEGER NOT NULL,
    first INTEGER NOT NULL,
    head INTEGER NOT NULL,
    entry_count INTEGER NOT NULL,
    row_count INTEGER NOT NULL,
    PRIMARY KEY (execution, run)
) WITHOUT ROWID;
CREATE TABLE abide_inbox (
    execution INTEGER NOT NULL,
    id TEXT NOT NULL,
    arrived INTEGER NOT NULL,
    body BLOB
);
CREATE UNIQUE INDEX abide_inbox_ids ON abide_inbox (execution, id);
CREATE INDEX abide_inbox_unread ON abide_inbox (execution, arrived, id)
    WHERE body IS NOT NULL;
CREATE INDEX abide_inbox_orders ON abide_inbox (execution, arrived)
    WHERE arrived % 4 = 1 AND body IS NOT NULL;
CREATE TABLE abide_tags (
    namespace INTEGER NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    execution INTEGER NOT NULL,
    PRIMARY KEY (namespace, key, value, execution)
) WITHOUT ROWID;
CREATE TABLE abide_sessions (
    id INTEGER PRIMARY KEY,
    namespace INTEGER NOT NULL,
    name TEXT NOT NULL,
    ability BLOB NOT NULL,
    ttl_us INTEGER NOT NULL,
    registered_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0,
    draining INTEGER NOT NULL DEFAULT 0,
    newborn_from INTEGER NOT NULL DEFAULT 0,
    retired TEXT
);
CREATE INDEX abide_sessions_live ON abide_sessions (id)
    WHERE retired IS NULL;
CREATE TABLE abide_intake (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL DEFAULT (lower(hex(randomblob(16))))
        CONSTRAINT id_of_1_to_64_bytes
        CHECK (typeof(id) = 'text' AND length(CAST(id AS BLOB)) BETWEEN 1 AND 64),
    namespace TEXT NOT NULL DEFAULT 'default'
        CONSTRAINT namespace_of_1_to_255_bytes
        CHECK (typeof(namespace) = 'text' AND length(CAST(namespace AS BLOB)) BETWEEN 1 AND 255)
        CONSTRAINT namespace_without_control_characters
        CHECK (namespace NOT GLOB '*[' || char(1) || '-' || char(31, 127) || ']*'
            AND instr(CAST(namespace AS BLOB), x'00') = 0),
    verb TEXT NOT NULL
        CONSTRAINT verb_is_start_or_signal
        CHECK (verb IN ('start', 'signal')),
    execution TEXT NOT NULL DEFAULT (lower(hex(randomblob(16))))
        CONSTRAINT execution_of_1_to_255_bytes
        CHECK (typeof(execution) = 'text' AND length(CAST(execution AS BLOB)) BETWEEN 1 AND 255)
        CONSTRAINT execution_without_control_characters
        CHECK (execution NOT GLOB '*[' || char(1) || '-' || char(31, 127) || ']*'
            AND instr(CAST(execution AS BLOB), x'00') = 0),
    name TEXT NOT NULL
        CONSTRAINT name_of_1_to_255_bytes
        CHECK (typeof(name) = 'text' AND length(CAST(name AS BLOB)) BETWEEN 1 AND 255)
        CONSTRAINT name_without_control_characters
        CHECK (name NOT GLOB '*[' || char(1) || '-' || char(31, 127) || ']*'
            AND instr(CAST(name AS BLOB), x'00') = 0),
    input TEXT NOT NULL DEFAULT 'null'
        CONSTRAINT input_is_json
        CHECK (typeof(input) = 'text' AND json_valid(input)),
    options TEXT NOT NULL DEFAULT '{}'
        CONSTRAINT options_are_a_json_object
        CHECK (typeof(options) = 'text' AND json_valid(options) AND json_type(options) = 'object'
            AND length(options) <= 65536),
    sender TEXT NOT NULL DEFAULT 'sqlite'
        CONSTRAINT sender_of_1_to_255_bytes
        CHECK (typeof(sender) = 'text' AND length(CAST(sender AS BLOB)) BETWEEN 1 AND 255)
);
CREATE TABLE abide_refusals (
    row INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX abide_refusals_age ON abide_refusals (at);
"
);
