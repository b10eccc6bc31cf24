-- A connection of a host's pool.

-- name: look_at_session
-- Read which of our tables $1 are hidden by temporary relations of the session, which are found first:
-- what is written would go into them, and with the session. None where pg_temp ends the search_path. Also
-- in which of them policies may hide rows from the role; and to which schemas the tables, and the routines
-- $3, lead instead of the schema $4, if that is given: PostgreSQL passes over what the role may not use.
-- Whether they lead nowhere, although that schema has them. Then, whether the role is another than the
-- one that has connected. No row where all is well: codecs of the host's would read it. If the process is
-- $2, have statements fail from which row-level security would hide rows, until the pool resets the
-- session: a pooler's session, of which the driver has another process, is not ours alone.
WITH session AS MATERIALIZED (
    SELECT (SELECT string_agg(name, ', ' ORDER BY name)
            FROM unnest($1::text[]) AS name JOIN pg_class ON pg_class.oid = to_regclass(name)
            WHERE pg_my_temp_schema() <> 0 AND relnamespace = pg_my_temp_schema()) AS hidden,
           (SELECT string_agg(name, ', ' ORDER BY name) FROM unnest($1::text[]) AS name
            WHERE row_security_active(to_regclass(name))) AS filtered,
           -- Subqueries, which use the indexes: a join would go through all of pg_class.
           (SELECT string_agg(DISTINCT namespace::regnamespace::text, ', ')
            FROM (SELECT (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(name))
                  FROM unnest($1::text[]) AS name
                  UNION ALL SELECT (SELECT pronamespace FROM pg_proc WHERE oid = to_regproc(name))
                  FROM unnest($3::text[]) AS name) AS found (namespace)
            -- That of no schema, if there is none of this name any more.
            WHERE $4::text IS NOT NULL
              AND namespace <> (SELECT coalesce(to_regnamespace($4)::oid, 0))) AS elsewhere,
           -- The first table stands for all. It is looked for in its schema only where nothing was found.
           CASE WHEN to_regclass(($1::text[])[1]) IS NULL
                THEN EXISTS (SELECT FROM pg_class WHERE relname = ($1::text[])[1]
                             AND relnamespace = to_regnamespace($4::text)) END AS is_astray,
           CASE WHEN pg_backend_pid() = $2 THEN set_config('row_security', 'off', false) END
)
SELECT hidden, filtered, elsewhere, is_astray, quote_ident(current_user) AS role,
       quote_ident(current_user) <> (SELECT usesysid::regrole::text
                                     FROM pg_stat_get_activity(pg_backend_pid())) AS is_other_role
FROM session
WHERE hidden IS NOT NULL OR filtered IS NOT NULL OR elsewhere IS NOT NULL OR is_astray;
