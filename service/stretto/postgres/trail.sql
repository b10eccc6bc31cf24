-- The trails of attempts: what processes add, and what is read of one.

-- name: append_trail
-- Add what instance $4 has seen of the attempts $1, $2 seconds ago. $5 are the claim tokens of its
-- requests: if an attempt carries its token, claimed_at is recorded too, and a claim happened then.
-- Needs no durability.
INSERT INTO attempt_trail (group_id, happened_at, what, instance, token_after, claimed_at, code,
                           trace_id)
SELECT seen.group_id,
       CASE WHEN what = 'claimed_again' AND attempt.claimed_at IS NOT NULL THEN attempt.claimed_at
            ELSE clock_timestamp() - make_interval(secs => seconds_ago) END,
       what, $4::text, seen.claim_token, attempt.claimed_at, code, trace_id
FROM set_config('synchronous_commit', 'off', true),
     unnest($1::uuid[], $2::float8[], $3::text[], $5::uuid[], $6::text[], $7::text[])
         WITH ORDINALITY
         AS seen (group_id, seconds_ago, what, claim_token, code, trace_id, number)
LEFT JOIN LATERAL (
    SELECT claimed_at FROM attempt
    WHERE attempt.group_id = seen.group_id AND attempt.claim_token = seen.claim_token LIMIT 1
) AS attempt ON true
ORDER BY number;

-- name: read_trails
-- Read trails of the attempts $1: of each up to $2 entries, the newest ones; all if $2 is null. They
-- come in the order in which they were added: a clock may have gone back. `number` is the question's
-- number. The limit makes the planner use the key, as in look.
SELECT wanted.number, happened_at, what, instance, token_before, token_after, claimed_at, code,
       trace_id
FROM unnest($1::uuid[]) WITH ORDINALITY AS wanted (group_id, number)
CROSS JOIN LATERAL (
    SELECT * FROM attempt_trail WHERE group_id = wanted.group_id ORDER BY number DESC LIMIT $2
) AS newest
ORDER BY wanted.number, newest.number;
