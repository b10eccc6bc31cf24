-- What a session was before a trigger, a hook or a handler of the host's has changed it. Settings are read
-- by pg_show_all_settings(), behind the view pg_settings, from which a hardened server may have taken SELECT.

-- name: session_state
-- Read which transaction this is, and what a host's hook may leave in a session: roles, settings
-- (except those of the transaction, the lock time-out, which each write sets, and names that only
-- the host knows), locks, temporary tables, statements, cursors. Of the settings only what was set in
-- the session to another value than RESET would give: a reload of the server's configuration changes
-- the others, and a library adds some. A lead sets synchronous_commit for its transaction, to `on`
-- where it is off and else to the value that it has (lead_groups_4).
SELECT pg_current_xact_id_if_assigned()::text AS transaction_id,
       current_setting('synchronous_commit') AS durability,
       current_setting('client_min_messages') AS messages,
       session_user::text, current_user::text,
       (SELECT md5(string_agg(name || '=' || setting, ',' ORDER BY name)) FROM pg_show_all_settings()
        WHERE source = 'session'
          AND setting IS DISTINCT FROM CASE
              WHEN name = 'synchronous_commit' AND reset_val = 'off' THEN 'on' ELSE reset_val END
          AND name NOT IN ('transaction_isolation', 'transaction_read_only',
                           'transaction_deferrable', 'lock_timeout')) AS settings,
       (SELECT count(*) FROM pg_locks
        WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks,
       (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()) AS temporary,
       (SELECT count(*) FROM pg_prepared_statements WHERE from_sql) AS statements,
       (SELECT count(*) FROM pg_cursors WHERE is_holdable) AS cursors;

-- name: run_deferred
-- Have what is deferred to the end of the transaction run now.
SET CONSTRAINTS ALL IMMEDIATE;

-- name: session_settings
-- Read what set_back_session sets.
SELECT current_setting('search_path') AS path, current_setting('role') AS role,
       current_setting('synchronous_commit') AS durability,
       current_setting('client_min_messages') AS messages;

-- name: set_back_session
-- Set for the session the search_path $1, the role $2, what commits wait for, $3, and which messages the
-- server sends, $4; and for this transaction that its commit is flushed, as a lead's (lead_groups_4), or
-- waits for nothing.
SELECT set_config('search_path', $1, false), set_config('role', $2, false),
       set_config('synchronous_commit', $3, false), set_config('client_min_messages', $4, false),
       set_config('synchronous_commit',
                  CASE WHEN $5 THEN coalesce(nullif($3, 'off'), 'on') ELSE 'off' END, true);

-- name: is_session_changed
-- Ask whether the session has another search_path, role, time-out or isolation than it was opened with, or
-- temporary tables, which are found first. SET SESSION AUTHORIZATION leaves the setting `role` as it was:
-- the role is compared with the one that has connected.
SELECT pg_my_temp_schema() <> 0
       OR EXISTS (SELECT FROM pg_stat_get_activity(pg_backend_pid())
                  WHERE usesysid::regrole::text <> quote_ident(current_user)
                     OR usesysid::regrole::text <> quote_ident(session_user))
       OR EXISTS (SELECT FROM pg_show_all_settings()
                  WHERE name IN ('search_path', 'statement_timeout', 'lock_timeout',
                                 'default_transaction_isolation', 'session_replication_role')
                    AND setting IS DISTINCT FROM reset_val);
