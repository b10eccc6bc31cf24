-- A connection of a host's pool.

-- name: look_at_session
-- Read which of our tables $1 are hidden by temporary relations of the session, which are found first:
-- what is written would go into them, and with the session. None where pg_temp ends the search_path. Also
-- in which of them policies may hide rows from the role; and if so, whether it is another than the one
-- that has connected. No row where all is well: codecs of the host's would read it. If the process is $2,
-- have statements fail from which row-level security would hide rows, until the pool resets the session: a
-- pooler's session, of which the driver has another process, is not ours alone.
WITH session AS MATERIALIZED (
    SELECT (SELECT string_agg(name, ', ' ORDER BY name)
            FROM unnest($1::text[]) AS name JOIN pg_class ON pg_class.oid = to_regclass(name)
            WHERE pg_my_temp_schema() <> 0 AND relnamespace = pg_my_temp_schema()) AS hidden,
           (SELECT string_agg(name, ', ' ORDER BY name) FROM unnest($1::text[]) AS name
            WHERE row_security_active(to_regclass(name))) AS filtered,
           CASE WHEN pg_backend_pid() = $2 THEN set_config('row_security', 'off', false) END
)
SELECT hidden, filtered, quote_ident(current_user) AS role,
       current_user <> (SELECT usesysid::regrole::name
                        FROM pg_stat_get_activity(pg_backend_pid())) AS is_other_role
FROM session
WHERE hidden IS NOT NULL OR filtered IS NOT NULL;
