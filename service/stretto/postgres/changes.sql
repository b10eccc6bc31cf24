-- Changes of a group after its creation, in a transaction of the host's.
--
-- Each fails where our tables are not all found in the schema that has chat_group, and says so where the routines
-- are not. It also says in which tables policies may hide rows from the role, of those that it reads; these stay
-- locked, so that none are switched on meanwhile. The outbox is only written: a row that a policy forbids is an error.

-- name: lock_group
-- Lock the group $1 until the host's transaction ends; it is not there if it was deleted. A statement that waits
-- for a lock does not see what was committed meanwhile, so the change is another one, which does. Where the
-- transaction would commit without a flush, it flushes: readers of the log take the commit of a visible event
-- for one that a crash does not undo. Return a value of each type that the change returns, and whether those
-- of the types that it takes have arrived unchanged.
WITH home AS MATERIALIZED (
    SELECT relnamespace::regnamespace::text AS name FROM pg_class WHERE oid = to_regclass('chat_group')
), locked AS MATERIALIZED (
    SELECT FROM chat_group
    WHERE group_id = $1 AND conversation_id IS NOT NULL
    FOR NO KEY UPDATE
)
SELECT EXISTS (SELECT FROM locked) AS is_there,
       CASE current_setting('synchronous_commit')
           WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flushed,
       'a'::text AS text, '{a}'::text[] AS texts, 7::int4 AS number,
       ($2::text, $3::text[], $4::boolean, $5::bigint)
           = ('a'::text, ARRAY['a', NULL], true, 7::bigint) AS is_sent,
       (SELECT string_agg(name, ', ' ORDER BY name)
        FROM unnest('{chat_group, conversation, conversation_member, outbox_history, outbox_slot}'::text[])
                 AS name
            LEFT JOIN (SELECT FROM conversation, conversation_member, outbox_history, outbox_slot LIMIT 0)
                AS mentioned ON true
        WHERE row_security_active(to_regclass(name))) AS filtered,
       quote_ident(current_user) AS role,
       (SELECT string_agg(name, ', ')
        FROM unnest('{present_history_1, require_home_1}'::text[]) AS name
        WHERE to_regproc(name) IS DISTINCT FROM to_regproc(home.name || '.' || name)) AS elsewhere
FROM home
WHERE require_home_1(home.name, '') = '';

