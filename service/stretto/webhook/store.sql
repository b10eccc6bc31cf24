-- The webhook's place in the log, and whether its endpoint may be called. While an endpoint is
-- replaced, senders of two URLs run side by side. The reader's target is the URL of the instance that
-- has started last; each statement of a sender has the digest of its own URL, and does nothing for a
-- reader whose target is another one. A million deliveries may wait: no statement goes through them.
-- What makes them due sets the reader's clock ahead, by which they are.

-- name: open_webhook
-- Begin at the present, unless the webhook has begun before. $1 is the digest of the endpoint's URL.
INSERT INTO outbox_reader (name, history, seen, target_digest)
SELECT 'webhook', history, seen, $1 FROM outbox_present
WHERE NOT EXISTS (SELECT FROM outbox_reader WHERE name = 'webhook')
  AND plan_whole_log_1() AND require_whole_log_1()
ON CONFLICT DO NOTHING;

-- name: lock_target
-- Hold the reader if the endpoint whose URL has the digest $1 becomes its target: if the target is still
-- $3, by the move of the time $4, and no sender has said since $2 that it serves it. If $2 is null, whatever
-- its senders say; if $4 is null, whatever the target is. Returns the time of that move, in microseconds (0
-- where there was none). All senders wait for who holds it: the server ends one that freezes.
SELECT moved_at
FROM outbox_reader, set_config('idle_in_transaction_session_timeout', '3s', true),
     LATERAL (SELECT CASE WHEN isfinite(target_since)
                          THEN (extract(epoch FROM target_since) * 1000000::numeric)::bigint
                          ELSE 0 END AS moved_at) AS move
WHERE name = 'webhook' AND target_digest IS DISTINCT FROM $1
  AND ($2::text IS NULL OR extract(epoch FROM served_at)::text = $2)
  AND ($4::bigint IS NULL OR (target_digest IS NOT DISTINCT FROM $3::bytea AND moved_at = $4))
-- A sender of the target before may be settling: this waits for it, and a later one for this.
FOR UPDATE OF outbox_reader;

-- name: move_target
-- Make that endpoint the target of the held reader. It gets waiting events at once and untried,
-- whatever the old one has asked for and however often it has failed: the reader's clock goes to the
-- last due time. A statement of its own, which sees what a sender has settled before. $2 is now. Of two
-- moves the later one has the greater time, whatever the database's clock does: so a row that a failover
-- has set back is known by its time. A move that is made again, since it was lost so, has its time $3, in
-- microseconds, by which all senders find the newest one. Returns the time.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, clock_timestamp()) AS now
), last AS MATERIALIZED (
    SELECT make_interval(secs => extract(epoch FROM due_at - now)::float8) AS ahead
    FROM outbox_delivery, clock
    WHERE reader = 'webhook' AND dead_reason IS NULL
    ORDER BY due_at DESC LIMIT 1
), lost AS MATERIALIZED (
    SELECT 'epoch'::timestamptz + $3::bigint * interval '1 microsecond' AS moved_at
), turn AS MATERIALIZED (
    SELECT greatest(
        now + greatest(clock_ahead, (SELECT ahead FROM last)),
        CASE WHEN isfinite(target_since) THEN target_since + interval '1 microsecond' END,
        -- Not behind the move: until then all that is put off would count as untried.
        moved_at) AS reader_now
    FROM outbox_reader, clock, lost
    WHERE name = 'webhook'
)
UPDATE outbox_reader
SET target_digest = $1, paused_until = '-infinity', disabled_at = NULL, served_at = now,
    clock_ahead = make_interval(secs => extract(epoch FROM reader_now - now)::float8),
    target_since = coalesce(moved_at, reader_now)
FROM clock, lost, turn
WHERE name = 'webhook'
RETURNING (extract(epoch FROM target_since) * 1000000::numeric)::bigint AS moved_at;

-- name: serve_webhook
-- Say that the target $1 is served, unless that was said since $2, or it is disabled. $3 is now. Senders
-- of other targets see by another `served_at` that it was said, whatever the clock does: so that time
-- also grows where the clock has gone back by up to a minute. Where it has gone back further, the reader's
-- clock goes ahead of it by as much more, and a pause back, as in `enrol`. Needs no durability: it is said
-- again. It waits for no one who holds the reader: a sender has more to do.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
), turn AS MATERIALIZED (
    SELECT set_back, CASE WHEN is_ahead THEN now
                          ELSE greatest(now, served_at + interval '1 microsecond') END AS said_at
    FROM outbox_reader, clock, LATERAL (
        SELECT served_at > now + interval '1 minute' AS is_ahead,
               -- One written by hand may be infinite.
               make_interval(secs => CASE
                   WHEN served_at > now + interval '1 minute' AND isfinite(served_at)
                   THEN extract(epoch FROM served_at - now)::float8 ELSE 0 END) AS set_back
    ) AS difference
    WHERE name = 'webhook' AND target_digest = $1 AND disabled_at IS NULL
      AND extract(epoch FROM served_at)::text = $2
    FOR NO KEY UPDATE OF outbox_reader SKIP LOCKED
)
UPDATE outbox_reader
SET served_at = said_at, paused_until = paused_until - set_back,
    clock_ahead = clock_ahead + set_back
FROM turn
WHERE name = 'webhook';

-- name: webhook_place
-- Read the webhook's place in the log, and whether it is enabled and its target is $1. It fails where
-- policies may hide the reader or its history, which would count as lost.
SELECT history, (SELECT id FROM outbox_history WHERE number = history) AS history_id,
       seen::text AS seen, parts,
       coalesce(target_digest = $1, false) AND disabled_at IS NULL AS is_ours
