//! Reads that check everything. They run in transactions that see one moment.

/// Executions with everything that repeats what their journals say.
pub(crate) const VERIFY_EXECUTIONS: &str = "
SELECT
    e.key, e.ns, e.id, e.route, e.rank, e.session, e.version, e.run, e.status, e.listens, e.aside,
    e.wake_at, e.is_child, e.finished_at IS NOT NULL, e.tags, e.summary, e.state,
    (SELECT TRUE FROM sessions s WHERE s.id = e.session) IS NOT NULL,
    (SELECT TRUE FROM wakes w WHERE w.execution = e.key AND e.listens >= w.needs LIMIT 1) IS NOT NULL,
    LEAST(e.care_at, (
        SELECT min(c.at)
        FROM cares c
        WHERE c.execution = e.key AND (c.while_held OR e.session IS NULL)
    )),
    (
        SELECT count(*)
        FROM (SELECT is_end FROM feed WHERE execution = e.key ORDER BY execution OFFSET 0) f
        WHERE f.is_end
    ),
    ARRAY(
        SELECT t.key
        FROM (SELECT key, value FROM tags WHERE execution = e.key ORDER BY execution OFFSET 0) t
        ORDER BY t.key, t.value
    ),
    ARRAY(
        SELECT t.value
        FROM (SELECT key, value FROM tags WHERE execution = e.key ORDER BY execution OFFSET 0) t
        ORDER BY t.key, t.value
    )
FROM executions e
WHERE e.key > $1
ORDER BY e.key
LIMIT 200";

pub(crate) const VERIFY_JOURNAL: &str = "
SELECT run, seq, count, body
FROM journal
WHERE execution = $1 AND (run, seq) > ($2, $3)
ORDER BY execution, run, seq
LIMIT 256";

pub(crate) const VERIFY_INBOX: &str = "
SELECT place, id, sort, body
FROM inbox
WHERE execution = $1 AND body IS NOT NULL AND place > $2
ORDER BY execution, place
LIMIT 256";

/// Rows that belong to no execution, a few of each table.
pub(crate) const VERIFY_ORPHANS: &str = "
(SELECT 'the journal', execution FROM journal t
WHERE NOT EXISTS (SELECT 1 FROM executions WHERE key = t.execution) LIMIT 10)
UNION ALL
(SELECT 'the inbox', execution FROM inbox t
WHERE NOT EXISTS (SELECT 1 FROM executions WHERE key = t.execution) LIMIT 10)
UNION ALL
(SELECT 'a wake', execution FROM wakes t
WHERE NOT EXISTS (SELECT 1 FROM executions WHERE key = t.execution) LIMIT 10)
UNION ALL
(SELECT 'a reason for care', execution FROM cares t
WHERE NOT EXISTS (SELECT 1 FROM executions WHERE key = t.execution) LIMIT 10)
UNION ALL
(SELECT 'a tag', execution FROM tags t
WHERE NOT EXISTS (SELECT 1 FROM executions WHERE key = t.execution) LIMIT 10)
UNION ALL
(SELECT 'the feed', execution FROM feed t
WHERE refused IS NULL AND NOT EXISTS (SELECT 1 FROM executions WHERE key = t.execution) LIMIT 10)";

pub(crate) const VERIFY_ROUTES: &str = "
SELECT id, ns, body
FROM routes
ORDER BY id";
