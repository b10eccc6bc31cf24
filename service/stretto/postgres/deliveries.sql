-- Events that wait for a reader's target one by one, and dead letters. When one is due is a time of its
-- reader's clock, which is `clock_ahead` of the database's.

-- name: take_deliveries
-- Lease up to $2 due deliveries of the reader $1 for $3 seconds, if its target is $6 (null for the
-- bus) and may be called. $4 is now; members are named where a group was created with $5 at most.
-- What was put off for an earlier target counts as untried.
-- Owners take turns: `walk` goes round the owners that have deliveries marked as due, from the one behind
-- $7 on, to the earliest of each. It ends when it has met as many that have something due and nothing under
-- way as there is room for, and after 64. The room that is left goes to the oldest due, of which the first
-- 128 are looked at: more may be of one owner that gets no more. What has become due by the time and is not
-- marked, as after a pause or at the end of a lease, is looked at as well: the first 128. Where the walk has
-- met an owner with nothing due, as after migration 29, there may be many such: then so is what has become
-- due last.
-- Who has fewest, with what is under way ($9 for each owner of $8), comes first; and no owner gets more
-- than twice as many as are left for all (if $8 is null, there is no such bound). However many deliveries
-- and owners wait, some hundred rows are read. The numbers stand in the text: the planner could not
-- estimate a parameter.
-- With owners $10 their deliveries alone are taken, those of the first ones first, without a walk: whose turn
-- it is of all owners stays as it is. Those of the owners $11 are not taken: the walk passes over them, of
-- which the index alone is read.
-- What was looked at and is not taken gets the mark that is right (`marked`), so that the next turn meets
-- others: what lies behind what is due, and no owner whose deliveries an older version has put off.
-- Returns the last owner whose turn it was and whether a mark was wrong, also where nothing is taken; no row
-- if nothing is due.
-- Needs no durability: a lease that is lost in a crash only makes its deliveries due sooner. But
-- where there is a synchronous standby, the commit waits for it: no event is sent that a failover
-- loses.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce($4::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit',
                      CASE WHEN current_setting('synchronous_standby_names') = '' THEN 'off'
                           ELSE current_setting('synchronous_commit') END, true)
), turn AS MATERIALIZED (
    SELECT now + clock_ahead AS reader_now, target_since
    FROM outbox_reader, clock
    WHERE name = $1 AND target_digest IS NOT DISTINCT FROM $6::bytea
      AND disabled_at IS NULL AND paused_until <= now
), waiting AS NOT MATERIALIZED (
    SELECT owner_id, event_id, due_at, is_due FROM outbox_delivery
    WHERE reader = $1 AND dead_reason IS NULL
), walk AS (
    SELECT $7::text AS owner_id, NULL::uuid AS event_id, NULL::timestamptz AS due_at,
           false AS has_wrapped, 0 AS number, 0 AS idle
    FROM turn CROSS JOIN LATERAL (
        SELECT FROM waiting WHERE due_at <= reader_now ORDER BY due_at LIMIT 1
    ) AS first_due
    UNION ALL
    SELECT next.*, number + 1,
           idle + (next.due_at <= reader_now AND (next.owner_id = ANY ($8)) IS NOT TRUE)::integer
    FROM turn CROSS JOIN walk CROSS JOIN LATERAL (
        (SELECT waiting.owner_id, waiting.event_id, waiting.due_at, has_wrapped FROM waiting
         WHERE is_due AND waiting.owner_id > walk.owner_id
           AND waiting.owner_id NOT IN (SELECT unnest($11::text[]))
           AND (NOT has_wrapped OR waiting.owner_id <= $7)
         ORDER BY waiting.owner_id, waiting.due_at, waiting.event_id LIMIT 1)
        UNION ALL
        -- Behind the last owner comes the first.
        (SELECT waiting.owner_id, waiting.event_id, waiting.due_at, true FROM waiting
         WHERE is_due AND NOT has_wrapped AND waiting.owner_id <= $7
           AND waiting.owner_id NOT IN (SELECT unnest($11::text[]))
         ORDER BY waiting.owner_id, waiting.due_at, waiting.event_id LIMIT 1)
        LIMIT 1
    ) AS next
    WHERE number < 64 AND idle < $2 AND $10::text[] IS NULL
), found AS (
    SELECT owner_id, event_id, due_at, true AS is_due FROM walk WHERE number > 0
    UNION
    SELECT oldest.* FROM walk CROSS JOIN LATERAL (
        SELECT * FROM waiting ORDER BY due_at LIMIT 128
    ) AS oldest
    WHERE number = 0
    UNION
    SELECT unmarked.* FROM turn CROSS JOIN walk CROSS JOIN LATERAL (
        SELECT * FROM waiting WHERE NOT is_due AND waiting.due_at <= reader_now
        ORDER BY waiting.due_at, waiting.event_id LIMIT 128
    ) AS unmarked
    WHERE number = 0
    UNION
    SELECT newest.* FROM turn CROSS JOIN LATERAL (
        SELECT * FROM waiting WHERE waiting.due_at <= reader_now ORDER BY waiting.due_at DESC LIMIT 128
    ) AS newest
    WHERE EXISTS (SELECT FROM walk WHERE walk.due_at > reader_now)
    UNION
    SELECT named.* FROM turn CROSS JOIN unnest($10) AS name CROSS JOIN LATERAL (
        SELECT * FROM waiting
        WHERE is_due AND waiting.owner_id = name AND waiting.due_at <= reader_now
        ORDER BY waiting.due_at, waiting.event_id LIMIT $2
    ) AS named
), ranked AS MATERIALIZED (
    SELECT found.event_id, number, found.due_at AS waits_since,
           row_number() OVER (PARTITION BY owner_id ORDER BY found.due_at)
               + coalesce(requests, 0) AS rank
    FROM found
    LEFT JOIN (SELECT owner_id, number FROM walk WHERE number > 0
               UNION ALL
               SELECT * FROM unnest($10) WITH ORDINALITY) AS turns (owner_id, number) USING (owner_id)
    LEFT JOIN unnest($8::text[], $9::integer[]) AS busy (owner_id, requests) USING (owner_id)
    WHERE ($10 IS NULL OR number IS NOT NULL) AND owner_id NOT IN (SELECT unnest($11))
), due AS MATERIALIZED (
    SELECT held.event_id, number, waits_since, rank
    FROM (SELECT * FROM ranked WHERE $8 IS NULL OR rank <= 2 * ($2 - 1)
          ORDER BY rank, number, waits_since) AS ranked
    -- One by one, and no more than there is room for.
    CROSS JOIN LATERAL (
        SELECT event_id FROM outbox_delivery AS delivery
        WHERE reader = $1 AND delivery.event_id = ranked.event_id
          AND due_at <= (SELECT reader_now FROM turn)
        LIMIT 1
        FOR UPDATE OF delivery SKIP LOCKED
    ) AS held
    LIMIT $2
), placed AS (
    SELECT event_id, number
    FROM (SELECT *, row_number() OVER (ORDER BY rank, number, waits_since) AS place FROM due) AS due
    WHERE $8 IS NULL OR rank <= 2 * ($2 - place)
), taken AS (
    UPDATE outbox_delivery AS delivery
    SET due_at = reader_now + make_interval(secs => $3), is_due = false,
        tries = CASE WHEN due_at <= target_since THEN 0 ELSE tries END
    FROM turn
    -- An array leads to the rows by the key, however few rows the planner takes the table to have.
    WHERE reader = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM placed))
    RETURNING delivery.owner_id AS delivery_owner, event_id, subject, conversation_id,
              recipients[1] AS owner_id, group_name,
              cardinality(recipients) AS members_count, group_kind, metadata::text AS metadata,
              recipients, trace_context, event_type, change::text AS change, tries,
              CASE WHEN event_type IS NULL AND cardinality(recipients) <= $5 THEN recipients END
                  AS member_ids
), marked AS (
    UPDATE outbox_delivery AS delivery SET is_due = due_at <= reader_now
    FROM turn
    WHERE reader = $1 AND event_id = ANY (ARRAY(
        SELECT held.event_id FROM turn CROSS JOIN found CROSS JOIN LATERAL (
            SELECT event_id FROM outbox_delivery AS delivery
            WHERE reader = $1 AND delivery.event_id = found.event_id AND dead_reason IS NULL
              AND is_due <> (due_at <= reader_now)
            FOR UPDATE OF delivery SKIP LOCKED
        ) AS held
        WHERE found.is_due <> (found.due_at <= reader_now)
          AND found.event_id <> ALL (ARRAY(SELECT event_id FROM placed))))
    RETURNING true
)
SELECT taken.*, last.owner_id AS last_owner, EXISTS (SELECT FROM marked) AS has_marked
FROM (SELECT owner_id FROM walk
      WHERE $10 IS NOT NULL
         OR number = coalesce((SELECT max(number) FROM placed), (SELECT max(number) FROM walk))
     ) AS last
