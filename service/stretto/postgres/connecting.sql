-- A new connection: does it take writes, how long may a transaction be, are rows hidden from it, and which
-- server is it?

-- name: is_read_only
-- Ask whether the server refuses writes of this session: a standby, or
-- default_transaction_read_only.
SELECT current_setting('transaction_read_only')::boolean AS is_read_only;

-- name: set_up_session
-- Have the session's transactions end after $1 (0: never), where the server knows such a bound, and be
-- warned of a commit that was not waited for; with $2, have statements fail from which row-level security
-- would hide rows. It needs no right: pg_settings is a view, which a hardened server may keep from a role.
SELECT CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', $1, false) END,
       set_config('client_min_messages', 'notice', false),
       CASE WHEN $2::boolean THEN set_config('row_security', 'off', false) END;

-- name: primary
-- Read which system this is, and its timeline. That of pg_control_checkpoint() is the old one for some time
-- after a promotion.
SELECT system_identifier::text AS system,
       left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) AS timeline
FROM pg_control_system();
