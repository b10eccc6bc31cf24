-- The bus's place in the log, which one process at a time moves on.

-- name: open_reader
-- Have a reader $1 begin at the present, unless it has begun before.
INSERT INTO outbox_reader (name, history, seen)
SELECT $1, history, seen FROM outbox_present
WHERE NOT EXISTS (SELECT FROM outbox_reader WHERE name = $1)
  AND plan_whole_log_1() AND require_whole_log_1()
ON CONFLICT DO NOTHING;

-- name: lease_bus
-- Lease the bus's place to the process $1 for $2 seconds, unless another one has it. $3 is now. A
-- lease that ends later than this clock could have given it was given by another clock, before a
-- failover, and is over (or by an instance with a lease of more than twice the length, until that is
-- replaced as well). If the clock has gone back, the reader's clock, which due times are of, goes
-- ahead of it by as much more: by how far `served_at` lies in the future. Returns the place, and whether
-- it is leased now; no row if there is no such reader any more. Needs no durability: a crash gives the
-- lease back. It fails where policies may hide the reader or its history, which would count as lost.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, clock_timestamp()) AS now,
           make_interval(secs => $2) AS lease,
           set_config('synchronous_commit', 'off', true)
), free AS MATERIALIZED (
    SELECT name, make_interval(secs => CASE WHEN served_at > now + interval '1 minute'
                                            THEN extract(epoch FROM served_at - now)::float8
                                            ELSE 0 END) AS set_back
    FROM outbox_reader, clock
    WHERE name = 'bus'
      AND (token IS NULL OR token = $1 OR leased_until <= now OR leased_until > now + 2 * lease)
    -- Beside a relay that settles.
    FOR NO KEY UPDATE OF outbox_reader SKIP LOCKED
), leased AS (
    UPDATE outbox_reader
    SET token = $1, leased_until = now + lease, served_at = now, clock_ahead = clock_ahead + set_back
    FROM clock, free
    WHERE outbox_reader.name = free.name
    RETURNING true
)
SELECT history, (SELECT id FROM outbox_history WHERE number = history) AS history_id,
       seen::text AS seen, parts, EXISTS (SELECT FROM leased) AS is_leased
FROM outbox_reader WHERE name = 'bus' AND require_all_rows_1('outbox_reader', 'outbox_history');

-- name: advance_bus
-- Move the bus's place to history $2, snapshot $3 and parts $4, if the process $1 still has the lease,
-- and if that history has the id $5 here: a promoted server may have begun another one under its number.
-- Needs no durability: what a crash undoes is published again.
UPDATE outbox_reader
SET history = $2, seen = $3::text::pg_snapshot, parts = $4
FROM set_config('synchronous_commit', 'off', true)
WHERE name = 'bus' AND token = $1
  AND EXISTS (SELECT FROM outbox_history WHERE number = $2 AND id = $5)
RETURNING true;

-- name: give_back_bus
-- End the lease of the process $1.
UPDATE outbox_reader
SET token = NULL, leased_until = '-infinity'
FROM set_config('synchronous_commit', 'off', true)
WHERE name = 'bus' AND token = $1;

-- name: refuse_events
-- Make deliveries of events that the bus has refused once: their histories $1, positions $2 and ids
-- $3. They are tried again after $4 seconds; $5 is now. The place moves on after this commit, so
-- that a crash undoes this only together with that. An owner and a time are as in the webhook's enrol. It fails
-- where policies may hide events, or a partition is detached.
INSERT INTO outbox_delivery (reader, owner_id, created_at, event_id, subject, conversation_id,
                             recipients, group_name, group_kind, metadata, trace_context,
                             event_type, change, due_at, tries, is_due)
SELECT 'bus', left(coalesce(change ->> 'owner_id', recipients[1], ''), 128),
       least(greatest(created_at, 'epoch'), coalesce($5::timestamptz, clock_timestamp())),
       event_id, subject, conversation_id, recipients, group_name, group_kind,
       metadata, trace_context, event_type, change,
       coalesce($5::timestamptz, clock_timestamp()) + clock_ahead + make_interval(secs => $4), 1,
       false
FROM (SELECT clock_ahead FROM outbox_reader WHERE name = 'bus') AS reader,
     set_config('synchronous_commit', 'off', true),
     (SELECT DISTINCT history, position::xid8
      FROM unnest($1::integer[], $2::text[]) AS refused (history, position)) AS refused
JOIN outbox USING (history, position)
WHERE event_id = ANY ($3::uuid[])
  AND require_all_rows_1('outbox')
  AND plan_whole_log_1() AND require_whole_log_1()
ON CONFLICT DO NOTHING;