LEFT JOIN taken ON true;

-- name: count_due
-- Count the due deliveries of the reader $1, up to $2. $3 is now.
SELECT count(*) FROM (
    SELECT FROM outbox_delivery
    WHERE reader = $1 AND dead_reason IS NULL
      AND due_at <= (SELECT coalesce($3::timestamptz, clock_timestamp()) + clock_ahead
                     FROM outbox_reader WHERE name = $1)
    ORDER BY due_at LIMIT $2
) AS due;

-- name: settle_deliveries
-- Delete the deliveries of the reader $1 that were sent ($2). Put the others ($3) off by $4
-- seconds, count those that were tries ($5), and dead-letter those that have a reason ($6); return
-- those. $7 is now. What the target $8 has refused (null for the bus) says nothing about another one:
-- if the reader has another target by now, the others stay as that one has them. Needs no
-- durability: what a crash undoes is sent again. So is one whose row another session has locked: all others'
-- must not wait for that.
WITH free AS MATERIALIZED (
    SELECT event_id, event_id = ANY ($2::uuid[]) AS is_sent FROM outbox_delivery
    WHERE reader = $1 AND event_id = ANY ($2::uuid[] || $3::uuid[])
    FOR UPDATE SKIP LOCKED
), sent AS (
    DELETE FROM outbox_delivery
    WHERE reader = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM free WHERE is_sent))
), target AS MATERIALIZED (
    SELECT name, clock_ahead FROM outbox_reader
    WHERE name = $1 AND target_digest IS NOT DISTINCT FROM $8::bytea
    -- It does not change before this commit. Where it is just changed, this waits and looks again.
    FOR KEY SHARE
)
UPDATE outbox_delivery AS delivery
SET due_at = coalesce($7::timestamptz, clock_timestamp()) + clock_ahead
        + make_interval(secs => seconds),
    is_due = false, tries = tries + is_try::integer, dead_reason = left(reason, 1024)
