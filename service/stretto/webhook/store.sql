-- Deliveries to the webhook's endpoint.

-- name: open_webhook
-- Begin with the next commit, unless the webhook has begun before. A stored snapshot that lies in
-- the future comes from another server, from which the tables were restored: it is reset, and
-- covers nothing. $1 is the digest of the endpoint's URL: a new endpoint gets waiting events at
-- once, whatever the old one has asked for. $2 is now.
WITH clock AS (
    SELECT coalesce($2::timestamptz, clock_timestamp()) AS now
), opened AS (
    INSERT INTO webhook (url_digest) VALUES ($1) ON CONFLICT DO NOTHING
), hastened AS (
    UPDATE webhook_delivery SET due_at = now
    FROM webhook, clock
    WHERE url_digest <> $1 AND dead_reason IS NULL AND due_at > now
)
UPDATE webhook
SET url_digest = $1,
    paused_until = CASE WHEN url_digest = $1 THEN paused_until ELSE '-infinity' END,
    disabled_at = CASE WHEN url_digest = $1 THEN disabled_at END,
    seen = CASE WHEN pg_snapshot_xmax(seen) > pg_snapshot_xmax(pg_current_snapshot()) THEN '1:1:'
                ELSE seen END
WHERE url_digest <> $1
   OR pg_snapshot_xmax(seen) > pg_snapshot_xmax(pg_current_snapshot());

-- name: enrol
-- Create deliveries for events that the stored snapshot `seen` does not cover: those whose
-- transactions were still running when it was taken, then the next $1 (and the rest of the last
-- one's transaction). Then store a snapshot that covers what was enrolled. $2 is now. Needs no
-- durability: a crash loses deliveries and snapshot together. If the clock has gone back, as after
-- a failover, due times go back by the same amount: by how far `served_at` lies in the future,
-- which is known to a minute.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
), turn AS MATERIALIZED (
    -- Another process may have moved `seen` since our snapshot. Events that we see beyond it are
    -- still new; those whose transactions were running for us are sent twice at worst.
    SELECT seen, CASE WHEN served_at > now + interval '1 minute' THEN served_at - now
                      ELSE '0' END AS set_back
    FROM webhook, clock WHERE disabled_at IS NULL FOR UPDATE OF webhook SKIP LOCKED
), moved AS (
    UPDATE webhook_delivery SET due_at = due_at - set_back FROM turn WHERE set_back > '0'
), late AS MATERIALIZED (
    SELECT event_id, created_at FROM outbox
    WHERE position = ANY (ARRAY(SELECT pg_snapshot_xip(seen) FROM turn))
), fresh AS MATERIALIZED (
    SELECT event_id, created_at, position FROM outbox
    WHERE position >= (SELECT pg_snapshot_xmax(seen) FROM turn)
      AND position < pg_snapshot_xmax(pg_current_snapshot())
    ORDER BY position
    FETCH FIRST $1 ROWS WITH TIES
), found AS MATERIALIZED (
    SELECT event_id, created_at FROM late UNION ALL SELECT event_id, created_at FROM fresh
), enrolled AS (
    INSERT INTO webhook_delivery (event_id, due_at, owed_since)
    SELECT event_id, clock.now, created_at FROM found, clock
    ON CONFLICT DO NOTHING
), bound AS (
    SELECT CASE WHEN count(*) < $1 THEN pg_snapshot_xmax(pg_current_snapshot())
                ELSE (max(position)::text::bigint + 1)::text::xid8 END AS xmax
    FROM fresh
), covered AS (
    SELECT format('%s:%s:%s', coalesce(min(xip), xmax), xmax,
                  string_agg(xip::text, ',' ORDER BY xip))::pg_snapshot AS seen
    FROM bound LEFT JOIN pg_snapshot_xip(pg_current_snapshot()) AS xip ON xip < xmax
    GROUP BY xmax
)
UPDATE webhook
SET seen = covered.seen, served_at = clock.now, paused_until = paused_until - set_back
FROM clock, turn, covered, (SELECT count(*) AS events FROM found) AS batch
-- An idle webhook writes once a minute, not at every turn.
WHERE events > 0 OR served_at < clock.now - interval '1 minute' OR set_back > '0'
RETURNING events;

