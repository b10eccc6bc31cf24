-- What members read of their groups.

-- name: group_of_member
-- Read groups by id ($1), each if its user ($2) is a member of it, or is null; no tombstones. `number`
-- is the question's number. LIMIT 1 makes the planner use the keys, as in look.
SELECT number, chat_group.group_id, conversation_id, owner_id, name, description, group_kind AS kind,
       metadata::text AS metadata_text, created_at,
       (SELECT count(*) FROM conversation_member AS member
        WHERE member.conversation_id = chat_group.conversation_id) AS members_count
FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS wanted (group_id, user_id, number)
CROSS JOIN LATERAL (
    SELECT * FROM chat_group WHERE group_id = wanted.group_id LIMIT 1
) AS chat_group
-- No EXISTS, which might be planned as a hash of all members.
WHERE wanted.user_id IS NULL AND conversation_id IS NOT NULL
   OR (SELECT true FROM conversation_member AS member
       WHERE member.conversation_id = chat_group.conversation_id
         AND member.user_id = wanted.user_id
       LIMIT 1);

-- name: groups_of_member
-- Read pages of users' groups, newest first: of each user ($1) up to $3 after the conversation id
-- that the last page ended on ($2; null for the first page). `number` is the question's number.
SELECT number, page.*
FROM unnest($1::text[], $2::uuid[], $3::int[]) WITH ORDINALITY
         AS wanted (user_id, after, groups_max, number)
CROSS JOIN LATERAL (
    SELECT chat_group.group_id, conversation_id, owner_id, name, description, group_kind AS kind,
           metadata::text AS metadata_text, created_at,
           (SELECT count(*) FROM conversation_member AS member
            WHERE member.conversation_id = chat_group.conversation_id) AS members_count
    FROM conversation_member
    JOIN chat_group USING (conversation_id)
    WHERE conversation_member.user_id = wanted.user_id
      -- An index condition also for the first page: no id is as large as this one.
      AND conversation_id < coalesce(after, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    ORDER BY conversation_id DESC
    LIMIT groups_max
) AS page
ORDER BY number, conversation_id DESC;

-- name: groups_of_owner
-- Read a page of the groups that a user is an owner of, newest first, as groups_of_member does.
SELECT chat_group.group_id, conversation_id, owner_id, name, description, group_kind AS kind,
       metadata::text AS metadata_text, created_at,
       (SELECT count(*) FROM conversation_member AS member
        WHERE member.conversation_id = chat_group.conversation_id) AS members_count
FROM conversation_member
JOIN chat_group USING (conversation_id)
WHERE user_id = $1 AND role = 'owner' AND ($2::uuid IS NULL OR conversation_id < $2)
ORDER BY conversation_id DESC
LIMIT $3;

-- name: members_of_group
-- Read pages of groups' members by user id: of each group ($1), if its user ($2) is a member of it, or is
-- null, up to $4 after the user id that the last page ended on ($3; null for the first page). `number` is
-- the question's number. A group that has no more members has a row without one; no row says that there
-- is no such group for that user. Asked apart, the group might be deleted in between, and its list end early.
SELECT number, page.*
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::int[]) WITH ORDINALITY
         AS wanted (group_id, member_id, after, members_max, number)
CROSS JOIN LATERAL (
    SELECT conversation_id FROM chat_group WHERE group_id = wanted.group_id LIMIT 1
) AS chat_group
LEFT JOIN LATERAL (
    SELECT user_id, role, joined_at
    FROM conversation_member AS member
    WHERE member.conversation_id = chat_group.conversation_id
      AND user_id COLLATE "C" > coalesce(after, '') COLLATE "C"
    ORDER BY user_id COLLATE "C"
    LIMIT members_max
) AS page ON true
WHERE wanted.member_id IS NULL AND conversation_id IS NOT NULL
   OR (SELECT true FROM conversation_member AS member
       WHERE member.conversation_id = chat_group.conversation_id
         AND member.user_id = wanted.member_id
       LIMIT 1)
ORDER BY number, user_id COLLATE "C";
