-- Groups that their owners delete.

-- name: bound_statements
-- Have each further statement of this transaction end after $1. That is the deletion, and what triggers have
-- deferred with it: no time-out of the server's bounds what runs at the commit.
SELECT set_config('statement_timeout', $1, true);

-- name: delete_group_of_owner
-- Delete the group $1 for its owner $2; the event's id is $3, the request's trace $4. Return true; false
-- if it was deleted before; null where this owner has no such group. Wait at most $5 for each lock: the
-- call in FROM comes first.
SELECT delete_group_at_once_1($1, $2, $3, $4) AS is_deleted
FROM set_config('lock_timeout', $5, true);
