-- A writer's statements: claim, lead, fail.

-- name: claim
-- Insert the pending attempts of a batch and return the tokens that won. Commits without waiting
-- for the disk: the leader's settle notices a claim that was lost in a crash. A key whose group
-- exists is not claimed, so that a request that is refused as a reuse leaves no attempt. Nor is a
-- key whose attempt exists: the insert would wait for the leader that is writing it. It may only
-- wait for a claim that commits at this moment, and no longer than $5.
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
-- is the fence, the row lock and the settlement at once; everything else is joined to the rows that
-- it returned. No lock is waited for longer than $9, until the transaction ends.
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
      -- A group whose attempt was swept must not fail the batch: that key heals.
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
), log_end AS MATERIALIZED (
    -- A pooler may have changed to a promoted server under a living connection.
    SELECT (SELECT slot FROM outbox_slot ORDER BY number DESC LIMIT 1) AS slot, newest.number,
           newest.server_started_at = pg_postmaster_start_time() AS goes_on
    FROM (SELECT number, server_started_at FROM outbox_history ORDER BY number DESC LIMIT 1)
        AS newest
), begun AS (
    INSERT INTO outbox_history (number, server_started_at, table_id)
    SELECT number + 1, (SELECT started_at FROM outbox_server), (SELECT table_id FROM outbox_server)
    FROM log_end WHERE NOT goes_on
    -- Another lead may have begun it meanwhile.
    ON CONFLICT (number) DO UPDATE SET number = EXCLUDED.number
    RETURNING number
), new_event AS (
    INSERT INTO outbox (slot, history, event_id, subject, conversation_id, event_type, recipients,
                        payload)
    SELECT slot, coalesce(begun.number, log_end.number), event_id, group_id, conversation_id,
           'group.created', recipients, payload
    FROM settled CROSS JOIN log_end LEFT JOIN begun ON true
)
SELECT claim_token FROM settled;

-- name: unlocked
-- Return those of the tokens $2 whose attempts $1 a lead could settle now. The rows of the others
-- are held by another transaction, or carry another token by now.
SELECT claim_token FROM attempt
WHERE group_id = ANY ($1::uuid[]) AND claim_token = ANY ($2::uuid[]) AND status = 'pending'
FOR UPDATE SKIP LOCKED;

-- name: are_tables_locked
-- Ask whether another session holds, or waits for, a lock on one of our tables that prevents every
-- insert.
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'relation' AND pid <> pg_backend_pid()
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND relation IN ('attempt'::regclass, 'chat_group'::regclass, 'conversation'::regclass,
                       'conversation_member'::regclass, 'outbox'::regclass)
      AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'));

-- name: fail
-- Settle one attempt as failed: only by its leader, and only where there is no group.
UPDATE attempt
SET status = 'failed', failure_code = $3, failure_detail = $4, settled_at = clock_timestamp()
WHERE group_id = $1 AND claim_token = $2 AND status = 'pending'
  AND NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = $1)
RETURNING claim_token;

-- name: server
-- Identify the server and its last start: a promoted standby has another start, and so has a
-- restored primary. Also read the number of the newest history, and whether it was begun elsewhere.
SELECT system_identifier || '/' || extract(epoch FROM here.started_at) AS server, newest.number,
       (newest.server_started_at, newest.table_id) <> (here.started_at, here.table_id)
           AS is_elsewhere
FROM pg_control_system(), outbox_server AS here,
     (SELECT * FROM outbox_history ORDER BY number DESC LIMIT 1) AS newest;

-- name: begin_history
-- Begin a history behind the one of the number $1, unless another process has done so. It waits for
-- no standby: it reports no event.
INSERT INTO outbox_history (number, server_started_at, table_id)
SELECT $1::integer + 1, started_at, table_id
FROM outbox_server, set_config('synchronous_commit', 'local', true)
ON CONFLICT DO NOTHING;

-- name: backend
-- Read which process of the server the connection leads to.
SELECT pg_backend_pid();
