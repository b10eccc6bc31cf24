-- A row whose position the server has not reached, as one written by hand, is no end of the log.

CREATE OR REPLACE VIEW outbox_present AS
SELECT newest.number AS history, bound.next_position, below.running,
       format('%s:%s:%s', coalesce(below.running[1], bound.next_position), bound.next_position,
              array_to_string(below.running, ','))::pg_snapshot AS seen,
       -- The next event begins another history.
       newest.server_started_at <> pg_postmaster_start_time() AS is_ended,
       (SELECT json_object_agg(number, id) FROM outbox_history) AS histories,
       history_start.history AS start_history,
       history_start.position::text::bigint AS start_position,
       CASE WHEN history_start.truncations = (SELECT max(number) - count(nullif(number, 0))
                                              FROM outbox_slot)
            THEN history_start.running::text::bigint[] ELSE '{}' END AS start_running,
       -- It knows of no running transactions, so a place there would cover what nobody has read.
       pg_is_in_recovery() AS is_standby,
       server.unreached
FROM (SELECT * FROM outbox_history ORDER BY number DESC LIMIT 1) AS newest
CROSS JOIN history_start
-- OFFSET has each of them computed once.
CROSS JOIN LATERAL (
    SELECT CASE WHEN newest.server_started_at = pg_postmaster_start_time()
                THEN pg_snapshot_xmax(pg_current_snapshot())
                -- Its events have positions of another start, or of another server. No bigint is greater.
                ELSE '9223372036854775807' END AS unreached
    OFFSET 0
) AS server
CROSS JOIN LATERAL (
    SELECT greatest(
        newest.position::text::bigint,
        CASE WHEN history_start.history = newest.number
             THEN history_start.position::text::bigint END,
        (SELECT position::text::bigint + 1 FROM outbox
         WHERE outbox.history = newest.number AND outbox.position < server.unreached
         ORDER BY outbox.history DESC, outbox.position DESC LIMIT 1)) AS next_position
    OFFSET 0
) AS bound
CROSS JOIN LATERAL (
    SELECT ARRAY(SELECT xip::text::bigint FROM pg_snapshot_xip(pg_current_snapshot()) AS xip
                 WHERE xip::text::bigint < bound.next_position ORDER BY xip) AS running
    OFFSET 0
) AS below;
