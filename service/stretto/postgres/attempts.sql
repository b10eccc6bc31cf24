-- Attempts and their groups: claim, lead, follow, settle.

-- name: claim
-- Insert the pending attempts of a batch and return the tokens that won. Commits without waiting for
-- the disk: a claim lost in a crash is noticed by the leader's settle. A key whose group exists is
-- not claimed, so that a request that is refused as a reuse leaves no attempt behind. Nor is a key
-- whose attempt exists: the insert would wait for the leader that is writing it. What is left to wait
-- for is a claim that commits at this moment, and it is waited for no longer than $5.
INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
SELECT claim.group_id, claim.owner_id, claim.fingerprint, claim.claim_token
FROM set_config('synchronous_commit', 'off', true),
     set_config('lock_timeout', $5, true) AS patience,
     unnest($1::uuid[], $2::text[], $3::bytea[], $4::uuid[])
         AS claim (group_id, owner_id, fingerprint, claim_token)
WHERE NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = claim.group_id)
  AND NOT EXISTS (SELECT FROM attempt WHERE attempt.group_id = claim.group_id)
ON CONFLICT DO NOTHING
RETURNING claim_token;

-- name: lead
-- Settle the attempts that still carry our token and write their groups, in one commit. The update
-- is the fence, the row lock and the settlement at once; everything else hangs on what it returned.
-- A lock is waited for no longer than $9, until the transaction ends.
WITH write AS (
    SELECT group_id, claim_token, conversation_id, name, description, recipients::text[], event_id,
           payload::json
    FROM set_config('lock_timeout', $9, true) AS patience,
         unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::uuid[],
                $8::text[])
        AS write (group_id, claim_token, conversation_id, name, description, recipients, event_id,
                  payload)
), settled AS (
    UPDATE attempt
    SET status = 'succeeded', conversation_id = write.conversation_id,
        settled_at = clock_timestamp()
    FROM write
    WHERE attempt.group_id = write.group_id
      AND attempt.claim_token = write.claim_token
      AND attempt.status = 'pending'
      -- A group from before its attempt was swept must not spoil the batch: that key heals.
      AND NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = write.group_id)
    RETURNING attempt.owner_id, attempt.fingerprint, write.*
), new_conversation AS (
    INSERT INTO conversation (conversation_id) SELECT conversation_id FROM settled
), new_group AS (
    INSERT INTO chat_group (group_id, owner_id, name, description, fingerprint, conversation_id)
    SELECT group_id, owner_id, name, description, fingerprint, conversation_id FROM settled
), new_member AS (
    INSERT INTO conversation_member (conversation_id, user_id, role)
    SELECT conversation_id, user_id,
           CASE WHEN user_id = owner_id THEN 'owner' ELSE 'member' END
    FROM settled, unnest(recipients) AS user_id
), new_event AS (
    INSERT INTO outbox (event_id, event_type, subject, recipients, payload)
    SELECT event_id, 'group.created', group_id, recipients, payload FROM settled
)
SELECT claim_token FROM settled;

-- name: unlocked
-- Return the tokens $2 of the attempts $1 that a lead could settle now. The rows of the others are
-- held by another transaction, or are not theirs any more.
SELECT claim_token FROM attempt
WHERE group_id = ANY ($1::uuid[]) AND claim_token = ANY ($2::uuid[]) AND status = 'pending'
FOR UPDATE SKIP LOCKED;

-- name: are_tables_locked
-- Ask whether another session holds, or waits for, a lock on one of our tables that lets nothing be
-- inserted.
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'relation' AND pid <> pg_backend_pid()
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND relation IN ('attempt'::regclass, 'chat_group'::regclass, 'conversation'::regclass,
                       'conversation_member'::regclass, 'outbox'::regclass)
      AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'));

-- name: server
-- Ask which server this is, since its last start: a standby that was promoted has another start, and so
-- has a primary that was restored.
SELECT system_identifier || '/' || extract(epoch FROM pg_postmaster_start_time())
FROM pg_control_system();

