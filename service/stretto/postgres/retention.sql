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
-- settlement more expensive. A pending one that was claimed so long ago is deleted, too, unless a
-- leader holds its row: a retry claims its key again, the claim token fences a leader that
-- comes back, and the group's primary key guards G1. Each failed attempt leaves a tombstone among the
-- groups, without which its key could succeed now (G4). $4 is now. Needs no durability: what a crash
-- brings back is deleted again.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0))
               AS is_ours,
           coalesce($4::timestamptz, clock_timestamp()) - make_interval(days => $3) AS before,
           set_config('synchronous_commit', 'off', true)
), abandoned AS MATERIALIZED (
    SELECT group_id FROM attempt
    WHERE (SELECT is_ours FROM turn) AND ctid >= $1::tid AND ctid < $2::tid
      AND status = 'pending' AND claimed_at < (SELECT before FROM turn)
    FOR UPDATE SKIP LOCKED
), swept AS (
    DELETE FROM attempt
    WHERE (SELECT is_ours FROM turn) AND ctid >= $1::tid AND ctid < $2::tid
      AND settled_at < (SELECT before FROM turn)
    RETURNING group_id, failure_code, settled_at
), marked AS (
    INSERT INTO chat_group (group_id, failure_code, created_at)
    SELECT group_id, failure_code, settled_at FROM swept WHERE failure_code IS NOT NULL
    -- A group of a failed attempt breaks G4: it stays, and `stretto check` reports it.
    ON CONFLICT DO NOTHING
), freed AS (
    DELETE FROM attempt WHERE group_id IN (SELECT group_id FROM abandoned) RETURNING true
)
SELECT is_ours, (SELECT count(*) FROM swept) + (SELECT count(*) FROM freed) AS rows FROM turn;

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

-- name: sweep_trail
-- The same for what happened to attempts more than $3 days ago.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0))
               AS is_ours,
           set_config('synchronous_commit', 'off', true)
), swept AS (
    DELETE FROM attempt_trail
    WHERE (SELECT is_ours FROM turn) AND ctid >= $1::tid AND ctid < $2::tid
      AND happened_at < coalesce($4::timestamptz, clock_timestamp()) - make_interval(days => $3)
    RETURNING true
)
SELECT is_ours, (SELECT count(*) FROM swept) AS rows FROM turn;

-- name: sweep_deliveries
-- The same for dead letters that were last tried more than $3 days ago, and for events of that age
-- whose reader is disabled or was not served by any process for so long. When a dead letter was last
-- tried is its due time, which its reader's clock has given: each time that this goes further ahead, as to
-- enable the webhook, the letter looks older by as much, a day and some hours at most. It fails where
-- policies may hide readers.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0))
               AS is_ours,
           coalesce($4::timestamptz, clock_timestamp()) - make_interval(days => $3) AS before,
           set_config('synchronous_commit', 'off', true)
    WHERE require_all_rows_1('outbox_reader')
), swept AS (
    DELETE FROM outbox_delivery AS delivery
    WHERE (SELECT is_ours FROM turn) AND ctid >= $1::tid AND ctid < $2::tid
      AND created_at < (SELECT before FROM turn)
      AND NOT EXISTS (
          SELECT FROM outbox_reader, turn
          WHERE name = delivery.reader
            AND CASE WHEN dead_reason IS NULL THEN disabled_at IS NULL AND served_at >= before
                     ELSE due_at - clock_ahead >= before END)
    RETURNING true
)
SELECT is_ours, (SELECT count(*) FROM swept) AS rows FROM turn;

-- name: sweepable_slots
-- Read which partitions of the log may be truncated, the oldest first, and the statements that lock
-- and truncate them: those in which nothing was written for $1 days, and whose last event every
-- reader is past. A reader that is disabled, or that no process has served for so long, does not
-- count. $2 is now. A partition is overdue when its time was more than $3 seconds ago.
-- The time when a partition ended does not suffice: a sweep while the clock is far behind sets it back
-- (set_slots_back), and then the clock is right again. So none of the last 100 events may be younger,
-- which the index finds. One would not do: the last by position may be of a transaction that began long
-- before, or of the clock that was behind. A time of the future is that of a clock that was ahead: it
-- keeps nothing.
-- A reader may still wait for a transaction that is older than the partition's last event. While that
-- runs, nothing of it is in a partition that is locked for truncation (`running`: the snapshot that
-- says so): it keeps no partition, however old it is. Once it has ended, the reader has to look first.
-- Nor does a row that is ahead of the server: no reader comes past it.
-- It fails where policies may hide events or readers, also from the truncation, and where a partition is detached.
SELECT slot.slot::integer AS slot, format('LOCK TABLE %I', 'outbox_' || slot.slot::text) AS lock,
       format('TRUNCATE %I', 'outbox_' || slot.slot::text) AS truncate,
       pg_current_snapshot()::text AS running,
       ended_at < before - make_interval(secs => $3) AS is_overdue
FROM (SELECT now, now - make_interval(days => $1) AS before
      FROM (SELECT coalesce($2::timestamptz, clock_timestamp()) AS now) AS clock) AS bound,
     (SELECT *, lead(began_at) OVER (ORDER BY number) AS ended_at FROM outbox_slot
      WHERE number > 0) AS slot
