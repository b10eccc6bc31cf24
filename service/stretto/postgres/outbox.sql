-- Events that wait for the bus: lease, mark, refuse.

-- name: take
-- Lease up to $1 due events for $2 seconds, the oldest first, and return the position to resume
-- from: every event before it is published, or is dead, in the snapshot of this statement. Needs no
-- durability: a lease lost in a crash only makes its events due sooner. $3 is now. An event that is
-- due later than this clock could have postponed it (by a lease, or by the longest pause $4 after a
-- try) was postponed by another clock, before a failover, and is due. One lease is added: another
-- relay may have read the clock after this statement did.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
), due AS MATERIALIZED (
    SELECT event_id FROM outbox
    WHERE published_at IS NULL AND dead_reason IS NULL
      AND (due_at <= (SELECT now FROM clock)
           OR due_at > (SELECT now FROM clock) + make_interval(
               secs => $2 + CASE WHEN tries = 0 THEN $2 ELSE greatest($2, $4::float8) END))
    ORDER BY position
    LIMIT $1
    FOR UPDATE SKIP LOCKED
), live AS MATERIALIZED (
    SELECT least(pg_snapshot_xmin(pg_current_snapshot()),
                 (SELECT min(position) FROM outbox
                  WHERE published_at IS NULL AND dead_reason IS NULL)) AS resume_position
)
UPDATE outbox
SET due_at = clock.now + make_interval(secs => $2)
FROM due, clock, live
WHERE outbox.event_id = due.event_id
RETURNING outbox.event_id, event_type, subject, recipients, payload, created_at, position,
          resume_position;

-- name: oldest_unpublished
-- Read the age in seconds of the first event, in the order of history, that is not published yet;
-- nothing where there is none. $1 is now.
SELECT extract(epoch FROM coalesce($1::timestamptz, clock_timestamp()) - created_at)::float8
FROM outbox
WHERE published_at IS NULL AND dead_reason IS NULL
ORDER BY position
LIMIT 1;

-- name: mark
-- Record that these events were published. Needs no durability: what is lost is published again.
UPDATE outbox
SET published_at = coalesce($2::timestamptz, clock_timestamp()), dead_reason = NULL
FROM set_config('synchronous_commit', 'off', true)
WHERE event_id = ANY ($1::uuid[]) AND published_at IS NULL;

-- name: release
-- End the lease of events that were not published. $2 is now.
UPDATE outbox
SET due_at = coalesce($2::timestamptz, clock_timestamp())
FROM set_config('synchronous_commit', 'off', true)
WHERE event_id = ANY ($1::uuid[]) AND published_at IS NULL AND dead_reason IS NULL;

-- name: refuse
-- Postpone events that the bus refused for the reasons $2: from $4 seconds on, twice as long at
-- each try, at most $5, and at random, so that they do not come back together. After $3 tries an
-- event is a dead letter. $6 is now. Returns the new dead letters.
WITH refused AS (
    UPDATE outbox
    SET tries = tries + 1,
        due_at = coalesce($6::timestamptz, clock_timestamp()) + make_interval(
            secs => least($4::float8 * 2 ^ least(tries, 30), $5::float8) * (0.5 + random() / 2)),
        dead_reason = CASE WHEN tries + 1 >= $3 THEN left(reason, 1024) END
    FROM unnest($1::uuid[], $2::text[]) AS answer (event_id, reason)
    WHERE outbox.event_id = answer.event_id AND published_at IS NULL AND dead_reason IS NULL
    RETURNING outbox.event_id, dead_reason
)
SELECT event_id FROM refused WHERE dead_reason IS NOT NULL;

-- name: dead_letters
-- Read the first $1 dead letters, of the bus or of the webhook's endpoint, the oldest first.
SELECT event_id, event_type, subject, created_at, tries, dead_reason
FROM outbox
WHERE dead_reason IS NOT NULL
UNION ALL
SELECT event_id, event_type, subject, created_at, delivery.tries,
       'webhook: ' || delivery.dead_reason
FROM webhook_delivery AS delivery
JOIN outbox USING (event_id)
WHERE delivery.dead_reason IS NOT NULL
ORDER BY created_at, event_id
LIMIT $1;

-- name: retry_dead_letters
-- Have dead letters tried again: those of the ids $1, or all if null. They move to the end of
-- history, so that a session that resumes behind their old position gets them. Those of the webhook
-- keep theirs.
WITH published AS (
    UPDATE outbox
    SET dead_reason = NULL, tries = 0, due_at = clock_timestamp(), position = pg_current_xact_id()
    WHERE dead_reason IS NOT NULL AND ($1::uuid[] IS NULL OR event_id = ANY ($1))
    RETURNING event_id
), sent AS (
    UPDATE webhook_delivery
    SET dead_reason = NULL, tries = 0, due_at = clock_timestamp()
    WHERE dead_reason IS NOT NULL AND ($1::uuid[] IS NULL OR event_id = ANY ($1))
    RETURNING event_id
)
SELECT event_id FROM published UNION SELECT event_id FROM sent;