FROM target, set_config('synchronous_commit', 'off', true),
     unnest($3::uuid[], $4::float8[], $5::boolean[], $6::text[])
         AS answer (event_id, seconds, is_try, reason)
WHERE reader = name AND delivery.event_id = answer.event_id AND dead_reason IS NULL
  AND answer.event_id = ANY (ARRAY(SELECT event_id FROM free WHERE NOT is_sent))
RETURNING delivery.event_id, dead_reason IS NOT NULL AS is_dead;

-- name: oldest_owed
-- Read whether the target of the reader $1 is disabled; if not, the age in seconds of the oldest event
-- that it has not got yet, whether it waits as a delivery or is beyond the reader's place, null where
-- there is none. $2 is now. A time written by hand may be infinite, from which none can be taken. With it
-- come the target, the time of the move that has made it so, in microseconds (0 where there was none), when
-- a sender has last said that it is served, and whether that is more than a minute ahead: the clock has gone
-- back since.
SELECT disabled_at IS NOT NULL AS is_disabled, target_digest,
       CASE WHEN isfinite(target_since)
            THEN (extract(epoch FROM target_since) * 1000000::numeric)::bigint ELSE 0 END AS moved_at,
       extract(epoch FROM served_at)::text AS served_at,
       served_at > reader_now + interval '1 minute' AS is_ahead,
       CASE WHEN disabled_at IS NULL AND oldest_at IS NOT NULL THEN
    extract(epoch FROM reader_now - greatest(least(oldest_at, reader_now), 'epoch'))::float8
       END AS seconds
