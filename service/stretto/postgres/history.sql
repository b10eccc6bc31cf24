-- The outbox, read by position.

-- name: history_origin
-- Tell this database from every other: of this server and of its copies, and of this name. The schema is
-- the one of the tables, which need not be the first of a host's search_path.
SELECT system_identifier || '/' || current_database() || '/' || nspname
FROM pg_control_system(), pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass('attempt');

-- name: history_bounds
-- Ask where history stands: see HistoryBounds in events/history.py.
SELECT pg_snapshot_xmin(snapshot) AS settled,
       least(pg_snapshot_xmin(snapshot),
             (SELECT min(position) FROM outbox WHERE delivered_at IS NULL AND dead_reason IS NULL)
       ) AS live,
       pg_snapshot_xmax(snapshot) AS next
FROM pg_current_snapshot() AS snapshot;

-- name: history_page
-- Read up to $4 events behind an event ($1 its position, $2 its id), those that the users $3 are
-- told; all, if null. The last of a full page is always returned: the next one begins behind it.
SELECT *
FROM (
    SELECT event_id, event_type, subject, recipients, payload, created_at, position,
           delivered_at IS NULL AS is_under_way,
           row_number() OVER (ORDER BY position, event_id) AS number
    FROM outbox
    WHERE position >= $1 AND (position, event_id) > ($1, $2)
    ORDER BY position, event_id
    LIMIT $4
) AS page
WHERE $3::text[] IS NULL OR recipients && $3::text[] OR number = $4
ORDER BY number;

-- name: is_history_foreign
-- Ask whether the start of history is of the future: then it is another server's, from which the tables
-- were restored. A sweep moves it to what this server has counted at most.
SELECT position > pg_snapshot_xmax(pg_current_snapshot()) FROM history_start;

-- name: open_history
-- Have history begin where this server's does: with the first event that it has numbered, or with what
-- commits from now on. Nothing of it was swept yet.
UPDATE history_start
SET position = least(pg_snapshot_xmin(snapshot), (SELECT min(position) FROM outbox))
FROM pg_current_snapshot() AS snapshot
WHERE history_start.position > pg_snapshot_xmax(snapshot);

-- name: history_start
-- Ask from which position on nothing was swept.
SELECT position FROM history_start;
