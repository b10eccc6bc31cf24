-- Deliveries to the webhook's endpoint.

-- name: open_webhook
-- Have the webhook begin with what commits from now on, unless it has begun. A snapshot of the future
-- is another server's, from which the tables were restored: nothing is known to be seen then.
WITH opened AS (
    INSERT INTO webhook DEFAULT VALUES ON CONFLICT DO NOTHING
)
UPDATE webhook SET seen = '1:1:'
WHERE pg_snapshot_xmax(seen) > pg_snapshot_xmax(pg_current_snapshot());

-- name: enrol
-- Make deliveries of events that were not seen before: of those whose transactions were running then,
-- and of the next $1 at least, with all of the last one's transaction. Then this snapshot has seen
-- them, as far as we have come. $2 is now. Needs no durability: all is lost together. Where the clock
-- has gone back, as after a failover, what was put off goes back with it: by as much as the webhook was
-- served in the future, which is known to a minute.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
), turn AS MATERIALIZED (
    -- Another process may have moved it since our snapshot: what we see beyond is still new, and what
    -- was running for us is at worst sent twice.
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
), place AS (
    SELECT format('%s:%s:%s', coalesce(min(xip), xmax), xmax,
                  string_agg(xip::text, ',' ORDER BY xip))::pg_snapshot AS seen
    FROM bound LEFT JOIN pg_snapshot_xip(pg_current_snapshot()) AS xip ON xip < xmax
    GROUP BY xmax
)
UPDATE webhook
SET seen = place.seen, served_at = clock.now, paused_until = paused_until - set_back
FROM clock, turn, place, (SELECT count(*) AS events FROM found) AS stretch
-- An idle webhook writes once a minute, and not at every look.
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
-- Read the age in seconds of the oldest event that the endpoint still has to get, enrolled or not;
-- nothing where there is none, or where the endpoint is disabled. $1 is now.
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
-- Forget deliveries that came about ($1), put the others ($2) off by $3 seconds, count those of them
-- that were tries ($4), and bury those that have a reason ($5). $6 is now. Needs no durability: what is
-- lost is sent again.
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
-- Send nothing for $1 seconds, or until it was to go on anyway. $2 is now.
UPDATE webhook
SET paused_until = greatest(
    paused_until, coalesce($2::timestamptz, clock_timestamp()) + make_interval(secs => $1));

-- name: disable_webhook
-- Send nothing more; returns nothing where that was so already.
UPDATE webhook SET disabled_at = clock_timestamp() WHERE disabled_at IS NULL RETURNING true;

-- name: enable_webhook
-- Send again, at once: also what was put off, in a pause or after a failure. Returns nothing where the
-- webhook was neither disabled nor paused.
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
-- Ask until when the endpoint wants nothing, if it has asked for a pause.
SELECT paused_until FROM webhook WHERE paused_until > clock_timestamp();

-- name: webhook_disabled_at
-- Ask since when the webhook is disabled.
SELECT disabled_at FROM webhook;
