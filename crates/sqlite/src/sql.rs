//! Every statement, by name. No decisions are taken here.
//!
//! `place`, `rank` and `place_at` say where an execution stands: see [`crate::place::Place`].
//! `queue` is a route and a priority in one number, see [`crate::place::ReadyQueue`]. `state` is a
//! sheet with everything that needs no column of its own: see [`crate::sheet`].

// First, because the modules below use its macro.
#[macro_use]
mod schema;

mod flaw;
mod intake;
mod journal;
mod sessions;
mod verify;

pub(crate) use flaw::*;
pub(crate) use intake::*;
pub(crate) use journal::*;
pub(crate) use schema::*;
pub(crate) use sessions::*;
pub(crate) use verify::*;

/// Before the migrations.
pub(crate) const META_CREATE: &str = "
CREATE TABLE IF NOT EXISTS abide_meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID";

/// Every schema object of abide's own; the names have a prefix that no application uses.
pub(crate) const META_EXISTS: &str = "
SELECT COUNT(*), COALESCE(MAX(name = 'abide_meta'), 0)
FROM sqlite_schema
WHERE type = 'table' AND name IN ('abide_meta', 'abide_executions')";
pub(crate) const META_GET: &str = "
SELECT value
FROM abide_meta
WHERE name = ?1";
pub(crate) const META_SET: &str = "
INSERT INTO abide_meta (name, value)
VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET value = MAX(value, excluded.value)";

// The comment keeps these apart from the statements that a user's closure may find in the statement
// cache: the authorizer checks a statement when it is prepared, not when it is used.
pub(crate) const BEGIN: &str = "BEGIN IMMEDIATE -- abide";
pub(crate) const BEGIN_READ: &str = "BEGIN DEFERRED -- abide";
pub(crate) const COMMIT: &str = "COMMIT -- abide";
pub(crate) const ROLLBACK: &str = "ROLLBACK -- abide";
pub(crate) const SAVEPOINT: &str = "SAVEPOINT abide_operation -- abide";
pub(crate) const SAVEPOINT_RELEASE: &str = "RELEASE abide_operation -- abide";
pub(crate) const SAVEPOINT_ROLLBACK: &str = "ROLLBACK TO abide_operation -- abide";
pub(crate) const REMAKE: &str = "SAVEPOINT abide_remake -- abide";
pub(crate) const REMAKE_RELEASE: &str = "RELEASE abide_remake -- abide";
pub(crate) const REMAKE_ROLLBACK: &str = "ROLLBACK TO abide_remake; RELEASE abide_remake -- abide";
/// Objects with a name of abide's own, and objects that lead to a table of abide's. A view, a
/// trigger or a virtual table is recognized by its text, in which the name of such a table may also
/// mean something else: a user who meets that can rename it.
pub(crate) const OWN_NAME_COUNT: &str = "
SELECT COUNT(*)
FROM sqlite_schema AS one
WHERE one.name LIKE 'abide!_%' ESCAPE '!'
    OR (one.type IN ('view', 'trigger') OR one.sql LIKE 'CREATE VIRTUAL TABLE %') AND EXISTS (
        SELECT 1
        FROM sqlite_schema AS own
        WHERE own.type = 'table' AND own.name LIKE 'abide!_%' ESCAPE '!' AND INSTR(LOWER(one.sql), own.name)
    )
    OR one.type = 'table' AND EXISTS (
        SELECT 1
        FROM pragma_foreign_key_list(one.name) AS key
        WHERE key.\"table\" LIKE 'abide!_%' ESCAPE '!'
    )";
pub(crate) const DATA_VERSION: &str = "PRAGMA data_version -- abide";
pub(crate) const CHECKPOINT: &str = "PRAGMA wal_checkpoint(PASSIVE) -- abide";
pub(crate) const SHRINK: &str = "PRAGMA shrink_memory -- abide";
pub(crate) const PAGES_BOUND: &str = "PRAGMA max_page_count = 1 -- abide";
pub(crate) const PAGES_UNBOUND: &str = "PRAGMA max_page_count = 4294967294 -- abide";
pub(crate) const REINDEX: [&str; 7] = [
    "REINDEX abide_executions_place",
    "REINDEX abide_executions_trouble",
    "REINDEX abide_executions_parent",
    "REINDEX abide_executions_care",
    "REINDEX sqlite_autoindex_abide_executions_1",
    "REINDEX sqlite_autoindex_abide_names_1",
    "REINDEX abide_sessions_live",
];
pub(crate) const REINDEX_INBOX: [&str; 3] =
    ["REINDEX abide_inbox_unread", "REINDEX abide_inbox_orders", "REINDEX abide_inbox_ids"];
