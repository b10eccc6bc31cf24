-- What a sweep deletes.

-- name: table_blocks
-- Read how many blocks the largest part of a table has, and how many parts there are: a sweep reads
-- all parts together, range by range. A table that is not partitioned is its only part; a
-- partitioned one has no blocks of its own.
SELECT coalesce(max(pg_relation_size(relid)), 0) / current_setting('block_size')::bigint AS blocks,
       greatest(count(*) FILTER (WHERE relid <> to_regclass($1)), 1) AS parts
FROM (SELECT to_regclass($1) AS relid
      UNION SELECT relid FROM pg_partition_tree(to_regclass($1)) WHERE isleaf) AS part;

-- name: sweep_attempts
-- Delete the attempts in a range of the table ($1 to $2) that were settled more than $3 days ago,
-- unless another sweeper works. No index leads to them: one on settled_at would make every
-- settlement more expensive. $4 is now. Needs no durability: what a crash brings back is deleted
-- again.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0))
               AS is_ours,
           set_config('synchronous_commit', 'off', true)
), swept AS (
    DELETE FROM attempt
    WHERE (SELECT is_ours FROM turn) AND ctid >= $1::tid AND ctid < $2::tid
      AND settled_at < coalesce($4::timestamptz, clock_timestamp()) - make_interval(days => $3)
    RETURNING true
)
SELECT is_ours, (SELECT count(*) FROM swept) AS rows FROM turn;

-- name: sweep_events
-- The same for events that were published more than $3 days ago; history then starts behind them.
-- What the webhook still has to send stays, unless it is disabled, or no process has served it for
-- so long.
WITH webhook_live AS MATERIALIZED (
    SELECT seen FROM webhook
    WHERE disabled_at IS NULL
      AND served_at >= coalesce($4::timestamptz, clock_timestamp()) - make_interval(days => $3)
), turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0))
               AS is_ours,
           set_config('synchronous_commit', 'off', true)
), swept AS (
    DELETE FROM outbox
    WHERE (SELECT is_ours FROM turn) AND ctid >= $1::tid AND ctid < $2::tid
      AND published_at < coalesce($4::timestamptz, clock_timestamp()) - make_interval(days => $3)
      AND NOT EXISTS (
          SELECT FROM webhook_live
          WHERE NOT pg_visible_in_snapshot(outbox.position, seen) OR EXISTS (
              SELECT FROM webhook_delivery AS delivery
              WHERE delivery.event_id = outbox.event_id AND delivery.dead_reason IS NULL))
    RETURNING event_id, position
), forgotten AS (
    DELETE FROM webhook_delivery AS delivery USING swept
    WHERE delivery.event_id = swept.event_id AND EXISTS (SELECT FROM webhook)
), started AS (
    UPDATE history_start
    SET position = (gone.last::text::bigint + 1)::text::xid8
    FROM (SELECT max(position) AS last FROM swept) AS gone
    WHERE gone.last >= history_start.position
)
SELECT is_ours, (SELECT count(*) FROM swept) AS rows FROM turn;

-- name: sweep_inbox
-- The same for messages that a consumer processed more than $3 days ago.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0))
               AS is_ours,
           set_config('synchronous_commit', 'off', true)
), swept AS (
    DELETE FROM inbox
    WHERE (SELECT is_ours FROM turn) AND ctid >= $1::tid AND ctid < $2::tid
      AND received_at < coalesce($4::timestamptz, clock_timestamp()) - make_interval(days => $3)
    RETURNING true
)
SELECT is_ours, (SELECT count(*) FROM swept) AS rows FROM turn;

-- name: sweepable_rows
-- Count what a sweep would delete. $1 is the retention in days, $2 that of events, $3 now.
SELECT (SELECT count(*) FROM attempt
        WHERE settled_at < moment.now - make_interval(days => $1)) AS attempt,
       (SELECT count(*) FROM outbox
        WHERE published_at < moment.now - make_interval(days => $2)
          AND NOT EXISTS (
              SELECT FROM webhook
              WHERE disabled_at IS NULL AND served_at >= moment.now - make_interval(days => $2)
                AND (NOT pg_visible_in_snapshot(outbox.position, seen) OR EXISTS (
                    SELECT FROM webhook_delivery AS delivery
                    WHERE delivery.event_id = outbox.event_id
                      AND delivery.dead_reason IS NULL)))) AS outbox,
       (SELECT count(*) FROM inbox
        WHERE received_at < moment.now - make_interval(days => $1)) AS inbox
FROM (SELECT coalesce($3::timestamptz, clock_timestamp()) AS now) AS moment;
