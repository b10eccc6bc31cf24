-- The leader's transaction around a host's hook.

-- name: session
-- Read which transaction this is, and what a host's hook may leave in a session: roles, settings
-- (except those of the transaction, the lock time-out, which each write sets, and names that only
-- the host knows), locks, temporary tables, statements, cursors. Of the settings only what was set in
-- the session to another value than RESET would give: a reload of the server's configuration changes
-- the others, and a library adds some. A lead sets synchronous_commit for its transaction, to `on`
-- where it is off and else to the value that it has (lead_groups_4).
SELECT pg_current_xact_id_if_assigned()::text AS transaction_id,
       current_setting('synchronous_commit') AS durability,
       session_user::text, current_user::text,
       (SELECT md5(string_agg(name || '=' || setting, ',' ORDER BY name)) FROM pg_settings
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

-- name: commit_durably
-- Have this transaction's commit wait for the disk as $1 says, whatever a host's hook has set: an
-- outcome is reported only when it is durable.
SELECT set_config('synchronous_commit', $1, true);

-- name: transaction_status
-- Read how the transaction $1 has ended.
SELECT pg_xact_status($1::text::xid8);

-- name: unlock_session
-- Release the advisory locks that a host's hook has taken in a session that is not ours.
SELECT pg_advisory_unlock_all();