-- name: change_group
-- Change the locked group $1, and write the event $2 of the type $3 about it, which goes to the members
-- before and after. $4 is the new name (null: as it is), $5 whether there is a new description, $6 the
-- description. $7 are users, $8 the role that each is to have; null: to be no member. Who is added has a
-- role already or gets this one. What is so already is no change; without any, and where the change is
-- refused, nothing is written. $9 are the members that a group may have.
WITH here AS MATERIALIZED (
    SELECT *, coalesce($4::text, name) AS new_name,
           CASE WHEN $5::boolean THEN $6::text ELSE description END AS new_description
    FROM chat_group WHERE group_id = $1
), before AS MATERIALIZED (
    SELECT user_id, role FROM conversation_member
    WHERE conversation_id = (SELECT conversation_id FROM here)
), wanted AS MATERIALIZED (
    SELECT user_id, wanted.role, before.role AS old_role
    FROM unnest($7::text[], $8::text[]) AS wanted (user_id, role) LEFT JOIN before USING (user_id)
), changed AS MATERIALIZED (
    SELECT * FROM wanted
    WHERE CASE WHEN $3::text = 'group.members_added' THEN old_role IS NULL
               ELSE old_role IS NOT NULL AND old_role IS DISTINCT FROM role END
), counts AS MATERIALIZED (
    SELECT (SELECT count(*) FROM before) + count(*) FILTER (WHERE old_role IS NULL)
               - count(*) FILTER (WHERE role IS NULL) AS members,
           (SELECT count(*) FROM before WHERE role = 'owner')
               + count(*) FILTER (WHERE role = 'owner')
               - count(*) FILTER (WHERE old_role = 'owner') AS owners,
           count(*) FILTER (WHERE old_role IS NULL) AS added,
           count(*) FILTER (WHERE old_role = 'owner') AS owners_left
    FROM changed
), verdict AS MATERIALIZED (
    SELECT CASE WHEN added > 0 AND members > $9::bigint THEN 'too_many_members'
                WHEN owners_left > 0 AND owners < 1 THEN 'last_owner'
                WHEN $3 = 'group.role_changed' AND EXISTS (SELECT FROM wanted WHERE old_role IS NULL)
                    THEN 'not_a_member' END AS refusal
    FROM counts
), change AS MATERIALIZED (
    SELECT here.*, members
    FROM here, counts, verdict
    WHERE refusal IS NULL
      AND (EXISTS (SELECT FROM changed)
           OR (new_name, new_description) IS DISTINCT FROM (name, description))
), revised AS (
    UPDATE chat_group
    SET name = change.new_name, description = change.new_description,
        revision = change.revision + 1, changed_at = clock_timestamp()
    FROM change WHERE chat_group.group_id = change.group_id
    RETURNING chat_group.revision
), added AS (
    INSERT INTO conversation_member (conversation_id, user_id, role)
    SELECT conversation_id, user_id, role FROM change, changed WHERE old_role IS NULL
    RETURNING true
), removed AS (
    DELETE FROM conversation_member AS member USING change, changed
    WHERE member.conversation_id = change.conversation_id AND member.user_id = changed.user_id
      AND changed.role IS NULL
    RETURNING true
), given AS (
    UPDATE conversation_member AS member SET role = changed.role FROM change, changed
    WHERE member.conversation_id = change.conversation_id AND member.user_id = changed.user_id
      AND changed.old_role IS NOT NULL AND changed.role IS NOT NULL
    RETURNING true
), event AS (
    INSERT INTO outbox (slot, history, event_id, event_type, subject, conversation_id, recipients,
                        group_name, group_kind, metadata, change)
    SELECT (SELECT slot FROM outbox_slot ORDER BY number DESC LIMIT 1), present_history_1(),
           $2::uuid, $3, group_id, conversation_id,
           ARRAY(SELECT user_id FROM before UNION SELECT user_id FROM changed ORDER BY user_id),
           new_name, group_kind, metadata,
           jsonb_build_object('revision', revised.revision, 'owner_id', owner_id,
                              'members_count', members)
               || CASE WHEN $3 = 'group.renamed'
                       THEN jsonb_build_object('description', new_description)
                       ELSE jsonb_build_object('members', (
                           SELECT jsonb_agg(jsonb_build_object(
                                      'user_id', user_id, 'role', coalesce(role, old_role))
                                      ORDER BY user_id)
                           FROM changed)) END
    FROM change, revised
    RETURNING true
)
SELECT refusal, (SELECT revision FROM revised) AS revision,
       ARRAY(SELECT user_id FROM changed ORDER BY user_id COLLATE "C") AS users,
       (SELECT count(*) FROM change) = (SELECT count(*) FROM event)
           AND (SELECT count(*) FROM changed, change)
               = (SELECT count(*) FROM added) + (SELECT count(*) FROM removed)
                 + (SELECT count(*) FROM given) AS is_whole
FROM verdict;

-- name: delete_group
-- Delete the group $1 of any owner; the event's id is $2. Return a row; none if it was deleted before, or where
-- there is no such group. All that a host's codec could read in another way is null, unless nothing was done.
WITH home AS MATERIALIZED (
    SELECT relnamespace::regnamespace::text AS name FROM pg_class WHERE oid = to_regclass('chat_group')
), session AS MATERIALIZED (
    SELECT (SELECT string_agg(name, ', ' ORDER BY name)
            FROM unnest('{attempt, chat_group, conversation, conversation_member, outbox_history,
                          outbox_slot}'::text[]) AS name
                LEFT JOIN (SELECT FROM attempt, chat_group, conversation, conversation_member,
                                       outbox_history, outbox_slot LIMIT 0) AS mentioned ON true
            WHERE row_security_active(to_regclass(name))) AS filtered,
           (SELECT string_agg(name, ', ')
            FROM unnest('{delete_group_1, present_history_1, require_home_1}'::text[]) AS name
            WHERE to_regproc(name) IS DISTINCT FROM to_regproc(home.name || '.' || name))
               AS elsewhere
    FROM home
    WHERE require_home_1(home.name, '') = ''
), deletion AS MATERIALIZED (
    SELECT *, CASE WHEN filtered IS NULL AND elsewhere IS NULL
                   THEN delete_group_1($1, NULL, $2, NULL) END AS is_deleted
    FROM session
)
SELECT filtered, elsewhere, CASE WHEN filtered IS NOT NULL THEN quote_ident(current_user) END AS role
FROM deletion
WHERE is_deleted OR filtered IS NOT NULL OR elsewhere IS NOT NULL;
