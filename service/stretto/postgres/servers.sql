-- Which server a writer's connection leads to.

-- name: server
-- Identify the server and its last start: a promoted standby has another start, and so has a
-- restored primary. Also read the number of the newest history, whether it was begun elsewhere, and
-- what the session's commits wait for.
SELECT system_identifier::text || '/' || extract(epoch FROM here.started_at)::text AS server, newest.number,
       (newest.server_started_at, newest.table_id) <> (here.started_at, here.table_id)
           AS is_elsewhere,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('client_min_messages') AS client_min_messages,
       quote_ident(current_user) AS role, quote_ident(current_database()) AS database
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
