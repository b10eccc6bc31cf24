-- A follower's statements: look, heal, reclaim. Each fails where the session leads to another schema than
-- ours, as a writer's do.

-- name: look
-- Read attempts and the groups of the same ids $1, or tombstones, a row for each, in their order. $2
-- are the leases in seconds, $3 is now. Each row is a subquery with a limit, so that it is found by its
-- key: a join that was planned while the tables were small would keep scanning them. A lease that
-- began further in the future than it lasts was written by another clock, before a failover, and is
-- over. After a restart rows can be seen that a synchronous standby still lacks, and a primary that was
-- replaced by its standby lacks rows. Where there is such a standby, an outcome, or that there is none, is
-- reported only after the standby has it: reading it writes a message to the log, whose commit waits for the
-- standby.
SELECT attempt.status, attempt.fingerprint, attempt.claim_token, attempt.conversation_id,
       attempt.failure_code, attempt.failure_detail, attempt.claimed_at, attempt.settled_at,
       greatest(now - attempt.claimed_at, attempt.claimed_at - now)
           >= make_interval(secs => lease_seconds) AS lease_over,
       chat_group.conversation_id AS group_conversation_id,
       chat_group.fingerprint AS group_fingerprint,
       chat_group.created_at AS group_created_at,
       chat_group.deleted_at AS group_deleted_at,
       chat_group.group_id IS NOT NULL AND chat_group.conversation_id IS NULL AS is_tombstone,
       chat_group.failure_code AS tombstone_failure_code,
       CASE WHEN (attempt.status IS DISTINCT FROM 'pending' OR chat_group.group_id IS NOT NULL)
                 AND current_setting('synchronous_standby_names') <> ''
            THEN pg_logical_emit_message(true, 'stretto', '') END AS replicated_at
FROM unnest($1::uuid[], $2::float8[]) WITH ORDINALITY AS wanted (group_id, lease_seconds, number)
CROSS JOIN (SELECT coalesce($3::timestamptz, clock_timestamp()) AS now) AS clock
LEFT JOIN LATERAL (SELECT * FROM attempt WHERE group_id = wanted.group_id LIMIT 1) AS attempt
    ON true
LEFT JOIN LATERAL (
    SELECT * FROM chat_group WHERE group_id = wanted.group_id LIMIT 1
) AS chat_group ON true
WHERE require_home_1(NULL, '') = ''
ORDER BY number;

-- name: heal
-- Settle an attempt as succeeded because its group exists. An attempt that was deleted is inserted again with the
-- times of the group: it was settled when its group was created. A row that another transaction
-- holds is skipped: the answer does not need it. For a tombstone nothing is done. Needs no durability: what is lost heals again.
-- Recorded in its trail: $3 is this instance, $4 the request's trace id.
WITH pending AS MATERIALIZED (
    SELECT group_id, claim_token FROM attempt WHERE group_id = $1 AND status = 'pending'
    FOR UPDATE SKIP LOCKED
), healed AS (
    UPDATE attempt
    SET status = 'succeeded', fingerprint = chat_group.fingerprint, claim_token = $2,
        conversation_id = chat_group.conversation_id,
        settled_at = greatest(attempt.claimed_at, chat_group.created_at)
    FROM set_config('synchronous_commit', 'off', true), chat_group
    WHERE chat_group.group_id = $1
      AND chat_group.conversation_id IS NOT NULL
      AND attempt.group_id = (SELECT group_id FROM pending)
      AND require_home_1(NULL, '') = ''
    RETURNING attempt.claimed_at
), restored AS (
    INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status, conversation_id,
                         claimed_at, settled_at)
    SELECT group_id, owner_id, fingerprint, $2, 'succeeded', conversation_id, created_at, created_at
    FROM set_config('synchronous_commit', 'off', true), chat_group
    WHERE group_id = $1 AND conversation_id IS NOT NULL
      AND NOT EXISTS (SELECT FROM attempt WHERE attempt.group_id = $1)
    ON CONFLICT DO NOTHING
    RETURNING claimed_at
)
SELECT append_trail_1($1, clock_timestamp(), 'healed', $3, (SELECT claim_token FROM pending), $2,
                      claimed_at, NULL, $4)
FROM (SELECT claimed_at FROM healed UNION ALL SELECT claimed_at FROM restored) AS settled;

-- name: reclaim
-- Take over a pending attempt from the token that was seen, if its lease is over (as in look). A
-- locked row is being written by a live leader, and is skipped. $4 is the lease in seconds, $5 is
-- now. Recorded in its trail: $6 is this instance, $7 the request's trace id.
WITH clock AS MATERIALIZED (
    SELECT coalesce($5::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
), reclaimed AS (
    UPDATE attempt
    SET claim_token = $3, claimed_at = clock.now
    FROM clock
    WHERE group_id = (
        SELECT group_id FROM attempt, clock
        WHERE group_id = $1 AND claim_token = $2 AND status = 'pending'
          AND greatest(now - claimed_at, claimed_at - now) >= make_interval(secs => $4)
        FOR UPDATE OF attempt SKIP LOCKED
    ) AND require_home_1(NULL, '') = ''
    RETURNING group_id, claimed_at
)
SELECT group_id, append_trail_1(group_id, claimed_at, 'reclaimed', $6, $2, $3, claimed_at, NULL, $7)
FROM reclaimed;