FROM outbox_reader AS reader,
    LATERAL (SELECT coalesce($2::timestamptz, clock_timestamp()) AS reader_now, least(
    (SELECT created_at FROM outbox_delivery
     WHERE outbox_delivery.reader = $1 AND dead_reason IS NULL
     ORDER BY created_at LIMIT 1),
    (SELECT min(created_at) FROM outbox
     WHERE outbox.history = reader.history
       AND position = ANY (ARRAY(SELECT pg_snapshot_xip(reader.seen)))),
    (SELECT created_at FROM outbox
     WHERE (outbox.history, position) >= (reader.history, pg_snapshot_xmax(reader.seen))
       AND outbox.history = ANY (ARRAY(SELECT number FROM outbox_history))
       AND (outbox.history, position) < (SELECT history, unreached FROM outbox_present)
     ORDER BY outbox.history, position LIMIT 1)) AS oldest_at OFFSET 0) AS owed
WHERE name = $1;

-- name: dead_letters
-- Read the first $1 dead letters, of the bus or of the webhook's endpoint, the oldest first.
SELECT event_id, subject, created_at, tries,
       coalesce(event_type, 'group.created') AS event_type,
       CASE reader WHEN 'bus' THEN '' ELSE reader || ': ' END || dead_reason AS dead_reason
FROM outbox_delivery
WHERE dead_reason IS NOT NULL
ORDER BY created_at, event_id
LIMIT $1;

-- name: hasten_deliveries
-- Of the $3 deliveries behind the reader $1 and the event $2, make due what a failure has put off.
-- Return how many these were, and the last of the page; no row behind the end. A delivery that is due
-- within $4 seconds may be under way, on the lease of a sender or a relay: it stays as it is, so that
-- it is not sent twice. What a sender holds is left out: it would wait for the whole page.
WITH page AS MATERIALIZED (
    SELECT reader, event_id FROM outbox_delivery
    WHERE (reader, event_id) > ($1, $2) ORDER BY reader, event_id LIMIT $3
), late AS MATERIALIZED (
    SELECT delivery.reader, delivery.event_id, clock_timestamp() + clock_ahead AS reader_now
    FROM page
    JOIN outbox_delivery AS delivery USING (reader, event_id)
    JOIN outbox_reader ON name = delivery.reader
    WHERE dead_reason IS NULL
      AND due_at > clock_timestamp() + clock_ahead + make_interval(secs => $4)
    FOR UPDATE OF delivery SKIP LOCKED
), hastened AS (
    UPDATE outbox_delivery AS delivery SET due_at = reader_now, is_due = true
    FROM late WHERE delivery.reader = late.reader AND delivery.event_id = late.event_id
    RETURNING true
)
SELECT (SELECT count(*) FROM hastened) AS count, reader, event_id
FROM page ORDER BY reader DESC, event_id DESC LIMIT 1;

-- name: retry_all_dead_letters
-- Have the dead letters of such a page tried again: of the $3 deliveries behind the reader $1 and the
-- event $2. No index leads to them.
WITH page AS MATERIALIZED (
    SELECT reader, event_id FROM outbox_delivery
    WHERE (reader, event_id) > ($1, $2) ORDER BY reader, event_id LIMIT $3
), retried AS (
    UPDATE outbox_delivery AS delivery
    SET dead_reason = NULL, tries = 0, is_due = true, due_at = clock_timestamp() + clock_ahead
    FROM page JOIN outbox_reader ON name = reader
    WHERE delivery.reader = page.reader AND delivery.event_id = page.event_id
      AND dead_reason IS NOT NULL
    RETURNING true
)
SELECT (SELECT count(*) FROM retried) AS count, reader, event_id
FROM page ORDER BY reader DESC, event_id DESC LIMIT 1;

-- name: retry_dead_letters
-- Have the dead letters of the ids $1 tried again.
UPDATE outbox_delivery
SET dead_reason = NULL, tries = 0, is_due = true, due_at = clock_timestamp() + clock_ahead
FROM outbox_reader
WHERE reader = name AND event_id = ANY ($1::uuid[]) AND dead_reason IS NOT NULL
RETURNING event_id;