-- name: fail
-- Settle one attempt as failed: only its leader may, and only where there is no group.
UPDATE attempt
SET status = 'failed', failure_code = $3, failure_detail = $4, settled_at = clock_timestamp()
WHERE group_id = $1 AND claim_token = $2 AND status = 'pending'
  AND NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = $1)
RETURNING claim_token;

-- name: look
-- Read attempts and the groups of the same ids $1, a row for each, in their order. $2 are the leases in
-- seconds, $3 is now. Each row is a subquery with a limit, so that it is found by its key: a join that
-- was planned while the tables were small would go on reading all of them. A lease that began further
-- ahead than it lasts was written by another clock, before a failover, and is over. After a restart
-- rows can be seen that a synchronous standby still lacks. Where there is such a standby, an outcome is
-- reported only after the standby has it: the outcome is read with a word to the log, whose commit
-- waits for it.
SELECT attempt.status, attempt.fingerprint, attempt.claim_token, attempt.conversation_id,
       attempt.failure_code, attempt.failure_detail, attempt.claimed_at, attempt.settled_at,
       greatest(now - attempt.claimed_at, attempt.claimed_at - now)
           >= make_interval(secs => lease_seconds) AS lease_over,
       chat_group.conversation_id AS group_conversation_id,
       chat_group.fingerprint AS group_fingerprint,
       chat_group.created_at AS group_created_at,
       CASE WHEN (attempt.status <> 'pending' OR chat_group.group_id IS NOT NULL)
                 AND current_setting('synchronous_standby_names') <> ''
            THEN pg_logical_emit_message(true, 'stretto', '') END AS replicated_at
FROM unnest($1::uuid[], $2::float8[]) WITH ORDINALITY AS wanted (group_id, lease_seconds, number)
CROSS JOIN (SELECT coalesce($3::timestamptz, clock_timestamp()) AS now) AS clock
LEFT JOIN LATERAL (SELECT * FROM attempt WHERE group_id = wanted.group_id LIMIT 1) AS attempt ON true
LEFT JOIN LATERAL (
    SELECT * FROM chat_group WHERE group_id = wanted.group_id LIMIT 1
) AS chat_group ON true
ORDER BY number;

-- name: heal
-- Settle an attempt as succeeded because its group exists; put it back where it was deleted, with the
-- times of the group: it was settled when its group was created. A row that another transaction holds
-- is left alone: the answer does not need it. Needs no durability: what is lost heals again.
WITH healed AS (
    UPDATE attempt
    SET status = 'succeeded', fingerprint = chat_group.fingerprint, claim_token = $2,
        conversation_id = chat_group.conversation_id,
        settled_at = greatest(attempt.claimed_at, chat_group.created_at)
    FROM set_config('synchronous_commit', 'off', true), chat_group
    WHERE chat_group.group_id = $1
      AND attempt.group_id = (
          SELECT group_id FROM attempt WHERE group_id = $1 AND status = 'pending'
          FOR UPDATE SKIP LOCKED
      )
)
INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status, conversation_id,
                     claimed_at, settled_at)
SELECT group_id, owner_id, fingerprint, $2, 'succeeded', conversation_id, created_at, created_at
FROM set_config('synchronous_commit', 'off', true), chat_group
WHERE group_id = $1 AND NOT EXISTS (SELECT FROM attempt WHERE attempt.group_id = $1)
ON CONFLICT DO NOTHING;

-- name: reclaim
-- Take a pending attempt over from the token that was seen, if its lease is over (as in look). A row
-- that is locked is being written by a leader who lives: it is left alone. $4 is the lease in seconds,
-- $5 now.
WITH clock AS MATERIALIZED (
    SELECT coalesce($5::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
)
UPDATE attempt
SET claim_token = $3, claimed_at = clock.now
FROM clock
WHERE group_id = (
    SELECT group_id FROM attempt, clock
    WHERE group_id = $1 AND claim_token = $2 AND status = 'pending'
      AND greatest(now - claimed_at, claimed_at - now) >= make_interval(secs => $4)
    FOR UPDATE OF attempt SKIP LOCKED
)
RETURNING group_id;

-- name: backend
-- Ask which of the server's processes is behind the connection.
SELECT pg_backend_pid();
