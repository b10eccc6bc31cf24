-- Violations of the guarantees, as `stretto check` reports them.

-- name: check_attempts
-- G4, G5: attempts that contradict the domain tables.
SELECT group_id,
       CASE WHEN chat_group.group_id IS NULL THEN 'succeeded without a group'
            WHEN status = 'failed' THEN 'failed, but its group exists'
            ELSE 'names another conversation, owner or request than its group' END AS what
FROM attempt
LEFT JOIN chat_group USING (group_id)
WHERE (status = 'succeeded' AND (chat_group.group_id IS NULL
           OR attempt.conversation_id <> chat_group.conversation_id
           OR attempt.owner_id <> chat_group.owner_id
           OR attempt.fingerprint <> chat_group.fingerprint))
   OR (status = 'failed' AND chat_group.group_id IS NOT NULL)
LIMIT $1;

-- name: check_groups
-- G5: groups that lack a part. The event may be gone once it was truncated: it is missing only if
-- the group is younger than the retention, $2 days, and after the start of history. The retention
-- may have been another one then, and a restored group has a later transaction than its event had.
-- So a group counts as after that start by the time of the first event that is kept, and, where
-- the start is of the newest history, by its own transaction. $3 is now.
SELECT group_id,
       CASE WHEN conversation.conversation_id IS NULL THEN 'group without its conversation'
            WHEN conversation.kind <> 'group' THEN 'conversation of another kind'
            WHEN owner.user_id IS NULL THEN 'group without its owner as a member'
            ELSE 'group without its event' END AS what
FROM chat_group
LEFT JOIN conversation USING (conversation_id)
LEFT JOIN conversation_member AS owner
    ON owner.conversation_id = chat_group.conversation_id
   AND owner.user_id = chat_group.owner_id AND owner.role = 'owner'
LEFT JOIN (SELECT DISTINCT subject FROM outbox) AS event ON event.subject = chat_group.group_id
CROSS JOIN (
    SELECT position = '0' AS is_whole,
           history_start.history = (SELECT max(number) FROM outbox_history) AS is_newest,
           position::text::bigint AS first_transaction,
           pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_transaction,
           (SELECT created_at FROM outbox ORDER BY history, position LIMIT 1) AS first_at
    FROM history_start
) AS start
WHERE conversation.conversation_id IS NULL OR conversation.kind <> 'group' OR owner.user_id IS NULL
   OR (event.subject IS NULL AND chat_group.created_at
       > coalesce($3::timestamptz, clock_timestamp()) - make_interval(days => $2)
       AND (is_whole
            OR is_newest AND next_transaction - age(chat_group.xmin) >= first_transaction
               AND chat_group.created_at >= coalesce(first_at, '-infinity')
            OR NOT is_newest AND chat_group.created_at >= first_at))
LIMIT $1;

-- name: check_conversations
-- G5: group conversations that belong to no group.
SELECT conversation_id AS group_id, 'conversation without a group' AS what
FROM conversation
LEFT JOIN chat_group USING (conversation_id)
WHERE kind = 'group' AND chat_group.group_id IS NULL
LIMIT $1;

-- name: check_events
-- G5, G8: events without a group, a second one of the same group, or one whose content contradicts
-- its group. The log may still have the event of a group that was deleted and created again: it
-- has another conversation, beside the event of the present one. The members may have changed
-- since, so only the owner is compared.
SELECT subject AS group_id,
       CASE WHEN owner_id IS NULL THEN 'event without a group'
            WHEN events_count > 1 THEN 'group with more than one event'
            WHEN has_own IS NOT TRUE THEN 'event names another conversation than its group'
            ELSE 'event names another owner than its group' END AS what
FROM (SELECT subject, recipients, owner_id,
             count(*) OVER (PARTITION BY subject, outbox.conversation_id)
                 AS events_count,
             bool_or(outbox.conversation_id = chat_group.conversation_id)
                 OVER (PARTITION BY subject) AS has_own
      FROM outbox LEFT JOIN chat_group ON chat_group.group_id = subject) AS event
WHERE events_count > 1 OR has_own IS NOT TRUE OR owner_id <> recipients[1]
LIMIT $1;

-- name: allow_scans
-- Let the rest of the transaction scan and join whole tables: plans by index suit a single key
-- only.
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_hashjoin', 'on', true),
       set_config('enable_mergejoin', 'on', true);

-- name: check_counts
-- How much was checked.
SELECT (SELECT count(*) FROM attempt) AS attempts, (SELECT count(*) FROM chat_group) AS groups,
       (SELECT count(*) FROM outbox) AS events;
