-- Groups that their owners delete.

-- name: bound_statements
-- Have each further statement of this transaction end after $1. That is the deletion, and what triggers have
-- deferred with it: no time-out of the server's bounds what runs at the commit.
SELECT set_config('statement_timeout', $1, true);

-- name: delete_group_of_owner
-- Delete the group $1 for its owner $2; the event's id is $3, the request's trace $4. Return true; false
-- if it was deleted before; null where this owner has no such group. Wait at most $5 for each lock: the
-- call in FROM comes first. It fails where the session leads to another schema than ours, as a claim does
-- (writes.sql). Also in which tables policies may hide rows from the role, once the routine has locked them:
-- no setting has it fail for that, and the owner's group would look as if it did not exist, or its attempt
-- would stay.
SELECT delete_group_at_once_1($1, $2, $3, $4) AS is_deleted,
       (SELECT string_agg(name, ', ' ORDER BY name)
        FROM unnest('{attempt, chat_group, conversation, conversation_member}'::text[]) AS name
        WHERE row_security_active(to_regclass(name))) AS filtered,
       quote_ident(current_user) AS role
FROM set_config('lock_timeout', require_home_1(NULL, $5), true);
