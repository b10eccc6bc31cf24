-- A writer's statements: claim, lead, fail. What claims and leads are the routines of schema.sql.
--
-- Each fails where the session leads to another schema than ours (`at_home`), whose tables may be another
-- deployment's or a host's: a writer keeps its session for days, and behind a pooler each transaction may have
-- another one.

-- name: claim_and_lead
-- Claim a batch and lead what was won, in two commits and one round trip; return the tokens that
-- led. Only outside a transaction.
CALL claim_and_lead_4(
    $1, $2, $3, $4, require_home_1(NULL, $5), $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, NULL);

-- name: claim
-- Claim alone; return the tokens that won.
SELECT claim_attempts_1($1, $2, $3, $4, require_home_1(NULL, $5)) AS won;

-- name: lead
-- Lead alone, in a transaction of its own; return the tokens that led.
SELECT lead_groups_at_once_1(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, require_home_1(NULL, $12)
) AS led;

-- name: lead_before_hook
-- Lead alone, in a transaction that goes on with a host's hook; return the tokens that led.
SELECT lead_groups_4(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, require_home_1(NULL, $12)
) AS led;

-- name: unlocked
-- Return those of the tokens $2 whose attempts $1 a lead could settle now. The rows of the others
-- are held by another transaction, or carry another token by now.
SELECT claim_token FROM attempt
WHERE group_id = ANY ($1::uuid[]) AND claim_token = ANY ($2::uuid[]) AND status = 'pending'
  AND require_home_1(NULL, '') = ''
FOR UPDATE SKIP LOCKED;

-- name: are_tables_locked
-- Ask whether another session holds, or waits for, a lock on a table that every lead needs, or on a
-- partition of one, that keeps inserts waiting. The partitions are those of pg_inherits:
-- pg_partition_tree() would itself wait for the lock.
WITH RECURSIVE needed AS (
    SELECT name::regclass::oid AS relation
    FROM unnest('{attempt, chat_group, conversation, conversation_member,
                  outbox, outbox_history, outbox_slot}'::text[]) AS name
    UNION
    SELECT inhrelid FROM needed JOIN pg_inherits ON inhparent = relation
)
SELECT EXISTS (
    SELECT FROM pg_locks JOIN needed USING (relation)
    WHERE locktype = 'relation' AND pid <> pg_backend_pid()
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'));

-- name: fail
-- Settle one attempt as failed: only by its leader, and only where there is no group. Flushed as a lead
-- is (lead_groups_4). Recorded in its trail: $5 is this instance, $6 the request's trace id.
WITH failed AS (
    UPDATE attempt
    SET status = 'failed', failure_code = $3, failure_detail = $4, settled_at = clock_timestamp()
    FROM set_config('synchronous_commit',
                    coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true)
    WHERE group_id = $1 AND claim_token = $2 AND status = 'pending'
      AND NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = $1)
      AND require_home_1(NULL, '') = ''
    RETURNING *
)
SELECT claim_token, append_trail_1(group_id, settled_at, 'failed', $5, claim_token, claim_token,
                                   claimed_at, failure_code, $6)
FROM failed;