pub(crate) const STRUCTURE: &str = "PRAGMA quick_check(100000)";
pub(crate) const INTEGRITY: &str = "PRAGMA integrity_check(20)";

/// For a file that is still empty. A commit of one short workflow writes a few pages whole, so
/// smaller pages are less to write and to sync.
pub(crate) const PAGE_SIZE: &str = "PRAGMA page_size = 2048";
/// For every connection to a file.
pub(crate) const PRAGMAS: &str = "
PRAGMA locking_mode = NORMAL;
PRAGMA synchronous = FULL;
PRAGMA wal_autocheckpoint = 0;
PRAGMA journal_size_limit = -1;
PRAGMA foreign_keys = OFF;
PRAGMA temp_store = MEMORY;
PRAGMA trusted_schema = OFF;
";
pub(crate) const PRAGMAS_WRITER: &str = "
PRAGMA cache_size = -8192;
PRAGMA foreign_keys = ON;
";
pub(crate) const PRAGMAS_READER: &str = "
PRAGMA query_only = ON;
PRAGMA cache_size = -256;
PRAGMA mmap_size = 4194304;
";
pub(crate) const JOURNAL_MODE_WAL: &str = "PRAGMA journal_mode = WAL";
pub(crate) const JOURNAL_MODE_DELETE: &str = "PRAGMA journal_mode = DELETE";
pub(crate) const EXECUTION_KEY_MAX: &str = "
SELECT MAX(
    COALESCE((SELECT MAX(key) FROM abide_executions), 0),
    COALESCE((SELECT value FROM abide_meta WHERE name = 'execution_key_max'), 0)
)";
pub(crate) const SESSION_ID_MAX: &str = "
SELECT MAX(
    COALESCE((SELECT MAX(id) FROM abide_sessions), 0),
    COALESCE((SELECT value FROM abide_meta WHERE name = 'session_id_max'), 0)
)";
pub(crate) const NAMES: &str = "
SELECT id, name, checksum
FROM abide_names
ORDER BY id";
/// The greatest number that was ever given to a name, which may be lost.
pub(crate) const NAME_ID_MAX: &str = "
SELECT MAX(
    COALESCE((SELECT MAX(id) FROM abide_names), 0),
    COALESCE((SELECT value FROM abide_meta WHERE name = 'name_id_max'), 0)
)";
pub(crate) const NAME_INSERT: &str = "
INSERT INTO abide_names (id, name, checksum)
VALUES (?1, ?2, ?3)";
pub(crate) const ROUTES: &str = "
SELECT id, route, checksum
FROM abide_routes
ORDER BY id";
pub(crate) const ROUTE_ID_MAX: &str = "
SELECT COALESCE(MAX(id), 0)
FROM abide_routes";
pub(crate) const ROUTE_ID_MAX_USED: &str = "
SELECT COALESCE(MAX(queue >> 16), 0)
FROM abide_executions";
pub(crate) const ROUTE_PUT: &str = "
INSERT INTO abide_routes (id, route, checksum)
VALUES (?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET route = excluded.route, checksum = excluded.checksum";
pub(crate) const EXECUTION_INSERT: &str = "
INSERT INTO abide_executions (
    key, namespace, id, queue, parent, parent_run, place, rank, place_at, epoch, version, status, head, state
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, ?11, ?12, ?13)
ON CONFLICT (namespace, id) DO NOTHING";
/// Like [`EXECUTION_INSERT`], for an execution that is born leased, and runs: its rank is 0 and its
/// epoch 1. Each parameter costs as much as several columns. SQLite takes the next key, as for
/// rows of the journal: it then goes to the end of the table, and does not search it for a row with
/// that key first. [`EXECUTION_RENUMBER`] follows if the key is not the expected one.
pub(crate) const EXECUTION_BEAR: &str = "
INSERT INTO abide_executions (
    namespace, id, queue, parent, parent_run, place, rank, place_at, epoch, version, head, state
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, 1, 0, ?8, ?9)
ON CONFLICT (namespace, id) DO NOTHING";
/// Like [`EXECUTION_BEAR`], for an execution without a parent.
pub(crate) const EXECUTION_BEAR_TOP: &str = "
INSERT INTO abide_executions (
    namespace, id, queue, place, rank, place_at, epoch, version, head, state
)
VALUES (?1, ?2, ?3, ?4, 0, ?5, 1, 0, ?6, ?7)
ON CONFLICT (namespace, id) DO NOTHING";
pub(crate) const EXECUTION_RENUMBER: &str = "
UPDATE abide_executions
SET key = ?2
WHERE key = ?1";
pub(crate) const EXECUTION_TARGET: &str = "
SELECT key, namespace, id, queue, parent, head, version, state, epoch, place, rank, place_at, care_at
FROM abide_executions
WHERE namespace = ?1 AND id = ?2";
pub(crate) const EXECUTION_PLACE: &str = "
SELECT epoch, place, rank, place_at
FROM abide_executions
WHERE key = ?1";
pub(crate) const EXECUTION_UNREADABLE: &str = "
SELECT key, queue, epoch, place, rank, place_at, status, care_at
FROM abide_executions
WHERE namespace = ?1 AND id = ?2";
pub(crate) const EXECUTION_LEASE: &str = "
SELECT key, namespace, id, queue, parent, head, version, state, epoch, place, rank, place_at, takeover_count, care_at,
    status
FROM abide_executions
WHERE key = ?1";
pub(crate) const EXECUTION_ADDRESS: &str = "
SELECT namespace, id
FROM abide_executions
WHERE key = ?1";
pub(crate) const EXECUTION_LEASED: &str = "
SELECT key, namespace, id, queue, parent, head, version, state, epoch, takeover_count
FROM abide_executions
WHERE key = ?1";
pub(crate) const EXECUTION_KEEP: &str = "
UPDATE abide_executions
SET version = ?7, head = ?5, state = ?6
WHERE key = ?1 AND epoch = ?2 AND place = ?3 AND version = ?4";
pub(crate) const EXECUTION_RELEASE: &str = "
UPDATE abide_executions
SET version = ?10, head = ?5, state = ?6, place = ?7, rank = ?8, place_at = ?9
WHERE key = ?1 AND epoch = ?2 AND place = ?3 AND version = ?4";
/// Like [`EXECUTION_RELEASE`], to the place of ended executions: most executions end only once.
pub(crate) const EXECUTION_END: &str = "
UPDATE abide_executions
SET version = ?8, head = ?5, state = ?6, place = 4, rank = 0, place_at = ?7
WHERE key = ?1 AND epoch = ?2 AND place = ?3 AND version = ?4";
pub(crate) const EXECUTION_STATUS: &str = "
UPDATE abide_executions
SET status = ?2
WHERE key = ?1";
/// The epoch is absent for a row that has lost it.
pub(crate) const EXECUTION_MOVE: &str = "
UPDATE abide_executions
SET place = ?4, rank = ?5, place_at = ?6
WHERE key = ?1 AND epoch IS COALESCE(?2, epoch) AND place = ?3";
pub(crate) const RUN_ENDED: &str = "
INSERT INTO abide_runs (execution, run, first, head, entry_count, row_count)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
pub(crate) const EXECUTION_PROGRESS: &str = "
UPDATE abide_executions
SET takeover_count = 0
WHERE key = ?1";
pub(crate) const EXECUTION_IMPORTED: &str = "
UPDATE abide_executions
SET version = ?2, takeover_count = ?3
WHERE key = ?1";
pub(crate) const EXECUTION_REOPEN: &str = "
UPDATE abide_executions
SET status = ?2, head = ?3, state = ?4, place = ?5, rank = ?6, place_at = ?7, care_at = ?8
WHERE key = ?1 AND place = 4";
pub(crate) const EXECUTION_CARE: &str = "
UPDATE abide_executions
SET care_at = ?2
WHERE key = ?1";
pub(crate) const READY_FIRST: &str = "
SELECT rank
FROM abide_executions INDEXED BY abide_executions_place
WHERE place > 4 AND place = ?1
ORDER BY rank
LIMIT 1";
pub(crate) const READY_HEAD: &str = "
SELECT rank, place_at, key
FROM abide_executions INDEXED BY abide_executions_place
WHERE place > 4 AND place = ?1
ORDER BY rank, place_at, key";
pub(crate) const CLAIM: &str = "
UPDATE abide_executions
SET place = ?2, rank = ?3, place_at = ?4, epoch = epoch + 1, care_at = MAX(care_at, ?5)
WHERE key = ?1";
pub(crate) const SET_ASIDE: &str = "
UPDATE abide_executions
SET place = ?2, rank = ?3, place_at = ?4, care_at = NULL
WHERE key = ?1";
/// Moves an execution from the ready ones to the timers of the same route, whose place is the next.
pub(crate) const PUT_OFF: &str = "
UPDATE abide_executions
SET place = place + 1, rank = 0, place_at = ?2
WHERE key = ?1 AND place % 4 = 1";
/// Does the same for a held execution, with the changes of [`SESSION_RELEASE`].
pub(crate) const PUT_OFF_HELD: &str = "
UPDATE abide_executions
SET place = COALESCE((queue >> 16) * 4 + 2, 8), rank = 0, place_at = ?2,
    care_at = CASE
        WHEN EXISTS (
            SELECT 1 FROM abide_inbox INDEXED BY abide_inbox_unread WHERE execution = key AND body IS NOT NULL
        )
        THEN MIN(COALESCE(care_at, ?3), ?3)
        ELSE care_at
    END
WHERE key = ?1
RETURNING COALESCE(queue >> 16, 0)";
pub(crate) const CARE_NEXT: &str = "
SELECT care_at, key
FROM abide_executions INDEXED BY abide_executions_care
WHERE care_at IS NOT NULL AND namespace = ?1
ORDER BY care_at, key";
pub(crate) const CLAIMED_BEFORE: &str = "
SELECT key, epoch, place, rank, place_at
FROM abide_executions INDEXED BY abide_executions_place
WHERE place > 4 AND place = ?1 AND rank = ?2
ORDER BY place_at, key";
pub(crate) const TIMERS_PROMOTE: &str = "
UPDATE abide_executions
SET place = ?4, rank = COALESCE(32768 - (queue & 65535), 0)
WHERE key IN (
    SELECT key
    FROM abide_executions INDEXED BY abide_executions_place
    WHERE place > 4 AND place = ?1 AND rank = 0 AND place_at <= ?2
    ORDER BY place_at
    LIMIT ?3
)";
pub(crate) const TIMER_NEXT: &str = "
SELECT place_at, key
FROM abide_executions INDEXED BY abide_executions_place
WHERE place > 4 AND place = ?1 AND rank = 0
ORDER BY place_at
LIMIT 1";
pub(crate) const INBOX_SEEN: &str = "
SELECT 1
FROM abide_inbox
WHERE execution = ?1 AND id = ?2";
/// Whether there is a message with the id of an answer.
pub(crate) const INBOX_ANSWERED: &str = "
SELECT 1
FROM abide_inbox INDEXED BY abide_inbox_ids
WHERE execution = ?1 AND id >= 'done:' AND id < 'done;'";
pub(crate) const INBOX_INSERT: &str = "
INSERT INTO abide_inbox (execution, id, arrived, body)
VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (execution, id) DO NOTHING";
/// Here, and wherever else a row of the inbox is changed or deleted, the row itself is compared,
/// and not only the index entry that led to it: an entry with a flipped bit leads to a message of
/// another execution.
pub(crate) const INBOX_CONSUME: &str = "
UPDATE abide_inbox NOT INDEXED
SET body = NULL, arrived = ?3
WHERE rowid = (SELECT rowid FROM abide_inbox INDEXED BY abide_inbox_ids WHERE execution = ?1 AND id = ?2)
    AND execution = ?1 AND id = ?2 AND body IS NOT NULL";
/// Whether the index of ids leads to a row other than that of this message.
pub(crate) const INBOX_MISLED: &str = "
SELECT 1
FROM abide_inbox AS named INDEXED BY abide_inbox_ids
WHERE named.execution = ?1 AND named.id = ?2 AND NOT EXISTS (
    SELECT 1
    FROM abide_inbox AS found NOT INDEXED
    WHERE found.rowid = named.rowid AND found.execution = ?1 AND found.id = ?2
)";
pub(crate) const INBOX_NEWEST: &str = "
SELECT id, arrived
FROM abide_inbox INDEXED BY abide_inbox_unread
WHERE execution = ?1 AND body IS NOT NULL
ORDER BY arrived DESC
LIMIT 1";
pub(crate) const INBOX_COUNT: &str = "
SELECT COUNT(*)
FROM abide_inbox INDEXED BY abide_inbox_unread
WHERE execution = ?1 AND body IS NOT NULL";
/// Without the bodies: all of it stands in the index.
pub(crate) const INBOX_PLACES: &str = "
SELECT id, arrived
FROM abide_inbox INDEXED BY abide_inbox_unread
WHERE execution = ?1 AND body IS NOT NULL
ORDER BY arrived";
pub(crate) const INBOX_UNREAD: &str = "
SELECT execution, id, arrived, body
FROM abide_inbox INDEXED BY abide_inbox_unread
WHERE execution = ?1 AND body IS NOT NULL
ORDER BY arrived";
pub(crate) const INBOX_ORDERS: &str = "
SELECT execution, id, arrived, body
FROM abide_inbox INDEXED BY abide_inbox_orders
WHERE execution = ?1 AND arrived % 4 = 1 AND body IS NOT NULL
ORDER BY arrived";
pub(crate) const INBOX_PAGE: &str = "
SELECT execution, id, arrived, body
FROM abide_inbox INDEXED BY abide_inbox_unread
WHERE execution = ?1 AND arrived > ?2 AND body IS NOT NULL
ORDER BY arrived
LIMIT ?3";
pub(crate) const INBOX_MANY: &str = "
SELECT 1
FROM abide_inbox INDEXED BY abide_inbox_unread
WHERE body IS NOT NULL
LIMIT 1 OFFSET ?1";
pub(crate) const INBOX_HELD_OF_FEW: &str = "
SELECT i.execution, i.id, MAX(i.arrived)
FROM abide_inbox AS i INDEXED BY abide_inbox_unread
CROSS JOIN abide_executions AS e ON e.key = i.execution
WHERE i.body IS NOT NULL AND e.place = ?1
GROUP BY i.execution";
pub(crate) const INBOX_HELD: &str = "
SELECT i.execution, i.id, MAX(i.arrived)
FROM abide_executions AS e INDEXED BY abide_executions_place
JOIN abide_inbox AS i INDEXED BY abide_inbox_unread ON i.execution = e.key AND i.body IS NOT NULL
WHERE e.place > 4 AND e.place = ?1
GROUP BY i.execution";
pub(crate) const TAG_INSERT: &str = "
INSERT OR IGNORE INTO abide_tags (namespace, key, value, execution)
VALUES (?1, ?2, ?3, ?4)";
pub(crate) const TAG_DELETE: &str = "
DELETE FROM abide_tags
WHERE namespace = ?1 AND key = ?2 AND value = ?3 AND execution = ?4";
pub(crate) const TAG_HAS: &str = "
SELECT 1
FROM abide_tags
WHERE namespace = ?1 AND key = ?2 AND value = ?3 AND execution = ?4";
pub(crate) const TAGGED_AFTER: &str = "
SELECT execution
FROM abide_tags
WHERE namespace = ?1 AND key = ?2 AND value = ?3 AND execution > ?4
ORDER BY execution
LIMIT ?5";
pub(crate) const TAGGED_BEFORE: &str = "
SELECT execution
FROM abide_tags
WHERE namespace = ?1 AND key = ?2 AND value = ?3 AND execution < ?4
ORDER BY execution DESC
LIMIT ?5";
pub(crate) const LEASES_RELEASE_ALL: &str = "
UPDATE abide_executions
SET place = COALESCE((queue >> 16) * 4 + 1, 8), rank = COALESCE(32768 - (queue & 65535), 0), place_at = ?1,
    care_at = CASE
        WHEN EXISTS (
            SELECT 1 FROM abide_inbox INDEXED BY abide_inbox_unread WHERE execution = key AND body IS NOT NULL
        )
        THEN MIN(COALESCE(care_at, ?1), ?1)
        ELSE care_at
    END
WHERE place % 4 IN (3, -3)";
pub(crate) const SNAPSHOT_BY_KEY: &str = "
SELECT key, namespace, id, queue, parent, head, version, state, epoch, place, rank, place_at, takeover_count,
    care_at
FROM abide_executions
WHERE key = ?1";
pub(crate) const SNAPSHOT_BY_ID: &str = "
SELECT key, namespace, id, queue, parent, head, version, state, epoch, place, rank, place_at, takeover_count,
    care_at
FROM abide_executions
WHERE namespace = ?1 AND id = ?2";
/// The columns of a [`LegibleRow`](crate::legible::LegibleRow), here and below.
pub(crate) const EXECUTION_ROW: &str = concat!(
    "
SELECT key, namespace, id, queue, parent, head, version, state, epoch, place, rank, place_at, status, care_at,
    parent_run, takeover_count, seal IS (",
    seal!(),
    ")
FROM abide_executions
WHERE key = ?1"
);
pub(crate) const TROUBLED_AFTER: &str = "
SELECT key
FROM abide_executions INDEXED BY abide_executions_trouble
WHERE status IS NOT NULL AND status = ?1 AND key > ?2
ORDER BY key
LIMIT ?3";
pub(crate) const TROUBLED_BEFORE: &str = "
SELECT key
FROM abide_executions INDEXED BY abide_executions_trouble
WHERE status IS NOT NULL AND status = ?1 AND key < ?2
ORDER BY key DESC
LIMIT ?3";
/// Place 8 is that of executions that were set aside. They are few, so they are sorted.
pub(crate) const ASIDE_AFTER: &str = "
SELECT key
FROM abide_executions INDEXED BY abide_executions_place
WHERE place > 4 AND place = 8 AND key > ?1
ORDER BY key
LIMIT ?2";
pub(crate) const ASIDE_BEFORE: &str = "
SELECT key
FROM abide_executions INDEXED BY abide_executions_place
WHERE place > 4 AND place = 8 AND key < ?1
ORDER BY key DESC
LIMIT ?2";
pub(crate) const CHILDREN_AFTER: &str = "
SELECT key
FROM abide_executions INDEXED BY abide_executions_parent
WHERE parent IS NOT NULL AND parent = ?1 AND parent_run = ?2 AND key > ?3
ORDER BY key
LIMIT ?4";
pub(crate) const CHILDREN_BEFORE: &str = "
SELECT key
FROM abide_executions INDEXED BY abide_executions_parent
WHERE parent IS NOT NULL AND parent = ?1 AND parent_run = ?2 AND key < ?3
ORDER BY key DESC
LIMIT ?4";
/// The last journal rows of children.
pub(crate) const CHILD_HEADS: &str = "
SELECT key, head
FROM abide_executions INDEXED BY abide_executions_parent
WHERE parent IS NOT NULL AND parent = ?1 AND parent_run = ?2 AND key >= ?3 AND key < ?4
ORDER BY key";
pub(crate) const CHILD_HEAD: &str = "
SELECT child.head, child.key
FROM abide_executions AS parent
JOIN abide_executions AS child ON child.namespace = parent.namespace AND child.id = ?2 AND child.parent = parent.key
WHERE parent.key = ?1";
pub(crate) const CHILD_OF: &str = "
SELECT parent.key, child.head
FROM abide_executions AS child
JOIN abide_executions AS parent ON parent.key = child.parent
WHERE child.key = ?1";
pub(crate) const EXECUTION_SHEET: &str = "
UPDATE abide_executions
SET state = ?2
WHERE key = ?1";
pub(crate) const EXECUTION_KEY: &str = "
SELECT key
FROM abide_executions
WHERE namespace = ?1 AND id = ?2";
pub(crate) const EXECUTION_EXISTS: &str = "
SELECT 1
FROM abide_executions
WHERE key = ?1";
pub(crate) const EXECUTION_ROWS_AFTER: &str = concat!(
    "
SELECT key, namespace, id, queue, parent, head, version, state, epoch, place, rank, place_at, status, care_at,
    parent_run, takeover_count, seal IS (",
    seal!(),
    ")
FROM abide_executions
WHERE key > ?1
ORDER BY key
LIMIT ?2"
);
pub(crate) const EXECUTION_ROWS_BEFORE: &str = concat!(
    "
SELECT key, namespace, id, queue, parent, head, version, state, epoch, place, rank, place_at, status, care_at,
    parent_run, takeover_count, seal IS (",
    seal!(),
    ")
FROM abide_executions
WHERE key < ?1
ORDER BY key DESC
LIMIT ?2"
);

pub(crate) const FINISHED_HEAD: &str = "
SELECT key, namespace, id, queue, parent, head, version, state, place_at
FROM abide_executions
WHERE key = ?1 AND head = ?2 AND place = 4";
pub(crate) const PRUNE_EXECUTION: &str = "
DELETE FROM abide_executions
WHERE key = ?1";
pub(crate) const PRUNE_INBOX: &str = "
DELETE FROM abide_inbox NOT INDEXED
WHERE rowid IN (SELECT rowid FROM abide_inbox INDEXED BY abide_inbox_ids WHERE execution = ?1)
    AND execution = ?1";
pub(crate) const PRUNE_RUNS: &str = "
DELETE FROM abide_runs
WHERE execution = ?1";
