-- Violations of the guarantees, as `stretto check` reports them.

-- name: check_attempts
-- G4, G5: attempts that contradict the domain tables. An attempt of a deleted group may be left: one that
-- a follower held, or healed, when the group was deleted.
SELECT group_id,
       CASE WHEN chat_group.group_id IS NULL THEN 'succeeded without a group'
            WHEN chat_group.failure_code IS NOT NULL
                THEN 'succeeded, but the key has failed before: its tombstone says so'
            WHEN status = 'failed' AND deleted_at IS NOT NULL THEN 'failed, but it had a group'
            WHEN status = 'failed' THEN 'failed, but its group exists'
            ELSE 'names another conversation, owner or request than its group' END AS what
FROM attempt
LEFT JOIN chat_group USING (group_id)
WHERE (status = 'succeeded' AND (chat_group.group_id IS NULL
           OR attempt.conversation_id <> chat_group.conversation_id
           OR attempt.owner_id <> chat_group.owner_id
           OR chat_group.failure_code IS NOT NULL
           OR attempt.fingerprint <> chat_group.fingerprint))
   OR (status = 'failed' AND chat_group.group_id IS NOT NULL AND chat_group.failure_code IS NULL)
LIMIT $1;

-- name: check_groups
-- G5: groups that lack a part. The event of the last change, or else of the creation, may be gone once
-- it was truncated: it is missing only if the change is younger than the retention, $2 days, and after
-- the start of history. The retention may have been another one then, and a restored group has a later
-- transaction than its event had. So a change counts as after that start by the time of the first
-- event that is kept, and, where the start is of the newest history, by the transaction that has last
-- written the group. At first the group's owner is the one who has created it; a change may make
-- others owners. Of a tombstone only the event of the deletion is looked for. $3 is now.
-- The start is asked for by a subquery, not joined: that would be a loop, of as many rows as the planner
-- expects in a table without statistics, a thousand.
WITH start AS MATERIALIZED (
    SELECT position = '0' AS is_whole,
           history_start.history = (SELECT max(number) FROM outbox_history) AS is_newest,
           position::text::bigint AS first_transaction,
           pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_transaction,
           (SELECT created_at FROM outbox ORDER BY history, position LIMIT 1) AS first_at
    FROM history_start
)
SELECT group_id,
       CASE WHEN deleted_at IS NOT NULL THEN 'deleted without its event'
            WHEN conversation.conversation_id IS NULL THEN 'group without its conversation'
            WHEN conversation.kind <> 'group' THEN 'conversation of another kind'
            WHEN is_owned IS NOT TRUE THEN 'group without its owner as a member'
            WHEN chat_group.revision = 0 THEN 'group without its event'
            ELSE 'change without its event' END AS what
FROM chat_group
LEFT JOIN conversation USING (conversation_id)
LEFT JOIN (SELECT conversation_id, array_agg(user_id) AS owner_ids FROM conversation_member
           WHERE role = 'owner' GROUP BY conversation_id) AS owned USING (conversation_id)
CROSS JOIN LATERAL (
    SELECT owner_id = ANY (owner_ids) OR (chat_group.revision > 0 AND owner_ids IS NOT NULL) AS is_owned
) AS owner
-- A revision that is none was written by hand.
LEFT JOIN (SELECT subject,
                  max(coalesce(substring(change ->> 'revision' FROM '^[0-9]{1,9}$')::integer, 0)) AS revision
           FROM outbox GROUP BY subject) AS event ON event.subject = chat_group.group_id
CROSS JOIN LATERAL (SELECT coalesce(deleted_at, changed_at, chat_group.created_at) AS at) AS changed
WHERE chat_group.conversation_id IS NOT NULL
      AND (conversation.conversation_id IS NULL OR conversation.kind <> 'group'
           OR is_owned IS NOT TRUE)
   OR (coalesce(event.revision < chat_group.revision, true) AND changed.at
       > coalesce($3::timestamptz, clock_timestamp()) - make_interval(days => $2)
       AND failure_code IS NULL
       AND (SELECT is_whole
            OR is_newest AND next_transaction - age(chat_group.xmin) >= first_transaction
               AND changed.at >= coalesce(first_at, '-infinity')
            -- A time to come is one of a clock that was ahead: it says nothing of the log's start. Once it
            -- has come, nothing tells it from the others, and the group is reported for $2 days.
            OR NOT is_newest AND changed.at >= first_at
               AND changed.at <= coalesce($3::timestamptz, clock_timestamp())
            FROM start))
LIMIT $1;