-- name: take_deliveries
-- Lease up to $1 due deliveries for $2 seconds, if the endpoint may be called. $3 is now. Needs no
-- durability, as in take.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
), due AS MATERIALIZED (
    SELECT event_id
    FROM webhook_delivery AS delivery
    JOIN outbox USING (event_id)
    WHERE delivery.dead_reason IS NULL AND delivery.due_at <= (SELECT now FROM clock)
      AND (SELECT disabled_at IS NULL AND paused_until <= now FROM webhook, clock)
    ORDER BY delivery.due_at
    LIMIT $1
    FOR UPDATE OF delivery SKIP LOCKED
)
UPDATE webhook_delivery AS delivery
SET due_at = clock.now + make_interval(secs => $2)
FROM due, clock, outbox
WHERE delivery.event_id = due.event_id AND outbox.event_id = due.event_id
RETURNING outbox.event_id, event_type, subject, payload, created_at, delivery.tries;

-- name: oldest_undelivered
-- Read the age in seconds of the oldest event that is not delivered yet, enrolled or not; null
-- where there is none, no row where the endpoint is disabled. $1 is now.
SELECT extract(epoch FROM coalesce($1::timestamptz, clock_timestamp()) - least(
    (SELECT owed_since FROM webhook_delivery AS delivery JOIN outbox USING (event_id)
     WHERE delivery.dead_reason IS NULL
     ORDER BY owed_since LIMIT 1),
    (SELECT min(created_at) FROM outbox
     WHERE position = ANY (ARRAY(SELECT pg_snapshot_xip(webhook.seen)))),
    (SELECT created_at FROM outbox
     WHERE position >= pg_snapshot_xmax(webhook.seen)
     ORDER BY position LIMIT 1)))::float8
FROM webhook
WHERE disabled_at IS NULL;

-- name: settle_deliveries
-- Delete the deliveries that were sent ($1). Put the others ($2) off by $3 seconds, count those
-- that were tries ($4), and dead-letter those that have a reason ($5). $6 is now. Needs no
-- durability: what a crash undoes is sent again.
WITH sent AS (
    DELETE FROM webhook_delivery WHERE event_id = ANY ($1::uuid[])
)
UPDATE webhook_delivery AS delivery
SET due_at = coalesce($6::timestamptz, clock_timestamp()) + make_interval(secs => seconds),
    tries = tries + is_try::integer, dead_reason = reason
FROM set_config('synchronous_commit', 'off', true),
     unnest($2::uuid[], $3::float8[], $4::boolean[], $5::text[])
         AS answer (event_id, seconds, is_try, reason)
WHERE delivery.event_id = answer.event_id AND dead_reason IS NULL;

-- name: pause_webhook
-- Send nothing for $1 seconds, and no less than an earlier pause lasts. $2 is now.
UPDATE webhook
SET paused_until = greatest(
    paused_until, coalesce($2::timestamptz, clock_timestamp()) + make_interval(secs => $1));

-- name: disable_webhook
-- Send nothing any more; returns no row if the webhook was disabled already.
UPDATE webhook SET disabled_at = clock_timestamp() WHERE disabled_at IS NULL RETURNING true;

-- name: enable_webhook
-- Send again at once, also what a pause or a failure has put off. Returns no row if the webhook was
-- neither disabled nor paused.
WITH enabled AS (
    UPDATE webhook
    SET disabled_at = NULL, paused_until = '-infinity', served_at = clock_timestamp()
    WHERE disabled_at IS NOT NULL OR paused_until > clock_timestamp()
    RETURNING true AS is_news
), hastened AS (
    UPDATE webhook_delivery SET due_at = clock_timestamp()
    FROM enabled
    WHERE dead_reason IS NULL AND due_at > clock_timestamp()
)
SELECT is_news FROM enabled;

-- name: webhook_paused_until
-- Read the end of the pause that the endpoint has asked for; no row if there is none.
SELECT paused_until FROM webhook WHERE paused_until > clock_timestamp();

-- name: webhook_disabled_at
-- Read when the webhook was disabled; null if it is enabled.
SELECT disabled_at FROM webhook;
