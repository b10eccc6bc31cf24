-- The outbox, read by position.

-- name: history_origin
-- Identify this database: the cluster's id (shared by physical copies), database name, schema. The
-- schema is the one of the tables, which need not be the first of a host's search_path.
SELECT system_identifier || '/' || current_database() || '/' || nspname
FROM pg_control_system(), pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass('attempt');

-- name: history_bounds
-- Read the bounds of history: see HistoryBounds in events/history.py.
SELECT pg_snapshot_xmin(snapshot) AS settled,
       least(pg_snapshot_xmin(snapshot),
             (SELECT min(position) FROM outbox WHERE published_at IS NULL AND dead_reason IS NULL)
       ) AS live,
       pg_snapshot_xmax(snapshot) AS next
FROM pg_current_snapshot() AS snapshot;

-- name: history_page
-- Read up to $4 events behind an event ($1 its position, $2 its id), and of them those for the
-- users $3; all, if null. The last event of a full page is always returned: the next page begins
-- behind it.
SELECT *
FROM (
    SELECT event_id, event_type, subject, recipients, payload, created_at, position,
           published_at IS NULL AS is_under_way,
           row_number() OVER (ORDER BY position, event_id) AS number
    FROM outbox
    WHERE position >= $1 AND (position, event_id) > ($1, $2)
    ORDER BY position, event_id
    LIMIT $4
) AS page
WHERE $3::text[] IS NULL OR recipients && $3::text[] OR number = $4
ORDER BY number;

-- name: is_history_foreign
-- Ask whether the start of history is beyond the transactions of this server: then the tables were
-- restored from another one. A sweep never moves it beyond them.
SELECT position > pg_snapshot_xmax(pg_current_snapshot()) FROM history_start;

-- name: open_history
-- Begin history with the first event that this server has numbered, or with what commits from now
-- on. Nothing of it was swept yet.
UPDATE history_start
SET position = least(pg_snapshot_xmin(snapshot), (SELECT min(position) FROM outbox))
FROM pg_current_snapshot() AS snapshot
WHERE history_start.position > pg_snapshot_xmax(snapshot);

-- name: history_start
-- Read the position from which on nothing was swept.
SELECT position FROM history_start;