WHERE ended_at < before
  AND require_all_rows_1('outbox', 'outbox_reader')
  AND plan_whole_log_1() AND require_whole_log_1()
  AND NOT EXISTS (
      SELECT FROM (
          SELECT created_at FROM outbox WHERE outbox.slot = slot.slot
          ORDER BY history DESC, position DESC LIMIT 100
      ) AS last
      WHERE created_at BETWEEN before AND now)
  AND NOT EXISTS (
      SELECT FROM outbox_reader AS reader
      CROSS JOIN LATERAL (
          SELECT history, position FROM outbox
          WHERE outbox.slot = slot.slot
            AND (history, position) < (SELECT history, unreached FROM outbox_present)
          ORDER BY history DESC, position DESC LIMIT 1
      ) AS last
      WHERE disabled_at IS NULL AND served_at >= before
        AND ((last.history, last.position) >= (reader.history, pg_snapshot_xmax(reader.seen))
             OR last.history = reader.history AND EXISTS (
                 SELECT FROM pg_snapshot_xip(reader.seen) AS waited
                 WHERE waited <= last.position
                   AND waited NOT IN (SELECT pg_snapshot_xip(pg_current_snapshot())))))
ORDER BY number;

-- name: begin_truncation
-- Ask whether this sweeper may work, and have it wait for a lock for $1 at most: every read of the
-- log queues behind a lock that waits, or is held. So the server ends a sweeper that freezes with one.
SELECT pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0)),
       set_config('lock_timeout', $1, true),
       set_config('idle_in_transaction_session_timeout', '3s', true);

-- name: empty_slot
-- Have the log begin behind the last event of a partition $1, which is truncated next, unless it
-- begins later already, and mark the partition as empty. Of the transactions that a snapshot $2 lists
-- as running, taken since the partition is locked, keep those below that start. They are of the newest
-- history; on a server that would begin another one, their ids are of none yet. Histories of which
-- nothing is kept are forgotten. The log begins behind no row that is ahead of the server. It fails
-- where policies may hide the start, or a partition is detached, whose histories would be forgotten.
WITH last AS (
    SELECT history, (position::text::bigint + 1)::text::xid8 AS position FROM outbox
    WHERE slot = $1::integer AND outbox.position < '9223372036854775807'
      AND (outbox.history, outbox.position) < (SELECT history, unreached FROM outbox_present)
    ORDER BY outbox.history DESC, outbox.position DESC LIMIT 1
), start AS (
    SELECT history, position FROM last UNION ALL SELECT history, position FROM history_start
    ORDER BY history DESC, position DESC LIMIT 1
), started AS (
    UPDATE history_start
    SET history = start.history, position = start.position,
        running = ARRAY(SELECT xip FROM pg_snapshot_xip($2::text::pg_snapshot) AS xip, outbox_present
                        WHERE xip < start.position AND outbox_present.history = start.history
                          AND NOT is_ended),
        truncations = (SELECT max(number) - count(nullif(number, 0)) + 1 FROM outbox_slot)
    FROM start
), forgotten AS (
    DELETE FROM outbox_history WHERE number < (SELECT history FROM last)
      AND NOT EXISTS (SELECT FROM outbox WHERE history <= number AND slot <> $1::integer)
)
UPDATE outbox_slot SET number = 0
WHERE slot = $1::integer
  AND require_all_rows_1('history_start')
  AND plan_whole_log_1() AND require_whole_log_1();

-- name: set_slots_back
-- Correct times that a clock has given that was ahead: partitions are then kept longer. $1 is now.
UPDATE outbox_slot SET began_at = now
FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) AS clock
WHERE began_at > now + interval '1 minute';

-- name: begin_slot
-- Write to the next partition once the present one is a seventh of $1 days old, if one is empty and
-- no other sweeper works. $2 is now. It fails where a partition is detached: no event could be written to it.
UPDATE outbox_slot
SET number = present.number + 1, began_at = now
FROM (SELECT number, began_at FROM outbox_slot ORDER BY number DESC LIMIT 1) AS present,
     (SELECT coalesce($2::timestamptz, clock_timestamp()) AS now) AS clock
WHERE slot = (SELECT slot FROM outbox_slot WHERE number = 0 ORDER BY slot LIMIT 1)
  AND present.began_at < now - make_interval(days => $1) / 7
  AND require_whole_log_1()
  AND pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0));

-- name: sweepable_rows
-- Count what a sweep would delete besides partitions of the log. $1 is the retention in days, $2
-- now.
SELECT (SELECT count(*) FROM attempt
        WHERE coalesce(settled_at, claimed_at) < bound.before) AS attempt,
       (SELECT count(*) FROM attempt_trail
        WHERE happened_at < bound.before) AS attempt_trail,
       (SELECT count(*) FROM inbox WHERE received_at < bound.before) AS inbox,
       (SELECT count(*) FROM outbox_delivery AS delivery
        WHERE created_at < before
          AND NOT EXISTS (
              SELECT FROM outbox_reader
              WHERE name = delivery.reader
                AND CASE WHEN dead_reason IS NULL THEN disabled_at IS NULL AND served_at >= before
                         ELSE due_at - clock_ahead >= before END)) AS outbox_delivery
FROM (SELECT coalesce($2::timestamptz, clock_timestamp()) - make_interval(days => $1) AS before)
         AS bound;
