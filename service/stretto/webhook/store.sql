-- The webhook's place in the log, and whether its endpoint may be called.

-- name: open_webhook
-- Begin at the present, unless the webhook has begun before. $1 is the digest of the endpoint's
-- URL: a new endpoint gets waiting events at once, whatever the old one has asked for. $2 is now.
WITH clock AS (
    SELECT coalesce($2::timestamptz, clock_timestamp()) AS now
), opened AS (
    INSERT INTO outbox_reader (name, history, seen, target_digest)
    SELECT 'webhook', history, seen, $1 FROM outbox_present
    WHERE NOT EXISTS (SELECT FROM outbox_reader WHERE name = 'webhook')
    ON CONFLICT DO NOTHING
), hastened AS (
    UPDATE outbox_delivery SET due_at = now
    FROM outbox_reader, clock
    WHERE reader = 'webhook' AND name = 'webhook' AND target_digest <> $1
      AND dead_reason IS NULL AND due_at > now
)
UPDATE outbox_reader
SET target_digest = $1, paused_until = '-infinity', disabled_at = NULL
WHERE name = 'webhook' AND target_digest <> $1;

-- name: enrol
-- Create deliveries for events that the reader's place does not cover: those whose transactions
-- were still running, then the next $1 (and the rest of the last one's transaction). Then store a
-- place that covers what was enrolled. $2 is now. Needs no durability: a crash loses deliveries and
-- place together. If the clock has gone back, as after a failover, due times go back by the same
-- amount: by how far `served_at` lies in the future, which is known to a minute.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
), turn AS MATERIALIZED (
    -- Another process may have moved the place since our snapshot. Where it covers what we do not
    -- see, this turn is left out: the place would go back, and events would be sent twice.
    SELECT history, seen, CASE WHEN served_at > now + interval '1 minute' THEN served_at - now
                               ELSE '0' END AS set_back
    FROM outbox_reader, clock
    WHERE name = 'webhook' AND disabled_at IS NULL
      AND (history < (SELECT max(number) FROM outbox_history)
           OR pg_snapshot_xmax(seen) <= pg_snapshot_xmax(pg_current_snapshot())
              AND NOT EXISTS (SELECT FROM pg_snapshot_xip(pg_current_snapshot()) AS xip
                              WHERE pg_visible_in_snapshot(xip, seen)))
    FOR UPDATE OF outbox_reader SKIP LOCKED
), moved AS (
    UPDATE outbox_delivery SET due_at = due_at - set_back
    FROM turn WHERE reader = 'webhook' AND set_back > '0'
), late AS MATERIALIZED (
    SELECT outbox.* FROM outbox
    WHERE history = (SELECT history FROM turn)
      AND position = ANY (ARRAY(SELECT pg_snapshot_xip(seen) FROM turn))
), fresh AS MATERIALIZED (
    SELECT outbox.* FROM outbox
    WHERE (history, position) >= ((SELECT history FROM turn),
                                  (SELECT pg_snapshot_xmax(seen) FROM turn))
    ORDER BY history, position
    FETCH FIRST $1 ROWS WITH TIES
), found AS MATERIALIZED (
    SELECT * FROM late UNION ALL SELECT * FROM fresh
), enrolled AS (
    INSERT INTO outbox_delivery (reader, created_at, event_id, subject, conversation_id, recipients,
                                 group_name, due_at)
    SELECT 'webhook', created_at, event_id, subject, conversation_id, recipients, group_name,
           clock.now
    FROM found, clock
    ON CONFLICT DO NOTHING
), last AS (
    SELECT history, position::text::bigint + 1 AS next_position FROM fresh
    ORDER BY fresh.history DESC, fresh.position DESC LIMIT 1
), reached AS (
    SELECT history, seen FROM outbox_present WHERE (SELECT count(*) FROM fresh) < $1
    UNION ALL
    SELECT last.history,
           format('%s:%s:%s', coalesce(min(xip), last.next_position), last.next_position,
                  string_agg(xip::text, ',' ORDER BY xip))::pg_snapshot
    FROM last
    -- No transaction of an older history runs any more.
    LEFT JOIN (outbox_present CROSS JOIN unnest(running) AS xip)
        ON outbox_present.history = last.history AND xip < last.next_position
    WHERE (SELECT count(*) FROM fresh) >= $1
    GROUP BY last.history, last.next_position
)
UPDATE outbox_reader
SET history = reached.history, seen = reached.seen, served_at = clock.now,
    paused_until = paused_until - set_back
FROM clock, turn, reached, (SELECT count(*) AS events FROM found) AS batch
-- An idle webhook writes once a minute, not at every turn.
WHERE name = 'webhook'
  AND (events > 0 OR served_at < clock.now - interval '1 minute' OR set_back > '0')
RETURNING events;

-- name: pause_webhook
-- Send nothing for $1 seconds, and no less than an earlier pause lasts. $2 is now.
UPDATE outbox_reader
SET paused_until = greatest(
    paused_until, coalesce($2::timestamptz, clock_timestamp()) + make_interval(secs => $1))
WHERE name = 'webhook';

-- name: disable_webhook
-- Send nothing any more; returns no row if the webhook was disabled already.
UPDATE outbox_reader SET disabled_at = clock_timestamp()
WHERE name = 'webhook' AND disabled_at IS NULL
RETURNING true;

-- name: enable_webhook
-- Send again at once, also what a pause or a failure has put off. Returns no row if the webhook was
-- neither disabled nor paused.
WITH enabled AS (
    UPDATE outbox_reader
    SET disabled_at = NULL, paused_until = '-infinity', served_at = clock_timestamp()
    WHERE name = 'webhook' AND (disabled_at IS NOT NULL OR paused_until > clock_timestamp())
    RETURNING true AS is_news
), hastened AS (
    UPDATE outbox_delivery SET due_at = clock_timestamp()
    FROM enabled
    WHERE reader = 'webhook' AND dead_reason IS NULL AND due_at > clock_timestamp()
)
SELECT is_news FROM enabled;

-- name: webhook_paused_until
-- Read the end of the pause that the endpoint has asked for; no row if there is none.
SELECT paused_until FROM outbox_reader
WHERE name = 'webhook' AND paused_until > clock_timestamp();

-- name: webhook_disabled_at
-- Read when the webhook was disabled; null if it is enabled.
SELECT disabled_at FROM outbox_reader WHERE name = 'webhook';