-- name: check_conversations
-- G5: group conversations that belong to no group.
SELECT conversation_id AS group_id, 'conversation without a group' AS what
FROM conversation
LEFT JOIN chat_group USING (conversation_id)
WHERE kind = 'group' AND chat_group.group_id IS NULL
LIMIT $1;

-- name: check_members
-- G5: conversations that are gone and have members. Where the triggers of `conversation` are disabled,
-- nothing deletes them with it.
SELECT DISTINCT conversation_id AS group_id, 'members without a conversation' AS what
FROM conversation_member
WHERE NOT EXISTS (SELECT FROM conversation
                  WHERE conversation.conversation_id = conversation_member.conversation_id)
LIMIT $1;

-- name: check_events
-- G5, G8: events without a group, a second one of the same group and change, or one whose content
-- contradicts its group. The log may still have the event of a group that was deleted and created
-- again: it has another conversation, beside the event of the present one. The members may have
-- changed since, so only the one who has created the group is compared. A tombstone has nothing to be
-- compared; that of a failed attempt never had an event. One ahead of the server was written by hand: no
-- reader has it until its position is reached.
SELECT subject AS group_id,
       CASE WHEN is_ahead THEN 'event at a position that this server has not reached'
            WHEN is_there IS NOT TRUE THEN 'event without a group'
            WHEN events_count > 1 THEN 'group with more than one event'
            WHEN is_untrue THEN 'event of its deletion, but the group is there'
            WHEN has_own IS NOT TRUE THEN 'event names another conversation than its group'
            ELSE 'event names another owner than its group' END AS what
FROM (SELECT subject, coalesce(change ->> 'owner_id', recipients[1]) AS event_owner_id, owner_id,
             count(*) OVER (PARTITION BY subject, outbox.conversation_id, event_type,
                                             change -> 'revision')
                 AS events_count,
             bool_or(outbox.conversation_id = chat_group.conversation_id)
                 OVER (PARTITION BY subject) OR deleted_at IS NOT NULL AS has_own,
             event_type = 'group.deleted' AND outbox.conversation_id = chat_group.conversation_id
                 AS is_untrue,
             -- As `unreached` of outbox_present, which joins by loops.
             (history, position) >= (
                 SELECT number, CASE WHEN server_started_at = pg_postmaster_start_time()
                                     THEN pg_snapshot_xmax(pg_current_snapshot())
                                     ELSE '9223372036854775807' END
                 FROM outbox_history ORDER BY number DESC LIMIT 1) AS is_ahead,
             chat_group.failure_code IS NULL AND chat_group.group_id IS NOT NULL AS is_there
      FROM outbox LEFT JOIN chat_group ON chat_group.group_id = subject) AS event
WHERE events_count > 1 OR has_own IS NOT TRUE OR owner_id <> event_owner_id
   OR is_there IS NOT TRUE OR is_untrue OR is_ahead
LIMIT $1;

-- name: check_changes
-- G8: groups of whose events the log lacks some between others, or the first ones although they
-- cannot have been truncated (as in check_groups: $2 are the days of the retention, $3 is now). Changes
-- of a group wait for each other and the log is truncated from its beginning, so of a group's events
-- it has the last ones, without a gap. Only the number of changes is compared: what a host has changed
-- is right.
WITH start AS MATERIALIZED (
    SELECT position = '0' AS is_whole,
           (SELECT created_at FROM outbox ORDER BY history, position LIMIT 1) AS first_at
    FROM history_start
)
SELECT group_id, CASE WHEN newest > revision THEN 'event of a change that its group has not had'
                      ELSE 'change without its event' END AS what
FROM chat_group
JOIN (SELECT conversation_id, min(number) AS oldest, max(number) AS newest,
             count(DISTINCT number) AS kept
      FROM (SELECT conversation_id,
                   coalesce(substring(change ->> 'revision' FROM '^[0-9]{1,9}$')::integer, 0) AS number
            FROM outbox) AS event
      GROUP BY conversation_id) AS events USING (conversation_id)
WHERE newest > revision OR kept <= newest - oldest
   OR (oldest > 0 AND (SELECT is_whole OR chat_group.created_at >= first_at
                                      AND chat_group.created_at <= coalesce($3, clock_timestamp())
                       FROM start)
       AND chat_group.created_at
           > coalesce($3::timestamptz, clock_timestamp()) - make_interval(days => $2))
LIMIT $1;

-- name: check_counts
-- How much is checked: first, as it fails where a partition of the log is detached, and locks all of them until
-- the end. Groups would be reported that lack their events.
SELECT (SELECT count(*) FROM attempt) AS attempts,
       (SELECT count(conversation_id) FROM chat_group) AS groups,
       (SELECT count(*) FROM outbox) AS events
WHERE plan_whole_log_1() AND require_whole_log_1();