FROM outbox_reader
WHERE name = 'webhook' AND require_all_rows_1('outbox_reader', 'outbox_history');

-- name: enrol
-- Create deliveries for the events of a page (their histories $1, positions $2 and ids $3), and move
-- the place from history $4, snapshot $5 and parts $6 to history $7, snapshot $8 and parts $9. Another
-- process may have moved it since the page was read: then the place would go back, and events would be
-- sent twice; so nothing is done, as where the target is not $11, or history $7 has not the id $12 here
-- (a promoted server may have begun another one). $10 is now. Needs no durability: a crash loses
-- deliveries and place together. If the clock has gone back, as after a failover, the reader's clock goes
-- ahead of it by as much more: by how far `served_at` lies in the future, which is known to a minute. A
-- transaction is gone through once, not for each of its events. Owners have 128 characters at most; of a
-- longer one, written by hand, the indexes could take no row; and a time that none can be is the nearest one that
-- can. It fails where policies may hide events, or a
-- partition is detached: the place would pass over them.
WITH clock AS MATERIALIZED (
    SELECT coalesce($10::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
), turn AS MATERIALIZED (
    SELECT set_back, clock_ahead + set_back AS ahead
    FROM outbox_reader, clock, LATERAL (
        SELECT make_interval(secs => CASE WHEN served_at > now + interval '1 minute' THEN
                   extract(epoch FROM served_at - now)::float8 ELSE 0 END) AS set_back
    ) AS difference
    WHERE name = 'webhook' AND target_digest = $11 AND disabled_at IS NULL
      AND history = $4::integer AND seen::text = $5::text AND parts = $6::text
      AND EXISTS (SELECT FROM outbox_history WHERE number = $7::integer AND id = $12)
      AND require_all_rows_1('outbox')
      AND plan_whole_log_1() AND require_whole_log_1()
    -- Beside a sender that settles.
    FOR NO KEY UPDATE OF outbox_reader SKIP LOCKED
), enrolled AS (
    INSERT INTO outbox_delivery (reader, created_at, event_id, subject, conversation_id, recipients,
                                 group_name, group_kind, metadata, trace_context, event_type, change,
                                 due_at, owner_id)
    SELECT 'webhook', least(greatest(created_at, 'epoch'), clock.now),
           event_id, subject, conversation_id, recipients, group_name,
           group_kind, metadata, trace_context, event_type, change, clock.now + ahead,
           left(coalesce(change ->> 'owner_id', recipients[1], ''), 128)
    FROM turn, clock,
         (SELECT DISTINCT history, position::xid8
          FROM unnest($1::integer[], $2::text[]) AS found (history, position)) AS found
    JOIN outbox USING (history, position)
    WHERE event_id = ANY ($3::uuid[])
    ON CONFLICT DO NOTHING
)
UPDATE outbox_reader
SET history = $7, seen = $8::text::pg_snapshot, parts = $9, served_at = clock.now,
    paused_until = paused_until - set_back, clock_ahead = ahead
FROM clock, turn
-- An idle webhook writes once a minute, not at every turn.
WHERE name = 'webhook'
  AND (cardinality($1) > 0 OR served_at < clock.now - interval '1 minute' OR set_back > '0')
RETURNING cardinality($1);

-- name: move_webhook
-- Move the place from history $1, snapshot $2 and parts $3 to history $4, snapshot $5 and parts $6,
-- without deliveries: the log no longer has what comes next there. Returns no row if another process
-- has moved it, if the target is not $7, or if that history has not the id $8 here.
UPDATE outbox_reader SET history = $4, seen = $5::text::pg_snapshot, parts = $6
WHERE name = 'webhook' AND target_digest = $7 AND disabled_at IS NULL
  AND history = $1::integer AND seen::text = $2::text AND parts = $3::text
  AND EXISTS (SELECT FROM outbox_history WHERE number = $4::integer AND id = $8)
RETURNING true;

-- name: pause_webhook
-- Send nothing to the target $3 for $1 seconds, and no less than an earlier pause lasts. $2 is now.
UPDATE outbox_reader
SET paused_until = greatest(
    paused_until, coalesce($2::timestamptz, clock_timestamp()) + make_interval(secs => $1))
WHERE name = 'webhook' AND target_digest = $3;

-- name: disable_webhook
-- Send nothing to the target $1 any more; returns no row if it was disabled already, or if the
-- target is another one.
UPDATE outbox_reader SET disabled_at = clock_timestamp()
WHERE name = 'webhook' AND target_digest = $1 AND disabled_at IS NULL
RETURNING true;

-- name: enable_webhook
-- Send to the target again at once, also what a pause or a failure has put off: the reader's clock goes
-- to the last due time. Returns no row if the webhook was neither disabled nor paused.
UPDATE outbox_reader
SET disabled_at = NULL, paused_until = '-infinity', served_at = clock_timestamp(),
    clock_ahead = greatest(clock_ahead, (
        SELECT make_interval(secs => extract(epoch FROM due_at - clock_timestamp())::float8)
        FROM outbox_delivery WHERE reader = 'webhook' AND dead_reason IS NULL
        ORDER BY due_at DESC LIMIT 1))
WHERE name = 'webhook' AND (disabled_at IS NOT NULL OR paused_until > clock_timestamp())
RETURNING true;

-- name: webhook_paused_until
-- Read the end of the pause that the endpoint has asked for; no row if there is none.
SELECT paused_until FROM outbox_reader
WHERE name = 'webhook' AND paused_until > clock_timestamp();

-- name: webhook_disabled_at
-- Read when the webhook was disabled; null if it is enabled.
SELECT disabled_at FROM outbox_reader WHERE name = 'webhook';
